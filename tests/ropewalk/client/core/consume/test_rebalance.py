import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.client.core.consume.rebalance import allocate_queues


@pytest.mark.parametrize(
    ("queues", "members", "parts"),
    [
        (8, 3, [[0, 1, 2], [3, 4, 5], [6, 7]]),
        (4, 2, [[0, 1], [2, 3]]),
        (5, 2, [[0, 1, 2], [3, 4]]),
        (2, 3, [[0], [1], []]),
        (3, 3, [[0], [1], [2]]),
        (1, 1, [[0]]),
        (7, 4, [[0, 1], [2, 3], [4, 5], [6]]),
    ],
)
def test_the_parts_are_javas(queues: int, members: int, parts: list[list[int]]) -> None:
    ids = [f"c{index}" for index in range(members)]
    assert [allocate_queues(range(queues), ids, me) for me in ids] == parts


def test_who_is_no_member_gets_nothing() -> None:
    assert allocate_queues(range(4), ["a", "b"], "c") == [] and allocate_queues(range(4), [], "c") == []


def test_order_of_the_lists_does_not_matter() -> None:
    assert allocate_queues([3, 1, 0, 2], ["b", "a"], "b") == [2, 3]


@given(st.integers(0, 40), st.integers(1, 20))
def test_every_queue_belongs_to_exactly_one_member(queues: int, members: int) -> None:
    ids = [f"c{index:02}" for index in range(members)]
    parts = [allocate_queues(range(queues), ids, me) for me in ids]
    assert [queue for part in parts for queue in part] == list(range(queues))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
