"""An administrator's conversations about DLedger groups: how their members are, who leads, and who is a member.

A member that is to vote learns first. So an addition asks the leader twice, and waits in between until the new member
has the log. Each step may be asked for again: a leader that finds it done says so, and a conversation that is cut off
is taken up by the same command.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from ropewalk.client.admin.cluster import document_in
from ropewalk.client.admin.messages import MessageSteps
from ropewalk.client.admin.results import (
    LedgerMembers,
    LedgerPeerStatus,
    LedgerStatus,
    read_ledger_members,
    read_ledger_status,
)
from ropewalk.client.core.connection import Unreachable
from ropewalk.client.core.steps import Pause, Steps
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import OutcomeUnknown, Refused, Rejected, RopewalkError
from ropewalk.format.headers import (
    LedgerChangeHeader,
    LedgerForceHeader,
    LedgerReadmitHeader,
    LedgerTransferHeader,
    LedgerTrustHeader,
)

_PAUSE_S: Final = 0.5
_TRIES: Final = 20
_TRANSIENT: Final = ("NOT_LEADER", "NOT_READY", "CHANGE_IN_PROGRESS", "UNKNOWN")
_SILENT_TRIES: Final = 2
"""After so many attempts a person is told what is waited for: an election takes about a second."""
_LAG_MAX: Final = 1000
"""Entries that a learner may lack when it is made a voter; the leader has the last word."""


def _nobody(text: str) -> None:
    """Tell nobody."""


class LedgerSteps(MessageSteps):
    """An administrator's conversations about DLedger groups."""

    def ledger_status(self, *, broker: str | None = None) -> Steps[tuple[LedgerStatus, ...]]:
        """Return the status of each registered member of DLedger groups; other brokers are left out."""
        members = yield from self.selected(cluster=None, broker=broker)
        answers = yield from self.query_members(
            members,
            RequestCode.ROPEWALK_LEDGER_STATUS,
            none_for=(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.ILLEGAL_OPERATION),
        )
        return tuple(read_ledger_status(member, document_in(answer)) for member, answer in answers)

    def transfer_lead(self, broker: str, to: str = "") -> Steps[str]:
        """Have the leader of a broker's DLedger group hand over to a member ("": the one that lacks least).

        Returns the id of the member that leads then. Raises `Rejected` where no member leads, and the error of the
        leader's answer where it goes on leading; nothing is lost then either.
        """
        found = yield from self.ledger_status(broker=broker)
        leader = _leader(found)
        if leader is None:
            raise Rejected(
                f"no member of {broker} leads a DLedger group; `ropewalk admin dledger status` shows its members"
            )
        header = LedgerTransferHeader(to)
        answer = yield from self.ask_group(
            leader.member.address, RequestCode.ROPEWALK_LEDGER_TRANSFER, header
        )
        return answer.ext.get("leader", "")

    def readmit(self, broker: str, id: str) -> Steps[dict[str, str]]:
        """Have the members of a broker's DLedger group let one in that lost its log; it learns before it votes.

        Returns by member of the group how it answered: "" where it lets it in. Raises `Rejected` where the group has no
        such member.
        """
        found = yield from self.ledger_status(broker=broker)
        members = _members(each for each in found if each.id != id)
        if id not in members:
            raise Rejected(
                f"{id} is no member of {broker}; its members are {', '.join(members) or 'unknown'}"
            )
        answers = {member: f"{member} does not answer" for member in members if member != id}
        for each in found:
            if each.id not in answers:
                continue
            try:
                yield from self.ask_group(
                    each.member.address, RequestCode.ROPEWALK_LEDGER_READMIT, LedgerReadmitHeader(id)
                )
                answers[each.id] = ""
            except Refused as refused:
                answers[each.id] = str(refused)
        return answers

    def snapshot_tables(self, broker: str) -> Steps[dict[str, int]]:
        """Have the leader of a broker's DLedger group log all tables, and wait until all members have a snapshot.

        Returns by member the index of its newest snapshot; after ten seconds also that of a member that lags. Raises
        `Rejected` where no member leads.
        """
        before = yield from self.ledger_status(broker=broker)
        leader = _leader(before)
        if leader is None:
            raise Rejected(
                f"no member of {broker} leads a DLedger group; `ropewalk admin dledger status` shows its members"
            )
        yield from self.ask_group(leader.member.address, RequestCode.ROPEWALK_LEDGER_SNAPSHOT)
        found = before
        for _ in range(_TRIES):
            yield Pause(_PAUSE_S)
            found = yield from self.ledger_status(broker=broker)
            if all(each.snapshot > leader.snapshot for each in found):
                break
        return {each.id: each.snapshot for each in found}

    def change_members(
        self,
        broker: str,
        change: str,
        id: str,
        address: str = "",
        replacing: str = "",
        *,
        wait_s: float = 30.0,
        told: Callable[[str], None] = _nobody,
    ) -> Steps[LedgerMembers]:
        """Have the leader take one step: a member `learn`s, a learner is `promote`d, a member is `remove`d.

        Returns the members then, when the regions of a key-value store have them, too. A leader that is lost meanwhile
        is followed by the next one, which is asked again. `told` hears what is waited for. Raises what the leader
        answered where it refuses, and `Rejected` where nobody leads, or regions have not followed, within `wait_s`.
        """
        header = LedgerChangeHeader(change, id, address, replacing)
        members = yield from self._change_group(broker, header, wait_s, told)
        yield from self._await_regions(broker, wait_s, told)
        return members

    def _await_regions(self, broker: str, wait_s: float, told: Callable[[str], None]) -> Steps[None]:
        """Wait until all regions of the key-value store, if there is one, have the members of the group."""
        tries = max(int(wait_s / _PAUSE_S), 1)
        for attempt in range(tries):
            leader = _leader((yield from self.ledger_status(broker=broker)))
            if leader is not None and not leader.regions_behind:
                return
            if attempt == _SILENT_TRIES:
                told(f"the group has made the change; its key-value store is waited for, up to {wait_s:g} s")
            yield Pause(_PAUSE_S)
        behind = ", ".join(map(str, leader.regions_behind)) if leader is not None else ""
        raise Rejected(
            f"the group has made the change, and the regions {behind} of its key-value store have still to follow: "
            "stop none of the members before. They go on by themselves; `ropewalk kv status` shows them. Repeat the "
            "command to wait on"
            if leader is not None
            else f"the group has made the change, and no member of {broker} leads now: repeat the command"
        )

    def _change_group(
        self, broker: str, header: LedgerChangeHeader, wait_s: float, told: Callable[[str], None]
    ) -> Steps[LedgerMembers]:
        failure: RopewalkError | None = None
        for attempt in range(max(int(wait_s / _PAUSE_S), 1)):
            leader = _leader((yield from self.ledger_status(broker=broker)))
            if leader is not None:
                is_again = failure is not None or leader.regions_behind
                if header.change == "remove" and is_again and header.id not in leader.members.everyone:
                    return leader.members
                try:
                    answer = yield from self.ask_group(
                        leader.member.address, RequestCode.ROPEWALK_LEDGER_CHANGE, header
                    )
                    return read_ledger_members(answer.ext)
                except (Unreachable, OutcomeUnknown) as exc:
                    failure = exc
                except Refused as refused:
                    if not (refused.remark or "").startswith(_TRANSIENT):
                        raise
                    failure = refused
            if attempt == _SILENT_TRIES:
                why = str(failure) if leader is not None else f"no member of {broker} leads"
                told(f"{why}; it is tried for {wait_s:g} s")
            yield Pause(_PAUSE_S)
        raise failure or Rejected(
            f"no member of {broker} leads: most voters have to be there. `ropewalk admin dledger status` shows them; "
            "where most are lost for good, `ropewalk admin dledger force`"
        )

    def add_member(
        self,
        broker: str,
        id: str,
        address: str,
        *,
        replacing: str = "",
        wait_s: float = 30.0,
        told: Callable[[str], None] = _nobody,
    ) -> Steps[LedgerMembers]:
        """Have a new member learn the log, and vote when it has it; `replacing` leaves in the same step.

        `told` hears of the progress. Raises `Rejected` when `wait_s` have passed without any: it learns on.
        """
        members = yield from self.change_members(broker, "learn", id, address, wait_s=wait_s, told=told)
        if id in members.learners:
            told(f"{id} learns, and votes when it has the log")
            yield from self.await_learner(broker, id, wait_s=wait_s, told=told)
        return (yield from self.promote_member(broker, id, replacing=replacing, wait_s=wait_s))

    def promote_member(
        self, broker: str, id: str, *, replacing: str = "", wait_s: float = 30.0
    ) -> Steps[LedgerMembers]:
        """Have a learner vote, and a voter leave for it; it is asked for again while the learner lags a little."""
        for _ in range(max(int(wait_s / _PAUSE_S), 1)):
            try:
                return (
                    yield from self.change_members(broker, "promote", id, replacing=replacing, wait_s=wait_s)
                )
            except Refused as refused:
                if not (refused.remark or "").startswith("NOT_CAUGHT_UP"):
                    raise
                failure = refused
            yield Pause(_PAUSE_S)
        raise failure

    def await_learner(
        self, broker: str, id: str, *, wait_s: float = 30.0, told: Callable[[str], None] = _nobody
    ) -> Steps[None]:
        """Wait until a learner has the log. Raises `Rejected` when `wait_s` have passed without progress."""
        furthest, idle_s, said = -1, 0.0, 0.0
        while True:
            leader = _leader((yield from self.ledger_status(broker=broker)))
            peer = _peer(leader.peers, id) if leader is not None else None
            if leader is not None and peer is not None and peer.is_linked:
                if leader.end - peer.match < _LAG_MAX:
                    return
                if peer.match > furthest:
                    furthest, idle_s = peer.match, 0.0
                said += _PAUSE_S
                if said >= 2.0:
                    said = 0.0
                    told(f"{id} has {peer.match + 1:,} of {leader.end + 1:,} entries")
            if idle_s >= wait_s:
                raise Rejected(_no_progress(id, peer, wait_s))
            idle_s += _PAUSE_S
            yield Pause(_PAUSE_S)

    def force_member(self, broker: str, id: str) -> Steps[None]:
        """Have a member go on alone: its log is the group's, and no other member is left. Returns when it leads."""
        address = yield from self._address_of(broker, id)
        yield from self.ask_group(address, RequestCode.ROPEWALK_LEDGER_FORCE, LedgerForceHeader(id))
        for _ in range(_TRIES):
            found = yield from self.ledger_status(broker=broker)
            if any(each.id == id and each.leads for each in found):
                return
            yield Pause(_PAUSE_S)
        raise Rejected(
            f"{id} went on alone, and does not lead yet; `ropewalk admin dledger status` shows why"
        )

    def trust_member(self, broker: str, id: str) -> Steps[None]:
        """Have a member whose log is in doubt count it as it is."""
        address = yield from self._address_of(broker, id)
        yield from self.ask_group(address, RequestCode.ROPEWALK_LEDGER_TRUST, LedgerTrustHeader(id))

    def _address_of(self, broker: str, id: str) -> Steps[str]:
        found = yield from self.ledger_status(broker=broker)
        address = next((each.member.address for each in found if each.id == id), None)
        if address is None:
            raise Rejected(f"{id} does not answer; {', '.join(each.id for each in found) or 'nobody'} does")
        return address


def _leader(found: Iterable[LedgerStatus]) -> LedgerStatus | None:
    return max((each for each in found if each.leads), key=lambda each: each.term, default=None)


def _members(found: Iterable[LedgerStatus]) -> tuple[str, ...]:
    """Return the members of a group as the newest of these has them: an empty one only knows its `dLegerPeers`."""
    newest = max(found, key=lambda each: (each.leads, each.committed, each.term), default=None)
    return tuple(sorted({*newest.members.everyone})) if newest is not None else ()


def _peer(peers: Iterable[LedgerPeerStatus], id: str) -> LedgerPeerStatus | None:
    return next((each for each in peers if each.id == id), None)


def _no_progress(id: str, peer: LedgerPeerStatus | None, wait_s: float) -> str:
    again = (
        f"it gets the log when it answers. Repeat the command then, or `ropewalk admin dledger remove {id}`"
    )
    if peer is None:
        return f"no member leads that knows {id} as a learner; {again}"
    if not peer.is_linked:
        why = f" ({peer.why})" if peer.why else ""
        return f"{id} is not reached at {peer.address}{why}; {again}"
    return f"{id} got nothing for {wait_s:g} s, and has {peer.match + 1:,} entries; {again}"
