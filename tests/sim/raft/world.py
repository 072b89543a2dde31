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

Which faults a life has is drawn for each seed. A member is a core over a model of its log (`ModelMember`), or the
shipped shell and store over a disk that forgets (`StoreMember`).
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable

from msgspec import structs

from ha.raft.types import (
    ChangeAsked,
    ChangeResult,
    Config,
    DoubtDropped,
    Effects,
    Event,
    Link,
    Linked,
    MemberId,
    Message,
    Met,
    ReadAsked,
    Settings,
    Stuck,
    TakeLead,
    TransferAsked,
    TransferResult,
    link_of,
)
from tests.sim.disk import PowerLoss
from tests.sim.raft import lease_faults
from tests.sim.raft.checks import Broken, Checks
from tests.sim.raft.member import Member
from tests.sim.raft.model_member import ModelMember

SETTINGS = Settings(
    pending_bytes_max=64 << 10,
    window_frames=8,
    frame_bytes_max=2048,
    fetch_bytes_max=2048,
    window_bytes=8 << 10,
)
CALM_MS = 10_000
DELAY_MS = 1500
FAULTS = (
    "kill", "power", "stall", "cut off", "one way", "reset", "lose", "repeat", "reorder", "delay", "slow disk", "full",
    "clock", "damage", "all power", "leaders die", "leaders cut off",
)  # fmt: skip


class World:
    """One life of a group."""

    def __init__(
        self,
        seed: int,
        verbose: bool = False,
        make_member: Callable[[World, MemberId], Member] = ModelMember,
        loses_logs: bool = False,
        retires: bool = False,
    ) -> None:
        self.seed = seed
        self.installed = 0
        """How many snapshots have replaced a log."""
        self.loses_logs = loses_logs
        self.readmissions = 0
        self.trusted = 0
        """How many logs in doubt an operator has trusted."""
        self._incarnations: dict[MemberId, int] = {}
        """How often each member has lost its log."""
        self._told_of: dict[tuple[MemberId, MemberId], int] = {}
        """By (who, of whom): the loss after which a member was let in."""
        self.chance = random.Random(seed)
        self.time = 0.0
        self.events = 0
        self.cuts = 0
        is_model = make_member is ModelMember
        self.hands_over = seed % 4 == 3 if is_model else seed % 64 in (3, 8, 35)
        """Whether leaders are told to hand over. The other lives are what they were before there were transfers."""
        self._pace_ms = 5 if is_model else 20
        """How often clients send while the lead is handed over."""
        self.settings = SETTINGS
        self.outcomes: dict[int, TransferResult] = {}
        self.reads_served: set[int] = set()
        self._reads = 0
        self._floors: dict[int, int] = {}
        """By the token of a read: what was committed when it was asked."""
        self._transfers = 0
        self.changes = (loses_logs and retires) or (
            (seed % 4 == 2 or seed % 16 in (11, 13, 15)) if is_model else seed % 16 == 8
        )
        """Whether members come and go."""
        size = self.chance.choices((3, 5, 7, 1), (70, 22, 5, 3))[0]
        spare = min(7 - size, self.chance.choice((1, 1, 1, 2, 2, 4))) if self.changes else 0
        self.ids = tuple(f"n{number}" for number in range(size + spare))
        self.first = Config(self.ids[:size])
        """The configuration with which the group begins; the other members come later."""
        self.changed: dict[int, ChangeResult] = {}
        """By the token of a change: its outcome."""
        self._targets: dict[int, Config] = {}
        self._asked: dict[int, tuple[Member, int]] = {}
        """By the token of a change: the member that was asked, and in which of its lives."""
        if is_model and seed % 8 == 7:
            self.settings = structs.replace(SETTINGS, preferred=(self.ids[0],))
        if is_model and (seed % 4 == 1 or (seed % 16 >= 11 and self.hands_over)):
            self.settings = structs.replace(self.settings, lease_reads=True)
        self.checks = Checks()
        self.told: deque[tuple[float, MemberId, Event, Effects]] | None = deque(
            maxlen=None if verbose else 200
        )
        share = self.chance.choice((0.15, 0.3, 0.6))
        self.kinds = [kind for kind in FAULTS if self.chance.random() < share]
        if self.hands_over:
            self.kinds.append("transfer")
        if self.settings.lease_reads:
            self.kinds.append("lease")
        if loses_logs:
            self.kinds += ["lost log"] * (1 + len(self.kinds) // 3)
        if retires:
            self.kinds += ["retire"] * (2 + len(self.kinds) // 2)
        self.is_storm = True
        self.contents: dict[tuple[int, int], bytes] = {}
        """By (index, term): the bytes of an entry, where members have a store."""
        self.blocked: set[tuple[MemberId, MemberId]] = set()
        self.slowed: dict[MemberId, float] = {}
        """How much later than others messages to a member arrive."""
        self._heap: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._number = 0
        self._payload = 0
        self._last_link = 0
        self._arrivals: dict[tuple[MemberId, MemberId, Link], float] = {}
        self._rtt = self.chance.choice((0.3, 2.0, 20.0))
        self.members = {id: make_member(self, id) for id in self.ids}
        for member in self.members.values():
            member.log.hiccups = "slow disk" in self.kinds
        if "clock" in self.kinds or self.settings.lease_reads:
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
                self._power_lost()
        self.time = time

    def payload_number(self) -> int:
        self._payload += 1
        return self._payload

    # -- the network -------------------------------------------------------------------------------------

    def link(self, one: Member, other: Member, kind: Link) -> None:
        """Connect two members anew. What is on its way on the old connection arrives, with its old number."""
        if not (self._lets_in(one, other) and self._lets_in(other, one)):
            return
        self._last_link += 1
        for here, there in ((one, other), (other, one)):
            here.links[there.id, kind] = self._last_link
            if self.loses_logs and there.core is not None:
                met = Met(there.id, there.core.term, self._told_of.get((there.id, here.id), 0) > 0)
                self.at(self.time + 1, here.deliver, here.life, met)
            event = Linked(there.id, self._last_link, kind, True, here.now())
            self.at(self.time + 1, here.deliver, here.life, event)

    def _lets_in(self, one: Member, other: Member) -> bool:
        """Tell whether `one` knows the log that `other` has now."""
        return self._told_of.get((one.id, other.id), 0) == self._incarnations.get(other.id, 0)

    def _lose_log(self, member: Member) -> None:
        """Lose a member's disk, while the others can spare it; start it empty, and have them told one by one."""
        others = [each for each in self.members.values() if each is not member]
        configs = self._configs_to_be()
        if not isinstance(member, ModelMember) or not all(self._can_spare(member, each) for each in configs):
            return
        if member.first_config.voters == (member.id,):
            return  # an empty member whose settings name nobody else begins a group of its own
        if any(each.core is None or each.core.election.doubt is not None for each in others):
            return  # a doubt ends by the answers of all voters, one of which would know nothing
        if member.core is not None:
            member.die(True)
        member.lose_log()
        self.checks.lost_ballot(member)
        self._incarnations[member.id] = self._incarnations.get(member.id, 0) + 1
        self.at(self.time + self.chance.random() * 600, self.restart, member)
        for other in others:
            self.at(self.time + self.chance.random() * 1500, self._tell_of, other, member)

    def _configs_to_be(self) -> list[Config]:
        """Return every configuration by which members may count: in a log, committed or not, or asked for."""
        configs = [self._committed_config()]
        for member in self.members.values():
            rows = self.checks.config_rows(member.log.ordered())
            configs += [config for index, config in rows if index >= len(self.checks.truth)]
        return configs + [
            self._targets[token]
            for token, (member, life) in self._asked.items()
            if token not in self.changed and member.life == life
        ]

    def _can_spare(self, member: Member, config: Config) -> bool:
        """Return whether a configuration has a majority without a member's log, and all copies that it needs."""
        learners = self._learners()
        for group in (config.voters, config.old):
            voters = [self.members[id] for id in group if id != member.id]
            able = [each for each in voters if each not in learners]
            quorum = len(group) // 2 + 1
            if group and (len(able) < quorum or sum(map(self._has_all, able)) < quorum - 1):
                return False
        return True

    def trust(self) -> None:
        """Have an operator trust logs in doubt where nobody leads: a member that lost its log cannot speak for them.

        What a loss of power tears here was on no disk, so no message is lost by it.
        """
        self.at(self.time + 1000 + self.chance.random() * 500, self.trust)
        if not self._learners() or any(each.is_leader for each in self.members.values()):
            return
        for member in self.members.values():
            if member.core is not None and member.core.election.doubt is not None:
                self.trusted += 1
                member.deliver(member.life, DoubtDropped())

    def _learners(self) -> list[Member]:
        """Return the members that lost their logs and do not vote yet."""
        return [
            each
            for each in self.members.values()
            if self._incarnations.get(each.id) and isinstance(each, ModelMember) and not each.log.readmitted
        ]

    def _tell_of(self, one: Member, other: Member) -> None:
        """Have `one` let in the log that `other` has now."""
        if not self._lets_in(one, other):
            self._told_of[one.id, other.id] = self._incarnations[other.id]
            for kind in Link:
                self.link_again(one, other, kind)

    def unlinked(self, member: Member, peer: MemberId, kind: Link, number: int | None) -> None:
        if member.core is not None and number is not None and member.links.get((peer, kind)) == number:
            del member.links[peer, kind]
            member.deliver(member.life, Linked(peer, number, kind, False, member.now()))

    def reset(self, one: Member, other: Member, kind: Link) -> None:
        """Break a connection, and make another one soon."""
        for here, there in ((one, other), (other, one)):
            self.at(
                self.time + self.chance.random() * 5,
                self.unlinked,
                here,
                there.id,
                kind,
                here.links.get((there.id, kind)),
            )
        self.at(self.time + 6 + self.chance.random() * 30, self.link_again, one, other, kind)

    def link_again(self, one: Member, other: Member, kind: Link) -> None:
        if one.core is not None and other.core is not None:
            self.link(one, other, kind)

    def send(self, member: Member, peer: MemberId, message: Message) -> None:
        kind = link_of(message)
        number = member.links.get((peer, kind))
        if number is None or (member.id, peer) in self.blocked:
            return
        chance = self.chance
        payload = member.payload_of(message)
        arrival = self.time + self._rtt * (0.5 + chance.random())
        if self.is_storm:
            arrival += self.slowed.get(peer, 0.0)
            if self.settings.lease_reads and isinstance(message, TakeLead):
                lease_faults.try_a_handover(self, member)
            kinds = self.kinds
            if "lose" in kinds and chance.random() < 0.03:
                return
            if "delay" in kinds and chance.random() < 0.02:
                arrival += chance.random() * DELAY_MS
            if "repeat" in kinds and chance.random() < 0.05:
                again = arrival + chance.random() * 300
                self.at(again, self._arrive, self.members[peer], member.id, number, message, payload)
        key = (member.id, peer, kind)
        if not (self.is_storm and "reorder" in self.kinds and chance.random() < 0.1):
            arrival = self._arrivals[key] = max(arrival, self._arrivals.get(key, 0.0))
        self.at(arrival, self._arrive, self.members[peer], member.id, number, message, payload)

    def _arrive(self, member: Member, peer: MemberId, number: int, message: Message, payload: object) -> None:
        if self.time < member.asleep_until:
            member.asleep.append((self._arrive, (member, peer, number, message, payload)))
            return
        member.arrived(peer, number, message, payload)

    # -- members come and go ---------------------------------------------------------------------------

    def first_config_of(self, id: MemberId) -> Config:
        """Return the configuration in the settings of a member: whoever is to come may be named in its own, or not."""
        if id in self.first.voters or self.chance.random() < 0.5:
            return self.first
        return Config((*self.first.voters, id))

    def ask_changes(self) -> None:
        """Ask whoever leads, and now and then another member, for a change; a moment later again."""
        chance = self.chance
        self.at(self.time + chance.random() * 500, self.ask_changes)
        for member in self.members.values():
            if member.core is not None and (member.is_leader or chance.random() < 0.03):
                target = self._any_target(member.core.config)
                learners = {each.id for each in self._learners()}
                if 2 * len(learners.intersection(target.voters)) < max(1, len(target.voters)):
                    self.change(member, target)  # no operator asks for a group that has lost most of its logs

    def change(self, member: Member, target: Config) -> int:
        """Ask a member for a change. Return the token under which `changed` will have the outcome."""
        token = len(self._targets)
        self._targets[token], self._asked[token] = target, (member, member.life)
        member.deliver(member.life, ChangeAsked(token, target, member.now()))
        return token

    def _any_target(self, before: Config) -> Config:
        chance = self.chance
        voters, learners = set(before.voters), set(before.learners)
        others = [id for id in self.ids if id not in before.members]
        for id in chance.sample(others, min(len(others), chance.choice((0, 1, 1, 2, 4)))):
            learners.add(id)
        for id in before.learners:
            if chance.random() < 0.6:
                learners.discard(id)
                if chance.random() < 0.9:
                    voters.add(id)
        leave = chance.choice((0, 0, 1, 1, 2, len(before.voters)))
        for id in chance.sample(before.voters, min(leave, len(before.voters))):
            voters.discard(id)
            if chance.random() < 0.3:
                learners.add(id)
        return Config(tuple(sorted(voters)), (), tuple(sorted(learners)))

    def was_changed(self, member: Member, token: int, result: ChangeResult) -> None:
        """Judge the outcome of a change: what is said to be is committed."""
        target = self._targets[token]
        self.changed[token] = result
        assert member.core is not None
        configs = member.core.log.configs
        if result is ChangeResult.SUCCESS and (
            set(configs.in_force.voters) != set(target.voters)
            or configs.in_force.old
            or configs.index > member.core.log.commit.index
        ):
            raise Broken(
                f"I18: {member.id} says that {target} is the configuration, it is {configs.rows[-1]}"
            )

    def grow_and_shrink(self) -> None:
        """Have the group get other members in peace: each change is done within seconds, whoever leads."""
        self.run_until(
            self.time + DELAY_MS
        )  # what the storm has delayed may still change the members, or the leader
        self.calm()
        for _ in range(self.chance.choice((1, 1, 2))):
            size = self.chance.randint(1, len(self.ids))
            voters = tuple(sorted(self.chance.sample(self.ids, size)))
            leader = self.leader()
            assert leader is not None and leader.core is not None
            now = leader.core.config.voters
            fresh = tuple(id for id in voters if id not in now)
            self._become(Config(now, (), fresh))
            self._become(Config(voters))
            self.calm()

    def _become(self, target: Config) -> None:
        end = self.time + 6_000
        while self.time < end:
            leader = self.leader()
            if leader is not None and leader.core is not None:
                if (
                    leader.core.config == target
                    and leader.core.log.configs.index <= leader.core.log.commit.index
                ):
                    return
                token, patience = self.change(leader, target), self.time + 500
                while (
                    self.time < patience and token not in self.changed
                ):  # whom a late fault kills says nothing
                    self.run_until(self.time + 10)
            self.run_until(self.time + 20)
        raise Broken(f"I18: the group does not become {target} in peace: {self.describe()}")

    # -- clients -----------------------------------------------------------------------------------------

    def ask_reads(self) -> None:
        """Read at a member, whichever it is; a moment later again."""
        chance = self.chance
        self.at(self.time + chance.random() * 60, self.ask_reads)
        member = self.members[chance.choice(self.ids)]
        if member.core is not None and self.time >= member.asleep_until:
            for _ in range(chance.choice((1, 1, 3))):
                self.ask_read(member)

    def ask_read(self, member: Member) -> int:
        """Read at a member that is awake. Return the token, with which `reads_served` will tell of it."""
        self._reads += 1
        self._floors[self._reads] = len(self.checks.truth) - 1
        member.step(ReadAsked(self._reads, member.now()))
        return self._reads

    def read(self, member: Member, token: int, ok: bool) -> None:
        """Judge a read: it sees all that any leader had committed when it was asked."""
        floor = self._floors.pop(token)
        assert member.core is not None
        if ok and member.core.applied.index < floor:
            raise Broken(
                f"I10: {member.id} serves read {token} at {member.core.applied.index}, which was asked when {floor} "
                "was committed"
            )
        if ok:
            self.reads_served.add(token)

    def read_everywhere(self) -> None:
        """Read at every member, in peace: each is served."""
        members = self._members_of(self.leader()).values()
        tokens = [self.ask_read(member) for member in members for _ in range(3)]
        self.run_until(self.time + 1500)
        lost = [token for token in tokens if token not in self.reads_served]
        if lost:
            raise Broken(f"I18: reads {lost} of {tokens} were not served in peace: {self.describe()}")

    def produce(self) -> None:
        """Send messages to a member that says it leads, if there is one."""
        chance = self.chance
        self.at(self.time + chance.random() * 60, self.produce)
        leaders = [
            member
            for member in self.members.values()
            if member.core is not None
            and member.standing is not None
            and member.standing.may_append
            and member.log.accepts
            and self.time >= member.asleep_until
        ]
        if leaders:
            member = chance.choice(leaders)
            member.append([self.payload_number() for _ in range(chance.choice((1, 1, 2, 5)))])

    # -- trouble -----------------------------------------------------------------------------------------

    def storm(self, ms: float) -> None:
        """Break things for a while."""
        end = self.time + ms
        while True:
            self.run_until(min(end, self.time + self.chance.expovariate(1 / 150)))
            if self.time >= end:
                return
            if self.kinds:
                self._fault(self.chance.choice(self.kinds))

    def _fault(self, kind: str) -> None:
        chance = self.chance
        member = self.members[chance.choice(self.ids)]
        other = self.members[chance.choice(self.ids)]
        is_up = member.core is not None
        match kind:
            case "damage" if self.loses_logs and self._learners():
                pass  # nobody could say whether the lost log had what the doubt of another is about
            case "kill" | "power" if is_up:
                if kind == "power" and member.log.lose_power_soon():
                    return
                member.die(kind == "power")
                self.at(self.time + chance.random() * 1200, self.restart, member)
            case "leaders die":
                for each in self.members.values():
                    if each.is_leader:
                        self._kill(each, each.life)
            case "all power" if chance.random() < 0.3:
                for each in self.members.values():
                    if each.core is not None:
                        each.die(True)
                        self.at(self.time + chance.random() * 400, self.restart, each)
            case "retire" if isinstance(member, ModelMember) and member.log.first < member.log.written.index:
                member.log.retire(chance.randrange(member.log.first, member.log.written.index) + 1)
            case "lost log":
                self._lose_log(member)
            case "damage" if not is_up:
                self._damage(member)
            case "stall" if is_up:
                member.sleep(chance.choice((80, 300, 1500)) * chance.random())
            case "cut off":
                self.block(self._pairs(member))
            case "one way":
                self.block(
                    {(member.id, each) for each in self.ids}
                    if chance.random() < 0.3
                    else {(member.id, other.id)}
                )
            case "leaders cut off":
                for each in self.members.values():
                    if each.is_leader:
                        each.log.flush_ms = chance.choice((2.0, 20.0, 200.0))
                        self.block(self._pairs(each), chance.uniform(500, 1300))
            case "transfer":
                for each in self.members.values():
                    if each.is_leader or chance.random() < 0.1:
                        self.transfer(each, chance.choice(("", other.id)))
            case "lease":
                lease_faults.try_a_lease(self)
            case "reset" if is_up and member is not other and other.core is not None:
                self.reset(member, other, chance.choice(list(Link)))
            case "slow disk":
                member.log.flush_ms = chance.choice((2.0, 2.0, 30.0, 200.0))
            case "full" if is_up:
                self._fill(member, not member.log.full)

    def transfer(self, member: Member, target: MemberId) -> int:
        """Tell a member to hand the lead over. Return the token under which it says what became of it."""
        self._transfers += 1
        member.deliver(member.life, TransferAsked(self._transfers, target, member.now()))
        return self._transfers

    def leads(self, member: Member) -> None:
        """A member began to lead: the moment at which its death is most interesting."""
        if self.is_storm and "leaders die" in self.kinds and self.chance.random() < 0.7:
            self.at(
                self.time + self.chance.expovariate(1 / (3 * self._rtt + 5)), self._kill, member, member.life
            )

    def _power_lost(self) -> None:
        """End the lives of members whose power went in the middle of a step."""
        for member in self.members.values():
            if member.core is not None and member.log.has_lost_power:
                member.die(True)
                self.at(self.time + self.chance.random() * 1200, self.restart, member)

    def _kill(self, member: Member, life: int) -> None:
        if member.life == life:
            member.die(self.chance.random() < 0.5)
            self.at(self.time + self.chance.random() * 600, self.restart, member)

    def _fill(self, member: Member, full: bool) -> None:
        if member.log.full is not full:
            member.log.set_full(full)
            member.deliver(member.life, Stuck(full))

    def _pairs(self, member: Member) -> set[tuple[MemberId, MemberId]]:
        return {(member.id, each) for each in self.ids} | {(each, member.id) for each in self.ids}

    def block(self, pairs: set[tuple[MemberId, MemberId]], ms: float = 0) -> None:
        if not self.is_storm:
            return
        self.blocked |= pairs
        self.at(self.time + (ms or self.chance.random() * 1500), self.blocked.difference_update, pairs)

    def restart(self, member: Member) -> None:
        if member.core is None:
            member.start()
            if member.log.full:
                member.deliver(member.life, Stuck(True))

    def _damage(self, member: Member) -> None:
        """Flip a bit of an entry above the bound, with whole ones behind, while another member has all of it."""
        low, high = member.log.written.index + 1, len(member.log.view) - 1
        if low < high and any(self._has_all(other) for other in self._voters() if other is not member):
            index = self.chance.randrange(low, high)
            rows = self.checks.config_rows(member.log.view[:index])
            if not rows or len(rows[-1][1].voters) > 1:  # a group of one is its own witness
                member.log.damage(index)

    def _voters(self) -> list[Member]:
        """Return the members that vote in what is committed, in both groups of a joint configuration."""
        config = self._committed_config()
        return [self.members[id] for id in config.voters if not config.old or id in config.old]

    def _committed_config(self) -> Config:
        rows = self.checks.config_rows(self.checks.truth)
        return rows[-1][1] if rows else self.first

    def _has_all(self, member: Member) -> bool:
        truth, log = self.checks.truth, member.log
        return not truth or (
            log.view[len(truth) - 1 : len(truth)] == truth[-1:] and log.has_on_disk(truth[-1])
        )

    # -- peace -------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """End every fault, and start who is down."""
        self.is_storm = False
        self.blocked = set()
        for member in self.members.values():
            member.log.heal()
            if member.core is not None:
                self._fill(member, False)
            else:
                member.log.full = False
            if member.asleep_until > self.time:
                member.asleep_until = self.time
                member.wake(member.life)
        for member in self.members.values():
            self.restart(member)
        for one in self.members.values():
            for other in self.members.values():
                self._tell_of(one, other)

    def calm(self) -> None:
        """Let the group come to rest. Raises `Broken` if it does not."""
        end = self.time + CALM_MS
        while not self._rests():
            if self.time >= end:
                raise Broken(f"I18: the group does not come to rest in {CALM_MS} ms: {self.describe()}")
            self.run_until(self.time + 50)
        members = self._members_of(self.leader())
        self.checks.at_rest(members)
        for member in members.values():
            member.at_rest()

    def _members_of(self, leader: Member | None) -> dict[MemberId, Member]:
        """Return the members of the group as its leader knows it."""
        assert leader is not None and leader.core is not None
        return {id: self.members[id] for id in leader.core.config.members}

    def _rests(self) -> bool:
        leader = self.leader()
        if leader is None or leader.core is None:
            return False
        end, config = leader.core.log.end, leader.core.config
        return not config.old and all(
            member.rests(end)
            and member.core is not None
            and member.core.leader == leader.id
            and member.core.config == config
            for member in self._members_of(leader).values()
        )

    def leader(self) -> Member | None:
        """The only member that leads and may append; None if there is none, or more."""
        found = [
            member
            for member in self.members.values()
            if member.standing and member.standing.may_append and member.core
        ]
        return found[0] if len(found) == 1 else None

    def quiet(self) -> None:
        """Stall a follower, then cut one off: over neither anybody may lose the lead."""
        self.run_until(self.time + DELAY_MS)  # what the storm has delayed may still depose somebody
        self.calm()
        leader = self.leader()
        assert leader is not None and leader.core is not None
        voters, group = leader.core.config.voters, self._members_of(leader).values()
        followers = [
            member
            for member in group
            if member is not leader and (len(voters) > 2 or member.id not in voters)  # of two both are needed
        ]
        if not followers:
            return
        before = {member.id: member.standing for member in group}
        member = self.chance.choice(followers)
        member.sleep(self.chance.uniform(300, 1200))
        self.run_until(self.time + 1400)
        for other in group:
            if other.standing is not before[other.id]:
                raise Broken(f"I18: {member.id} was stalled, and {other.id} went to {other.standing}")
        member = self.chance.choice(followers)
        pairs = self._pairs(member)
        self.blocked |= pairs
        self.run_until(self.time + 1500)
        self.blocked -= pairs
        self.run_until(self.time + 300)
        for other in group:
            if other is not member and other.standing is not before[other.id]:
                raise Broken(f"I18: {member.id} was cut off, and {other.id} went to {other.standing}")
        self.calm()

    def hand_over(self) -> None:
        """Hand the lead to every follower in turn: each takes over at once, and no client is left without an answer."""
        leader = self.leader()
        assert leader is not None and leader.core is not None
        for target in leader.core.config.voters:
            leader = self.leader()
            assert leader is not None and leader.core is not None
            term = leader.core.term
            leader.append([self.payload_number() for _ in range(3)])
            payloads = set(leader.waiting)
            token = self.transfer(leader, target)
            end = self.time + 1200
            now: Member | None = leader
            while self.time < end and (token not in self.outcomes or now is None or now.id != target):
                self.run_until(self.time + self._pace_ms)  # clients go on sending to whoever takes messages
                now = self.leader()
                if now is not None and now.log.accepts:
                    now.append([self.payload_number()])
                    payloads |= now.waiting
            self.run_until(self.time + 300)
            now = self.leader()
            if now is None or now.id != target or self.outcomes.get(token) is not TransferResult.SUCCESS:
                raise Broken(
                    f"I18: {leader.id} handed over to {target}: {self.outcomes.get(token)}, {self.describe()}"
                )
            assert now.core is not None
            if now.core.term != term + (target != leader.id):
                raise Broken(f"I18: the lead went from term {term} to {now.core.term} for one transfer")
            if any(payload not in self.checks.acknowledged for payload in payloads):
                raise Broken(f"I18: {leader.id} handed over, and left a client without an answer")
        self.calm()

    def fill_the_leader(self) -> None:
        """Fill the leader's disk for good: it hands over to a member with room, and takes no message until then.

        Unless the others are no majority without it.
        """
        full = self.leader()
        assert full is not None and full.core is not None
        voters = full.core.config.voters
        self._fill(full, True)
        end = self.time + 4_000
        while self.time < end:  # a store has room until its segment ends, and notices then
            if full.standing is not None and full.standing.may_append and full.log.accepts:
                full.append([self.payload_number()])
            self.run_until(self.time + 25)
        now = self.leader()
        if len(voters) > 2 and (now is None or now is full):
            raise Broken(f"I18: the disk of {full.id} stays full, and it goes on leading: {self.describe()}")
        if len(voters) <= 2 and now is not full:
            raise Broken(
                f"I18: the disk of {full.id} is full, and it left the lead to nobody: {self.describe()}"
            )
        self._fill(full, False)
        self.calm()

    def until_preferred_leads(self) -> None:
        """Wait until the preferred leader has the lead, and keeps it."""
        leader = self.leader()
        assert leader is not None and leader.core is not None
        if not set(self.settings.preferred) & set(leader.core.config.voters):
            return
        end = self.time + 20_000
        while self.time < end and (
            (leader := self.leader()) is None or leader.id not in self.settings.preferred
        ):
            self.run_until(self.time + 50)
        self.run_until(self.time + 2_500)
        leader = self.leader()
        if leader is None or leader.id not in self.settings.preferred:
            raise Broken(f"I18: {self.settings.preferred} is preferred: {self.describe()}")
        self.calm()

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
        world.at(0, world.produce)
        if world.hands_over or world.settings.lease_reads:
            world.at(0, world.ask_reads)
        if world.changes:
            world.at(0, world.ask_changes)
        if world.loses_logs:
            world.at(1000, world.trust)
        world.storm(world.chance.choice((1500, 2500, 5000)))
        world.heal()
        world._heap = [each for each in world._heap if each[2] not in (world.produce, world.ask_changes)]
        heapq.heapify(world._heap)
        world.calm()
        if world.changes and world.chance.random() < 0.4:
            world.grow_and_shrink()
        if world.settings.preferred:
            world.until_preferred_leads()
        elif world.hands_over:
            world.run_until(world.time + DELAY_MS)
            world.hand_over()
            world.fill_the_leader()
            world.read_everywhere()
        if world.chance.random() < 0.25:
            world.quiet()
    except AssertionError as failure:
        store = " --store" if make_member is not ModelMember else " --lost-logs" if loses_logs else ""
        store += " --retention" if retires else ""
        failure.add_note(
            f"python -m tests.sim.raft --seed {seed}{store}   (faults: {', '.join(world.kinds)}; {world.time:.0f} ms)"
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
