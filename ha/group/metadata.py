"""Metadata that follows the log: what a slave has seen, what it is told, and whose consumer offset wins.

Every table of a broker has a generation, a number that rises with each change. A slave asks several times a second
and names the generations it has, and of which run of which master; it is told the tables that moved since. Whole
tables travel (topics, groups, delay progress), because they are small and must be swapped in whole; consumer offsets
travel one by one, because they are many and change all the time.

Of two offsets of one queue the later commit wins, whichever broker it was made at: commits that a slave took while
its master was away are not undone by what the master remembers, and a reset to an earlier offset is a commit like any
other. Equal times: the higher offset. So both sides come to the same table in whatever order they hear of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import msgspec

from ha.group.roles import Terms

__all__ = ["Commit", "OffsetJournal", "Seen", "SyncAnswer", "SyncAsk", "wins"]

COMMITS_MAX = 20_000
"""Offsets in one message; the rest comes with the next."""

Commit: TypeAlias = tuple[str, str, int, int, int]
"""Topic, group, queue id, offset, time of the commit in ms."""
Key: TypeAlias = tuple[str, str, int]


class Seen(msgspec.Struct, frozen=True):
    """What a slave has of one master's tables."""

    run: str = ""
    """Which run of which master these generations are of; another run means: tell me everything."""
    topics: int = -1
    groups: int = -1
    offsets: int = 0
    delays: int = -1


class SyncAsk(msgspec.Struct, frozen=True):
    """A slave asks, and tells of the commits that consumers made with it."""

    broker_id: int
    address: str
    epoch: int
    seen: Seen
    end: int = 0
    flushed: int = 0
    terms_version: int = 0
    """Of the terms on the slave's disk."""
    terms_of: int = 0
    """The epoch of the master that gave them."""
    commits: list[Commit] = []
    topics_version: tuple[int, int, int] = (0, 0, 0)
    groups_version: tuple[int, int, int] = (0, 0, 0)
    """Of the slave's tables: state version, counter, time."""
    topics: dict[str, Any] | None = None
    groups: dict[str, Any] | None = None
    """The tables themselves, when the master wanted them."""


class SyncAnswer(msgspec.Struct, frozen=True):
    """What moved since, and where the master stands."""

    epoch: int
    """The master's reign."""
    seen: Seen
    end: int
    readable: int
    """Consumers may read up to here."""
    time_ms: int
    terms: Terms
    topics: dict[str, Any] | None = None
    groups: dict[str, Any] | None = None
    delays: dict[str, int] | None = None
    commits: list[Commit] = []
    more: bool = False
    """There are more commits than one message holds: ask again at once."""
    wants_tables: bool = False
    """The slave's tables are newer than the master's, which was killed before it had saved them: send them."""


def wins(new: tuple[int, int], old: tuple[int, int] | None) -> bool:
    """Whether a commit (offset, time) takes the place of another."""
    return old is None or (new[1], new[0]) > (old[1], old[0])


class OffsetJournal:
    """When each consumer offset was committed, and in which order they changed here.

    Beside a table of offsets, which has neither. `record` is told of every change; `since` replays it.
    """

    def __init__(self) -> None:
        self.sequence = 0
        """Rises with every change."""
        self._at: dict[Key, tuple[int, int]] = {}
        """Key -> (sequence, time); kept in the order of the sequence, so that what is new stands at the end."""

    def __len__(self) -> int:
        return len(self._at)

    def record(self, key: Key, time_ms: int) -> None:
        """The offset of this queue has changed now, or was found to have changed then. HOT."""
        self.sequence += 1
        self._at.pop(key, None)
        self._at[key] = (self.sequence, time_ms)

    def forget(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self._at.pop(key, None)

    def time_of(self, key: Key) -> int:
        """When it was committed; 0 for what this journal has not heard of."""
        found = self._at.get(key)
        return found[1] if found is not None else 0

    def since(self, sequence: int, limit: int = COMMITS_MAX) -> tuple[list[tuple[Key, int]], int]:
        """The (key, time) that changed after `sequence`, oldest first, and the sequence that this leads up to."""
        changed: list[tuple[int, Key, int]] = []
        for key in reversed(self._at):
            at, time_ms = self._at[key]
            if at <= sequence:
                break
            changed.append((at, key, time_ms))
        changed.reverse()
        taken = changed[:limit]
        return [(key, time_ms) for _at, key, time_ms in taken], taken[-1][0] if taken else sequence

    def times(self) -> dict[Key, int]:
        return {key: time_ms for key, (_sequence, time_ms) in self._at.items()}

    def load(self, entries: Iterable[tuple[Key, int]]) -> None:
        """Take over a table that was loaded, with the time of each of its offsets."""
        for key, time_ms in entries:
            self.record(key, time_ms)
