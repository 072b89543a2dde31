"""`QuorumAckChecker`: what a majority is.

It is the only place that counts. A joint configuration is two groups, and both must have a majority; learners are in
neither. The same function answers "through which index is the log on a majority of disks", "is this a
majority of votes" and "has a majority been heard", so that no two of them can disagree about what a quorum is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ha.raft.types import Config, MemberId


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
