"""Splits of a store, without Spark: every way to cut it gives the same records, each exactly once."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ropewalk.errors import CorruptRecord
from ropewalk.format.queue_entry import ENTRY_SIZE
from ropewalk.spark.options import BadOption, parse_options
from ropewalk.spark.rows.row_filter import RowFilter
from ropewalk.spark.rows.schema import Selection
from ropewalk.spark.store.files import open_stores
from ropewalk.spark.store.plan import DataLoss, LogSplit, QueueSplit, Split, plan_log
from ropewalk.spark.store.read import read_split
from ropewalk.spark.store.safe_end import safe_end
from ropewalk.spark.store.source import StoreReader, decode_plan
from ropewalk.spark.versions import VersionMismatch
from tests.spark.rows.records import entry
from tests.spark.store.reading import Row, Told, offsets, plan, read, read_splits
from tests.spark.stores import COMPAT_NAMES, START_MS, MadeStore, unpack_compat


@pytest.fixture(autouse=True)
def copies_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `io=pread`, a few records at a time."""
    monkeypatch.setattr("ropewalk.spark.store.read.WINDOW", 700)


Options = dict[str, Any]


@pytest.fixture
def made(tmp_path: Path) -> MadeStore:
    store = MadeStore(tmp_path / "store", segment_size=16384)
    store.fill(120)
    return store


def cut_finely(path: Path, size: int, **more: Any) -> list[Split]:
    """Splits of a few bytes, also at the ends of segments, where a plan makes none."""
    (store,) = open_stores(str(path))
    end = safe_end(store)
    chain = more.pop("chain", False)
    io = more.pop("io", "mmap")
    return list(plan_log(store, store.min_offset, end, size, io, RowFilter(), {}, chain=chain, tail_size=0))


@pytest.mark.parametrize("name", COMPAT_NAMES)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"io": "pread"},
        {"splitMode": "chain", "splitBytes": "3000"},
        {"splitMode": "queue"},
        {"splitMode": "queue", "io": "pread", "splitBytes": "2000"},
        {"endAt": "scan"},
        {"arrowBatchRows": "3"},
    ],
    ids=str,
)
def test_every_way_to_read_a_store_of_rocketmq_finds_the_same(
    name: str, options: Options, tmp_path: Path
) -> None:
    store, messages = unpack_compat(name, tmp_path)
    rows = sorted(read(store, **options), key=lambda row: int(row["physicalOffset"]))
    assert [(row["physicalOffset"], row["msgId"]) for row in rows] == [
        (message["commitLogOffset"], message["offsetMsgId"]) for message in messages
    ]


@pytest.mark.parametrize("io", ["mmap", "pread"])
@pytest.mark.parametrize("size", [17, 100, 500, 5000])
@pytest.mark.parametrize("chain", [False, True])
def test_each_record_is_read_once_wherever_the_cuts_are(
    made: MadeStore, io: str, size: int, chain: bool
) -> None:
    if size < 100:
        made.root.joinpath("commitlog", f"{16384:020d}").unlink()
    splits = cut_finely(made.root, size, io=io, chain=chain)
    expected = [offset for offset, _ in made.written if size >= 100 or not 16384 <= offset < 32768]
    assert offsets(read_splits(splits)) == expected


def test_a_record_larger_than_what_is_read_at_a_time_is_read_whole(tmp_path: Path) -> None:
    made = MadeStore(tmp_path, segment_size=8 << 20)
    bodies = [os.urandom(3 << 20), b"small", os.urandom(2 << 20)]
    for body in bodies:
        made.append(body=body)
    for io in ("pread", "mmap"):
        assert [row["body"] for row in read(tmp_path, io=io)] == bodies
    splits = cut_finely(tmp_path, 1 << 20, io="pread")
    assert [row["body"] for row in read_splits(splits)] == bodies


def test_no_cut_is_made_near_the_end_of_a_segment(made: MadeStore) -> None:
    splits = plan(made.root, splitBytes="1k")
    assert [split.segment.base_offset for split in splits if isinstance(split, LogSplit)] == [
        0,
        16384,
        32768,
        49152,
    ]


def test_left_over_records_behind_a_blank_are_not_read(tmp_path: Path) -> None:
    made = MadeStore(tmp_path, segment_size=4096)
    made.fill(12)
    blank = next(offset for offset, _ in made.written if offset >= 4096)
    assert blank == 4096
    last_of_first, record = [(offset, raw) for offset, raw in made.written if offset < 4096][-1]
    stale = last_of_first + len(record) + 8
    from ropewalk.format.record import encode_record
    from tests.spark.stores import BORN_HOST, STORE_HOST

    left = encode_record(b"old", 0, 0, 0, stale, 0, 1, BORN_HOST, 1, STORE_HOST, 0, 0, b"", b"")
    if stale + len(left) <= 4096:
        made.write(stale, left)
    assert {row["topic"] for row in read(tmp_path, splitBytes="512")} == {"orders", "bills"}


# Which rows


def test_topics_queues_tags_and_times_choose_rows(made: MadeStore) -> None:
    rows = read(made.root)
    assert len(rows) == 120

    def chosen(**options: Any) -> list[int]:
        found = offsets(read(made.root, **options))
        for io in ("mmap", "pread"):
            assert sorted(offsets(read(made.root, splitMode="queue", io=io, **options))) == found
        return found

    def where(keep: Callable[[Row], bool]) -> list[int]:
        return [row["physicalOffset"] for row in rows if keep(row)]

    assert chosen(topic="orders") == where(lambda row: row["topic"] == "orders")
    assert chosen(topic="orders, bills") == offsets(rows)
    assert chosen(subscribePattern="b.*") == where(lambda row: row["topic"] == "bills")
    assert chosen(filterTags="tag0 || tag2") == where(lambda row: row["tags"] in ("tag0", "tag2"))
    assign = json.dumps({"orders": {"broker-a": [1]}})
    assert chosen(assign=assign) == where(lambda row: (row["topic"], row["queueId"]) == ("orders", 1))
    assert chosen(brokerName="broker-a", assign=assign) == chosen(assign=assign)
    assert chosen(brokerName="broker-b", assign=assign) == []
    since, until = START_MS + 40, START_MS + 80
    assert chosen(startingTimestamp=str(since), endingTimestamp="2023-11-14T22:13:20.080Z") == where(
        lambda row: since <= round(row["storeTimestamp"].timestamp() * 1000) < until
    )
    start = json.dumps({"orders": {"b": {"0": 5, "1": 28}}})
    end = json.dumps({"orders": {"b": {"0": 9}}})
    assert chosen(topic="orders", startingOffsets=start, endingOffsets=end) == where(
        lambda row: (
            ((row["topic"], row["queueId"]) == ("orders", 0) and 5 <= row["queueOffset"] < 9)
            or ((row["topic"], row["queueId"]) == ("orders", 1) and row["queueOffset"] >= 28)
        )
    )
    by_time = json.dumps({"orders": {"b": {"0": since, "1": since}}})
    assert chosen(topic="orders", startingOffsetsByTimestamp=by_time) == where(
        lambda row: row["topic"] == "orders" and round(row["storeTimestamp"].timestamp() * 1000) >= since
    )


def test_patterns_pass_over_the_brokers_own_topics(made: MadeStore) -> None:
    for topic in ("SCHEDULE_TOPIC_XXXX", "%RETRY%group", "rmq_sys_wheel_timer"):
        made.append(topic)
    assert {row["topic"] for row in read(made.root, subscribePattern=".*")} == {"orders", "bills"}
    assert len(read(made.root, subscribePattern=".*", includeSystemTopics="true")) == 123
    assert len(read(made.root, topic="%RETRY%group")) == 1
    assert len(read(made.root)) == 123


def test_offsets_that_are_not_there_are_lost_data(made: MadeStore) -> None:
    beyond = json.dumps({"orders": {"b": {"0": 31}}})
    with pytest.raises(DataLoss, match=r"queue 0 of orders is to be read from offset 31, but has \[0, 30\)"):
        plan(made.root, topic="orders", startingOffsets=beyond)
    for segment in sorted((made.root / "commitlog").iterdir())[:1]:
        segment.unlink()
    early = json.dumps({"orders": {"b": {"0": 0}}})
    with pytest.raises(DataLoss, match="are gone; failOnDataLoss=false reads what there is"):
        plan(made.root, topic="orders", startingOffsets=early)
    rows = read(made.root, topic="orders", startingOffsets=early, failOnDataLoss="false")
    assert offsets(rows) == [o for o, raw in made.written if o >= 16384 and b"\x06orders" in raw]
    with pytest.raises(BadOption, match=r"queue 9 of orders, which .* does not have"):
        plan(made.root, topic="orders", startingOffsets=json.dumps({"orders": {"b": {"9": 0}}}))
    late = json.dumps({"orders": {"b": {"0": START_MS + 999}}})
    with pytest.raises(DataLoss, match="has no message at or after the given time"):
        plan(made.root, topic="orders", startingOffsetsByTimestamp=late)
    strategy: Options = {"startingOffsetsByTimestampStrategy": "latest"}
    found = read(made.root, topic="orders", startingOffsetsByTimestamp=late, **strategy)
    assert {row["queueId"] for row in found} == {1}


def test_splits_are_as_many_as_asked_for(tmp_path: Path) -> None:
    made = MadeStore(tmp_path, segment_size=24 << 20)
    for number in range(12):
        made.append(body=bytes([number]) * (1 << 20))
    assert len(plan(tmp_path, endAt="scan", splitBytes="5m")) == 3
    assert len(plan(tmp_path, endAt="scan", minPartitions="4")) == 3
    assert len(plan(tmp_path, splitMode="queue", splitBytes="2m")) == 6
    assert len(plan(tmp_path, splitMode="queue", maxRecordsPerPartition="5")) == 3
    assert len(read(tmp_path, splitBytes="4m")) == 12


# Damage


def hurt(made: MadeStore, number: int, at: int, data: bytes) -> int:
    """Overwrite bytes of a record; its log offset."""
    offset, _ = made.written[number]
    made.write(offset + at, data)
    return offset


@pytest.mark.parametrize("size", [300, 1000, 100_000])
@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_damage_is_told_once_whatever_the_cuts(made: MadeStore, size: int, io: str) -> None:
    places = [
        hurt(made, 30, 4, b"\0\0\0\0"),
        hurt(made, 41, 0, b"\x7f\xff\xff\xff"),
        hurt(made, 70, 28, b"\x01"),
        hurt(made, 100, 84, b"\xff"),
    ]
    told = Told()
    rows = read_splits(cut_finely(made.root, size, io=io), told, onCorrupt="skip")
    assert [place.offset for place in told.damaged] == places
    assert offsets(rows) == [offset for offset, _ in made.written if offset not in places]
    with pytest.raises(CorruptRecord, match=f"offset {places[0]}: "):
        read_splits(cut_finely(made.root, size, io=io))


@given(st.data())
@settings(suppress_health_check=list(HealthCheck))
def test_damage_anywhere_costs_what_it_touches_and_is_told(tmp_path: Path, data: st.DataObject) -> None:
    root = tmp_path / data.draw(st.uuids()).hex
    made = MadeStore(root, segment_size=8192)
    made.fill(25)
    start = data.draw(st.integers(0, made.offset - 1))
    length = data.draw(st.integers(1, 400))
    made.write(start - start % 1, os.urandom(min(length, 8192 - start % 8192)))
    end = start + length
    told = Told()
    rows = read_splits(
        cut_finely(root, data.draw(st.sampled_from((200, 700, 9000)))),
        told,
        onCorrupt="skip",
        checkCrc="true",
    )
    untouched = [offset for offset, raw in made.written if offset + len(raw) <= start or offset >= end]
    found = offsets(rows)
    assert [offset for offset in found if offset in untouched] == untouched
    missing = [offset for offset, _ in made.written if offset not in found]
    # Where nothing readable follows, that is the end of the log, as a crash may have left it.
    if missing and missing[-1] != made.written[-1][0]:
        assert told.damaged, missing


def test_a_flipped_bit_in_a_body_is_found_by_its_checksum(made: MadeStore) -> None:
    place = hurt(made, 31, 90, b"\xee")
    told = Told()
    assert len(read(made.root, told)) == 120
    assert told.damaged == []
    with pytest.raises(CorruptRecord, match=f"offset {place}: the body does not match its checksum"):
        read(made.root, checkCrc="true")
    rows = read(made.root, told, onCorrupt="keep", preset="full", checkCrc="true")
    assert (len(rows), [found.offset for found in told.damaged]) == (120, [place])
    options = parse_options({"mode": "store", "path": str(made.root), "onCorrupt": "keep"}, "read")
    decode = replace(decode_plan(options, Selection(("physicalOffset", "crcOk"))), check_crc=False)
    shown = [
        row
        for split in plan(made.root)
        for batch in read_split(split, decode, told.report())
        for row in batch.to_pylist()
    ]
    assert [row["physicalOffset"] for row in shown if not row["crcOk"]] == [place]


def test_zeros_inside_the_readable_log_are_damage(made: MadeStore) -> None:
    start, _ = made.written[80]
    made.write(start, bytes(16384 - start % 16384))
    told = Told()
    rows = read(made.root, told, onCorrupt="skip")
    assert [place.offset for place in told.damaged] == [start]
    assert "zeros" in told.damaged[0].reason
    assert {offset for offset, _ in made.written} - set(offsets(rows)) == {
        offset for offset, _ in made.written if start <= offset < start - start % 16384 + 16384
    }


def test_a_segment_missing_in_the_middle_is_told_when_the_read_is_planned(made: MadeStore) -> None:
    (made.root / "commitlog" / f"{16384:020d}").unlink()
    with pytest.raises(DataLoss, match="16384 bytes of the log are missing between"):
        plan(made.root)
    assert len(read(made.root, onCorrupt="skip")) < 120


def test_entries_that_lead_elsewhere_are_told_in_a_read_by_queue(made: MadeStore) -> None:
    offset, raw = made.written[50]
    made.write_entry("orders", 0, 3, offset, len(raw))
    made.write_entry("orders", 0, 7, made.written[28][0] + 5, 100)
    for io in ("mmap", "pread"):
        told = Told()
        rows = read(made.root, told, splitMode="queue", topic="orders", io=io, onCorrupt="skip")
        assert len(told.damaged) >= 2
        assert [row["queueOffset"] for row in rows if row["queueId"] == 0][:4] == [0, 1, 2, 4]
        with pytest.raises(CorruptRecord, match="of orders"):
            read(made.root, splitMode="queue", topic="orders", io=io)


def test_entries_that_are_missing_are_lost_data_in_a_read_by_queue(made: MadeStore) -> None:
    (path,) = sorted((made.root / "consumequeue" / "orders" / "0").iterdir())
    with path.open("r+b") as file:
        file.seek(5 * ENTRY_SIZE)
        file.write(bytes(8 * ENTRY_SIZE))
    (made.root / "consumequeue" / "orders" / "²").mkdir()  # no number, though Unicode knows it for a digit
    # As one partition, and with the missing entries in partitions of their own.
    for size in ("1000", "2"):
        options: Options = {"splitMode": "queue", "topic": "orders", "maxRecordsPerPartition": size}
        with pytest.raises(DataLoss, match=r"queue 0 of orders has no entry for \d messages from 5 on"):
            read(made.root, **options)
        told = Told()
        rows = read(made.root, told, failOnDataLoss="false", **options)
        assert [row["queueOffset"] for row in rows if row["queueId"] == 0][:6] == [0, 1, 2, 3, 4, 13]
        assert told.lost and len(rows) == 52
    assert len(read(made.root, topic="orders")) == 60


def test_a_file_that_changes_behind_a_plan_is_lost_data(made: MadeStore) -> None:
    for mode in ("resync", "queue"):
        for io in ("mmap", "pread"):
            splits = plan(made.root, splitMode=mode, io=io)
            assert all(isinstance(split, QueueSplit) == (mode == "queue") for split in splits)
            path = made.root / "commitlog" / f"{16384:020d}"
            whole = path.read_bytes()
            path.write_bytes(whole[:5000])
            with pytest.raises(DataLoss, match="was 16384 when the read was planned"):
                read_splits(splits)
            told = Told()
            kept = read_splits(splits, told, failOnDataLoss="false")
            assert told.lost
            assert set(offsets(kept)) <= {offset for offset, _ in made.written}
            path.unlink()
            with pytest.raises(DataLoss, match="has vanished since the read was planned"):
                read_splits(splits)
            path.write_bytes(whole)


def cut_while_it_is_mapped(splits: list[Split], path: Path) -> None:
    """In a process of its own."""
    faulthandler.disable()
    parsed = parse_options({"mode": "store", "path": "-", "arrowBatchRows": "1"}, "read")
    decode = decode_plan(parsed, parsed.selection())
    for batch in read_split(splits[0], decode, Told().report()):
        assert batch.num_rows == 1
        os.truncate(path, 0)


def test_a_file_that_shrinks_under_a_mapping_ends_the_worker_and_the_next_attempt_says_why(
    made: MadeStore,
) -> None:
    splits = plan(made.root, io="mmap")
    path = made.root / "commitlog" / f"{0:020d}"
    worker = get_context("spawn").Process(target=cut_while_it_is_mapped, args=(splits, path))
    worker.start()
    worker.join(60)
    assert worker.exitcode == -signal.SIGBUS
    with pytest.raises(DataLoss, match="is 0 bytes long, and was 16384 when the read was planned"):
        read_splits(splits[:1])


def test_a_worker_with_another_version_refuses(made: MadeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    options = parse_options({"mode": "store", "path": str(made.root)}, "read")
    reader = StoreReader(options, options.selection())
    first = reader.partitions()[0]
    monkeypatch.setattr("ropewalk.spark.versions.__version__", "9.9.9")
    with pytest.raises(VersionMismatch, match=r"this worker has 9\.9\.9"):
        list(reader.read(first))


def test_the_log_of_a_dledger_reads_like_any_other(tmp_path: Path) -> None:
    data = tmp_path / "dledger-n0" / "data"
    data.mkdir(parents=True)
    expected: list[int] = []
    for base in (0, 4096):
        log = b""
        while True:
            made = entry(base + len(log), len(expected), queue_offset=len(expected))
            if len(log) + len(made) + 8 > 4096:
                break
            expected.append(base + len(log) + 48)
            log += made
        log += (-1).to_bytes(4, "big", signed=True) + (4096 - len(log)).to_bytes(4, "big")
        (data / f"{base:020d}").write_bytes(log.ljust(4096, b"\0"))
    assert offsets(read(tmp_path, endAt="scan")) == expected
    (store,) = open_stores(str(tmp_path))
    for size in (1, 60, 1000):
        splits = plan_log(store, 0, 8192, size, "pread", RowFilter(), {}, tail_size=0)
        assert offsets(read_splits(list(splits))) == expected
