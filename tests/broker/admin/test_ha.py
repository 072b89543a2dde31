"""Codes 30000 to 30010 in one process: who is let in, what is promised, what a slave is told."""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

import crc32c
import msgspec
import pytest

from broker.remoting.connection import Connection
from broker.state.groups import SubscriptionGroupConfig
from broker.state.json_text import ENTRIES_PER_STEP
from broker.state.topics import TopicConfig
from broker.transactions.records import CONSUMER_GROUP, HALF_QUEUE
from ha.group.block_repair import BlockRequest
from ha.group.hello import (
    EpochRequest,
    Hello,
    MemberStatusMessage,
    RangesRequest,
    Sums,
    Welcome,
    decode_untrusted,
    encode,
)
from ha.group.metadata import Seen, SyncRequest, SyncResponse
from ha.group.roles import QuorumPolicy
from ha.stream.client import ClientState
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import RemoteProtocolError
from ropewalk.format import names
from ropewalk.format.ha import encode_header
from ropewalk.format.remoting import Command
from ropewalk.format.sliced_json import finish
from ropewalk.member_proof import Challenge, proof_of
from store.offline.diverged import About
from tests.broker.harness import Client, InProcess, NoRoom, config_of, send_ext, without_fsync
from tests.support.links import FakeHaLink
from tests.support.walks import Walked

SEGMENT = 1 << 20
MASTER = {"haMasterAddress": "10.0.0.9:10912"}
"""A broker with a master in its settings is a member of a group, also while it leads."""

T = TypeVar("T")


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InProcess]:
    without_fsync(monkeypatch)
    with InProcess(config_of(tmp_path, brokerRole="SYNC_MASTER", **MASTER)) as running:
        yield running


def ask(client: Client, code: int, message: msgspec.Struct, **ext: object) -> Command:
    return client.call(code, ext, encode(message))


def hello_of(process: InProcess, **changes: object) -> Hello:
    config = process.broker.config
    hello = Hello(
        config.broker_cluster_name, config.broker_name, 1, "10.0.0.2:10911", "10.0.0.2:1", 0, 0, 0, SEGMENT
    )
    return msgspec.structs.replace(hello, **changes)


def epoch_ask(process: InProcess, epoch: int, by: str = "op", **rest: object) -> EpochRequest:
    config = process.broker.config
    return msgspec.structs.replace(
        EpochRequest(config.broker_cluster_name, config.broker_name, epoch, by), **rest
    )


def sync(client: Client, seen: Seen | None = None, **rest: object) -> SyncResponse:
    question = msgspec.structs.replace(SyncRequest(1, "10.0.0.2:10911", 0, seen or Seen()), **rest)
    answer = ask(client, RequestCode.ROPEWALK_SYNC, question)
    assert answer.code == 0, answer.remark
    return decode_untrusted(SyncResponse, answer.body)


def member_status(answer: Command) -> MemberStatusMessage:
    assert answer.code == 0, answer.remark
    return decode_untrusted(MemberStatusMessage, answer.body)


# -- hello ------------------------------------------------------------------------------------------------


def test_a_hello_is_answered_with_sums_of_the_same_ranges_and_puts_the_slave_on_the_roll(
    process: InProcess, tmp_path: Path
) -> None:
    client = process.connect()
    client.ask(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"x" * 100)
    client.answers()
    log = process.broker.store.log
    end = log.end_offset
    answer = ask(client, RequestCode.ROPEWALK_SLAVE_HELLO, hello_of(process, ranges=[(0, 50), (0, end + 1)]))
    welcome = decode_untrusted(Welcome, answer.body)
    first = log.segments[0].file.read_at(0, 50)
    assert welcome.sums == [crc32c.crc32c(first), None]
    assert (welcome.begin, welcome.end, welcome.policy.slaves) == (0, end, {"1": "10.0.0.2:10911"})
    role = json.loads((tmp_path / "ropewalk" / "role.json").read_text())
    assert role["terms"]["slaves"] == {"1": "10.0.0.2:10911"}, "on disk before it was answered"


def test_a_slave_counts_when_it_says_that_it_has_the_terms(process: InProcess) -> None:
    client = process.connect()
    link = FakeHaLink(("10.0.0.2", 1))
    connection = process.broker.replication.new_session(cast(Connection, link))
    ask(client, RequestCode.ROPEWALK_SLAVE_HELLO, hello_of(process))
    member = process.broker.member
    assert not member.counts(connection)
    sync(client, policy_version=member.record.policy.version)
    assert member.counts(connection)


def test_a_slave_that_another_has_not_heard_of_does_not_count_after_a_new_start_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one would be content with its own answer, and promoted without what this one acknowledged."""
    without_fsync(monkeypatch)
    first, second = ("10.0.0.2", 1), ("10.0.0.3", 1)
    greetings = {}
    for run in range(3):
        with InProcess(config_of(tmp_path, brokerRole="SYNC_MASTER")) as process:
            member, client = process.broker.member, process.connect()
            member.confirm_no_newer_master()
            links = {
                number: process.broker.replication.new_session(cast(Connection, FakeHaLink(peer)))
                for number, peer in ((1, first), (2, second))
            }
            for number, (host, port) in ((1, first), (2, second)):
                greetings[number] = hello_of(
                    process, broker_id=number, address=f"{host}:10911", socket=f"{host}:{port}"
                )
                ask(client, RequestCode.ROPEWALK_SLAVE_HELLO, greetings[number])
                if number == 1 and run == 0:
                    sync(client, policy_version=member.record.policy.version)
                    assert member.counts(links[1])
            version = member.record.policy.version
            sync(client, broker_id=2, policy_version=version)
            assert member.counts(links[1]) and not member.counts(links[2])
            if run == 2:
                sync(client, broker_id=1, policy_version=version, policy_epoch=1)
                assert not member.counts(links[2]), "those are another master's terms"
                sync(client, broker_id=1, policy_version=version)
                assert member.counts(links[2])
    with InProcess(config_of(tmp_path, brokerRole="SYNC_MASTER")) as process:
        member, client = process.broker.member, process.connect()
        link = process.broker.replication.new_session(cast(Connection, FakeHaLink(second)))
        ask(client, RequestCode.ROPEWALK_SLAVE_HELLO, greetings[2])
        assert member.counts(link), "everybody has heard of it before"


def test_a_slave_of_another_group_is_turned_away(process: InProcess) -> None:
    answer = ask(process.connect(), RequestCode.ROPEWALK_SLAVE_HELLO, hello_of(process, broker_name="other"))
    assert answer.code == ResponseCode.ILLEGAL_OPERATION and "belongs to" in (answer.remark or "")


@pytest.mark.parametrize("other", [{"cluster": "other"}, {"broker_name": "other"}])
def test_an_operator_of_another_group_is_obeyed_in_nothing(process: InProcess, other: dict[str, Any]) -> None:
    client = process.connect()
    before = process.broker.member.record
    for code in (
        RequestCode.ROPEWALK_ACCEPT_EPOCH,
        RequestCode.ROPEWALK_RELEASE_EPOCH,
        RequestCode.ROPEWALK_PROMOTE,
        RequestCode.ROPEWALK_FOLLOW,
        RequestCode.ROPEWALK_FORGET_SLAVE,
    ):
        answer = ask(client, code, epoch_ask(process, 1, broker_id=1, master="10.0.0.9:1", **other))
        assert answer.code == ResponseCode.ILLEGAL_OPERATION and "belongs to" in (answer.remark or "")
    assert process.broker.member.record == before


def test_bytes_and_sums_are_bounded_questions(process: InProcess) -> None:
    client = process.connect()
    client.ask(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"x" * 100)
    client.answers()
    data = process.broker.store.log.segments[0].file.read_at(0, 80)
    ask(client, RequestCode.ROPEWALK_SLAVE_HELLO, hello_of(process))
    assert ask(client, RequestCode.ROPEWALK_LOG_BYTES, RangesRequest([(0, 80)])).body == data
    sums = ask(client, RequestCode.ROPEWALK_LOG_SUMS, RangesRequest([(0, 80)]))
    assert decode_untrusted(Sums, sums.body).sums == [crc32c.crc32c(data)]
    for code, ranges in (
        (RequestCode.ROPEWALK_LOG_BYTES, [(0, 1 << 30)]),
        (RequestCode.ROPEWALK_LOG_BYTES, [(5, 5)]),
        (RequestCode.ROPEWALK_LOG_BYTES, [(10_000, 10_001)]),
        (RequestCode.ROPEWALK_LOG_SUMS, [(0, 1 << 30)]),
        (RequestCode.ROPEWALK_LOG_SUMS, [(0, 1)] * 300),
    ):
        assert ask(client, code, RangesRequest(ranges)).code == ResponseCode.INVALID_PARAMETER


def test_a_stranger_is_told_no_byte_of_the_log_but_a_member_is(process: InProcess) -> None:
    """Where no secret is set anybody may ask; a connection without a hello, from no member's address, gets nothing."""
    client = process.connect()
    client.ask(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"x" * 100)
    client.answers()
    ask(process.connect(), RequestCode.ROPEWALK_SLAVE_HELLO, hello_of(process))
    stranger, member = process.connect(peer=("10.6.6.6", 1)), process.connect(peer=("10.0.0.2", 7))
    config = process.broker.config
    block = BlockRequest(config.broker_cluster_name, config.broker_name, "x:1", SEGMENT, 0, 50, None, 100)
    for code, message in (
        (RequestCode.ROPEWALK_LOG_BYTES, RangesRequest([(0, 80)])),
        (RequestCode.ROPEWALK_LOG_SUMS, RangesRequest([(0, 80)])),
        (RequestCode.ROPEWALK_LOG_BLOCK, block),
    ):
        refused = ask(stranger, code, message)
        assert refused.code == ResponseCode.NO_PERMISSION and not refused.body
        assert ask(member, code, message).code != ResponseCode.NO_PERMISSION
    assert ask(member, RequestCode.ROPEWALK_LOG_BYTES, RangesRequest([(0, 80)])).code == 0


def test_a_broker_without_a_group_answers_a_members_status_and_a_first_hello_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker on its own has nobody to obey: a stranger could stop its sends with a single promise."""
    without_fsync(monkeypatch)
    with InProcess(config_of(tmp_path)) as process:
        client = process.connect()
        assert client.send("T").code == 0
        before = process.broker.member.record
        ranges = RangesRequest([(0, 10)])
        epoch = epoch_ask(process, 1, broker_id=1, master="10.0.0.9:1")
        for code, message in (
            (RequestCode.ROPEWALK_LOG_SUMS, ranges),
            (RequestCode.ROPEWALK_LOG_BYTES, ranges),
            (RequestCode.ROPEWALK_LOG_BLOCK, ranges),
            (RequestCode.ROPEWALK_ACCEPT_EPOCH, epoch),
            (RequestCode.ROPEWALK_RELEASE_EPOCH, epoch),
            (RequestCode.ROPEWALK_PROMOTE, epoch),
            (RequestCode.ROPEWALK_FOLLOW, epoch),
            (RequestCode.ROPEWALK_FORGET_SLAVE, epoch),
        ):
            answer = ask(client, code, message)
            assert answer.code == ResponseCode.ILLEGAL_OPERATION and "no group" in (answer.remark or "")
        assert ask(client, RequestCode.ROPEWALK_SYNC, SyncRequest(1, "x:1", 0, Seen())).code != 0
        assert process.broker.member.record == before
        assert client.send("T").code == 0
        assert client.call(RequestCode.ROPEWALK_CHALLENGE).code == 0
        assert (
            member_status(ask(client, RequestCode.ROPEWALK_MEMBER_STATUS, RangesRequest([]))).broker_id == 0
        )
        assert ask(client, RequestCode.ROPEWALK_SLAVE_HELLO, hello_of(process)).code == 0
        accepted = ask(client, RequestCode.ROPEWALK_ACCEPT_EPOCH, epoch_ask(process, 1))
        assert member_status(accepted).promised_epoch == 1


def test_what_is_no_message_is_refused_in_words(process: InProcess) -> None:
    answer = process.connect().call(RequestCode.ROPEWALK_SLAVE_HELLO, {}, b"\xc1junk")
    assert answer.code == ResponseCode.INVALID_PARAMETER and "this is no Hello" in (answer.remark or "")


# -- the secret -------------------------------------------------------------------------------------------


def test_with_a_secret_nothing_is_answered_without_a_proof_for_this_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_fsync(monkeypatch)
    with InProcess(config_of(tmp_path, ropewalkSecret="shhh")) as process:
        client, other = process.connect(), process.connect()
        look = RequestCode.ROPEWALK_MEMBER_STATUS
        drawn = decode_untrusted(Challenge, client.call(RequestCode.ROPEWALK_CHALLENGE).body).challenge
        other.call(RequestCode.ROPEWALK_CHALLENGE)
        body = encode(RangesRequest([]))
        proof = proof_of("shhh", drawn, look, body)
        assert client.call(look, {}, body).code == ResponseCode.NO_PERMISSION
        assert (
            client.call(look, {"proof": proof_of("guess", drawn, look, body)}, body).code
            == ResponseCode.NO_PERMISSION
        )
        assert client.call(look, {"proof": proof}, body).code == ResponseCode.SUCCESS
        assert other.call(look, {"proof": proof}, body).code == ResponseCode.NO_PERMISSION
        assert "shhh" not in str(process.broker.config.describe(every_key=True))


# -- roles ------------------------------------------------------------------------------------------------


def test_a_master_that_accepts_takes_no_messages_until_it_is_released(
    process: InProcess, tmp_path: Path
) -> None:
    client = process.connect()
    accepted = member_status(ask(client, RequestCode.ROPEWALK_ACCEPT_EPOCH, epoch_ask(process, 4)))
    assert (accepted.promised_epoch, accepted.leader_epoch) == (4, 0)
    assert json.loads((tmp_path / "ropewalk" / "role.json").read_text())["epoch"] == 4
    refused = client.send("T")
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE and "epoch 4" in (refused.remark or "")
    assert ask(client, RequestCode.ROPEWALK_ACCEPT_EPOCH, epoch_ask(process, 4, "other")).code != 0
    member_status(ask(client, RequestCode.ROPEWALK_RELEASE_EPOCH, epoch_ask(process, 4)))
    assert client.send("T").code == ResponseCode.SLAVE_NOT_AVAILABLE, "it takes messages again"


def test_who_was_released_is_free_in_its_next_life_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_fsync(monkeypatch)
    config = config_of(tmp_path, **MASTER)
    with InProcess(config) as process:
        client = process.connect()
        ask(client, RequestCode.ROPEWALK_ACCEPT_EPOCH, epoch_ask(process, 4))
        ask(client, RequestCode.ROPEWALK_RELEASE_EPOCH, epoch_ask(process, 4))
    with InProcess(config) as process:
        assert process.connect().send("T").code == ResponseCode.SUCCESS


def test_a_promise_outlives_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_fsync(monkeypatch)
    config = config_of(tmp_path, brokerRole="SYNC_MASTER", **MASTER)
    with InProcess(config) as process:
        ask(process.connect(), RequestCode.ROPEWALK_ACCEPT_EPOCH, epoch_ask(process, 4))
    with InProcess(config) as process:
        assert process.connect().send("T").code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert process.broker.member.core.is_fenced


def test_a_promise_waits_for_room_on_the_disk_and_is_not_told_before_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_fsync(monkeypatch)
    monkeypatch.setattr("broker.replication.role_files._ROOM_AGAIN_S", 0.01)
    disk, policy = NoRoom(), QuorumPolicy("SYNC_MASTER", 2, 3, {"1": "10.0.0.2:10911"})
    config = config_of(tmp_path, brokerRole="SLAVE", brokerId=1, haMasterAddress="10.0.0.1:10912")
    with InProcess(config, disk) as process:
        member, client = process.broker.member, process.connect()
        done: list[str] = []
        member.adopt_policy(policy, lambda: done.append("learned"))
        process.until(lambda: done == ["learned"])
        assert member.on_disk.policy == policy
        disk.full = True
        member.adopt_policy(policy, lambda: done.append("known"))
        process.until(lambda: done == ["learned", "known"])  # nothing is written that stands there already
        member.adopt_policy(msgspec.structs.replace(policy, version=4), lambda: done.append("newer"))
        opaque = client.ask(RequestCode.ROPEWALK_ACCEPT_EPOCH, {}, encode(epoch_ask(process, 5)))
        time.sleep(0.05)
        process.turn()
        assert not client.link.sent and done == ["learned", "known"], "nothing is told that is not on disk"
        assert (member.on_disk.promised_epoch, member.on_disk.policy.version) == (0, 3)
        assert not member.core.listens_to(4), "and nobody is listened to who may be deposed already"
        disk.full = False
        assert member_status(client.answer(opaque)).promised_epoch == 5 and done == [
            "learned",
            "known",
            "newer",
        ]
        assert json.loads((tmp_path / "ropewalk" / "role.json").read_text())["epoch"] == 5
        disk.full = True
        client.ask(RequestCode.ROPEWALK_ACCEPT_EPOCH, {}, encode(epoch_ask(process, 6)))
        process.turn()
    assert json.loads((tmp_path / "ropewalk" / "role.json").read_text())["epoch"] == 5, "it could be stopped"


def test_a_master_becomes_a_slave_and_leads_again_with_everything_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_fsync(monkeypatch)
    config = config_of(tmp_path, **MASTER)
    with InProcess(config) as process:
        client = process.connect()
        assert client.send("T", b"one").code == 0
        follow = epoch_ask(process, 3, broker_id=2, master="10.0.0.9:10911")
        assert member_status(ask(client, RequestCode.ROPEWALK_FOLLOW, follow)).role == "SLAVE"
        assert client.send("T").code == ResponseCode.SYSTEM_BUSY
        assert process.broker.topics.data_version.state_version == 3
    with InProcess(config) as process:
        client = process.connect()
        look = member_status(ask(client, RequestCode.ROPEWALK_MEMBER_STATUS, RangesRequest([])))
        assert (look.role, look.broker_id, look.promised_epoch) == ("SLAVE", 2, 3), (
            "role.json goes before the configuration"
        )
        ask(client, RequestCode.ROPEWALK_ACCEPT_EPOCH, epoch_ask(process, 4))
        led = member_status(
            ask(client, RequestCode.ROPEWALK_PROMOTE, epoch_ask(process, 4, master="10.0.0.9:10911"))
        )
        assert (led.role, led.broker_id, led.leader_epoch) == ("ASYNC_MASTER", 0, 4)
        assert led.policy.slaves == {"2": "10.0.0.9:10911"}
        assert client.send("T", b"two").code == 0
        assert [record.body for record in process.stored("T")] == [b"one", b"two"]
        epochs = json.loads((tmp_path / "ropewalk" / "epochs.json").read_text())["epochs"]
        assert epochs == [[4, process.stored("T")[1].offset]]


def test_a_record_that_is_not_all_there_is_no_part_of_what_a_slave_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its bytes it would be promoted before a slave that has as many records, and its reign begin inside one."""
    without_fsync(monkeypatch)
    with InProcess(config_of(tmp_path / "master")) as master:
        assert [master.connect().send("T", body).code for body in (b"one", b"two")] == [0, 0]
        log = master.broker.store.log
        data, whole = bytes(log.segments[0].map[: log.end_offset]), master.stored("T")[1].offset
    config = config_of(tmp_path / "slave", brokerRole="SLAVE", brokerId=1, haMasterAddress="10.0.0.1:10912")
    with InProcess(config) as process:
        client, stream = process.connect(), process.broker.replication.client
        assert stream is not None
        stream.opened(FakeHaLink(("10.0.0.1", 10912)))
        stream.begin()

        def come() -> bool:
            if not stream.follower.end:
                stream.receive(encode_header(0, len(data) - 9) + data[:-9])
            process.tick()
            return stream.follower.end == len(data) - 9

        process.until(come)
        assert member_status(ask(client, RequestCode.ROPEWALK_MEMBER_STATUS, RangesRequest([]))).end == whole
        accepted = member_status(ask(client, RequestCode.ROPEWALK_ACCEPT_EPOCH, epoch_ask(process, 4)))
        assert accepted.end == whole
        led = member_status(ask(client, RequestCode.ROPEWALK_PROMOTE, epoch_ask(process, 4)))
        assert led.end == whole and led.log_epoch == 0
        assert client.send("T", b"three").code == 0
        assert [record.body for record in process.stored("T")] == [b"one", b"three"]
        epochs = json.loads((tmp_path / "slave" / "ropewalk" / "epochs.json").read_text())["epochs"]
        assert epochs == [[4, whole]]


def test_a_master_with_slaves_looks_for_a_newer_one_before_it_takes_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_fsync(monkeypatch)
    config = config_of(tmp_path, brokerRole="SYNC_MASTER", **MASTER)
    with InProcess(config) as process:
        ask(process.connect(), RequestCode.ROPEWALK_SLAVE_HELLO, hello_of(process))
    with InProcess(config) as process:
        client, member = process.connect(), process.broker.member
        refused = client.send("T")
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "another broker became master" in (refused.remark or "")
        member.confirm_no_newer_master()
        assert client.send("T").code == ResponseCode.SLAVE_NOT_AVAILABLE, "there was none"
        ask(client, RequestCode.ROPEWALK_ACCEPT_EPOCH, epoch_ask(process, 1))
        member.confirm_no_newer_master()
        assert client.send("T").code == ResponseCode.SERVICE_NOT_AVAILABLE, "a promise is another matter"


def test_a_master_with_less_than_its_slave_takes_nothing_also_after_a_handover_that_failed(
    process: InProcess,
) -> None:
    client, member = process.connect(), process.broker.member
    ask(client, RequestCode.ROPEWALK_SLAVE_HELLO, hello_of(process))
    address = hello_of(process).address
    slave = MemberStatusMessage("broker-a", 1, address, "SLAVE", 0, 0, 0, 4711)
    member.compare_ends([slave])
    member.confirm_no_newer_master()
    for _time in range(2):
        refused = client.send("T")
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert f"{address} has the log of this epoch up to 4711" in (refused.remark or "")
        assert "`ropewalk admin ha switch" in (refused.remark or "")
        status = member_status(ask(client, RequestCode.ROPEWALK_MEMBER_STATUS, RangesRequest([])))
        assert status.fence == refused.remark
        ask(client, RequestCode.ROPEWALK_ACCEPT_EPOCH, epoch_ask(process, member.record.promised_epoch + 1))
        ask(client, RequestCode.ROPEWALK_RELEASE_EPOCH, epoch_ask(process, member.record.promised_epoch))
    member.compare_ends([msgspec.structs.replace(slave, end=0)])
    member.confirm_no_newer_master()
    assert client.send("T").code == ResponseCode.SLAVE_NOT_AVAILABLE


def test_a_deposed_master_registers_as_a_slave_before_it_takes_anything_of_the_new_one(
    process: InProcess,
) -> None:
    member = process.broker.member
    registered: list[int] = []
    member.on_role = lambda: registered.append(member.record.broker_id)
    process.broker.begin_turn()
    member.apply_decision(member.core.follow(1, 2, "10.0.0.2:10911"))
    assert registered == [2], "at once, however long the disk takes"
    process.broker.end_turn()
    process.until(lambda: registered == [2, 2])


def test_a_role_begins_although_the_terms_change_before_it_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_fsync(monkeypatch)
    config = config_of(tmp_path, brokerRole="SLAVE", brokerId=1, haMasterAddress="10.0.0.1:10912")
    with InProcess(config) as process:
        member = process.broker.member
        told: list[str] = []
        member.on_role = lambda: told.append(member.record.role)
        process.broker.begin_turn()
        member.apply_decision(member.core.accept(1, "op"))
        member.apply_decision(member.core.promote(1, "op"))
        member.add_slave(2, "10.0.0.3:10911", lambda: None)  # a slave is quicker than the disk
        process.broker.end_turn()
        process.until(lambda: told == ["ASYNC_MASTER"])
        assert process.broker.replication.role == "ASYNC_MASTER"
        assert process.connect().send("T").code == ResponseCode.SUCCESS
        assert member.roster.policy.slaves == {"1": "", "2": "10.0.0.3:10911"}


def test_a_promoted_slave_leads_although_another_epoch_is_asked_of_it_and_released_before_that_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_fsync(monkeypatch)
    config = config_of(tmp_path, brokerRole="SLAVE", brokerId=1, haMasterAddress="10.0.0.1:10912")
    with InProcess(config) as process:
        member = process.broker.member
        done: list[str] = []
        process.broker.begin_turn()
        member.apply_decision(member.core.accept(1, "op"))
        member.apply_decision(member.core.promote(1, "op"))
        member.apply_decision(member.core.accept(2, "other"), lambda: done.append("accepted"))
        process.broker.end_turn()
        process.until(lambda: done == ["accepted"])
        assert process.broker.replication.role == "ASYNC_MASTER"
        assert process.connect().send("T").code == ResponseCode.SERVICE_NOT_AVAILABLE
        process.broker.begin_turn()
        member.apply_decision(member.core.release(2, "other"), lambda: done.append("released"))
        process.broker.end_turn()
        process.until(lambda: done == ["accepted", "released"])
        assert process.connect().send("T").code == ResponseCode.SUCCESS


def test_who_is_promoted_tells_slaves_nothing_before_its_role_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Topics of its log that are in no table yet would be taken for deleted, and slaves would remove their queues."""
    without_fsync(monkeypatch)
    config = config_of(tmp_path, brokerRole="SLAVE", brokerId=1, haMasterAddress="10.0.0.1:10912")
    with InProcess(config) as process:
        member = process.broker.member
        link = process.connect()
        question = SyncRequest(2, "10.0.0.3:10911", 1, Seen())
        process.broker.begin_turn()
        member.apply_decision(member.core.adopt_policy(QuorumPolicy(slaves={"2": "10.0.0.3:10911"})))
        member.apply_decision(member.core.accept(1, "op"))
        member.apply_decision(member.core.promote(1, "op"))
        process.broker.end_turn()
        early = ask(link, RequestCode.ROPEWALK_SYNC, question)
        assert early.code == ResponseCode.ILLEGAL_OPERATION
        process.until(lambda: process.broker.replication.role == "ASYNC_MASTER")
        assert ask(link, RequestCode.ROPEWALK_SYNC, question).code == ResponseCode.SUCCESS


def test_who_waits_when_its_master_is_deposed_is_told_that_a_slave_was_late(process: InProcess) -> None:
    client, admin = process.connect(), process.connect()
    link = FakeHaLink(("10.0.0.2", 1))
    connection = process.broker.replication.new_session(cast(Connection, link))
    ask(admin, RequestCode.ROPEWALK_SLAVE_HELLO, hello_of(process))
    sync(admin, policy_version=process.broker.member.record.policy.version)
    process.broker.begin_turn()
    connection.receive((0).to_bytes(8, "big"))
    process.broker.end_turn()
    client.ask(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"x")
    assert client.answers() == []
    ask(admin, RequestCode.ROPEWALK_FOLLOW, epoch_ask(process, 1, broker_id=1, master="10.0.0.2:10911"))
    assert client.answer().code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    assert link.closed


def test_a_slave_is_forgotten_only_while_the_others_have_everything(process: InProcess) -> None:
    admin = process.connect()
    connection = process.broker.replication.new_session(cast(Connection, FakeHaLink(("10.0.0.2", 1))))
    ask(admin, RequestCode.ROPEWALK_SLAVE_HELLO, hello_of(process))
    lost = hello_of(process, broker_id=2, address="10.0.0.3:10911", socket="10.0.0.3:1")
    ask(admin, RequestCode.ROPEWALK_SLAVE_HELLO, lost)
    process.connect().ask(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"x")
    forget = RequestCode.ROPEWALK_FORGET_SLAVE
    refused = ask(admin, forget, epoch_ask(process, 0, broker_id=2))
    assert refused.code == ResponseCode.ILLEGAL_OPERATION and "might be on slave 2 alone" in (
        refused.remark or ""
    )
    for offset in (0, process.broker.store.log.end_offset):
        assert "might be on slave 2 alone" in (
            ask(admin, forget, epoch_ask(process, 0, broker_id=2)).remark or ""
        )
        process.broker.begin_turn()
        connection.receive(offset.to_bytes(8, "big"))
        process.broker.end_turn()
    assert "no slave 7" in (ask(admin, forget, epoch_ask(process, 0, broker_id=7)).remark or "")
    assert "is connected" in (ask(admin, forget, epoch_ask(process, 0, broker_id=1)).remark or "")
    assert member_status(ask(admin, forget, epoch_ask(process, 0, broker_id=2))).policy.slaves == {
        "1": "10.0.0.2:10911"
    }


# -- metadata ---------------------------------------------------------------------------------------------


def test_a_slave_is_told_what_moved_and_nothing_else(process: InProcess) -> None:
    client = process.connect()
    ask(client, RequestCode.ROPEWALK_SLAVE_HELLO, hello_of(process))
    first = sync(client)
    assert first.topics is not None and first.groups is not None
    again = sync(client, first.seen)
    assert (again.topics, again.groups, again.delays, again.commits) == (None, None, None, [])
    client.heartbeat(group="cg")
    process.broker.offsets.commit("cg", "T", 0, 7)
    moved = sync(client, again.seen)
    assert moved.topics is not None and "%RETRY%cg" in moved.topics["topicConfigTable"]
    assert moved.groups is not None and "cg" in moved.groups["subscriptionGroupTable"]
    assert [commit[:4] for commit in moved.commits] == [("T", "cg", 0, 7)]
    foreign = Seen("another run", *(1 << 40,) * 4)
    assert sync(client, foreign).topics is not None, "generations of another process mean nothing"


def test_a_master_that_forgot_takes_its_tables_back_and_deletes_nothing(process: InProcess) -> None:
    client = process.connect()
    ask(client, RequestCode.ROPEWALK_SLAVE_HELLO, hello_of(process))
    topics, groups = process.broker.topics, process.broker.groups
    version = topics.data_version
    newer = (version.state_version, version.counter + 5, version.timestamp)
    answer = sync(client, topics_version=newer)
    assert answer.wants_tables and answer.topics is None
    again = sync(client, answer.seen, topics_version=newer)
    assert again.wants_tables, "until it has them"
    table = topics.to_wrapper()
    table["dataVersion"] = {"stateVersion": newer[0], "counter": newer[1], "timestamp": newer[2]}
    table["topicConfigTable"] = {"kept": TopicConfig("kept", 3, 3).to_json()}
    before = {topic.name for topic in topics}
    told = sync(client, answer.seen, topics_version=newer, topics=table, groups=groups.to_wrapper())
    assert not told.wants_tables and told.topics is not None
    assert {topic.name for topic in topics} == before | {"kept"}
    assert topics.data_version.counter > newer[1]
    assert told.topics["dataVersion"] == topics.data_version.to_json(), "which the slave then has too"
    topics.delete("kept", process.clock())
    late = sync(client, told.seen, topics_version=newer, topics=table)  # it left before the master had it
    assert late.topics is not None and "kept" not in late.topics["topicConfigTable"]
    settled = topics.data_version
    same = (settled.state_version, settled.counter, settled.timestamp)
    assert not sync(client, told.seen, topics_version=same).wants_tables


def test_a_slave_may_show_what_its_master_shows_and_no_more(process: InProcess) -> None:
    producer, admin = process.connect(), process.connect()
    connection = process.broker.replication.new_session(cast(Connection, FakeHaLink(("10.0.0.2", 1))))
    ask(admin, RequestCode.ROPEWALK_SLAVE_HELLO, hello_of(process))
    sync(admin, policy_version=process.broker.member.record.policy.version)
    connection.receive((0).to_bytes(8, "big"))
    producer.ask(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"x")
    end = process.broker.store.log.end_offset
    early = sync(admin)
    assert (early.readable, early.end) == (0, end), "nobody has acknowledged it yet"
    process.broker.begin_turn()
    connection.receive(end.to_bytes(8, "big"))
    process.broker.end_turn()
    assert producer.answer().code == ResponseCode.SUCCESS and sync(admin).readable == end


def test_a_large_table_travels_once_a_second_and_the_newest_then(process: InProcess) -> None:
    client = process.connect()
    ask(client, RequestCode.ROPEWALK_SLAVE_HELLO, hello_of(process))
    for number in range(1000):
        process.broker.topics.update(TopicConfig(f"T{number}"), process.clock())
    seen = sync(client).seen
    process.broker.topics.update(TopicConfig("more"), process.clock())
    assert sync(client, seen).topics is None and sync(client, seen).seen.topics == seen.topics
    process.clock.ms += 800
    answer = sync(client, seen)
    assert answer.topics is not None and "more" in answer.topics["topicConfigTable"]


def test_a_slave_is_told_of_changed_topics_and_groups_and_of_no_others(
    process: InProcess, tmp_path: Path
) -> None:
    """Each new topic would else cost its master the whole table, and each slave, too."""
    client, master = process.connect(), process.broker
    ask(client, RequestCode.ROPEWALK_SLAVE_HELLO, hello_of(process))
    master.topics.update(TopicConfig("old"), process.clock())
    first = sync(client, takes_changes=True)
    assert first.topics is not None and first.topic_changes is None, "it has none of them yet"
    config = config_of(tmp_path / "slave", brokerRole="SLAVE", brokerId=1, haMasterAddress="10.0.0.1:10912")
    with InProcess(config) as slave:
        member, tables = slave.broker.member, slave.broker.member.tables

        def takes() -> bool:
            return tables.takes_changes

        assert not takes()
        finish(member.apply_sync(first))
        assert takes()
        slave.broker.offsets.commit("g", "old", 0, 7)
        client.heartbeat(group="cg")
        master.topics.update(TopicConfig("new"), process.clock())
        master.topics.delete("old", process.clock())
        walked = [
            Walked(master.topics._topics), Walked(master.groups._groups), Walked(slave.broker.topics._topics),
            Walked(slave.broker.groups._groups),
        ]  # fmt: skip
        master.topics._topics, master.groups._groups = walked[:2]
        slave.broker.topics._topics, slave.broker.groups._groups = walked[2:]
        moved = sync(client, tables.seen, takes_changes=takes())
        assert moved.topics is None and moved.groups is None
        assert moved.topic_changes is not None and moved.group_changes is not None
        assert sorted(moved.topic_changes.changed) == ["%RETRY%cg", "new"] and moved.topic_changes.gone == [
            "old"
        ]
        assert list(moved.group_changes.changed) == ["cg"]
        finish(member.apply_sync(moved))
        assert [each.walks for each in walked] == [0, 0, 0, 0]
        assert slave.broker.topics.data_version == master.topics.data_version
        assert slave.broker.topics.to_wrapper() == master.topics.to_wrapper()
        assert slave.broker.groups.to_wrapper() == master.groups.to_wrapper()
        assert slave.broker.offsets.query("g", "old", 0) is None
        nothing = sync(client, tables.seen, takes_changes=True)
        assert (nothing.topics, nothing.topic_changes, nothing.groups, nothing.group_changes) == (None,) * 4
        master.groups.set_forbidden("cg", "new", 1, process.clock())
        forbidden = sync(client, tables.seen, takes_changes=True)
        assert forbidden.group_changes is None and forbidden.groups is not None
        finish(member.apply_sync(forbidden))
        assert slave.broker.groups.read_forbidden("cg", "new") == master.groups.read_forbidden("cg", "new")
        slave.broker.topics.create_retry("here", now_ms=slave.clock())
        assert not takes(), "its own table is another one"
        finish(member.apply_sync(sync(client, tables.seen)))
        assert not takes()
        master.topics.update(TopicConfig("newer"), process.clock())
        finish(member.apply_sync(sync(client, tables.seen)))
        assert takes() and "%RETRY%here" not in slave.broker.topics


def test_whole_tables_are_told_and_taken_over_in_steps(
    process: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slave that connects would else stop its master, and itself, for as long as all topics take."""
    client, master = process.connect(), process.broker
    ask(client, RequestCode.ROPEWALK_SLAVE_HELLO, hello_of(process))
    for number in range(1_500):
        master.topics.update(TopicConfig(f"T{number}"), process.clock())
        master.groups.update(SubscriptionGroupConfig(f"g{number}"), process.clock())
        master.offsets.commit(f"g{number}", f"T{number}", 0, number)
    work: list[int] = [0]

    def counted(kind: Any, name: str) -> None:
        plain = getattr(kind, name)

        def noted(*arguments: Any) -> Any:
            work[-1] += 1
            return plain(*arguments)

        monkeypatch.setattr(kind, name, noted)

    def steps_of(steps: Generator[None, None, T]) -> T:
        while True:
            try:
                next(steps)
            except StopIteration as finished:
                value: T = finished.value
                return value
            work.append(0)

    for kind in (TopicConfig, SubscriptionGroupConfig):
        counted(kind, "to_json")
    answer = steps_of(master.member.answer_sync(SyncRequest(1, "10.0.0.2:10911", 0, Seen())))
    assert sum(work) > 3_000 and max(work) <= 2 * ENTRIES_PER_STEP, "of the topics, and of the groups"
    answer = decode_untrusted(SyncResponse, msgspec.msgpack.encode(answer))
    config = config_of(tmp_path / "slave", brokerRole="SLAVE", brokerId=1, haMasterAddress="10.0.0.1:10912")
    with InProcess(config) as slave:
        for kind in (TopicConfig, SubscriptionGroupConfig):
            monkeypatch.setattr(kind, "from_json", counting(kind.from_json, work))
        counted(type(slave.broker.offsets), "merge")
        work[:] = [0]
        steps_of(slave.broker.member.apply_sync(answer))
        assert sum(work) > 4_500 and max(work) <= 2 * ENTRIES_PER_STEP + 500
        assert slave.broker.topics.to_wrapper() == master.topics.to_wrapper()
        assert slave.broker.groups.to_wrapper() == master.groups.to_wrapper()
        assert slave.broker.offsets.query("g7", "T7", 0) == 7
        fresh = type(slave.broker.offsets)()
        steps = fresh.adopt_wrapper({"offsetTable": {f"T@g{n}": {"0": n, "1": -1} for n in range(1_500)}})
        next(steps)
        assert 0 < len(fresh) < 1_500, "of a RocketMQ master, in steps too"
        finish(steps)
        assert len(fresh) == 1_500 and fresh.queues("g9", "T") == {0: 9}


def counting(read: Any, work: list[int]) -> Any:
    """Return a constructor that counts its calls."""

    def noted(*arguments: Any) -> Any:
        work[-1] += 1
        return read(*arguments)

    return staticmethod(noted)


def test_a_message_of_very_many_empty_tables_is_refused_before_one_is_made() -> None:
    """A byte of the message would take seventy bytes of memory."""
    seen = b"\xa4seen\x80\xa3end\x00\xa8readable\x00\xa7time_ms\x00\xa5terms\x80\xa5epoch\x00"
    count = 4 << 20
    body = b"\x87" + seen + b"\xa6topics\x81\xa1a\xdd" + count.to_bytes(4, "big") + b"\x80" * count
    with pytest.raises(RemoteProtocolError, match=r"4194[0-9]* tables; at most 300000 are read"):
        decode_untrusted(SyncResponse, body)
    few = body.replace(count.to_bytes(4, "big") + b"\x80" * count, (9).to_bytes(4, "big") + b"\x80" * 9)
    assert decode_untrusted(SyncResponse, few).topics == {"a": [{}] * 9}


def test_a_promise_that_the_configuration_changed_is_on_disk_before_slaves_hear_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_fsync(monkeypatch)
    with InProcess(config_of(tmp_path, brokerRole="SYNC_MASTER", inSyncReplicas=3)) as process:
        ask(process.connect(), RequestCode.ROPEWALK_SLAVE_HELLO, hello_of(process))
    with InProcess(config_of(tmp_path, brokerRole="SYNC_MASTER", inSyncReplicas=2)) as process:
        assert process.broker.replication.transfer.needed == 2, (
            "the slave still thinks that two are waited for"
        )
        process.settle()
    policy = json.loads((tmp_path / "ropewalk" / "role.json").read_text())["terms"]
    assert (policy["inSyncReplicas"], policy["version"]) == (2, 3)


def test_who_was_a_sync_master_waits_until_its_slave_has_heard_that_it_is_none_or_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slave would be promoted without force: by what it knows every acknowledged message is on it."""
    without_fsync(monkeypatch)
    with InProcess(config_of(tmp_path, brokerRole="SYNC_MASTER")) as process:
        ask(process.connect(), RequestCode.ROPEWALK_SLAVE_HELLO, hello_of(process))
    config = config_of(tmp_path, brokerRole="ASYNC_MASTER")
    with InProcess(config) as process:
        process.broker.member.confirm_no_newer_master()
        assert process.connect().send("T").code == ResponseCode.SLAVE_NOT_AVAILABLE
    with InProcess(config) as process:
        client, member = process.connect(), process.broker.member
        member.confirm_no_newer_master()
        assert client.send("T").code == ResponseCode.SLAVE_NOT_AVAILABLE, "a new start settles nothing"
        sync(client, policy_version=member.record.policy.version)
        assert client.send("T").code == ResponseCode.SUCCESS
    with InProcess(config) as process:
        process.broker.member.confirm_no_newer_master()
        assert process.connect().send("T").code == ResponseCode.SUCCESS


def test_with_its_only_slave_forgotten_a_master_that_needs_no_copy_waits_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_fsync(monkeypatch)
    with InProcess(config_of(tmp_path, brokerRole="SYNC_MASTER")) as process:
        ask(process.connect(), RequestCode.ROPEWALK_SLAVE_HELLO, hello_of(process))
    with InProcess(config_of(tmp_path, brokerRole="SYNC_MASTER", inSyncReplicas=1)) as process:
        client = process.connect()
        process.broker.member.confirm_no_newer_master()
        assert client.send("T").code == ResponseCode.SLAVE_NOT_AVAILABLE
        forgotten = ask(client, RequestCode.ROPEWALK_FORGET_SLAVE, epoch_ask(process, 0, broker_id=1))
        assert member_status(forgotten).policy.slaves == {}
        assert client.send("T").code == ResponseCode.SUCCESS
    with InProcess(config_of(tmp_path, brokerRole="ASYNC_MASTER")) as process:
        client, member = process.connect(), process.broker.member
        assert member.has_replicas, "who was given up may have been promoted all the same"
        assert client.send("T").code == ResponseCode.SERVICE_NOT_AVAILABLE
        member.confirm_no_newer_master()
        assert client.send("T").code == ResponseCode.SUCCESS


def test_a_broker_that_never_had_a_slave_looks_for_nobody(process: InProcess) -> None:
    assert not process.broker.member.has_replicas
    assert process.connect().send("T").code == ResponseCode.SLAVE_NOT_AVAILABLE


def test_a_slave_that_said_no_hello_is_told_nothing(process: InProcess) -> None:
    answer = ask(process.connect(), RequestCode.ROPEWALK_SYNC, SyncRequest(5, "10.0.0.5:10911", 0, Seen()))
    assert answer.code == ResponseCode.ILLEGAL_OPERATION and "has not said hello" in (answer.remark or "")


def test_a_slave_takes_over_tables_offsets_and_deliveries_that_its_log_covers(
    process: InProcess, tmp_path: Path
) -> None:
    client = process.connect()
    ask(client, RequestCode.ROPEWALK_SLAVE_HELLO, hello_of(process))
    client.ask(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"x")
    client.answers()
    client.heartbeat(group="cg")
    process.broker.offsets.commit("cg", "T", 0, 1)
    answer = msgspec.structs.replace(sync(client), delays={"3": 9})
    config = config_of(tmp_path / "slave", brokerRole="SLAVE", brokerId=1, haMasterAddress="10.0.0.1:10912")
    with InProcess(config) as slave:
        member = slave.broker.member
        finish(member.apply_sync(answer))
        assert slave.broker.topics.get("T") == process.broker.topics.get("T")
        assert slave.broker.topics.data_version == process.broker.topics.data_version
        assert "cg" in slave.broker.groups
        assert slave.broker.offsets.query("cg", "T", 0) == 1
        assert slave.broker.delays.offsets().get(3) is None, "the copies are not here yet"
        follower = slave.broker.store.follower
        assert follower is not None
        segment = process.broker.store.log.segments[0]
        slave.until(lambda: bool(follower.append(0, segment.map[: segment.write_position])))
        member.tables.apply_progress()
        assert slave.broker.delays.offsets().get(3) is None, (
            "as long as the master's, and compared with no log"
        )
        ha_client = member._replication.client
        assert ha_client is not None
        ha_client.state = ClientState.TRANSFER
        member.tables.forget_progress()
        finish(member.apply_sync(msgspec.structs.replace(sync(client, answer.seen), delays=None, readable=0)))
        assert slave.broker.delays.offsets().get(3) is None, "told before the logs were compared"
        assert member.tables.seen.delays == -1, "it is asked for again"
        finish(member.apply_sync(msgspec.structs.replace(answer, readable=0)))
        assert member.tables.seen == answer.seen
        assert slave.broker.delays.offsets()[3] == 9
        ha_client.state = ClientState.READY
        assert slave.broker.store.readable_offset == 0, "the master has shown nobody the message yet"
        policy = answer.policy.with_slave(2, "10.0.0.3:10911")
        finish(
            member.apply_sync(
                msgspec.structs.replace(
                    sync(client, answer.seen), readable=segment.write_position, policy=policy
                )
            )
        )
        assert slave.broker.store.readable_offset == segment.write_position
        record = tmp_path / "slave" / "ropewalk" / "role.json"
        # What a later failover is judged by is on disk.
        slave.until(record.exists)
        slave.until(lambda: json.loads(record.read_text())["terms"]["slaves"].get("2") == "10.0.0.3:10911")
        process.broker.topics.delete("T", process.clock())
        finish(member.apply_sync(sync(client, answer.seen)))
        assert slave.broker.topics.get("T") is None and slave.broker.offsets.query("cg", "T", 0) is None


def test_progress_of_transactions_comes_with_the_log_that_it_is_of_and_from_no_slave(
    process: InProcess, tmp_path: Path
) -> None:
    """Progress beyond the own log has a member that is promoted, and starts again, overlook halves that are open."""
    half = CONSUMER_GROUP, names.TRANS_HALF_TOPIC, HALF_QUEUE
    client = process.connect()
    ask(client, RequestCode.ROPEWALK_SLAVE_HELLO, hello_of(process))
    client.ask(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"x")
    client.answers()
    process.broker.offsets.commit(*half, 7)
    answer = sync(client, commits=[(half[1], half[0], HALF_QUEUE, 90, process.clock() + 1)])
    assert process.broker.offsets.query(*half) == 7, "a slave's is of a log that was another's"
    config = config_of(tmp_path / "slave", brokerRole="SLAVE", brokerId=1, haMasterAddress="10.0.0.1:10912")
    with InProcess(config) as slave:
        member, offsets = slave.broker.member, slave.broker.offsets
        finish(member.apply_sync(answer))
        ha_client, follower = member._replication.client, slave.broker.store.follower
        assert ha_client is not None and follower is not None
        ha_client.state = ClientState.TRANSFER
        member.tables.apply_progress()
        assert offsets.query(*half) is None, "the copies are not here yet"
        ha_client.state = ClientState.READY
        segment = process.broker.store.log.segments[0]
        slave.until(lambda: bool(follower.append(0, segment.map[: segment.write_position])))
        ha_client.state = ClientState.TRANSFER
        member.tables.apply_progress()
        assert offsets.query(*half) == 7
        member.tables.forget_progress()
        process.broker.offsets.commit(*half, 5)
        finish(member.apply_sync(msgspec.structs.replace(sync(client, answer.seen), delays=None)))
        assert offsets.query(*half) == 5, "the master's counts, also where it goes back"
        assert member.tables.seen.offsets == 0, "it is asked for again"
        member.request_cut(About("why", 0, 10, 1, "10.0.0.1:10911", 0), behind=False)
        assert offsets.query(*half) is None
        ha_client.state = ClientState.READY


def test_commits_that_a_slave_took_reach_the_master(process: InProcess) -> None:
    client = process.connect()
    ask(client, RequestCode.ROPEWALK_SLAVE_HELLO, hello_of(process))
    process.broker.offsets.commit("cg", "T", 0, 50)
    later = process.clock() + 1
    sync(client, commits=[("T", "cg", 0, 90, later), ("T", "cg", 1, 5, 0), ("T", "cg", -1, 5, later)])
    assert process.broker.offsets.query("cg", "T", 0) == 90
    assert process.broker.offsets.query("cg", "T", 1) == 5
