"""Progress of the delay levels, kept so that a crash neither loses nor repeats a message.

    <root>/config/delayOffset.json   RocketMQ's file, durable:  {"dataVersion":{...},"offsetTable":{1:12,2:0}}
    <root>/ropewalk/delay            at once, for kill -9:      one page, written over and over

Two files, because there are two crashes. A killed process leaves the page cache, and so everything it ever appended
or wrote: the page then says to within milliseconds what was delivered. A machine that loses power may keep the page
and lose the copies it speaks of; believing it would lose messages. So the page counts only on the boot that wrote it,
and only if the log still reaches as far as it did then. The JSON file names nothing that was not flushed, so it may
be believed always; after a power loss, or without the page, what was delivered behind it is delivered again.

    magic "RWD1" | boot id 16 bytes | log end i64 | count u32 | count x (level u32, offset i64) | CRC32C u32 | zeros

The page is one page of memory: no kill can leave half of it. The thread that writes it takes what is newest, so at a
rate of a thousand deliveries a second it still writes no more often than it can.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import crc32c
import structlog

from broker.state.data_version import DataVersion, int_of
from ropewalk.format import fastjson
from store.io.disk import Disk
from store.io.workers import Worker

log = structlog.get_logger("broker.delay")

PAGE_SIZE = 4096
_MAGIC = b"RWD1"
_HEAD = struct.Struct(">4s16sqI")
_ITEM = struct.Struct(">Iq")
_CRC = struct.Struct(">I")
LEVELS_MAX = (PAGE_SIZE - _HEAD.size - _CRC.size) // _ITEM.size
_LEVEL_MAX = 0x7FFFFFFF


def encode_page(boot: bytes, log_end: int, offsets: Mapping[int, int]) -> bytes:
    """Return the page; levels beyond its room are left to the JSON file."""
    items = sorted(offsets.items())[:LEVELS_MAX]
    body = _HEAD.pack(_MAGIC, boot, log_end, len(items)) + b"".join(_ITEM.pack(*item) for item in items)
    return (body + _CRC.pack(crc32c.crc32c(body))).ljust(PAGE_SIZE, b"\0")


def decode_page(data: bytes | None, boot: bytes, log_end: int) -> dict[int, int]:
    """Return the offsets of the page, or nothing if it is not to be believed: another boot's, ahead of the log, or no
    page.
    """
    if data is None or len(data) != PAGE_SIZE:
        return {}
    magic, its_boot, its_end, count = _HEAD.unpack_from(data)
    end = _HEAD.size + count * _ITEM.size
    if magic != _MAGIC or count > LEVELS_MAX or _CRC.unpack_from(data, end)[0] != crc32c.crc32c(data[:end]):
        return {}
    if its_boot != boot or not any(boot) or its_end > log_end:
        return {}
    return dict(_ITEM.iter_unpack(data[_HEAD.size : end]))


class DelayProgress:
    """Both files. The loop owns it; the page is written by a helper thread."""

    def __init__(
        self, root: Path, disk: Disk, boot: bytes, make_worker: Callable[[], Worker], *, has_page: bool = True
    ) -> None:
        """`has_page` is False where appended copies may be cut: the page would claim them all the same."""
        self.generation = 0
        """Rises when `dump` has something new to say."""
        self.data_version = DataVersion()
        self._has_page = has_page
        self._path = root / "ropewalk" / "delay"
        self._disk = disk
        self._boot = boot
        self._make_worker = make_worker
        self._worker: Worker | None = None
        self._durable: dict[int, int] = {}
        self._pending: tuple[int, dict[int, int]] | None = None  # durable when the log is flushed this far
        self._newest: tuple[int, dict[int, int]] = (0, {})
        self._written: dict[int, int] = {}
        self._versioned = 0
        self._foreign_fields: dict[str, Any] = {}

    def load(self, value: Mapping[str, Any] | None, log_end: int) -> tuple[dict[int, int], list[str]]:
        """Return the next offset of each level from the loaded `delayOffset.json` and the page, and the oddities.

        Blocks.
        """
        findings: list[str] = []
        offsets: dict[int, int] = {}
        if value is not None:
            table = value.get("offsetTable")
            for key, number in table.items() if isinstance(table, dict) else ():
                level, offset = int_of(key, -1), int_of(number, -1)
                if 0 < level <= _LEVEL_MAX and offset >= 0:
                    offsets[level] = offset
                else:
                    findings.append(f"delay level {key!r}: {number!r} in delayOffset.json is not understood")
            self.data_version = DataVersion.from_json(value.get("dataVersion"))
            self._foreign_fields = {
                key: item for key, item in value.items() if key not in ("dataVersion", "offsetTable")
            }
        page = self._disk.read_file(self._path) if self._has_page else None
        for level, offset in decode_page(page, self._boot, log_end).items():
            offsets[level] = max(offset, offsets.get(level, 0))
        self._durable = dict(offsets)
        self._worker = self._make_worker()
        return offsets, findings

    def note(self, offsets: dict[int, int], log_end: int) -> None:
        """Note reached offsets, whose copies stand below `log_end`."""
        if offsets == self._newest[1]:
            return
        self._newest = (log_end, offsets)
        if self._pending is None:
            self._pending = self._newest
        self._write_page()

    def flushed(self, flushed_offset: int) -> None:
        """The log is durable through `flushed_offset`: so is what was delivered below."""
        if self._pending is None or self._pending[0] > flushed_offset:
            return
        self._durable = self._pending[1]
        self._pending = None if self._newest[1] == self._durable else self._newest
        self.generation += 1

    @property
    def durable(self) -> dict[int, int]:
        """Return the offset of each level below which every copy is durable."""
        return dict(self._durable)

    def take_back(self) -> dict[int, int]:
        """Go back to the durable offsets, and return them: copies behind them may be cut."""
        self._pending, self._newest = None, (0, self._durable)
        return dict(self._durable)

    def dump(self, now_ms: int) -> bytes:
        """The text of `delayOffset.json`."""
        if self._versioned != self.generation:
            self._versioned = self.generation
            self.data_version = self.data_version.next(now_ms)
        return fastjson.pretty(
            {
                **self._foreign_fields,
                "dataVersion": self.data_version.to_json(),
                "offsetTable": fastjson.IntKeys(sorted(self._durable.items())),
            }
        )

    def final(self, now_ms: int) -> bytes:
        """The text of `delayOffset.json` when the log has been flushed for good."""
        if self._has_page and self._newest[1] != self._durable:
            self._durable = self._newest[1]
            self.generation += 1
        return self.dump(now_ms)

    def _write_page(self) -> None:
        assert self._worker is not None
        if not self._has_page or self._worker.pending or self._written == self._newest[1]:
            return
        log_end, offsets = self._newest
        page = encode_page(self._boot, log_end, offsets)

        def write() -> None:
            try:
                self._disk.create_paged(self._path, PAGE_SIZE).write_at(0, page)
            except OSError as exc:
                if exc.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                log.error("how far delayed messages are delivered cannot be written", reason=str(exc))

        def done(_result: None) -> None:
            self._written = offsets
            self._write_page()

        self._worker.submit(write, done)

    def stop(self) -> None:
        """Finish writing. Blocks."""
        if self._worker is not None:
            self._worker.stop()
