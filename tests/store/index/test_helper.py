"""The process that builds the key index: killed, in another's way, not needed yet, and never waited for."""

import json
import os
import signal
import struct
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from ropewalk.format.index import SLOT, key_hash
from store.index import helper
from store.index.helper import ProcessIndex, WorkerIndex
from store.index.search import search
from store.io.disk import Disk
from store.io.workers import Completions, Worker
from store.message_store import MessageStore
from tests.store.index_world import FOREVER, World, built, find, index_of, send
from tests.store.worlds import put, wait_for


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "store")


def process_of(store: MessageStore) -> subprocess.Popen[bytes]:
    index = index_of(store)
    assert isinstance(index, ProcessIndex) and index._process is not None
    return index._process


def test_a_killed_helper_is_started_again_and_loses_nothing(world: World) -> None:
    world.process = True
    with world.opened() as store:
        first = send(store, {"KEYS": "k"})
        built(store)
        process = process_of(store)
        process.kill()
        wait_for(store, lambda: bool(index_of(store).findings))
        assert "started again" in store.upkeep.take_findings()[0]
        second = send(store, {"KEYS": "k"})
        world.clock.ms += 10_000
        built(store)
        assert process_of(store).pid != process.pid
        assert find(store, "k") == first + second


def test_a_helper_killed_in_a_write_when_the_broker_stops_costs_no_chain(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between slots and header: who went on with that file would begin each such chain anew."""
    world.process = True
    monkeypatch.setattr(helper, "_STOP_S", 0.1)
    with world.opened() as store:
        offsets = send(store, *[{"KEYS": "k"}] * 10)
        built(store)
        process_of(store).send_signal(signal.SIGSTOP)
        offsets += send(store, {"KEYS": "k"})
        path = world.place.directory / world.names[-1]
        next_item = world.header(world.names[-1]).next_item
        at = world.geometry.slot_position(key_hash("T", "k") % world.geometry.slots)
        with path.open("r+b") as file:
            file.seek(at)
            file.write(SLOT.pack(next_item))
    assert not (world.root / "abort").exists()
    with world.opened() as store:
        offsets += send(store, {"KEYS": "k"})
        built(store)
        assert find(store, "k") == offsets


def test_the_helper_outlives_a_signal_to_the_group_and_ends_with_its_input(world: World) -> None:
    world.process = True
    with world.opened() as store:
        send(store, {"KEYS": "k"})
        built(store)
        process = process_of(store)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        send(store, {"KEYS": "k"})
        built(store)
    assert process.returncode == 0


def test_the_helper_is_weighed_with_its_broker_and_hears_no_ctrl_c_of_its_terminal(world: World) -> None:
    world.process = True
    with world.opened() as store:
        send(store, {"KEYS": "k"})
        built(store)
        pid = process_of(store).pid
        assert os.getsid(pid) == os.getsid(0)
        assert os.getpgid(pid) == pid


_WATCHED = """
import json, os, sys, threading
from store.index import helper
from store.io import idle_worker
steps, yields, real, real_yield = [], [], helper.IndexBuilder.advance, idle_worker._yield
def give_way():
    if yields.append(1) or len(yields) <= {yields_max}:
        real_yield()
    else:
        print("stands", file=sys.stderr, flush=True)
        threading.Event().wait()
idle_worker._yield = give_way
def advance(self, through, min_offset):
    before = len(yields)
    real(self, through, min_offset)
    steps.append((self.position, os.sched_getscheduler(0), len(yields) - before))
helper.IndexBuilder.advance, helper._LITTLE = advance, {little}
helper.main()
print(json.dumps(steps), file=sys.stderr, flush=True)
os._exit(0)
"""


def steps_of_helper(
    world: World, *messages: tuple[bytes, int], yields_max: int = 1 << 30
) -> list[tuple[int, int, int]]:
    """What a helper did that was told these one by one: position, scheduling policy, and how often it gave way.

    More than 500 bytes are not little. What gave way so often never gets to run again, and nobody waits for it here.
    """
    index = ProcessIndex(world.place, Disk(), world.clock, Completions(lambda: None))
    code = _WATCHED.format(little=500, yields_max=yields_max)
    with subprocess.Popen(
        [sys.executable, "-c", code, index._order(), str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    ) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        for kind, through in messages:
            process.stdin.write(struct.pack(">cqq", kind, through, 0))
            process.stdin.flush()
            if kind == b"F" and yields_max < 1 << 30:
                assert process.stderr.readline() == b"stands\n"
                continue
            for line in process.stdout:
                if int(line.split()[0]) >= through:
                    break
        process.stdin.close()
        return [(position, policy, yields) for position, policy, yields in json.loads(process.stderr.read())]


@pytest.mark.parametrize("kind", [b"F", b"Q"])
def test_the_helper_gives_way_to_everybody_unless_somebody_waits_or_it_has_little_to_do(
    world: World, kind: bytes
) -> None:
    """Even where it could not stop doing so: only the privileged leave the idle class."""
    with world.opened() as store:
        sent = send(store, *[{"KEYS": "k"}] * 30)
        end = store.log.end_offset
    world.forget_index()
    steps = steps_of_helper(world, (b"F", sent[10]), (b"F", sent[12]), (kind, end))
    idle = [(at, policy) for at, policy, yields in steps if yields]
    assert idle[0] == (sent[10], os.SCHED_IDLE)
    assert steps[0][2] >= 10
    assert (sent[12], os.SCHED_OTHER, 0) in steps, "little is done at once: as this it would take seconds"
    if kind == b"F":
        assert idle[1:] == [(end, os.SCHED_IDLE)]
    else:
        assert not idle[1:] and steps[-1] == (end, os.SCHED_OTHER, 0)


@pytest.mark.parametrize("yields_max", [1, 2, 7, 60])
def test_a_query_does_not_wait_for_a_thread_that_never_gets_to_run(world: World, yields_max: int) -> None:
    """The work is taken from it wherever it gave way: before a record, or before a write."""
    with world.opened() as store:
        send(store, *[{"KEYS": f"k{number}"} for number in range(60)])
        end = store.log.end_offset
    world.forget_index()
    steps = steps_of_helper(world, (b"F", end), (b"Q", end), yields_max=yields_max)
    assert steps == [(end, os.SCHED_OTHER, 0)]
    for number in range(60):
        assert len(list(search(Disk(), world.place, "T", f"k{number}", 0, FOREVER))) == 1


_WITHOUT_ROOM = """
import errno, pathlib
from store.index import helper
from store.io import disk
def with_room(real):
    def do(*args):
        if pathlib.Path({full!r}).exists():
            raise OSError(errno.ENOSPC, "full")
        return real(*args)
    return do
disk.{kind} = with_room(disk.{kind})
helper._LITTLE = {little}
helper.main()
"""


@pytest.mark.parametrize("kind", ["PagedFile.write_at", "Disk.create_paged"])
@pytest.mark.parametrize("little", [0, 1 << 30])
def test_a_full_disk_is_told_once_and_what_waits_for_room_is_not_said_to_be_there(
    world: World, tmp_path: Path, little: int, kind: str
) -> None:
    with world.opened() as store:
        send(store, *[{"KEYS": "k"}] * 30)
        end = store.log.end_offset
    world.forget_index()
    full = tmp_path / "full"
    full.touch()
    index = ProcessIndex(world.place, Disk(), world.clock, Completions(lambda: None))
    code = _WITHOUT_ROOM.format(full=str(full), little=little, kind=kind)
    told: list[str] = []
    with subprocess.Popen(
        [sys.executable, "-c", code, index._order(), str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
        text=True,
    ) as process:
        assert process.stdin is not None and process.stdout is not None

        def follow() -> None:
            assert process.stdin is not None
            os.write(process.stdin.fileno(), struct.pack(">cqq", b"F", end, 0))
            time.sleep(0.1)

        follow()
        for line in process.stdout:
            told.append(line)
            if "no room" in line:
                break
        for _ in range(3):
            follow()
        full.unlink()
        follow()
        for line in process.stdout:
            told.append(line)
            if int(line.split()[0]) >= end:
                break
    assert sum("no room" in line for line in told) == 1
    assert {int(line.split()[0]) for line in told} == {0, end}
    assert len(list(search(Disk(), world.place, "T", "k", 0, FOREVER))) == 30


def test_what_is_asked_while_enough_is_under_way_is_built_without_being_asked_again(world: World) -> None:
    with world.opened() as store:
        ends = [*send(store, *[{"KEYS": "k"}] * 3)[1:], store.log.end_offset]
    world.forget_index()
    completions = Completions(lambda: None)
    worker = Worker("index", completions, start=False)
    index = WorkerIndex(world.place, Disk(), world.clock, worker)
    index.start(FOREVER, 0, 0, abnormal=False)
    built: list[int] = []
    for end in ends:
        index.when_built(end, partial(built.append, end))
    while not worker.is_idle:
        worker.step()
        completions.run()
    assert built == ends
    index.stop(ends[-1], 0)


def test_a_helper_waits_for_the_one_of_a_broker_that_is_gone(world: World) -> None:
    with world.opened() as store:
        send(store, *[{"KEYS": "k"}] * 10)
    world.forget_index()
    disk = Disk()
    held = disk.lock(world.place.lock)
    completions = Completions(lambda: None)
    index = ProcessIndex(world.place, Disk(), lambda: time.time_ns() // 1_000_000, completions)
    index.start(FOREVER, 0, 0, abnormal=False)
    end = store.readable_offset
    index.when_built(end, lambda: None)
    time.sleep(0.5)
    completions.run()
    assert world.names == []
    disk.unlock(held)
    deadline = time.monotonic() + 60
    while index.position < end:
        assert time.monotonic() < deadline
        time.sleep(0.01)
        completions.run()
    index.stop(end, 0)
    assert world.names


def has_helper(store: MessageStore) -> bool:
    index = index_of(store)
    assert isinstance(index, ProcessIndex)
    return index._thread is not None


def test_a_few_records_start_no_helper_until_somebody_asks_or_they_are_many(world: World) -> None:
    world.process = True
    with world.opened() as store:
        send(store, {"KEYS": "k"})
        for _ in range(3):
            world.clock.ms += 10_000
            store.tick()
        assert not has_helper(store)
        built(store)
        assert len(find(store, "k")) == 1
        assert has_helper(store)
    with world.opened() as store:
        send(store, *[{"note": "x" * 1000}] * 1200)
        assert not has_helper(store)
        for _ in range(2):  # it was growing fast until now
            world.clock.ms += 10_000
            store.tick()
        assert has_helper(store)


def test_put_does_not_wait_for_a_helper(world: World) -> None:
    """Not a measurement: the index is asked for by time alone, and never by a put."""
    world.process = True
    with world.opened() as store:
        for _ in range(100):
            put(store, [b"x"])
        index = index_of(store)
        assert isinstance(index, ProcessIndex) and index._thread is None
