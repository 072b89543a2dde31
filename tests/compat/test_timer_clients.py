"""The official clients' timer messages: on time and never early, recalled, and kept through kill -9."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from tests.compat.driver import VERSIONS, Driver, Event, LastingScenario
from tests.compat.transactions import ROPEWALK, Brokers, settle

pytestmark = [pytest.mark.compat, pytest.mark.slow]

LATE_MS = 1_000
"""A slot is delivered when its second is over."""
SLACK_MS = 1_500
"""Spare time for a busy machine."""
SETTINGS = {"timerWheelEnable": "true", "recallMessageEnable": "true"}
THREE_DAYS_S = 259_200


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


@pytest.fixture(params=VERSIONS)
def client(request: pytest.FixtureRequest, java: str) -> Driver:
    """Each official client."""
    return Driver(request.param, "JSON")


def test_times_are_kept_and_recalls_are_heard(client: Driver, tmp_path: Path) -> None:
    with Brokers(tmp_path, ROPEWALK, **SETTINGS) as brokers:
        timer = Timer(client, brokers.namesrv, tmp_path / "java")
        try:
            now_ms = time.time_ns() // 1_000_000
            answers = [
                timer.send("seconds", "TIMER_DELAY_SEC", 1),
                timer.send("milliseconds", "TIMER_DELAY_MS", 2_500),
                timer.send("moment", "TIMER_DELIVER_MS", now_ms + 4_000),
                timer.send("passed", "TIMER_DELIVER_MS", now_ms - 60_000),
                timer.send("recalled", "TIMER_DELAY_SEC", 3),
                timer.send("three-days", "TIMER_DELAY_SEC", THREE_DAYS_S),
            ]
            assert {answer["result"]["status"] for answer in answers} == {"SEND_OK"}
            too_far = timer.send("too-far", "TIMER_DELAY_SEC", THREE_DAYS_S + 60)
            assert "CODE: 13" in too_far["error"] and "max delay" in too_far["error"]
            expected = ["seconds", "milliseconds", "moment", "passed"]
            if client.version == "5.5.0":
                assert [bool(answer["handle"]) for answer in answers] == [True, True, True, False, True, True]
                taken = timer.recall("recalled")
                assert (taken["event"], taken["msgId"]) == ("recalled", answers[4]["result"]["msgId"])
                timer.await_received("seconds")
                assert "CODE: 604" in timer.recall("seconds")["error"], "its time has come"
            else:
                expected.append("recalled")
            timer.await_received(*expected)
            settle(2.0)
        finally:
            timer.close()
        timer.judge(*expected)
        by_name = {message["body"]: message["properties"] for message in timer.messages()}
        assert by_name["seconds"]["TIMER_DELAY_SEC"] == "1" and "TIMER_OUT_MS" in by_name["seconds"]


def test_a_kill_loses_no_time_and_no_recall(client: Driver, tmp_path: Path) -> None:
    with Brokers(tmp_path, ROPEWALK, **SETTINGS) as brokers:
        timer = Timer(client, brokers.namesrv, tmp_path / "java")
        try:
            names = [f"m{seconds}" for seconds in range(1, 13)]
            for seconds, name in enumerate(names, 1):
                timer.send(name, "TIMER_DELAY_SEC", seconds)
            recalled = {"m9", "m11"} if client.version == "5.5.0" else set()
            for name in recalled:
                assert timer.recall(name)["event"] == "recalled"
            timer.await_received("m2")
            began = time.monotonic()
            brokers.restart()
            timer.await_received("m7")
            brokers.restart()
            expected = [name for name in names if name not in recalled]
            timer.await_received(*expected)
            downtime_ms = int((time.monotonic() - began) * 1000)
            settle(2.0)
        finally:
            timer.close()
        timer.judge(*expected, downtime_ms=downtime_ms)
