"""Ahead of the writer: zeros come where nothing stands yet, and never over what the log has put there."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from store.io.disk import Disk, MappedFile
from store.io.workers import Completions
from store.log.commitlog import CommitLog
from store.log.page_prefault import Prefaulter, ProcessPrefaulter
from store.log.preallocate import GrowthPace, Preallocator
from store.log.segment import FILLER_HEADER_SIZE, Segment
from tests.sim.world import SteppedHelpers

SIZE = 4 << 20


@pytest.mark.parametrize("by_process", [False, True])
def test_what_the_writer_places_while_zeros_are_written_ahead_stays(tmp_path: Path, by_process: bool) -> None:
    """A real writer over a real file: it runs through the part that is being written ahead, again and again."""
    file = Disk().allocate(tmp_path / "segment", SIZE)
    segment = Segment(0, file)
    helper: Prefaulter = ProcessPrefaulter() if by_process else Prefaulter()
    piece = bytes(range(1, 256)) * 4
    stop = threading.Event()
    rounds = 0

    def write_ahead() -> None:
        nonlocal rounds
        while not stop.is_set():
            helper.write(file, 0, SIZE, fast=True)
            rounds += 1

    if isinstance(helper, ProcessPrefaulter):
        helper.share(file, 0, 0)
        while not helper._has_come_up():
            time.sleep(0.01)
    thread = threading.Thread(target=write_ahead)
    thread.start()
    while segment.has_room_for(len(piece)):
        segment.append(piece)
        if segment.write_position % (100 * len(piece)) == 0:
            time.sleep(0.003)
    stop.set()
    thread.join()
    written = segment.write_position
    assert rounds > 0
    helper.stop()
    assert written > SIZE - len(piece) - FILLER_HEADER_SIZE
    assert file.map[:written] == piece * (written // len(piece))
    assert file.map[written:].count(0) == SIZE - written
    file.close()


class Growing:
    """A log of one segment, which nothing was written to, and what goes ahead of its writer."""

    def __init__(self, root: Path, window: int, idle_window: int, *, fills: bool) -> None:
        self.log = CommitLog(root, SIZE, Disk())
        self._completions, self._helpers = Completions(lambda: None), SteppedHelpers()
        self.ahead = Preallocator(
            self.log, Disk(), SIZE, window, idle_window, fills, self._helpers, self._completions
        )
        self.ahead.begin(0)
        self.log.begin(self.log.allocate(0))
        self.segment = self.log.segments[0]

    def finish(self) -> None:
        """Have done what was begun."""
        while not self.ahead.worker.is_idle:
            self._helpers.pause()
        self._completions.run()


class Start(Protocol):
    def __call__(self, window: int, idle_window: int, *, fills: bool) -> Growing: ...


@pytest.fixture
def growing(tmp_path: Path) -> Iterator[Start]:
    started: list[Growing] = []

    def start(window: int, idle_window: int, *, fills: bool) -> Growing:
        started.append(Growing(tmp_path, window, idle_window, fills=fills))
        return started[-1]

    yield start
    for each in started:
        each.log.close()


@pytest.fixture
def zeros(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Where zeros were written."""
    written: list[int] = []
    monkeypatch.setattr(MappedFile, "write_through", lambda _file, position, _size: written.append(position))
    return written


def test_a_segment_that_is_being_filled_keeps_its_file(growing: Start) -> None:
    """Its descriptor, once closed, may be another file's: zeros would be written over that one."""
    at = growing(SIZE, SIZE // 4, fills=True)
    ahead, segment = at.ahead, at.segment

    def state() -> tuple[bool, int, int]:
        return ahead._bringing, segment.pins, segment.filled_position

    ahead.tick(0)
    assert state() == (True, 1, 0)
    at.finish()
    assert state() == (False, 0, SIZE // 4)


@pytest.mark.parametrize("set_back", [False, True])
def test_a_writer_who_overtakes_the_zeros_gets_pages_for_a_while_or_until_the_clock_is_set_back(
    growing: Start, zeros: list[int], monkeypatch: pytest.MonkeyPatch, set_back: bool
) -> None:
    brought: list[int] = []
    monkeypatch.setattr(MappedFile, "read_ahead", lambda _file, position, _size: brought.append(position))
    at = growing(SIZE // 4, SIZE // 16, fills=True)
    ahead, segment = at.ahead, at.segment

    def tick(now: int, size: int) -> bool:
        """Whether zeros were written when the writer wrote so much before it came to that."""
        ahead.tick(now)
        segment.append(b"x" * size)
        zeros.clear()
        at.finish()
        assert segment.pins == 0 and not ahead._bringing
        return bool(zeros)

    assert not tick(0, SIZE // 20)
    assert segment.filled_position == SIZE // 16, "who begins where the writer stands measures nothing"
    assert tick(50, 1), "the next part begins ahead of the writer"
    filled = segment.filled_position
    assert filled > SIZE // 8
    while segment.filled_position - segment.write_position >= SIZE // 8:
        segment.append(b"x" * (SIZE // 32))
    assert not tick(100, SIZE // 4), "and this one is overtaken"
    assert segment.filled_position == filled and not brought
    assert not tick(150, 1) and brought[0] == segment.write_position - 1
    assert not tick(10_050, SIZE // 32)
    if set_back:
        ahead.clock_set_back()
    assert tick(0 if set_back else 10_100, 0) and segment.filled_position > segment.write_position


def test_how_long_zeros_are_left_away_is_told_by_the_clock_as_it_is_then(
    growing: Start, zeros: list[int]
) -> None:
    at = growing(SIZE // 4, SIZE // 16, fills=True)
    ahead, segment = at.ahead, at.segment
    segment.filled_position = SIZE // 64

    def fills(now: int) -> bool:
        ahead.tick(now)
        at.finish()
        return bool(zeros)

    ahead.tick(3_600_000)
    segment.append(b"x" * (SIZE // 32))
    ahead.clock_set_back()
    ahead.tick(50)
    at.finish()
    assert not fills(10_000)
    assert fills(10_050)


def paced(*steps: tuple[int, int]) -> GrowthPace:
    """After so many ms each the log had grown by so many MB."""
    pace, now, position = GrowthPace(), 1_700_000_000_000, 0
    pace.update(now, position)
    for ms, megabytes in steps:
        now, position = now + ms, position + megabytes * 1_000_000
        pace.update(now, position)
    return pace


def test_a_pace_is_taken_over_half_a_second_and_begins_anew_when_the_clock_is_set_back() -> None:
    assert paced().bytes_per_ms == 0
    assert paced((499, 100)).bytes_per_ms == 0
    assert paced((400, 10), (100, 40)).bytes_per_ms == 100_000
    assert paced((500, 50), (5000, 50)).bytes_per_ms == 10_000
    assert paced((500, 50), (500, 0)).bytes_per_ms == 0
    assert paced((500, 50), (-3_600_000, 50)).bytes_per_ms == 0
    assert paced((500, 50), (-3_600_000, 50), (500, 20)).bytes_per_ms == 40_000


def test_a_log_that_grows_fast_gets_no_zeros_until_it_grows_slowly() -> None:
    assert paced((500, 74)).zeros_pay(0)
    assert not paced((500, 75)).zeros_pay(0)
    assert paced((500, 75), (500, 70)).zeros_pay(0)


def test_zeros_that_were_overtaken_are_left_away_until_the_log_grows_half_as_fast_or_for_ten_seconds() -> (
    None
):
    pace = paced((500, 20))
    now = 1_700_000_000_500
    pace.overtook(now)
    assert not pace.zeros_pay(now) and pace.zeros_pay(now + 10_000)
    pace.update(now + 500, 45_000_000)
    assert not pace.zeros_pay(now + 500)
    pace.update(now + 1000, 45_000_000 + 12_600_000)
    assert not pace.zeros_pay(now + 1000), "more than half of the most that was seen since"
    pace.update(now + 1500, 57_600_000 + 12_400_000)
    assert pace.zeros_pay(now + 1500)
    pace.overtook(now + 1500)
    pace.forgive()
    assert pace.zeros_pay(now + 1500)


def test_a_log_that_grows_fast_has_its_pages_brought_by_whoever_is_for_much(
    growing: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast: list[bool] = []
    monkeypatch.setattr(Prefaulter, "bring", lambda *_args, **options: fast.append(options["fast"]))
    monkeypatch.setattr(ProcessPrefaulter, "bring", Prefaulter.bring)
    at = growing(SIZE // 8, SIZE // 8, fills=False)

    def turn(now: int, *, grown: int) -> list[bool]:
        at.segment.append(b"x" * grown)
        fast.clear()
        at.ahead.tick(now)
        at.finish()
        return list(fast)

    assert turn(1000, grown=100) == [False]
    assert turn(2000, grown=SIZE // 8) == [False]
    assert turn(2500, grown=8_000_000 // 32) == []
    at.ahead._pace.update(3000, at.log.end_offset + 8_000_000)
    assert turn(3001, grown=SIZE // 8) == [True]


def test_pages_are_brought_once_half_a_window_ahead_of_a_writer_who_does_not_wait_for_the_disk(
    growing: Start, zeros: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []

    def note(file: MappedFile, position: int, size: int) -> None:
        asked.append((position, position + size))

    monkeypatch.setattr(MappedFile, "read_ahead", note)
    window, idle = SIZE // 4, SIZE // 16
    at = growing(window, idle, fills=False)
    ahead, segment = at.ahead, at.segment

    def turn() -> int:
        """Up to where pages were brought, without a gap and each once."""
        ahead.tick(0)
        at.finish()
        assert segment.pins == 0 and not zeros
        assert [start for start, _ in asked] == [0, *(end for _, end in asked[:-1])]
        return asked[-1][1]

    assert turn() == turn() == idle, "an idle broker takes little"
    while segment.size - segment.write_position > idle:
        segment.append(b"x" * (idle // 8))
        brought = turn()
        assert min(segment.size, segment.write_position + idle // 2) <= brought
        assert brought <= segment.write_position + window + window // 2
    assert brought == segment.size


def test_pages_are_left_to_who_writes_large_records_until_most_are_small_again(
    growing: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(MappedFile, "read_ahead", lambda _file, position, _size: asked.append(position))
    at = growing(SIZE // 16, SIZE // 16, fills=False)
    ahead, segment = at.ahead, at.segment

    def turn(*pieces: int) -> list[int]:
        """Where pages were brought after pieces of these sizes."""
        asked.clear()
        for size in pieces:
            segment.write([b"x" * size], [size] if size > 1000 else None)
        ahead.tick(0)
        at.finish()
        return asked[:1]

    large = SIZE // 10
    assert turn() == [0]
    assert turn(large, large) == turn(large) == turn() == []
    assert turn(1000) == [3 * large + 1000]
    assert turn(1000, large) == turn() == []
    assert turn(*[1000] * 500, large) == [5 * large + 502_000], "these are small ones in the main"


def test_pages_of_large_records_are_shared_where_these_take_long_and_the_log_grows_fast(
    growing: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared: list[tuple[int, int]] = []
    brought: list[int] = []
    is_somebody_there = True

    def share(_prefaulter: Prefaulter, _file: MappedFile, *part: int) -> bool:
        shared.append((part[0], part[1]))
        return is_somebody_there

    monkeypatch.setattr(
        ProcessPrefaulter, "bring", lambda _self, _file, start, _end, *, fast: brought.append(start)
    )
    monkeypatch.setattr(ProcessPrefaulter, "share", share)
    window = SIZE // 64
    at = growing(window, window, fills=False)
    ahead, segment = at.ahead, at.segment
    pieces_s = 0.0

    def turn(then: int, mib_s: float, *, grown: int = 8_000_000) -> list[tuple[int, int]]:
        """What is shared after large records at so many seconds for a mebibyte."""
        nonlocal pieces_s
        shared.clear()
        brought.clear()
        segment.write([b"x" * (window // 2)], [window // 2])
        pieces_s += mib_s * window / 2 / (1 << 20)
        segment.file.pieces_s = pieces_s
        ahead._pace.update(then, then * grown // 500)
        ahead.tick(then)
        at.finish()
        assert segment.pins == 0 and not brought
        return list(shared)

    ahead.tick(500)  # nothing has been written, and nobody knows what will be
    at.finish()
    assert turn(1000, 0.0003) == [], "the memory is at hand"
    is_somebody_there = False
    assert len(turn(1500, 0.002)) == 1
    is_somebody_there = True
    ((start, end),) = turn(2000, 0.002)
    assert start == segment.write_position + window // 2, (
        "not what is just being written, and what nobody brought"
    )
    assert end == start + 4 * window
    assert turn(2500, 0.0012) == [], "there is enough ahead"
    for then in range(3000, 6500, 500):
        turn(then, 0.0012)
        if shared:
            break
    assert [begin for begin, _ in shared] == [end], "it goes on where it ended"
    assert end - segment.write_position < 2 * window
    ahead._shared = 0
    assert turn(6500, 0.002, grown=100) == [], "nobody is in a hurry"
    segment.write([b"x" * 100])
    ahead.tick(7000)
    at.finish()
    assert brought == [segment.write_position], "small records have all of their pages brought"
