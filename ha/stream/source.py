"""The commit log as replication sends it: slices of the map near its end, a reader thread for the rest.

The loop touches no cold page. What lies further back than the warm window, or was written by an earlier process and
has not been looked at since, is read by a thread, which holds it against its checksums first: a damaged block is
never copied to a slave. A slice of the map keeps the map alive and not the file, so retention waits for no slave.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from store.io.workers import Completions, Helpers, Worker
from store.log.commitlog import CommitLog
from store.log.segment import Segment

IN_FLIGHT_MAX = 8


class LogSource:
    def __init__(
        self, log: CommitLog, completions: Completions, warm_window: int, helpers: Helpers | None = None
    ) -> None:
        self.findings: list[str] = []
        """The read error to log; its reader clears it."""
        self._log = log
        self._completions = completions
        self._warm_window = warm_window
        self._helpers = helpers or Helpers()
        self._worker: Worker | None = None

    @property
    def begin(self) -> int:
        return self._log.min_offset

    @property
    def end(self) -> int:
        return self._log.end_offset

    @property
    def last_segment(self) -> int:
        """Return the offset at which the newest segment begins."""
        return self._log.segments[-1].base_offset if self._log.segments else 0

    def warm(self, offset: int, size: int) -> memoryview | None:
        log = self._log
        if offset < max(log.end_offset - self._warm_window, log.trusted_offset):
            return None
        segment = log.find(offset)
        if segment is None:
            return None
        position = offset - segment.base_offset
        return memoryview(segment.map)[position : min(position + size, segment.write_position)]

    def fetch(self, offset: int, size: int, done: Callable[[bytes | None], None]) -> None:
        segment = self._log.find(offset)
        if self._worker is None:
            self._worker = self._helpers.worker("ropewalk-ha-reader", self._completions)
        if segment is None or self._worker.pending >= IN_FLIGHT_MAX:
            done(None)
            return
        position = offset - segment.base_offset
        size = min(size, segment.write_position - position)
        segment.pins += 1

        def bring(result: bytes | OSError) -> None:
            segment.pins -= 1
            if isinstance(result, OSError):
                self.findings.append(f"log offset {offset} cannot be sent to a slave: {result}")
                done(None)
            else:
                done(result)

        self._worker.submit(partial(_read, segment, position, size), bring)

    def stop(self) -> None:
        """End the thread. Blocks until what it does is done."""
        if self._worker is not None:
            self._worker.stop()


def _read(segment: Segment, position: int, size: int) -> bytes | OSError:
    """On the helper thread."""
    try:
        if segment.checks is not None:
            segment.checks.check_blocks(position, size)
        return segment.file.read_at(position, size)
    except OSError as exc:
        return exc
