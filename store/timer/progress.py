"""The page of a killed process: how far timers were delivered, to within milliseconds.

    <root>/ropewalk/timer    magic "RWT2" | boot id 16 bytes | 5 x i64 | CRC32C u32

The numbers are the log's end, read time, queue offset, `done`, and the end of the timer log.

A killed process leaves the page cache, and so every copy it ever appended: on the boot that wrote it, and while the
commit log still reaches as far, the page is newer than the checkpoint. A machine that loses power may keep the page and
lose the copies, so on another boot it counts for nothing, and what was delivered since the last checkpoint (a second)
is delivered again. `done` counts the messages of the slot at the read time that are delivered, the oldest first.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import crc32c

from store.io.disk import Disk

PAGE_SIZE: Final = 4096
_PAGE: Final = struct.Struct(">4s16s5q")
_CRC: Final = struct.Struct(">I")
_MAGIC: Final = b"RWT2"


@dataclass(frozen=True, slots=True)
class Progress:
    """The read time and queue offset that a broker has reached."""

    read_ms: int
    queue_offset: int
    done: int = 0
    """Messages of the slot at `read_ms` that are delivered."""
    units_end: int = 0
    """The end of the own timer log behind the units of all messages before `queue_offset`, written or in memory."""


def encode_page(boot: bytes, log_end: int, progress: Progress) -> bytes:
    """Return the page."""
    numbers = progress.read_ms, progress.queue_offset, progress.done, progress.units_end
    body = _PAGE.pack(_MAGIC, boot, log_end, *numbers)
    return (body + _CRC.pack(crc32c.crc32c(body))).ljust(PAGE_SIZE, b"\0")


def decode_page(data: bytes | None, boot: bytes, log_end: int) -> Progress | None:
    """Return the progress of a page, None if it is not to be believed: another boot's, ahead of the log, or no page."""
    if data is None or len(data) != PAGE_SIZE:
        return None
    body = data[: _PAGE.size]
    magic, its_boot, its_end, *numbers = _PAGE.unpack(body)
    if magic != _MAGIC or _CRC.unpack_from(data, _PAGE.size)[0] != crc32c.crc32c(body):
        return None
    if its_boot != boot or not any(boot) or its_end > log_end:
        return None
    return Progress(*numbers)


class ProgressPage:
    """The file of the page. Blocks: for a helper thread, and for the time before the loop starts."""

    def __init__(self, root: Path, disk: Disk, boot: bytes) -> None:
        self._path = root / "ropewalk" / "timer"
        self._disk = disk
        self._boot = boot

    def read(self, log_end: int) -> Progress | None:
        """Return the progress of this boot's process before, None without one."""
        return decode_page(self._disk.read_file(self._path), self._boot, log_end)

    def write(self, log_end: int, progress: Progress) -> None:
        """Replace the page; no kill leaves half of it. Raises OSError."""
        self._disk.create_paged(self._path, PAGE_SIZE).write_at(0, encode_page(self._boot, log_end, progress))
