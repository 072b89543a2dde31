"""The bytes that a leader sent, kept for the look at them once they are committed."""

from __future__ import annotations

import random

import pytest

from store.entries import arrived
from store.entries.arrived import ArrivedBytes


def of(kept: ArrivedBytes, begin: int, end: int) -> tuple[int, bytes] | None:
    found = kept.find(begin, end)
    return None if found is None else (found.base_offset, found.map)


def test_pieces_that_follow_each_other_are_found_as_one() -> None:
    kept = ArrivedBytes()
    kept.add(100, b"aaaa")
    kept.add(104, memoryview(b"bbbb"))
    kept.add(120, b"cccc")  # the first of the next segment
    assert of(kept, 102, 200) == (102, b"aabbbb")
    assert of(kept, 102, 106) == (102, b"aabb")
    assert of(kept, 108, 200) is None
    assert of(kept, 120, 200) == (120, b"cccc")
    assert of(kept, 100, 200) is None, "what was looked at is gone"


def test_what_is_cut_is_not_found_again() -> None:
    kept = ArrivedBytes()
    kept.add(0, b"old!")
    kept.clear()
    kept.add(0, b"new!")
    assert of(kept, 0, 4) == (0, b"new!")


@pytest.mark.parametrize("seed", range(20))
def test_no_more_than_a_bound_is_kept_and_all_that_is_found_is_right(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrived, "_BYTES_MAX", 300)
    draw, kept, log = random.Random(seed), ArrivedBytes(), bytearray()
    for _ in range(60):
        piece = draw.randbytes(draw.randrange(1, 40))
        kept.add(len(log), piece)
        log += piece
        begin = draw.randrange(max(0, len(log) - 200), len(log))
        end = draw.randrange(begin, len(log)) + 1
        if draw.random() < 0.3 and (found := kept.find(begin, end)) is not None:
            assert found.map == log[begin:end] and found.base_offset == begin
        assert sum(len(data) for _, data in kept._pieces) <= 300
