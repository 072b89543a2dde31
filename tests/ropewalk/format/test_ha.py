"""The replication stream's bytes: vectors, every way of cutting them, and what cannot be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.errors import RemoteProtocolError
from ropewalk.format.ha import BODY_SIZE_MAX, Frames, Reports, encode_header, encode_report


def test_the_bytes_are_rocketmqs() -> None:
    assert encode_report(1073774592).hex() == "0000000040008000"
    assert encode_header(1073774592, 32768).hex() == "000000004000800000008000"
    assert encode_header(1073807360, 0).hex() == "000000004001000000000000"


def joined(pieces: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """Adjacent pieces as one; heartbeats stay by themselves."""
    found: list[tuple[int, bytes]] = []
    for offset, piece in pieces:
        if found and piece and found[-1][1] and found[-1][0] + len(found[-1][1]) == offset:
            found[-1] = (found[-1][0], found[-1][1] + piece)
        else:
            found.append((offset, piece))
    return found


def read(chunks: list[bytes]) -> list[tuple[int, bytes]]:
    frames = Frames()
    return joined([(offset, bytes(piece)) for chunk in chunks for offset, piece in frames.feed(chunk)])


STREAM = (
    encode_header(4096, 5)
    + b"abcde"
    + encode_header(4101, 0)
    + encode_header(4101, 3)
    + b"fgh"
    + encode_header(1 << 40, 1)
    + b"!"
)
MEANT = [(4096, b"abcde"), (4101, b""), (4101, b"fgh"), (1 << 40, b"!")]


def test_frames_cut_at_any_two_places_read_the_same() -> None:
    assert read([STREAM]) == MEANT
    assert read([bytes((byte,)) for byte in STREAM]) == MEANT
    for first in range(len(STREAM) + 1):
        for second in range(first, len(STREAM) + 1):
            assert read([STREAM[:first], STREAM[first:second], STREAM[second:]]) == MEANT


def test_a_body_is_handed_on_before_it_is_complete() -> None:
    frames = Frames()
    assert [(at, bytes(data)) for at, data in frames.feed(encode_header(7, 10) + b"abc")] == [(7, b"abc")]
    assert not frames.is_between
    assert [(at, bytes(data)) for at, data in frames.feed(b"defghij")] == [(10, b"defghij")]
    assert frames.is_between


@pytest.mark.parametrize(
    ("offset", "size"),
    [(0, BODY_SIZE_MAX + 1), (0, -1), (-1, 0), (-1, 10), (0, 0x7FFFFFFF), (-(1 << 63), 1)],
)
def test_a_header_that_cannot_be_is_refused_before_its_body_arrives(offset: int, size: int) -> None:
    data = encode_header(offset, size)
    frames = Frames()
    assert list(frames.feed(data[:11])) == []
    with pytest.raises(RemoteProtocolError, match="out of bounds"):
        list(frames.feed(data[11:]))


def test_what_came_before_a_bad_header_is_not_lost() -> None:
    frames = Frames()
    got = []
    with pytest.raises(RemoteProtocolError):
        for offset, piece in frames.feed(encode_header(0, 2) + b"ok" + b"HTTP/1.1 400 Bad Request\r\n"):
            got.append((offset, bytes(piece)))
    assert got == [(0, b"ok")]


@given(st.lists(st.integers(0, 2**63 - 1), max_size=20), st.data())
def test_reports_cut_anywhere_are_the_same_reports(values: list[int], data: st.DataObject) -> None:
    stream = b"".join(encode_report(value) for value in values)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    reports = Reports()
    got: list[int] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        got += reports.feed(stream[start:end])
    assert got == values


def test_reports_keep_their_grid_byte_by_byte() -> None:
    reports = Reports()
    stream = encode_report(5) + encode_report(1 << 50) + b"\0\0"
    got = [value for byte in stream for value in reports.feed(bytes((byte,)))]
    assert got == [5, 1 << 50]
