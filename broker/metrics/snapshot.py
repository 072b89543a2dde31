"""The metrics server's view of the broker: two snapshots that the loop publishes and nobody changes.

    Pulse    that the loop turns, and what keeps the broker from being ready. Once a second, a few microseconds.
    Census   every number that is shown. Taken only when somebody has asked, at most once a second.

The server lives in a thread of its own and reads these two attributes; the one thing that it writes is the number of
censuses it has asked for. A broker that nobody scrapes therefore pays for a pulse a second and for nothing else, and
no message pays for anything: what a census shows is counted anyway, by run or by answer (`statistics`).

What there is one of by topic, group or queue can be much, and is not copied at once: the server's side asks the loop
for it in slices (`on_loop`) that take well under a millisecond each, and everybody else has turns in between. A mistake
in any of this costs a scrape, and never the broker.

What is in a census is in `metrics_families`; how it is served, in `metrics_server`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

import structlog

from broker.context import BrokerContext
from broker.settings.exposure import exposures
from store.io.durations import Durations

log = structlog.get_logger("broker.metrics")

__all__ = [
    "COUNTER",
    "GAUGE",
    "Census",
    "Family",
    "HistogramFamily",
    "LoopBusy",
    "Metrics",
    "Pulse",
    "Source",
]

PERIOD_MS: Final = 1000
LOOP_DELAY_BOUNDS_S: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)

LOOP_WAIT_S: Final = 5.0
"""How long the server's side waits for the loop; one that lets it wait longer is not well."""

T = TypeVar("T")

COUNTER: Final = "counter"
GAUGE: Final = "gauge"


@dataclass(frozen=True, slots=True)
class Family:
    """A metric with all its series. The name of a counter is without its `_total`."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...]
    rows: Sequence[tuple[tuple[str, ...], float]]
    """(the labels' values, the number)."""


@dataclass(frozen=True, slots=True)
class HistogramFamily:
    """A histogram with all its series."""

    name: str
    help: str
    bounds: tuple[float, ...]
    labels: tuple[str, ...]
    rows: Sequence[tuple[tuple[str, ...], tuple[int, ...], float | None]]
    """(the labels' values, counts by class as `Durations` keeps them, the sum of what was observed; None where nobody
    adds it up)."""

    @classmethod
    def of(cls, name: str, help: str, durations: Durations) -> HistogramFamily:
        """A histogram without labels."""
        return cls(name, help, durations.bounds, (), [((), tuple(durations.counts), durations.total)])


Families: TypeAlias = Iterable[Family | HistogramFamily]
Source: TypeAlias = Callable[[], Families]
Count: TypeAlias = Callable[[], tuple[list[Family | HistogramFamily], list[Source]]]


@dataclass(frozen=True, slots=True)
class Pulse:
    """The loop was here."""

    at_ms: int
    """By the monotonic clock."""
    unready: tuple[str, ...]
    """Why messages are not taken at the moment, a sentence each; empty: they are."""
    notes: tuple[str, ...] = ()
    """Remarks about the group and about what strangers can do, for people."""


@dataclass(frozen=True, slots=True)
class Census:
    """Every number that is shown, as it was at one moment of the loop."""

    number: int
    """Which one was asked for: a census with at least this number is as new as the wish."""
    base_labels: tuple[tuple[str, str], ...]
    families: tuple[Family | HistogramFamily, ...]
    later: tuple[Source, ...]
    """Collectors that read the disk or ask the loop slice by slice; the server calls them, the loop never does."""


class LoopBusy(Exception):
    """The loop did not come to the job in time."""


class Metrics:
    """Owned by the loop, but for `wanted`."""

    def __init__(
        self, broker: BrokerContext, count: Callable[[], tuple[list[Family | HistogramFamily], list[Source]]]
    ) -> None:
        """`count()` returns the families that are known at once, and the jobs that bring the rest (`families`)."""
        self._broker = broker
        self._count = count
        self.pulse = Pulse(broker.monotonic_ms(), ("the broker is starting",))
        self.census: Census | None = None
        self.wanted = 0
        """How many censuses the server has asked for; the only thing that its thread writes."""
        self.loop_delays = Durations(LOOP_DELAY_BOUNDS_S)
        """By how much the loop's ticks came later than they were due."""
        self.sources: list[Source] = []
        """Other parts of the broker that have numbers to show; called on the loop, at most once a second."""
        self._next_ms = 0

    def tick(self) -> None:
        """Publish, if a second has passed since the last time; call as often as convenient."""
        now = self._broker.monotonic_ms()
        if now < self._next_ms:
            return
        self._next_ms = now + PERIOD_MS
        status = self._broker.ha_status
        exposed = exposures(self._broker.config, has_members=status.has_members)
        notes = (*status.notes, *self._broker.routes.notes, *self._broker.store.notes, *exposed)
        self.pulse = Pulse(now, self._broker.unready(), notes)
        wanted = self.wanted
        if wanted > (self.census.number if self.census is not None else 0):
            try:
                self.census = self._take(wanted)
            except Exception:
                log.exception("the broker cannot be counted")

    def on_loop(self, look: Callable[[], T]) -> T:
        """From the server's side: have the loop call this, which must be short, and wait for what it returns.

        Raises `LoopBusy` if the loop does not come to it.
        """
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(look())
            except Exception as exc:
                done.set_exception(exc)  # the asker's trouble, and not the loop's

        self._broker.store.completions.post(run)
        try:
            return done.result(LOOP_WAIT_S)
        except TimeoutError:
            raise LoopBusy from None

    def _take(self, number: int) -> Census:
        found, later = self._count()
        for source in self.sources:
            found.extend(source())
        config = self._broker.config
        base = {"node_type": "broker", "cluster": config.broker_cluster_name, "node_id": config.broker_name}
        for pair in filter(None, config.metrics_label.split(",")):
            name, _, value = pair.partition(":")
            base[name] = value
        return Census(number, tuple(base.items()), tuple(found), tuple(later))
