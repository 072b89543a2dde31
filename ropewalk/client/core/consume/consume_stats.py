"""Consume statistics of one topic: pulls and handled messages of the last minute, as rates and times. Pure.

Counted in slots of ten seconds; a rate is over the last minute. RocketMQ's tools show these numbers of a running
consumer (307) and compare nothing but their order of magnitude.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

SLOT_S = 10.0
SLOTS = 6


@dataclass(slots=True)
class _Slot:
    began: float
    pulls: int = 0
    pull_s: float = 0.0
    pulled: int = 0
    handled: int = 0
    failed: int = 0
    handle_s: float = 0.0


class ConsumeStats:
    """Counts of one topic. Times are seconds of a clock that never goes back."""

    def __init__(self) -> None:
        self._slots: deque[_Slot] = deque(maxlen=SLOTS)
        self._failed_in_all = 0

    def pulled(self, now: float, took_s: float, messages: int) -> None:
        slot = self._slot(now)
        slot.pulls += 1
        slot.pull_s += took_s
        slot.pulled += messages

    def handled(self, now: float, took_s: float, *, ok: bool) -> None:
        slot = self._slot(now)
        slot.handle_s += took_s
        if ok:
            slot.handled += 1
        else:
            slot.failed += 1
            self._failed_in_all += 1

    def document(self, now: float) -> dict[str, float | int]:
        """RocketMQ's ConsumeStatus: times in milliseconds, rates per second."""
        recent = [slot for slot in self._slots if now - slot.began <= SLOT_S * SLOTS]
        seconds = max(now - recent[0].began, 1.0) if recent else 1.0
        pulls = sum(slot.pulls for slot in recent)
        handled, failed = sum(slot.handled for slot in recent), sum(slot.failed for slot in recent)
        pull_s, handle_s = sum(slot.pull_s for slot in recent), sum(slot.handle_s for slot in recent)
        return {
            "consumeFailedMsgs": self._failed_in_all,
            "consumeFailedTPS": failed / seconds,
            "consumeOKTPS": handled / seconds,
            "consumeRT": handle_s * 1000 / (handled + failed) if handled + failed else 0.0,
            "pullRT": pull_s * 1000 / pulls if pulls else 0.0,
            "pullTPS": sum(slot.pulled for slot in recent) / seconds,
        }

    def _slot(self, now: float) -> _Slot:
        if not self._slots or now - self._slots[-1].began >= SLOT_S:
            self._slots.append(_Slot(now))
        return self._slots[-1]
