"""The compiled evaluator beside a slow one that walks the tree, on expressions and messages out of a hat."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from ropewalk.filter.sql92 import SqlSyntaxError, compile_filter
from ropewalk.filter.sql92.parser import parse
from ropewalk.format.properties import encode_properties, parse_properties
from tests.ropewalk.filter.sql92.tree_walk import matches
from tests.support.long_run import LONG

names = st.sampled_from(["a", "b", "c", "TAGS"])
strings = st.sampled_from(["", "x", "xy", "5", "true", "it''s", "索"]).map(lambda text: f"'{text}'")
numbers = st.sampled_from(["0", "5", "5L", "2147483647", "2147483648", "2.5", "5.", "1E3"])
values = st.sampled_from(
    ["5", "-5", "+5", "4", "5.0", "2.5", " 5", "5f", "x", "xy", "true", "TRUE", "2147483648", "NaN", "-0.0",
     "0.0", "-Infinity", "it's", "索具", "9" * 20, "1e3", "\x01", "0005"]
)  # fmt: skip
operands = st.one_of(
    names, names, numbers, strings, numbers.map(lambda n: f"-{n}"), names.map(lambda n: f"-{n}")
)
comparisons = st.tuples(operands, st.sampled_from(["=", "<>", ">", ">=", "<", "<="]), operands).map(" ".join)
tests = st.one_of(
    comparisons,
    names,
    st.sampled_from(["TRUE", "FALSE", "NULL"]),
    st.tuples(operands, st.sampled_from(["IS NULL", "IS NOT NULL"])).map(" ".join),
    st.tuples(
        operands, st.sampled_from(["CONTAINS", "NOT CONTAINS", "STARTSWITH", "NOT ENDSWITH"]), strings
    ).map(" ".join),
    st.tuples(names, st.sampled_from(["IN", "NOT IN"]), strings, strings).map(
        lambda parts: "{} {} ({}, {})".format(*parts)
    ),
    st.tuples(operands, st.sampled_from(["", "NOT "]), operands, operands).map(
        lambda parts: "{} {}BETWEEN {} AND {}".format(*parts)
    ),
)
expressions = st.recursive(
    tests,
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=4).map(" AND ".join),
        st.lists(inner, min_size=2, max_size=4).map(" OR ".join),
        inner.map(lambda text: f"NOT ({text})"),
        inner.map(lambda text: f"-({text})"),
        st.tuples(inner, st.sampled_from(["= TRUE", "IS NULL", "<> 5", "= 'true'", "CONTAINS 'x'"])).map(
            lambda parts: "({}) {}".format(*parts)
        ),
        st.tuples(inner, inner).map(lambda parts: "({}) = ({})".format(*parts)),
    ),
    max_leaves=8,
)
messages = st.dictionaries(names, values, max_size=4)


@settings(max_examples=30_000 if LONG else 500)
@given(expressions, st.lists(messages, min_size=1, max_size=5))
@example("NOT (a = 5 OR b > 2.5)", [{"a": "4", "b": "NaN"}])
@example("t > -(s > 5) OR TRUE", [{"t": "x"}])
def test_closures_over_bytes_say_what_the_tree_says(text: str, sent: list[dict[str, str]]) -> None:
    try:
        compiled = compile_filter(text)
    except SqlSyntaxError:
        return
    tree = parse(text)
    for properties in sent:
        raw = encode_properties(properties)
        assert compiled.matches(raw) is matches(tree, parse_properties(raw)), (text, properties)
