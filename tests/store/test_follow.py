"""A log that grows by another log's bytes: the same bytes, whole records only, and nothing that does not fit."""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path

import pytest

from store.follow import Follower, StreamRejected
from store.log.limits import NO_LIMIT
from store.message_store import MessageStore
from tests.store.disks import CountingDisk
from tests.store.worlds import SEGMENT_SIZE, World, bodies, bytes_of, put, settle, wait_for, write_back


@pytest.fixture
def master(tmp_path: Path) -> World:
    """A store with a few segments of records of all sizes, in several queues."""
    chance = random.Random(1)
    world = World(tmp_path / "master")
    with world.opened() as store:
        for number in range(40):
            sizes = [chance.choice((0, 1, 30, 300, 3000)) for _ in range(chance.randint(1, 3))]
            topic, queue_id = chance.choice(("T", "other")), chance.randint(0, 1)
            put(store, [f"{number}:".encode().ljust(size, b".") for size in sizes], topic, queue_id, "tag")
            world.clock.ms += 7
    return world


def slave_of(tmp_path: Path, *, sync_flush: bool = False) -> World:
    return World(tmp_path / "slave", sync_flush)


def give(store: MessageStore, follower: Follower, offset: int, data: bytes) -> None:
    """Have all of it taken, in turns, however often there is no room at first. Cut at segments, as frames are."""
    give_up = time.monotonic() + 30
    while data:
        store.begin_turn()
        store.run_completions()
        taken = follower.append(offset, data[: SEGMENT_SIZE - offset % SEGMENT_SIZE])
        offset, data = offset + taken, data[taken:]
        store.publish()
        store.tick()
        assert time.monotonic() < give_up, "no room came"
        if not taken:
            time.sleep(0.0005)


def all_bodies(store: MessageStore) -> dict[tuple[str, int], list[bytes]]:
    return {
        (topic, number): bodies(store, topic, number)
        for topic, queues in store.queues.items()
        for number in queues
    }


@pytest.mark.parametrize("sync_flush", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_bytes_cut_anywhere_make_the_same_log_and_the_same_queues(
    master: World, tmp_path: Path, seed: int, sync_flush: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of a record that is long in coming, the part that is here is looked at in the log.
    monkeypatch.setattr("store.follow._REST_MAX", (64 << 10, 0, 100, 1000)[seed])
    chance = random.Random(seed)
    data = bytes_of(master)
    world = slave_of(tmp_path, sync_flush=sync_flush)
    with master.opened() as original:
        expected = all_bodies(original)
    with world.opened() as store:
        follower, at = store.follow(), 0
        while at < len(data):
            size = min(chance.choice((1, 7, 90, 1000, 5000)), SEGMENT_SIZE - at % SEGMENT_SIZE)
            give(store, follower, at, data[at : at + size])
            at = min(at + size, len(data))
            assert follower.boundary <= store.log.end_offset == at
            assert store.readable_offset <= follower.boundary
            assert store.log.flushed_offset <= follower.boundary, "part of a record is nothing to vouch for"
        assert follower.boundary == len(data)
        settle(store)
        store.publish()
        assert store.readable_offset == len(data)
        assert all_bodies(store) == expected
    assert bytes_of(world) == data
    with world.opened() as again:
        assert all_bodies(again) == expected
        assert again.recovered.findings == ()


def test_a_record_shows_when_its_last_byte_is_there_and_not_before(master: World, tmp_path: Path) -> None:
    data = bytes_of(master)
    with slave_of(tmp_path).opened() as store:
        follower = store.follow()
        size = int.from_bytes(data[:4], "big")
        for at in range(size):
            give(store, follower, at, data[at : at + 1])
            complete = at + 1 == size
            assert follower.boundary == (size if complete else 0), at
            assert (len(all_bodies(store)) == 1) is complete
        assert store.readable_offset == size


def test_a_kill_in_the_middle_of_a_record_leaves_the_records_before_it(master: World, tmp_path: Path) -> None:
    data = bytes_of(master)
    for sync_flush in (False, True):
        world = World(tmp_path / f"slave-{sync_flush}", sync_flush)
        with world.opened() as store:
            follower = store.follow()
            first = int.from_bytes(data[:4], "big")
            size = int.from_bytes(data[first : first + 4], "big")
            give(store, follower, 0, data[:first])
            for cut in (1, 7, 8, 50, size - 1):
                give(store, follower, store.log.end_offset, data[store.log.end_offset : first + cut])
                settle_slave(store)
                killed = world.killed()
                with killed.opened() as after:
                    assert after.log.end_offset == first
                    assert sum(map(len, all_bodies(after).values())) == 1
                    again = after.follow()
                    give(after, again, first, data[first : first + size])
                    assert again.boundary == first + size
                shutil.rmtree(killed.root)
            follower.drop_partial()


def settle_slave(store: MessageStore) -> None:
    store.request_flush()
    wait_for(store, lambda: store.log.flushed_offset == store.whole_end)
    store._write_back.write_bound(clean=False)
    wait_for(store, lambda: not store._write_back.worker.pending)


def test_a_stop_in_the_middle_of_a_record_is_an_orderly_one(master: World, tmp_path: Path) -> None:
    data = bytes_of(master)
    world = slave_of(tmp_path)
    first = int.from_bytes(data[:4], "big")
    with world.opened() as store:
        give(store, store.follow(), 0, data[: first + 100])
    assert not (world.root / "abort").exists()
    with world.opened() as store:
        assert (store.log.end_offset, store.recovered.records, store.recovered.findings) == (first, 0, ())


def test_a_dropped_part_is_asked_for_again_and_leaves_no_trace(master: World, tmp_path: Path) -> None:
    data = bytes_of(master)
    first = int.from_bytes(data[:4], "big")
    with slave_of(tmp_path).opened() as store:
        follower = store.follow()
        give(store, follower, 0, data[: first + 60])
        follower.drop_partial()
        assert store.log.end_offset == follower.end == first
        assert bytes(store.log.segments[0].map[first : first + 100]) == bytes(100)
        give(store, follower, first, data[first:SEGMENT_SIZE])
        assert bytes(store.log.segments[0].map[:SEGMENT_SIZE]) == data[:SEGMENT_SIZE]


# -- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", [-1, 1, 100, SEGMENT_SIZE, -200])
def test_bytes_for_another_place_are_refused_and_nothing_is_written(
    master: World, tmp_path: Path, by: int
) -> None:
    data = bytes_of(master)
    with slave_of(tmp_path).opened() as store:
        follower = store.follow()
        give(store, follower, 0, data[:500])
        before = bytes(store.log.segments[0].map[:])
        with pytest.raises(StreamRejected, match="this log ends at 500"):
            follower.append(500 + by, b"x" * 10)
        assert bytes(store.log.segments[0].map[:]) == before
        assert store.log.end_offset == 500
        follower.drop_partial()


@pytest.mark.parametrize("field", ["size", "magic", "crc", "offset", "topic", "body"])
def test_a_damaged_record_is_refused_and_what_came_before_it_stays(
    master: World, tmp_path: Path, field: str
) -> None:
    data = bytearray(bytes_of(master))
    first = int.from_bytes(data[:4], "big")
    size = int.from_bytes(data[first : first + 4], "big")
    at = {"size": 3, "magic": 5, "crc": 9, "offset": 33, "topic": 84, "body": size - 1}[field]
    if field == "body":
        data[first + 88] ^= 0xFF
    else:
        data[first + at] ^= 0xFF
    with slave_of(tmp_path).opened() as store:
        follower = store.follow()
        with pytest.raises(StreamRejected, match=f"log offset {first} is no record"):
            give(store, follower, 0, bytes(data[:SEGMENT_SIZE]))
        assert follower.boundary == first
        follower.drop_partial()
        assert store.log.end_offset == first
        store.publish()
        assert sum(map(len, all_bodies(store).values())) == 1


@pytest.mark.parametrize("what", [b"HTTP/1.1 400 Bad Request\r\n\r\n", bytes(200), b"\xff" * 64])
def test_garbage_is_refused_at_its_first_bytes(tmp_path: Path, what: bytes) -> None:
    with slave_of(tmp_path).opened() as store:
        follower = store.follow()
        with pytest.raises(StreamRejected, match="no record"):
            give(store, follower, 0, what)
        assert follower.boundary == 0
        follower.drop_partial()


def test_a_frame_across_two_segments_is_another_segment_size(master: World, tmp_path: Path) -> None:
    data = bytes_of(master)
    with slave_of(tmp_path).opened() as store:
        follower = store.follow()
        give(store, follower, 0, data[: SEGMENT_SIZE - 10])
        with pytest.raises(StreamRejected, match="mappedFileSizeCommitLog"):
            follower.append(SEGMENT_SIZE - 10, data[SEGMENT_SIZE - 10 : SEGMENT_SIZE + 10])
        follower.drop_partial()


def test_a_segment_without_room_for_its_filler_is_refused(tmp_path: Path) -> None:
    master = World(tmp_path / "master", segment_size=2 * SEGMENT_SIZE)
    with master.opened() as store:
        put(store, [b"x"])
        first = store.log.end_offset
        put(store, [bytes(SEGMENT_SIZE - 4 - first - (first - 1))])
        assert store.log.end_offset == SEGMENT_SIZE - 4
    data = bytes_of(master)
    with slave_of(tmp_path).opened() as store:
        follower = store.follow()
        with pytest.raises(StreamRejected, match="no room is left for a filler, but 4 bytes"):
            give(store, follower, 0, data + bytes(4))
        assert follower.boundary == SEGMENT_SIZE - 4
        follower.drop_partial()


def test_a_log_that_begins_between_two_segments_is_another_segment_size(tmp_path: Path) -> None:
    with slave_of(tmp_path).opened() as store:
        with pytest.raises(StreamRejected, match="no multiple of mappedFileSizeCommitLog"):
            store.follow().append(SEGMENT_SIZE + 5, b"abc")
        assert store.log.segments == []


# -- where it begins ---------------------------------------------------------------------------------------


def test_an_empty_log_begins_where_its_masters_bytes_do(master: World, tmp_path: Path) -> None:
    data = bytes_of(master)
    world = slave_of(tmp_path)
    begin = 2 * SEGMENT_SIZE
    with master.opened() as original:
        whole = all_bodies(original)
    with world.opened() as store:
        store.tick()
        settle(store)  # a spare for offset 0 is there
        follower = store.follow()
        give(store, follower, begin, data[begin:])
        assert store.log.min_offset == begin and follower.boundary == len(data)
        assert "it has no messages from before that" in follower.findings[0]
        got = all_bodies(store)
        for queue, found in got.items():
            assert found and whole[queue][-len(found) :] == found
            number = store.queues[queue[0]][queue[1]]
            assert number.next_offset == len(whole[queue]), "queue offsets are the master's"
        write_back(store)
    with world.opened() as store:
        assert all_bodies(store) == got
        assert sorted(p.name for p in (world.root / "commitlog").iterdir())[0] == f"{begin:020}"


# -- room --------------------------------------------------------------------------------------------------


def test_a_full_disk_takes_fewer_bytes_and_goes_on_when_there_is_room(master: World, tmp_path: Path) -> None:
    data = bytes_of(master)
    disk = CountingDisk()
    world = slave_of(tmp_path)
    with world.opened(disk) as store:
        follower = store.follow()
        disk.full = True
        at = turns = 0
        while turns < 200 or store.full is None:
            turns += 1
            store.begin_turn()
            store.run_completions()
            at += follower.append(at, data[at : at + SEGMENT_SIZE - at % SEGMENT_SIZE])
            store.publish()
            world.clock.ms += 100
            store.tick()
            time.sleep(0.0005)
        assert at < len(data) and at % SEGMENT_SIZE == 0, "the segments that were ready are filled"
        assert disk.asked < turns / 5, "a full disk is not asked at every turn"
        disk.full = False
        give_up = time.monotonic() + 30
        while at < len(data):
            assert time.monotonic() < give_up
            store.begin_turn()
            store.run_completions()
            at += follower.append(at, data[at : at + SEGMENT_SIZE - at % SEGMENT_SIZE])
            store.publish()
            world.clock.ms += 100
            store.tick()
        assert follower.boundary == len(data) and not store._preallocator.full
    assert bytes_of(world) == data


# -- becoming a master -------------------------------------------------------------------------------------


def test_a_slave_that_leads_goes_on_behind_its_last_whole_record(master: World, tmp_path: Path) -> None:
    data = bytes_of(master)
    world = slave_of(tmp_path)
    first = int.from_bytes(data[:4], "big")
    with world.opened() as store:
        give(store, store.follow(), 0, data[: first + 50])
        before = all_bodies(store)
        store.lead()
        assert store.log.end_offset == first
        ((offset, _number),) = put(store, [b"mine"], "new")
        assert offset == first
        assert all_bodies(store) == {**before, ("new", 0): [b"mine"]}


def test_nothing_is_put_into_a_slaves_log(tmp_path: Path) -> None:
    with slave_of(tmp_path).opened() as store:
        store.follow()
        with pytest.raises(AssertionError, match="its master's bytes alone"):
            put(store, [b"x"])


def test_consumers_see_no_further_than_the_limit(tmp_path: Path) -> None:
    with World(tmp_path / "m").opened() as store:
        store.limit_readable(0)
        put(store, [b"one"])
        end = store.log.end_offset
        put(store, [b"two"])
        assert bodies(store) == [] and store.readable_offset == 0
        store.limit_readable(end)
        assert bodies(store) == [b"one"] and store.readable_offset == end
        store.limit_readable(0)
        assert bodies(store) == [b"one"], "what was seen stays seen"
        store.limit_readable(NO_LIMIT)
        assert bodies(store) == [b"one", b"two"]
        put(store, [b"three"])
        assert bodies(store) == [b"one", b"two", b"three"]


def test_what_was_held_back_is_there_after_an_orderly_stop(tmp_path: Path) -> None:
    world = World(tmp_path / "m")
    with world.opened() as store:
        store.limit_readable(0)
        put(store, [b"one"])
    with world.opened() as store:
        assert bodies(store) == [b"one"] and store.recovered.records == 0


def test_the_log_tells_records_by_their_masters_time(master: World, tmp_path: Path) -> None:
    """The checkpoint speaks of store times: a slave's own clock, ahead of its master's, must not get into it."""
    data = bytes_of(master)
    world = slave_of(tmp_path)
    world.clock.ms = master.clock.ms + 3_600_000
    with world.opened() as store:
        give(store, store.follow(), 0, data)
        assert store.last_store_ms <= master.clock.ms


def test_a_topic_deleted_on_the_way_begins_again_with_its_next_record(tmp_path: Path) -> None:
    master, world = World(tmp_path / "m"), slave_of(tmp_path)
    with master.opened() as source, world.opened() as store:
        follower = store.follow()
        put(source, [b"1", b"2", b"3"], "T")
        half = source.log.end_offset
        give(store, follower, 0, bytes(source.log.segments[0].map[:half]))
        store.delete_topic("T", lambda _done: None)
        put(source, [b"4", b"5"], "T")
        give(store, follower, half, bytes(source.log.segments[0].map[half : source.log.end_offset]))
        store.limit_readable(NO_LIMIT)
        queue = store.find_queue("T", 0)
        assert queue is not None
        assert (queue.min_offset, queue.next_offset) == (3, 5)


@pytest.mark.parametrize("count", [2, 5, 40])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_topic_deleted_and_created_again_at_the_master_begins_anew(
    tmp_path: Path, count: int, at_once: bool
) -> None:
    """Its numbers come again: what has them now is what the master acknowledged last."""
    master, world = World(tmp_path / "m"), slave_of(tmp_path)
    again = [b"again %d" % number for number in range(count)]
    with master.opened() as source:
        put(source, [b"1", b"2", b"3", b"4", b"5"], "T")
        put(source, [b"other"], "U")
        half = source.log.end_offset
        source.delete_topic("T", lambda _done: None)
        put(source, again, "T")
        put(source, [b"another"], "U")
        data = bytes(source.log.segments[0].map[: source.log.end_offset])
    with world.opened() as store:
        follower = store.follow()
        if not at_once:
            give(store, follower, 0, data[:half])
            settle(store)
            assert bodies(store, "T") == [b"1", b"2", b"3", b"4", b"5"]
            data = data[half:]
        give(store, follower, follower.end, data)
        assert bodies(store, "T") == again and bodies(store, "U") == [b"other", b"another"]
        settle(store)
    with world.opened() as store:
        assert bodies(store, "T") == again and bodies(store, "U") == [b"other", b"another"]
        assert store.recovered.findings == ()


def test_entries_of_a_deleted_topic_are_seen_until_the_record_that_begins_it_anew_is(tmp_path: Path) -> None:
    master, world = World(tmp_path / "m"), slave_of(tmp_path)
    with master.opened() as source:
        put(source, [b"1", b"2", b"3"], "T")
        half = source.log.end_offset
        put(source, [b"4"], "T")
        source.delete_topic("T", lambda _done: None)
        put(source, [b"new"], "T")
        data = bytes(source.log.segments[0].map[: source.log.end_offset])
    with world.opened() as store:
        store.limit_readable(half)
        follower = store.follow()
        give(store, follower, 0, data[:half])
        give(store, follower, half, data[half:])
        queue = store.find_queue("T", 0)
        assert queue is not None and (queue.readable, queue.next_offset) == (0, 1)
        store.limit_readable(len(data))
        assert bodies(store, "T") == [b"new"]
