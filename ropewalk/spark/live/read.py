"""Run a task of a live topic: read one range of one queue from its broker, and yield record batches.

A task has the addresses its driver saw. If a broker dies or hands its queues to another member, the task asks the
name servers itself and goes on where it was, for as long as `pullTimeoutMs` allows without progress; then it fails,
and Spark tries it again. It never returns less than it was asked for without saying so: a hole in a range is an
error, or is counted and told as a warning where `failOnDataLoss=false`.

Connections outlive tasks, because Spark keeps its Python workers. They belong to one process: a worker is forked from
a daemon, and must not use what the daemon had.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from struct import Struct
from typing import TYPE_CHECKING

from ropewalk.client.blocking.bulk import Chunk, RangeLost, RangeReader, read_range
from ropewalk.client.blocking.connection import Connection
from ropewalk.client.core.addresses import AddressRing
from ropewalk.client.core.connection import Unreachable
from ropewalk.client.core.messages import route_request
from ropewalk.client.core.routes import Queue, parse_route
from ropewalk.client.core.steps import require_success
from ropewalk.codes import ResponseCode
from ropewalk.errors import CorruptRecord, OutcomeUnknown, Rejected, RemoteProtocolError
from ropewalk.format.record import decode_record
from ropewalk.spark.live.offsets import (
    Bounds,
    DataLoss,
    Position,
    QueueKey,
    enforce_losses,
    replaced_messages,
)
from ropewalk.spark.log import log
from ropewalk.spark.options import Options
from ropewalk.spark.rows.schema import Selection
from ropewalk.spark.versions import Stamp, check_stamp, stamp

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Task", "read_task"]

IDLE_S = 300.0
_PLACE = Struct(">i8xi4xq")  # of a record: its size, at 12 its queue, at 20 its queue offset


@dataclass(frozen=True, slots=True)
class Task:
    """A range of one queue, with everything that a worker needs to read it."""

    key: QueueKey
    low: int
    high: int
    address: str
    """The address that served the queue when the driver looked."""
    partition_base: int = 0
    """For the kafka preset: queues of the topic at brokers that sort before this one."""
    last_ms: int | None = None
    """The store time that the last message of the range must have; None where it is not known."""
    made_by: Stamp = field(default_factory=stamp)


def read_task(
    task: Task,
    options: Options,
    selection: Selection,
    *,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task, in the order of the queue."""
    check_stamp(task.made_by)
    finder = _MemberLocator(task, options, monotonic)
    key = task.key
    reader = RangeReader(
        key.topic,
        Queue(key.broker, key.queue_id),
        task.low,
        task.high,
        subscription=options.filter_tags,
        in_flight=options.pull_in_flight,
        count=options.pull_batch_size,
        max_bytes=options.pull_max_bytes,
        skip_lost=not options.fail_on_data_loss,
        bulk=finder.supports_bulk,
    )
    decoder = _Decoder(task, options, selection)
    timeout_s = options.pull_timeout_ms / 1000
    gathered: list[Chunk] = []
    size = 0
    try:
        for chunk in read_range(
            reader,
            finder.connect,
            timeout_s=timeout_s,
            answer_s=min(5.0, timeout_s / 2),
            monotonic=monotonic,
            sleep=sleep,
        ):
            gathered.append(chunk)
            size += len(chunk.body)
            rows = chunk.next - gathered[0].first
            if size >= options.arrow_batch_bytes or rows >= options.arrow_batch_rows:
                yield from decoder.batches(gathered)
                gathered, size = [], 0
        yield from decoder.batches(gathered)
        finder.release(supports_bulk=reader.bulk)
    except RangeLost as exc:
        raise DataLoss(f"{exc}. failOnDataLoss=false goes on without them") from exc
    except Rejected as exc:
        if exc.code != ResponseCode.TOPIC_NOT_EXIST:
            raise
        if options.fail_on_data_loss:
            raise DataLoss(f"{key}: {exc}. failOnDataLoss=false goes on without it") from exc
        log.warning("a queue is gone", queue=str(key), first=reader.position, last=task.high - 1)
    finally:
        finder.close()
    decoder.log_losses()


class _Decoder:
    """Bodies of pulls to record batches, and the question whether anything is missing in between."""

    def __init__(self, task: Task, options: Options, selection: Selection) -> None:
        from ropewalk.spark.rows.columns import Plan
        from ropewalk.spark.rows.row_filter import RowFilter

        tags = None
        if options.filter_tags != "*":
            # Brokers compare hashes of tags; two tags can have one.
            tags = frozenset(tag.strip() for tag in options.filter_tags.split("||") if tag.strip())
        self._task = task
        self._options = options
        self._lost = 0
        self._damaged = 0
        self._plan = Plan(
            selection,
            broker_name=task.key.broker,
            filter=RowFilter(tags=tags),
            decompress=options.decompress,
            body_bytes_max=options.body_max_bytes,
            unwrap_batch=options.unwrap_batch,
            on_corrupt=options.on_corrupt,
            check_crc=_checks_bodies(options, selection),
            partition_bases={task.key.topic: task.partition_base},
            batch_rows=options.arrow_batch_rows,
            batch_bytes=options.arrow_batch_bytes,
        )

    def batches(self, chunks: list[Chunk]) -> Iterator[pa.RecordBatch]:
        from ropewalk.spark.rows.decode import decode_pull

        if not chunks:
            return
        body = chunks[0].body if len(chunks) == 1 else b"".join(chunk.body for chunk in chunks)
        # Bodies are unpacked batch by batch, later: all that these answers hold may be gigabytes.
        decoded = decode_pull(body, replace(self._plan, decompress=False))
        for place in decoded.damage:
            self._handle_damage(chunks, str(place))
        self._lost += sum(chunk.next - chunk.first for chunk in chunks if chunk.lost)
        wanted = sum(chunk.next - chunk.first for chunk in chunks if not chunk.lost)
        if self._plan.filter.tags is None and (
            not self._begins_at(body, chunks)
            or decoded.row_count != wanted
            or not all(_is_a_run(batch) for batch in decoded.batches)
        ):
            self._check_gaps(chunks)
        if self._plan.filter.tags is None and self._task.last_ms is not None:
            self._check_last(chunks[-1], self._task.last_ms)
        if decoded.has_compressed and self._plan.decompress:
            yield from self._unpacked(body, chunks, {place.offset for place in decoded.damage})
        else:
            yield from decoded.batches

    def _unpacked(self, body: bytes, chunks: list[Chunk], told: set[int]) -> Iterator[pa.RecordBatch]:
        """Decode answers again, with their bodies unpacked; damage at the places in `told` was handled before."""
        from ropewalk.spark.rows.decode import SegmentDecoder

        for piece in SegmentDecoder(body, None, 0, None, self._plan).pieces():
            for place in piece.damage:
                if place.offset not in told:
                    self._handle_damage(chunks, str(place))
            if piece.batch is not None:
                yield piece.batch

    def log_losses(self) -> None:
        if self._lost:
            log.warning(
                "messages were not there and are passed over", queue=str(self._task.key), count=self._lost
            )
        if self._damaged:
            log.warning("damaged records", queue=str(self._task.key), count=self._damaged)

    def _handle_damage(self, chunks: list[Chunk], text: str) -> None:
        if self._options.on_corrupt == "fail":
            raise CorruptRecord(
                f"{self._task.key}, messages {chunks[0].first} to {chunks[-1].next - 1}: {text}. onCorrupt=skip leaves "
                f"such messages out, onCorrupt=keep shows their bodies as stored"
            )
        self._damaged += 1

    def _begins_at(self, body: bytes, chunks: list[Chunk]) -> bool:
        """Whether the answer is about what was asked: the first record, which stands for its queue and topic."""
        first = next((chunk for chunk in chunks if not chunk.lost), None)
        if first is None or not body:
            return not body
        _, queue_id, offset = _PLACE.unpack_from(body)
        if queue_id != self._task.key.queue_id:
            raise RemoteProtocolError(
                f"{self._task.key}: the broker answered with messages of queue {queue_id}"
            )
        try:
            topic = decode_record(body, check_crc=False).topic
        except CorruptRecord:
            return False
        if topic != self._task.key.topic:
            raise RemoteProtocolError(f"{self._task.key}: the broker answered with messages of topic {topic}")
        return bool(offset == first.first)

    def _check_gaps(self, chunks: list[Chunk]) -> None:
        """Find the offsets of the range that have no record, record by record. Raises DataLoss."""
        for chunk in chunks:
            if chunk.lost:
                continue
            expected, at = chunk.first, 0
            while at + _PLACE.size <= len(chunk.body):
                size, queue_id, offset = _PLACE.unpack_from(chunk.body, at)
                if queue_id != self._task.key.queue_id or not expected <= offset < chunk.next:
                    raise RemoteProtocolError(
                        f"{self._task.key}: asked for messages {chunk.first} to {chunk.next - 1}, the broker answered "
                        f"with message {offset} of queue {queue_id} where {expected} was due"
                    )
                if size <= 0:
                    break  # damage, which was judged already
                self._record_gap(expected, offset)
                expected = offset + 1
                at += size
                if self._is_batch(chunk.body, at - size):
                    # One record of several messages: how many, its next neighbour tells.
                    more = at + _PLACE.size <= len(chunk.body)
                    expected = _PLACE.unpack_from(chunk.body, at)[2] if more else chunk.next
            self._record_gap(expected, chunk.next)

    def _check_last(self, chunk: Chunk, last_ms: int) -> None:
        """Compare the last message of the range with the one that the plan saw. Raises DataLoss."""
        last = self._task.high - 1
        if chunk.lost or chunk.next <= last:
            return
        at, offset = 0, -1
        while at + _PLACE.size <= len(chunk.body) and offset != last:
            size, _, offset = _PLACE.unpack_from(chunk.body, at)
            if size <= 0:
                return  # damage, which was judged already
            at += size
        if offset != last:
            return  # in a record of several messages
        stored = decode_record(chunk.body[at - size : at], check_crc=False).store_timestamp
        if stored != last_ms:
            bounds = {self._task.key: Bounds(self._task.low, self._task.high)}
            read = Position({self._task.key: last + 1}, last_ms={self._task.key: last_ms})
            enforce_losses(replaced_messages(read, bounds, {self._task.key: stored}), fail=True)

    def _is_batch(self, body: bytes, at: int) -> bool:
        return bool(body[at + 39] & 0x80)

    def _record_gap(self, expected: int, found: int) -> None:
        if found <= expected:
            return
        if self._options.fail_on_data_loss:
            raise DataLoss(
                f"{self._task.key}: messages {expected} to {found - 1} are missing between others: retention removes "
                f"them, or the broker's queue file is damaged there. failOnDataLoss=false goes on without them"
            )
        self._lost += found - expected


def _checks_bodies(options: Options, selection: Selection) -> bool:
    if options.check_crc is not None:
        return options.check_crc
    return options.on_corrupt != "keep" and ("body" in selection or "value" in selection)


def _is_a_run(batch: pa.RecordBatch) -> bool:
    """Whether each offset follows the one before it, as far as the columns tell."""
    for name in ("queueOffset", "offset"):
        if name in batch.schema.names:
            offsets = batch.column(name).to_numpy()
            return bool((offsets[1:] == offsets[:-1] + 1).all())
    return True


# -- whom to ask ------------------------------------------------------------------------------------------


class _MemberLocator:
    """Finds the member of a broker set to read from: at first as the driver said, then as the name servers say."""

    def __init__(self, task: Task, options: Options, monotonic: Callable[[], float]) -> None:
        self._task = task
        self._options = options
        self._monotonic = monotonic
        self._tries = 0
        self._connection: Connection | None = None

    @property
    def supports_bulk(self) -> bool:
        """Whether the broker may know bulk pulls, as far as this worker has learnt."""
        return self._task.address not in _pool().without_bulk

    def connect(self) -> Connection:
        """Called first, and again whenever a connection broke. Raises Unreachable."""
        self._connection = None
        self._tries += 1
        address = self._task.address if self._tries == 1 else self._locate()
        self._connection = _pool().acquire(address, self._monotonic())
        return self._connection

    def release(self, *, supports_bulk: bool) -> None:
        """Return the connection to the pool after the range was read."""
        if self._connection is not None:
            pool = _pool()
            if not supports_bulk:
                pool.without_bulk.add(str(self._connection.address))
            pool.release(self._connection, self._monotonic())
            self._connection = None

    def close(self) -> None:
        """Close the connection of a range that was given up, with all answers on their way."""
        if self._connection is not None:
            self._connection.close()

    def _locate(self) -> str:
        """Find the broker that has the queue. Every member gets a turn: a name server may be slow to notice a death."""
        options, key = self._options, self._task.key
        if options.name_server is None:
            return self._task.address
        from ropewalk.spark.live.cluster import addresses_of

        ring, _ = addresses_of(options)
        assert isinstance(ring, AddressRing)
        failures = []
        for name_server in ring.one_round():
            try:
                with Connection(name_server) as connection:
                    answer = connection.call(route_request(key.topic))
                if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                    # Perhaps it is gone, perhaps its broker has just come back and not registered yet.
                    raise Unreachable(f"no broker serves topic {key.topic} at the moment")
                route = parse_route(require_success(answer).body)
            except (Unreachable, OutcomeUnknown) as exc:
                failures.append(str(exc))
                continue
            data = route.brokers.get(key.broker)
            if data is None or not data.addresses:
                raise Unreachable(f"the name server knows no address of broker {key.broker}")
            members = [data.addresses[number] for number in sorted(data.addresses)]
            if options.read_from == "slave":
                members = members[1:] + members[:1]
            return members[self._tries // 2 % len(members)]
        raise Unreachable(f"no name server at {ring}: {'; '.join(failures)}")


class _ConnectionPool:
    """Connections that wait for the next task of this worker."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.without_bulk: set[str] = set()
        """Addresses of brokers that do not know bulk pulls."""
        self._idle: dict[str, tuple[Connection, float]] = {}

    def acquire(self, address: str, now: float) -> Connection:
        """Return a connection that nobody else uses. Raises Unreachable."""
        for other, (connection, since) in list(self._idle.items()):
            if now - since > IDLE_S:
                connection.close()
                del self._idle[other]
        kept = self._idle.pop(address, None)
        if kept is not None:
            kept[0].receive(0)
            if not kept[0].closed:
                return kept[0]
        return Connection(address)

    def release(self, connection: Connection, now: float) -> None:
        address = str(connection.address)
        if not connection.closed and address not in self._idle:
            self._idle[address] = (connection, now)
        else:
            connection.close()


_current_pool: _ConnectionPool | None = None


def _pool() -> _ConnectionPool:
    global _current_pool
    if _current_pool is None or _current_pool.pid != os.getpid():
        _current_pool = _ConnectionPool()
    return _current_pool
