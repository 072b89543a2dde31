"""Whoever gives the orders: when a master counts as gone, who is never failed over, whom a switch goes to."""

import msgspec
import pytest

from ha.group.handover import HandoverKind
from ha.group.hello import EpochRequest, MemberStatusMessage, decode_untrusted, encode
from ha.group.roles import ASYNC_MASTER, SLAVE, SYNC_MASTER, QuorumPolicy
from ropewalk.client.core.connection import Unreachable
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import OutcomeUnknown
from ropewalk.format.remoting import Command
from ropewalk.member_proof import NONCE_SIZE, Asker
from tests.support.clocks import Clock
from tools.admin.ha import COLUMNS, Watcher, status_rows
from tools.admin.handover import (
    Group,
    HandoverFailed,
    Members,
    _closest,
    _slave_at,
    at_risk,
    hand_over,
    refresh_group,
)
from tools.common.output import UsageError

A, B, C = "10.0.0.1:10911", "10.0.0.2:10911", "10.0.0.3:10911"
POLICY = QuorumPolicy(SYNC_MASTER, 2, 1, {"1": B, "2": C})


def member(
    address: str, role: str = SLAVE, end: int = 100, policy: QuorumPolicy = POLICY, **rest: object
) -> MemberStatusMessage:
    broker_id = {A: 0, B: 1, C: 2}[address]
    return MemberStatusMessage("a", broker_id, address, role, 0, 0, 0, end, policy=policy, **rest)  # type: ignore[arg-type]


def group(*members: MemberStatusMessage) -> Group:
    return Group("c", "a", {each.address: each for each in members})


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_master_is_gone_when_nobody_hears_it_for_long_enough(clock: Clock) -> None:
    watcher = Watcher(1.0, clock.seconds)
    lost = group(member(B), member(C))
    assert not watcher.is_gone(lost)
    clock.ms += 900
    assert not watcher.is_gone(lost)
    clock.ms += 100
    assert watcher.is_gone(lost)
    watcher.again(lost)
    assert not watcher.is_gone(lost), "after an attempt it is looked at anew"


@pytest.mark.parametrize(
    "seen",
    [
        group(member(A, SYNC_MASTER), member(B), member(C)),
        group(member(B, has_master=True), member(C)),
        group(),
    ],
    ids=["it answers", "a slave hears it", "nobody answers"],
)
def test_a_sign_of_life_begins_the_wait_again(clock: Clock, seen: Group) -> None:
    watcher = Watcher(1.0, clock.seconds)
    lost = group(member(B), member(C))
    assert not watcher.is_gone(lost)
    clock.ms += 5_000
    assert not watcher.is_gone(seen)
    assert not watcher.is_gone(lost)
    clock.ms += 1_000
    assert watcher.is_gone(lost)


def test_a_group_whose_acknowledgements_wait_for_no_slave_is_left_to_people(clock: Clock) -> None:
    watcher = Watcher(1.0, clock.seconds)
    assert watcher.trouble(group(member(B), member(C))) is None
    for policy in (QuorumPolicy(ASYNC_MASTER, 2, 1, {"1": B}), QuorumPolicy(SYNC_MASTER, 1, 1, {"1": B})):
        told = watcher.trouble(group(member(B, policy=policy)))
        assert told is not None and "only a person" in told
    newer = QuorumPolicy(ASYNC_MASTER, 1, 2, {"1": B, "2": C})
    assert watcher.trouble(group(member(B), member(C, policy=newer))) is not None


def test_a_name_server_inside_a_member_is_refused(clock: Clock) -> None:
    watcher = Watcher(1.0, clock.seconds)
    inside = group(member(A, SYNC_MASTER, name_server="10.0.0.1:9876"), member(B))
    with pytest.raises(UsageError, match=r"lives inside the member 10\.0\.0\.1:10911 .*`ropewalk namesrv`"):
        watcher.refuse_inside(inside, "10.0.0.9:9876;10.0.0.1:9876")
    watcher.refuse_inside(inside, "10.0.0.9:9876")
    local = group(member(A, SYNC_MASTER, name_server="0.0.0.0:9876"), member(B))
    with pytest.raises(UsageError):
        watcher.refuse_inside(local, "localhost:9876")


def test_orders_that_make_no_sense_are_refused_before_anybody_is_asked() -> None:
    with Members() as members:
        well = group(member(A, SYNC_MASTER), member(B))
        with pytest.raises(HandoverFailed, match=r"10\.0\.0\.1:10911 answers.*switch"):
            hand_over(members, well, HandoverKind.FAILOVER, "me")
        for target in (A, C, "10.0.0.2"):
            for kind in HandoverKind:
                with pytest.raises(
                    HandoverFailed, match=f"{target} is no slave of a that answers; there are: {B}"
                ):
                    hand_over(members, well, kind, "me", target=target, force=True)
        with pytest.raises(HandoverFailed, match="failover"):
            hand_over(members, group(member(B)), HandoverKind.SWITCH, "me")
        with pytest.raises(HandoverFailed, match="nobody to switch to"):
            hand_over(members, group(member(A, SYNC_MASTER)), HandoverKind.SWITCH, "me")


def test_a_slave_may_be_named_as_its_machine_is_called_there() -> None:
    address = "127.0.0.1:10931"
    slave = msgspec.structs.replace(member(B), address=address)
    for target in ("localhost:10931", address):
        assert _slave_at(group(member(A, SYNC_MASTER), slave), target) == address
    for target in ("localhost:10932", "10.0.0.2:10931", "localhost"):
        with pytest.raises(HandoverFailed, match=f"{target} is no slave"):
            _slave_at(group(member(A, SYNC_MASTER), slave), target)


def test_a_switch_goes_to_the_slave_that_has_most() -> None:
    master = member(A, SYNC_MASTER)
    assert _closest(group(master, member(B, end=90), member(C, end=95)), master) == C
    assert _closest(group(master, member(B, end=90, log_epoch=2), member(C, end=95)), master) == B
    assert _closest(group(master, member(B), member(C)), master) == B, "the lowest id among equals"


NO_SECRET = Asker("", "", "", bytes(NONCE_SIZE))


class Electing:
    """A connection to a member of a DLedger group."""

    closed = False
    remote_address = "127.0.0.1:1"

    def __init__(self, address: str, timeout: float) -> None:
        pass

    def call(self, command: Command, timeout: float) -> Command:
        is_known = command.code == RequestCode.ROPEWALK_LEDGER_STATUS
        return command.reply(
            ResponseCode.SUCCESS if is_known else ResponseCode.REQUEST_CODE_NOT_SUPPORTED, body=b"{}"
        )

    def close(self) -> None:
        pass


def test_a_group_that_elects_its_leader_is_told_from_one_that_is_no_ropewalk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tools.admin.handover.Connection", Electing)
    with Members() as members:
        electing = Group("c", "a", registered={A: 0, B: 1})
        refresh_group(members, electing)
        links = [row[-1] for row in status_rows(electing)]
        assert len(links) == 2 and all("`ropewalk admin dledger status`" in str(link) for link in links)
        for kind in HandoverKind:
            with pytest.raises(
                HandoverFailed, match=r"a elects its leader itself.*`ropewalk admin dledger transfer`"
            ):
                hand_over(members, electing, kind, "me")


class SlowDisk:
    """A connection to a member that looks at once, and needs `write_s` for whatever it has to keep."""

    closed = False

    def __init__(self, member_status: MemberStatusMessage, write_s: float) -> None:
        self.status = member_status
        self.asked: list[int] = []
        self._write_s = write_s

    def call(self, command: Command, timeout: float) -> Command:
        self.asked.append(command.code)
        if command.code != RequestCode.ROPEWALK_MEMBER_STATUS:
            if timeout < self._write_s:
                raise OutcomeUnknown(f"no answer within {timeout} s")
            ask = decode_untrusted(EpochRequest, command.body)
            self.status = msgspec.structs.replace(self.status, promised_epoch=ask.epoch)
        return command.reply(ResponseCode.SUCCESS, body=encode(self.status))

    def close(self) -> None:
        pass


def test_a_member_whose_disk_is_slow_is_waited_for_longer_than_one_that_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = QuorumPolicy(SYNC_MASTER, 1, 1, {"1": B})
    statuses = member(A, SYNC_MASTER, policy=policy), member(B, policy=policy)
    links = {each.address: SlowDisk(each, 1.5) for each in statuses}
    monkeypatch.setattr(Members, "_link", lambda _self, address: (links[address], NO_SECRET))
    with Members() as members:
        report = hand_over(members, group(*statuses), HandoverKind.SWITCH, "me")
        assert report.new_master == B
        for link in links.values():
            link._write_s = 60.0
        with pytest.raises(HandoverFailed, match="did not answer"):
            hand_over(members, group(*statuses), HandoverKind.SWITCH, "me")


def test_a_handover_that_is_interrupted_leaves_nobody_waiting_for_its_next_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    statuses = member(A, SYNC_MASTER), msgspec.structs.replace(member(B), promised_epoch=7), member(C)
    links = {each.address: SlowDisk(each, 0.0) for each in statuses}
    monkeypatch.setattr(Members, "_link", lambda _self, address: (links[address], NO_SECRET))

    def interrupt(text: str) -> None:
        if "accept: yes" in text:
            raise KeyboardInterrupt

    with Members() as members, pytest.raises(KeyboardInterrupt):
        hand_over(members, group(*statuses), HandoverKind.SWITCH, "me", told=interrupt)
    # How far members are is asked in turns of its own, whose last one may have begun before.
    asked = [
        [code for code in links[address].asked if code != RequestCode.ROPEWALK_MEMBER_STATUS]
        for address in (A, B, C)
    ]
    assert asked == [[RequestCode.ROPEWALK_ACCEPT_EPOCH, RequestCode.ROPEWALK_RELEASE_EPOCH], [], []]
    assert links[A].status.promised_epoch == 8, "above every one that somebody accepted"


def test_what_force_may_lose_is_told_before_anybody_is_asked_and_before_anybody_is_promoted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slave = member(B, master_end=450, master_age_ms=320)
    lost = group(slave)
    link = SlowDisk(slave, 0.0)

    def reach(_members: Members, address: str) -> tuple[SlowDisk, Asker]:
        if address != B:
            raise Unreachable(address)
        return link, NO_SECRET

    monkeypatch.setattr(Members, "_link", reach)
    risk = "1 of 2 slaves accepted, 2 have to; at least 350 bytes are at risk as of 320 ms before contact was lost"
    assert at_risk(lost) == at_risk(lost, B) == risk
    assert at_risk(group(slave, member(C))) == "", "both answer"
    assert at_risk(group()) == "", "nobody can be promoted, and nothing is lost"
    told: list[str] = []
    with Members() as members:
        with pytest.raises(HandoverFailed, match=r"at risk.*Start whoever does not answer, or .*--force"):
            hand_over(members, lost, HandoverKind.FAILOVER, "me")
        report = hand_over(members, lost, HandoverKind.FAILOVER, "me", force=True, told=told.append)
    assert (report.new_master, report.at_risk) == (B, risk)
    assert told.index(f"at risk: {risk}") < next(n for n, text in enumerate(told) if "promote" in text)


def test_the_status_tells_how_far_each_slave_is_behind() -> None:
    rows = status_rows(
        group(
            member(A, SYNC_MASTER, end=500, stored_ms=9000),
            member(B, end=380, stored_ms=7500),
            member(C, end=500),
        )
    )
    keys = [key for _, key in COLUMNS]
    found = {row["address"]: row for row in (dict(zip(keys, each, strict=True)) for each in rows)}
    assert [(found[each]["lagBytes"], found[each]["lagSeconds"]) for each in (A, B, C)] == [
        (0, 0.0), (120, 1.5), (0, 0.0),
    ]  # fmt: skip
