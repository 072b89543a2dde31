"""The official producer of timer messages as a process that outlives its brokers, and what it may expect of them."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

from tests.compat.driver import Driver, Event, LastingScenario
from tests.support.long_run import LONG

LATE_MS = 1_000
"""A slot is delivered when its second is over."""
SLACK_MS = 1_500 if LONG else 20_000
"""Spare time for a busy machine."""


class Timer(LastingScenario):
    """The Java process: timer messages go out, and come back when they are due."""

    def __init__(self, driver: Driver, namesrv: str, home: Path) -> None:
        super().__init__(driver, namesrv, home, "timing", prefix="t")
        self.wait_until(lambda events: any(event["event"] == "ready" for event in events), "ready")
        self.due_ms: dict[str, tuple[int, int]] = {}
        """By name, the earliest and the latest time at which a message may have been due."""

    def send(self, name: str, prop: str, value: int) -> Event:
        """Send one message; return how the broker answered."""
        before = time.time_ns() // 1_000_000
        self.tell(f"send {name} {prop} {value}")
        answer = self._answer(name, "sent", "refused")
        after = time.time_ns() // 1_000_000
        if prop == "TIMER_DELIVER_MS":
            self.due_ms[name] = value, max(value, after)
        else:
            ahead = value * (1000 if prop == "TIMER_DELAY_SEC" else 1)
            self.due_ms[name] = before + ahead, after + ahead
        return answer

    def recall(self, name: str) -> Event:
        """Take one message back; return how the broker answered."""
        self.tell(f"recall {name}")
        return self._answer(name, "recalled", "kept")

    def _answer(self, name: str, *kinds: str) -> Event:
        def found(events: list[Event]) -> list[Event]:
            return [event for event in events if event["event"] in kinds and event.get("name") == name]

        self.wait_until(lambda events: bool(found(events)), f"{kinds} {name}")
        return found(list(self._events))[-1]

    def stored(self) -> dict[str, dict[tuple[int, int], int]]:
        """Return where each message was received from, and when it was stored there, ms."""
        found: dict[str, dict[tuple[int, int], int]] = {}
        for message in self.messages():
            place = message["queueId"], message["queueOffset"]
            found.setdefault(message["body"], {})[place] = message["storeTimestamp"]
        return found

    def await_received(self, *names: str) -> None:
        """Wait until all of these are there."""
        self.wait_until(lambda _events: set(names) <= self.stored().keys(), f"received {names}")

    def judge(self, *names: str, downtime_ms: int = 0) -> None:
        """Hold what was delivered against what was sent: these alone, once, and on time."""
        stored = self.stored()
        assert Counter({name: len(places) for name, places in stored.items()}) == Counter(names)
        for name in names:
            earliest, latest = self.due_ms[name]
            (at,) = stored[name].values()
            assert earliest <= at <= latest + LATE_MS + SLACK_MS + downtime_ms, (name, at - earliest)
