"""`LedgerShell`: one member of a DLedger group. It tells the core what happened and carries out what the core asks for.

    links, storage, timer, appends   --events-->   RaftNode.step   --effects-->   storage, store, links

Effects are carried out in their order; nothing waits, since nothing in them depends on a write of the same step (rule
1). No line here decides about terms or roles.

The turn. Frames are handled as they arrive. Everything that is done once for all that came together is done by
`end_turn`: one run of appends to each peer, one flush, one move of the shown end. `hurry` does the first two earlier,
for a turn that goes on.

Each of these is left to an object of its own: the order of events (`events`), messages with the bytes of their runs
(`outbox`), reads (`reads`), requests for the leader (`forwards`), the end that consumers see (`shown`), snapshots
(`snapshots`), room on the disk (`room`), the members of the group and configurations to be appended (`members`). The
shell tells them what has happened, in the order that the core asks for.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import structlog

from ha.dledger.callbacks import Callbacks
from ha.dledger.events import EventQueue
from ha.dledger.forwards import Done, Forwards
from ha.dledger.links.hello import Identity
from ha.dledger.links.link import PeerLink
from ha.dledger.links.peer_status import region_field
from ha.dledger.links.peers import Peers
from ha.dledger.members.group_members import GroupMembers
from ha.dledger.members.overrides import core_alone, is_writing, refusal_to_go_alone, refusal_to_trust
from ha.dledger.members.readmission import Readmission
from ha.dledger.members.records import ConfigurationRecords
from ha.dledger.outbox import Outbox
from ha.dledger.reads import PendingReads
from ha.dledger.roles import RoleHistory
from ha.dledger.room import DiskRoom
from ha.dledger.shown import ShownLog
from ha.dledger.snapshots import SnapshotExchange
from ha.dledger.status import LedgerStatus, peer_views
from ha.dledger.storage import LogPoint, LogRun, LogStorage, ReplicaStore
from ha.raft.node import RaftNode
from ha.raft.types import (
    UNKNOWN,
    Appended,
    Applied,
    Ballot,
    Config,
    CutDone,
    DoubtDropped,
    Durable,
    Effects,
    Event,
    Fetched,
    Leaving,
    Link,
    Linked,
    MemberId,
    Message,
    Met,
    Point,
    Received,
    Role,
    Run,
    Saved,
    Settings,
    Standing,
    Stuck,
    Tick,
    TransferAsked,
    TransferResult,
)
from ropewalk.format.dledger.entry import configuration_in
from ropewalk.format.dledger.frame import Kind

log = structlog.get_logger("ha.dledger")


class LedgerShell:
    """A member of a group, with its links, its log and its core."""

    core: RaftNode

    def __init__(
        self,
        me: Identity,
        addresses: Mapping[MemberId, tuple[str, int]],
        storage: LogStorage,
        replica: ReplicaStore,
        settings: Settings,
        now_ms: Callable[[], int],
        rng: random.Random,
        *,
        draw: Callable[[int], bytes],
        wake: Callable[[], None],
        known: Mapping[MemberId, bytes] | None = None,
        readmitted: Iterable[MemberId] = (),
        shares: tuple[Peers, int] | None = None,
        lost: bool = False,
    ) -> None:
        """Begin with an opened log. `addresses` are those in `dLegerPeers`, the own one included.

        They are the group's members while the log names none; with a configuration in the log they only help to find
        a member that has moved. A group that shares the links of another one has none of them: while its log names no
        members it waits for `members.found`, and neither votes for itself nor counts until then.

        `now_ms` is monotonic; `draw` returns random bytes that nobody can guess; `wake` has the owner call `end_turn`
        soon, in a turn of its own; `known` are the incarnations of peers that were noted before, and of this member
        itself the ones that vote although the log before was lost (`Readmission`); `readmitted` are the members let in
        again. `shares`: the links of another group of the same members, which looks after them, and the number of this
        group on them. `lost`: the log before was damaged and its ballot is here, so this member learns before it votes.
        """
        self._group = 0
        self._storage = storage
        self._replica = replica
        if shares is not None:
            self.peers, self._group = shares
        else:
            told = {id: f"{host}:{port}" for id, (host, port) in addresses.items()}
            self.peers = Peers(me, told, known or {}, readmitted, self, now_ms, draw)
        first = Config(tuple(sorted(addresses))) if addresses else UNKNOWN
        self._events = EventQueue(self, self.peers)
        self._tell = self._events.tell
        self.members = GroupMembers(
            first, self._group, storage, self.peers, lambda: self.core, self._tell, now_ms, wake
        )
        self.readmission = Readmission(self.peers, self._group)
        configurations = self.members.configurations
        self.core = RaftNode(
            me.id,
            first,
            settings,
            ballot=Ballot(*storage.ballot),
            rows=storage.rows,
            end=Point(*storage.end),
            commit=Point(*storage.commit),
            doubt=Point(*storage.doubt) if storage.doubt is not None else None,
            readmitted=self.readmission.is_noted,
            lost=lost,
            configs=configurations.rows,
        )
        self.me = me
        self.on_standing: Callable[[Standing], None] = lambda standing: None
        """Called when the role, the term, the leader or the leave to append has changed."""
        self.on_shown: Callable[[Point], None] = lambda point: None
        """Called when the shown end has moved; answers that wait for it may leave."""
        self.on_noted: Callable[[], None] = lambda: None
        """Called when `peers.known` or `peers.readmitted` have changed, to be noted."""
        self.on_replaced: Callable[[], None] = lambda: None
        """Called when a snapshot is to replace the log: the store has to be closed and opened again."""
        self.shown = ShownLog(storage, replica)
        self.forwards = Forwards(self._group, now_ms)
        self.standing = Standing(Role.CANDIDATE, self.core.term, None, False, "started")
        self.roles = RoleHistory(self._group, now_ms())
        self._settings = settings
        self._cuts_before = 0
        """Cuts that the storage made before this core began to count them."""
        self._now = now_ms
        self._rng = rng
        self._wake = wake
        self._outbox = Outbox(self._group, self.peers)
        self._records = ConfigurationRecords(
            me.id, configurations, replica, self._events.drain, self.tell_appended
        )
        self._needs_flush = False
        self.snapshots = SnapshotExchange(
            self._group, self.peers, storage, now_ms, lambda: self.core.term, self._tell
        )
        self._reads = PendingReads()
        self._transfers: Callbacks[TransferResult] = Callbacks()
        self._room = DiskRoom(self._group)
        storage.on_stuck = self._stuck
        if shares is not None:
            self.peers.pin(self._group, filter(None, self.core.peers))
            self.peers.join(self._group, self, storage.segment_size)

    # -- turns and time ----------------------------------------------------------------------------------

    def end_turn(self) -> None:
        """Propose, flush and show once for all events of a turn; call it before waiting answers are completed.

        Raises `MemberFailed` once this member must not go on.
        """
        self._events.refuse_to_go_on()
        records, shown = self._records, self.shown
        if records.opening or records.changing:
            records.append(self._core_end)
        if self._reads.of_turn:
            self._tell(self._reads.question(self._now()))
        self._events.drain()
        self._flush()
        if (shown.commits or shown.target) and (moved := shown.advance(self.core.log.durable)) is not None:
            self.on_shown(moved)  # first: whoever waits for the point reads the state through it
            self._tell(Applied(moved))
        if ((records.opening or records.changing) and not records.lacks_room) or shown.target:
            self._wake()

    def hurry(self) -> None:
        """Send the appended entries to the peers and the disk now, in the middle of a turn."""
        self._events.drain()
        self._flush()
        self.peers.push()

    def tick(self, late: int) -> None:
        """Tell the core that time went on; `late`: how much later than it had asked for, in ms."""
        self._events.refuse_to_go_on()
        now = self._now()
        if not self._group:
            self.peers.tick(now, late)
        else:
            self.peers.pin(self._group, filter(None, self.core.peers))
        self._room.tick(now, self.standing.role, self.core.log.end.index)
        self._tell(Tick(now, late, self._rng.random()))
        self.forwards.tick(now)
        self.snapshots.tick()
        records = self._records
        if (
            self.shown.commits or self._needs_flush or records.opening or records.changing
        ):  # outside of any turn
            self._wake()

    def transfer(self, target: MemberId, done: Callable[[TransferResult], None]) -> None:
        """Hand the lead over to a member, or to the one that lacks least (""); `done` is told the outcome.

        That is at once where this member may not, and after one election timeout at the latest.
        """
        self._tell(TransferAsked(self._transfers.add(done), target, self._now()))
        self._wake()

    def read(self, done: Callable[[bool], None]) -> None:
        """Have `done(True)` called when the shown state may be read as the newest there is; it must read at once.

        `done(False)` comes after two seconds without a leader that could say so.
        """
        self._reads.of_turn.append(done)
        self._wake()

    def forward(self, request: bytes, done: Done) -> bool:
        """Have the leader handle a request, and tell `done` its answer; return False where none can be reached."""
        leader = self.standing.leader
        link = self.peers.link(leader, Link.CONTROL) if leader is not None else None
        if link is None:
            return False
        self.forwards.send(link, request, done)
        return True

    def leave(self) -> None:
        """Neither campaign nor take the lead over any more: this member is about to stop."""
        self._tell(Leaving())

    def close(self) -> None:
        """End all links, unless they are another group's."""
        if not self._group:
            self.peers.close()

    # -- news of the links -------------------------------------------------------------------------------

    def linked(self, peer: MemberId, number: int, kind: Link, up: bool) -> None:
        """Tell the core of a link that came up or ended."""
        self._tell(Linked(peer, number, kind, up, self._now()))

    def received(self, peer: MemberId, number: int, message: Message, body: bytes | memoryview) -> None:
        """Tell the core of a message; `body` are the entries of an Append. HOT."""
        self._tell(Received(peer, number, message, self._now()), body)

    def forwarded(self, link: PeerLink, kind: Kind, number: int, body: bytes) -> None:
        """Have a forwarded request handled, or take the answer to one."""
        self.forwards.received(link, kind, number, body)

    @property
    def term(self) -> int:
        """Return the term that this member is in."""
        return self.core.term

    @property
    def is_empty(self) -> bool:
        """Tell whether the log of this member has no entry."""
        end: Point = self.core.log.end
        return end.index < 0

    def met(self, peer: MemberId, term: int, lost: bool) -> None:
        """Tell the core the term of a peer, and whether it knows that this member had lost its log."""
        self._tell(Met(peer, term, lost))

    def noted(self) -> None:
        """Have the incarnations of the peers written down."""
        self.on_noted()

    def trust(self) -> str | None:
        """Count this log as it is, although its end is in doubt; return in words why not, where that is not to be."""
        me, doubt = self.me.id, self.core.election.doubt
        leaderless_ms = self.roles.leaderless_ms(self._now())
        why = refusal_to_trust(me, doubt is not None, self.standing.leader, leaderless_ms)
        if why is not None:
            return why
        assert doubt is not None
        log.warning("a log in doubt is trusted", member=me, end=self.core.log.end.index, doubt=doubt.index)
        self._tell(DoubtDropped())
        self._wake()
        return None

    def force(self) -> str | None:
        """Go on alone, with a configuration of this member only; return in words why not, where that is not to be.

        What others confirmed behind the end of this log is lost. It begins with a new core, whose election writes the
        configuration down: a member that dies before is what it was.
        """
        core, peers = self.core, self.peers
        linked = [peer for peer in peers.members if peers.link(peer, Link.CONTROL) is not None]
        why = refusal_to_go_alone(
            self.me.id, self.members.config, self.standing.leader, linked, core.readmission.is_learner
        )
        if why is not None:
            return why
        if is_writing(core):
            return f"{self.me.id} is writing: try again"
        log.warning("this member goes on alone", member=self.me.id, end=core.log.end.index, term=core.term)
        self._reads.refuse_all()
        peers.close()
        peers.forget()
        self.on_noted()
        self._storage.end_doubt()
        self._cuts_before += core.log.cuts
        self.core = core_alone(core, self.me.id, self._settings)
        return None

    # -- events in, effects out --------------------------------------------------------------------------

    def _core_end(self) -> tuple[int, int]:
        """Return the core's term, and the index of its last entry."""
        return self.core.term, self.core.log.end.index

    def tell_appended(self, config: Config | None = None) -> None:
        """Tell the core the runs that were appended; with `config`, the one entry that carries it."""
        appended = self._replica.take_appended(self._settings.frame_bytes_max)
        if appended:
            assert config is None or [run[1] for run in appended] == [1], (
                "a configuration is a run of its own"
            )
            now = self._now()
            told = []
            for first, entries, term, pos, size, data in appended:
                self._outbox.kept.add(first, entries, data)
                told.append(Appended(Run(first, entries, term, pos, size, config), now))
            self._events.put_first(told)
            self._needs_flush = True

    def carry_out(self, effects: Effects, event: Event, data: bytes | memoryview) -> None:
        """Carry out the effects of an event, which came with `data`. HOT."""
        storage = self._storage
        if effects.save is not None:
            storage.save(effects.save.term, effects.save.vote, partial(self._saved, effects.save))
        if effects.cut is not None:
            point = effects.cut
            storage.cut(point.index, point.term, point.pos, partial(self._tell, CutDone(point)))
            self.members.configurations.cut(point.index)
        for run, skip in effects.place:
            storage.place(run.first, run.count, run.term, run.pos, data, skip)
            self._needs_flush = True
            if run.config is not None:
                self.members.configurations.add(run.first, configuration_in(data))
        if effects.role is not None:
            self._stand(effects.role)
        if effects.open_term is not None:
            self._records.opening = effects.open_term
            self._wake()
        if effects.append_config is not None:
            self._records.changing = effects.append_config
            self._wake()
        for peer, message in effects.send:
            self._outbox.send(peer, message, event, data)
        for peer, index, size in effects.fetch:
            storage.read(index, size, partial(self._fetched, peer, index))
        for peer in effects.snapshot_to:
            self.snapshots.begin(peer)
        if effects.snapshot is not None:
            self.snapshots.received(*effects.snapshot, data)
        if effects.install is not None:
            storage.install_staged(self._replaced)
        if effects.commit is not None:
            self.shown.commits.append(effects.commit)
        if effects.doubt_over:
            storage.end_doubt()
        if effects.readmitted:
            self.readmission.ended(self.core.log.end.index)
        for token, result in effects.done:
            self._transfers.tell(token, result)
        for token, outcome in effects.changed:
            self.members.changes.tell(token, outcome)
        for token, ok in effects.reads:
            self._reads.answered(token, ok)

    def _saved(self, ballot: Ballot) -> None:
        self._tell(Saved(ballot))

    def _flush(self) -> None:
        if self._needs_flush:
            self._needs_flush = False
            self._storage.flush(self._flushed)

    def _flushed(self, point: LogPoint, cuts: int) -> None:
        if cuts >= self._cuts_before:
            self._tell(Durable(Point(*point), cuts - self._cuts_before))

    def _fetched(
        self, peer: MemberId, index: int, prev: LogPoint, run: LogRun | None, data: bytes | memoryview
    ) -> None:
        if run is None:
            self._tell(Fetched(peer, Point(index - 1, -1, 0), None, self._now()))
        else:
            found, data = self.members.configurations.first_part(Run(*run), data)
            self._tell(Fetched(peer, Point(*prev), found, self._now()), data)

    def _replaced(self) -> None:
        log.warning(
            "a snapshot replaces the log of this member",
            end=self.core.log.end.index, **region_field(self._group),
        )  # fmt: skip
        self.on_replaced()

    # -- roles -------------------------------------------------------------------------------------------

    def _stand(self, standing: Standing) -> None:
        before, self.standing = self.standing, standing
        if before.role is Role.LEADER and (standing.role is not Role.LEADER or standing.term != before.term):
            self._records.forget()
            self._outbox.kept.clear()
            self._replica.follow()
        self.roles.note(before, standing, self._now(), self.core.log.end, self.core.log.commit)
        self.on_standing(standing)

    # -- a disk without room ------------------------------------------------------------------------------

    def _stuck(self, stuck: bool) -> None:
        self._room.waits(self._now() if stuck else None)
        self._tell(Stuck(stuck))

    # -- people ------------------------------------------------------------------------------------------

    def status(self) -> LedgerStatus:
        """Return this member as it sees itself and the others."""
        core, config = self.core, self.members.config
        views = peer_views(self.peers, core.dispatchers, self._now())
        return LedgerStatus(
            self.me.id, self.me.group, self.standing, core.log.end, core.log.durable, core.log.commit, self.shown.end,
            self.roles.elections, self.roles.changes, views, core.readmission.is_learner, core.readmission.unmet,
            self._room.is_stuck, config.voters, config.old, config.learners,
            core.election.doubt,
        )  # fmt: skip
