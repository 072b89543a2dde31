"""Replicate metadata beside the log: tables by generation, and consumer offsets by the later commit.

Every table of a broker has a generation, a number that rises with each change. A slave asks several times a second
and names the generations it has, and of which run of which master; it is told the tables that moved since. Of
topics and groups the changed entries travel, and the whole table where these are not known any more or the slave has
changes of its own; delay progress travels whole, because it is small; consumer offsets travel one by one, because they
are many and change all the time.

Of two offsets of one queue the later commit wins, whichever broker it was made at: commits that a slave took while
its master was away are not undone by what the master remembers, and a reset to an earlier offset is a commit like any
other. Equal times: the higher offset. So both sides come to the same table in whatever order they hear of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, TypeAlias

import msgspec

from ha.group.roles import Number, QuorumPolicy

__all__ = ["Commit", "OffsetJournal", "Seen", "SyncRequest", "SyncResponse", "TableChanges", "wins"]

COMMITS_MAX = 20_000
"""Offsets in one message; the rest comes with the next."""

Commit: TypeAlias = tuple[str, str, Number, Number, Number]
"""Topic, group, queue id, offset, time of the commit in ms."""
Commits: TypeAlias = Annotated[list[Commit], msgspec.Meta(max_length=COMMITS_MAX)]
Key: TypeAlias = tuple[str, str, int]


class Seen(msgspec.Struct, frozen=True):
    """The generations of one master's tables that a slave has."""

    run: str = ""
    """The process of the master that counted these generations; with another process everything is sent anew."""
    topics: Number = -1
    groups: Number = -1
    offsets: Number = 0
    delays: Number = -1


class TableChanges(msgspec.Struct, frozen=True):
    """The entries of a table that are different since the generation that a slave has, and the table's version."""

    version: tuple[Number, Number, Number]
    """State version, counter, time."""
    changed: Annotated[dict[str, Any], msgspec.Meta(max_length=COMMITS_MAX)]
    gone: Annotated[list[str], msgspec.Meta(max_length=COMMITS_MAX)]


class SyncRequest(msgspec.Struct, frozen=True):
    """A slave's request for changed tables, with the commits that consumers made at the slave."""

    broker_id: Number
    address: str
    promised_epoch: Number = msgspec.field(name="epoch")
    seen: Seen
    end: Number = 0
    flushed: Number = 0
    policy_version: Number = msgspec.field(name="terms_version", default=0)
    """Of the policy on the slave's disk."""
    policy_epoch: Number = msgspec.field(name="terms_of", default=0)
    """The epoch of the master that gave that policy."""
    commits: Commits = []
    topics_version: tuple[Number, Number, Number] = (0, 0, 0)
    groups_version: tuple[Number, Number, Number] = (0, 0, 0)
    """Of the slave's tables: state version, counter, time."""
    topics: dict[str, Any] | None = None
    groups: dict[str, Any] | None = None
    """The tables themselves, when the master wanted them."""
    takes_changes: bool = False
    """Whether the slave's tables are those that it has heard of, so that the entries that changed are enough."""


class SyncResponse(msgspec.Struct, frozen=True):
    """The tables and commits that moved since, and how far the master's log reaches."""

    leader_epoch: Number = msgspec.field(name="epoch")
    seen: Seen
    end: Number
    readable: Number
    """The log offset up to which consumers may read."""
    time_ms: Number
    policy: QuorumPolicy = msgspec.field(name="terms")
    topics: dict[str, Any] | None = None
    groups: dict[str, Any] | None = None
    delays: Annotated[dict[str, Number], msgspec.Meta(max_length=COMMITS_MAX)] | None = None
    commits: Commits = []
    more: bool = False
    """There are more commits than one message holds: ask again at once."""
    wants_tables: bool = False
    """The slave's tables are newer than the master's, which was killed before it had saved them: send them."""
    timers: tuple[Number, Number, Number] | None = None
    """Read time, queue offset and deliveries of the slot under way, of timer messages."""
    topic_changes: TableChanges | None = None
    group_changes: TableChanges | None = None


def wins(new: tuple[int, int], old: tuple[int, int] | None) -> bool:
    """Return whether a commit (offset, time) takes the place of another."""
    return old is None or (new[1], new[0]) > (old[1], old[0])


class OffsetJournal:
    """An ordered record of the times at which consumer offsets were committed here.

    It stands beside a table of offsets, which has neither times nor order. `record` is told of every change;
    `since` replays it.
    """

    def __init__(self) -> None:
        self.sequence = 0
        """Rises with every change."""
        self._at: dict[Key, tuple[int, int]] = {}
        """Key -> (sequence, time); kept in the order of the sequence, so that what is new stands at the end."""

    def __len__(self) -> int:
        return len(self._at)

    def record(self, key: Key, time_ms: int) -> None:
        """Record that the offset of this queue changed at this time. HOT."""
        self.sequence += 1
        self._at.pop(key, None)
        self._at[key] = (self.sequence, time_ms)

    def forget(self, keys: Iterable[Key]) -> None:
        """Remove the entries of queues that are gone."""
        for key in keys:
            self._at.pop(key, None)

    def time_of(self, key: Key) -> int:
        """Return the time of the last commit; 0 for a queue without an entry."""
        found = self._at.get(key)
        return found[1] if found is not None else 0

    def since(self, sequence: int, limit: int = COMMITS_MAX) -> tuple[list[tuple[Key, int]], int]:
        """Return the (key, time) that changed after `sequence`, oldest first, and the sequence reached."""
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
        """Return the time of the last commit of every queue."""
        return {key: time_ms for key, (_sequence, time_ms) in self._at.items()}

    def load(self, entries: Iterable[tuple[Key, int]]) -> None:
        """Record every offset of a loaded table with its time."""
        for key, time_ms in entries:
            self.record(key, time_ms)
