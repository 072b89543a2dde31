from hypothesis import given
from hypothesis import strategies as st

from ropewalk.client.core.produce.batcher import Batcher


def batcher(linger_s: float = 1.0, size_max: int = 100, count_max: int = 10) -> Batcher[int]:
    return Batcher(linger_s, size_max, count_max)


def test_a_batch_leaves_when_its_first_message_has_waited() -> None:
    it = batcher()
    it.add("T", 1, 10, 0.0)
    it.add("T", 2, 10, 0.9)
    assert it.pop_ready(0.99) == [] and it.next_due() == 1.0
    assert it.pop_ready(1.0) == [("T", [1, 2])] and len(it) == 0 and it.next_due() is None


def test_a_full_batch_leaves_at_once() -> None:
    it = batcher(size_max=30)
    for item in range(4):
        it.add("T", item, 10, 0.0)
    assert it.pop_ready(0.0) == [("T", [0, 1, 2])]
    uneven = batcher(size_max=30)
    for item, size in enumerate((20, 15, 10)):
        uneven.add("T", item, size, 0.0)
    assert uneven.pop_ready(0.0) == [("T", [0])], "with the next one it would be too large"
    assert uneven.pop_ready(1.0) == [("T", [1, 2])]
    by_count = batcher(count_max=2)
    for item in range(5):
        by_count.add("T", item, 1, 0.0)
    assert by_count.pop_ready(0.0) == [("T", [0, 1]), ("T", [2, 3])]


def test_a_message_that_stays_alone_keeps_its_place() -> None:
    it = batcher()
    it.add("T", 1, 1, 0.0)
    it.add("T", 2, 1, 0.0, alone=True)
    it.add("T", 3, 1, 0.0)
    it.close_batches()
    assert it.pop_ready(0.0) == [("T", [1]), ("T", [2]), ("T", [3])]


def test_a_message_larger_than_a_batch_leaves_alone() -> None:
    it = batcher(size_max=30)
    it.add("T", 1, 10, 0.0)
    it.add("T", 2, 1000, 0.0)
    assert it.pop_ready(0.0) == [("T", [1]), ("T", [2])]


def test_an_ordered_key_has_one_batch_under_way() -> None:
    it = batcher(count_max=1)
    it.add("T", 1, 1, 0.0, ordered=True)
    it.add("T", 2, 1, 0.0, ordered=True)
    assert it.pop_ready(9.0) == [("T", [1])]
    assert it.pop_ready(9.0) == [] and it.next_due() is None
    it.completed("T")
    assert it.pop_ready(9.0) == [("T", [2])]
    it.add("T", 3, 1, 0.0, ordered=True)
    assert it.pop_ready(9.0) == [] and it.pop_all() == [("T", [3])] and len(it) == 0


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(1, 40), st.booleans(), st.floats(0, 0.7), st.booleans())
    )
)
def test_everything_added_comes_out_once_and_in_order_of_its_key(
    story: list[tuple[str, int, bool, float, bool]],
) -> None:
    it = batcher()
    now = 0.0
    came: dict[str, list[int]] = {"a": [], "b": []}
    under_way: set[str] = set()

    def pop_ready() -> None:
        for key, items in it.pop_ready(now):
            assert isinstance(key, str)
            if key == "a":
                assert key not in under_way
                under_way.add(key)
            assert len(items) <= 10
            came[key] += items

    for number, (key, size, alone, passed, completed) in enumerate(story):
        it.add(key, number, size, now, ordered=key == "a", alone=alone)
        now += passed
        pop_ready()
        if completed:
            under_way.discard("a")
            it.completed("a")
    for _ in range(len(story) + 1):
        it.close_batches()
        under_way.discard("a")
        it.completed("a")
        pop_ready()
    assert len(it) == 0
    for key, items in came.items():
        assert items == [number for number, step in enumerate(story) if step[0] == key]
