"""A group whose every message and every write waits for a word: for stories that are told step by step.

Messages stand on wires, one for each direction of two members, until they are delivered, repeated or dropped. Writes
stand on the storage thread of each member until it is told to go on. Time moves only when it is said. `run` does this
with lines of text, and says what became of it: the transcripts of tests/scenarios are made so.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable

from ha.raft.node import RaftNode
from ha.raft.types import (
    Append,
    AppendAnswer,
    Appended,
    Applied,
    ChangeAsked,
    Config,
    Effects,
    Event,
    Fetched,
    Heartbeat,
    HeartbeatAnswer,
    Leaving,
    Link,
    Linked,
    MemberId,
    Message,
    Read,
    ReadAnswer,
    ReadAsked,
    Received,
    Role,
    Settings,
    SnapshotAnswer,
    SnapshotBegin,
    SnapshotChunk,
    SnapshotEnd,
    SnapshotTaken,
    Standing,
    Stuck,
    TakeLead,
    Tick,
    TransferAsked,
    Vote,
    VoteAnswer,
)
from tests.sim.raft.model_log import Entry, ModelLog, end_of


class ScriptedMember:
    """A member: its core, its log, what its storage thread has under way."""

    def __init__(self, id: MemberId) -> None:
        self.id = id
        self.core: RaftNode
        self.is_up = False
        self.pending: list[tuple[float, Callable[[], None]]] = []
        self.events: list[Event] = []
        self.log = ModelLog(random.Random(0), self.events.append, self._later)
        self.standing: Standing | None = None
        self.staged: list[Entry] = []
        """The entries through the first of a snapshot that was received."""

    def _later(self, ms: float, what: Callable[[], None]) -> None:
        self.pending.append((ms, what))


class Script:
    """See the module docstring. What happens is told in `told`."""

    def __init__(
        self,
        ids: Iterable[MemberId] = ("n0", "n1", "n2"),
        settings: Settings | None = None,
        others: Iterable[MemberId] = (),
    ) -> None:
        """`others` are there too, and are no members of the group yet."""
        self.settings = settings or Settings()
        self.config = Config(tuple(ids))
        self.members = {id: ScriptedMember(id) for id in (*self.config.voters, *others)}
        self.configs: dict[tuple[int, int], Config] = {}
        """By (index, term): the configuration that an entry carries."""
        self.now = 0
        self.told: list[str] = []
        self.wires: dict[tuple[MemberId, MemberId], list[tuple[Message, int, list[Entry]]]] = defaultdict(
            list
        )
        self.last: dict[tuple[MemberId, MemberId], tuple[Message, int, list[Entry]]] = {}
        self._payload = 0
        self._tokens = 0
        self._link = 0
        self._links: dict[frozenset[MemberId], int] = {}
        for id in self.members:
            self.start(id)

    def __getitem__(self, id: MemberId) -> RaftNode:
        return self.members[id].core

    def link_of(self, one: MemberId, other: MemberId) -> int:
        """The number of the connections of two members."""
        return self._links[frozenset((one, other))]

    # -- lives -------------------------------------------------------------------------------------------

    def start(self, id: MemberId) -> None:
        """Begin a life with what is on disk."""
        member = self.members[id]
        found = member.log.recover()
        member.is_up = True
        member.standing = None
        member.core = RaftNode(
            id,
            self.config,
            self.settings,
            ballot=found.ballot,
            rows=found.rows,
            end=found.end,
            commit=found.commit,
            doubt=found.doubt,
            configs=[
                (entry[0], self.configs[entry[:2]]) for entry in member.log.view if entry[:2] in self.configs
            ],
        )
        for peer in self.members.values():
            if peer.is_up and peer is not member:
                self.link(id, peer.id)

    def link(self, one: MemberId, other: MemberId) -> None:
        """Connect two members anew; what stands on their wires keeps the old number."""
        self._link += 1
        self._links[frozenset((one, other))] = self._link
        for here, there in ((one, other), (other, one)):
            for kind in Link:
                self.step(here, Linked(there, self._link, kind, True, self.now))

    def unlink(self, one: MemberId, other: MemberId) -> None:
        """Break both connections of two members."""
        number = self._links[frozenset((one, other))]
        for here, there in ((one, other), (other, one)):
            for kind in Link:
                if self.members[here].is_up:
                    self.step(here, Linked(there, number, kind, False, self.now))

    def crash(self, id: MemberId) -> None:
        """Cut the power: what was not synced is gone, what was on its way to the member too."""
        member, log = self.members[id], self.members[id].log
        member.is_up = False
        member.pending.clear()
        log.killed()
        log.view = [entry for entry in log.platter if entry is not None]
        log.ballot = log.ballot_on_disk
        for wire in self.wires:
            if wire[1] == id:
                self.wires[wire].clear()

    # -- steps -------------------------------------------------------------------------------------------

    def step(self, id: MemberId, event: Event, entries: list[Entry] | None = None) -> Effects:
        """Hand one event to a member and carry out what it asks for."""
        member = self.members[id]
        assert member.is_up, f"{id} is down"
        effects = member.core.step(event)
        self._carry_out(member, effects, entries or [])
        return effects

    def _carry_out(self, member: ScriptedMember, effects: Effects, entries: list[Entry]) -> None:
        log = member.log
        if effects.save is not None:
            self.tell(f"{member.id} saves term {effects.save.term} vote {effects.save.vote or '-'}")
            log.save(effects.save)
        if effects.cut is not None:
            self.tell(f"{member.id} cuts behind {effects.cut.index}")
            log.cut(effects.cut)
        for run, skip in effects.place:
            shown = f" without {skip} bytes" if skip else ""
            self.tell(f"{member.id} places {_range(run.first, run.last)} of term {run.term}{shown}")
            log.place(run, entries, skip)
        if effects.config is not None:
            self.tell(f"{member.id} counts by {shown_config(effects.config)}")
        if effects.role is not None:
            member.standing = effects.role
            shown = " may append" if effects.role.may_append else ""
            self.tell(f"{member.id} is {effects.role.role.value} in term {effects.role.term}{shown}")
        for peer, message in effects.send:
            carried: list[Entry] = []
            if isinstance(message, Append) and message.run is not None:
                carried = log.ordered()[message.run.first : message.run.last + 1]
            self._send(member, peer, message, carried)
        for peer in effects.snapshot_to:
            begin = SnapshotBegin(member.core.term, end_of(log.view[log.first]), 1)
            self._send(member, peer, begin, log.view[: log.first + 1])
        if effects.snapshot is not None:
            sender, message = effects.snapshot
            assert isinstance(message, SnapshotBegin), message
            member.staged = entries
            self.step(member.id, SnapshotTaken(sender, message.term, message.point))
        if effects.install is not None:
            self.tell(f"{member.id} installs the snapshot, and begins anew behind {effects.install.index}")
            member.pending.clear()
            log.install(member.staged)
            self.start(member.id)
        if effects.commit is not None:
            self.tell(f"{member.id} commits through {effects.commit.index}")
        for token, ok in effects.reads:
            self.tell(f"{member.id} {'serves' if ok else 'refuses'} read {token}")
        for _token, outcome in effects.changed:
            self.tell(f"{member.id} ends the change: {outcome.name}")
        for _token, result in effects.done:
            self.tell(f"{member.id} ends the transfer: {result.name}")
        if effects.doubt_over:
            self.tell(f"{member.id} is in doubt no longer")
            log.doubt = None
        if (config := effects.open_term or effects.append_config) is not None:
            self.append(member.id, 1, config)
        for peer, index, size in effects.fetch:
            prev, read = log.read(index, size, member.core.log.configs)
            self.step(member.id, Fetched(peer, prev, read, self.now))
        if effects.commit is not None:
            self.step(member.id, Applied(effects.commit))

    def _send(self, member: ScriptedMember, peer: MemberId, message: Message, carried: list[Entry]) -> None:
        self.wires[member.id, peer].append((message, self._links[frozenset((member.id, peer))], carried))
        self.tell(f"{member.id} -> {peer} {shown_message(message)}")

    def retire(self, id: MemberId, index: int) -> None:
        """Have retention remove what a member has before an index, all of which is committed."""
        log, core = self.members[id].log, self[id]
        log.written = core.log.commit
        log.retire(index)

    def tell(self, line: str) -> None:
        self.told.append(f"  {line}")

    def wait(self, ms: int) -> None:
        """Let time pass for all."""
        self.now += ms

    def tick(self, id: MemberId, draw: float = 0.0, late: int = 0) -> Effects:
        """Let a member see what time it is."""
        return self.step(id, Tick(self.now, late, draw))

    def append(self, id: MemberId, count: int, config: Config | None = None) -> None:
        """Have a leader append one run of so many entries, or the one that carries a configuration."""
        member = self.members[id]
        payloads = range(self._payload, self._payload + count)
        self._payload += count
        run = member.log.append(member.core.term, [payload % 7 for payload in payloads], config)
        shown = ""
        if config is not None:
            self.configs[run.first, run.term] = config
            shown = f": {shown_config(config)}" if config != member.core.config else ""
        self.tell(f"{id} appends {_range(run.first, run.last)} of term {run.term}{shown}")
        self.step(id, Appended(run, self.now))

    def deliver(self, sender: MemberId, peer: MemberId, count: int = 1 << 30) -> None:
        """Deliver what stands on a wire, oldest first."""
        wire = self.wires[sender, peer]
        for _ in range(min(count, len(wire))):
            self._hand_over(sender, peer, wire.pop(0))

    def _hand_over(self, sender: MemberId, peer: MemberId, parcel: tuple[Message, int, list[Entry]]) -> None:
        self.last[sender, peer] = parcel
        message, number, entries = parcel
        self.step(peer, Received(sender, number, message, self.now), entries)

    def repeat(self, sender: MemberId, peer: MemberId) -> None:
        """Deliver once more what was delivered last."""
        self._hand_over(sender, peer, self.last[sender, peer])

    def drop(self, sender: MemberId, peer: MemberId) -> None:
        """Lose what stands on a wire."""
        self.wires[sender, peer].clear()

    def sync(self, id: MemberId, count: int = 1 << 30) -> None:
        """Let the storage thread finish so many pieces of work."""
        member = self.members[id]
        while member.pending and count:
            member.pending.sort(key=lambda each: each[0])
            member.pending.pop(0)[1]()
            events = list(member.events)
            member.events.clear()
            for event in events:
                count -= 1
                self.step(id, event)

    def settle(self, *ids: MemberId) -> None:
        """Deliver and write, among these members or all, until nothing is left to do."""
        chosen = [id for id in (ids or self.members) if self.members[id].is_up]
        while True:
            for id in chosen:
                self.sync(id)
            wires = [wire for wire in self.wires if self.wires[wire] and set(wire) <= set(chosen)]
            if not wires and not any(self.members[id].pending for id in chosen):
                return
            for wire in sorted(wires):
                self.deliver(*wire)

    def elect(self, id: MemberId, *ids: MemberId) -> None:
        """Have a member campaign and win, with the votes of these members."""
        for _ in range(2):  # the first chance may be one that was drawn a moment ago
            self.wait(1000)
            self.tick(id)
        self.settle(*(ids or self.members))
        assert self[id].role is Role.LEADER, self.told[-20:]

    def terms(self, id: MemberId) -> list[int]:
        """The terms of a member's log, entry by entry."""
        return [entry[1] for entry in self.members[id].log.ordered()]

    # -- lines of text -----------------------------------------------------------------------------------

    def run(self, line: str) -> list[str]:
        """Do what a line says, and return what became of it."""
        self.told = []
        word, *rest = line.split()
        match word:
            case "wait":
                self.wait(int(rest[0]))
            case "tick":
                draw = float(rest[1]) if len(rest) > 1 else 0.0
                self.tick(rest[0], draw, int(rest[2]) if len(rest) > 2 else 0)
            case "deliver" | "drop" | "repeat" | "link" | "unlink":
                getattr(self, word)(*rest[:2], *map(int, rest[2:]))
            case "sync":
                self.sync(rest[0], *map(int, rest[1:]))
            case "append":
                self.append(rest[0], int(rest[1]))
            case "lead":
                self.elect(*rest)
                self.told = [line for line in self.told if " is LEADER" in line or " commits " in line]
            case "settle":
                self.settle(*rest)
            case "retire":
                self.retire(rest[0], int(rest[1]))
            case "full" | "empty":
                self.members[rest[0]].log.set_full(word == "full")
                self.step(rest[0], Stuck(word == "full"))
            case "transfer":
                self._tokens += 1
                target = rest[1] if len(rest) > 1 else ""
                self.step(rest[0], TransferAsked(self._tokens, target, self.now))
            case "read":
                self._tokens += 1
                self.step(rest[0], ReadAsked(self._tokens, self.now))
            case "change":
                self._tokens += 1
                voters, learners = (tuple(each.split(",")) for each in (*rest[1:], "")[:2])
                wanted = Config(voters, (), learners if learners != ("",) else ())
                self.step(rest[0], ChangeAsked(self._tokens, wanted, self.now))
            case "leave":
                self.step(rest[0], Leaving())
            case "crash":
                self.crash(rest[0])
            case "start":
                self.start(rest[0])
            case "damage":
                self.members[rest[0]].log.damage(int(rest[1]))
            case "log":
                for id in rest or self.members:
                    core = self[id]
                    state = "" if self.members[id].is_up else " (down)"
                    terms = " ".join(map(str, self.terms(id)))
                    self.tell(
                        f"{id}: [{terms}] durable {core.log.durable} commit {core.log.commit.index}"
                        f" {core.role.value} {core.term}{state}"
                    )
            case _:
                raise ValueError(f"no story knows the word {word!r}: {line}")
        return self.told


def shown_config(config: Config) -> str:
    """A configuration in few words."""
    old = f"{'+'.join(config.old)} and " if config.old else ""
    return old + "+".join(config.voters) + (f", {'+'.join(config.learners)} learn" if config.learners else "")


def shown_message(message: Message) -> str:
    """A message in few words."""
    match message:
        case Append(term, prev, run, commit):
            what = f"{_range(run.first, run.last)} of term {run.term}" if run is not None else "nothing"
            return f"Append[{term}] {what} behind {prev.index}/{prev.term}, commit {commit}"
        case AppendAnswer(term, ok, prev_index, durable, last, hint):
            if ok:
                return f"AppendAnswer[{term}] durable {durable} of {last}"
            return f"AppendAnswer[{term}] refused behind {prev_index}, hint {last}/{hint}"
        case Heartbeat(term, commit, number):
            return f"Heartbeat[{term}] round {number}, commit {commit}"
        case HeartbeatAnswer(term, number, last, durable, able):
            unable = "" if able else ", unable to lead"
            return f"HeartbeatAnswer[{term}] round {number}, durable {durable} of {last}{unable}"
        case Vote(term, last_index, last_term, pre, transfer):
            name = "PreVote" if pre else "TransferVote" if transfer else "Vote"
            return f"{name}[{term}] last {last_index}/{last_term}"
        case VoteAnswer(term, pre, result):
            return f"{'PreVoteAnswer' if pre else 'VoteAnswer'}[{term}] {result.name}"
        case TakeLead(term):
            return f"TakeLead[{term}]"
        case Read(term, number):
            return f"Read[{term}] question {number}"
        case ReadAnswer(term, number, index):
            return f"ReadAnswer[{term}] question {number}: {index if index >= 0 else 'not yet'}"
        case SnapshotBegin(term, point, size):
            return f"SnapshotBegin[{term}] from {point.index}/{point.term} on, {size} bytes"
        case SnapshotChunk(term, index, offset):
            return f"SnapshotChunk[{term}] of {index} at {offset}"
        case SnapshotEnd(term, index, size, _checksum):
            return f"SnapshotEnd[{term}] of {index}, {size} bytes"
        case SnapshotAnswer(term, index, received):
            return f"SnapshotAnswer[{term}] of {index}: {received if received >= 0 else 'not needed'}"


def _range(first: int, last: int) -> str:
    return f"{first}" if first == last else f"{first}-{last}"
