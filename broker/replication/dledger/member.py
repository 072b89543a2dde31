"""`LedgerMember`: a member of a DLedger group, as the broker sees it.

`LedgerShell` elects, replicates and commits; here its standing becomes the broker's role. The order of a change:

    to leader      it is elected; its term's first entry is committed and applied; version and tables carry the term;
                   then messages are taken, and id 0 is claimed at the name servers
    to follower    messages are refused; what waits fails with 1; deliveries go back to what is committed; then the
                   follower's id is claimed

A leader that was elected and has not opened its term yet is a follower to clients. Refusals: 14 where another member is
the one to ask, or none yet (official producers try the next broker); 2 where the leader waits for its followers; 1
where nobody can tell whether the message is stored. SEND_OK is given for what a quorum has on its disks, this broker
among it: `confirmed` is the end of what is shown.

What producers are told stands in `words`, how the newest state is read at any member in `reads`.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

import structlog
import trio

import ropewalk
from broker.context import BrokerContext
from broker.kv.regions import KvRegions
from broker.remoting.connection import Connection
from broker.remoting.shell import Shell
from broker.replication.block_repair import BlockRepair
from broker.replication.dledger.blocks import BlockGiver, LedgerBlocks
from broker.replication.dledger.impaired import ImpairedMember
from broker.replication.dledger.peer_notes import PeerNotes
from broker.replication.dledger.reads import GroupReads
from broker.replication.dledger.state import LedgerState
from broker.replication.dledger.table_snapshots import TableSnapshots
from broker.replication.dledger.words import leader_refusal, membership_notes, place_of, ready_words
from broker.replication.group_member import LogReplaced, ReadyWords, Turns
from broker.settings.dledger import peers_of
from broker.state.ha_status import GroupLimits, HaStatus
from ha.dledger import tasks
from ha.dledger.ledger import LedgerShell
from ha.dledger.links.hello import Identity
from ha.dledger.links.link import PeerLink
from ha.dledger.members.changes import Change, ChangeKind, ChangeRefused, target_of
from ha.dledger.members.overrides import REGIONS_STAY, readmit
from ha.dledger.status import LedgerStatus
from ha.dledger.storage import LogPoint, LogStorage, ReplicaStore
from ha.raft.types import ChangeResult, MemberId, Role, Settings, Standing, TransferResult
from ropewalk.codes import ResponseCode
from store.io.workers import Worker
from store.log.commitlog import StoreDamaged

__all__ = ["LedgerMember"]

log = structlog.get_logger("broker.dledger")

QUORUM_MS: Final = 2_500
"""How long a producer waits for a quorum; less than the 3 s after which the official clients give up."""
_HAND_OVER_S: Final = 2.0
"""How long a stop waits for a handover, whose own time is one election timeout."""
_NOTHING: Final = (-1, -1, 0)
_LATE: Final = (
    ResponseCode.SYSTEM_ERROR,
    "QUORUM_LATE: most members did not have the message on disk in time; it is unknown whether it will be kept",
)


class LedgerMember:
    """A `GroupMember` whose role is decided by elections."""

    ledger: LedgerShell

    def __init__(
        self,
        context: BrokerContext,
        wake: Callable[[], None],
        storage: Callable[[], tuple[LogStorage, ReplicaStore]],
        take_back_deliveries: Callable[[], None],
        follow_delays: Callable[[dict[int, int]], None],
    ) -> None:
        """`storage` returns log and store once these are open; `wake` has the loop run a turn soon.

        `take_back_deliveries` has delayed messages count as delivered whose copies are committed, and no others;
        `follow_delays` has a follower keep how far its leader has delivered for good.
        """
        config = context.config
        self.me: MemberId = config.d_leger_self_id
        self._settings = {peer.member: (peer.host, peer.port) for peer in peers_of(config.d_leger_peers)}
        """The addresses in `dLegerPeers`: the group while the log names none, and where to look for it."""
        self.on_role: Callable[[], None] = lambda: None
        self.on_identity: Callable[[], None] = lambda: None
        self.probe_member: Callable[[MemberId, str, Callable[[str | None], None]], None] | None = None
        """Probe an address for a new member; None while this member is not linked to a network."""
        self.on_abandoned: Callable[[], None] = lambda: None
        self.master_address = ""
        """The leader's remoting address, as name servers tell it."""
        self._context = context
        self._wake = wake
        self._storage = storage
        self._take_back_deliveries = take_back_deliveries
        notes = config.store_path_root_dir / "ropewalk" / "dledger"
        self.state = LedgerState(context, follow_delays, TableSnapshots(notes, context.disk))
        self.reads = GroupReads(self.me, context, self.state, lambda: self._place(self.ledger.standing))
        self.limits = GroupLimits(
            waits=True,
            patience_ms=QUORUM_MS,
            refused=(ResponseCode.SERVICE_NOT_AVAILABLE, "the broker is starting"),
        )
        """Written with each standing: it counts from the moment in which it is heard."""
        self._term = -1
        self._notes = PeerNotes(notes, context.disk)
        self.replaced = trio.Event()
        """Set when the store has to be opened again, with a snapshot in place of its log."""
        self.kv: KvRegions | None = None
        """The regions of the key-value store, if it is served here."""
        if config.ropewalk_kv_regions != "0":
            self.kv = KvRegions(context, wake, self.replaced.set)
        self._worker: Worker | None = None
        self._impaired: ImpairedMember | None = None
        """The links while this member's log is mended, before it is opened."""
        context.acks.late = _LATE

    @property
    def quorum(self) -> int:
        """Return how many members make a majority."""
        return len(self.ledger.members.config.voters) // 2 + 1

    # -- identity ------------------------------------------------------------------------------------

    @property
    def role(self) -> str:
        return self.ledger.standing.role.value

    @property
    def is_leader(self) -> bool:
        return self.limits.is_leader

    @property
    def broker_id(self) -> int:
        return 0 if self.limits.is_leader else int(self.me[1:]) + 1

    @property
    def epoch(self) -> int:
        return max(self.ledger.standing.term, 0)

    @property
    def ha_address(self) -> str:
        host, port = self._settings[self.me]
        return f"{host}:{port}"

    @property
    def has_replicas(self) -> bool:
        return True

    # -- what name servers say -----------------------------------------------------------------------

    @property
    def seeks_master(self) -> bool:
        return not self.limits.is_leader and not self.master_address

    @property
    def seeks_slaves(self) -> bool:
        return False

    def set_master(self, ha_address: str, master_address: str) -> None:
        own = ":".join(map(str, self._context.address))
        self.master_address = "" if master_address == own else master_address
        if not self.limits.is_leader and self._worker is not None:
            self.limits.refused = self._refusal(self.ledger.standing)

    def set_registered(self, slaves: Mapping[str, int]) -> None:
        """Ignore the numbers of slaves: a quorum counts members that are named, wherever they connect from."""

    # -- limits of a turn ----------------------------------------------------------------------------

    @property
    def covers_flush(self) -> bool:
        return True

    @property
    def confirmed(self) -> int:
        return self.ledger.shown.end.pos if self.limits.is_leader else -1

    def peer_awaited(self, answers_wait: bool, sync_flush: bool) -> bool:
        """Return False: every answer waits for this disk too, whose thread a spinning loop would hold up."""
        return False

    # -- roles ---------------------------------------------------------------------------------------

    def _stand(self, standing: Standing) -> None:
        """Take a standing over: what must stop stops at once, in the middle of a turn too."""
        opened = standing.role is Role.LEADER and (standing.may_append or self.limits.is_leader)
        if self.limits.is_leader and not (opened and standing.term == self._term):
            self._step_down(standing)
            opened = standing.role is Role.LEADER and standing.may_append
        if standing.leader != self.me and standing.term != self._term:
            self.master_address = ""
        self._term = standing.term
        if opened and not self.limits.is_leader:
            self._lead(standing)
        self._limit(standing)

    def _limit(self, standing: Standing) -> None:
        limits = self.limits
        limits.refused = self._refusal(standing)
        limits.has_master = not limits.is_leader and standing.leader is not None

    def _lead(self, standing: Standing) -> None:
        context, now = self._context, self._context.now_ms()
        self.limits.is_leader = self.reads.leads = True
        self.limits.refused, self.limits.has_master = None, False
        log.info("this broker leads", term=standing.term, member=self.me)
        self.state.lead()
        self.reads.log_kept()
        context.topics.set_state_version(standing.term, now)
        context.groups.set_state_version(standing.term, now)
        context.delays.load(context.delays.offsets())
        context.timers.lead()
        self.on_role()
        self.on_identity()

    def _step_down(self, standing: Standing) -> None:
        context = self._context
        self.limits.is_leader = self.reads.leads = False
        self._limit(standing)
        log.info("this broker leads no more", term=standing.term, member=self.me, why=standing.why)
        context.acks.fail(
            ResponseCode.SYSTEM_ERROR,
            f"TERM_CHANGED: {self.me} does not lead any more ({standing.why}); it is unknown whether the message will "
            "be kept",
        )
        self._take_back_deliveries()
        self.reads.keep_unlogged()
        self.state.follow()
        self.reads.refuse_unlogged()
        self.on_role()
        self.on_identity()

    def _refusal(self, standing: Standing) -> tuple[int, str] | None:
        """Return the answer to a send under this standing, or None where it is taken."""
        if self.limits.is_leader:
            return leader_refusal(self.me, standing)
        return (
            ResponseCode.SERVICE_NOT_AVAILABLE,
            f"[REJECTREQUEST]{self._place(standing)}: nothing was stored",
        )

    def _place(self, standing: Standing) -> str:
        """Return in words why a member with this standing is not the one to send to."""
        refusals = (each.refusal for each in self.ledger.peers.status.values())
        return place_of(self.me, standing, self.master_address, refusals)

    # -- turns ---------------------------------------------------------------------------------------

    def begin_turn(self) -> None:
        """Do nothing: a standing counts from the moment in which it is heard."""

    def replicate_early(self) -> None:
        if self.limits.is_leader:
            self.ledger.hurry()

    def apply_reports(self) -> None:
        """Commit, show and answer by the frames of peers, before other connections have their turn. HOT."""
        self.ledger.end_turn()
        if self.kv is not None:
            self.kv.end_turn()

    def end_turn(self) -> None:
        self.reads.end_turn()
        self.ledger.end_turn()
        if self.kv is not None:
            self.kv.end_turn()

    def tick(self) -> None:
        """Do the work of time of the regions' logs; cores have a timer of their own (`ha.dledger.tasks`)."""
        self._context.store.removable_offset = self.state.snapshots.covered
        if self.kv is not None:
            self.kv.tick()

    def status(self, before: HaStatus, wall_ms: int) -> HaStatus | None:
        standing = self.ledger.standing
        why = None
        if standing.leader is None or (standing.role is Role.LEADER and not self.limits.is_leader):
            why = self._place(standing)
        notes = membership_notes(self.me, self.ledger.members.config, self._log_is_empty)
        return replace(before, is_master=self.limits.is_leader, epoch=self.epoch, fence=why, notes=notes)

    def ledger_status(self) -> LedgerStatus:
        """Return the member as it sees itself and the others."""
        return self.ledger.status()

    # -- life ----------------------------------------------------------------------------------------

    def bound(self, ha_port: int, name_server: str) -> None:
        """Do nothing: `dLegerPeers` tells the others where this member is."""

    def load(self) -> None:
        self._notes.load()

    def open(self) -> None:
        """Begin as a follower; the store and the tables are loaded."""
        context, config = self._context, self._context.config
        storage, replica = self._storage()
        self._worker = Worker("ropewalk-peers", context.store.completions)
        low, _, high = config.raft_election_ms.partition("-")
        settings = Settings(
            heartbeat_ms=config.raft_heartbeat_ms,
            election_min_ms=int(low),
            election_max_ms=int(high),
            preferred=tuple(filter(None, config.preferred_leader_id.split(";"))),
            lease_reads=config.raft_lease_reads,
        )
        self.ledger = LedgerShell(
            self._identity(storage.incarnation),
            self._settings,
            storage,
            replica,
            settings,
            context.monotonic_ms,
            random.Random(context.rng.getrandbits(64)),
            draw=secrets.token_bytes,
            wake=self._wake,
            known=self._notes.known,
            readmitted=self._notes.readmitted,
        )
        self.ledger.on_noted = self._note_peers
        if (damage := context.store.damage) is not None:
            giver = BlockGiver(
                context.store.log,
                damage.frozen,
                damage.report,
                lambda: (context.store.log.flushed_offset, storage.commit[2]),
                self._worker,
            )
            self.ledger.peers.blocks.give = giver.give
        self.ledger.snapshots.make = self._make_snapshot
        self.ledger.on_replaced = self.replaced.set
        if self.kv is not None:
            self.ledger.members.configurations.has_store = True
            self.kv.open(self.ledger, settings)
        self._term = self.ledger.standing.term
        self._limit(self.ledger.standing)
        self.ledger.on_standing = self._stand
        self.state.snapshots.begin(self._worker)
        self.state.open()
        self.reads.open(self.ledger)
        context.newest = self.reads
        self.on_role()

    def _identity(self, incarnation: bytes) -> Identity:
        config = self._context.config
        return Identity(
            config.broker_cluster_name,
            config.d_leger_group,
            self.me,
            incarnation,
            config.mapped_file_size_commit_log,
            ropewalk.__version__,
            config.ropewalk_secret,
            config.ropewalk_secret_also,
        )

    async def mend(self, shell: Shell, why: StoreDamaged) -> None:
        """Mend the log, which cannot be opened, from other members. Raises `StoreDamaged` where they cannot either."""
        config = self._context.config
        if len(self._settings) == 1:
            raise why
        self._impaired = ImpairedMember(
            self._identity,
            self._settings,
            self._notes.known,
            self._notes.readmitted,
            config.store_path_root_dir,
            config.store_path_commit_log,
            config.mapped_file_size_commit_log,
            self._context.monotonic_ms,
            self._wake,
        )
        await self._impaired.run(shell, why)

    def readmit(self, peer: MemberId, done: Callable[[str | None], None]) -> None:
        """Let a member in that lost its log; `done` is told why not, or None once that is on disk."""
        why = readmit(peer, self.ledger.peers, self.ledger.standing.leader)
        if why is not None:
            done(why)
        else:
            self._note_peers(lambda: done(None))

    def _note_peers(self, done: Callable[[], None] = lambda: None) -> None:
        """Write down the incarnations that are known, and which members were let in again."""
        assert self._worker is not None
        self._notes.write(self.ledger.peers, self._worker, done)

    def accept(self, link: Connection) -> PeerLink:
        """Return the session of a connection to this member's port."""
        link.stall_exempt = True  # how long a peer may be silent is for the core to say
        if self._impaired is not None:
            return self._impaired.accept(link)
        return self.ledger.peers.accept(link)

    async def run(self, turns: Turns, shell: Shell) -> LogReplaced:
        """Be a member until cancelled, or until a snapshot replaces the log. Cuts are done while it is open."""
        sharing = self.kv.ledgers if self.kv is not None else ()
        source = LedgerBlocks(self.ledger.peers, lambda: self.ledger.standing.leader)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(BlockRepair(self._context, source).run)
            nursery.start_soon(tasks.run, self.ledger, shell, self._context.rng, sharing)
            self.probe_member = lambda *asked: nursery.start_soon(
                tasks.probe_member, self.ledger.peers, shell, *asked
            )
            await self.replaced.wait()
            self.probe_member = None
            nursery.cancel_scope.cancel()
        return LogReplaced()

    # -- snapshots -----------------------------------------------------------------------------------

    def _make_snapshot(self, done: Callable[[LogPoint, bytes], None]) -> None:
        """Make a snapshot for a member that lacks what retention has removed here."""
        snapshots, store = self.state.snapshots, self._context.store
        entries = store.group_log
        index, disk = snapshots.newest, self._context.disk
        assert self._worker is not None and entries is not None
        if index < 0 or snapshots.newest_end < store.log.min_offset:
            self.state.log_all()  # somebody else removed files: what was in them is in the next snapshot
            done(_NOTHING, b"")
            return

        def made(state: bytes | None) -> None:
            found = entries.make_snapshot(index, state) if state is not None else None
            done(*(found or (_NOTHING, b"")))

        self._worker.submit(partial(disk.read_file, snapshots.path(index)), made)

    def transfer(self, target: MemberId, done: Callable[[TransferResult], None]) -> None:
        """Hand the lead over to a member, or to the one that lacks least (""); `done` is told the outcome."""
        self.reads.log_changes(offsets=True)
        self.ledger.transfer(target, done)

    def change(self, change: Change, done: Callable[[ChangeResult | str], None]) -> None:
        """Change the members of the group, as its leader. Raises `ChangeRefused` for a change that makes no sense.

        A new member is asked first who it is. `done` is told in words if another process listens at its address.
        """
        if change.kind is not ChangeKind.REMOVE and (behind := self.regions_behind):
            raise ChangeRefused(
                f"CHANGE_IN_PROGRESS: the key-value store's regions {', '.join(map(str, behind))} have still to follow "
                "the last change of the members: see `ropewalk kv status`, and try again"
            )
        members, config = self.ledger.members, self.ledger.members.config
        if self.probe_member is None or not self.limits.is_leader or change.kind is not ChangeKind.LEARN:
            members.change(change, done)
            return
        target_of(change, config, members.configurations.addresses)
        if change.member in config.members:
            members.change(change, done)
            return

        def answered(why: str | None) -> None:
            if why is not None:
                done(why)
                return
            try:
                members.change(change, done)
            except ChangeRefused as refused:
                done(str(refused))

        self.probe_member(change.member, change.address, answered)

    @property
    def regions_behind(self) -> list[int]:
        """Return the regions of the key-value store that have still to follow the last change of the members."""
        return self.kv.behind if self.kv is not None else []

    def trust(self) -> str | None:
        """Count each log here as it is whose end is in doubt; return in words why not, where none is to be trusted."""
        ledgers = (self.ledger, *(self.kv.ledgers if self.kv is not None else ()))
        refusals = [ledger.trust() for ledger in ledgers]
        return None if None in refusals else refusals[0]

    def force(self) -> str | None:
        """Go on alone, after most members were lost; return in words why not, where that is not to be."""
        return REGIONS_STAY if self.kv is not None else self.ledger.force()

    async def settle(self) -> None:
        """Do nothing: the ready line names no role, which is the next election's to give."""

    async def hand_over(self) -> None:
        """Have another member lead, if this one does: producers then wait for a handover, and not for an election."""
        ledgers = (self.ledger, *(self.kv.ledgers if self.kv is not None else ()))
        for ledger in ledgers:
            ledger.leave()
        if not self.ledger.peers.members:
            return
        self.reads.log_changes(offsets=True)
        with trio.move_on_after(_HAND_OVER_S):
            async with trio.open_nursery() as nursery:
                for ledger in ledgers:
                    if ledger.standing.role is Role.LEADER:
                        nursery.start_soon(_handed_over, ledger)

    def leave(self) -> None:
        """Log the last offsets, if this member leads still; the others hear of the end of its links."""
        self.reads.log_changes(offsets=True)

    def stop(self) -> None:
        self.ledger.close()
        if self.kv is not None:
            self.kv.close()
        if self._worker is not None:
            self._worker.stop()

    def ready_words(self) -> ReadyWords:
        return ready_words(
            self.me, self.ha_address, self._group, self.ledger.members.config, self.quorum, self._log_is_empty
        )

    @property
    def _log_is_empty(self) -> bool:
        return self.ledger.core.log.end.index < 0

    @property
    def _group(self) -> str:
        return self._context.config.d_leger_group


async def _handed_over(ledger: LedgerShell) -> None:
    """Have another member lead this group, and wait until it does, or does not."""
    over = trio.Event()

    def note(result: TransferResult) -> None:
        leader = ledger.standing.leader
        if result is TransferResult.SUCCESS:
            log.info("handed over before the stop", to=leader)
        elif leader is not None and leader != ledger.me.id:
            log.info("another member took the lead before the stop", leader=leader)
        else:
            log.info("stops without a handover: no other member takes the lead", why=result.value)
        over.set()

    ledger.transfer("", note)
    await over.wait()
