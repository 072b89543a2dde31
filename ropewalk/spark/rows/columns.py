"""Build record batches from headers: each chosen column of a piece in a few numpy and Arrow calls.

Only columns that are chosen, or needed for a choice among rows, are built. Bodies, topics and property texts are
copied once, out of the log's own bytes. The few rows that need care of their own, compressed bodies and failed
checksums, are visited one by one; everything else is arrays.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ropewalk.codes import MessageSysFlag
from ropewalk.errors import CorruptRecord
from ropewalk.format.record import decode_host
from ropewalk.spark.rows.headers import Bools, Buffer, Headers, Ints, checksums
from ropewalk.spark.rows.property_columns import Pairs, as_text, cut_pairs, is_one_of, ranges_of, views_of
from ropewalk.spark.rows.row_filter import RowFilter
from ropewalk.spark.rows.schema import BODY_BYTES_MAX, SchemaMismatch, Selection

__all__ = ["Plan", "build_batches", "unpack_body"]


_INT_FIELDS: Final = {
    "queueId": "queue_id",
    "flag": "flag",
    "sysFlag": "sys_flag",
    "reconsumeTimes": "reconsume_times",
    "bodyCRC": "body_crc",
    "storeSize": "size",
}
_LONG_FIELDS: Final = {
    "queueOffset": "queue_offset",
    "offset": "queue_offset",
    "physicalOffset": "offset",
    "preparedTransactionOffset": "prepared_offset",
}
_TIME_FIELDS: Final = {
    "bornTimestamp": "born_time",
    "storeTimestamp": "store_time",
    "timestamp": "store_time",
}
_PAIR_COLUMNS: Final = {
    "tags": b"TAGS",
    "keys": b"KEYS",
    "key": b"KEYS",
    "uniqKey": b"UNIQ_KEY",
}
_BODIES: Final = frozenset({"body", "value"})
_HOUR_MS: Final = 3_600_000
# Both digits of each octet as one number, so that one look-up writes two characters.
_HEX: Final = np.frombuffer("".join(f"{value:02X}" for value in range(256)).encode(), np.uint16)


@dataclass(frozen=True, slots=True)
class Plan:
    """The parameters of decoding. `on_corrupt`: `skip` leaves out rows whose body is damaged, `keep` shows them as
    stored.
    """

    selection: Selection
    broker_name: str | None = None
    filter: RowFilter = field(default_factory=RowFilter)
    decompress: bool = True
    body_bytes_max: int = BODY_BYTES_MAX
    """Bytes that a compressed body may unpack to, and all of one batch together."""
    unwrap_batch: bool = True
    on_corrupt: str = "fail"
    check_crc: bool = False
    partition_bases: Mapping[str, int] = field(default_factory=dict)
    """For the kafka preset: how many queues of a topic the brokers sorted before this one have."""
    batch_rows: int = 4096
    batch_bytes: int = 4 << 20
    grouped: bool = False
    """Rows of one topic stand together in their batch, by the hour they were stored in: for who writes them apart."""
    body_views: bool = False
    """Bodies come as views into the buffer, not as copies: for who writes them at once. Spark takes no views."""

    @property
    def checks_crc(self) -> bool:
        return self.check_crc or "crcOk" in self.selection

    def arrow_schema(self) -> pa.Schema:
        """Return the schema of every batch of this plan."""
        schema = self.selection.arrow_schema()
        if self.body_views:
            for name in _BODIES & set(self.selection.names):
                index = schema.get_field_index(name)
                schema = schema.set(index, schema.field(index).with_type(pa.binary_view()))
        return schema


class _UnpackedTooMuch(Exception):
    """Bodies that unpack to more than one batch may hold: the records have to be built in several."""


@dataclass(slots=True)
class BadRow:
    """A record whose shape is whole and whose body is not: where it begins in the buffer, and why."""

    position: int
    reason: str


def build_batches(
    buffer: Buffer, headers: Headers, plan: Plan
) -> Iterator[tuple[pa.RecordBatch | None, list[BadRow]]]:
    """Yield the records as one batch, or as several where their bodies unpack to more than one may hold.

    Beside each batch stand its records whose body is damaged. All headers must be valid. Unless the plan keeps them,
    damaged rows are in no batch. Raises SchemaMismatch for a column without a value where the schema says that there
    always is one.
    """
    try:
        built = _build_batch(buffer, headers, plan)
    except _UnpackedTooMuch:
        is_first_half = np.arange(len(headers)) < len(headers) // 2
        yield from build_batches(buffer, headers.where(is_first_half), plan)
        yield from build_batches(buffer, headers.where(~is_first_half), plan)
    else:
        yield built


def _build_batch(buffer: Buffer, headers: Headers, plan: Plan) -> tuple[pa.RecordBatch | None, list[BadRow]]:
    """Build the chosen columns of the wanted records; None when no row is left.

    Raises _UnpackedTooMuch for several bodies that unpack to more than the plan allows a batch.
    """
    piece = _Piece(buffer, headers, plan)
    piece.choose_rows()
    if not len(piece.headers):
        return None, []
    bad = piece.judge_bodies()
    if bad and plan.on_corrupt != "keep":
        positions = np.array([row.position for row in bad])
        piece.keep(~np.isin(piece.headers.positions, positions))
    if not len(piece.headers):
        return None, bad
    if plan.grouped:
        piece.group()
    columns = [piece.column(name) for name in plan.selection.names]
    for name, column in zip(plan.selection.names, columns, strict=True):
        if name in plan.selection.required and column.null_count:
            raise SchemaMismatch(
                f"column {name} is declared NOT NULL, and {column.null_count} of the messages read have none: leave "
                f"NOT NULL out of the schema"
            )
    return pa.RecordBatch.from_arrays(columns, schema=plan.arrow_schema()), bad


class _Piece:
    """The records of one call and what has been worked out about them."""

    def __init__(self, buffer: Buffer, headers: Headers, plan: Plan) -> None:
        self.buffer = buffer
        self.headers = headers
        self.plan = plan
        self.unpacked: dict[int, bytes] = {}
        """Bodies that were compressed, by the position of their record."""
        self.bad_positions: set[int] = set()
        self.in_log = headers
        """The same in the order of the log; rows may stand in another."""
        self.order: Ints | None = None
        """Which of those each row is of, if they do."""

    # -- which rows ----------------------------------------------------------------------------------

    def keep(self, mask: Bools) -> None:
        if not mask.all():
            self.headers = self.in_log = self.headers.where(mask)
            for name in ("data", "topic", "topic_codes", "properties", "pairs"):
                self.__dict__.pop(name, None)

    def choose_rows(self) -> None:
        wanted = self.plan.filter
        if wanted.by_topic or wanted.offsets:
            self.keep(self._wanted_topics(wanted))
        if len(self.headers) and (wanted.since_ms is not None or wanted.until_ms is not None):
            time = self.headers.of("store_time")
            mask = np.ones(len(time), np.bool_)
            if wanted.since_ms is not None:
                mask &= time >= wanted.since_ms
            if wanted.until_ms is not None:
                mask &= time < wanted.until_ms
            self.keep(mask)
        if len(self.headers) and wanted.tags is not None:
            self.keep(is_one_of(self.column("tags"), wanted.tags))

    def _wanted_topics(self, wanted: RowFilter) -> Bools:
        codes, topics = self.topic_codes
        wants = [wanted.matches_topic(topic) for topic in topics]
        if all(wants) and wanted.queues is None and not wanted.offsets:
            return np.ones(len(codes), np.bool_)
        queue_ids = self.headers.of("queue_id")
        queue_offsets = self.headers.of("queue_offset")
        mask = np.zeros(len(codes), np.bool_)
        for code, topic in enumerate(topics):
            if not wants[code]:
                continue
            rows = codes == code
            if wanted.queues is not None:
                rows &= np.isin(queue_ids, sorted(wanted.queues[topic]))
            for (name, queue_id), (low, high) in wanted.offsets.items():
                if name == topic:
                    rows &= (queue_ids != queue_id) | ((queue_offsets >= low) & (queue_offsets < high))
            mask |= rows
        return mask

    def group(self) -> None:
        """Have rows of one topic and hour stand together. Nothing is copied for it but what is taken anyway."""
        codes, _topics = self.topic_codes
        hours = self.headers.of("store_time") // _HOUR_MS
        if (codes == codes[0]).all() and (hours[1:] >= hours[:-1]).all():
            return
        if (hours == hours[0]).all() and len(self.topic) <= 0x10000:
            # Numbers of two bytes are sorted by counting, in a fraction of the time.
            self.order = np.argsort(codes.astype(np.uint16), kind="stable")
        else:
            self.order = np.lexsort((hours, codes))
        self.headers = self.in_log.rows(self.order)
        self.topic = self.topic.take(pa.array(self.order))
        for name in ("topic_codes", "properties", "pairs"):
            self.__dict__.pop(name, None)

    # -- bodies --------------------------------------------------------------------------------------

    def judge_bodies(self) -> list[BadRow]:
        """Check and unpack the bodies as far as the plan asks for it."""
        bad: list[BadRow] = []
        if self.plan.checks_crc:
            bad += self._failed_checksums()
        needs_body = "body" in self.plan.selection or "value" in self.plan.selection
        flags = self.headers.of("sys_flag")
        if self.plan.decompress and needs_body and (flags & MessageSysFlag.COMPRESSED).any():
            failed = {row.position for row in bad}
            view = memoryview(self.buffer)
            room = self.plan.body_bytes_max
            for row in np.flatnonzero(flags & MessageSysFlag.COMPRESSED):
                position = int(self.headers.positions[row])
                stored = view[int(self.headers.body_start[row]) : int(self.headers.body_end[row])]
                try:
                    plain = unpack_body(int(flags[row]), stored, self.plan.body_bytes_max)
                    room -= len(plain)
                    if room < 0 and self.unpacked:
                        raise _UnpackedTooMuch
                    self.unpacked[position] = plain
                except CorruptRecord as exc:
                    if position not in failed:
                        bad.append(BadRow(position, str(exc)))
        self.bad_positions = {row.position for row in bad}
        return bad

    def _failed_checksums(self) -> list[BadRow]:
        stored = self.headers.of("body_crc")
        computed = checksums(self.buffer, self.headers.body_start, self.headers.body_end)
        return [
            BadRow(
                int(self.headers.positions[row]),
                f"the body does not match its checksum (stored {stored[row]}, computed {computed[row]})",
            )
            for row in np.flatnonzero(
                (computed != stored) & (self.headers.body_end > self.headers.body_start)
            )
        ]

    def _bodies(self) -> pa.Array:
        if self.plan.body_views and not self.unpacked:
            data, base = self.data
            return views_of(data, self.headers.body_start - base, self.headers.body_end - base)
        bodies = self._ranges(self.in_log.body_start, self.in_log.body_end)
        if self.unpacked:
            positions = self.headers.positions.tolist()
            mask = np.array([position in self.unpacked for position in positions])
            plain = [self.unpacked[position] for position in positions if position in self.unpacked]
            bodies = pc.replace_with_mask(bodies, pa.array(mask), pa.array(plain, pa.binary()))
        return bodies.cast(pa.binary_view()) if self.plan.body_views else bodies

    # -- columns -------------------------------------------------------------------------------------

    @cached_property
    def data(self) -> tuple[pa.Buffer, int]:
        """Return the bytes of this piece, and where they begin in the buffer: offsets in Arrow have 31 bits."""
        start = int(self.in_log.positions[0])
        end = int(self.in_log.properties_end[-1])
        return pa.py_buffer(memoryview(self.buffer)[start:end]), start

    def _ranges(self, starts: Ints, ends: Ints) -> pa.Array:
        data, base = self.data
        return ranges_of(data, starts - base, ends - base, self.order)

    @cached_property
    def topic(self) -> pa.Array:
        return as_text(self._ranges(self.in_log.topic_start, self.in_log.topic_end))

    @cached_property
    def topic_codes(self) -> tuple[npt.NDArray[np.int32], list[str]]:
        """Which of the topics that there are each row has, and their names."""
        encoded = self.topic.dictionary_encode()
        return encoded.indices.to_numpy(zero_copy_only=False), encoded.dictionary.to_pylist()

    @cached_property
    def properties(self) -> pa.Array:
        return self._ranges(self.in_log.properties_start, self.in_log.properties_end)

    @cached_property
    def pairs(self) -> Pairs:
        return cut_pairs(self.properties)

    def column(self, name: str) -> pa.Array:
        headers = self.headers
        if name in _INT_FIELDS:
            return pa.array(headers.fields[_INT_FIELDS[name]].astype(np.int32))
        if name in _LONG_FIELDS:
            return pa.array(headers.of(_LONG_FIELDS[name]))
        if name in _TIME_FIELDS:
            return _timestamps(headers.of(_TIME_FIELDS[name]))
        match name:
            case "topic":
                return self.topic
            case "brokerName":
                return _constant(self.plan.broker_name, len(headers))
            case "body" | "value":
                return self._bodies()
            case "properties" if self.plan.selection.raw_properties:
                return as_text(self.properties)
            case "properties":
                return self.pairs.as_map()
            case "headers":
                return self.pairs.as_headers()
            case "tags" | "keys" | "uniqKey":
                return self.pairs.text_column(_PAIR_COLUMNS[name])
            case "key":
                return self.pairs.column(_PAIR_COLUMNS[name])
            case "bornHost":
                return self._hosts("born_host")
            case "storeHost":
                return self._hosts("store_host")
            case "msgId":
                return self._message_ids()
            case "crcOk":
                return pa.array(
                    np.array([position not in self.bad_positions for position in headers.positions.tolist()])
                )
            case "partition":
                return self._partitions()
            case _:
                assert name == "timestampType", name
                return pa.array(np.ones(len(headers), np.int32))

    def _partitions(self) -> pa.Array:
        queue_ids = self.headers.of("queue_id")
        bases = self.plan.partition_bases
        if bases:
            codes, topics = self.topic_codes
            queue_ids = queue_ids + np.array([bases.get(topic, 0) for topic in topics], np.int64)[codes]
        return pa.array(queue_ids.astype(np.int32))

    def _hosts(self, name: str) -> pa.Array:
        if self.headers.has_wide_hosts:
            wide = self.headers.hosts(self.buffer, name)
            return pa.array([_host_text(host) for host in wide], pa.string())
        hosts = np.ascontiguousarray(self.headers.fields[name]).view(np.uint64)
        if (hosts == hosts[0]).all():
            return _constant(_host_text(hosts[0].tobytes()), len(hosts))
        packed = pa.array(hosts).dictionary_encode()
        texts = [_host_text(host.to_bytes(8, sys.byteorder)) for host in packed.dictionary.to_pylist()]
        return pa.array(texts, pa.string()).take(packed.indices)

    def _message_ids(self) -> pa.Array:
        headers = self.headers
        count = len(headers)
        if headers.has_wide_hosts:
            offsets = headers.of("offset").tolist()
            ids = [
                (host + offset.to_bytes(8, "big", signed=True)).hex().upper()
                for host, offset in zip(headers.hosts(self.buffer, "store_host"), offsets, strict=True)
            ]
            return pa.array(ids, pa.string())
        octets = np.empty((count, 16), np.uint8)
        octets[:, :8] = np.ascontiguousarray(headers.fields["store_host"]).view(np.uint8).reshape(count, 8)
        octets[:, 8:] = np.ascontiguousarray(headers.fields["offset"]).view(np.uint8).reshape(count, 8)
        text = _HEX.take(octets)
        bounds = np.arange(0, 32 * count + 1, 32, dtype=np.int32)
        return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(bounds), pa.py_buffer(text)])


def _timestamps(ms: Ints) -> pa.Array:
    # Years 1 to 9999. A damaged time outside of them would fail whoever collects it, and not us.
    beyond = (ms < -62_135_596_800_000) | (ms > 253_402_300_799_999)
    micros = pa.array(np.where(beyond, 0, ms) * 1000, mask=beyond if beyond.any() else None)
    return micros.view(pa.timestamp("us", tz="UTC"))


def _constant(text: str | None, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), count)


def _host_text(host: bytes) -> str:
    ip, port = decode_host(host)
    return f"{ip}:{port}"


def unpack_body(sys_flag: int, body: Any, size_max: int) -> bytes:
    """Unpack a compressed body. Raises CorruptRecord for one that cannot be unpacked."""
    match sys_flag & MessageSysFlag.COMPRESSION_MASK:
        case 0 | MessageSysFlag.COMPRESSION_ZLIB:
            unpacker = zlib.decompressobj()
            try:
                plain = unpacker.decompress(body, size_max)
            except zlib.error as exc:
                raise CorruptRecord(f"the body is marked ZLIB and does not unpack: {exc}") from None
            if not unpacker.eof:
                if len(plain) >= size_max:
                    raise CorruptRecord(_too_large("ZLIB", size_max))
                raise CorruptRecord("the ZLIB body is cut short")
            return plain
        case MessageSysFlag.COMPRESSION_LZ4:
            return _unpack_stream("lz4", body, size_max)
        case MessageSysFlag.COMPRESSION_ZSTD:
            return _unpack_stream("zstd", body, size_max)
        case kind:
            raise CorruptRecord(f"the body is compressed in an unknown way (bits {kind:#x})")


def _too_large(codec: str, size_max: int) -> str:
    return f"the {codec} body unpacks to more than {size_max} bytes, the option bodyMaxBytes"


def _unpack_stream(codec: str, body: Any, size_max: int) -> bytes:
    try:
        with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(body)), codec) as stream:
            plain = cast("bytes", stream.read(size_max + 1))
    except (OSError, pa.ArrowException) as exc:
        raise CorruptRecord(f"the body is marked {codec.upper()} and does not unpack: {exc}") from None
    if len(plain) > size_max:
        raise CorruptRecord(_too_large(codec.upper(), size_max))
    return plain
