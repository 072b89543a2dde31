"""The official clients' timer messages: on time and never early, recalled, and kept through kill -9."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.compat.driver import VERSIONS, Driver
from tests.compat.timers import Timer
from tests.compat.transactions import ROPEWALK, Brokers, settle
from tests.support.long_run import long_only

pytestmark = [pytest.mark.compat, pytest.mark.slow]

SETTINGS = {"timerWheelEnable": "true", "recallMessageEnable": "true"}
THREE_DAYS_S = 259_200


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


@pytest.mark.parametrize("client", [VERSIONS[0], pytest.param(VERSIONS[1], marks=long_only)], indirect=True)
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
