"""A damaged place of an open log: nobody is served from it, and what is put back survives a crash at any step."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from ha.stream.source import LogSource
from ropewalk.format.sidecar import block_sum
from store.config import StoreConfig
from store.integrity.block_repair import NotDurable, NotVouched, NotWhole, probe_place, put_back, vouched
from store.integrity.checksums import Checks, Damaged
from store.io.disk import Disk
from store.log.segment import Segment
from store.message_store import MessageStore
from store.read.reader import Reader
from store.read.results import ReadLimits
from tests.sim.disk import PowerLoss, SimDisk, SimFile
from tests.store.integrity.scrubbing import running, scrubbing, turn
from tests.store.worlds import wait_for
from tests.support.clocks import Clock
from tests.support.stores import SEGMENT_SIZE, fill, flip, segments

BLOCK = 512
ALL_WARM = ReadLimits(memory_window=1 << 40, warm_window=1 << 40)


@contextmanager
def opened(config: StoreConfig, records: int = 0) -> Iterator[tuple[MessageStore, Clock]]:
    """A store whose full segments are under checksums."""
    with running(config, records) as (store, clock):
        turn(store, clock, 10)
        assert store.upkeep.checksums is not None
        while any(store.upkeep.checksums.is_owed(segment) for segment in store.log.segments[:-1]):
            turn(store, clock, 10)
        yield store, clock


def scrub(store: MessageStore, clock: Clock) -> None:
    """Have everything read once more."""
    assert store.upkeep.scrubber is not None
    passes = store.upkeep.scrubber.passes
    while store.upkeep.scrubber.passes < passes + 2:
        turn(store, clock, 1000)


def write(path: Path, position: int, data: bytes) -> None:
    """Change bytes under a running store, as a disk would."""
    fd = os.open(path, os.O_RDWR)
    try:
        os.pwrite(fd, data, position)
    finally:
        os.close(fd)


def read(store: MessageStore, number: int) -> bytes | None:
    """What a consumer gets for a message that lies near the end of the log; None is "not now"."""
    reader = Reader(store.log, ALL_WARM, store.completions)
    found: list[bytes | None] = []
    try:
        reader.get(
            store.find_queue("T", 0), number, 1, 1 << 20, None,
            lambda result: found.append(b"".join(result.records) if result is not None else None),
        )  # fmt: skip
        wait_for(store, lambda: bool(found))
    finally:
        reader.stop()
        store.run_completions()
    return found[0]


def place_of(store: MessageStore, number: int) -> tuple[Segment, int]:
    """The segment of a message and where its record stands in it."""
    queue = store.find_queue("T", 0)
    assert queue is not None
    offset = queue.frozen().read(number)[0]
    segment = store.log.find(offset)
    assert segment is not None
    return segment, offset - segment.base_offset


def mend(store: MessageStore, place: Damaged, data: bytes) -> Path:
    assert store.damage is not None
    segment = store.damage.hold(place)
    assert segment is not None
    try:
        return put_back(segment, place, data, store.config.root, store._disk)
    finally:
        segment.pins -= 1
        store.damage.is_whole(place, mended=True)


# -- nobody is served ------------------------------------------------------------------------------------------


def test_what_is_found_damaged_is_served_to_nobody_until_it_is_mended(tmp_path: Path) -> None:
    """Also what this very process wrote, and what counts as warm: neither is looked at before a read otherwise."""
    with opened(scrubbing(tmp_path / "store", 1 << 20), 60) as (store, clock):
        assert store.damage is not None
        trusted = store.log.trusted_offset
        segment, position = place_of(store, 3)
        good = segment.file.read_at(0, SEGMENT_SIZE)
        served = read(store, 3)
        write(segment.file.path, position + 95, b"#")
        assert read(store, 3) != served, "nobody has noticed yet"
        scrub(store, clock)
        (place,) = store.damage.places()
        assert place.base_offset == segment.base_offset and place.stop - place.start == BLOCK
        assert place.start <= position + 95 < place.stop and place in store.damage
        assert read(store, 3) is None
        assert read(store, 50) is not None, "the rest is served"
        source = LogSource(store.log, store.completions, 1 << 40)
        assert source.warm(place.offset, 10) is None
        sent: list[bytes | None] = []
        source.fetch(place.offset, 10, sent.append)
        wait_for(store, lambda: bool(sent))
        source.stop()
        assert sent == [None], "no slave gets it either"

        kept = mend(store, place, good[place.start : place.stop])
        assert kept.read_bytes()[position + 95 - place.start] == ord("#")
        assert read(store, 3) == served
        assert not len(store.damage) and store.damage.mended == 1
        assert store.log.trusted_offset == trusted
        store.upkeep.take_findings()
        scrub(store, clock)
        assert not store.upkeep.take_findings() and not store.damage.places()


def test_a_place_that_is_damaged_again_is_found_again(tmp_path: Path) -> None:
    with opened(scrubbing(tmp_path / "store", 1 << 20), 60) as (store, clock):
        assert store.damage is not None
        segment, position = place_of(store, 3)
        good = segment.file.read_at(0, SEGMENT_SIZE)
        for byte in (b"#", b"!"):
            write(segment.file.path, position + 95, byte)
            scrub(store, clock)
            (place,) = store.damage.places()
            mend(store, place, good[place.start : place.stop])
            assert read(store, 3) is not None
        aside = store.config.root / "ropewalk" / "replaced" / f"{place.offset:020d}"
        assert aside.stat().st_size == 2 * BLOCK, "both are kept"


def test_a_read_that_meets_damage_reports_it_too(tmp_path: Path) -> None:
    fill(tmp_path / "store")
    flip(segments(tmp_path / "store")[0], 700, 3)
    with opened(scrubbing(tmp_path / "store", 0)) as (store, _clock):
        assert store.damage is not None and not len(store.damage)
        segment = store.log.segments[0]
        assert isinstance(segment.checks, Checks)
        with pytest.raises(OSError, match="damaged bytes"):
            segment.checks.check_blocks(0, SEGMENT_SIZE)
        store.tick()
        assert store.damage.places() == (Damaged(0, 512, 1024, segment.checks._sidecar.sums[1]),)
        assert len(store.upkeep.take_findings()) == 1


def test_what_retention_takes_away_is_damaged_no_longer(tmp_path: Path) -> None:
    with opened(scrubbing(tmp_path / "store", 1 << 20), 60) as (store, clock):
        assert store.damage is not None
        trusted = store.log.trusted_offset
        write(store.log.segments[0].file.path, 100, b"#")
        scrub(store, clock)
        (place,) = store.damage.places()
        (gone,) = store.log.retire(1)
        assert store.damage.places() == () and store.damage.hold(place) is None
        assert store.log.trusted_offset == trusted
        gone.file.close()


def test_without_checksums_the_scrubber_names_the_run_of_records(tmp_path: Path) -> None:
    fill(tmp_path / "store")
    shutil.rmtree(tmp_path / "store" / "ropewalk" / "checksums")
    path = segments(tmp_path / "store")[0]
    good = path.read_bytes()
    flip(path, 1000)
    with opened(scrubbing(tmp_path / "store", 1 << 20)) as (store, clock):
        assert store.damage is not None
        segment = store.log.segments[0]
        while not len(store.damage):
            turn(store, clock, 1000)
        (place,) = store.damage.places()
        assert place.wanted is None and place.start <= place.record <= 1000 < place.stop
        assert probe_place(segment, place) == (False, good[place.start : place.record])
        mend(store, place, good[place.start : place.stop])
        assert probe_place(segment, place) == (True, good[place.start : place.record])
        scrub(store, clock)
        assert segment.base_offset in store.upkeep.checksums._sidecars  # type: ignore[union-attr]


def test_a_record_whose_size_grew_is_damage_and_gets_no_checksum(tmp_path: Path) -> None:
    """It seems to go on to the end of the file, so no record behind it is ever looked at."""
    fill(tmp_path / "store")
    shutil.rmtree(tmp_path / "store" / "ropewalk" / "checksums")
    path = segments(tmp_path / "store")[0]
    first = int.from_bytes(path.read_bytes()[:4], "big")
    write(path, first, (SEGMENT_SIZE - first).to_bytes(4, "big"))
    with opened(scrubbing(tmp_path / "store", 1 << 20)) as (store, clock):
        assert store.damage is not None
        segment = store.log.segments[0]
        while not len(store.damage):
            turn(store, clock, 1000)
        assert any("damaged record" in text for text in store.upkeep.take_findings())
        assert segment.base_offset not in store.upkeep.checksums._sidecars  # type: ignore[union-attr]


# -- putting back --------------------------------------------------------------------------------------------------

PAGES = 4
GOOD = random.Random(1).randbytes(PAGES * 4096)
BAD = GOOD[:5000] + b"#####" + GOOD[5005:9000] + b"!" + GOOD[9001:]
PLACE = Damaged(0, 0, len(GOOD), block_sum(GOOD))
ROOT = Path("/store")
ASIDE = ROOT / "ropewalk" / "replaced" / f"{0:020d}"


def on_disk(tmp_path: Path, data: bytes) -> tuple[Segment, Disk]:
    path = tmp_path / "store" / "commitlog" / f"{0:020d}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    disk = Disk()
    return Segment(0, disk.open_mapped(path)), disk


def test_what_is_mended_is_right_also_for_who_reads_the_map(tmp_path: Path) -> None:
    segment, disk = on_disk(tmp_path, BAD)
    kept = put_back(segment, PLACE, GOOD, tmp_path / "store", disk)
    assert bytes(segment.map) == segment.file.path.read_bytes() == GOOD
    assert kept == tmp_path / "store" / "ropewalk" / "replaced" / f"{0:020d}" and kept.read_bytes() == BAD
    segment.file.close()


def test_only_pages_that_differ_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segment, disk = on_disk(tmp_path, BAD)
    written: list[tuple[int, int]] = []

    def pwrite(fd: int, data: bytes, position: int, real: object = os.pwrite) -> int:
        written.append((position, len(data)))
        return int(real(fd, data, position))  # type: ignore[operator]

    monkeypatch.setattr(os, "pwrite", pwrite)
    put_back(segment, PLACE, GOOD, tmp_path / "store", disk)
    assert written == [(4096, 4096), (8192, 4096)]
    written.clear()
    put_back(segment, PLACE, GOOD, tmp_path / "store", disk, anew=True)
    assert [position for position, _size in written] == [0, 4096, 8192, 12288]
    segment.file.close()


def test_a_mended_file_is_as_old_as_it_was(tmp_path: Path) -> None:
    """Retention goes by that time, and keeps every younger segment behind one that is not old enough."""
    segment, disk = on_disk(tmp_path, BAD)
    os.utime(segment.file.path, ns=(10**18, 10**18))
    put_back(segment, PLACE, GOOD, tmp_path / "store", disk)
    assert segment.file.path.stat().st_mtime_ns == 10**18
    segment.file.close()


def test_after_a_failed_sync_it_is_written_again_however_good_it_looks() -> None:
    disk = SimDisk(random.Random(1))
    path = ROOT / "commitlog" / f"{0:020d}"
    disk.files[path] = disk.named[path] = SimFile(BAD)
    segment = Segment(0, disk.open_mapped(path))
    disk.fail_syncs = 1
    with pytest.raises(NotDurable, match="not synced"):
        put_back(segment, PLACE, GOOD, ROOT, disk)
    assert probe_place(segment, PLACE)[0], "that is what the page cache says"
    assert disk.files[path].platter == BAD
    put_back(segment, PLACE, GOOD, ROOT, disk, anew=True)
    assert disk.files[path].platter == GOOD and disk.read_file(ASIDE) == BAD


def test_bytes_that_the_disk_does_not_keep_do_not_pass_for_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment, disk = on_disk(tmp_path, BAD)
    monkeypatch.setattr(type(segment.file), "mend", lambda *_words: None)
    with pytest.raises(NotWhole, match="does not keep"):
        put_back(segment, PLACE, GOOD, tmp_path / "store", disk)
    segment.file.close()


def test_a_crash_at_any_step_leaves_the_place_as_it_was_or_better_and_its_bytes_aside() -> None:
    steps = 0
    for crash_after in range(1, 30):
        for seed in range(20):
            disk = SimDisk(random.Random(seed))
            path = ROOT / "commitlog" / f"{0:020d}"
            disk.files[path] = disk.named[path] = SimFile(BAD)
            segment = Segment(0, disk.open_mapped(path))
            disk.crash_after = crash_after
            try:
                put_back(segment, PLACE, GOOD, ROOT, disk)
            except PowerLoss:
                steps = max(steps, crash_after)
            else:
                assert disk.power_loss(random.Random(seed)).files[path].platter == GOOD
                continue
            after = disk.power_loss(random.Random(seed))
            found = after.files[path].platter
            for at in range(0, len(GOOD), 512):
                assert found[at : at + 512] in (GOOD[at : at + 512], BAD[at : at + 512])
            if found != BAD:
                assert after.read_file(ASIDE) == BAD, "it was kept before the first byte changed"
            again = Segment(0, after.open_mapped(path))
            if not probe_place(again, PLACE)[0]:
                put_back(again, PLACE, GOOD, ROOT, after)
            assert bytes(again.map) == GOOD
    assert steps > 5


# -- giving ----------------------------------------------------------------------------------------------------------


def test_only_what_matches_its_own_checksums_is_given(tmp_path: Path) -> None:
    fill(tmp_path / "store")
    with opened(scrubbing(tmp_path / "store", 0)) as (store, _clock):
        assert store.damage is not None
        segment = store.log.segments[0]
        sidecar = store.damage.frozen(segment)
        assert sidecar is not None and sidecar.is_complete
        data = segment.file.read_at(512, 512)
        told: list[Damaged] = []

        def given(start: int, stop: int, wanted: int | None, **changes: object) -> bytes:
            own = sidecar if not changes else changes["sidecar"]
            return vouched(segment, own, start, stop, wanted, told.append)  # type: ignore[arg-type]

        assert given(512, 1024, None) == given(512, 1024, block_sum(data)) == data
        assert given(600, 1100, None) == segment.file.read_at(600, 500), (
            "the other's blocks may be other ones"
        )
        with pytest.raises(NotVouched, match="does not match that checksum"):
            given(512, 1024, block_sum(data) ^ 1)
        with pytest.raises(NotVouched, match="no checksums"):
            given(512, 1024, None, sidecar=None)
        assert given(512, 1024, block_sum(data), sidecar=None) == data, "the asker's checksum is one, too"
        half = replace(sidecar, covered=1000, sums=sidecar.sums[:2])
        with pytest.raises(NotVouched, match="no checksums"):
            given(512, 1024, None, sidecar=half)
        assert not told
        write(segment.file.path, 1023, bytes([data[511] ^ 1]))
        for start, stop in ((512, 1024), (600, 1100)):
            with pytest.raises(NotVouched, match="damaged too"):
                given(start, stop, None)
        assert told == [Damaged(0, 512, 1024, block_sum(data))] * 2
        assert given(0, 512, None) == segment.file.read_at(0, 512)
