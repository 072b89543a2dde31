"""Record the events of a drill, with their times: events in words, and series of samples.

Times are seconds since the drill's load began, from a clock that nobody sets. A write gap is the time between two
acknowledgements that follow each other; it is what a producer notices of a fault, whatever the cluster was doing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Literal

import msgspec

Kind = Literal["phase", "fault", "repair", "seen", "trouble"]
"""A part of the drill begins; a fault is made; it is undone or answered; somebody noticed something; it went wrong."""


class Event(msgspec.Struct, frozen=True):
    """An event and its time."""

    at: float
    kind: Kind
    text: str


class Gap(msgspec.Struct, frozen=True):
    """A time in which nothing was acknowledged."""

    begin: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.begin


class Sample(msgspec.Struct, frozen=True):
    """The end of a member's log at a time; None: it did not say."""

    at: float
    node: str
    end: int | None


class Timeline:
    """The events and samples of a running drill."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` gives seconds; the first call of `begin` makes its reading the time 0."""
        self._clock = clock
        self._zero = clock()
        self.events: list[Event] = []
        self.samples: list[Sample] = []
        self.on_event: Callable[[Event], None] = lambda event: None

    def begin(self) -> None:
        """Begin the load now; earlier samples are forgotten."""
        self._zero = self._clock()
        self.events.clear()
        self.samples.clear()

    def now(self) -> float:
        return self._clock() - self._zero

    def add(self, kind: Kind, text: str) -> Event:
        """Record an event that has happened just now."""
        event = Event(self.now(), kind, text)
        self.events.append(event)
        self.on_event(event)
        return event

    def sample(self, node: str, end: int | None) -> None:
        self.samples.append(Sample(self.now(), node, end))


def longest_gap(times: Sequence[float], begin: float, end: float) -> Gap:
    """The longest time between `begin` and `end` without one of `times`, which are in order.

    The edges count as well: a drill in which nothing is acknowledged any more has a gap up to its end.
    """
    return max(gaps(times, begin, end, 0.0), key=lambda gap: gap.seconds, default=Gap(begin, begin))


def repair_wait_s(gap: Gap, events: Iterable[Event]) -> float:
    """Return how much of a gap passed between a fault and the drill's own repair of it, because the script waits there.

    A gap that ended without a repair waited for none, whatever is repaired later.
    """
    begin = gap.begin
    for event in events:
        if event.at > gap.end:
            break
        if event.kind == "fault":
            begin = max(begin, event.at)
        elif event.kind == "repair" and event.at > gap.begin:
            return event.at - begin
    return 0.0


def gaps(times: Sequence[float], begin: float, end: float, at_least: float) -> list[Gap]:
    """Every such time that is as long as `at_least`, in order."""
    inside = [time for time in times if begin <= time <= end]
    edges = [begin, *inside, end]
    return [Gap(left, right) for left, right in pairwise(edges) if right - left >= at_least and right > left]


def per_bucket(times: Iterable[float], width: float, end: float) -> list[int]:
    """Count the `times` in each piece of `width` seconds from 0 to `end`; later ones count in the last."""
    counts = [0] * max(1, -(-int(end * 1000) // int(width * 1000)))
    for time in times:
        counts[min(max(0, int(time / width)), len(counts) - 1)] += 1
    return counts


def lag_bytes(samples: Sequence[Sample], window: float = 1.0) -> dict[str, list[tuple[float, int]]]:
    """Return for each node how far it was behind the furthest one, at each of its samples.

    Others are known by their newest sample, if it is no older than `window` seconds.
    """
    newest: dict[str, tuple[float, int]] = {}
    lags: dict[str, list[tuple[float, int]]] = {}
    for sample in samples:
        if sample.end is None:
            newest.pop(sample.node, None)
            continue
        newest[sample.node] = sample.at, sample.end
        head = max(end for at, end in newest.values() if at >= sample.at - window)
        lags.setdefault(sample.node, []).append((sample.at, head - sample.end))
    return lags
