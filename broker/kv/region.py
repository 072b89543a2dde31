"""`KvRegion`: a region of the key-value store as a member's process has it.

A region is a Raft group of the same members as the group of the messages, over the same links (its frames carry the
number of the region + 1), with a log, a ballot and a leader of its own. A command is an entry of that log. Every member
applies it, in the order of the log. Its client is answered by the leader that appended it, when it is applied there: on
a quorum's disks, this one among them. A leader that is deposed tells those who wait that the outcome is unknown; they
send the write again to the next one, under the same number, and it is applied once.

    <root>/kv/<region>/                       the log and the snapshots (`store.region_store`, `store.region_snapshots`)
    <root>/ropewalk/dledger/kv-<region>       that there is one here, and whether it was damaged (`broker.kv.marker`)
"""

from __future__ import annotations

import random
import secrets
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import structlog
from msgspec import structs

from broker.context import BrokerContext
from broker.kv import snapshots
from broker.kv.marker import RegionMarker
from broker.kv.snapshots import Snapshots
from broker.kv.stamps import Stamps
from ha.dledger.ledger import LedgerShell
from ha.kv.machine import KvMachine
from ha.raft.types import Point, Role, Settings, Standing
from ropewalk.errors import CorruptRecord
from ropewalk.format.dledger.configuration import decode_configuration, encode_configuration
from ropewalk.format.kv.commands import (
    Command,
    FoundRegions,
    Outcome,
    SplitRegion,
    decode_command,
    encode_command,
)
from ropewalk.format.kv.snapshot import Head, head_of
from store.entries.files import NOTHING
from store.io.workers import Worker
from store.log.commitlog import StoreDamaged
from store.log.remedy import REFILL
from store.region_snapshots import RegionSnapshots
from store.region_store import RegionStore

__all__ = [
    "WAITING_MAX",
    "Busy",
    "Done",
    "KvRegion",
    "NotLeader",
    "NotUnderstood",
    "can_be_filled",
    "has_snapshots",
    "marker_of",
]

log = structlog.get_logger("broker.kv")

WAITING_MAX: Final = 10_000
"""Commands that may wait for their entries to be applied."""

_C = TypeVar("_C", bound=Command)
OnBorn = Callable[["KvRegion", int, KvMachine], None]
Done = Callable[[Outcome | None], None]
"""Called with the outcome of a command; None: it is unknown, as this member leads no more."""


def has_snapshots(context: BrokerContext, id: int) -> bool:
    """Return whether a start may begin with a snapshot of a region. Blocks."""
    return bool(RegionSnapshots(_directory(context, id), context.disk).load())


def marker_of(context: BrokerContext, id: int) -> RegionMarker:
    """Return the note that this member is one of a region's group."""
    path = context.config.store_path_root_dir / "ropewalk" / "dledger" / f"kv-{id}"
    return RegionMarker(path, _directory(context, id), context.disk)


def _directory(context: BrokerContext, id: int) -> Path:
    return context.config.store_path_root_dir / "kv" / str(id)


def can_be_filled(ledger: LedgerShell) -> bool:
    """Return whether the others are a majority without this member, and can fill its log again."""
    others = [voter for voter in ledger.members.config.voters if voter != ledger.me.id]
    return ledger.core.quorum.is_majority(others)


class NotLeader(Exception):
    """Another member is the one to ask for a write, or none is yet."""


class NotUnderstood(StoreDamaged):
    """An entry is as it was written, and this program does not know its command."""


class Busy(Exception):
    """The leader takes no command at the moment; the text tells the reason."""


class KvRegion:
    """A region. Its life follows the member's: `open`, turns and ticks, `close`."""

    ledger: LedgerShell

    def __init__(
        self,
        context: BrokerContext,
        machine: KvMachine,
        wake: Callable[[], None],
        on_born: OnBorn,
        on_replaced: Callable[[], None],
        refuse_state: Callable[[KvRegion, Head], str | None],
    ) -> None:
        """`machine` has the state in front of the log's first entry. `wake` has the loop run a turn soon.

        `on_born` is given the machine of each region that an entry cuts off, and the index of that entry.
        `on_replaced` is called when a leader's snapshot is to replace the log, which has to be opened again then;
        `refuse_state` tells in words why one may not.
        """
        self.machine = machine
        self.number = machine.region.id + 1
        """The number of the group in the frames of its members."""
        self._context = context
        self._stamps = Stamps(context.monotonic_ms)
        self._wake = wake
        self._on_born = on_born
        self._on_replaced = on_replaced
        self._refuse_state = refuse_state
        self.origin: tuple[KvRegion, int] | None = None
        """The region that this one was cut from in this life, and the index of the entry that did it."""
        self.cut_off: list[KvRegion] = []
        """The regions that were cut from this one in this life: without their own snapshots, they need this log."""
        self._known_through = -1
        """The end of the log when this life began."""
        self._point = NOTHING
        id = machine.region.id
        self._root = _directory(context, id)
        self.marker = marker_of(context, id)
        self._store = RegionStore(
            self._root, context.disk, context.store.completions, self._apply, self._complete
        )
        self._files = RegionSnapshots(self._root, context.disk)
        self._worker = Worker("ropewalk-kv-snapshots", context.store.completions)
        self.snapshots = Snapshots(self._store, self._files, self._worker, snapshots.LIMITS)
        self._has_met_damage = False
        """Whether damage was met since the start."""
        self.restored = -1
        """The index of the entry behind which this life began, with a snapshot; -1 where there was none."""
        self._waiting: deque[tuple[int, int, Command, Done]] = deque()
        """By index and term of an entry: its command, and who waits for it to be applied."""

    # -- life ----------------------------------------------------------------------------------------

    def load(self) -> bool:
        """Begin with the newest snapshot, and return whether there is one. Blocks. Raises `StoreDamaged`."""
        for finding in self._store.install(self._files):
            log.warning("recovery of the key-value store", finding=finding)
        self.machine, self._point = self.snapshots.load(self.machine)
        self.restored = self._point[0]
        return bool(self.snapshots.points)

    def open(self, shared: LedgerShell, settings: Settings) -> None:
        """Apply the log, and become a member that shares the links of `shared`. Blocks. Raises `StoreDamaged`.

        Where the log names no members, they are to be told by `ledger.members.found`.
        """
        context, disk = self._context, self._context.disk
        if self.marker.exists and not disk.exists(self._root / "currterm"):
            if disk.names(self._root / "data"):
                raise self._store.entries.refuse_without_ballot()
            raise StoreDamaged(
                f"{self._root} is gone, where this member had a log of the key-value store: without it the member "
                f"could vote for a leader that lacks what it had confirmed. Put it back, or {REFILL}"
            )
        found = self._store.open(self._point, lacks_state=settings.lacks_state)
        for finding in (*self.snapshots.findings, *found):
            log.warning("recovery of the key-value store", finding=finding)
        self.marker.begin()
        self.ledger = LedgerShell(
            shared.me,
            {},
            self._store.entries,
            self._store,
            settings,
            context.monotonic_ms,
            random.Random(context.rng.getrandbits(64)),
            draw=secrets.token_bytes,
            wake=self._wake,
            shares=(shared.peers, self.number),
            lost=self.marker.is_lost,
        )
        self._store.entries.look_for_damage = partial(self._met_damage, shared)
        self.ledger.readmission.on_ended = partial(self._worker.submit, self.marker.end, lambda _none: None)
        self.ledger.on_standing = self._stand
        self.ledger.snapshots.make = self.snapshots.make
        self.ledger.on_replaced = self._on_replaced
        self.ledger.snapshots.refuse = self._refusal
        self._known_through = self._store.entries.end[0]

    @property
    def has_ballot(self) -> bool:
        """Return whether the ballot can be read. Blocks."""
        return self._store.entries.has_ballot

    def _met_damage(self, shared: LedgerShell, done: Callable[[bool], None]) -> None:
        """Open the stores anew, and put the log aside then: a read for a lagging member met damage.

        It waits for a member that has all that is committed, and may vote. The leader asks again until then; `done` is
        told False where the log must not be put aside.
        """
        core = self.ledger.core
        if not can_be_filled(shared):
            done(False)
            return
        is_kept = any(
            each.is_linked and each.counts and each.match >= core.log.commit.index
            for each in core.dispatchers.values()
        )
        if not self._has_met_damage:
            log.error(
                "the log of a region is damaged where another member needs it: it goes aside once a third has all",
                region=self.machine.region.id,
            )  # fmt: skip
        self._has_met_damage = True
        if is_kept:
            self._worker.submit(self.marker.note_damage, lambda _none: self._on_replaced())

    def abandon(self) -> None:
        """Close the files of a region that could not be opened. Blocks."""
        self.snapshots.stop()
        self._store.abandon()

    def end_turn(self) -> None:
        """Send and flush the appended commands of this turn, apply the committed ones, and go on with a snapshot."""
        self.ledger.end_turn()
        self.cut_off = [each for each in self.cut_off if not each.snapshots.points]
        if not self.cut_off:
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

    def _refusal(self, state: bytes) -> str | None:
        """Return in words why a leader's snapshot with this state cannot be taken. Raises `CorruptRecord`."""
        return self._refuse_state(self, head_of(state))

    def is_news(self, index: int) -> bool:
        """Return whether no log that this member may have lost before had this entry, as far as can be told."""
        ledger = self.ledger
        begun = max(self._known_through, ledger.readmission.through)
        return index > begun and not ledger.core.readmission.is_learner

    def is_kept(self, index: int) -> bool:
        """Return whether the next start applies this entry, which is applied here; see to it if not."""
        entries = self._store.entries
        if entries.noted[0] >= index:
            return True
        entries.note_now()
        return False

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

    def propose(
        self,
        make: Callable[[int], _C],
        done: Done,
        encode: Callable[[_C], bytes] = encode_command,
    ) -> None:
        """Append the command that `make` returns for this moment's stamp; `done` hears its outcome, never at once.

        Raises `NotLeader` or `Busy`, and has appended nothing then.
        """
        if not self.leads:
            raise NotLeader
        if len(self._waiting) >= WAITING_MAX:
            raise Busy(f"{WAITING_MAX} writes of the key-value store wait for a quorum")
        command = make(self._stamps.next(self.machine.clock_ms))
        index = self._store.append(encode(command))
        if index is None:
            raise Busy(self._store.full or "the next file of the key-value store's log is being prepared")
        self._waiting.append((index, self.ledger.standing.term, command, done))
        self._wake()

    def read(self, done: Callable[[bool], None]) -> None:
        """Have `done(True)` called when the machine may be read as the newest state there is; it must read at once."""
        self.ledger.read(done)

    def _complete(self, body: bytes) -> bytes:
        """Return a configuration with what the machine is told by it."""
        address = ":".join(map(str, self._context.address))
        stamp_ms = self._stamps.next(self.machine.clock_ms)
        return encode_configuration(
            structs.replace(decode_configuration(body), serves=address, stamp_ms=stamp_ms)
        )

    def _apply(self, index: int, term: int, data: bytes) -> None:
        command = self._command(index, term, data)
        if isinstance(command, SplitRegion | FoundRegions):
            self.snapshots.give_up()
        outcome = self.machine.apply(index, command)
        while self.machine.born:
            self._on_born(self, index, self.machine.born.pop())
        while self._waiting and self._waiting[0][0] <= index:
            awaited, in_term, _command, done = self._waiting.popleft()
            done(outcome if (awaited, in_term) == (index, term) else None)

    def _command(self, index: int, term: int, data: bytes) -> Command:
        """Return the command of an entry: of one that was appended here, the very command that became its bytes."""
        if self._waiting and self._waiting[0][:2] == (index, term):
            return self._waiting[0][2]
        try:
            return decode_command(data)
        except CorruptRecord as exc:
            raise NotUnderstood(f"entry {index} of the log in {self._root}: {exc}") from exc

    def _stand(self, standing: Standing) -> None:
        self._stamps.begin(self.machine.clock_ms)
        waiting = self._waiting
        if standing.role is not Role.LEADER or (waiting and waiting[0][1] != standing.term):
            self._waiting = deque()
            for _index, _term, _command, done in waiting:
                done(None)

    def status(self) -> dict[str, object]:
        """Return the region as this member sees it, for people; its bounds in hexadecimal."""
        machine, ledger = self.machine, self.ledger
        standing, region = ledger.standing, machine.region
        end: Point = ledger.core.log.end
        return {
            "region": region.id,
            "firstKey": region.start.hex(),
            "endKey": region.end.hex(),
            "epoch": region.epoch,
            "member": ledger.me.id,
            "members": sorted(filter(None, ledger.members.configurations.addresses)),
            "role": standing.role.value,
            "term": standing.term,
            "leader": standing.leader,
            "leaderAddress": machine.leader if standing.leader is not None else "",
            "leads": self.leads,
            "learns": ledger.core.readmission.is_learner,
            "end": end.index,
            "committed": ledger.core.log.commit.index,
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
