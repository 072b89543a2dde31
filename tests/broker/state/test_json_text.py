"""Tables joined from texts of their entries read, and look, like what the general writer makes of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from broker.state.json_text import (
    ENTRIES_PER_STEP,
    entry_text,
    object_entry,
    object_text,
    table_text,
    value_entry,
)
from ropewalk.format import fastjson
from ropewalk.format.sliced_json import finish

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
    assert finish(joined) == fastjson.pretty({**fields, "z": table})


def test_a_table_is_written_a_slice_at_each_step_and_its_entries_are_asked_for_then() -> None:
    asked: list[int] = [0]

    def entries() -> Iterator[str]:
        for number in range(3 * ENTRIES_PER_STEP + 1):
            asked[-1] += 1
            yield entry_text(f"k{number}", number)

    writing = table_text({"a": 1}, {"z": entries()})
    for _ in range(3):
        next(writing)
        asked.append(0)
    text = finish(writing)
    assert asked == [ENTRIES_PER_STEP] * 3 + [1]
    assert fastjson.loads(text) == {"a": 1, "z": {f"k{n}": n for n in range(3 * ENTRIES_PER_STEP + 1)}}


@given(tables)
def test_an_object_of_objects_equals_the_general_writers(table: dict[str, Any]) -> None:
    inner = (value_entry(key, table[key]) for key in sorted(table))
    assert finish(object_text(object_entry("z", inner))) == fastjson.dumps({"z": table})
