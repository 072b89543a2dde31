"""Timer messages on a disk that is full, and with a timer log that is damaged or gone: late perhaps, and never lost."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from shutil import copytree, rmtree

import pytest
from structlog.testing import capture_logs

from store.io.disk import Disk, PagedFile
from store.timer.layout import UNIT_SIZE
from tests.broker.harness import InProcess, config_of
from tests.broker.timers.timing import bodies, pass_time, pass_time_with_disk, timed
from tests.support.clocks import START_MS


class FullFile(PagedFile):
    def write_at(self, position: int, data: bytes | bytearray | memoryview) -> None:
        assert isinstance(self._disk, FullDisk)
        self._disk.demand(self.path)
        super().write_at(position, data)


class FullDisk(Disk):
    """A disk whose files of timers have no room at times, but for what the commit log has allocated."""

    is_full = False
    names_of_full: tuple[str, ...] = ("timerlog", "timerwheel", "timercheck", "timer")

    def demand(self, path: Path) -> None:
        if self.is_full and {path.name, path.parent.name} & {*self.names_of_full}:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def open_paged(self, path: Path) -> PagedFile:
        return FullFile(self, path)

    def create_paged(self, path: Path, size: int) -> PagedFile:
        if not path.exists():
            self.demand(path)
        super().create_paged(path, size)
        return FullFile(self, path)


def copied(running: InProcess, source: Path, target: Path) -> None:
    """Copy the files of a broker as a kill leaves them, and end it."""
    page = running.broker.timers._page_worker
    assert page is not None
    running.until(lambda: not page.pending)
    copytree(source, target)
    running.__exit__(None, None, None)
    (target / "lock").unlink(missing_ok=True)


def texts(numbers: range) -> list[bytes]:
    return [b"%d" % number for number in numbers]


# -- a full disk ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [0, 1], ids=["no file yet", "a file"])
def test_a_full_disk_makes_timers_wait_and_is_told_once(tmp_path: Path, before: int) -> None:
    disk = FullDisk()
    with InProcess(config_of(tmp_path), disk) as running:
        client = running.connect()
        for body in texts(range(before)):
            timed(client, body, TIMER_DELAY_SEC=60)
        pass_time_with_disk(running, 2_000)
        disk.is_full = True
        with capture_logs() as logs:
            for body in texts(range(before, 6)):
                timed(client, body, TIMER_DELAY_SEC=60)
            pass_time_with_disk(running, 10_000)
            disk.is_full = False
            pass_time_with_disk(running, 3_000)
        told = [line["event"] for line in logs if line["log_level"] in ("error", "info")]
        assert told.count("timer messages wait") == 1
        assert told[-1] == "timer messages go on"
        pass_time_with_disk(running, 60_000)
        assert sorted(bodies(running)) == texts(range(6))


@pytest.mark.parametrize("how", ["stopped", "killed", "killed, then another boot"])
def test_timers_that_a_full_disk_kept_in_memory_are_enqueued_again_by_the_next_start(
    tmp_path: Path, how: str
) -> None:
    disk = FullDisk()
    running = InProcess(config_of(tmp_path / "a"), disk)
    client = running.connect()
    for body in texts(range(3)):
        timed(client, body, TIMER_DELAY_SEC=20)
    pass_time_with_disk(running, 2_000)
    disk.is_full, disk.names_of_full = True, ("timerlog",)
    for number in range(3, 40):
        timed(client, b"%d" % number, TIMER_DELAY_SEC=2 if number < 10 else 20)
    pass_time_with_disk(running, 8_000)
    delivered = bodies(running)
    now = running.clock.ms
    if how == "stopped":
        running.__exit__(None, None, None)
        copytree(tmp_path / "a", tmp_path / "b")
    else:
        copied(running, tmp_path / "a", tmp_path / "b")
    if how.endswith("boot"):
        (tmp_path / "b" / "ropewalk" / "timer").unlink()
        delivered = []  # the file of the checkpoint knows of none
    with capture_logs() as logs, InProcess(config_of(tmp_path / "b"), now_ms=now) as again:
        assert any("enqueued again" in line["event"] for line in logs) or not delivered
        before = len(bodies(again))
        pass_time_with_disk(again, 30_000)
        found = bodies(again)
        assert sorted({*found}) == sorted(texts(range(40)))
        assert not {*found[before:]} & {*delivered}
        assert len({*found[before:]}) == len(found[before:])


def test_a_full_disk_at_the_end_of_a_file_of_the_timer_log_leaves_files_of_their_size(tmp_path: Path) -> None:
    disk = FullDisk()
    size, count = 4096, 78
    assert size - 2 * UNIT_SIZE < count * UNIT_SIZE < size - 16
    with InProcess(config_of(tmp_path, mappedFileSizeTimerLog=size), disk) as running:
        client = running.connect()
        for body in texts(range(count)):
            timed(client, body, TIMER_DELAY_SEC=20)
        pass_time_with_disk(running, 1_000)
        disk.is_full = True
        timed(client, b"%d" % count, TIMER_DELAY_SEC=20)
        pass_time_with_disk(running, 5_000)
        disk.is_full = False
        pass_time_with_disk(running, 2_000)
        now = running.clock.ms
    assert [path.stat().st_size for path in (tmp_path / "timerlog").iterdir()] == [size, size]
    with InProcess(config_of(tmp_path, mappedFileSizeTimerLog=size), now_ms=now) as again:
        pass_time(again, 20_000)
        assert bodies(again) == texts(range(count + 1))


# -- a damaged timer log -------------------------------------------------------------------------------------


def missing(path: Path) -> None:
    path.unlink()


def no_folder(path: Path) -> None:
    rmtree(path.parent)


def no_files(path: Path) -> None:
    rmtree(path.parent)
    (path.parent.parent / "timerwheel").unlink()
    (path.parent.parent / "config" / "timercheck").unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def zeros(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(bytes(64 * UNIT_SIZE))


def garbage(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(bytes(range(7, 251)) * 20)


def hole(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(5 * UNIT_SIZE)
        file.write(bytes(UNIT_SIZE))


def flipped(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(5 * UNIT_SIZE + 5)
        file.write(b"\x55")


@pytest.mark.parametrize("how", ["stopped", "killed"])
@pytest.mark.parametrize("damage", [missing, no_folder, no_files, empty, zeros, garbage, hole, flipped])
def test_a_damaged_timer_log_is_told_and_loses_no_timer_and_repeats_none(
    tmp_path: Path, damage: Callable[[Path], None], how: str
) -> None:
    config = config_of(tmp_path / "a", mappedFileSizeTimerLog=1 << 20)
    running = InProcess(config)
    client = running.connect()
    for number in range(20):
        timed(client, b"%d" % number, TIMER_DELAY_SEC=2 if number in (3, 8, 12) else 20)
    pass_time_with_disk(running, 5_000)
    delivered = bodies(running)
    assert delivered == [b"3", b"8", b"12"]
    now = running.clock.ms
    if how == "stopped":
        running.__exit__(None, None, None)
        copytree(tmp_path / "a", tmp_path / "b")
    else:
        copied(running, tmp_path / "a", tmp_path / "b")
    damage(tmp_path / "b" / "timerlog" / f"{0:020d}")
    config = config_of(tmp_path / "b", mappedFileSizeTimerLog=1 << 20)
    with capture_logs() as logs, InProcess(config, now_ms=now) as again:
        pass_time_with_disk(again, 30_000)
        assert sorted(bodies(again)) == sorted(texts(range(20)))
        assert [line for line in logs if line["log_level"] == "error" and "timer log" in line["event"]]
        assert not again.broker.timers.pending()


def test_what_is_enqueued_again_is_in_the_files_of_the_start_after(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    with InProcess(config) as running:
        for body in texts(range(20)):
            timed(running.connect(), body, TIMER_DELAY_SEC=20)
        pass_time_with_disk(running, 2_000)
    missing(tmp_path / "timerlog" / f"{0:020d}")
    with InProcess(config, now_ms=START_MS + 3_000) as again:
        pass_time_with_disk(again, 2_000)
    with capture_logs() as logs, InProcess(config, now_ms=START_MS + 6_000) as third:
        assert not [line for line in logs if line["log_level"] == "error"]
        pass_time(third, 20_000)
        assert bodies(third) == texts(range(20))


@pytest.mark.parametrize("damage", [zeros, garbage, hole, flipped])
def test_damage_that_a_slot_meets_when_it_is_due_loses_no_timer_and_repeats_none(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    with InProcess(config_of(tmp_path, mappedFileSizeTimerLog=1 << 20)) as running:
        client = running.connect()
        for number in range(20):
            timed(client, b"%d" % number, TIMER_DELAY_SEC=3 if number in (3, 8, 12) else 20 + number % 2)
        pass_time_with_disk(running, 6_000)
        damage(tmp_path / "timerlog" / f"{0:020d}")
        with capture_logs() as logs:
            pass_time_with_disk(running, 20_000)
        assert sorted(bodies(running)) == sorted(texts(range(20)))
        told = [line["event"] for line in logs if line["log_level"] in ("error", "info")]
        assert told == ["timer messages wait", "timer messages go on"]


def test_damage_before_the_end_that_a_checkpoint_claims_loses_no_timer_behind_a_kill(tmp_path: Path) -> None:
    config = config_of(tmp_path / "a", mappedFileSizeTimerLog=1 << 20)
    running = InProcess(config)
    client = running.connect()
    for body in texts(range(20)):
        timed(client, body, TIMER_DELAY_SEC=20)
    pass_time_with_disk(running, 2_000)
    timed(client, b"20", TIMER_DELAY_SEC=18)
    running.tick(10)
    copied(running, tmp_path / "a", tmp_path / "b")
    hole(tmp_path / "b" / "timerlog" / f"{0:020d}")
    config = config_of(tmp_path / "b", mappedFileSizeTimerLog=1 << 20)
    with InProcess(config, now_ms=START_MS + 3_000) as again:
        assert again.broker.timers.timers.redo_to <= again.broker.timers.timers.queue_offset, (
            "not seen so far"
        )
        pass_time_with_disk(again, 20_000)
        assert sorted(bodies(again)) == sorted(texts(range(21)))
        now = again.clock.ms
    with InProcess(config, now_ms=now) as third:
        pass_time_with_disk(third, 3_000)
        assert len(bodies(third)) == 21
