"""Choose the member that becomes master, and conduct the conversation that makes it so.

A message is acknowledged when `required` slaves have it. If of n slaves at least n - required + 1 promise never to
listen to the old master again, each set of acknowledging slaves had one of them in it: so the one among them whose log
reaches furthest has every acknowledged message, and the old master can never again collect the reports it needs.
*Furthest* is judged by the epoch of the last byte first and by length second: a long tail of an old epoch is what a
deposed master wrote for itself.

A planned switch is simpler, because the old master itself promises: it takes no message from then on, says where its
log ends, and any slave that has all of that may be promoted, however many others answer.

    failover   ACCEPT all -> enough: PROMOTE the furthest -> FOLLOW the others
                          -> too few: RELEASE those that accepted; only `force` goes on, and what is at risk is told
    switch     FENCE the master -> CATCH_UP the target -> ACCEPT the slaves -> PROMOTE the target -> FOLLOW the others
                          -> it takes too long: RELEASE those that accepted, and the master goes on

After PROMOTE has left there is no way back: an answer that is lost is asked for again, and RELEASE is never sent.
`Handover` takes answers and the passing of time, and returns the questions to send; it knows no sockets and no clock.
The operator that carries them is a person's command or `admin ha watch`. Left to others: what a member does when it is
asked (`ha.group.roles`), and carrying the questions (the operator's).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ha.group.roles import SLAVE, QuorumPolicy

__all__ = [
    "Answer",
    "QuestionKind",
    "Choice",
    "Handover",
    "HandoverKind",
    "Member",
    "Phase",
    "Question",
    "MemberStatus",
    "choose",
]


@dataclass(frozen=True, slots=True)
class Member:
    """A broker of the group, as the name server or another member names it."""

    address: str
    broker_id: int


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """The status of a member: its answer to every question."""

    address: str
    broker_id: int
    role: str
    promised_epoch: int
    leader_epoch: int
    end: int
    """The offset behind the last byte of its log."""
    log_epoch: int = 0
    """The epoch of its last byte."""
    waiting: int = 0
    """Producers to whom a master still owes an answer, because a slave has not reported."""
    policy: QuorumPolicy = field(default_factory=QuorumPolicy)
    master_end: int = 0
    """The end of the master's log when this slave last heard of it."""
    master_age_ms: int = -1
    """The age of `master_end` when contact with the master was lost, or now; -1: never heard."""
    newest_open_promise: int = 0
    """The newest epoch that it promised to another operator before, and that was not released since."""

    @property
    def rank(self) -> tuple[int, int]:
        """Return the order of logs: the epoch of the last byte first, length second."""
        return self.log_epoch, self.end


@dataclass(frozen=True, slots=True)
class Choice:
    """The member to promote, or the reason why none is."""

    winner: MemberStatus | None
    reason: str = ""
    """The reason why none is promoted, or what is at risk; empty where nothing is."""


def choose(
    answers: Mapping[str, MemberStatus],
    master: MemberStatus | None,
    *,
    wanted: str = "",
    force: bool = False,
) -> Choice:
    """Choose by the rule. `answers` are of slaves that accepted the epoch, by address; `master` if it did too."""
    slaves = sorted(answers.values(), key=lambda each: each.broker_id)
    if not slaves:
        return Choice(None, "no slave accepted the new epoch: there is nobody to promote")
    policy = newest_policy([*slaves, *([master] if master is not None else [])])
    counted = [each for each in slaves if str(each.broker_id) in policy.slaves]
    best = max(each.rank for each in slaves)
    risk = ""
    if master is not None:
        if master.rank > best:
            risk = f"no slave has all of the master's log: {master.end - best[1]} bytes are missing"
        best = max(best, master.rank)
    elif policy.required_acks == 0:
        risk = _at_risk(policy, slaves, best, "this group acknowledges before any slave has a message")
    elif (newest_open_promise := max(each.newest_open_promise for each in slaves)) > max(
        each.leader_epoch for each in slaves
    ):
        # Its master would have a policy that no member here knows, and may have acknowledged under it.
        risk = _at_risk(
            policy,
            slaves,
            best,
            f"somebody may have become master of epoch {newest_open_promise}, and does not answer",
        )
    elif len(counted) < policy.answers_needed:
        risk = _at_risk(
            policy,
            slaves,
            best,
            f"{len(counted)} of {len(policy.slaves)} slaves accepted, {policy.answers_needed} have to",
        )
    if risk and not force:
        return Choice(None, risk)
    best = max(each.rank for each in slaves) if risk else best
    fit = [each for each in slaves if each.rank == best]
    chosen = [each for each in slaves if each.address == wanted]
    if wanted and not chosen:
        return Choice(None, f"{wanted} did not accept the new epoch")
    if chosen and chosen[0] not in fit:
        behind = f"{wanted} ends at {chosen[0].end}, and {fit[0].address} has more: it ends at {fit[0].end}"
        return Choice(chosen[0], f"{risk}; {behind}" if risk else behind) if force else Choice(None, behind)
    return Choice(chosen[0] if chosen else fit[0], risk)


def newest_policy(statuses: Sequence[MemberStatus]) -> QuorumPolicy:
    """Return the group's newest policy, by the member that knows most of it."""
    return max(statuses, key=lambda each: (each.leader_epoch, each.policy.version)).policy


def _at_risk(policy: QuorumPolicy, slaves: Sequence[MemberStatus], best: tuple[int, int], why: str) -> str:
    """Describe the risk, and how much was certainly not copied when the master was last heard."""
    heard = [each for each in slaves if each.master_age_ms >= 0]
    if not heard:
        return f"{why}; nobody knows how far the master's log reached"
    last = max(heard, key=lambda each: (each.master_end, -each.master_age_ms))
    lost = max(0, last.master_end - best[1])
    return f"{why}; at least {lost} bytes are at risk as of {last.master_age_ms} ms before contact was lost"


# -- the conversation -----------------------------------------------------------------------------------


class HandoverKind(enum.Enum):
    """A planned switch, or a failover from a master that is gone."""

    SWITCH = "switch"
    FAILOVER = "failover"


class QuestionKind(enum.Enum):
    """The kinds of question; the answer to each is a `MemberStatus`."""

    MEMBER_STATUS = "status"
    ACCEPT = "accept"
    RELEASE = "release"
    PROMOTE = "promote"
    FOLLOW = "follow"


@dataclass(frozen=True, slots=True)
class Question:
    """A question to one member. `broker_id` and `master` are for FOLLOW and PROMOTE: its id, and the other master."""

    address: str
    kind: QuestionKind
    epoch: int
    operator: str
    broker_id: int = 0
    master: str = ""
    policy: QuorumPolicy | None = None
    """For PROMOTE the newest that any member knows, for FOLLOW the new master's."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of a question: the member's status, or why it said no, or nothing (both empty)."""

    status: MemberStatus | None = None
    refusal: str = ""


class Phase(enum.Enum):
    """The phases of a handover; each waits for the answers to its questions."""

    FENCE = "fence"
    CATCH_UP = "catch up"
    ACCEPT = "accept"
    PROMOTE = "promote"
    FOLLOW = "follow"
    RELEASE = "release"
    DONE = "done"
    FAILED = "failed"


_ASKED_IN = {
    Phase.FENCE: QuestionKind.ACCEPT,
    Phase.CATCH_UP: QuestionKind.MEMBER_STATUS,
    Phase.ACCEPT: QuestionKind.ACCEPT,
    Phase.PROMOTE: QuestionKind.PROMOTE,
    Phase.FOLLOW: QuestionKind.FOLLOW,
    Phase.RELEASE: QuestionKind.RELEASE,
}


class Handover:
    """The attempt to make another member the master, under a single epoch and a single operator's name.

    `start` begins it. Every question is answered by `on_answer`, with an empty Answer where nothing came;
    `on_timeout` ends what a phase may take. Each returns the questions that are due. It is over when `phase` is DONE
    or FAILED.
    """

    def __init__(
        self,
        kind: HandoverKind,
        members: Sequence[Member],
        epoch: int,
        operator: str,
        *,
        master: str = "",
        target: str = "",
        force: bool = False,
    ) -> None:
        """`epoch` is above every epoch that was seen; `master` is the old one's address, `target` the wanted one's."""
        assert operator and epoch > 0
        assert kind is HandoverKind.FAILOVER or master, "a switch needs a master that is there"
        self.kind = kind
        self.members = {each.address: each for each in members}
        self.epoch = epoch
        self.operator = operator
        self.master = master
        self.target = target
        self.force = force
        self.phase = Phase.FENCE if kind is HandoverKind.SWITCH else Phase.ACCEPT
        self.winner: MemberStatus | None = None
        self.reason = ""
        """Why it failed, or what was at risk when `force` went on."""
        self.master_status: MemberStatus | None = None
        self._accepted: dict[str, MemberStatus] = {}
        self._policy: QuorumPolicy | None = None
        self._tried: set[str] = set()
        """Members that were asked to accept: an answer that was lost may have been a yes."""
        self._open: set[str] = set()
        self._answer_lost = False
        """Whether a PROMOTE may have been carried out and its answer lost."""
        self._refusals: list[str] = []

    @property
    def is_over(self) -> bool:
        return self.phase in (Phase.DONE, Phase.FAILED)

    def start(self) -> list[Question]:
        """Return the first questions."""
        if self.kind is HandoverKind.SWITCH:
            return self._ask_to_accept([self.master])
        return self._ask_to_accept(sorted(self.members.keys() - {self.master}))

    def on_answer(self, address: str, kind: QuestionKind, answer: Answer) -> list[Question]:
        """Advance by the outcome of one question; return the questions that are due."""
        if kind is not _ASKED_IN.get(self.phase):
            return []  # late: its phase is over
        self._open.discard(address)
        match self.phase, kind:
            case Phase.FENCE, QuestionKind.ACCEPT:
                return self._fenced(answer)
            case Phase.CATCH_UP, QuestionKind.MEMBER_STATUS:
                return self._caught_up(address, answer)
            case Phase.ACCEPT, QuestionKind.ACCEPT:
                return self._accepted_by(address, answer)
            case Phase.PROMOTE, QuestionKind.PROMOTE:
                return self._promoted(answer)
            case (Phase.FOLLOW, QuestionKind.FOLLOW) | (Phase.RELEASE, QuestionKind.RELEASE):
                if not self._open:
                    self.phase = Phase.DONE if self.phase is Phase.FOLLOW else Phase.FAILED
        return []

    def on_timeout(self) -> list[Question]:
        """End a phase that has lasted as long as it may; return the questions that are due."""
        match self.phase:
            case Phase.FENCE:
                return self._release(
                    f"the master {self.master} did not answer: if it is gone, this is a failover"
                )
            case Phase.CATCH_UP:
                return self._release("the slave did not reach the master's end in time")
            case Phase.ACCEPT:
                self._open.clear()
                return self._decide()
            case Phase.PROMOTE:
                assert self.winner is not None
                self.phase = Phase.FAILED
                self.reason = (
                    f"{self.winner.address} did not say whether it became master of epoch {self.epoch}: look with "
                    "`ropewalk admin ha status`, and begin again"
                )
            case Phase.FOLLOW:
                self.phase = Phase.DONE  # who did not hear of it finds its master by itself
            case Phase.RELEASE:
                self.phase = Phase.FAILED
        return []

    def abandon(self, reason: str) -> list[Question]:
        """Stop, because the operator has to: release every member, unless one may have been promoted."""
        if self.phase in (Phase.FENCE, Phase.CATCH_UP, Phase.ACCEPT):
            return self._release(reason)
        return []

    # -- switch ----------------------------------------------------------------------------------------

    def _fenced(self, answer: Answer) -> list[Question]:
        status = answer.status
        if status is None:
            return self._release(answer.refusal or f"the master {self.master} did not answer")
        self.master_status = status
        self.phase = Phase.CATCH_UP
        return [
            self._question(self.target, QuestionKind.MEMBER_STATUS),
            self._question(self.master, QuestionKind.MEMBER_STATUS),
        ]

    def _caught_up(self, address: str, answer: Answer) -> list[Question]:
        """Ask again until the target has it all, and the master has answered every producer that waited."""
        assert self.master_status is not None
        status = answer.status
        if address == self.master and status is not None:
            if status.end != self.master_status.end or status.promised_epoch != self.epoch:
                return self._release("the master went on by itself")
            self.master_status = status
        elif address == self.target and status is not None:
            self.winner = status
        ready = self.winner is not None and self.winner.end >= self.master_status.end
        if ready and self.master_status.waiting == 0:
            self.phase = Phase.ACCEPT
            return self._ask_to_accept(sorted(self.members.keys() - {self.master}))
        return [self._question(address, QuestionKind.MEMBER_STATUS)]

    # -- both ------------------------------------------------------------------------------------------

    def _ask_to_accept(self, addresses: Sequence[str]) -> list[Question]:
        self._tried.update(addresses)
        self._open = set(addresses)
        if not addresses:
            return self._release("the group has no slave that is known")
        return [self._question(address, QuestionKind.ACCEPT) for address in addresses]

    def _accepted_by(self, address: str, answer: Answer) -> list[Question]:
        status = answer.status
        if status is None:
            self._refusals.append(f"{address}: {answer.refusal or 'no answer'}")
        elif status.role != SLAVE:
            self._refusals.append(f"{address}: it is a {status.role} of epoch {status.leader_epoch}")
        else:
            self._accepted[address] = status
        return [] if self._open else self._decide()

    def _decide(self) -> list[Question]:
        choice = choose(self._accepted, self.master_status, wanted=self.target, force=self.force)
        self.reason = choice.reason
        if choice.winner is None:
            told = f" ({'; '.join(self._refusals)})" if self._refusals else ""
            return self._release(choice.reason + told)
        self.winner = choice.winner
        self.phase = Phase.PROMOTE
        known = [
            *self._accepted.values(),
            *([self.master_status] if self.master_status is not None else []),
        ]
        self._policy = newest_policy(known)
        return [self._ask_to_lead(self.winner.address)]

    def _ask_to_lead(self, address: str) -> Question:
        return Question(
            address, QuestionKind.PROMOTE, self.epoch, self.operator, master=self.master, policy=self._policy
        )

    def _promoted(self, answer: Answer) -> list[Question]:
        assert self.winner is not None
        if answer.status is None and not answer.refusal:
            self._answer_lost = True
            return [self._ask_to_lead(self.winner.address)]  # it may be one: ask again
        if answer.status is None:
            reason = f"{self.winner.address} does not become master: {answer.refusal}"
            if not self._answer_lost:
                return self._release(reason)
            self.phase, self.reason = (
                Phase.FAILED,
                reason,
            )  # it may have been one for a while: nobody is released
            return []
        self.winner = answer.status
        self.phase = Phase.FOLLOW
        old_id = self._accepted[self.winner.address].broker_id
        questions = []
        for address in sorted((self._accepted.keys() | {self.master}) - {self.winner.address, ""}):
            member = self._accepted.get(address)
            broker_id = member.broker_id if member is not None else old_id
            questions.append(
                Question(
                    address,
                    QuestionKind.FOLLOW,
                    self.epoch,
                    self.operator,
                    broker_id,
                    self.winner.address,
                    self.winner.policy,
                )
            )
        self._open = {question.address for question in questions}
        if not questions:
            self.phase = Phase.DONE
        return questions

    def _release(self, reason: str) -> list[Question]:
        """End without a promotion, for ever under this operator's name: the members that promised are free again."""
        assert self.phase is not Phase.FOLLOW
        self.reason = reason
        self.winner = None
        self.phase = Phase.RELEASE
        self._open = set(self._tried)
        if not self._tried:
            self.phase = Phase.FAILED
        return [self._question(address, QuestionKind.RELEASE) for address in sorted(self._tried)]

    def _question(self, address: str, kind: QuestionKind) -> Question:
        return Question(address, kind, self.epoch, self.operator)
