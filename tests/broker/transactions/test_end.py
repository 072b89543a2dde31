"""Half messages and their ends: what is stored where, and who is refused."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ropewalk.codes import ResponseCode
from ropewalk.format.sliced_json import finish
from tests.broker.harness import UNIQ, Client, InProcess, config_of, taken
from tests.broker.transactions.transacting import COMMIT, HALF, OPS, ROLLBACK, UNKNOWN, Producer, progress
from tests.support.clocks import START_MS


@pytest.fixture
def running(tmp_path: Path) -> Iterator[InProcess]:
    with InProcess(config_of(tmp_path)) as running:
        yield running


@pytest.fixture
def producer(running: InProcess) -> Producer:
    return Producer(running)


def test_a_half_message_waits_in_a_queue_of_its_own(producer: Producer) -> None:
    running = producer.running
    answer = producer.half_answer(b"goods", queue_id=3, TAGS="A", KEYS="k1")
    assert (answer.ext["queueId"], answer.ext["queueOffset"]) == ("3", "0")
    assert answer.ext["transactionId"] == UNIQ
    (half,) = running.stored(HALF)
    assert (half.body, half.sys_flag, half.queue_id, half.prepared_transaction_offset) == (b"goods", 0, 0, 0)
    expected = {
        "REAL_TOPIC": "T",
        "REAL_QID": "3",
        "TRAN_MSG": "true",
        "PGROUP": "pg",
        "__transactionId__": UNIQ,
        "TAGS": "A",
        "CLUSTER": "DefaultCluster",
    }
    assert expected.items() <= half.properties.items()
    assert running.stored("T", 3) == []


def test_a_commit_stores_the_message_where_it_was_sent_to(producer: Producer) -> None:
    running = producer.running
    header = producer.half(b"goods", queue_id=2, TAGS="A", mine="yes")
    assert producer.end(header, COMMIT).code == ResponseCode.SUCCESS
    (half,) = running.stored(HALF)
    (message,) = running.stored("T", 2)
    assert (message.body, message.tags, message.sys_flag) == (b"goods", "A", COMMIT)
    assert message.prepared_transaction_offset == half.offset
    assert (message.born_timestamp, message.born_host) == (half.born_timestamp, half.born_host)
    assert message.properties == half.properties
    (op,) = running.stored(OPS)
    assert (op.body, op.properties) == (b"0,", {"TAGS": "d", "WAIT": "true"})


def test_a_rollback_leaves_an_operation_record_and_nothing_else(producer: Producer) -> None:
    running = producer.running
    header = producer.half()
    assert producer.end(header, ROLLBACK).code == ResponseCode.SUCCESS
    assert running.stored("T") == []
    assert [op.body for op in running.stored(OPS)] == [b"0,"]


def test_decisions_of_one_turn_share_an_operation_record(producer: Producer) -> None:
    running = producer.running
    headers = [producer.half(b"%d" % n, UNIQ_KEY=f"K{n}") for n in range(3)]
    client = producer.client
    running.broker.begin_turn()
    for header in headers:
        client.session.receive(end_request(header, COMMIT))
    running.broker.end_turn()
    running.settle()
    assert [op.body for op in running.stored(OPS)] == [b"0,1,2,"]
    assert [m.body for m in running.stored("T")] == [b"0", b"1", b"2"]


def end_request(header: dict[str, object], decision: int) -> bytes:
    from tests.broker.harness import request

    return request(37, {**header, "commitOrRollback": decision}, flag=2)


def test_an_undecided_end_is_no_end_and_has_no_answer(producer: Producer) -> None:
    header = producer.half()
    before = taken(producer.running)
    for kind in (UNKNOWN, 4, 99):
        producer.client.ask(37, {**header, "commitOrRollback": kind})
    producer.running.settle()
    assert producer.client.answers() == []
    assert taken(producer.running) == before


def test_a_transaction_is_decided_once(producer: Producer) -> None:
    running = producer.running
    header = producer.half()
    assert producer.end(header, COMMIT).code == 0
    before = taken(running)
    for decision in (COMMIT, ROLLBACK):
        answer = producer.end(header, decision)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "decided" in (answer.remark or "")
    producer.end_oneway(header, COMMIT)
    assert taken(running) == before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"producerGroup": "other"}, "The producer group wrong"),
        ({"tranStateTableOffset": 7}, "The transaction state table offset wrong"),
        ({"commitLogOffset": 1}, "Find prepared transaction message failed"),
        ({"commitLogOffset": -1}, "Find prepared transaction message failed"),
        ({"commitLogOffset": 1 << 40}, "Find prepared transaction message failed"),
    ],
)
def test_an_end_has_to_fit_its_half_message(
    producer: Producer, change: dict[str, object], words: str
) -> None:
    header = producer.half()
    before = taken(producer.running)
    answer = producer.end(header, COMMIT, **change)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, words)
    assert taken(producer.running) == before


def test_no_other_message_can_be_committed(producer: Producer) -> None:
    answer = producer.client.send("T", b"plain", properties={"PGROUP": "pg"})
    header = producer.end_header(answer)
    assert producer.end(header, COMMIT).remark == "Find prepared transaction message failed"


def test_a_delay_begins_at_the_commit(producer: Producer) -> None:
    running = producer.running
    header = producer.half(b"later", DELAY="2")
    assert [r.body for r in running.stored(HALF)] == [b"later"]
    assert producer.end(header, COMMIT).code == 0
    assert running.stored("T") == []
    (waiting,) = running.stored("SCHEDULE_TOPIC_XXXX", 1)
    assert waiting.sys_flag == COMMIT
    running.tick(5_000)
    running.until(lambda: len(running.stored("T")) == 1)


def test_half_messages_can_be_refused_by_configuration(tmp_path: Path) -> None:
    with InProcess(config_of(tmp_path, rejectTransactionMessage=True)) as running:
        answer = Producer(running).half_answer()
        assert answer.code == ResponseCode.NO_PERMISSION
        assert running.stored(HALF) == []
        assert running.connect().send("T").code == 0


def test_a_half_message_without_the_property_of_its_group_gets_it(producer: Producer) -> None:
    answer = producer.client.send("T", sysFlag=4, producerGroup="pg")
    assert answer.code == 0
    (half,) = producer.running.stored(HALF)
    assert half.properties["PGROUP"] == "pg"
    assert producer.end(producer.end_header(answer), COMMIT).code == 0
    assert len(producer.running.stored("T")) == 1


def test_a_consumed_message_that_is_sent_again_brings_no_counters_along(producer: Producer) -> None:
    producer.half(TRANSACTION_CHECK_TIMES="14", TRAN_PREPARED_QUEUE_OFFSET="0")
    (half,) = producer.running.stored(HALF)
    assert not half.properties.keys() & {"TRANSACTION_CHECK_TIMES", "TRAN_PREPARED_QUEUE_OFFSET"}


def test_an_immunity_that_is_over_waits_for_the_check(producer: Producer) -> None:
    running = producer.running
    header = producer.half(CHECK_IMMUNITY_TIME_IN_SECONDS="10")
    running.clock.ms += 11_000
    assert producer.end(header, COMMIT).code == ResponseCode.ILLEGAL_OPERATION
    assert producer.end(header, COMMIT, fromTransactionCheck=True).code == 0


def test_progress_follows_the_oldest_open_half(producer: Producer) -> None:
    running = producer.running
    first, second = producer.half(UNIQ_KEY="A"), producer.half(UNIQ_KEY="B")
    assert progress(running) == (0, 0) or progress(running) == (None, None)
    assert producer.end(second, COMMIT).code == 0
    assert progress(running)[0] in (None, 0)
    assert producer.end(first, ROLLBACK).code == 0
    assert progress(running) == (2, 2)


def test_the_counts_of_open_halves_are_those_of_the_file(producer: Producer) -> None:
    producer.half(UNIQ_KEY="A")
    header = producer.half(UNIQ_KEY="B")
    text = finish(producer.running.broker.transactions.dump_in_slices())
    assert b'"transactionCount":{"T":{"count":2,"timeStamp":%d}}' % START_MS in text.replace(b" ", b"")
    producer.end(header, COMMIT)
    assert b'"count":1' in finish(producer.running.broker.transactions.dump_in_slices())


def test_half_and_commit_wait_for_the_disk_where_producers_do(tmp_path: Path) -> None:
    with InProcess(config_of(tmp_path, flushDiskType="SYNC_FLUSH")) as running:
        producer = Producer(running)
        header = producer.half(b"sure")
        assert producer.end(header, COMMIT).code == 0
        assert [m.body for m in running.stored("T")] == [b"sure"]


def test_nobody_consumes_half_messages(producer: Producer, running: InProcess) -> None:
    producer.half()
    client: Client = running.connect()
    assert client.send("T", b"plain").code == 0
    answer = client.pull("T")
    assert answer.body.count(b"plain") == 1 and answer.ext["maxOffset"] == "1"
    assert client.send(HALF).code == ResponseCode.NO_PERMISSION
