"""Checks of undecided transactions: who is asked, when, how often, and what is left behind."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format.properties import encode_properties
from ropewalk.format.record import Record, encode_host
from tests.broker.harness import InProcess, config_of
from tests.broker.transactions.transacting import (
    COMMIT,
    GIVEN_UP,
    HALF,
    OPS,
    ROLLBACK,
    UNKNOWN,
    Producer,
    progress,
    round_of_checks,
)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[InProcess]:
    with InProcess(config_of(tmp_path)) as running:
        yield running


@pytest.fixture
def producer(running: InProcess) -> Producer:
    return Producer(running)


def test_an_undecided_half_is_asked_about_after_the_timeout(producer: Producer) -> None:
    running = producer.running
    producer.half(b"goods", queue_id=3, KEYS="k")
    running.tick(5_000)
    assert producer.asked() == []
    round_of_checks(running, later_ms=25_000)
    ((header, record),) = producer.asked()
    assert (record.topic, record.queue_id, record.body) == ("T", 3, b"goods")
    first, copy = running.stored(HALF)
    assert (header["tranStateTableOffset"], header["commitLogOffset"]) == ("1", str(copy.offset))
    assert (copy.properties["TRANSACTION_CHECK_TIMES"], copy.body) == ("1", first.body)
    assert copy.properties["TRAN_PREPARED_QUEUE_OFFSET"] == "0"
    assert copy.born_timestamp == first.born_timestamp
    assert record.properties == copy.properties


def test_a_young_half_is_left_alone_until_the_next_round(producer: Producer) -> None:
    running = producer.running
    running.tick(25_000)
    producer.half()
    round_of_checks(running, later_ms=5_001)
    assert producer.asked() == []
    round_of_checks(running)
    assert len(producer.asked()) == 1


@pytest.mark.parametrize(("decision", "delivered"), [(COMMIT, [b"x"]), (ROLLBACK, [])])
def test_the_answer_to_a_check_decides(producer: Producer, decision: int, delivered: list[bytes]) -> None:
    running = producer.running
    producer.half()
    round_of_checks(running)
    ((header, _record),) = producer.asked()
    producer.end_oneway(header, decision)
    assert [m.body for m in running.stored("T")] == delivered
    assert [op.body for op in running.stored(OPS)] == [b"0,", b"1,"]
    round_of_checks(running)
    assert producer.asked() == []
    assert progress(running) == (2, 2)


def test_a_late_end_that_names_the_first_record_decides_the_newest(producer: Producer) -> None:
    running = producer.running
    header = producer.half()
    for _ in range(2):
        round_of_checks(running)
    asked = producer.asked()
    assert len(asked) == 2
    assert producer.end(header, COMMIT).code == 0
    for late, _record in asked:
        producer.end_oneway(late, COMMIT)
    assert len(running.stored("T")) == 1
    round_of_checks(running)
    assert producer.asked() == []


def test_an_unknown_answer_is_asked_again_until_it_is_given_up(tmp_path: Path) -> None:
    with InProcess(config_of(tmp_path, transactionCheckMax=3)) as running:
        producer = Producer(running)
        producer.half(b"lost")
        for n in range(3):
            round_of_checks(running)
            ((header, record),) = producer.asked()
            assert record.properties["TRANSACTION_CHECK_TIMES"] == str(n + 1)
            producer.end_oneway(header, UNKNOWN)
        round_of_checks(running)
        assert producer.asked() == []
        (kept,) = running.stored(GIVEN_UP)
        assert (kept.body, kept.properties["REAL_TOPIC"]) == (b"lost", "T")
        assert running.broker.topics.get(GIVEN_UP) is not None
        assert running.broker.transactions.counts.given_up == {"T": 1}
        assert producer.end(header, COMMIT).code == ResponseCode.SYSTEM_ERROR
        assert running.stored("T") == []


def test_a_round_without_a_producer_does_not_count(running: InProcess) -> None:
    producer = Producer(running)
    producer.half()
    producer.client.disconnect()
    for _ in range(20):
        round_of_checks(running)
    assert len(running.stored(HALF)) == 1
    assert running.broker.transactions.counts.unasked == 20
    second = Producer(running)
    round_of_checks(running)
    ((_header, record),) = second.asked()
    assert record.properties["TRANSACTION_CHECK_TIMES"] == "1"


def test_a_producer_that_has_only_sent_is_asked(running: InProcess) -> None:
    producer = Producer(running, announced=False)
    producer.half()
    round_of_checks(running)
    assert len(producer.asked()) == 1


def test_producers_of_the_group_are_asked_by_turns_and_no_others(running: InProcess) -> None:
    first, second, other = Producer(running), Producer(running), Producer(running, group="other")
    for n in range(6):
        first.half(UNIQ_KEY=f"K{n}")
    round_of_checks(running)
    assert (len(first.asked()), len(second.asked()), other.asked()) == (3, 3, [])


def test_a_half_older_than_messages_are_kept_is_given_up(tmp_path: Path) -> None:
    with InProcess(config_of(tmp_path, fileReservedTime=1)) as running:
        producer = Producer(running)
        producer.half()
        producer.client.disconnect()
        round_of_checks(running, later_ms=3_599_000)
        assert running.stored(GIVEN_UP) == []
        round_of_checks(running)
        assert len(running.stored(GIVEN_UP)) == 1


def test_a_message_can_ask_for_a_longer_immunity(producer: Producer) -> None:
    running = producer.running
    producer.half(b"patient", CHECK_IMMUNITY_TIME_IN_SECONDS="100")
    producer.half(b"other", UNIQ_KEY="K2")
    round_of_checks(running)
    assert [record.body for _, record in producer.asked()] == [b"other"]
    round_of_checks(running, later_ms=60_000)
    assert [record.body for _, record in producer.asked()] == [b"other"]
    round_of_checks(running)
    assert sorted(record.body for _, record in producer.asked()) == [b"other", b"patient"]


@pytest.mark.parametrize("immunity", ["soon", "-5", "1", ""])
def test_an_odd_immunity_is_the_timeout(producer: Producer, immunity: str) -> None:
    producer.half(CHECK_IMMUNITY_TIME_IN_SECONDS=immunity)
    round_of_checks(producer.running)
    assert len(producer.asked()) == 1


def test_a_given_up_message_is_resumed(tmp_path: Path) -> None:
    with InProcess(config_of(tmp_path, transactionCheckMax=1)) as running:
        producer = Producer(running)
        producer.half(b"back")
        round_of_checks(running)
        round_of_checks(running)
        producer.asked()
        (kept,) = running.stored(GIVEN_UP)
        ext = {"topic": GIVEN_UP, "msgId": kept.msg_id}
        assert producer.client.call(RequestCode.RESUME_CHECK_HALF_MESSAGE, ext).code == 0
        round_of_checks(running)
        ((header, record),) = producer.asked()
        assert record.properties["TRANSACTION_CHECK_TIMES"] == "1"
        producer.end_oneway(header, COMMIT)
        assert [m.body for m in running.stored("T")] == [b"back"]
        ext = {"topic": HALF, "msgId": running.stored(HALF)[0].msg_id}
        assert "decided" in (producer.client.call(RequestCode.RESUME_CHECK_HALF_MESSAGE, ext).remark or "")


def test_resume_is_for_half_messages_alone(producer: Producer) -> None:
    answer = producer.client.send("T")
    for msg_id in (answer.ext["msgId"], "nonsense", "7F00000100002A9F00000000000FFFFF"):
        ext = {"topic": "T", "msgId": msg_id}
        assert producer.client.call(RequestCode.RESUME_CHECK_HALF_MESSAGE, ext).code == 1


# -- restarts -------------------------------------------------------------------------------------------


def test_open_halves_and_their_counts_survive_a_restart(tmp_path: Path) -> None:
    with InProcess(config_of(tmp_path)) as running:
        producer = Producer(running)
        headers = [producer.half(b"%d" % n, UNIQ_KEY=f"K{n}") for n in range(5)]
        assert producer.end(headers[1], COMMIT).code == 0
        assert producer.end(headers[3], ROLLBACK).code == 0
        round_of_checks(running)
        assert len(producer.asked()) == 3
        now = running.clock.ms
    with InProcess(config_of(tmp_path), now_ms=now) as running:
        producer = Producer(running)
        assert producer.end(headers[1], COMMIT).code == ResponseCode.SYSTEM_ERROR
        assert producer.end(headers[0], COMMIT).code == 0, "by its first record, which a check has followed"
        round_of_checks(running)
        asked = producer.asked()
        assert [record.body for _, record in asked] == [b"2", b"4"]
        assert {record.properties["TRANSACTION_CHECK_TIMES"] for _, record in asked} == {"2"}
        for header, _record in asked:
            producer.end_oneway(header, COMMIT)
        assert sorted(m.body for m in running.stored("T")) == [b"0", b"1", b"2", b"4"]
        half_queue = running.broker.store.queue(HALF, 0)
        op_queue = running.broker.store.queue(OPS, 0)
        assert progress(running) == (half_queue.next_offset, op_queue.next_offset)


def test_a_half_of_a_client_with_a_wrong_clock_is_as_old_at_a_restart_as_before(tmp_path: Path) -> None:
    """A copy, which a check has made, is stored later than its transaction began: the client's time says nothing."""
    with InProcess(config_of(tmp_path)) as running:
        producer = Producer(running)
        header = producer.half_born(1_000, b"goods")
        round_of_checks(running)
        now = running.clock.ms
    with InProcess(config_of(tmp_path), now_ms=now) as running:
        producer = Producer(running)
        round_of_checks(running)
        assert running.stored(GIVEN_UP) == [] and len(producer.asked()) == 1
        assert producer.end(header, COMMIT).code == 0
        (message,) = running.stored("T")
        assert message.body == b"goods" and "ROPEWALK_TRANSACTION_SINCE" not in message.properties


def test_a_crash_that_loses_the_progress_decides_nothing_twice(tmp_path: Path) -> None:
    with InProcess(config_of(tmp_path)) as running:
        producer = Producer(running)
        headers = [producer.half(b"%d" % n, UNIQ_KEY=f"K{n}") for n in range(40)]
        for header in headers[:39]:
            producer.end_oneway(header, COMMIT)
        round_of_checks(running)
        now = running.clock.ms
    for name in ("config/consumerOffset.json", "config/consumerOffset.json.bak"):
        (tmp_path / name).unlink(missing_ok=True)
    with InProcess(config_of(tmp_path), now_ms=now) as running:
        producer = Producer(running)
        round_of_checks(running)
        ((header, record),) = producer.asked()
        assert record.body == b"39"
        producer.end_oneway(header, COMMIT)
        assert len(running.stored("T")) == 40
        assert progress(running) == (42, running.broker.store.queue(OPS, 0).next_offset)


def test_operation_records_of_rocketmq_4_are_read(tmp_path: Path) -> None:
    """Records of one offset without a comma decide it; records of no operation decide nothing."""
    with InProcess(config_of(tmp_path)) as running:
        producer = Producer(running)
        for n in range(4):
            producer.half(b"%d" % n, UNIQ_KEY=f"K{n}")
        queue = running.broker.store.queue(OPS, 0)
        running.broker.begin_turn()
        for body, properties in (
            (b"1", b"TAGS\x01d\x02"),
            (b"2", b"TAGS\x01x\x02"),
            (b"junk,,0x3,", b"TAGS\x01d\x02"),
        ):
            message = (queue, body, properties, 0, 0, running.clock.ms, 0, 0, 0)
            running.broker.store.put([message], running.broker.store.config.store_host)
        running.broker.end_turn()
        running.settle()
        now = running.clock.ms
    with InProcess(config_of(tmp_path), now_ms=now) as running:
        producer = Producer(running)
        round_of_checks(running)
        assert [record.body for _, record in producer.asked()] == [b"0", b"2", b"3"]


def test_nothing_runs_while_nothing_is_open(running: InProcess) -> None:
    producer = Producer(running)
    producer.end_oneway(producer.half(), COMMIT)
    progress(running)
    woken = []
    running.broker.transactions._wake = lambda: woken.append(1)
    before = running.broker.store.log.end_offset, running.broker.offsets.changed
    for _ in range(50):
        running.tick(1_000)
    assert (running.broker.store.log.end_offset, running.broker.offsets.changed) == before
    assert woken == []


def append(
    running: InProcess, topic: str, record: Record, properties: dict[str, str], **changes: int
) -> None:
    """Append a record as another broker would have, behind everything."""
    store = running.broker.store
    queue = store.queue(topic, 0)
    sys_flag, prepared = changes.get("sys_flag", record.sys_flag), changes.get("prepared", 0)
    message = (
        queue,
        record.body,
        encode_properties(properties),
        record.flag,
        sys_flag,
        record.born_timestamp,
        0,
        prepared,
        0,
    )
    running.broker.begin_turn()
    store.put([message], encode_host(*record.born_host))
    running.broker.end_turn()
    running.settle()


def test_a_commit_whose_operation_record_a_crash_took_is_not_repeated(tmp_path: Path) -> None:
    with InProcess(config_of(tmp_path)) as running:
        producer = Producer(running)
        producer.half(b"committed", UNIQ_KEY="K1")
        producer.half(b"open", UNIQ_KEY="K2")
        half = running.stored(HALF)[0]
        append(running, "T", half, half.properties, sys_flag=COMMIT, prepared=half.offset)
        now = running.clock.ms
    with InProcess(config_of(tmp_path), now_ms=now) as running:
        producer = Producer(running)
        round_of_checks(running)
        assert [record.body for _, record in producer.asked()] == [b"open"]
        assert [op.body for op in running.stored(OPS)] == [b"0,", b"1,"]
        assert len(running.stored("T")) == 1


def test_copies_that_rocketmq_made_are_one_transaction(tmp_path: Path) -> None:
    """Copies of RocketMQ raise the count, and neither name the first record nor mark the one before."""
    with InProcess(config_of(tmp_path)) as running:
        producer = Producer(running)
        header = producer.half(b"once")
        producer.half(b"sent twice by a client", bornAt="now")
        (half, _second) = running.stored(HALF)
        for times in (1, 2):
            append(running, HALF, half, half.properties | {"TRANSACTION_CHECK_TIMES": str(times)})
        now = running.clock.ms
    with InProcess(config_of(tmp_path), now_ms=now) as running:
        producer = Producer(running)
        round_of_checks(running)
        asked = producer.asked()
        assert sorted((r.body, r.properties["TRANSACTION_CHECK_TIMES"]) for _, r in asked) == [
            (b"once", "3"),
            (b"sent twice by a client", "1"),
        ]
        for check, _record in asked:
            producer.end_oneway(check, COMMIT)
        producer.end_oneway(header, COMMIT)
        assert len(running.stored("T")) == 2
