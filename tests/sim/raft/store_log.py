"""`StoreLog`: the shipped store in DLedger mode, with its log of entries, on a disk that forgets.

What `StoreMember` drives is all shipped: `MessageStore`, `EntryLog`, `Replica`, flusher and workers. Here are their
disk, their threads as events of the world, and the eyes of the checks: which entries the log holds, read off its bytes;
which of them are on the platter; which ballot and commit point are.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from ha.raft.types import NOTHING, Ballot, Point
from ropewalk.errors import CorruptRecord
from ropewalk.format.dledger.entry import HEAD_SIZE, check_body, decode_head, filler_size
from ropewalk.format.names import TERM_TOPIC
from ropewalk.format.record import encode_host
from store.config import StoreConfig
from store.entries.files import LogPoint
from store.io.disk import Disk, MappedFile
from store.io.workers import Completions, Flusher, Helpers, Worker
from store.log.commitlog import segment_name
from store.message_store import MessageStore
from tests.sim.disk import SimDisk, SimFile
from tests.sim.raft.checks import Broken
from tests.sim.raft.model_log import SEGMENT, Entry

Later = Callable[[float, Callable[[], None]], None]
ROOT = Path("/sim")
DATA = ROOT / "dledger-n" / "data"
BALLOT = ROOT / "dledger-n" / "currterm"
CUT = ROOT / "ropewalk" / "dledger" / "cut"
COMMIT = ROOT / "ropewalk" / "dledger" / "commit"
TOPIC = "t"
QUEUES = 2
HOST = encode_host("127.0.0.1", 10911)
NEVER = 1 << 60
_BODY_AT = HEAD_SIZE + 88


@cache
def segment_path(base: int) -> Path:
    """Return the path of the segment at this offset: one object each, whose hash is taken once."""
    return DATA / segment_name(base)


class LedgerDisk(SimDisk):
    """A `SimDisk` on which a small file is replaced in the shipped steps, with a loss of power between any two."""

    def replace_file(self, path: Path, data: bytes) -> None:
        Disk.replace_file(self, path, data)

    def write_synced(self, path: Path, data: bytes) -> None:
        self.step()
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        self.files[path] = SimFile(data)

    def rename(self, source: Path, target: Path) -> None:
        self.step()
        self.files[target] = self.files.pop(source)


class TimedWorker(Worker):
    """A worker whose jobs take time."""

    def __init__(
        self, name: str, completions: Completions, later: Callable[[Callable[[], None]], None]
    ) -> None:
        super().__init__(name, completions, start=False)
        self._later = later

    def submit(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        super().submit(job, done)
        self._later(self._work)

    def _work(self) -> None:
        if not self.is_idle:
            self.step()


class TimedFlusher(Flusher):
    """A flusher whose syncs take time, one at a time."""

    def __init__(
        self,
        completions: Completions,
        on_flushed: Callable[[int], None],
        later: Callable[[Callable[[], None]], None],
    ) -> None:
        super().__init__(completions, on_flushed, start=False)
        self._later = later
        self._is_due = False

    def request(self, target: int, files: Sequence[MappedFile]) -> None:
        super().request(target, files)
        if not self._is_due:
            self._is_due = True
            self._later(self._work)

    def _work(self) -> None:
        self._is_due = False
        self.step()


class TimedHelpers(Helpers):
    """Helper threads as events of the world."""

    def __init__(self, later: Callable[[Callable[[], None]], None]) -> None:
        self._later = later

    def worker(self, name: str, completions: Completions) -> Worker:
        return TimedWorker(name, completions, self._later)

    def flusher(self, completions: Completions, on_flushed: Callable[[int], None]) -> Flusher:
        return TimedFlusher(completions, on_flushed, self._later)


class StoreLog:
    """See the module docstring. `later` runs something after so many ms, unless the process is dead by then."""

    def __init__(self, chance: random.Random, later: Later, contents: dict[tuple[int, int], bytes]) -> None:
        """`contents` are the bytes of each entry of the world, by (index, term): all members must have the same."""
        self._chance = chance
        self._later = later
        self._contents = contents
        self.disk = LedgerDisk(chance)
        self.store: MessageStore | None = None
        self.full = False
        self.flush_ms = 2.0
        self.hiccups = False
        self.lost: set[Entry] = set()
        """Entries that were on disk until damage came before them. This member's doubt speaks for it."""
        self._view: list[Entry] = []
        self._orders: list[Point | list[Entry]] = []
        """Cuts and runs that were ordered and are not done."""

    # -- a life ------------------------------------------------------------------------------------------

    def open(self, now_ms: Callable[[], int], wake: Callable[[], None]) -> MessageStore:
        """Start on what the disk holds. Raises `PowerLoss`, or what a start refuses with."""
        config = StoreConfig(
            root=ROOT,
            log_directory=DATA,
            store_host=HOST,
            segment_size=SEGMENT,
            queue_file_size=400,
            sync_flush=True,
            warm_window=1 << 20,
            fill_window=1024,
            fill_idle=1024,
            ledger=DATA.parent,
        )
        self.disk.locked = False
        self.disk.room = 0 if self.full else 1 << 40
        store = MessageStore(config, self.disk, now_ms, wake, TimedHelpers(self._soon))
        store.open()
        self.store = store
        self._orders = []
        self._view = []
        return store

    def _soon(self, work: Callable[[], None]) -> None:
        spent = self.flush_ms * self._chance.uniform(0.3, 1.2)
        if self.hiccups and self._chance.random() < 0.05:
            spent += self._chance.uniform(20, 300)
        self._later(spent, work)

    def set_full(self, full: bool) -> None:
        self.full = full
        self.disk.room = 0 if full else 1 << 40

    def heal(self) -> None:
        self.flush_ms = 2.0
        self.hiccups = False
        self.disk.crash_after = NEVER

    # -- the eyes of the checks --------------------------------------------------------------------------

    @property
    def end(self) -> LogPoint:
        """The log through its last entry; of the process, while there is one."""
        assert self.store is not None and self.store.entry_log is not None
        return self.store.entry_log.end

    @property
    def view(self) -> list[Entry]:
        if self.store is None:
            return self._view
        view, end = self._view, self.end[0]
        del view[end + 1 :]
        if len(view) <= end:
            log = self.store.log
            pos = view[-1][3] + view[-1][4] if view else 0
            while len(view) <= end:
                segment = log.find(pos)
                assert segment is not None, (pos, self.end)
                entry = self._entry(segment.map, segment.base_offset, pos)
                if entry is None:
                    pos = segment.end_offset
                    continue
                if entry[0] != len(view):
                    raise Broken(f"I5: at {pos} stands entry {entry[0]}, and should {len(view)}")
                view.append(entry)
                pos += entry[4]
        return view

    def _entry(self, data: Any, base: int, pos: int) -> Entry | None:
        """Return the entry at `pos`; None for a filler. Raises `CorruptRecord` for what is neither."""
        at = pos - base
        head_bytes = data[at : at + HEAD_SIZE]
        if filler_size(head_bytes) is not None or len(head_bytes) < HEAD_SIZE:
            return None
        head = decode_head(head_bytes)
        piece = bytes(data[at : at + head.size])
        check_body(head, piece[HEAD_SIZE:])
        known = self._contents.setdefault((head.index, head.term), piece)
        if known != piece:
            raise Broken(f"I5: entry {head.index} of term {head.term} is not the same everywhere")
        return head.index, head.term, payload_of(piece, head.term), pos, head.size

    def entries_of(self, data: bytes, pos: int) -> list[Entry]:
        """Return the entries of a run that is to stand at `pos`."""
        entries: list[Entry] = []
        at = pos
        while at < pos + len(data):
            entry = self._entry(data, pos, at)
            assert entry is not None, (pos, at)
            entries.append(entry)
            at += entry[4]
        return entries

    def ordered(self) -> list[Entry]:
        """Return the log as it will be when all that was ordered is done."""
        log = self.view
        while self._orders and not isinstance(self._orders[0], Point):
            run = self._orders[0]
            if run[-1] != (log[run[-1][0]] if run[-1][0] < len(log) else None):
                break
            self._orders.pop(0)
        for order in self._orders:
            if isinstance(order, Point):
                log = log[: order.index + 1]
            else:
                log = log[: order[0][0]] + order
        return log

    def was_ordered(self, order: Point | list[Entry]) -> None:
        """Note a cut, or a run to be placed."""
        self._orders.append(order)

    def cut_done(self) -> None:
        """Note that the oldest cut is done."""
        while self._orders and not isinstance(self._orders.pop(0), Point):
            pass
        self.view  # noqa: B018  what is placed behind the cut is read anew

    def has_on_disk(self, entry: Entry) -> bool:
        """Return whether a loss of power would leave the entry."""
        pos = entry[3]
        base = pos - pos % SEGMENT
        file = self.disk.named.get(segment_path(base))
        at = pos - base
        return file is not None and file.platter[at : at + entry[4]] == self._contents[entry[:2]]

    def had_on_disk(self, entry: Entry) -> bool:
        return self.has_on_disk(entry) or entry in self.lost

    @property
    def accepts(self) -> bool:
        store = self.store
        return store is not None and store.replica is not None and store.replica.leads

    @property
    def ballot_on_disk(self) -> Ballot:
        file = self.disk.named.get(BALLOT)
        if file is None:
            return Ballot(0)
        fields = dict(line.split("=") for line in file.platter.decode().splitlines())
        return Ballot(int(fields["currTerm"]), fields["voteLeader"])

    @property
    def written(self) -> Point:
        data = self.disk.read_file(COMMIT)
        return Point(*msgspec.json.decode(data)["commit"]) if data is not None else NOTHING

    @property
    def cut_begun(self) -> Point | None:
        """The point of a cut that was under way when the last life ended."""
        data = self.disk.read_file(CUT)
        return Point(*msgspec.json.decode(data)) if data is not None else None

    def damaged_below(self, written: Point) -> StoreLog | None:
        """Return a copy of this log with a bit flipped in an entry through this point; None if there is none."""
        if written.index < 0:
            return None
        copy = StoreLog(self._chance, lambda _ms, _work: None, self._contents)
        for path, file in self.disk.files.items():
            copy.disk.files[path] = copy.disk.named[path] = SimFile(bytes(file.data))
        copy.disk.folders = set(self.disk.folders)
        copy._view = list(self._view)
        copy.damage(self._chance.randint(0, written.index))
        return copy

    def entry_bytes(self, through: Point) -> bytes:
        """Return the bytes of the log through a point, or as many as there are."""
        files = [self.disk.files.get(segment_path(base)) for base in range(0, through.pos, SEGMENT)]
        return b"".join(bytes(file.data) for file in files if file is not None)[: through.pos]

    # -- what survives -----------------------------------------------------------------------------------

    @property
    def has_lost_power(self) -> bool:
        return self.disk.steps >= self.disk.crash_after

    def lose_power_soon(self) -> bool:
        """Have the power go at one of the next steps of the disk; False: now."""
        if self._chance.random() < 0.25 or self.disk.crash_after < NEVER:
            return False
        self.disk.crash_after = self.disk.steps + self._chance.randint(1, 40)
        return True

    def killed(self) -> None:
        """The process is gone; what it wrote is in the page cache."""
        self.disk = self._next(self.disk.killed())

    def power_lost(self) -> None:
        """The machine is gone, and what was not synced is there or not."""
        self.disk = self._next(self.disk.power_loss(self._chance))

    def _next(self, disk: SimDisk) -> LedgerDisk:
        assert isinstance(disk, LedgerDisk)
        self.disk = disk
        self.store = None
        self._orders = []
        self._view = self._whole_entries()
        return disk

    def _whole_entries(self) -> list[Entry]:
        """Read off the disk which entries a start will find."""
        found: list[Entry] = []
        pos = 0
        while (file := self.disk.files.get(segment_path(pos - pos % SEGMENT))) is not None:
            base = pos - pos % SEGMENT
            try:
                entry = self._entry(file.data, base, pos)
            except CorruptRecord:
                break
            if entry is None:
                pos = base + SEGMENT
                continue
            if entry[0] != len(found) or (found and entry[1] < found[-1][1]):
                break
            found.append(entry)
            pos += entry[4]
        return found

    def damage(self, index: int) -> None:
        """Flip a bit of an entry of a member that is down, where a checksum or another number of the head tells of it.

        DLedger's layout has none over an entry's term, nor over its two unused numbers.
        """
        for path, file in self.disk.files.items():
            if path.parent == DATA:
                file.sync()
        _index, _term, _payload, pos, size = self._view[index]
        file = self.disk.files[segment_path(pos - pos % SEGMENT)]
        at = self._chance.choice((*range(16), *range(24, 32), *range(40, size)))
        file.data[pos % SEGMENT + at] ^= 1 << self._chance.randrange(8)
        file.sync()
        self.lost.update(self._view[index:])
        del self._view[index:]


def payload_of(entry: bytes, term: int) -> int:
    """Return the number of the message in an entry; of the record that opens a term, minus the term."""
    body = entry[_BODY_AT : _BODY_AT + 8]
    return -term if body[:1] == b"{" else int.from_bytes(body, "big")


__all__ = ["DATA", "QUEUES", "SEGMENT", "TERM_TOPIC", "TOPIC", "StoreLog"]
