"""Prefaulting of the log's next pages: by the thread that asks, or by a process where the log grows fast.

Memory that a virtual machine was not given yet, or that it gave back, is slow to get. A thread is at the interpreter
again behind each piece of it, and takes it from the loop; and a kernel that preempts lazily finishes a large piece,
whoever else wants that processor. A process asks for small pieces and yields in between. (In the idle class it would
run too seldom for a slave that catches up.) It is started when the log has first grown fast; pages that do not come are
brought by the writer.

Large records are written faster than it could bring such memory. It *shares* the work with their writer then: every
other mebibyte is its, and none is waited for. Under SYNC_FLUSH the pages are not only brought but *written* ahead, as
the zeros that they hold. That is waited for: the disk says how fast zeros can go, and whether a writer overtakes them.

    to the process, lines of JSON: [what to do: "bring", "share" or "write", path of the segment, from, to]
    from it: a line feed when it has come up, and for each "write"

Measured:
    such memory                                          9 us a page: nearly half of a processor at 200 MB/s
    4 connections x 256 of 1 KiB, SYNC_FLUSH, in it      185k/s -> 214k/s;  1 x 64, SYNC_MASTER   154k/s -> 163k/s
    shared, 4 x 8 of 64 KiB                              414 MB/s -> 600-750 MB/s
    zeros, 32 x 1 of 1 KiB: p99 by a process             2.5 ms -> 1.8 ms, and 3 % more messages
    the process                                          15 MB
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from store.io.disk import Disk, MappedFile
from store.io.helper_process import answers, helper_order, start_helper, unread

_PIECE = 256 << 10
_SMALL_PIECE = 64 << 10
_SHARE = 1 << 20
"""So many bytes, by position in the file, are one's and as many behind them the other's."""
_RESTART_S = 60.0
_UNREAD_MAX = 3
_ANSWER_S = 1.0
"""Whoever waits for zeros has the next segment to make, too."""


class Prefaulter:
    """A prefaulter on the thread that asks, which is always the same one."""

    def bring(self, file: MappedFile, start: int, end: int, *, fast: bool) -> None:
        """Bring these bytes of a file into the page cache soon. `fast` says that there will be many more. Blocks."""
        with contextlib.suppress(OSError):  # the writer brings them itself then
            for at in range(start, end, _PIECE):
                file.read_ahead(at, min(_PIECE, end - at))

    def share(self, file: MappedFile, start: int, end: int) -> bool:
        """Bring every other part of these into the page cache soon; False if there is no process for it.

        A thread is none: the writer of large records is in the kernel all the time. Blocks a little.
        """
        return False

    def write(self, file: MappedFile, start: int, end: int, *, fast: bool) -> None:
        """Write these bytes of a file to the disk as they are, and wait for that; no promise.

        Who writes there meanwhile loses nothing.
        """
        with contextlib.suppress(OSError):  # the writer will meet it too, and say so
            for at in range(start, end, _PIECE):
                file.write_through(at, min(_PIECE, end - at))

    def stop(self) -> None:
        """End the process, if there is one."""


class ProcessPrefaulter(Prefaulter):
    """A prefaulter with a process, from the first time on that the log is said to grow fast."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._not_before = 0.0
        self._is_up = False

    def bring(self, file: MappedFile, start: int, end: int, *, fast: bool) -> None:
        if fast:
            self._start()
        if not self._tell("bring", file.path, start, end):
            super().bring(file, start, end, fast=fast)

    def share(self, file: MappedFile, start: int, end: int) -> bool:
        self._start()
        return self._tell("share", file.path, start, end)

    def write(self, file: MappedFile, start: int, end: int, *, fast: bool) -> None:
        if fast:
            self._start()
        if not (self._has_come_up() and self._tell("write", file.path, start, end) and self._is_answered()):
            super().write(file, start, end, fast=fast)

    def _start(self) -> None:
        """Have a process, if there is none and one can be had."""
        if self._process is None and time.monotonic() >= self._not_before:
            self._not_before = time.monotonic() + _RESTART_S
            self._is_up = False
            with contextlib.suppress(OSError):
                self._process = start_helper("store.log.page_prefault", "")
                assert self._process.stdin is not None
                os.set_blocking(self._process.stdin.fileno(), False)

    def _has_come_up(self) -> bool:
        """Whether there is a process that has said so: how long that takes on a busy machine is not waited for."""
        process = self._process
        if process is not None and process.stdout is not None and not self._is_up:
            self._is_up = answers(process.stdout.fileno(), 0)
            if process.poll() is not None:
                self.stop()
        return self._process is not None and self._is_up

    def _is_answered(self) -> bool:
        process = self._process
        assert process is not None and process.stdout is not None
        if answers(process.stdout.fileno(), _ANSWER_S):
            return True
        self.stop()  # it is gone, or hangs
        return False

    def _tell(self, what: str, path: Path, start: int, end: int) -> bool:
        """Whether there is a process, which will read this soon."""
        process = self._process
        if process is None or process.stdin is None:
            return False
        pipe = process.stdin.fileno()
        message = b""
        try:
            message = json.dumps([what, str(path.absolute()), start, end]).encode() + b"\n"
            if unread(pipe) > _UNREAD_MAX * len(message):
                return False  # it hardly gets to run
            told = os.write(pipe, message)
        except BlockingIOError:
            return False
        except OSError:
            told = -1
        if told != len(message):
            self.stop()
        return told == len(message)

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()  # there is nothing that it could leave half done
            with process:
                pass


def prefaulter(disk: Disk) -> Prefaulter:
    """Return the prefaulter for a store on this disk: with a process for the real one only."""
    return ProcessPrefaulter() if type(disk) is Disk else Prefaulter()


# -- the process -------------------------------------------------------------------------------------


def main() -> None:
    helper_order()
    os.write(1, b"\n")
    disk = Disk()
    for line in sys.stdin.buffer:
        what, path, start, end = json.loads(line)
        file = disk.open_paged(Path(path))
        do, piece = (file.write_through, _PIECE) if what == "write" else (file.read_ahead, _SMALL_PIECE)
        with contextlib.suppress(OSError):
            if what == "share":
                start -= start % _SMALL_PIECE
            for at in range(start, end, piece):
                if what == "share" and at & _SHARE:
                    continue
                do(at, min(piece, end - at))
                os.sched_yield()
        if what == "write":
            os.write(1, b"\n")
        disk.forget(file.path)  # the broker may remove it, and its space must come free then


if __name__ == "__main__":
    main()
