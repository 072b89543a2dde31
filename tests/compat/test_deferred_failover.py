"""Transactions and timers of the official clients over the death of their master: the slave goes on with both."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.compat.driver import VERSIONS, Driver
from tests.compat.timers import Timer
from tests.compat.transactions import Transactor, settle
from tests.ha.process_group import BROKER, group_of
from tests.support.long_run import long_only

pytestmark = [pytest.mark.compat, pytest.mark.slow]

TIMES_S = (8, 9, 14)
TAKEN_BACK_S = (16, 32, 64)
"""When the messages are due of which one is taken back after the failover: the first that is still waiting then."""


@pytest.mark.parametrize("version", [VERSIONS[0], pytest.param(VERSIONS[1], marks=long_only)])
def test_a_promoted_slave_checks_commits_once_and_keeps_the_times(
    version: str, java: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROPEWALK_TRANSACTION_TIME_OUT", "1000")
    monkeypatch.setenv("ROPEWALK_TRANSACTION_CHECK_INTERVAL", "500")
    monkeypatch.setenv("ROPEWALK_TRANSACTION_CHECK_MAX", "1000")
    monkeypatch.setenv("ROPEWALK_RECALL_MESSAGE_ENABLE", "true")
    driver = Driver(version, "JSON")
    with group_of(tmp_path, "b") as group:
        shop = Transactor(driver, group.namesrv, tmp_path / "shop")
        alarm = Timer(driver, group.namesrv, tmp_path / "alarm")
        try:
            for name in ("held", "given-back"):
                shop.send(name, "UNKNOWN", "UNKNOWN")
            shop.begin("between")
            for seconds in TIMES_S:
                alarm.send(f"m{seconds}", "TIMER_DELAY_SEC", seconds)
            for seconds in TAKEN_BACK_S if version == "5.5.0" else ():
                alarm.send(f"taken-back-{seconds}", "TIMER_DELAY_SEC", seconds)
                alarm.send(f"witness-{seconds}", "TIMER_DELAY_SEC", seconds + 1)
            killed_ms = time.time_ns() // 1_000_000
            group.kill("a")
            report = group.admin("failover", BROKER)
            assert report["newMaster"] == group.replicas["b"].address

            asked = len(shop.checks("held"))
            shop.wait_until(lambda _events: len(shop.checks("held")) > asked, "checked by the promoted slave")
            shop.tell("answer between COMMIT")
            shop.tell("answer held COMMIT")
            shop.tell("answer given-back ROLLBACK")
            shop.await_delivered({"between", "held"})
            group.start("a")  # without a slave a recall is stored, and told as code 11
            group.until_followed("b")
            witnesses, answers = [], []
            for seconds in TAKEN_BACK_S if version == "5.5.0" else ():
                answers.append(alarm.recall(f"taken-back-{seconds}"))
                if answers[-1]["event"] == "recalled":
                    witnesses.append(f"witness-{seconds}")
            assert witnesses or version != "5.5.0", str(answers)
            names = [f"m{seconds}" for seconds in TIMES_S]
            alarm.await_received(*names, *witnesses[:1])
            settle(2.0)
        finally:
            shop.close()
            alarm.close()
    assert {name: len(places) for name, places in shop.delivered().items()} == {"between": 1, "held": 1}
    stored = alarm.stored()
    recalled = {witness.replace("witness", "taken-back") for witness in witnesses}
    assert not recalled & stored.keys(), "delivered though recalled"
    for name, places in stored.items():
        earliest, _latest = alarm.due_ms[name]
        assert min(places.values()) >= earliest, f"{name} came early"
        assert sum(at_ms >= killed_ms for at_ms in places.values()) <= 1, (
            f"{name} came twice from the new master"
        )
