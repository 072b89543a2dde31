"""No answer of a peer ends a task, a process or a client: what asks peers goes on asking.

The peer is another member, a RocketMQ master and a name server at once, and is believed as far as such a one may be.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

import pytest
import trio

from broker.discovery.registrar import Registrar
from broker.discovery.route_finder import RouteFinder
from broker.discovery.route_guard import RouteGuard
from broker.remoting import sockets
from broker.remoting.shell import Shell
from broker.replication.slave.sync import SlaveSync
from broker.state.topics import READ_WRITE
from ha.group.roles import RoleRecord
from ropewalk.client.aio.links import AsyncLinks
from ropewalk.client.core.connection import Unreachable
from ropewalk.client.core.steps import ask
from ropewalk.format.remoting import Command
from tests.broker.discovery.neighbours import IDENTITY, table
from tests.broker.harness import InProcess, config_of, without_fsync
from tests.peers.odd_peer import OddPeer
from tests.support.long_run import LONG

SEEDS = range(40 if LONG else 3)
ANSWERS = 2_000 if LONG else 400


class NoShell:
    """A shell that writes nothing, and reaches nobody."""

    def flush(self) -> None:
        pass

    async def dial(self, *_about: object) -> object:
        raise OSError("nobody is there")


async def until_asked(peer: OddPeer, work: Callable[[], Awaitable[None]]) -> None:
    """Have the work done again and again until the peer has answered often; what it raises is a fault."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)
        await peer.answered(ANSWERS)
        nursery.cancel_scope.cancel()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, names in {
        "broker.replication.slave.sync": ("SYNC_S", "RETRY_S", "_PAUSE_S"),
        "broker.replication.slave.rocketmq": ("ROCKETMQ_SYNC_S",),
        "broker.replication.slave.master_search": ("_PAUSE_S",),
        "broker.discovery.registrar": ("_RETRY_S", "_FIRST_S", "_WANTED_S"),
    }.items():
        for name in names:
            monkeypatch.setattr(f"{module}.{name}", 0.0005)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("role", ["SLAVE", "SYNC_MASTER"])
def test_a_member_goes_on_whatever_its_master_and_the_others_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: str, seed: int
) -> None:
    without_fsync(monkeypatch)

    async def run() -> None:
        async with OddPeer((role, seed)).serving() as peer:
            config = config_of(
                tmp_path, brokerRole=role, brokerId=int(role == "SLAVE"), namesrvAddr=peer.address,
                haMasterAddress=peer.address, ropewalkMasterAddress=peer.address,
            )  # fmt: skip
            with InProcess(config) as process:
                broker = process.broker
                sync = SlaveSync(
                    broker.context, broker.member, broker.replication, broker, cast(Shell, NoShell())
                )
                if role != "SLAVE":
                    broker.member.add_slave(1, peer.address, lambda: None)

                async def all_of_it() -> None:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(sync.run)
                        nursery.start_soon(turns)

                async def turns() -> None:
                    while True:
                        process.turn()
                        broker.member.master_hint = peer.address
                        await trio.sleep(0.0005)

                await until_asked(peer, all_of_it)
                record = broker.member.record
                assert process.connect().call(0).code != 0, "it answers"
        stored = tmp_path / "ropewalk" / "role.json"
        if stored.exists():
            json.loads(stored.read_text())
        assert record.promised_epoch >= record.leader_epoch

    trio.run(run)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_broker_registers_and_looks_for_rivals_whatever_the_name_server_answers(seed: int) -> None:
    async def run() -> None:
        async with OddPeer(("routes", seed)).serving() as peer:
            record = RoleRecord("ASYNC_MASTER", 0)
            guard = RouteGuard("DefaultCluster", "broker-a", "127.0.0.1:1", lambda: record)
            topics = table("T")
            registrar = Registrar(
                IDENTITY | {"brokerAddr": "127.0.0.1:1"}, lambda: topics, period_s=0.001, call_s=1,
                permission=lambda: READ_WRITE, local=None, remote=(peer.address,), guard=guard,
            )  # fmt: skip
            finder = RouteFinder(None, (peer.address,), fresh_s=0.0)

            async def all_of_it() -> None:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(registrar.run)
                    nursery.start_soon(finder.run)
                    while True:
                        await guard.find_rival((peer.address,))
                        finder.find("t", lambda route: None)
                        await trio.sleep(0.0005)

            await until_asked(peer, all_of_it)

    trio.run(run)


@pytest.mark.parametrize(
    "address", ["x", "", ":", "host:0", "host:99999", "a b:1", "\ud800:1", "h" * 300 + ":1", "a\0:1", "[::1"]
)
def test_an_address_that_is_none_is_a_peer_that_cannot_be_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    """A name server tells a slave where its master is: the task that connects died of such an address."""
    without_fsync(monkeypatch)

    class Dialer:
        async def dial(self, host: str, port: int, *_about: object) -> object:
            return await sockets.connect(host, port, 1.0)

    async def run() -> None:
        config = config_of(tmp_path, brokerRole="SLAVE", brokerId=1, haMasterAddress="10.0.0.1:1")
        with InProcess(config) as process:
            replication = process.broker.replication
            client = replication.client
            assert client is not None
            await replication._connect(cast(Shell, cast(object, Dialer())), client, address)
            assert client.link is None

    trio.run(run)


@pytest.mark.parametrize("address", ["host:0", "x", "", "host:99999"])
def test_an_address_that_is_none_is_one_request_that_fails_and_not_the_end_of_an_async_client(
    address: str,
) -> None:
    """A name server tells where brokers are: one such address ended an `AsyncAdmin` for all its later calls."""

    async def run() -> None:
        async with OddPeer("addresses", right=1.0).serving() as peer, AsyncLinks.open(timeout=1.0) as links:
            for _ in range(2):
                with pytest.raises(Unreachable, match=r"is not an address|no address"):
                    await links.drive(ask(address, Command(105), 1.0))
            answer = await links.drive(ask(peer.address, Command(105), 1.0))
            assert answer.code == 0

    trio.run(run)
