"""The load that a crash interrupts, and the ledger of what was promised before it.

Producers are threads with a connection each. They keep several requests in flight, single messages and batches,
to several topics and queues, some of which exist only since this incarnation. Every message has an id that is never
used twice, and a body that can be computed from the id: whoever reads it can tell whether a byte of it changed.
Nobody ever sends a message again.

An answer with status 0 is an acknowledgement. 10, 11 and 12, and no answer at all, leave the message's fate open.
Any other answer says that it was not stored.
"""

from __future__ import annotations

import hashlib
import random
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ropewalk.client.blocking.connection import Connection
from ropewalk.client.core.connection import Unreachable
from ropewalk.client.core.messages import Message, batch_request, command_of, pull_request, send_request
from ropewalk.client.core.routes import Queue
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import OutcomeUnknown
from ropewalk.format.headers import SendResponseHeader, UpdateConsumerOffsetHeader, decode_header
from ropewalk.format.record import parse_message_id
from ropewalk.format.remoting import Command

GROUP = "crash-readers"
STEADY_TOPIC = "crash-0"
QUEUE_COUNT = 4
_OPEN = {
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
}
_WINDOW = 8
_PAUSE_S = 0.010
_DRAIN_S = 5.0
_LARGE_EVERY = 12
_BATCH_EVERY = 5


def body_of(message_id: str, size: int) -> bytes:
    """The only body that the message `message_id` of this size can have."""
    head = f"{message_id} {size} ".encode()
    seed = hashlib.sha256(head).digest()
    return (head + seed * (size // len(seed) + 1))[: max(size, len(head))]


def id_in(body: bytes) -> tuple[str, int] | None:
    """The id and size that a body names, or None if it is none of ours."""
    parts = body.split(b" ", 2)
    if len(parts) != 3 or not parts[1].isdigit() or not parts[0].isalnum():
        return None
    return parts[0].decode(), int(parts[1])


@dataclass(slots=True)
class Sent:
    """One message that was sent, and what is known about it."""

    topic: str
    queue_id: int
    producer: str
    number: int
    """Rises along one producer's messages to one queue."""
    tags: str
    queue_offset: int | None = None
    """Where it was acknowledged to be; None while it is not."""
    log_offset: int | None = None
    refused: bool = False

    @property
    def acknowledged(self) -> bool:
        return self.queue_offset is not None


@dataclass
class Ledger:
    """Everything that was sent and promised, over all incarnations. Threads add; nobody removes."""

    sent: dict[str, Sent] = field(default_factory=dict)
    commits: dict[int, list[tuple[float, int]]] = field(default_factory=dict)
    """Queue id of STEADY_TOPIC -> (time of the answer, offset) of the commits this incarnation has answered."""
    commit_count: int = 0
    """Commits that were answered, over all incarnations."""
    tried: dict[int, int] = field(default_factory=dict)
    """The highest offset that was ever sent for a queue, answered or not."""
    troubles: list[str] = field(default_factory=list)
    """What a producer met that no crash explains."""

    @property
    def acknowledged_count(self) -> int:
        return sum(entry.acknowledged for entry in self.sent.values())


def topics_of(incarnation: int) -> list[str]:
    """Two topics that live through all incarnations, and one that this one's producers create."""
    return [STEADY_TOPIC, "crash-1", f"crash-new-{incarnation}"]


class Producer(threading.Thread):
    """One connection that sends until it is told to stop, or the broker is gone."""

    def __init__(
        self,
        address: str,
        ledger: Ledger,
        name: str,
        topics: Sequence[str],
        seed: int,
        *,
        window: int = _WINDOW,
        limit: int | None = None,
        no_wait_every: int = 0,
    ) -> None:
        """`limit` ends it after so many requests; `no_wait_every` has every so-many-th say WAIT=false."""
        super().__init__(name=name, daemon=True)
        self.stop = threading.Event()
        self._address = address
        self._ledger = ledger
        self._topics = topics
        self._rng = random.Random(seed)
        self._window = window
        self._limit = limit
        self._no_wait_every = no_wait_every
        self._number = 0
        self._requests = 0
        self._pending: dict[int, list[str]] = {}

    def run(self) -> None:
        try:
            with Connection(self._address, 5.0) as connection:
                try:
                    self._produce(connection)
                finally:
                    self._collect(connection)
        except (Unreachable, OutcomeUnknown, OSError):
            pass  # the broker is gone: that is what this is about
        except Exception as exc:
            self._ledger.troubles.append(f"producer {self.name}: {type(exc).__name__}: {exc}")

    def _produce(self, connection: Connection) -> None:
        while not self.stop.is_set() and not connection.closed:
            while len(self._pending) < self._window and not self._is_done:
                self._send(connection)
            if not self._pending:
                return
            connection.receive(0.05)
            self._collect(connection)
            if self._limit is None:
                time.sleep(self._rng.uniform(0, _PAUSE_S))
        until = time.monotonic() + _DRAIN_S
        while self._pending and not connection.closed and time.monotonic() < until:
            connection.receive(0.05)
            self._collect(connection)

    @property
    def _is_done(self) -> bool:
        return self._limit is not None and self._requests >= self._limit

    def _send(self, connection: Connection) -> None:
        rng = self._rng
        queue = Queue("broker", rng.randrange(QUEUE_COUNT))
        topic = rng.choice(self._topics)
        self._requests += 1
        waits = not (self._no_wait_every and self._requests % self._no_wait_every == 0)
        count = rng.randint(2, 6) if waits and self._requests % _BATCH_EVERY == 0 else 1
        ids: list[str] = []
        messages: list[Message] = []
        for _ in range(count):
            self._number += 1
            message_id, tags = f"{self.name}N{self._number}", f"t{self._number % 3}"
            size = (
                rng.randint(4_000, 30_000)
                if self._number % _LARGE_EVERY == 0
                else int(rng.expovariate(1 / 400))
            )
            self._ledger.sent[message_id] = Sent(topic, queue.queue_id, self.name, self._number, tags)
            ids.append(message_id)
            properties = {} if waits else {"WAIT": "false"}
            messages.append(Message(body_of(message_id, size), message_id.lower(), tags, properties))
        now_ms = time.time_ns() // 1_000_000
        if count == 1:
            command = send_request(topic, queue, messages[0], ids[0], now_ms)
        else:
            command = batch_request(topic, queue, messages, ids, ids[0], now_ms)
        self._pending[connection.start(command)] = ids

    def _collect(self, connection: Connection) -> None:
        """Enter in the ledger every answer that has arrived."""
        for opaque in list(self._pending):
            try:
                answer = connection.poll_answer(opaque)
            except OutcomeUnknown:
                continue
            if answer is not None:
                self._note(self._pending.pop(opaque), answer)

    def _note(self, ids: list[str], answer: Command) -> None:
        entries = [self._ledger.sent[message_id] for message_id in ids]
        if answer.code == ResponseCode.SUCCESS:
            header = decode_header(SendResponseHeader, answer.ext)
            places = header.msg_id.split(",")
            if len(places) != len(ids):
                self._ledger.troubles.append(f"{len(ids)} messages were answered with {len(places)} ids")
                return
            for index, (entry, place) in enumerate(zip(entries, places, strict=True)):
                entry.log_offset = parse_message_id(place)[2]
                entry.queue_offset = header.queue_offset + index
        elif answer.code not in _OPEN:
            for entry in entries:
                entry.refused = True


class Committer(threading.Thread):
    """A consumer group that moves on: it commits a rising offset for every queue of STEADY_TOPIC."""

    def __init__(self, address: str, ledger: Ledger) -> None:
        super().__init__(name="committer", daemon=True)
        self.stop = threading.Event()
        self._address = address
        self._ledger = ledger

    def run(self) -> None:
        ledger = self._ledger
        try:
            with Connection(self._address, 5.0) as connection:
                pull = pull_request(STEADY_TOPIC, Queue("broker", 0), 0, 1, "*", 0)
                pull.ext["consumerGroup"] = GROUP  # a group exists from its first pull on
                while connection.call(pull).code == ResponseCode.TOPIC_NOT_EXIST and not self.stop.is_set():
                    time.sleep(0.02)
                while not self.stop.is_set():
                    for queue_id in range(QUEUE_COUNT):
                        offset = ledger.tried[queue_id] = ledger.tried.get(queue_id, 0) + 1
                        header = UpdateConsumerOffsetHeader(GROUP, STEADY_TOPIC, queue_id, offset)
                        answer = connection.call(command_of(RequestCode.UPDATE_CONSUMER_OFFSET, header))
                        if answer.code == ResponseCode.SUCCESS:
                            answered = ledger.commits.setdefault(queue_id, [])
                            answered.append((time.monotonic(), offset))
                            ledger.commit_count += 1
                    time.sleep(0.02)
        except (Unreachable, OutcomeUnknown, OSError):
            pass


def start_load(
    address: str, ledger: Ledger, incarnation: int, rng: random.Random, producers: int = 4
) -> list[Producer | Committer]:
    """Start the threads of one incarnation's load."""
    ledger.commits.clear()
    topics = topics_of(incarnation)
    threads: list[Producer | Committer] = [
        Producer(address, ledger, f"I{incarnation}P{n}", topics, rng.getrandbits(32))
        for n in range(producers)
    ]
    threads.append(Committer(address, ledger))
    for thread in threads:
        thread.start()
    return threads


def stop_load(threads: Iterable[Producer | Committer]) -> None:
    """Have the threads stop sending, take in what is under way, and end."""
    for thread in threads:
        thread.stop.set()
    join_load(threads)


def join_load(threads: Iterable[Producer | Committer]) -> None:
    """Wait for threads that end by themselves because they were told to or the broker is gone."""
    for thread in threads:
        thread.stop.set()
        thread.join(30)
        assert not thread.is_alive(), f"{thread.name} hangs"
