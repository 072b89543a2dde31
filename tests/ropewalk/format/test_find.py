"""What is searched for in a map is found as in bytes, and nothing behind the map is touched."""

from __future__ import annotations

import mmap

from hypothesis import given
from hypothesis import strategies as st

from ropewalk.format.find import find_bytes

PAGE = mmap.PAGESIZE


@given(
    tail=st.binary(max_size=12).map(lambda some: bytes(byte & 1 for byte in some)),
    wanted=st.binary(min_size=1, max_size=5).map(lambda some: bytes(byte & 1 for byte in some)),
    start=st.integers(0, 14),
    end=st.integers(-14, 3),
)
def test_bytes_are_found_up_to_the_last_byte_of_a_map_with_nothing_behind_it(
    tail: bytes, wanted: bytes, start: int, end: int
) -> None:
    """`mmap.find` itself ends the process here, before Python 3.11.5."""
    text = (b"\2" * PAGE + tail)[-PAGE:]
    start, end = PAGE - start, PAGE + end
    with mmap.mmap(-1, 2 * PAGE) as data:
        data.resize(PAGE)  # and the page behind is nobody's
        data[:] = text
        assert (
            find_bytes(data, wanted, start, end)
            == find_bytes(text, wanted, start, end)
            == text.find(wanted, start, end)
        )
