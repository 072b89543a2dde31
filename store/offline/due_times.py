"""Times of delivery in the queue files of delayed messages, kept through a repair that builds these files again.

An entry of the delay topic has the time at which its message is due in place of a tag code: the store time of the
record and the delay of its level, by the table that the broker had then. The log knows the level and not the table. So
what the files tell is kept:

    ropewalk/due-times/<queue>/<file>      copies, made before the files are removed, dropped when they are built again
    consumequeue/SCHEDULE_TOPIC_XXXX/...   built from the log, then corrected by the copies, entry by entry

An entry that no copy has gets the delay that its neighbours show (`observed_levels`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ropewalk.errors import CorruptRecord
from ropewalk.format.names import SCHEDULE_TOPIC
from ropewalk.format.queue_entry import ENTRY, ENTRY_SIZE, is_message
from ropewalk.format.record import decode_record
from store.io.disk import Disk
from store.offline.dry_run_disk import DryRunDisk
from store.offline.layout import Layout, read_record_at
from store.recovery.delay_levels import DEFAULT_DELAYS_MS, DelayLevels

_STEP = 4096 * ENTRY_SIZE
_TRIES = 64
"""Entries of a queue that are looked at, from the newest on, until one shows the delay of its level."""


def observed_levels(disk: DryRunDisk, layout: Layout) -> DelayLevels:
    """Return the delay table as the newest entries of each level show it; the usual delay where none does. Blocks."""
    delays = list(DEFAULT_DELAYS_MS)
    folder = layout.root / "consumequeue" / SCHEDULE_TOPIC
    for name in sorted(filter(str.isdigit, disk.directories(folder)), key=int):
        level = int(name) + 1
        if level > 1000:
            break
        delay = _observed(disk, layout, folder / name)
        delays += [DEFAULT_DELAYS_MS[-1]] * (level - len(delays))
        if delay is not None:
            delays[level - 1] = delay
    return DelayLevels(tuple(delays))


def _observed(disk: DryRunDisk, layout: Layout, folder: Path) -> int | None:
    tries = 0
    for file_name in reversed(_names(disk, folder)):
        file = disk.open_paged(folder / file_name)
        data = file.read_at(0, disk.size_of(file.path))
        for at in range(len(data) - len(data) % ENTRY_SIZE - ENTRY_SIZE, -1, -ENTRY_SIZE):
            offset, size, code = ENTRY.unpack_from(data, at)
            if not is_message(offset, size):
                continue
            stored = _stored_ms(disk, layout, offset)
            if stored is not None and code > stored:
                return int(code - stored)
            tries += 1
            if tries >= _TRIES:
                return None
    return None


def _names(disk: Disk, folder: Path) -> list[str]:
    return [name for name in disk.names(folder) if len(name) == 20 and name.isdigit()]


def _stored_ms(disk: DryRunDisk, layout: Layout, offset: int) -> int | None:
    """Return when the delayed message at a log offset was stored, ms; None if none is there."""
    data = read_record_at(disk, layout, offset)
    try:
        record = decode_record(data, check_crc=False) if data is not None else None
    except CorruptRecord:
        return None
    return record.store_timestamp if record is not None and record.topic == SCHEDULE_TOPIC else None


def _folder(layout: Layout) -> Path:
    return layout.root / "ropewalk" / "due-times"


def keep_due_times(layout: Layout, disk: Disk) -> None:
    """Copy the queue files of delayed messages aside, durably; copies of a repair that was interrupted stay. Blocks."""
    source = layout.root / "consumequeue" / SCHEDULE_TOPIC
    for queue in disk.directories(source):
        for name in _names(disk, source / queue):
            target = _folder(layout) / queue / name
            if disk.exists(target):
                continue
            file = disk.open_paged(source / queue / name)
            disk.replace_file(target, file.read_at(0, disk.size_of(file.path)))
            disk.forget(file.path)


def restore_due_times(layout: Layout, disk: Disk) -> int:
    """Put kept times back into entries that name the same records; return how many differed. Blocks."""
    changed = 0
    for queue in disk.directories(_folder(layout)):
        for name in _names(disk, _folder(layout) / queue):
            built = layout.root / "consumequeue" / SCHEDULE_TOPIC / queue / name
            kept = disk.read_file(_folder(layout) / queue / name) or b""
            if disk.exists(built):
                changed += _restore(layout, disk, built, kept)
    disk.remove_tree(_folder(layout))
    return changed


def _restore(layout: Layout, disk: Disk, path: Path, kept: bytes) -> int:
    file = disk.open_paged(path)
    look = DryRunDisk()
    changed = 0
    try:
        for at, code in list(_differences(file.read_at(0, len(kept)), kept)):
            (offset, size, _built), wanted = ENTRY.unpack_from(kept, at), code
            stored = _stored_ms(look, layout, offset)
            if stored is not None and wanted >= stored:  # what lies before it is damage, and no time
                file.write_at(at, ENTRY.pack(offset, size, wanted))
                changed += 1
    finally:
        look.close()
    if changed:
        file.sync()
    disk.forget(path)
    return changed


def _differences(built: bytes, kept: bytes) -> Iterator[tuple[int, int]]:
    """Yield where both have an entry of the same record with another time, and the kept one."""
    for start in range(0, min(len(built), len(kept)), _STEP):
        if built[start : start + _STEP] == kept[start : start + _STEP]:
            continue
        for at in range(start, min(start + _STEP, len(built), len(kept)) - ENTRY_SIZE + 1, ENTRY_SIZE):
            ours, theirs = ENTRY.unpack_from(built, at), ENTRY.unpack_from(kept, at)
            if ours[:2] == theirs[:2] and ours != theirs and is_message(ours[0], ours[1]):
                yield at, theirs[2]
