"""A queue against the dumbest model there is: a list of entries."""

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ropewalk.format.queue_entry import ENTRY, ENTRY_SIZE, PRE_BLANK
from store.io.disk import Disk, PagedFile
from store.log.commitlog import StoreDamaged, segment_name
from store.queues.consume_queue import ConsumeQueue

FILE_SIZE = 10 * ENTRY_SIZE


def new_queue(directory: Path, disk: Disk | None = None) -> ConsumeQueue:
    return ConsumeQueue("T", 0, directory, FILE_SIZE, disk or Disk())


def write_back(queue: ConsumeQueue, disk: Disk | None = None) -> None:
    disk = disk or Disk()
    for path, size, position, data in queue.pending_writes():
        disk.write_paged(path, size, position, data)
    queue.mark_written(queue.readable)


def filled(directory: Path, count: int, *, start: int = 0) -> ConsumeQueue:
    """A queue with `count` entries in its files; entry n names a record of 100 bytes at 100 n."""
    queue = new_queue(directory)
    if start:
        queue.start_at(start)
    for number in range(start, start + count):
        queue.add(100 * number, 100, number)
    queue.make_readable()
    write_back(queue)
    return queue


def reopened(directory: Path) -> ConsumeQueue:
    queue = new_queue(directory)
    assert queue.load()
    return queue


def numbers(queue: ConsumeQueue) -> list[int]:
    """The tag codes of all readable entries, one by one."""
    return [queue.read(n)[2] for n in range(queue.min_offset, queue.readable)]


# -- append and read ---------------------------------------------------------------------------------


def test_an_entry_is_in_memory_until_it_is_written(tmp_path: Path) -> None:
    queue = new_queue(tmp_path / "q")
    queue.add(0, 100, 7)
    assert (queue.next_offset, queue.readable, queue.written) == (1, 0, 0)
    assert queue.pending_writes() == [], "it is not readable: a crash may still take its record back"
    queue.make_readable(1)
    assert [data for *_place, data in queue.pending_writes()] == [ENTRY.pack(0, 100, 7)]
    assert not (tmp_path / "q").exists()


def test_writes_are_split_where_a_file_ends(tmp_path: Path) -> None:
    queue = new_queue(tmp_path)
    for number in range(25):
        queue.add(number, 100, number)
    queue.make_readable(25)
    places = [(path, size, position, len(data)) for path, size, position, data in queue.pending_writes()]
    assert places == [
        (str(tmp_path / segment_name(0)), FILE_SIZE, 0, FILE_SIZE),
        (str(tmp_path / segment_name(FILE_SIZE)), FILE_SIZE, 0, FILE_SIZE),
        (str(tmp_path / segment_name(2 * FILE_SIZE)), FILE_SIZE, 0, 5 * ENTRY_SIZE),
    ]


def test_a_file_size_that_is_no_multiple_of_an_entry_is_rounded_down(tmp_path: Path) -> None:
    assert ConsumeQueue("T", 0, tmp_path, 215, Disk()).file_size == 200


def test_the_tail_lets_go_of_old_entries_and_they_are_read_from_their_files(tmp_path: Path) -> None:
    queue = filled(tmp_path, 6000)
    assert queue.tail_base > 0
    assert len(queue.tail) < 6000 * ENTRY_SIZE
    assert numbers(queue) == list(range(6000))


def test_entries_that_have_no_file_yet_stay_in_memory_however_many_they_are(tmp_path: Path) -> None:
    queue = new_queue(tmp_path)
    for number in range(6000):
        queue.add(number, 100, number)
    queue.make_readable(6000)
    queue.mark_written(100)
    assert queue.read(100)[2] == 100
    assert sum(len(data) for *_place, data in queue.pending_writes()) == 5900 * ENTRY_SIZE


@pytest.mark.parametrize(("min_offset", "gone"), [(9, 0), (10, 1), (19, 1), (20, 1)])
def test_files_are_given_up_when_no_entry_in_them_counts_and_the_last_one_never(
    tmp_path: Path, min_offset: int, gone: int
) -> None:
    """Two full files; the name of the last is all that knows the queue's numbers when its messages are gone."""
    queue = filled(tmp_path, 20)
    queue.min_offset = min_offset
    entries, paths = queue.give_up_files()
    assert (entries, [path.name for path in paths]) == (10 * gone, [segment_name(0)] * gone)


def test_entries_from_a_file_stop_at_its_end(tmp_path: Path) -> None:
    filled(tmp_path, 25)
    queue = reopened(tmp_path)
    entries = queue.entries_nowait(7, 10)
    assert entries is None or len(entries) == 3 * ENTRY_SIZE
    _file, _position, size = queue.place(7, 10)
    assert size == 3 * ENTRY_SIZE


def test_a_frozen_queue_does_not_see_what_becomes_readable_later(tmp_path: Path) -> None:
    queue = filled(tmp_path, 5)
    queue.add(500, 100, 5)
    frozen = queue.frozen()
    queue.make_readable(6)
    assert frozen.readable == 5
    assert [frozen.read(n)[2] for n in range(5)] == list(range(5))


# -- files -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 20, 25])
def test_a_restart_finds_the_end(tmp_path: Path, count: int) -> None:
    filled(tmp_path, count)
    queue = reopened(tmp_path)
    assert (queue.min_offset, queue.readable, queue.next_offset, queue.written) == (0, count, count, count)
    assert queue.max_physical == (100 * count if count else 0)
    assert numbers(queue) == list(range(count))


@pytest.mark.parametrize("count", [0, 1, 199, 200, 201, 330, 399, 400, 401, 5_000, 299_999, 300_000, 300_001])
@pytest.mark.parametrize("start", [0, 150, 5_000])
def test_a_restart_looks_at_little_of_a_large_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, start: int
) -> None:
    """Tens of thousands of short queues are opened one by one, and each place that is looked at takes a page."""
    size = 300_000 * ENTRY_SIZE
    queue = ConsumeQueue("T", 0, tmp_path, size, Disk())
    if start:
        queue.start_at(start)
    queue.add_run(b"".join(ENTRY.pack(100 * number, 100, 0) for number in range(start, start + count)))
    queue.make_readable()
    write_back(queue)
    read_at, places = PagedFile.read_at, list[int]()

    def noted(self: PagedFile, position: int, size: int) -> bytes:
        places.append(position)
        return read_at(self, position, size)

    monkeypatch.setattr(PagedFile, "read_at", noted)
    again = ConsumeQueue("T", 0, tmp_path, size, Disk())
    assert again.load()
    assert (again.min_offset, again.next_offset) == (start if count or start else 0, start + count)
    if start + count < 400:
        assert len(places) <= 4 and max(places, default=0) <= 400 * ENTRY_SIZE


@pytest.mark.parametrize("start", [1, 7, 10, 13, 30])
def test_a_queue_that_begins_late_fills_the_head_of_its_file_with_pre_blanks(
    tmp_path: Path, start: int
) -> None:
    filled(tmp_path, 5, start=start)
    first = start - start % 10
    assert (tmp_path / segment_name(first * ENTRY_SIZE)).read_bytes().startswith(PRE_BLANK * (start % 10))
    queue = reopened(tmp_path)
    assert (queue.min_offset, queue.next_offset) == (start, start + 5)
    assert numbers(queue) == list(range(start, start + 5))


def test_a_queue_that_began_late_and_lost_all_entries_keeps_its_number(tmp_path: Path) -> None:
    filled(tmp_path, 0, start=17)
    queue = reopened(tmp_path)
    assert (queue.min_offset, queue.next_offset) == (17, 17)


def test_an_empty_last_file_is_what_a_crash_left_between_creating_and_sizing_it(tmp_path: Path) -> None:
    filled(tmp_path, 10)
    (tmp_path / segment_name(FILE_SIZE)).touch()
    assert reopened(tmp_path).next_offset == 10
    assert not (tmp_path / segment_name(FILE_SIZE)).exists()


def test_a_file_of_another_size_stops_the_load_and_is_named(tmp_path: Path) -> None:
    filled(tmp_path, 5)
    (tmp_path / segment_name(0)).write_bytes(bytes(FILE_SIZE * 2))
    with pytest.raises(StoreDamaged, match=f"has {FILE_SIZE * 2} bytes, but mappedFileSizeConsumeQueue is"):
        new_queue(tmp_path).load()


def test_stray_files_in_a_queues_directory_are_left_alone(tmp_path: Path) -> None:
    filled(tmp_path, 5)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "20").write_text("mine too")
    queue = reopened(tmp_path)
    assert queue.next_offset == 5
    queue.clear_files(0)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_missing_file_in_the_middle_is_noticed_and_the_queue_counts_as_empty(tmp_path: Path) -> None:
    filled(tmp_path, 35)
    (tmp_path / segment_name(FILE_SIZE)).unlink()
    queue = new_queue(tmp_path)
    assert not queue.load()
    assert (queue.min_offset, queue.next_offset) == (0, 0)


def test_a_queue_whose_first_files_were_deleted_begins_at_the_next(tmp_path: Path) -> None:
    filled(tmp_path, 35)
    (tmp_path / segment_name(0)).unlink()
    queue = reopened(tmp_path)
    assert (queue.min_offset, queue.next_offset) == (10, 35)


# -- cutting -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [0, 1, 9, 10, 11, 20, 24])
def test_cut_entries_do_not_come_back_to_life(tmp_path: Path, end: int) -> None:
    filled(tmp_path, 25)
    queue = reopened(tmp_path)
    queue.truncate(end)
    queue.clear_files(end)
    for path in tmp_path.iterdir():
        base = int(path.name)
        content = path.read_bytes()
        assert content[max(0, end * ENTRY_SIZE - base) :].strip(b"\0") == b"", path
    assert numbers(queue) == list(range(end))
    again = reopened(tmp_path)
    assert numbers(again) == list(range(end))


def test_garbage_behind_a_hole_is_cleared_too(tmp_path: Path) -> None:
    filled(tmp_path, 3)
    content = bytearray((tmp_path / segment_name(0)).read_bytes())
    content[8 * ENTRY_SIZE : 9 * ENTRY_SIZE] = ENTRY.pack(1, 2, 3)
    (tmp_path / segment_name(0)).write_bytes(content)
    queue = reopened(tmp_path)
    queue.clear_files(3)
    assert (tmp_path / segment_name(0)).read_bytes()[3 * ENTRY_SIZE :].strip(b"\0") == b""


def test_a_first_file_that_is_cut_to_nothing_still_carries_the_queues_number(tmp_path: Path) -> None:
    filled(tmp_path, 15)
    (tmp_path / segment_name(0)).unlink()
    queue = reopened(tmp_path)
    queue.truncate(10)
    queue.clear_files(10)
    again = reopened(tmp_path)
    assert (again.min_offset, again.next_offset) == (10, 10)


def test_a_restart_at_a_later_number_forgets_the_entries_before(tmp_path: Path) -> None:
    filled(tmp_path, 15)
    queue = reopened(tmp_path)
    queue.restart_at(42)
    queue.add(4200, 100, 42)
    queue.make_readable()
    queue.clear_files(0)
    write_back(queue)
    again = reopened(tmp_path)
    assert (again.min_offset, again.next_offset) == (42, 43)
    assert numbers(again) == [42]


@pytest.mark.parametrize("log_min", [0, 1, 100, 950, 1000, 2400, 2401, 5000])
def test_the_minimum_is_the_first_entry_whose_record_is_still_there(tmp_path: Path, log_min: int) -> None:
    filled(tmp_path, 25)
    queue = reopened(tmp_path)
    queue.raise_min(log_min)
    assert queue.min_offset == sum(100 * n < log_min for n in range(25))
    assert queue.next_offset == 25, "the numbers survive the messages"


# -- everything, in any order ------------------------------------------------------------------------


class QueueAgainstAList(RuleBasedStateMachine):
    """`model[n]` is entry `first + n`; the machine writes back, restarts, cuts and deletes as it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="queue-"))
        self.disk = Disk()
        self.queue = new_queue(self.directory, self.disk)
        self.first = 0
        self.model: list[tuple[int, int, int]] = []
        self.readable = 0
        self.physical = 0

    @initialize(start=st.sampled_from([0, 0, 0, 3, 10, 27]))
    def begin(self, start: int) -> None:
        if start:
            self.queue.start_at(start)
        self.first = self.readable = start

    @property
    def end(self) -> int:
        return self.first + len(self.model)

    @rule(sizes=st.lists(st.integers(91, 5000), max_size=30), tags=st.integers(-(2**63), 2**63 - 1))
    def add(self, sizes: list[int], tags: int) -> None:
        for size in sizes:
            self.queue.add(self.physical, size, tags)
            self.model.append((self.physical, size, tags))
            self.physical += size + 7

    @rule(part=st.floats(0, 1))
    def publish(self, part: float) -> None:
        self.readable += round((self.end - self.readable) * part)
        self.queue.make_readable(self.readable)

    @rule()
    def write_back(self) -> None:
        write_back(self.queue, self.disk)

    @rule(later=st.lists(st.integers(91, 5000), max_size=5))
    def write_back_while_appends_go_on(self, later: list[int]) -> None:
        writes, at = self.queue.pending_writes(), self.queue.readable
        self.add(later, 1)
        self.publish(1.0)
        for path, size, position, data in writes:
            self.disk.write_paged(path, size, position, data)
        self.queue.mark_written(at)

    @rule()
    def restart(self) -> None:
        """What was not written is gone; recovery would bring it back from the log."""
        written = self.queue.written
        self.queue = new_queue(self.directory, self.disk)
        assert self.queue.load()
        if written > self.first or (self.first and self.queue.next_offset):
            del self.model[max(0, written - self.first) :]
        else:
            self.model.clear()
            self.first = 0 if not self.queue.next_offset else self.first
        self.readable = self.end

    @precondition(lambda self: self.queue.written == self.end)
    @rule(part=st.floats(0, 1))
    def cut(self, part: float) -> None:
        end = self.first + round(len(self.model) * part)
        self.queue.truncate(end)
        self.queue.clear_files(end)
        del self.model[end - self.first :]
        self.readable = self.end

    @precondition(lambda self: self.model and self.queue.written == self.end)
    @rule(part=st.floats(0, 1))
    def lose_the_log_before(self, part: float) -> None:
        index = round((len(self.model) - 1) * part)
        log_min = self.model[index][0]
        self.queue.raise_min(log_min)
        assert self.queue.min_offset == self.first + index
        self.queue.min_offset = self.first  # only looked at: the model keeps its head

    @invariant()
    def agrees(self) -> None:
        queue = self.queue
        assert queue.tail_base <= queue.written <= queue.readable <= queue.next_offset
        assert queue.next_offset == self.end
        assert queue.readable == self.readable
        assert queue.min_offset == self.first
        assert queue.max_physical == (self.model[-1][0] + self.model[-1][1] if self.model else 0)

    @invariant()
    def every_readable_entry_is_the_models(self) -> None:
        queue, at = self.queue, self.first
        while at < self.readable:
            entries = queue.entries_nowait(at, self.readable - at)
            if entries is None:
                file, position, size = queue.place(at, self.readable - at)
                entries = file.read_at(position, size)
            found = list(ENTRY.iter_unpack(entries))
            assert found
            assert found == self.model[at - self.first : at - self.first + len(found)]
            at += len(found)

    def teardown(self) -> None:
        self.disk.close()
        shutil.rmtree(self.directory)


TestQueueAgainstAList = QueueAgainstAList.TestCase
TestQueueAgainstAList.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
