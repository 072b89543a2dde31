"""A broker does not take the route of another one that is alive, whatever it is called by default."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from broker.discovery import registrar as registrar_module
from broker.discovery.registrar import Registrar
from broker.discovery.route_guard import Occupant, RouteGuard, rival
from broker.namesrv.server import NameServer
from broker.process.announcement import shown_name_servers
from broker.state.topics import READ_WRITE
from ha.group.roles import ASYNC_MASTER, SLAVE, SYNC_MASTER, QuorumPolicy, RoleRecord
from ropewalk.client.blocking.connection import Connection
from ropewalk.codes import RequestCode
from ropewalk.format.remoting import Command
from tests.broker.discovery.neighbours import IDENTITY, Neighbour, table
from tests.broker.harness import send_ext
from tests.support.brokers import address_of, ask, broker, fails, name_server
from tests.support.ports import free_ports
from tests.support.waiting import until_async

FRESH = RoleRecord(ASYNC_MASTER, 0)
MEMBER = RoleRecord(SYNC_MASTER, 0, 3, 3, policy=QuorumPolicy(SYNC_MASTER, 2, 1, {"1": "b:1"}))
PATIENCE_S = 30.0


def test_whoever_answers_in_this_brokers_place_is_a_rival_unless_it_says_what_makes_it_none() -> None:
    for record, cluster, name, broker_id, epoch in itertools.product(
        (FRESH, MEMBER), ("c", "d", ""), ("a", "b", ""), (0, 1, None), (0, 3, 4, None)
    ):
        if bool(cluster) != bool(name):
            continue  # it says both or neither
        expected = (
            name in ("a", "")
            and broker_id in (0, None)
            and (record is FRESH or epoch in (3, None) or cluster == "d")
        )
        assert rival("c", "a", record, Occupant(cluster, name, broker_id, epoch)) == expected
    assert not rival("c", "a", FRESH, None), "an address that does not answer is nobody's place"


def test_a_slave_that_has_no_epoch_yet_is_kept_from_anothers_id() -> None:
    slave = RoleRecord(SLAVE, 1)
    assert rival("c", "a", slave, Occupant("c", "a", 1, 0))
    assert not rival("c", "a", slave, Occupant("c", "a", 0, 4)), "it is the master by now"


def registered(server: NameServer, address: str) -> None:
    topics = table("T")
    owner = Registrar(
        IDENTITY | {"brokerAddr": address},
        lambda: topics,
        period_s=30,
        call_s=1,
        permission=lambda: READ_WRITE,
        local=server,
        remote=(),
    )
    owner.register_locally()


def addresses(server: NameServer) -> Callable[[], str]:
    question = Command(
        RequestCode.GET_BROKER_MEMBER_GROUP, {"clusterName": "DefaultCluster", "brokerName": "broker-a"}
    )

    def found() -> str:
        answer = server.handle(question, object())
        assert answer is not None
        return answer.body.decode()

    return found


@pytest.mark.trio
async def test_a_place_that_is_taken_while_the_broker_runs_is_left_to_the_other_until_it_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both had started while the name server was away, say."""
    monkeypatch.setattr(registrar_module, "_RETRY_S", 0.01)
    names, topics = Neighbour(), table("T")
    other = Neighbour()  # whatever answers at a port: as a broker it knows no code
    other.answer = 3
    async with trio.open_nursery() as nursery:
        await nursery.start(names.serve)
        other_lives = trio.CancelScope()
        await nursery.start(_within, other_lives, other)
        address = f"127.0.0.1:{other.port}"
        registered(names.server, address)
        guard = RouteGuard("DefaultCluster", "broker-a", "127.0.0.1:10911", lambda: FRESH)
        one = Registrar(
            IDENTITY, lambda: topics, period_s=0.05, call_s=1, permission=lambda: READ_WRITE, local=None,
            remote=(f"127.0.0.1:{names.port}",), guard=guard,
        )  # fmt: skip
        nursery.start_soon(one.run)
        group = addresses(names.server)
        await until_async(lambda: bool(one.routes.rivals))
        assert address in group() and RequestCode.REGISTER_BROKER not in names.seen
        assert "one of the two would get the other's messages" in next(iter(one.routes.rivals.values()))
        other_lives.cancel()
        await until_async(lambda: "127.0.0.1:10911" in group())
        assert not one.routes.rivals
        nursery.cancel_scope.cancel()


async def _within(
    scope: trio.CancelScope,
    neighbour: Neighbour,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    with scope:
        await neighbour.serve(task_status=task_status)


def test_a_throw_away_broker_does_not_take_the_place_of_a_living_one(tmp_path: Path) -> None:
    for name in ("names", "real", "other"):
        (tmp_path / name).mkdir()
    with name_server(tmp_path / "names") as names:
        with broker(tmp_path / "real", "-n", names, "--set", "listenPort=0") as real:
            code, said = fails(tmp_path / "other", "--ephemeral", "-n", names, "--set", "listenPort=0")
            assert code == 1
            assert f"is registered at {address_of(real)} with name server {names}, and answers there" in said
            assert "another brokerName, or a name server of its own" in said
            with broker(
                tmp_path / "other",
                "--ephemeral",
                "-n",
                names,
                "--set",
                "listenPort=0",
                "--set",
                "brokerName=mine",
            ):
                pass
            real.process.send_signal(signal.SIGKILL)
            real.process.wait(PATIENCE_S)
        with (
            broker(tmp_path / "real", "-n", names, "--set", "listenPort=0") as again,
            Connection(address_of(again)) as connection,
        ):
            sent = ask(connection, RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"x")
            assert sent.code == 0, "it started again, on another port"


def test_the_ready_line_says_which_name_servers_are_not_reached(tmp_path: Path) -> None:
    (away,) = (f"127.0.0.1:{port}" for port in free_ports(1))
    with (
        name_server(tmp_path) as there,
        broker(tmp_path, "-n", f"{away};{there}", "--set", "listenPort=0") as found,
    ):
        assert found.ready["namesrv"] == f"{away};{there}" and found.ready["namesrvSilent"] == [away]
    assert shown_name_servers((away, there), (away,)) == (
        f"{away} (NOT REACHED: clients that ask it do not find this broker);{there}"
    )
