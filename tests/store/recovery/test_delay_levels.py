"""Delay levels: the table, and the tag code of what waits."""

import pytest

from store.recovery.delay_levels import DelayLevels


def test_there_are_eighteen_levels_from_a_second_to_two_hours() -> None:
    levels = DelayLevels()
    assert len(levels.delays_ms) == 18
    seconds = [1, 5, 10, 30, *(60 * minutes for minutes in (*range(1, 11), 20, 30, 60, 120))]
    assert list(levels.delays_ms) == [1000 * s for s in seconds]


@pytest.mark.parametrize(
    ("text", "level"),
    [
        (None, 0),
        ("", 0),
        ("0", 0),
        ("-1", 0),
        ("1", 1),
        ("+2", 2),
        ("007", 7),
        ("18", 18),
        ("4000000000", 18),
    ],
)
def test_a_level_beyond_the_table_counts_as_its_last(text: str | None, level: int) -> None:
    assert DelayLevels().level_of(text) == level


@pytest.mark.parametrize("text", ["soon", "1.5", " 1", "1 ", "٣", "-", "12345678901"])
def test_a_level_that_is_no_number_is_an_error_and_not_no_delay(text: str) -> None:
    with pytest.raises(ValueError, match="no number"):
        DelayLevels().level_of(text)


def test_what_stands_in_a_log_never_raises() -> None:
    levels = DelayLevels((100, 200))
    assert [levels.delay_of(text) for text in ("1", "2", "9", "0", "", "soon")] == [100, 200, 200, 0, 0, 0]
