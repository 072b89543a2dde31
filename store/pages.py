"""Who has the page cache hold what is written next: the thread that was told to, or a process where the log grows fast.

Memory that a virtual machine was not given yet, or that it gave back, takes 9 us a page to get: nearly half of a
processor at 200 MB/s. A thread is at the interpreter again behind each piece of it, and takes it from the loop; and a
kernel that preempts lazily finishes a large piece, whoever else wants that processor. A process asks for small pieces
and yields in between: 4 connections x 256 of 1 KiB under SYNC_FLUSH in such memory 185k/s to 214k/s, 1 x 64 under
SYNC_MASTER 154k/s to 163k/s. (That it should run only when nobody else wants to is too seldom for a slave that catches
up.)

Large records are written faster than it could bring such memory. It *shares* the work with their writer then: every
other mebibyte is its, and none is waited for (4 connections x 8 of 64 KiB: 414 MB/s to 600-750 MB/s).

It takes 15 MB, and is started when the log has first grown fast. It is told what to do and answers nothing: pages that
do not come are brought by whoever writes to them.

    to the process, lines of JSON: [path of the segment, from, to, whether they are shared]
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from store.disk import Disk, MappedFile
from store.helper_process import be_a_helper, start_helper, unread

_PIECE = 256 << 10
_SMALL_PIECE = 64 << 10
_SHARE = 1 << 20
"""So many bytes, by position in the file, are one's and as many behind them the other's."""
_RESTART_S = 60.0
_UNREAD_MAX = 3


class Pages:
    """Brings them on the thread that asks, which is always the same one."""

    def bring(self, file: MappedFile, start: int, end: int, *, fast: bool) -> None:
        """Have these bytes of a file in the page cache soon. `fast` says that there will be many more. Blocks."""
        with contextlib.suppress(OSError):  # the writer brings them itself then
            for at in range(start, end, _PIECE):
                file.read_ahead(at, min(_PIECE, end - at))

    def share(self, file: MappedFile, start: int, end: int) -> bool:
        """Have every other part of these in the page cache soon; False if there is nobody to bring it.

        A thread is nobody: who writes large records is in the kernel all the time. Blocks a little.
        """
        return False

    def stop(self) -> None:
        """Have nobody else at work."""


class ProcessPages(Pages):
    """Has them brought by a process, from the first time on that it is said to be fast."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._not_before = 0.0

    def bring(self, file: MappedFile, start: int, end: int, *, fast: bool) -> None:
        if fast:
            self._start()
        if not self._tell(file.path, start, end):
            super().bring(file, start, end, fast=fast)

    def share(self, file: MappedFile, start: int, end: int) -> bool:
        self._start()
        return self._tell(file.path, start, end, shared=True)

    def _start(self) -> None:
        """Have a process, if there is none and one can be had."""
        if self._process is None and time.monotonic() >= self._not_before:
            self._not_before = time.monotonic() + _RESTART_S
            with contextlib.suppress(OSError):
                self._process = start_helper("store.pages", "")
                assert self._process.stdin is not None
                os.set_blocking(self._process.stdin.fileno(), False)

    def _tell(self, path: Path, start: int, end: int, *, shared: bool = False) -> bool:
        """Whether there is a process, which will read this soon."""
        process = self._process
        if process is None or process.stdin is None:
            return False
        pipe = process.stdin.fileno()
        message = b""
        try:
            message = json.dumps([str(path.absolute()), start, end, shared]).encode() + b"\n"
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


def pages(disk: Disk) -> Pages:
    """Who brings them for a store on this disk. A process has the real one only."""
    return ProcessPages() if type(disk) is Disk else Pages()


# -- the process -------------------------------------------------------------------------------------


def main() -> None:
    be_a_helper()
    disk = Disk()
    for line in sys.stdin.buffer:
        path, start, end, shared = json.loads(line)
        file = disk.open_paged(Path(path))
        with contextlib.suppress(OSError):
            if shared:
                start -= start % _SMALL_PIECE
            for at in range(start, end, _SMALL_PIECE):
                if shared and at & _SHARE:
                    continue
                file.read_ahead(at, min(_SMALL_PIECE, end - at))
                os.sched_yield()
        disk.forget(file.path)  # the broker may remove it, and its space must come free then


if __name__ == "__main__":
    main()
