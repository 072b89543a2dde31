"""The sizes a store was written with, read off its files: for tools that are given a directory and no configuration.

Segments and queue files are as long as they are, unless somebody cut them: checksums of a segment know how long it
was, and other copies of the log are asked too. How many slots an index has stands nowhere; but its first item can be
told by heart from the record it belongs to, and where it lies in the file gives the rest away.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ropewalk.errors import CorruptRecord
from ropewalk.format.index import HEADER_SIZE, ITEM_SIZE, SLOT_SIZE, Geometry, IndexHeader, record_hashes
from ropewalk.format.queue_entry import ENTRY_SIZE
from ropewalk.format.record import decode_record
from ropewalk.format.sidecar import Sidecar
from store.config import StoreConfig
from store.index.file import index_names
from store.log.commitlog import NAME_DIGITS
from store.log.placing import ENTRY, PLAIN, Placing
from store.offline.dry_run_disk import DryRunDisk
from store.offline.reader import UnreadableStore, is_entry_log, log_folder
from store.recovery.delay_levels import DEFAULT_LEVELS, DelayLevels

_FIRST = struct.Struct(">iq")
_STEP = 4 << 20
_QUEUE_FILE_SIZE = 6_000_000
"""RocketMQ's default, and ours: for a store whose queue files are all gone."""
_BESIDE_THE_LOG = ("consumequeue", "ropewalk", "checkpoint")


@dataclass(frozen=True, slots=True)
class Layout:
    """The place and the shape of a store; 0 or None where the files do not tell."""

    root: Path
    log_directory: Path
    segment_size: int = 0
    queue_file_size: int = 0
    index: Geometry | None = None
    delay_levels: DelayLevels | None = None
    """The broker's table; None where nobody gave it. No file of a store holds it."""
    observed_levels: DelayLevels = DEFAULT_LEVELS
    """The table as entries of delayed messages show it, for what has to be built where none was given."""

    @property
    def placing(self) -> Placing:
        """The placing of records in the log: entries in a DLedger member's."""
        return ENTRY if is_entry_log(self.log_directory) else PLAIN

    def config(self, *, sync_flush: bool, checksum_block: int = 1) -> StoreConfig:
        """Return the configuration to open the store with. No index: it is judged at the broker's own start."""
        return StoreConfig(
            root=self.root,
            log_directory=self.log_directory,
            store_host=bytes(8),
            segment_size=self.segment_size,
            queue_file_size=self.queue_file_size or _QUEUE_FILE_SIZE,
            sync_flush=sync_flush,
            delay_levels=self.delay_levels or self.observed_levels,
            checksum_block=checksum_block,
        )


def guess_layout(disk: DryRunDisk, given: Layout, others: Sequence[Path] = ()) -> Layout:
    """Read the sizes that are not given off the files. `others` are directories of the same log.

    Blocks; raises `UnreadableStore` where no commit log is.
    """
    try:
        # With the log alone gone it is a store all the same: there are copies that the log can be taken from.
        if not any(map(disk.exists, (given.log_directory, *(given.root / name for name in _BESIDE_THE_LOG)))):
            raise UnreadableStore(f"{given.root} holds no commit log: {given.log_directory} does not exist")
        segment_size = given.segment_size or _segment_size(disk, given, others)
        queue_size = given.queue_file_size or _usual(_queue_sizes(disk, given.root / "consumequeue"))
        found = replace(given, segment_size=segment_size, queue_file_size=queue_size)
        return replace(found, index=given.index or _guess_index(disk, found))
    except OSError as exc:
        raise UnreadableStore(f"cannot read {given.root}: {exc.strerror or exc}") from exc


def _segment_size(disk: DryRunDisk, given: Layout, others: Sequence[Path]) -> int:
    directory = given.root / "ropewalk" / "checksums"
    sidecars = [Sidecar.decode(disk.read_file(directory / name)) for name in disk.names(directory)]
    summed = _usual([sidecar.segment_size for sidecar in sidecars if sidecar is not None])
    folders = [given.log_directory, *map(log_folder, others)]
    return summed or _usual([disk.size_of(f / name) for f in folders for name in log_names(disk, f)])


def log_names(disk: DryRunDisk, directory: Path) -> list[str]:
    return [name for name in disk.names(directory) if len(name) == NAME_DIGITS and name.isdigit()]


def _usual(sizes: list[int]) -> int:
    counts = Counter(size for size in sizes if size)
    return max(counts, key=lambda size: (counts[size], size), default=0)


def _queue_sizes(disk: DryRunDisk, base: Path) -> list[int]:
    sizes: list[int] = []
    for topic in disk.directories(base):
        for queue in disk.directories(base / topic):
            names = disk.names(base / topic / queue)
            found = [disk.size_of(base / topic / queue / name) for name in names]
            sizes += [size for size in found if size % ENTRY_SIZE == 0]  # else it was cut
            if len(sizes) > 1000:
                return sizes
    return sizes


def _guess_index(disk: DryRunDisk, layout: Layout) -> Geometry | None:
    """The shape of the index files; None if there are none or they do not tell."""
    directory = layout.root / "index"
    for name in index_names(disk, directory):
        path = directory / name
        size = disk.size_of(path)
        if size < HEADER_SIZE + ITEM_SIZE:
            continue
        file = disk.open_paged(path)
        header = IndexHeader.decode(file.read_at(0, HEADER_SIZE))
        if size == Geometry().file_size:
            return Geometry()
        wanted = _first_item(disk, layout, header.begin_offset)
        if wanted is None:
            continue
        for start, end in file.data_ranges(0):
            for at in range(start, end, _STEP):
                data = file.read_at(at, _STEP + len(wanted))
                found = data.find(wanted)
                while found >= 0:
                    slots, rest = divmod(at + found - HEADER_SIZE - ITEM_SIZE, SLOT_SIZE)
                    items = (size - HEADER_SIZE - SLOT_SIZE * slots) // ITEM_SIZE
                    geometry = Geometry(slots, items)
                    if rest == 0 and slots > 0 and geometry.file_size == size:
                        return geometry
                    found = data.find(wanted, found + 1)
    return None


def _first_item(disk: DryRunDisk, layout: Layout, offset: int) -> bytes | None:
    """Hash and offset of the item that the record at `offset` was indexed under first."""
    data = read_record_at(disk, layout, offset)
    if data is None:
        return None
    record = decode_record(data, check_crc=False)
    hashes = record_hashes(record.topic.encode(), record.raw_properties)
    return _FIRST.pack(hashes[0], offset) if hashes else None


def read_record_at(disk: DryRunDisk, layout: Layout, offset: int) -> bytes | None:
    """The record that begins at a log offset, or None if none does; its checksum is not looked at. Blocks."""
    if not layout.segment_size or offset < 0:
        return None
    base = offset - offset % layout.segment_size
    path = layout.log_directory / f"{base:020d}"
    if not disk.exists(path):
        return None
    file = disk.open_paged(path)
    head = file.read_at(offset - base, 4)
    size = int.from_bytes(head, "big", signed=True)
    if not 0 < size <= layout.segment_size:
        return None
    data = file.read_at(offset - base, size)
    try:
        return data if decode_record(data, check_crc=False).offset == offset else None
    except CorruptRecord:
        return None
