"""What must hold in every world: the invariants of Raft, judged from outside of the cores.

Nothing here trusts a core. Whether an entry is committed is read off its effects, whether it is on a majority of disks
off the disks, whether a vote was saved off the ballot file.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from ha.raft.types import (
    AppendAnswer,
    Config,
    ConfigRow,
    Effects,
    HeartbeatAnswer,
    MemberId,
    Message,
    Point,
    Role,
    Vote,
    VoteAnswer,
    VoteResult,
)
from tests.sim.raft.model_log import Entry

if TYPE_CHECKING:
    from tests.sim.raft.member import Member

GRANTED = (VoteResult.ACCEPT, VoteResult.ACCEPT_WITH_RESERVE)


class Broken(AssertionError):
    """A promise was broken."""


class Checks:
    """The history of one world, as far as promises need it."""

    def __init__(self) -> None:
        self.configs: dict[tuple[int, int], Config] = {}
        """By (index, term): the configuration that an entry carries."""
        self.truth: list[Entry] = []
        """What is committed, in the order of the log, for ever."""
        self.terms: list[int] = []
        """The term of the leader that committed each of them."""
        self.acknowledged: dict[int, int] = {}
        """By the payload of a message that a client was told is stored: its index."""
        self.leaders: dict[int, MemberId] = {}
        self.votes: dict[tuple[MemberId, int], MemberId] = {}
        self.entries: dict[tuple[int, int], tuple[Entry, int]] = {}
        """By (index, term): the one entry that there may be, and the term of the one before it."""

    def after(self, member: Member, effects: Effects, members: dict[MemberId, Member]) -> None:
        """Judge the effects of one step, after the log has heard of them."""
        for peer, message in effects.send:
            self._said(member, peer, message)
        role = effects.role
        if role is not None and role.role is Role.LEADER:
            self._leads(member, role.term)
        if effects.config is not None or effects.cut is not None:
            self._counts_by(member)
        if effects.commit is not None:
            self._committed(member, effects.commit, members)

    def config_rows(self, log: list[Entry]) -> list[ConfigRow]:
        """Return the configurations that a log carries."""
        return sorted(
            (index, config)
            for (index, term), config in self.configs.items()
            if index < len(log) and log[index][1] == term
        )

    def config_of(self, member: Member) -> Config:
        """Return the configuration in force in the log of a member, its first one if the log carries none."""
        rows = self.config_rows(member.log.ordered())
        return rows[-1][1] if rows else member.first_config

    def _counts_by(self, member: Member) -> None:
        expected = self.config_of(member)
        if member.core is not None and member.core.config != expected:
            raise Broken(f"I6: {member.id} counts by {member.core.config}, its log says {expected}")

    def placed(self, member: Member, entries: list[Entry], before: int) -> None:
        """Log matching: an index and a term name one entry, and one entry before it."""
        for entry in entries:
            known = self.entries.setdefault(entry[:2], (entry, before))
            if known != (entry, before):
                raise Broken(f"I5: {member.id} has {entry} behind term {before}, elsewhere it is {known}")
            before = entry[1]

    def _said(self, member: Member, peer: MemberId, message: Message) -> None:
        match message:
            case AppendAnswer(ok=True, durable=durable) | HeartbeatAnswer(durable=durable):
                if durable >= 0 and not member.log.has_on_disk(member.log.ordered()[durable]):
                    raise Broken(f"I9: {member.id} says that {durable} is on its disk, and it is not")
            case VoteAnswer(pre=False, result=result, term=term) if result in GRANTED:
                self._votes(member, term, peer)
            case Vote(pre=False, term=term):
                self._votes(member, term, member.id)

    def _votes(self, member: Member, term: int, candidate: MemberId) -> None:
        ballot = member.log.ballot_on_disk
        if ballot.term < term or (ballot.term == term and ballot.vote != candidate):
            raise Broken(f"I6: {member.id} votes for {candidate} in term {term}, on its disk is {ballot}")
        if self.votes.setdefault((member.id, term), candidate) != candidate:
            raise Broken(
                f"I6: {member.id} votes for {candidate} and {self.votes[member.id, term]} in term {term}"
            )

    def lost_ballot(self, member: Member) -> None:
        """Forget the votes of a member that lost its disk: of a term that has a leader, another vote elects nobody."""
        self.votes = {key: vote for key, vote in self.votes.items() if key[0] != member.id}

    def _leads(self, member: Member, term: int) -> None:
        if self.leaders.setdefault(term, member.id) != member.id:
            raise Broken(f"I6: {member.id} and {self.leaders[term]} lead term {term}")
        # A leader may hear of its last vote when later ones have led already: it must have what was committed before.
        count = bisect_left(self.terms, term)
        log = member.log.ordered()
        if log[count - 1 : count] != self.truth[count - 1 : count]:
            raise Broken(
                f"I7: {member.id} leads term {term} without the committed entry {self.truth[count - 1]}:"
                f" its log is {log[-3:]}"
            )

    def _committed(self, member: Member, point: Point, members: dict[MemberId, Member]) -> None:
        view, truth = member.log.view, self.truth
        if point.index <= member.committed:
            raise Broken(f"I8: {member.id} went from commit {member.committed} to {point.index}")
        if point.index >= len(view):
            raise Broken(f"I5: {member.id} commits {point}, its log has {len(view)} entries")
        if member.is_leader and view[point.index][1] != member.standing_term:
            raise Broken(
                f"I7: {member.id} commits {view[point.index]} by counting in term {member.standing_term}"
            )
        config: Config | None = None
        for index in range(member.committed + 1, point.index + 1):
            entry = view[index]
            if index < len(truth):
                if truth[index] != entry:
                    raise Broken(f"I5: {member.id} commits {entry}, committed is {truth[index]}")
                continue
            config = config or self.config_of(member)
            for group in (config.voters, config.old):
                copies = sum(members[id].log.had_on_disk(entry) for id in group)
                if group and 2 * copies <= len(group):
                    raise Broken(f"I9: {member.id} commits {entry}, which is on {copies} disks of {group}")
            truth.append(entry)
            self.terms.append(member.standing_term)
            if not member.is_leader:
                raise Broken(f"I7: {member.id} commits {entry}, which no leader has committed")
            if entry[2] in member.waiting:
                member.waiting.discard(entry[2])
                self.acknowledged[entry[2]] = index
        last = view[point.index]
        if (point.term, point.pos) != (last[1], last[3] + last[4]):
            raise Broken(f"I8: {member.id} commits {point}, the entry there is {last}")
        member.committed = point.index

    def at_rest(self, members: dict[MemberId, Member]) -> None:
        """These members are alive and equal, and nothing that was promised is missing."""
        for member in members.values():
            if member.log.view != self.truth:
                raise Broken(f"I1: the log of {member.id} is not what was committed")
        for payload, index in self.acknowledged.items():
            if self.truth[index][2] != payload:
                raise Broken(
                    f"I1: message {payload} was acknowledged at {index}, where {self.truth[index]} is"
                )
