"""The nouns of the Raft core, the events it is told and the effects it asks for. Frozen, without behaviour.

Times are monotonic milliseconds of this member. Indexes count entries from 0, and -1 is none; terms begin at 0, and
-1 is the term of an empty log. An `offset` counts the bytes of the whole log. Nothing here is an object per entry:
the core sees *runs* (whole entries of one term, side by side in one segment) and *points* (the log through an index).

Bytes are never here either. A `Run` in a message stands for bytes that the shell has: of an own append it kept them,
of a message it received them in the frame, of an older run it reads them when it is asked to (`Effects.fetch`).
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Final

from msgspec import Struct

MemberId = str
"""A `dLegerSelfId`: a letter and a number."""


class Point(Struct, frozen=True, gc=False):
    """The log through one entry."""

    index: int
    term: int
    pos: int
    """The log offset behind that entry."""


NOTHING: Final = Point(-1, -1, 0)
"""The empty log."""


class Config(Struct, frozen=True):
    """The members of a group, as an entry of the log says them. Where they are reached is no affair of the core's."""

    voters: tuple[MemberId, ...]
    old: tuple[MemberId, ...] = ()
    """The voters before, while a joint configuration is in force."""
    learners: tuple[MemberId, ...] = ()
    """Members that get the log, serve reads, and are part of no majority."""
    incarnations: tuple[tuple[MemberId, bytes], ...] = ()

    @property
    def members(self) -> tuple[MemberId, ...]:
        """All members, in their order."""
        return tuple(sorted({*self.voters, *self.old, *self.learners}))


UNKNOWN: Final = Config(("",))
"""The members of a group as one knows them that has still to be told: nobody whom it could reach, nor itself."""
ConfigRow = tuple[int, Config]
"""(index, configuration): the entry that carries it. The index -1 is in front of every log."""


class Run(Struct, frozen=True):
    """Whole entries of one term, side by side in one segment."""

    first: int
    count: int
    term: int
    pos: int
    """The log offset of the first byte. Behind the entry before, or at the base of the next segment."""
    size: int
    config: Config | None = None
    """The configuration that the one entry of this run carries: such an entry is always a run of its own."""

    @property
    def last(self) -> int:
        """The index of the last entry."""
        return self.first + self.count - 1

    @property
    def end(self) -> Point:
        """The log through this run."""
        return Point(self.first + self.count - 1, self.term, self.pos + self.size)


class Ballot(Struct, frozen=True, gc=False):
    """The durable state of a member: its term, and its vote in that term."""

    term: int
    vote: MemberId = ""

    def covers(self, other: Ballot) -> bool:
        """Tell whether messages that depend on `other` may leave once this ballot is saved."""
        return self.term > other.term or (
            self.term == other.term and (self.vote == other.vote or not other.vote)
        )


class Role(Enum):
    """A member's part in its term. Without a known leader a member is a candidate, as in DLedger."""

    LEADER = "LEADER"
    FOLLOWER = "FOLLOWER"
    CANDIDATE = "CANDIDATE"


class Standing(Struct, frozen=True):
    """The role as it is shown to the broker around the core, and whether messages may be appended."""

    role: Role
    term: int
    leader: MemberId | None
    may_append: bool
    why: str
    """The reason for the last change, for logs and people; LEADER_PENDING_FULL in DLedger's word."""


class VoteResult(IntEnum):
    """The answer to a vote. The names are DLedger's; the last two are ours."""

    UNKNOWN = 0
    ACCEPT = 1
    REJECT_UNKNOWN_LEADER = 2
    REJECT_UNEXPECTED_LEADER = 3
    REJECT_EXPIRED_VOTE_TERM = 4
    REJECT_ALREADY_VOTED = 5
    REJECT_ALREADY_HAS_LEADER = 6
    REJECT_TERM_NOT_READY = 7
    REJECT_TERM_SMALL_THAN_LEDGER = 8
    REJECT_EXPIRED_LEDGER_TERM = 9
    REJECT_SMALL_LEDGER_END_INDEX = 10
    REJECT_TAKING_LEADERSHIP = 11
    ACCEPT_WITH_RESERVE = 12
    """Of a member in doubt: counts only if the candidate proves to have the longest log of all voters."""
    REJECT_LEARNER = 13
    """Of a member that lost its log and has not caught up."""


class Link(IntEnum):
    """The two connections between two members."""

    CONTROL = 0
    """Votes and heartbeats. Goes out first in every turn of the loop."""
    DATA = 1
    """Appends and their answers, in order."""


class Settings(Struct, frozen=True):
    """The settings that an operator may choose. Sizes in bytes."""

    heartbeat_ms: int = 100
    election_min_ms: int = 500
    election_max_ms: int = 900
    late_max_ms: int = 100
    """A loop that was later than this neither campaigns nor takes its own lateness for silence."""
    rush_min_ms: int = 50
    rush_max_ms: int = 150
    """When a member campaigns that lost its control link to the leader."""
    resend_ms: int = 500
    """Age from which a frame that the follower has not heard of is taken for lost."""
    pending_bytes_max: int = 64 << 20
    """Uncommitted bytes of a leader: the bound of every cut, and of what a new leader has to index."""
    window_frames: int = 64
    window_bytes: int = 6 << 20
    frame_bytes_max: int = 512 << 10
    fetch_bytes_max: int = 2 << 20
    """The size of a read for a peer that lags, which is sent as one frame: each takes a turn of a busy loop."""
    preferred: tuple[MemberId, ...] = ()
    """`preferredLeaderId`: these members campaign before the others."""
    turn: int = -1
    """In place of `preferred`: the voter with this number is, counted on from the first one; -1: nobody's turn."""
    lacks_state: bool = False
    """Whether the state in front of the log is missing here: it comes with a snapshot, and before any entry."""
    is_newborn: bool = False
    """Whether the group begins while its members run: nobody can lead it yet, so the first campaign comes soon."""
    lease_reads: bool = False
    transfer_lag_max: int = 1000
    """A member that lacks as many entries is not handed the lead: producers would wait for it."""
    learner_lag_max: int = 1000
    learner_bytes_max: int = 8 << 20
    """A learner that lacks as many entries, or bytes, is not made a voter: commits would wait for it."""

    def preferred_of(self, voters: tuple[MemberId, ...]) -> tuple[MemberId, ...]:
        """Return the members that are preferred where these vote, in their order."""
        return (voters[self.turn % len(voters)],) if self.turn >= 0 else self.preferred


# -- messages --------------------------------------------------------------------------------------------


class Append(Struct, frozen=True):
    """A run for the log of a follower, or none: a question whether the follower has the log through `prev`."""

    term: int
    prev: Point
    run: Run | None
    commit: int


class AppendAnswer(Struct, frozen=True):
    """A follower's answer to an Append: the extent to which its log agrees with the leader's in this term."""

    term: int
    ok: bool
    prev: int
    """`Append.prev.index` of the refused Append; -1 in an answer that is ok."""
    durable: int
    """How far the log was compared with this leader in this term, and is on this disk."""
    last: int
    """How far it was compared (ok), or the largest index at which the logs might agree (refused)."""
    hint_term: int
    """The follower's term at `last`, of a refusal."""
    counts: bool = True
    """False of a learner, which is part of no majority."""
    lacks_state: bool = False
    """Whether no entry is of use: the state in front of the log is missing."""


class Heartbeat(Struct, frozen=True):
    """The leader lives. `round` numbers the heartbeats of a term, for reads that wait for a quorum of answers."""

    term: int
    commit: int
    round: int


class HeartbeatAnswer(Struct, frozen=True):
    """The follower lives. `last` and `durable` are those of an `AppendAnswer`, one of which may have been lost."""

    term: int
    round: int
    last: int
    durable: int
    able: bool = True
    """Whether the follower would take the lead if it were handed over."""
    counts: bool = True
    """False of a learner, as in `AppendAnswer`."""


class Vote(Struct, frozen=True):
    """A candidate asks for a vote; `pre`: whether there would be one in `term`, which nobody has yet."""

    term: int
    last_index: int
    last_term: int
    pre: bool = False
    transfer: bool = False
    """The leader itself asked the candidate to follow it, so nobody protects that leader."""


class VoteAnswer(Struct, frozen=True):
    """The answer to a vote. `term` is the voter's, but that of the question where a pre-vote was granted."""

    term: int
    pre: bool
    result: VoteResult


class TakeLead(Struct, frozen=True):
    """The leader hands over: campaign at once, nobody will protect this leader. JRaft's TimeoutNow."""

    term: int


class Read(Struct, frozen=True):
    """A follower asks for an index: a state in which it is applied may be read, now, as the newest."""

    term: int
    number: int
    """Of this question, among those of this follower."""


class ReadAnswer(Struct, frozen=True):
    """The leader's answer to a `Read`."""

    term: int
    number: int
    index: int
    """-1: the leader has not committed an entry of its own term yet."""


class SnapshotBegin(Struct, frozen=True):
    """A leader offers a snapshot to a follower that lacks entries which retention has removed.

    The follower's log will begin with the first entry that the leader has, through which `point` is.
    """

    term: int
    point: Point
    size: int
    """Bytes of the snapshot."""

    @property
    def index(self) -> int:
        """The index of the entry with which the follower's log will begin."""
        return self.point.index


class SnapshotChunk(Struct, frozen=True):
    """A piece of the snapshot for entry `index`; the shell has its bytes."""

    term: int
    index: int
    offset: int


class SnapshotEnd(Struct, frozen=True):
    """All of the snapshot for entry `index` was sent."""

    term: int
    index: int
    size: int
    checksum: int
    """CRC32C of its bytes."""


class SnapshotAnswer(Struct, frozen=True):
    """The number of bytes of a snapshot that have arrived; -1: it is not needed, the follower has what it covers."""

    term: int
    index: int
    received: int


SnapshotMessage = SnapshotBegin | SnapshotChunk | SnapshotEnd | SnapshotAnswer
Message = (
    Append
    | AppendAnswer
    | Heartbeat
    | HeartbeatAnswer
    | Vote
    | VoteAnswer
    | TakeLead
    | Read
    | ReadAnswer
    | SnapshotMessage
)


def link_of(message: Message) -> Link:
    """Return the kind of link on which a message travels."""
    return Link.DATA if isinstance(message, Append | AppendAnswer | SnapshotMessage) else Link.CONTROL


class TransferResult(Enum):
    """The outcome of a transfer of the lead. The names are DLedger's, but for those that it lacks."""

    SUCCESS = "SUCCESS"
    NOT_LEADER = "NOT_LEADER"
    NOT_READY = "NOT_READY"
    """The leader has not opened its term yet."""
    UNKNOWN_MEMBER = "UNKNOWN_MEMBER"
    UNREACHABLE = "UNREACHABLE"
    """The link to the target is down, or it has not been heard, or it says that it cannot lead now."""
    FALL_BEHIND_TOO_MUCH = "FALL_BEHIND_TOO_MUCH"
    LEADER_TRANSFERRING = "LEADER_TRANSFERRING"
    TAKE_LEADERSHIP_FAILED = "TAKE_LEADERSHIP_FAILED"
    """The target did not lead in time; the leader goes on, or another member leads."""


class ChangeResult(Enum):
    """The outcome of a change of the configuration."""

    SUCCESS = "SUCCESS"
    """The new configuration is committed, and the one before is over."""
    NOT_LEADER = "NOT_LEADER"
    NOT_READY = "NOT_READY"
    """The leader has not committed an entry of its own term yet, or hands the lead over."""
    CHANGE_IN_PROGRESS = "CHANGE_IN_PROGRESS"
    NOTHING_TO_CHANGE = "NOTHING_TO_CHANGE"
    NOT_CAUGHT_UP = "NOT_CAUGHT_UP"
    """A voter to be is no learner yet, or lacks too much of the log."""
    NO_QUORUM = "NO_QUORUM"
    """Fewer than a majority of the voters to be are heard, or there would be none."""
    TOO_MANY = "TOO_MANY"
    """More voters or members than a group may have."""
    UNKNOWN = "UNKNOWN"
    """The lead was lost before the change was committed: the next leader completes it, or it never was."""


# -- events ----------------------------------------------------------------------------------------------


class Tick(Struct, frozen=True):
    """Time went on."""

    now: int
    late: int
    """How much later than it had asked for the loop was woken."""
    draw: float
    """A random number of [0, 1): where in its range the next timeout falls."""


class Received(Struct, frozen=True):
    """A message came from `peer`, over its connection number `link`."""

    peer: MemberId
    link: int
    message: Message
    now: int


class Linked(Struct, frozen=True):
    """Connection number `link` to `peer` came up, or broke. Numbers of one peer and kind only rise."""

    peer: MemberId
    link: int
    kind: Link
    up: bool
    now: int


class Met(Struct, frozen=True):
    """A peer introduced itself, and says its term."""

    peer: MemberId
    term: int
    lost: bool
    """Whether the peer knows that this member had lost its log and was let in again."""


class Saved(Struct, frozen=True):
    """The ballot is on disk, and so is the name of its file."""

    ballot: Ballot


class Durable(Struct, frozen=True):
    """A flush that began after `cuts` cuts has put the log through `point` on disk."""

    point: Point
    cuts: int


class CutDone(Struct, frozen=True):
    """A cut is on disk: no start will see what was behind `point`."""

    point: Point


class Stuck(Struct, frozen=True):
    """Runs that were to be placed wait for room, or no longer do."""

    stuck: bool


class Appended(Struct, frozen=True):
    """The leader's shell appended a run. Delivered before any other event that arose later."""

    run: Run
    now: int


class Fetched(Struct, frozen=True):
    """A run for a peer that lags was read. `run` is None where retention has removed the index that was asked for."""

    peer: MemberId
    prev: Point
    """The log through the entry before the run; of a removed one only its index."""
    run: Run | None
    now: int


class Applied(Struct, frozen=True):
    """The broker has indexed the log and applied its records through `point`."""

    point: Point


class TransferAsked(Struct, frozen=True):
    """Another member is to lead; `Effects.done` has the outcome, under the same token."""

    token: int
    target: MemberId
    """"": the member that lacks least."""
    now: int


class ReadAsked(Struct, frozen=True):
    """The broker wants to read its state as the newest there is; `Effects.reads` says when it may."""

    token: int
    now: int


class ChangeAsked(Struct, frozen=True):
    """The group is to have another configuration; `Effects.changed` has the outcome, under the same token."""

    token: int
    target: Config
    """The configuration that the group is to have in the end; its `old` is empty."""
    now: int


class Leaving(Struct, frozen=True):
    """The member is about to stop: from now on it neither campaigns nor takes the lead over."""


class Founded(Struct, frozen=True):
    """The configuration in front of a log that names none is known: it was `UNKNOWN` until now."""

    config: Config
    now: int


class DoubtDropped(Struct, frozen=True):
    """A person decided that this log may be counted as it is: nothing that is missed was behind its end."""


class SnapshotFailed(Struct, frozen=True):
    """A snapshot could not be made or sent: look again what the peer needs."""

    peer: MemberId
    now: int


class SnapshotTaken(Struct, frozen=True):
    """A snapshot from `peer` is on disk beside the log, whole; `term` and `point` are those of its beginning."""

    peer: MemberId
    term: int
    point: Point


Event = (
    Tick
    | Received
    | Linked
    | Met
    | Saved
    | Durable
    | CutDone
    | Stuck
    | Appended
    | Fetched
    | Applied
    | SnapshotFailed
    | SnapshotTaken
    | TransferAsked
    | ReadAsked
    | ChangeAsked
    | Leaving
    | Founded
    | DoubtDropped
)


class Effects(Struct, frozen=True):
    """The effects of one step, in the order to carry them out. Nothing in `send` waits for a write of the same step.

    `save`, `cut` and `place` go through one queue in the order in which they were asked for.
    """

    save: Ballot | None = None
    """Put on disk; `Saved` says when."""
    cut: Point | None = None
    """Truncate the log to this point; `CutDone` says when."""
    place: tuple[tuple[Run, int], ...] = ()
    """Write these runs of the message just received, but for so many bytes at the beginning, which are here already."""
    role: Standing | None = None
    open_term: Config | None = None
    """Leader: append the record that opens the term, with this configuration, then say `Appended`."""
    send: tuple[tuple[MemberId, Message], ...] = ()
    fetch: tuple[tuple[MemberId, int, int], ...] = ()
    """(peer, index, bytes): read whole entries of one term from there on, at most so many bytes but at least one."""
    snapshot_to: tuple[MemberId, ...] = ()
    commit: Point | None = None
    doubt_over: bool = False
    """The log has reached a leader's commit index: the note of a doubtful recovery is no longer needed."""
    readmitted: bool = False
    """This member had lost its log, and votes from now on: to be noted, so that it is no learner in its next life."""
    done: tuple[tuple[int, TransferResult], ...] = ()
    """(token, outcome) of transfers that were asked for."""
    reads: tuple[tuple[int, bool], ...] = ()
    """(token, ok) of reads: read now, while this step is carried out; or refuse, since its time has passed."""
    snapshot: tuple[MemberId, SnapshotMessage] | None = None
    """Go on with the transfer of a snapshot: this is the message just received, of the leader or the peer of today."""
    install: Point | None = None
    """Have the snapshot that was taken replace the log, and begin anew with it. This node says nothing any more."""
    append_config: Config | None = None
    """Leader: append a record with this configuration, then say `Appended` of a run with it."""
    config: Config | None = None
    """The configuration in force is another one: by an append, a received run or a cut. `RaftNode.peers` may differ."""
    changed: tuple[tuple[int, ChangeResult], ...] = ()
    """(token, outcome) of changes that were asked for."""


NO_EFFECTS: Final = Effects()
