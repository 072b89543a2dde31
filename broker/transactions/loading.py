"""`Loader`: finding out which transactions are open, from the log, once: at a start and at a promotion.

    1. locate    where to begin: the half queue's consumer offset, and the first operation record behind that half
    2. ops       all operation records from there: which half records are done with
    3. halves    all half records from there to the end of that moment; open is a transaction whose newest record is
    4. commits   the last seconds of the queues into which open halves would be committed

An operation record always lies behind the half records that it names. So the operation queue is read from the place of
the first half record, whatever its own consumer offset says, and the two offsets need not fit together.

After a promotion the half queue is read from some minutes earlier: the master's offset may have come here before the
copies that made it rise. What is found twice is one transaction, what was decided is named by its operation record; so
to begin too early costs reads and nothing else.

A crash can keep a commit and take the operation record that belongs to it: RocketMQ writes those up to three seconds
later. Such a commit is found in the end of its queue, and the transaction is decided.

Copies are told by `Half.first`. Those that RocketMQ made have no such property: they are told by the unique key, the
time of birth, the group and the body of the half before, and by having been checked more often.

Reads go through `Reader`: from memory at once, from the disk later, and `step` carries on when they are there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import structlog

from broker.transactions.records import HALF_QUEUE, Half, half_of, op_offsets
from ropewalk.codes import MessageSysFlag
from ropewalk.errors import CorruptRecord
from ropewalk.format import names
from ropewalk.format.properties import P
from ropewalk.format.record import Record, decode_record
from store.message_store import MessageStore
from store.queues.consume_queue import ConsumeQueue, FrozenQueue
from store.read.reader import Reader
from store.read.results import GetResult
from store.read.store_times import offset_by_time, store_time

__all__ = ["Loader"]

log = structlog.get_logger("broker.transactions")

LOOK_BACK_MS = 600_000
LOOK_BACK_MAX = 100_000
"""How far before the half queue's consumer offset a promotion begins, at most: time, and half records."""
COMMITS_MS = 10_000
COMMITS_MAX = 20_000
"""How much of the end of each queue is searched for commits: time before the last message, and messages."""
_BATCH = 32
_BATCH_BYTES_MAX = 4 << 20
_STEPS_MAX = 64
"""Batches read in one turn while all of it is in memory."""


def _first_behind(queue: FrozenQueue, log_offset: int) -> int:
    """Return the offset of a queue's first entry whose record lies behind `log_offset`. Blocks."""
    low, high = queue.min_offset, queue.readable
    while low < high:
        middle = (low + high) // 2
        if queue.read(middle)[0] <= log_offset:
            low = middle + 1
        else:
            high = middle
    return low


class _Identity(NamedTuple):
    """The identity of a transaction: equal in its half message, the copies of that and the committed message."""

    unique_key: str
    born_ms: int
    group: str
    body_crc: int


def _identity_of(record: Record) -> _Identity:
    group = record.properties.get(P.PGROUP, "")
    return _Identity(record.uniq_key or "", record.born_timestamp, group, record.body_crc)


class Loader:
    """A single pass over the half and operation queues, for open transactions. `done` tells that it is complete."""

    def __init__(
        self,
        store: MessageStore,
        reader: Reader,
        progress: int | None,
        *,
        promoted: bool,
        wake: Callable[[], None],
    ) -> None:
        """`progress` is the half queue's consumer offset, if there is one; `wake` has `step` called again soon."""
        self.done = False
        self.halves: dict[int, Half] = {}
        """Open transactions by their first record, once it is done."""
        self.committed: list[Half] = []
        """Half messages whose commit is stored while their operation record is not."""
        self.low = 0
        """Queue offset of the first half record that was read."""
        self.ops: list[tuple[int, list[int]]] = []
        """Operation records that were read: queue offset, and the half offsets in it."""
        self.op_low = 0
        self._store = store
        self._reader = reader
        self._promoted = promoted
        self._wake = wake
        self._decided: set[int] = set()
        self._known: dict[_Identity, Half] = {}
        self._commits: deque[tuple[ConsumeQueue, int]] | None = None
        """Queues to search for commits, and where to go on in each; None before they are known."""
        self._committed: set[_Identity] = set()
        self._busy = False
        self._half_queue = store.find_queue(names.TRANS_HALF_TOPIC, HALF_QUEUE)
        self._op_queue = store.find_queue(names.TRANS_OP_HALF_TOPIC, HALF_QUEUE)
        self._located = False
        self.end = self._half_queue.next_offset if self._half_queue is not None else 0
        """Behind the last half record that is read: later ones are made by this process."""
        self._op_end = self._op_queue.next_offset if self._op_queue is not None else 0
        self._next = self._op_next = 0
        if self._half_queue is not None:
            low = progress if progress is not None else self._half_queue.min_offset
            self._next = min(max(low, self._half_queue.min_offset), self.end)

    def step(self) -> None:
        """Carry on, as far as it can be without waiting and within one turn."""
        for _ in range(_STEPS_MAX):
            if self._busy or self.done:
                return
            if not self._located:
                self._locate()
            elif self._op_next < self._op_end:
                self._read(self._op_queue, self._op_next, self._have_ops)
            elif self._next < self.end:
                self._read(self._half_queue, self._next, self._have_halves)
            elif self._commits is None:
                self._locate_commits()
            elif self._commits:
                queue, offset = self._commits[0]
                self._read(queue, offset, self._have_commits)
            else:
                self._finish()
        self._wake()

    def _locate(self) -> None:
        halves, ops = self._half_queue, self._op_queue
        if halves is None or (self._next == self.end and not self._promoted) or not self.end:
            # Whatever the operation records say is about halves that are done with.
            self.low, self._op_next, self.op_low, self._located = self._next, self._op_end, self._op_end, True
            return
        if halves.readable < self.end or (ops is not None and ops.readable < self._op_end):
            self._busy = True  # until `retry`
            return
        frozen, frozen_ops = halves.frozen(), ops.frozen() if ops is not None else None
        start, end, promoted, commit_log = self._next, self.end, self._promoted, self._store.log

        def find() -> tuple[int, int]:
            first = start
            if promoted:
                since = store_time(frozen, commit_log, min(start, end - 1)) - LOOK_BACK_MS
                first = min(start, max(offset_by_time(frozen, commit_log, since), start - LOOK_BACK_MAX))
            first = max(first, frozen.min_offset)
            if frozen_ops is None or first >= frozen.readable:
                return first, self._op_end
            return first, _first_behind(frozen_ops, frozen.read(first)[0])

        def found(places: tuple[int, int]) -> None:
            if self._located:
                return
            self._busy = False
            self._located = True
            self._next, self._op_next = places
            self.low, self.op_low = places
            self._wake()

        self._busy = True
        self._reader.run(find, found, self._refused)

    def _refused(self, _result: None) -> None:
        """Leave it to the next tick: too many reads wait, or the disk could not."""

    def retry(self) -> None:
        """Try again the reads that the reader refused, or that met records not readable yet; for ticks."""
        self._busy = False
        self.step()

    def _read(
        self, queue: ConsumeQueue | None, offset: int, have: Callable[[int, GetResult | None], None]
    ) -> None:
        assert queue is not None
        self._busy = True
        self._reader.get(
            queue,
            offset,
            _BATCH,
            _BATCH_BYTES_MAX,
            None,
            lambda result: have(offset, result),
            deferrable=False,
        )

    def _have_ops(self, asked: int, result: GetResult | None) -> None:
        if asked != self._op_next:
            return  # read twice, because the first read took longer than a tick
        records = self._records(result, asked)
        if records is None or result is None:
            return
        for record in records:
            offsets = op_offsets(record)
            self._decided.update(offset for offset in offsets if offset >= self.low)
            self.ops.append((record.queue_offset, offsets))
        self._op_next = result.next_offset
        self._busy = False

    def _have_halves(self, asked: int, result: GetResult | None) -> None:
        if asked != self._next:
            return
        records = self._records(result, asked)
        if records is None or result is None:
            return
        for record in records:
            if record.queue_offset < self.end:
                self._have_half(record)
        self._next = result.next_offset
        self._busy = False

    def _have_half(self, record: Record) -> None:
        half, identity = half_of(record), _identity_of(record)
        before = self._known.get(identity)
        if before is not None and half.first == half.offset and before.checks < half.checks:
            half.first, half.since_ms = before.first, min(half.since_ms, before.since_ms)
        self._known[identity] = half
        self.halves[half.first] = half

    # -- commits without an operation record -----------------------------------------------------------

    def _locate_commits(self) -> None:
        """Find the queues that open halves would be committed to, and where the last seconds of each begin."""
        self.halves = {first: half for first, half in self.halves.items() if half.offset not in self._decided}
        self._known = {i: half for i, half in self._known.items() if self.halves.get(half.first) is half}
        queues = dict.fromkeys(
            queue
            for half in self.halves.values()
            if (queue := self._store.find_queue(half.topic, half.queue_id)) is not None and queue.readable
        )
        since = self._store.recovered.last_store_timestamp
        frozen = [(queue, queue.frozen()) for queue in queues]
        commit_log = self._store.log
        if not frozen:
            self._commits = deque()
            return

        def find() -> list[tuple[ConsumeQueue, int]]:
            found = []
            for queue, entries in frozen:
                last = store_time(entries, commit_log, entries.readable - 1)
                start = offset_by_time(entries, commit_log, max(since, last) - COMMITS_MS)
                found.append((queue, max(start, entries.readable - COMMITS_MAX)))
            return found

        def found(places: list[tuple[ConsumeQueue, int]]) -> None:
            self._busy = False
            if self._commits is None:
                self._commits = deque((queue, offset) for queue, offset in places if offset < queue.readable)
                self._wake()

        self._busy = True
        self._reader.run(find, found, self._refused)

    def _have_commits(self, asked: int, result: GetResult | None) -> None:
        if not self._commits or self._commits[0][1] != asked:
            return
        records = self._records(result, asked)
        if records is None or result is None:
            return
        for record in records:
            if record.sys_flag & MessageSysFlag.TRANSACTION_MASK == MessageSysFlag.TRANSACTION_COMMIT:
                self._committed.add(_identity_of(record))
        queue, _ = self._commits.popleft()
        if result.next_offset < queue.readable:
            self._commits.appendleft((queue, result.next_offset))
        self._busy = False

    def _records(self, result: GetResult | None, asked: int) -> list[Record] | None:
        """Return the records of a read; None if there was none, and it is to be tried again."""
        if result is None or result.next_offset <= asked:
            return None
        found: list[Record] = []
        for piece in map(bytes, result.records):
            position = 0
            while position < len(piece):
                size = int.from_bytes(piece[position : position + 4], "big")  # the reader has checked it
                try:
                    found.append(decode_record(piece, position))
                except CorruptRecord as exc:
                    log.error("a record of a transaction cannot be read", reason=str(exc))
                position += size
        return found

    def _finish(self) -> None:
        self.committed = [half for identity, half in self._known.items() if identity in self._committed]
        self._decided.clear()
        self._known.clear()
        self.done = True
