"""The broker as a process on a disk without room: how it stops there, and how it opens its store again."""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs

from broker.process.broker import BrokerProcess
from broker.process.options import BrokerOptions
from broker.replication.group_member import LogCut, LogReplaced
from broker.settings.config import load_config
from ropewalk.client.blocking.connection import Connection
from ropewalk.codes import RequestCode
from store.io.disk import Disk
from store.offline.diverged import About, kept_in
from store.offline.reader import find_log_files
from tests.broker.harness import send_ext
from tests.support.brokers import PATIENCE_S, address_of, ask, broker
from tools.drill.testbed import damage
from tools.drill.testbed.group import CannotRun

V2 = RequestCode.SEND_MESSAGE_V2
NO_ROOM = "no room on the disk to open the store again: nobody is served meanwhile"


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A folder that is a disk of its own, and a small one."""
    folder = tmp_path / "small"
    try:
        with damage.small_disk(folder, damage.DISK_BYTES):
            yield folder
    except CannotRun as exc:
        pytest.skip(str(exc))


def settings_of(store: Path) -> list[str]:
    return [
        f"storePathRootDir={store}",
        "mappedFileSizeCommitLog=1048576",
        "listenPort=0",
        "haListenPort=0",
        "namesrvPort=0",
        "metricsExporterType=DISABLE",
    ]


def opened(store: Path) -> BrokerProcess:
    config = load_config(settings=settings_of(store), environ={}, local_ip=lambda: "127.0.0.1")
    process = BrokerProcess(config, BrokerOptions())
    process.start()
    trio.run(process._save_changed)
    return process


def fill_when_closed(process: BrokerProcess, folder: Path, *, left: int = 0) -> list[damage.Ballast]:
    """Have the disk be full as soon as the store is closed, which gives its spare segment back."""
    found: list[damage.Ballast] = []
    store = process.broker.store
    close = store.close

    def closed() -> None:
        close()
        found.append(damage.fill(folder))
        os.truncate(found[0].path, found[0].size - left)

    store.close = closed  # type: ignore[method-assign]
    return found


async def seen(logs: Sequence[Mapping[str, object]], event: str) -> None:
    with trio.fail_after(PATIENCE_S):
        while not any(each["event"] == event for each in logs):  # noqa: ASYNC110 - a list tells nobody
            await trio.sleep(0.02)


async def cut(
    process: BrokerProcess, why: LogCut | LogReplaced, meanwhile: Callable[[], Awaitable[None]]
) -> None:
    """Have the store closed and opened again, and do something while that finds no room."""
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(process._cut, process.broker, why)
            await meanwhile()


def test_a_store_that_is_closed_and_opened_again_on_a_full_disk_waits_there_for_room(small: Path) -> None:
    process = opened(small / "store")
    before, ballast = process.broker, fill_when_closed(process, small)

    async def make_room() -> None:
        await seen(logs, NO_ROOM)
        assert process._paused
        ballast[0].remove()

    with capture_logs() as logs:
        trio.run(cut, process, LogReplaced(), make_room)
    assert process.broker is not before and not process._paused
    told = [each for each in logs if each["event"] == NO_ROOM]
    assert len(told) == 1 and told[0]["remedy"] == "make room; it goes on by itself"
    assert "there is room to open the store again" in [each["event"] for each in logs]
    process.close()
    assert not (small / "store" / "abort").exists()


def test_a_broker_that_waits_for_room_stops_in_good_order(small: Path) -> None:
    process = opened(small / "store")
    ballast = fill_when_closed(process, small)

    async def wait_and_stop() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(process._cut, process.broker, LogReplaced())
            await seen(logs, NO_ROOM)
            await process._stop()
            nursery.cancel_scope.cancel()

    with capture_logs() as logs:
        trio.run(wait_and_stop)
    process.close()
    ballast[0].remove()
    opened(small / "store").close()  # nothing holds its lock


def test_a_tail_is_kept_once_and_whole_when_its_copy_found_no_room_at_first(small: Path) -> None:
    words = [f"--set={each}" for each in settings_of(small / "store")]
    with broker(small.parent, *words) as running, Connection(address_of(running)) as connection:
        for _ in range(20):
            assert ask(connection, V2, send_ext("T"), bytes(30_000)).code == 0
    process = opened(small / "store")
    end = process.broker.store.log.end_offset
    ballast = fill_when_closed(
        process, small, left=2 * end
    )  # for one copy, and not for the next start as well
    about = About("a test", 0, end, 7)
    log_directory = small / "store" / "commitlog"
    (log_file,) = [path for path in log_directory.iterdir() if int(path.name) == 0]
    tail = log_file.read_bytes()[:end]
    append, copies = Disk.append_file, []

    def half(disk: Disk, path: Path, data: bytes) -> None:
        copies.append(path)
        if len(copies) == 1:
            append(disk, path, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        append(disk, path, data)

    async def make_room() -> None:
        await seen(logs, NO_ROOM)
        ballast[0].remove()

    with capture_logs() as logs, pytest.MonkeyPatch.context() as patched:
        patched.setattr(Disk, "append_file", half)
        trio.run(cut, process, LogCut(about, everything=False), make_room)
    (kept,) = kept_in(small / "store", process.broker.context.disk)
    (copy,) = find_log_files(kept.path)
    assert copy.path.read_bytes() == tail
    process.close()


def test_a_stop_on_a_full_disk_says_what_it_could_not_write_and_leaves_what_was_there(small: Path) -> None:
    process = opened(small / "store")
    offsets = small / "store" / "config" / "delayOffset.json"
    text, ballast = offsets.read_bytes(), fill_when_closed(process, small)
    with capture_logs() as logs:
        process.close()
    assert [(each["event"], each.get("path")) for each in logs if each["log_level"] == "error"] == [
        ("cannot write a config file", str(offsets))
    ]
    assert offsets.read_bytes() == text
    ballast[0].remove()
    opened(small / "store").close()
