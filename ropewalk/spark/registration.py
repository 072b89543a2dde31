"""Register the data source in a session, after a check that the session's workers can run it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register_source"]


def register_source(spark: SparkSession) -> None:
    """Register `format("ropewalk")` in this session. Raises WorkerMismatch. Blocks, where it probes an interpreter."""
    from ropewalk.spark.source import RopewalkSource
    from ropewalk.spark.workers import check_session

    check_session(spark)
    spark.dataSource.register(RopewalkSource)
