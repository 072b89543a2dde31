"""Pages brought by a process: those that the thread would bring, and with no harm done when it is killed or slow."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from store.io.disk import PAGE_SIZE, Disk, MappedFile
from store.log.page_prefault import Prefaulter, ProcessPrefaulter, prefaulter
from tests.sim.disk import SimDisk

SIZE = 4 << 20
_libc = ctypes.CDLL(None, use_errno=True)


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Iterator[MappedFile]]:
    made: list[MappedFile] = []

    def make() -> Iterator[MappedFile]:
        while True:
            made.append(Disk().allocate(tmp_path / f'a "file"\n{len(made)} \udce9', SIZE))
            yield made[-1]

    yield make()
    for file in made:
        file.close()


@pytest.fixture
def helper() -> Iterator[ProcessPrefaulter]:
    helper = ProcessPrefaulter()
    yield helper
    helper.stop()


def brought(file: MappedFile) -> list[tuple[int, int]]:
    """The parts of the file that the page cache holds."""
    count = file.size // PAGE_SIZE
    seen = (ctypes.c_ubyte * count)()
    start = ctypes.addressof(ctypes.c_char.from_buffer(file.map))
    assert _libc.mincore(ctypes.c_void_p(start), ctypes.c_size_t(file.size), seen) == 0
    parts: list[tuple[int, int]] = []
    for page in range(count):
        if seen[page] & 1:
            at = page * PAGE_SIZE
            if parts and parts[-1][1] == at:
                parts[-1] = (parts[-1][0], at + PAGE_SIZE)
            else:
                parts.append((at, at + PAGE_SIZE))
    return parts


def written(file: MappedFile) -> list[tuple[int, int]]:
    """The parts of the file that stand on the disk."""
    file.sync()
    os.posix_fadvise(file._fd, 0, 0, os.POSIX_FADV_DONTNEED)  # or what is in the cache alone counts too
    return file.data_ranges(0)


def until_brought(file: MappedFile, parts: list[tuple[int, int]]) -> None:
    deadline = time.monotonic() + 60
    while (now := brought(file)) != parts:
        assert time.monotonic() < deadline, now
        time.sleep(0.01)


@pytest.fixture
def bringing(files: Iterator[MappedFile]) -> Iterator[MappedFile]:
    """Files on a file system where it can be seen."""
    file = next(files)
    blank = not written(file)
    Prefaulter().bring(file, 0, PAGE_SIZE, fast=True)
    if not (blank and brought(file)):
        pytest.skip(
            "this file system brings no pages of an empty file ahead, or does not tell what is written"
        )
    return files


def pid_of(helper: ProcessPrefaulter) -> int:
    assert helper._process is not None
    return helper._process.pid


def until_up(helper: ProcessPrefaulter) -> None:
    deadline = time.monotonic() + 60
    while not helper._has_come_up():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_process_brings_what_the_thread_would(
    bringing: Iterator[MappedFile], helper: ProcessPrefaulter
) -> None:
    by_thread, first, second = next(bringing), next(bringing), next(bringing)
    part = (1 << 20, (2 << 20) + 5 * PAGE_SIZE)
    Prefaulter().bring(by_thread, *part, fast=True)
    assert brought(by_thread) == [part]
    helper.bring(first, *part, fast=False)
    assert helper._process is None and brought(first) == [part], "nobody said that there would be much"
    helper.bring(second, *part, fast=True)
    until_brought(second, [part])
    pid = pid_of(helper)
    helper.bring(second, part[1], SIZE, fast=False)
    until_brought(second, [(part[0], SIZE)])
    assert pid_of(helper) == pid


def test_pages_are_shared_mebibyte_by_mebibyte_and_with_a_process_only(
    bringing: Iterator[MappedFile], helper: ProcessPrefaulter
) -> None:
    alone, file = next(bringing), next(bringing)
    Prefaulter().share(alone, 0, SIZE)
    assert brought(alone) == []
    helper.share(file, 5 * PAGE_SIZE, SIZE)
    until_brought(file, [(0, 1 << 20), (2 << 20, 3 << 20)])


def test_what_is_to_be_written_is_written_by_the_time_that_it_is_said(
    bringing: Iterator[MappedFile], helper: ProcessPrefaulter, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_thread, file = next(bringing), next(bringing)
    part = (1 << 20, (2 << 20) + 5 * PAGE_SIZE)
    Prefaulter().write(by_thread, *part, fast=True)
    helper.write(by_thread, 3 << 20, SIZE, fast=False)
    assert helper._process is None, "nobody said that there would be much"
    helper.write(file, *part, fast=True)
    pid = pid_of(helper)
    until_up(helper)
    monkeypatch.setattr(MappedFile, "write_through", lambda *_: pytest.fail("by the thread"))
    helper.write(file, 3 << 20, SIZE, fast=False)
    assert pid_of(helper) == pid
    assert written(file) == written(by_thread) == [part, (3 << 20, SIZE)]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_that_does_not_say_that_it_has_written_is_not_waited_for_long(
    bringing: Iterator[MappedFile],
    helper: ProcessPrefaulter,
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
) -> None:
    monkeypatch.setattr("store.log.page_prefault._ANSWER_S", 0.2)
    helper.bring(next(bringing), 0, SIZE, fast=True)
    process = helper._process
    assert process is not None
    until_up(helper)
    os.kill(process.pid, number)
    file = next(bringing)
    helper.write(file, 0, SIZE, fast=True)
    assert helper._process is None and process.returncode == -signal.SIGKILL
    assert brought(file) == [(0, SIZE)]


def test_it_keeps_no_file_open_and_minds_none_that_is_gone(
    bringing: Iterator[MappedFile], helper: ProcessPrefaulter
) -> None:
    gone, file = next(bringing), next(bringing)
    gone.path.unlink()
    helper.bring(gone, 0, SIZE, fast=True)
    helper.bring(file, 0, SIZE, fast=True)
    until_brought(file, [(0, SIZE)])
    descriptors = Path(f"/proc/{pid_of(helper)}/fd")
    deadline = time.monotonic() + 60
    while str(file.path) in [os.readlink(each) for each in descriptors.iterdir()]:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_without_a_process_the_thread_brings_them_and_one_that_was_killed_is_started_again_later(
    bringing: Iterator[MappedFile], helper: ProcessPrefaulter, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper.bring(next(bringing), 0, SIZE, fast=True)
    process = helper._process
    assert process is not None
    process.kill()
    process.wait()
    for _ in range(2):
        file = next(bringing)
        helper.bring(file, 0, SIZE, fast=True)
        assert helper._process is None and brought(file) == [(0, SIZE)]
    monkeypatch.setattr(helper, "_not_before", 0.0)
    file = next(bringing)
    helper.bring(file, 0, SIZE, fast=True)
    until_brought(file, [(0, SIZE)])
    assert pid_of(helper) != process.pid


def test_a_process_that_does_not_get_to_run_holds_nobody_up(
    bringing: Iterator[MappedFile], helper: ProcessPrefaulter
) -> None:
    helper.bring(next(bringing), 0, SIZE, fast=True)
    process = helper._process
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)
    before, file = next(bringing), next(bringing)
    for _ in range(5):
        helper.bring(before, 0, SIZE, fast=True)
    helper.bring(file, 0, SIZE, fast=True)
    assert helper._process is process and brought(file) == [(0, SIZE)]
    helper.stop()
    assert process.returncode == -signal.SIGKILL


def test_what_cannot_be_started_is_not_missed(
    bringing: Iterator[MappedFile], helper: ProcessPrefaulter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    file = next(bringing)
    helper.bring(file, 0, SIZE, fast=True)
    assert brought(file) == [(0, SIZE)]


def test_the_process_ends_with_its_broker(bringing: Iterator[MappedFile], helper: ProcessPrefaulter) -> None:
    helper.bring(next(bringing), 0, SIZE, fast=True)
    process = helper._process
    assert process is not None and process.stdin is not None
    process.stdin.close()
    assert process.wait(30) == 0


def test_only_a_real_disk_has_a_process() -> None:
    assert type(prefaulter(Disk())) is ProcessPrefaulter
    assert type(prefaulter(SimDisk(random.Random(0)))) is Prefaulter


def test_a_line_that_was_not_taken_whole_ends_the_process(
    bringing: Iterator[MappedFile], helper: ProcessPrefaulter, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper.bring(next(bringing), 0, SIZE, fast=True)
    process = helper._process
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:5]))
    file = next(bringing)
    helper.bring(file, 0, SIZE, fast=True)
    assert helper._process is None and brought(file) == [(0, SIZE)]
    assert process is not None and process.returncode == -signal.SIGKILL
