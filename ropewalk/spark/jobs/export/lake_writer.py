"""Write the rows of one range to Parquet files, one for each topic and day: the task of an export.

The rows never become Spark's: who decodes them writes them. Row groups are collected to about 128 MB, because every
call of the writer makes one. Only columns whose values come again get a dictionary: trying to make one of random bytes
costs more than everything else. Offsets and times are written as differences, which is quicker and takes less space.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from base64 import b64encode
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ropewalk.errors import RopewalkError
from ropewalk.spark.jobs.export.lake import LakeFile, staging
from ropewalk.spark.jobs.records.log_files import NAME_SIZE_MAX

ROW_GROUP_BYTES: Final = 128 << 20
CODECS: Final = ("zstd", "snappy", "gzip", "lz4", "none")
PARTITIONS: Final[dict[str, Callable[[datetime], str]]] = {
    "dt": lambda time: time.date().isoformat(),
    "hour": lambda time: f"{time.hour:02d}",
}
_NO_STATISTICS: Final = frozenset({"body", "properties", "value", "headers", "uniqKey", "msgId"})
_COUNTING: Final = frozenset(
    {"queueOffset", "offset", "physicalOffset", "bornTimestamp", "storeTimestamp", "timestamp"}
)
"""Columns whose values differ little from one to the next, and which are written as those differences."""
_WITHOUT_DICTIONARY: Final = _NO_STATISTICS | _COUNTING | {"keys", "key"}
_SPECIAL: Final = frozenset("\"#%'*/:=?\\\x7f{[]^")
TIME: Final = "storeTimestamp"
_HOUR_US: Final = 3_600_000_000
_NO_TIME: Final = -(1 << 63)
_EPOCH: Final = datetime(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class Target:
    """The target of the rows of a range."""

    lake: str
    batch: int
    broker: str
    name: str
    """Of the range: the same for the same rows."""
    codec: str = "zstd"
    partition_by: tuple[str, ...] = ("dt",)


class LakeWriteFailed(RopewalkError):
    """A file of the lake could not be written."""


@dataclass(slots=True)
class _Open:
    """One file being written."""

    path: str
    staged: Path
    topic: str
    writer: Any
    pending: list[Any] = field(default_factory=list)
    pending_bytes: int = 0
    rows: int = 0
    low: int = 1 << 62
    high: int = -(1 << 62)

    def add(self, batch: Any, low: int, high: int) -> None:
        self.pending.append(batch)
        self.pending_bytes += _size(batch)
        self.rows += batch.num_rows
        self.low, self.high = min(self.low, low), max(self.high, high)
        if self.pending_bytes >= ROW_GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        if self.pending:
            table = pa.Table.from_batches(self.pending)
            self.writer.write_table(table, row_group_size=table.num_rows)
            self.pending, self.pending_bytes = [], 0


def write_rows(target: Target, batches: Iterable[Any]) -> list[LakeFile]:
    """Write the rows of a range below the staging directory. They need the columns topic and storeTimestamp. Blocks."""
    directory = staging(target.lake, target.batch)
    files: dict[tuple[str, ...], _Open] = {}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for batch in batches:
            for key, part, low, high in _parted(batch, target.partition_by):
                file = files.get(key)
                if file is None:
                    file = files[key] = _open(target, directory, key, part.schema)
                file.add(part, low, high)
        return _close(target.lake, files.values())
    except BaseException as exc:
        for file in files.values():
            # Where a disk is full not even the end of a file can be written; what there is takes room for nothing.
            with contextlib.suppress(OSError):
                file.writer.close()
            file.staged.unlink(missing_ok=True)
        if isinstance(exc, OSError):
            raise LakeWriteFailed(f"cannot write below {directory}: {exc.strerror or exc}") from exc
        raise


def _parted(batch: Any, partition_by: tuple[str, ...]) -> Iterable[tuple[tuple[str, ...], Any, int, int]]:
    """Yield a batch cut by topic and day; most batches are of one day."""
    if not batch.num_rows:
        return
    topics = pc.fill_null(batch.column("topic"), "").dictionary_encode()
    names = topics.dictionary.to_pylist()
    times = pc.cast(batch.column(TIME), pa.int64()).fill_null(_NO_TIME).to_numpy()
    # Hours are numbered, and only the few that there are become text.
    hours, which = _numbered(np.floor_divide(times, _HOUR_US))
    kinds = topics.indices.to_numpy(zero_copy_only=False).astype(np.int64) * len(hours) + which
    if (kinds[1:] < kinds[:-1]).any():
        # Rows of a kind together, by one copy of all: a filter for each kind would look at every row every time.
        order = np.argsort(kinds, kind="stable")
        kinds, times, batch = kinds[order], times[order], _taken(batch, order)
    starts = np.flatnonzero(np.diff(kinds, prepend=-1)).tolist()
    for start, end in zip(starts, [*starts[1:], len(kinds)], strict=True):
        topic, hour = divmod(int(kinds[start]), len(hours))
        key = (names[topic], *(_time_text(int(hours[hour]), PARTITIONS[name]) for name in partition_by))
        known = times[start:end][times[start:end] != _NO_TIME]
        low, high = (int(known.min()), int(known.max())) if len(known) else (0, 0)
        yield key, batch.slice(start, end - start), low // 1000, high // 1000


def _taken(batch: Any, order: Any) -> Any:
    """Return the rows in another order. Arrow's `take` lacks views, whose sixteen bytes numpy takes."""
    columns = []
    for column in batch.columns:
        if pa.types.is_binary_view(column.type):
            validity, views, *data = column.buffers()
            assert validity is None and not column.offset, "a decoder's views have no nulls and no offset"
            views = np.frombuffer(views, np.dtype((np.void, 16)))[order]
            columns.append(pa.Array.from_buffers(column.type, len(order), [None, pa.py_buffer(views), *data]))
        else:
            columns.append(column.take(pa.array(order)))
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _size(batch: Any) -> int:
    """Bytes of the rows. What views look at is not counted by Arrow for a slice, but as a whole."""
    size = 0
    for column in batch.columns:
        if pa.types.is_binary_view(column.type):
            views = np.frombuffer(column.buffers()[1], np.int32)[4 * column.offset :][: 4 * len(column)]
            size += int(views[::4].sum(dtype=np.int64))
        else:
            size += column.nbytes
    return size


def _numbered(values: Any) -> tuple[Any, Any]:
    """Return the different values, and for each the number of its own among them."""
    if (values == values[0]).all():
        return values[:1], np.zeros(len(values), np.int64)
    different, which = np.unique(values, return_inverse=True)
    return different, which


def _time_text(hour: int, write: Callable[[datetime], str]) -> str:
    """Return a part of a path for an hour since 1970; nothing for a time that no calendar has."""
    return "" if hour == _NO_TIME // _HOUR_US else write(_EPOCH + timedelta(hours=hour))


def escaped(text: str) -> str:
    """Return a value as part of a path, the way Hive and Spark write it: they take no other character for an escaped
    one.
    """
    return "".join(f"%{ord(char):02X}" if char in _SPECIAL or ord(char) < 32 else char for char in text)


def _open(target: Target, directory: Path, key: tuple[str, ...], schema: Any) -> _Open:
    topic, *parts = key
    folders = [f"topic={escaped(topic)}"]
    folders += [f"{name}={value}" for name, value in zip(target.partition_by, parts, strict=True)]
    folders.append(f"b={escaped(target.broker)}")
    if too_long := [name for name in folders if len(name.encode()) > NAME_SIZE_MAX]:
        raise LakeWriteFailed(
            f"{too_long[0]} is longer than the name of a directory can be ({NAME_SIZE_MAX} bytes): export the other "
            f"topics by their names, with -t"
        )
    path = "/".join([*folders, f"{target.name}.{target.codec}.parquet"])
    staged = directory / f"{uuid.uuid4().hex}.parquet"
    return _Open(path, staged, topic, new_writer(staged, schema, target.codec))


def new_writer(path: Path, schema: Any, codec: str) -> Any:
    """Open a Parquet file of a lake for writing."""
    writer = pq.ParquetWriter(
        path,
        schema,
        compression=codec,
        use_dictionary=[name for name in schema.names if name not in _WITHOUT_DICTIONARY],
        column_encoding={name: "DELTA_BINARY_PACKED" for name in schema.names if name in _COUNTING},
        write_statistics=[name for name in schema.names if name not in _NO_STATISTICS],
        store_schema=False,
    )
    # What pyarrow reads the file as: with bodies that are bodies, and not views of something.
    writer.add_key_value_metadata({"ARROW:schema": b64encode(_without_views(schema).serialize()).decode()})
    return writer


def _without_views(schema: Any) -> Any:
    return pa.schema(
        field.with_type(pa.binary()) if pa.types.is_binary_view(field.type) else field for field in schema
    )


def _close(lake: str, files: Iterable[_Open]) -> list[LakeFile]:
    """Write what is still to be written, and have it all on disk: the disk takes one file, the next is encoded."""
    with ThreadPoolExecutor(1, "ropewalk-sync") as disk:
        sizes = []
        for file in files:
            file.flush()
            file.writer.close()
            sizes.append((file, disk.submit(synced_size, file.staged)))
        return [
            LakeFile(
                file.path,
                file.rows,
                size.result(),
                file.topic,
                file.low,
                file.high,
                str(file.staged.relative_to(lake)),
            )
            for file, size in sizes
        ]


def synced_size(path: Path) -> int:
    """Sync a file that was written, and return its size. Blocks."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        return os.fstat(fd).st_size
    finally:
        os.close(fd)
