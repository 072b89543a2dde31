"""`TermTable` beside a list that has the term and the place of every entry."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ha.raft.terms import TermTable
from ha.raft.types import NOTHING, Point

TERMS = st.lists(st.integers(0, 6), min_size=1, max_size=30).map(sorted)


def table_of(terms: list[int]) -> TermTable:
    table = TermTable()
    for index, term in enumerate(terms):
        table.begin(term, index, index * 10)
    return table


@given(TERMS)
def test_every_index_has_its_term(terms: list[int]) -> None:
    table = table_of(terms)
    assert [table.term_at(index) for index in range(-1, len(terms))] == [-1, *terms]
    assert table.last_term == terms[-1]
    assert len(table.rows) == len(set(terms))
    assert TermTable(table.rows).rows == table.rows


@given(TERMS, st.data())
def test_a_cut_forgets_what_was_behind(terms: list[int], data: st.DataObject) -> None:
    index = data.draw(st.integers(-1, len(terms) - 1))
    table = table_of(terms)
    table.cut(index)
    assert table.rows == table_of(terms[: index + 1]).rows


@given(TERMS, st.data())
def test_a_conflict_is_the_first_entry_of_another_term(terms: list[int], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(terms) - 1))
    last = data.draw(st.integers(first, len(terms) - 1))
    term = data.draw(st.integers(0, 7))
    expected = next((index for index in range(first, last + 1) if terms[index] != term), None)
    table = table_of(terms)
    found = table.conflict(first, last, term)
    assert found == expected
    if found is not None and found > first:
        assert table.start_of(found) == Point(found - 1, terms[found - 1], found * 10)


@given(TERMS, st.integers(-1, 40), st.integers(-1, 8))
def test_floor_is_the_last_entry_whose_term_is_low_enough(terms: list[int], index: int, term: int) -> None:
    index = min(index, len(terms) - 1)
    expected = max((at for at in range(index + 1) if terms[at] <= term), default=-1)
    assert table_of(terms).floor(index, term) == expected


def test_a_term_that_falls_is_stopped() -> None:
    table = table_of([1, 3])
    with pytest.raises(AssertionError, match="cannot follow"):
        table.begin(2, 2, 20)


def test_a_base_is_the_point_that_a_snapshot_covers() -> None:
    table = TermTable(base=Point(9, 4, 1000))
    assert (table.term_at(9), table.last_term) == (4, 4)
    table.begin(4, 10, 1000)
    assert table.rows == ()
    table.begin(5, 12, 1200)
    assert (table.term_at(11), table.term_at(12), table.floor(20, 3)) == (4, 5, 11)
    with pytest.raises(AssertionError, match="below the base"):
        table.term_at(8)
    assert TermTable().base is NOTHING
