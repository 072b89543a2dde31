"""Majorities: what one has (`QuorumAckChecker`), and the member that is in none for a while (`Readmission`).

`QuorumAckChecker` is the only place that counts. A joint configuration is two groups, and both must have a majority;
learners are in neither. The same function answers "through which index is the log on a majority of disks", "is this a
majority of votes" and "has a majority been heard", so that no two of them can disagree about what a quorum is.

*Readmission.* A member that lost its log is a *learner*, and votes again when nothing hangs on what it lost.
The peers know by the incarnation that its log is another one (`ha.dledger.hello`), and tell it so once an operator has
let it in. From then on it follows, and neither votes nor campaigns nor counts for a majority, until both are true:

    met         every other member has told it its term since. So its own term is at least every term in which it had
                voted or confirmed entries, and a leader of an older term, which others have left, gets nothing of it
    caught up   its disk has all that a leader has committed, in that leader's own term and not below the terms above

That is enough. A leader of such a term was elected without the learner, by a majority that shares a member with every
majority the lost log was part of: it has all that was committed. A vote that the lost log gave is of no later term, and
in the leader's own term no second majority is left. An old grant or report of the lost log that somebody still counts
was true when it was given, and the entry behind it is committed before the learner can have caught up.

The end is noted (`Effects.readmitted`), under the incarnation. A member that dies before the note is a learner again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from ha.raft.types import Config, MemberId

if TYPE_CHECKING:
    from ha.raft.log_state import LogState


class QuorumAckChecker:
    """Counts for one configuration."""

    __slots__ = ("_groups", "config", "voters")

    def __init__(self, config: Config) -> None:
        assert config.voters, "a group without voters decides nothing"
        self.config = config
        self.voters = tuple(sorted({*config.voters, *config.old}))
        """Every member whose answer counts, of both groups of a joint configuration."""
        self._groups = tuple(group for group in (config.voters, config.old) if group)

    def acknowledged(self, match: Mapping[MemberId, int]) -> int:
        """Return the largest index that a majority of each group has. A member that is not in `match` has nothing."""
        return min(
            sorted((match.get(voter, -1) for voter in group), reverse=True)[len(group) // 2]
            for group in self._groups
        )

    def is_majority(self, members: Collection[MemberId]) -> bool:
        """Return whether these members are a majority of each group."""
        return all(sum(voter in members for voter in group) * 2 > len(group) for group in self._groups)

    def is_lost(self, refused: Collection[MemberId]) -> bool:
        """Return whether so many have refused that the others are no majority."""
        return not self.is_majority([voter for voter in self.voters if voter not in refused])


class Readmission:
    """The readmission of one member: its end, and the members that have still to tell it their terms."""

    __slots__ = ("_is_over", "_met", "is_learner", "others")

    def __init__(self, others: Iterable[MemberId], is_over: bool) -> None:
        """`is_over`: whether this log has ended its readmission in an earlier life."""
        self.others = tuple(others)
        """The other members of the group."""
        self._is_over = is_over
        self._met: dict[MemberId, int] = {}
        """The newest term that each other member has told in this life."""
        self.is_learner = False

    @property
    def unmet(self) -> tuple[MemberId, ...]:
        """Return the members that have still to tell this learner their terms."""
        return tuple(peer for peer in self.others if peer not in self._met) if self.is_learner else ()

    @property
    def term(self) -> int:
        """Return the newest term that this member was told."""
        return max(self._met.values(), default=0)

    def met(self, peer: MemberId, term: int, lost: bool) -> bool:
        """Note the term of a peer, and whether it knows this member's log for lost. Return whether a learner begins.

        A term of -1: the peer is not in this group yet, and has still to tell one.
        """
        if term >= 0:
            self._met[peer] = max(term, self._met.get(peer, 0))
        begins = lost and not self._is_over and not self.is_learner
        self.is_learner |= begins
        return begins

    def ends(self, log: LogState, matched: int, leader_commit: int, term: int) -> bool:
        """Return whether the learner votes from now on; `matched` and `leader_commit` are of the leader of `term`."""
        if not self.is_learner or self.unmet or leader_commit < 0:
            return False
        assert term >= self.term, (term, self._met)
        if min(matched, log.durable) < leader_commit or log.terms.term_at(leader_commit) != term:
            return False  # it lacks something, or the leader has committed nothing in its own term yet
        self.is_learner, self._is_over = False, True
        return True
