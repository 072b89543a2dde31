"""Frames between members: cut anywhere they are the same, and what cannot be is refused before its body arrives."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise

import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.errors import RemoteProtocolError
from ropewalk.format.dledger.frame import (
    BODY_SIZE_MAX,
    HEAD_SIZE,
    OK,
    PRE,
    ROLLED,
    TRANSFER,
    Frame,
    Frames,
    Kind,
    encode_head,
    encode_head_with,
)

BODY = b"the entries as they stand"
FRAMES = [
    (Kind.VOTE, PRE, 0, (7, 120, 6, 0, 0, 0), b""),
    (Kind.APPEND, ROLLED, 3, (7, 120, 6, 48_000, 7, 119), BODY),
    (Kind.APPEND, 0, 0, (7, -1, -1, 0, 0, -1), b""),
    (Kind.APPEND_ANSWER, OK, 0, (7, 123, 123, -1, -1, 0), b""),
    (Kind.HEARTBEAT, 0, 0xFFFFFFFF, (7, 123, 0, 0, 0, 0), b""),
    (Kind.PING, 0, 0, (0, 0, 0, 0, 0, 0), b""),
    (Kind.HEARTBEAT_ANSWER, 0, 1, (7, 123, 122, 0, 0, 0), b""),
    (Kind.VOTE, PRE | TRANSFER, 0, (8, 123, 7, 0, 0, 0), b""),
    (Kind.VOTE_ANSWER, 0, 6, (8, 0, 0, 0, 0, 0), b""),
    (Kind.FORWARD, 0, 9, (0, 0, 0, 0, 0, 0), b"a request"),
    (Kind.FORWARD_ANSWER, 0, 9, (0, 0, 0, 0, 0, 0), b"its answer"),
    (Kind.APPEND, 0, 1, (7, 123, 7, 49_000, 7, 123), b"x" * 70_000),
]
WIRE = b"".join(
    encode_head(kind, flags, 5, count, numbers, body) + body for kind, flags, count, numbers, body in FRAMES
)


def read(pieces: list[bytes]) -> list[Frame]:
    frames = Frames()
    found = [frame for piece in pieces for frame in frames.feed(piece)]
    assert frames.is_between
    return found


def checked(found: list[Frame]) -> None:
    assert [(f.kind, f.flags, f.count, f.numbers, bytes(f.body)) for f in found] == FRAMES
    assert {f.group for f in found} == {5}


def test_the_bytes_of_a_head() -> None:
    head = encode_head(Kind.APPEND, ROLLED, 2, 3, (1, -1, 4, 5, 6, 7), BODY)
    assert len(head) == HEAD_SIZE
    assert head.hex(" ", 4) == (
        f"00000055 01010002 00000003 {crc32c.crc32c(BODY):08x} "
        "00000000 00000001 ffffffff ffffffff 00000000 00000004 00000000 00000005 00000000 00000006 00000000 00000007"
    )
    assert head == encode_head_with(
        Kind.APPEND, ROLLED, 2, 3, (1, -1, 4, 5, 6, 7), len(BODY), crc32c.crc32c(BODY)
    )


def test_frames_decode_as_a_whole() -> None:
    checked(read([WIRE]))


def test_frames_decode_byte_by_byte() -> None:
    short = WIRE[: -70_000 - HEAD_SIZE]
    found = read([short[at : at + 1] for at in range(len(short))])
    checked([*found, *read([WIRE[len(short) :]])])


@given(st.lists(st.integers(0, len(WIRE)), max_size=12))
def test_a_stream_cut_anywhere_decodes_the_same(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(WIRE)]
    checked(read([WIRE[begin:end] for begin, end in pairwise(edges)]))


def test_an_incomplete_frame_is_kept_and_said() -> None:
    frames = Frames()
    (frame,) = frames.feed(WIRE[: HEAD_SIZE + 10])
    assert frame.kind is Kind.VOTE
    assert not frames.is_between


@pytest.mark.parametrize(
    ("at", "value", "why"),
    [
        (0, (59).to_bytes(4), "out of bounds"),
        (0, (HEAD_SIZE - 4 + BODY_SIZE_MAX + 1).to_bytes(4), "out of bounds"),
        (0, b"\xff\xff\xff\xff", "out of bounds"),
        (4, b"\0", "of kind 0"),
        (4, b"\x11", "of kind 17"),
        (4, b"\x0b", "flags 0x1"),
        (4, b"\x03", "flags 0x1"),
        (4, b"\x06", "has no body"),
        (5, b"\x04", "flags 0x4"),
        (8, bytes(4), "append of 0 entries"),
        (16, b"\xff" * 7 + b"\xfe", "below -1"),
    ],
)
def test_a_head_that_cannot_be_is_refused_before_its_body_arrives(at: int, value: bytes, why: str) -> None:
    head = encode_head(Kind.APPEND, ROLLED, 0, 3, (1, 2, 1, 5, 1, 7), BODY)
    broken = head[:at] + value + head[at + len(value) :]
    with pytest.raises(RemoteProtocolError, match=why):
        list(Frames().feed(broken))
    with pytest.raises(RemoteProtocolError, match=why):
        read([broken[at : at + 1] for at in range(HEAD_SIZE)])


def test_a_size_out_of_bounds_is_refused_by_its_four_bytes() -> None:
    with pytest.raises(RemoteProtocolError, match="out of bounds"):
        list(Frames().feed(b"\x7f\xff\xff\xff"))


def test_an_append_without_entries_has_no_checksum() -> None:
    with pytest.raises(RemoteProtocolError, match="append of 0 entries"):
        list(Frames().feed(encode_head_with(Kind.APPEND, 0, 0, 0, (1, 2, 1, 5, 0, 0), 0, 17)))


def test_a_body_that_changed_on_its_way_is_refused() -> None:
    head = encode_head(Kind.APPEND, 0, 0, 1, (1, 2, 1, 5, 1, 7), BODY)
    with pytest.raises(RemoteProtocolError, match="not the one that was sent"):
        list(Frames().feed(head + BODY[:-1] + b"!"))


@given(st.binary(max_size=200), st.integers(1, 64))
def test_any_bytes_are_read_or_refused(data: bytes, step: int) -> None:
    frames = Frames()
    with suppress(RemoteProtocolError):
        for at in range(0, len(data), step):
            list(frames.feed(data[at : at + step]))
