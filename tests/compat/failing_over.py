"""Clients that send and consume while leaders come and go, and what their events must look like.

Each client works on three topics of four queues (`plain`, `orderly`, `delayed`) and tells every attempt to send and
every delivery. Message number N goes to queue N % 4, message after message, so that the order is known; a number is
sent again until it is acknowledged. Odd numbers of the delayed topic are due five seconds after they were sent, even
ones after one.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Protocol

from ropewalk import Message, Producer, PushConsumer, ReceivedMessage, Refused, RopewalkError, Unreachable
from tests.compat.driver import Event, LastingScenario, Starts
from tests.support.waiting import until

KINDS = ("plain", "orderly", "delayed")
QUEUES = 4
DELAY_MS = (1_000, 5_000)
COMMIT_LAG_MS = 100
"""Milliseconds of commits that nobody waited for, which a leader may forget."""
AWAY_MS = 15_000
"""For so long after a kill a client may go on consuming what it cannot commit."""


class Client(Protocol):
    """A client at work."""

    name: str
    commit_ms: int
    """How often its consumers commit."""

    def events(self) -> list[Event]:
        """Return the events so far."""

    def tell(self, command: str) -> None:
        """Send one command: "stop" or "end"."""

    def close(self) -> None:
        """End the client."""


class OfficialClient(LastingScenario):
    """An official client, in a process of its own."""

    def __init__(self, driver: Starts, name: str, namesrv: str, home: Path, commit_ms: int) -> None:
        self.name = name
        self.commit_ms = commit_ms
        super().__init__(driver, namesrv, home, "failing_over", prefix=name)


class PythonClient:
    """Our own client, in threads of this process."""

    name = "python"
    commit_ms = 1_000

    def __init__(self, namesrv: str) -> None:
        self._events: list[Event] = []
        self._stopping = threading.Event()
        self._consumers = [
            PushConsumer(
                f"{self.name}-{kind}-group",
                {f"{self.name}-failing_over-{kind}": "*"},
                self._handler(kind),
                namesrv,
                consume_from="earliest",
                orderly=kind == "orderly",
                commit_interval=self.commit_ms / 1000,
            )
            for kind in KINDS
        ]
        self._producer = Producer(namesrv, retries=0)
        self._senders = [threading.Thread(target=self._send, args=(kind,), daemon=True) for kind in KINDS]
        for consumer in self._consumers:
            consumer.start()
        for sender in self._senders:
            sender.start()
        self._events.append({"event": "ready"})

    def events(self) -> list[Event]:
        """Return the events so far."""
        return self._events.copy()

    def tell(self, command: str) -> None:
        """End the sending."""
        assert command == "stop"
        self._stopping.set()
        for sender in self._senders:
            sender.join()
        self._events.append({"event": "stopped"})

    def close(self) -> None:
        """End the client."""
        self._stopping.set()
        for consumer in self._consumers:
            consumer.close()
        self._producer.close()

    def _handler(self, kind: str) -> Callable[[ReceivedMessage], None]:
        def handle(message: ReceivedMessage) -> None:
            self._events.append(
                {
                    "event": "received",
                    "kind": kind,
                    "number": int(message.body),
                    "queueId": message.source.queue.queue_id,
                    "queueOffset": message.queue_offset,
                    "wallMs": time.time_ns() // 1_000_000,
                }
            )

        return handle

    def _send(self, kind: str) -> None:
        number = 0
        while not self._stopping.is_set():
            while not self._attempt(kind, number):
                time.sleep(0.05)
            number += 1
            time.sleep(0.1 if kind == "delayed" else 0.02)

    def _attempt(self, kind: str, number: int) -> bool:
        delay = timedelta(milliseconds=DELAY_MS[number % 2]) if kind == "delayed" else None
        event: Event = {"kind": kind, "number": number, "beforeMs": time.time_ns() // 1_000_000}
        try:
            self._producer.send(
                f"{self.name}-failing_over-{kind}",
                Message(b"%d" % number, delay=delay),
                selector=lambda queues: next(each for each in queues if each.queue_id == number % QUEUES),
            )
        except (RopewalkError, OSError, StopIteration) as error:
            unsent = isinstance(error, Refused | Unreachable | StopIteration)
            # A plain `Refused` with code 1 may be a leader that stepped down while the message was on its way.
            unsent = unsent and not (isinstance(error, RopewalkError) and error.code == 1)
            self._events.append({**event, "event": "failed", "unknown": not unsent, "error": repr(error)})
            return False
        self._events.append({**event, "event": "sent"})
        return True


def numbers(client: Client, kind: str, event: str = "sent") -> set[int]:
    """Return the numbers of a client's messages that were sent, or received."""
    return {each["number"] for each in client.events() if each["event"] == event and each.get("kind") == kind}


def await_progress(client: Client, count: int) -> None:
    """Wait until so many messages more are acknowledged and delivered, of each kind."""
    before = {
        (kind, event): len(numbers(client, kind, event)) for kind in KINDS for event in ("sent", "received")
    }

    def grown() -> bool:
        return all(len(numbers(client, *place)) >= found + count for place, found in before.items())

    def missing() -> str:
        now = {place: len(numbers(client, *place)) for place in before}
        return f"{client.name} stands still: {before} before, {now} now; {client.events()[-3:]}"

    until(grown, missing, pause_s=0.1)


def await_everything(client: Client) -> None:
    """Wait until the sending has ended, and all that is acknowledged is delivered."""
    until(
        lambda: any(each["event"] == "stopped" for each in client.events()), f"{client.name} goes on sending"
    )
    for kind in KINDS:

        def missing(kind: str = kind) -> set[int]:
            return numbers(client, kind) - numbers(client, kind, "received")

        until(
            lambda missing=missing: not missing(),  # type: ignore[misc]
            lambda kind=kind, missing=missing: (  # type: ignore[misc]
                f"{client.name}: {len(missing())} {kind} messages are acknowledged and never delivered: "
                f"{sorted(missing())[:9]}"
            ),
            pause_s=0.1,
        )


def judge(events: list[Event], kills_ms: list[int], commit_ms: int) -> list[str]:
    """Return what is wrong with the deliveries to one client."""
    faults: list[str] = []
    failed = [each for each in events if each["event"] == "failed"]
    unknown = {(each["kind"], each["number"]) for each in failed if each["unknown"]}
    begun: dict[tuple[str, int], int] = {}
    for each in events:
        if each["event"] in ("sent", "failed"):
            key = each["kind"], each["number"]
            begun[key] = min(begun.get(key, each["beforeMs"]), each["beforeMs"])
    places: dict[tuple[str, int], set[tuple[int, int]]] = defaultdict(set)
    first_ms: dict[tuple[str, int, int], int] = {}
    stored: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)
    reached: dict[int, int] = {}
    for each in events:
        if each["event"] != "received":
            continue
        kind, number, at_ms = each["kind"], each["number"], each["wallMs"]
        place = kind, each["queueId"], each["queueOffset"]
        places[kind, number].add(place[1:])
        stored[place[:2]][place[2]] = number
        earlier = first_ms.setdefault(place, at_ms)
        again = place[2] <= reached.get(place[1], -1)
        if (earlier != at_ms or (kind == "orderly" and again)) and not any(
            kill - commit_ms - COMMIT_LAG_MS <= earlier <= kill + AWAY_MS and kill <= at_ms
            for kill in kills_ms
        ):
            faults.append(
                f"{kind} {number} of queue {place[1]} was delivered again {at_ms - earlier} ms later, and was "
                f"committed long ago: first {_since_kill(earlier, kills_ms)}, then {_since_kill(at_ms, kills_ms)}"
            )
        if kind == "orderly":
            before = reached.get(place[1])
            if before is not None and place[2] > before + 1:
                faults.append(
                    f"orderly {number} of queue {place[1]} was delivered before the one in front of it"
                )
            reached[place[1]] = max(place[2], before or 0)
        if kind == "delayed" and at_ms < begun[kind, number] + DELAY_MS[number % 2]:
            faults.append(
                f"delayed {number} came {begun[kind, number] + DELAY_MS[number % 2] - at_ms} ms early"
            )
    for (kind, number), found in places.items():
        if len(found) > 1 and (kind, number) not in unknown:
            faults.append(
                f"{kind} {number} is stored {len(found)} times, and no attempt was of unknown outcome"
            )
    for (kind, queue_id), by_offset in stored.items():
        in_order = list(dict.fromkeys(by_offset[offset] for offset in sorted(by_offset)))
        if kind != "delayed" and in_order != sorted(in_order):
            faults.append(f"queue {queue_id} of the {kind} topic is out of its producer's order")
    return faults


def _since_kill(at_ms: int, kills_ms: list[int]) -> str:
    """Return in words how long after which kill a moment is."""
    before = [kill for kill in kills_ms if kill <= at_ms]
    return f"{at_ms - before[-1]} ms after kill {len(before)}" if before else "before the first kill"


def latest_ms(events: list[Event]) -> int:
    """Return how late the latest delayed message came, of those that were acknowledged at the first attempt."""
    first: dict[int, int] = {}
    for each in events:
        if each["event"] == "received" and each["kind"] == "delayed":
            first.setdefault(each["number"], each["wallMs"])
    due = {
        each["number"]: each["beforeMs"] + DELAY_MS[each["number"] % 2]
        for each in events
        if each["event"] == "sent" and each["kind"] == "delayed"
    }
    return max((first[number] - due[number] for number in first.keys() & due.keys()), default=0)
