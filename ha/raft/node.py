"""`RaftNode`: one member of a group, whose only entrance is `step(event) -> Effects`.

Every message is judged by its link and its term before anything else (rule 6):

    from another link than the one that is up          counts for nothing
    term below this member's                           answered with this member's term, or counts for nothing
    term above it                                      ends a leadership; becomes this member's term
                                                       (not of a pre-vote, nor of a granted one: nobody has that term)
    Append, Heartbeat                                  their sender leads this term: follow it
    answers                                            only of what this member asked in this term

The parts decide one thing each and know nothing of each other: `Election` who leads, `EntryHandler` what an Append does
to the log, an `EntryDispatcher` what a peer is sent, `QuorumAckChecker` what a majority has, `LogState` what is in the
log, `Transfers` how a leader hands over, `Reads` when a state may be read as the newest. Here they meet.
"""

from __future__ import annotations

from collections.abc import Iterable

from ha.raft.dispatcher import EntryDispatcher, State
from ha.raft.draft import Draft
from ha.raft.election import GRANTED, Election
from ha.raft.handler import EntryHandler, Refusal
from ha.raft.leadership import Leadership
from ha.raft.log_state import LogState
from ha.raft.membership import Changes, Readmission
from ha.raft.quorum import ConfigHistory, QuorumAckChecker
from ha.raft.reads import Reads
from ha.raft.rules import Rules
from ha.raft.terms import Row, TermTable, is_too_high
from ha.raft.transfer import Transfers
from ha.raft.types import (
    NO_EFFECTS,
    NOTHING,
    Append,
    AppendAnswer,
    Appended,
    Applied,
    Ballot,
    ChangeAsked,
    Config,
    ConfigRow,
    CutDone,
    DoubtDropped,
    Durable,
    Effects,
    Event,
    Fetched,
    Founded,
    Heartbeat,
    HeartbeatAnswer,
    Leaving,
    Link,
    Linked,
    MemberId,
    Message,
    Met,
    Point,
    Read,
    ReadAnswer,
    ReadAsked,
    Received,
    Role,
    Run,
    Saved,
    Settings,
    SnapshotAnswer,
    SnapshotBegin,
    SnapshotChunk,
    SnapshotEnd,
    SnapshotFailed,
    SnapshotTaken,
    Standing,
    Stuck,
    TakeLead,
    Tick,
    TransferAsked,
    Vote,
    VoteAnswer,
    link_of,
)
from ropewalk.errors import RemoteProtocolError

PENDING_FULL = "LEADER_PENDING_FULL"
TRANSFERRING = "LEADER_TRANSFERRING"
"""`Standing.why` of a leader that takes no messages: too much is pending, or it hands over."""


class RaftNode:
    """A member of a Raft group. Two nodes that are fed the same events agree to the byte."""

    def __init__(
        self,
        me: MemberId,
        config: Config,
        settings: Settings,
        *,
        ballot: Ballot,
        rows: Iterable[Row] = (),
        end: Point = NOTHING,
        commit: Point = NOTHING,
        doubt: Point | None = None,
        readmitted: bool = False,
        lost: bool = False,
        configs: Iterable[ConfigRow] = (),
    ) -> None:
        """Begin with what recovery found and synced: the ballot, the term rows and the end of the log.

        `configs` are the configurations in the log, by index; `config` is in force where there is none.

        `commit` is what was written down last, and claims less than the truth. `doubt` is the furthest entry that
        recovery saw behind a hole, which it cut. `readmitted`: this log was begun after another one was lost, and
        votes since `Effects.readmitted`. `lost`: it has still to learn what that one had, and the ballot is whole.
        """
        self.me = me
        self.settings = settings
        history = ConfigHistory(config, configs)
        self.log = LogState(TermTable(rows), history, end, commit)
        self.peers = self._other_members()
        """The other members of the committed configuration and of those behind it, which may still be cut."""
        self.readmission = Readmission(self.peers, readmitted, lost)
        self.election = Election(me, history, settings, ballot, doubt, self.readmission)
        self._overtaken = Ballot(end.term) if end.term > ballot.term else None
        """A ballot to begin with: entries of a newer term were written before the ballot, and a crash came between."""
        if self._overtaken is not None:
            self.election.ballot = self._overtaken
        self.handler = EntryHandler()
        self.leadership: Leadership | None = None
        self.transfers = Transfers(me, settings)
        self.changes = Changes(me, settings)
        self._revision = history.revision
        self._is_pending = history.index > commit.index
        """Whether the configuration in force is not committed."""
        self.reads = Reads(me, settings, self._answer)
        self.applied = commit
        self._links: dict[tuple[MemberId, Link], int] = {}
        self._said = -1
        """How far this follower has told its leader that the log is on disk."""
        self._shown: Standing | None = None
        self._is_replaced = False
        """Whether a snapshot replaces the log: from then on nothing that this node knows may be said."""
        self._rules = Rules(self)

    @property
    def role(self) -> Role:
        """The role in this term."""
        return self.election.role

    @property
    def term(self) -> int:
        """The current term."""
        return self.election.ballot.term

    @property
    def leader(self) -> MemberId | None:
        """The leader of this term, as far as it is known."""
        return self.election.leader

    @property
    def config(self) -> Config:
        """The configuration in force."""
        return self.log.configs.in_force

    @property
    def dispatchers(self) -> dict[MemberId, EntryDispatcher]:
        """The dispatcher of each peer while this member leads; empty otherwise."""
        return self.leadership.dispatchers if self.leadership is not None else {}

    @property
    def term_first(self) -> int:
        """The index of the entry that opened this leader's term; -1 until it is appended, and on any other member."""
        return self.leadership.term_first if self.leadership is not None else -1

    def has_lease(self, now: int) -> bool:
        """Return whether no other member can have led until `now`: never without `Settings.lease_reads`."""
        is_leader = self.role is Role.LEADER and not self.transfers.may_be_followed(self.term)
        return is_leader and self.reads.has_lease(now)

    @property
    def standing(self) -> Standing | None:
        """The role as it was shown last."""
        return self._shown

    @property
    def now(self) -> int:
        """The latest time that this member was told."""
        return self.election.now

    @property
    def quorum(self) -> QuorumAckChecker:
        """The counter of majorities under the configuration in force."""
        return self.election.quorum

    def step(self, event: Event) -> Effects:
        """Advance this member by one event and return the effects to carry out.

        Stale, repeated and reordered messages are ordinary and never raise. Raises `RemoteProtocolError` for one that
        no correct member sends; nothing has changed then, and the connection should be closed. An `AssertionError`
        means that this member's own state is inconsistent: it must stop rather than vote again.
        """
        if self._is_replaced:
            return NO_EFFECTS
        draft = Draft()
        if self._overtaken is not None:
            draft.save, self._overtaken = self._overtaken, None
        match event:
            case Received():
                self._advance_clock(event.now)
                self._received(event, draft)
            case Appended():
                self._advance_clock(event.now)
                self._appended(event.run)
            case Durable():
                self._durable(event, draft)
            case Tick():
                self._advance_clock(event.now)
                self._tick(event, draft)
            case Saved():
                self.election.ballot_saved(event.ballot, self.log, draft)
            case CutDone():
                self.log.cut_done()
            case Fetched():
                self._advance_clock(event.now)
                self._fetched(event, draft)
            case Linked():
                self._advance_clock(event.now)
                self._linked(event)
            case Met():
                self._met(event, draft)
            case Stuck():
                self.election.stuck = event.stuck
            case Applied():
                assert event.point.index <= self.log.commit.index, (
                    f"rule 12: {event} is behind {self.log.commit}"
                )
                self.applied = event.point
            case TransferAsked():
                self._advance_clock(event.now)
                self.transfers.ask(
                    event.token,
                    event.target,
                    self.leadership,
                    self.quorum,
                    self.log,
                    self.applied,
                    self.now,
                    draft,
                )
            case ReadAsked():
                self._advance_clock(event.now)
                self.reads.ask(event.token, self.now)
            case ChangeAsked():
                self._advance_clock(event.now)
                self.changes.ask(
                    event.token,
                    event.target,
                    self.leadership,
                    self.log,
                    self.transfers.current is not None,
                    self.now,
                    draft,
                )
            case Founded():
                self._advance_clock(event.now)
                self.log.configs.found(event.config)
                self.election.hurry()
            case Leaving():
                self.election.is_leaving = True
            case DoubtDropped():
                draft.doubt_over = self.election.doubt is not None
                self.election.doubt = None
            case SnapshotFailed():
                if (dispatcher := self.dispatchers.get(event.peer)) is not None:
                    dispatcher.snapshot_ended(-1)
            case SnapshotTaken():
                if (event.term, event.peer) == (self.term, self.leader) and self._lacks(event.point.index):
                    self._is_replaced = True
                    draft.install = event.point
        self._conclude(draft)
        effects = draft.effects()
        self._rules.check(effects)
        return effects

    def _advance_clock(self, now: int) -> None:
        election = self.election
        election.now = max(election.now, now)
        if election.began_at is None:
            election.began_at = now

    # -- messages ----------------------------------------------------------------------------------------

    def _received(self, event: Received, draft: Draft) -> None:
        peer, message = event.peer, event.message
        if self._links.get((peer, link_of(message))) != event.link:
            return
        if is_too_high(message.term, self.term):
            raise RemoteProtocolError(
                f"{peer} is in term {message.term}, far above {self.term} of this member"
            )
        if isinstance(message, Append):
            _check_append(peer, message, self.log.end)
        if isinstance(message, Vote):
            self.election.asked(peer, message, self.log, draft)
            return
        if message.term > self.term and not _is_granted_pre_vote(message):
            self.election.raise_term(message.term, f"{peer} is in term {message.term}", draft)
        if message.term < self.term:
            self._answer_an_old_leader(peer, message, draft)
            return
        if self.leadership is not None:
            self.leadership.heard(peer, self.now)
        match message:
            case Append():
                self._append_received(peer, message, draft)
            case AppendAnswer():
                if (dispatcher := self._dispatcher(peer)) is not None and dispatcher.answered(
                    message, self.log
                ):
                    self._commit_as_leader(draft)
            case Heartbeat():
                self._follow(peer)
                self.handler.heard_commit(message.commit)
                self._commit_as_follower(draft)
                able = self.election.is_able(self.log, self._unindexed)
                counts = not self.readmission.is_learner
                answer = HeartbeatAnswer(
                    self.term, message.round, self.handler.matched, self._confirmed, able, counts
                )
                self._answer(draft, peer, answer)
            case HeartbeatAnswer():
                if message.counts:
                    self.reads.round_answered(peer, message.round)
                if (dispatcher := self._dispatcher(peer)) is not None and dispatcher.heard(
                    message, self.log, self.now
                ):
                    self._commit_as_leader(draft)
            case VoteAnswer():
                self.election.answered(peer, message, self.log, draft)
            case Read():
                if self.leadership is not None:
                    is_open = 0 <= self.term_first <= self.log.commit.index
                    self.reads.forwarded(peer, message.number, is_open, self.term, draft)
            case ReadAnswer():
                self.reads.answered(message, self.now)
            case SnapshotBegin() | SnapshotChunk() | SnapshotEnd():
                self._follow(peer)
                if self._lacks(message.index):
                    draft.snapshot = peer, message
                elif isinstance(message, SnapshotBegin):
                    self._answer(draft, peer, SnapshotAnswer(self.term, message.index, -1))
            case SnapshotAnswer():
                if (dispatcher := self._dispatcher(peer)) is None or dispatcher.state is not State.SNAPSHOT:
                    return
                if message.received < 0:
                    dispatcher.snapshot_ended(message.index)
                else:
                    dispatcher.snapshot_goes_on(self.now)
                    draft.snapshot = peer, message
            case TakeLead():
                self._follow(peer)
                self.election.take_lead(self.log, self._unindexed, draft)

    def _answer_an_old_leader(self, peer: MemberId, message: Message, draft: Draft) -> None:
        # A leader of an older term has to hear of the newer one, or it would lead for ever beside a member that
        # cannot follow it and whose log is too short to be voted for (issue 325).
        counts = not self.readmission.is_learner
        if isinstance(message, Append):
            self._answer(draft, peer, AppendAnswer(self.term, False, message.prev.index, -1, -1, -1, counts))
        elif isinstance(message, Heartbeat):
            self._answer(draft, peer, HeartbeatAnswer(self.term, message.round, -1, -1, counts=counts))

    def _answer(self, draft: Draft, peer: MemberId, message: Message) -> None:
        self.election.send_when_saved(draft, Ballot(self.term), peer, message)

    def _dispatcher(self, peer: MemberId) -> EntryDispatcher | None:
        return self.dispatchers.get(peer) if self.role is Role.LEADER else None

    # -- a follower --------------------------------------------------------------------------------------

    @property
    def _confirmed(self) -> int:
        """Return the offset to report to the leader: on disk, and compared with the leader's log (rule 2)."""
        return min(self.log.durable, self.handler.matched)

    def _follow(self, leader: MemberId) -> None:
        if self.handler.term != self.term:
            self.handler.begin(self.term)
            self._said = -1
        self.election.heard_leader(leader)

    def _lacks(self, index: int) -> bool:
        """Return whether a snapshot that begins with this entry replaces nothing that was committed or compared."""
        return index > max(self.log.commit.index, self.handler.matched)

    def _append_received(self, leader: MemberId, append: Append, draft: Draft) -> None:
        self._follow(leader)
        lacks_state = self.settings.lacks_state
        verdict = Refusal(-1, -1) if lacks_state else self.handler.judge(append, self.log)
        if isinstance(verdict, Refusal):
            counts = not self.readmission.is_learner
            last, term = verdict.last, verdict.term
            answer = AppendAnswer(self.term, False, append.prev.index, -1, last, term, counts, lacks_state)
            self._answer(draft, leader, answer)
            return
        if verdict.cut is not None:
            self.log.cut(verdict.cut)
            draft.cut = verdict.cut
        if verdict.place is not None:
            self.log.add(verdict.place, verdict.skip)
            draft.place = ((verdict.place, verdict.skip),)
        else:
            self._confirm(draft)  # no flush will be heard of
        self.handler.heard_commit(append.commit)
        self._commit_as_follower(draft)

    def _confirm(self, draft: Draft) -> None:
        assert self.leader is not None
        self._said = self._confirmed
        counts = not self.readmission.is_learner
        answer = AppendAnswer(self.term, True, -1, self._said, self.handler.matched, -1, counts)
        self._answer(draft, self.leader, answer)

    def _commit_as_follower(self, draft: Draft) -> None:
        point = self.log.commit_through(self.handler.committed(self.log))
        if point is not None:
            draft.commit = point
        if self.election.doubt is not None:
            draft.doubt_over = self.election.doubt_ends(self.log, self.handler.leader_commit)
        if self.readmission.is_learner:
            draft.readmitted = self.readmission.ends(
                self.log, self.handler.matched, self.handler.leader_commit, self.term
            )

    # -- a leader ----------------------------------------------------------------------------------------

    def _appended(self, run: Run) -> None:
        assert self.leadership is not None, f"{run} was appended by a {self.role.value} of term {self.term}"
        self.leadership.appended(self.log.end, run)
        self.changes.appended(run)
        self.log.add(run)

    def _durable(self, event: Durable, draft: Draft) -> None:
        if not self.log.flushed(event.point, event.cuts):
            return
        if self.leadership is not None:
            self._commit_as_leader(draft)
        elif self.leader is not None:
            if self._confirmed > self._said:
                self._confirm(draft)
            self._commit_as_follower(draft)

    def _commit_as_leader(self, draft: Draft) -> None:
        assert self.leadership is not None
        point = self.log.commit_through(self.leadership.acknowledged(self.quorum, self.log.durable))
        if point is not None:
            self._rules.rule_3_own_term_is_counted(point.index)
            draft.commit = point
            draft.doubt_over |= self.election.doubt_ends(self.log, point.index)

    def _fetched(self, event: Fetched, draft: Draft) -> None:
        dispatcher = self._dispatcher(event.peer)
        if dispatcher is None:
            return
        append = dispatcher.fetched(event.prev, event.run, self.log, self.term, self.now)
        if append is not None:
            draft.send(event.peer, append)

    # -- time and links ----------------------------------------------------------------------------------

    def _tick(self, event: Tick, draft: Draft) -> None:
        leadership = self.leadership
        if leadership is not None and event.late > self.settings.late_max_ms:
            leadership.was_late(event.late)
        elif leadership is not None and not leadership.hears_majority(self.quorum, self.now):
            self.election.become_candidate("no majority was heard for an election timeout")
        elif self.election.stuck and self._cannot_open:
            self.election.become_candidate("there is no room on the disk to open the term")
        self.election.tick(event.late, event.draw, self.log, self._unindexed, draft)
        led = self.leadership if self.role is Role.LEADER else None
        if led is not None:
            led.part(self.now)
            if self.changes.is_out(self.log) and not self.transfers.leave(
                led, self.quorum, self.log, self.now
            ):
                self.election.become_candidate("the group goes on without this member")
                led = None
        self.reads.tick(self.now, draft)
        self.transfers.tick(led, self.quorum, self.log, self.applied, self.election.stuck, self.now, draft)

    @property
    def _cannot_open(self) -> bool:
        """Return whether this leader's term has no entry yet, and others could lead."""
        return (
            self.leadership is not None
            and self.term_first < 0
            and bool(self.leadership.able_quorum(self.quorum))
        )

    @property
    def _unindexed(self) -> int:
        """Return how many bytes this member would have to index before it could open a term."""
        return self.log.end.pos - self.applied.pos

    def _met(self, event: Met, draft: Draft) -> None:
        if self.readmission.met(event.peer, event.term, event.lost):
            self.election.become_learner(f"{event.peer} says that this member had lost its log")
        if self.readmission.is_learner and self.readmission.term > self.term:
            self.election.raise_term(self.readmission.term, f"{event.peer} is in term {event.term}", draft)

    def _linked(self, event: Linked) -> None:
        key = (event.peer, event.kind)
        if event.link < self._links.get(key, -1):
            return
        self._links[key] = event.link if event.up else -1
        if event.kind is Link.DATA:
            if (dispatcher := self.dispatchers.get(event.peer)) is not None:
                dispatcher.linked(event.up)
            return
        self.reads.unlinked(event.peer)
        if not event.up:
            self.election.link_lost(event.peer)

    # -- the end of a step -------------------------------------------------------------------------------

    def _other_members(self) -> tuple[MemberId, ...]:
        members = self.log.configs.members(self.log.commit.index)
        return tuple(member for member in members if member != self.me)

    def _look_at_members(self, draft: Draft) -> None:
        """Go on with other members, where the configurations or what is committed of them have changed."""
        configs = self.log.configs
        is_other, self._revision = configs.revision != self._revision, configs.revision
        is_committed = configs.index <= self.log.commit.index
        if not is_other and not is_committed:
            return
        self._is_pending = not is_committed
        self.peers = self.readmission.others = self._other_members()
        if self.leadership is not None:
            self.leadership.configure(self.peers, self.log.end, self._is_linked, self.now)
        if is_other:
            draft.config = self.config

    def _conclude(self, draft: Draft) -> None:
        if self._is_pending or self._revision != self.log.configs.revision:
            self._look_at_members(draft)
        if self.leadership is not None and self.role is Role.LEADER and not self._is_pending:
            self.changes.drive(self.leadership, self.log, draft)
        self.reads.changed(self.leader, self.term, self.now)
        if self.role is not Role.LEADER:
            self.leadership = None
            self.changes.lost(draft)
            self.transfers.followed(self.leader, self.term, self.now, draft)
        else:
            if self.leadership is None:
                self.transfers.followed(self.me, self.term, self.now, draft)
                self.leadership = Leadership(
                    self.me, self.term, self.peers, self.settings, self.log.end, self._is_linked, self.now
                )
            if self.has_lease(self.now):
                self.reads.serve_by_lease(self.log.commit.index, draft)
            stuck = self.election.stuck
            self.leadership.send_what_is_due(self.quorum, self.log, stuck, self.reads, self.now, draft)
            self.transfers.send_what_is_due(self.leadership, self.log, self.applied, self.now, draft)
        self.reads.conclude(self.quorum, self.applied.index, self.now, draft)
        self._show(draft)

    def _is_linked(self, peer: MemberId) -> bool:
        return self._links.get((peer, Link.DATA), -1) >= 0

    def _show(self, draft: Draft) -> None:
        election = self.election
        may_append, why = False, election.why
        if election.role is Role.LEADER:
            if self.term_first < 0 or self.applied.index < self.term_first:
                why = "the term's first entry is not applied"
            elif self.log.uncommitted_bytes > self.settings.pending_bytes_max:
                why = PENDING_FULL
            elif self.transfers.fences(self.term):
                why = TRANSFERRING
            else:
                may_append = True
        shown = self._shown
        if (
            shown is None
            or shown.may_append is not may_append
            or shown.role is not election.role
            or shown.term != election.ballot.term
            or shown.leader != election.leader
            or (election.role is Role.LEADER and not may_append and shown.why != why)
        ):
            self._shown = draft.role = Standing(election.role, self.term, election.leader, may_append, why)


def _is_granted_pre_vote(message: Message) -> bool:
    return isinstance(message, VoteAnswer) and message.pre and message.result in GRANTED


def _check_append(leader: MemberId, append: Append, end: Point) -> None:
    """Refuse a message that no correct member sends, before it changes anything."""
    prev, run = append.prev, append.run
    if (prev.index, prev.term) == (end.index, end.term) and prev.pos != end.pos:
        raise RemoteProtocolError(
            f"{leader} has entry {prev.index} end at offset {prev.pos}, here it ends at {end.pos}: "
            "the segments of the two members differ in size"
        )
    if run is None:
        return
    if run.first != prev.index + 1 or run.count < 1 or run.size < 1 or run.pos < prev.pos:
        raise RemoteProtocolError(f"{leader} sent a run that does not stand behind {prev}: {run}")
    if run.config is not None and run.count > 1:
        raise RemoteProtocolError(f"{leader} sent the entry of a configuration with others: {run}")
    if not prev.term <= run.term <= append.term:
        raise RemoteProtocolError(f"{leader} of term {append.term} sent {run} behind {prev}: terms fall")
