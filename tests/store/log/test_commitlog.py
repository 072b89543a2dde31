from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.io.disk import Disk, DiskFull, MappedFile
from store.log.commitlog import CommitLog, StoreDamaged, segment_name
from store.log.segment import Segment

SIZE = 4096


class FillingDisk(Disk):
    """A disk with room for so many more segments."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room

    def allocate(self, path: Path, size: int) -> MappedFile:
        if self.room == 0:
            raise DiskFull("no room")
        self.room -= 1
        return super().allocate(path, size)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[CommitLog]:
    made = CommitLog(tmp_path / "commitlog", SIZE, Disk())
    yield made
    made.close()


def append(log: CommitLog, size: int) -> int:
    """Write a run of bytes where the log wants it; the offset it got."""
    segment = log.segment_for(size)
    offset = segment.base_offset + segment.write_position
    segment.write([b"x" * size])
    return offset


def make_file(directory: Path, name: str, size: int = SIZE, content: bytes = b"") -> Path:
    directory.mkdir(exist_ok=True)
    path = directory / name
    path.write_bytes(content.ljust(size, b"\0"))
    return path


# -- append and roll ---------------------------------------------------------------------------------


def test_an_empty_log_begins_and_ends_at_zero(log: CommitLog) -> None:
    assert (log.min_offset, log.end_offset, log.find(0)) == (0, 0, None)


def test_offsets_run_on_over_the_end_of_a_segment(log: CommitLog) -> None:
    assert append(log, 3000) == 0
    assert append(log, 1000) == 3000
    assert append(log, 1000) == SIZE  # 96 bytes were left: the filler has them
    assert log.end_offset == SIZE + 1000
    assert [s.file.path.name for s in log.segments] == [segment_name(0), segment_name(SIZE)]
    assert log.segments[0].write_position == SIZE


def test_a_run_must_leave_room_for_a_filler_to_fit_any_segment(log: CommitLog) -> None:
    assert log.fits(SIZE - 8)
    assert not log.fits(SIZE - 7)


def test_a_roll_takes_the_spare_that_was_made_ahead(log: CommitLog) -> None:
    append(log, 4000)
    log.spare = spare = log.allocate(SIZE)
    assert log.segment_for(1000) is spare
    assert log.spare is None


def test_a_full_disk_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    log = CommitLog(tmp_path / "commitlog", SIZE, FillingDisk(1))
    append(log, 4000)
    before = log.segments[0].map[:]
    with pytest.raises(DiskFull):
        log.segment_for(1000)
    assert log.end_offset == 4000
    assert log.segments[0].map[:] == before, "the segment was sealed although nothing follows it"
    assert append(log, 80) == 4000, "what fits is still taken"
    log.close()


def test_a_last_segment_that_is_full_already_is_not_sealed_again(log: CommitLog) -> None:
    append(log, 1000)
    log.segments[0].seal()
    assert append(log, 10) == SIZE


def test_closing_removes_an_unused_spare(tmp_path: Path) -> None:
    log = CommitLog(tmp_path / "commitlog", SIZE, Disk())
    append(log, 10)
    log.spare = log.allocate(SIZE)
    log.close()
    assert [p.name for p in (tmp_path / "commitlog").iterdir()] == [segment_name(0)]


# -- find and flush ----------------------------------------------------------------------------------


@given(count=st.integers(0, 5), first=st.integers(0, 3), offset=st.integers(-SIZE, 10 * SIZE))
def test_find_agrees_with_looking_at_every_segment(count: int, first: int, offset: int) -> None:
    log = CommitLog(Path("nowhere"), SIZE, Disk())
    file = _Nothing()
    for index in range(count):
        log._add(Segment((first + index) * SIZE, file))  # type: ignore[arg-type]
    expected = next((s for s in log.segments if s.base_offset <= offset < s.end_offset), None)
    assert log.find(offset) is expected


class _Nothing:
    size = SIZE
    map = b""


def test_a_flush_covers_every_segment_written_since_the_last_one(log: CommitLog) -> None:
    for _ in range(3):
        append(log, 4000)
    files = [segment.file for segment in log.segments]
    assert log.unflushed(log.end_offset) == files
    log.flushed_offset = 4000
    assert log.unflushed(log.end_offset) == files, "the filler of the first segment is not flushed yet"
    log.flushed_offset = SIZE
    assert log.unflushed(log.end_offset) == files[1:]
    assert log.unflushed(SIZE + 10) == files[1:2]


# -- load --------------------------------------------------------------------------------------------


def test_segments_are_found_again_in_order(tmp_path: Path) -> None:
    for base in (2 * SIZE, 4 * SIZE, 3 * SIZE):
        make_file(tmp_path / "commitlog", segment_name(base))
    log = CommitLog(tmp_path / "commitlog", SIZE, Disk())
    log.load()
    assert [s.base_offset for s in log.segments] == [2 * SIZE, 3 * SIZE, 4 * SIZE]
    assert log.min_offset == 2 * SIZE
    log.close()


@pytest.mark.parametrize("name", ["notes.txt", "0", "00000000000000004096.bak", "0000000000000000409x"])
@pytest.mark.parametrize("size", [0, SIZE])
def test_a_stray_file_stops_the_load_and_is_named(tmp_path: Path, name: str, size: int) -> None:
    make_file(tmp_path / "commitlog", segment_name(0))
    stray = make_file(tmp_path / "commitlog", name, size)
    log = CommitLog(tmp_path / "commitlog", SIZE, Disk())
    with pytest.raises(StoreDamaged, match=r"not a commit-log segment") as info:
        log.load()
    assert str(stray) in str(info.value)
    log.close()


def test_a_directory_that_is_named_like_a_segment_stops_the_load_and_is_named(tmp_path: Path) -> None:
    (tmp_path / f"{0:020d}").mkdir(parents=True)
    with pytest.raises(StoreDamaged, match=f"{0:020d} is a directory"):
        CommitLog(tmp_path, 4096, Disk()).load()


@pytest.mark.parametrize("size", [1, SIZE - 1, SIZE + 1, 2 * SIZE])
def test_a_file_of_another_size_stops_the_load(tmp_path: Path, size: int) -> None:
    make_file(tmp_path / "commitlog", segment_name(0), size, content=b"?")
    log = CommitLog(tmp_path / "commitlog", SIZE, Disk())
    with pytest.raises(StoreDamaged, match=rf"has {size} bytes, but mappedFileSizeCommitLog is {SIZE}"):
        log.load()
    log.close()


@pytest.mark.parametrize("following", [2 * SIZE, SIZE + 1, SIZE - 1], ids=["missing", "apart", "overlapping"])
def test_a_missing_segment_between_others_stops_the_load(tmp_path: Path, following: int) -> None:
    make_file(tmp_path / "commitlog", segment_name(0))
    make_file(tmp_path / "commitlog", segment_name(following))
    log = CommitLog(tmp_path / "commitlog", SIZE, Disk())
    with pytest.raises(StoreDamaged, match=f"the segment at offset {SIZE} is missing"):
        log.load()
    log.close()


@pytest.mark.parametrize("size", [0, 1, SIZE - 1])
def test_a_last_file_whose_allocation_a_crash_cut_short_is_removed(tmp_path: Path, size: int) -> None:
    make_file(tmp_path / "commitlog", segment_name(0))
    unfinished = make_file(tmp_path / "commitlog", segment_name(SIZE), size)
    log = CommitLog(tmp_path / "commitlog", SIZE, Disk())
    log.load()
    assert len(log.segments) == 1
    assert not unfinished.exists()
    log.close()
