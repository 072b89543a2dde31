"""`SinkLoader`: reading the sinks and the rows of their open batches from the log, at a start and at a promotion.

    1. states   the hidden topic, from its newest table on
    2. rows     the queues of the open sinks' topics, from where the oldest open batch began, and the claims since then;
                both are replayed in the order of the log

Both are jobs of a reader thread over snapshots of queues; `step` starts each when the one before has come back. A job
that the reader refuses, because too many wait, is started again by the next tick.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from broker.sinks.records import CLAIMS, TABLE, apply_states, decode_claims, tag_code_of
from broker.sinks.windows import Sink, SinkTable
from ropewalk.client.core.produce.row_identity import RowIdentity, parse_identity
from ropewalk.codes import MessageSysFlag
from ropewalk.errors import CorruptRecord
from ropewalk.format import names
from ropewalk.format.properties import P
from ropewalk.format.record import decode_record
from store.index.search import read_record
from store.log.commitlog import CommitLog
from store.message_store import MessageStore
from store.queues.consume_queue import FrozenQueue
from store.read.reader import Reader

__all__ = ["STATE_QUEUE", "SinkLoader", "row_in"]

log = structlog.get_logger("broker.sinks")

STATE_QUEUE: Final = 0
_MARK: Final = f"{P.SINK_ROW}\x01".encode()


_Found = tuple[int, str, RowIdentity]
"""A row or a claim: its log offset, its topic, and which row it is."""


class SinkLoader:
    """A single pass over the log for the sinks. `done` tells that it is complete."""

    def __init__(
        self, store: MessageStore, reader: Reader, table: SinkTable, wake: Callable[[], None]
    ) -> None:
        """`table` is filled; `wake` has `step` called again soon."""
        self.done = False
        self._store = store
        self._reader = reader
        self._table = table
        self._wake = wake
        self._end = store.log.end_offset
        self._has_states = False
        self._busy = False

    def step(self) -> None:
        """Start the next job, if none is under way and all that it reads is readable."""
        if self._busy or self.done or self._store.readable_offset < self._end:
            return
        self._busy = True
        store, log_ = self._store, self._store.log
        if not self._has_states:
            queue = store.find_queue(names.SINK_TOPIC, STATE_QUEUE)
            if queue is None or queue.readable == queue.min_offset:
                self.done = True
                return
            frozen = queue.frozen()
            self._reader.run(lambda: _read_states(frozen, log_), self._have_states, self._refused)
            return
        sinks = [sink for sink in self._table.sinks.values() if sink.is_open]
        if not sinks:
            self.done = True
            return
        since = min(sink.since for sink in sinks)
        topics = {names.SINK_TOPIC}.union(*(sink.topics for sink in sinks))
        queues = [
            (topic, queue.frozen())
            for topic in sorted(topics)
            for queue in store.queues.get(topic, {}).values()
        ]
        self._reader.run(lambda: _read_rows(queues, log_, since), self._have_rows, self._refused)

    def _have_states(self, sinks: dict[str, Sink]) -> None:
        if not self._has_states:
            self._table.sinks.update(sinks)
            self._has_states, self._busy = True, False
            self._wake()

    def _have_rows(self, rows: list[_Found]) -> None:
        for offset, topic, row in rows:
            sink = self._table.sinks.get(row.sink_id)
            if sink is not None and offset >= sink.since:
                self._table.restore(row, is_claim=topic == names.SINK_TOPIC)
        self.done = True
        self._wake()

    def _refused(self, _result: None) -> None:
        self._busy = False


def _record_at(commit_log: CommitLog, offset: int) -> bytes | None:
    segment = commit_log.find(offset)
    return read_record(segment, offset) if segment is not None else None


def _read_states(queue: FrozenQueue, commit_log: CommitLog) -> dict[str, Sink]:
    """Return the sinks by the records of the hidden topic. Blocks."""
    table, claims = tag_code_of(TABLE), tag_code_of(CLAIMS)
    first = queue.min_offset
    for number in range(queue.readable - 1, first - 1, -1):
        if queue.read(number)[2] == table:
            first = number
            break
    sinks: dict[str, Sink] = {}
    for number in range(first, queue.readable):
        offset, _, tag = queue.read(number)
        data = _record_at(commit_log, offset) if tag != claims else None
        if data is None:
            continue
        try:
            apply_states(sinks, decode_record(data).body)
        except (CorruptRecord, ValueError) as exc:
            log.error("a record of the sinks' states cannot be read", queue_offset=number, reason=str(exc))
    return sinks


def _read_rows(queues: list[tuple[str, FrozenQueue]], commit_log: CommitLog, since: int) -> list[_Found]:
    """Return the rows and the claims of sinks in these queues from a log offset on, in the log's order. Blocks."""
    found: list[_Found] = []
    claims = tag_code_of(CLAIMS)
    for topic, queue in queues:
        low, high = queue.min_offset, queue.readable
        while low < high:
            middle = (low + high) // 2
            if queue.read(middle)[0] < since:
                low = middle + 1
            else:
                high = middle
        for number in range(low, queue.readable):
            offset, _, tag = queue.read(number)
            is_hidden = topic == names.SINK_TOPIC
            data = _record_at(commit_log, offset) if tag == claims or not is_hidden else None
            if data is None:
                continue
            if is_hidden:
                found += [(offset, topic, row) for row in _claims_in(data, number)]
            elif (row := row_in(data)) is not None:
                found.append((offset, topic, row))
    found.sort(key=lambda one: one[0])
    return found


def _claims_in(record: bytes, number: int) -> list[RowIdentity]:
    try:
        return decode_claims(decode_record(record).body)
    except (CorruptRecord, ValueError) as exc:
        log.error("a record of the sinks' claims cannot be read", queue_offset=number, reason=str(exc))
        return []


def row_in(record: bytes) -> RowIdentity | None:
    """Return the identity of the row that a record holds; None if it is of no sink. HOT: once for each row.

    Only the property is read, which stands behind the body: a third of the time that decoding the record takes.
    """
    at = record.rfind(_MARK)
    flags = record[39]
    hosts = 12 * (bool(flags & MessageSysFlag.BORN_HOST_V6) + bool(flags & MessageSysFlag.STORE_HOST_V6))
    body_at = 88 + hosts
    if at < body_at + int.from_bytes(record[body_at - 4 : body_at], "big"):
        return None
    value = record[at + len(_MARK) :].partition(b"\x02")[0]
    return parse_identity(value.decode("utf-8", "replace"))
