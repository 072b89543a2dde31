"""The metric families of timer messages, under RocketMQ's names.

Two of them are left to the server's side: the snapshot goes over a day of slots, and the age of what is not enqueued
yet is read from the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Protocol, TypeVar

from broker.metrics.snapshot import COUNTER, GAUGE, Family, HistogramFamily
from broker.timers.timer_counts import DELAY_BOUNDS_S
from broker.timers.timer_service import TimerService
from store.log.commitlog import CommitLog
from store.read.store_times import store_times

__all__ = ["STORAGE", "STORAGE_LABELS", "slow_timer_families", "timer_families"]

V = TypeVar("V")

STORAGE_LABELS: Final = ("storage_type", "storage_medium")
STORAGE: Final = ("local", "disk")
SNAPSHOT_BOUNDS_S: Final = (5, 60, 300, 900, 3_600, 14_400, 28_800, 86_400)
"""Upper bounds of the classes of pending timers by how far ahead they are due, as in RocketMQ."""


class OnLoop(Protocol):
    def __call__(self, look: Callable[[], V], /) -> V: ...


def timer_families(timers: TimerService) -> list[Family | HistogramFamily]:
    """Return the families that are known at once. On the loop."""
    counts = timers.counts
    return [
        _stored(
            "rocketmq_timer_enqueue_lag",
            "Timer messages that are not in the wheel yet",
            timers.offset_behind(),
        ),
        _stored(
            "rocketmq_timer_dequeue_lag",
            "Timer messages that wait for their time, or are late",
            timers.pending(),
        ),
        _stored(
            "rocketmq_timer_dequeue_latency",
            "Milliseconds between now and the time up to which timer messages are delivered",
            timers.read_behind_ms(),
        ),
        Family(
            "rocketmq_timing_messages",
            GAUGE,
            "Timer messages that wait for their time, by topic",
            ("topic",),
            [((topic,), float(count)) for topic, count in timers.metrics.counts().items()],
        ),
        Family(
            "rocketmq_timer_enqueue",
            COUNTER,
            "Timer messages that came into the wheel, or came again because they are due far ahead",
            ("topic",),
            [((topic,), float(count)) for topic, count in counts.enqueued.items()],
        ),
        Family(
            "rocketmq_timer_dequeue",
            COUNTER,
            "Timer messages that were delivered, or went back into the timer topic",
            ("topic",),
            [((topic,), float(count)) for topic, count in counts.dequeued.items()],
        ),
        HistogramFamily(
            "rocketmq_delay_message_latency",
            "Seconds that timer messages are to wait",
            DELAY_BOUNDS_S,
            ("topic",),
            [((topic,), tuple(delays.counts), delays.total) for topic, delays in counts.delays.items()],
        ),
    ]


def slow_timer_families(
    timers: TimerService, log: CommitLog, on_loop: OnLoop, now_ms: int
) -> Iterator[Family]:
    """Yield the families that take their time. On the server's side."""
    look = on_loop(lambda: store_times(log, [timers.next_place()]))
    (stored_ms,) = look()
    yield _stored(
        "rocketmq_timer_enqueue_latency",
        "Milliseconds since the oldest message was stored that is not in the wheel yet",
        max(now_ms - stored_ms, 0) if stored_ms > 0 else 0,
    )
    counts = timers.timers.count_within(now_ms, SNAPSHOT_BOUNDS_S)
    yield Family(
        "rocketmq_timer_message_snapshot",
        GAUGE,
        "Timer messages that wait, by the seconds within which they are due: up to a bound, and above the one before",
        ("timer_bound_s",),
        [((str(bound),), float(count)) for bound, count in zip(SNAPSHOT_BOUNDS_S, counts, strict=True)],
    )


def _stored(name: str, help: str, value: float) -> Family:
    return Family(name, GAUGE, help, STORAGE_LABELS, [(STORAGE, float(value))])
