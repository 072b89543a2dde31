"""The key index: complete behind the log, the original's in form, rebuilt where a crash makes it doubtful."""

import os
import random
import shutil
import struct
import time
from pathlib import Path

import pytest

from ropewalk.format.checkpoint import Checkpoint
from ropewalk.format.index import Geometry, IndexHeader, record_hashes
from ropewalk.format.properties import encode_properties
from store.config import StoreConfig
from store.index import helper
from store.index.builder import IndexBuilder, _why_not
from store.index.file import IndexPlace, _last_items, indexed_through
from store.index.helper import ProcessIndex
from store.index.search import search
from store.io.disk import Disk, PagedFile
from store.io.idle_worker import never_yield
from store.message_store import MessageStore
from tests.store.index_world import FOREVER, SEGMENT_SIZE, SMALL, World, built, find, index_of, send
from tests.store.worlds import HOST, wait_for
from tests.support.clocks import Clock


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "store")


# --- found --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("process", [False, True], ids=["thread", "process"])
def test_a_message_is_found_by_unique_key_by_each_key_and_by_tag(world: World, process: bool) -> None:
    world.process = process
    with world.opened() as store:
        first, second, third = send(
            store,
            {"UNIQ_KEY": "u1", "KEYS": "a b", "TAGS": "red"},
            {"UNIQ_KEY": "u2", "KEYS": "b"},
            {"UNIQ_KEY": "u3"},
        )
        built(store)
        assert find(store, "u1") == find(store, "a") == [first]
        assert find(store, "b") == [first, second]
        assert find(store, "u3") == [third]
        assert find(store, "red", by_tag=True) == [first]
        assert find(store, "red") == find(store, "c") == find(store, "a b") == []
        assert find(store, "a", topic="U") == []


def test_the_newest_are_kept_when_more_match_than_asked_for(world: World) -> None:
    with world.opened() as store:
        offsets = send(store, *[{"KEYS": "k"}] * 10)
        built(store)
        assert find(store, "k", count=3) == offsets[-3:]


def test_only_messages_of_the_asked_time_are_found_to_the_second(world: World) -> None:
    with world.opened() as store:
        offsets = []
        for _ in range(5):
            offsets += send(store, {"KEYS": "k"})
            world.clock.ms += 10_000
        built(store)
        start = world.clock.ms - 50_000
        assert find(store, "k", begin=start + 10_000, end=start + 30_000) == offsets[1:4]
        assert find(store, "k", begin=start + 40_000) == offsets[4:]
        assert find(store, "k", end=start - 1_000) == []


def test_the_first_message_of_a_file_is_found_by_its_own_time(world: World) -> None:
    world.geometry = Geometry(slots=10, items=6)  # room for five
    with world.opened() as store:
        send(store, *[{"KEYS": "k"}] * 5)
        world.clock.ms += 86_400_000
        (offset,) = send(store, {"KEYS": "late"})
        built(store)
        assert world.header(world.names[1]).begin_offset == offset
        assert find(store, "late", begin=store.now, end=store.now) == [offset]


def test_a_search_agrees_with_a_list_over_many_files_and_shared_slots(world: World) -> None:
    world.geometry = Geometry(slots=3, items=20)  # nearly every chain holds foreign keys
    draw = random.Random(7)
    expected: dict[str, list[int]] = {}
    with world.opened() as store:
        for _ in range(60):
            keys = sorted({f"k{draw.randrange(12)}" for _ in range(draw.randrange(4))})
            (offset,) = send(store, {"KEYS": " ".join(keys)} if keys else {})
            for key in keys:
                expected.setdefault(key, []).append(offset)
            if draw.random() < 0.2:
                built(store)
            world.clock.ms += draw.randrange(3000)
        built(store)
        assert len(world.names) > 3
        for key, offsets in expected.items():
            assert find(store, key) == offsets, key


def test_a_rolled_back_message_is_not_indexed(world: World) -> None:
    with world.opened() as store:
        store.begin_turn()
        queue = store.queue("T", 0)
        store.put([(queue, b"", encode_properties({"KEYS": "k"}), 0, 0xC, store.now, 0, 0, 0)], HOST)
        store.publish()
        built(store)
        assert find(store, "k") == []


def test_a_message_larger_than_what_is_read_at_once_is_indexed(tmp_path: Path) -> None:
    place = IndexPlace(tmp_path / "index", tmp_path / "commitlog", 4 << 20, SMALL, tmp_path / "lock")
    config = StoreConfig(
        root=tmp_path, log_directory=tmp_path / "commitlog", store_host=HOST, segment_size=4 << 20
    )
    store = MessageStore(config, Disk(), Clock(), lambda: None)
    store.open()
    send(store, {"KEYS": "a"}, body=bytes(1 << 20))
    send(store, {"KEYS": "b"}, body=bytes(1_500_000))
    send(store, {"KEYS": "c"}, body=bytes(1_500_000))  # in the next segment
    builder = IndexBuilder(place, Disk(), Clock())
    builder.open(store.log.end_offset, None)
    assert builder.advance(store.log.end_offset, 0)
    assert [len(list(search(Disk(), place, "T", key, 0, FOREVER))) for key in "abc"] == [1, 1, 1]
    store.close()


def test_it_does_not_matter_where_steps_end(world: World) -> None:
    """A step of bytes ends within a record, within what fills a segment, or where only a head fits."""
    with world.opened() as store:
        send(store, *[{"KEYS": f"k{number} each"} for number in range(90)])
        end = store.log.end_offset
    assert end > SEGMENT_SIZE + 1000

    def files(*steps: int) -> list[bytes]:
        world.clock.ms = 1_700_000_000_000
        builder = world.rebuilding(end)
        for through in (*steps, end):
            assert builder.advance(through, 0)
        assert not builder.findings
        builder.close()
        return [(world.place.directory / name).read_bytes() for name in world.names]

    whole = files()
    for step in (*range(1, 400), *range(SEGMENT_SIZE - 400, SEGMENT_SIZE + 200)):
        assert files(step) == whole, step
    for size in (1, 7, 50, 97, 300, 4096):
        assert files(*range(size, end, size)) == whole, size


def test_whoever_takes_the_work_over_where_it_gives_way_ends_with_the_same_files(world: World) -> None:
    world.geometry = Geometry(slots=3000, items=100)
    with world.opened() as store:
        send(store, *[{"KEYS": f"k{number} each"} for number in range(90)])
        end = store.log.end_offset

    class Stopped(Exception):
        pass

    def files(builder: IndexBuilder) -> list[bytes]:
        assert builder.advance(end, 0) and builder.written == builder.position == end
        builder.close()
        return [(world.place.directory / name).read_bytes() for name in world.names]

    def stopped(times: int) -> tuple[IndexBuilder, bool]:
        """A builder that was stopped when it gave way for this time, and whether it was."""
        world.clock.ms = 1_700_000_000_000
        builder, left = world.rebuilding(end), list(range(times))

        def give_way() -> None:
            if not left:
                raise Stopped
            left.pop()

        builder.give_way = give_way
        try:
            builder.advance(end, 0, items_max=50)
        except Stopped:
            assert builder.written == 0
            builder.give_way = never_yield
            return builder, True
        return builder, False

    world.clock.ms = 1_700_000_000_000
    whole = files(world.rebuilding(end))
    times = 0
    while (outcome := stopped(times))[1]:
        assert files(outcome[0]) == whole, times
        times += 1
    assert times > 40


@pytest.mark.parametrize("process", [False, True])
def test_a_log_that_is_followed_in_steps_is_indexed_whole(
    world: World, process: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(helper, "_STEP", 1000)
    monkeypatch.setattr(helper, "_FEW_BYTES", 0)
    world.process = process
    with world.opened() as store:
        send(store, *[{"KEYS": "k"}] * 300, {"KEYS": "last"})
        seen = [index_of(store).position]

        def reached() -> bool:
            world.clock.ms += 200
            store.tick()
            if index_of(store).position != seen[-1]:
                seen.append(index_of(store).position)
            return seen[-1] >= store.readable_offset

        wait_for(store, reached)
        assert len(seen) > 10
        assert len(find(store, "last")) == 1
        assert len(find(store, "k", count=1000)) == 300
        assert not store.upkeep.take_findings()


# --- the form -----------------------------------------------------------------------------------------


def test_the_files_are_those_of_the_original(world: World) -> None:
    world.clock.ms = 1_700_000_000_126
    with world.opened() as store:
        (offset,) = send(store, {"UNIQ_KEY": "u", "KEYS": "order-1"})
        world.clock.ms += 2_500
        (second,) = send(store, {"UNIQ_KEY": "u"})
        built(store)
    (name,) = world.names
    assert name.startswith(time.strftime("%Y%m%d%H%M%S", time.localtime(1_700_000_002))) and len(name) == 17
    data = (world.place.directory / name).read_bytes()
    assert len(data) == SMALL.file_size == 40 + 4 * 50 + 20 * 40
    unique, order = record_hashes(b"T", encode_properties({"UNIQ_KEY": "u", "KEYS": "order-1"}))
    assert data[:40] == struct.pack(">qqqqii", 1_700_000_000_126, 1_700_000_002_626, offset, second, 2, 4)
    assert struct.unpack_from(">iqii", data, 240 + 20) == (unique, offset, 0, 0)
    assert struct.unpack_from(">iqii", data, 240 + 40) == (order, offset, 0, 0)
    assert struct.unpack_from(">iqii", data, 240 + 60) == (unique, second, 2, 1)
    assert data[240:260] == bytes(20)
    assert struct.unpack_from(">i", data, 40 + 4 * (unique % 50)) == (3,)
    assert struct.unpack_from(">i", data, 40 + 4 * (order % 50)) == (2,)


def test_a_full_file_is_followed_by_one_that_begins_where_it_ends(world: World) -> None:
    world.geometry = Geometry(slots=10, items=6)  # room for five
    with world.opened() as store:
        offsets = send(store, *[{"UNIQ_KEY": f"u{n}", "KEYS": "k"} for n in range(3)])
        built(store)
        first, second = world.names
        assert first < second
        assert world.header(first).next_item == 6
        assert world.header(second) == IndexHeader(store.now, store.now, offsets[2], offsets[2], 1, 2)
        assert index_of(store).full_timestamp == store.now
        assert find(store, "k") == offsets


def test_the_first_message_makes_a_file_even_without_a_key(world: World) -> None:
    with world.opened() as store:
        send(store, {})
        built(store)
        assert [world.header(name).next_item for name in world.names] == [1]


def test_files_are_sparse(world: World) -> None:
    world.geometry = Geometry()
    with world.opened() as store:
        send(store, {"KEYS": "k"})
        built(store)
        assert len(find(store, "k")) == 1
    (name,) = world.names
    status = (world.place.directory / name).stat()
    assert status.st_size == 420_000_040
    assert status.st_blocks * 512 < 1 << 20


def test_names_go_on_when_the_clock_steps_back(world: World) -> None:
    world.geometry = Geometry(slots=10, items=2)
    with world.opened() as store:
        send(store, {"KEYS": "k"})
        built(store)
        world.clock.ms -= 3_600_000
        send(store, *[{"KEYS": "k"}] * 3)
        built(store)
    assert len(world.names) == 4
    assert world.names == sorted(set(world.names))


def test_the_checkpoint_names_the_end_of_the_last_full_file(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    sync = PagedFile.sync

    def noted(file: PagedFile) -> None:
        synced.append(file.path.name)
        sync(file)

    monkeypatch.setattr(PagedFile, "sync", noted)
    world.geometry = Geometry(slots=10, items=3)
    with world.opened() as store:
        send(store, {"KEYS": "a"})
        send(store, {"KEYS": "b"})
        stamp = store.now
        world.clock.ms += 5_000
        send(store, {"KEYS": "c"})
        built(store)
        assert synced == world.names[:1]  # which the checkpoint vouches for
    checkpoint = Checkpoint.decode((world.root / "checkpoint").read_bytes())
    assert checkpoint.index_msg_timestamp == stamp
    assert checkpoint.physic_msg_timestamp == stamp + 5_000


# --- starts and stops -----------------------------------------------------------------------------------


@pytest.mark.parametrize("process", [False, True], ids=["thread", "process"])
def test_what_was_stored_last_is_indexed_at_a_clean_stop(world: World, process: bool) -> None:
    world.process = process
    with world.opened() as store:
        send(store, {"KEYS": "early"})
        built(store)
        (late,) = send(store, {"KEYS": "late"})
    with world.opened() as store:
        assert find(store, "late") == [late]


def test_a_clean_restart_neither_repeats_nor_starts_anything(world: World) -> None:
    world.process = True
    with world.opened() as store:
        send(store, {"UNIQ_KEY": "u", "KEYS": "k", "TAGS": "t"})
    before = (world.place.directory / world.names[0]).read_bytes()
    for _ in range(2):
        with world.opened() as store:
            assert index_of(store).position == store.log.end_offset
            for _turn in range(5):
                world.clock.ms += 300
                store.tick()
            index = index_of(store)
            assert isinstance(index, ProcessIndex) and index._thread is None
    assert (world.place.directory / world.names[0]).read_bytes() == before


def test_a_store_is_ready_before_its_index_is_rebuilt(world: World) -> None:
    with world.opened() as store:
        offsets = send(store, *[{"KEYS": "k"}] * 100)
    world.forget_index()
    with world.opened() as store:
        assert index_of(store).position == 0
        built(store)
        assert find(store, "k", count=1000) == offsets


def test_after_a_crash_files_that_the_checkpoint_does_not_vouch_for_are_built_again(world: World) -> None:
    world.geometry = Geometry(slots=10, items=11)
    with world.opened() as store:
        offsets = []
        for _ in range(25):
            offsets += send(store, {"KEYS": "k"})
            world.clock.ms += 1_000
    first, second, third = world.names
    (world.root / "abort").write_bytes(b"1")  # as a kill leaves it
    checkpoint = Checkpoint.decode((world.root / "checkpoint").read_bytes())
    checkpoint.index_msg_timestamp = world.header(first).end_timestamp
    (world.root / "checkpoint").write_bytes(checkpoint.encode())
    kept = (world.place.directory / first).read_bytes()
    (world.place.directory / second).write_bytes(bytes(world.geometry.file_size))
    world.clock.ms += 60_000
    with world.opened() as store:
        built(store)
        assert find(store, "k") == offsets
        assert any("built again" in finding for finding in store.upkeep.take_findings())
        assert world.names[0] == first
        assert (world.place.directory / first).read_bytes() == kept
        assert second not in world.names and third not in world.names


@pytest.mark.parametrize("abnormal", [False, True], ids=["stop", "crash"])
def test_the_keys_of_a_record_that_two_files_share_are_in_the_index_once(
    world: World, abnormal: bool
) -> None:
    world.geometry = Geometry(slots=10, items=11)  # room for ten
    with world.opened() as store:
        offsets = send(store, *[{"UNIQ_KEY": f"u{n}", "KEYS": f"a{n} b{n} k"} for n in range(30)])
        end = store.log.end_offset

    def index(*ends: int) -> list[tuple[int, int]]:
        """Hash and offset of all items, by builders of which each finds what the one before it left."""
        world.forget_index()
        trusted_ms = 0
        for through in ends:
            builder = IndexBuilder(world.place, Disk(), world.clock)
            builder.open(end, trusted_ms if abnormal else None)
            assert builder.advance(through, 0)
            trusted_ms = max(trusted_ms, builder.full_timestamp)
            builder.close()
        last = world.header(world.names[-1])
        return _last_items(Disk(), world.place, world.names, last.next_item + 10 * len(world.names))

    whole = index(end)
    assert len(whole) == 4 * len(offsets)
    for through in offsets[1:]:
        assert index(through, end) == whole, through
    assert index(*offsets[1:], end) == whole


def test_after_a_crash_a_file_with_room_for_one_more_was_being_filled() -> None:
    geometry = Geometry(slots=10, items=6)
    for next_item, stays in ((5, False), (6, True)):
        header = IndexHeader(1_000, 2_000, 0, 500, 4, next_item)
        assert (_why_not(header, geometry, 1_000, trusted_ms=2_000) is None) is stays
        assert _why_not(header, geometry, 1_000, trusted_ms=None) is None


def test_after_a_crash_without_a_checkpoint_the_whole_index_is_built_again(world: World) -> None:
    with world.opened() as store:
        offsets = send(store, *[{"KEYS": "k"}] * 60)
    (world.root / "abort").write_bytes(b"1")
    (world.place.directory / world.names[0]).write_bytes(os.urandom(SMALL.file_size))
    with world.opened() as store:
        built(store)
        assert find(store, "k", count=100) == offsets


def test_an_index_that_knows_more_than_the_log_is_built_again(world: World) -> None:
    with world.opened() as store:
        send(store, *[{"KEYS": "k"}] * 5)
    builder = IndexBuilder(world.place, Disk(), world.clock)
    builder.open(100, None)
    assert world.names == []
    assert "records that the log does not have" in builder.findings[0]


@pytest.mark.parametrize("abnormal", [False, True], ids=["stop", "crash"])
@pytest.mark.parametrize("body", [b"body", b"longer"], ids=["same boundaries", "others"])
def test_files_that_speak_of_lost_records_are_built_again_though_the_log_has_grown_past_them(
    world: World, body: bytes, abnormal: bool
) -> None:
    """As when power is lost, and the broker is killed again before the builder has looked at its files."""
    world.geometry = Geometry(slots=10, items=11)  # room for ten
    lost = World(world.root.with_name("lost"), geometry=world.geometry)
    offsets: list[int] = []
    for each, mark, later in ((lost, "l", b"body"), (world, "w", body)):
        with each.opened() as store:
            offsets = send(store, *[{"UNIQ_KEY": f"u{n}"} for n in range(12)])
            offsets += send(store, *[{"UNIQ_KEY": f"{mark}{n}"} for n in range(33)], body=later)
            end = store.log.end_offset
    world.forget_index()
    for name in lost.names:
        shutil.copy(lost.place.directory / name, world.place.directory / name)
    builder = IndexBuilder(world.place, Disk(), world.clock)
    builder.open(end, FOREVER if abnormal else None)
    assert world.names == lost.names[:1], "which speaks of what is there"
    assert any("none of the log's" in finding for finding in builder.findings)
    assert builder.advance(end, 0)
    builder.close()
    assert [offset for _value, offset in _last_items(Disk(), world.place, world.names, 100)] == offsets


def test_an_index_stays_when_the_records_that_it_speaks_of_were_removed_from_the_log(world: World) -> None:
    with world.opened() as store:
        send(store, *[{"KEYS": "k"}] * 20)
        end = store.log.end_offset
    (world.root / "commitlog" / f"{0:020}").unlink()
    before = world.names
    builder = IndexBuilder(world.place, Disk(), world.clock)
    builder.open(end + SEGMENT_SIZE, None)
    assert world.names == before and not builder.findings


def test_a_broker_whose_index_a_helper_writes_keeps_none_of_its_files_open(world: World) -> None:
    with world.opened() as store:
        send(store, *[{"KEYS": "k"}] * 20)
    world.process = True
    with world.opened() as store:
        assert index_of(store).position == store.log.end_offset
        open_files = [os.path.realpath(path) for path in Path("/proc/self/fd").iterdir()]
        assert any(str(world.root) in path for path in open_files)
        assert not any(str(world.place.directory) in path for path in open_files)


def test_a_builder_holds_no_segment_that_it_has_read(world: World) -> None:
    with world.opened() as store:
        send(store, *[{"KEYS": "k"}] * 200)
        end, segments = store.log.end_offset, len(store.log.segments)
    assert segments >= 3
    builder = world.rebuilding(end)
    while not builder.advance(end, 0):
        pass
    builder.close()
    IndexBuilder(world.place, Disk(), world.clock).open(end, None)  # which looks at the last record
    held = [os.path.realpath(path) for path in Path("/proc/self/fd").iterdir()]
    assert not [path for path in held if str(world.root / "commitlog") in path]


def test_files_of_another_geometry_are_built_again(world: World) -> None:
    with world.opened() as store:
        offsets = send(store, *[{"KEYS": "k"}] * 5)
    world.geometry = Geometry(slots=60, items=40)
    with world.opened() as store:
        built(store)
        assert find(store, "k") == offsets
        assert any("maxIndexNum" in finding for finding in store.upkeep.take_findings())


def test_an_index_left_behind_the_log_is_gone_on_with(world: World) -> None:
    with world.opened() as store:
        first = send(store, *[{"KEYS": "k", "UNIQ_KEY": f"u{n}"} for n in range(5)])
    config = StoreConfig(
        root=world.root, log_directory=world.root / "commitlog", store_host=HOST, segment_size=SEGMENT_SIZE,
        queue_file_size=200,
    )  # fmt: skip
    without = MessageStore(config, Disk(), world.clock, lambda: None)
    without.open()
    second = send(without, *[{"KEYS": "k"}] * 5)
    without.close()
    assert indexed_through(Disk(), world.place)[0] < second[1]
    with world.opened() as store:
        built(store)
        assert find(store, "k") == first + second
        assert world.header(world.names[0]).next_item == 1 + 10 + 5


def test_a_message_found_twice_in_the_index_is_given_once(world: World) -> None:
    with world.opened() as store:
        (offset,) = send(store, {"KEYS": "k"})
        built(store)
        for _ in range(2):
            builder = IndexBuilder(world.place, Disk(), world.clock)
            builder.open(store.log.end_offset, None)
            builder.position = 0
            builder.advance(store.log.end_offset, 0)
        assert list(search(Disk(), world.place, "T", "k", 0, FOREVER)) == [offset] * 3
        assert find(store, "k") == [offset]


# --- retention ------------------------------------------------------------------------------------------


def test_files_about_removed_records_go_and_the_last_one_stays(world: World) -> None:
    world.geometry = Geometry(slots=10, items=11)
    with world.opened() as store:
        offsets = send(store, *[{"KEYS": "k"}] * 35)
    names = world.names
    assert len(names) == 4
    builder = IndexBuilder(world.place, Disk(), world.clock)
    builder.open(offsets[-1] + 1, None)
    builder.drop_before(offsets[9])  # its record is the last one of the first file
    assert world.names == names
    builder.drop_before(offsets[20])
    assert world.names == names[2:]
    builder.drop_before(FOREVER)
    assert world.names == names[3:]


def test_records_removed_before_they_were_indexed_are_left_out(world: World) -> None:
    with world.opened() as store:
        offsets = send(store, *[{"KEYS": "k"}] * 120)
        end = store.log.end_offset
    builder = world.rebuilding(end)
    (world.root / "commitlog" / f"{0:020d}").unlink()
    assert builder.advance(end, SEGMENT_SIZE // 2)
    assert sorted(search(Disk(), world.place, "T", "k", 0, FOREVER)) == [
        o for o in offsets if o >= SEGMENT_SIZE
    ]


def test_a_segment_that_was_cut_before_it_was_indexed_is_told_and_does_not_hold_up_the_rest(
    world: World,
) -> None:
    with world.opened() as store:
        offsets = send(store, *[{"KEYS": "k"}] * 120)
        end = store.log.end_offset
    builder = world.rebuilding(end)
    os.truncate(world.root / "commitlog" / f"{0:020d}", 0)
    assert builder.advance(end, 0)
    assert "log offset 0 is no record" in builder.findings[-1]
    assert sorted(search(Disk(), world.place, "T", "k", 0, FOREVER)) == [
        o for o in offsets if o >= SEGMENT_SIZE
    ]
