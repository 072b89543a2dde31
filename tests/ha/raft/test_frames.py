"""Messages of the core through frames and back; a frame cannot claim a place that a log does not have."""

from __future__ import annotations

import pytest

from ha.raft.frames import from_frame, to_fields
from ha.raft.types import (
    NOTHING,
    Append,
    AppendAnswer,
    Heartbeat,
    HeartbeatAnswer,
    Message,
    Point,
    Read,
    ReadAnswer,
    Run,
    TakeLead,
    Vote,
    VoteAnswer,
    VoteResult,
)
from ropewalk.errors import RemoteProtocolError
from ropewalk.format.dledger.frame import Frame, Frames, Kind, encode_head

SEGMENT = 1000
MESSAGES: list[Message] = [
    Append(7, NOTHING, None, -1),
    Append(7, NOTHING, Run(0, 2, 3, 0, 200), -1),
    Append(7, Point(41, 6, 800), Run(42, 3, 7, 800, 150), 40),
    Append(7, Point(41, 6, 800), Run(42, 3, 7, 1000, 300), 41),
    AppendAnswer(7, True, -1, 41, 44, -1),
    AppendAnswer(7, False, 41, -1, 30, 5),
    Heartbeat(7, 41, 123),
    HeartbeatAnswer(7, 123, 44, 41),
    HeartbeatAnswer(7, 123, 44, 41, able=False),
    HeartbeatAnswer(7, 123, 44, 41, counts=False),
    AppendAnswer(7, True, -1, 41, 44, -1, counts=False),
    TakeLead(7),
    Read(7, 12),
    ReadAnswer(7, 12, 41),
    ReadAnswer(7, 12, -1),
    *(Vote(8, 44, 7, pre, transfer) for pre in (False, True) for transfer in (False, True)),
    *(VoteAnswer(8, pre, result) for pre in (False, True) for result in VoteResult),
]


@pytest.mark.parametrize("message", MESSAGES, ids=str)
def test_a_message_comes_back_as_it_was(message: Message) -> None:
    kind, flags, count, numbers = to_fields(message)
    body = b""
    if isinstance(message, Append) and message.run is not None:
        body = b"e" * message.run.size
    (frame,) = Frames().feed(encode_head(kind, flags, 0, count, numbers, body) + body)
    assert from_frame(frame, SEGMENT) == message


@pytest.mark.parametrize(
    "frame",
    [
        Frame(Kind.HEARTBEAT, 0, 0, 0, (-1, 0, 0, 0, 0, 0)),
        Frame(Kind.VOTE_ANSWER, 0, 0, 14, (1, 0, 0, 0, 0, 0)),
        Frame(Kind.APPEND, 0, 0, 0, (1, -1, 3, 0, 0, 0)),
        Frame(Kind.APPEND, 0, 0, 0, (1, 3, -1, 0, 0, 0)),
        Frame(Kind.APPEND, 0, 0, 0, (1, 3, 1, -1, 0, 0)),
        Frame(Kind.APPEND, 0, 0, 2, (1, 3, 1, 900, 1, 0), b"e" * 101),
        Frame(Kind.APPEND, 1, 0, 2, (1, 3, 1, 900, 1, 0), b"e" * 1001),
    ],
    ids=str,
)
def test_a_frame_that_says_nothing_is_refused(frame: Frame) -> None:
    with pytest.raises(RemoteProtocolError):
        from_frame(frame, SEGMENT)
