"""Messages of the core as frames of `ropewalk.format.dledger.frame`, and back.

A run travels as its bytes; where it stands follows from `prev`, unless it is the first of a segment: that flag and the
size of a segment say the rest. So a frame cannot claim a place that the receiver's log does not have.
"""

from __future__ import annotations

from ha.raft.types import (
    Append,
    AppendAnswer,
    Config,
    Heartbeat,
    HeartbeatAnswer,
    Message,
    Point,
    Read,
    ReadAnswer,
    Run,
    SnapshotAnswer,
    SnapshotBegin,
    SnapshotChunk,
    SnapshotEnd,
    TakeLead,
    Vote,
    VoteAnswer,
    VoteResult,
)
from ropewalk.errors import CorruptRecord, RemoteProtocolError
from ropewalk.format.dledger.configuration import Configuration
from ropewalk.format.dledger.entry import configuration_in
from ropewalk.format.dledger.frame import (
    CONFIG,
    LEARNER,
    OK,
    PRE,
    ROLLED,
    STATELESS,
    TRANSFER,
    UNABLE,
    Frame,
    Kind,
)

Numbers = tuple[int, int, int, int, int, int]


def to_fields(message: Message) -> tuple[Kind, int, int, Numbers]:
    """Return kind, flags, count and numbers of the frame for a message; the bytes of a run are its body."""
    match message:
        case Append(term, prev, run, commit):
            if run is None:
                return Kind.APPEND, 0, 0, (term, prev.index, prev.term, prev.pos, 0, commit)
            flags = (ROLLED if run.pos != prev.pos else 0) | (CONFIG if run.config is not None else 0)
            return Kind.APPEND, flags, run.count, (term, prev.index, prev.term, prev.pos, run.term, commit)
        case AppendAnswer(term, ok, prev_index, durable, last, hint_term, counts, lacks_state):
            flags = (OK if ok else 0) | (0 if counts else LEARNER) | (STATELESS if lacks_state else 0)
            return Kind.APPEND_ANSWER, flags, 0, (term, durable, last, hint_term, prev_index, 0)
        case Heartbeat(term, commit, number):
            return Kind.HEARTBEAT, 0, number & 0xFFFFFFFF, (term, commit, 0, 0, 0, 0)
        case HeartbeatAnswer(term, number, last, durable, able, counts):
            flags = (0 if able else UNABLE) | (0 if counts else LEARNER)
            return Kind.HEARTBEAT_ANSWER, flags, number & 0xFFFFFFFF, (term, last, durable, 0, 0, 0)
        case Vote(term, last_index, last_term, pre, transfer):
            flags = (PRE if pre else 0) | (TRANSFER if transfer else 0)
            return Kind.VOTE, flags, 0, (term, last_index, last_term, 0, 0, 0)
        case VoteAnswer(term, pre, result):
            return Kind.VOTE_ANSWER, PRE if pre else 0, result, (term, 0, 0, 0, 0, 0)
        case TakeLead(term):
            return Kind.TAKE_LEAD, 0, 0, (term, 0, 0, 0, 0, 0)
        case Read(term, number):
            return Kind.READ, 0, number & 0xFFFFFFFF, (term, 0, 0, 0, 0, 0)
        case ReadAnswer(term, number, index):
            return Kind.READ_ANSWER, 0, number & 0xFFFFFFFF, (term, index, 0, 0, 0, 0)
        case SnapshotBegin(term, point, size):
            return Kind.SNAPSHOT_BEGIN, 0, 0, (term, point.index, point.term, point.pos, size, 0)
        case SnapshotChunk(term, index, offset):
            return Kind.SNAPSHOT_CHUNK, 0, 0, (term, index, offset, 0, 0, 0)
        case SnapshotEnd(term, index, size, checksum):
            return Kind.SNAPSHOT_END, 0, checksum, (term, index, size, 0, 0, 0)
        case SnapshotAnswer(term, index, received):
            return Kind.SNAPSHOT_ANSWER, 0, 0, (term, index, received, 0, 0, 0)


def from_frame(frame: Frame, segment_size: int) -> Message:
    """Return the message of a frame. Raises `RemoteProtocolError` for one that says nothing."""
    first, second, third, fourth, fifth, sixth = frame.numbers
    if first < 0:
        raise RemoteProtocolError(f"a message of term {first}: {frame.kind.name}")
    match frame.kind:
        case Kind.APPEND:
            prev = Point(second, third, fourth)
            return Append(first, prev, _run(frame, prev, segment_size), sixth)
        case Kind.APPEND_ANSWER:
            counts = not frame.flags & LEARNER
            ok, lacks_state = bool(frame.flags & OK), bool(frame.flags & STATELESS)
            return AppendAnswer(first, ok, fifth, second, third, fourth, counts, lacks_state)
        case Kind.HEARTBEAT:
            return Heartbeat(first, second, frame.count)
        case Kind.HEARTBEAT_ANSWER:
            able, counts = not frame.flags & UNABLE, not frame.flags & LEARNER
            return HeartbeatAnswer(first, frame.count, second, third, able, counts)
        case Kind.VOTE:
            return Vote(first, second, third, bool(frame.flags & PRE), bool(frame.flags & TRANSFER))
        case Kind.VOTE_ANSWER:
            if frame.count > max(VoteResult):
                raise RemoteProtocolError(f"no vote is answered with {frame.count}")
            return VoteAnswer(first, bool(frame.flags & PRE), VoteResult(frame.count))
        case Kind.TAKE_LEAD:
            return TakeLead(first)
        case Kind.READ:
            return Read(first, frame.count)
        case Kind.READ_ANSWER:
            return ReadAnswer(first, frame.count, second)
        case Kind.SNAPSHOT_BEGIN:
            return SnapshotBegin(first, Point(second, third, fourth), fifth)
        case Kind.SNAPSHOT_CHUNK:
            return SnapshotChunk(first, second, third)
        case Kind.SNAPSHOT_END:
            return SnapshotEnd(first, second, third, frame.count)
        case Kind.SNAPSHOT_ANSWER:
            return SnapshotAnswer(first, second, third)
        case Kind.PING | Kind.FORWARD | Kind.FORWARD_ANSWER | Kind.BLOCK | Kind.BLOCK_ANSWER:
            raise RemoteProtocolError(f"a {frame.kind.name} is no message of the core")


def _run(frame: Frame, prev: Point, segment_size: int) -> Run | None:
    if (prev.index < 0) is not (prev.term < 0) or prev.pos < 0:
        raise RemoteProtocolError(f"no log ends with {prev}")
    if not frame.count:
        return None
    pos = prev.pos
    if frame.flags & ROLLED:
        pos = (pos // segment_size + 1) * segment_size
    size = len(frame.body)
    if pos // segment_size != (pos + size - 1) // segment_size:
        raise RemoteProtocolError(f"a run of {size} bytes at {pos} crosses the border of two segments")
    config = _config(frame) if frame.flags & CONFIG else None
    return Run(prev.index + 1, frame.count, frame.numbers[4], pos, size, config)


def _config(frame: Frame) -> Config:
    if frame.count != 1:
        raise RemoteProtocolError(f"the entry of a configuration came with {frame.count - 1} others")
    try:
        return config_of(configuration_in(frame.body))
    except CorruptRecord as exc:
        raise RemoteProtocolError(f"an entry that has to hold a configuration holds none: {exc}") from exc


def config_of(found: Configuration) -> Config:
    """Return the core's view of a configuration in the log: the members, without their addresses."""
    return Config(found.voters, found.old, found.learners, tuple(sorted(found.incarnations.items())))
