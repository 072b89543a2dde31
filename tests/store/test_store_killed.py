"""A kill at any moment: what was acknowledged is there again, in order."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from store.io.disk import Disk, PagedFile
from tests.store.worlds import World, bodies, put, settle
from tests.support.clocks import Clock


class WatchedDisk(Disk):
    """Calls back before each write of a queue file, bound or checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.before_write: object = None

    def create_paged(self, path: Path, size: int) -> PagedFile:
        return self._watched(super().create_paged(path, size))

    def open_paged(self, path: Path) -> PagedFile:
        return self._watched(super().open_paged(path))

    def write_paged(self, path: str, size: int, position: int, data: bytes) -> bool:
        if callable(self.before_write):
            self.before_write()
        return super().write_paged(path, size, position, data)

    def _watched(self, file: PagedFile) -> PagedFile:
        whole = file.write_at

        def write_at(position: int, data: bytes | bytearray | memoryview) -> None:
            if callable(self.before_write):
                self.before_write()
            whole(position, data)

        file.write_at = write_at  # type: ignore[method-assign]
        return file


@pytest.mark.parametrize("sync_flush", [False, True])
def test_a_kill_before_any_single_write_of_a_helper_thread_loses_nothing(
    tmp_path: Path, sync_flush: bool
) -> None:
    world = World(tmp_path / "store", sync_flush=sync_flush)
    disk = WatchedDisk()
    worlds: list[tuple[World, dict[int, list[bytes]]]] = []
    expected: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    with world.opened(disk) as store:
        settle(store)
        disk.before_write = lambda: worlds.append(
            (world.killed(), {queue_id: list(found) for queue_id, found in expected.items()})
        )
        for round_ in range(4):
            for queue_id in expected:
                some = [b"%d.%d.%d" % (round_, queue_id, n) * 20 for n in range(4 + queue_id)]
                put(store, some, queue_id=queue_id)
                expected[queue_id] += some
            world.clock.ms += 5000
            settle(store)
            store.tick()
            settle(store)
        disk.before_write = None
    assert len(worlds) > 10
    for killed, had in worlds:
        with killed.opened() as store:
            assert {queue_id: bodies(store, "T", queue_id) for queue_id in had} == had
        shutil.rmtree(killed.root)


_LOAD = """
import sys, time
from pathlib import Path
from tests.store.worlds import World, put, wait_for
world = World(Path(sys.argv[1]), sync_flush=sys.argv[2] == "sync")
world.clock.ms = int(time.time() * 1000)
store = world.store()
store.open()
number = 0
while True:
    world.clock.ms = int(time.time() * 1000)
    for queue_id in range(3):
        put(store, [b"%d" % number], queue_id=queue_id)
    number += 1
    store.tick()
    store.run_completions()
    if world.sync_flush:
        wait_for(store, lambda: store.log.flushed_offset == store.log.end_offset)
    sys.stdout.write(f"{number}\\n")  # everything up to here is promised
    sys.stdout.flush()
"""


@pytest.mark.crash
@pytest.mark.parametrize("mode", ["async", "sync"])
def test_kill_9_keeps_every_acknowledged_message_in_order(tmp_path: Path, mode: str) -> None:
    checkout = Path(__file__).resolve().parents[2]
    world = World(tmp_path / "store", sync_flush=mode == "sync", clock=Clock(int(time.time() * 1000)))
    for wait in (0.3, 0.12):
        shutil.rmtree(world.root, ignore_errors=True)
        process = subprocess.Popen(
            [sys.executable, "-c", _LOAD, str(world.root), mode],
            cwd=checkout,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        first = process.stdout.readline()
        time.sleep(wait)
        process.send_signal(signal.SIGKILL)
        lines = (first + process.stdout.read()).splitlines(keepends=True)
        answered = int([line for line in lines if line.endswith("\n")][-1])
        process.stdout.close()
        process.wait()
        with world.opened() as store:
            for queue_id in range(3):
                found = [int(body) for body in bodies(store, "T", queue_id)]
                assert found == list(range(len(found)))
                assert len(found) >= answered
