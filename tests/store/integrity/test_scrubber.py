"""Checksums appear behind the flush, the scrubber spends no more than it may, and both find what is wrong."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import store.integrity.checksums
import store.integrity.scrubber
from ropewalk.format.sidecar import Sidecar, block_sum
from store.integrity.checksums import BlockDamaged, Checksums
from store.io.disk import Disk, MappedFile
from store.message_store import MessageStore
from tests.store.integrity.scrubbing import running, scrubbing, turn
from tests.store.worlds import put, settle, wait_for
from tests.support.clocks import Clock
from tests.support.recorded_stores import unpack
from tests.support.stores import SEGMENT_SIZE, fill, fill_ledger, flip, segments

BLOCK = 512


def sidecars(root: Path) -> dict[str, Sidecar]:
    found = {
        path.name: Sidecar.decode(path.read_bytes()) for path in (root / "ropewalk" / "checksums").iterdir()
    }
    return {name: sidecar for name, sidecar in found.items() if sidecar is not None}


def test_a_stopped_store_is_under_checksums_to_its_last_byte(tmp_path: Path) -> None:
    fill(tmp_path / "store")
    found = sidecars(tmp_path / "store")
    for path in segments(tmp_path / "store"):
        sidecar, data = found[path.name], path.read_bytes()
        assert sidecar.is_complete or path == segments(tmp_path / "store")[-1]
        for number, wanted in enumerate(sidecar.sums):
            start, stop = sidecar.block(number)
            assert block_sum(data[start:stop]) == wanted
        assert not any(data[sidecar.covered :])


def test_only_what_is_flushed_is_summed(tmp_path: Path) -> None:
    clock = Clock()
    store = MessageStore(scrubbing(tmp_path / "store", 0), Disk(), clock, lambda: None)
    store.open()
    settle(store)
    put(store, [b"x" * 400] * 6)
    flushed = store.log.flushed_offset
    assert store.upkeep.checksums is not None
    store.upkeep.checksums.tick(flushed)
    worker = store.upkeep.checksums._worker
    assert worker is not None
    wait_for(store, lambda: not worker.pending and not store._preallocator.worker.pending)
    assert store.upkeep.checksums.covered_end <= flushed
    settle(store)
    turn(store, clock, 10)
    assert 0 < store.upkeep.checksums.covered_end <= store.log.flushed_offset
    store.close()


def test_a_read_over_two_blocks_needs_both_of_them_checked(tmp_path: Path) -> None:
    fill(tmp_path / "store")
    flip(segments(tmp_path / "store")[0], BLOCK + 100, 1)
    store = MessageStore(scrubbing(tmp_path / "store", 0), Disk(), Clock(), lambda: None)
    store.open()
    checks = store.log.segments[0].checks
    assert checks is not None and not checks.is_checked(0, 1)
    checks.check_blocks(0, BLOCK)
    assert checks.is_checked(0, BLOCK)
    for position, size in ((0, BLOCK + 1), (BLOCK - 1, 2), (0, 3 * BLOCK)):
        assert not checks.is_checked(position, size)
        with pytest.raises(BlockDamaged, match=f"byte {BLOCK} to {2 * BLOCK}"):
            checks.check_blocks(position, size)
    store.close()


def test_a_crash_and_another_start_go_on_with_the_checksums(tmp_path: Path) -> None:
    fill(tmp_path / "store", 20)
    fill(tmp_path / "store", 20)
    found = sidecars(tmp_path / "store")
    assert set(found) == {path.name for path in segments(tmp_path / "store")}


@pytest.mark.parametrize("rate", [BLOCK, 4 * BLOCK])
def test_the_scrubber_reads_no_more_than_its_budget(tmp_path: Path, rate: int) -> None:
    fill(tmp_path / "store")
    clock = Clock()
    store = MessageStore(scrubbing(tmp_path / "store", rate), Disk(), clock, lambda: None)
    store.open()
    assert store.upkeep.scrubber is not None
    seconds = 0
    while store.upkeep.scrubber.passes == 0:
        turn(store, clock, 1000)
        seconds += 1
        assert seconds < 1000
    size = SEGMENT_SIZE * (len(store.log.segments) - 1)
    assert seconds >= size / rate - 3
    assert not store.upkeep.take_findings()
    store.close()


def test_the_scrubber_leaves_a_segment_that_is_being_summed_to_whoever_sums_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To read it record by record, as one of RocketMQ's, would cost a loaded broker a part of a processor."""
    monkeypatch.setattr(
        store.integrity.scrubber, "whole_records", lambda *_: pytest.fail("read record by record")
    )
    monkeypatch.setattr(store.integrity.checksums, "_BLOCKS_AT_ONCE", 1)
    with running(scrubbing(tmp_path / "store", 1 << 20), 60) as (opened, clock):
        assert opened.upkeep.scrubber is not None
        assert len(opened.log.segments) > 2
        while opened.upkeep.scrubber.passes < 5:
            turn(opened, clock, 1000)
        assert not opened.upkeep.take_findings()


def test_a_segment_that_cannot_be_summed_is_read_record_by_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(_self: Checksums, _sidecar: Sidecar) -> None:
        raise OSError(errno.ENOSPC, "no room")

    with monkeypatch.context() as patch:
        patch.setattr(Checksums, "save", no_room)
        with running(scrubbing(tmp_path / "store", 1 << 20), 60) as (opened, clock):
            assert opened.damage is not None
            flip(segments(tmp_path / "store")[1], 700, 1)
            for _ in range(10):
                turn(opened, clock, 1000)
            assert len(opened.damage) == 1
            patch.undo()  # there is room again: what was found stays known
            for _ in range(20):
                turn(opened, clock, 1000)
            assert len(opened.damage) == 1


@pytest.mark.parametrize("number_of_bad", [0, 1])
@pytest.mark.parametrize("room", [True, False])
def test_segments_that_cannot_be_summed_are_tried_after_all_others_and_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number_of_bad: int, room: bool
) -> None:
    """One that will never be whole keeps no other from its checksums, also not when there is room again."""
    bad = tmp_path / "store" / "commitlog" / f"{number_of_bad * SEGMENT_SIZE:020d}"
    read_at, save = MappedFile.read_at, Checksums.save

    def read_the_others(self: MappedFile, position: int, size: int) -> bytes:
        if self.path == bad:
            raise OSError(errno.EIO, "a bad sector")
        return read_at(self, position, size)

    def save_if_there_is_room(self: Checksums, sidecar: Sidecar) -> None:
        if not room:
            raise OSError(errno.ENOSPC, "no room")
        save(self, sidecar)

    with monkeypatch.context() as patch:
        patch.setattr(MappedFile, "read_at", read_the_others)
        patch.setattr(Checksums, "save", save_if_there_is_room)
        with running(scrubbing(tmp_path / "store", 0), 60) as (opened, clock):
            for _ in range(10):
                turn(opened, clock, 1000)
            room = True
            for _ in range(20):
                turn(opened, clock, 1000)
            full = segments(tmp_path / "store")[: len(opened.log.segments) - 1]
            assert len(full) > 1
            whole = {name for name, sidecar in sidecars(tmp_path / "store").items() if sidecar.is_complete}
            assert whole == {path.name for path in full if path != bad}
            told = [text for text in opened.upkeep.take_findings() if "bad sector" in text]
            assert len(told) == 1, "tried again and again, and told once"
            patch.undo()


@pytest.mark.parametrize("rate", [0, 1 << 20])
def test_a_segment_that_was_cut_while_the_store_was_open_is_told_and_the_store_still_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rate: int
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Checksums, "tick", lambda _self, _flushed_offset: None)
        patch.setattr(Checksums, "is_owed", lambda _self, _segment: False)
        with running(scrubbing(tmp_path / "store", rate), 60) as (opened, clock):
            cut = [segments(tmp_path / "store")[number] for number in (1, len(opened.log.segments) - 1)]
            for path in cut:
                os.truncate(path, 100)
            for _ in range(10):
                turn(opened, clock, 1000)
            checksums = opened.upkeep.checksums
    assert checksums is not None
    for path in cut:
        assert any(str(path) in text and "was cut to 100 bytes" in text for text in checksums.findings)
    assert not {path.name for path in cut} & set(sidecars(tmp_path / "store"))


def test_the_scrubber_finds_a_flipped_bit_and_says_where(tmp_path: Path) -> None:
    fill(tmp_path / "store")
    path = segments(tmp_path / "store")[1]
    flip(path, 1000, 5)
    clock = Clock()
    store = MessageStore(scrubbing(tmp_path / "store", 1 << 20), Disk(), clock, lambda: None)
    store.open()
    for _ in range(30):
        turn(store, clock, 1000)
    findings = store.upkeep.take_findings()
    assert findings
    assert str(path) in findings[0] and "byte 512 to 1024" in findings[0]
    assert f"log offset {SEGMENT_SIZE + 512}" in findings[0] and "ropewalk store repair" in findings[0]
    store.close()


def adopting(root: Path) -> MessageStore:
    own = replace(scrubbing(root, 1 << 22), segment_size=64 << 10, queue_file_size=6000, checksum_block=4096)
    store = MessageStore(own, Disk(), Clock(1_900_000_000_000), lambda: None)
    store.open()
    return store


def test_segments_of_rocketmq_get_checksums_after_every_record_was_read(tmp_path: Path) -> None:
    unpack("clean", tmp_path / "store")
    shutil.copytree(tmp_path / "store", tmp_path / "damaged")
    body = (tmp_path / "damaged" / "commitlog" / ("0" * 20)).read_bytes()
    flip(tmp_path / "damaged" / "commitlog" / ("0" * 20), 88 + 4, 0)
    for name in ("store", "damaged"):
        if name == "damaged":  # a start that reads everything would refuse it
            (tmp_path / name / "commitlog" / ("0" * 20)).write_bytes(body)
        store = adopting(tmp_path / name)
        if name == "damaged":
            flip(tmp_path / name / "commitlog" / ("0" * 20), 88 + 4, 0)
        clock = store._now_ms
        assert isinstance(clock, Clock)
        for _ in range(10):
            turn(store, clock, 1000)
        findings = store.upkeep.take_findings()
        made = sidecars(tmp_path / name)
        if name == "store":
            assert not findings
            assert all(made[path.name].is_complete for path in segments(tmp_path / name)[:-2])
        else:
            assert any("damaged record" in text and "log offset" in text for text in findings)
            assert "0" * 20 not in made
        store.close()


@pytest.mark.parametrize("flipped", [None, 30, 300])
def test_segments_of_a_dledger_member_get_checksums_after_every_entry_was_read(
    tmp_path: Path, flipped: int | None
) -> None:
    """RocketMQ's have none; nor has one that was sealed while the disk was full."""
    root = tmp_path / "store"
    fill_ledger(root)
    shutil.rmtree(root / "ropewalk" / "checksums")
    ledger = root / "dledger-n0"
    own = replace(scrubbing(root, 1 << 20), log_directory=ledger / "data", ledger=ledger, sync_flush=True)
    clock = Clock()
    store = MessageStore(own, Disk(), clock, lambda: None)
    store.open()
    path = min((ledger / "data").iterdir())
    if flipped is not None:
        flip(path, flipped, 1)
    for _ in range(30):
        turn(store, clock, 1000)
    told = [text for text in store.upkeep.take_findings() if "damaged record" in text]
    assert bool(told) is (flipped is not None), told
    assert all(str(path) in text for text in told)
    store.close()
    assert (path.name in sidecars(root)) is (flipped is None)


def test_a_sidecar_that_is_torn_counts_as_none(tmp_path: Path) -> None:
    data = Sidecar(0, 4096, 512, 1000, [1, 2]).encode()
    assert Sidecar.decode(data) == Sidecar(0, 4096, 512, 1000, [1, 2])
    assert Sidecar.decode(data + b"behind") == Sidecar(0, 4096, 512, 1000, [1, 2])
    for size in range(len(data)):
        assert Sidecar.decode(data[:size]) is None
    for position in range(len(data)):
        torn = bytearray(data)
        torn[position] ^= 1
        assert Sidecar.decode(bytes(torn)) is None


def test_checksums_of_another_segment_count_as_none(tmp_path: Path) -> None:
    root = tmp_path / "store"
    fill(root)
    first, second, *_ = sorted((root / "ropewalk" / "checksums").iterdir())
    second.write_bytes(first.read_bytes())
    store = MessageStore(replace(scrubbing(root, 0), check_at_start=1 << 20), Disk(), Clock(), lambda: None)
    store.open()
    assert any(str(second) in text for text in store.upkeep.take_findings())
    store.close()
