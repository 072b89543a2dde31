"""`PendingReads`: reads of the newest state, which wait for the core's word that this member may answer them.

add      --end of the turn-->   ReadAsked(number), one for all reads of the turn
reads of the turn   <--answered--   Effects.reads
"""

from __future__ import annotations

from collections.abc import Callable

from ha.raft.types import ReadAsked

__all__ = ["PendingReads"]


class PendingReads:
    """The reads of this turn, and those that the core was asked for."""

    __slots__ = ("_asked", "_number", "of_turn")

    def __init__(self) -> None:
        self.of_turn: list[Callable[[bool], None]] = []
        """Reads of this turn, which are one to the core."""
        self._asked: dict[int, list[Callable[[bool], None]]] = {}
        self._number = 0

    def question(self, now: int) -> ReadAsked:
        """Return the question for the reads of this turn."""
        self._number += 1
        self._asked[self._number], self.of_turn = self.of_turn, []
        return ReadAsked(self._number, now)

    def answered(self, number: int, ok: bool) -> None:
        """Tell the reads of a question whether they may be answered."""
        for done in self._asked.pop(number):
            done(ok)

    def refuse_all(self) -> None:
        """Refuse every read: the core that was asked is gone."""
        for readers in (self.of_turn, *self._asked.values()):
            for done in readers:
                done(False)
        self.of_turn, self._asked = [], {}
