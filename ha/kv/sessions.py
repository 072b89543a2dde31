"""The sessions of clients: a write that stands in the log twice is applied once, and answered twice alike.

A session keeps the outcomes of its writes from the lowest one that its client has no answer to. An id is the index of
the entry that opened the session, so none is given twice.

Sessions are bounded in number, and strangers can open as many as they like. When there are too many,

    more than a quarter of all never wrote     goes the oldest of these of the origin that has most of these
    else                                       goes, of the origin with most sessions that wrote, the one that was used
                                               the longest ago

Its client then hears that it expired, and never a wrong answer. The log tells the origin of each session and what it
wrote, and a snapshot has both: each member drops the same ones.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct
from sortedcontainers import SortedSet

from ropewalk.format.kv.commands import Outcome, Status
from ropewalk.format.kv.items import Count, Lease, Swapped

SESSIONS_MAX: Final = 10_000
WINDOW: Final = 256
"""How far the seq of a write may be ahead of the lowest unanswered one."""
_IDLE_SHARE: Final = 4
"""The part of all sessions that may never have written; beyond it those go first."""
_SESSION_BYTES: Final = 320
_ITEM_BYTES: Final = 100
"""The bytes that an outcome counts as, and each of its results."""


class _Session(Struct):
    lowest: int
    outcomes: dict[int, Outcome]
    origin: str

    @property
    def has_written(self) -> bool:
        """Tell whether a write of it was applied; once true, always."""
        return self.lowest > 1 or bool(self.outcomes)


SessionRow = tuple[int, int, dict[int, Outcome], str]
"""A session: its id, the lowest seq that its client has no answer to, outcomes by seq, its client's origin."""


class _Origins:
    """Ids of sessions by origin, of each the one that was used the longest ago first."""

    def __init__(self) -> None:
        self.count = 0
        self._ids: dict[str, OrderedDict[int, None]] = {}
        self._order: SortedSet[tuple[int, str]] = SortedSet()
        """Each origin with the number of its ids: two members agree which one is last, whatever they began with."""

    def add(self, origin: str, id: int) -> None:
        """Add an id as the one that was used last."""
        ids = self._ids.get(origin)
        if ids is None:
            ids = self._ids[origin] = OrderedDict()
        elif id in ids:  # HOT: as nearly all are
            ids.move_to_end(id)
            return
        else:
            self._order.discard((len(ids), origin))
        ids[id] = None
        self.count += 1
        self._order.add((len(ids), origin))

    def remove(self, origin: str, id: int) -> None:
        """Remove an id, which is there."""
        ids = self._ids[origin]
        self._order.discard((len(ids), origin))
        del ids[id]
        self.count -= 1
        if ids:
            self._order.add((len(ids), origin))
        else:
            del self._ids[origin]

    def next_to_go(self) -> int:
        """Return the id that was used the longest ago of the origin with most; there is one."""
        return next(iter(self._ids[self._order[-1][1]]))


class Sessions:
    """All sessions of a region."""

    def __init__(self, count_max: int = SESSIONS_MAX) -> None:
        self.bytes = 0
        """The bytes that sessions and kept outcomes count as, of the memory that a region may use."""
        self.count_max = count_max
        self._sessions: OrderedDict[int, _Session] = OrderedDict()
        """Sessions, the one that was used the longest ago first."""
        self._idle = _Origins()
        """Sessions that never wrote."""
        self._busy = _Origins()
        """Sessions that did."""
        self._unwalked: OrderedDict[int, SessionRow | None] = OrderedDict()
        """The sessions that a walk has not come to: as they were when it began, once they changed, None until then."""

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[SessionRow]:
        return ((id, each.lowest, each.outcomes, each.origin) for id, each in self._sessions.items())

    def copy(self) -> Sessions:
        """Return sessions that go on from the same state by themselves."""
        other = Sessions(self.count_max)
        other.fill((id, lowest, outcomes.copy(), origin) for id, lowest, outcomes, origin in self)
        return other

    def known(self, id: int, seq: int) -> Outcome | None:
        """Return the outcome of a write as far as it is known; None of one that was not applied."""
        session = self._sessions.get(id)
        if session is None:
            return Outcome(Status.SESSION_EXPIRED)
        return session.outcomes.get(seq) or (Outcome(Status.STALE) if seq < session.lowest else None)

    def open(self, id: int, origin: str = "") -> None:
        """Begin a session; another one goes if there are as many as may be."""
        if len(self._sessions) >= self.count_max:
            many_idle = _IDLE_SHARE * self._idle.count > self.count_max or not self._busy.count
            self._drop((self._idle if many_idle else self._busy).next_to_go())
        self.fill([(id, 1, {}, origin)])

    def _drop(self, id: int) -> None:
        self._keep_aside(id)
        gone = self._sessions.pop(id)
        self._kin(gone).remove(gone.origin, id)
        self.bytes -= _SESSION_BYTES + len(gone.origin) + sum(map(_size_of, gone.outcomes.values()))

    def _kin(self, session: _Session) -> _Origins:
        return self._busy if session.has_written else self._idle

    def begin(self, id: int, seq: int, lowest: int) -> Outcome | None:
        """Return the outcome of a write that is not to be applied (again); None of one that is to be."""
        session = self._sessions.get(id)
        if session is None:
            return Outcome(Status.SESSION_EXPIRED)
        self._sessions.move_to_end(id)
        self._kin(session).add(session.origin, id)
        self._keep_aside(id)
        if lowest > session.lowest:
            self._note_write(id, session)
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
        session = self._sessions[id]
        self._note_write(id, session)
        session.outcomes[seq] = outcome
        self.bytes += _size_of(outcome)

    def _note_write(self, id: int, session: _Session) -> None:
        """Count a session among those that write, before it is changed into one."""
        if not session.has_written:
            self._idle.remove(session.origin, id)
            self._busy.add(session.origin, id)

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
        for id, lowest, outcomes, origin in rows:
            session = self._sessions[id] = _Session(lowest, outcomes, origin)
            self._kin(session).add(origin, id)
            self.bytes += _SESSION_BYTES + len(origin) + sum(map(_size_of, outcomes.values()))

    def _keep_aside(self, id: int) -> None:
        if id in self._unwalked and self._unwalked[id] is None:
            self._unwalked[id] = self._row(id)

    def _row(self, id: int) -> SessionRow:
        session = self._sessions[id]
        return id, session.lowest, session.outcomes.copy(), session.origin


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
