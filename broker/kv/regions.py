"""`KvRegions`: all regions of a member's process, how a store is cut, and where new regions come from.

A region begins in another one's log. Every member that applies the entry of a split has the machine of the new region
in its hand, whose state is a function of the log so far (`ha.kv.machine`); it opens that region's own log, and is a
member of one more Raft group. Nothing else is written down, so there is nothing to be torn by a crash: a start applies
the log of region 0, comes to the same entries, has the same machines in its hand, and opens the logs that are there.
A log that is not there yet is begun, as it would have been then. No log is begun before it is on disk that its entry is
committed: a start that did not apply it would have a log and no state, and what it confirmed there would be lost.

A snapshot of the region would have a start pass over that entry. So none is begun until the new region has one of its
own, which it makes with its first entry; a start begins with the snapshots that are there.

    split     1  the region's leader has region 0 reserve an id, for this region and its epoch (`ha.kv.region`)
              2  it appends the split to the region's log; applied, it ends that epoch, and whoever asked is answered
              3  each member opens the new region, once a start would come to it, too, and one of them is elected

A split that is asked for twice is done once: the second one is of an epoch that is over.

A member that was away for so long that the entry is gone has only the old range, and is sent the state of the narrower
one. It takes that when it has the state of every region behind it (on disk, in a snapshot of its own), and until then:

    1  refuses it, and looks out for frames of groups that are not here: those of the regions that it lacks
    2  becomes a member of each such group with an empty log, which refuses entries and asks for the state. It votes,
       as it has confirmed nothing that it lacks; it does not campaign, serves nobody, and is in no table
    3  begins anew with the state; a start goes on in the same way with a region that it finds without one

A kill in between leaves the old range, which no client is served from: its log lacks what was committed since. If the
entry comes after all, the state is at hand, and the member begins anew with that. A member that lost its log learns in
each of these groups before it votes, as in every other (`ha.raft.membership`).

A region whose log a start finds damaged is put aside (`broker.kv.marker`) and begins without an entry, as a learner:
region 0 with its first state, another one with that of the entry that cut it off, or with none if that is not here. A
region without a snapshot that was cut from it is put aside, too. As long as some keys are in no region here, clients
are told of no region, and those that the others know are looked out for.

Members take turns at being the one that a region is led by, in the order of ids: it campaigns first, and is handed the
lead when it comes back. Region 0 is led by whoever `preferredLeaderId` names.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Final

import structlog
from msgspec.structs import replace

from broker.context import BrokerContext
from broker.kv.members import RegionMembers
from broker.kv.region import (
    Busy,
    Done,
    KvRegion,
    NotLeader,
    NotUnderstood,
    can_be_filled,
    has_snapshots,
    marker_of,
)
from broker.settings.dledger import region_keys
from ha.dledger.ledger import LedgerShell
from ha.dledger.members.readmission import Readmission
from ha.kv.machine import KvMachine
from ha.kv.region import REGIONS_MAX, Region, gap_in
from ha.raft.types import Settings
from ropewalk.errors import CorruptRecord
from ropewalk.format.kv.commands import (
    FoundRegions,
    Outcome,
    ReserveRegion,
    SplitRegion,
    Status,
    decode_outcome,
    encode_outcome,
)
from ropewalk.format.kv.items import Count
from ropewalk.format.kv.snapshot import Head
from store.log.commitlog import StoreDamaged

__all__ = ["KvRegions"]

log = structlog.get_logger("broker.kv")

_RESERVE: Final = struct.Struct(">qq")
_NO_OUTCOME: Final = b"\xff"
"""The answer to a request of another member that did nothing, or whose outcome is unknown: one has to have a body."""


class KvRegions:
    """The regions by id; 0 is always there. Their life follows the member's: `open`, turns and ticks, `close`."""

    def __init__(
        self, context: BrokerContext, wake: Callable[[], None], on_replaced: Callable[[], None]
    ) -> None:
        """`wake` has the loop run a turn soon; `on_replaced` is called when all has to be opened again."""
        self.ledgers: list[LedgerShell] = []
        """The groups of the regions that are open; new ones are added while the member runs."""
        self._context = context
        self._wake = wake
        self._on_replaced = on_replaced
        self._keys = region_keys(context.config.ropewalk_kv_regions)
        self._regions: dict[int, KvRegion] = {}
        self._born: deque[tuple[KvRegion, int, KvMachine]] = deque()
        """Regions that are still to be opened: from which region, by which entry."""
        self._awaiting: dict[int, KvRegion] = {}
        """The regions whose state is still to come from another member."""
        self._lacks_regions = False
        """Whether a state was refused since the regions behind it are not here."""
        self._unknown: set[int] = set()
        """Regions that other members have, and that are to be opened without a state."""
        self._is_founding = False
        self._shared: LedgerShell
        self._members: RegionMembers
        self._settings: Settings

    def __iter__(self) -> Iterator[KvRegion]:
        return (self._regions[id] for id in sorted(self._regions))

    def get(self, id: int) -> KvRegion | None:
        """Return a region; None if it is not here, or not yet."""
        return self._regions.get(id)

    # -- life ----------------------------------------------------------------------------------------

    def open(self, shared: LedgerShell, settings: Settings) -> None:
        """Apply all logs, and become a member of each region's group. Blocks. Raises `StoreDamaged`."""
        self._shared, self._settings = shared, settings
        self._members = RegionMembers(shared, self, self._context.monotonic_ms)
        for id in range(REGIONS_MAX):
            marker_of(self._context, id).put_aside()
        if not self._opens(self._new_of(0), settings):
            self._open(self._new_of(0), settings)
        for id in range(1, REGIONS_MAX):
            if has_snapshots(self._context, id):
                self._opens(self._new_of(id), settings)
        while self._born:
            self._open_born(*self._born.popleft(), settings)
        for id in range(1, REGIONS_MAX):
            if id not in self._regions and marker_of(self._context, id).exists:
                self._await_state(id)
        shared.peers.on_unknown_group = self._heard_of

    def _new(self, machine: KvMachine) -> KvRegion:
        return KvRegion(
            self._context, machine, self._wake, self._on_born, self._on_replaced, self._refuse_state
        )

    def _new_of(self, id: int) -> KvRegion:
        """Return a region as it is in front of every entry: region 0 has all keys then, and no other one any state."""
        return self._new(KvMachine(Region(id), self._context.config.kv_memory_max))

    def _refuse_state(self, region: KvRegion, head: Head) -> str | None:
        """Return in words why a region may not begin with a later state yet: it was cut, and a new region is not here.

        One that was cut from this region, and has no snapshot yet, would not be here any more: it begins in the log
        that the state replaces. A region without any state has none that could be lost.
        """
        if self._awaiting.get(region.machine.region.id) is region:
            return None
        cuts = [
            each.machine.region
            for each in self
            if each is not region and (each.snapshots.points or each not in region.cut_off)
        ]
        covered = gap_in([*cuts, Region(head.region, head.start, head.end)])
        if covered is None:
            return None
        self._lacks_regions = True
        return (
            f"region {head.region} was cut at {covered!r} while this member was away: it needs the state of the region "
            "behind that first"
        )

    def _opens(self, region: KvRegion, settings: Settings, *, has_state: bool = False) -> bool:
        """Open a region with its newest snapshot; return False where it has no state, or where its log was put aside.

        Blocks. Raises `StoreDamaged` where a damaged log must not be put aside.
        """
        try:
            if not region.load() and not has_state and region.machine.region.id:
                region.abandon()
                return False
            self._open(region, settings)
        except StoreDamaged as why:
            self._put_aside(region, why)
            return False
        return True

    def _put_aside(self, region: KvRegion, why: StoreDamaged) -> None:
        """Have a region begin anew whose log is damaged. Raises `why` where the others could not fill it again.

        A ballot that is gone, or a command that this program does not know, is no damage of the log.
        """
        region.abandon()
        if isinstance(why, NotUnderstood) or not can_be_filled(self._shared) or not region.has_ballot:
            raise why
        region.marker.note_damage()
        region.marker.put_aside()
        self._born = deque(each for each in self._born if each[0] is not region)
        log.error(
            "the log of a region is damaged: the others fill it again, and this member does not vote there until then",
            region=region.machine.region.id, reason=str(why).split(": ")[0].split(". ")[0],  # without the remedy
        )  # fmt: skip

    def _open(self, region: KvRegion, settings: Settings) -> None:
        id = region.machine.region.id
        region.open(self._shared, replace(settings, turn=id) if id else settings)
        region.ledger.forwards.on_request = partial(self._forwarded, region)
        (self._awaiting if settings.lacks_state else self._regions)[id] = region
        self.ledgers.append(region.ledger)
        self._members.begin(region)

    def _heard_of(self, group: int) -> None:
        """Note the region of a frame, if this member lacks regions."""
        if 0 < group - 1 < REGIONS_MAX and (self._lacks_regions or not self._has_all_keys):
            self._unknown.add(group - 1)

    @property
    def _unopened(self) -> list[KvMachine]:
        """Return the regions that are still to be opened."""
        born = (machine for _parent, _index, machine in self._born)
        return [machine for machine in born if machine.region.id not in self._regions]

    @property
    def _has_all_keys(self) -> bool:
        """Return whether each key is in a region here, or in one that is still to be opened."""
        machines = [*(each.machine for each in self), *self._unopened]
        return gap_in(machine.region for machine in machines) is None

    def _await_state(self, id: int) -> None:
        """Become a member of the group of a region whose state is not here, unless it came before the last stop."""
        region = self._new_of(id)
        has_state = region.load()
        try:
            self._open(region, replace(self._settings, lacks_state=not has_state))
        except StoreDamaged as why:
            self._put_aside(region, why)
            has_state, region = False, self._new_of(id)
            self._open(region, replace(self._settings, lacks_state=True))
        if not has_state:
            is_lost = region.ledger.core.readmission.is_learner
            cause = "whose log is lost" if is_lost else "that was cut off while this member was away"
            log.info(f"waits for the state of a region {cause}", region=id)

    def _open_born(self, parent: KvRegion, index: int, machine: KvMachine, settings: Settings) -> None:
        """Open a region with the state that its first entry finds, unless it has begun with a later one."""
        if machine.region.id in self._regions:
            return
        region = self._new(machine)
        region.origin = parent, index
        region.snapshots.is_wanted = True
        if self._opens(region, settings, has_state=True):
            parent.cut_off.append(region)

    def _on_born(self, parent: KvRegion, index: int, machine: KvMachine) -> None:
        self._born.append((parent, index, machine))

    def end_turn(self) -> None:
        """Send, flush and apply the commands of this turn, and open the regions that were cut off in it."""
        for region in (*self._regions.values(), *self._awaiting.values()):
            region.end_turn()
        while self._unknown:
            self._await_state(self._unknown.pop())
        while self._born and self._born[0][0].is_kept(self._born[0][1]):
            self._begin(*self._born.popleft())

    def _begin(self, parent: KvRegion, index: int, machine: KvMachine) -> None:
        """Open a region that begins while its members run."""
        if parent.is_news(index) and parent.ledger.readmission.is_noted:
            # A log of this member that was lost had no part in the new region: its readmission is over here, too.
            Readmission(self._shared.peers, machine.region.id + 1).note()
        if machine.region.id not in self._awaiting:
            self._open_born(parent, index, machine, replace(self._settings, is_newborn=True))
        if machine.region.id not in self._regions:
            self._on_replaced()  # the next start applies this entry, and begins with the machine
            return
        log.info(
            "a region was cut in two",
            region=parent.machine.region.id, new=machine.region.id, at=machine.region.start, epoch=machine.region.epoch,
        )  # fmt: skip

    def tick(self) -> None:
        """Do the work of time of the logs, and cut a new store as `ropewalkKvRegions` says."""
        for region in (*self._regions.values(), *self._awaiting.values()):
            region.tick()
        self._members.tick()
        root = self._regions[0]
        if self._keys and root.leads and not root.machine.ids and not self._is_founding:
            self._is_founding = True
            with suppress(NotLeader, Busy):
                root.propose(lambda stamp: FoundRegions(stamp, self._keys), self._founded)
                return
            self._is_founding = False

    def _founded(self, outcome: Outcome | None) -> None:
        self._is_founding = False

    def close(self) -> None:
        """Put all logs on disk. Blocks."""
        for region in (*self._regions.values(), *self._awaiting.values()):
            region.close()

    # -- splits --------------------------------------------------------------------------------------

    def split(self, region: KvRegion, key: bytes, done: Done) -> None:
        """Cut a region that this member leads at a key; `done` hears the outcome.

        Raises `NotLeader` or `Busy`, and has changed nothing then.
        """
        if not region.leads:
            raise NotLeader
        cut = region.machine.region

        def reserved(outcome: Outcome | None) -> None:
            if outcome is None or outcome.status is not Status.OK:
                done(outcome)
                return
            (id,) = outcome.results
            assert isinstance(id, Count)
            try:
                region.propose(lambda stamp: SplitRegion(stamp, cut.epoch, id.number, key), done)
            except (NotLeader, Busy):
                done(None)

        self._reserve(cut.id, cut.epoch, reserved)

    def _reserve(self, parent: int, epoch: int, done: Done) -> None:
        root = self._regions[0]
        known = root.machine.ids.get(parent, epoch)
        if known is not None:
            done(Outcome(Status.OK, (Count(known),)))
        elif root.leads:
            root.propose(lambda stamp: ReserveRegion(stamp, parent, epoch), done)
        elif not root.ledger.forward(_RESERVE.pack(parent, epoch), lambda answer: done(_outcome(answer))):
            raise Busy("region 0 of the key-value store, which numbers the regions, has no leader")

    def _forwarded(self, region: KvRegion, request: bytes, send: Callable[[bytes], None]) -> None:
        """Reserve an id as the leader of region 0, or hear as that of any region which members it is to have."""
        if len(request) != _RESERVE.size:
            self._members.told(region, request)
            send(_NO_OUTCOME)
            return
        parent, epoch = _RESERVE.unpack(request)
        try:
            self._regions[0].propose(
                lambda stamp: ReserveRegion(stamp, parent, epoch),
                lambda outcome: send(_NO_OUTCOME if outcome is None else encode_outcome(outcome)),
            )
        except (NotLeader, Busy):
            send(_NO_OUTCOME)

    # -- people --------------------------------------------------------------------------------------

    @property
    def behind(self) -> list[int]:
        """Return the regions that have still to follow the members of the group, as far as this member knows."""
        unopened = (machine.region.id for machine in self._unopened)
        return sorted({*self._members.behind, *self._awaiting, *unopened})

    @property
    def is_removed(self) -> bool:
        """Return True if this member is none of the group any more, as far as it knows."""
        return self._members.is_removed

    def identity(self) -> dict[str, object]:
        """Return the id of this member, and those of all members of the group."""
        return self._members.identity()

    def table(self) -> list[dict[str, object]]:
        """Return the regions as this member has applied their cuts, and where the leader of each is.

        One that is still to be opened is among them: else there were keys that no region has. Where there are such keys
        all the same, since a region's state is gone, there are none: another member knows better.
        """
        if not self._has_all_keys:
            return []
        known = [(each.machine, each.ledger.standing.leader is not None) for each in self]
        known += [(machine, False) for machine in self._unopened]
        return [
            {
                "id": machine.region.id,
                "start": machine.region.start.hex(),
                "end": machine.region.end.hex(),
                "epoch": machine.region.epoch,
                "leader": machine.leader if is_led else "",
            }
            for machine, is_led in known
        ]

    def split_refusal(self, region: KvRegion, key: bytes) -> str | None:
        """Return in words why a region cannot be cut at a key; None if it can."""
        if not region.machine.region.may_be_cut_at(key):
            return f"region {region.machine.region.id} begins at this key: there is nothing to cut off in front of it"
        if len(self._regions) >= REGIONS_MAX:
            return f"there are {REGIONS_MAX} regions, as many as a store may have"
        return None


def _outcome(answer: bytes | None) -> Outcome | None:
    if not answer:
        return None
    try:
        return decode_outcome(answer)
    except CorruptRecord:
        return None
