"""Plans of live reads: which topics and queues, from where to where, and in what pieces."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.spark.live.offsets import Bounds, QueueKey, Range
from ropewalk.spark.live.plan import PIECE_MIN, chosen_queues, ending, split, starting, times_of, topic_filter
from ropewalk.spark.options import BadOption, Options, Use, parse_options

A0, A1 = QueueKey("orders", "broker-a", 0), QueueKey("orders", "broker-a", 1)
BOUNDS = {A0: Bounds(10, 100), A1: Bounds(0, 50)}


def options(use: Use = "read", **given: Any) -> Options:
    raw = {"nameServer": "h:1", "topic": "orders", **given}
    return parse_options({name: value for name, value in raw.items() if value is not None}, use, {})


def test_a_pattern_matches_whole_names_and_no_system_topics() -> None:
    wants = topic_filter(options(topic=None, subscribePattern="order.*|SCHEDULE.*|%RETRY%g"))
    assert [name for name in ("orders", "border", "SCHEDULE_TOPIC_XXXX", "%RETRY%g") if wants(name)] == [
        "orders"
    ]
    wants = topic_filter(
        options(topic=None, subscribePattern="SCHEDULE.*|%RETRY%g", includeSystemTopics="true")
    )
    assert wants("SCHEDULE_TOPIC_XXXX")
    assert wants("%RETRY%g")


def test_an_explicit_name_is_taken_whatever_it_is() -> None:
    wants = topic_filter(options(topic="a, %RETRY%g"))
    assert wants("a")
    assert wants("%RETRY%g")
    assert not wants("b")


def test_assigned_queues_are_those_and_must_exist() -> None:
    assign = options(topic=None, assign='{"orders": {"broker-a": [1]}}')
    assert chosen_queues(assign, [A0, A1]) == [A1]
    missing = options(topic=None, assign='{"orders": {"broker-a": [1, 7]}}')
    with pytest.raises(
        BadOption, match=r"queue 7 of orders at broker-a, which does not exist; there are queue 0"
    ):
        chosen_queues(missing, [A0, A1])


# -- from where to where ----------------------------------------------------------------------------------


def test_a_batch_reads_everything_and_a_stream_what_comes_unless_told_otherwise() -> None:
    assert starting(options(), BOUNDS, {}, stream=False) == {A0: 10, A1: 0}
    assert ending(options(), BOUNDS, {}) == {A0: 100, A1: 50}
    assert starting(options("stream"), BOUNDS, {}, stream=True) == {A0: 100, A1: 50}
    assert starting(options("stream", startingOffsets="earliest"), BOUNDS, {}, stream=True) == {A0: 10, A1: 0}


def test_offsets_of_queues_with_earliest_and_latest_among_them() -> None:
    given = '{"orders": {"broker-a": {"0": 42, "1": -2}}}'
    assert starting(options(startingOffsets=given), BOUNDS, {}, stream=False) == {A0: 42, A1: 0}
    given = '{"orders": {"broker-a": {"0": 60, "1": -1}}}'
    assert ending(options(endingOffsets=given), BOUNDS, {}) == {A0: 60, A1: 50}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ('{"orders": {"broker-a": {"0": 1}}}', "startingOffsets says nothing about queue 1 of orders"),
        (
            '{"orders": {"broker-a": {"0": 1, "1": 1, "2": 1}}}',
            "startingOffsets names queue 2 of orders at broker-a, which is not among",
        ),
    ],
)
def test_offsets_name_every_queue_and_no_other(given: str, says: str) -> None:
    with pytest.raises(BadOption, match=says):
        starting(options(startingOffsets=given), BOUNDS, {}, stream=False)


def test_times_go_before_offsets_and_one_time_before_many() -> None:
    by_queue = '{"orders": {"broker-a": {"0": 5, "1": 6}}}'
    both = options(startingTimestamp="77", startingOffsetsByTimestamp=by_queue, startingOffsets="earliest")
    assert times_of(both, BOUNDS) == {A0: 77, A1: 77}
    many = options(startingOffsetsByTimestamp=by_queue, startingOffsets="earliest")
    assert times_of(many, BOUNDS) == {A0: 5, A1: 6}
    assert times_of(options(), BOUNDS) == {}
    assert times_of(options(endingTimestamp="8"), BOUNDS, end=True) == {A0: 8, A1: 8}


def test_a_time_becomes_the_offset_that_the_broker_found_inside_the_queue() -> None:
    since = options(startingTimestamp="77")
    assert starting(since, BOUNDS, {A0: 42, A1: 0}, stream=False) == {A0: 42, A1: 0}
    assert starting(since, BOUNDS, {A0: 0, A1: 3}, stream=False) == {A0: 10, A1: 3}
    until = options(endingTimestamp="99")
    assert ending(until, BOUNDS, {A0: 42, A1: 50}) == {A0: 42, A1: 50}


def test_a_starting_time_behind_all_messages_is_an_error_unless_latest_is_wanted() -> None:
    late = {A0: 100, A1: 3}
    with pytest.raises(BadOption, match="queue 0 of orders at broker-a has no message at or after"):
        starting(options(startingTimestamp="77"), BOUNDS, late, stream=False)
    relaxed = options(startingTimestamp="77", startingOffsetsByTimestampStrategy="latest")
    assert starting(relaxed, BOUNDS, late, stream=False) == late


def test_a_queue_without_messages_has_no_wrong_times() -> None:
    bounds = {A0: Bounds(0, 0), A1: Bounds(0, 50)}
    assert starting(options(startingTimestamp="77"), bounds, {A0: 0, A1: 3}, stream=False) == {A0: 0, A1: 3}


# -- in pieces --------------------------------------------------------------------------------------------

ranges = st.lists(
    st.builds(
        lambda n, low, size: Range(QueueKey("t", "b", n), low, low + size),
        st.integers(0, 5),
        st.integers(0, 10**6),
        st.integers(0, 3 * 10**5),
    ),
    max_size=5,
    unique_by=lambda range_: range_.key,
)


@given(ranges, st.integers(2000, 10**6), st.none() | st.integers(1, 40))
def test_pieces_cover_each_range_once_in_order_and_no_piece_is_too_large(
    given: list[Range], max_records: int, min_partitions: int | None
) -> None:
    pieces = split(given, max_records=max_records, min_partitions=min_partitions)
    assert pieces == sorted(pieces)
    assert pieces == split(reversed(given), max_records=max_records, min_partitions=min_partitions)
    for range_ in given:
        of_range = [piece for piece in pieces if piece.key == range_.key]
        at = range_.low
        for piece in of_range:
            assert piece.low == at < piece.high
            assert piece.size <= max_records
            at = piece.high
        assert at == range_.high or (range_.size == 0 and not of_range)
    total = sum(range_.size for range_ in given)
    if min_partitions and len(pieces) < min_partitions:
        assert all(piece.size < 2 * PIECE_MIN for piece in pieces) or total == 0


def test_missing_partitions_come_from_the_largest_ranges() -> None:
    given = [Range(A0, 0, 9000), Range(A1, 0, 2000)]
    pieces = split(given, max_records=10**6, min_partitions=4)
    assert [piece.size for piece in pieces] == [3000, 3000, 3000, 2000]
    # None gets smaller than a task is worth.
    assert len(split(given, max_records=10**6, min_partitions=100)) == 11
