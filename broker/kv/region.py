"""`KvRegion`: a region of the key-value store as a member's process has it.

A region is a Raft group of the same members as the group of the messages, over the same links (its frames carry the
number of the region + 1), with a log, a ballot and a leader of its own. A command is an entry of that log. Every member
applies it, in the order of the log. Its client is answered by the leader that appended it, when it is applied there: on
a quorum's disks, this one among them. A leader that is deposed tells those who wait that the outcome is unknown; they
send the write again to the next one, under the same number, and it is applied once.

    <root>/kv/<region>/                       the log and the snapshots (`store.region_store`, `store.region_snapshots`)
    <root>/ropewalk/dledger/kv-<region>       that there is one here: a region whose log is lost must not vote
"""

from __future__ import annotations

import random
import secrets
from collections import deque
from collections.abc import Callable
from typing import Final

import structlog

from broker.context import BrokerContext
from broker.kv import snapshots
from broker.kv.snapshots import Snapshots
from ha.dledger.ledger import LedgerShell
from ha.kv.machine import KvMachine
from ha.kv.region import Region
from ha.raft.types import Point, Role, Settings, Standing
from ropewalk.errors import CorruptRecord
from ropewalk.format.kv.commands import Command, OpenTerm, Outcome, decode_command, encode_command
from store.io.workers import Worker
from store.log.commitlog import StoreDamaged
from store.log.remedy import REFILL
from store.region_snapshots import RegionSnapshots
from store.region_store import RegionStore

__all__ = ["WAITING_MAX", "Busy", "KvRegion", "NotLeader"]

log = structlog.get_logger("broker.kv")

WAITING_MAX: Final = 10_000
"""Commands that may wait for their entries to be applied."""

Done = Callable[[Outcome | None], None]
"""Called with the outcome of a command; None: it is unknown, as this member leads no more."""


class NotLeader(Exception):
    """Another member is the one to ask for a write, or none is yet."""


class Busy(Exception):
    """The leader takes no command at the moment; the text tells the reason."""


class KvRegion:
    """A region. Its life follows the member's: `open`, turns and ticks, `close`."""

    ledger: LedgerShell

    def __init__(self, context: BrokerContext, region: Region, wake: Callable[[], None]) -> None:
        """`wake` has the loop run a turn soon."""
        config = context.config
        self.machine = KvMachine(region, config.kv_memory_max)
        self._context = context
        self._wake = wake
        self._number = region.id + 1
        root = config.store_path_root_dir
        self._root = root / "kv" / str(region.id)
        self._marker = root / "ropewalk" / "dledger" / f"kv-{region.id}"
        self._store = RegionStore(
            self._root, context.disk, context.store.completions, self._apply, self._term_command
        )
        self.snapshots = Snapshots(
            self._store,
            RegionSnapshots(self._root, context.disk),
            Worker("ropewalk-kv-snapshots", context.store.completions),
            snapshots.LIMITS,
        )
        self._waiting: deque[tuple[int, int, Done]] = deque()
        """By index and term of an entry: who waits for it to be applied."""

    # -- life ----------------------------------------------------------------------------------------

    def open(self, shared: LedgerShell, settings: Settings) -> None:
        """Apply the log, and become a member that shares the links of `shared`. Blocks. Raises `StoreDamaged`."""
        context, disk = self._context, self._context.disk
        if disk.exists(self._marker) and not disk.exists(self._root / "currterm"):
            raise StoreDamaged(
                f"{self._root} is gone, where this member had a log of the key-value store: without it the member "
                f"could vote for a leader that lacks what it had confirmed. Put it back, or {REFILL}"
            )
        self.machine, point = self.snapshots.load(self.machine)
        for finding in (*self.snapshots.findings, *self._store.open(point)):
            log.warning("recovery of the key-value store", finding=finding)
        if not disk.exists(self._marker):
            disk.replace_file(self._marker, b"")
        self.ledger = LedgerShell(
            shared.me,
            dict.fromkeys(shared.first.voters, ("", 0)),
            self._store.entries,
            self._store,
            settings,
            context.monotonic_ms,
            random.Random(context.rng.getrandbits(64)),
            draw=secrets.token_bytes,
            wake=self._wake,
            shares=(shared.peers, self._number),
        )
        self.ledger.on_standing = self._stand

    def end_turn(self) -> None:
        """Send and flush the appended commands of this turn, apply the committed ones, and go on with a snapshot."""
        self.ledger.end_turn()
        self.snapshots.turn(self.machine, self._context.monotonic_ms())

    def tick(self) -> None:
        """Do the work of time of the log."""
        self._store.tick(self._context.monotonic_ms())
        self.snapshots.retire()

    def close(self) -> None:
        """Put the log on disk. Blocks."""
        self.snapshots.stop()
        self._store.close()

    # -- commands ------------------------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        """Return whether this member takes writes."""
        standing = self.ledger.standing
        return standing.role is Role.LEADER and standing.may_append

    @property
    def waiting(self) -> int:
        """Return how many commands wait to be applied."""
        return len(self._waiting)

    @property
    def log_bytes(self) -> int:
        """Return the length of the log that is kept."""
        end: int = self.ledger.core.log.end.pos
        return end - self._store.log.min_offset

    @property
    def replay_bytes(self) -> int:
        """Return the length of the log behind the newest snapshot, which a start applies."""
        points = self.snapshots.points
        end: int = self.ledger.core.log.end.pos
        return end - (points[-1][2] if points else self._store.log.min_offset)

    def propose(self, make: Callable[[int], Command], done: Done) -> None:
        """Append the command that `make` returns for this moment's stamp; `done` hears its outcome, never at once.

        Raises `NotLeader` or `Busy`, and has appended nothing then.
        """
        if not self.leads:
            raise NotLeader
        if len(self._waiting) >= WAITING_MAX:
            raise Busy(f"{WAITING_MAX} writes of the key-value store wait for a quorum")
        # The machine's clock never falls. A leader whose own is behind stamps with what was promised last.
        stamp_ms = max(self._context.now_ms(), self.machine.clock_ms)
        index = self._store.append(encode_command(make(stamp_ms)))
        if index is None:
            raise Busy(self._store.full or "the next file of the key-value store's log is being prepared")
        self._waiting.append((index, self.ledger.standing.term, done))
        self._wake()

    def read(self, done: Callable[[bool], None]) -> None:
        """Have `done(True)` called when the machine may be read as the newest state there is; it must read at once."""
        self.ledger.read(done)

    def _term_command(self) -> bytes:
        address = ":".join(map(str, self._context.address))
        return encode_command(OpenTerm(max(self._context.now_ms(), self.machine.clock_ms), address))

    def _apply(self, index: int, term: int, data: bytes) -> None:
        try:
            command = decode_command(data)
        except CorruptRecord as exc:
            raise StoreDamaged(f"entry {index} of the log in {self._root}: {exc}") from exc
        outcome = self.machine.apply(index, command)
        while self._waiting and self._waiting[0][0] <= index:
            awaited, in_term, done = self._waiting.popleft()
            done(outcome if (awaited, in_term) == (index, term) else None)

    def _stand(self, standing: Standing) -> None:
        waiting = self._waiting
        if standing.role is not Role.LEADER or (waiting and waiting[0][1] != standing.term):
            self._waiting = deque()
            for _index, _term, done in waiting:
                done(None)

    def status(self) -> dict[str, object]:
        """Return the region as this member sees it, for people."""
        machine, ledger = self.machine, self.ledger
        standing, region = ledger.standing, machine.region
        end: Point = ledger.core.log.end
        return {
            "region": region.id,
            "epoch": region.epoch,
            "member": ledger.me.id,
            "members": sorted(ledger.addresses),
            "role": standing.role.value,
            "term": standing.term,
            "leader": standing.leader,
            "leaderAddress": machine.leader if standing.leader is not None else "",
            "leads": self.leads,
            "end": end.index,
            "committed": ledger.commit.index,
            "applied": machine.applied,
            "logBytes": self.log_bytes,
            "keys": len(machine.values),
            "sequences": len(machine.sequences),
            "locks": len(machine.locks),
            "sessions": len(machine.sessions),
            "logBegin": self._store.log.min_offset,
            "snapshots": [point[0] for point in self.snapshots.points],
            "snapshotFailure": self.snapshots.failure,
            "usedBytes": machine.used_bytes,
            "memoryMax": machine.memory_max,
            "waiting": self.waiting,
        }
