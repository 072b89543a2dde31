"""Answers that wait for the disk: their order, their time, and whom they never delay."""

import pytest

from broker.remoting.incoming import IncomingBudget
from broker.remoting.outbox import release
from broker.remoting.rpc_times import FAILED, SUCCESS, RpcTimes
from broker.remoting.session import Handlers, Session
from broker.waiting.pending_acks import AckQueue
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format.remoting import JSON, ROCKETMQ, Command, FrameBuffer, decode_frame, encode_frame
from store.log.limits import NO_LIMIT
from tests.broker.harness import FlushGate, InProcess, request, send_ext
from tests.support.links import FakeLink

V2 = RequestCode.SEND_MESSAGE_V2


def session(port: int = 1) -> tuple[Session, FakeLink]:
    link = FakeLink(("127.0.0.1", port))
    return Session(link, Handlers(), lambda _session: None, budget=IncomingBudget(lambda: 0)), link


def success(opaque: int, kind: int = JSON) -> bytes:
    asked = request(V2, opaque=opaque, serialize_type=kind)
    answer = decode_frame(asked[4:]).reply(
        0, None, {"msgId": f"M{opaque}", "queueId": "0", "queueOffset": "7"}
    )
    return encode_frame(answer)


def commands(link: FakeLink) -> list[Command]:
    data, link.sent = bytes(link.sent), bytearray()
    return [decode_frame(payload) for payload in FrameBuffer().feed(data)]


def test_answers_leave_when_the_log_is_flushed_through_their_records_and_not_before() -> None:
    acks = AckQueue()
    one, link = session()
    acks.add([(one.outbox, [success(1), success(2)])], 100, 10)
    acks.add([(one.outbox, [success(3)])], 200, 10)
    acks.complete(99)
    assert commands(link) == []
    acks.complete(100)
    assert [c.opaque for c in commands(link)] == [1, 2]
    acks.complete(1000)
    assert [c.opaque for c in commands(link)] == [3]
    assert len(acks) == 0


def test_what_waits_too_long_is_answered_stored_but_not_flushed() -> None:
    acks = AckQueue()
    one, link = session()
    acks.add([(one.outbox, [success(1), success(2, ROCKETMQ)])], 100, 10)
    acks.add([(one.outbox, [success(3)])], 200, 11)
    acks.expire(9)
    assert commands(link) == []
    assert len(acks) == 3
    acks.expire(10)
    assert len(acks) == 1, "answers are counted, and not the reads that brought their requests"
    late = commands(link)
    assert [(c.opaque, c.code, c.serialize_type) for c in late] == [(1, 10, JSON), (2, 10, ROCKETMQ)]
    assert all(c.ext == {"msgId": f"M{c.opaque}", "queueId": "0", "queueOffset": "7"} for c in late)
    assert all(c.is_response and c.remark for c in late)
    acks.complete(150)
    assert commands(link) == [], "it is answered once"
    acks.complete(200)
    assert [(c.opaque, c.code) for c in commands(link)] == [(3, 0)]


def test_everything_that_waits_can_fail_at_once_and_is_never_answered_again() -> None:
    acks = AckQueue()
    (one, link), (gone, gone_link) = session(1), session(2)
    acks.add([(one.outbox, [success(1), success(2, ROCKETMQ)]), (gone.outbox, [success(3)])], 100, 10)
    acks.add([(one.outbox, [success(4)])], 200, 30, 20)
    acks.expire(10)
    assert [c.code for c in commands(link)] == [10, 10]
    gone_link.sent.clear()
    acks.add([(one.outbox, [success(5)]), (gone.outbox, [success(6)])], 300, 30)
    gone.closed()
    acks.fail(ResponseCode.SYSTEM_ERROR, "TERM_CHANGED: term 8 began")
    failed = commands(link)
    assert [(c.opaque, c.code) for c in failed] == [(4, 1), (5, 1)]
    assert all(c.remark == "TERM_CHANGED: term 8 began" for c in failed)
    assert len(acks) == 0
    acks.complete(1000)
    acks.expire(1000)
    assert commands(link) == commands(gone_link) == []
    acks.add([(one.outbox, [success(7)])], 250, 2000)
    acks.complete(250)
    assert [(c.opaque, c.code) for c in commands(link)] == [(7, 0)], "a log that was cut begins again"


def test_lateness_of_other_members_has_the_code_that_the_group_gives_it() -> None:
    acks = AckQueue()
    acks.late = ResponseCode.SYSTEM_ERROR, "QUORUM_LATE"
    one, link = session()
    acks.add([(one.outbox, [success(1)])], 100, NO_LIMIT, 20)
    acks.expire(20, NO_LIMIT, 99)
    assert [(c.code, c.remark) for c in commands(link)] == [(1, "QUORUM_LATE")]


def test_a_closed_connections_answers_are_dropped_and_its_neighbours_leave() -> None:
    acks = AckQueue()
    (gone, gone_link), (here, here_link) = session(1), session(2)
    acks.add([(gone.outbox, [success(1)])], 100, 10)
    acks.add([(here.outbox, [success(2)])], 200, 10)
    acks.add([(gone.outbox, [success(3)])], 300, 20)
    gone.closed()
    acks.complete(200)
    acks.expire(20)
    assert commands(gone_link) == []
    assert [c.opaque for c in commands(here_link)] == [2]
    assert len(acks) == 0


@pytest.mark.parametrize("late", [False, True])
def test_answers_are_counted_by_what_they_answer_and_whether_anybody_was_there(late: bool) -> None:
    times = RpcTimes()
    acks = AckQueue(times)
    (gone, _), (here, _) = session(1), session(2)
    batch = (RequestCode.SEND_BATCH_MESSAGE, ResponseCode.SUCCESS)
    for one in (gone, here):
        acks.add([(one.outbox, [success(1), success(2)])], 100, 10)
        acks.add([(one.outbox, [success(3), success(4), success(5)])], 100, 10, kinds=[batch])
    gone.closed()
    if late:
        acks.expire(10)
    else:
        acks.complete(100)
    response = "flush_disk_timeout" if late else "success"
    assert {(one.request, one.response, one.result): sum(one.counts) for one in times.series()} == {
        (request, response, result): count
        for request, count in (("send_message_v2", 4), ("send_batch_message", 1))
        for result in (SUCCESS, FAILED)
    }


@pytest.mark.parametrize("kind", [JSON, ROCKETMQ])
@pytest.mark.parametrize("body", [b"", b'a body with "remark": in it'])
@pytest.mark.parametrize("remark", [None, 'said "before"'])
def test_another_code_changes_the_code_and_the_remark_and_nothing_else(
    kind: int, body: bytes, remark: str | None
) -> None:
    asked = decode_frame(request(V2, opaque=77, serialize_type=kind)[4:])
    answer = asked.reply(0, remark, {"msgId": "M", "queueOffset": "7"})
    answer.body = body
    one, link = session()
    release(RpcTimes(), [(one.outbox, [encode_frame(answer)])], (), 0.0, 11, 'stored, "but"')
    (payload,) = FrameBuffer().feed(bytes(link.sent))
    answer.code, answer.remark = 11, 'stored, "but"'
    assert decode_frame(payload) == answer


def test_slaves_that_are_late_cost_12_whether_the_flush_is_done_or_not() -> None:
    acks = AckQueue()
    one, link = session()
    acks.add([(one.outbox, [success(1)])], 100, 5000, 3000)
    acks.add([(one.outbox, [success(2)])], 200, 5000, 3000)
    acks.add([(one.outbox, [success(3)])], 300, 5001, 3001)
    acks.expire(2999, flushed=300, confirmed=0)
    assert commands(link) == []
    acks.expire(3000, flushed=0, confirmed=150)
    assert [(c.opaque, c.code) for c in commands(link)] == [(2, 12)], "the first one is confirmed"
    acks.expire(4999, flushed=0, confirmed=150)
    assert [(c.opaque, c.code) for c in commands(link)] == [(3, 12)]
    acks.expire(5000, flushed=0, confirmed=150)
    assert [(c.opaque, c.code) for c in commands(link)] == [(1, 10)]
    assert len(acks) == 0
    acks.add([(one.outbox, [success(4)])], 400, 1000, 2000)
    acks.expire(1000, flushed=400, confirmed=0)
    assert commands(link) == [], "the disk has it, and the slaves have time"
    acks.expire(2000, flushed=400, confirmed=0)
    assert [(c.opaque, c.code) for c in commands(link)] == [(4, 12)]


# -- with a broker ------------------------------------------------------------------------------------------


def test_under_sync_flush_nobody_is_answered_before_the_disk(
    synced: InProcess, flush_gate: FlushGate
) -> None:
    flush_gate.shut()
    clients = [synced.connect() for _ in range(3)]
    for client in clients:
        client.ask(V2, send_ext("T"))
        client.ask(V2, send_ext("T"))
    for _ in range(5):
        synced.tick(100)
    assert all(client.answers() == [] for client in clients)
    assert clients[0].call(9999).code == 3, "what needs no disk is answered"
    flush_gate.open()
    synced.until(lambda: not len(synced.broker.acks))
    assert [[c.opaque for c in client.answers()] for client in clients] == [[1, 2]] * 3


def test_one_flush_answers_for_everything_that_came_while_the_last_one_ran(
    synced: InProcess, flush_gate: FlushGate
) -> None:
    client = synced.connect()
    client.send("T")
    flush_gate.shut()
    client.ask(V2, send_ext("T"))
    synced.until(lambda: flush_gate.waiting)
    calls = flush_gate.calls
    for _ in range(200):
        client.ask(V2, send_ext("T"))
    flush_gate.open()
    synced.until(lambda: not len(synced.broker.acks))
    assert len(client.answers()) == 201
    assert flush_gate.calls <= calls + 4


@pytest.mark.parametrize("kind", [JSON, ROCKETMQ])
def test_a_flush_that_takes_too_long_is_told_with_the_full_header(
    synced: InProcess, flush_gate: FlushGate, kind: int
) -> None:
    client = synced.connect()
    fields = client.call(V2, send_ext("T"), serialize_type=kind).ext
    flush_gate.shut()
    client.ask(V2, send_ext("T"), serialize_type=kind)
    synced.tick(4999)
    assert client.answers() == []
    synced.tick(1)
    (late,) = client.answers()
    assert (late.code, late.serialize_type) == (ResponseCode.FLUSH_DISK_TIMEOUT, kind)
    assert late.ext.keys() == fields.keys()
    assert late.ext["queueOffset"] == "1"
    flush_gate.open()
    synced.settle()
    assert client.answers() == []
    assert len(synced.stored("T")) == 2, "it is stored all the same"


def test_what_one_read_asked_is_answered_together_and_errors_overtake(
    synced: InProcess, flush_gate: FlushGate
) -> None:
    client = synced.connect()
    client.send("T")
    flush_gate.shut()
    client.feed(
        request(V2, send_ext("T"), opaque=11)
        + request(V2, send_ext("a/b"), opaque=12)
        + request(V2, send_ext("T", v1=False, queueId=-1), opaque=13)
    )
    assert [(c.opaque, c.code) for c in client.answers()] == [(12, 29)]
    assert len(synced.broker.acks) == 2
    flush_gate.open()
    synced.until(lambda: not len(synced.broker.acks))
    assert [(c.opaque, c.code) for c in client.answers()] == [(11, 0), (13, 0)]


def test_a_connection_that_closed_while_it_waited_leaves_its_message_stored(
    synced: InProcess, flush_gate: FlushGate
) -> None:
    gone, here = synced.connect(), synced.connect()
    flush_gate.shut()
    gone.ask(V2, send_ext("T"), b"gone")
    here.ask(V2, send_ext("T"), b"here")
    gone.disconnect()
    flush_gate.open()
    synced.until(lambda: not len(synced.broker.acks))
    assert gone.answers() == []
    assert [c.code for c in here.answers()] == [0]
    synced.settle()
    assert [r.body for r in synced.stored("T")] == [b"gone", b"here"]


def test_async_flush_answers_in_the_same_turn(running: InProcess) -> None:
    client = running.connect()
    client.feed(request(V2, send_ext("T")))
    assert [c.code for c in client.answers()] == [0]
    assert len(running.broker.acks) == 0
