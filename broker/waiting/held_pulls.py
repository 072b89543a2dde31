"""Hold pulls that found nothing until the next message of their queue: long polling.

A held pull hangs on its queue, in the group of those with the same filter. When the queue becomes longer, the pump
reads again and answers if something matches; when a pull's time is over it is read for once more and answered whatever
comes. Exactly one of arrival, expiry and the end of the connection takes a hold off its queue, and all three happen on
the loop, so none can be lost between them.

    few holds on the queue    all are read for in the turn of the message
    many                      the new entries are tested once for each filter, and only the groups of filters that may
                              match are read for; as many in a turn as `TURN_S` allows, the rest in the next ones

Whole clusters wait here, and so do strangers. Once half of `HOLDS_MAX` waits, a connection may have
`HOLDS_PER_SESSION_MAX`. When `HOLDS_MAX` wait, or their filters take `FILTERS_SIZE_MAX`, the connection with most, of
the address with most, has its oldest ones answered before their time, and then the next one, until there is room again.
Equal filters of many holds are one object, and count once.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Generator, Hashable, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from struct import Struct
from sys import getsizeof
from typing import Final

from broker.remoting.origins import origin_of
from broker.remoting.request import Request
from broker.remoting.session import Session
from ropewalk.filter import PropertyFilter
from store.queues.consume_queue import ConsumeQueue

HOLDS_MAX = 100_000
HOLDS_PER_SESSION_MAX = 1_000
"""Holds of a connection while more than half of `HOLDS_MAX` are taken."""
FILTERS_SIZE_MAX = 64 << 20
"""Bytes that the filters of all holds may take, equal ones counted once."""
_ROOM: Final = 16
"""The part of either bound that is made free when it is reached; twice as much is taken beyond it meanwhile."""
_SCANNED: Final = 1_000
"""Holds that are looked at in one step to find who has most."""
_CODE_SIZE: Final = 32
"""Bytes that a tag code takes besides its place in a set."""
FEW: Final = 32
"""Holds of a queue that are read for at once."""
DEADLINE_MS: Final = 50
"""Deadlines within so much are one: a pull may be answered so much before its time."""
TURN_S: Final = 0.001
"""The time of a turn after which no further hold is read for, where there are many."""
ENTRIES_MAX: Final = 1_000
"""New entries that are tested at once."""
_TAG_CODE: Final = Struct(">12xq").iter_unpack

Steps = Generator[None, None, None]
Filter = PropertyFilter | frozenset[int] | None
"""The filter of a group of holds: over properties, over tag codes, or None for all messages."""
PropertiesOf = Callable[[ConsumeQueue, int, int], "list[bytes] | None"]


@dataclass(slots=True, eq=False)
class HeldPull:
    """A pull that waits; `matches` is its filter over tag codes, None for everything."""

    session: Session
    request: Request
    queue: ConsumeQueue
    offset: int
    max_count: int
    max_bytes: int
    matches: Callable[[int], bool] | None
    deadline_ms: int
    answer: Callable[[HeldPull, bool], None]
    """Read again and answer; the flag says that it is the last time. May hold the pull anew."""
    wanted: PropertyFilter | None = field(default=None)
    """Its filter over properties, where it has one."""
    group: str = field(default="")
    scanned: int = field(default=0)
    """The queue offset to read on from: `offset`, or behind entries that are known not to match."""
    codes: frozenset[int] | None = field(default=None)
    """The tag codes that `matches` lets through."""
    waiting: bool = field(default=False)


@dataclass(slots=True)
class _Holds:
    """The holds of one queue by filter, oldest first; none of the groups is empty."""

    tested: int
    """The queue offset through which each group's filter was tested, or was read for as its holds came."""
    groups: dict[Filter, dict[HeldPull, None]] = field(default_factory=dict)
    size: int = 0
    is_waking: bool = False
    """Whether a wake-up goes on over turns."""


class PullHold:
    """The held pulls of all queues, and their deadlines."""

    def __init__(
        self, clock: Callable[[], float] = lambda: 0.0, wake: Callable[[], None] = lambda: None
    ) -> None:
        """`clock` tells seconds; `wake` has the loop begin another turn soon."""
        self._clock = clock
        self._wake = wake
        self.properties_of: PropertiesOf = lambda queue, start, end: None
        """Returns the property texts of messages that are in memory, by queue offsets; None where they are not."""
        self._deadlines: list[int] = []
        """A heap of the keys of `_waiting`."""
        self._waiting: dict[int, OrderedDict[HeldPull, None]] = {}
        """The pulls that wait by deadline in units of `DEADLINE_MS`; a group may be empty, and goes with its time."""
        self._due_ms = -1
        """Deadlines up to this time are over."""
        self._work: deque[Steps] = deque()
        """Jobs of more than a turn: wake-ups of many holds, and ends of connections with many."""
        self.is_busy = False
        """Whether `run` has something to do."""
        self.size = 0
        """Pulls that wait: each stands in a group of its queue, and is marked `waiting`, and no other is either."""
        self.filters_size = 0
        """Bytes of `_filters`."""
        self._filters: dict[Filter, _Shared] = {}
        """The filters of all holds."""
        self._makes_room = False

    def admits(self, held: HeldPull) -> bool:
        """Tell whether another pull may wait; has room made where there is none."""
        if self.size < HOLDS_MAX // 2 and self.filters_size < FILTERS_SIZE_MAX:  # HOT: as nearly always
            return True
        if self.size >= HOLDS_MAX // 2 and len(held.session.held) >= HOLDS_PER_SESSION_MAX:
            return False
        if self.size < HOLDS_MAX and self.filters_size < FILTERS_SIZE_MAX:
            return True
        if not self._makes_room:
            self._makes_room = True
            self._begin(self._make_room())
        return self.size < _beyond(HOLDS_MAX) and (
            self.filters_size < _beyond(FILTERS_SIZE_MAX) or self._has_filter(held)
        )

    def _has_filter(self, held: HeldPull) -> bool:
        key = _filter_of(held)
        return key is None or key in self._filters

    def _make_room(self) -> Steps:
        """Answer pulls before their time: the oldest ones of who has most, again and again, until there is room."""
        owners: dict[str, _Owner] = defaultdict(_Owner)
        by_size = self.filters_size >= FILTERS_SIZE_MAX
        for number, held in enumerate(list(chain.from_iterable(self._waiting.values()))):
            if number % _SCANNED == 0:
                yield
            if held.waiting:
                owners[origin_of(held.session.peer_host)].add(held, by_size=by_size)
        count_max, size_max = HOLDS_MAX - HOLDS_MAX // _ROOM, FILTERS_SIZE_MAX - FILTERS_SIZE_MAX // _ROOM
        while owners and (self.filters_size > size_max if by_size else self.size > count_max):
            name = max(owners, key=lambda one: owners[one].size)
            for held in owners[name].pop_oldest_of_greediest(by_size=by_size):
                if held.waiting:
                    self._unpark(held)
                    held.answer(held, True)
                    yield
            if not owners[name].holds:
                del owners[name]
            yield
        self._makes_room = False

    def park(self, held: HeldPull) -> None:
        """Let a pull wait. A message that became readable since its read wakes it at the end of this turn."""
        assert not held.waiting, "a pull is held once"
        held.waiting = True
        self.size += 1
        held.request.forget()
        holds = held.queue.held
        if holds is None:
            holds = held.queue.held = _Holds(held.queue.readable)
        key = _filter_of(held)
        if key is not None:
            key = self._share(held, key)
        group = holds.groups.get(key)
        if group is None:
            holds.groups[key] = {held: None}
        else:
            group[held] = None
        holds.size += 1
        held.session.held[held] = None
        deadline = held.deadline_ms // DEADLINE_MS
        waiting = self._waiting.get(deadline)
        if waiting is None:
            waiting = self._waiting[deadline] = OrderedDict()
            heapq.heappush(self._deadlines, deadline)
        waiting[held] = None

    def _share(self, held: HeldPull, key: Filter) -> Filter:
        """Count the filter of a hold, and return the one that equal ones are from now on."""
        shared = self._filters.get(key)
        if shared is None:
            shared = self._filters[key] = _Shared(key, _size_of(key))
            self.filters_size += shared.size
        elif isinstance(shared.key, frozenset):
            held.codes, held.matches = shared.key, shared.key.__contains__
        shared.holds += 1
        return shared.key

    def _unshare(self, key: Filter, count: int) -> None:
        shared = self._filters[key]
        shared.holds -= count
        if not shared.holds:
            del self._filters[key]
            self.filters_size -= shared.size
            assert self.filters_size >= 0, self.filters_size

    # -- arrival ---------------------------------------------------------------------------------------

    def arrived(self, queue: ConsumeQueue) -> None:
        """Read again for the pulls of a queue of which messages became readable; `run` goes on where there are many."""
        holds: _Holds = queue.held
        if holds.size > FEW or holds.is_waking:
            if not holds.is_waking:
                holds.is_waking = True
                holds.tested = min(holds.tested, queue.readable - 1)  # the queue may have been cut
                self._begin(self._wake_up(queue, holds))
            return
        queue.held = None
        for key, group in holds.groups.items():
            if key is not None:
                self._unshare(key, len(group))
            for held in group:
                assert held.waiting, "the queue held a pull that was answered"
                held.waiting = False
                self.size -= 1
                del self._waiting[held.deadline_ms // DEADLINE_MS][held]
                held.answer(held, False)
        assert self.size >= 0, self.size

    def _wake_up(self, queue: ConsumeQueue, holds: _Holds) -> Steps:
        """Test the new entries of a queue by each filter, and read for the pulls that they may match."""
        while holds.tested < queue.readable and queue.held is holds:
            start, end = holds.tested, min(queue.readable, holds.tested + ENTRIES_MAX)
            entries = _Entries(queue, start, end, self.properties_of)
            for key in list(holds.groups):
                group = holds.groups.get(key)
                if group is not None and entries.may_match(key):
                    # Pulls that are held anew meanwhile have read these entries, and stand behind the others.
                    for held in list(group):
                        if held.waiting:
                            self._unpark(held)
                            held.scanned = max(held.scanned, start)
                            held.answer(held, False)
                            yield
                yield
            holds.tested = end
        holds.is_waking = False
        if not holds.size and queue.held is holds:
            queue.held = None

    def _begin(self, steps: Steps) -> None:
        self._work.append(steps)
        self.is_busy = True
        self._wake()

    @property
    def _has_due(self) -> bool:
        return bool(self._deadlines) and self._deadlines[0] * DEADLINE_MS <= self._due_ms

    def run(self) -> None:
        """Continue long wake-ups, expiries and releases for a part of this turn, before it ends."""
        clock, work = self._clock, self._work
        until = clock() + TURN_S
        while self._has_due and clock() < until:
            self._expire_first()
        while work and clock() < until:
            steps = work[0]
            try:
                while True:
                    next(steps)
                    if clock() >= until:
                        break
            except StopIteration:
                work.popleft()
            else:
                work.rotate(-1)
        self.is_busy = bool(work) or self._has_due
        if self.is_busy:
            self._wake()

    # -- other ends ------------------------------------------------------------------------------------

    def dismiss(self, queue: ConsumeQueue, group: str | None = None) -> None:
        """Answer the pulls of a queue (of one group, if named) as if their time were over."""
        wanted = [held for held in self.of_queue(queue) if group is None or held.group == group]
        self._dismiss(wanted[:FEW])
        if len(wanted) > FEW:
            self._begin(self._dismiss_in_steps(wanted[FEW:]))

    def _dismiss(self, dismissed: Iterable[HeldPull]) -> None:
        for held in dismissed:
            if held.waiting:
                self._unpark(held)
                held.answer(held, True)

    def _dismiss_in_steps(self, dismissed: list[HeldPull]) -> Steps:
        for held in dismissed:
            self._dismiss((held,))
            yield

    @staticmethod
    def of_queue(queue: ConsumeQueue) -> Iterable[HeldPull]:
        """Return the pulls that wait on a queue."""
        holds: _Holds | None = queue.held
        return (held for group in holds.groups.values() for held in group) if holds is not None else ()

    def expire(self, now_ms: int) -> None:
        """Answer every pull whose time is over; where there are many, `run` goes on in the next turns."""
        self._due_ms = now_ms
        until = self._clock() + TURN_S
        answered = 0
        while self._has_due:
            self._expire_first()
            answered += 1
            if answered >= FEW and self._clock() >= until:
                self.is_busy = True
                self._wake()
                break

    def _expire_first(self) -> None:
        waiting = self._waiting[self._deadlines[0]]
        if waiting:
            held = next(iter(waiting))
            self._unpark(held)
            held.answer(held, True)
        else:
            del self._waiting[heapq.heappop(self._deadlines)]

    def release(self, session: Session) -> None:
        """Forget the pulls of a session that is gone."""
        gone, session.held = session.held, {}
        if len(gone) <= FEW:
            self._forget(gone)
        else:
            self._begin(self._forget_in_steps(gone))

    def _forget(self, gone: Iterable[Hashable]) -> None:
        for held in gone:
            if isinstance(held, HeldPull) and held.waiting:
                self._unpark(held)

    def _forget_in_steps(self, gone: dict[Hashable, None]) -> Steps:
        while gone:
            self._forget([gone.popitem()[0] for _ in range(min(FEW, len(gone)))])
            yield

    def _unpark(self, held: HeldPull) -> None:
        holds: _Holds | None = held.queue.held
        key = _filter_of(held)
        assert held.waiting and holds is not None and held in holds.groups[key], (
            "a pull that waits stands in its queue"
        )
        held.waiting = False
        self.size -= 1
        del self._waiting[held.deadline_ms // DEADLINE_MS][held]
        holds.size -= 1
        group = holds.groups[key]
        del group[held]
        if key is not None:
            self._unshare(key, 1)
        if not group:
            del holds.groups[key]
        if not holds.size and not holds.is_waking:
            held.queue.held = None


@dataclass(slots=True)
class _Shared:
    """A filter that holds have, and how many."""

    key: Filter
    size: int
    holds: int = 0


class _Owner:
    """The holds of one address, weighed by number or by the bytes of their filters, and its connections by weight."""

    def __init__(self) -> None:
        self.size = 0
        """Of all its holds; equal filters count once."""
        self.holds: dict[HeldPull, None] = {}
        self._weights: Counter[Session] = Counter()
        self._filters: Counter[Filter] = Counter()
        self._greediest: list[tuple[int, int, Session]] = []
        """A heap of its connections, the one with most first; made when it is asked for."""

    def add(self, held: HeldPull, *, by_size: bool) -> None:
        """Add a hold, before the first of them is popped."""
        weight, key = _weight_of(held, by_size), _filter_of(held)
        self.holds[held] = None
        self._weights[held.session] += weight
        if not by_size or not self._filters[key]:
            self.size += weight
        self._filters[key] += 1

    def pop_oldest_of_greediest(self, *, by_size: bool) -> list[HeldPull]:
        """Remove and return some holds of the connection with most; there are some."""
        if not self._greediest:
            self._greediest = [(-weight, n, one) for n, (one, weight) in enumerate(self._weights.items())]
            heapq.heapify(self._greediest)
        _weight, number, session = self._greediest[0]
        popped = list(islice((one for one in session.held if one in self.holds), FEW))
        for held in popped:
            assert isinstance(held, HeldPull)
            self._remove(held, by_size=by_size)
        if popped:
            heapq.heapreplace(self._greediest, (-self._weights[session], number, session))
        else:
            heapq.heappop(self._greediest)
            if not self._greediest:
                self.holds.clear()  # they were answered meanwhile
        return popped

    def _remove(self, held: HeldPull, *, by_size: bool) -> None:
        weight, key = _weight_of(held, by_size), _filter_of(held)
        del self.holds[held]
        self._weights[held.session] -= weight
        self._filters[key] -= 1
        if not by_size or not self._filters[key]:
            self.size -= weight


def _weight_of(held: HeldPull, by_size: bool) -> int:
    return _size_of(_filter_of(held)) if by_size else 1


def _beyond(bound: int) -> int:
    """Return how far a bound may be passed while room is made."""
    return bound + 2 * bound // _ROOM


def _size_of(key: Filter) -> int:
    """Return the bytes that a filter takes, about."""
    if key is None:
        return 0
    return getsizeof(key) + _CODE_SIZE * len(key) if isinstance(key, frozenset) else key.size


def size_of(held: HeldPull) -> int:
    """Return the bytes that the filter of a pull takes, about."""
    return _size_of(_filter_of(held))


def _filter_of(held: HeldPull) -> Filter:
    """Return the filter by which a hold is grouped; None for everything."""
    return held.wanted if held.wanted is not None else held.codes


class _Entries:
    """New entries of a queue, and what filters say about them."""

    def __init__(self, queue: ConsumeQueue, start: int, end: int, properties_of: PropertiesOf) -> None:
        entries = queue.entries_nowait(start, end - start)
        self._codes: frozenset[int] | None = None
        if entries is not None and len(entries) == 20 * (end - start):
            self._codes = frozenset(code for (code,) in _TAG_CODE(entries))
        self._read: Callable[[], list[bytes] | None] = partial(properties_of, queue, start, end)
        self._properties: list[bytes] | None = None
        self._is_read = False

    def may_match(self, key: Filter) -> bool:
        """Tell whether a filter may let one of the entries through; True where that would take a read of the disk."""
        if key is None:
            return True
        if isinstance(key, frozenset):
            return self._codes is None or not key.isdisjoint(self._codes)
        if not self._is_read:
            self._is_read, self._properties = True, self._read()
        return self._properties is None or any(map(key.matches, self._properties))
