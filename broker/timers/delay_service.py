"""Delayed messages: put off into the queue of their level, and put back when they are due.

    send, DELAY=3  ->  SCHEDULE_TOPIC_XXXX queue 2: REAL_TOPIC, REAL_QID, tag code = time of delivery
    10 s later     ->  a copy in REAL_TOPIC queue REAL_QID, and the level's next offset moves on

`place` decides where a message goes. `run` is the delivery service: called several times a second, it looks at the
first waiting entry of each level, reads what is due through the `Reader` (cold bytes come later, from its threads),
appends copies and moves on. It reads no clock but the one it is given, and never waits. How far each level has come
is `offsets()`; `delay_progress` keeps that, so that a crash neither loses nor repeats.

A copy is the waiting record with everything it had: body, flags, born time and host, retries, and its property text
as it stands, so also DELAY, REAL_TOPIC and REAL_QID, as the original leaves them. Nobody may put it off again for
that. Only the tag code is made anew, and `__CRC32#` goes: it was of the other record.

Times are of the wall clock. An entry whose time lies further ahead than its level allows is due at once: the clock
was set back, or the table made shorter. The slack keeps a clock that is only trimmed from making messages early.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby

import structlog

from broker.state.statistics import Statistics
from broker.state.topics import TopicTable
from broker.timers.real_place import described, real_place
from ropewalk.errors import CorruptRecord
from ropewalk.format import names
from ropewalk.format.properties import P, encode_properties, find_property, parse_properties, tags_code
from ropewalk.format.queue_entry import ENTRY
from ropewalk.format.record import Record, decode_record, encode_host, record_size
from store.append import Message
from store.message_store import MessageStore
from store.queues.consume_queue import ConsumeQueue
from store.read.reader import Reader
from store.read.results import GetResult
from store.recovery.delay_levels import DelayLevels

log = structlog.get_logger("broker.schedule")

CONSUMER_GROUP = "SCHEDULE_CONSUMER"
"""Under this name statistics tell what was taken out of the delay topic."""

_BATCH = 32
_BATCH_BYTES_MAX = 4 << 20
_STEPS_MAX = 16
"""Batches of one run; what is left has the next turn, with other people's requests in between."""
_RETRY_MS = 100
_FULL_RETRY_MS = 1_000
_CLOCK_SLACK_MS = 1_000
_FORBIDDEN = (names.SCHEDULE_TOPIC, names.TRANS_HALF_TOPIC)


@dataclass(slots=True)
class _Line:
    """The queue of one level, and how far it has been delivered."""

    queue: ConsumeQueue
    delay_ms: int | None
    """None for a level that the table had when its messages came, and has no more."""
    offset: int
    """The next message to deliver."""
    wake_ms: int = 0
    """Nothing is to be done for it before this time."""
    reading: bool = False


@dataclass(slots=True)
class Delivery:
    """The outcome of a batch: copies to append, and which record each is of."""

    messages: list[tuple[int, bytes, Message]] = field(default_factory=list)
    """(queue offset of the waiting record, its born host, the copy)"""
    skipped: list[str] = field(default_factory=list)
    """Why a record has no copy, and never will have."""


class DelayService:
    def __init__(
        self,
        levels: DelayLevels,
        store: MessageStore,
        reader: Reader,
        topics: TopicTable,
        statistics: Statistics,
        now_ms: Callable[[], int],
    ) -> None:
        self.changed = 0
        """Rises with every message that was delivered or given up."""
        self.delivered = 0
        self._levels = levels
        self._store = store
        self._reader = reader
        self._topics = topics
        self._statistics = statistics
        self._clock = now_ms
        self._seen_ms = 0
        self._lines: dict[int, _Line] = {}  # by queue id
        self._loaded: dict[int, int] = {}

    # -- in ------------------------------------------------------------------------------------------

    def place(self, queue: ConsumeQueue, properties: dict[str, str]) -> tuple[ConsumeQueue, int]:
        """Return the queue that a message for `queue` is stored in, and its tag code: here, or in the queue of its
        level.

        What it has to carry while it waits is added to `properties`. Raises ValueError for a level that is no number.
        """
        level = self._levels.level_of(properties.get(P.DELAY))
        if not level:
            return queue, tags_code(properties.get(P.TAGS))
        for name in (P.TIMER_DELAY_SEC, P.TIMER_DELAY_MS, P.TIMER_DELIVER_MS):
            properties.pop(name, None)  # one delay is enough, and this one wins
        properties[P.DELAY] = str(level)
        properties[P.REAL_TOPIC] = queue.topic
        properties[P.REAL_QID] = str(queue.queue_id)
        due_ms = self._time_ms() + self._levels.delay_ms(level)
        return self._store.queue(names.SCHEDULE_TOPIC, level - 1), due_ms

    def _time_ms(self) -> int:
        """The time of this turn, in which what is appended now is stored.

        Where the clock was set back it is the clock's: the store's time stands still then, and waiting would not end.
        """
        return min(self._store.now, self._clock())

    # -- how far we are ------------------------------------------------------------------------------

    def load(self, offsets: Mapping[int, int]) -> None:
        """Take over the next offset of each level, before the first `run`."""
        self._loaded = dict(offsets)
        self._discover()

    def follow(self, offsets: Mapping[int, int]) -> None:
        """Take over a master's progress; its slave delivers nothing itself."""
        self._lines.clear()
        self._loaded = dict(offsets)

    def offsets(self) -> dict[int, int]:
        """Level -> the queue offset of the next message to deliver."""
        here = {queue_id + 1: line.offset for queue_id, line in self._lines.items()}
        return {**self._loaded, **here}

    def _discover(self) -> None:
        for queue_id, queue in self._store.queues.get(names.SCHEDULE_TOPIC, {}).items():
            if queue_id not in self._lines:
                known = queue_id < len(self._levels.delays_ms)
                delay_ms = self._levels.delay_ms(queue_id + 1) if known else None
                offset = min(max(self._loaded.get(queue_id + 1, 0), queue.min_offset), queue.next_offset)
                self._lines[queue_id] = _Line(queue, delay_ms, offset)

    # -- out -----------------------------------------------------------------------------------------

    def due(self, now_ms: int) -> list[_Line]:
        """The levels in which something may be due."""
        if len(self._store.queues.get(names.SCHEDULE_TOPIC, ())) != len(self._lines):
            self._discover()
        if (
            now_ms < self._seen_ms
        ):  # the clock was set back: what we know about times to come is worth nothing
            for line in self._lines.values():
                line.wake_ms = 0
        self._seen_ms = now_ms
        return [
            line
            for line in self._lines.values()
            if line.wake_ms <= now_ms and line.offset < line.queue.readable and not line.reading
        ]

    def run(self) -> bool:
        """Deliver due messages, a bounded number of them. Whether there is more to do at once."""
        steps = 0
        while lines := self.due(self._time_ms()):
            if steps >= _STEPS_MAX:
                return True
            for line in lines:
                self._step(line)
            steps += len(lines)
        return False

    def _step(self, line: _Line) -> None:
        """Look at the next entries of a level; `_have_entries` goes on, now or when the disk has answered."""
        queue = line.queue
        line.offset = max(line.offset, queue.min_offset)
        count = min(queue.readable - line.offset, _BATCH)
        line.reading = True
        entries = queue.entries_nowait(line.offset, count)
        if entries is not None:
            self._have_entries(line, entries)
            return
        file, position, size = queue.place(line.offset, count)
        self._reader.run(
            lambda: file.read_at(position, size),
            partial(self._have_entries, line),
            partial(self._have_records, line),
        )

    def _have_entries(self, line: _Line, entries: bytes) -> None:
        now, due = self._time_ms(), 0
        first_ms = 0
        for _offset, _size, due_ms in ENTRY.iter_unpack(entries[: len(entries) // ENTRY.size * ENTRY.size]):
            if line.delay_ms is not None and due_ms > now + line.delay_ms + _CLOCK_SLACK_MS:
                due_ms = now
            if due_ms > now:
                first_ms = due_ms
                break
            due += 1
        if first_ms and not due:
            line.reading = False
            line.wake_ms = first_ms
            return
        # Without any entry the reader finds out what is wrong with the file, and how to get past it.
        have = partial(self._have_records, line)
        self._reader.get(line.queue, line.offset, max(due, 1), _BATCH_BYTES_MAX, None, have, deferrable=False)

    def _have_records(self, line: _Line, result: GetResult | None) -> None:
        """The records of a batch, or None: too many reads wait, or the disk could not; it is tried again."""
        line.reading = False
        if self._store.follows or self._lines.get(line.queue.queue_id) is not line:
            return  # this broker became a slave while the disk was looking: its master delivers
        if result is None or result.next_offset <= line.offset:
            line.wake_ms = self._time_ms() + _RETRY_MS
            return
        delivery = self._copies(line, result)
        start = line.offset
        line.offset = self._append(line, delivery.messages, result.next_offset)
        if line.offset == start:
            return
        self.changed += 1
        missing = line.offset - start - len(delivery.messages) - len(delivery.skipped)
        if missing > 0 and line.offset == result.next_offset:
            delivery.skipped.append(f"{missing} of {start}..{line.offset - 1} cannot be read")
        for reason in delivery.skipped:
            log.error("a delayed message is given up", level=line.queue.queue_id + 1, reason=reason)

    def _copies(self, line: _Line, result: GetResult) -> Delivery:
        delivery = Delivery()
        for piece in map(bytes, result.records):
            position = 0
            while position < len(piece):
                size = int.from_bytes(piece[position : position + 4], "big")  # the reader has checked it
                try:
                    record = decode_record(piece, position)
                    message = self._copy_of(line, record)
                except (CorruptRecord, ValueError) as exc:
                    delivery.skipped.append(str(exc))
                else:
                    delivery.messages.append((record.queue_offset, encode_host(*record.born_host), message))
                position += size
        return delivery

    def _copy_of(self, line: _Line, record: Record) -> Message:
        """Build the message to append for a record whose time has come. Raises ValueError if it has no place to go."""
        topic, queue_id = real_place(record, self._topics, _FORBIDDEN)
        if (record.topic, record.queue_id) != (names.SCHEDULE_TOPIC, line.queue.queue_id):
            raise ValueError(f"{described(record)}: it is of another queue, {record.topic} {record.queue_id}")
        raw = record.raw_properties
        if find_property(raw, P.CRC32.encode()) is not None:
            raw = encode_properties({k: v for k, v in parse_properties(raw).items() if k != P.CRC32})
        size = record_size(len(topic), len(record.body), len(raw), 20, 20)
        if not self._store.log.fits(size):
            raise ValueError(f"{described(record)}: its {size} bytes fit into no segment any more")
        return (
            self._store.queue(topic, self._topics.read_queue(topic, queue_id)),
            record.body,
            raw,
            record.flag,
            record.sys_flag,
            record.born_timestamp,
            record.reconsume_times,
            0,
            tags_code(record.properties.get(P.TAGS)),
        )

    def _append(self, line: _Line, messages: list[tuple[int, bytes, Message]], behind: int) -> int:
        """Append copies in order; the queue offset up to which all of them are stored, at most `behind`."""
        for born_host, group in groupby(messages, lambda item: item[1]):
            run = list(group)
            stored = self._store.put([message for _, _, message in run], born_host)
            self._count([message for _, _, message in run[: len(stored)]])
            if len(stored) < len(run):  # the disk is full
                line.wake_ms = self._time_ms() + _FULL_RETRY_MS
                return run[len(stored)][0]
        return behind

    def _count(self, messages: list[Message]) -> None:
        """Delivered messages are put into their topics, and were got from the delay topic by its one consumer."""
        now = self._store.now
        self.delivered += len(messages)
        by_topic: dict[str, list[int]] = {}
        for queue, body, properties, *_rest in messages:
            size = record_size(len(queue.topic_bytes), len(body), len(properties))
            by_topic.setdefault(queue.topic, []).append(size)
        for topic, sizes in by_topic.items():
            self._statistics.put(topic, now, len(sizes), sum(sizes), sizes=sizes)
            self._statistics.got(names.SCHEDULE_TOPIC, CONSUMER_GROUP, now, len(sizes), sum(sizes))
