"""Reads: every status, every limit, three ways to the bytes with one result, and nobody waits for a slow disk."""

from __future__ import annotations

import os
import struct
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.format.properties import tags_code
from ropewalk.format.record import decode_records, encode_record
from store.io.disk import Disk
from store.log.commitlog import segment_name
from store.message_store import MessageStore
from store.read.bulk import BulkReader
from store.read.reader import Reader
from store.read.results import GetResult, GetStatus, ReadLimits
from store.read.store_times import offset_by_time
from tests.store.read.reading import COLD, EVERYTHING, FAR, WARM, ColdDisk, get, numbers, outcome, reading
from tests.store.worlds import HOST, World, put, settle, wait_for, write_back
from tests.support.long_run import LONG, ROOM_S

# -- statuses ----------------------------------------------------------------------------------------


def test_no_queue_and_no_message_yet(world: World) -> None:
    with world.opened() as store, reading(store) as reader:
        assert outcome(get(store, reader, 5, topic="unknown"))[:2] == (GetStatus.NO_MATCHED_LOGIC_QUEUE, 0)
        store.queue("T", 0)
        assert outcome(get(store, reader, 5))[:2] == (GetStatus.NO_MESSAGE_IN_QUEUE, 0)


@pytest.mark.parametrize(
    ("offset", "status", "next_offset"),
    [
        (-1, GetStatus.OFFSET_TOO_SMALL, 10),
        (9, GetStatus.OFFSET_TOO_SMALL, 10),
        (10, GetStatus.FOUND, 15),
        (14, GetStatus.FOUND, 15),
        (15, GetStatus.OFFSET_OVERFLOW_ONE, 15),
        (16, GetStatus.OFFSET_OVERFLOW_BADLY, 15),
        (2**62, GetStatus.OFFSET_OVERFLOW_BADLY, 15),
    ],
)
def test_an_offset_inside_or_outside_the_queue(
    world: World, offset: int, status: GetStatus, next_offset: int
) -> None:
    with world.opened() as store, reading(store) as reader:
        store.queue("T", 0).start_at(10)
        put(store, [b"x"] * 5)
        result = get(store, reader, offset)
        assert (result.status, result.next_offset) == (status, next_offset)
        assert (result.min_offset, result.max_offset) == (10, 15)
        assert numbers(result) == (list(range(offset, 15)) if status is GetStatus.FOUND else [])


def test_under_sync_flush_a_read_ends_at_what_is_flushed(sync_world: World) -> None:
    with sync_world.opened() as store, reading(store) as reader:
        put(store, [b"x"] * 3)
        settle(store)
        put(store, [b"y"] * 3)
        results: list[GetResult | None] = []
        reader.get(
            store.queue("T", 0), 0, 32, EVERYTHING, None, results.append
        )  # before the flush is taken in
        (result,) = results
        assert result is not None
        assert numbers(result) == [0, 1, 2]
        assert result.max_offset == 3
        settle(store)
        assert numbers(get(store, reader, 0)) == list(range(6))


def test_nothing_matched_goes_on_behind_what_was_looked_at(world: World) -> None:
    with world.opened() as store, reading(store) as reader:
        put(store, [b"x"] * 7, tags="red")
        result = get(store, reader, 2, matches=lambda code: code == tags_code("blue"))
        assert (result.status, result.next_offset, result.records) == (GetStatus.NO_MATCHED_MESSAGE, 7, [])


def test_entries_of_deleted_segments_say_that_their_messages_are_being_removed(tmp_path: Path) -> None:
    world = World(tmp_path / "store", queue_file_size=2000)
    with world.opened() as store:
        put(store, [b"x" * 700] * 30)
    with world.opened() as store, reading(store) as reader:
        first = store.log.segments.pop(0)  # what retention does, before it corrects the queues
        store.log._bases.pop(0)
        gone = first.size // 800 + 1
        result = get(store, reader, 0, max_count=3)
        assert (result.status, result.next_offset) == (GetStatus.MESSAGE_WAS_REMOVING, 3)
        result = get(store, reader, 0, max_count=gone + 5)
        assert result.status is GetStatus.FOUND
        assert min(r.offset for r in decode_records(b"".join(result.records))) >= store.log.min_offset
        first.file.close()


def test_a_queue_file_shorter_than_its_queue_sends_the_reader_to_the_next_file(world: World) -> None:
    with world.opened() as store:
        put(store, [b"x"] * 25)
    with world.opened() as store, reading(store) as reader:
        path = world.root / "consumequeue" / "T" / "0" / segment_name(0)
        with path.open("r+b") as file:
            file.truncate(0)
        result = get(store, reader, 3)
        assert (result.status, result.next_offset) == (GetStatus.OFFSET_FOUND_NULL, 10)


# -- limits ------------------------------------------------------------------------------------------


def test_a_read_near_the_end_of_the_log_is_at_most_32_messages(world: World) -> None:
    with world.opened() as store, reading(store) as reader:
        put(store, [b"x"] * 50)
        assert numbers(get(store, reader, 0, max_count=100)) == list(range(32))
        assert numbers(get(store, reader, 0, max_count=5)) == list(range(5))


@pytest.mark.parametrize("max_count", [0, -1, -(2**31)])
def test_the_first_message_always_comes_whatever_count_was_asked_for(world: World, max_count: int) -> None:
    with world.opened() as store, reading(store) as reader:
        put(store, [b"x"] * 5)
        for matches in (None, lambda _code: True):
            result = get(store, reader, 1, max_count=max_count, matches=matches)
            assert (result.status, result.next_offset, numbers(result)) == (GetStatus.FOUND, 2, [1])


@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize(
    ("limits", "count", "size"), [(WARM, 32, 262_144), (COLD, 32, 262_144), (FAR, 8, 65_536)]
)
def test_bytes_and_counts_are_limited_and_far_behind_the_end_more_so(
    tmp_path: Path, limits: ReadLimits, count: int, size: int, filtered: bool
) -> None:
    world = World(tmp_path / "store", segment_size=1 << 20, queue_file_size=20_000)
    matches = (lambda _code: True) if filtered else None
    with world.opened() as store, reading(store, limits) as reader:
        put(store, [b"s"] * 40 + [b"x" * 20_000] * 30 + [b"h" * 300_000] * 2)
        assert len(numbers(get(store, reader, 0, max_count=100, matches=matches))) == count
        record_size = 20_000 + 92
        found = numbers(get(store, reader, 40, max_count=100, matches=matches))
        assert len(found) == min(count, size // record_size)
        assert numbers(get(store, reader, 70, matches=matches)) == [70], "the first one comes, however large"
        assert numbers(get(store, reader, 40, max_bytes=2 * record_size, matches=matches)) == [40, 41]
        assert numbers(get(store, reader, 40, max_bytes=1, matches=matches)) == [40]


def test_a_filter_that_lets_little_through_looks_at_800_entries_at_a_time(tmp_path: Path) -> None:
    world = World(tmp_path / "store", segment_size=1 << 20, queue_file_size=40_000)
    with world.opened() as store, reading(store) as reader:
        for _ in range(20):
            put(store, [b"x"] * 100, tags="red")
        put(store, [b"x"], tags="blue")

        def blue(code: int) -> bool:
            return code == tags_code("blue")

        assert outcome(get(store, reader, 0, matches=blue))[:2] == (GetStatus.NO_MATCHED_MESSAGE, 800)
        many = get(store, reader, 800, matches=blue, max_count=2**31 - 1)  # gets no more, and costs no more
        assert outcome(many)[:2] == (GetStatus.NO_MATCHED_MESSAGE, 1600)
        result = get(store, reader, 1600, matches=blue)
        assert (result.status, result.next_offset, numbers(result)) == (GetStatus.FOUND, 2001, [2000])


def test_a_filter_picks_out_what_matches(world: World) -> None:
    with world.opened() as store, reading(store) as reader:
        for number in range(30):
            put(store, [b"%d" % number], tags=["red", "green", "blue"][number % 3])
        result = get(store, reader, 1, matches=lambda code: code == tags_code("red"))
        assert numbers(result) == list(range(3, 30, 3))
        assert result.next_offset == 30


# -- three ways to the bytes -------------------------------------------------------------------------


@settings(max_examples=25)
@given(
    sizes=st.lists(
        st.tuples(st.integers(0, 900), st.sampled_from((False, False, False, True))), min_size=1, max_size=60
    ),
    apart=st.booleans(),
    offset=st.integers(0, 60),
    max_count=st.integers(1, 40),
    max_bytes=st.integers(1, 20_000),
    filtered=st.booleans(),
    small=st.booleans(),
)
def test_warm_map_page_cache_and_reader_thread_give_the_same_answer(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[tuple[int, bool]],
    apart: bool,
    offset: int,
    max_count: int,
    max_bytes: int,
    filtered: bool,
    small: bool,
) -> None:
    world = World(tmp_path_factory.mktemp("reader") / "store")
    matches = (lambda code: code == tags_code("red")) if filtered else None
    answers = []
    with world.opened() as store:
        for number, (size, gap) in enumerate(sizes):
            put(store, [b"x" * size], tags="red" if number % 3 else "blue")
            if apart or gap:
                put(store, [b"another queue's"], queue_id=1)
    for disk, limits in ((Disk(), WARM), (Disk(), COLD), (ColdDisk(), COLD)):
        if small:
            limits = replace(limits, memory_count=5, memory_bytes=1500)
        with world.opened(disk) as store, reading(store, limits) as reader:
            result = get(store, reader, offset, max_count, max_bytes, matches)
            assert (result.count, result.size) == (len(numbers(result)), len(b"".join(result.records)))
            answers.append(outcome(result))
    assert answers[0] == answers[1] == answers[2]
    if answers[0][0] is GetStatus.FOUND and not filtered:
        found = answers[0][4]
        assert found == list(range(offset, offset + len(found)))


def test_a_disk_that_takes_200_ms_for_a_read_does_not_hold_up_the_loop(world: World) -> None:
    with world.opened() as store:
        put(store, [b"x" * 100] * 30)
        put(store, [b"y" * 100] * 3, topic="U")
    slow = ColdDisk()
    with world.opened(slow) as store, reading(store, COLD) as reader:
        slow.delay_s = 0.2
        results: list[GetResult | None] = []
        started = time.monotonic()
        reader.get(store.queue("T", 0), 0, 32, EVERYTHING, None, results.append)
        reader.get(store.queue("U", 0), 0, 32, EVERYTHING, None, results.append)
        reader.look_up(0, store.find_queue, lambda record: None, lambda _none: None)
        sent = 0
        while len(results) < 2:
            put(store, [b"z"])
            sent += 1
            store.run_completions()
            time.sleep(0.001)
            if sent == 1:
                assert time.monotonic() - started < 0.1 + ROOM_S
        waited = time.monotonic() - started
        assert waited >= 0.3, "the queue's entries and then the records were read from the slow disk"
        assert sent > (50 if LONG else 1)
        assert [len(numbers(r)) for r in results if r is not None] in ([10, 3], [3, 10])
        slow.delay_s = 0.0


def test_too_many_cold_reads_at_once_are_refused_at_once(world: World) -> None:
    with world.opened() as store:
        put(store, [b"x" * 100] * 30)
    slow = ColdDisk()
    with world.opened(slow) as store, reading(store, COLD, threads=2, in_flight_max=4) as reader:
        slow.delay_s = 0.02
        results: list[GetResult | None] = []
        for _ in range(10):
            reader.get(store.queue("T", 0), 0, 32, EVERYTHING, None, results.append)
        assert results == [None] * 6
        wait_for(store, lambda: len(results) == 10)
        assert sum(r is not None for r in results) == 4
        slow.delay_s = 0.0


def test_a_place_that_the_disk_cannot_read_fails_that_read_only(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world.opened() as store:
        put(store, [b"x"] * 3)
    cold = ColdDisk()
    with world.opened(cold) as store, reading(store, COLD) as reader:
        segment = store.log.segments[0].file
        works = segment.read_at

        def broken(position: int, size: int) -> bytes:
            raise OSError(5, "Input/output error")

        segment.read_at = broken  # type: ignore[method-assign]
        results: list[GetResult | None] = []
        reader.get(store.queue("T", 0), 0, 32, EVERYTHING, None, results.append)
        wait_for(store, lambda: bool(results))
        assert results == [None]
        assert reader.failed == 1
        segment.read_at = works  # type: ignore[method-assign]
        assert numbers(get(store, reader, 0)) == [0, 1, 2]


def test_what_is_appended_while_a_cold_read_is_out_is_not_in_its_answer(world: World) -> None:
    with world.opened() as store:
        put(store, [b"x"] * 3)
    slow = ColdDisk()
    with world.opened(slow) as store, reading(store, COLD) as reader:
        slow.delay_s = 0.02
        results: list[GetResult | None] = []
        reader.get(store.queue("T", 0), 0, 32, EVERYTHING, None, results.append)
        put(store, [b"later"] * 3)
        wait_for(store, lambda: bool(results))
        slow.delay_s = 0.0
        (result,) = results
        assert result is not None
        assert numbers(result) == [0, 1, 2]


# -- entries that lie --------------------------------------------------------------------------------


@pytest.mark.parametrize("limits", [WARM, COLD])
@pytest.mark.parametrize(
    ("physical", "size"),
    [
        (0, 0),
        (0, -1),
        (0, 5),
        (0, 90),
        (0, 0x7FFFFFFF),
        (0, -(2**31)),
        (10, 100),
        (100, 2**30),
        (8000, 191),
        (8191, 100),
        (8187, 5),
        (8160, 30),
        (10**15, 100),
        (-5, 100),
        (-(2**63), -(2**31)),
    ],
)
@pytest.mark.parametrize("at", [0, 2, 4])
def test_a_stale_or_damaged_entry_serves_no_foreign_message_and_stops_nobody(
    world: World, physical: int, size: int, at: int, limits: ReadLimits
) -> None:
    with world.opened() as store:
        put(store, [b"foreign"], topic="U")
        put(store, [b"x"] * 5)
    path = world.root / "consumequeue" / "T" / "0" / segment_name(0)
    with world.opened() as store, reading(store, limits) as reader:
        with path.open("r+b") as file:
            file.seek(20 * at)
            file.write(struct.pack(">qiq", physical, size, 0))
        for matches in (None, lambda _code: True):
            offset, found = 0, []
            for _ in range(10):
                result = get(store, reader, offset, matches=matches)
                if result.status is GetStatus.OFFSET_OVERFLOW_ONE:
                    break
                assert result.next_offset > offset, "a consumer must not stay on it"
                offset = result.next_offset
                records = decode_records(b"".join(result.records))
                assert all(record.topic == "T" for record in records)
                found += [record.queue_offset for record in records]
            assert found == [n for n in range(5) if n != at]
        with path.open("r+b") as file:  # close() checks nothing, the next start would rebuild it
            file.seek(20 * at)
            file.write(bytes(20))


@pytest.mark.parametrize("limits", [COLD, FAR])
@pytest.mark.parametrize("at", [0, 2, 4])
def test_a_record_that_is_not_its_entrys_takes_none_of_its_neighbours_along(
    world: World, at: int, limits: ReadLimits
) -> None:
    with world.opened() as store, reading(store, limits) as reader, reading(store) as other:
        put(store, [b"x"] * 5)
        records = decode_records(b"".join(get(store, other, 0).records))
        with (world.root / "commitlog" / segment_name(0)).open("r+b") as file:
            file.seek(records[at].offset + 12)
            file.write(struct.pack(">i", 7))  # the record says now that it is of another queue
        result = get(store, reader, 0)
        assert numbers(result) == [n for n in range(5) if n != at]
        assert (result.count, result.next_offset) == (4, 5)
        assert result.size == sum(map(len, result.records))
        assert any("entry" in finding for finding in reader.findings)
        with (world.root / "commitlog" / segment_name(0)).open("r+b") as file:
            file.seek(records[at].offset + 12)
            file.write(struct.pack(">i", 0))


@pytest.mark.parametrize("limits", [WARM, COLD], ids=["warm", "cold"])
@pytest.mark.parametrize("size", [47, 0, None], ids=["cut inside an entry", "emptied", "gone"])
def test_a_queue_file_that_goes_bad_while_it_is_open_is_named_and_ends_no_process(
    world: World, size: int | None, limits: ReadLimits
) -> None:
    with world.opened() as store:
        put(store, [b"x"] * 5)
    path = world.root / "consumequeue" / "T" / "0" / segment_name(0)
    whole = path.read_bytes()
    disk = Disk()
    with world.opened(disk) as store, reading(store, limits) as reader:
        bulk = BulkReader(store.log, store.completions, warm_window=limits.warm_window)
        disk.close()  # as if thousands of other files had pushed its descriptor out
        if size is None:
            path.unlink()
        else:
            os.truncate(path, size)
        for at in (0, 2, 3):
            queue, answers = store.queue("T", 0), list[Any]()
            reader.get(queue, at, 32, EVERYTHING, None, answers.append)
            bulk.get(queue, at, 5, EVERYTHING, None, answers.append)
            frozen = queue.frozen()
            reader.run(partial(offset_by_time, frozen, store.log, 1), answers.append, answers.append)
            wait_for(store, partial(lambda told: len(told) == 3, answers))
        assert reader.failed or any(str(path.parent) in finding for finding in reader.findings)
        bulk.stop()
        path.write_bytes(whole)
        assert numbers(get(store, reader, 0)) == [0, 1, 2, 3, 4]


# -- look up by log offset ---------------------------------------------------------------------------


def look_up(store: MessageStore, reader: Reader, offset: int) -> bytes | None:
    results: list[bytes | None] = []
    reader.look_up(offset, store.find_queue, results.append, lambda _none: None)
    wait_for(store, lambda: bool(results))
    return results[0]


def test_a_record_is_found_by_its_offset_and_by_no_other(world: World) -> None:
    with world.opened() as store, reading(store) as reader:
        put(store, [b"x" * 10, b"y" * 3000, b"z" * 6000])
        starts = {r.offset: r for r in decode_records(b"".join(get(store, reader, 0).records))}
        for offset in [*range(-2, 200), *starts, store.log.end_offset - 1, store.log.end_offset, 10**12]:
            found = look_up(store, reader, offset)
            if offset in starts:
                assert found is not None
                assert decode_records(found) == [starts[offset]]
            else:
                assert found is None


def test_entries_are_read_from_files_after_a_restart_and_from_memory_before(world: World) -> None:
    with world.opened() as store, reading(store) as reader:
        put(store, [b"x"] * 25)
        write_back(store)
        assert numbers(get(store, reader, 5)) == list(range(5, 25))
    with world.opened() as store, reading(store) as reader:
        assert numbers(get(store, reader, 5)) == list(range(5, 10)), "one file of ten entries at a time"
        assert numbers(get(store, reader, 10)) == list(range(10, 20))
        put(store, [b"y"] * 2)
        assert numbers(get(store, reader, 20)) == list(range(20, 25))
        assert numbers(get(store, reader, 25)) == [25, 26]


def test_bytes_in_a_body_that_are_a_record_for_their_place_are_not_served(world: World) -> None:
    def record(offset: int, number: int, topic: bytes) -> bytes:
        return encode_record(topic, 0, 0, number, offset, 0, 1, HOST, 2, HOST, 0, 0, b"forged", b"")

    with world.opened() as store, reading(store) as reader:
        forged = []
        for topic in (b"T", b"U", b"\xff", b"T" * 130):
            for number in (0, 1, 7):
                at = store.log.end_offset + 88
                put(store, [record(at, number, topic)])
                forged.append(at)
        for at in forged:
            assert look_up(store, reader, at) is None
            assert look_up(store, reader, at - 88) is not None
        write_back(store)
    with world.opened(ColdDisk()) as store, reading(store, COLD) as reader:
        for at in forged:
            assert look_up(store, reader, at) is None, "entries are on disk"
            assert look_up(store, reader, at - 88) is not None
