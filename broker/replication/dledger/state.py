"""`LedgerState`: topics, groups, offsets of consumers and progress of deliveries as entries of a DLedger group's log.

The leader logs what has changed, in records of a hidden topic; every member applies them in the order of the log once
they are committed. So a new leader has every change that anybody was told of, and has it at once.

    rmq_sys_ROPEWALK_META queue 0      one record: a JSON object of tables, each with the values that changed

    {"topics": {name: config}, "goneTopics": [name],          {"delays": {level: offset},
     "groups": {name: config}, "goneGroups": [name],           "offsets": {"topic@group": {queue id: offset}},
     "forbidden": {group: {topic: bits}},                      "gonePairs": ["topic@group"],
     "goneQueues": {topic: log offset},                        "timers": [read time, queue offset, done]}
     "timing": pending timers by topic, as in code 61,

Values are whole and never differences, so a record that is applied twice changes nothing. Topics, groups and progress
of delays and timers are logged at the end of the turn in which they changed, behind the copies that were delivered in
that turn; offsets together, ten times a second; timers that have only come, and their counts, once a second.

Each leader begins with all of its tables: the last of these records has the tag FULL, and `part` of `parts` in each.
Members replace their tables by them. That is what undoes the changes of a leader that was deposed before they were
committed, and what a start reads: from the last full copy on. A leader makes another one when the records since then
are many and larger than it, and when the log has grown by much since. Every member keeps a full copy in a file too
(`TableSnapshots`): retention removes records, and a start reads from that copy on.

A deleted topic goes on every member with its queues: `goneQueues` has the end of the leader's log at that time. Queues
with a message behind it are of a topic that was created again since. A full copy has all that the log still tells of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, Protocol, TypeVar

import msgspec
import structlog

from broker.context import BrokerContext
from broker.replication.dledger.table_snapshots import TableSnapshot, TableSnapshots
from broker.state.data_version import int_of
from broker.state.groups import SubscriptionGroupConfig
from broker.state.offsets import SEPARATOR
from broker.state.topics import TopicConfig
from broker.timers.timer_service import TimerService
from ropewalk.format import names
from ropewalk.format.dledger.entry import HEAD_SIZE, decode_head
from ropewalk.format.properties import P, encode_properties, tags_code
from ropewalk.format.record import decode_record
from store.append import Message
from store.index.search import read_record
from store.log.commitlog import StoreDamaged
from store.queues.consume_queue import ConsumeQueue
from store.timer.progress import Progress

__all__ = ["LedgerState"]

log = structlog.get_logger("broker.dledger")

Document = dict[str, Any]
_Config = TypeVar("_Config", TopicConfig, SubscriptionGroupConfig)
_Config_co = TypeVar("_Config_co", TopicConfig, SubscriptionGroupConfig, covariant=True)


class _Table(Protocol[_Config_co]):
    """The topics or the groups of a broker."""

    def get(self, name: str) -> _Config_co | None: ...
    def changed_since(self, generation: int) -> list[str] | None: ...
    def __iter__(self) -> Iterator[_Config_co]: ...


OFFSETS_MS: Final = 100
"""How long a commit of a consumer waits for others to be logged with it."""
TIMERS_MS: Final = 1_000
"""How long timers that have come wait to be logged."""
PART_NUMBERS: Final = 20_000
"""How many values a record of a full copy has at most."""
BODY_BYTES_MAX: Final = 1 << 20
"""Size from which a change is split; no entry may have more than 4 MiB."""
RECORDS_MAX: Final = 10_000
"""Records after which a leader considers another full copy."""
GROWTH_MAX: Final = 64 << 20
"""Bytes of log, or the size of a segment if that is less, after which it does so: retention waits for full copies."""
_GROWTH_FACTOR: Final = 16
"""How many times as long as a full copy the log is between two."""
FULL: Final = "FULL"
CHANGE: Final = "CHANGE"
"""The tag of the last record of a full copy, and of all others."""
_FULL_CODE: Final = tags_code(FULL)


class LedgerState:
    """The tables of one member, in step with the log."""

    def __init__(
        self,
        context: BrokerContext,
        follow_delays: Callable[[dict[int, int]], None],
        snapshots: TableSnapshots,
    ) -> None:
        """`follow_delays` has a follower keep how far its leader has delivered."""
        self.snapshots = snapshots
        self._context = context
        self._follow_delays = follow_delays
        self._leads = False
        self._applied = 0
        """The number of the next record to apply."""
        self._parts: list[Document] = []
        """The parts of a full copy that is not complete."""
        self._waiting: list[tuple[str, bytes]] = []
        """(tag, body) of records that wait for room in the log, which come before all others."""
        self._is_full_due = False
        self._full_at = 0
        """The end of the log when the last full copy was made."""
        self._records = self._bytes = self._full_bytes = 0
        """Records and bytes since the last full copy, and its size."""
        self._topics: dict[str, TopicConfig] = {}
        self._groups: dict[str, SubscriptionGroupConfig] = {}
        self._gone_queues: dict[str, int] = {}
        """By deleted topic: the end of the log when it was deleted last."""
        self._forbidden: Document = {}
        """The tables as they were logged last."""
        self._noted: tuple[int, int, int] = (-1, -1, -1)
        """Generations of topics, groups and delays at that time."""
        self._delivered = self._enqueued = self._timing = self._timers_at = 0
        """Counts of timers that were delivered and enqueued when these were logged last, and when their counts were."""
        self._sequence = 0
        """The place in the journal of offsets through which they are logged."""
        self._offsets_at = 0
        self.is_ahead = False
        """Whether this member led, and its tables have changes that no log may have: until the next leader's tables."""
        self.logged_end = 0
        """The log offset behind the last record that this member logged while it led."""

    @property
    def _queue(self) -> ConsumeQueue | None:
        return self._context.store.find_queue(names.META_TOPIC, 0)

    # -- a member ----------------------------------------------------------------------------------------

    def open(self) -> None:
        """Bring the loaded tables in step with the log, through the commit point that is known. Blocks."""
        self._context.offsets.removed = []
        snapshot, queue = self.snapshots.open(), self._queue
        low, high = (queue.min_offset, queue.readable) if queue is not None else (0, 0)
        self._applied = low
        full = next((n for n in self._full_copies(max(low, snapshot.number if snapshot else 0), high)), None)
        if full is not None:
            self._applied = full
        elif snapshot is not None:
            if snapshot.number < low:
                log.error("records of changes are gone that no snapshot has", first=snapshot.number, next=low)
            self._replace(snapshot.tables)
            self._applied = snapshot.number
        self.catch_up()

    def _full_copies(self, low: int, high: int) -> Iterator[int]:
        """Find full copies whose records are all there, the newest first: the number of the first record of each."""
        queue = self._queue
        for number in range(high - 1, low - 1, -1):
            assert queue is not None
            if queue.read(number)[2] == _FULL_CODE:
                first = number + 1 - _parts_of(self._read(queue, number))
                if first >= queue.min_offset:
                    yield first

    def catch_up(self) -> None:
        """Apply the records that can be read, which are those that are committed; a leader has applied its own."""
        queue = self._queue
        if queue is None:
            return
        end = queue.readable
        for number in range(max(self._applied, queue.min_offset), end):
            if queue.read(number)[2] == _FULL_CODE:
                self._keep_full_copy(queue, number)
            if not self._leads:
                self._apply(self._read(queue, number))
        self._applied = max(self._applied, end)

    def _keep_full_copy(self, queue: ConsumeQueue, last: int) -> None:
        """Keep a full copy as a snapshot, if its records are all there; the one with number `last` ends it."""
        first = last + 1 - _parts_of(self._read(queue, last))
        if first < queue.min_offset:
            return
        tables = _joined([self._read(queue, number) for number in range(first, last + 1)])
        tables = {key: value for key, value in tables.items() if key not in ("part", "parts")}
        offset = queue.read(last)[0]
        segment = self._context.store.log.find(offset)
        assert segment is not None, offset
        position = offset - segment.base_offset
        head = decode_head(segment.map[position - HEAD_SIZE : position])
        pos = offset - HEAD_SIZE + head.size
        self.snapshots.keep(TableSnapshot(head.index, head.term, pos, last + 1, tables))

    def _read(self, queue: ConsumeQueue, number: int) -> Document:
        store = self._context.store
        offset = queue.read(number)[0]
        segment = store.log.find(offset)
        record = read_record(segment, offset) if segment is not None else None
        if record is None:
            raise StoreDamaged(f"{names.META_TOPIC}: there is no record at log offset {offset}")
        found = msgspec.json.decode(decode_record(record).body)
        assert isinstance(found, dict), found
        return found

    # -- a follower --------------------------------------------------------------------------------------

    def _apply(self, change: Document) -> None:
        if "parts" not in change:
            self._apply_change(change)
            return
        if change["part"] == 0:
            self._parts = []
        self._parts.append(change)
        if len(self._parts) == change["parts"]:
            self._replace(_joined(self._parts))
            self._parts = []

    def _apply_change(self, change: Document) -> None:
        context, now = self._context, self._context.now_ms()
        if topics := change.get("topics"):
            context.topics.supplement({"topicConfigTable": topics}, now)
        for name in change.get("goneTopics", ()):
            context.topics.delete(name, now)
        self._forget_queues(change)
        if groups := change.get("groups"):
            context.groups.supplement({"subscriptionGroupTable": groups}, now)
        for name in change.get("goneGroups", ()):
            context.groups.delete(name, now)
        if "forbidden" in change:
            context.groups.set_all_forbidden(change["forbidden"], now)
        if topics or change.get("goneTopics"):
            context.topics_changed()
        context.offsets.replace(_pairs(change.get("gonePairs", ())), _offsets(change.get("offsets", {})))
        self._keep_deliveries(change)
        context.offsets.removed = []

    def _replace(self, full: Document) -> None:
        context = self._context
        self.is_ahead = False
        context.topics.adopt(
            {"topicConfigTable": full.get("topics", {}), "dataVersion": full.get("topicsVersion")}
        )
        context.groups.adopt(
            {
                "subscriptionGroupTable": full.get("groups", {}),
                "forbiddenTable": full.get("forbidden", {}),
                "dataVersion": full.get("groupsVersion"),
            }
        )
        self._gone_queues = {}
        self._forget_queues(full)
        context.topics_changed()
        context.offsets.adopt(dict(_offsets(full.get("offsets", {}))))
        self._keep_deliveries(full)
        context.offsets.removed = []

    def _forget_queues(self, change: Document) -> None:
        """Delete queues of deleted topics, as far as their last message is from before the deletion."""
        store = self._context.store
        for topic, end in change.get("goneQueues", {}).items():
            self._gone_queues[topic] = end
            queues = store.queues.get(topic, {}).values()
            if end > store.log.min_offset and any(
                queue.next_offset and queue.max_physical <= end for queue in queues
            ):
                store.delete_topic(topic, lambda _done: None, end)

    def _keep_deliveries(self, change: Document) -> None:
        timers = self._context.timers
        if (progress := change.get("timers")) and timers.enabled:
            timers.hear(Progress(*progress))
        if (timing := change.get("timing")) and timers.enabled:
            timers.metrics.adopt(timing)
        if delays := change.get("delays"):
            levels = {int_of(level, 0): int_of(offset, -1) for level, offset in delays.items()}
            self._follow_delays({level: offset for level, offset in levels.items() if level > 0 <= offset})

    # -- a leader ----------------------------------------------------------------------------------------

    def lead(self) -> None:
        """Begin to log the changes of this member's tables, all of them first."""
        self.catch_up()
        self._sequence = self._context.offsets.journal.sequence
        self._leads = self._is_full_due = True
        self.is_ahead = False

    def follow(self) -> None:
        """Log nothing any more. What was not logged stays until the next leader's tables replace it."""
        self._leads, self.is_ahead = False, True
        self._context.store.deletions = {}
        self._waiting.clear()
        self._parts = []
        self._context.offsets.resets.clear()

    def log_changes(self, *, offsets: bool = False) -> None:
        """Append the changes, before the entries of the turn are proposed; `offsets`: those too, at once. HOT."""
        if not self._leads:
            return
        if not self._waiting:
            self._collect(offsets)
        while self._waiting:
            tag, body = self._waiting[0]
            if not self._append(tag, body):
                return  # without room now: the next turn tries again
            del self._waiting[0]
            self.logged_end = self._context.store.log.end_offset

    def unlogged_commits(self, since_ms: int) -> list[tuple[tuple[str, str, int], int]]:
        """Return the offsets by (topic, group, queue id) that were committed here since a time, and no log has."""
        offsets = self._context.offsets
        changed, _ = offsets.journal.since(self._sequence, 1 << 30)
        return [
            ((topic, group, queue_id), offset)
            for (topic, group, queue_id), time_ms in changed
            if time_ms >= since_ms and (offset := offsets.query(group, topic, queue_id)) is not None
        ]

    def commit_batch(self, batch: Mapping[str, Mapping[str, Mapping[int, int]]]) -> None:
        """Store offsets that followers were told of (`PullCommits`)."""
        context = self._context
        for is_again in (False, True):
            for (topic, group), queues in _offsets(batch["again" if is_again else "offsets"]):
                if topic not in context.topics or group not in context.groups:
                    continue
                for queue_id, offset in queues.items():
                    known = context.offsets.query(group, topic, queue_id)
                    if not (is_again and known is not None and known >= offset):
                        with suppress(ValueError):
                            context.offsets.commit(group, topic, queue_id, offset)

    @property
    def is_logged(self) -> bool:
        """Return whether nothing waits for room in the log."""
        return not self._waiting

    def _collect(self, with_offsets: bool) -> None:
        context = self._context
        if self._needs_full_copy:
            self._collect_all()
            return
        change: Document = {}
        if context.store.deletions:
            change["goneQueues"] = context.store.deletions
            self._note_deletions()
        noted = context.topics.generation, context.groups.generation, context.delays.changed
        if noted != self._noted:
            self._collect_tables(change)
            if noted[2] != self._noted[2]:
                change["delays"] = context.delays.offsets()
            self._noted = noted
        journal, now = context.offsets.journal, context.monotonic_ms()
        if journal.sequence != self._sequence or context.offsets.removed:
            if with_offsets or now - self._offsets_at >= OFFSETS_MS:
                self._offsets_at = now
                self._collect_offsets(change)
        self._collect_timers(change, now)
        if change:
            for body in _bodies(change):
                self._records += 1
                self._bytes += len(body)
                self._waiting.append((CHANGE, body))

    @property
    def _needs_full_copy(self) -> bool:
        if self._is_full_due or (self._records >= RECORDS_MAX and self._bytes > self._full_bytes):
            return True
        log = self._context.store.log
        growth = max(min(GROWTH_MAX, log.segment_size), _GROWTH_FACTOR * self._full_bytes)
        return log.end_offset - self._full_at >= growth

    def log_all(self) -> None:
        """Log a full copy in the next turn."""
        self._is_full_due = True

    def _collect_tables(self, change: Document) -> None:
        """Note the topics and groups that are different since `_noted`, and what is forbidden."""
        context, (topics, groups, _) = self._context, self._noted
        _note_changes(change, "topics", "goneTopics", self._topics, context.topics, topics)
        _note_changes(change, "groups", "goneGroups", self._groups, context.groups, groups)
        if context.groups.forbidden_generation > groups:
            forbidden = {group: dict(topics) for group, topics in context.groups.forbidden()}
            if forbidden != self._forbidden:
                self._forbidden = change["forbidden"] = forbidden

    def _note_deletions(self) -> None:
        self._gone_queues.update(self._context.store.deletions)
        self._context.store.deletions = {}

    def _collect_timers(self, change: Document, now: int) -> None:
        timers = self._context.timers
        delivered = timers.delivered + timers.cancelled
        is_time = now - self._timers_at >= TIMERS_MS
        if delivered != self._delivered or (is_time and timers.enqueued != self._enqueued):
            self._delivered, self._enqueued = delivered, timers.enqueued
            change["timers"] = _progress_of(timers)
        if is_time and timers.metrics.generation != self._timing:
            self._timers_at, self._timing = now, timers.metrics.generation
            change["timing"] = timers.metrics.to_json(self._context.now_ms())

    def _collect_offsets(self, change: Document) -> None:
        offsets = self._context.offsets
        changed, self._sequence = offsets.journal.since(self._sequence, 1 << 30)
        self._sequence = offsets.journal.sequence
        if offsets.removed:
            change["gonePairs"] = [SEPARATOR.join(pair) for pair in dict.fromkeys(offsets.removed)]
            offsets.removed = []
        table: dict[str, dict[int, int]] = {}
        for (topic, group, queue_id), _time_ms in changed:
            offset = offsets.query(group, topic, queue_id)
            if offset is not None:
                table.setdefault(f"{topic}{SEPARATOR}{group}", {})[queue_id] = offset
        if table:
            change["offsets"] = table

    def _collect_all(self) -> None:
        """Make the records of a full copy."""
        context = self._context
        self._is_full_due = False
        self._full_at = context.store.log.end_offset
        self._noted = -1, -1, -1
        self._topics, self._groups = {}, {}
        self._forbidden = {}
        tables: Document = {}
        self._collect_tables(tables)
        self._noted = context.topics.generation, context.groups.generation, context.delays.changed
        context.offsets.removed = []
        self._sequence, self._offsets_at = context.offsets.journal.sequence, context.monotonic_ms()
        self._note_deletions()
        begin = context.store.log.min_offset
        self._gone_queues = {topic: end for topic, end in self._gone_queues.items() if end > begin}
        first: Document = {
            "goneQueues": self._gone_queues,
            "forbidden": self._forbidden,
            "topicsVersion": context.topics.data_version.to_json(),
            "groupsVersion": context.groups.data_version.to_json(),
            "delays": context.delays.offsets(),
            "timers": _progress_of(context.timers),
            "timing": context.timers.metrics.to_json(context.now_ms()),
        }
        parts = [first, *_cut("topics", tables.get("topics", {})), *_cut("groups", tables.get("groups", {}))]
        pairs = {
            f"{topic}{SEPARATOR}{group}": queues
            for topic, group, queues in context.offsets.pairs(len(context.offsets))
        }
        parts += _cut("offsets", pairs)
        self._records = self._bytes = self._full_bytes = 0
        for number, part in enumerate(parts):
            body = msgspec.json.encode({"part": number, "parts": len(parts), **part})
            self._full_bytes += len(body)
            self._waiting.append((FULL if number == len(parts) - 1 else CHANGE, body))

    def _append(self, tag: str, body: bytes) -> bool:
        store = self._context.store
        message: Message = (
            store.queue(names.META_TOPIC, 0), body, encode_properties({P.TAGS: tag}), 0, 0,
            self._context.now_ms(), 0, 0, tags_code(tag),
        )  # fmt: skip
        return bool(store.put([message], store.config.store_host))


def _progress_of(timers: TimerService) -> list[int]:
    progress = timers.progress()
    return [progress.read_ms, progress.queue_offset, progress.done]


def _note_changes(
    change: Document,
    changed: str,
    gone: str,
    known: dict[str, _Config],
    table: _Table[_Config],
    generation: int,
) -> None:
    """Note the values that a table has got since a generation, and the names that it has lost, and know them.

    Its values are replaced and never changed.
    """
    names_changed = table.changed_since(generation)
    if names_changed is None:
        names_changed = [*{**known, **{each.name: None for each in table}}]
    values, names_gone = {}, []
    for name in names_changed:
        if name in names.HIDDEN_TOPICS:
            continue
        each = table.get(name)
        if each is None:
            if known.pop(name, None) is not None:
                names_gone.append(name)
        elif known.get(name) is not each:
            known[name] = each
            values[name] = each.to_json()
    if values:
        change[changed] = values
    if names_gone:
        change[gone] = names_gone


def _parts_of(record: Document) -> int:
    return int(record.get("parts", 1))


def _joined(parts: list[Document]) -> Document:
    """Return the tables of a full copy."""
    full: Document = {}
    for part in parts:
        for key, value in part.items():
            if isinstance(value, dict) and key in full:
                full[key].update(value)
            else:
                full[key] = value
    return full


def _bodies(change: Document) -> Iterator[bytes]:
    """Return the bodies of the records of a change: one, unless it is very large."""
    body = msgspec.json.encode(change)
    if len(body) <= BODY_BYTES_MAX:
        yield body
        return
    large = {key: change.pop(key, {}) for key in ("topics", "groups", "offsets")}
    for part in (change, *(part for key, table in large.items() for part in _cut(key, table))):
        yield msgspec.json.encode(part)


def _cut(key: str, table: Mapping[str, Any]) -> Iterator[Document]:
    """Return a table in pieces of bounded size."""
    piece: Document = {}
    count = 0
    for name, value in table.items():
        piece[name] = value
        count += len(value)
        if count >= PART_NUMBERS:
            yield {key: piece}
            piece, count = {}, 0
    if piece:
        yield {key: piece}


def _pairs(keys: list[str] | tuple[str, ...]) -> list[tuple[str, str]]:
    found = []
    for key in keys:
        topic, _, group = key.partition(SEPARATOR)
        found.append((topic, group))
    return found


def _offsets(
    table: Mapping[str, Mapping[str, int] | Mapping[int, int]],
) -> Iterator[tuple[tuple[str, str], dict[int, int]]]:
    for key, queues in table.items():
        topic, _, group = key.partition(SEPARATOR)
        yield (topic, group), {int(queue_id): offset for queue_id, offset in queues.items()}
