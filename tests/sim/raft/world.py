"""Whole groups of `RaftNode` in one loop: 3, 5 or 7 members, a heap of events, faults, all from one seed. No trio.

    storm    members die, lose power, stall, fill up, are cut off one way or both; messages are lost, repeated, late
    calm     all is healed and started: within 10 s there is one leader, and all logs are equal and committed
    quiet    one follower after the other stalls or is cut off, and comes back: nobody loses the lead over it

In every fourth life over a model the lead is handed over, and in half of these one member is preferred; over stores
it is in a few lives. In another fourth leaders read by lease, and in half of the former, too (`lease_faults`). In the
third fourth, and in some of the others, members come and go: groups grow, shrink, change one member for another, or
all. In lives that are asked for, a member loses its disk now and then, and the others are told one after the other
(`loses_logs`); or retention removes what members lack (`retires`). Where both are asked for, members come and go in
every life.

`Network` and `Clients` serve the whole life; in `life/`, `storm` breaks things and `peace` has the trials of a healed
group, `changes` has members come and go, and `lost_logs` and `lease_faults` have the faults that need care.

Which faults a life has is drawn for each seed. A member is a core over a model of its log (`ModelMember`), or the
shipped shell and store over a disk that forgets (`StoreMember`).
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable

from msgspec import structs

from ha.raft.types import Config, Effects, Event, MemberId, Settings, Stuck
from tests.sim.disk import PowerLoss
from tests.sim.raft.checks import Checks
from tests.sim.raft.clients import Clients
from tests.sim.raft.life import peace
from tests.sim.raft.life.changes import Changes
from tests.sim.raft.life.lost_logs import LostLogs
from tests.sim.raft.life.storm import Storm
from tests.sim.raft.member import Member
from tests.sim.raft.model_member import ModelMember
from tests.sim.raft.network import DELAY_MS, Network

SETTINGS = Settings(
    pending_bytes_max=64 << 10,
    window_frames=8,
    frame_bytes_max=2048,
    fetch_bytes_max=2048,
    window_bytes=8 << 10,
)


class World:
    """One life of a group: its members, its time, and what happens to it."""

    def __init__(
        self,
        seed: int,
        verbose: bool = False,
        make_member: Callable[[World, MemberId], Member] = ModelMember,
        loses_logs: bool = False,
        retires: bool = False,
    ) -> None:
        self.seed = seed
        self.loses_logs = loses_logs
        self.retires = retires
        self.chance = random.Random(seed)
        self.time = 0.0
        self.events = 0
        self.cuts = 0
        self.installed = 0
        """How many snapshots have replaced a log."""
        self.readmissions = 0
        is_model = make_member is ModelMember
        self.hands_over = seed % 4 == 3 if is_model else seed % 64 in (3, 8, 35)
        """Whether leaders are told to hand over. The other lives are what they were before there were transfers."""
        self.pace_ms = 5 if is_model else 20
        """How often clients send while the lead is handed over."""
        self.changes_members = (loses_logs and retires) or (
            (seed % 4 == 2 or seed % 16 in (11, 13, 15)) if is_model else seed % 16 == 8
        )
        """Whether members come and go."""
        size = self.chance.choices((3, 5, 7, 1), (70, 22, 5, 3))[0]
        spare = min(7 - size, self.chance.choice((1, 1, 1, 2, 2, 4))) if self.changes_members else 0
        self.ids = tuple(f"n{number}" for number in range(size + spare))
        self.first = Config(self.ids[:size])
        """The configuration with which the group begins; the other members come later."""
        self.settings = SETTINGS
        if is_model and seed % 8 == 7:
            self.settings = structs.replace(SETTINGS, preferred=(self.ids[0],))
        if is_model and (seed % 4 == 1 or (seed % 16 >= 11 and self.hands_over)):
            self.settings = structs.replace(self.settings, lease_reads=True)
        self.checks = Checks()
        self.told: deque[tuple[float, MemberId, Event, Effects]] | None = deque(
            maxlen=None if verbose else 200
        )
        self.contents: dict[tuple[int, int], bytes] = {}
        """By (index, term): the bytes of an entry, where members have a store."""
        self._heap: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._number = 0
        # The order is that of the draws: another one gives every seed another life.
        self.storm = Storm(self)
        self.network = Network(self)
        self.clients = Clients(self)
        self.changes = Changes(self)
        self.lost_logs = LostLogs(self)
        self.members = {id: make_member(self, id) for id in self.ids}
        for member in self.members.values():
            member.log.hiccups = "slow disk" in self.storm.kinds
        if "clock" in self.storm.kinds or self.settings.lease_reads:
            for member in self.members.values():
                member.rate = self.chance.uniform(0.9, 1.1)
                if self.settings.lease_reads:
                    member.rate = 1 + (member.rate - 1) * 0.4  # leases stand a tenth between two clocks
                member.offset = self.chance.randrange(1_000_000)

    # -- the heap ----------------------------------------------------------------------------------------

    def at(self, time: float, what: Callable[..., None], *parameters: object) -> None:
        self._number += 1
        heapq.heappush(self._heap, (time, self._number, what, parameters))

    def run_until(self, time: float) -> None:
        heap = self._heap
        while heap and heap[0][0] <= time:
            self.time, _, what, parameters = heapq.heappop(heap)
            try:
                what(*parameters)
            except PowerLoss:
                self.storm.power_lost()
        self.time = time

    def forget(self, *whats: Callable[..., None]) -> None:
        """Take the events of these kinds off the heap: whatever repeats itself ends."""
        self._heap = [each for each in self._heap if each[2] not in whats]
        heapq.heapify(self._heap)

    # -- the members -------------------------------------------------------------------------------------

    def restart(self, member: Member) -> None:
        """Start a member that is down."""
        if member.core is None:
            member.start()
            if member.log.full:
                member.deliver(member.life, Stuck(True))

    def fill(self, member: Member, full: bool) -> None:
        """Fill a member's disk, or make room on it."""
        if member.log.full is not full:
            member.log.set_full(full)
            member.deliver(member.life, Stuck(full))

    def voters(self) -> list[Member]:
        """Return the members that vote in what is committed, in both groups of a joint configuration."""
        config = self.committed_config()
        return [self.members[id] for id in config.voters if not config.old or id in config.old]

    def committed_config(self) -> Config:
        """Return the last configuration that is committed."""
        rows = self.checks.config_rows(self.checks.truth)
        return rows[-1][1] if rows else self.first

    def has_all(self, member: Member) -> bool:
        """Tell whether a member has all that is committed, on its disk."""
        truth, log = self.checks.truth, member.log
        return not truth or (
            log.view[len(truth) - 1 : len(truth)] == truth[-1:] and log.has_on_disk(truth[-1])
        )

    def members_of(self, leader: Member | None) -> dict[MemberId, Member]:
        """Return the members of the group as its leader knows it."""
        assert leader is not None and leader.core is not None
        return {id: self.members[id] for id in leader.core.config.members}

    def leader(self) -> Member | None:
        """The only member that leads and may append; None if there is none, or more."""
        found = [
            member
            for member in self.members.values()
            if member.standing and member.standing.may_append and member.core
        ]
        return found[0] if len(found) == 1 else None

    def describe(self) -> str:
        """Where every member is."""
        return "; ".join(
            f"{member.id} {member.core.role.value} {member.core.term} end {member.core.log.end.index}"
            f" commit {member.core.log.commit.index} of {'+'.join(member.core.config.voters)}"
            if member.core is not None
            else f"{member.id} down"
            for member in self.members.values()
        )


def run(
    seed: int,
    verbose: bool = False,
    make_member: Callable[[World, MemberId], Member] = ModelMember,
    loses_logs: bool = False,
    retires: bool = False,
) -> World:
    """Live one life. Raises `Broken`, or the AssertionError of a core, with the seed in its notes."""
    world = World(seed, verbose, make_member, loses_logs, retires)
    try:
        for member in world.members.values():
            member.start()
        world.at(0, world.clients.produce)
        if world.hands_over or world.settings.lease_reads:
            world.at(0, world.clients.ask_reads)
        if world.changes_members:
            world.at(0, world.changes.ask_changes)
        if world.loses_logs:
            world.at(1000, world.lost_logs.trust)
        world.storm.run(world.chance.choice((1500, 2500, 5000)))
        peace.heal(world)
        world.forget(world.clients.produce, world.changes.ask_changes)
        peace.calm(world)
        if world.changes_members and world.chance.random() < 0.4:
            world.changes.grow_and_shrink()
        if world.settings.preferred:
            peace.until_preferred_leads(world)
        elif world.hands_over:
            world.run_until(world.time + DELAY_MS)
            peace.hand_over(world)
            peace.fill_the_leader(world)
            peace.read_everywhere(world)
        if world.chance.random() < 0.25:
            peace.quiet(world)
    except AssertionError as failure:
        store = " --store" if make_member is not ModelMember else " --lost-logs" if loses_logs else ""
        store += " --retention" if retires else ""
        faults = ", ".join(world.storm.kinds)
        failure.add_note(
            f"python -m tests.sim.raft --seed {seed}{store}   (faults: {faults}; {world.time:.0f} ms)"
        )
        failure.add_note(tell(world, 60))
        raise
    return world


def tell(world: World, count: int) -> str:
    """The last events of a life, for people."""
    lines = []
    for time, id, event, effects in list(world.told or ())[-count:]:
        told = ", ".join(
            f"{name}={getattr(effects, name)}"
            for name in effects.__struct_fields__
            if getattr(effects, name) not in (None, (), False)
        )
        lines.append(f"{time:9.1f} {id} {event}\n              -> {told}")
    return "\n".join(lines)
