"""What expressions say about messages: RocketMQ's own examples, and every oddity of its evaluator."""

from __future__ import annotations

import pytest

from ropewalk.filter.sql92 import compile_filter
from ropewalk.format.properties import encode_properties
from tests.ropewalk.filter.sql92.rows import ALL_ROWS


def delivered(expression: str, **properties: str) -> bool:
    return compile_filter(expression).matches(encode_properties(properties))


@pytest.mark.parametrize(("expression", "properties", "expected"), ALL_ROWS)
def test_a_row_of_the_language(expression: str, properties: dict[str, str], expected: bool) -> None:
    assert delivered(expression, **properties) is expected


def test_the_last_property_of_a_name_counts_and_an_empty_one_is_none() -> None:
    is_two = compile_filter("a = 2")
    assert is_two.matches(b"a\x011\x02a\x012\x02")
    assert not is_two.matches(b"a\x012\x02a\x011")
    assert is_two.matches(b"a\x012\x02a\x01\x02")
    assert compile_filter("a IS NULL").matches(b"a\x01\x02aa\x012\x02b\x01a\x012")


@pytest.mark.parametrize("size", [1, 200])
def test_long_names_are_found_as_short_ones_are(size: int) -> None:
    name = "n" * size
    is_two = compile_filter(f"{name} = 2")
    raw = name.encode()
    assert is_two.matches(raw + b"\x011\x02" + raw + b"\x012")
    assert is_two.matches(raw + b"\x012\x02" + raw + b"\x01\x02x\x01y")
    assert not is_two.matches(raw + b"\x012\x02" + raw + b"\x011\x02")
    assert not is_two.matches(b"n" + raw + b"\x012\x02")


def test_an_expression_is_compiled_once() -> None:
    assert compile_filter("a > 41") is compile_filter("a > 41")


def test_the_cost_counts_the_searches_through_a_property_text() -> None:
    assert compile_filter("a > 3 AND b = 'x'").cost == 2
    assert compile_filter("a BETWEEN 1 AND 3").cost == 2
    assert compile_filter("TRUE").cost == 1
