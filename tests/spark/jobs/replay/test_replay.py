"""Messages sent again: all of them, as they were, with their origin; and after a crash, no more twice than a batch."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from ropewalk.client.core.consume.received import ReceivedMessage
from ropewalk.client.core.messages import Message
from ropewalk.format.record import Record
from ropewalk.spark.jobs.common.tasks import LocalTasks, TaskFailed
from ropewalk.spark.jobs.export.compact import compact
from ropewalk.spark.jobs.export.job import ExportOptions, export
from ropewalk.spark.jobs.export.lake import LakeMismatch
from ropewalk.spark.jobs.export.lake_source import LakeSource
from ropewalk.spark.jobs.export.sources import LiveSource, StoreSource, readable_end, selection_for
from ropewalk.spark.jobs.replay.job import (
    COLUMNS,
    BadReplay,
    Replayed,
    ReplayOptions,
    TokenBucket,
    replay,
    replay_report,
)
from ropewalk.testing import RopewalkBroker
from tests.spark.jobs.faults import Pair
from tests.spark.jobs.stores import START_MS, fill

T = TypeVar("T")
R = TypeVar("R")
SELECTION = selection_for(COLUMNS, "default")


@pytest.fixture(scope="module", autouse=True)
def syncs_cost_nothing() -> Iterator[None]:
    """Nothing here pulls the plug."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)
        yield


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("replay") / "store"
    fill(root, 300)
    return root


def source(root: Path, *topics: str) -> StoreSource:
    return StoreSource(str(root), topics, SELECTION, "b", range_bytes=8_000)


def origin(record: Record) -> str:
    return f"b/{record.topic}/{record.queue_id}/{record.queue_offset}"


def by_origin(records: list[ReceivedMessage]) -> dict[str, ReceivedMessage]:
    return {record.properties["RW_ORIGIN"]: record for record in records}


def test_every_message_of_a_store_arrives_as_it_was_and_in_order_of_its_queue(
    store: Path, ropewalk_broker: RopewalkBroker
) -> None:
    topic = ropewalk_broker.topic("again", queues=3)
    options = ReplayOptions(
        ropewalk_broker.namesrv, topic, keep_queues=True, max_per_batch=100, preserve_time=True
    )
    selection = selection_for(options.columns, "default")
    done = replay(LocalTasks(), replace(source(store), selection=selection), options)
    records = {origin(record): record for record in Pair.of(store, store).records}
    assert (done.sent.rows, done.lost, done.batches > 2) == (300, 0, True)
    sent = ropewalk_broker.messages(topic, 300)
    found = by_origin(sent)
    flags = {
        record.properties["RW_ORIGIN"]: record.flag
        for queue in ropewalk_broker.client.read_queues(topic)
        for begin in range(0, 300, 32)
        for record in ropewalk_broker.client.pull(topic, queue, begin, 32).records
    }
    assert found.keys() == records.keys()
    for key, record in records.items():
        copy = found[key]
        assert (copy.body, flags[key]) == (record.body, record.flag)
        assert copy.born_timestamp_ms == record.born_timestamp
        for name in ("KEYS", "TAGS"):
            assert copy.properties.get(name) == record.properties.get(name)
        assert copy.properties["UNIQ_KEY"] != record.properties["UNIQ_KEY"]
        assert copy.queue_id == record.queue_id % 3
    for topic_and_queue in {key.rpartition("/")[0] for key in records}:
        copies = sorted(
            (copy.queue_id, copy.queue_offset, int(key.rpartition("/")[2]))
            for key, copy in found.items()
            if key.rpartition("/")[0] == topic_and_queue
        )
        assert [number for *_place, number in copies] == list(range(len(copies)))
    report = replay_report("a store", options, done)
    assert (report.exit_code, report.summary["messages"]) == (0, 300)


def test_a_store_that_grows_by_what_is_replayed_is_replayed_once(
    ropewalk_own_broker: RopewalkBroker,
) -> None:
    broker = ropewalk_own_broker  # the ranges are small: what other tests left in a store would be thousands of them
    first, second = broker.topic("first", queues=1), broker.topic("second", queues=1)
    for number in range(60):
        broker.client.send(first, Message(b"%d" % number, properties={"mine": str(number)}, group="g"))
    root = Path(broker.process.ready["dataDir"])
    last = broker.messages(first, 60)[-1]
    broker.wait_until(lambda: readable_end(str(root)) > last.log_offset, "a store that can be read")
    own = StoreSource(str(root), (first,), SELECTION, "b", range_bytes=2_000)
    done = replay(LocalTasks(), own, ReplayOptions(broker.namesrv, second, max_per_batch=20))
    assert done.sent.rows == 60
    records = broker.messages(second, 60)
    assert [record.body for record in records] == [b"%d" % n for n in range(60)]
    assert [record.properties["mine"] for record in records] == [str(n) for n in range(60)]
    assert {record.properties["__SHARDINGKEY"] for record in records} == {"g"}


class Crash(BaseException):
    """As if the driver had been killed."""


class Crashing(LocalTasks):
    """Sends so many pieces, and dies."""

    def __init__(self, pieces: int) -> None:
        super().__init__()
        self.left = pieces

    def run(self, function: Callable[[T], R], pieces: Sequence[T], label: str) -> list[R]:
        answers = []
        for piece in pieces:
            if label.startswith("batch"):
                if self.left == 0:
                    raise Crash
                self.left -= 1
            answers += super().run(function, [piece], label)
        return answers


def test_a_replay_that_dies_goes_on_and_repeats_no_more_than_its_batch(
    ropewalk_broker: RopewalkBroker, tmp_path: Path
) -> None:
    first, second = ropewalk_broker.topic("from", queues=2), ropewalk_broker.topic("to", queues=2)
    for number, queue in enumerate(ropewalk_broker.client.read_queues(first)):
        messages = [Message(b"%d-%d" % (number, n)) for n in range(300)]
        for at in range(0, 300, 100):
            ropewalk_broker.client.send_batch(first, messages[at : at + 100], queue)
    live = LiveSource({"nameServer": ropewalk_broker.namesrv, "topic": first}, SELECTION, range_messages=1000)
    options = ReplayOptions(
        ropewalk_broker.namesrv, second, str(tmp_path / "deep" / "journal"), max_per_batch=100
    )
    runs: list[Replayed] = []
    crashes = 0
    while not runs:
        try:
            runs.append(replay(Crashing(5), live, options))
        except Crash:
            crashes += 1
    assert crashes >= 2 and runs[0].resumed
    assert runs[0].rows_before + runs[0].sent.rows == 600
    bodies = Counter(record.body for record in ropewalk_broker.messages(second))
    assert bodies.keys() == {b"%d-%d" % (q, n) for q in (0, 1) for n in range(300)}
    assert max(bodies.values()) <= 2 and sum(bodies.values()) - 600 <= 100 * crashes
    assert replay(LocalTasks(), live, options).batches == 0
    ropewalk_broker.send(first, b"one more")
    assert replay(LocalTasks(), live, options).sent.rows == 1
    other = ReplayOptions(ropewalk_broker.namesrv, "elsewhere", options.journal)
    with pytest.raises(TaskFailed, match=r"journal of a replay with to '.*', and this one has 'elsewhere'"):
        replay(LocalTasks(), live, other)
    Path(str(options.journal)).write_text("{")
    with pytest.raises(TaskFailed, match="cannot be read as the journal"):
        replay(LocalTasks(), live, options)
    with pytest.raises(BadReplay, match="would read what it writes"):
        replay(LocalTasks(), live, ReplayOptions(ropewalk_broker.namesrv, first))


def test_a_lake_is_sent_again_by_topic_and_time(
    store: Path, ropewalk_broker: RopewalkBroker, tmp_path: Path
) -> None:
    export(
        LocalTasks(),
        StoreSource(str(store), (), selection_for((), "full"), "b"),
        ExportOptions(str(tmp_path / "lake"), max_per_batch=90),
    )
    topic = ropewalk_broker.topic("lake", queues=1)
    since, until = START_MS + 37 * 50, START_MS + 37 * 200
    lake = LakeSource(str(tmp_path / "lake"), ("orders",), since, until, COLUMNS)
    done = replay(LocalTasks(), lake, ReplayOptions(ropewalk_broker.namesrv, topic, max_per_batch=40))
    wanted = {
        origin(record): record.body
        for record in Pair.of(store, store).records
        if record.topic == "orders" and since <= record.store_timestamp < until
    }
    assert done.sent.rows == len(wanted) > 40
    found = by_origin(ropewalk_broker.messages(topic, len(wanted)))
    assert time.time() - min(record.born_timestamp_ms for record in found.values()) / 1000 < 600
    assert {key: record.body for key, record in found.items()} == wanted
    compact(LocalTasks(), str(tmp_path / "lake"), target_bytes=1 << 30)
    with pytest.raises(LakeMismatch, match="were merged since 2 of them were read"):
        lake.plan(LocalTasks(), {"files": 2}, None)
    again = lake.plan(LocalTasks(), None, None)
    assert again is not None and lake.plan(LocalTasks(), again.end, None) is None
    with pytest.raises(LakeMismatch, match="is no lake"):
        replay(LocalTasks(), LakeSource(str(tmp_path)), ReplayOptions(ropewalk_broker.namesrv, topic))
    export(
        LocalTasks(),
        StoreSource(str(store), (), selection_for(("keys",), "full"), "b"),
        ExportOptions(str(tmp_path / "narrow")),
    )
    with pytest.raises(TaskFailed, match="have no column body"):
        replay(
            LocalTasks(), LakeSource(str(tmp_path / "narrow")), ReplayOptions(ropewalk_broker.namesrv, topic)
        )


def test_a_bucket_lets_a_rate_through() -> None:
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    bucket = TokenBucket(50, lambda: now, sleep)
    for _ in range(505):
        bucket.acquire()
    assert now == pytest.approx(10, abs=0.05)
    now += 100  # what was not used is not saved up
    before = now
    for _ in range(55):
        bucket.acquire()
    assert now - before == pytest.approx(1, abs=0.05)
