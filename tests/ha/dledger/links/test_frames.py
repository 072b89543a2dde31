"""Messages of the core through frames and back; a frame cannot claim a place that a log does not have."""

from __future__ import annotations

import pytest

from ha.dledger.links.frames import from_frame, to_fields
from ha.raft.types import (
    NOTHING,
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
    TakeLead,
    Vote,
    VoteAnswer,
    VoteResult,
)
from ropewalk.errors import RemoteProtocolError
from ropewalk.format.dledger.configuration import Configuration, encode_configuration
from ropewalk.format.dledger.entry import encode_entries
from ropewalk.format.dledger.frame import CONFIG, Frame, Frames, Kind, encode_head
from ropewalk.format.names import TERM_TOPIC
from ropewalk.format.record import encode_record

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
    AppendAnswer(7, False, -1, -1, -1, -1, lacks_state=True),
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


CONFIG_RUN_BODY = encode_configuration(
    Configuration(7, "n0", ("n0", "n1"), ("n0",), ("n2",), {"n0": "h:1"}, {"n1": bytes(16)})
)


def configuration_entry(index: int, pos: int) -> bytes:
    record = encode_record(
        TERM_TOPIC.encode(), 0, 0, index, pos + 48, 0, 0, bytes(8), 0, bytes(8), 0, 0, CONFIG_RUN_BODY, b""
    )
    return encode_entries(index, 7, pos, [record])


def test_the_run_of_a_configuration_says_which_out_of_its_entry() -> None:
    entry = configuration_entry(42, 800)
    config = Config(("n0", "n1"), ("n0",), ("n2",), (("n1", bytes(16)),))
    message = Append(7, Point(41, 6, 800), Run(42, 1, 7, 800, len(entry), config), 40)
    kind, flags, count, numbers = to_fields(message)
    (frame,) = Frames().feed(encode_head(kind, flags, 0, count, numbers, entry) + entry)
    assert from_frame(frame, 10_000) == message


@pytest.mark.parametrize("count, entry", [(2, configuration_entry(42, 800)), (1, b"e" * 200)])
def test_a_frame_that_has_no_configuration_and_says_so_is_refused(count: int, entry: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        from_frame(Frame(Kind.APPEND, CONFIG, 0, count, (7, 41, 6, 800, 7, 40), entry), 10_000)


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
