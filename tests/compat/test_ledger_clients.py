"""Official Java producers go on over the deaths of leaders of a DLedger group, and a Java consumer finds everything."""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path

import pytest

from tests.compat.driver import SERIALIZATIONS, VERSIONS, Driver, Event, LastingScenario
from tests.crash.ledger_group import LedgerGroup
from tests.support.long_run import long_only

pytestmark = [pytest.mark.compat, pytest.mark.slow]

PATIENCE_S = 60.0


class Client(LastingScenario):
    """The Java process: its messages, and the answers to them."""

    def events(self, kind: str) -> list[Event]:
        """Return the events of this kind so far."""
        with self._news:
            return [event for event in self._events if event["event"] == kind]

    def wait(self, kind: str, count: int) -> None:
        """Wait for so many events of this kind."""
        until = time.monotonic() + PATIENCE_S
        while len(self.events(kind)) < count:
            assert time.monotonic() < until, f"{len(self.events(kind))} of {count} {kind!r}: {self._tail()}"
            time.sleep(0.05)


@pytest.mark.parametrize(
    "driver",
    [
        pytest.param((VERSIONS[0], SERIALIZATIONS[0]), id=VERSIONS[0]),
        pytest.param((VERSIONS[1], SERIALIZATIONS[0]), id=VERSIONS[1], marks=long_only),
    ],
    indirect=True,
)
def test_a_java_producer_outlives_leaders_and_nothing_acknowledged_is_lost(
    driver: Driver, tmp_path: Path, long_run: bool
) -> None:
    kills = 10 if long_run else 3
    with LedgerGroup(tmp_path) as group:
        group.leader()
        client = Client(driver, group.name_server, tmp_path / "java", "surviving", prefix="ledger")
        try:
            client.wait("sent", 50)
            for _ in range(kills):
                leader = group.leader()
                leader.kill()
                before = len(client.events("sent"))
                client.wait("sent", before + 50)
                leader.start()
            client.tell("read")
            client.wait("joined", 1)
            sent = [event["number"] for event in client.events("sent")]
            assert {event["status"] for event in client.events("sent")} == {"SEND_OK"}
            until = time.monotonic() + PATIENCE_S
            while not set(sent) <= {event["number"] for event in client.events("received")}:
                missing = set(sent) - {event["number"] for event in client.events("received")}
                assert time.monotonic() < until, f"{len(missing)} of {len(sent)}: {sorted(missing)[:9]}"
                time.sleep(0.2)
        finally:
            client.close()
    queues: dict[int, dict[int, int]] = defaultdict(dict)
    for event in client.events("received"):
        queues[event["queueId"]].setdefault(event["queueOffset"], event["number"])
    for queue_id, numbers in queues.items():
        in_order = [numbers[offset] for offset in sorted(numbers)]
        first = list(dict.fromkeys(in_order))
        assert first == sorted(first), f"queue {queue_id} is out of its producer's order"
