"""The bench reads replies out of raw bytes, many at once: it finds what reading each by itself finds."""

from __future__ import annotations

import itertools
import struct

from hypothesis import example, given
from hypothesis import strategies as st

from tools.bench.link import parse_replies, whole_frames


def test_opaque_and_code_are_found_whatever_the_order_and_the_texts_of_a_header() -> None:
    headers = [
        b'{"code":0,"flag":1,"opaque":11}',
        b'{"opaque":12,"flag":1,"remark":"\\"code\\":7,\\"opaque\\":9","code":0}',
        b'{"flag":1,"extFields":{"opaque":"5","code":"6"},"opaque":13,"code":0}',
        b'{"opaque": 14, "flag": 1, "code": 3, "remark": "spaced out"}',
    ]
    data = b"".join(struct.pack(">ii", len(header) + 4, len(header)) + header for header in headers)
    assert whole_frames(data) == (len(data), 4)
    assert whole_frames(data[:-1])[1] == 3
    opaques, refusals = parse_replies(data, 4)
    assert list(opaques) == [11, 12, 13, 14]
    assert list(refusals) == [(14, 3, "spaced out")]


@given(sizes=st.lists(st.sampled_from((4, 6, 8, 12)), min_size=1, max_size=9), cut=st.integers(0, 12))
@example(sizes=[6, 16, 6, 6], cut=0)
@example(sizes=[6] * 5, cut=0)
def test_frames_are_counted_as_far_as_they_are_whole(sizes: list[int], cut: int) -> None:
    frames = [struct.pack(">i", size) + bytes(size) for size in sizes]
    data = b"".join(frames)[: sum(map(len, frames)) - cut]
    ends = [end for end in itertools.accumulate(map(len, frames)) if end <= len(data)]
    assert whole_frames(data) == (ends[-1] if ends else 0, len(ends))


_LAYOUTS = (
    '{"code":CODE,"extFields":{"queueOffset":"NUMBER"},"flag":1,"opaque":OPAQUE,"version":479}',
    '{"code":CODE,"extFields":{"opaque":"NUMBER"},"flag":1,"opaque":OPAQUE,"version":1}',
    '{"code":CODE,"remark":"\\"opaque\\":NUMBER,","flag":1,"opaque":OPAQUE,"version":1}',
    # All of one size:
    '{"code":CODE,"letters":NUMBER,"opaque":OPAQUE,"flag":1}',
    '{"code":CODE,"opaque":OPAQUE,"letters":NUMBER,"flag":1}',
    '{"code":CODE,"flag":1,"letters":NUMBER,"opaque":OPAQUE}',
    '{"opaque":OPAQUE,"flag":1,"letters":NUMBER,"code":CODE}',
    '{"code":CODE,"others":{"opaque":NUMBER,"a":1},"flag":1,"opaque":OPAQUE,"b":1}',
)


@example(layouts=list(_LAYOUTS[3:5]), codes=(0,), replies=[(1, 2)] * 4, add=0)
@example(layouts=[_LAYOUTS[4]], codes=(0,), replies=[(5, 0), (0, 5)] * 2, add=5)
@example(layouts=[_LAYOUTS[7]], codes=(0,), replies=[(1, 2)] * 4, add=0)
@given(
    layouts=st.lists(st.sampled_from(_LAYOUTS), min_size=1, max_size=2),
    codes=st.sampled_from(((0,), (0,), (0, 2))),
    replies=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=4, max_size=9),
    add=st.sampled_from((0, 0, 5, 10)),
)
def test_replies_that_are_nearly_alike_are_read_as_each_by_itself(
    layouts: list[str], codes: tuple[int, ...], replies: list[tuple[int, int]], add: int
) -> None:
    data, expected = b"", []
    for index, (number, opaque) in enumerate(replies):
        code = codes[index % len(codes)]
        text = layouts[index % len(layouts)].replace("CODE", str(code)).replace("NUMBER", str(number + add))
        header = text.replace("OPAQUE", str(opaque + add)).encode()
        data += struct.pack(">ii", len(header) + 4, len(header)) + header
        expected.append((opaque + add, code))
    opaques, refusals = parse_replies(data, len(replies))
    assert list(opaques) == [opaque for opaque, _ in expected]
    assert [found[:2] for found in refusals] == [found for found in expected if found[1]]


def test_an_opaque_in_quotes_among_others_is_one_too() -> None:
    headers = [
        b'{"code":0,"flag":1,"opaque":%b,"version":1}' % text for text in (b"111", b"112", b"113", b'"4"')
    ]
    data = b"".join(struct.pack(">ii", len(header) + 4, len(header)) + header for header in headers)
    assert list(parse_replies(data, 4)[0]) == [111, 112, 113, 4]


def test_a_reply_that_has_numbers_where_others_have_their_opaque_is_one_reply() -> None:
    head, end = b'{"code":0,"flag":1,', b'"version":1}'
    alike = [head + b'"opaque":%d,"remark":"yyyyyyyyy",' % (1111111110 + n) + end for n in range(4)]
    odd = b'{"code":0,"a":"xxxx' + b"1111111111,22222222," + b'","opaque":5,"b":"%b"}'
    odd = odd.replace(b"%b", b"y" * (len(alike[0]) - len(odd) + 2))
    headers = [*alike, odd]
    assert {len(header) for header in headers} == {len(odd)}
    data = b"".join(struct.pack(">ii", len(header) + 4, len(header)) + header for header in headers)
    assert list(parse_replies(data, 5)[0]) == [*(1111111110 + n for n in range(4)), 5]
