"""The log as DataFrames: one Spark data source, `ropewalk`, over live brokers or over store directories.

    from ropewalk.spark import lake, read, register, session

    spark = session()                                          # for a session of your own: register(spark)
    frame = spark.read.format("ropewalk").option("mode", "store").load("/var/lib/broker/store")

`schema` says which columns there are, `options` which options; both are plain Python. `decode` turns bytes of a log
into Arrow record batches with numpy and knows nothing of Spark. `store.files` looks at a store directory and cuts it
into splits, `safe_end` says how far it may be read, `store.source` is the reader Spark calls. `spark_session` and
`jvm` get a session started on a machine where pip was the only installer; `tables` is SQL's way in, `bodies` parses
JSON.

Nothing is found by itself: a session knows the name `ropewalk` after `register`, which checks that its workers run this
Python and this Ropewalk (`workers`); tasks check the version once more (`versions`). Nothing heavy is imported here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["json_bodies", "lake", "read", "register", "require_deterministic", "session"]


def session(master: str | None = None, **conf: str) -> SparkSession:
    """Start, or get, a session that knows `format("ropewalk")`.

    `conf` are Spark's settings, with `__` for each dot (`spark__ui__enabled="true"`) or as `**{"spark.ui.enabled": …}`.
    Without a master, Spark's own configuration decides, and `local[*]` if it says nothing. Raises SparkMissing and
    JavaMissing.
    """
    from ropewalk.spark.spark_session import session as start

    return start(master, **conf)


def register(spark: SparkSession) -> None:
    """Register `format("ropewalk")` in this session. Doing it again is harmless.

    Raises WorkerMismatch, before the first job, where the session's workers run an interpreter that cannot read it.
    """
    from ropewalk.spark.registration import register_source

    register_source(spark)


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
    of one topic, `tags` the tags. A time without a zone is of the session's zone (`spark.sql.session.timeZone`), as
    everywhere in Spark. Everything else is an option of the format under its own name.
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
    for name, moment in (("startingTimestamp", since), ("endingTimestamp", until)):
        if moment is not None:
            given[name] = _in_zone(spark, moment)
    if since is not None:  # there is nothing to read in a queue whose last message is older
        given.setdefault("startingOffsetsByTimestampStrategy", "latest")
    if tags is not None:
        given["filterTags"] = " || ".join(tags)
    register(spark)
    return spark.read.format("ropewalk").options(**given).load()


def _in_zone(spark: SparkSession, moment: datetime | str | int) -> str:
    """Return a time with its zone, which is the session's where none is given."""
    from datetime import datetime

    if isinstance(moment, str):
        try:
            moment = datetime.fromisoformat(moment.strip())
        except ValueError:
            return str(moment)  # milliseconds, or nothing that options know
    if isinstance(moment, datetime):
        from ropewalk.spark.zones import zone_of

        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=zone_of(str(spark.conf.get("spark.sql.session.timeZone"))))
        return moment.isoformat()
    return str(moment)


def lake(spark: SparkSession, directory: str) -> DataFrame:
    """Read a lake of `ropewalk pipeline export` by its manifest: whole batches, also while an export runs.

    `spark.read.parquet(directory)` sees the files of a batch that is being committed one after the other.
    """
    from ropewalk.spark.jobs.common.tasks import SparkTasks
    from ropewalk.spark.jobs.export.job import lake_frame

    return lake_frame(SparkTasks(spark), directory)


def json_bodies(
    frame: DataFrame, schema: str | StructType, *, column: str | None = None, malformed: str = "keep"
) -> DataFrame:
    """Replace the column of bodies by the fields of their JSON, by a schema such as "orderId BIGINT, name STRING".

    Fields that a body lacks are null. A body that is not JSON of the schema is kept as text in a further column
    `malformed`; `malformed="drop"` leaves such rows out, "fail" fails the query. Raises BadSchema.
    """
    from ropewalk.spark.bodies import parse_json

    return parse_json(frame, schema, column=column, malformed=malformed)


def require_deterministic(frame: DataFrame) -> DataFrame:
    """Return the frame, if its plan gives the same rows whenever it is run: what `delivery=exactly-once` relies on.

    Raises NotDeterministic, which names the expressions: rand(), uuid() and functions that are said to be so.
    """
    from ropewalk.spark.determinism import require_deterministic as judge

    return judge(frame)
