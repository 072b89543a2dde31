"""A session that counts with its script's interpreter, the package's front door, and times in the session's zone."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pytest

import ropewalk.spark
from ropewalk.spark.zones import UnknownZone, zone_of
from tests.spark.stores import START_MS, MadeStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_session_counts_with_the_interpreter_of_its_script(spark: SparkSession) -> None:
    def executable(_: object) -> str:
        return sys.executable

    assert spark.sparkContext.parallelize([1], 1).map(executable).collect() == [sys.executable]


def test_an_unknown_option_is_refused_with_the_nearest_one(spark: SparkSession) -> None:
    with pytest.raises(Exception, match=r"there is no option 'splitbyte'; did you mean splitBytes\?"):
        spark.read.format("ropewalk").option("mode", "store").option("splitByte", "1m").load("/nowhere")


def test_the_package_offers_what_a_script_begins_with() -> None:
    from ropewalk.spark import json_bodies, lake, read, register, session

    assert all(callable(one) for one in (json_bodies, lake, read, register, session))
    import ropewalk.spark.spark_session  # and its modules take none of these names

    assert ropewalk.spark.session is session


def test_times_without_a_zone_are_of_the_sessions(spark: SparkSession, tmp_path: Path) -> None:
    MadeStore(tmp_path).fill(40)
    moment = datetime.fromtimestamp(START_MS / 1000, UTC) + timedelta(milliseconds=21)

    def count(since: datetime | str | int) -> int:
        return ropewalk.spark.read(spark, store=str(tmp_path), since=since, endAt="scan").count()

    assert count(moment) == count(round(moment.timestamp() * 1000)) == 20
    assert count(moment.replace(tzinfo=None)) == 20
    assert count(moment + timedelta(hours=1)) == 0  # behind the last message
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        in_tokyo = moment.astimezone(ZoneInfo("Asia/Tokyo")).replace(tzinfo=None)
        assert count(in_tokyo) == count(in_tokyo.isoformat()) == count(moment) == 20
        assert count(moment.replace(tzinfo=None)) == 40  # nine hours before
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    with pytest.raises(Exception, match="it has no zone, and which one is meant"):
        naive = moment.replace(tzinfo=None).isoformat()
        spark.read.format("ropewalk").option("mode", "store").option("since", naive).load(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "hours"), [("UTC", 0), ("Z", 0), ("+02:00", 2), ("GMT+8", 8), ("UTC-03:30", -3.5), ("Asia/Tokyo", 9)]
)  # fmt: skip
def test_zones_are_written_as_spark_writes_them(name: str, hours: float) -> None:
    assert datetime(2025, 6, 1, tzinfo=zone_of(name)).utcoffset() == timedelta(hours=hours)
    with pytest.raises(UnknownZone, match="give times with their zone"):
        zone_of("Mars/Olympus")
