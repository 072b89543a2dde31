from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.format.checkpoint import CHECKPOINT_SIZE, Checkpoint, CorruptCheckpoint

I64 = st.integers(-(2**63), 2**63 - 1)


@given(st.tuples(I64, I64, I64, I64, I64))
def test_a_checkpoint_survives_the_round_trip(fields: tuple[int, int, int, int, int]) -> None:
    checkpoint = Checkpoint(*fields)
    assert len(checkpoint.encode()) == CHECKPOINT_SIZE
    assert Checkpoint.decode(checkpoint.encode()) == checkpoint


def test_fields_stand_where_the_original_keeps_them() -> None:
    data = Checkpoint(1, 2, 3, 4, 5).encode()
    assert [int.from_bytes(data[at : at + 8], "big") for at in (0, 8, 16, 24, 32)] == [1, 2, 3, 4, 5]
    assert not any(data[40:])


def test_a_new_file_is_all_zeros() -> None:
    assert Checkpoint.decode(bytes(CHECKPOINT_SIZE)) == Checkpoint()
    assert not any(Checkpoint().encode())


def test_a_file_shorter_than_its_fields_is_corrupt() -> None:
    assert Checkpoint.decode(bytes(40)) == Checkpoint()
    for size in range(40):
        with pytest.raises(CorruptCheckpoint):
            Checkpoint.decode(bytes(size))


def test_the_flushed_time_is_the_lesser_one_less_a_margin_and_never_negative() -> None:
    assert Checkpoint(10_000, 9_000, 1).min_timestamp == 6_000
    assert Checkpoint(10_000, 2_000).min_timestamp == 0
