"""Tables joined from texts of their entries read, and look, like what the general writer makes of them."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from broker.state.json_text import entry_text, table_text
from ropewalk.format import fastjson

json_values = st.recursive(
    st.booleans()
    | st.integers(-(1 << 62), 1 << 62)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text('abz\n"\\é', max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)
tables = st.dictionaries(st.text('aB%|\n"é', max_size=5), json_values, max_size=4)


@given(tables, st.dictionaries(st.sampled_from(["a", "b"]), json_values, min_size=1))
def test_the_joined_text_equals_the_general_writers(table: dict[str, Any], fields: dict[str, Any]) -> None:
    joined = table_text(fields, {"z": [entry_text(key, table[key]) for key in sorted(table)]})
    assert joined == fastjson.pretty({**fields, "z": table})
