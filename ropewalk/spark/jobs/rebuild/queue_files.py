"""Pack the consume queue of a log file by file, as a broker writes it.

    file: entries of 20 bytes, zeros behind the last; named by the byte of the queue at which it begins
    a queue whose first record is not its number 0 begins with fillings up to it, in the file where that falls

Entries come in the order of their numbers. Of several with one number the one further on in the log counts, as in a
broker that sees them in the order of the log. A number that nobody asked for becomes a filling too, and is counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ropewalk.format.queue_entry import ENTRY_SIZE, PRE_BLANK
from ropewalk.spark.jobs.records.queue_check import ENTRY, Entries
from ropewalk.spark.jobs.records.scan import Ints

_BLANK = np.frombuffer(PRE_BLANK, ENTRY)[0]


@dataclass(frozen=True, slots=True)
class QueueBuilt:
    """A queue that was written."""

    topic: str
    queue_id: int
    first: int
    following: int
    """The number behind the last."""
    doubles: int
    """Numbers that more than one record asked for."""
    holes: int
    """Numbers that no record asked for."""
    files: int
    astray: int = 0
    """Records with a number so far from all others that it cannot be theirs; they got no entry."""


class QueueFiles:
    """A packer of one queue's entries into files. `write(base, data)` gets each when it is full, or the last.

    The data ends with the last entry; behind it a file has zeros up to its size.
    """

    def __init__(
        self, topic: str, queue_id: int, file_size: int, write: Callable[[int, bytes], None]
    ) -> None:
        self._topic = topic
        self._queue_id = queue_id
        self._per_file = file_size // ENTRY_SIZE
        self._write = write
        self._file = -1
        self._entries: Entries = np.zeros(0, ENTRY)
        self._first = self._next = -1
        self._doubles = self._holes = self._files = 0

    def add(self, numbers: Ints, entries: Any) -> None:
        """Add entries in the order of their numbers, and in that of the log where numbers are equal."""
        if not len(numbers):
            return
        if self._next < 0:
            self._first = self._next = int(numbers[0])
        steps = np.diff(numbers, prepend=self._next - 1)
        self._doubles += int((steps == 0).sum())
        self._holes += int((steps[steps > 1] - 1).sum())
        self._next = int(numbers[-1]) + 1
        files = numbers // self._per_file
        for file in np.unique(files).tolist():
            self._begin(file)
            chosen = files == file
            places = numbers[chosen] - file * self._per_file
            # Assigning in order leaves the last of equal numbers standing.
            self._entries[places] = entries[chosen]

    def _begin(self, file: int) -> None:
        if file == self._file:
            return
        self._flush()
        first = self._file < 0
        for missing in range(self._file + 1 if not first else file, file):
            self._file, self._entries = missing, np.zeros(self._per_file, ENTRY)
            self._fill(0, self._per_file)
            self._flush()
        self._file, self._entries = file, np.zeros(self._per_file, ENTRY)

    def _fill(self, low: int, high: int) -> None:
        part = self._entries[low:high]
        part[part["size"] == 0] = _BLANK

    def _flush(self) -> None:
        if self._file < 0:
            return
        begin = self._file * self._per_file
        count = min(self._per_file, max(self._next - begin, 0))
        self._fill(0, count)
        self._write(begin * ENTRY_SIZE, self._entries[:count].tobytes())
        self._files += 1

    def finish(self) -> QueueBuilt:
        """Write the last file, and return the queue that was built."""
        self._flush()
        return QueueBuilt(
            self._topic, self._queue_id, self._first, self._next, self._doubles, self._holes, self._files
        )
