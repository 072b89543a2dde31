"""Rebuild consume queues and index from the log, as the broker itself would write them: `ropewalk pipeline rebuild`.

The source store is only read. First its log is walked over, so that each piece begins exactly at a record; then
`rebuild_queues` and `rebuild_index` make what was asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ropewalk.errors import RopewalkError
from ropewalk.format.index import Geometry
from ropewalk.format.record import RECORD_SIZE_MIN
from ropewalk.spark.jobs.common.files import check_new
from ropewalk.spark.jobs.common.report import FINDINGS, OK, Report, Table
from ropewalk.spark.jobs.common.tasks import Tasks
from ropewalk.spark.jobs.rebuild.index import rebuild_index
from ropewalk.spark.jobs.rebuild.queue_files import QueueBuilt
from ropewalk.spark.jobs.rebuild.queues import KeyEntries, PackQueue, verify_queues
from ropewalk.spark.jobs.records.columns import DEFAULT_DELAYS, parse_delays
from ropewalk.spark.jobs.records.log_files import open_store
from ropewalk.spark.jobs.records.walk import PIECE_SIZE, Walk, walk

WHAT: Final = ("consumequeue", "index")
_GAP: Final = 1 << 20
"""Numbers that may be missing in the queue of a log however small; there, damage looks as likely."""


class CannotRebuild(RopewalkError):
    """A store or option that cannot be rebuilt; the text says why."""


@dataclass(frozen=True, slots=True)
class RebuildOptions:
    """The scope and the target of a rebuild."""

    store: str
    out: str
    what: tuple[str, ...] = WHAT
    topics: tuple[str, ...] = ()
    """Only the queues of these; all if empty."""
    verify: bool = False
    delays: str = DEFAULT_DELAYS
    geometry: Geometry | None = None
    """Of the index; None: as the store's own, or RocketMQ's usual one."""
    queue_file_size: int = 0
    """0: as the store's own."""
    piece_size: int = PIECE_SIZE


@dataclass(slots=True)
class Rebuilt:
    """The files that were written, and how they compare to the store's own."""

    walk: Walk
    queues: list[QueueBuilt] = field(default_factory=list)
    index: list[tuple[str, int, int]] = field(default_factory=list)
    """Name, items and first log offset of each index file."""
    different: list[tuple[str, str]] = field(default_factory=list)
    """With `verify`: what is not as the store's own, and in which way."""
    verified: int = 0
    """Files that were compared."""
    indexed_twice: int = 0
    """Records that the store's own index holds twice, as RocketMQ's do after a crash."""


def rebuild(tasks: Tasks, options: RebuildOptions) -> Rebuilt:
    """Rebuild consume queues and index into a new directory. Raises `CannotRebuild`, and `TaskFailed`."""
    unknown = [name for name in options.what if name not in WHAT]
    if unknown:
        raise CannotRebuild(f"cannot rebuild {unknown[0]!r}: it is consumequeue, index, or both")
    delays_ms = parse_delays(options.delays)
    store = tasks.run_one(open_store, options.store, "listing")
    out = Path(options.out)
    if Path(options.store).resolve() in (out.resolve(), *out.resolve().parents):
        raise CannotRebuild(
            f"{out} lies in {options.store}, and a rebuild never writes into the store that it reads"
        )
    tasks.run_one(check_new, options.out, "making room")
    done = Rebuilt(walk(tasks, store, piece_size=options.piece_size))
    if "consumequeue" in options.what:
        file_size = options.queue_file_size or store.queue_file_size
        spread = KeyEntries(delays_ms, frozenset(options.topics))
        gap_max = max(_GAP, (done.walk.end - store.min_offset) // RECORD_SIZE_MIN)
        write = PackQueue(options.out, file_size, gap_max)
        done.queues = tasks.shuffle(spread, write, done.walk.stretches, "queues")
        done.queues.sort(key=lambda queue: (queue.topic, queue.queue_id))
        if options.verify:
            done.verified, done.different = verify_queues(
                tasks, store, options.out, options.topics, done.queues
            )
    if "index" in options.what:
        index = rebuild_index(tasks, done.walk, options.out, options.geometry, verify=options.verify)
        done.index = index.files
        done.verified += index.compared
        done.different += index.different
        done.indexed_twice = index.doubled
    return done


def rebuild_report(options: RebuildOptions, done: Rebuilt) -> Report:
    """Report the files that were written, and their differences."""
    doubles, holes = sum(q.doubles for q in done.queues), sum(q.holes for q in done.queues)
    astray = sum(q.astray for q in done.queues)
    summary = {
        "store": options.store,
        "out": options.out,
        "records": done.walk.records,
        "log_end": done.walk.end,
        "queues": len(done.queues),
        "entries": sum(q.following - q.first - q.holes for q in done.queues),
        "index_items": sum(items for _name, items, _offset in done.index),
        "files_compared": done.verified,
        "different": len(done.different),
        "indexed_twice_by_broker": done.indexed_twice,
    }
    tables = [
        Table(
            "queues",
            (
                "topic",
                "queue",
                "first",
                "behind the last",
                "numbers twice",
                "numbers missing",
                "numbers astray",
                "files",
            ),
            [
                (q.topic, q.queue_id, q.first, q.following, q.doubles, q.holes, q.astray, q.files)
                for q in done.queues
            ],
        ),
        Table("index", ("file", "items", "first log offset"), done.index),
        Table("lost", ("log offset", "end"), list(done.walk.lost)),
        Table("different", ("what", "how"), done.different),
    ]
    wrong = bool(done.walk.lost or done.different or doubles or holes or astray)
    title = f"Rebuilt {' and '.join(options.what)} of {options.store} into {options.out}"
    return Report("rebuild", title, summary, tables, [], FINDINGS if wrong else OK)
