"""The log as DataFrames: one Spark data source, `ropewalk`, over live brokers or over store directories.

    import ropewalk.spark
    from ropewalk.spark.session import session

    spark = session()                      # registers the source; for a session of your own: register(spark)
    frame = spark.read.format("ropewalk").option("mode", "store").load("/var/lib/broker/store")

`schema` says which columns there are, `options` which options; both are plain Python. `decode` turns bytes of a log
into Arrow record batches with numpy and knows nothing of Spark. `store.files` looks at a store directory and cuts it
into splits, `safe_end` says how far it may be read, `store.source` is the reader Spark calls. `session` and `jvm` get
a session started on a machine where pip was the only installer.

Nothing is found by itself: a session knows the name `ropewalk` after `register`, and tasks check that their worker
carries the same Ropewalk as the driver (`versions`). Nothing heavy is imported here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["lake", "read", "register"]


def register(spark: SparkSession) -> None:
    """Register `format("ropewalk")` in this session. Doing it again is harmless."""
    from ropewalk.spark.source import RopewalkSource

    spark.dataSource.register(RopewalkSource)


def read(
    spark: SparkSession,
    topic: str | Iterable[str] | None = None,
    *,
    name_server: str | None = None,
    store: str | None = None,
    since: datetime | str | int | None = None,
    until: datetime | str | int | None = None,
    queues: Mapping[str, Iterable[int]] | None = None,
    tags: Iterable[str] | None = None,
    **options: str,
) -> DataFrame:
    """Read topics as a batch, live by `name_server` or from the directory `store`, into a DataFrame.

    What would be `where` conditions elsewhere are arguments here, because Spark hands no conditions down that could be
    relied on: `since` and `until` bound the store time (until is exclusive), `queues` names queue ids for each broker
    of one topic, `tags` the tags. Everything else is an option of the format under its own name.
    """
    topics = [topic] if isinstance(topic, str) else list(topic or ())
    given = dict(options)
    if store is not None:
        given |= {"mode": "store", "path": store}
    if name_server is not None:
        given["nameServer"] = name_server
    if queues is not None:
        if len(topics) != 1:
            raise ValueError("queues are of one topic: name exactly one")
        given["assign"] = json.dumps({topics[0]: {name: list(ids) for name, ids in queues.items()}})
    elif topics:
        given["topic"] = ",".join(topics)
    if since is not None:
        given["startingTimestamp"] = str(since)
    if until is not None:
        given["endingTimestamp"] = str(until)
    if tags is not None:
        given["filterTags"] = " || ".join(tags)
    register(spark)
    return spark.read.format("ropewalk").options(**given).load()


def lake(spark: SparkSession, directory: str) -> DataFrame:
    """Read a lake of `ropewalk pipeline export` by its manifest: whole batches, also while an export runs.

    `spark.read.parquet(directory)` sees the files of a batch that is being committed one after the other.
    """
    from ropewalk.spark.jobs.common.tasks import SparkTasks
    from ropewalk.spark.jobs.export.job import lake_frame

    return lake_frame(SparkTasks(spark), directory)
