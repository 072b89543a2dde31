"""Who becomes master: the rule, and the conversation of whoever carries it out, a person's command or `ha watch`.

A message is acknowledged when `required` slaves have it. If of n slaves at least n - required + 1 promise never to
listen to the old master again, each set of acknowledging slaves had one of them in it: so the one among them whose log
reaches furthest has every acknowledged message, and the old master can never again collect the reports it needs.
*Furthest* is judged by the epoch of the last byte first and by length second: a long tail of an old epoch is what a
deposed master wrote for itself.

A planned switch is simpler, because the old master itself promises: it takes no message from then on, says where its
log ends, and whoever has all of that may be promoted, however many others answer.

    failover   ACCEPT all -> enough: PROMOTE the furthest -> FOLLOW the others
                          -> too few: RELEASE whoever accepted; only `force` goes on, and what is at risk is told
    switch     FENCE the master -> CATCH_UP the target -> ACCEPT the slaves -> PROMOTE the target -> FOLLOW the others
                          -> it takes too long: RELEASE whoever accepted, and the master goes on

After PROMOTE has left there is no way back: an answer that is lost is asked for again, and `release` is never said.
`Handover` takes answers and the passing of time, and returns what to ask whom; it knows no sockets and no clock. Left
to others: what a member does when it is asked (`roles`), and carrying the questions (`tools.admin.ha`).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ha.group.roles import SLAVE, Terms

__all__ = [
    "Answer",
    "Ask",
    "Choice",
    "Handover",
    "Kind",
    "Member",
    "Phase",
    "Send",
    "Standing",
    "choose",
]


@dataclass(frozen=True, slots=True)
class Member:
    """A broker of the group, as the name server or another member names it."""

    address: str
    broker_id: int


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a member stands: its answer to ACCEPT and to LOOK."""

    address: str
    broker_id: int
    role: str
    epoch: int
    reign: int
    end: int
    """Behind the last byte of its log."""
    log_epoch: int = 0
    """Of its last byte."""
    waiting: int = 0
    """Producers that a master still owes an answer about a slave."""
    terms: Terms = field(default_factory=Terms)
    master_end: int = 0
    """What a slave last heard of its master's end."""
    master_age_ms: int = -1
    """How long before contact with the master was lost, or before now, that was; -1: never heard."""
    doubt: int = 0
    """The newest epoch that it promised to somebody else before, and has heard nothing of since."""

    @property
    def rank(self) -> tuple[int, int]:
        return self.log_epoch, self.end


@dataclass(frozen=True, slots=True)
class Choice:
    """Whom to promote, or why nobody."""

    winner: Standing | None
    reason: str = ""
    """Why not, or what is at risk; empty where nothing is."""


def choose(
    answers: Mapping[str, Standing],
    master: Standing | None,
    *,
    wanted: str = "",
    force: bool = False,
) -> Choice:
    """The rule. `answers` are of members that accepted the epoch, by address, all slaves; `master` if it did too."""
    slaves = sorted(answers.values(), key=lambda each: each.broker_id)
    if not slaves:
        return Choice(None, "no slave accepted the new epoch: there is nobody to promote")
    terms = newest_terms([*slaves, *([master] if master is not None else [])])
    counted = [each for each in slaves if str(each.broker_id) in terms.slaves]
    best = max(each.rank for each in slaves)
    risk = ""
    if master is not None:
        if master.rank > best:
            risk = f"no slave has all of the master's log: {master.end - best[1]} bytes are missing"
        best = max(best, master.rank)
    elif terms.required_acks == 0:
        risk = _at_risk(terms, slaves, best, "this group acknowledges before any slave has a message")
    elif (doubt := max(each.doubt for each in slaves)) > max(each.reign for each in slaves):
        # Its master would have terms that nobody here knows, and may have acknowledged under them.
        risk = _at_risk(
            terms, slaves, best, f"somebody may have become master of epoch {doubt}, and does not answer"
        )
    elif len(counted) < terms.answers_needed:
        risk = _at_risk(
            terms,
            slaves,
            best,
            f"{len(counted)} of {len(terms.slaves)} slaves accepted, {terms.answers_needed} have to",
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


def newest_terms(standings: Sequence[Standing]) -> Terms:
    """What the group promised last, by the member that knows most of it."""
    return max(standings, key=lambda each: (each.reign, each.terms.version)).terms


def _at_risk(terms: Terms, slaves: Sequence[Standing], best: tuple[int, int], why: str) -> str:
    """Why it is a risk, and how much was certainly not copied when the master was last heard."""
    heard = [each for each in slaves if each.master_age_ms >= 0]
    if not heard:
        return f"{why}; nobody knows how far the master's log reached"
    last = max(heard, key=lambda each: (each.master_end, -each.master_age_ms))
    lost = max(0, last.master_end - best[1])
    return f"{why}; at least {lost} bytes are at risk as of {last.master_age_ms} ms before contact was lost"


# -- the conversation -----------------------------------------------------------------------------------


class Kind(enum.Enum):
    SWITCH = "switch"
    FAILOVER = "failover"


class Ask(enum.Enum):
    """What a member is asked; its answer to each is a `Standing`."""

    LOOK = "look"
    ACCEPT = "accept"
    RELEASE = "release"
    PROMOTE = "promote"
    FOLLOW = "follow"


@dataclass(frozen=True, slots=True)
class Send:
    """One question. `broker_id` and `master` are for FOLLOW and PROMOTE: whose id, and which other master."""

    address: str
    ask: Ask
    epoch: int
    by: str
    broker_id: int = 0
    master: str = ""
    terms: Terms | None = None
    """For PROMOTE the newest that anybody knows, for FOLLOW the new master's."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: where the member stands, or why it said no, or nothing (both empty)."""

    standing: Standing | None = None
    refusal: str = ""


class Phase(enum.Enum):
    FENCE = "fence"
    CATCH_UP = "catch up"
    ACCEPT = "accept"
    PROMOTE = "promote"
    FOLLOW = "follow"
    RELEASE = "release"
    DONE = "done"
    FAILED = "failed"


_ASKED_IN = {
    Phase.FENCE: Ask.ACCEPT,
    Phase.CATCH_UP: Ask.LOOK,
    Phase.ACCEPT: Ask.ACCEPT,
    Phase.PROMOTE: Ask.PROMOTE,
    Phase.FOLLOW: Ask.FOLLOW,
    Phase.RELEASE: Ask.RELEASE,
}


class Handover:
    """One attempt to make another member the master, under one epoch and one asker's name.

    `start` begins it. Every question is answered by `heard`, with an empty Answer where nothing came; `time_is_up`
    ends what a phase may take. Each returns the questions that are due. It is over when `phase` is DONE or FAILED.
    """

    def __init__(
        self,
        kind: Kind,
        members: Sequence[Member],
        epoch: int,
        by: str,
        *,
        master: str = "",
        target: str = "",
        force: bool = False,
    ) -> None:
        """`epoch` is above every epoch that was seen; `master` is the old one's address, `target` who is wanted."""
        assert by and epoch > 0
        assert kind is Kind.FAILOVER or master, "a switch needs a master that is there"
        self.kind = kind
        self.members = {each.address: each for each in members}
        self.epoch = epoch
        self.by = by
        self.master = master
        self.target = target
        self.force = force
        self.phase = Phase.FENCE if kind is Kind.SWITCH else Phase.ACCEPT
        self.winner: Standing | None = None
        self.reason = ""
        """Why it failed, or what was at risk when `force` went on."""
        self.master_standing: Standing | None = None
        self._accepted: dict[str, Standing] = {}
        self._terms: Terms | None = None
        self._tried: set[str] = set()
        """Who was asked to accept: an answer that was lost may have been a yes."""
        self._open: set[str] = set()
        self._answer_lost = False
        """Whether a PROMOTE may have been carried out without a word."""
        self._refusals: list[str] = []

    @property
    def is_over(self) -> bool:
        return self.phase in (Phase.DONE, Phase.FAILED)

    def start(self) -> list[Send]:
        if self.kind is Kind.SWITCH:
            return self._ask_to_accept([self.master])
        return self._ask_to_accept(sorted(self.members.keys() - {self.master}))

    def heard(self, address: str, ask: Ask, answer: Answer) -> list[Send]:
        """The outcome of one question."""
        if ask is not _ASKED_IN.get(self.phase):
            return []  # late: its phase is over
        self._open.discard(address)
        match self.phase, ask:
            case Phase.FENCE, Ask.ACCEPT:
                return self._fenced(answer)
            case Phase.CATCH_UP, Ask.LOOK:
                return self._caught_up(address, answer)
            case Phase.ACCEPT, Ask.ACCEPT:
                return self._accepted_by(address, answer)
            case Phase.PROMOTE, Ask.PROMOTE:
                return self._promoted(answer)
            case (Phase.FOLLOW, Ask.FOLLOW) | (Phase.RELEASE, Ask.RELEASE):
                if not self._open:
                    self.phase = Phase.DONE if self.phase is Phase.FOLLOW else Phase.FAILED
        return []

    def time_is_up(self) -> list[Send]:
        """This phase has lasted as long as it may."""
        match self.phase:
            case Phase.FENCE:
                return self._give_up(
                    f"the master {self.master} did not answer: if it is gone, this is a failover"
                )
            case Phase.CATCH_UP:
                return self._give_up("the slave did not reach the master's end in time")
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

    def abandon(self, reason: str) -> list[Send]:
        """Whoever carries this out has to stop: set everybody free, unless somebody may have been promoted."""
        if self.phase in (Phase.FENCE, Phase.CATCH_UP, Phase.ACCEPT):
            return self._give_up(reason)
        return []

    # -- switch ----------------------------------------------------------------------------------------

    def _fenced(self, answer: Answer) -> list[Send]:
        standing = answer.standing
        if standing is None:
            return self._give_up(answer.refusal or f"the master {self.master} did not answer")
        self.master_standing = standing
        self.phase = Phase.CATCH_UP
        return [self._send(self.target, Ask.LOOK), self._send(self.master, Ask.LOOK)]

    def _caught_up(self, address: str, answer: Answer) -> list[Send]:
        """Look again until the target has it all, and the master has told every producer what became of its message."""
        assert self.master_standing is not None
        standing = answer.standing
        if address == self.master and standing is not None:
            if standing.end != self.master_standing.end or standing.epoch != self.epoch:
                return self._give_up("the master went on by itself")
            self.master_standing = standing
        elif address == self.target and standing is not None:
            self.winner = standing
        ready = self.winner is not None and self.winner.end >= self.master_standing.end
        if ready and self.master_standing.waiting == 0:
            self.phase = Phase.ACCEPT
            return self._ask_to_accept(sorted(self.members.keys() - {self.master}))
        return [self._send(address, Ask.LOOK)]

    # -- both ------------------------------------------------------------------------------------------

    def _ask_to_accept(self, addresses: Sequence[str]) -> list[Send]:
        self._tried.update(addresses)
        self._open = set(addresses)
        if not addresses:
            return self._give_up("the group has no slave that is known")
        return [self._send(address, Ask.ACCEPT) for address in addresses]

    def _accepted_by(self, address: str, answer: Answer) -> list[Send]:
        standing = answer.standing
        if standing is None:
            self._refusals.append(f"{address}: {answer.refusal or 'no answer'}")
        elif standing.role != SLAVE:
            self._refusals.append(f"{address}: it is a {standing.role} of epoch {standing.reign}")
        else:
            self._accepted[address] = standing
        return [] if self._open else self._decide()

    def _decide(self) -> list[Send]:
        choice = choose(self._accepted, self.master_standing, wanted=self.target, force=self.force)
        self.reason = choice.reason
        if choice.winner is None:
            told = f" ({'; '.join(self._refusals)})" if self._refusals else ""
            return self._give_up(choice.reason + told)
        self.winner = choice.winner
        self.phase = Phase.PROMOTE
        known = [
            *self._accepted.values(),
            *([self.master_standing] if self.master_standing is not None else []),
        ]
        self._terms = newest_terms(known)
        return [self._ask_to_lead(self.winner.address)]

    def _ask_to_lead(self, address: str) -> Send:
        return Send(address, Ask.PROMOTE, self.epoch, self.by, master=self.master, terms=self._terms)

    def _promoted(self, answer: Answer) -> list[Send]:
        assert self.winner is not None
        if answer.standing is None and not answer.refusal:
            self._answer_lost = True
            return [self._ask_to_lead(self.winner.address)]  # it may be one: ask again
        if answer.standing is None:
            reason = f"{self.winner.address} does not become master: {answer.refusal}"
            if not self._answer_lost:
                return self._give_up(reason)
            self.phase, self.reason = (
                Phase.FAILED,
                reason,
            )  # it may have been one for a while: nobody is released
            return []
        self.winner = answer.standing
        self.phase = Phase.FOLLOW
        old_id = self._accepted[self.winner.address].broker_id
        sends = []
        for address in sorted((self._accepted.keys() | {self.master}) - {self.winner.address, ""}):
            member = self._accepted.get(address)
            broker_id = member.broker_id if member is not None else old_id
            sends.append(
                Send(
                    address,
                    Ask.FOLLOW,
                    self.epoch,
                    self.by,
                    broker_id,
                    self.winner.address,
                    self.winner.terms,
                )
            )
        self._open = {send.address for send in sends}
        if not sends:
            self.phase = Phase.DONE
        return sends

    def _give_up(self, reason: str) -> list[Send]:
        """Nobody is promoted, and never will be under this asker's name: whoever promised is free again."""
        assert self.phase is not Phase.FOLLOW
        self.reason = reason
        self.winner = None
        self.phase = Phase.RELEASE
        self._open = set(self._tried)
        if not self._tried:
            self.phase = Phase.FAILED
        return [self._send(address, Ask.RELEASE) for address in sorted(self._tried)]

    def _send(self, address: str, ask: Ask) -> Send:
        return Send(address, ask, self.epoch, self.by)
