"""`store verify` finds damage of pending timers, says where, and finds none in files that a kill leaves."""

from collections.abc import Callable
from pathlib import Path

import pytest

from store.io.disk import Disk
from store.timer.layout import UNIT_SIZE, Checkpoint
from store.timer.timer_store import TimerRules, TimerStore
from tests.support.clocks import START_MS
from tests.support.stores import damages, fill, look

FILE_SIZE = 20 * UNIT_SIZE + 20
TIMERS = 50
UNFLUSHED = 5


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store with 50 pending timers in three files, and the units of five more that no checkpoint claims."""
    fill(tmp_path)
    timers = TimerStore(tmp_path, TimerRules(log_file_size=FILE_SIZE), Disk())
    timers.open(START_MS, 1 << 40, lambda _unit: -1)
    for number in range(TIMERS + UNFLUSHED):
        if number == TIMERS:
            timers.flushed(timers.flush(Checkpoint(START_MS, 0, TIMERS, TIMERS))())
        timers.enqueue(START_MS + 60_000, START_MS, number * 100, 100, 7, delete=False)
    timers.write()
    return tmp_path


def test_files_as_a_kill_leaves_them_are_clean(root: Path) -> None:
    found = look(root)
    assert not found.findings
    assert found.counts.timers == TIMERS + UNFLUSHED


def log_file(root: Path, number: int) -> Path:
    return root / "timerlog" / f"{number * FILE_SIZE:020d}"


def test_a_unit_that_cannot_be_read_is_found_in_every_file(root: Path) -> None:
    with log_file(root, 1).open("r+b") as file:
        file.seek(3 * UNIT_SIZE)
        file.write(bytes(UNIT_SIZE))
    (found,) = damages(root)
    assert found.path == str(log_file(root, 1)) and found.place == f"byte {3 * UNIT_SIZE}"
    assert "enqueues" in found.advice


def cut_log(root: Path) -> None:
    with log_file(root, 2).open("r+b") as file:
        file.truncate(UNIT_SIZE)


def lose_file(root: Path) -> None:
    log_file(root, 1).unlink()


def lose_files(root: Path) -> None:
    for number in range(3):
        log_file(root, number).unlink()


def cut_wheel(root: Path) -> None:
    (root / "timerwheel").write_bytes(bytes(100))


def cut_checkpoint(root: Path) -> None:
    (root / "config" / "timercheck").write_bytes(bytes(7))


@pytest.mark.parametrize("harm", [cut_log, lose_file, lose_files, cut_wheel, cut_checkpoint])
def test_files_of_another_size_or_that_are_gone_are_found(root: Path, harm: Callable[[Path], None]) -> None:
    harm(root)
    assert len(damages(root)) == 1
