"""Which texts are expressions, and what is said about those that are none."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.filter.sql92 import EXPRESSION_SIZE_MAX, SqlSyntaxError, compile_filter
from ropewalk.filter.sql92.parser import DEPTH_MAX, NODES_MAX, parse
from ropewalk.filter.sql92.syntax import All, Equal, Number, Order, Present, Property, Text
from tests.ropewalk.filter.sql92.rows import REFUSED, TRAILING
from tests.support.long_run import LONG

# RocketMQ reads the beginning and drops the rest; here it is an error, unless `ignore_rest` is set.


@pytest.mark.parametrize(("text", "problem"), REFUSED)
def test_a_bad_expression_is_refused_with_the_place_and_what_is_expected(
    text: str, problem: str | None
) -> None:
    if problem is None:
        parse(text)
        return
    with pytest.raises(SqlSyntaxError) as caught:
        parse(text)
    assert problem in str(caught.value)
    if "character" not in problem and "surrogate" not in problem:
        assert "(at character " in str(caught.value)


@pytest.mark.parametrize(("text", "beginning", "problem"), TRAILING)
def test_text_behind_an_expression_is_an_error_and_was_ignored_by_rocketmq(
    text: str, beginning: str, problem: str
) -> None:
    with pytest.raises(SqlSyntaxError) as caught:
        parse(text)
    assert problem in str(caught.value)
    assert parse(text, ignore_rest=True) == parse(beginning)


def test_what_is_no_token_is_an_error_also_where_the_rest_is_ignored() -> None:
    with pytest.raises(SqlSyntaxError):
        parse("a = 5 # rest", ignore_rest=True)
    parse("a = 5 rest # more", ignore_rest=True)


def test_an_expression_becomes_a_tree() -> None:
    bound = Order(">", Property("a"), Number("int", 3))
    assert parse("a > 3 AND b = 'x'") == All((bound, Equal(Property("b"), Text("x"))))
    assert parse("a") == Present("a")
    assert parse("a > 3000000000") == Order(">", Property("a"), Number("long", 3_000_000_000))


def test_size_depth_and_parts_are_bounded() -> None:
    with pytest.raises(SqlSyntaxError, match=f"at most {EXPRESSION_SIZE_MAX} are read"):
        parse(" " * (EXPRESSION_SIZE_MAX + 1))
    for left, right in (("(", ")"), ("NOT ", ""), ("- ", "")):
        inner = "a" if left != "- " else "5 = a"
        if left != "- ":
            parse(left * (DEPTH_MAX - 1) + inner + right * (DEPTH_MAX - 1))
        with pytest.raises(SqlSyntaxError, match=f"nested {DEPTH_MAX} deep"):
            parse(left * 5_000 + inner + right * 2_000)
    for link in (" = TRUE", " IS NULL", " IS NOT NULL", " CONTAINS 'x'"):
        with pytest.raises(SqlSyntaxError, match=f"nested {DEPTH_MAX} deep"):
            parse("a = 1" + link * 500)
        group = "a = 1" + link * 10
        with pytest.raises(SqlSyntaxError, match=f"nested {DEPTH_MAX} deep"):
            for _ in range(20):
                group = f"({group})" + link * 10
            parse(group)
    with pytest.raises(SqlSyntaxError, match=f"may have {NODES_MAX} parts"):
        parse(" OR ".join(["a = 1"] * 500))
    compile_filter(" OR ".join(["a = 1"] * 300)).matches(b"")
    parse("a IN (" + ", ".join(f"'{n}'" for n in range(3000)) + ")")


@settings(max_examples=10_000 if LONG else 100)
@given(st.text())
def test_any_text_is_an_expression_or_a_typed_error(text: str) -> None:
    for ignore_rest in (False, True):
        try:
            compile_filter(text, ignore_rest=ignore_rest).matches(b"a\x015\x02")
        except SqlSyntaxError as exc:
            assert str(exc)


PIECES = (
    "NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH",
    "a", "b", "TAGS", "0", "5", "05", "5L", "3000000000", "2.5", "'x'", "''", "'", "=", "<>", "<", "<=", ">", ">=",
    "(", ")", ",", "+", "-", "--", "/*", "*/", "\n", "!",
)  # fmt: skip


@settings(max_examples=10_000 if LONG else 300)
@given(st.lists(st.sampled_from(PIECES), max_size=25).map(" ".join))
def test_any_row_of_tokens_is_an_expression_or_a_typed_error(text: str) -> None:
    for ignore_rest in (False, True):
        with contextlib.suppress(SqlSyntaxError):
            compile_filter(text, ignore_rest=ignore_rest).matches(b"a\x015\x02b\x01x\x02")
