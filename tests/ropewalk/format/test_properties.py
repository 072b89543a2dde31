from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.errors import LocalProtocolError
from ropewalk.format.properties import (
    encode_properties,
    find_property,
    fit_properties,
    java_hash,
    parse_properties,
    tags_code,
)

relaxed = settings(deadline=None, max_examples=200)

PLAIN = st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02")
NAMES = st.text(PLAIN, min_size=1, max_size=10)
VALUES = st.text(st.one_of(PLAIN, st.just("\x01")), min_size=1, max_size=10)


@relaxed
@given(st.dictionaries(NAMES, VALUES, max_size=8))
def test_properties_survive_the_round_trip(properties: dict[str, str]) -> None:
    text = encode_properties(properties)
    assert parse_properties(text) == properties
    assert parse_properties(text.decode()) == properties


@relaxed
@given(st.dictionaries(NAMES, VALUES, min_size=1, max_size=8))
def test_the_last_separator_is_optional(properties: dict[str, str]) -> None:
    assert parse_properties(encode_properties(properties)[:-1]) == properties


@pytest.mark.parametrize(
    ("text", "properties"),
    [
        ("", {}),
        ("\x02\x02", {}),
        ("a\x01b", {"a": "b"}),
        ("a\x01\x02c\x01d\x02", {"c": "d"}),
        ("\x01b\x02c\x01d\x02", {"c": "d"}),
        ("noseparator\x02c\x01d", {"c": "d"}),
        ("\x01\x02\x01\x01x\x02", {}),
        ("a\x01b\x01c\x02", {"a": "b\x01c"}),
        ("a\x01\x01\x02", {"a": "\x01"}),
        ("a\x01first\x02a\x01second\x02", {"a": "second"}),
        ("a\x01first\x02a\x01\x02", {"a": "first"}),
    ],
)
def test_pieces_that_say_nothing_are_dropped_and_the_first_0x01_separates(
    text: str, properties: dict[str, str]
) -> None:
    assert parse_properties(text) == properties


def test_text_that_is_not_utf8_is_read_with_replacements() -> None:
    assert parse_properties(b"a\x01\xff\x02b\x01c") == {"a": "�", "b": "c"}


@relaxed
@given(st.binary(max_size=100))
def test_no_bytes_can_make_the_parser_raise(text: bytes) -> None:
    parse_properties(text)


def test_entries_that_no_reader_would_see_are_not_written() -> None:
    assert encode_properties({"a": "", "": "b", "c": "d"}) == b"c\x01d\x02"


@pytest.mark.parametrize(
    "properties",
    [{"a\x01b": "c"}, {"a\x02": "c"}, {"a": "c\x02"}, {"a": "b\x02c\x01d"}, {"": "x", "a\x01z": "b\x02"}],
)
def test_a_separator_inside_an_entry_is_our_own_error(properties: dict[str, str]) -> None:
    with pytest.raises(LocalProtocolError, match="separator"):
        encode_properties(properties)


def test_half_a_surrogate_pair_is_our_own_error() -> None:
    with pytest.raises(LocalProtocolError):
        encode_properties({"a": "\ud800"})


@relaxed
@given(st.text("aAB\x01\x02", max_size=30), st.text("aAB", min_size=1, max_size=2))
def test_finding_one_property_agrees_with_parsing_them_all(text: str, name: str) -> None:
    expected = parse_properties(text).get(name)
    assert find_property(text.encode(), name.encode()) == (expected.encode() if expected else None)


# Hashes


def java_hash_by_definition(text: str) -> int:
    units = text.encode("utf-16-be", "surrogatepass")
    total = 0
    for position in range(0, len(units), 2):
        power = len(units) // 2 - 1 - position // 2
        total += int.from_bytes(units[position : position + 2], "big") * pow(31, power, 2**32)
    return (total + 2**31) % 2**32 - 2**31


@relaxed
@given(st.text(st.characters(), max_size=30))
def test_the_hash_agrees_with_its_definition(text: str) -> None:
    assert java_hash(text) == java_hash_by_definition(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("TagA", 2598919),
        ("TagB", 2598920),
        ("order-paid", 710106603),
        ("标签", 857175),
        ("\U0001f600", 1772899),
        ("refund", -934813832),
        ("TopicTest#7F0000010BCC18B4AAC20A6B2C400000", -181286186),
        ("TopicTest#order-1", -1829193424),
        ("TopicTest#order-2", -1829193423),
    ],
)
def test_hash_vectors(text: str, value: int) -> None:
    assert java_hash(text) == value
    assert tags_code(text) == value


def test_no_tag_hashes_to_zero() -> None:
    assert tags_code(None) == 0
    assert tags_code("") == 0


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a\x011\x02a\x012\x02", b"2"),
        ("a\x011\x02a\x01\x02", b"1"),
        ("b\x01a\x011\x02a\x012", b"2"),
        ("ba\x011\x02", None),
        ("a\x01", None),
    ],
)
def test_one_property_is_found_as_if_all_were_read(text: str, found: bytes | None) -> None:
    assert find_property(text.encode(), b"a") == found
    assert parse_properties(text).get("a") == (found.decode() if found else None)


def test_what_does_not_fit_is_dropped_longest_first_and_named() -> None:
    properties = {"a": "1", "long": "x" * 500, "longer": "y" * 600, "KEYS": "k" * 50, "UNIQ_KEY": "u"}
    assert fit_properties(properties, 5000) == properties
    fitted = fit_properties(properties, 700)
    assert set(fitted) == {"a", "long", "KEYS", "UNIQ_KEY", "DROPPED_PROPERTIES"}
    assert fitted["DROPPED_PROPERTIES"] == "longer"
    assert len(encode_properties(fitted)) <= 700
    least = fit_properties(properties, 90)
    assert least["UNIQ_KEY"] == "u" and "KEYS" not in least and "a" not in least


def test_only_what_brokers_and_clients_live_by_stays_to_the_last() -> None:
    many = {f"name-{number}": "v" * 20 for number in range(2000)} | {"TAGS": "t", "DELAY": "3"}
    fitted = fit_properties(many, 1000)
    assert (fitted["TAGS"], fitted["DELAY"]) == ("t", "3")
    assert len(encode_properties(fitted)) <= 1000
