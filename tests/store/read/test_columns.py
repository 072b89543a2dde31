"""Answers cut by columns are those of the slow way: from the map, the page cache and the disk, whatever entries say."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.format.properties import tags_code
from ropewalk.format.record import decode_records, encode_record
from store.config import StoreConfig
from store.io.disk import Disk
from store.log.commitlog import segment_name
from store.message_store import MessageStore
from store.read import log_blocks
from store.read.columns import cut_records
from store.read.reader import Reader
from store.read.results import GetResult, GetStatus, ReadLimits
from tests.store.read.reading import COLD, FAR, WARM, ColdDisk, numbers, outcome, reading
from tests.store.worlds import HOST, World, put, settle, wait_for

EVERYTHING = 128 << 20


@contextmanager
def reading_slowly(store: MessageStore, limits: ReadLimits) -> Iterator[Reader]:
    """A reader that has no columns and no blocks."""
    with reading(store, limits) as reader:
        reader._cut = lambda *_args: None  # type: ignore[method-assign]
        reader._fetcher.find_missing = lambda *_args: None  # type: ignore[method-assign]
        yield reader


def answer(
    store: MessageStore,
    reader: Reader,
    topic: str,
    queue_id: int,
    offset: int,
    max_count: int,
    max_bytes: int,
    matches: Callable[[int], bool] | None,
) -> GetResult | None:
    results: list[GetResult | None] = []
    queue = store.find_queue(topic, queue_id)
    reader.get(queue, offset, max_count, max_bytes, matches, results.append)
    wait_for(store, lambda: bool(results))
    return results[0]


def said(result: GetResult | None) -> Any:
    if result is None:
        return None
    assert (result.count, result.size) == (len(numbers(result)), len(b"".join(result.records)))
    return outcome(result), b"".join(result.records)


LIE = st.sampled_from(
    ("zero", "blank", "foreign queue", "foreign topic", "other number", "size", "place", "far")
)


def lie(kind: str, entry: tuple[int, int, int], others: list[tuple[int, int, int]]) -> tuple[int, int, int]:
    """Another entry in the place of `entry`: wrong, but for some of them not by much."""
    offset, size, tags = entry
    return {
        "zero": (0, 0, 0),
        "blank": (0, 0x7FFFFFFF, 0),
        "foreign queue": others[0],
        "foreign topic": others[1],
        "other number": others[2],
        "size": (offset, size + 1, tags),
        "place": (offset + 1, size, tags),
        "far": (1 << 50, size, tags),
    }[kind]


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.sampled_from((0, 10, 10, 10, 10, 10, 10, 10, 300, 2500)), min_size=2, max_size=90),
    neighbours=st.integers(2, 12),
    lies=st.dictionaries(st.integers(0, 60), LIE, max_size=3),
    retired=st.booleans(),
    limits=st.sampled_from((WARM, COLD, FAR, ReadLimits(memory_window=9000, warm_window=5000))),
    cold=st.booleans(),
    filtered=st.booleans(),
    max_count=st.sampled_from((1, 7, 32, 32)),
    max_bytes=st.sampled_from((900, 20_000, EVERYTHING)),
    block_size=st.sampled_from((700, 4096, 512 << 10)),
)
def test_columns_and_the_slow_way_give_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    neighbours: int,
    lies: dict[int, str],
    retired: bool,
    limits: ReadLimits,
    cold: bool,
    filtered: bool,
    max_count: int,
    max_bytes: int,
    block_size: int,
) -> None:
    world = World(tmp_path_factory.mktemp("columns") / "store", segment_size=16_384, queue_file_size=20 * 50)
    with world.opened() as store:
        for number, size in enumerate(sizes):
            tags = "red" if number % 3 else "blue"
            for queue_id in range(2) if number % neighbours else (0,):
                put(store, [b"x" * size], queue_id=queue_id, tags=tags)
            put(store, [b"x" * size], topic="U", tags=tags)  # of the same queue id, numbers and sizes
    matches = (lambda code: code == tags_code("red")) if filtered else None
    disk = ColdDisk() if cold else Disk()
    with world.opened(disk) as store, pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_blocks, "BLOCK_SIZE", block_size)
        for at, kind in lies.items():
            if at < len(sizes):
                entry = store.queue("T", 0).frozen().read(at)
                places = ("T", 1, 0), ("U", 0, at), ("T", 0, at - 1 if at else 1)
                others = [store.queue(topic, queue).frozen().read(n) for topic, queue, n in places]
                path = world.root / "consumequeue" / "T" / "0" / segment_name(at // 50 * 1000)
                with path.open("r+b") as file:
                    file.seek(at % 50 * 20)
                    file.write(struct.pack(">qiq", *lie(kind, entry, others)))
        gone = None
        if retired and len(store.log.segments) > 1:
            gone = store.log.segments.pop(0)
            store.log._bases.pop(0)
        with reading(store, limits) as reader, reading_slowly(store, limits) as model:
            offset = 0
            while offset < len(sizes):
                asked = "T", 0, offset, max_count, max_bytes, matches
                first, second = answer(store, reader, *asked), answer(store, model, *asked)
                assert said(first) == said(second)
                assert first is not None and first.next_offset > offset
                if first.status is GetStatus.FOUND:
                    assert all(record.topic == "T" for record in decode_records(b"".join(first.records)))
                offset = first.next_offset
            assert set(reader.findings) == set(model.findings)
            assert reader.blocks.size <= (log_blocks.BLOCKS_MAX + 1) * block_size
        if gone is not None:
            gone.file.close()


def test_the_columns_are_what_answers_a_backlog_of_several_queues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of this test's others would fail if every read went the slow way."""
    monkeypatch.setattr(log_blocks, "BLOCK_SIZE", 8192)
    world = World(tmp_path / "store", segment_size=1 << 16, queue_file_size=20_000)
    with world.opened() as store:
        for number in range(400):
            put(store, [b"%d" % number * 20], queue_id=number % 4)
    for disk, limits in ((Disk(), WARM), (Disk(), COLD), (ColdDisk(), COLD)):
        with world.opened(disk) as store, reading(store, limits) as reader:
            monkeypatch.setattr("store.read.reader.read_runs_nowait", None)
            for queue_id in range(4):
                offset = 0
                while offset < 100:
                    result = answer(store, reader, "T", queue_id, offset, 32, EVERYTHING, None)
                    assert result is not None
                    found = decode_records(b"".join(result.records))
                    assert [record.queue_offset for record in found] == list(
                        range(offset, result.next_offset)
                    )
                    assert {record.queue_id for record in found} == {queue_id}
                    offset = result.next_offset
            monkeypatch.undo()
            monkeypatch.setattr(log_blocks, "BLOCK_SIZE", 8192)


@pytest.mark.parametrize("limits", [WARM, COLD])
@pytest.mark.parametrize("apart", [True, False])
def test_an_entry_that_names_the_same_number_of_another_topic_is_skipped(
    world: World, apart: bool, limits: ReadLimits
) -> None:
    with world.opened() as store:
        for topic in ("T", "U") * 10 if apart else ("T",) * 10 + ("U",) * 10:
            put(store, [b"x" * 10], topic=topic)
    with world.opened() as store, reading(store, limits) as reader:
        foreign = store.queue("U", 0).frozen().read(5)
        with (world.root / "consumequeue" / "T" / "0" / segment_name(0)).open("r+b") as file:
            file.seek(5 * 20)
            file.write(struct.pack(">qiq", *foreign))
        result = answer(store, reader, "T", 0, 0, 32, EVERYTHING, None)
        assert result is not None
        assert numbers(result) == [n for n in range(10) if n != 5]
        assert {record.topic for record in decode_records(b"".join(result.records))} == {"T"}


class SummedWorld(World):
    """A world whose log is under checksums, a MiB each."""

    @property
    def config(self) -> StoreConfig:
        return replace(super().config, checksum_block=1 << 20)


def test_a_damaged_block_is_served_by_neither_way_and_the_others_are_by_both(tmp_path: Path) -> None:
    world = SummedWorld(tmp_path / "store", segment_size=8 << 20, queue_file_size=60_000)
    with world.opened() as store:
        for _ in range(26):
            put(store, [b"x" * 1024] * 100)
        settle(store)
    with world.opened() as store:
        path = store.log.segments[0].file.path
        whole = path.read_bytes()
        with path.open("r+b") as file:
            file.seek((1 << 20) + (300 << 10))  # in the second block under a checksum
            file.write(b"#" * 10)
        with reading(store, COLD) as reader, reading_slowly(store, COLD) as model:
            said_of = []
            for offset in range(0, 2600, 32):
                asked = "T", 0, offset, 32, EVERYTHING, None
                first = answer(store, reader, *asked)
                assert said(first) == said(answer(store, model, *asked))
                said_of.append(first is not None)
            assert said_of.count(False) in range(27, 33), "a MiB of records of 1.1 KiB"
            assert said_of[0] and said_of[-1]
        path.write_bytes(whole)


def test_a_topic_that_was_deleted_and_made_again_is_read_alike(world: World) -> None:
    with world.opened() as store:
        for _ in range(2):
            put(store, [b"first life"] * 40)
            put(store, [b"neighbour's"] * 40, topic="U")
            gone: list[bool] = []
            store.delete_topic("T", gone.append)
            wait_for(store, partial(bool, gone))
        put(store, [b"second life"] * 15)
        settle(store)
    for limits in (WARM, COLD):
        with (
            world.opened() as store,
            reading(store, limits) as reader,
            reading_slowly(store, limits) as model,
        ):
            for offset in range(15):
                asked = "T", 0, offset, 32, EVERYTHING, None
                first = answer(store, reader, *asked)
                assert first is not None and said(first) == said(answer(store, model, *asked))
                assert {r.body for r in decode_records(b"".join(first.records))} == {b"second life"}


# -- one record that is not as it should be ----------------------------------------------------------


def record(
    number: int, offset: int, *, topic: bytes = b"T", queue_id: int = 3, size: int = 50, **more: Any
) -> bytes:
    return encode_record(
        topic, queue_id, 0, number, offset, more.get("flag", 0), 1, more.get("born", HOST), 2, HOST, 0, 0,
        b"b" * size, b"",
    )  # fmt: skip


@pytest.mark.parametrize("uniform", [True, False])
@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("trusted", [True, False])
@pytest.mark.parametrize("at", [0, 6, 11])
@pytest.mark.parametrize("wrong", ["queue_id", "number", "offset", "topic", "size", "magic", "cut", None])
def test_one_record_that_is_not_its_entrys_is_noticed(
    wrong: str | None, at: int, trusted: bool, apart: bool, uniform: bool
) -> None:
    base, count = 7_000_000, 12
    data, offsets, sizes = bytearray(), [], []
    for n in range(count):
        data += bytes(48 if apart else 0)  # as DLedger's heads, which are nobody's records
        offset = base + len(data)
        more: dict[str, Any] = {"size": 50 if uniform else 50 + n % 5}
        if n == at and wrong == "topic":
            more["topic"] = b"U"
        elif n == at and wrong == "queue_id":
            more["queue_id"] = 4
        elif n == at and wrong == "size":
            more["size"] += 1
        made = record(
            100 + n + (n == at and wrong == "number"), offset + (n == at and wrong == "offset"), **more
        )
        offsets.append(offset)
        sizes.append(len(made) - (n == at and wrong == "size"))
        if n == at and wrong == "magic":
            made = made[:7] + bytes((made[7] ^ 1,)) + made[8:]
        data += made
    if wrong == "cut":
        del data[offsets[at] - base + 40 :]
    topic = None if trusted else b"T"
    body = cut_records(
        bytes(data), base, 3, topic, range(100, 100 + count), tuple(offsets), tuple(sizes), sum(sizes),
        in_window=False,
    )  # fmt: skip
    if wrong is None or (trusted and wrong in ("topic", "magic")):
        assert body == b"".join(bytes(data[o - base :][:s]) for o, s in zip(offsets, sizes, strict=True))
    else:
        assert body is None


# -- memory ------------------------------------------------------------------------------------------


def test_blocks_are_bounded_and_go_when_nobody_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_blocks, "BLOCK_SIZE", 1024)
    world = World(tmp_path / "store", segment_size=1 << 16, queue_file_size=20_000)
    with world.opened(ColdDisk()) as store, reading(store, COLD) as reader:
        put(store, [b"x" * 100] * 300)
        for turn in range(3):
            reader.cold_budget.observe(100.0 + turn, 0.0, 1)
            reader.resume_deferred()
            for offset in range(0, 300, 30):
                assert answer(store, reader, "T", 0, offset, 30, EVERYTHING, None) is not None
            assert 0 < reader.blocks.size <= (log_blocks.BLOCKS_MAX + 1) * 1024
        reader.cold_budget.observe(102.0 + log_blocks.IDLE_S, 0.0, 1)
        reader.resume_deferred()
        assert reader.blocks.size == 0


def test_what_the_page_cache_has_is_copied_into_no_block(tmp_path: Path) -> None:
    """Consumers of neighbouring queues who drift apart would copy the same part of the log over and over."""
    world = World(tmp_path / "store", segment_size=1 << 16, queue_file_size=20_000)
    with world.opened() as store, reading(store, COLD) as reader:
        for number in range(800):
            put(store, [b"x" * 100], queue_id=number % 8)
        for offset in range(0, 64, 32):
            for queue_id in range(8):
                found = reader.get_resident(store.queue("T", queue_id), offset, 32, EVERYTHING)
                assert found is not None and numbers(found) == list(range(offset, offset + 32))
        assert reader.blocks.size == 0


def test_records_with_many_other_queues_in_between_are_cut_by_columns_too(tmp_path: Path) -> None:
    world = World(tmp_path / "store", segment_size=1 << 20, queue_file_size=20_000)
    with world.opened() as store, reading(store, COLD) as reader:
        for number in range(40 * 40):
            put(store, [b"x" * 100], queue_id=number % 40)
        found = reader.get_resident(store.queue("T", 7), 3, 32, EVERYTHING)
        assert found is not None and numbers(found) == list(range(3, 35))
        assert {record.queue_id for record in decode_records(b"".join(found.records))} == {7}


def test_a_page_that_the_cache_lost_is_brought_by_a_thread_and_the_rest_is_read_from_the_map(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_blocks, "BLOCK_SIZE", 8192)
    monkeypatch.setattr("store.read.block_fetcher.BLOCK_SIZE", 8192)
    world = World(tmp_path / "store", segment_size=1 << 17, queue_file_size=20_000)
    with world.opened() as store, reading(store, COLD) as reader:
        for number in range(400):
            put(store, [b"x" * 100], queue_id=number % 4)
        queue, file = store.queue("T", 0), store.log.segments[0].file
        middle = queue.frozen().read(50)[0]
        lost = middle - middle % 4096

        def is_resident(position: int, size: int) -> bool:
            return position + size <= lost or lost + 4096 <= position

        monkeypatch.setattr(file, "is_resident", is_resident)
        monkeypatch.setattr(file, "read_at_nowait", lambda _position, _size: None)
        assert reader.get_resident(queue, 40, 32, EVERYTHING) is None
        first = answer(store, reader, "T", 0, 40, 32, EVERYTHING, None)
        assert first is not None and numbers(first) == list(range(40, 72))
        assert lost - lost % 8192 in reader.blocks
        assert queue.frozen().read(40)[0] // 8192 * 8192 not in reader.blocks
        for record in decode_records(b"".join(first.records)):
            assert (record.topic, record.queue_id) == ("T", 0)


def test_reads_that_wait_for_one_block_share_it(tmp_path: Path) -> None:
    world = World(tmp_path / "store", segment_size=1 << 16, queue_file_size=20_000)
    with world.opened() as store:
        for number in range(200):
            put(store, [b"x" * 50], queue_id=number % 4)
    disk = ColdDisk()
    with world.opened(disk) as store, reading(store, COLD) as reader:
        for queue_id in range(4):  # their entries are at hand then
            queue = store.queue("T", queue_id)
            file, position, size = queue.place(0, 50)
            entries = file.read_at(position, size)
            reader._chunks[queue] = queue.epoch, 0, entries
        disk.reads = 0
        results: list[GetResult | None] = []
        for queue_id in range(4):
            reader.get(store.queue("T", queue_id), 0, 32, EVERYTHING, None, results.append)
        wait_for(store, lambda: len(results) == 4)
        assert [numbers(result) for result in results if result is not None] == [list(range(32))] * 4
        assert disk.reads <= 2, "the block, and what its checksum covers"


@pytest.mark.parametrize("busy", [False, True])
def test_blocks_are_brought_ahead_of_a_cold_drain_while_the_loop_has_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, busy: bool
) -> None:
    monkeypatch.setattr(log_blocks, "BLOCK_SIZE", 4096)
    monkeypatch.setattr("store.read.block_fetcher.BLOCK_SIZE", 4096)
    world = World(tmp_path / "store", segment_size=1 << 16, queue_file_size=20_000)
    with world.opened() as store:
        put(store, [b"x" * 100] * 300)
    with world.opened(ColdDisk()) as store, reading(store, COLD) as reader:
        queue = store.queue("T", 0)
        file, position, size = queue.place(0, 300)
        reader._chunks[queue] = queue.epoch, 0, file.read_at(position, size)
        if busy:
            for turn in range(100):
                reader.cold_budget.observe(100.0 + turn / 1000, 0.0, 1 + turn)
            reader.cold_budget.spend(8 << 20)
            assert not reader.cold_budget.has_room
        results: list[GetResult | None] = []
        reader.get(queue, 0, 10, EVERYTHING, None, results.append, deferrable=False)
        wait_for(store, lambda: bool(results) and reader._fetcher.is_idle)
        assert results[0] is not None and numbers(results[0]) == list(range(10))
        assert (4096 in reader.blocks, 4 * 4096 in reader.blocks) == (not busy, not busy)
        if not busy:
            assert reader.get_resident(queue, 25, 32, EVERYTHING) is not None, "it stands in the second block"
