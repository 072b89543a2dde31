"""Members of a DLedger group in one process: `LedgerShell` on a log in memory, over real sockets and one epoll each."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

import trio

from broker.remoting.shell import Shell
from broker.remoting.sockets import Kind
from ha.dledger import tasks
from ha.dledger.ledger import LedgerShell
from ha.dledger.links.hello import Identity
from ha.dledger.storage import LogPoint, LogRun
from ha.raft.types import Role, Settings
from ropewalk.format.dledger.configuration import Configuration
from ropewalk.format.dledger.entry import configuration_in, encode_entries
from ropewalk.format.names import TERM_TOPIC
from ropewalk.format.record import encode_record
from tests.support.waiting import until_async

SEGMENT = 64 << 10
NOTHING = (-1, -1, 0)
_FILLER = 8
_NO_HOST = bytes(8)

Entry = tuple[int, int, int, bytes]
"""(index, term, pos, the bytes of the entry)"""


def end_of(entry: Entry) -> LogPoint:
    """Return the log through an entry."""
    return entry[0], entry[1], entry[2] + len(entry[3])


class MemoryDisk:
    """The part of a member that outlives its process."""

    def __init__(self, segment_size: int = SEGMENT, incarnation: bytes = b"i" * 16) -> None:
        self.entries: list[Entry] = []
        self.ballot = (0, "")
        self.commit: LogPoint = NOTHING
        self.segment_size = segment_size
        self.incarnation = incarnation
        self.known: dict[str, bytes] = {}
        self.readmitted: set[str] = set()


class MemoryStorage:
    """`LogStorage` and `ReplicaStore` in memory. Orders are done one by one, when `post` has its callback called."""

    def __init__(self, disk: MemoryDisk, post: Callable[[Callable[[], None]], None]) -> None:
        self.disk = disk
        self.on_stuck: Callable[[bool], None] = lambda stuck: None
        self.doubt: LogPoint | None = None
        self.ballot = disk.ballot
        self.commit = disk.commit
        self.is_held = False
        """Whether the disk does nothing until it is released."""
        self.is_full = False
        self.flushes = 0
        self.shown: LogPoint = disk.commit
        self.leads: tuple[int, int] | None = None
        self.turns_to_lead = 0
        self.show_at_most = 1 << 30
        self._post = post
        self._orders: list[Callable[[], Callable[[], None] | None]] = []
        self._is_working = False
        self._waiting = 0
        self._cuts = 0
        self._appended: list[Entry] = []

    @property
    def rows(self) -> list[tuple[int, int, int]]:
        rows: list[tuple[int, int, int]] = []
        start = 0
        for entry in self.disk.entries:
            if not rows or rows[-1][0] != entry[1]:
                rows.append((entry[1], entry[0], start))
            start = end_of(entry)[2]
        return rows

    @property
    def configurations(self) -> list[tuple[int, Configuration]]:
        return [
            (entry[0], configuration_in(entry[3]))
            for entry in self.disk.entries
            if TERM_TOPIC.encode() in entry[3]
        ]

    @property
    def end(self) -> LogPoint:
        return end_of(self.disk.entries[-1]) if self.disk.entries else NOTHING

    @property
    def segment_size(self) -> int:
        return self.disk.segment_size

    @property
    def incarnation(self) -> bytes:
        return self.disk.incarnation

    def configured(self, rows: Sequence[tuple[int, Configuration]]) -> None: ...

    # -- the storage queue -------------------------------------------------------------------------------

    def save(self, term: int, vote: str, done: Callable[[], None]) -> None:
        def order() -> Callable[[], None]:
            self.disk.ballot = term, vote
            return done

        self._order(order)

    def cut(self, index: int, term: int, pos: int, done: Callable[[], None]) -> None:
        self._waiting += 1

        def order() -> Callable[[], None]:
            self._waiting -= 1
            self._cuts += 1
            del self.disk.entries[index + 1 :]
            assert self.end == (index, term, pos), (self.end, index, term, pos)
            return done

        self._order(order)

    def place(self, first: int, count: int, term: int, pos: int, data: bytes | memoryview, skip: int) -> None:
        entries = [entry for entry in split(bytes(data), pos) if entry[2] >= pos + skip]
        assert len(entries) <= count and entries[-1][:2] == (first + count - 1, term)
        if not self._waiting and not self.is_full:
            self._write(entries)
            return
        self._waiting += 1
        if self._waiting == 1 or self.is_full:
            self.on_stuck(True)

        def order() -> None:
            self._waiting -= 1
            self._write(entries)
            if not self._waiting:
                self.on_stuck(False)

        self._order(order)

    def flush(self, done: Callable[[LogPoint, int], None]) -> None:
        def order() -> Callable[[], None]:
            self.flushes += 1
            end, cuts = self.end, self._cuts
            return lambda: done(end, cuts)

        self._order(order)

    def _write(self, entries: list[Entry]) -> None:
        end = self.end
        assert entries[0][0] == end[0] + 1, (entries[0][:3], end)
        rolled = -(-end[2] // self.segment_size) * self.segment_size
        assert entries[0][2] in (end[2], rolled), (entries[0][:3], end)
        self.disk.entries += entries

    def _order(self, order: Callable[[], Callable[[], None] | None]) -> None:
        self._orders.append(order)
        self.work()

    def work(self) -> None:
        """Go on with the orders, as far as the disk does anything."""
        if self._orders and not self._is_working and not self.is_held:
            self._is_working = True
            self._post(self._next)

    def _next(self) -> None:
        self._is_working = False
        if self.is_held:
            return
        if self._orders:
            done = self._orders.pop(0)()
            if done is not None:
                done()
        self.work()

    # -- the rest of a log -------------------------------------------------------------------------------

    def read(
        self, index: int, bytes_max: int, done: Callable[[LogPoint, LogRun | None, bytes | memoryview], None]
    ) -> None:
        def answer() -> None:
            entries = self.disk.entries
            if index >= len(entries):
                return
            term, pos = entries[index][1:3]
            size = stop = 0
            for entry in entries[index:]:
                more = len(entry[3])
                if entry[1] != term or entry[2] != pos + size or (size and size + more > bytes_max):
                    break
                if entry[2] // self.segment_size != pos // self.segment_size:
                    break
                size += more
                stop += 1
            data = b"".join(entry[3] for entry in entries[index : index + stop])
            prev = end_of(entries[index - 1]) if index else NOTHING
            done(prev, (index, stop, term, pos, size), data)

        self._post(answer)

    def committed(self, index: int, term: int, pos: int) -> None:
        assert index <= self.end[0]
        self.disk.commit = index, term, pos

    def end_doubt(self) -> None:
        self.doubt = None

    def stage_snapshot(self, data: bytes, done: Callable[[], None]) -> None:
        raise NotImplementedError("nothing is ever removed from this log")

    def install_staged(self, done: Callable[[], None]) -> None:
        raise NotImplementedError("nothing is ever removed from this log")

    # -- the store around it -----------------------------------------------------------------------------

    def lead(self, term: int, next_index: int) -> bool:
        assert not self._waiting and next_index == self.end[0] + 1
        if self.turns_to_lead:
            self.turns_to_lead -= 1
            return False
        self.leads = term, next_index
        return True

    def follow(self) -> None:
        self.leads = None

    def append_term_record(self, body: bytes) -> bool:
        record = encode_record(TERM_TOPIC.encode(), 0, 0, 0, 0, 0, 0, _NO_HOST, 0, _NO_HOST, 0, 0, body, b"")
        self.append(record)
        return True

    def append(self, payload: bytes) -> int:
        """Append an entry as the leader; return its index."""
        assert self.leads is not None, "not the leader"
        term = self.leads[0]
        index, _term, pos = self.end
        size = 48 + len(payload)
        room = self.segment_size - pos % self.segment_size
        if room < size + _FILLER or (pos and room == self.segment_size):
            pos = -(-pos // self.segment_size) * self.segment_size
        entry = (index + 1, term, pos, encode_entries(index + 1, term, pos, [payload]))
        self.disk.entries.append(entry)
        self._appended.append(entry)
        return index + 1

    def take_appended(self, bytes_max: int) -> list[tuple[int, int, int, int, int, bytes]]:
        appended, self._appended = self._appended, []
        runs: list[list[Entry]] = []
        for entry in appended:
            last = runs[-1] if runs else []
            size = sum(len(each[3]) for each in last)
            if (
                last
                and size + len(entry[3]) <= bytes_max
                and end_of(last[-1])[2] == entry[2]
                and entry[2] % self.segment_size
            ):
                last.append(entry)
            else:
                runs.append([entry])
        return [
            (run[0][0], len(run), run[0][1], run[0][2], len(data), data)
            for run in runs
            for data in [b"".join(entry[3] for entry in run)]
        ]

    def show_through(self, index: int, term: int, pos: int) -> LogPoint:
        last = min(index, self.shown[0] + self.show_at_most)
        self.shown = end_of(self.disk.entries[last])
        return self.shown


def split(data: bytes, pos: int) -> list[Entry]:
    """Return the entries of a run that stands at `pos`."""
    entries = []
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at + 4 : at + 8], "big")
        index = int.from_bytes(data[at + 8 : at + 16], "big")
        term = int.from_bytes(data[at + 16 : at + 24], "big")
        entries.append((index, term, pos + at, data[at : at + size]))
        at += size
    return entries


class Node:
    """One member with its sockets: what `BrokerProcess` is to a broker."""

    peer_reply_expected = False
    next_turn_s = None

    def __init__(
        self,
        id: str,
        addresses: dict[str, tuple[str, int]],
        disk: MemoryDisk,
        *,
        settings: Settings | None = None,
        group: str = "g",
        cluster: str = "c",
        secret: str = "",
        seed: int = 1,
    ) -> None:
        self.id = id
        self.disk = disk
        self.shell = Shell(self, stall_s=60.0)
        self._due: list[Callable[[], None]] = []
        self.storage = MemoryStorage(disk, self._post)
        self.rng = random.Random(f"{id} {seed}")
        me = Identity(cluster, group, id, disk.incarnation, disk.segment_size, "test", secret)
        self.ledger = LedgerShell(
            me,
            addresses,
            self.storage,
            self.storage,
            settings or Settings(),
            lambda: time.monotonic_ns() // 1_000_000,
            self.rng,
            draw=self.rng.randbytes,
            wake=self.shell.loop.wake,
            known=disk.known,
            readmitted=disk.readmitted,
        )
        self.ledger.on_noted = self._note_peers
        self.port = self.shell.listeners.listen(
            "127.0.0.1", addresses[id][1], self.ledger.peers.accept, Kind.MEMBER
        )
        self.scope = trio.CancelScope()

    def _note_peers(self) -> None:
        self.disk.known = dict(self.ledger.peers.known)
        self.disk.readmitted = set(self.ledger.peers.readmitted)

    def _post(self, callback: Callable[[], None]) -> None:
        self._due.append(callback)
        self.shell.loop.wake()

    def begin_turn(self) -> None: ...

    def end_turn(self) -> None:
        self.ledger.end_turn()

    def on_wakeup(self) -> None:
        due, self._due = self._due, []
        for each in due:
            each()

    def on_priority_served(self) -> None: ...

    async def run(self) -> None:
        """Serve until `stop`: then the sockets are closed as a killed process's are."""
        with self.scope:
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self.shell.run)
                    nursery.start_soon(tasks.run, self.ledger, self.shell, self.rng)
            finally:
                self.shell.close()

    def stop(self) -> None:
        self.scope.cancel()

    @property
    def is_leader(self) -> bool:
        return self.ledger.standing.role is Role.LEADER and self.ledger.standing.may_append

    def append(self, payload: bytes) -> int:
        """Append an entry, and have a turn propose it."""
        index = self.storage.append(payload)
        self.shell.loop.wake()
        return index

    @property
    def payloads(self) -> list[bytes]:
        """The payloads of all shown entries but those that open terms."""
        shown = self.ledger.shown.end.index
        found = [entry[3][48:] for entry in self.disk.entries[: shown + 1]]
        return [each for each in found if TERM_TOPIC.encode() not in each]


async def leader_of(nodes: list[Node]) -> Node:
    """Wait for the one leader that may append, of these members, and that the others follow."""

    def leaders() -> list[Node]:
        found = [node for node in nodes if node.is_leader]
        shown = [(node.ledger.standing.leader, node.ledger.standing.term) for node in nodes]
        return found if len(found) == 1 and shown == shown[:1] * len(nodes) else []

    await until_async(lambda: bool(leaders()), "one leader", pause_s=0.004)
    return leaders()[0]
