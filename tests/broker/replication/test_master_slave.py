"""A SYNC_MASTER and its slaves, told by what producers and consumers see; and a slave that takes no messages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import msgspec
import pytest

from broker.remoting.connection import Connection
from broker.replication.master_slave import promise_of
from ha.group.roles import QuorumPolicy
from ha.stream.connection import HaConnection
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import RemoteProtocolError
from ropewalk.format.ha import Frames, encode_header, encode_report
from store.io.disk import MappedFile
from tests.broker.harness import (
    FAST_PATH,
    Client,
    FlushGate,
    InProcess,
    config_of,
    pull_ext,
    request,
    send_ext,
    without_fsync,
)
from tests.support.links import FakeHaLink

V2 = RequestCode.SEND_MESSAGE_V2
SLAVE_TIMEOUT_MS = 3_000


class Slave:
    """A scripted slave: it keeps what it is sent, and reports when the test says so."""

    def __init__(self, process: InProcess, ip: str = "10.0.0.2", port: int = 1) -> None:
        self.process = process
        self.link = FakeHaLink((ip, port))
        self.session: HaConnection = process.broker.replication.new_session(cast(Connection, self.link))
        self.log = bytearray()
        self.begin = 0
        self._frames = Frames()

    def report(self, offset: int | None = None) -> None:
        """Report, in a turn of its own: everything that came, or another offset."""
        self.take()
        end = self.begin + len(self.log) if offset is None else offset
        self.process.broker.begin_turn()
        try:
            self.session.receive(encode_report(end))
        finally:
            self.process.broker.end_turn()
        self.take()

    def take(self) -> None:
        data, self.link.sent = bytes(self.link.sent), bytearray()
        for offset, piece in self._frames.feed(data):
            if not self.log:
                self.begin = offset
            assert offset == self.begin + len(self.log)
            self.log += piece

    def leave(self) -> None:
        self.session.closed()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    without_fsync(monkeypatch)


@pytest.fixture
def process(tmp_path: Path) -> Iterator[InProcess]:
    with InProcess(config_of(tmp_path, brokerRole="SYNC_MASTER")) as running:
        yield running


def with_slave(process: InProcess, count: int = 1) -> list[Slave]:
    process.broker.replication.set_registered({"10.0.0.2": count})
    slaves = [Slave(process, port=port) for port in range(1, count + 1)]
    for slave in slaves:
        slave.report()
    return slaves


def codes(client: Client) -> list[int]:
    return [answer.code for answer in client.answers()]


def seen(process: InProcess, topic: str = "T") -> list[bytes]:
    return [record.body for record in process.stored(topic)]


@pytest.mark.parametrize("late", [False, True])
def test_what_many_clients_sent_in_a_turn_is_answered_to_each_when_slaves_are_late_or_gone(
    process: InProcess, late: bool
) -> None:
    (slave,) = with_slave(process)
    clients = [process.connect() for _ in range(5)]
    for client in clients * 2:  # what they send next is like this
        client.ask(V2, send_ext("T"), b"warm")
        slave.report()
    assert [codes(client) for client in clients] == [[0, 0]] * 5
    if not late:
        slave.leave()
    process.broker.begin_turn()
    for n, client in enumerate(clients):
        client.session.receive(request(V2, send_ext("T"), b"%d" % n, opaque=n))
    process.broker.end_turn()
    if late:
        assert len(process.broker.acks) == 5
        clients[1].session.closed()
        process.tick(3000)
    expected = ResponseCode.FLUSH_SLAVE_TIMEOUT if late else ResponseCode.SLAVE_NOT_AVAILABLE
    for n, client in enumerate(clients):
        answered = [] if late and n == 1 else [(n, expected)]
        assert [(answer.opaque, answer.code) for answer in client.answers()] == answered
    assert len(process.broker.acks) == 0
    slave.report()
    assert not any(client.answers() for client in clients), "each is answered once"


@pytest.mark.skipif(not FAST_PATH, reason="windows are halved by the fast path alone")
def test_the_first_half_of_a_full_window_leaves_for_the_slave_before_the_second_is_worked_on(
    process: InProcess,
) -> None:
    (slave,) = with_slave(process)
    client = process.connect()
    client.ask(V2, send_ext("T"), b"the topic")
    slave.report()
    assert codes(client) == [ResponseCode.SUCCESS]
    size, begin = 64, len(slave.log)
    client.feed(b"".join(request(V2, send_ext("T"), b"%02d" % n, opaque=100 + n) for n in range(size)))
    left, whole = slave.link.pushed, len(slave.link.sent)
    assert [round(8 * size / whole) for size in left] == [4, 8], "each half, before its answers are made"
    slave.take()
    ends, at = [], begin
    while at < len(slave.log):
        at += int.from_bytes(slave.log[at : at + 4], "big")
        ends.append(at)
    assert len(ends) == size
    slave.report(ends[size // 2 - 1])
    first = client.answers()
    assert [(answer.opaque, answer.code) for answer in first] == [(100 + n, 0) for n in range(size // 2)]
    assert seen(process) == [b"the topic"], "a turn's messages are shown together"
    slave.report()
    assert [answer.opaque for answer in client.answers()] == [100 + n for n in range(size // 2, size)]
    assert len(seen(process)) == 1 + size


def test_a_run_of_128_sends_is_not_halved(process: InProcess) -> None:
    (slave,) = with_slave(process)
    client = process.connect()
    client.ask(V2, send_ext("T"), b"the topic")
    slave.report()
    client.feed(b"".join(request(V2, send_ext("T"), b"%03d" % n, opaque=100 + n) for n in range(128)))
    assert len(slave.link.pushed) <= 1, slave.link.pushed
    slave.report()
    assert len(client.answers()) == 1 + 128


def test_a_report_answers_producers_before_the_others_of_its_turn_are_looked_at(process: InProcess) -> None:
    (slave,) = with_slave(process)
    client = process.connect()
    client.ask(V2, send_ext("T"), b"first")
    slave.take()
    broker, reported = process.broker, encode_report(slave.begin + len(slave.log))
    broker.begin_turn()
    broker.on_priority_served()
    assert not client.answers() and not seen(process), "nobody has said anything"
    slave.session.receive(reported)
    broker.on_priority_served()
    assert codes(client) == [ResponseCode.SUCCESS] and seen(process) == [b"first"]
    client.session.receive(request(V2, send_ext("T"), b"second", opaque=7))
    broker.end_turn()
    assert not client.answers() and seen(process) == [b"first"]
    slave.report()
    assert codes(client) == [ResponseCode.SUCCESS] and seen(process) == [b"first", b"second"]


# -- what the producer is told -----------------------------------------------------------------------------


def test_without_a_slave_a_message_is_stored_and_answered_at_once_with_11(process: InProcess) -> None:
    client = process.connect()
    answer = client.send("T", b"alone")
    assert answer.code == ResponseCode.SLAVE_NOT_AVAILABLE and answer.ext["queueOffset"] == "0"
    assert seen(process) == [b"alone"], "its wait is decided"


def test_a_message_is_acknowledged_when_the_slave_has_it_and_visible_no_earlier(process: InProcess) -> None:
    (slave,) = with_slave(process)
    client = process.connect()
    client.ask(V2, send_ext("T"), b"one")
    process.tick(1000)
    assert codes(client) == [] and seen(process) == []
    slave.take()
    end = len(slave.log)
    slave.report(end - 1)
    assert codes(client) == [] and seen(process) == []
    slave.report(end)
    assert codes(client) == [0] and seen(process) == [b"one"]


def test_what_a_slave_was_sent_is_the_log(process: InProcess) -> None:
    (slave,) = with_slave(process)
    client = process.connect()
    for number in range(50):
        client.ask(V2, send_ext("T", queueId=number % 4), b"x" * number)
    slave.report()
    segment = process.broker.store.log.segments[0]
    assert bytes(slave.log) == bytes(segment.map[: segment.write_position])
    assert codes(client) == [0] * 50


def test_a_slave_that_is_late_costs_12_after_its_time_and_not_before(process: InProcess) -> None:
    (slave,) = with_slave(process)
    client = process.connect()
    client.ask(V2, send_ext("T"), b"one")
    for _ in range(29):
        process.tick(100)
    assert codes(client) == []
    process.tick(100)
    (answer,) = client.answers()
    assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT and answer.ext["queueOffset"] == "0"
    assert seen(process) == [b"one"]
    slave.report()
    assert codes(client) == [], "it is answered once"


def test_one_report_answers_everybody_whose_message_it_covers_and_nobody_else(process: InProcess) -> None:
    (slave,) = with_slave(process)
    clients = [process.connect() for _ in range(3)]
    ends = []
    for client in clients:
        client.ask(V2, send_ext("T"), b"m")
        ends.append(process.broker.store.log.end_offset)
    slave.report(ends[1])
    assert [codes(client) for client in clients] == [[0], [0], []]
    slave.report()
    assert codes(clients[2]) == [0]


def test_one_late_message_does_not_hold_up_those_that_are_there(process: InProcess) -> None:
    """In RocketMQ one request that waits makes those behind it time out, replicated or not."""
    slaves = with_slave(process, 2)
    client = process.connect()
    client.ask(V2, send_ext("T"), b"early")
    process.tick(2_900)
    client.ask(V2, send_ext("T"), b"late")
    slaves[0].report()
    assert codes(client) == [0, 0]


def test_a_message_that_waits_for_nothing_is_answered_at_once_and_seen_with_the_others(
    process: InProcess,
) -> None:
    (slave,) = with_slave(process)
    client = process.connect()
    assert client.send("T", b"no wait", properties={"WAIT": "false"}).code == 0
    assert seen(process) == []
    slave.report()
    assert seen(process) == [b"no wait"]


def test_three_copies_take_two_slaves(tmp_path: Path) -> None:
    config = config_of(tmp_path, brokerRole="SYNC_MASTER", inSyncReplicas=3)
    with InProcess(config) as process:
        one, two = with_slave(process, 2)
        client = process.connect()
        client.ask(V2, send_ext("T"), b"m")
        one.report()
        assert codes(client) == []
        two.report()
        assert codes(client) == [0]
        two.leave()
        assert client.send("T").code == ResponseCode.SLAVE_NOT_AVAILABLE


def test_one_copy_waits_for_nobody(tmp_path: Path) -> None:
    with InProcess(config_of(tmp_path, brokerRole="SYNC_MASTER", inSyncReplicas=1)) as process:
        assert process.connect().send("T").code == 0


def test_an_async_master_waits_for_nobody_and_sends_everything(tmp_path: Path) -> None:
    with InProcess(config_of(tmp_path)) as process:
        client = process.connect()
        slave = Slave(process)
        slave.report()
        assert client.send("T", b"m").code == 0
        assert seen(process) == [b"m"]
        slave.take()
        assert len(slave.log) == process.broker.store.log.end_offset


def test_under_sync_flush_an_acknowledgement_takes_the_disk_and_the_slave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = FlushGate()
    monkeypatch.setattr(MappedFile, "sync", lambda file: FlushGate.sync(gate, file))
    config = config_of(tmp_path, brokerRole="SYNC_MASTER", flushDiskType="SYNC_FLUSH")
    with InProcess(config) as process:
        (slave,) = with_slave(process)
        client = process.connect()
        client.ask(V2, send_ext("T"), b"disk first")
        process.until(lambda: process.broker.store.log.flushed_offset == process.broker.store.log.end_offset)
        assert codes(client) == []
        slave.report()
        assert codes(client) == [0]
        gate.shut()
        client.ask(V2, send_ext("T"), b"slave first")
        slave.report()
        process.turn()
        assert codes(client) == [] and seen(process) == [b"disk first"]
        process.tick(SLAVE_TIMEOUT_MS + 100)
        assert codes(client) == [], "the slave was in time"
        process.tick(2_000)
        assert codes(client) == [ResponseCode.FLUSH_DISK_TIMEOUT]
        client.ask(V2, send_ext("T"), b"neither")
        process.tick(SLAVE_TIMEOUT_MS)
        assert codes(client) == [ResponseCode.FLUSH_SLAVE_TIMEOUT]
        gate.open()


# -- whom it takes -----------------------------------------------------------------------------------------


def test_below_the_least_number_of_copies_nothing_is_stored(tmp_path: Path) -> None:
    config = config_of(tmp_path, brokerRole="SYNC_MASTER", minInSyncReplicas=2)
    with InProcess(config) as process:
        client = process.connect()
        answer = client.send("T")
        assert answer.code == ResponseCode.SYSTEM_ERROR and "IN_SYNC_REPLICAS_NOT_ENOUGH" in (
            answer.remark or ""
        )
        assert process.broker.store.log.end_offset == 0
        (slave,) = with_slave(process)
        client.ask(V2, send_ext("T"), b"m")
        slave.report()
        assert codes(client) == [0]
        slave.leave()
        assert client.send("T").code == ResponseCode.SYSTEM_ERROR


def test_a_strangers_report_acknowledges_nothing(process: InProcess) -> None:
    stranger = Slave(process, "10.9.9.9")
    stranger.report()
    client = process.connect()
    assert client.send("T").code == ResponseCode.SLAVE_NOT_AVAILABLE
    stranger.report()
    assert len(stranger.log) == process.broker.store.log.end_offset, "bytes flow all the same"
    assert client.send("T").code == ResponseCode.SLAVE_NOT_AVAILABLE


def test_the_report_of_an_older_connection_acknowledges_nothing(process: InProcess) -> None:
    (old,) = with_slave(process)
    new = Slave(process, port=99)
    new.report(0)
    client = process.connect()
    client.ask(V2, send_ext("T"), b"m")
    old.report()
    assert codes(client) == []
    new.report()
    assert codes(client) == [0]


def test_a_report_above_the_own_end_acknowledges_nothing(process: InProcess) -> None:
    (slave,) = with_slave(process)
    client = process.connect()
    client.ask(V2, send_ext("T"), b"m")
    with pytest.raises(RemoteProtocolError, match="were sent"):
        slave.report(1 << 40)
    assert codes(client) == []


def test_when_the_only_slave_leaves_what_waits_for_it_is_answered_at_once(process: InProcess) -> None:
    """As the next message is: three seconds of silence are an unknown outcome for a client that waits no longer."""
    (slave,) = with_slave(process)
    client, other = process.connect(), process.connect()
    client.ask(V2, send_ext("T"), b"waits")
    assert codes(client) == [] and seen(process) == []
    process.broker.begin_turn()
    slave.leave()
    other.session.receive(request(V2, send_ext("T"), b"of the same turn"))
    process.broker.end_turn()
    assert codes(client) == codes(other) == [ResponseCode.SLAVE_NOT_AVAILABLE]
    assert other.send("T", b"later").code == ResponseCode.SLAVE_NOT_AVAILABLE
    assert seen(process) == [b"waits", b"of the same turn", b"later"]
    assert len(process.broker.acks) == 0
    slave = Slave(process, port=7)
    slave.report()
    client.ask(V2, send_ext("T"), b"a slave is there again")
    slave.report()
    assert codes(client) == [0]


def test_when_one_of_two_slaves_leaves_what_waits_is_for_the_other_to_confirm(process: InProcess) -> None:
    one, two = with_slave(process, 2)
    client = process.connect()
    client.ask(V2, send_ext("T"), b"waits")
    one.leave()
    process.turn()
    assert codes(client) == []
    two.report()
    assert codes(client) == [0]
    process.broker.replication.require_acks(2)
    two.leave()
    one, two = with_slave(process, 2)
    client.ask(V2, send_ext("T"), b"waits for both")
    one.report()
    two.leave()
    process.turn()
    assert codes(client) == [ResponseCode.SLAVE_NOT_AVAILABLE]


def test_what_the_slave_had_reported_before_it_left_is_acknowledged(process: InProcess) -> None:
    (slave,) = with_slave(process)
    client, other = process.connect(), process.connect()
    client.ask(V2, send_ext("T"), b"there")
    process.broker.begin_turn()
    slave.take()
    slave.session.receive(encode_report(slave.begin + len(slave.log)))
    slave.leave()
    process.broker.end_turn()
    assert codes(client) == [0]
    other.ask(V2, send_ext("T"), b"not there")
    assert codes(other) == [ResponseCode.SLAVE_NOT_AVAILABLE]


def test_a_slave_far_behind_is_not_waited_for(tmp_path: Path) -> None:
    config = config_of(tmp_path, brokerRole="SYNC_MASTER", haMaxGapNotInSync=10_000)
    with InProcess(config) as process:
        (slave,) = with_slave(process)
        client = process.connect()
        client.ask(V2, send_ext("T"), b"x" * 20_000)
        process.tick(SLAVE_TIMEOUT_MS)
        assert codes(client) == [ResponseCode.FLUSH_SLAVE_TIMEOUT]
        assert client.send("T").code == ResponseCode.SLAVE_NOT_AVAILABLE
        slave.report()
        client.ask(V2, send_ext("T"), b"caught up")
        slave.report()
        assert codes(client) == [0]


# -- consumers ---------------------------------------------------------------------------------------------


def test_a_held_pull_is_answered_when_the_message_is_safe(process: InProcess) -> None:
    (slave,) = with_slave(process)
    client, consumer = process.connect(), process.connect()
    client.ask(V2, send_ext("T"), b"first")
    slave.report()
    client.answers()
    consumer.heartbeat()
    process.tick(1000)
    consumer.answers()  # it is told that its group has changed
    consumer.ask(RequestCode.PULL_MESSAGE, pull_ext("T", queueOffset=1, sysFlag=2 | 4))
    client.ask(V2, send_ext("T"), b"second")
    process.tick(500)
    assert consumer.answers() == []
    slave.report()
    (answer,) = consumer.answers()
    assert answer.code == 0 and b"second" in answer.body


# -- a slave -----------------------------------------------------------------------------------------------


@pytest.fixture
def slave_process(tmp_path: Path) -> Iterator[InProcess]:
    config = config_of(tmp_path, brokerRole="SLAVE", brokerId=1, haMasterAddress="10.0.0.1:10912")
    with InProcess(config) as running:
        yield running


def test_a_slave_takes_no_messages_and_names_its_master(slave_process: InProcess) -> None:
    answer = slave_process.connect().send("T")
    assert answer.code == ResponseCode.SYSTEM_BUSY and "10.0.0.1:10912" in (answer.remark or "")
    assert slave_process.broker.store.log.end_offset == 0


def test_a_slave_hangs_up_on_who_would_follow_it(slave_process: InProcess) -> None:
    assert Slave(slave_process).link.closed


# -- roles that change -------------------------------------------------------------------------------------


def test_a_master_that_becomes_a_slave_takes_nothing_more_and_leads_again_where_it_ended(
    process: InProcess,
) -> None:
    (slave,) = with_slave(process)
    client = process.connect()
    client.ask(V2, send_ext("T"), b"before")
    slave.report()
    assert codes(client) == [0]
    replication = process.broker.replication
    replication.follow()
    assert slave.link.closed
    assert client.send("T").code == ResponseCode.SYSTEM_BUSY
    replication.lead("ASYNC_MASTER")
    assert client.send("T", b"after").code == 0
    assert seen(process) == [b"before", b"after"]
    replication.lead("SYNC_MASTER", 2)
    assert client.send("T", b"sync").code == ResponseCode.SLAVE_NOT_AVAILABLE


def test_the_number_of_slaves_to_wait_for_may_change_at_any_time(process: InProcess) -> None:
    one, two = with_slave(process, 2)
    replication, client = process.broker.replication, process.connect()
    replication.require_acks(2)
    client.ask(V2, send_ext("T"), b"two")
    one.report()
    assert codes(client) == []
    replication.require_acks(1)
    process.turn()
    assert codes(client) == [0]
    client.ask(V2, send_ext("T"), b"nobody")
    replication.require_acks(0)
    process.turn()
    assert codes(client) == [0] and client.send("T", b"at once").code == 0
    assert len(seen(process)) == 3
    replication.require_acks(1)
    client.ask(V2, send_ext("T"), b"again")
    assert codes(client) == [] and len(seen(process)) == 3
    two.report()
    assert codes(client) == [0] and len(seen(process)) == 4


def test_who_still_waits_when_the_role_changes_is_not_acknowledged(process: InProcess) -> None:
    with_slave(process)
    client = process.connect()
    client.ask(V2, send_ext("T"), b"in between")
    process.broker.replication.follow()
    process.tick(100)
    assert codes(client) == []
    process.tick(SLAVE_TIMEOUT_MS)
    assert codes(client) == [ResponseCode.FLUSH_SLAVE_TIMEOUT]


def test_a_fenced_master_takes_nothing_and_says_why(process: InProcess) -> None:
    process.broker.replication.fence = "another epoch was promised"
    answer = process.connect().send("T")
    assert (answer.code, answer.remark) == (ResponseCode.SERVICE_NOT_AVAILABLE, "another epoch was promised")
    words = process.broker.group.ready_words()
    assert (words.takes_messages, words.send_ok) == (
        False,
        "no messages are taken: another epoch was promised",
    )
    process.broker.replication.fence = None
    assert process.broker.group.ready_words().takes_messages
    assert process.connect().send("T").code == ResponseCode.SLAVE_NOT_AVAILABLE


def test_a_role_whose_record_was_overtaken_before_it_was_on_disk_does_not_begin(process: InProcess) -> None:
    member, replication = process.broker.member, process.broker.replication
    core = member.core
    member.apply_decision(core.accept(1, "one"))
    member.apply_decision(core.release(1, "one"))
    member.apply_decision(core.accept(2, "other"))
    process.until(lambda: member.on_disk.promised_epoch == 2)
    assert process.connect().send("T").code == ResponseCode.SERVICE_NOT_AVAILABLE, "promised to the other"
    member.apply_decision(core.promote(2, "other"))
    member.apply_decision(core.follow(3, 1, "10.0.0.9:10911"))
    process.until(lambda: member.on_disk.promised_epoch == 3)
    assert replication.is_slave and replication.client is not None


# -- what is told about it ---------------------------------------------------------------------------------


def test_a_slave_leaves_consumers_to_its_master_while_it_is_there(tmp_path: Path) -> None:
    for read, code in ((False, ResponseCode.SYSTEM_BUSY), (True, ResponseCode.TOPIC_NOT_EXIST)):
        config = config_of(
            tmp_path / str(read), brokerRole="SLAVE", brokerId=1, haMasterAddress="h:1", slaveReadEnable=read
        )
        with InProcess(config) as process:
            client = process.broker.replication.client
            assert client is not None
            reader = process.connect()
            assert reader.pull("T").code == ResponseCode.TOPIC_NOT_EXIST, (
                "the master is not there: it is served"
            )
            client.opened(FakeHaLink(("h", 1)))
            assert reader.pull("T").code == code


def test_the_status_names_slaves_and_what_is_missing(process: InProcess) -> None:
    process.tick(100)
    status = process.broker.context.ha_status
    assert status.is_master and status.slaves == ()
    assert status.quorum_missing is not None and "0 of the 1 slaves" in status.quorum_missing
    (slave,) = with_slave(process)
    process.connect().ask(V2, send_ext("T"), b"m")
    process.tick(100)
    (link,) = process.broker.context.ha_status.slaves
    end = process.broker.store.log.end_offset
    assert (link.address, link.acknowledged, link.streamed_from, link.in_sync) == ("10.0.0.2:1", 0, end, True)
    assert process.broker.context.ha_status.quorum_missing is None
    slave.leave()
    process.tick(100)
    assert process.broker.context.ha_status.slaves == ()


def test_a_slaves_status_says_whom_it_follows(slave_process: InProcess) -> None:
    slave_process.tick(100)
    assert not slave_process.broker.context.ha_status.is_master
    client = slave_process.broker.replication.client
    assert client is not None
    client.opened(FakeHaLink(("10.0.0.1", 10912)))
    client.begin()
    slave_process.tick(100)
    master = slave_process.broker.context.ha_status.master
    assert master is not None and master.address == "10.0.0.1:10912"
    assert 0 < slave_process.clock() - master.last_write_ms < 1000


@pytest.mark.parametrize(
    ("role", "flush", "slaves", "words"),
    [
        ("ASYNC_MASTER", "ASYNC_FLUSH", 0, "page cache: survives kill -9, not power loss"),
        ("ASYNC_MASTER", "SYNC_FLUSH", 0, "fsynced on this machine"),
        ("SYNC_MASTER", "ASYNC_FLUSH", 1, "and in 1 slave's page cache"),
        ("SYNC_MASTER", "SYNC_FLUSH", 2, "fsynced on this machine and in 2 slaves' page cache"),
        ("SYNC_MASTER", "ASYNC_FLUSH", 0, "page cache: survives kill -9, not power loss"),
        ("SLAVE", "SYNC_FLUSH", 0, "it takes no messages"),
    ],
)
def test_the_promise_is_told_in_words(role: str, flush: str, slaves: int, words: str) -> None:
    assert words in promise_of(role, flush, slaves)


def test_a_promoted_slave_serves_a_topic_whose_configuration_did_not_reach_it(tmp_path: Path) -> None:
    with InProcess(config_of(tmp_path / "master")) as master:
        assert master.connect().send("young", b"m", queueId=3).code == 0
        log = master.broker.store.log
        data = bytes(log.segments[0].map[: log.end_offset])
    config = config_of(tmp_path / "slave", brokerRole="SLAVE", brokerId=1, haMasterAddress="h:1")
    with InProcess(config) as process:
        client = process.broker.replication.client
        assert client is not None
        client.opened(FakeHaLink(("h", 1)))
        client.begin()

        def come() -> bool:
            process.broker.begin_turn()
            if not client.follower.end:
                client.receive(encode_header(0, len(data)) + data)
            process.broker.tick()
            return client.follower.boundary == len(data)

        process.until(come)
        assert "young" not in process.broker.topics
        process.broker.replication.lead("ASYNC_MASTER")
        process.tick(100)
        answer = process.connect().pull("young", queueId=3)
        assert answer.code == 0 and b"m" in answer.body


@pytest.mark.parametrize(
    ("promise", "settings", "peer_reply_expected"),
    [
        (QuorumPolicy("SYNC_MASTER", 2), {}, True),
        (QuorumPolicy("SYNC_MASTER", 1), {}, False),
        (QuorumPolicy("ASYNC_MASTER", 2), {}, False),
        (QuorumPolicy("SYNC_MASTER", 2), {"ackAfterFlush": "true"}, False),
    ],
)
def test_a_slave_looks_out_for_its_masters_bytes_where_producers_wait_for_its_report(
    tmp_path: Path, promise: QuorumPolicy, settings: dict[str, str], peer_reply_expected: bool
) -> None:
    config = config_of(tmp_path, brokerRole="SLAVE", brokerId=1, haMasterAddress="h:1", **settings)
    with InProcess(config) as process:
        broker = process.broker
        client = broker.replication.client
        assert client is not None
        broker.member.adopt_policy(msgspec.structs.replace(promise, version=1), lambda: None)
        process.until(lambda: broker.member.record.policy.version == 1)
        assert not broker.peer_reply_expected, "nobody is there"
        client.opened(FakeHaLink(("h", 1)))
        assert broker.peer_reply_expected is peer_reply_expected
