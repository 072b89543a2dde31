"""The README's programs over live topics, as they stand there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ropewalk.client.core.messages import Message
from ropewalk.testing import RopewalkBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[3]
ADDRESS = "127.0.0.1:9876"


def programs() -> list[str]:
    """The Python blocks of the section "Spark" that talk to a name server, in order."""
    readme = (ROOT / "README.md").read_text()
    section = readme.split("\n## Spark\n", 1)[1].split("\n## ", 1)[0]
    return [text for text in re.findall(r"^```python\n(.*?)^```", section, re.M | re.S) if ADDRESS in text]


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
    for n in range(20):
        broker.send("orders", Message(b"order %d" % n, keys=f"o{n}", tags="paid" if n % 4 else "open"))
    # Spark's paths are relative to where its JVM was started; the lake is to lie in this test's folder.
    known: dict[str, Any] = {}
    monkeypatch.chdir(tmp_path)
    read, stream, write = programs()
    for text in (read, stream, write):
        moved = text.replace(ADDRESS, broker.namesrv).replace('"lake/', f'"{tmp_path}/lake/')
        exec(compile(moved, "README.md", "exec"), known)
        if text is stream:
            assert known["query"].exception() is None
            known["query"].stop()
    out = capfd.readouterr().out
    assert re.search(r"\|paid\|\s+15\|", out)
    assert re.search(r"\|open\|\s+5\|", out)
    lake = spark.read.parquet(str(tmp_path / "lake" / "orders"))
    assert sorted(bytes(row.body) for row in lake.collect()) == sorted(b"order %d" % n for n in range(20))
    loud = broker.messages("loud-orders", 20)
    assert sorted(record.body for record in loud) == sorted(b"ORDER %d" % n for n in range(20))
    assert {(r.properties["KEYS"], r.properties["TAGS"]) for r in loud if r.body == b"ORDER 4"} == {
        ("o4", "open")
    }
