"""Compare copies of one log on machines that do not see each other: `ropewalk pipeline audit --digest` and `--against`.

Each side looks at its own files only. One writes a digest of every block of its log to a small file, 100 bytes for a
MiB; the other, with that file at hand, takes the digest of the very same bytes of its own and names the blocks that
differ. What is hashed is records and what stands between them. What lies behind the last record of a segment, filler
or leftovers, is every copy's own, so blocks end there; that this place is the same on both sides is compared as well.

    block          [base + n MiB, base + (n + 1) MiB) of a segment, cut where its last record ends
    digest         blake2b, 16 bytes

A copy that ends early is behind, and of a block that it has in part nothing more can be said.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ropewalk.errors import RopewalkError
from ropewalk.spark.jobs.audit.job import CannotCompare
from ropewalk.spark.jobs.common.report import FINDINGS, OK, Report, Strips, Table
from ropewalk.spark.jobs.common.tasks import Tasks
from ropewalk.spark.jobs.export.sources import readable_end
from ropewalk.spark.jobs.records.log_files import StoreFiles, open_store
from ropewalk.spark.jobs.records.walk import walk

BLOCK: Final = 1 << 20
_AT_ONCE: Final = 64
"""Blocks in one task."""
_FORMAT: Final = "ropewalk log digests"
_VERSION: Final = 1

Block = tuple[int, int]
"""Log offsets: where it begins and ends."""


class BadDigests(RopewalkError):
    """A file that holds no digests."""


@dataclass(frozen=True, slots=True)
class Digests:
    """The digests of one copy of a log."""

    store: str
    segment_size: int
    begin: int
    end: int
    filled: tuple[Block, ...]
    """Of each segment: where it begins, and where its last record ends."""
    digests: tuple[str, ...]
    """Of the blocks of `blocks_of(filled)`, in hexadecimal."""

    @property
    def blocks(self) -> list[Block]:
        return blocks_of(self.filled)

    def encode(self) -> bytes:
        document = {
            "format": _FORMAT, "v": _VERSION, "block": BLOCK, "store": self.store, "segment_size": self.segment_size,
            "begin": self.begin, "end": self.end, "filled": self.filled, "digests": self.digests,
        }  # fmt: skip
        return json.dumps(document).encode()

    @classmethod
    def decode(cls, data: bytes, where: str) -> Digests:
        """Read the digests that `encode` wrote. Raises `BadDigests`."""
        try:
            found: dict[str, Any] = json.loads(data)
            if found["format"] != _FORMAT or (found["v"], found["block"]) != (_VERSION, BLOCK):
                raise BadDigests(f"{where} holds digests of another version of Ropewalk: write it anew")
            filled = tuple((int(begin), int(end)) for begin, end in found["filled"])
            made = cls(
                str(found["store"]), int(found["segment_size"]), int(found["begin"]), int(found["end"]), filled,
                tuple(str(each) for each in found["digests"]),
            )  # fmt: skip
        except (ValueError, KeyError, TypeError) as exc:
            raise BadDigests(f"{where} does not hold digests that `audit --digest` wrote ({exc!r})") from exc
        if len(made.blocks) != len(made.digests):
            raise BadDigests(f"{where} is cut short: {len(made.digests)} of {len(made.blocks)} digests")
        return made


def blocks_of(filled: Sequence[Block]) -> list[Block]:
    """Return the blocks of segments, in the order of the log."""
    return [(at, min(at + BLOCK, end)) for base, end in filled for at in range(base, end, BLOCK)]


@dataclass(frozen=True, slots=True)
class _Work:
    store: StoreFiles
    blocks: tuple[Block, ...]


def compute_digests(tasks: Tasks, path: str) -> Digests:
    """Compute the digests of a store's log up to its safe end. Raises `TaskFailed`."""
    store, filled, end = _open_copy(tasks, path)
    return Digests(
        path,
        store.segment_size,
        store.min_offset,
        end,
        filled,
        tuple(_hashed(tasks, store, blocks_of(filled))),
    )


def _open_copy(tasks: Tasks, path: str) -> tuple[StoreFiles, tuple[Block, ...], int]:
    store = tasks.run_one(open_store, path, "listing")
    safe = tasks.run_one(readable_end, path, "listing")
    found = walk(tasks, store)
    end = min(found.end, safe)
    return store, tuple((base, min(stop, end)) for base, stop in found.filled if base < end), end


def _hashed(tasks: Tasks, store: StoreFiles, blocks: Sequence[Block]) -> list[str]:
    by_segment: dict[int, list[Block]] = {}
    for block in blocks:
        by_segment.setdefault(block[0] - block[0] % store.segment_size, []).append(block)
    work = [
        _Work(store.narrowed(base), tuple(some[at : at + _AT_ONCE]))
        for base, some in by_segment.items()
        for at in range(0, len(some), _AT_ONCE)
    ]
    return [digest for digests in tasks.run(hash_blocks, work, "hashing") for digest in digests]


def hash_blocks(work: _Work) -> list[str]:
    """Return the digests of blocks of one segment; empty for one that is not whole. Runs in a task."""
    segment = work.store.segments[0] if work.store.segments else None
    if segment is None:
        return [""] * len(work.blocks)
    read = work.store.reader(segment)
    digests = []
    for start, end in work.blocks:
        first = work.store.page_start(segment, start)
        data = memoryview(read(first, end - first))[start - first :]
        digests.append(hashlib.blake2b(data, digest_size=16).hexdigest() if len(data) == end - start else "")
    return digests


@dataclass(slots=True)
class Difference:
    """Log offsets between which two copies do not hold the same bytes."""

    start: int
    end: int
    text: str


@dataclass(slots=True)
class Comparison:
    """The differences between one copy and the digests of another."""

    own: tuple[str, int, int]
    """Store, begin, end."""
    other: tuple[str, int, int]
    compared: int = 0
    """Blocks."""
    unchecked: int = 0
    """Bytes that both have, in a block that one of them has in part."""
    differences: list[Difference] = field(default_factory=list)


def compare_digests(tasks: Tasks, path: str, other: Digests) -> Comparison:
    """Hold a store against the digests of a copy of it. Raises `CannotCompare` and `TaskFailed`."""
    store, filled, end = _open_copy(tasks, path)
    if store.segment_size != other.segment_size:
        raise CannotCompare(
            f"{path} has segments of {store.segment_size} bytes, and {other.store} of {other.segment_size}: they are "
            f"not copies of one log"
        )
    low, high = max(store.min_offset, other.begin), min(end, other.end)
    if low >= high:
        raise CannotCompare(
            f"{path} holds log offsets {store.min_offset} to {end}, and {other.store} held {other.begin} to "
            f"{other.end}: no part of the log is in both"
        )
    done = Comparison((path, store.min_offset, end), (other.store, other.begin, other.end))
    theirs = [
        (block, digest)
        for block, digest in zip(other.blocks, other.digests, strict=True)
        if block[0] >= low and block[1] <= high
    ]
    done.compared = len(theirs)
    done.unchecked = sum(high - start for start, stop in other.blocks if low <= start < high < stop)
    found = _hashed(tasks, store, [block for block, _digest in theirs])
    for ((start, stop), wanted), digest in zip(theirs, found, strict=True):
        if digest != wanted:
            _add(
                done.differences,
                start,
                stop,
                "not the same bytes" if digest else "the file is too short here",
            )
    own_ends, other_ends = dict(filled), dict(other.filled)
    for base in sorted({*own_ends, *other_ends}):
        here, there = own_ends.get(base, base), other_ends.get(base, base)
        # Where one of them ends altogether it is behind, and that is told apart.
        if here != there and low <= base and min(here, there) < high:
            first, last = min(here, there), min(max(here, there), high)
            holder = path if here > there else other.store
            _add(done.differences, first, last, f"records that only {holder} has")
    done.differences.sort(key=lambda each: (each.start, each.end))
    return done


def _add(differences: list[Difference], start: int, end: int, text: str) -> None:
    if differences and differences[-1].end == start and differences[-1].text == text:
        differences[-1].end = end
    else:
        differences.append(Difference(start, end, text))


def digests_report(made: Digests, where: str) -> Report:
    """Report the digests that were written."""
    size = sum(end - start for start, end in made.blocks)
    summary = {
        "store": made.store, "begins": made.begin, "ends": made.end, "blocks": len(made.digests), "bytes": size,
        "digests": where,
    }  # fmt: skip
    title = f"Digests of {len(made.digests)} blocks of {made.store}, in {where}"
    return Report("audit", title, summary, [], [], OK)


def comparison_report(done: Comparison) -> Report:
    """Report where two copies differ, and which of them ends early."""
    (path, begin, end), (other, other_begin, other_end) = done.own, done.other
    behind = path if end < other_end else other if other_end < end else None
    findings = [("differs", each.start, each.end, each.text) for each in done.differences]
    if behind is not None:
        findings.append(("behind", min(end, other_end), max(end, other_end), f"{behind} ends early"))
    summary = {
        "stores": [path, other],
        "blocks": done.compared,
        "damage": len(findings),
        "behind": behind,
        "behind_bytes": abs(end - other_end),
        "unchecked_bytes": done.unchecked,
    }
    tables = [
        Table("copies", ("store", "begins", "ends"), [(path, begin, end), (other, other_begin, other_end)]),
        Table("findings", ("kind", "log offset", "end", "what"), findings),
    ]
    strips = Strips(
        "Where the copies differ",
        "log offset",
        [
            (name, low, high, [(each.start, each.end, "differs") for each in done.differences])
            for name, low, high in (done.own, done.other)
        ],
    )
    count = len(findings)
    title = f"{path} held against the digests of {other}: {count or 'no'} finding{'' if count == 1 else 's'}"
    return Report("audit", title, summary, tables, [strips], FINDINGS if count else OK)
