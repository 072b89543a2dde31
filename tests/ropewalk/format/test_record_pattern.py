"""A pattern packs the very bytes that `encode_record` would."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.errors import LocalProtocolError
from ropewalk.format.record import encode_record
from ropewalk.format.record_pattern import RecordPattern

_hosts = st.one_of(st.binary(min_size=8, max_size=8), st.binary(min_size=20, max_size=20))
_i32 = st.integers(-(2**31), 2**31 - 1)
_i64 = st.integers(-(2**63), 2**63 - 1)


@given(
    topic=st.binary(min_size=1, max_size=200),
    flags=st.tuples(_i32, _i32, _i32),
    hosts=st.tuples(_hosts, _hosts),
    before=st.binary(max_size=50),
    after=st.binary(max_size=300),
    messages=st.lists(
        st.tuples(_i32, _i64, _i64, _i64, _i64, st.binary(max_size=300), st.binary(min_size=4, max_size=4))
    ),
)
def test_a_pattern_packs_what_encoding_each_record_would(
    topic: bytes,
    flags: tuple[int, int, int],
    hosts: tuple[bytes, bytes],
    before: bytes,
    after: bytes,
    messages: list[tuple[int, int, int, int, int, bytes, bytes]],
) -> None:
    flag, sys_flag, times = flags
    born_host, store_host = hosts
    pattern = RecordPattern(topic, flag, sys_flag, born_host, store_host, times, before, 4, after)
    for queue_id, queue_offset, offset, born, now, body, key in messages:
        form = pattern.form(len(body))
        crc = zlib.crc32(body) & 0x7FFFFFFF
        fixed = (form.head, crc, queue_id, pattern.flag, queue_offset, offset, pattern.sys_flag, born)
        packed = form.pack(
            *fixed, pattern.born_host, now, form.rest, body, pattern.middle, key, pattern.after
        )
        properties = before + key + after
        wanted = (
            topic,
            queue_id,
            flag,
            queue_offset,
            offset,
            sys_flag,
            born,
            born_host,
            now,
            store_host,
            times,
        )
        assert packed == encode_record(*wanted, 0, body, properties)
        middle, cut = pattern.middle, len(pattern.middle) // 2
        in_pieces = pattern.in_pieces(cut, len(middle) - cut).form(len(body))
        pieces = middle[:cut], middle[cut:]
        host = pattern.born_host
        assert in_pieces.pack(*fixed, host, now, form.rest, body, *pieces, key, pattern.after) == packed
        assert len(packed) == form.size
        opening = form.opening(*fixed, pattern.born_host, now, form.rest)
        assert b"".join((opening, body, pattern.middle, key, pattern.after)) == packed


def test_pieces_have_to_be_as_long_as_what_they_replace() -> None:
    with pytest.raises(ValueError, match="middle"):
        RecordPattern(b"T", 0, 0, bytes(8), bytes(8), 0, b"", 1, b"").in_pieces(1, 1)


def test_a_record_that_no_size_field_can_hold_is_refused() -> None:
    pattern = RecordPattern(b"T", 0, 0, bytes(8), bytes(8), 0, b"", 1, b"")
    with pytest.raises(LocalProtocolError, match="size field"):
        pattern.form(2**31 - 50)
