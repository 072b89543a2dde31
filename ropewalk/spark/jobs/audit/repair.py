"""A repaired copy of a damaged store: every file as it is, but for the bytes that an audit found and another side has.

The source is never written to. Each file is copied by a task, under a temporary name, and gets its own name when it is
whole and on disk; so a task can run twice, and what has its name is finished.

    a segment       damaged stretches from the side that is right; one that is gone or too short is made whole
    a queue file    missing and wrong entries as the log asks for them; entries of nothing become zeros
    the index       copied; wrong items are `rebuild --what index`'s to mend
    lock            stays behind: nobody has the copy open
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ropewalk.errors import RopewalkError
from ropewalk.format.queue_entry import ENTRY_SIZE
from ropewalk.spark.jobs.audit.job import Audit
from ropewalk.spark.jobs.common.tasks import Tasks
from ropewalk.spark.jobs.records.findings import Finding, Kind
from ropewalk.spark.jobs.records.log_files import NAME_DIGITS, StoreFiles, read_at

_STEP: Final = 8 << 20
_LEFT_BEHIND: Final = frozenset({"lock"})
_FROM_OTHERS: Final = frozenset(
    {Kind.BIT_ROT, Kind.FOREIGN_BYTES, Kind.MISSING_BYTES, Kind.DIVERGED, Kind.BEHIND}
)


class CannotRepair(RopewalkError):
    """The copy cannot be made; the text says why."""


@dataclass(frozen=True, slots=True)
class Patch:
    """Bytes for a place in a file: given, or to be read from another file."""

    position: int
    size: int
    data: bytes = b""
    path: str = ""
    path_position: int = 0

    def read(self) -> bytes:
        if self.data:
            return self.data
        found = read_at(self.path, self.path_position, self.size)
        if len(found) < self.size:
            raise CannotRepair(
                f"{self.path} no longer has the bytes from {self.path_position} on that are right"
            )
        return found


@dataclass(slots=True)
class FileCopy:
    """A file of the copy: its source, its size, and its patches."""

    source: str
    """Empty for a file that the damaged store has not got."""
    target: str
    size: int = -1
    """-1: as long as the source."""
    patches: list[Patch] = field(default_factory=list)


@dataclass(slots=True)
class Repaired:
    """A repaired copy."""

    side: int
    path: str
    files: int
    patches: int
    patched_bytes: int
    left: int
    """Findings that nobody has the bytes for, or that are not a copy's to mend."""


def repair(tasks: Tasks, audit: Audit, directory: str) -> list[Repaired]:
    """Write a repaired copy of every side that has repairable damage, below `directory`. Raises `CannotRepair`."""
    done: list[Repaired] = []
    for number, store in enumerate(audit.stores):
        mine = [f for f in audit.findings if f.is_damage and f.side == number]
        fixable = [f for f in mine if f.repair_from >= 0 and f.kind is not Kind.WRONG_INDEX]
        if not [f for f in fixable if f.kind is not Kind.BEHIND] and not _is_short(store):
            continue
        target = str(Path(directory) / f"copy-{number}-of-{Path(store.root).name}")
        _refuse_sources(target, audit.stores)
        (names,) = tasks.run(list_tree, [(store.root, target)], "listing")
        plan = plan_copy(audit.stores, number, target, names, fixable)
        sizes = tasks.run(copy_file, plan, "copying")
        done.append(
            Repaired(
                number,
                target,
                len(plan),
                sum(len(each.patches) for each in plan),
                sum(sizes),
                len(mine) - len(fixable),
            )
        )
    return done


def _is_short(store: StoreFiles) -> bool:
    return any(segment.size != store.segment_size for segment in store.segments)


def _refuse_sources(target: str, stores: Sequence[StoreFiles]) -> None:
    for store in stores:
        if Path(store.root).resolve() in (Path(target).resolve(), *Path(target).resolve().parents):
            raise CannotRepair(
                f"{target} lies in {store.root}, and a repair never writes into a store that it reads"
            )


def list_tree(place: tuple[str, str]) -> list[tuple[str, int]]:
    """List every file below a directory with its size, and check that the target is new. Blocks."""
    root, target = place
    if os.path.isdir(target) and os.listdir(target):
        raise CannotRepair(f"{target} exists and is not empty: name a new directory")
    found: list[tuple[str, int]] = []
    for folder, _folders, names in os.walk(root):
        for name in names:
            path = os.path.join(folder, name)
            found.append((os.path.relpath(path, root), os.path.getsize(path)))
    return sorted(found)


def plan_copy(
    stores: Sequence[StoreFiles],
    number: int,
    target: str,
    names: Sequence[tuple[str, int]],
    findings: Sequence[Finding],
) -> list[FileCopy]:
    """Plan the contents of each file of the copy."""
    store = stores[number]
    plan = {
        name: FileCopy(os.path.join(store.root, name), os.path.join(target, name))
        for name, _size in names
        if name not in _LEFT_BEHIND
    }
    sizes = dict(names)
    patches: dict[str, list[Patch]] = defaultdict(list)
    for finding in findings:
        if finding.queue is not None:
            for name, patch in _entry_patches(store, finding):
                patches[name].append(patch)
        elif finding.kind in _FROM_OTHERS:
            for name, patch in _log_patches(stores, finding, sizes):
                patches[name].append(patch)
    for name, some in patches.items():
        copy = plan.setdefault(name, FileCopy("", os.path.join(target, name)))
        copy.patches = some
    for name, copy in plan.items():
        if name.startswith("commitlog/") and name.removeprefix("commitlog/").isdigit():
            copy.size = store.segment_size
        elif name.startswith("consumequeue/") and not copy.source:
            copy.size = store.queue_file_size
    return list(plan.values())


def _log_patches(
    stores: Sequence[StoreFiles], finding: Finding, sizes: dict[str, int]
) -> Iterator[tuple[str, Patch]]:
    """Stretches of the log from the side that is right, segment by segment."""
    store, other = stores[finding.side], stores[finding.repair_from]
    segment_size, offset = store.segment_size, finding.start
    while offset < finding.end:
        base = offset - offset % segment_size
        segment_end = base + segment_size
        name = f"commitlog/{base:0{NAME_DIGITS}d}"
        found = sizes.get(name, 0)
        end = min(finding.end, segment_end)
        if base + found < segment_end and finding.kind in (Kind.MISSING_BYTES, Kind.BEHIND):
            # Cut short: the filler at its end is part of what is missing too.
            end = segment_end
        elif finding.kind is Kind.BEHIND:
            return  # merely behind: replication brings the rest
        source = other.segment(base)
        if source is not None:
            available = min(end - offset, source.size - (offset - base))
            if available > 0:
                yield name, Patch(offset - base, available, b"", source.path, offset - base)
        if finding.kind is Kind.BEHIND:
            return
        offset = segment_end


def _entry_patches(store: StoreFiles, finding: Finding) -> Iterator[tuple[str, Patch]]:
    fault = finding.queue
    assert fault is not None
    size = store.queue_file_size
    at, end = fault.first * ENTRY_SIZE, (fault.last + 1) * ENTRY_SIZE
    while at < end:
        base = at - at % size
        stop = min(end, base + size)
        data = fault.entries[at - fault.first * ENTRY_SIZE : stop - fault.first * ENTRY_SIZE]
        name = f"consumequeue/{fault.topic}/{fault.queue_id}/{base:0{NAME_DIGITS}d}"
        yield name, Patch(at - base, len(data), data)
        at = stop


def copy_file(copy: FileCopy) -> int:
    """Write one file of the copy, and return how many bytes were patched. Blocks; twice gives the same file."""
    target = Path(copy.target)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    patched = 0
    try:
        with open(partial, "wb") as out:
            size = _copy_bytes(copy.source, out.fileno()) if copy.source else 0
            os.ftruncate(out.fileno(), size if copy.size < 0 else copy.size)
            for patch in copy.patches:
                os.pwrite(out.fileno(), patch.read(), patch.position)
                patched += patch.size
            os.fsync(out.fileno())
        if copy.source:
            # Retention goes by these times.
            seen = os.stat(copy.source)
            os.utime(partial, ns=(seen.st_atime_ns, seen.st_mtime_ns))
        os.replace(partial, target)
    except OSError as exc:
        partial.unlink(missing_ok=True)
        raise CannotRepair(f"cannot copy {copy.source} to {target}: {exc.strerror or exc}") from exc
    return patched


def _copy_bytes(source: str, out: int) -> int:
    """Copy a file's bytes, leaving out runs of zeros: most files of a store are sparse."""
    position = 0
    while True:
        data = read_at(source, position, _STEP)
        if not data:
            return position
        if data.count(0) != len(data):
            os.pwrite(out, data, position)
        position += len(data)
