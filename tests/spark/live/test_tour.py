"""The programs of docs/tour/spark.md over live topics and a store, as they stand there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ropewalk import Producer
from ropewalk.client.core.messages import Message
from ropewalk.testing import RopewalkBroker
from tests.support.processes import checkout_command, checkout_environment, running_broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).parents[3] / "docs" / "tour" / "spark.md"
ADDRESS = "127.0.0.1:9876"


def programs() -> list[str]:
    """The Python blocks of the page, in order."""
    return re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)


def test_the_programs_read_stream_and_write_a_topic(
    spark: SparkSession,
    ropewalk_own_broker: RopewalkBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    broker = ropewalk_own_broker
    broker.topic("orders", queues=2)
    broker.topic("loud-orders", queues=2)
    broker.topic("exact-orders", queues=2)
    broker.topic("sql-orders", queues=2)
    for n in range(20):
        broker.send("orders", Message(b"order %d" % n, keys=f"o{n}", tags="paid" if n % 4 else "open"))
    # Spark's paths are relative to where its JVM was started; the lake is to lie in this test's folder.
    known: dict[str, Any] = {}
    monkeypatch.chdir(tmp_path)
    read, own, stream, write, exact, sql, _ = programs()
    for text in (read, own, stream, write, exact, exact, sql):
        moved = text.replace(ADDRESS, broker.namesrv).replace('"lake/', f'"{tmp_path}/lake/')
        exec(compile(moved, str(PAGE), "exec"), known)
        if text in (stream, exact):
            assert known["query"].exception() is None
            known["query"].stop()
    out = capfd.readouterr().out
    assert re.search(r"\|paid\|\s+15\|", out)
    assert re.search(r"\|open\|\s+5\|", out)
    lake = spark.read.parquet(str(tmp_path / "lake" / "orders"))
    assert sorted(bytes(row.body) for row in lake.collect()) == sorted(b"order %d" % n for n in range(20))
    loud = broker.messages("loud-orders", 20)
    assert sorted(record.body for record in loud) == sorted(b"ORDER %d" % n for n in range(20))
    once = broker.messages("exact-orders", 20)
    assert sorted(record.body for record in once) == sorted(b"ORDER %d" % n for n in range(20))
    for table in ("all_orders", "sql_orders"):
        spark.sql(f"DROP TABLE {table}")
    inserted = broker.messages("sql-orders", 21)
    assert sorted(r.body for r in inserted) == sorted([b"hello", *(b"order %d" % n for n in range(20))])
    assert {(r.properties["KEYS"], r.properties["TAGS"]) for r in loud if r.body == b"ORDER 4"} == {
        ("o4", "open")
    }


def test_the_program_over_a_store_directory_counts_its_messages(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    environment = checkout_environment() | {"ROPEWALK_MAPPED_FILE_SIZE_COMMIT_LOG": "1048576"}
    with (
        running_broker(checkout_command(), cwd=tmp_path, environment=environment) as broker,
        Producer(broker.namesrv) as producer,
    ):
        for n in range(7):
            producer.send("orders", b"order %d" % n)
    *_, offline = programs()
    moved = offline.replace('"ropewalk-data/', f'"{tmp_path}/ropewalk-data/')
    assert moved != offline
    exec(compile(moved, str(PAGE), "exec"), {"spark": spark})
    assert re.search(r"\|orders\|\s+7\|", capfd.readouterr().out)
