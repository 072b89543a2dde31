from collections.abc import Iterator
from pathlib import Path

import pytest

from ropewalk.format.record import MAGIC_BLANK, read_frame
from store.io.disk import Disk
from store.log.segment import FILLER_HEADER_SIZE, Segment

SIZE = 4096


@pytest.fixture
def segment(tmp_path: Path) -> Iterator[Segment]:
    made = Segment(3 * SIZE, Disk().allocate(tmp_path / "segment", SIZE))
    yield made
    made.file.close()


def test_a_new_segment_is_all_zero_and_begins_at_its_front(segment: Segment) -> None:
    assert segment.write_position == 0
    assert segment.map[:] == bytes(SIZE)
    assert segment.end_offset == 4 * SIZE


def test_last_eight_bytes_are_kept_for_the_filler(segment: Segment) -> None:
    assert segment.has_room_for(SIZE - FILLER_HEADER_SIZE)
    assert not segment.has_room_for(SIZE - FILLER_HEADER_SIZE + 1)
    segment.write([b"x" * (SIZE - FILLER_HEADER_SIZE)])
    assert not segment.has_room_for(1)


def test_records_stand_side_by_side_in_the_order_they_were_written(segment: Segment) -> None:
    segment.write([b"one", b"two"])
    segment.write([])
    segment.write([b"three"])
    assert segment.write_position == 11
    assert segment.map[:12] == b"onetwothree\0"


def test_what_is_written_through_the_map_is_read_by_system_call_at_once(segment: Segment) -> None:
    segment.write([b"record"])
    assert segment.file.read_at(0, 6) == b"record"
    assert segment.file.read_at_nowait(0, 6) in (b"record", None)


@pytest.mark.parametrize("left", [FILLER_HEADER_SIZE, FILLER_HEADER_SIZE + 1, SIZE])
def test_a_sealed_segment_ends_in_a_filler_that_counts_the_bytes_left(segment: Segment, left: int) -> None:
    segment.write([b"x" * (SIZE - left)])
    segment.seal()
    assert segment.write_position == SIZE
    assert read_frame(segment.map[:], SIZE - left) == (left, MAGIC_BLANK)


def test_a_record_that_would_take_the_fillers_place_is_stopped_before_a_byte_is_written(
    segment: Segment,
) -> None:
    with pytest.raises(AssertionError):
        segment.write([b"x" * (SIZE - FILLER_HEADER_SIZE + 1)])
    assert segment.write_position == 0
    assert segment.map[:] == bytes(SIZE)


def test_a_full_segment_cannot_be_sealed_twice(segment: Segment) -> None:
    segment.seal()
    with pytest.raises(AssertionError):
        segment.seal()
