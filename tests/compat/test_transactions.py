"""The official transactional producers: five outcomes, a kill between half and commit, and a directory that is swapped.

ROPEWALK_COMPAT_TARGET=rocketmq runs the outcomes against Apache RocketMQ 5.5.0, which met the expectations.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.driver import VERSIONS, Driver
from tests.compat.transactions import ROCKETMQ, ROPEWALK, Brokers, Transactor, settle
from tests.support.long_run import LONG, long_only

pytestmark = [pytest.mark.compat, pytest.mark.slow]

TARGET = ROCKETMQ if os.environ.get("ROPEWALK_COMPAT_TARGET") == "rocketmq" else ROPEWALK
CHECKS_MAX = 3


@pytest.fixture(params=VERSIONS)
def client(request: pytest.FixtureRequest, java: str) -> Driver:
    """Each official client."""
    return Driver(request.param, "JSON")


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A folder for one world."""
    yield tmp_path


def test_five_outcomes(client: Driver, root: Path) -> None:
    with Brokers(root, TARGET, transactionCheckMax=CHECKS_MAX) as brokers:
        producer = Transactor(client, brokers.namesrv, root / "java")
        try:
            results = {
                name: producer.send(name, local, check)
                for name, local, check in (
                    ("committed", "COMMIT", "UNKNOWN"),
                    ("rolled-back", "ROLLBACK", "UNKNOWN"),
                    ("committed-by-check", "UNKNOWN", "COMMIT"),
                    ("rolled-back-by-check", "UNKNOWN", "ROLLBACK"),
                    ("given-up", "UNKNOWN", "UNKNOWN"),
                )
            }
            assert {result["status"] for result in results.values()} == {"SEND_OK"}
            assert [results[name]["queueOffset"] for name in results] == [0, 1, 2, 3, 4]
            assert all(result["transactionId"] == result["msgId"] for result in results.values())
            producer.await_delivered({"committed", "committed-by-check"})
            producer.wait_until(
                lambda _events: len(producer.checks("given-up")) >= CHECKS_MAX, "all checks of given-up"
            )
            settle(4.0)
        finally:
            producer.close()
        delivered = producer.delivered()
        assert {name: len(places) for name, places in delivered.items()} == {
            "committed": 1,
            "committed-by-check": 1,
        }
        checks = {name: [event["times"] for event in producer.checks(name)] for name in results}
        assert checks["committed"] == checks["rolled-back"] == []
        assert checks["committed-by-check"] == checks["rolled-back-by-check"] == ["1"]
        assert checks["given-up"] == [str(n + 1) for n in range(CHECKS_MAX)]
        (check,) = producer.checks("committed-by-check")
        sent = results["committed-by-check"]
        assert check["topic"] == "t-transacting" and check["keys"] == "key-committed-by-check"
        assert (check["queueId"], check["transactionId"]) == (sent["queueId"], sent["transactionId"])
        by_name = {message["body"]: message for message in producer.messages()}
        for name in ("committed", "committed-by-check"):
            message = by_name[name]
            assert (message["queueId"], message["tags"]) == (results[name]["queueId"], "tag")
            assert message["msgId"] == results[name]["msgId"]
            assert message["sysFlag"] & 0xC == 0x8
            assert message["preparedTransactionOffset"] > 0 or name == "committed"
            assert message["properties"]["TRAN_MSG"] == "true"


@pytest.mark.parametrize("client", [VERSIONS[0], pytest.param(VERSIONS[1], marks=long_only)], indirect=True)
def test_a_kill_between_half_and_commit(client: Driver, root: Path) -> None:
    """Half messages and their counts are there after kill -9, and a late answer decides once."""
    with Brokers(root, ROPEWALK) as brokers:
        producer = Transactor(client, brokers.namesrv, root / "java")
        try:
            for n in range(6):
                producer.send(f"m{n}", "UNKNOWN", "UNKNOWN")
            producer.wait_until(lambda _events: len(producer.checks("m5")) >= 2, "checked twice")
            counted = int(producer.checks("m5")[-1]["times"])
            brokers.restart()
            producer.wait_until(
                lambda _events: int(producer.checks("m5")[-1]["times"]) > counted, "checked after the kill"
            )
            for n in range(6):
                producer.tell(f"answer m{n} {'ROLLBACK' if n % 2 else 'COMMIT'}")
            producer.await_delivered({"m0", "m2", "m4"})
            brokers.restart()
            settle(4.0)
        finally:
            producer.close()
        times = [int(event["times"]) for event in producer.checks("m5")]
        assert times == sorted(set(times)), "a count fell back, or one copy was checked twice"
        assert {name: len(places) for name, places in producer.delivered().items()} == {
            "m0": 1,
            "m2": 1,
            "m4": 1,
        }


KILLS = (False, True, True, False) if LONG else (False, True)


@pytest.mark.parametrize("first", [ROPEWALK, ROCKETMQ] if LONG else [ROCKETMQ])
def test_a_directory_changes_hands_in_the_middle_of_transactions(first: str, java: str, root: Path) -> None:
    driver = Driver("5.5.0", "JSON")
    with Brokers(root, first, transactionCheckMax=1_000) as brokers:
        producer = Transactor(driver, brokers.namesrv, root / "java")
        committed: set[str] = set()
        held: list[str] = []
        try:
            for era in range(len(KILLS) + 1):
                for n in range(5):
                    producer.send(f"now{era}.{n}", "COMMIT", "COMMIT")
                    producer.send(f"never{era}.{n}", "ROLLBACK", "ROLLBACK")
                    producer.send(f"soon{era}.{n}", "UNKNOWN", "COMMIT")
                    producer.send(f"held{era}.{n}", "UNKNOWN", "UNKNOWN")
                    committed |= {f"now{era}.{n}", f"soon{era}.{n}"}
                    held.append(f"held{era}.{n}")
                # What this broker has checked so far is decided, before the next one has it.
                for name in held[:3]:
                    producer.tell(f"answer {name} COMMIT")
                producer.tell(f"answer {held[3]} ROLLBACK")
                committed |= set(held[:3])
                held = held[4:]
                producer.await_delivered(committed)
                if era < len(KILLS):
                    brokers.swap(kill=KILLS[era])
            for name in held:
                producer.tell(f"answer {name} COMMIT")
            producer.await_delivered(committed | set(held))
            settle(5.0)
        finally:
            producer.close()
        delivered = producer.delivered()
        assert delivered.keys() == committed | set(held)
        assert {name: len(places) for name, places in delivered.items() if len(places) > 1} == {}
