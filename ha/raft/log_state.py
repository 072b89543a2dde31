"""`LogState`: what the core knows of its own log, and every invariant of that log.

    base <= commit <= end       durable <= end       what is behind commit may be cut, what is before never

Four numbers, the term table and the configurations beside it, no bytes. *End* moves when a run is placed or appended,
*durable* when a flush is reported, *commit* when a quorum has it. A leader's commit may pass its own durable end: two
slower disks may have been faster. A follower's never does.

A flush and a cut may cross: the flush began, the cut was ordered, the flush reports bytes that are gone, and other
bytes may stand there by then. So every report says how many cuts came before its flush, and here is kept how low the
cuts since then went: a report counts only that far (`_floors`).

The core does not know where each entry lies, and need not: it keeps the *points* it heard of, the ends of runs and
flushes. Commit moves from one such point to the next, so whoever shows records up to it has an offset to show.
"""

from __future__ import annotations

from bisect import bisect_right

from ha.raft.quorum import ConfigHistory
from ha.raft.terms import TermTable
from ha.raft.types import Point, Run


class LogState:
    """The log of one member, in numbers."""

    __slots__ = ("_floors", "_points", "commit", "configs", "cuts", "cuts_done", "durable", "end", "terms")

    def __init__(self, terms: TermTable, configs: ConfigHistory, end: Point, commit: Point) -> None:
        """Begin with a recovered log, which the shell has synced through its end."""
        assert commit.index <= end.index, f"the commit index {commit.index} is behind the end {end.index}"
        assert terms.last_term == end.term, (terms.rows, end)
        assert configs.index <= end.index, (configs.rows, end)
        self.terms = terms
        self.configs = configs
        self.end = end
        self.commit = commit
        self.durable = end.index
        self.cuts = 0
        """How many cuts were ordered."""
        self.cuts_done = 0
        self._floors: dict[int, int] = {}
        """By the number of a cut that no report has come after yet: the index through which it left the log."""
        self._points = [end]

    @property
    def is_cutting(self) -> bool:
        """Tell whether a cut was ordered that is not on disk yet."""
        return self.cuts_done < self.cuts

    @property
    def uncommitted_bytes(self) -> int:
        """The size of the uncommitted part of the log, which a cut could remove."""
        return self.end.pos - self.commit.pos

    def add(self, run: Run, skip: int = 0) -> None:
        """Note that a run was appended, or ordered to be placed without its first `skip` bytes."""
        end = run.end
        assert run.first <= self.end.index + 1 <= end.index, (run, self.end)
        assert skip or run.pos >= self.end.pos, (run, self.end)
        assert not skip or run.pos + skip == self.end.pos, (run, skip, self.end)
        self.terms.begin(run.term, self.end.index + 1, self.end.pos)
        if run.config is not None:
            assert run.count == 1, f"the entry of a configuration is a run of its own: {run}"
            self.configs.add(run.first, run.config)
        self.end = end
        self._points.append(end)

    def cut(self, point: Point) -> None:
        """Note that the log was ordered to end at `point`."""
        assert point.index >= self.commit.index, (
            f"rule 5: a cut at {point.index} would remove committed entries, which end at {self.commit.index}"
        )
        assert self.terms.term_at(point.index) == point.term, (point, self.terms.rows)
        self.terms.cut(point.index)
        self.configs.cut(point.index)
        self.end = point
        self.durable = min(self.durable, point.index)
        while self._points and self._points[-1].index > point.index:
            self._points.pop()
        if not self._points or self._points[-1].index < point.index:
            self._points.append(point)
        self.cuts += 1
        self._floors[self.cuts] = point.index

    def cut_done(self) -> None:
        """Note that the oldest cut that was ordered is on disk."""
        self.cuts_done += 1
        assert self.cuts_done <= self.cuts, "more cuts were done than ordered"

    def flushed(self, point: Point, cuts: int) -> bool:
        """Note a report of the flusher. Return whether the durable end moved."""
        assert cuts <= self.cuts, f"a flush after {cuts} cuts, of which {self.cuts} were ordered"
        index = min([point.index, *(floor for number, floor in self._floors.items() if number > cuts)])
        for number in [number for number in self._floors if number <= cuts]:
            del self._floors[
                number
            ]  # flushes are reported in their order: no report from before it will come
        assert index <= self.end.index, (point, cuts, self.end)
        if index <= self.durable:
            return False
        self.durable = index
        if index == point.index:
            self._know(point)
        return True

    def _know(self, point: Point) -> None:
        """Keep a point that lies inside a run, for a commit that may end there."""
        if point.index <= self.commit.index:
            return
        at = bisect_right(self._points, point.index, key=_index)
        if at == 0 or self._points[at - 1].index != point.index:
            self._points.insert(at, point)

    def commit_through(self, index: int) -> Point | None:
        """Move commit to the last known point up to `index`. Return the point if commit moved."""
        at = bisect_right(self._points, index, key=_index) - 1
        if at < 0:
            return None
        point = self._points[at]
        if point.index <= self.commit.index:
            return None
        del self._points[:at]
        self.commit = point
        return point


def _index(point: Point) -> int:
    return point.index
