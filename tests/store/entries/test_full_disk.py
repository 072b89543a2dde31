"""A log of entries on a disk without room: ballots and cuts wait, in order, and nothing ends for it."""

from __future__ import annotations

import errno
import os
from functools import partial
from pathlib import Path

import pytest

from store.entries.ordered_writes import OrderedWrites
from store.io.disk import Disk
from store.io.workers import Completions, Worker
from tests.store.entries.host import Host, place, point_of, run_behind


class SmallDisk(Disk):
    """A disk on which, while `full`, no small file can be replaced or grow."""

    full = False

    def replace_file(self, path: Path, data: bytes) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        super().replace_file(path, data)

    def append_file(self, path: Path, data: bytes) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        super().append_file(path, data)


def turn(host: Host) -> None:
    for which in (0, 1, 2, 3, 4, 1, 3, 4):
        if which or host.is_flushing:
            host.step(which)


def test_a_ballot_is_reported_when_it_is_on_disk_and_not_before(tmp_path: Path) -> None:
    disk = SmallDisk()
    host = Host(tmp_path, disk)
    saved: list[int] = []
    disk.full = True
    for term in (1, 2, 3):
        host.entries.save(term, "n1", partial(saved.append, term))
    for _ in range(5):
        turn(host)
    assert saved == [] and host.stuck == [True]
    assert b"currTerm=0" in (disk.read_file(tmp_path / "dledger-n0" / "currterm") or b"")
    disk.full = False
    for _ in range(5):
        turn(host)
    assert saved == [1, 2, 3] and host.stuck == [True, False]
    assert b"currTerm=3" in (disk.read_file(tmp_path / "dledger-n0" / "currterm") or b"")
    host.close()


def test_the_note_of_the_commit_point_waits_and_a_stop_does_without_it(tmp_path: Path) -> None:
    disk = SmallDisk()
    host = Host(tmp_path, disk)
    entries = run_behind(None, 1, [bytes(100)] * 3)
    host.entries.save(1, "", lambda: None)
    place(host, entries)
    host.settle()
    disk.full = True
    host.entries.committed(*point_of(entries[-1]))
    for _ in range(5):
        turn(host)
    assert host.stuck == [True], "nor would there be room for a ballot"
    host.entries.close()
    host.log.close()
    disk.full = False
    again = Host(tmp_path, disk)
    assert again.entries.commit == (-1, -1, 0), "it claims less than the truth"
    assert again.entries.end == point_of(entries[-1])
    again.close()


def test_a_cut_waits_for_room_to_be_named_and_is_done_without_a_copy_of_what_it_removes(
    tmp_path: Path,
) -> None:
    disk = SmallDisk()
    host = Host(tmp_path, disk)
    entries = run_behind(None, 1, [bytes(100)] * 4)
    host.entries.save(1, "", lambda: None)
    place(host, entries)
    host.settle()
    cut: list[bool] = []
    disk.full = True
    host.entries.cut(*point_of(entries[1]), lambda: cut.append(True))
    behind = run_behind(entries[1], 2, [b"x" * 50])
    place(host, behind)
    for _ in range(5):
        turn(host)
    assert not cut and host.entries.end == point_of(entries[3]), (
        "nothing is cut that a start would not cut again"
    )
    disk.replace_file = super(SmallDisk, disk).replace_file  # type: ignore[method-assign]
    host.settle()
    assert cut == [True] and host.read_all() == [*entries[:2], *behind]
    assert not (tmp_path / "ropewalk" / "diverged").exists()
    host.close()


def test_writes_that_found_no_room_are_done_in_their_order_with_those_asked_for_meanwhile() -> None:
    completions = Completions(lambda: None)
    worker = Worker("storage", completions, start=False)
    writes, written, told, full = OrderedWrites(worker), [], [], [True]

    def write(number: int) -> None:
        if full[0]:
            raise OSError(errno.ENOSPC, "full")
        written.append(number)

    def ask(number: int) -> None:
        writes.submit(lambda: write(number), lambda: told.append(number))

    def work() -> None:
        while not worker.is_idle:
            worker.step()
            completions.run()

    ask(1)
    ask(2)
    worker.step()  # the first finds no room; the loop has not heard of it
    full[0] = False
    ask(3)
    work()
    ask(4)
    work()
    assert written == told == [] and writes.lack_room
    writes.retry()
    ask(5)
    work()
    assert written == told == [1, 2, 3, 4, 5] and not writes.lack_room


def test_another_error_than_a_full_disk_is_raised_on_the_loop() -> None:
    completions = Completions(lambda: None)
    worker = Worker("storage", completions, start=False)

    def write() -> None:
        raise OSError(errno.EIO, "broken")

    OrderedWrites(worker).submit(write, lambda: None)
    worker.step()
    with pytest.raises(OSError, match="broken"):
        completions.run()
