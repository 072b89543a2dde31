"""The key index beside the loop: a helper process, or a helper thread, that builds it, and how the loop talks to it.

The loop only says how far the log may be read (`follow`) and learns how far the index has come. A query asks to be
told when the index has reached what was readable at that moment (`when_built`), so that a message which was sent a
moment ago is found.

The builder works in Python for several microseconds a message. In a thread it takes the interpreter from the loop at
every system call of the loop's, and gives it back five milliseconds later: at 4 connections x 256 messages of 128
bytes on two cores, sends ran at 0.6 of their rate. So it has a process of its own (`ProcessIndex`, 0.9), which runs
when nobody else wants the processor (`store.io.idle_worker`), unless a query or a stop waits for it or there is little
to do. Two cores still share their memory and their disk, so while the log grows by more than 5 MB/s the index is left
behind. Past 1 GiB it gets 15 MB/s of the log to read, past 8 GiB whatever it needs. While the log grows slowly it
catches up by 5 MB/s. It catches up in the first quiet moment, or when a query waits for it. `WorkerIndex` does the
same work on a helper thread, for simulations, which own theirs.

The process is killed by the kernel when the broker dies, and ends when its standard input does. It holds a lock while
it lives: a broker that is started at once waits for it with its first index file and with nothing else.

    to the process, 17 bytes: "F" (follow), "Q" (follow, somebody waits) or "S" (stop)
                              | i64 readable through | i64 where the log begins
    from it, lines: position, end time in ms of the last file that became full, finding or nothing
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import struct
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ropewalk.format.index import Geometry
from store.index.builder import IndexBuilder
from store.index.file import IndexPlace, drop_unfinished, index_names, indexed_through
from store.io.disk import Disk
from store.io.helper_process import acquire_helper_lock, has_order, helper_order, start_helper
from store.io.idle_worker import GiveWay, IdlePriorityWorker, never_yield
from store.io.workers import Completions, Worker

_MESSAGE = struct.Struct(">cqq")
_FOLLOW_INTERVAL_MS = 200
_QUIET_BYTES, _BUSY_BYTES = 64 << 10, 1 << 20
_LITTLE = 64 << 10
_FEW_BYTES = 1 << 20
_STEP, _STEP_SLOW, _STEP_BUSY = 32 << 20, 1 << 20, 3 << 20
_BEHIND, _BEHIND_MAX = 1 << 30, 8 << 30
_WAIT_MS = 2000
_RESTART_MS = 5000
_STOP_S = 5.0
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class KeyIndex(ABC):
    """The loop's side: how far the index has come, and who waits for it. Subclasses do the work."""

    def __init__(self, place: IndexPlace, disk: Disk, now_ms: Callable[[], int]) -> None:
        self.place = place
        self.disk = disk
        self.position = 0
        """Every record that begins below this log offset can be found."""
        self.full_timestamp = 0
        """End time of the last file that became full and was flushed since the start, ms, or 0."""
        self.trouble = ""
        """Why the index is not built at the moment; empty while it is."""
        self.findings: list[str] = []
        """Messages for the log; the writer that puts them there clears the list."""
        self._now_ms = now_ms
        self._waiting: deque[tuple[int, int, Callable[[], None]]] = deque()
        self._log_end = 0
        self._checkpoint_ms = 0
        self._trusted_ms: int | None = None
        self._asked = (0, 0)
        self._next_ask_ms = 0
        self._seen = 0

    def start(self, log_end: int, min_offset: int, checkpoint_ms: int, *, abnormal: bool) -> None:
        """Look where the index stands. Blocks a little.

        `checkpoint_ms` is the checkpoint's index time; after an abnormal exit, what is younger is not trusted.
        """
        self._log_end, self._checkpoint_ms = log_end, checkpoint_ms
        self._trusted_ms = checkpoint_ms if abnormal else None
        if not abnormal:
            self.position, _hashes = indexed_through(self.disk, self.place)
            for name in index_names(self.disk, self.place.directory):
                self.disk.forget(self.place.directory / name)  # the helper may remove it one day
        self._asked = (self.position, min_offset)

    def follow(self, through: int, min_offset: int) -> None:
        """The log may be read up to here and begins there; call often. A log that grows fast is followed later."""
        now = self._now_ms()
        due = not 0 < self._next_ask_ms - now <= _FOLLOW_INTERVAL_MS  # also after the clock was set back
        if due and (through > self.position or min_offset > self._asked[1]):
            self._next_ask_ms = now + _FOLLOW_INTERVAL_MS
            grown, self._seen = through - self._seen, through
            behind = through - self.position
            if grown <= _QUIET_BYTES:
                step = _STEP
            elif grown <= _BUSY_BYTES:
                step = grown + _STEP_SLOW
            else:
                step = _STEP_BUSY if behind > _BEHIND else 0
            if behind > _BEHIND_MAX:
                step = behind
            if step:
                # No more at a time: whoever begins to send again must not meet a builder with seconds of work.
                self._ask(max(min(through, self.position + step), self._asked[0]), min_offset)
        while self._waiting and self._waiting[0][1] <= now:
            self._waiting.popleft()[2]()

    def when_built(self, through: int, callback: Callable[[], None]) -> None:
        """Call back when records up to here can be found, or in two seconds: an index far behind still answers.

        Clients wait for three to five seconds.
        """
        if self.position >= through:
            callback()
            return
        self._waiting.append((through, self._now_ms() + _WAIT_MS, callback))
        self._ask(max(through, self._asked[0]), self._asked[1])

    def _ask(self, through: int, min_offset: int) -> None:
        self._asked = (through, min_offset)
        self._work(through, min_offset)

    @abstractmethod
    def _work(self, through: int, min_offset: int) -> None:
        """Have the index built up to `through`, later and elsewhere."""

    def _took(self, position: int, full_timestamp: int, findings: list[str]) -> None:
        """The builder has come further."""
        self.trouble = ""
        self.position = max(self.position, position)
        self.full_timestamp = max(self.full_timestamp, full_timestamp)
        self.findings += findings
        for _ in range(len(self._waiting)):
            through, deadline, callback = self._waiting.popleft()
            if through <= self.position:
                callback()
            else:
                self._waiting.append((through, deadline, callback))

    @abstractmethod
    def stop(self, through: int, min_offset: int) -> None:
        """Have the index complete up to `through` and on disk, then end. Blocks; it may give up after a while."""

    def _build_here(self, through: int, min_offset: int) -> None:
        """For the end of a store: what a moment's work is left needs no helper."""
        builder = IndexBuilder(self.place, self.disk, self._now_ms)
        lock = acquire_helper_lock(self.disk, self.place.lock)
        try:
            builder.open(self._log_end, self._trusted_ms)
            builder.drop_before(min_offset)
            while not builder.advance(through, min_offset):
                pass
            builder.close()
        except OSError as exc:
            if exc.errno not in _NO_ROOM:
                raise
            builder.findings.append(f"no room for the key index: {exc}")
            drop_unfinished(self.disk, self.place)
        finally:
            self.disk.unlock(lock)
        self._took(builder.written, builder.full_timestamp, builder.findings)


class WorkerIndex(KeyIndex):
    """The index built on a helper thread."""

    def __init__(self, place: IndexPlace, disk: Disk, now_ms: Callable[[], int], worker: Worker) -> None:
        super().__init__(place, disk, now_ms)
        self._worker = worker
        self._builder: IndexBuilder | None = None
        self._dropped_before = 0
        self._put_off = False

    def _work(self, through: int, min_offset: int) -> None:
        self._put_off = self._worker.pending >= 2  # until one of those is through
        if not self._put_off:
            self._worker.submit(partial(self._build, through, min_offset), self._built)

    def _build(self, through: int, min_offset: int) -> tuple[int, int, list[str]]:
        if self._builder is None:
            self._builder = IndexBuilder(self.place, self.disk, self._now_ms)
            self._builder.open(self._log_end, self._trusted_ms)
        builder = self._builder
        try:
            if min_offset > self._dropped_before:
                builder.drop_before(min_offset)
                self._dropped_before = min_offset
            while not builder.advance(through, min_offset):
                pass
        except OSError as exc:
            if exc.errno not in _NO_ROOM:
                raise
        findings, builder.findings = builder.findings, []
        return builder.written, builder.full_timestamp, findings

    def _built(self, result: tuple[int, int, list[str]]) -> None:
        self._took(*result)
        if self._put_off:
            self._work(*self._asked)

    def stop(self, through: int, min_offset: int) -> None:
        self._put_off = False
        if self._builder is None and self.position >= through:
            self._worker.stop()
            return

        def last() -> tuple[int, int, list[str]]:
            result = self._build(through, min_offset)
            assert self._builder is not None
            if self._builder.written < through:  # no room
                drop_unfinished(self.disk, self.place)
            else:
                self._builder.close()
            return result

        self._worker.submit(last, self._built)
        self._worker.stop()


class ProcessIndex(KeyIndex):
    """The index built by a process of its own, which is started when a mebibyte or a query waits for it.

    The process takes 18 MB, a quarter of an idle broker; the little that a small one has is built when it stops.
    """

    def __init__(
        self, place: IndexPlace, disk: Disk, now_ms: Callable[[], int], completions: Completions
    ) -> None:
        super().__init__(place, disk, now_ms)
        self._completions = completions
        self._thread: threading.Thread | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = False
        self._not_before_ms = 0
        self._reached = 0
        """The offset that the process reported last; its thread writes it."""

    def _work(self, through: int, min_offset: int) -> None:
        if self._thread is None:
            few = through - self.position < _FEW_BYTES
            if self._now_ms() < self._not_before_ms or (few and not self._waiting):
                return
            order = self._order()
            self._thread = threading.Thread(
                target=self._run, args=(order,), name="ropewalk-index", daemon=True
            )
            self._thread.start()
        else:
            self._send(self._kind())

    def _order(self) -> str:
        place = self.place
        return json.dumps(
            {
                "directory": str(place.directory.absolute()),
                "log_directory": str(place.log_directory.absolute()),
                "lock": str(place.lock.absolute()),
                "segment_size": place.segment_size,
                "head_size": place.head_size,
                "slots": place.geometry.slots,
                "items": place.geometry.items,
                "log_end": self._log_end,
                "trusted_ms": self._trusted_ms,
            }
        )

    def _kind(self) -> bytes:
        return b"S" if self._stopping else b"Q" if self._waiting else b"F"

    def _send(self, kind: bytes) -> None:
        """Write one message; called by the loop, and once by the thread when the process has come up."""
        process = self._process
        if process is None or process.stdin is None:
            return  # being started; it is told then
        # It may be busy with older ones, and is asked again in a moment; or gone, which its thread will tell.
        with contextlib.suppress(OSError, ValueError):
            os.write(process.stdin.fileno(), _MESSAGE.pack(kind, *self._asked))

    def _run(self, order: str) -> None:
        """On a thread of its own: start the process and listen to it."""
        code: int | str
        try:
            with start_helper("store.index.helper", order) as process:
                assert process.stdin is not None and process.stdout is not None
                os.set_blocking(process.stdin.fileno(), False)
                self._process = process
                self._send(self._kind())
                for line in iter(process.stdout.readline, b""):
                    position, full_ms, finding = line.decode().rstrip("\n").split(" ", 2)
                    self._reached = int(position)
                    self._completions.post(
                        partial(self._took, int(position), int(full_ms), [finding] if finding else [])
                    )
                code = process.wait()
        except OSError as exc:
            code = str(exc)
        self._completions.post(partial(self._gone, code))

    def _gone(self, code: int | str) -> None:
        self._thread = self._process = None
        if not self._stopping:
            self.trouble = f"the index helper ended ({code})"
            self.findings.append(f"{self.trouble}; it is started again in a moment")
            # Who knows how far it came: what it was filling is built again.
            self._trusted_ms = max(self.full_timestamp, self._checkpoint_ms)
            self._log_end = max(self._log_end, self._asked[0])
            self._not_before_ms = self._now_ms() + _RESTART_MS

    def stop(self, through: int, min_offset: int) -> None:
        self._stopping = True
        thread = self._thread
        if thread is None:
            if self.position < through:
                self._build_here(through, min_offset)
            return
        self._asked = (through, min_offset)
        self._send(self._kind())
        thread.join(_STOP_S)
        process = self._process
        if thread.is_alive() and process is not None:
            process.kill()
            thread.join()
            self.findings.append("the key index is behind: it is built on at the next start")
        if self._reached < through:  # it was killed, by us or by somebody else
            drop_unfinished(self.disk, self.place)


# -- the process -------------------------------------------------------------------------------------


def main() -> None:
    order: dict[str, Any] = json.loads(helper_order())
    place = IndexPlace(
        Path(order["directory"]),
        Path(order["log_directory"]),
        order["segment_size"],
        Geometry(order["slots"], order["items"]),
        Path(order["lock"]),
        order["head_size"],
    )
    _serve(place, Disk(), order["log_end"], order["trusted_ms"])


def _serve(place: IndexPlace, disk: Disk, log_end: int, trusted_ms: int | None) -> None:
    acquire_helper_lock(disk, place.lock)
    builder = IndexBuilder(place, disk, lambda: time.time_ns() // 1_000_000)
    builder.open(log_end, trusted_ms)
    through = min_offset = dropped_before = 0
    kind, received, reported, no_room = b"F", b"", (-1, -1), False
    done, idle = True, IdlePriorityWorker()
    while True:
        if done:
            disk.close()  # a file that the broker or a person removes meanwhile must not keep its room
        if has_order(idle.ended, wait=done or idle.is_busy):
            data = os.read(0, 65_536)
            if not data:
                return  # the broker is gone; what it left is the next start's to judge
            received += data
        while len(received) >= _MESSAGE.size:
            kind, through, min_offset = _MESSAGE.unpack_from(received)
            received = received[_MESSAGE.size :]
            done = False
        if kind == b"F" and idle.is_busy:
            continue
        at_idle_priority = False
        try:
            idle.reclaim()
            if min_offset > dropped_before:
                builder.drop_before(min_offset)
                dropped_before = min_offset
            at_idle_priority = kind == b"F" and through - builder.position > _LITTLE
            if not at_idle_priority:
                _advance(builder, through, min_offset, never_yield)
                done = builder.position >= through
                no_room = False
            if done and kind == b"S":
                builder.close()
        except OSError as exc:
            if exc.errno not in _NO_ROOM:
                raise
            if not no_room:
                builder.findings.append(f"no room for the key index, which waits until there is some: {exc}")
            no_room = done = True
            if kind == b"S":
                drop_unfinished(disk, place)
        if builder.findings or (builder.written, builder.full_timestamp) != reported:
            reported = (builder.written, builder.full_timestamp)
            lines = [f"{reported[0]} {reported[1]} {finding}\n" for finding in builder.findings or [""]]
            builder.findings.clear()
            try:
                os.write(1, "".join(lines).encode())
            except BrokenPipeError:
                return  # the broker is gone
        if done and kind == b"S":
            return
        if at_idle_priority:
            idle.begin(partial(_advance, builder, through, min_offset))


def _advance(builder: IndexBuilder, through: int, min_offset: int, give_way: GiveWay) -> None:
    builder.give_way = give_way
    builder.advance(through, min_offset)


if __name__ == "__main__":
    main()
    os._exit(0)  # and not when the thread that gives way to everybody has got its turn to end
