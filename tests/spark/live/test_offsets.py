"""Offsets of a query: text that never changes for equal content, fair shares, and every loss told apart."""

import json
from collections.abc import Mapping

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ropewalk.spark.live.offsets import (
    Bounds,
    CheckpointMismatch,
    DataLoss,
    Position,
    QueueKey,
    Range,
    advance,
    backlog,
    batch_start,
    begin,
    check_belongs,
    clamp_to_target,
    enforce_losses,
    plan_ranges,
    replaced_messages,
    reused_offsets,
    share_limit,
)

A0, A1 = QueueKey("orders", "broker-a", 0), QueueKey("orders", "broker-a", 1)
B0 = QueueKey("orders", "broker-b", 0)

keys = st.builds(
    QueueKey,
    st.sampled_from(["a", "b", "%RETRY%g"]),
    st.sampled_from(["broker-a", "broker-b"]),
    st.integers(0, 12),
)
positions = st.dictionaries(keys, st.integers(0, 2**62), max_size=20)


def text(position: Position) -> str:
    return json.dumps(position.to_json())


@given(positions, st.booleans(), st.randoms())
def test_equal_positions_are_equal_text_whatever_their_order(
    queues: dict[QueueKey, int], with_init: bool, rng: object
) -> None:
    items = list(queues.items())
    rng.shuffle(items)  # type: ignore[attr-defined]
    masters = {"broker-b": "h:2", "broker-a": "h:1"} if with_init else {}
    time_ms = 1_718_000_000_000 if with_init else None
    last_ms = dict(items) if with_init else {}
    one = Position(
        queues, "c", queues if with_init else None, False, masters, time_ms, queues if with_init else {}
    )
    again_masters = dict(sorted(masters.items()))
    init = dict(items) if with_init else None
    other = Position(dict(items), "c", init, False, again_masters, time_ms, last_ms)
    assert text(one) == text(other)
    again = Position.from_json(json.loads(text(one)))
    assert again == one
    assert text(again) == text(one)
    keys_of = json.loads(text(one))
    assert list(keys_of) == sorted(keys_of)


def test_a_first_batch_begins_where_it_was_logged_whatever_latest_is_by_now() -> None:
    logged = Position({A0: 150}, init={A0: 100})
    assert batch_start(Position({A0: 130}, fresh=True), logged) == {A0: 100}
    assert batch_start(Position({A0: 100}, fresh=True), Position({A0: 150})) == {A0: 100}
    assert batch_start(Position({A0: 150}), Position({A0: 200}, init={A0: 7})) == {A0: 150}


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"orders": {"0": 5}}, "no offset of a live Ropewalk source"),
        ("logOffset", "no offset of a live Ropewalk source"),
        ({"v": 9, "q": {}}, "version 9"),
        ({"v": 1, "q": {"orders": 7}}, "cannot be read"),
        ({"v": 1, "q": {"orders": {"b": {"x": 1}}}}, "cannot be read"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(document: object, says: str) -> None:
    with pytest.raises(CheckpointMismatch, match=says):
        Position.from_json(document)


def test_a_checkpoint_of_other_topics_or_another_cluster_is_refused() -> None:
    position = Position({A0: 1}, "DefaultCluster")
    check_belongs(position, {"orders", "more"}.__contains__, "DefaultCluster")
    check_belongs(position, {"orders"}.__contains__, None)
    with pytest.raises(CheckpointMismatch, match=r"does not read \(orders\).*checkpointLocation"):
        check_belongs(position, {"payments"}.__contains__, "DefaultCluster")
    with pytest.raises(
        CheckpointMismatch, match="cluster DefaultCluster, and these brokers are cluster other"
    ):
        check_belongs(position, {"orders"}.__contains__, "other")


# -- how far ----------------------------------------------------------------------------------------------


def test_new_queues_are_read_from_their_first_message_and_vanished_ones_keep_their_number() -> None:
    start = {A0: 10, B0: 5}
    latest = {A0: Bounds(0, 20), A1: Bounds(3, 9)}
    assert advance(start, latest) == {A0: 20, A1: 9, B0: 5}
    assert begin(start, latest) == {A0: 10, A1: 3, B0: 5}


def test_offsets_that_went_back_are_followed_only_when_loss_is_allowed() -> None:
    assert advance({A0: 10}, {A0: Bounds(0, 7)}) == {A0: 10}
    assert advance({A0: 10}, {A0: Bounds(0, 7)}, follow_back=True) == {A0: 7}


@example({A0: (0, 3), A1: (0, 3), B0: (0, 3)}, 8)
@given(
    st.dictionaries(keys, st.tuples(st.integers(0, 1000), st.integers(0, 100_000)), max_size=12),
    st.integers(1, 50_000),
)
def test_a_limit_is_shared_out_in_proportion_and_used_up(
    gaps: dict[QueueKey, tuple[int, int]], limit: int
) -> None:
    start = {key: low for key, (low, _) in gaps.items()}
    end = {key: low + gap for key, (low, gap) in gaps.items()}
    total = backlog(start, end)
    chosen = share_limit(start, end, limit)
    steps = {key: chosen[key] - start[key] for key in chosen}
    waiting = [key for key, (_, gap) in gaps.items() if gap]
    assert all(0 <= steps[key] <= gaps[key][1] for key in gaps)
    assert all(steps[key] >= 1 for key in waiting)
    if total <= limit:
        assert chosen == end
    else:
        fair = {key: limit * gaps[key][1] / total for key in waiting}
        assert sum(steps.values()) == max(limit, sum(max(1, int(share)) for share in fair.values()))
        assert all(steps[key] >= int(fair[key]) for key in waiting)


def test_available_now_goes_to_its_target_and_no_further() -> None:
    target = {A0: 100, A1: 50}
    assert clamp_to_target({A0: 120, A1: 40, B0: 7}, target, {A0: 90}) == {A0: 100, A1: 40}
    # A checkpoint beyond the target stays; a queue of the checkpoint that the target does not know keeps its number.
    assert clamp_to_target({A0: 120, B0: 9}, {A0: 100}, {A0: 110, B0: 5}) == {A0: 110, B0: 5}


# -- losses -----------------------------------------------------------------------------------------------

HAVE = Bounds(100, 200)


@pytest.mark.parametrize(
    ("low", "high", "have", "ranges", "lost", "says"),
    [
        (120, 150, HAVE, [(120, 150)], 0, None),
        (100, 200, HAVE, [(100, 200)], 0, None),
        (150, 150, HAVE, [], 0, None),
        (50, 150, HAVE, [(100, 150)], 50, "removed by retention.*begins at 100 now"),
        (99, 150, HAVE, [(100, 150)], 1, "1 messages from offset 99 on were removed"),
        (50, 80, HAVE, [], 30, "30 messages from offset 50 on were removed"),
        (150, 250, HAVE, [(150, 200)], 50, "offset 200 to 249 are gone: offsets went back"),
        (150, 201, HAVE, [(150, 200)], 1, "offset 200 to 200 are gone: offsets went back"),
        (201, 250, HAVE, [], 1, "stands at offset 201, and the queue ends at 200"),
        (220, 220, HAVE, [], 20, "stands at offset 220, and the queue ends at 200"),
        (150, 120, HAVE, [], 0, "before its start at 150: the checkpoint is damaged"),
        (150, 170, None, [], 20, "it is gone, with its messages 150 to 169"),
        (150, 150, None, [], 0, None),
    ],
)
def test_every_kind_of_loss_has_its_words(
    low: int, high: int, have: Bounds | None, ranges: list[tuple[int, int]], lost: int, says: str | None
) -> None:
    bounds: Mapping[QueueKey, Bounds] = {} if have is None else {A0: have}
    found, losses = plan_ranges({A0: low}, {A0: high}, bounds)
    assert found == [Range(A0, *one) for one in ranges]
    assert enforce_losses(losses, fail=False) == lost
    if says is None:
        assert enforce_losses(losses, fail=True) == 0
    else:
        with pytest.raises(DataLoss, match=f"queue 0 of orders at broker-a: .*{says}.*failOnDataLoss=false"):
            enforce_losses(losses, fail=True)


def test_a_queue_without_a_start_is_read_from_its_first_message() -> None:
    assert plan_ranges({}, {A0: 150}, {A0: HAVE}) == ([Range(A0, 100, 150)], [])


def test_many_losses_are_counted_and_not_all_told() -> None:
    start = {QueueKey("t", "b", n): 0 for n in range(9)}
    _, losses = plan_ranges(start, dict.fromkeys(start, 10), {})
    with pytest.raises(DataLoss, match="and 4 more queues"):
        enforce_losses(losses, fail=True)


def test_a_message_with_another_store_time_is_another_one() -> None:
    position = Position({A0: 10, A1: 20, B0: 30}, last_ms={A0: 1_700_000_000_000, A1: 5, B0: 7})
    bounds = {A0: Bounds(0, 15), A1: Bounds(0, 20), B0: Bounds(0, 30)}
    (loss,) = replaced_messages(position, bounds, {A0: 1_700_000_060_000, A1: 5, B0: None})
    assert (loss.key, loss.messages) == (A0, 0)
    assert "stands at offset 10, and message 9 was stored at 2023-11-14T22:14:20.000Z" in loss.reason
    assert "was stored at 2023-11-14T22:13:20.000Z: the queue, now from 0 to 15, holds other" in loss.reason
    assert replaced_messages(position, {}, {A0: 1}) == []


def test_a_message_that_is_younger_than_the_batch_that_read_it_is_another_one() -> None:
    start = {A0: 10, A1: 20, B0: 30}
    read_by = 1_700_000_000_000
    (loss,) = reused_offsets(start, {A0: read_by - 5, A1: read_by + 60_000, B0: None}, read_by)
    assert loss.key == A1
    assert "message 19 was stored 60 s after the batch that read it" in loss.reason
    # Clocks of two machines differ a little.
    assert reused_offsets(start, {A0: read_by + 9_000}, read_by) == []
