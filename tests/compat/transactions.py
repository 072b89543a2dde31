"""The official transactional producer as a process that outlives its brokers, and the brokers it meets by turns."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections import defaultdict
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.bench.peers.rocketmq.original import Original
from tests.compat.driver import Driver, Event, LastingScenario
from tests.crash.server import Place, Server
from tests.support.ports import free_ports
from tests.support.processes import checkout_command, checkout_environment, first_line, stop

ROPEWALK, ROCKETMQ = "Ropewalk", "RocketMQ"
_START_S = 60.0

SETTINGS: dict[str, str | int] = {
    "brokerClusterName": "DefaultCluster",
    "brokerName": "broker-a",
    "brokerIP1": "127.0.0.1",
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 20 * 200,
    "maxHashSlotNum": 500,
    "maxIndexNum": 2_000,
    "diskMaxUsedSpaceRatio": 95,
    "flushConsumerOffsetInterval": 1_000,
    "transactionTimeOut": 2_000,
    "transactionCheckInterval": 1_000,
}
# The original writes down what was decided up to three seconds later, and checks transactions again that it finds
# undecided until then: with the short times of these tests it would decide every one twice.
ORIGINAL_SETTINGS = {
    "timerWheelEnable": "false",
    "waitTimeMillsInSendQueue": "10000",
    "transactionOpBatchInterval": "100",
}


class Transactor(LastingScenario):
    """The Java process: half messages go out, checks are answered, what is committed comes back."""

    def __init__(self, driver: Driver, namesrv: str, home: Path) -> None:
        super().__init__(driver, namesrv, home, "transacting", prefix="t")
        self.wait_until(lambda events: any(event["event"] == "ready" for event in events), "ready")

    def send(self, name: str, local: str, check: str) -> Event:
        """Send one half message; return what the client was told."""
        self.tell(f"send {name} {local} {check}")
        self.wait_until(lambda events: bool(_named(events, ("sent", "refused"), name)), f"{name} sent")
        (event,) = _named(self._events, ("sent", "refused"), name)
        assert event["event"] == "sent", event
        return event

    def begin(self, name: str) -> None:
        """Send one half message whose local transaction waits for `answer NAME STATE`; return when it is at work."""
        self.tell(f"send {name} WAIT UNKNOWN")
        self.wait_until(lambda events: bool(_named(events, ("begun", "refused"), name)), f"{name} begun")
        assert not _named(list(self._events), ("refused",), name), self._events

    def checks(self, name: str) -> list[Event]:
        """Return the checks that have come for one message."""
        return _named(list(self._events), ("checked",), name)

    def delivered(self) -> dict[str, set[tuple[int, int]]]:
        """Return the places at which each message was received: one for each time that it was committed."""
        found: dict[str, set[tuple[int, int]]] = defaultdict(set)
        for message in self.messages():
            found[message["body"]].add((message["queueId"], message["queueOffset"]))
        return found

    def await_delivered(self, names: set[str]) -> None:
        """Wait until all of these have been received."""
        self.wait_until(lambda _events: names <= self.delivered().keys(), f"received {names}")


def _named(events: list[Event], kinds: tuple[str, ...], name: str) -> list[Event]:
    return [event for event in events if event["event"] in kinds and event.get("name") == name]


class Brokers:
    """A name server, one directory, and the one broker or the other on it."""

    def __init__(self, root: Path, first: str, **settings: str | int) -> None:
        self._root = root
        self.broker = first
        (port,) = free_ports(1)
        self._settings = {**SETTINGS, "listenPort": port, "haListenPort": port + 1, **settings}
        self._server: Server | None = None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Brokers:
        process = subprocess.Popen(
            [*checkout_command(), "namesrv", "--port", "0", "--json"],
            env=checkout_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        self._stack.callback(stop, process)
        ready: dict[str, Any] = json.loads(first_line(process, _START_S))
        self.namesrv = str(ready["namesrv"])
        self.place = Place(self._root, checkout_command(), self._settings | {"namesrvAddr": self.namesrv})
        config = {key: str(value) for key, value in self._settings.items()} | ORIGINAL_SETTINGS
        config["storePathRootDir"] = str(self.place.store)
        self._original = Original(
            self._root / "original", "256m", config, namesrv=self.namesrv, short_lived=True
        )
        self._stack.callback(self.end, kill=True)
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def start(self) -> None:
        """Start the broker whose turn it is."""
        if self.broker == ROCKETMQ:
            self._original.start()
        else:
            self._server = Server(self.place)

    def end(self, *, kill: bool) -> None:
        """End the broker that is there, by kill -9 or in good order."""
        if self._server is not None:
            server, self._server = self._server, None
            with server:
                assert (0 if kill else server.terminate()) == 0, self.place.errors()
        else:
            self._original.stop(orderly=not kill)

    def swap(self, *, kill: bool) -> None:
        """End the broker that is there, and start the other one on what it left."""
        self.end(kill=kill)
        self.broker = ROCKETMQ if self.broker == ROPEWALK else ROPEWALK
        self.start()

    def restart(self) -> None:
        """Kill the broker that is there, and start it again."""
        self.end(kill=True)
        self.start()


def settle(seconds: float) -> None:
    """Give what must not come time to come."""
    time.sleep(seconds)
