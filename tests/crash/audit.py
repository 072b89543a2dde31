"""What a broker still has after a crash, against what the ledger says it promised.

Two ways to look. `Audit.pull` asks a running broker as a consumer would, and remembers what it saw, so that a later
look can tell whether something changed. `Audit.offline` reads the files of a stopped one: the log with the reader of
`ropewalk store`, and every queue file against the log.

Nothing here raises for what it finds: it returns violations, because a test that plants a bug wants to see them.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from ropewalk.client.blocking.connection import Connection
from ropewalk.client.blocking.simple import Client
from ropewalk.client.core.messages import command_of, pull_request
from ropewalk.client.core.routes import Queue
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import CorruptRecord, RopewalkError
from ropewalk.format.headers import (
    GetMaxOffsetHeader,
    OffsetResponseHeader,
    PullResponseHeader,
    QueryConsumerOffsetHeader,
    QueueHeader,
    decode_header,
)
from ropewalk.format.properties import P, tags_code
from ropewalk.format.queue_entry import ENTRY_SIZE, unpack_all
from ropewalk.format.record import Record, decode_records
from store.offline.reader import Damage, find_log_files, read_log
from tests.crash.load import GROUP, QUEUE_COUNT, STEADY_TOPIC, Ledger, Sent, body_of, id_in

COMMIT_SLACK_S = 2.0
"""How much older than one round of saving a committed offset must be before its loss counts."""
_PULL_COUNT = 1024
_TIMEOUT_S = 20.0

QueueKey = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was broken: which one, and what exactly was seen."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


@dataclass
class Audit:
    """One store's history as its consumers saw it."""

    ledger: Ledger
    excused: set[str] = field(default_factory=set)
    """Ids whose bytes the test itself damaged: they may be gone, and may not be served."""
    violations: list[Violation] = field(default_factory=list)
    _seen: dict[QueueKey, list[str]] = field(default_factory=lambda: defaultdict(list))
    _log_ends: dict[QueueKey, int] = field(default_factory=dict)
    _last_number: dict[tuple[QueueKey, str], int] = field(default_factory=dict)
    _committed: dict[int, int] = field(default_factory=dict)

    def report(self, kind: str, text: str) -> None:
        self.violations.append(Violation(kind, text))

    @property
    def kinds(self) -> set[str]:
        return {violation.kind for violation in self.violations}

    # -- a running broker ----------------------------------------------------------------------------

    def pull(self, address: str, namesrv: str, *, again: bool = False) -> None:
        """Read what is new since the last look, or with `again` everything, and hold it against the ledger."""
        known, fresh = self._seen, self
        if again:
            fresh = Audit(self.ledger, self.excused, self.violations)
        keys = sorted({(entry.topic, entry.queue_id) for entry in self.ledger.sent.values()})
        with Connection(address, _TIMEOUT_S) as connection:
            for key in keys:
                fresh._pull_queue(connection, key)
        fresh._check_acknowledged()
        self._check_routes(namesrv)
        if again:
            for key, ids in known.items():
                now = fresh._seen[key][: len(ids)]
                if now != ids:
                    where = next(
                        (n for n, pair in enumerate(zip(ids, now, strict=False)) if pair[0] != pair[1]),
                        len(now),
                    )
                    self.report("changed", f"{key}: other messages from offset {where} on than before")

    def _pull_queue(self, connection: Connection, key: QueueKey) -> None:
        topic, queue_id = key
        if (low := self._ask(connection, RequestCode.GET_MIN_OFFSET, QueueHeader(topic, queue_id))) is None:
            return
        high = self._ask(connection, RequestCode.GET_MAX_OFFSET, GetMaxOffsetHeader(topic, queue_id))
        if low != 0:
            self.report("gap", f"{key} begins at {low}, nothing was ever deleted")
        seen = self._seen[key]
        if high is not None and high < len(seen):
            self.report("lost", f"{key} ends at {high}, it had {len(seen)} messages before")
            return
        while True:
            offset = len(seen)
            request = pull_request(topic, Queue("broker", queue_id), offset, _PULL_COUNT, "*", 0)
            answer = connection.call(request)
            if answer.code != ResponseCode.SUCCESS:
                if answer.code != ResponseCode.PULL_NOT_FOUND or offset != high:
                    self.report(
                        "gap", f"{key}: no message at {offset} of {high}: {answer.code} {answer.remark or ''}"
                    )
                return
            try:
                records = decode_records(answer.body)
            except CorruptRecord as exc:
                self.report("damaged", f"{key}: what a pull at {offset} brought cannot be read: {exc}")
                return
            for record in records:
                if record.queue_offset != len(seen):
                    self.report("gap", f"{key}: offset {record.queue_offset} where {len(seen)} should be")
                    return
                self._check_record(record, key)
            following = decode_header(PullResponseHeader, answer.ext).next_begin_offset
            if following != len(seen):
                self.report("gap", f"{key}: told to go on at {following} behind {len(seen) - 1}")
                return

    def _ask(self, connection: Connection, code: int, header: QueueHeader | GetMaxOffsetHeader) -> int | None:
        answer = connection.call(command_of(code, header))
        if answer.code == ResponseCode.SUCCESS:
            return decode_header(OffsetResponseHeader, answer.ext).offset
        if any(entry.acknowledged for entry in self._entries(header.topic, header.queue_id)):
            self.report(
                "topic", f"{header.topic} is not served any more: {answer.code} {answer.remark or ''}"
            )
        return None

    def _entries(self, topic: str, queue_id: int) -> list[Sent]:
        return [e for e in self.ledger.sent.values() if (e.topic, e.queue_id) == (topic, queue_id)]

    def _check_record(self, record: Record, key: QueueKey) -> None:
        """One record at the next place of its queue."""
        seen = self._seen[key]
        place = f"{key} offset {record.queue_offset} (log offset {record.offset})"
        named = id_in(record.body)
        entry = self.ledger.sent.get(named[0]) if named is not None else None
        if named is None or entry is None:
            seen.append("?")
            self.report("unknown", f"{place}: a message that nobody sent: {record.body[:40]!r}")
            return
        message_id, size = named
        seen.append(message_id)
        if record.body != body_of(message_id, size):
            self.report("damaged", f"{place}: the body of {message_id} is not what was sent")
        properties = record.properties
        wanted = {P.UNIQ_KEY: message_id, P.TAGS: entry.tags, P.KEYS: message_id.lower()}
        if any(properties.get(name) != value for name, value in wanted.items()):
            self.report("damaged", f"{place}: the properties of {message_id} are {properties}")
        if (record.topic, record.queue_id) != key or (entry.topic, entry.queue_id) != key:
            self.report("moved", f"{place}: {message_id} was sent to {entry.topic} {entry.queue_id}")
        if entry.refused:
            self.report("refused", f"{place}: {message_id} is here, and its producer was told that it is not")
        if entry.acknowledged and (entry.queue_offset, entry.log_offset) != (
            record.queue_offset,
            record.offset,
        ):
            self.report(
                "moved",
                f"{place}: {message_id} was acknowledged at {entry.queue_offset} ({entry.log_offset})",
            )
        if record.offset < self._log_ends.get(key, 0):
            self.report("order", f"{place}: stands in the log before the message before it")
        self._log_ends[key] = record.offset + record.size
        if self._last_number.get((key, entry.producer), 0) >= entry.number:
            self.report("order", f"{place}: {message_id} comes again, or after a later one of its producer")
        self._last_number[key, entry.producer] = entry.number

    def _check_acknowledged(self) -> None:
        places: dict[str, tuple[QueueKey, int]] = {}
        for key, ids in self._seen.items():
            for offset, message_id in enumerate(ids):
                if message_id in places and message_id != "?":
                    self.report("twice", f"{message_id} is at {places[message_id]} and at {(key, offset)}")
                places[message_id] = key, offset
        for message_id, entry in self.ledger.sent.items():
            if entry.acknowledged and message_id not in places and message_id not in self.excused:
                self.report(
                    "lost",
                    f"{message_id} was acknowledged at {entry.topic} {entry.queue_id} offset "
                    f"{entry.queue_offset} (log offset {entry.log_offset}), and is not there",
                )

    def _check_routes(self, namesrv: str) -> None:
        """Every topic with an acknowledged message is in the name server, with the queues it needs."""
        needed: dict[str, int] = {}
        for entry in self.ledger.sent.values():
            if entry.acknowledged:
                needed[entry.topic] = max(needed.get(entry.topic, 0), entry.queue_id)
        with Client(namesrv, timeout=_TIMEOUT_S) as client:
            for topic, highest in sorted(needed.items()):
                try:
                    queues = client.read_queues(topic)
                except RopewalkError as exc:
                    self.report("topic", f"{topic} has no route: {exc}")
                    continue
                if highest not in {queue.queue_id for queue in queues}:
                    self.report("topic", f"{topic}: its route lacks queue {highest}: {queues}")

    def commits(self, address: str, killed_at: float | None, save_interval_s: float) -> None:
        """Committed offsets: none older than one round of saving is lost. `killed_at` None: none at all is."""
        with Connection(address, _TIMEOUT_S) as connection:
            for queue_id in range(QUEUE_COUNT):
                header = QueryConsumerOffsetHeader(GROUP, STEADY_TOPIC, queue_id)
                answer = connection.call(command_of(RequestCode.QUERY_CONSUMER_OFFSET, header))
                now = 0
                if answer.code == ResponseCode.SUCCESS:
                    now = decode_header(OffsetResponseHeader, answer.ext).offset
                elif answer.code != ResponseCode.QUERY_NOT_FOUND:
                    self.report("topic", f"offsets of {STEADY_TOPIC}: {answer.code} {answer.remark or ''}")
                horizon = (
                    time.monotonic() if killed_at is None else killed_at - save_interval_s - COMMIT_SLACK_S
                )
                durable = [offset for at, offset in self.ledger.commits.get(queue_id, []) if at <= horizon]
                floor = max([self._committed.get(queue_id, 0), *durable])
                if not floor <= now <= self.ledger.tried.get(queue_id, 0):
                    self.report(
                        "commit",
                        f"queue {queue_id}: committed offset {now}, it must be at least {floor} and no more than "
                        f"{self.ledger.tried.get(queue_id, 0)}",
                    )
                self._committed[queue_id] = now

    # -- a stopped broker ----------------------------------------------------------------------------

    def offline(self, store: Path) -> None:
        """Read the files of a broker that was stopped in good order: every byte of them is accounted for."""
        fresh = Audit(self.ledger, self.excused, self.violations)
        entries: dict[QueueKey, list[tuple[int, int, int]]] = defaultdict(list)
        for found in read_log(find_log_files(store)):
            if isinstance(found, Damage):
                self.report("damaged", str(found))
                continue
            key = (found.topic, found.queue_id)
            if found.queue_offset != len(entries[key]):
                self.report(
                    "gap",
                    f"{key}: log offset {found.offset} has queue offset {found.queue_offset}, not {len(entries[key])}",
                )
            entries[key].append((found.offset, found.size, tags_code(found.properties.get(P.TAGS))))
            fresh._check_record(found, key)
        fresh._check_acknowledged()
        for key, wanted in entries.items():
            directory = store / "consumequeue" / key[0] / str(key[1])
            data = b"".join(path.read_bytes() for path in sorted(directory.glob("[0-9]" * 20))).rstrip(b"\0")
            whole = data.ljust(-(-len(data) // ENTRY_SIZE) * ENTRY_SIZE, b"\0")
            stored = [tuple(entry) for entry in unpack_all(whole)]
            if stored != wanted:
                self.report(
                    "queue-file",
                    f"{directory} has {len(stored)} entries, the log says {len(wanted)}, or others",
                )
