"""Define the rows of the comparison, their targets, and how several rounds become one figure.

Everything here is pure: `compare.py` measures, this page judges. The figure of a server in a row is the
median of its valid rounds. A round in which a reply was refused or missing is void, and a row of
which every round is void has no figure, only a reason.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from tools.bench.spec import Outcome

FLUSH_BOUND_SHARE = 0.6
IDLE_MEMORY_MB = 80.0
START_S = 1.0
RATE_AT_4X32 = 100_000.0
RATE_UNDER_FLUSH = 110_000.0
RATE_OF_A_QUORUM = 100_000.0
ORIGINAL = "original"
ROPEWALK = "ropewalk"
LEDGER_ROLE = "DLEDGER"
"""The role of a group of three that elects its leader."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One load of sends: connections x in flight, or connections at a fixed rate (messages a second)."""

    name: str
    connections: int
    in_flight: int
    body_size: int
    rate: float | None = None
    batch: int = 1
    in_bytes: bool = False
    """Whether its rate is told in bytes, as is usual for large bodies."""


@dataclass(frozen=True, slots=True)
class PullShape:
    """One load of pulls: connections, each with a queue of its own, over and over a backlog.

    The backlog is laid round-robin over the queues, one message a request, so that its neighbours in the log belong
    to different queues.
    """

    name: str
    connections: int
    max_messages: int
    body_size: int
    backlog: int
    """How many messages that is."""
    queues: int = 4
    is_far: bool = False
    """Whether `FAR_BYTES` of other messages are stored behind it, which is more than any warm window."""
    rate: None = None
    in_bytes: bool = False


@dataclass(frozen=True, slots=True)
class DrainShape:
    """One load of sends, alone and then beside pulls that drain a backlog."""

    name: str
    sends: Shape
    pulls: PullShape
    rate: None = None
    in_bytes: bool = False

    @property
    def alone(self) -> str:
        """The name of the outcome of the sends alone; that beside the drain has the name of the shape."""
        return f"{self.name}: alone"

    @property
    def drain(self) -> str:
        """The name of the outcome of the pulls beside the sends."""
        return f"{self.name}: drained"


Load = Shape | PullShape | DrainShape
FAR_BYTES = 512 << 20

SHAPES = (
    Shape("1 x 1, 128 B", 1, 1, 128),
    Shape("1 x 64, 128 B", 1, 64, 128),
    Shape("32 x 1, 1 KiB", 32, 1, 1024),
    Shape("4 x 32, 1 KiB", 4, 32, 1024),
    Shape("4 x 256, 128 B", 4, 256, 128),
    Shape("fixed 10k/s, 1 KiB", 4, 1, 1024, 10_000.0),
)
STORE_SHAPES: tuple[Load, ...] = (
    Shape("4 x 256, 1 KiB", 4, 256, 1024),
    Shape("4 x 8, batches of 32 x 128 B", 4, 8, 128, batch=32),
    PullShape("4 pulls of 32, 1 KiB", 4, 32, 1024, 100_000),
    PullShape("4 pulls of 32, 128 B", 4, 32, 128, 200_000),
    # The last one: what it leaves to be written back takes the disk from whoever comes after it.
    Shape("4 x 8, 64 KiB", 4, 8, 65_536, in_bytes=True),
)
_BACKLOG_COUNTS = {128: 300_000, 1024: 150_000}
"""Messages by body size: what the warm window holds of them."""


def _backlog_name(queues: int, body_size: int, *, is_far: bool) -> str:
    size = f"{body_size} B" if body_size < 1024 else f"{body_size >> 10} KiB"
    return f"backlog in {queues} queues, {size}, {'far behind' if is_far else 'in the window'}"


def _backlog(queues: int, body_size: int, *, is_far: bool) -> PullShape:
    name = _backlog_name(queues, body_size, is_far=is_far)
    return PullShape(name, 4, 32, body_size, _BACKLOG_COUNTS[body_size], queues=queues, is_far=is_far)


BACKLOG_SHAPES: tuple[Load, ...] = (
    *(
        _backlog(queues, body_size, is_far=is_far)
        for is_far in (True, False)
        for body_size in (128, 1024)
        for queues in (4, 8)
    ),
    DrainShape(
        "sends beside a drain, 1 KiB",
        Shape("4 x 32, 1 KiB", 4, 32, 1024),
        _backlog(4, 1024, is_far=True),
    ),
)
SETS: Mapping[str, Sequence[Load]] = {"spine": SHAPES, "store": STORE_SHAPES, "backlog": BACKLOG_SHAPES}
"""What can be asked for by one word."""


@dataclass(frozen=True, slots=True)
class Mode:
    """What both servers promise: the role of the master, and when it flushes."""

    role: str = "ASYNC_MASTER"
    flush: str = "ASYNC_FLUSH"

    @property
    def has_slave(self) -> bool:
        return self.role == "SYNC_MASTER"

    @property
    def waits_for_disk(self) -> bool:
        return self.flush == "SYNC_FLUSH"

    @property
    def is_ledger(self) -> bool:
        return self.role == LEDGER_ROLE

    @property
    def safe_class(self) -> str:
        """A0 to A3, or D for a DLedger group, whose safety does not depend on the flush."""
        if self.is_ledger:
            return "D"
        return f"A{self.has_slave + 2 * self.waits_for_disk}"


@dataclass(slots=True)
class Round:
    """What one start of one server showed. Memory in MB (10^6 bytes), probes in milliseconds.

    `failure` says why the round ended early; what was measured until then stays.
    """

    first_ack_s: float | None = None
    idle_mb: float | None = None
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    flush_before_ms: float = 0.0
    flush_after_ms: float = 0.0
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """A bound on ropewalk/original, on Ropewalk's own figure, or both. None where nothing is asked."""

    ratio: float | None = None
    figure: float | None = None
    more_is_better: bool = True

    def is_met(self, ratio: float | None, figure: float | None) -> bool | None:
        """None when nothing is asked; False as well when what is asked for could not be measured."""
        bounds = [(self.ratio, ratio), (self.figure, figure)]
        asked = [(bound, value) for bound, value in bounds if bound is not None]
        if not asked:
            return None
        if self.more_is_better:
            return all(value is not None and value >= bound for bound, value in asked)
        return all(value is not None and value <= bound for bound, value in asked)

    def __str__(self) -> str:
        sign = ">=" if self.more_is_better else "<="
        parts = []
        if self.ratio is not None:
            parts.append(f"{sign} {self.ratio:g}x")
        if self.figure is not None:
            parts.append(f"{sign} {self.figure:,.10g}")
        return ", ".join(parts) or "-"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    name: str
    unit: str
    original: float | None
    ropewalk: float | None
    target: Target
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """ropewalk / original."""
        return self.ropewalk / self.original if self.original and self.ropewalk is not None else None

    @property
    def met(self) -> bool | None:
        return self.target.is_met(self.ratio, self.ropewalk)


# What each class has to reach.
TARGETS: Mapping[str, Mapping[str, Target]] = {
    "A0": {
        "1 x 1, 128 B": Target(2.0),
        "1 x 64, 128 B": Target(3.0),
        "32 x 1, 1 KiB": Target(2.0),
        "4 x 32, 1 KiB": Target(3.0, RATE_AT_4X32),
        "4 x 256, 128 B": Target(3.0),
        "fixed 10k/s, 1 KiB: p99": Target(0.25, more_is_better=False),
        "start to first acknowledged": Target(figure=START_S, more_is_better=False),
        "idle memory": Target(figure=IDLE_MEMORY_MB, more_is_better=False),
        "4 pulls of 32, 1 KiB": Target(1.3),
        "4 pulls of 32, 128 B": Target(1.3),
        "4 x 8, 64 KiB": Target(1.3),
        **{shape.name: Target(1.5) for shape in BACKLOG_SHAPES if isinstance(shape, PullShape)},
        "sends beside a drain, 1 KiB: kept": Target(figure=80.0),
    },
    "A1": {
        "1 x 1, 128 B": Target(2.0),
        "1 x 64, 128 B": Target(3.0),
        "32 x 1, 1 KiB": Target(2.0),
        "4 x 256, 128 B": Target(3.0),
    },
    "A2": {
        "1 x 1, 128 B": Target(2.0),
        "32 x 1, 1 KiB": Target(2.0),
        "4 x 256, 128 B": Target(3.0, RATE_UNDER_FLUSH),
        "4 x 256, 1 KiB": Target(3.0),
        "4 x 8, batches of 32 x 128 B": Target(1.0),
        "4 pulls of 32, 1 KiB": Target(1.3),
        "4 pulls of 32, 128 B": Target(1.3),
    },
    "A3": {"4 x 256, 128 B": Target(2.0)},
    "D": {
        "1 x 1, 128 B": Target(2.0),
        "1 x 64, 128 B": Target(4.0),
        "4 x 256, 128 B": Target(8.0, RATE_OF_A_QUORUM),
    },
}


def build_rows(rounds: Mapping[str, Sequence[Round]], shapes: Sequence[Load], mode: Mode) -> list[Row]:
    """The table of a run. `rounds` is by server name; a server that was left out has no figures."""
    # One server alone is an orientation; there is nothing to meet before both were measured.
    judged = {ORIGINAL, ROPEWALK} <= set(rounds)
    targets = TARGETS.get(mode.safe_class, {}) if judged else {}
    rows = []

    def add(name: str, unit: str, value: Callable[[Round], float | None], notes: Sequence[str] = ()) -> None:
        figures = {server: _median(map(value, done)) for server, done in rounds.items()}
        note = "; ".join(filter(None, notes))
        target = targets.get(name, Target())
        rows.append(Row(name, unit, figures.get(ORIGINAL), figures.get(ROPEWALK), target, note))

    for shape in shapes:
        if isinstance(shape, DrainShape):
            notes = [_void_note(server, done, shape) for server, done in rounds.items()]
            add(f"{shape.name}: kept", "%", partial(_share_kept, shape), notes)
            add(f"{shape.name}: drained", "msg/s", partial(_rate_of, shape.drain))
            continue
        notes = [_void_note(server, done, shape) for server, done in rounds.items()]
        if mode.waits_for_disk and isinstance(shape, Shape):
            notes += [_flush_note(server, done, shape) for server, done in rounds.items()]
        if shape.rate is None:
            add(shape.name, "MB/s" if shape.in_bytes else "msg/s", partial(_rate, shape), notes)
            continue
        for percentile in ("p50", "p99"):
            add(f"{shape.name}: {percentile}", "ms", partial(_latency_ms, shape, percentile), notes)
    add("start to first acknowledged", "s", lambda one: one.first_ack_s)
    add("idle memory", "MB", lambda one: one.idle_mb)
    return rows


def _rate_of(name: str, one: Round) -> float | None:
    outcome = one.outcomes.get(name)
    return outcome.rate if outcome is not None and outcome.is_valid else None


def _share_kept(shape: DrainShape, one: Round) -> float | None:
    """How much of their rate the sends keep beside the drain, in percent."""
    alone, beside = _rate_of(shape.alone, one), _rate_of(shape.name, one)
    return 100 * beside / alone if alone and beside is not None else None


def _rate(shape: Load, one: Round) -> float | None:
    outcome = one.outcomes.get(shape.name)
    if outcome is None or not outcome.is_valid:
        return None
    return outcome.megabytes_per_s if shape.in_bytes else outcome.rate


def _latency_ms(shape: Load, name: str, one: Round) -> float | None:
    outcome = one.outcomes.get(shape.name)
    if outcome is None or not outcome.is_valid or outcome.latency is None:
        return None
    return float(getattr(outcome.latency, name)) / 1000


def _void_note(server: str, done: Sequence[Round], shape: Load) -> str:
    reasons = [
        reason
        for one in done
        if (outcome := one.outcomes.get(shape.name)) is not None
        if (reason := outcome.why_void()) is not None
    ]
    return f"{server}: {len(reasons)} of {len(done)} void: {reasons[0]}" if reasons else ""


def _flush_note(server: str, done: Sequence[Round], shape: Load) -> str:
    """Where most of the median latency is the disk's, a faster broker would change nothing."""
    p50 = _median(_latency_ms(shape, "p50", one) for one in done)
    probe = _median((one.flush_before_ms + one.flush_after_ms) / 2 for one in done)
    if p50 is None or probe is None or probe <= FLUSH_BOUND_SHARE * p50:
        return ""
    return f"{server} flush-bound"


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(statistics.median(known)) if known else None
