"""Exactly-once writes without Spark around them: a driver, its tasks, and what each of them may repeat."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ropewalk.client.blocking.admin import Admin
from ropewalk.client.blocking.connection import Connection
from ropewalk.client.core.messages import Message
from ropewalk.client.core.produce.row_identity import Writer, row_prefix
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import OutcomeUnknown
from ropewalk.format.headers import SinkStateHeader
from ropewalk.format.remoting import Command
from ropewalk.spark.options import BadOption, Options, parse_options
from ropewalk.spark.sink.exact import SinkDriver
from ropewalk.spark.sink.reading_back import ReadingBackSender
from ropewalk.spark.sink.routes import WriteFailed
from ropewalk.spark.sink.row_keys import RowKeys
from ropewalk.spark.sink.rows import Outgoing, RowRefused
from ropewalk.spark.sink.run import Run, TaskIdentity, TaskResult
from ropewalk.spark.sink.send import Target, check_sink_options
from ropewalk.spark.sink.writer import _is_new, sender_of
from ropewalk.testing import RopewalkBroker

SINKS = itertools.count()


def options_of(broker: RopewalkBroker, topic: str, sink_id: str, **given: Any) -> Options:
    raw = {
        "nameServer": broker.namesrv, "topic": topic, "delivery": "exactly-once", "sinkId": sink_id,
        "batchMessages": "10", **given,
    }  # fmt: skip
    return parse_options(raw, "write", {})


class Sink:
    """One pipeline over a topic of the test's broker."""

    def __init__(self, broker: RopewalkBroker, queues: int = 3, **given: Any) -> None:
        self.broker = broker
        self.topic = broker.topic(queues=queues)
        self.sink_id = f"sink-{next(SINKS)}"
        self.options = options_of(broker, self.topic, self.sink_id, **given)
        self._attempts = itertools.count()

    def begin(self) -> Run:
        driver = SinkDriver(self.options)
        try:
            return driver.begin()
        finally:
            driver.close()

    def commit(self, results: list[TaskResult]) -> None:
        driver = SinkDriver(self.options)
        try:
            driver.commit(results)
        finally:
            driver.close()

    def task(
        self, run: Run, rows: Iterable[object], batch: int = 0, partition: int = 0, query: str = "q",
        attempt: int | None = None,
    ) -> TaskResult:  # fmt: skip
        number = next(self._attempts) if attempt is None else attempt
        sender = sender_of(self.options, run, TaskIdentity(query, batch, partition, number))
        try:
            for row in rows:
                sender.add(Outgoing(self.topic, Message(str(row).encode(), keys=f"k{row}"), 20))
            sender.finish()
            return sender.result()
        finally:
            sender.close()

    def bodies(self, count: int) -> list[int]:
        return sorted(int(record.body) for record in self.broker.messages(self.topic, count))


@pytest.fixture
def sink(ropewalk_broker: RopewalkBroker) -> Sink:
    return Sink(ropewalk_broker)


@pytest.fixture(params=["keys compared by the broker", "read back"])
def either(
    request: pytest.FixtureRequest, ropewalk_broker: RopewalkBroker, monkeypatch: pytest.MonkeyPatch
) -> Sink:
    """A sink in either way; what Apache RocketMQ itself makes of the second is tests/compat's."""
    if request.param == "read back":
        monkeypatch.setattr(SinkDriver, "_init", lambda *_given: None)
    return Sink(ropewalk_broker)


def test_a_batch_that_is_run_again_in_part_and_in_another_order_is_stored_once(either: Sink) -> None:
    run = either.begin()
    either.task(run, range(60))  # a task whose answer nobody heard
    again = either.begin()  # a driver that came back
    results = [either.task(again, reversed(range(100))), either.task(again, range(50), partition=1)]
    either.commit(results)
    assert either.bodies(150) == sorted([*range(100), *range(50)])
    after = either.begin()
    either.commit([either.task(after, range(30), batch=1)])
    assert len(either.bodies(180)) == 180


def test_a_batch_that_is_cut_into_other_tasks_is_stored_once(either: Sink) -> None:
    """Killed in mid batch, and run again with another number of cores, of shuffle partitions, of `minPartitions`."""
    run = either.begin()
    for partition in range(3):
        either.task(run, range(partition, 60, 3), partition=partition)
    again = either.begin()
    either.task(again, range(45), partition=1)  # killed once more
    last = either.begin()
    parts = [range(start, 90, 7) for start in range(7)]
    results = [either.task(last, rows, partition=number) for number, rows in enumerate(parts)]
    either.commit(results)
    assert either.bodies(90) == list(range(90))
    either.commit([either.task(either.begin(), range(90, 100), batch=1)])
    assert either.bodies(100) == list(range(100))


def test_equal_rows_of_different_tasks_all_survive_whichever_run_stored_them(either: Sink) -> None:
    run = either.begin()
    either.task(run, [1, 1, 2], partition=0)
    either.task(run, [1, 3], partition=1)
    again = either.begin()
    results = [either.task(again, rows, partition=n) for n, rows in enumerate(([1, 1, 1, 3], [4], [1, 2, 3]))]
    either.commit(results)
    assert either.bodies(8) == [1, 1, 1, 1, 2, 3, 3, 4]


def test_copies_of_equal_rows_are_whole_messages(
    ropewalk_broker: RopewalkBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SinkDriver, "_init", lambda *_given: None)
    sink = Sink(ropewalk_broker)
    message = Message(b"x", keys=["k", "l"], tags="t", properties={"a": "1"}, group="g")

    def task(run: Run, count: int) -> TaskResult:
        sender = sender_of(sink.options, run, TaskIdentity("q", 0, 0, next(sink._attempts)))
        for _ in range(count):
            sender.add(Outgoing(sink.topic, message, 20))
        sender.finish()
        sender.close()
        return sender.result()

    task(sink.begin(), 1)
    sink.commit([task(sink.begin(), 3)])
    found = ropewalk_broker.messages(sink.topic, 3)
    assert len({record.properties["UNIQ_KEY"] for record in found}) == 3
    own = ("UNIQ_KEY", "RW_SINK", "MIN_OFFSET", "MAX_OFFSET")
    parts = [
        {name: value for name, value in record.properties.items() if name not in own} for record in found
    ]
    assert parts[0] == parts[1] == parts[2]
    assert [(record.body, list(record.keys), record.tags) for record in found] == [
        (b"x", ["k", "l"], "t")
    ] * 3
    assert len({record.queue_id for record in found}) == 1


def test_a_driver_that_dies_between_the_copies_sends_the_others(
    ropewalk_broker: RopewalkBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SinkDriver, "_init", lambda *_given: None)
    sink = Sink(ropewalk_broker)
    sink.task(sink.begin(), [7])
    again = sink.begin()
    parts = [sink.task(again, [7] * 3), sink.task(again, [7] * 3, partition=1)]
    with monkeypatch.context() as dying:
        dying.setattr("ropewalk.spark.sink.exact.commit_anchors", lambda *_given: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            sink.commit(parts)
    last = sink.begin()
    sink.commit([sink.task(last, [7] * 4), sink.task(last, [7] * 5, partition=1)])
    assert sink.bodies(9) == [7] * 9


def test_another_topic_under_the_same_name_is_refused_and_both_are_named(either: Sink) -> None:
    either.commit([either.task(either.begin(), range(10))])
    first, other = either.topic, either.broker.topic("other", queues=2)
    either.options = options_of(either.broker, other, either.sink_id)
    with pytest.raises(WriteFailed, match=f"writes to topic {first}, and this is topic {other}"):
        either.begin()
    assert either.broker.messages(other, 0) == []
    either.options = options_of(either.broker, first, either.sink_id)
    either.commit([either.task(either.begin(), range(10, 20), batch=1)])
    assert either.bodies(20) == list(range(20))


def test_a_topic_that_was_deleted_and_made_anew_is_refused(sink: Sink) -> None:
    sink.commit([sink.task(sink.begin(), range(10))])
    with Admin(sink.broker.namesrv) as admin:
        admin.delete_topic(sink.topic)
        admin.create_topic(sink.topic, 3)
        with pytest.raises(WriteFailed, match=f"a topic {sink.topic} that was deleted.*another topic"):
            sink.begin()
        admin.forget_sink(sink.sink_id)
    sink.commit([sink.task(sink.begin(), range(10, 20), batch=1)])
    assert sink.bodies(10) == list(range(10, 20))


@pytest.mark.parametrize(("before", "after"), [(3, 1), (1, 3)])
def test_a_topic_that_gets_fewer_or_more_queues_in_mid_batch_has_each_row_once(
    either: Sink, before: int, after: int
) -> None:
    make_queues(either, before)
    either.commit([either.task(either.begin(), range(1000, 1010))])
    either.task(either.begin(), range(40), batch=1)
    make_queues(either, after)
    either.task(either.begin(), range(60), batch=1)  # killed, too
    make_queues(either, before)
    results = [either.task(run := either.begin(), range(80), batch=1, partition=3)]
    assert run.topic == either.topic
    either.commit(results)
    assert either.bodies(90) == [*range(80), *range(1000, 1010)]


def make_queues(sink: Sink, count: int) -> None:
    """Have the topic take messages in so many queues; consumers go on reading three."""
    ext = {
        "topic": sink.topic, "defaultTopic": "TBW102", "readQueueNums": 3, "writeQueueNums": count, "perm": 6,
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false",
    }  # fmt: skip
    with Connection(sink.broker.broker) as connection, Admin(sink.broker.namesrv) as admin:
        command = Command(
            RequestCode.UPDATE_AND_CREATE_TOPIC, ext={name: str(value) for name, value in ext.items()}
        )
        assert connection.call(command).code == ResponseCode.SUCCESS
        sink.broker.wait_until(
            lambda: len(admin.topic_route(sink.topic).write_queues()) == count, f"{count} queues in the route"
        )


def test_equal_rows_of_one_task_are_all_stored_and_none_of_them_twice(either: Sink) -> None:
    run = either.begin()
    either.task(run, [7, 7, 8])
    results = [either.task(run, [8, 7, 9, 7, 7])]
    either.commit(results)
    assert either.bodies(5) == [7, 7, 7, 8, 9]


def test_a_batch_that_was_committed_is_repeated_without_a_row(either: Sink) -> None:
    either.commit([either.task(either.begin(), range(40), batch=3)])
    replay = either.begin()  # Spark did not write down that the batch was done
    either.commit([either.task(replay, reversed(range(40)), batch=3)])
    assert either.bodies(40) == list(range(40))
    again = either.begin()  # cut into other tasks, as a batch write on another cluster is
    parts = (range(20, 40), range(20))
    either.commit([either.task(again, rows, batch=3, partition=n) for n, rows in enumerate(parts)])
    other = either.begin()
    with pytest.raises(WriteFailed, match=r"batch 3 of sink .* other rows .* deterministic"):
        either.commit([either.task(other, range(41), batch=3)])
    assert either.bodies(40) == list(range(40))


def test_a_query_with_another_checkpoint_writes_nothing_and_disturbs_nobody(either: Sink) -> None:
    either.commit([either.task(either.begin(), range(20))])
    going_on = either.begin()
    either.task(going_on, range(20, 30), batch=1)
    for query, words in (("other", r"belongs to .* checkpoint"), ("-", "sinkId a new name")):
        begun = either.begin()
        with pytest.raises(WriteFailed, match=words):
            either.task(begun, range(20), query=query)
    either.commit([either.task(going_on, range(20, 40), batch=1)])
    assert either.bodies(40) == list(range(40))


def test_a_checkpoint_that_was_lost_in_the_first_batch_is_told_too(sink: Sink) -> None:
    sink.task(sink.begin(), range(20))
    with pytest.raises(
        WriteFailed, match="belongs to the streaming query q, and this is the streaming query other"
    ):
        sink.task(sink.begin(), range(20), query="other")
    with pytest.raises(WriteFailed, match="belongs to the streaming query q, and this is a batch write"):
        sink.task(sink.begin(), range(20), query="-")
    assert sink.bodies(20) == list(range(20))


def test_a_sink_that_is_forgotten_in_a_batch_fails_it_in_words_and_begins_anew(sink: Sink) -> None:
    run = sink.begin()
    sink.task(run, range(20))
    with Admin(sink.broker.namesrv) as admin:
        assert admin.forget_sink(sink.sink_id)
        assert sink.sink_id not in {each.sink_id for each in admin.sinks()}
    with pytest.raises(WriteFailed, match=r"the sink was forgotten .*Start the query again"):
        sink.task(run, range(20, 30), partition=1)
    with pytest.raises(WriteFailed, match="the sink was forgotten"):
        sink.commit([TaskResult(run, TaskIdentity("q", 0, 0), 20, 0, {"broker-a": 20}, {})])
    sink.commit([sink.task(sink.begin(), range(100, 110), query="other")])
    assert sink.bodies(30) == [*range(20), *range(100, 110)]


def test_a_zombie_of_any_kind_appends_nothing(sink: Sink) -> None:
    first = sink.begin()
    sink.task(first, range(5), attempt=8)
    with pytest.raises(WriteFailed, match=r"attempt 7 of partition 0 .* is over"):
        sink.task(first, range(100, 105), attempt=7)
    second = sink.begin()
    results = [sink.task(second, range(5))]
    with pytest.raises(WriteFailed, match=r"epoch 2 .* is over: epoch 3 has begun"):
        sink.task(first, range(100, 105), attempt=20)
    with pytest.raises(WriteFailed, match="is over"):
        sink.commit([TaskResult(first, *_rest(results[0]))])
    sink.commit(results)
    with pytest.raises(WriteFailed, match="was committed"):
        sink.task(second, range(100, 105))
    assert sink.bodies(5) == list(range(5))


def _rest(result: TaskResult) -> tuple[Any, ...]:
    return result.identity, result.rows, result.total, result.by_broker, result.ends


def test_a_plan_that_gives_other_rows_is_told_at_its_commit(either: Sink) -> None:
    either.task(either.begin(), [1, 2, 3])
    again = either.begin()
    with pytest.raises(WriteFailed, match="not deterministic"):
        either.commit([either.task(again, [1, 2, 4])])


def test_a_request_without_an_answer_is_looked_for_before_it_is_sent_again(
    ropewalk_broker: RopewalkBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SinkDriver, "_init", lambda *_given: None)
    monkeypatch.setattr("ropewalk.spark.sink.reading_back._LATE_S", 0.05)
    sink = Sink(ropewalk_broker)
    lost: list[object] = []
    handle = ReadingBackSender._handle_answer

    def forget(self: ReadingBackSender, target: Target, answer: Command) -> bool:
        if len(lost) < 3:
            lost.append(answer)  # stored, and nobody hears of it
            self._retry(target, OutcomeUnknown("the connection broke"))
            return False
        return handle(self, target, answer)

    monkeypatch.setattr(ReadingBackSender, "_handle_answer", forget)
    run = sink.begin()
    results = [sink.task(run, range(100))]
    assert len(lost) == 3
    sink.commit(results)
    assert sink.bodies(100) == list(range(100))
    assert results[0].by_broker == {"broker-a": 100}


def test_a_sink_that_reads_back_reads_only_behind_the_last_batch(
    ropewalk_broker: RopewalkBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SinkDriver, "_init", lambda *_given: None)
    sink = Sink(ropewalk_broker)
    for batch in range(3):
        run = sink.begin()
        assert run.anchors is not None
        assert run.anchors.offsets == run.anchors.ends
        sink.commit([sink.task(run, range(20), batch=batch)])
    # A driver that repeats the batch before knows it as committed; one with another checkpoint does not.
    run = sink.begin()
    assert run.anchors is not None
    assert run.anchors.committed_digest("q", 2) == run.anchors.marks["broker-a"][1]
    assert run.anchors.committed_digest("q", 1) == -1
    assert run.anchors.committed_digest("q", 3) is None
    assert run.anchors.committed_digest("other", 0) is None
    assert run.anchors.covers_brokers(["broker-a", "broker-b"])
    assert not run.anchors.covers_brokers(["broker-b"])


def test_a_broker_of_version_0_1_is_refused_by_name(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    state = SinkStateHeader(epoch=1)  # it tells no version of its keys
    monkeypatch.setattr("ropewalk.spark.sink.exact.answer_header", lambda *_given: state)
    with pytest.raises(WriteFailed, match=r"broker broker-a is of version 0\.1 .*Nothing was stored"):
        sink.begin()


def test_rows_of_version_0_1_in_an_open_batch_are_refused_in_words(
    ropewalk_broker: RopewalkBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SinkDriver, "_init", lambda *_given: None)
    sink = Sink(ropewalk_broker)
    run = sink.begin()
    with monkeypatch.context() as earlier:
        earlier.setattr(RowKeys, "key_of", staticmethod(lambda row: b"%016d" % row.ordinal))
        earlier.setattr(
            "ropewalk.spark.sink.keyed.row_prefix",
            lambda *given: row_prefix(*given).replace(b"/%d." % run.number, b"/").rpartition(b".")[0] + b"/",
        )
        sink.task(run, [1])
    with pytest.raises(WriteFailed, match=r"batch 0 of sink .* was begun by version 0\.1"):
        sink.task(sink.begin(), range(5))
    assert sink.bodies(1) == [1]


def test_a_sink_waits_for_its_topic_in_words(ropewalk_broker: RopewalkBroker) -> None:
    options = options_of(ropewalk_broker, "nowhere", "nowhere-sink", sendTimeoutMs="300")
    driver = SinkDriver(options)
    with pytest.raises(
        WriteFailed, match=r"topic nowhere does not exist.*ropewalk admin topic create nowhere"
    ):
        driver.begin()
    driver.close()


def test_a_topic_that_was_never_there_is_refused_as_soon_as_it_would_be_known(
    ropewalk_broker: RopewalkBroker,
) -> None:
    slept: list[float] = []
    for is_new, patience_s in ((True, 2.0), (False, 60.0)):
        slept.clear()
        options = options_of(ropewalk_broker, "nowhere", "nowhere-sink", sendTimeoutMs="60s")
        driver = SinkDriver(options, is_new=is_new, monotonic=lambda: sum(slept), sleep=slept.append)
        with pytest.raises(WriteFailed, match="topic nowhere does not exist"):
            driver.begin()
        driver.close()
        assert patience_s <= sum(slept) < patience_s + 1


def test_a_stream_is_new_until_its_checkpoint_has_a_commit(tmp_path: Path) -> None:
    assert not _is_new(None)
    assert not _is_new("hdfs://host/checkpoint")
    assert _is_new(str(tmp_path / "none"))
    (tmp_path / "commits").mkdir()
    assert _is_new(f"file://{tmp_path}")
    (tmp_path / "commits" / "0").touch()
    assert not _is_new(str(tmp_path))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"sinkId": "a b"}, r"sinkId is 'a b': letters, digits"),
        ({"sinkId": "x" * 65}, "65 characters"),
        ({"topic": "a,b"}, "writes to one topic"),
        ({"routing": "any"}, "needs routing=key"),
        ({"waitStoreOk": "false"}, "waitStoreOk"),
    ],
)
def test_options_that_do_not_go_with_exactly_once_are_refused(given: dict[str, str], says: str) -> None:
    raw = {"nameServer": "h:1", "topic": "T", "delivery": "exactly-once", "sinkId": "S", **given}
    with pytest.raises(BadOption, match=says):
        check_sink_options(parse_options(raw, "write", {}))


def test_a_delayed_row_is_refused(sink: Sink) -> None:
    sender = sender_of(sink.options, sink.begin(), TaskIdentity("q", 0, 0))
    with pytest.raises(RowRefused, match="no delayed rows"):
        sender.add(Outgoing(sink.topic, Message(b"x", delay_level=3), 1))
    sender.close()


@pytest.mark.parametrize(
    "other",
    [
        Message(b"y", keys="k", tags="t", properties={"a": "1"}),
        Message(b"x", keys="l", tags="t", properties={"a": "1"}),
        Message(b"x", keys="k", tags="u", properties={"a": "1"}),
        Message(b"x", keys="k", tags="t", properties={"a": "2"}),
        Message(b"x", keys="k", tags="t", properties={"b": "1"}),
        Message(b"x", keys="k", tags="t", properties={"a": "1"}, flag=1),
        Message(b"x", keys="k", tags="t", properties={"a": "1"}, group="g"),
    ],
)
def test_every_part_of_a_row_counts_for_its_key(other: Message) -> None:
    one = Message(b"x", keys="k", tags="t", properties={"a": "1"})
    assert _key(one) == _key(Message(b"x", keys="k", tags="t", properties={"a": "1"}))
    assert _key(one) != _key(other)
    assert _key(one, queue=1) != _key(one)


def _key(message: Message, queue: int | None = None) -> bytes:
    keys = RowKeys("S", "q", 0, Writer(5, 0, 0))
    row = Outgoing("T", message, 1, queue)
    keys.number(row)
    key = keys.key_of(row)
    assert len(key) == 20
    assert b"/" not in key
    return key


def unique_keys(rows: Sequence[int], writer: Writer = Writer(5, 0, 0)) -> set[str]:  # noqa: B008
    keys = RowKeys("S", "q", 0, writer)
    found = set()
    for row in rows:
        one = Outgoing("T", Message(b"%d" % row), 1)
        keys.number(one)
        found.add(keys.unique_key(one))
    return found


def test_unique_keys_of_a_row_are_the_same_for_its_writer_and_others_for_equal_rows() -> None:
    assert unique_keys([1, 2, 2]) == unique_keys([2, 1, 2])
    assert len(unique_keys([1, 2, 2])) == 3
    for other in (Writer(6, 0, 0), Writer(5, 1, 0), Writer(5, 0, 1)):
        assert not unique_keys([1, 2, 2]) & unique_keys([1, 2, 2], other)


def test_an_equal_row_that_is_stored_when_another_task_claimed_the_first_has_a_key_of_its_own(
    sink: Sink,
) -> None:
    run = sink.begin()
    sink.task(run, [7], partition=0)  # an attempt that dies
    sink.task(run, [8], partition=0)  # the next one begins, and gives up what the first one had
    results = [sink.task(run, [7], partition=1), sink.task(run, [7, 8], partition=0)]
    sink.commit(results)
    found = sink.broker.messages(sink.topic, 3)
    assert sorted(record.body for record in found) == [b"7", b"7", b"8"]
    assert len({record.properties["UNIQ_KEY"] for record in found}) == 3
