"""The writer of entries: an appender's run of records gets the heads of DLedger's entries, by columns, in one write.

It knows the term and the next index, and keeps the very bytes that were written until the leader's shell takes them:
they are what goes to the followers, and no page of the map is read for that. Runs that follow each other in one
segment are joined, up to what fits into a frame.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ropewalk.format.dledger.entry import encode_entries
from store.log.segment import Segment

WrittenRun = tuple[int, int, int, int, int, bytes]
"""(first index, count, term, log offset of the first entry, size, bytes)"""


class EntryWriter:
    """The writer of an appender's runs in a log of entries, for the time in which this member leads."""

    def __init__(self, written: Callable[[WrittenRun], None]) -> None:
        """`written` hears of each run in the moment in which it has been written."""
        self.term = -1
        self.next_index = 0
        self._written = written
        self._taken: list[WrittenRun] = []

    def begin(self, term: int, next_index: int) -> None:
        """Write entries of this term from this index on."""
        assert not self._taken, "runs of an earlier term were not taken"
        self.term, self.next_index = term, next_index

    def forget(self) -> None:
        """Drop the runs that were not taken: the term has ended."""
        self._taken.clear()

    def __call__(
        self, segment: Segment, records: Sequence[bytes | memoryview], sizes: Sequence[int] | None = None
    ) -> None:
        """Write the records as entries. HOT."""
        if not records:
            return
        if sizes is not None:
            records = _joined(records, sizes)
        first, count, pos = self.next_index, len(records), segment.base_offset + segment.write_position
        data = encode_entries(first, self.term, pos, records)
        assert segment.write_position + len(data) <= segment.room
        segment.append(data)
        self.next_index = first + count
        run = first, count, self.term, pos, len(data), data
        self._taken.append(run)
        self._written(run)

    def take(self, bytes_max: int, segment_size: int) -> list[WrittenRun]:
        """Return the runs since the last call, in order; neighbours of one segment as one of up to `bytes_max`."""
        taken, self._taken = self._taken, []
        if len(taken) < 2:
            return taken
        runs: list[WrittenRun] = []
        group = [taken[0]]
        size = taken[0][4]
        for run in taken[1:]:
            last = group[-1]
            if (
                size + run[4] <= bytes_max
                and run[3] == last[3] + last[4]
                and run[3] % segment_size
                and run[2] == last[2]
            ):
                group.append(run)
                size += run[4]
            else:
                runs.append(_one_run(group, size))
                group, size = [run], run[4]
        runs.append(_one_run(group, size))
        return runs


def _one_run(group: list[WrittenRun], size: int) -> WrittenRun:
    if len(group) == 1:
        return group[0]
    first, _count, term, pos, _size, _data = group[0]
    return first, sum(run[1] for run in group), term, pos, size, b"".join([run[5] for run in group])


def _joined(pieces: Sequence[bytes | memoryview], sizes: Sequence[int]) -> list[bytes | memoryview]:
    """Put pieces together into the records of these sizes."""
    records: list[bytes | memoryview] = []
    at = iter(pieces)
    for size in sizes:
        record = [next(at)]
        left = size - len(record[0])
        while left > 0:
            record.append(next(at))
            left -= len(record[-1])
        assert left == 0, (size, left)
        records.append(record[0] if len(record) == 1 else b"".join(record))
    return records
