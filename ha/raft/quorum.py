"""Majorities: what one is (`QuorumAckChecker`), and under which configuration it is counted (`ConfigHistory`).

`QuorumAckChecker` is the only place that counts. A joint configuration is two groups, and both must have a majority;
learners are in neither. The same function answers "through which index is the log on a majority of disks", "is this a
majority of votes" and "has a majority been heard", so that no two of them can disagree about what a quorum is.

`ConfigHistory` is a table beside that of the terms: index of an entry (-1: in front of every log), the configuration
that it carries. A configuration is in force from the moment in which its entry is in the log, committed or not: leader
and follower count by it at once. So a cut that removes the entry brings back the one before. An entry that repeats what
is in force, as the one that opens a term, makes no row.

What is not committed may still be cut. Whoever asks which members there are has to think of every configuration from
the committed one on: a member that the last one leaves out may be the one that has to commit it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping

from ha.raft.types import Config, ConfigRow, MemberId


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


class ConfigHistory:
    """The configurations of one log, by index."""

    __slots__ = ("_configs", "_indexes", "index", "quorum", "revision")

    def __init__(self, base: Config, rows: Iterable[ConfigRow] = ()) -> None:
        """`base` is in force in front of the first row."""
        self._indexes = [-1]
        self._configs = [base]
        self.index = -1
        """The index of the entry that carries the configuration in force; -1 of the base."""
        self.quorum = QuorumAckChecker(base)
        """The counter of majorities under the configuration in force."""
        self.revision = 0
        """Changes with the configuration in force."""
        for index, config in rows:
            self.add(index, config)

    @property
    def in_force(self) -> Config:
        """The configuration by which this member counts."""
        return self.quorum.config

    @property
    def rows(self) -> tuple[ConfigRow, ...]:
        """The rows of the log, without the base."""
        return tuple(zip(self._indexes[1:], self._configs[1:], strict=True))

    def at(self, index: int) -> Config:
        """Return the configuration that is in force with the log through `index`."""
        return self._configs[bisect_right(self._indexes, index) - 1]

    def carried_by(self, index: int) -> Config | None:
        """Return the configuration that the entry `index` brought; None if it brought none."""
        row = bisect_right(self._indexes, index) - 1
        return self._configs[row] if row > 0 and self._indexes[row] == index else None

    def end_of_run(self, first: int, last: int) -> int:
        """Return the last index of a run of [first, last]: the entry of a configuration is a run of its own."""
        row = bisect_right(self._indexes, first) - 1
        if row > 0 and self._indexes[row] == first:
            return first
        return min(last, self._indexes[row + 1] - 1) if row + 1 < len(self._indexes) else last

    def since(self, index: int) -> tuple[Config, ...]:
        """Return the configuration in force at `index` and all that came behind it, which a cut there could leave."""
        return tuple(self._configs[bisect_right(self._indexes, index) - 1 :])

    def has_voter(self, member: MemberId, commit: int) -> bool:
        """Return whether a member votes in the committed configuration or in a later one."""
        if self.index <= commit:
            return member in self.quorum.voters
        return any(member in config.voters or member in config.old for config in self.since(commit))

    def members(self, commit: int) -> tuple[MemberId, ...]:
        """Return the members of the committed configuration and of those behind it, in their order."""
        return tuple(sorted({member for config in self.since(commit) for member in config.members}))

    def add(self, index: int, config: Config) -> None:
        """Note the configuration that the entry `index` carries, the last of the log."""
        assert index > self._indexes[-1], (index, self._indexes[-1])
        if len(self._configs) > 1 and config == self._configs[-1]:
            return
        self._indexes.append(index)
        self._configs.append(config)
        self._in_force()

    def found(self, base: Config) -> None:
        """Take the configuration in front of a log that names none: it is known only now."""
        assert len(self._configs) == 1, (base, self._configs)
        self._configs[0] = base
        self._in_force()

    def cut(self, index: int) -> None:
        """Forget the configurations behind `index`, and go back to the one before them."""
        if self._indexes[-1] <= index:
            return
        while self._indexes[-1] > index:
            self._indexes.pop()
            self._configs.pop()
        self._in_force()

    def _in_force(self) -> None:
        self.index, config = self._indexes[-1], self._configs[-1]
        if config != self.quorum.config:
            self.quorum = QuorumAckChecker(config)
            self.revision += 1
