"""`ShownLog`: the log through the last entry that consumers may see.

*Shown* is what a quorum has **and** this disk has: the commit index may pass a leader's own slow disk, and files
beside the log (queues, checkpoints) must not be ahead of it. Answers wait for what is shown, so SEND_OK means: synced
on a quorum, this broker among it.
"""

from __future__ import annotations

from collections import deque

from ha.dledger.storage import LogStorage, ReplicaStore
from ha.raft.types import Point

__all__ = ["ShownLog"]


class ShownLog:
    """The commit points of the core on their way to consumers."""

    __slots__ = ("_replica", "_storage", "commits", "end", "target")

    def __init__(self, storage: LogStorage, replica: ReplicaStore) -> None:
        """Begin with the commit point that was written down last."""
        self.commits: deque[Point] = deque()
        """Commit points that are not on this disk yet, or not shown."""
        self.end = Point(*storage.commit)
        """The log through the last entry that consumers may see."""
        self._storage = storage
        self._replica = replica
        self.target: Point | None = None
        """The commit point through which the store is being shown: all of it is on this disk."""

    def advance(self, durable: int) -> Point | None:
        """Show entries that are committed and on this disk, at most a turn's share of them.

        `durable` is the index through which the log is on this disk. Returns the shown end if it has moved.
        """
        commits = self.commits
        while commits and commits[0].index <= durable:
            self.target = commits.popleft()
        target = self.target
        if target is None:
            return None
        self._storage.committed(target.index, target.term, target.pos)
        shown = Point(*self._replica.show_through(target.index, target.term, target.pos))
        if shown.index >= target.index:
            self.target = None
        if shown.index <= self.end.index:
            return None
        self.end = shown
        return shown
