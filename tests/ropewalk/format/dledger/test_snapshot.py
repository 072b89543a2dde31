"""Snapshots of members as bytes: told from others, and from those that arrived damaged."""

from __future__ import annotations

import pytest

from ropewalk.errors import CorruptRecord
from ropewalk.format.dledger.snapshot import MemberSnapshot, decode_member_snapshot, encode_member_snapshot
from tests.store.entries.records import encoded

SNAPSHOT = MemberSnapshot(b'{"commit": [7, 2, 4200]}', [("T", 0, 9)], 12, b"tables", encoded(7, 4096))


def test_a_snapshot_comes_back_as_it_was() -> None:
    found = decode_member_snapshot(encode_member_snapshot(SNAPSHOT))
    assert found == SNAPSHOT
    assert (found.index, found.base) == (7, 4096)


@pytest.mark.parametrize("at", range(0, len(encode_member_snapshot(SNAPSHOT)), 7))
def test_a_flipped_byte_is_noticed_wherever_it_is(at: int) -> None:
    data = bytearray(encode_member_snapshot(SNAPSHOT))
    data[at] ^= 0x40
    with pytest.raises(CorruptRecord):
        decode_member_snapshot(bytes(data))


@pytest.mark.parametrize("size", [0, 11, 12, 80, len(encode_member_snapshot(SNAPSHOT)) - 1])
def test_a_snapshot_that_was_cut_is_none(size: int) -> None:
    with pytest.raises(CorruptRecord):
        decode_member_snapshot(encode_member_snapshot(SNAPSHOT)[:size])
