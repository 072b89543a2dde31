"""Rows of one range to Parquet files, one for each topic and day: what a task of an export does.

The rows never become Spark's: who decodes them writes them. Row groups are collected to about 128 MB, because every
call of the writer makes one. Bodies and properties get no dictionary: trying to make one of random bytes costs more
than everything else.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ropewalk.errors import RopewalkError
from ropewalk.spark.jobs.lake import LakeFile, staging

ROW_GROUP_BYTES: Final = 128 << 20
CODECS: Final = ("zstd", "snappy", "gzip", "lz4", "none")
PARTITIONS: Final = {"dt": "%Y-%m-%d", "hour": "%H"}
_WITHOUT_DICTIONARY: Final = frozenset({"body", "properties", "value", "headers", "uniqKey", "msgId"})
_SPECIAL: Final = frozenset("\"#%'*/:=?\\\x7f{[]^")
TIME: Final = "storeTimestamp"


@dataclass(frozen=True, slots=True)
class Target:
    """Where the rows of a range go."""

    lake: str
    batch: int
    broker: str
    name: str
    """Of the range: the same for the same rows."""
    codec: str = "zstd"
    partition_by: tuple[str, ...] = ("dt",)


class CannotWriteLake(RopewalkError):
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
        self.pending_bytes += batch.nbytes
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
        return [_close(target.lake, file) for file in files.values()]
    except OSError as exc:
        raise CannotWriteLake(f"cannot write below {directory}: {exc.strerror or exc}") from exc
    finally:
        for file in files.values():
            file.writer.close()


def _parted(batch: Any, partition_by: tuple[str, ...]) -> Iterable[tuple[tuple[str, ...], Any, int, int]]:
    """A batch cut by topic and day; most batches are of one day."""
    if not batch.num_rows:
        return
    time = batch.column(TIME)
    columns = [batch.column("topic")]
    columns += [pc.strftime(time, format=PARTITIONS[name]) for name in partition_by]
    encoded = [pc.fill_null(column, "").dictionary_encode() for column in columns]
    values = [column.dictionary.to_pylist() for column in encoded]
    ids = encoded[0].indices
    for column, known in zip(encoded[1:], values[1:], strict=True):
        ids = pc.add(pc.multiply(ids, pa.scalar(len(known), pa.int32())), column.indices)
    for number in pc.unique(ids).to_pylist():
        part = batch if len(pc.unique(ids)) == 1 else batch.filter(pc.equal(ids, number))
        rest, key = number, []
        for known in reversed(values[1:]):
            rest, at = divmod(rest, len(known))
            key.append(known[at])
        bounds = pc.min_max(pc.cast(part.column(TIME), pa.int64()))
        yield (
            (values[0][rest], *reversed(key)), part,
            (bounds["min"].as_py() or 0) // 1000, (bounds["max"].as_py() or 0) // 1000,
        )  # fmt: skip


def escaped(text: str) -> str:
    """A value as part of a path, the way Hive and Spark write it: they take no other character for an escaped one."""
    return "".join(f"%{ord(char):02X}" if char in _SPECIAL or ord(char) < 32 else char for char in text)


def _open(target: Target, directory: Path, key: tuple[str, ...], schema: Any) -> _Open:
    topic, *parts = key
    folders = [f"topic={escaped(topic)}"]
    folders += [f"{name}={value}" for name, value in zip(target.partition_by, parts, strict=True)]
    folders.append(f"b={escaped(target.broker)}")
    path = "/".join([*folders, f"{target.name}.{target.codec}.parquet"])
    staged = directory / f"{uuid.uuid4().hex}.parquet"
    writer = pq.ParquetWriter(
        staged,
        schema,
        compression=target.codec,
        use_dictionary=[name for name in schema.names if name not in _WITHOUT_DICTIONARY],
        write_statistics=[name for name in schema.names if name not in _WITHOUT_DICTIONARY],
    )
    return _Open(path, staged, topic, writer)


def _close(lake: str, file: _Open) -> LakeFile:
    file.flush()
    file.writer.close()
    fd = os.open(file.staged, os.O_RDONLY)
    try:
        os.fsync(fd)
        size = os.fstat(fd).st_size
    finally:
        os.close(fd)
    staged = str(file.staged.relative_to(lake))
    return LakeFile(file.path, file.rows, size, file.topic, file.low, file.high, staged)
