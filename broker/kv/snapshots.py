"""`Snapshots`: a region's state put on disk now and then, while the region goes on, and its log shortened behind that.

    due       64 MiB of log, or 100,000 entries, behind the last one
    walk      2,000 keys a turn, handed to a helper thread, which encodes and writes them; one part at a time
    publish   the file is synced and named; the newest two stay
    retire    segments of the log below the older one are removed

A member that lacks what was removed is sent the newest snapshot, and then the log. The state that it begins with is
later than the log that it has, until the leader has sent the rest.

A start takes the newest whole snapshot and applies the log behind it. Where the newest is damaged it takes the one
before, from which on the log is there, and says so. A disk without room, or a write that fails, costs the snapshot and
not the member: the log is whole, stays as long as it is, and after some time another snapshot is tried.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

import structlog
from msgspec import Struct

from ha.kv.machine import KvMachine
from ha.kv.snapshot import KEYS_A_TURN, Encoder, Restorer, SessionRows, StateWalk
from ropewalk.errors import CorruptRecord
from ropewalk.format.kv.snapshot import Head, Part
from store.entries.files import NOTHING, LogPoint
from store.io.workers import Worker
from store.log.commitlog import StoreDamaged
from store.region_snapshots import KEPT, RegionSnapshots, SnapshotFile
from store.region_store import RegionStore

__all__ = ["LIMITS", "Limits", "Snapshots"]

log = structlog.get_logger("broker.kv")

_AGAIN_MS: Final = 60_000


class Limits(Struct, frozen=True):
    """When a snapshot is due, and how much of it is walked in a turn."""

    log_bytes: int = 64 << 20
    entries: int = 100_000
    keys_a_turn: int = KEYS_A_TURN
    again_ms: int = _AGAIN_MS
    """How long after a snapshot that failed the next one is tried."""


LIMITS = Limits()


class _Writing:
    """A snapshot under way: the walk is the loop's, file and encoder the helper's."""

    def __init__(self, walk: StateWalk, files: RegionSnapshots) -> None:
        self.walk = walk
        self._files = files
        self._file: SnapshotFile | None = None
        self._encoder = Encoder()

    def write(self, rows: Part | SessionRows | None) -> str:
        """Write some rows; None for the end, which gives the file its name. Return why it failed, or "". Blocks."""
        encoder = self._encoder
        try:
            if self._file is None:
                self._file = self._files.begin(self.walk.head.index)
                self._file.write(encoder.head(self.walk.head))
            if rows is not None:
                self._file.write(encoder.rows(rows))
            else:
                self._file.write(encoder.end())
                self._file.publish()
        except OSError as exc:
            if self._file is not None:
                self._file.discard()
            return f"{exc.strerror}: {exc.filename}"
        return ""

    def discard(self) -> None:
        """Remove the file, if it has no name yet. Blocks."""
        if self._file is not None:
            with suppress(OSError):
                self._file.discard()


class Snapshots:
    """The snapshots of one region. The loop owns it."""

    def __init__(self, store: RegionStore, files: RegionSnapshots, worker: Worker, limits: Limits) -> None:
        self.points: list[LogPoint] = []
        """The snapshots that a start may begin with, the older first."""
        self.failure = ""
        """Why the last one was given up; empty if it was not."""
        self.findings: list[str] = []
        """The damage that a start met."""
        self.is_wanted = False
        """Whether the first one is due with the first entry: the region that this one was cut from waits for it."""
        self._store = store
        self._files = files
        self._worker = worker
        self._limits = limits
        self._writing: _Writing | None = None
        self._is_waiting = False
        """Whether the helper has work of it."""
        self._not_before_ms = 0
        self._begun: LogPoint = NOTHING

    @property
    def is_under_way(self) -> bool:
        """Tell whether a snapshot is being taken, or older ones are being removed."""
        return self._writing is not None or self._is_waiting

    def size(self, index: int) -> int:
        """Return the size of a snapshot's file. Blocks a little."""
        return self._files.size(index)

    # -- a start -----------------------------------------------------------------------------------------

    def load(self, machine: KvMachine) -> tuple[KvMachine, LogPoint]:
        """Return the machine of the newest whole snapshot, and its place in the log; note findings. Blocks.

        That is `machine`, with nothing applied, where there is none. Raises `StoreDamaged` for one of another region.
        """
        for index in self._files.load():
            try:
                restored, head = self._restored(index, machine)
            except (CorruptRecord, OSError) as exc:
                self.findings.append(
                    f"snapshot {self._files.path(index)} is damaged, an older state is taken: {exc}"
                )
                continue
            if head.region != machine.region.id:
                raise StoreDamaged(f"{self._files.path(index)} is the state of region {head.region}")
            self._begun = head.index, head.term, head.pos
            self.points = [self._begun]
            return restored, self._begun
        return machine, NOTHING

    def _restored(self, index: int, machine: KvMachine) -> tuple[KvMachine, Head]:
        restorer = Restorer(machine.memory_max)
        for piece in self._files.pieces(index):
            restorer.feed(piece)
        return restorer.finish()

    # -- turns -------------------------------------------------------------------------------------------

    def turn(self, machine: KvMachine, now_ms: int) -> None:
        """Begin a snapshot that is due, or go on with the one under way. Call it between two entries."""
        if self._is_waiting:
            return
        if self._writing is None:
            if not self._is_due(now_ms):
                return
            self._begun = self._store.applied
            _index, term, pos = self._begun
            self._writing = _Writing(StateWalk(machine, term, pos), self._files)
        rows = self._writing.walk.step(self._limits.keys_a_turn)
        self._is_waiting = True
        self._worker.submit(partial(self._writing.write, rows), partial(self._heard, rows is None, now_ms))

    def _is_due(self, now_ms: int) -> bool:
        index, _term, pos = self._store.applied
        limits, begun = self._limits, self._begun
        is_far = pos - begun[2] >= limits.log_bytes or index - begun[0] >= limits.entries
        is_far |= self.is_wanted and not self.points and index >= 0
        return is_far and (not self.failure or now_ms >= self._not_before_ms)

    def _heard(self, is_whole: bool, now_ms: int, failure: str) -> None:
        self._is_waiting = False
        if self._writing is None:
            return
        if not failure:
            if is_whole:
                self._published()
            return
        self._writing.walk.give_up()
        self._writing = None
        self._begun = self.points[-1] if self.points else NOTHING
        self._not_before_ms = now_ms + self._limits.again_ms
        if failure != self.failure:
            log.error(
                "no snapshot of the key-value store: its log stays as long as it is",
                why=failure, remedy="make room; another one is tried each minute",
            )  # fmt: skip
        self.failure = failure

    def _published(self) -> None:
        """Keep the newest two snapshots."""
        self._writing = None
        if self.failure:
            log.info("a snapshot of the key-value store was written again", index=self._begun[0])
        self.failure = ""
        self.points = [*self.points, self._begun][-KEPT:]
        kept = [point[0] for point in self.points]
        self._is_waiting = True
        self._worker.submit(partial(self._files.keep_only, kept), self._tidied)

    def _tidied(self, _none: None) -> None:
        self._is_waiting = False

    def make(self, done: Callable[[LogPoint, bytes], None]) -> None:
        """Make a snapshot for a member that lacks the beginning of the log; `done` gets none where there is none."""
        if not self.points:
            done(NOTHING, b"")
            return
        index = self.points[-1][0]

        def have(state: bytes) -> None:
            found = self._store.member_snapshot(index, state) if state else None
            done(*(found or (NOTHING, b"")))

        self._worker.submit(partial(self._files.whole, index), have)

    def retire(self) -> None:
        """Let the log begin as late as a start from the older snapshot allows."""
        if len(self.points) == KEPT:
            self._store.retire_before(self.points[0][2])

    def give_up(self) -> None:
        """Drop the snapshot under way: the state is about to be cut in two."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.walk.give_up()
            self._begun = self.points[-1] if self.points else NOTHING
            self._worker.submit(writing.discard, lambda _none: None)

    def stop(self) -> None:
        """Give up the snapshot under way. Blocks."""
        self._worker.stop()
        if self._writing is not None:
            self._writing.walk.give_up()
            self._writing = None
