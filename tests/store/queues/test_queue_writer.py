"""Queue files written by a process: as the thread would, and with no harm done when it is killed, slow or orphaned."""

from __future__ import annotations

import errno
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import store.queues.queue_writer
import store.write_back
from store.io.disk import Disk, StoreLocked
from store.queues.entry_pool import PIECE, Pieces
from store.queues.file_layout import Waiting, Write
from store.queues.linked_entries import LinkedEntries
from store.queues.queue_writer import ProcessQueueFileWriter, QueueFileWriter, await_writer, queue_file_writer
from tests.store.worlds import World, bodies, put, settle, write_back

SIZE = 200


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProcessQueueFileWriter]:
    """A writer that does not give its process up, however little of a busy processor that gets."""
    monkeypatch.setattr(store.queues.queue_writer, "_ANSWER_S", 60.0)
    monkeypatch.setattr(store.queues.queue_writer, "_SLOW_S", 60.0)
    files = ProcessQueueFileWriter(Disk(), tmp_path / "queues.lock")
    yield files
    files.stop()


def writes(root: Path, *numbers: int, at: int = 0, text: bytes = b"entry") -> list[Write]:
    return [(str(root / "T" / str(n) / "00"), SIZE, at, text) for n in numbers]


def written(root: Path) -> list[int]:
    """The numbers of files that hold the entry."""
    return sorted(
        int(path.parent.name) for path in root.glob("T/*/00") if path.read_bytes().startswith(b"entry")
    )


def linked(queues: int, each: int) -> dict[int, LinkedEntries]:
    """Pieces of a pool in which so many queues have got so many entries by turns."""
    count = queues * each
    pieces = {at // PIECE: LinkedEntries() for at in range(0, count, PIECE)}
    for at in range(count):
        pieces[at // PIECE].add(100 * at, 100, at % queues, [max(at - queues, -1)])
    return pieces


def waiting(root: Path, queues: int, each: int, *some: int) -> list[Waiting]:
    return [(str(root / "T" / str(n)), SIZE, 0, each, (each - 1) * queues + n) for n in some]


def entries_of(root: Path, queue: int) -> list[tuple[int, int, int]]:
    files = sorted((root / "T" / str(queue)).iterdir())
    every = b"".join(path.read_bytes() for path in files)
    return [entry for entry in struct.iter_unpack(">qiq", every) if entry[1]]


def process_of(files: ProcessQueueFileWriter) -> subprocess.Popen[bytes]:
    assert files._process is not None
    return files._process


def pid_of(files: ProcessQueueFileWriter) -> int:
    return process_of(files).pid


def is_there(pid: int) -> bool:
    try:
        return not Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].startswith(" Z")
    except OSError:
        return False


def test_the_process_writes_and_tells_what_the_thread_would(
    tmp_path: Path, files: ProcessQueueFileWriter
) -> None:
    noted: dict[bool, list[tuple[str, bool]]] = {True: [], False: []}
    for many, root in ((True, tmp_path / "process"), (False, tmp_path / "thread")):

        def note(path: str, new: bool, many: bool = many, root: Path = root) -> None:
            noted[many].append((os.path.relpath(path, root), new))

        files.write(writes(root, *range(50)), note, many=many)
        files.write(writes(root, *range(40, 60), at=5, text=b"more"), note, many=many)
    assert noted[True] == noted[False]
    assert [new for _, new in noted[True]] == [True] * 50 + [False] * 10 + [True] * 10
    for n in range(60):
        one, other = ((tmp_path / name / "T" / str(n) / "00").read_bytes() for name in ("process", "thread"))
        assert one == other and len(one) == SIZE
    assert is_there(pid_of(files))


def test_an_error_in_the_process_is_raised_here_with_the_file_and_what_was_written_before_is_told(
    tmp_path: Path, files: ProcessQueueFileWriter
) -> None:
    noted: list[tuple[str, bool]] = []
    (tmp_path / "T").mkdir()
    (tmp_path / "T" / "2").write_bytes(b"in the way")
    with pytest.raises(OSError) as raised:
        files.write(writes(tmp_path, 0, 1, 2, 3), lambda *each: noted.append(each), many=True)
    assert raised.value.errno == errno.ENOTDIR
    assert raised.value.filename == str(tmp_path / "T" / "2" / "00")
    assert [Path(path).parent.name for path, _ in noted] == ["0", "1", "2"]
    assert not (tmp_path / "T" / "3").exists()
    (tmp_path / "T" / "2").unlink()
    files.write(writes(tmp_path, 2, 3), lambda *each: noted.append(each), many=True)
    assert written(tmp_path) == [0, 1, 2, 3]


def test_a_killed_process_costs_nothing_and_is_started_again_later(
    tmp_path: Path, files: ProcessQueueFileWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[tuple[str, bool]] = []

    def write(number: int) -> None:
        files.write(writes(tmp_path, number), lambda *each: noted.append(each), many=True)

    write(0)
    first = pid_of(files)
    os.kill(first, signal.SIGKILL)
    for number in (1, 2):
        write(number)
        assert files._process is None, "it was written here"
    monkeypatch.setattr(files, "_not_before", 0.0)
    write(3)
    assert pid_of(files) != first
    assert written(tmp_path) == [0, 1, 2, 3]
    assert noted == [(path, True) for path, *_ in writes(tmp_path, 0, 1, 2, 3)]


def test_what_waits_in_the_pool_is_put_together_by_the_process_and_by_the_next_one_after_a_kill(
    tmp_path: Path, files: ProcessQueueFileWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over the border of two pieces, and of a queue's first and second file."""
    queues, each = 3000, 15
    files.hold(linked(queues, each))
    noted: list[tuple[str, bool]] = []

    def write(*some: int) -> None:
        some_waiting = waiting(tmp_path, queues, each, *some)
        files.write([], lambda *made: noted.append(made), many=True, waiting=some_waiting)

    write(0, 1)
    first = pid_of(files)
    write(2)
    os.kill(first, signal.SIGKILL)
    write(3)
    assert files._process is None, "it was written here"
    monkeypatch.setattr(files, "_not_before", 0.0)
    write(4, 2999)
    assert pid_of(files) != first
    some = [0, 1, 2, 3, 4, 2999]
    for n in some:
        assert entries_of(tmp_path, n) == [(100 * (n + queues * k), 100, n) for k in range(each)]
    names = (f"{0:020}", f"{SIZE:020}")
    assert noted == [(str(tmp_path / "T" / str(n) / name), True) for n in some for name in names]
    files.hold({})
    files.hold({0: linked(2, 3)[0]})
    files.write([], lambda *_: None, many=True, waiting=waiting(tmp_path / "next pass", 2, 3, 1))
    assert entries_of(tmp_path / "next pass", 1) == [(100 * at, 100, 1) for at in (1, 3, 5)]
    assert is_there(pid_of(files)), "which had the new pieces"
    files.hold({})
    order = store.queues.queue_writer._encode(([], waiting(tmp_path / "late", 2, 3, 1)))
    assert store.queues.queue_writer._exchange(process_of(files), order, {}) is None, "it has kept none"


def test_a_process_that_does_not_answer_is_killed_and_its_order_carried_out_here(
    tmp_path: Path, files: ProcessQueueFileWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One order that fits into a pipe, and one that does not; then a stop."""
    monkeypatch.setattr(store.queues.queue_writer, "_SLOW_S", 0.2)
    for round_, text in enumerate((b"entry", b"entry" + bytes(1 << 20))):
        monkeypatch.setattr(store.queues.queue_writer, "_ANSWER_S", 60.0)
        monkeypatch.setattr(files, "_not_before", 0.0)
        monkeypatch.setattr(files, "_slow_until", 0.0)
        files.write(writes(tmp_path, 2 * round_), lambda *_: None, many=True)
        pid = pid_of(files)
        os.kill(pid, signal.SIGSTOP)
        monkeypatch.setattr(store.queues.queue_writer, "_ANSWER_S", 0.3)
        monkeypatch.setattr(files, "_slow_until", 0.0)
        files.write(writes(tmp_path, 2 * round_ + 1, text=text), lambda *_: None, many=True)
        assert not is_there(pid)
        monkeypatch.setattr(files, "_not_before", 0.0)
        files.write(writes(tmp_path, 0), lambda *_: None, many=True)
        assert files._process is None, "nor is the next one asked soon, however long that took to be seen"
    assert written(tmp_path) == [0, 1, 2, 3]
    monkeypatch.setattr(files, "_not_before", 0.0)
    monkeypatch.setattr(files, "_slow_until", 0.0)
    monkeypatch.setattr(store.queues.queue_writer, "_ANSWER_S", 60.0)
    files.write(writes(tmp_path, 4), lambda *_: None, many=True)
    pid = pid_of(files)
    os.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr(store.queues.queue_writer, "_ANSWER_S", 0.3)
    files.stop()
    assert not is_there(pid)


def test_a_process_that_never_answered_at_all_is_not_started_again_for_the_next_orders(
    tmp_path: Path, files: ProcessQueueFileWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass has hundreds of them, and each would wait as long."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*_args: object, **_options: object) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", "import time; time.sleep(60)"]
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        return started[-1]

    monkeypatch.setattr(store.queues.queue_writer, "start_helper", start)
    monkeypatch.setattr(store.queues.queue_writer, "_ANSWER_S", 0.2)
    monkeypatch.setattr(store.queues.queue_writer, "_SLOW_S", 0.1)
    monkeypatch.setattr(store.queues.queue_writer, "_PAUSE_S", 0.0)
    for number in range(4):
        monkeypatch.setattr(files, "_not_before", 0.0)
        files.write(writes(tmp_path, number), lambda *_: None, many=True)
    assert len(started) == 1 and started[0].poll() is not None
    assert files._slow_until - time.monotonic() > 1, "the longer it took, the longer"
    assert written(tmp_path) == [0, 1, 2, 3]


def test_what_cannot_be_started_is_not_missed(
    tmp_path: Path, files: ProcessQueueFileWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    files.write(writes(tmp_path, 0), lambda *_: None, many=True)
    assert written(tmp_path) == [0]


def test_it_gives_way_to_everybody_and_where_that_is_too_slow_the_thread_does_the_work(
    tmp_path: Path, files: ProcessQueueFileWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bytes] = []
    exchange = store.queues.queue_writer._exchange

    def ask(process: subprocess.Popen[bytes], order: bytes, pieces: Pieces) -> bytes | None:
        asked.append(order)
        return exchange(process, order, pieces)

    monkeypatch.setattr(store.queues.queue_writer, "_SLOW_S", 0.0)
    monkeypatch.setattr(store.queues.queue_writer, "_exchange", ask)
    for number in range(4):
        files.write(writes(tmp_path, number), lambda *_: None, many=True)
    assert len(asked) == 2, "the first is not judged: it waits for the process to come up"
    assert os.sched_getscheduler(pid_of(files)) == os.SCHED_IDLE
    monkeypatch.setattr(files, "_slow_until", 0.0)
    files.write(writes(tmp_path, 4), lambda *_: None, many=True)
    assert len(asked) == 3
    assert written(tmp_path) == [0, 1, 2, 3, 4]


def test_one_order_that_takes_long_does_not_end_the_process_s_work_and_many_do(
    tmp_path: Path, files: ProcessQueueFileWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    took_s = [0.0, 0.01, 1.0, 0.01, 0.01, 0.5, 0.5, 0.5, 0.5, 0.5]
    asked: list[bytes] = []
    exchange = store.queues.queue_writer._exchange
    clock = 100.0

    def ask(process: subprocess.Popen[bytes], order: bytes, pieces: Pieces) -> bytes | None:
        nonlocal clock
        clock += took_s[len(asked)]
        asked.append(order)
        return exchange(process, order, pieces)

    monkeypatch.setattr(store.queues.queue_writer, "_SLOW_S", 0.2)
    monkeypatch.setattr(store.queues.queue_writer, "_exchange", ask)
    monkeypatch.setattr(store.queues.queue_writer, "time", SimpleNamespace(monotonic=lambda: clock))
    for number in range(len(took_s)):
        assert files._slow_until == 0.0 or number == len(took_s) - 1
        files.write(writes(tmp_path, number), lambda *_: None, many=True)
    assert len(asked) == len(took_s) - 1 and files._slow_until > clock
    assert written(tmp_path) == list(range(len(took_s)))


def test_a_path_that_is_no_text_is_written_by_the_thread(
    tmp_path: Path, files: ProcessQueueFileWriter
) -> None:
    root = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    files.write(writes(root, 0), lambda *_: None, many=True)
    assert written(root) == [0]


def test_a_process_whose_broker_died_before_it_had_come_up_does_nothing(tmp_path: Path) -> None:
    order = store.queues.queue_writer._encode((writes(tmp_path, 0), []))
    message = store.queues.queue_writer._HEAD.pack(1 + len(order), b"W") + order
    checkout = Path(store.__file__).resolve().parent.parent
    for broker, does in ((os.getpid() + 1, False), (os.getpid(), True)):
        done = subprocess.run(
            [sys.executable, "-m", "store.queues.queue_writer", str(tmp_path / "lock"), str(broker)],
            input=message, stdout=subprocess.PIPE, cwd=checkout, check=True,
        )  # fmt: skip
        assert bool(done.stdout) == does
        assert (tmp_path / "T").exists() == does


def test_a_store_is_not_opened_while_a_process_can_still_write_to_it(world: World) -> None:
    with world.opened() as opened:
        put(opened, [b"x"])
    files = ProcessQueueFileWriter(Disk(), world.root / "ropewalk" / "queues.lock")
    files.write(writes(world.root, 0), lambda *_: None, many=True)
    killed = threading.Timer(0.3, os.kill, (pid_of(files), signal.SIGKILL))
    began = time.monotonic()
    killed.start()
    with world.opened() as again:
        assert time.monotonic() - began > 0.25
        assert bodies(again) == [b"x"]
    files.stop()


def test_the_process_dies_with_its_broker(tmp_path: Path) -> None:
    text = """
import sys, time
from pathlib import Path
from store.io.disk import Disk
from store.queues.queue_writer import ProcessQueueFileWriter
root = Path(sys.argv[1])
files = ProcessQueueFileWriter(Disk(), root / "lock")
files.write([(str(root / "q" / "00"), 200, 0, b"entry")], lambda *_: None, many=True)
print(files._process.pid, flush=True)
time.sleep(600)
"""
    checkout = Path(store.__file__).resolve().parent.parent
    with subprocess.Popen(
        [sys.executable, "-c", text, str(tmp_path)], stdout=subprocess.PIPE, cwd=checkout, text=True
    ) as broker:
        assert broker.stdout is not None
        pid = int(broker.stdout.readline())
        assert is_there(pid)
        broker.kill()
        until = time.monotonic() + 60
        while is_there(pid):
            assert time.monotonic() < until
            time.sleep(0.01)
    try:
        await_writer(Disk(), tmp_path / "lock")
    except StoreLocked:
        pytest.fail("its lock outlived it")


def test_a_store_has_long_passes_written_by_the_process_and_short_ones_not(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store.write_back, "_MANY", 5)
    monkeypatch.setattr(store.write_back, "_QUEUES_AT_ONCE", 4)
    with world.opened() as opened:
        files = opened._write_back._files
        assert isinstance(files, ProcessQueueFileWriter)
        put(opened, [b"x"])
        write_back(opened)
        assert files._process is None
        for n in range(20):
            put(opened, [b"x"], queue_id=n)
        world.clock.ms += 5000
        opened.tick()
        settle(opened)
        while opened._write_back.writing:
            settle(opened)
        pid = pid_of(files)
        for n in range(20):
            put(opened, [b"y"], queue_id=n)
    assert not is_there(pid), "a store that is closed has no writer"
    with world.opened() as again:
        assert bodies(again, queue_id=7) == [b"x", b"y"]
        assert bodies(again, queue_id=0) == [b"x", b"x", b"y"]


def test_a_disk_that_is_not_the_real_one_is_written_by_nobody_else(tmp_path: Path) -> None:
    class Other(Disk):
        pass

    assert type(queue_file_writer(Other(), tmp_path / "lock")) is QueueFileWriter
