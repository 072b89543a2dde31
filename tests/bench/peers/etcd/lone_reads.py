"""A broker as `python -m ropewalk` starts it, in which no two reads of a region share a round of heartbeats.

    python -m tests.bench.peers.etcd.lone_reads broker ...

It is what read batching is measured against: each read that a member is asked for has a round of its own.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable

import ha.raft.node
from ha.dledger.ledger import LedgerShell
from ha.raft.reads import Reads


class LoneReads(Reads):
    """Reads of a leader, each of which begins a round at once."""

    __slots__ = ()

    @property
    def wants_round(self) -> bool:
        return bool(self._asked or self._forwarded)

    def round_left(self, number: int, commit: int, now: int) -> None:
        later, self._asked = self._asked[1:], self._asked[:1]
        super().round_left(number, commit, now)
        self._asked = later


def read_alone(self: LedgerShell, done: Callable[[bool], None]) -> None:
    """Tell the core of a read at once, and not of all reads of a turn together."""
    self._reads.of_turn.append(done)
    self._tell(self._reads.question(self._now()))
    self._wake()


if __name__ == "__main__":
    for owner, name, changed in ((ha.raft.node, "Reads", LoneReads), (LedgerShell, "read", read_alone)):
        setattr(owner, name, changed)
    sys.argv[0] = "ropewalk"
    runpy.run_module("ropewalk", run_name="__main__", alter_sys=True)
