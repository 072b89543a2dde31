from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.errors import LocalProtocolError
from ropewalk.format.batch import BatchItem, MalformedBatch, encode_batch, split_batch
from ropewalk.format.properties import encode_properties

relaxed = settings(deadline=None, max_examples=200)

ITEMS = st.lists(
    st.builds(BatchItem, st.integers(-(2**31), 2**31 - 1), st.binary(max_size=40), st.binary(max_size=40)),
    min_size=1,
    max_size=6,
)

VECTOR = bytes.fromhex(
    "0000002b 00000000 00000000 00000000 00000002 6869 001354414753 01 41 02 554e49515f4b4559 01 5831 02"
)


def test_vector_one_item() -> None:
    item = BatchItem(0, b"hi", encode_properties({"TAGS": "A", "UNIQ_KEY": "X1"}))
    assert encode_batch([item]) == VECTOR
    assert split_batch(VECTOR) == [item]


@relaxed
@given(ITEMS)
def test_a_batch_survives_the_round_trip(items: list[BatchItem]) -> None:
    assert split_batch(encode_batch(items)) == items


@relaxed
@given(ITEMS, st.data())
def test_a_batch_cut_anywhere_but_between_items_is_malformed(
    items: list[BatchItem], data: st.DataObject
) -> None:
    whole = encode_batch(items)
    size = data.draw(st.integers(0, len(whole) - 1))
    edges = {len(encode_batch(items[:count])) for count in range(1, len(items))}
    if size in edges:
        assert len(split_batch(whole[:size])) < len(items)
    else:
        with pytest.raises(MalformedBatch):
            split_batch(whole[:size])


@relaxed
@given(ITEMS, st.data())
def test_a_hostile_batch_raises_nothing_but_malformed_batch(
    items: list[BatchItem], data: st.DataObject
) -> None:
    hostile = bytearray(encode_batch(items))
    for _ in range(data.draw(st.integers(1, 4))):
        hostile[data.draw(st.integers(0, len(hostile) - 1))] = data.draw(st.integers(0, 255))
    try:
        read = split_batch(bytes(hostile))
    except MalformedBatch:
        return
    # Whatever passes accounts for every byte, so nothing that was sent can be missing.
    assert len(encode_batch(read)) == len(hostile)


@relaxed
@given(st.binary(max_size=120))
def test_garbage_raises_nothing_but_malformed_batch(data: bytes) -> None:
    with contextlib.suppress(MalformedBatch):
        split_batch(data)


@pytest.mark.parametrize(
    ("position", "value"),
    [
        (0, b"\xff\xff\xff\xff"),
        (0, b"\x00\x00\x00\x00"),
        (0, b"\x00\x00\x00\x2a"),
        (0, b"\x00\x00\x00\x2c"),
        (0, b"\x7f\xff\xff\xff"),
        (16, b"\xff\xff\xff\xff"),
        (16, b"\x7f\xff\xff\xff"),
        (16, b"\x00\x00\x00\x03"),
        (22, b"\xff\xff"),
        (22, b"\x00\x12"),
        (22, b"\x00\x14"),
    ],
)
def test_a_length_out_of_bounds_is_malformed(position: int, value: bytes) -> None:
    with pytest.raises(MalformedBatch):
        split_batch(VECTOR[:position] + value + VECTOR[position + len(value) :])


def test_a_batch_without_items_is_malformed() -> None:
    with pytest.raises(MalformedBatch, match="without items"):
        split_batch(b"")


def test_magic_and_checksum_of_an_item_are_ignored() -> None:
    assert split_batch(VECTOR[:4] + b"\xff" * 8 + VECTOR[12:]) == split_batch(VECTOR)


def test_properties_at_their_limit_pass_and_beyond_it_do_not() -> None:
    items = [BatchItem(0, b"", b"x" * 32767)]
    assert split_batch(encode_batch(items)) == items
    with pytest.raises(LocalProtocolError):
        encode_batch([BatchItem(0, b"", b"x" * 32768)])
    oversized = (22 + 32768).to_bytes(4, "big") + bytes(16) + b"\x80\x00" + bytes(32768)
    with pytest.raises(MalformedBatch):
        split_batch(oversized)
