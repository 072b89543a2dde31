"""`EntryHandler`: a follower's side of replication. It matches, finds conflicts and follows the leader's commit.

An Append says: behind `prev` stands this run. The follower looks at its own term table:

    prev is not in the log, or of another term     refused, with a hint where the logs might agree
    the whole run is here already                  nothing to do: a repeated Append never cuts
    its beginning is here                          the rest is placed
    an entry here has another term                 the log is cut in front of it, then the rest is placed

*Matched* is how far the log was compared with this leader in this term, and it is the only thing that is ever
confirmed: the end of the log may lie further, in entries that no leader of this term has spoken of.
"""

from __future__ import annotations

from msgspec import Struct

from ha.raft.log_state import LogState
from ha.raft.types import Append, Point, Run


class Refusal(Struct, frozen=True):
    """The log has no entry like `prev`. It might agree at `last`, where it has `term`."""

    last: int
    term: int


class Acceptance(Struct, frozen=True):
    """The changes that an accepted Append makes to the log, in this order. `matched` already counts them as done."""

    cut: Point | None
    place: Run | None
    skip: int


ALL_HERE = Acceptance(None, None, 0)


class EntryHandler:
    """A member's record of the leader of its term."""

    __slots__ = ("leader_commit", "matched", "term")

    def __init__(self) -> None:
        self.begin(-1)

    def begin(self, term: int) -> None:
        """Begin with the leader of another term, with which nothing is compared yet."""
        self.term = term
        self.matched = -1
        self.leader_commit = -1

    def heard_commit(self, index: int) -> None:
        """Note the leader's commit index, which may come late or twice."""
        self.leader_commit = max(self.leader_commit, index)

    def committed(self, log: LogState) -> int:
        """Return the index through which this follower may show its log (rule 4)."""
        return min(self.leader_commit, self.matched, log.durable)

    def judge(self, append: Append, log: LogState) -> Acceptance | Refusal:
        """Compare an Append of the leader of this term with the log, which the caller then changes as told."""
        prev, run, terms = append.prev, append.run, log.terms
        if prev.index > log.end.index:
            return Refusal(log.end.index, log.end.term)
        if prev.index < terms.base.index:
            return Refusal(
                log.commit.index, log.commit.term
            )  # a snapshot covers it: what it covers is committed
        if terms.term_at(prev.index) != prev.term:
            last = terms.floor(prev.index, prev.term)
            return Refusal(last, terms.term_at(last))
        if run is None:
            self.matched = max(self.matched, prev.index)
            return ALL_HERE
        self.matched = max(self.matched, run.last)
        return self._compared(prev, run, log)

    def _compared(self, prev: Point, run: Run, log: LogState) -> Acceptance:
        end = log.end
        if prev.index == end.index:  # as it nearly always is
            return Acceptance(None, run, 0)
        conflict = log.terms.conflict(run.first, min(run.last, end.index), run.term)
        if conflict is None:
            if run.last <= end.index:
                return ALL_HERE
            return Acceptance(None, run, end.pos - run.pos)
        if conflict == run.first:
            return Acceptance(prev, run, 0)
        point = log.terms.start_of(conflict)
        return Acceptance(point, run, point.pos - run.pos)
