from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.format.properties import tags_code
from ropewalk.format.queue_entry import ENTRY_SIZE, PRE_BLANK, is_message, pack, unpack, unpack_all

I64 = st.integers(-(2**63), 2**63 - 1)
ENTRIES = st.lists(st.tuples(I64, st.integers(-(2**31), 2**31 - 1), I64), max_size=10)


@given(ENTRIES)
def test_entries_survive_the_round_trip_one_by_one_and_as_a_run(entries: list[tuple[int, int, int]]) -> None:
    run = b"".join(pack(*entry) for entry in entries)
    assert len(run) == ENTRY_SIZE * len(entries)
    assert unpack_all(run) == entries
    assert [unpack(run, ENTRY_SIZE * index) for index in range(len(entries))] == entries


@pytest.mark.parametrize(
    ("entry", "data"),
    [
        ((0, 115, tags_code("TagA")), "0000000000000000 00000073 000000000027a807"),
        ((0, 117, tags_code("refund")), "0000000000000000 00000075 ffffffffc847df78"),
    ],
)
def test_worked_examples(entry: tuple[int, int, int], data: str) -> None:
    assert pack(*entry) == bytes.fromhex(data)
    assert unpack(memoryview(bytes.fromhex(data))) == entry


def test_filling_and_unwritten_entries_are_no_messages() -> None:
    assert bytes.fromhex("0000000000000000 7fffffff 0000000000000000") == PRE_BLANK
    assert not is_message(unpack(PRE_BLANK).offset, unpack(PRE_BLANK).size)
    assert not is_message(0, 0)
    assert not is_message(-1, 100)
    assert not is_message(0, -1)
    assert is_message(0, 1)
