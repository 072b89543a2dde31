"""`ropewalk store dump` reads what Apache RocketMQ wrote, and says what the Java consumer said.

The stores and their contents are made by make_stores.py. No Java is needed to run these tests.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

from tests.support.recorded_stores import STORES, unpack

NAMES = ("clean", "killed")
COMPRESSED = 0x1
SEGMENT_SIZE = 64 << 10
DELAYED = "SCHEDULE_TOPIC_XXXX"

# Name in the dump: name in Java's telling. Bodies, hosts and flags are compared apart.
SAME = {
    "offset": "commitLogOffset",
    "size": "storeSize",
    "topic": "topic",
    "queueId": "queueId",
    "queueOffset": "queueOffset",
    "flag": "flag",
    "bornTimestamp": "bornTimestamp",
    "storeTimestamp": "storeTimestamp",
    "reconsumeTimes": "reconsumeTimes",
    "preparedTransactionOffset": "preparedTransactionOffset",
    "properties": "properties",
    "bodyCrc": "bodyCrc",
    "msgId": "offsetMsgId",
}


def told(name: str) -> list[dict[str, Any]]:
    lines = (STORES / f"{name}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def dump(store: Path) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "ropewalk", "store", "dump", str(store), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture
def store(name: str, tmp_path: Path) -> Path:
    return unpack(name, tmp_path / "store")


def test_a_store_of_rocketmq_dumps_as_its_consumer_saw_it(name: str, store: Path) -> None:
    dumped = dump(store)
    expected = told(name)
    assert [record["offset"] for record in dumped] == [message["commitLogOffset"] for message in expected]
    for record, message in zip(dumped, expected, strict=True):
        assert {key: record[key] for key in SAME} == {key: message[theirs] for key, theirs in SAME.items()}
        assert f"/{record['bornHost']}" == message["bornHost"]
        assert f"/{record['storeHost']}" == message["storeHost"]
        assert record["sysFlag"] & ~COMPRESSED == message["sysFlag"] & ~COMPRESSED
        body = base64.b64decode(record["body"])
        if record["sysFlag"] & COMPRESSED:
            body = zlib.decompress(body)
        assert hashlib.sha256(body).hexdigest() == message["bodySha256"]


def test_the_store_has_what_a_reader_can_stumble_over(name: str, store: Path) -> None:
    dumped = dump(store)
    assert dumped[-1]["offset"] > 2 * SEGMENT_SIZE, "several segments"
    gaps = [
        after["offset"] - before["offset"] - before["size"] for before, after in itertools.pairwise(dumped)
    ]
    assert any(gap > 0 for gap in gaps), "blank records at the ends of segments"
    assert any(record["sysFlag"] & COMPRESSED for record in dumped)
    assert any(not key.isascii() for record in dumped for key in record["properties"])
    assert {record["flag"] for record in dumped} == {0, -(2**31)}
    assert (store / "abort").exists() == (name == "killed")


def test_a_delayed_message_lies_in_the_store_twice(store: Path) -> None:
    records = [record for record in dump(store) if base64.b64decode(record["body"]) == b"a second late"]
    waiting, delivered = records
    assert (waiting["topic"], waiting["properties"]["REAL_TOPIC"]) == (DELAYED, delivered["topic"])
    assert waiting["properties"]["DELAY"] == "1"
    assert delivered["storeTimestamp"] >= waiting["storeTimestamp"] + 1_000
