"""A removed file of the store is held by no process and no thread of a broker, so that its room comes free.

A file that somebody has open or mapped keeps its blocks when its name is gone: `du` falls and `df` does not. Brokers
and all their helper processes are looked at in /proc, in every mode and after everything that removes files.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

import pytest

from ropewalk.client.blocking.admin import Admin
from ropewalk.client.blocking.connection import Connection
from ropewalk.client.core.messages import Message, pull_request, send_request
from ropewalk.client.core.routes import Queue
from ropewalk.codes import RequestCode
from ropewalk.format.remoting import Command, encode_frame
from tests.crash.ledger_group import LedgerGroup, Member
from tests.ha.process_group import BROKER, Group
from tests.support.brokers import address_of, broker
from tests.support.open_files import family_of, held_files, name_of
from tests.support.waiting import until
from tools.drill.testbed import damage
from tools.drill.testbed.group import CannotRun

pytestmark = pytest.mark.slow

SEGMENT = 1 << 20
LET_GO_S = 1.0
TAKEN = (0, 10, 11, 12)
SETTINGS = {
    "mappedFileSizeCommitLog": SEGMENT,
    "mappedFileSizeConsumeQueue": 400,
    "maxHashSlotNum": 100,
    "maxIndexNum": 60,
    "cleanResourceInterval": 200,
    "metricsExporterType": "DISABLE",
}


def words_of(**settings: object) -> list[str]:
    return [f"--set={key}={value}" for key, value in {**SETTINGS, **settings}.items()]


def ask(address: str, code: int, ext: dict[str, str] | None = None) -> int:
    with Connection(address, 30.0) as connection:
        return connection.call(Command(code, ext or {})).code


def send(address: str, count: int, *, topic: str = "demo", size: int = 60_000) -> None:
    """Send messages with keys, so that the index has work too."""
    with Connection(address, 30.0) as connection:
        for number in range(count):
            message = Message(bytes(size), keys=(f"k{number}",))
            request = send_request(topic, Queue("", number % 4), message, f"{number:032X}", 0)
            answer = connection.call(request)
            while answer.code == 14 and "busy" in (answer.remark or ""):  # files of 1 MiB are filled quickly
                time.sleep(0.05)
                answer = connection.call(request)
            assert answer.code in TAKEN, (answer.code, answer.remark)


def read_all(address: str) -> None:
    """Pull old messages, ask for messages by key and by time: all that opens files of a store."""
    with Connection(address, 30.0) as connection:
        for queue_id in range(4):
            for offset in range(0, 60, 10):
                connection.call(pull_request("demo", Queue("", queue_id), offset, 32, "*", 0))
        asked = {"topic": "demo", "key": "k7", "maxNum": "32", "beginTimestamp": "0"}
        connection.call(Command(RequestCode.QUERY_MESSAGE, {**asked, "endTimestamp": str(1 << 60)}))
        at = {"topic": "demo", "queueId": "0", "timestamp": "1"}
        connection.call(Command(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, at))


def log_files(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir() if each.name.isdigit())


def expire(address: str, folder: Path) -> None:
    """Have retention remove all segments but the last ones."""
    first = log_files(folder)[0]

    def gone() -> bool:
        assert ask(address, RequestCode.DELETE_EXPIRED_COMMITLOG) == 0
        names = log_files(folder)
        return first not in names and len(names) <= 3

    until(gone, lambda: f"{folder} keeps {log_files(folder)}", pause_s=0.3)


def nothing_is_held(pid: int, folder: Path, after: str) -> None:
    """Give the processes of a broker a second to let go of removed files."""
    until_s = time.monotonic() + LET_GO_S
    while (held := held_files(pid, folder)) and time.monotonic() < until_s:
        time.sleep(0.02)
    assert not held, f"after {after}:\n" + "\n".join(held)


def index_helper_of(pid: int) -> bool:
    return any("store.index.helper" in name_of(each) for each in family_of(pid))


def test_retention_and_the_deletion_of_a_topic_leave_no_file_open(tmp_path: Path) -> None:
    with broker(tmp_path, *words_of(fileReservedTime=0, storePathRootDir=tmp_path / "store")) as running:
        address, log, pid = address_of(running), tmp_path / "store" / "commitlog", running.process.pid
        send(address, 300)
        read_all(address)
        assert index_helper_of(pid), "the index is built by a process of its own"
        expire(address, log)
        nothing_is_held(pid, tmp_path, "retention")
        read_all(address)
        assert ask(address, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "demo"}) == 0
        until(lambda: not (tmp_path / "store" / "consumequeue" / "demo").exists(), "the queues are gone")
        nothing_is_held(pid, tmp_path, "the deletion of a topic")


def test_a_client_that_reads_nothing_holds_no_file(tmp_path: Path) -> None:
    """Its answers are views of the log's maps at first."""
    with broker(tmp_path, *words_of(fileReservedTime=0, storePathRootDir=tmp_path / "store")) as running:
        address, log, pid = address_of(running), tmp_path / "store" / "commitlog", running.process.pid
        send(address, 100)
        host, port = address.rsplit(":", 1)
        with socket.create_connection((host, int(port))) as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            for opaque in range(200):
                deaf.sendall(encode_frame(pull_request("demo", Queue("", 0), 0, 32, "*", 0), opaque))
            expire(address, log)
            nothing_is_held(pid, tmp_path, "retention, beside a client that takes nothing")


def test_forced_cleaning_leaves_no_file_open(tmp_path: Path) -> None:
    disk = tmp_path / "small"
    try:
        with (
            damage.small_disk(disk, 40 << 20),
            broker(tmp_path, *words_of(storePathRootDir=disk / "store")) as running,
        ):
            address, pid = address_of(running), running.process.pid
            log = disk / "store" / "commitlog"
            while os.statvfs(disk).f_bavail > 0.2 * os.statvfs(disk).f_blocks:
                send(address, 20)
            read_all(address)
            first = log_files(log)[0]
            (disk / "ballast").write_bytes(bytes(4 << 20))

            def gone() -> bool:
                return ask(address, RequestCode.DELETE_EXPIRED_COMMITLOG) == 0 and first not in log_files(log)

            until(gone, "the oldest segment is removed", pause_s=0.3)
            nothing_is_held(pid, disk, "forced cleaning")
    except CannotRun as exc:
        pytest.skip(str(exc))


def test_retention_of_master_and_slave_leaves_no_file_open(tmp_path: Path) -> None:
    group = Group(tmp_path)
    try:
        group.start("a", brokerRole="SYNC_MASTER", fileReservedTime=0, **SETTINGS)
        group.start("b", brokerRole="SLAVE", brokerId=1, fileReservedTime=0, **SETTINGS)
        group.until_followed("a")
        send(group.replicas["a"].address, 200)
        group.until_followed("a")
        for each in group.replicas.values():
            assert each.process is not None
            read_all(each.address)
            expire(each.address, each.root / "commitlog")
            nothing_is_held(each.process.pid, each.root, f"retention of {each.name}")
    finally:
        group.close()


def test_the_cut_of_a_former_masters_log_leaves_no_file_open(tmp_path: Path) -> None:
    group = Group(tmp_path)
    try:
        group.start("a", brokerRole="SYNC_MASTER", **SETTINGS)
        group.start("b", brokerRole="SLAVE", brokerId=1, **SETTINGS)
        group.until_followed("a")
        send(group.replicas["a"].address, 20)
        group.until_followed("a")
        group.kill("b")
        send(group.replicas["a"].address, 150)
        group.kill("a")
        group.start("b")
        group.admin("failover", BROKER)
        a = group.start("a")
        before = log_files(a.root / "commitlog")
        group.until_followed("b")
        assert a.process is not None and before[-1] not in log_files(a.root / "commitlog")
        nothing_is_held(a.process.pid, a.root, "the cut of its log")
    finally:
        group.close()


def test_retention_of_dledger_members_leaves_no_file_open(tmp_path: Path) -> None:
    settings = {"fileReservedTime": 0, **SETTINGS}
    with LedgerGroup(tmp_path, settings=settings) as group:  # type: ignore[arg-type]
        leader = group.leader()
        send(leader.address, 200)
        read_all(leader.address)
        with Admin(group.name_server) as admin:
            admin.snapshot_tables("broker-a")
        for member in group.members:
            expire(member.address, data_of(member))
            nothing_is_held(member.process.pid, member.store, f"retention of {member.id}")


def test_the_cut_of_a_dledger_leaders_log_leaves_no_file_open(tmp_path: Path) -> None:
    with LedgerGroup(tmp_path, settings=SETTINGS) as group:  # type: ignore[arg-type]
        old = group.leader()
        send(old.address, 40)
        rest = [member for member in group.members if member is not old]
        for member in rest:
            member.kill()  # a stopped one would find the lone entries in its sockets later
        with Connection(old.address, 30.0) as connection:
            for number in range(100):
                message = Message(bytes(60_000), keys=("lost",))
                connection.start(send_request("demo", Queue("", 0), message, f"{number:032X}", 0))
            until(
                lambda: len(log_files(data_of(old))) > 5,
                lambda: (
                    f"it has entries of its own: {log_files(data_of(old))}, {old.errors.read_text()[-3000:]}"
                ),
                patience_s=10,
            )
            before = log_files(data_of(old))
            old.signal(signal.SIGSTOP)
            for member in rest:
                member.start()
            new = group.leader(rest)
            old.signal(signal.SIGCONT)
            send(new.address, 5)
            until(lambda: before[-1] not in log_files(data_of(old)), "its log is cut")
            nothing_is_held(old.process.pid, old.store, "the cut of its log")


def data_of(member: Member) -> Path:
    return member.store / f"dledger-{member.id}" / "data"
