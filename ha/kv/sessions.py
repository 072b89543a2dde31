"""The sessions of clients: a write that stands in the log twice is applied once, and answered twice alike.

A session keeps the outcomes of its writes from the lowest one that its client has no answer to. An id is the index of
the entry that opened the session, so none is given twice. Sessions are bounded in number: the one that was used the
longest ago, in the order of the log, goes first. Its client then hears that it expired, and never a wrong answer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct

from ropewalk.format.kv.commands import Outcome, Status
from ropewalk.format.kv.items import Count, Lease, Swapped

SESSIONS_MAX: Final = 10_000
WINDOW: Final = 256
"""How far the seq of a write may be ahead of the lowest unanswered one."""
_SESSION_BYTES: Final = 240
_ITEM_BYTES: Final = 100
"""The bytes that an outcome counts as, and each of its results."""


class _Session(Struct):
    lowest: int
    outcomes: dict[int, Outcome]


SessionRow = tuple[int, int, dict[int, Outcome]]
"""A session: its id, the lowest seq that its client has no answer to, outcomes by seq."""


class Sessions:
    """All sessions of a region."""

    def __init__(self, count_max: int = SESSIONS_MAX) -> None:
        self.bytes = 0
        """The bytes that sessions and kept outcomes count as, of the memory that a region may use."""
        self.count_max = count_max
        self._sessions: OrderedDict[int, _Session] = OrderedDict()
        self._unwalked: OrderedDict[int, SessionRow | None] = OrderedDict()
        """The sessions that a walk has not come to: as they were when it began, once they changed, None until then."""

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[SessionRow]:
        return ((id, each.lowest, each.outcomes) for id, each in self._sessions.items())

    def copy(self) -> Sessions:
        """Return sessions that go on from the same state by themselves."""
        other = Sessions(self.count_max)
        other.bytes = self.bytes
        other._sessions = OrderedDict(
            (id, _Session(lowest, outcomes.copy())) for id, lowest, outcomes in self
        )
        return other

    def known(self, id: int, seq: int) -> Outcome | None:
        """Return the outcome of a write as far as it is known; None of one that was not applied."""
        session = self._sessions.get(id)
        if session is None:
            return Outcome(Status.SESSION_EXPIRED)
        return session.outcomes.get(seq) or (Outcome(Status.STALE) if seq < session.lowest else None)

    def open(self, id: int) -> None:
        """Begin a session; the one that is idle for the longest goes if there are too many."""
        self._sessions[id] = _Session(1, {})
        self.bytes += _SESSION_BYTES
        if len(self._sessions) > self.count_max:
            self._keep_aside(next(iter(self._sessions)))
            _id, gone = self._sessions.popitem(last=False)
            self.bytes -= _SESSION_BYTES + sum(map(_size_of, gone.outcomes.values()))

    def begin(self, id: int, seq: int, lowest: int) -> Outcome | None:
        """Return the outcome of a write that is not to be applied (again); None of one that is to be."""
        session = self._sessions.get(id)
        if session is None:
            return Outcome(Status.SESSION_EXPIRED)
        self._sessions.move_to_end(id)
        self._keep_aside(id)
        if lowest > session.lowest:
            outcomes = session.outcomes
            answered = range(session.lowest, min(lowest, session.lowest + WINDOW))
            for each in [each for each in answered if each in outcomes]:
                self.bytes -= _size_of(outcomes.pop(each))
            session.lowest = lowest
        if (outcome := session.outcomes.get(seq)) is not None:
            return outcome
        if not session.lowest <= seq < session.lowest + WINDOW:
            return Outcome(Status.STALE)
        return None

    def keep(self, id: int, seq: int, outcome: Outcome) -> None:
        """Note the outcome of a write for the case that it is sent again."""
        self._sessions[id].outcomes[seq] = outcome
        self.bytes += _size_of(outcome)

    # -- snapshots -----------------------------------------------------------------------------------------

    def begin_walk(self) -> None:
        """Begin a walk over the sessions as they are now, in the order in which they were used last."""
        assert not self._unwalked, "one walk at a time"
        self._unwalked = OrderedDict.fromkeys(self._sessions)

    def walk(self, count: int) -> list[SessionRow]:
        """Return the next sessions of the walk, fewer where they have `count` outcomes; none at its end."""
        found: list[SessionRow] = []
        outcomes = 0
        while self._unwalked and len(found) < count and outcomes < count:
            id, kept = self._unwalked.popitem(last=False)
            row = kept or self._row(id)
            outcomes += len(row[2])
            found.append(row)
        return found

    def end_walk(self) -> None:
        """Give the walk up, if there is one."""
        self._unwalked.clear()

    def fill(self, rows: Iterable[SessionRow]) -> None:
        """Add sessions behind those that are there, in order."""
        for id, lowest, outcomes in rows:
            self._sessions[id] = _Session(lowest, outcomes)
            self.bytes += _SESSION_BYTES + sum(map(_size_of, outcomes.values()))

    def _keep_aside(self, id: int) -> None:
        if id in self._unwalked and self._unwalked[id] is None:
            self._unwalked[id] = self._row(id)

    def _row(self, id: int) -> SessionRow:
        session = self._sessions[id]
        return id, session.lowest, session.outcomes.copy()


def _size_of(outcome: Outcome) -> int:
    results = outcome.results
    size = _ITEM_BYTES * (1 + len(results))
    for result in results:
        if isinstance(result, Count):  # HOT: as nearly all are
            continue
        if isinstance(result, Swapped):
            size += len(result.value or b"")
        elif isinstance(result, Lease):
            size += len(result.owner)
    return size
