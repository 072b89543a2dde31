"""A log of entries on a host of its own, whose helper threads are stepped by hand."""

from __future__ import annotations

import random
from pathlib import Path

from ropewalk.format.dledger.entry import HEAD_SIZE, encode_entries
from store.entries.entry_log import EntryLog
from store.entries.files import LogPoint, LogRun
from store.io.disk import Disk
from store.io.workers import Completions, Flusher, Worker
from store.log.commitlog import CommitLog
from store.log.placing import ENTRY
from store.log.segment import Segment

SEGMENT = 4096
Entry = tuple[int, int, int, bytes]
"""(index, term, pos, bytes)"""
NOTHING = (-1, -1, 0)


def point_of(entry: Entry) -> LogPoint:
    """Return the log through an entry."""
    return entry[0], entry[1], entry[2] + len(entry[3])


class Host:
    """The store around an `EntryLog`: a flusher, a helper that makes segments when it is told to, two workers."""

    def __init__(self, root: Path, disk: Disk | None = None) -> None:
        self.root = root
        self.disk = disk or Disk()
        self.completions = Completions(lambda: None)
        self.log = CommitLog(root / "dledger-n0" / "data", SEGMENT, self.disk, ENTRY)
        self.entries = EntryLog(
            root / "dledger-n0",
            root / "ropewalk" / "dledger",
            root / "ropewalk" / "tails",
            self.log,
            self.disk,
        )
        self.log.load()
        self.found = self.entries.recover()
        self.flushed_offset = self.log.flushed_offset = self.log.end_offset
        self.flusher = Flusher(self.completions, self._flushed, start=False)
        self.storage = Worker("storage", self.completions, start=False)
        self.reader = Worker("reader", self.completions, start=False)
        self.has_segments = True
        """Whether the helper makes the segments that it is asked for."""
        self.spare_wanted = False
        self.is_held = self.is_full = False
        self._target = self.flushed_offset
        self.stuck: list[bool] = []
        self.entries.on_stuck = self.stuck.append
        self.entries.begin(self, self.completions, self.storage, self.reader)

    # -- LogHost -----------------------------------------------------------------------------------------

    @property
    def is_flushing(self) -> bool:
        return self._target > self.flushed_offset

    def next_segment(self, base_offset: int) -> Segment | None:
        last = self.log.segments[-1] if self.log.segments else None
        if last is not None and self.flushed_offset < last.base_offset:
            self.request_flush()
            return None
        spare = self.log.spare
        if spare is None:
            if self.has_segments and not self.is_held:
                self.log.spare = self.log.allocate(base_offset)
            return None
        assert spare.base_offset == base_offset
        self.log.spare = None
        self.log.begin(spare)
        return spare

    def request_flush(self) -> None:
        end = self.log.end_offset
        self._target = end
        self.flusher.request(end, self.log.unflushed(end))

    def lower_flushed(self, offset: int) -> None:
        assert not self.is_flushing
        self.flushed_offset = self.log.flushed_offset = min(self.flushed_offset, offset)
        self._target = self.flushed_offset
        self.flusher.lower(offset)

    def hold_preallocation(self, held: bool) -> None:
        self.is_held = held

    def _flushed(self, offset: int) -> None:
        self.flushed_offset = self.log.flushed_offset = offset
        self.entries.flushed(offset)

    # -- steps -------------------------------------------------------------------------------------------

    def step(self, which: int) -> None:
        """Let one of the helpers do one thing, or the loop hear what they have done."""
        if which == 0:
            self.flusher.step()
        elif which == 1 and not self.storage.is_idle:
            self.storage.step()
        elif which == 2 and not self.reader.is_idle:
            self.reader.step()
        elif which == 3:
            self.completions.run()
        else:
            self.entries.tick(0)

    def settle(self) -> None:
        """Let everything get done."""
        for _ in range(500):
            for which in range(5):
                self.step(which)
            if not self.entries.is_waiting and self.storage.is_idle and not self.is_flushing:
                break
        else:
            raise AssertionError("orders are left")
        self.step(3)

    def close(self) -> None:
        self.settle()
        self.entries.close()
        self.log.close()
        self.disk.close()

    # -- entries -----------------------------------------------------------------------------------------

    def read_all(self) -> list[Entry]:
        """Return all entries, read as for a member that lags."""
        found: list[Entry] = []
        while len(found) <= self.entries.end[0]:
            prev, run, data = self.read(len(found))
            assert run is not None and prev == (point_of(found[-1]) if found else NOTHING), (
                prev,
                run,
                len(found),
            )
            found += split(data, run[3])
        return found

    def read(self, index: int) -> tuple[LogPoint, LogRun | None, bytes]:
        """Return what a read from this index answers."""
        got: list[tuple[LogPoint, LogRun | None, bytes]] = []
        self.entries.read(index, 700, lambda prev, run, data: got.append((prev, run, bytes(data))))
        while not got:
            self.step(2)
            self.step(3)
        return got[0]


def run_behind(entry: Entry | None, term: int, bodies: list[bytes]) -> list[Entry]:
    """Return entries behind another one, in the next segment if the first does not fit; those that fit there."""
    index, _term, pos = point_of(entry) if entry is not None else NOTHING
    size = HEAD_SIZE + len(bodies[0])
    if pos % SEGMENT + size + 8 > SEGMENT:
        pos = -(-pos // SEGMENT) * SEGMENT
    found: list[Entry] = []
    for body in bodies:
        index += 1
        if pos % SEGMENT + HEAD_SIZE + len(body) + 8 > SEGMENT:
            break
        data = encode_entries(index, term, pos, [body])
        found.append((index, term, pos, data))
        pos += len(data)
    return found


def split(data: bytes, pos: int) -> list[Entry]:
    """Return the entries of a run that stands at `pos`."""
    entries = []
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at + 4 : at + 8], "big")
        numbers = [int.from_bytes(data[at + start : at + start + 8], "big") for start in (8, 16)]
        entries.append((numbers[0], numbers[1], pos + at, data[at : at + size]))
        at += size
    return entries


def place(host: Host, entries: list[Entry], skip: int = 0) -> None:
    """Place these entries, the first `skip` of which are there already."""
    first, term, pos, _ = entries[0]
    data = b"".join(entry[3] for entry in entries)
    host.entries.place(first, len(entries), term, pos, data, sum(len(entry[3]) for entry in entries[:skip]))


def bodies(draw: random.Random) -> list[bytes]:
    """Draw the bodies of a run."""
    return [draw.randbytes(draw.choice((20, 100, 900))) for _ in range(draw.choice((1, 1, 2, 5)))]
