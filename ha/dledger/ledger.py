"""`LedgerShell`: one member of a DLedger group. It tells the core what happened and carries out what the core asks for.

    links, storage, timer, appends   --events-->   RaftNode.step   --effects-->   storage, store, links

Events that arise while effects are carried out are queued and never nested. What the broker has appended is told
before any other event, because the core must know of it before it hears of a newer leader. Effects are carried out in
their order; nothing waits, since nothing in them depends on a write of the same step (rule 1). No line here decides
about terms or roles.

The turn. Frames are handled as they arrive. Everything that is done once for all that came together is done by
`end_turn`: one run of appends to each peer, one flush, one move of the shown end. `hurry` does the first two earlier,
for a turn that goes on.

Each of these is left to an object of its own: reads (`reads`), requests for the leader (`forwards`), the end that
consumers see (`shown`), snapshots (`snapshots`), room on the disk (`room`), configurations in the log and to be
appended (`members`). The shell tells them what has happened, in the order that the core asks for.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import crc32c
import structlog

from ha.dledger.callbacks import Callbacks
from ha.dledger.forwards import Done, Forwards
from ha.dledger.kept import KeptBytes
from ha.dledger.links.frames import config_of, to_fields
from ha.dledger.links.hello import Identity
from ha.dledger.links.link import Connection, PeerLink
from ha.dledger.links.peer_status import region_field
from ha.dledger.links.peers import Peers
from ha.dledger.members.changes import Change, target_of
from ha.dledger.members.configurations import Configurations
from ha.dledger.members.following import Following
from ha.dledger.members.overrides import refusal_to_go_alone, refusal_to_readmit, refusal_to_trust
from ha.dledger.members.records import ConfigurationRecords
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
    Append,
    Appended,
    Applied,
    Ballot,
    ChangeAsked,
    ChangeResult,
    Config,
    CutDone,
    DoubtDropped,
    Durable,
    Effects,
    Event,
    Fetched,
    Founded,
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
    link_of,
)
from ropewalk.errors import RemoteProtocolError, RopewalkError
from ropewalk.format.dledger.configuration import Configuration
from ropewalk.format.dledger.entry import configuration_in
from ropewalk.format.dledger.frame import Kind, encode_head_with

log = structlog.get_logger("ha.dledger")

FORCED_TERMS = 100
"""By how much a member that goes on alone raises its term: what others did without it must not look newer."""


def voter_key(me: MemberId, group: int) -> str:
    """Return the name under which a member notes, beside its peers, the incarnation that votes in a group again."""
    return f"{me}/{group}" if group else me


class MemberFailed(RopewalkError):
    """A member whose state is inconsistent, or whose write failed: it must stop rather than vote again."""


class LedgerShell:
    """A member of a group, with its links, its log and its core."""

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
        a member that has moved. A group that shares the links of another one has none of them: it waits for `found`
        while its log names no members, and neither votes for itself nor counts until then.

        `now_ms` is monotonic; `draw` returns random bytes that nobody can guess; `wake` has the owner call `end_turn`
        soon, in a turn of its own; `known` are the incarnations of peers that were noted before, and of this member
        itself the ones that vote although the log before was lost (`voter_key`); `readmitted` are the members let in
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
        self.configurations = Configurations(first, self._group, storage, self.peers)
        self.following = Following(self._group, self.configurations, self.peers.book, self._ask_for_change)
        self.core = RaftNode(
            me.id,
            first,
            settings,
            ballot=Ballot(*storage.ballot),
            rows=storage.rows,
            end=Point(*storage.end),
            commit=Point(*storage.commit),
            doubt=Point(*storage.doubt) if storage.doubt is not None else None,
            readmitted=self.peers.known.get(voter_key(me.id, self._group)) == me.incarnation,
            lost=lost,
            configs=self.configurations.rows,
        )
        self.me = me
        self.on_standing: Callable[[Standing], None] = lambda standing: None
        """Called when the role, the term, the leader or the leave to append has changed."""
        self.on_shown: Callable[[Point], None] = lambda point: None
        """Called when the shown end has moved; answers that wait for it may leave."""
        self.on_noted: Callable[[], None] = lambda: None
        """Called when `peers.known` or `peers.readmitted` have changed, to be noted."""
        self.on_readmitted: Callable[[], None] = lambda: None
        """Called when this member, which had lost its log, has caught up and votes again."""
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
        self._events: deque[tuple[Event, bytes | memoryview]] = deque()
        self._is_stepping = False
        self._failure: BaseException | None = None
        self._kept = KeptBytes()
        self._records = ConfigurationRecords(
            me.id, self.configurations, replica, self._drain, self._tell_appended
        )
        self._needs_flush = False
        self.snapshots = SnapshotExchange(
            self._group, self.peers, storage, now_ms, lambda: self.core.term, self._tell
        )
        self._reads = PendingReads()
        self._transfers: Callbacks[TransferResult] = Callbacks()
        self._changes: Callbacks[ChangeResult] = Callbacks()
        self._room = DiskRoom(self._group)
        self.readmitted_through = -1
        """The end of the log when the readmission of this member ended, in this life."""
        storage.on_stuck = self._stuck
        if shares is not None:
            self.peers.pin(self._group, filter(None, self.core.peers))
            self.peers.join(self._group, self, storage.segment_size)

    @property
    def commit(self) -> Point:
        """Return the commit point of the core; `shown` follows it."""
        return self.core.log.commit

    @property
    def config(self) -> Config:
        """Return the configuration in force."""
        return self.configurations.current

    @property
    def addresses(self) -> dict[MemberId, str]:
        """Return the members of the configuration in force, this one too if it is one, and their addresses."""
        return self.configurations.addresses

    def accept(self, connection: Connection) -> PeerLink:
        """Return the session of a connection to this member's port."""
        return self.peers.accept(connection)

    # -- turns and time ----------------------------------------------------------------------------------

    def end_turn(self) -> None:
        """Propose, flush and show once for all events of a turn; call it before waiting answers are completed.

        Raises `MemberFailed` once this member must not go on.
        """
        self._refuse_to_go_on()
        records, shown = self._records, self.shown
        if records.opening or records.changing:
            records.append(self._core_end)
        if self._reads.of_turn:
            self._tell(self._reads.question(self._now()))
        self._drain()
        self._flush()
        if (shown.commits or shown.target) and (moved := shown.advance(self.core.log.durable)) is not None:
            self.on_shown(moved)  # first: whoever waits for the point reads the state through it
            self._tell(Applied(moved))
        if ((records.opening or records.changing) and not records.lacks_room) or shown.target:
            self._wake()

    def hurry(self) -> None:
        """Send the appended entries to the peers and the disk now, in the middle of a turn."""
        self._drain()
        self._flush()
        self.peers.push()

    def tick(self, late: int) -> None:
        """Tell the core that time went on; `late`: how much later than it had asked for, in ms."""
        self._refuse_to_go_on()
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

    def change(self, change: Change, done: Callable[[ChangeResult], None]) -> None:
        """Change the members of the group, as its leader; `done` is told the outcome, once it is on a quorum.

        Raises `ChangeRefused` for a change that makes no sense.
        """
        config = self.config
        target = config if config.old else target_of(change, config, self.addresses)
        if change.address and change.member not in config.members:
            self.peers.book.tell(change.member, change.address)
        self._ask_for_change(target, done)

    def _ask_for_change(self, target: Config, done: Callable[[ChangeResult], None]) -> None:
        self._tell(ChangeAsked(self._changes.add(done), target, self._now()))
        self._wake()

    # -- groups that share the links ---------------------------------------------------------------------

    @property
    def founding(self) -> Config | None:
        """Return the members with which the first other group begins; None while this log has none for good."""
        index, found = self.configurations.of_store
        return config_of(found) if found is not None and index <= self.commit.index else None

    @property
    def settled(self) -> tuple[int, Configuration] | None:
        """Return the configuration to follow, and its index; None while it is joint or not committed."""
        configs = self.core.log.configs
        is_settled = 0 <= configs.index <= self.commit.index and not configs.in_force.old
        return (
            (configs.index, self.configurations.newest) if is_settled and self.configurations.newest else None
        )

    @property
    def is_founded(self) -> bool:
        """Tell whether this member knows the members of the group."""
        return self.core.config != UNKNOWN

    def found(self, base: Config) -> None:
        """Begin with these members, which every member of the group begins with: the log names none."""
        self.configurations.first = base
        self._tell(Founded(base, self._now()))

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

    def readmit(self, peer: MemberId) -> str | None:
        """Let in the next log with which a member comes; return in words why not, if it is not let in."""
        status = self.peers.status.get(peer)
        is_linked = status is not None and (status.control or status.data)
        why = refusal_to_readmit(peer, self.peers.members, is_linked, self.me.id, self.standing.leader)
        if why is not None:
            return why
        self.peers.readmit(peer)
        log.warning("a member that lost its log is let in again", peer=peer)
        return None

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
            self.me.id, self.config, self.standing.leader, linked, core.readmission.is_learner
        )
        if why is not None:
            return why
        is_idle = (
            core.log.durable == core.log.end.index and not core.log.is_cutting and not core.election.stuck
        )
        if not is_idle or core.election.saved != core.election.ballot:
            return f"{self.me.id} is writing: try again"
        log.warning("this member goes on alone", member=self.me.id, end=core.log.end.index, term=core.term)
        self._reads.refuse_all()
        peers.close()
        peers.forget()
        self.on_noted()
        self._storage.end_doubt()
        self._cuts_before += core.log.cuts
        self.core = RaftNode(
            self.me.id,
            Config((self.me.id,)),
            self._settings,
            ballot=Ballot(core.term + FORCED_TERMS),
            rows=core.log.terms.rows,
            end=core.log.end,
            commit=core.log.commit,
            readmitted=True,
        )
        return None

    # -- events in, effects out --------------------------------------------------------------------------

    def _tell(self, event: Event, data: bytes | memoryview = b"") -> None:
        if self._failure is None:
            self._events.append((event, data))
            if not self._is_stepping:
                self._drain()

    def _drain(self) -> None:
        """Tell the core everything that is queued, what was appended before all else."""
        assert not self._is_stepping, "events are queued while effects are carried out"
        self._is_stepping = True
        try:
            self._tell_appended()
            while self._events:
                event, data = self._events.popleft()
                try:
                    effects = self.core.step(event)
                except RemoteProtocolError as exc:
                    assert isinstance(event, Received), event
                    self.peers.hang_up(event.peer, event.link, str(exc))
                    continue
                self._carry_out(effects, event, data)
        except BaseException as exc:
            # The broker's shell hangs up on a peer whose bytes raise, and goes on. Here nothing may go on.
            self._failure = exc
            self._events.clear()
            raise
        finally:
            self._is_stepping = False

    def _refuse_to_go_on(self) -> None:
        if self._failure is not None:
            raise MemberFailed(
                f"{self.me.id} of group {self.me.group} must stop: {self._failure}"
            ) from self._failure

    def _core_end(self) -> tuple[int, int]:
        """Return the core's term, and the index of its last entry."""
        return self.core.term, self.core.log.end.index

    def _tell_appended(self, config: Config | None = None) -> None:
        """Tell the core the runs that were appended; with `config`, the one entry that carries it."""
        appended = self._replica.take_appended(self._settings.frame_bytes_max)
        if appended:
            assert config is None or [run[1] for run in appended] == [1], (
                "a configuration is a run of its own"
            )
            now = self._now()
            told = []
            for first, entries, term, pos, size, data in appended:
                self._kept.add(first, entries, data)
                told.append((Appended(Run(first, entries, term, pos, size, config), now), b""))
            self._events.extendleft(reversed(told))
            self._needs_flush = True

    def _carry_out(self, effects: Effects, event: Event, data: bytes | memoryview) -> None:
        storage = self._storage
        if effects.save is not None:
            storage.save(effects.save.term, effects.save.vote, partial(self._saved, effects.save))
        if effects.cut is not None:
            point = effects.cut
            storage.cut(point.index, point.term, point.pos, partial(self._tell, CutDone(point)))
            self.configurations.cut(point.index)
        for run, skip in effects.place:
            storage.place(run.first, run.count, run.term, run.pos, data, skip)
            self._needs_flush = True
            if run.config is not None:
                self.configurations.add(run.first, configuration_in(data))
        if effects.role is not None:
            self._stand(effects.role)
        if effects.open_term is not None:
            self._records.opening = effects.open_term
            self._wake()
        if effects.append_config is not None:
            self._records.changing = effects.append_config
            self._wake()
        for peer, message in effects.send:
            self._send(peer, message, event, data)
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
            log.info(
                "this member has caught up, and votes again",
                member=self.me.id, end=self.core.log.end.index, **region_field(self._group),
            )  # fmt: skip
            self.readmitted_through = self.core.log.end.index
            self.peers.known[voter_key(self.me.id, self._group)] = self.me.incarnation
            self.peers.groups[0][0].noted()
            self.on_readmitted()
        for token, result in effects.done:
            self._transfers.tell(token, result)
        for token, outcome in effects.changed:
            self._changes.tell(token, outcome)
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
            found, data = self.configurations.first_part(Run(*run), data)
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
            self._kept.clear()
            self._replica.follow()
        self.roles.note(before, standing, self._now(), self.core.log.end, self.commit)
        self.on_standing(standing)

    # -- messages ----------------------------------------------------------------------------------------

    def _send(self, peer: MemberId, message: Message, event: Event, data: bytes | memoryview) -> None:
        """Owe a peer a message; one whose link is down is lost, as on any network. HOT."""
        link = self.peers.link(peer, link_of(message))
        if link is None:
            return
        frame, flags, count, numbers = to_fields(message)
        body: bytes | memoryview = b""
        checksum = 0
        if isinstance(message, Append) and (run := message.run) is not None:
            if isinstance(event, Fetched) and event.run == run:
                body, checksum = data, crc32c.crc32c(data)
            else:
                body, checksum = self._kept.get(run.first, run.count)
            assert len(body) == run.size, (run, len(body))
        link.send(encode_head_with(frame, flags, self._group, count, numbers, len(body), checksum), body)

    # -- a disk without room ------------------------------------------------------------------------------

    def _stuck(self, stuck: bool) -> None:
        self._room.waits(self._now() if stuck else None)
        self._tell(Stuck(stuck))

    # -- people ------------------------------------------------------------------------------------------

    def status(self) -> LedgerStatus:
        """Return this member as it sees itself and the others."""
        core = self.core
        views = peer_views(self.peers, core.dispatchers, self._now())
        return LedgerStatus(
            self.me.id, self.me.group, self.standing, core.log.end, core.log.durable, self.commit, self.shown.end,
            self.roles.elections, self.roles.changes, views, core.readmission.is_learner, core.readmission.unmet,
            self._room.is_stuck, self.config.voters, self.config.old, self.config.learners,
            core.election.doubt,
        )  # fmt: skip
