"""Writers of queue files: the thread that was told to, or a process if there are very many files.

A file takes three system calls, and a new one six. A thread gives the interpreter back at each of them and takes it
from the loop again: beside a pass over forty thousand queues, which took seven seconds, sends ran at 0.7 of their
rate. So a long pass is written by a process (`ProcessQueueFileWriter`), started when there is the first. It writes
what it is told and knows nothing else. One that is gone is no loss: what it had not confirmed is written again, here.

It runs when nobody else wants the processor. Where that is too seldom the thread does the work for a while.

Of queues whose entries wait in the pool (`store.queues.entry_pool`) nobody here has put them together: the process
gets the pool's pieces, once for a pass, and then for each queue how many entries to write and where the last of them
stands.

    to the process    u32 size | kind | ...
                      P    a piece: u64 number | its linked entries, packed
                      L    the pieces may go
                      W    MessagePack: [[[path, file size, position, bytes], ...],
                                         [[directory, file size, first number, number behind, place], ...]]
    from it           u32 size | MessagePack: [[[path, whether the file was made], ...], errno or 0], for each W

The last path is that of the write that failed, if one did.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, TypeAlias

import msgspec

from store.io.disk import Disk
from store.io.helper_process import acquire_helper_lock, helper_order, set_idle_priority, start_helper
from store.queues.entry_pool import Pieces, chain
from store.queues.file_layout import Waiting, Write, writes_into
from store.queues.linked_entries import LinkedEntries, unfolded

Note: TypeAlias = Callable[[str, bool], None]
"""Told of each file that was written, or may have been: its path, and whether it may be a new one."""

_HEAD = struct.Struct(">Ic")
_SIZE, _NUMBER = struct.Struct(">I"), struct.Struct(">Q")
_RESTART_S = 5.0
_SLOW_S, _PAUSE_S = 0.2, 10.0
"""When orders of a hundred files or so take longer than this there is none for a while: this, or ten times as long.

One that meets a busy moment says little, so that is an average, of some ten orders: the thread costs the loop more
than a process that takes its time. A new file is 0.1 ms of a processor, and of one that is in use more is wanted."""
_WEIGHT = 0.1
_ANSWER_S = 10.0
"""A process that has not answered by then is killed."""
_encode = msgspec.msgpack.encode
_decode_order = msgspec.msgpack.Decoder(tuple[list[Write], list[Waiting]]).decode
_decode_outcome = msgspec.msgpack.Decoder(tuple[list[tuple[str, bool]], int]).decode


class QueueFileWriter:
    """A writer of queue files on the thread that asks, which is always the same one."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._pieces: Pieces = {}

    def hold(self, pieces: Pieces) -> None:
        """Keep the pool's pieces for a pass over very many files."""
        self._pieces = pieces

    def write(
        self, writes: Sequence[Write], note: Note, *, many: bool, waiting: Sequence[Waiting] = ()
    ) -> None:
        """Carry these out in order; `many` says that they are a part of very many. Blocks; raises the first OSError."""
        write_paged = self._disk.write_paged
        for path, size, position, data in itertools.chain(writes, *map(self._writes_of, waiting)):
            new = True  # as far as anybody knows, if there is an error
            try:
                new = write_paged(path, size, position, data)
            finally:
                note(path, new)

    def _writes_of(self, waiting: Waiting) -> Iterator[Write]:
        directory, size, first, through, newest = waiting
        yield from writes_into(directory, size, first, chain(self._pieces, newest, through - first))

    def stop(self) -> None:
        """End the process, if there is one. Blocks."""


class ProcessQueueFileWriter(QueueFileWriter):
    """A writer of queue files with a process, where there are many."""

    def __init__(self, disk: Disk, lock: Path) -> None:
        """`lock` is what the process holds as long as it can write."""
        super().__init__(disk)
        self._lock = lock
        self._process: subprocess.Popen[bytes] | None = None
        self._not_before = self._slow_until = self._usual_s = 0.0
        self._told = False
        """Whether the process has the pieces."""

    def hold(self, pieces: Pieces) -> None:
        super().hold(pieces)
        self._told = False
        if not pieces and self._process is not None:
            assert self._process.stdin is not None
            with contextlib.suppress(OSError):
                _send(self._process.stdin, b"L")

    def write(
        self, writes: Sequence[Write], note: Note, *, many: bool, waiting: Sequence[Waiting] = ()
    ) -> None:
        outcome = self._ask(writes, waiting) if many else None
        if outcome is None:
            super().write(writes, note, many=many, waiting=waiting)
            return
        done, error = outcome
        for path, new in done:
            note(path, new)
        if error:
            raise OSError(error, os.strerror(error), done[-1][0])

    def _ask(
        self, writes: Sequence[Write], waiting: Sequence[Waiting]
    ) -> tuple[list[tuple[str, bool]], int] | None:
        """Have the process write; return its report, or None if it is not to be asked or ended first."""
        if time.monotonic() < self._slow_until:
            return None
        try:
            order = _encode((writes, waiting))
        except UnicodeError:
            return None  # a path that is no text
        fresh = self._process is None
        process = self._process = self._process or self._start()
        if process is None:
            return None
        began = time.monotonic()
        answer = _exchange(process, order, {} if self._told else self._pieces)
        took_s = time.monotonic() - began
        if not fresh and self._told:  # neither has it come up meanwhile, nor read all of the pieces
            self._usual_s += _WEIGHT * (took_s - self._usual_s)
        self._told = True
        if (took_s if answer is None else self._usual_s) > _SLOW_S:
            self._usual_s = 0.0
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
            return start_helper("store.queues.queue_writer", str(self._lock.absolute()), bufsize=-1)
        except OSError:
            return None

    def stop(self) -> None:
        process, self._process, self._told = self._process, None, False
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


def queue_file_writer(disk: Disk, lock: Path) -> QueueFileWriter:
    """Return the writer for a store on this disk: with a process for the real one only."""
    return ProcessQueueFileWriter(disk, lock) if type(disk) is Disk else QueueFileWriter(disk)


def await_writer(disk: Disk, lock: Path) -> None:
    """Wait until no writer of a dead broker writes any more. Blocks; raises `StoreLocked`."""
    if disk.exists(lock):
        disk.unlock(acquire_helper_lock(disk, lock))


def _exchange(process: subprocess.Popen[bytes], order: bytes, pieces: Pieces) -> bytes | None:
    """The answer to an order, before which there are these pieces; None if there is none in time, or never will be."""
    assert process.stdin is not None and process.stdout is not None
    impatience = threading.Timer(_ANSWER_S, process.kill)
    try:
        impatience.start()
        for number, piece in pieces.items():
            _send(process.stdin, b"P", _NUMBER.pack(number), piece.packed())
        _send(process.stdin, b"W", order)
        return _receive(process.stdout)
    except (OSError, RuntimeError):  # the latter where no thread can be had
        return None
    finally:
        impatience.cancel()


def _send(stream: IO[bytes], kind: bytes, *parts: bytes | bytearray) -> None:
    stream.write(_HEAD.pack(len(kind) + sum(map(len, parts)), kind))
    for part in parts:
        stream.write(part)
    stream.flush()


def _receive(stream: IO[bytes]) -> bytes | None:
    """The next message, or None if there will be no more."""
    head = stream.read(_SIZE.size)
    size = _SIZE.unpack(head)[0] if len(head) == _SIZE.size else 0
    message = stream.read(size)
    return message if size and len(message) == size else None


# -- the process -------------------------------------------------------------------------------------


def main() -> None:
    lock = Path(helper_order())
    disk = Disk()
    acquire_helper_lock(disk, lock)
    set_idle_priority()
    files = QueueFileWriter(disk)
    pieces: dict[int, LinkedEntries] = {}
    with contextlib.suppress(BrokenPipeError):  # the broker is gone
        while (message := _receive(sys.stdin.buffer)) is not None:
            match message[:1]:
                case b"P":
                    pieces[_NUMBER.unpack_from(message, 1)[0]] = unfolded(message[1 + _NUMBER.size :])
                case b"L":
                    pieces.clear()
                case _:
                    files.hold(pieces)
                    answer = _encode(_carry_out(files, *_decode_order(message[1:])))
                    sys.stdout.buffer.write(_SIZE.pack(len(answer)) + answer)
                    sys.stdout.buffer.flush()


def _carry_out(
    files: QueueFileWriter, writes: list[Write], waiting: list[Waiting]
) -> tuple[list[tuple[str, bool]], int]:
    done: list[tuple[str, bool]] = []
    try:
        files.write(writes, lambda path, new: done.append((path, new)), many=True, waiting=waiting)
    except OSError as exc:
        return done, exc.errno or errno.EIO
    return done, 0


if __name__ == "__main__":
    main()
