"""A group of two releases: a member of the release before proves its questions, and not its answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import trio

from broker.remoting.connection import Connection
from broker.remoting.shell import Shell
from broker.replication.slave import hello, master_search, sync
from broker.replication.slave.peer import NotSame
from broker.replication.slave.sync import SlaveSync
from broker.state.topics import TopicConfig
from ha.group.divergence import Compared, Finding
from ha.group.roles import SLAVE
from ropewalk.client.core.addresses import Address, parse_address
from ropewalk.codes import RequestCode
from ropewalk.format.remoting import Command
from tests.broker.harness import Client, InProcess, config_of, without_fsync

SECRET = "a secret of many words"
MASTER = "127.0.0.1:10911"
"""Every broker of this process is at this address; who is dialed, a test says."""


class Wire:
    """A shell without sockets, and a connection on the HA port."""

    local = ("127.0.0.1", 40_001)

    def flush(self) -> None:
        pass


class Link:
    """A connection to the master, which is of the release before while `is_old`."""

    def __init__(self, client: Client, *, is_old: bool) -> None:
        self.address: Address = parse_address(MASTER)
        self.remote_address = MASTER
        self._client = client
        self._is_old = is_old
        self.asked: list[Command] = []

    async def call(self, request: Command, timeout_s: float) -> Command:
        self.asked.append(request)
        if self._is_old and request.code == RequestCode.ROPEWALK_CHALLENGE:
            request = replace(request, ext={})  # which it does not read
        return self._client.call(request.code, request.ext, request.body)


class Pair:
    """A master and a slave in this process."""

    def __init__(self, master: InProcess, slave: InProcess) -> None:
        self.master, self.slave = master, slave
        self.is_old = True
        self.links: list[Link] = []

    @asynccontextmanager
    async def open_connection(self, _address: object, *, timeout: float) -> AsyncIterator[Link]:
        link = Link(self.master.connect(), is_old=self.is_old)
        self.links.append(link)
        yield link

    def run(self, work: Callable[[SlaveSync], Awaitable[None]], tasks: SlaveSync) -> None:
        async def both() -> None:
            async with trio.open_nursery() as nursery:

                async def turns() -> None:
                    while True:
                        self.slave.turn()
                        await trio.sleep(0.001)

                nursery.start_soon(turns)
                await work(tasks)
                nursery.cancel_scope.cancel()

        trio.run(both)

    def tasks(self) -> SlaveSync:
        broker = self.slave.broker
        return SlaveSync(broker.context, broker.member, broker.replication, broker, cast(Shell, Wire()))


def settings(**more: object) -> dict[str, object]:
    return {"ropewalkSecret": SECRET, "mappedFileSizeCommitLog": 1 << 20, **more}


@pytest.fixture
def pair(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    without_fsync(monkeypatch)
    more: dict[str, object] = getattr(request, "param", {"ropewalkMasterAddress": MASTER})
    slave = settings(brokerRole=SLAVE, brokerId=1, namesrvAddr="10.0.0.9:9876", **more)
    with (
        InProcess(config_of(tmp_path / "m", **settings(brokerRole="ASYNC_MASTER"))) as one,
        InProcess(config_of(tmp_path / "s", **slave)) as other,
    ):
        one.broker.member.confirm_no_newer_master()
        other.broker.member.address = "127.0.0.1:20911"
        if not more:
            other.broker.member.set_master("127.0.0.1:10912", MASTER)  # a name server's word
        found = Pair(one, other)
        for module in (hello, sync, master_search):
            monkeypatch.setattr(module, "open_connection", found.open_connection)
        yield found


def asked(pair: Pair) -> list[Command]:
    return [each for link in pair.links for each in link.asked]


async def say_hello(tasks: SlaveSync) -> None:
    await tasks.hello.before_report(cast(Connection, Wire()))


async def search(tasks: SlaveSync) -> None:
    await tasks._search._find_newest_master()


def synced(pair: Pair, tasks: SlaveSync, topic: str) -> None:
    """Run the conversation about tables until a topic of the master's has come."""

    async def work(tasks: SlaveSync) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tasks._keep_synced)
            with trio.fail_after(30):
                while pair.slave.broker.topics.get(topic) is None:  # noqa: ASYNC110 - it comes in turns
                    await trio.sleep(0.005)
            nursery.cancel_scope.cancel()

    pair.run(work, tasks)


def promote(process: InProcess, epoch: int) -> None:
    """Have an operator make the master lead another epoch."""
    done: list[bool] = []
    member = process.broker.member
    member.apply_decision(member.core.accept(epoch, "me"))
    member.apply_decision(member.core.promote(epoch, "me"), lambda: done.append(True))
    process.until(lambda: bool(done))


def test_replication_goes_on_with_an_old_master_that_settings_name(pair: Pair) -> None:
    tasks = pair.tasks()
    pair.run(say_hello, tasks)
    assert "1" in pair.slave.broker.member.record.policy.slaves, "it is on the roll"
    pair.master.broker.topics.update(TopicConfig("Fresh"), 1)
    synced(pair, tasks, "Fresh")
    proven = [each for each in asked(pair) if each.code > RequestCode.ROPEWALK_CHALLENGE]
    assert proven and all("proof" in each.ext and "proof2" not in each.ext for each in proven)


def test_an_old_master_changes_no_role_until_it_is_upgraded(pair: Pair) -> None:
    tasks, member = pair.tasks(), pair.slave.broker.member
    pair.run(say_hello, tasks)
    promote(pair.master, 5)
    with pytest.raises(BaseExceptionGroup) as caught:
        pair.run(say_hello, tasks)
    assert caught.group_contains(NotSame, match="leads epoch 5, and is not followed: it does not prove")
    pair.run(search, tasks)
    assert member.record.leader_epoch == 0
    assert any("claims to lead this group" in each for each in pair.slave.broker.context.ha_status.notes)
    pair.is_old = False
    pair.run(search, tasks)
    assert (member.record.role, member.record.leader_epoch, member.record.master) == (SLAVE, 5, MASTER)
    assert pair.slave.broker.context.ha_status.notes == ()
    pair.is_old = True  # whoever stands at its address now
    with pytest.raises(BaseExceptionGroup) as caught:
        pair.run(say_hello, tasks)
    assert caught.group_contains(NotSame, match="it proved its answers before")


def test_no_log_is_cut_for_an_old_master(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def parted(*_of: object) -> Compared:
        return Compared(Finding.DIVERGED, 0)

    monkeypatch.setattr(hello.SlaveHello, "_compare", parted)
    tasks, member = pair.tasks(), pair.slave.broker.member
    pair.run(say_hello, tasks)
    with InProcess(config_of(tmp_path / "x", **settings())) as elsewhere:
        elsewhere.connect().send("T", b"x" * 100)
        log = elsewhere.broker.store.log
        data = bytes(log.segments[0].map[: log.end_offset])
    follower = pair.slave.broker.store.follower
    assert follower is not None
    follower.append(0, data)
    pair.slave.turn()
    with pytest.raises(BaseExceptionGroup) as caught:
        pair.run(say_hello, tasks)
    assert caught.group_contains(NotSame, match="has another log, for which this one would be cut")
    assert member.diverged is None and pair.slave.broker.store.whole_end == len(data)
    pair.is_old = False
    with pytest.raises(BaseExceptionGroup):
        pair.run(say_hello, tasks)
    assert member.diverged is not None


@pytest.mark.parametrize("pair", [{}], indirect=True)
def test_an_old_master_that_only_a_name_server_tells_is_not_asked(pair: Pair) -> None:
    with pytest.raises(BaseExceptionGroup) as caught:
        pair.run(say_hello, pair.tasks())
    assert caught.group_contains(NotSame, match="an address that only a name server tells")
    assert [each.code for each in asked(pair)] == [RequestCode.ROPEWALK_CHALLENGE]
    pair.is_old = False
    pair.run(say_hello, pair.tasks())
    assert pair.slave.broker.member.record.master == MASTER, "and kept: no name server gives it another one"
    pair.slave.broker.member.set_master("10.0.0.66:10912", "10.0.0.66:10911")
    assert pair.slave.broker.replication.master_ha == "127.0.0.1:10912"


def test_an_upgraded_group_speaks_version_2_alone(pair: Pair) -> None:
    pair.is_old = False
    tasks = pair.tasks()
    pair.run(say_hello, tasks)
    pair.master.broker.topics.update(TopicConfig("Fresh"), 1)
    synced(pair, tasks, "Fresh")
    proven = [each for each in asked(pair) if each.code > RequestCode.ROPEWALK_CHALLENGE]
    assert proven and all("proof2" in each.ext and "proof" not in each.ext for each in proven)
