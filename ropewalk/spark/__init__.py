"""The log as DataFrames: one Spark data source, `ropewalk`, over live brokers or over store directories.

    import ropewalk.spark
    from ropewalk.spark.session import session

    spark = session()                      # registers the source; for a session of your own: register(spark)
    frame = spark.read.format("ropewalk").option("mode", "store").load("/var/lib/broker/store")

`schema` says which columns there are, `options` which options; both are plain Python. `decode` turns bytes of a log
into Arrow record batches with numpy and knows nothing of Spark. `store_files` looks at a store directory and cuts it
into splits, `safe_end` says how far it may be read, `store_source` is the reader Spark calls. `session` and `jvm` get
a session started on a machine where pip was the only installer.

Nothing is found by itself: a session knows the name `ropewalk` after `register`, and tasks check that their worker
carries the same Ropewalk as the driver (`versions`). Nothing heavy is imported here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Make `format("ropewalk")` known to this session. Doing it again is harmless."""
    from ropewalk.spark.source import RopewalkSource

    spark.dataSource.register(RopewalkSource)
