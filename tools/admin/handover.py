"""Find a group's members, ask for their status, and carry a handover's questions to them, for `ropewalk admin ha`.

The decisions are `ha.group.handover`'s. Every member is asked by a thread of its own, because one that is gone must not
delay the others; answers are handed to the handover one by one, in the order in which they come.
"""

from __future__ import annotations

import os
import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType

import msgspec

from ha.group.handover import Answer, Handover, HandoverKind, Member, Phase, Question, QuestionKind, choose
from ha.group.hello import (
    EpochRequest,
    MemberStatusMessage,
    RangesRequest,
    decode_untrusted,
    encode,
)
from ha.group.roles import SLAVE, SYNC_MASTER
from ropewalk.client.blocking.admin import Admin
from ropewalk.client.blocking.connection import Connection
from ropewalk.client.core.addresses import BadAddress, parse_address
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import OutcomeUnknown, RopewalkError
from ropewalk.format.remoting import Command
from ropewalk.member_proof import NONCE_SIZE, Asker, NotProven

__all__ = [
    "Group",
    "HandoverFailed",
    "Members",
    "Report",
    "at_risk",
    "find_group",
    "hand_over",
    "lag_s",
    "master_of",
]

CODES = {
    QuestionKind.MEMBER_STATUS: RequestCode.ROPEWALK_MEMBER_STATUS,
    QuestionKind.ACCEPT: RequestCode.ROPEWALK_ACCEPT_EPOCH,
    QuestionKind.RELEASE: RequestCode.ROPEWALK_RELEASE_EPOCH,
    QuestionKind.PROMOTE: RequestCode.ROPEWALK_PROMOTE,
    QuestionKind.FOLLOW: RequestCode.ROPEWALK_FOLLOW,
}
PHASE_S = {
    Phase.FENCE: 3.0,
    Phase.CATCH_UP: 10.0,
    Phase.ACCEPT: 2.0,
    Phase.PROMOTE: 5.0,
    Phase.FOLLOW: 1.0,
    Phase.RELEASE: 2.0,
}
LOOK_PAUSE_S = 0.002
WRITE_S = 2.0
"""How long a member may take to write to its disk what it promises: no longer than a phase, or a release would wait."""


ELECTS = (
    "elects its leader itself, as a DLedger group: `ropewalk admin dledger status` shows it, "
    "`ropewalk admin dledger transfer` moves the lead"
)
"""Said of a group, or of a member, that nobody promotes."""


class HandoverFailed(RopewalkError):
    """No other master: why, and what is so now."""


class Refusal(RopewalkError):
    """A member said no."""


class Members:
    """Connections to members, by address. Each is used by one thread at a time."""

    def __init__(self, secret: str = "", timeout: float = 1.0) -> None:
        self.timeout = timeout
        self.electing: set[str] = set()
        """The addresses of members of DLedger groups."""
        self.refusing: set[str] = set()
        """The addresses of members that answered the last question about their status by a refusal."""
        self._secret = secret
        self._links: dict[str, tuple[Connection, Asker]] = {}
        self._lock = threading.Lock()
        self._turns: dict[str, threading.Lock] = {}

    def __enter__(self) -> Members:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for link, _asker in self._links.values():
            link.close()

    def ask(self, address: str, code: int, message: msgspec.Struct, timeout: float | None = None) -> bytes:
        """The body of the answer, waited for that many seconds. Raises `Refusal` or another RopewalkError.

        Without `timeout` it is what a look may take. What a member has to write to its disk before it answers can
        take longer: an fsync beside a busy neighbour was seen to take half a second.
        """
        with self._lock:
            turn = self._turns.setdefault(address, threading.Lock())
        with turn:
            return self._ask(address, code, message, self.timeout if timeout is None else timeout)

    def _ask(self, address: str, code: int, message: msgspec.Struct, timeout: float) -> bytes:
        link, asker = self._link(address)
        question = asker.prove(Command(code, {}, encode(message)))
        try:
            answer = link.call(question, timeout)
            if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED and self._elects(link, asker):
                self.electing.add(address)
                raise Refusal(f"the group of {address} {ELECTS}")
            asker.check(question, answer)
        except (OutcomeUnknown, NotProven):
            self.forget(address)  # a late answer would be taken for the next one's
            raise
        if answer.code != ResponseCode.SUCCESS:
            raise Refusal(answer.remark or f"code {answer.code}")
        return answer.body

    def _elects(self, link: Connection, asker: Asker) -> bool:
        """Return whether a broker that keeps no role as these groups do is a member of a DLedger group."""
        question = asker.prove(Command(RequestCode.ROPEWALK_LEDGER_STATUS))
        answer = link.call(question, self.timeout)
        asker.check(question, answer)
        return answer.code == ResponseCode.SUCCESS

    def _link(self, address: str) -> tuple[Connection, Asker]:
        with self._lock:
            known = self._links.get(address)
        if known is not None and not known[0].closed:
            return known
        link = Connection(address, self.timeout)
        try:
            asker = self._introduced(address, link)
        except BaseException:
            link.close()
            raise
        found = link, asker
        with self._lock:
            self._links[address] = found
        return found

    def _introduced(self, address: str, link: Connection) -> Asker:
        """Return this program's end of a new connection, behind the challenge. Raises RopewalkError."""
        asker = Asker(
            self._secret,
            address,
            str(link.remote_address),
            secrets.token_bytes(NONCE_SIZE),
            takes_older=os.environ.get("ROPEWALK_SECRET_V1") == "true",
        )
        answer = link.call(asker.question(), self.timeout)
        if answer.code != ResponseCode.SUCCESS:
            if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED and self._elects(
                link, asker
            ):  # of an older release, which takes no challenge
                self.electing.add(address)
                raise Refusal(f"the group of {address} {ELECTS}")
            raise Refusal(answer.remark or f"{address} is no Ropewalk broker: it answered {answer.code}")
        asker.challenged(answer.body)
        return asker

    def forget(self, address: str) -> None:
        with self._lock:
            known = self._links.pop(address, None)
        if known is not None:
            known[0].close()

    def status_of(self, address: str) -> MemberStatusMessage:
        return decode_untrusted(
            MemberStatusMessage, self.ask(address, RequestCode.ROPEWALK_MEMBER_STATUS, RangesRequest([]))
        )

    def statuses_of(self, addresses: Iterable[str]) -> tuple[dict[str, MemberStatusMessage], dict[str, str]]:
        """Return each member's status, and the reasons of the silent ones; all are asked at once."""
        found: dict[str, MemberStatusMessage] = {}
        silent: dict[str, str] = {}

        def ask_one(address: str) -> None:
            self.refusing.discard(address)
            try:
                found[address] = self.status_of(address)
            except (RopewalkError, OSError, ValueError) as exc:
                silent[address] = str(exc)
                if isinstance(exc, Refusal | NotProven):
                    self.refusing.add(address)

        threads = [
            threading.Thread(target=ask_one, args=(address,), daemon=True) for address in set(addresses)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found, silent


@dataclass(slots=True)
class Group:
    """A broker's members, by the name server and by each other."""

    cluster: str
    broker_name: str
    statuses: dict[str, MemberStatusMessage] = field(default_factory=dict)
    silent: dict[str, str] = field(default_factory=dict)
    """The members that did not answer, and why."""
    registered: dict[str, int] = field(default_factory=dict)
    """Address -> broker id, as the name server has it."""
    electing: frozenset[str] = frozenset()
    """The addresses of members of a DLedger group, whom nobody promotes."""
    refusing: frozenset[str] = frozenset()
    """The addresses of those of `silent` that answer, and refuse to tell their status."""

    def members(self) -> list[Member]:
        """Return all members, with the ids of the group's newest policy."""
        ids = dict(self.registered)
        policy = max(
            self.statuses.values(), key=lambda each: (each.leader_epoch, each.policy.version), default=None
        )
        if policy is not None:
            ids |= {address: int(name) for name, address in policy.policy.slaves.items()}
        ids |= {address: each.broker_id for address, each in self.statuses.items()}
        return [Member(address, broker_id) for address, broker_id in sorted(ids.items())]


def find_group(admin: Admin, members: Members, broker_name: str) -> Group:
    """Find the members of a broker: by the name server, and by what its members know of each other.

    Raises `HandoverFailed` where nobody does.
    """
    registered = [each for each in admin.members() if each.broker_name == broker_name]
    if not registered:
        names = sorted({each.broker_name for each in admin.members()})
        raise HandoverFailed(
            f"no broker called {broker_name} is registered; there are: {', '.join(names) or 'none'}"
        )
    group = Group(registered[0].cluster, broker_name)
    group.registered = {each.address: each.broker_id for each in registered}
    refresh_group(members, group)
    return group


def refresh_group(members: Members, group: Group) -> None:
    """Ask every known member for its status, and the members that they know."""
    addresses = set(group.registered)
    group.statuses, group.silent = {}, {}
    for _round in range(2):
        fresh = addresses - group.statuses.keys() - group.silent.keys()
        found, silent = members.statuses_of(fresh)
        group.statuses |= {
            address: each for address, each in found.items() if each.broker_name == group.broker_name
        }
        group.silent |= silent
        group.electing = frozenset(members.electing & group.silent.keys())
        group.refusing = frozenset(members.refusing & group.silent.keys())
        for each in found.values():
            addresses |= {*each.policy.slaves.values(), each.master} - {""}


def master_of(group: Group) -> MemberStatusMessage | None:
    """Return the master of the highest epoch, unless a member follows a newer one."""
    newest = max((each.leader_epoch for each in group.statuses.values()), default=0)
    return next(
        (each for each in group.statuses.values() if each.role != SLAVE and each.leader_epoch == newest), None
    )


def lag_s(master: MemberStatusMessage, slave: MemberStatusMessage) -> float:
    """Return the age of the slave's newest record, beside the master's."""
    if slave.end >= master.end or not slave.stored_ms:
        return 0.0
    return max(0, master.stored_ms - slave.stored_ms) / 1000


@dataclass(slots=True)
class Report:
    """The outcome of a handover."""

    kind: str
    broker: str
    epoch: int
    old_master: str
    new_master: str = ""
    gap_ms: float | None = None
    """From when the old master took no message any more to when the new one did; None for a failover."""
    took_ms: float = 0.0
    at_risk: str = ""
    events: list[tuple[float, str]] = field(default_factory=list)
    """(ms since the beginning, what happened)"""


def hand_over(
    members: Members,
    group: Group,
    kind: HandoverKind,
    by: str,
    *,
    target: str = "",
    force: bool = False,
    catch_up_s: float = PHASE_S[Phase.CATCH_UP],
    told: Callable[[str], None] = lambda text: None,
) -> Report:
    """Carry one handover out. Raises `HandoverFailed`; the group is then as it was, or the text says what it is."""
    began = time.monotonic()
    old, target = _judge_order(group, kind, target, force=force)
    epoch = 1 + max((each.promised_epoch for each in group.statuses.values()), default=0)
    handover = Handover(kind, group.members(), epoch, by, master=old, target=target, force=force)
    report = Report(kind.value, group.broker_name, epoch, old)

    def event(text: str) -> None:
        report.events.append((round((time.monotonic() - began) * 1000, 1), text))
        told(text)

    answers: queue.Queue[tuple[Question, Answer]] = queue.Queue()

    def carry(question: Question) -> None:
        if question.kind is QuestionKind.MEMBER_STATUS:
            time.sleep(LOOK_PAUSE_S)
        answers.put((question, _answer(members, group, question)))

    def post(questions: Sequence[Question]) -> None:
        if handover.phase is Phase.PROMOTE and phase is not Phase.PROMOTE and handover.reason:
            event(f"at risk: {handover.reason}")  # while it can still be stopped
        for question in questions:
            threading.Thread(target=carry, args=(question,), daemon=True).start()

    is_or_was = "is" if old in group.statuses else "was"
    event(f"{kind.value}: epoch {epoch}" + (f", the master {is_or_was} {old}" if old else ""))
    phase, until = handover.phase, time.monotonic() + PHASE_S[handover.phase]
    fenced = time.monotonic()
    try:
        post(handover.start())
        while not handover.is_over:
            if handover.phase is not phase:
                phase = handover.phase
                until = time.monotonic() + (catch_up_s if phase is Phase.CATCH_UP else PHASE_S[phase])
            try:
                question, answer = answers.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                event(f"{phase.value}: time is up")
                post(handover.on_timeout())
                continue
            if question.kind is not QuestionKind.MEMBER_STATUS:
                event(_told(question, answer, group.silent.get(question.address)))
            before = handover.phase
            post(handover.on_answer(question.address, question.kind, answer))
            if before is Phase.PROMOTE and handover.phase in (Phase.FOLLOW, Phase.DONE):
                assert handover.winner is not None
                report.new_master = handover.winner.address
                report.at_risk = handover.reason
                report.took_ms = round((time.monotonic() - began) * 1000, 1)
                if kind is HandoverKind.SWITCH:
                    report.gap_ms = round((time.monotonic() - fenced) * 1000, 1)
    except BaseException:
        # At a Ctrl-C nobody may be left waiting for this program's next word.
        for question in handover.abandon("interrupted"):
            _answer(members, group, question)
        raise
    if handover.phase is Phase.FAILED:
        risky = kind is HandoverKind.FAILOVER and not force and at_risk(group, target)
        way_out = ". Start whoever does not answer, or accept the risk with --force" if risky else ""
        raise HandoverFailed(handover.reason + way_out)
    event(f"{report.new_master} is the master of epoch {epoch}")
    return report


def _judge_order(group: Group, kind: HandoverKind, target: str, *, force: bool) -> tuple[str, str]:
    """Return the address of the master, or of the one that was lost, and the wanted slave's; both may be empty.

    Raises `HandoverFailed` for an order that does not fit the group as it is.
    """
    if group.electing:
        raise HandoverFailed(f"{group.broker_name} {ELECTS}")
    master = master_of(group)
    if group.refusing and not group.statuses:
        raise HandoverFailed(refused_by_all(group))
    if target:
        target = _slave_at(group, target)
    if kind is HandoverKind.SWITCH:
        if master is None:
            gone = f". If it is gone: `ropewalk admin ha failover {group.broker_name}`"
            raise HandoverFailed(
                f"no master of {group.broker_name} answers{_why_silent(group)}{'' if group.refusing else gone}"
            )
        return master.address, target or _closest(group, master)
    if master is None:
        return _lost_master(group), target
    if not force:
        raise HandoverFailed(
            f"the master of {group.broker_name} at {master.address} answers: `ropewalk admin ha switch` hands over "
            "without a loss"
        )
    return master.address, target


def at_risk(group: Group, target: str = "") -> str:
    """Return the loss that a failover with `force` risks, by the members' statuses just now; empty where nothing is at
    risk.

    Nobody is asked for a promise, so that a person can think it over.
    """
    slaves = {address: each.status() for address, each in group.statuses.items() if each.role == SLAVE}
    choice = choose(slaves, None, wanted=target, force=True)
    return choice.reason if choice.winner is not None else ""


def refused_by_all(group: Group) -> str:
    """Return in words that no member of a group answers, and that some refuse to."""
    return f"no member of {group.broker_name} tells its status{_why_silent(group)}"


def _why_silent(group: Group) -> str:
    reasons = "; ".join(f"{address}: {why}" for address, why in sorted(group.silent.items()))
    return f" ({reasons})" if reasons else ""


def _told(question: Question, answer: Answer, silent: str | None) -> str:
    """Return in words how a member answered; `silent`: why it told no status before."""
    if answer.status is not None:
        return f"{question.address} {question.kind.value}: yes, its log ends at {answer.status.end}"
    return f"{question.address} {question.kind.value}: {answer.refusal or silent or 'no answer'}"


def _answer(members: Members, group: Group, question: Question) -> Answer:
    ask = EpochRequest(
        group.cluster,
        group.broker_name,
        question.epoch,
        question.operator,
        question.broker_id,
        question.master,
        question.policy,
    )
    message = RangesRequest([]) if question.kind is QuestionKind.MEMBER_STATUS else ask
    # Whoever said nothing at all just now is not waited for any longer than then.
    patience = (
        None if question.kind is QuestionKind.MEMBER_STATUS or question.address in group.silent else WRITE_S
    )
    try:
        body = members.ask(question.address, CODES[question.kind], message, patience)
        return Answer(decode_untrusted(MemberStatusMessage, body).status())
    except Refusal as exc:
        return Answer(refusal=str(exc))
    except (RopewalkError, OSError):
        return Answer()


def _closest(group: Group, master: MemberStatusMessage) -> str:
    """The slave that has most of the master's log."""
    slaves = [each for each in group.statuses.values() if each.role == SLAVE]
    if not slaves:
        raise HandoverFailed(
            f"the master {master.address} has no slave that answers: there is nobody to switch to"
        )
    return max(slaves, key=lambda each: (each.status().rank, -each.broker_id)).address


def _slave_at(group: Group, target: str) -> str:
    """The address by which the group knows this slave: `localhost` is 127.0.0.1 to it.

    Who is no slave is refused before anybody is asked: the master would take no messages while a mistyped one is
    waited for.
    """
    slaves = sorted(address for address, each in group.statuses.items() if each.role == SLAVE)
    with suppress(BadAddress):
        target = next((slave for slave in slaves if same_place(slave, target)), target)
    if target not in slaves:
        why = f" ({group.silent[target]})" if target in group.silent else ""
        raise HandoverFailed(
            f"{target} is no slave of {group.broker_name} that answers{why}; there are: {', '.join(slaves) or 'none'}"
        )
    return target


def _lost_master(group: Group) -> str:
    """Where the master was that nobody reaches: its slaves remember."""
    known = [each.master for each in group.statuses.values() if each.master]
    return next((address for address in known if address not in group.statuses), "")


def forget_slave(members: Members, group: Group, broker_id: int) -> MemberStatusMessage:
    """Have the master strike a slave off its roll. Raises `Refusal` in the master's words."""
    master = master_of(group)
    if master is None:
        raise HandoverFailed(
            f"no master of {group.broker_name} answers, and only a master has a roll{_why_silent(group)}"
        )
    ask = EpochRequest(group.cluster, group.broker_name, master.promised_epoch, "", broker_id)
    body = members.ask(master.address, RequestCode.ROPEWALK_FORGET_SLAVE, ask, WRITE_S)
    return decode_untrusted(MemberStatusMessage, body)


def waits_for_slaves(group: Group) -> bool:
    """Return whether this group's acknowledgements include a slave."""
    newest = max(
        group.statuses.values(), key=lambda each: (each.leader_epoch, each.policy.version), default=None
    )
    return newest is not None and newest.policy.role == SYNC_MASTER and newest.policy.required_acks > 0


def same_place(one: str, other: str) -> bool:
    """Return whether two addresses name the same port of a machine, as far as their texts tell."""
    a, b = parse_address(one), parse_address(other)
    local = ("localhost", "127.0.0.1", "0.0.0.0", "::1")
    return a.port == b.port and (a.host == b.host or (a.host in local and b.host in local))
