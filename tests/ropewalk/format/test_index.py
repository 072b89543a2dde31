"""The key index's layout: the worked example, the hash, and that the fast way to it is the slow way's twin."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.format.index import (
    HEADER_SIZE,
    ITEM,
    Geometry,
    IndexHeader,
    key_hash,
    record_hashes,
    time_difference,
)
from ropewalk.format.properties import encode_properties, java_hash

UNIQUE = "7F0000010BCC18B4AAC20A6B2C400000"
STORED = 1_700_000_000_126


def test_the_worked_example_gives_the_bytes_of_the_original() -> None:
    geometry = Geometry()
    properties = encode_properties({"UNIQ_KEY": UNIQUE, "KEYS": "order-1 order-2"})
    hashes = record_hashes(b"TopicTest", properties)
    assert hashes == [181286186, 1829193424, 1829193423]
    slots = [value % geometry.slots for value in hashes]
    assert slots == [1286186, 4193424, 4193423]
    assert [geometry.slot_position(slot) for slot in slots] == [5144784, 16773736, 16773732]
    assert [geometry.item_position(item) for item in (1, 2, 3)] == [20000060, 20000080, 20000100]
    header = IndexHeader(STORED, STORED, 497, 497, slots_used=3, next_item=4)
    assert header.encode() == bytes.fromhex(
        "0000018bcfe5687e 0000018bcfe5687e 00000000000001f1 00000000000001f1 00000003 00000004"
    )
    assert ITEM.pack(hashes[1], 497, 0, 0) == bytes.fromhex("6d0746d0 00000000000001f1 00000000 00000000")


def test_the_usual_file_has_the_size_of_the_originals() -> None:
    assert Geometry().file_size == 420_000_040


def test_two_keys_of_one_slot() -> None:
    assert key_hash("TopicTest", "k0") == 2746023
    assert key_hash("TopicTest", "n4189474") == 987746023
    assert 2746023 % 5_000_000 == 987746023 % 5_000_000


def test_the_one_hash_without_an_absolute_value_becomes_zero() -> None:
    topic = "t"
    # A key whose hash behind "t#" is that number: the digits, base 31, of what is left to reach it.
    least = 0x40 * sum(31**n for n in range(5))
    left = (0x80000000 - java_hash("t#") * 31**5 - least) % 2**32
    key = chr(0x40 + left // 31**4) + "".join(chr(0x40 + left // 31**n % 31) for n in (3, 2, 1, 0))
    assert java_hash(f"{topic}#{key}") == -(2**31)
    assert key_hash(topic, key) == 0
    assert record_hashes(b"t", encode_properties({"UNIQ_KEY": key})) == [0]


def test_a_tag_is_indexed_behind_the_keys_and_under_its_own_mark() -> None:
    properties = encode_properties({"TAGS": "TagA", "KEYS": "k", "UNIQ_KEY": "u"})
    assert record_hashes(b"T", properties) == [
        key_hash("T", "u"),
        key_hash("T", "k"),
        key_hash("T", "T#TagA"),
    ]


def test_a_record_without_keys_has_no_hashes() -> None:
    assert record_hashes(b"T", b"") == []
    assert record_hashes(b"T", b"WAIT\x01true\x02KEYS\x01\x02") == []
    assert record_hashes(b"T", b"KEYS\x01  \x02") == []


words = st.text(st.characters(exclude_characters="\x01\x02 ", codec="utf-8"), min_size=1, max_size=90)


@given(topic=words, unique=words, keys=st.lists(words, max_size=3), tag=st.none() | words)
def test_the_fast_hash_is_javas(topic: str, unique: str, keys: list[str], tag: str | None) -> None:
    properties = {"UNIQ_KEY": unique, "KEYS": " ".join(keys), "TAGS": tag or ""}
    expected = [key_hash(topic, key) for key in [unique, *keys]]
    if tag:
        expected.append(key_hash(topic, f"T#{tag}"))
    assert record_hashes(topic.encode(), encode_properties(properties)) == expected


def test_a_later_property_of_the_same_name_counts() -> None:
    assert record_hashes(b"T", b"UNIQ_KEY\x01a\x02UNIQ_KEY\x01b\x02") == [key_hash("T", "b")]


@pytest.mark.parametrize(
    ("stored", "begin", "seconds"),
    [(5_999, 1_000, 4), (1_000, 1_000, 0), (999, 1_000, 0), (5_000, 0, 0), (2**62, 1, 2**31 - 1)],
)
def test_time_differences_are_whole_seconds_and_never_negative(stored: int, begin: int, seconds: int) -> None:
    assert time_difference(stored, begin) == seconds


def test_a_file_of_zeros_is_an_empty_one() -> None:
    header = IndexHeader.decode(bytes(HEADER_SIZE))
    assert header == IndexHeader()
    assert header.next_item == 1
    assert Geometry(10, 10).holds(header)


def test_a_file_behind_a_full_one_begins_where_that_ended() -> None:
    header = IndexHeader(1, 2, 3, 4, 5, 6).following()
    assert header == IndexHeader(2, 2, 4, 4)


@pytest.mark.parametrize(
    "header",
    [
        IndexHeader(next_item=11),
        IndexHeader(next_item=-1),
        IndexHeader(slots_used=-1),
        IndexHeader(slots_used=3, next_item=3),
        IndexHeader(begin_offset=5, end_offset=4),
        IndexHeader(end_timestamp=-1),
    ],
)
def test_a_header_that_no_writer_leaves_is_noticed(header: IndexHeader) -> None:
    assert not Geometry(10, 10).holds(header)
