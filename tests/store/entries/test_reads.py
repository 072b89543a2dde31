"""Runs that are read for members that lag."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

from ropewalk.format.dledger.entry import HEAD_SIZE, encode_entries
from store.entries.reads import read_run
from store.io.disk import Disk
from store.log.placing import ENTRY
from store.log.segment import Segment

SIZE = 1 << 16
BODIES = [b"%d" % number * 700 for number in range(1, 9)]


def segment_of(path: Path) -> tuple[Segment, bytes]:
    """Return a segment of eight entries, of whose map only the heads can be read."""
    segment = Segment(0, Disk().allocate(path, SIZE), placing=ENTRY)
    data = encode_entries(0, 1, 0, BODIES)
    segment.append(data)
    heads = bytearray(SIZE)
    for at in range(0, len(data), HEAD_SIZE + 700):
        heads[at : at + HEAD_SIZE] = data[at : at + HEAD_SIZE]
    return cast(
        "Segment", SimpleNamespace(file=segment.file, map=heads, base_offset=0, size=SIZE, end_offset=SIZE)
    ), data


def test_entries_are_read_without_their_pages_of_the_map(tmp_path: Path) -> None:
    # Cold pages of a map stop the loop, whichever thread touches them.
    segment, data = segment_of(tmp_path / "0")
    (prev, run, found), last = read_run([segment], len(data), None, 0, SIZE)
    assert (prev, run) == ((-1, -1, 0), (0, 8, 1, 0, len(data)))
    assert bytes(found) == data and last == (7, 7 * (HEAD_SIZE + 700))


def test_a_run_ends_with_a_whole_entry_and_has_one_at_least(tmp_path: Path) -> None:
    segment, data = segment_of(tmp_path / "0")
    size = HEAD_SIZE + 700
    for bytes_max, count in (
        (1, 1),
        (HEAD_SIZE, 1),
        (size, 1),
        (2 * size - 1, 1),
        (2 * size, 2),
        (5 * size + 9, 5),
    ):
        (prev, run, found), _last = read_run([segment], len(data), None, 2, bytes_max)
        assert prev == (1, 1, 2 * size) and run == (2, count, 1, 2 * size, count * size), bytes_max
        assert bytes(found) == data[2 * size : (2 + count) * size]
