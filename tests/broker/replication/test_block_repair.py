"""A flipped byte in a sealed segment is found by the scrubber and mended from the other member, on either side."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import msgspec
import pytest
import structlog
import trio

import broker.replication.block_repair
from broker.broker import Broker
from broker.metrics.snapshot import Family
from broker.replication.block_repair import BlockRepair, GroupBlocks
from broker.replication.member_status import member_status
from ha.group.block_repair import BlockRequest, BlockResponse
from ha.group.hello import RangesRequest, decode_untrusted, encode
from ropewalk.client.blocking.connection import Connection
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format.remoting import Command
from ropewalk.format.sidecar import Sidecar, block_sum
from store.integrity.block_repair import Damage
from store.io.disk import MappedFile
from tests.broker.harness import InProcess, config_of, without_fsync
from tests.ha.pairs import SEGMENT_SIZE, Pair, send, until_acknowledged
from tests.support.ports import free_ports
from tests.support.processes import checkout_command, checkout_environment
from tests.support.waiting import until

# -- two brokers -----------------------------------------------------------------------------------------------

SECRET = "hush"
BY_RATE = 1 << 22


def flip(path: Path, position: int) -> None:
    """Change one byte under whoever runs on it."""
    fd = os.open(path, os.O_RDWR)
    try:
        os.pwrite(fd, bytes([os.pread(fd, 1, position)[0] ^ 0x20]), position)
    finally:
        os.close(fd)


class Copy:
    """One member's log on disk, to be damaged while the member runs."""

    def __init__(self, pair: Pair, name: str) -> None:
        self.pair, self.name = pair, name
        self.root = pair.places[name].store

    def segment(self, number: int) -> Path:
        return self.root / "commitlog" / f"{number * SEGMENT_SIZE:020d}"

    def is_summed(self, number: int) -> bool:
        path = self.root / "ropewalk" / "checksums" / self.segment(number).name
        sidecar = Sidecar.decode(path.read_bytes() if path.exists() else None)
        return sidecar is not None and sidecar.is_complete

    def flip(self, number: int, position: int) -> tuple[Callable[[], bool], bytes]:
        """Change a byte; whether it is right again, and what the segment held meanwhile."""
        path = self.segment(number)
        good = path.read_bytes()
        flip(path, position)
        return lambda: path.read_bytes() == good, path.read_bytes()

    def kept(self, number: int) -> bytes:
        path = self.root / "ropewalk" / "replaced" / self.segment(number).name
        return path.read_bytes() if path.exists() else b""

    def said(self, words: str) -> bool:
        return words in self.pair.places[self.name].errors()


def test_the_scrubber_mends_a_flipped_byte_from_the_other_member_on_either_side(tmp_path: Path) -> None:
    with Pair(tmp_path, ropewalkSecret=SECRET, scrubBytesPerSecond=4 * BY_RATE) as pair:
        master = pair.start("master", brokerRole="SYNC_MASTER")
        slave = pair.start("slave", brokerRole="SLAVE", brokerId=1)
        until_acknowledged(master.address)
        with Connection(master.address, 30.0) as connection:
            for number in range(50):
                assert send(connection, number, size=30_000) == 0
        pair.until_equal()
        at_master, at_slave = Copy(pair, "master"), Copy(pair, "slave")
        for copy in (at_master, at_slave):
            until(lambda c=copy: all(c.is_summed(n) for n in range(4)), pair.errors)  # type: ignore[misc]

        for copy, other, number in ((at_slave, master, 1), (at_master, slave, 2)):
            is_mended, damaged = copy.flip(number, 77_000)
            until(is_mended, pair.errors)
            until(lambda c=copy, o=other: c.said(f"was repaired from {o.address}"), pair.errors)  # type: ignore[misc]
            assert copy.kept(number) == damaged, "what stood there is kept aside"
            assert not copy.said("cannot be repaired")
        pair.until_equal()

        # Both lose the same place: nobody has it, both say so, and neither takes the other's.
        for copy in (at_master, at_slave):
            copy.flip(3, 99_000)
        for copy in (at_master, at_slave):
            words = "is damaged, is not served, and cannot be repaired from another member"
            until(lambda c=copy, w=words: c.said(w), pair.errors)  # type: ignore[misc]
            until(lambda c=copy: c.said("the copy here is damaged too"), pair.errors)  # type: ignore[misc]
            assert not copy.kept(3)
        assert "1 damaged place in its log, 1 place repaired" in status(pair)
        with Connection(slave.address, 30.0) as connection:
            refused = connection.call(Command(RequestCode.ROPEWALK_LOG_BLOCK, {}, b""))
            assert refused.code == ResponseCode.NO_PERMISSION, "the secret is not proven"


def test_damage_that_a_reconnect_meets_is_mended_and_not_taken_for_another_log(tmp_path: Path) -> None:
    """Else a slave would cut what it has behind the place, and a damaged master would have it do so."""
    (port,) = free_ports(1)  # a master that comes back elsewhere is looked for every half minute
    with Pair(tmp_path, scrubBytesPerSecond=0, checkAtStartBytes=0) as pair:
        master = pair.start("master", brokerRole="SYNC_MASTER", listenPort=port, haListenPort=port + 1)
        pair.start("slave", brokerRole="SLAVE", brokerId=1)
        until_acknowledged(master.address)
        with Connection(master.address, 30.0) as connection:
            for number in range(30):
                assert send(connection, number, size=30_000) == 0
        pair.until_equal()
        for name, other in (("slave", "master"), ("master", "slave")):
            pair.end(name)
            copy = Copy(pair, name)
            is_mended, _damaged = copy.flip(1, 77_000)
            pair.start(name)
            address = pair.servers[other].address
            until(is_mended, pair.errors)
            until(lambda c=copy, a=address: c.said(f"was repaired from {a}"), pair.errors)  # type: ignore[misc]
            until_acknowledged(pair.servers["master"].address, f"after-{name}")
        pair.until_equal()
        for name in ("slave", "master"):
            assert not (pair.places[name].store / "ropewalk" / "diverged").exists(), pair.errors()


def status(pair: Pair) -> str:
    """What `admin ha status` says about the members' links and logs."""
    done = subprocess.run(
        [*checkout_command(), "admin", "ha", "status", "-n", pair.namesrv, "--json"],
        capture_output=True,
        text=True,
        env={**checkout_environment(), "ROPEWALK_SECRET": SECRET},
        check=True,
        timeout=30,
    )
    return str([row["link"] for row in json.loads(done.stdout)])


# -- whoever is asked, without sockets ------------------------------------------------------------------------

SIZE = 64 << 10


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InProcess:
    without_fsync(monkeypatch)
    process = InProcess(config_of(tmp_path, mappedFileSizeCommitLog=SIZE, haMasterAddress="127.0.0.1:1"))
    client = process.connect()
    for _ in range(10):
        client.send("T", b"x" * 20_000)
    store = process.broker.store
    store.request_flush()
    process.until(lambda: store.log.flushed_offset == store.log.end_offset)
    for _ in store.log.segments:  # one is summed at a time
        process.tick()
        process.until(lambda: not store.upkeep.checksums._busy)  # type: ignore[union-attr]
    return process


def ask_of(process: InProcess, **changes: object) -> BlockRequest:
    config, store = process.broker.config, process.broker.store
    ask = BlockRequest(
        config.broker_cluster_name, config.broker_name, "b:1", SIZE, 0, SIZE, None, store.log.end_offset
    )
    return msgspec.structs.replace(ask, **changes)


def test_a_member_gives_what_its_checksums_vouch_for(asked: InProcess) -> None:
    with asked as process:
        client = process.connect()
        data = process.broker.store.log.segments[0].file.read_at(0, SIZE)
        for wanted in (None, block_sum(data)):
            answer = client.call(RequestCode.ROPEWALK_LOG_BLOCK, body=encode(ask_of(process, wanted=wanted)))
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            assert decode_untrusted(BlockResponse, answer.body) == BlockResponse(0, block_sum(data), data)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"broker_name": "other"}, "this broker belongs to"),
        ({"wanted": 1}, "does not match that checksum"),
        ({"start": 1 << 40, "end": (1 << 40) + 10, "log_end": 1 << 41}, "and not all of"),
        ({"epochs": [(7, 5)]}, "same writers up to 5 only"),
    ],
)
def test_a_member_says_why_it_gives_nothing(asked: InProcess, changes: dict[str, object], why: str) -> None:
    with asked as process:
        body = encode(ask_of(process, **changes))
        answer = process.connect().call(RequestCode.ROPEWALK_LOG_BLOCK, body=body)
        assert answer.code == ResponseCode.ILLEGAL_OPERATION and why in (answer.remark or "")


def test_nonsense_is_refused(asked: InProcess) -> None:
    with asked as process:
        for body in (b"", b"\xc1", b"[]", encode(ask_of(process))[:-5]):
            answer = process.connect().call(RequestCode.ROPEWALK_LOG_BLOCK, body=body)
            assert answer.code == ResponseCode.INVALID_PARAMETER


def test_damaged_bytes_are_no_part_of_a_comparison_of_logs(asked: InProcess) -> None:
    with asked as process:
        store = process.broker.store
        assert store.damage is not None
        client, ask = process.connect(), encode(RangesRequest([(0, SIZE)]))
        whole = client.call(RequestCode.ROPEWALK_LOG_SUMS, body=ask)
        assert whole.code == ResponseCode.SUCCESS
        flip(store.log.segments[0].file.path, 300)
        for code in (RequestCode.ROPEWALK_LOG_SUMS, RequestCode.ROPEWALK_LOG_BYTES):
            answer = client.call(code, body=encode(RangesRequest([(0, 100)])))
            assert answer.code == ResponseCode.SYSTEM_ERROR and "damaged bytes in" in (answer.remark or "")
        process.tick()
        assert [place.offset for place in store.damage.places()] == [0]
        elsewhere = encode(RangesRequest([(SIZE, SIZE + 100)]))
        assert client.call(RequestCode.ROPEWALK_LOG_SUMS, body=elsewhere).code == ResponseCode.SUCCESS


def test_a_member_that_finds_its_own_copy_damaged_gives_nothing_and_serves_nothing(asked: InProcess) -> None:
    with asked as process:
        store = process.broker.store
        assert store.damage is not None
        flip(store.log.segments[0].file.path, 300)
        answer = process.connect().call(RequestCode.ROPEWALK_LOG_BLOCK, body=encode(ask_of(process)))
        assert "the copy here is damaged too" in (answer.remark or "")
        process.tick()
        assert [place.offset for place in store.damage.places()] == [0]
        pulled = process.connect().pull("T", queueId=0, queueOffset=0)
        assert pulled.code != ResponseCode.SUCCESS and not pulled.body
        broker = process.broker
        assert member_status(broker.member, broker.context, broker.replication).damaged == 1
        shown = {one.name: one.rows for one in process.broker.count_metrics()[0] if isinstance(one, Family)}
        assert shown["ropewalk_log_damaged_places"] == [((), 1)]
        assert shown["ropewalk_log_mended_places"] == [((), 0)]


# -- the task, with another member that the test plays ------------------------------------------------------


def mending_of(broker: Broker) -> BlockRepair:
    return BlockRepair(broker.context, GroupBlocks(broker.context, broker.member, broker.replication))


def damaged_broker(process: InProcess) -> tuple[BlockRepair, Damage, bytes]:
    """A broker that knows of a damaged place, and what belongs there."""
    store = process.broker.store
    assert store.damage is not None
    path = store.log.segments[0].file.path
    good = path.read_bytes()
    flip(path, 300)
    assert process.connect().call(RequestCode.ROPEWALK_LOG_BLOCK, body=encode(ask_of(process))).code
    process.tick()
    assert len(store.damage) == 1
    return mending_of(process.broker), store.damage, good


async def mend_once(mending: BlockRepair, damage: Damage) -> None:
    (place,) = damage.places()
    segment = damage.hold(place)
    assert segment is not None
    await mending._mend(damage, place, segment)
    segment.pins -= 1


class Link:
    """A connection from one broker of this process to another one, as the shell of clients offers it."""

    def __init__(self, other: InProcess) -> None:
        self.address = "b:1"
        self.remote_address = "127.0.0.1:10911"
        self._client = other.connect()
        self.calls: list[int] = []

    async def call(self, request: Command, _timeout_s: float) -> Command:
        self.calls.append(request.code)
        return self._client.call(request.code, request.ext, request.body)


@contextmanager
def two_copies(
    root: Path, monkeypatch: pytest.MonkeyPatch, *, checksums: bool
) -> Iterator[tuple[InProcess, InProcess, Link]]:
    """A broker, with or without checksums of its log, that has lost a byte; and one that has not."""
    settings = {"mappedFileSizeCommitLog": SIZE, "ropewalkSecret": SECRET, "checkAtStartBytes": 0}
    with InProcess(config_of(root / "other", **settings)) as process:
        for _ in range(10):
            process.connect().send("T", bytes(range(256)) * 78)
        process.settle()
    shutil.copytree(root / "other", root / "own")
    if not checksums:
        shutil.rmtree(root / "own" / "ropewalk" / "checksums")
    flip(root / "own" / "commitlog" / f"{SIZE:020d}", 30_000)
    with (
        InProcess(config_of(root / "other", **settings)) as other,
        InProcess(config_of(root / "own", **settings)) as own,
    ):
        link = Link(other)

        @asynccontextmanager
        async def connected(_address: str, timeout: float) -> AsyncIterator[Link]:
            yield link

        monkeypatch.setattr(broker.replication.block_repair, "open_connection", connected)
        monkeypatch.setattr(GroupBlocks, "members", lambda self, place: ("b:1",))
        store = own.broker.store
        assert store.damage is not None

        def found() -> bool:
            own.tick(1_000)
            return bool(store.damage)

        own.until(found)
        yield own, other, link


@pytest.mark.parametrize("checksums", [True, False], ids=["checksums", "no checksums"])
def test_two_copies_of_a_log_mend_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checksums: bool
) -> None:
    without_fsync(monkeypatch)
    with two_copies(tmp_path, monkeypatch, checksums=checksums) as (own, other, link):
        damage = own.broker.store.damage
        assert damage is not None
        (place,) = damage.places()
        assert (place.wanted is not None) is checksums and place.base_offset == SIZE
        trio.run(mend_once, mending_of(own.broker), damage)
        assert (len(damage), damage.mended) == (0, 1)
        assert link.calls == [RequestCode.ROPEWALK_CHALLENGE, RequestCode.ROPEWALK_LOG_BLOCK]
        for one, two in zip(own.broker.store.log.segments, other.broker.store.log.segments, strict=True):
            assert one.file.path.read_bytes() == two.file.path.read_bytes()
        assert own.connect().pull("T", queueId=0, queueOffset=3).code == ResponseCode.SUCCESS


def test_a_rocketmq_broker_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_fsync(monkeypatch)
    with two_copies(tmp_path, monkeypatch, checksums=True) as (own, other, link):
        damage = own.broker.store.damage
        assert damage is not None
        del other.broker.processors.handlers.cold[
            RequestCode.ROPEWALK_CHALLENGE
        ]  # it answers 3, as RocketMQ does
        with structlog.testing.capture_logs() as told:
            trio.run(mend_once, mending_of(own.broker), damage)
        assert "b:1 is a RocketMQ broker" in told[-1]["finding"]
        assert link.calls == [RequestCode.ROPEWALK_CHALLENGE] and len(damage) == 1


def test_a_sync_that_fails_leaves_the_place_damaged_until_one_succeeds(
    asked: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    with asked as process:
        mending, damage, good = damaged_broker(process)
        member_says(monkeypatch, mending, lambda: good)
        path = process.broker.store.log.segments[0].file.path
        syncs: list[int] = []

        def sync(_file: MappedFile) -> None:
            syncs.append(1)
            if len(syncs) == 1:
                raise OSError(5, "Input/output error")

        monkeypatch.setattr(MappedFile, "sync", sync)
        trio.run(mend_once, mending, damage)
        assert (len(damage), damage.mended) == (1, 0)
        assert path.read_bytes() == good, "it looks well"
        trio.run(mend_once, mending, damage)
        assert (len(syncs), len(damage), damage.mended) == (2, 0, 1)


def test_a_place_that_turns_out_to_be_whole_is_asked_of_nobody(
    asked: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    with asked as process:
        mending, damage, _good = damaged_broker(process)
        member_says(monkeypatch, mending, lambda: pytest.fail("nobody should be asked"))
        flip(process.broker.store.log.segments[0].file.path, 300)
        trio.run(mend_once, mending, damage)
        assert not len(damage) and not damage.mended


def test_a_broker_on_its_own_says_which_command_helps(asked: InProcess) -> None:
    with asked as process:
        mending, damage, _good = damaged_broker(process)
        with structlog.testing.capture_logs() as told:
            trio.run(mend_once, mending, damage)
            trio.run(mend_once, mending, damage)
        (said,) = told
        assert "there is no other member to ask" in said["finding"] and said["log_level"] == "error"
        assert "`ropewalk store repair " in said["remedy"] and len(damage) == 1


def member_says(monkeypatch: pytest.MonkeyPatch, mending: BlockRepair, bytes_of: Callable[[], bytes]) -> None:
    """Another member is there, and gives this."""

    async def ask(*_about: object) -> bytes | None:
        return bytes_of()

    monkeypatch.setattr(mending._source, "members", lambda place: ("b:1",))
    monkeypatch.setattr(mending, "_ask", ask)
