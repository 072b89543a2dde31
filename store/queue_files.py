"""Who writes entries into queue files: the thread that was told to, or a process if there are very many files.

A file takes three system calls, and a new one six. A thread gives the interpreter back at each of them and takes it
from the loop again: beside a pass over forty thousand queues, which took seven seconds, sends ran at 0.7 of their
rate. So a long pass is written by a process (`ProcessQueueFiles`), started when there is the first. It writes what it
is told and knows nothing else. One that is gone is no loss: what it had not confirmed is written again, here.

It runs when nobody else wants the processor. Where that is too seldom the thread does the work for a while.

    to the process    u32 size | MessagePack: [[path, file size, position, bytes], ...]
    from it           u32 size | MessagePack: [[whether the file was made, ...], errno or 0]
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, TypeAlias

import msgspec

from store.disk import Disk
from store.helper_process import be_a_helper, be_modest, lock_of_helper, start_helper

Write: TypeAlias = tuple[str, int, int, bytes]
"""Path, size of the whole file, position, bytes."""
Note: TypeAlias = Callable[[str, bool], None]
"""Told of each file that was written, or may have been: its path, and whether it may be a new one."""

_SIZE = struct.Struct(">I")
_RESTART_S = 5.0
_SLOW_S, _PAUSE_S = 0.1, 10.0
"""An order of a hundred files or so that took longer than this is the last for a while: this, or ten times as long."""
_ANSWER_S = 10.0
"""Who has not answered by then is killed."""
_encode = msgspec.msgpack.encode
_decode_writes = msgspec.msgpack.Decoder(list[Write]).decode
_decode_outcome = msgspec.msgpack.Decoder(tuple[list[bool], int]).decode


class QueueFiles:
    """Writes them on the thread that asks, which is always the same one."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def write(self, writes: Sequence[Write], note: Note, *, many: bool) -> None:
        """Carry these out in order; `many` says that they are a part of very many. Blocks; raises the first OSError."""
        write_paged = self._disk.write_paged
        for path, size, position, data in writes:
            new = True  # as far as anybody knows, if there is an error
            try:
                new = write_paged(path, size, position, data)
            finally:
                note(path, new)

    def stop(self) -> None:
        """Have nobody else at work. Blocks."""


class ProcessQueueFiles(QueueFiles):
    """Has them written by a process where there are many."""

    def __init__(self, disk: Disk, lock: Path) -> None:
        """`lock` is what the process holds as long as it can write."""
        super().__init__(disk)
        self._lock = lock
        self._process: subprocess.Popen[bytes] | None = None
        self._not_before = self._slow_until = 0.0

    def write(self, writes: Sequence[Write], note: Note, *, many: bool) -> None:
        outcome = self._ask(writes) if many else None
        if outcome is None:
            super().write(writes, note, many=many)
            return
        made, error = outcome
        for (path, *_rest), new in zip(writes, made, strict=False):
            note(path, new)
        if error:
            path = writes[len(made)][0]
            note(path, True)
            raise OSError(error, os.strerror(error), path)

    def _ask(self, writes: Sequence[Write]) -> tuple[list[bool], int] | None:
        """What the process has to say; None if it is not to be asked, or went before it said so."""
        if time.monotonic() < self._slow_until:
            return None
        try:
            order = _encode(writes)
        except UnicodeError:
            return None  # a path that is no text
        fresh = self._process is None
        process = self._process = self._process or self._start()
        if process is None:
            return None
        began = time.monotonic()
        answer = _exchange(process, order)
        took_s = time.monotonic() - began
        if took_s > _SLOW_S and (answer is None or not fresh):
            self._slow_until = time.monotonic() + max(_PAUSE_S, 10 * took_s)
        if answer is None:
            process.kill()
            self.stop()
            return None
        return _decode_outcome(answer)

    def _start(self) -> subprocess.Popen[bytes] | None:
        if time.monotonic() < self._not_before:
            return None
        self._not_before = time.monotonic() + _RESTART_S
        try:
            return start_helper("store.queue_files", str(self._lock.absolute()), bufsize=-1)
        except OSError:
            return None

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None and process.stdout is not None
        for stream in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):  # an order that it will not read
                stream.close()  # it ends with its input, unless somebody has stopped it
        try:
            process.wait(_ANSWER_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def queue_files(disk: Disk, lock: Path) -> QueueFiles:
    """The writer for a store on this disk. A process has the real one only."""
    return ProcessQueueFiles(disk, lock) if type(disk) is Disk else QueueFiles(disk)


def await_writer(disk: Disk, lock: Path) -> None:
    """Have no writer of a broker that is gone write any more. Blocks; raises `StoreLocked`."""
    if disk.exists(lock):
        disk.unlock(lock_of_helper(disk, lock))


def _exchange(process: subprocess.Popen[bytes], order: bytes) -> bytes | None:
    """The answer to an order; None if there is none in time, or never will be."""
    assert process.stdin is not None and process.stdout is not None
    impatience = threading.Timer(_ANSWER_S, process.kill)
    try:
        impatience.start()
        _send(process.stdin, order)
        return _receive(process.stdout)
    except (OSError, RuntimeError):  # the latter where no thread can be had
        return None
    finally:
        impatience.cancel()


def _send(stream: IO[bytes], message: bytes) -> None:
    stream.write(_SIZE.pack(len(message)) + message)
    stream.flush()


def _receive(stream: IO[bytes]) -> bytes | None:
    """The next message, or None if there will be no more."""
    head = stream.read(_SIZE.size)
    size = _SIZE.unpack(head)[0] if len(head) == _SIZE.size else 0
    message = stream.read(size)
    return message if size and len(message) == size else None


# -- the process -------------------------------------------------------------------------------------


def main() -> None:
    lock = Path(be_a_helper())
    disk = Disk()
    lock_of_helper(disk, lock)
    be_modest()
    files = QueueFiles(disk)
    with contextlib.suppress(BrokenPipeError):  # the broker is gone
        while (order := _receive(sys.stdin.buffer)) is not None:
            _send(sys.stdout.buffer, _encode(_carry_out(files, _decode_writes(order))))


def _carry_out(files: QueueFiles, writes: list[Write]) -> tuple[list[bool], int]:
    made: list[bool] = []
    try:
        files.write(writes, lambda _path, new: made.append(new), many=True)
    except OSError as exc:
        return made[:-1], exc.errno or errno.EIO  # the last is the one that failed
    return made, 0


if __name__ == "__main__":
    main()
