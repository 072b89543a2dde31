"""A broker without one of the habits of a DLedger leader, to see what it pays: `python -m tests.bench.ledger_switches`.

    no-batching    each entry leaves in a frame of its own
    no-pipelining  one frame is on its way to a follower, and the next leaves when that one is on its disk

The first word names the habit; what follows are the words of `ropewalk`. `tests.bench.ledger_rows` starts members so.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from broker.replication.dledger import member as ledger_member
from ha.raft.types import Settings
from ropewalk.__main__ import main
from ropewalk.format.dledger.entry import decode_head
from store.log.entry_writer import EntryWriter, WrittenRun

NO_BATCHING, NO_PIPELINING = "no-batching", "no-pipelining"


def entries_of(run: WrittenRun) -> list[WrittenRun]:
    """Return a run for each entry of a run."""
    first, count, term, pos, _size, data = run
    entries, at = [], 0
    for index in range(first, first + count):
        size = decode_head(data, at).size
        entries.append((index, 1, term, pos + at, size, data[at : at + size]))
        at += size
    return entries


def take_each(
    writer: EntryWriter,
    bytes_max: int,
    segment_size: int,
    take: Callable[[EntryWriter, int, int], list[WrittenRun]] = EntryWriter.take,
) -> list[WrittenRun]:
    """Return the entries since the last call, each as a run, although they were written in one piece."""
    return [entry for run in take(writer, bytes_max, segment_size) for entry in entries_of(run)]


def switch_off(habit: str) -> None:
    """Have the member of this process do without a habit."""
    if habit not in (NO_BATCHING, NO_PIPELINING):
        raise SystemExit(f"{habit} is neither {NO_BATCHING} nor {NO_PIPELINING}")
    changed: dict[str, Any] = {"window_frames": 1}
    if habit == NO_BATCHING:
        changed = {"frame_bytes_max": 1, "fetch_bytes_max": 1}
        setattr(EntryWriter, "take", take_each)  # noqa: B010
    setattr(ledger_member, "Settings", partial(Settings, **changed))  # noqa: B010


def command(habit: str) -> Sequence[str]:
    """Return the words that start `ropewalk` from the checkout without a habit; with all of them for none."""
    return [sys.executable, "-m", "tests.bench.ledger_switches", habit]


if __name__ == "__main__":
    switch_off(sys.argv.pop(1))
    main()
