"""What one append brought into a segment is shown together, also when a flush or a limit ends in the middle of it.

Until it is shown, what says how far entries are in their files must not be ahead of it: recovery begins there.
"""

from bisect import bisect_right
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.follow import Follower
from store.io.disk import Disk, DiskFull, MappedFile
from store.message_store import MessageStore
from tests.sim.world import SteppedHelpers
from tests.store.worlds import HOST, SEGMENT_SIZE, World, bodies, put, queues, wait_for


def send(store: MessageStore, *messages: tuple[str, bytes]) -> list[tuple[int, int]]:
    """Append them at once, without the end of the turn."""
    return store.put(
        [(store.queue(topic, 0), body, b"", 0, 0, store.now, 0, 0, 0) for topic, body in messages], HOST
    )


def shown(store: MessageStore) -> int:
    return sum(queue.readable for queue in queues(store))


def opened(world: World, helpers: SteppedHelpers) -> MessageStore:
    store = MessageStore(world.config, Disk(), world.clock, lambda: None, helpers)
    store.open()
    return store


def work(store: MessageStore, helpers: SteppedHelpers, *, flush: bool) -> None:
    """Helpers do all they were asked for; the flusher only where it is said."""
    for _ in range(20):
        for worker in helpers.workers:
            while not worker.is_idle:
                worker.step()
        for flusher in helpers.flushers if flush else ():
            flusher.step()
        store.run_completions()


def following(world: World, helpers: SteppedHelpers) -> tuple[MessageStore, Follower]:
    """An empty slave with a segment to begin in."""
    store = opened(world, helpers)
    follower = store.follow()
    store._room.next_segment(0)
    work(store, helpers, flush=True)
    return store, follower


def pass_time(store: MessageStore, world: World, helpers: SteppedHelpers, *, flush: bool) -> None:
    """Long enough for the write-back to have said how far it is."""
    for _ in range(3):
        world.clock.ms += 2000
        store.begin_turn()
        store.tick()
        work(store, helpers, flush=flush)


def test_a_flush_that_ends_inside_an_append_costs_no_entry_when_the_broker_is_killed(tmp_path: Path) -> None:
    world, helpers = World(tmp_path / "store", sync_flush=True), SteppedHelpers()
    store = opened(world, helpers)
    put(store, [b"x" * 700] * 9, "B")
    work(store, helpers, flush=True)
    pass_time(store, world, helpers, flush=True)
    store.begin_turn()
    (first, _), (second, _) = send(store, ("A", b"a" * 700), ("C", b"c" * 1500))
    assert first < SEGMENT_SIZE <= second
    helpers.flushers[0].step()  # what the end of the segment asked for
    store.publish()
    store.run_completions()
    assert store.log.flushed_offset == SEGMENT_SIZE
    pass_time(store, world, helpers, flush=False)
    helpers.flushers[0].step()
    store.run_completions()
    assert shown(store) == 11, "both are acknowledged"
    with world.killed().opened() as again:
        assert [len(bodies(again, topic)) for topic in "ABC"] == [1, 9, 1]


def test_what_an_append_stored_before_the_disk_was_full_is_readable_and_survives_a_stop(
    tmp_path: Path,
) -> None:
    class TwoSegments(Disk):
        def allocate(self, path: Path, size: int) -> MappedFile:
            if int(path.name) >= 2 * SEGMENT_SIZE:
                raise DiskFull("no room")
            return super().allocate(path, size)

    world = World(tmp_path / "store", sync_flush=True)
    with world.opened(TwoSegments()) as store:
        stored = put(store, [b"x" * 700] * 30)
        assert 10 < len(stored) < 30
        wait_for(store, lambda: store.log.flushed_offset == store.log.end_offset)
        assert len(bodies(store)) == len(stored)
    with world.opened() as store:
        assert len(bodies(store)) == len(stored)
        assert put(store, [b"next"])[0][1] == len(stored)


def test_a_limit_inside_what_a_slave_took_in_at_once_costs_no_entry_when_it_is_killed(tmp_path: Path) -> None:
    with World(tmp_path / "master").opened() as master:
        master.begin_turn()
        offsets = [offset for offset, _ in send(master, ("B", b"b"), ("A", b"a"), ("C", b"c"))]
        data = bytes(master.log.segments[0].map[: master.log.end_offset])
    world, helpers = World(tmp_path / "slave"), SteppedHelpers()
    store, follower = following(world, helpers)
    for begin, end in ((0, offsets[1]), (offsets[1], len(data))):
        store.begin_turn()
        assert follower.append(begin, data[begin:end]) == end - begin
        store.limit_readable(offsets[2])  # the master's consumers do not see C yet
        store.publish()
    pass_time(store, world, helpers, flush=True)
    with world.killed().opened() as again:
        assert [len(bodies(again, topic)) for topic in "ABC"] == [1, 1, 1]


def test_what_a_slave_took_in_before_it_became_master_is_shown_by_its_first_turn_as_one(
    tmp_path: Path,
) -> None:
    with World(tmp_path / "master").opened() as master:
        put(master, [b"a"])
        data = bytes(master.log.segments[0].map[: master.log.end_offset])
    store, follower = following(World(tmp_path / "slave"), SteppedHelpers())
    store.begin_turn()
    assert follower.append(0, data) == len(data)
    store.lead()
    store.publish()
    assert shown(store) == 1
    assert store.readable_offset == len(data)


_appends = st.lists(
    st.lists(st.tuples(st.sampled_from("TUV"), st.integers(0, 2000)), min_size=1, max_size=6),
    min_size=1,
    max_size=6,
)


@settings(max_examples=50)
@given(appends=_appends, steps=st.lists(st.floats(0, 1), max_size=12))
def test_nothing_behind_a_limit_is_shown_and_everything_before_what_counts_as_readable_is(
    tmp_path_factory: pytest.TempPathFactory, appends: list[list[tuple[str, int]]], steps: list[float]
) -> None:
    world = World(tmp_path_factory.mktemp("shown") / "store")
    with world.opened() as store:
        store.limit_readable(0)
        ends: list[int] = []
        for batch in appends:
            store.begin_turn()
            done = send(store, *[(topic, b"x" * size) for topic, size in batch])
            assert len(done) == len(batch)
            ends += [offset + size for (offset, _), size in zip(done, store.sizes, strict=True)]
            store.publish()
        for step in sorted(steps):
            limit = ends[int(step * (len(ends) - 1))]
            store.limit_readable(limit)
            assert shown(store) <= bisect_right(ends, limit)
            assert shown(store) == bisect_right(ends, store.readable_offset)
        store.limit_readable(store.log.end_offset)
        assert shown(store) == len(ends)
        assert store.readable_offset == store.log.end_offset
