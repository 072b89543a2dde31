"""Entry heads, fillers and index entries: DLedger's bytes, and nothing else is taken for them."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.errors import CorruptRecord
from ropewalk.format.dledger.entry import (
    ENTRY_SIZE_MAX,
    HEAD_SIZE,
    INDEX_SIZE,
    check_body,
    decode_head,
    decode_index,
    encode_entries,
    encode_filler,
    encode_head,
    encode_index,
    filler_size,
)

# Of DLedger itself, which writes no checksum: magic 1, index 7, term 3, position 350, body "abc".
ENTRY = bytes.fromhex(
    "000000010000003300000000000000070000000000000003000000000000015e00000000000000000000000000000003616263"
)
INDEX = bytes.fromhex("00000001000000000000015e0000003300000000000000070000000000000003")


def test_an_entry_of_dledger_is_read() -> None:
    head = decode_head(ENTRY)
    assert (head.magic, head.size, head.index, head.term, head.pos, head.crc) == (1, 51, 7, 3, 350, 0)
    check_body(head, ENTRY[HEAD_SIZE:])


def test_an_entry_differs_from_dledgers_by_its_checksum_alone() -> None:
    ours = encode_head(7, 3, 350, b"abc") + b"abc"
    assert ours[:40] + bytes(4) + ours[44:] == ENTRY
    assert ours[40:44] == bytes.fromhex("352441c2")  # CRC-32 of "abc"


def test_an_index_entry_of_dledger_is_read_and_written() -> None:
    found = decode_index(INDEX)
    assert found is not None
    assert (found.magic, found.pos, found.size, found.index, found.term) == (1, 350, 51, 7, 3)
    assert encode_index(7, 3, 350, [51]) == INDEX
    assert decode_index(bytes(INDEX_SIZE)) is None


@given(
    st.lists(st.binary(max_size=300), min_size=1, max_size=20),
    st.integers(0, 1 << 40),
    st.integers(0, 1 << 40),
)
def test_entries_by_columns_are_entries_one_by_one(bodies: list[bytes], first: int, pos: int) -> None:
    data = encode_entries(first, 9, pos, bodies)
    index = encode_index(first, 9, pos, [HEAD_SIZE + len(body) for body in bodies])
    at = 0
    for number, body in enumerate(bodies):
        assert data[at : at + HEAD_SIZE] == encode_head(first + number, 9, pos + at, body)
        head = decode_head(data, at)
        found = decode_index(index, number * INDEX_SIZE)
        assert found is not None
        assert (head.index, head.pos, head.size) == (found.index, found.pos, found.size)
        check_body(head, data[at + HEAD_SIZE : at + head.size])
        at += head.size
    assert at == len(data)


@pytest.mark.parametrize("at", range(HEAD_SIZE, 51))
def test_a_flipped_bit_of_a_body_is_noticed(at: int) -> None:
    entry = bytearray(encode_head(7, 3, 350, b"abc") + b"abc")
    entry[at] ^= 1
    with pytest.raises(CorruptRecord, match="is not what was written"):
        check_body(decode_head(bytes(entry)), bytes(entry[HEAD_SIZE:]))


@pytest.mark.parametrize("size", [*range(HEAD_SIZE)])
def test_a_head_that_is_cut_is_refused(size: int) -> None:
    with pytest.raises(CorruptRecord, match="48 bytes"):
        decode_head(ENTRY[:size])


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (0, 0), (0, 3), (0, -1),  # magic
        (4, 50), (4, 52), (4, -1), (4, ENTRY_SIZE_MAX + 1),  # size
        (44, 4), (44, -1),  # body size
    ],
)  # fmt: skip
def test_a_head_that_cannot_be_is_refused(at: int, value: int) -> None:
    with pytest.raises(CorruptRecord):
        decode_head(ENTRY[:at] + value.to_bytes(4, signed=True) + ENTRY[at + 4 :])


@pytest.mark.parametrize("at", [8, 16, 24])
def test_a_negative_number_is_refused(at: int) -> None:
    with pytest.raises(CorruptRecord, match="cannot have"):
        decode_head(ENTRY[:at] + b"\xff" * 8 + ENTRY[at + 8 :])
    with pytest.raises(CorruptRecord):
        decode_index(b"\xff" * INDEX_SIZE)


@pytest.mark.parametrize("size", [8, 9, 400])
def test_a_filler_says_how_much_it_fills(size: int) -> None:
    filler = encode_filler(size)
    assert len(filler) == size
    assert filler[:8] == b"\xff\xff\xff\xff" + size.to_bytes(4)
    assert filler_size(filler) == size
    with pytest.raises(CorruptRecord):
        decode_head(filler.ljust(HEAD_SIZE, b"\0"))


@pytest.mark.parametrize("data", [b"", b"\xff\xff\xff\xff", ENTRY, bytes(8), b"\xff\xff\xff\xff\0\0\0\x07"])
def test_what_is_no_filler_is_none(data: bytes) -> None:
    assert filler_size(data) is None


@given(st.binary(max_size=100))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for decode in (decode_head, decode_index, filler_size):
        with suppress(CorruptRecord):
            decode(data)
