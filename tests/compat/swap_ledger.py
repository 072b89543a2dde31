"""What was sent, received and committed while brokers followed each other on one directory, and what of it is wrong.

Three witnesses write into one `Ledger`: `Traffic` what brokers acknowledged, `Commits` which offsets of the consumer
group they said they have, and the Java group what it received. All use the wall clock of this machine. `judge` reads
the ledger at the end; `read_store` reads the files.

Messages of PROMPT go straight to their queue, singly and in batches; those of LATER carry a delay level. Nobody ever
sends a message again, so that each of them has one place, and a second one is somebody's mistake.
"""

from __future__ import annotations

import hashlib
import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ropewalk.client.blocking.connection import Connection
from ropewalk.client.core.connection import Unreachable
from ropewalk.client.core.messages import Message, batch_request, command_of, pull_request, send_request
from ropewalk.client.core.routes import Queue
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import OutcomeUnknown
from ropewalk.format import names
from ropewalk.format.headers import (
    OffsetResponseHeader,
    QueryConsumerOffsetHeader,
    SendResponseHeader,
    decode_header,
)
from ropewalk.format.properties import tags_code
from ropewalk.format.queue_entry import ENTRY_SIZE, unpack_all
from ropewalk.format.record import Record, decode_records, parse_message_id
from ropewalk.format.remoting import Command
from store.offline.reader import Damage, find_log_files, read_log
from tests.crash.load import body_of, id_in

PROMPT = "swaps-lasting"
LATER = "swaps-lasting-later"
GROUP = "swaps-lasting-group"
QUEUE_COUNT = 4
DELAYS_S = (1, 5, 15)
COMMIT_AGE_S = 5.0
"""A commit older than this at a swap is kept."""
SAVE_S = 4.0
"""How often both brokers save committed offsets, and how far the delay levels have come."""

_TIMEOUT_S = 5.0
_PAUSE_S = 0.02
_ASK_S = 0.25
_OPEN = {
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
}

QueueKey = tuple[str, int]


@dataclass(slots=True)
class Sent:
    """One message that was sent; times are seconds of the wall clock."""

    topic: str
    queue_id: int
    size: int
    delay_s: int
    at: float
    place: tuple[int, int] | None = None
    """Queue offset and log offset that were acknowledged; for a delayed message, those where it waits."""
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Swap:
    """One broker went, by a signal at `at`, and the next one was `ready`."""

    of: str
    kill: bool
    at: float
    gone: float
    ready: float

    def __str__(self) -> str:
        how = "kill -9" if self.kill else "an orderly stop"
        return f"{how} of {self.of} at {self.at:.1f}, ready again after {self.ready - self.at:.1f} s"


@dataclass(frozen=True, slots=True)
class Commit:
    """A broker said that this is the committed offset of a queue."""

    at: float
    key: QueueKey
    offset: int


@dataclass
class Ledger:
    """Threads append; nobody removes."""

    sent: dict[str, Sent] = field(default_factory=dict)
    received: list[dict[str, Any]] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    swaps: list[Swap] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    def acknowledged(self) -> dict[str, Sent]:
        return {name: sent for name, sent in self.sent.items() if sent.place is not None}

    def missing(self) -> set[str]:
        """What was acknowledged and no consumer has seen so far."""
        seen = {event["msgId"] for event in list(self.received)}
        return {name for name, sent in list(self.sent.items()) if sent.place is not None} - seen

    def floor(self, key: QueueKey, since: float, until: float) -> int:
        """The offset that stood committed all this time, by what brokers said; 0 if none was before `since`.

        The least one, because members do commit backwards: while a broker is new and does not know all of them yet,
        two believe that a queue is theirs. What a member took back nobody has to keep.
        """
        said = [(c.at, c.offset) for c in list(self.commits) if c.key == key and c.at <= until]
        before = [offset for at, offset in said if at <= since]
        return min([before[-1], *(offset for at, offset in said if at > since)]) if before else 0

    def pending_at(self, swap: Swap) -> set[str]:
        """Acknowledged delayed messages that were still waiting when the broker was told to end."""
        return {
            name
            for name, sent in list(self.sent.items())
            if sent.place is not None and sent.at < swap.at < sent.at + sent.delay_s
        }


class Traffic(threading.Thread):
    """One producer that goes on through everything: some forty requests a second while somebody listens."""

    def __init__(self, address: str, ledger: Ledger, seed: int) -> None:
        super().__init__(name="traffic", daemon=True)
        self.stop = threading.Event()
        self._address = address
        self._ledger = ledger
        self._rng = random.Random(seed)
        self._number = 0
        self._pending: dict[int, list[str]] = {}

    def run(self) -> None:
        try:
            while not self.stop.is_set():
                self._pending.clear()
                try:
                    with Connection(self._address, _TIMEOUT_S) as connection:
                        self._produce(connection)
                except (Unreachable, OutcomeUnknown, OSError):
                    time.sleep(0.05)  # between two brokers
        except Exception as exc:
            self._ledger.violations.append(f"traffic ended: {type(exc).__name__}: {exc}")

    def _produce(self, connection: Connection) -> None:
        while not connection.closed:
            if not self.stop.is_set() and len(self._pending) < 4:
                self._send(connection)
            elif self.stop.is_set() and not self._pending:
                return
            connection.receive(_PAUSE_S)
            self._collect(connection)
            time.sleep(self._rng.uniform(0, _PAUSE_S))

    def _send(self, connection: Connection) -> None:
        rng = self._rng
        queue = Queue("broker-a", rng.randrange(QUEUE_COUNT))
        level = rng.choice((0, 0, 0, 1, 2, 3))
        topic, delay_s = (LATER, DELAYS_S[level - 1]) if level else (PROMPT, 0)
        count = rng.randint(2, 6) if not level and rng.random() < 0.3 else 1
        ids, messages = [], []
        for _ in range(count):
            self._number += 1
            name = f"M{self._number}"
            body = body_of(name, 60 + int(rng.expovariate(1 / 900)))
            self._ledger.sent[name] = Sent(topic, queue.queue_id, len(body), delay_s, time.time())
            properties = {"DELAY": str(level)} if level else {}
            ids.append(name)
            messages.append(Message(body, f"key-{name}", f"t{self._number % 3}", properties))
        now_ms = time.time_ns() // 1_000_000
        if count == 1:
            command = send_request(topic, queue, messages[0], ids[0], now_ms)
        else:
            command = batch_request(topic, queue, messages, ids, ids[0], now_ms)
        self._pending[connection.start(command)] = ids

    def _collect(self, connection: Connection) -> None:
        for opaque in list(self._pending):
            answer = connection.poll_answer(opaque)
            if answer is not None:
                self._note(self._pending.pop(opaque), answer)

    def _note(self, ids: list[str], answer: Command) -> None:
        entries = [self._ledger.sent[name] for name in ids]
        if answer.code == ResponseCode.SUCCESS:
            header = decode_header(SendResponseHeader, answer.ext)
            places = header.msg_id.split(",")
            for index, (entry, place) in enumerate(zip(entries, places, strict=True)):
                entry.place = header.queue_offset + index, parse_message_id(place)[2]
        elif answer.code not in _OPEN:
            for entry in entries:
                entry.refused = True


class Commits(threading.Thread):
    """Asks the broker, whichever it is, for the group's committed offsets, several times a second."""

    def __init__(self, address: str, ledger: Ledger) -> None:
        super().__init__(name="commits", daemon=True)
        self.stop = threading.Event()
        self._address = address
        self._ledger = ledger

    def run(self) -> None:
        while not self.stop.wait(_ASK_S):
            try:
                with Connection(self._address, _TIMEOUT_S) as connection:
                    while not connection.closed and not self.stop.wait(_ASK_S):
                        self._ledger.commits += committed(connection)
            except (Unreachable, OutcomeUnknown, OSError):
                continue


def committed(connection: Connection) -> Iterator[Commit]:
    """The group's offsets as this broker has them, each with the time before it was asked for."""
    for topic in (PROMPT, LATER):
        for queue_id in range(QUEUE_COUNT):
            at = time.time()
            header = QueryConsumerOffsetHeader(GROUP, topic, queue_id)
            answer = connection.call(command_of(RequestCode.QUERY_CONSUMER_OFFSET, header))
            if answer.code == ResponseCode.SUCCESS:
                offset = decode_header(OffsetResponseHeader, answer.ext).offset
                yield Commit(at, (topic, queue_id), offset)


# -- the end -------------------------------------------------------------------------------------------


def judge(ledger: Ledger, stored: Sequence[Record]) -> list[str]:
    """What was promised and not kept, in sentences. `stored` is what the queues of both topics hold at the end."""
    return [
        *ledger.violations,
        *_judge_reading(ledger),
        *_judge_queues(ledger, stored),
        *_judge_delays(ledger, stored),
    ]


def _judge_reading(ledger: Ledger) -> Iterator[str]:
    for name in sorted(ledger.missing()):
        yield f"{name} was acknowledged, and no consumer has seen it: {ledger.sent[name]}"
    floors: dict[tuple[Swap, QueueKey], int] = {}
    for event in ledger.received:
        name, at = event["msgId"], event["wallMs"] / 1000
        sent = ledger.sent.get(name)
        if sent is None:
            yield f"a message that nobody sent was received: {event}"
            continue
        if event["bodySha256"] != hashlib.sha256(body_of(name, sent.size)).hexdigest():
            yield f"{name} was received with another body: {event}"
        if (event["keys"], event["topic"], event["queueId"]) != (f"key-{name}", sent.topic, sent.queue_id):
            yield f"{name} was received as something else than {sent}: {event}"
        if at < sent.at + sent.delay_s - 0.001:
            yield f"{name} was received {sent.at + sent.delay_s - at:.3f} s too early"
        for swap in ledger.swaps:
            if swap.at > at:
                break
            place = swap, (sent.topic, sent.queue_id)
            if place not in floors:
                floors[place] = ledger.floor(place[1], swap.at - COMMIT_AGE_S, swap.at)
            if event["queueOffset"] < floors[place]:
                yield (
                    f"{name}, offset {event['queueOffset']} of {place[1]}, was received at {at:.1f}, and "
                    f"{floors[place]} was committed {COMMIT_AGE_S:.0f} s before {swap}"
                )


def _judge_queues(ledger: Ledger, stored: Sequence[Record]) -> Iterator[str]:
    places: dict[str, list[tuple[int, int]]] = defaultdict(list)
    ends: dict[QueueKey, int] = defaultdict(int)
    for record in stored:
        key = record.topic, record.queue_id
        if record.queue_offset != ends[key]:
            yield f"{key} has offset {record.queue_offset} where {ends[key]} should be"
        ends[key] = record.queue_offset + 1
        named = id_in(record.body)
        sent = ledger.sent.get(named[0]) if named is not None else None
        if named is None or sent is None or record.body != body_of(named[0], sent.size):
            yield f"{key} has at {record.queue_offset} what nobody sent: {record.body[:40]!r}"
            continue
        places[named[0]].append((record.queue_offset, record.offset))
    for name, sent in ledger.sent.items():
        found = places[name]
        if sent.refused and found:
            yield f"{name} was refused, and is at {found}"
        if sent.delay_s:
            continue
        if sent.place is not None and found != [sent.place]:
            yield f"{name} was acknowledged at {sent.place} of {sent.topic} {sent.queue_id}, and is at {found}"
        if len(found) > 1:
            yield f"{name} is there more than once: {found}"


def _judge_delays(ledger: Ledger, stored: Sequence[Record]) -> Iterator[str]:
    copies: dict[str, list[float]] = defaultdict(list)
    for record in stored:
        named = id_in(record.body)
        if record.topic == LATER and named is not None:
            copies[named[0]].append(record.store_timestamp / 1000)
    kills = [swap for swap in ledger.swaps if swap.kill]
    for name, times in copies.items():
        sent = ledger.sent[name]
        first = min(times)
        if first < sent.at + sent.delay_s - 0.001:
            yield f"{name} was delivered {sent.at + sent.delay_s - first:.3f} s too early"
        excused = any(swap.at - SAVE_S - 1 <= first <= swap.gone for swap in kills)
        if len(times) > 1 and not excused:
            yield f"{name} was delivered at {times}: more than once, and not for a kill"
    for name, sent in ledger.acknowledged().items():
        if sent.delay_s and name not in copies:
            yield f"{name}, delayed by {sent.delay_s} s, was acknowledged and never delivered: {sent}"


def read_queues(address: str) -> list[Record]:
    """Everything in the queues of both topics, as a consumer gets it from offset 0 on."""
    records: list[Record] = []
    with Connection(address, 20.0) as connection:
        for topic in (PROMPT, LATER):
            for queue_id in range(QUEUE_COUNT):
                offset = 0
                while True:
                    request = pull_request(topic, Queue("broker-a", queue_id), offset, 32, "*", 0)
                    answer = connection.call(request)
                    if answer.code != ResponseCode.SUCCESS:
                        break
                    found = decode_records(answer.body)
                    records += found
                    offset = found[-1].queue_offset + 1
    return records


def read_store(store: Path) -> Iterator[str]:
    """What is wrong in the files of a stopped store: damage in the log, gaps in queues, other queue entries."""
    entries: dict[QueueKey, list[tuple[int, int]]] = defaultdict(list)
    codes: dict[QueueKey, list[int]] = defaultdict(list)
    for found in read_log(find_log_files(store)):
        if isinstance(found, Damage):
            yield str(found)
            continue
        key = found.topic, found.queue_id
        if found.queue_offset != len(entries[key]):
            yield f"{key}: log offset {found.offset} says {found.queue_offset}, not {len(entries[key])}"
        entries[key].append((found.offset, found.size))
        codes[key].append(tags_code(found.properties.get("TAGS")))
    for key, wanted in entries.items():
        directory = store / "consumequeue" / key[0] / str(key[1])
        data = b"".join(path.read_bytes() for path in sorted(directory.glob("[0-9]" * 20))).rstrip(b"\0")
        whole = data.ljust(-(-len(data) // ENTRY_SIZE) * ENTRY_SIZE, b"\0")
        stored = list(unpack_all(whole))
        if [tuple(entry)[:2] for entry in stored] != wanted:
            yield f"{directory} has {len(stored)} entries, the log has {len(wanted)}, or others"
        elif key[0] != names.SCHEDULE_TOPIC and [tuple(entry)[2] for entry in stored] != codes[key]:
            yield f"{directory} has other tag codes than the log"
