"""One vocabulary for positions: a word means the same place in Python, on the command line and in Spark."""

from datetime import UTC, datetime

import pytest

from ropewalk.client.core.consume.consume_from import EARLIEST, LATEST, parse_consume_from
from ropewalk.spark.options import EARLIEST as FIRST_IN_SPARK
from ropewalk.spark.options import LATEST as LAST_IN_SPARK
from ropewalk.spark.options import BadOption, parse_options
from tools.common.output import UsageError
from tools.messages.consume import Start, parse_start

READ = {"nameServer": "127.0.0.1:9876", "topic": "orders"}


@pytest.mark.parametrize("word", [*EARLIEST, *LATEST, "First", " LAST "])
def test_a_word_is_one_place_in_python_on_the_command_line_and_in_spark(word: str) -> None:
    place = "earliest" if word.strip().lower() in EARLIEST else "latest"
    assert parse_consume_from(word) == place
    assert parse_start(word) == Start(place)
    (option, end) = (
        ("startingOffsets", FIRST_IN_SPARK) if place == "earliest" else ("endingOffsets", LAST_IN_SPARK)
    )
    options = parse_options({**READ, option: word}, "read")
    assert (options.starting_offsets if place == "earliest" else options.ending_offsets) == end


@pytest.mark.parametrize("time", ["2026-01-31T12:00:00+00:00", "1769860800000"])
def test_a_time_is_the_same_moment_in_all_three(time: str) -> None:
    moment = int(datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp() * 1000)
    assert parse_consume_from(time) == moment
    assert parse_start(time).timestamp_ms == moment
    assert parse_options({**READ, "startingTimestamp": time}, "read").starting_timestamp == moment


def test_a_wrong_word_is_told_with_the_nearest_in_all_three() -> None:
    with pytest.raises(ValueError, match='did you mean "earliest"'):
        parse_consume_from("earlyest")
    with pytest.raises(UsageError, match="did you mean earliest"):
        parse_start("earlyest")
    with pytest.raises(BadOption, match="did you mean earliest"):
        parse_options({**READ, "startingOffsets": "earlyest"}, "read")
