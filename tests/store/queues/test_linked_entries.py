"""Linked entries are what was added, in runs of any length, before and after they went to another process."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from store.queues.linked_entries import LinkedEntries, unfolded

_I64 = st.integers(-(1 << 63), (1 << 63) - 1)
_RUNS = st.lists(
    st.tuples(
        st.integers(0, 1 << 50),
        st.integers(1, (1 << 31) - 1),
        _I64,
        st.lists(st.one_of(st.just(-1), st.integers(0, 1 << 50)), min_size=1, max_size=40),
    ),
    max_size=12,
)


@given(runs=_RUNS, more=_RUNS)
def test_every_entry_is_the_one_that_its_run_says(
    runs: list[tuple[int, int, int, list[int]]], more: list[tuple[int, int, int, list[int]]]
) -> None:
    entries, expected = LinkedEntries(), []
    for offset, size, tag_code, links in runs:
        entries.add(offset, size, tag_code, links)
        for at, link in enumerate(links):
            expected.append((struct.pack(">qiq", offset + at * size, size, tag_code), link))
    copied, sent = entries.copy(), unfolded(entries.packed())
    for offset, size, tag_code, links in more:
        entries.add(offset, size, tag_code, links)
    for each in (entries, copied, sent):
        assert [each.entry(at) for at in range(len(expected))] == expected
    assert (entries.packed() == copied.packed()) == (not more)
