"""Offsets by store time, with the answers that the original gives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.format.record import encode_host
from store.io.disk import Disk
from store.message_store import MessageStore
from store.queues.consume_queue import ConsumeQueue
from store.read.store_times import offset_by_time, store_time
from tests.store.worlds import SEGMENT_SIZE, World, put, records, settle

BASE = 1_700_000_000_000


def find(store: MessageStore, time_ms: int, *, upper: bool = False) -> int:
    return offset_by_time(store.queue("T", 0).frozen(), store.log, time_ms, upper=upper)


@pytest.fixture
def seventy(world: World) -> Iterator[MessageStore]:
    """Offsets 0...69; message n was stored at BASE + 10 n."""
    with world.opened() as store:
        for number in range(70):
            world.clock.ms = BASE + 10 * number
            put(store, [b"x" * 20])
        settle(store)
        yield store


@pytest.mark.parametrize(
    ("time_ms", "lower", "upper"),
    [
        (BASE - 1, 0, 0),
        (0, 0, 0),
        (BASE, 0, 0),
        (BASE + 30, 3, 3),
        (BASE + 35, 4, 3),
        (BASE + 690, 69, 69),
        (BASE + 691, 70, 69),
        (2**62, 70, 69),
    ],
)
def test_the_answers_of_the_original(seventy: MessageStore, time_ms: int, lower: int, upper: int) -> None:
    assert find(seventy, time_ms) == lower
    assert find(seventy, time_ms, upper=True) == upper


def test_of_equal_times_lower_is_the_first_and_upper_the_last(world: World) -> None:
    with world.opened() as store:
        for time_ms in (1, 2, 2, 2, 3):
            world.clock.ms = BASE + time_ms
            put(store, [b"x"])
        assert find(store, BASE + 2) == 1
        assert find(store, BASE + 2, upper=True) == 3


def test_an_empty_queue_has_one_answer(world: World) -> None:
    with world.opened() as store:
        assert find(store, BASE) == find(store, BASE, upper=True) == 0


def test_messages_whose_records_are_gone_count_as_too_early(world: World) -> None:
    with world.opened() as store:
        for number in range(30):
            world.clock.ms = BASE + 10 * number
            put(store, [b"x" * 700])
        settle(store)
        kept = [r for r in records(store) if r.offset >= SEGMENT_SIZE]
    world.segment(0).unlink()
    with world.opened() as store:
        first = kept[0].queue_offset
        assert find(store, 0) == find(store, 0, upper=True) == first
        assert find(store, kept[0].store_timestamp) == first
        assert find(store, kept[0].store_timestamp + 5) == first + 1


def test_the_time_of_a_record_that_cannot_be_read_is_none(world: World) -> None:
    with world.opened() as store:
        put(store, [b"x"])
        queue = store.queue("T", 0)
        assert store_time(queue.frozen(), store.log, 0) == BASE
        astray = ConsumeQueue("T", 1, queue.directory, 6000, Disk())
        astray.add(10**12, 100, 0)
        astray.add(SEGMENT_SIZE - 1, 100, 0)
        astray.make_readable()
        assert store_time(astray.frozen(), store.log, 0) == -1
        assert store_time(astray.frozen(), store.log, 1) == -1


@settings(max_examples=20)
@given(steps=st.lists(st.integers(0, 3), min_size=1, max_size=60), probe=st.integers(-2, 70))
def test_agrees_with_looking_at_every_message(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int], probe: int
) -> None:
    world = World(tmp_path_factory.mktemp("time") / "store")
    with world.opened() as store:
        times = []
        for step in steps:
            world.clock.ms += step
            put(store, [b"x"])
            times.append(world.clock.ms)
        time_ms = BASE + probe
        assert find(store, time_ms) == sum(t < time_ms for t in times)
        assert find(store, time_ms, upper=True) == max(0, sum(t <= time_ms for t in times) - 1)


def test_reads_from_files_give_the_same_answers(tmp_path: Path) -> None:
    world = World(tmp_path / "store")
    with world.opened() as store:
        for number in range(70):
            world.clock.ms = BASE + 10 * number
            put(store, [b"x" * 20])
    with world.opened() as store:
        assert [find(store, BASE + 10 * n + 5) for n in range(70)] == [n + 1 for n in range(70)]


def test_a_host_with_a_long_address_does_not_hide_the_time(world: World) -> None:
    with world.opened() as store:
        queue = store.queue("T", 0)
        for number in range(3):
            world.clock.ms = BASE + 10 * number
            store.begin_turn()
            store.put([(queue, b"x", b"", 0, 0x10, 1, 0, 0, 0)], encode_host("2001:db8::1", 5000))
            store.publish()
        settle(store)
        assert [record.store_timestamp for record in records(store)] == [BASE, BASE + 10, BASE + 20]
        assert [find(store, BASE + 10), find(store, BASE + 10, upper=True)] == [1, 1]
