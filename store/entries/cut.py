"""The cut of a log that is open: its end moved back to a point, redone by the next start after a crash at any step.

    1  nothing is being flushed, and the helpers ahead of the writer hold still
    2  `cut` names the point, durably
    3  the log ends there, in memory; later segments are let go as soon as nobody holds them
    4  what stood behind goes to `diverged/` (at most 64 MiB of it, and what the disk has room for), later files are
       removed, the newest first, the rest is zeroed and synced
    5  `cut` is removed

Between 2 and 5 a start finds the note and does all of it again. Entries that arrive meanwhile wait.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

import structlog

from store.entries.files import LedgerFiles, LogPoint
from store.io.disk import Disk
from store.log.segment import Segment
from store.write_back import unless_full

log = structlog.get_logger("store.entries")
KEPT_MAX: Final = 64 << 20
_CHUNK: Final = 1 << 20


def remove_behind(
    point: LogPoint,
    kept: Segment | None,
    old_end: int,
    removed: list[Segment],
    diverged: Path,
    files: LedgerFiles,
    disk: Disk,
) -> None:
    """Carry out steps 4 and 5. Blocks; for the storage thread.

    `kept` is the segment in which the log ends now, and `old_end` the position in it up to which bytes were written;
    `removed` are the segments behind it, in order.
    """
    target = diverged / f"{point[2]:020d}"
    left = KEPT_MAX
    pieces = [(kept, point[2] - kept.base_offset, old_end)] if kept is not None else []
    pieces += [(segment, 0, segment.write_position) for segment in removed]
    for segment, start, end in pieces:
        for at in range(start, end, _CHUNK):
            data = bytes(segment.map[at : min(at + _CHUNK, end, at + left)])
            if data and not unless_full(partial(disk.append_file, target, data)):
                log.warning("no room for a copy of what is cut: none of it was committed", path=str(target))
                left = 0
            left -= min(len(data), left)
    for segment in reversed(removed):
        segment.file.close()
        disk.remove(segment.file.path)
        # Durable before the next one goes: a later file that came back alone would leave a gap.
        disk.sync_directory(segment.file.path.parent)
    if kept is not None:
        start = point[2] - kept.base_offset
        for at in range(start, old_end, _CHUNK):
            size = min(_CHUNK, old_end - at)
            kept.file.write_at(at, bytes(size))
        kept.file.sync()
    files.remove("cut")
