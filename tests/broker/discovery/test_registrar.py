"""Registration: name servers are told at once of what changes, and a missing one delays nobody."""

import json
import zlib
from typing import Any, cast

import pytest
import trio
from structlog.testing import capture_logs

from broker.discovery import registrar as registrar_module
from broker.discovery.registrar import Registrar
from broker.discovery.route_guard import RouteGuard
from broker.namesrv import routes
from broker.namesrv.server import NameServer
from broker.state.topics import READ_WRITE, TopicConfig, TopicTable
from ropewalk.codes import RequestCode
from ropewalk.format.remoting import Command
from tests.broker.discovery.neighbours import IDENTITY, NOW_MS, Neighbour, table
from tests.support.ports import free_port
from tests.support.waiting import until_async


def registrar(topics: TopicTable, *remote: int, local: NameServer | None = None) -> Registrar:
    addresses = tuple(f"127.0.0.1:{port}" for port in remote)
    return Registrar(
        IDENTITY,
        lambda: topics,
        period_s=30,
        call_s=5,
        permission=lambda: READ_WRITE,
        local=local,
        remote=addresses,
    )


def test_an_embedded_name_server_knows_of_a_change_when_changed_returns() -> None:
    server, topics = NameServer(lambda: NOW_MS), table("T")
    one = registrar(topics, local=server)
    one.changed()
    route = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
    answer = server.handle(route, one)
    assert answer is not None
    assert answer.code == 0
    topics.update(TopicConfig("U"), NOW_MS)
    one.changed()
    answer = server.handle(Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "U"}), one)
    assert answer is not None
    assert answer.code == 0


def test_a_name_server_that_says_no_does_not_end_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    server = NameServer(lambda: NOW_MS)
    monkeypatch.setattr(routes, "BROKERS_MAX", 0)
    one = registrar(table("T"), local=server)
    with capture_logs() as logs:
        one.changed()
        one.changed()
    assert [each["event"] for each in logs if each["log_level"] == "error"] == [
        "the embedded name server refused this broker"
    ]


def test_a_registration_carries_its_checksum_and_no_compression() -> None:
    topics = table("T")
    body = topics.register_body(6)
    command = registrar(topics)._command(body, zlib.crc32(body) & 0x7FFFFFFF)
    assert command.ext["compressed"] == "false"
    assert command.ext["bodyCrc32"] == str(zlib.crc32(command.body) & 0x7FFFFFFF)
    assert command.ext.items() >= IDENTITY.items()


@pytest.mark.trio
async def test_every_name_server_is_told_at_start_and_of_each_change() -> None:
    topics, neighbours = table("T"), [Neighbour(), Neighbour()]
    async with trio.open_nursery() as nursery:
        for neighbour in neighbours:
            await nursery.start(neighbour.serve)
        one = registrar(topics, *[n.port for n in neighbours])
        nursery.start_soon(one.run)
        await until_async(lambda: all(n.knows("T") for n in neighbours))
        topics.update(TopicConfig("U"), NOW_MS)
        one.changed()
        await until_async(lambda: all(n.knows("U") for n in neighbours))
        assert all(n.seen.count(RequestCode.REGISTER_BROKER) == 2 for n in neighbours)
        await one.unregister()
        assert not any(n.knows("T") for n in neighbours)
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_a_name_server_that_is_away_delays_no_other_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registrar_module, "_RETRY_S", 0.01)
    topics, here, away = table("T"), Neighbour(), Neighbour()
    async with trio.open_nursery() as nursery:
        await nursery.start(here.serve)
        away.port = free_port()
        one = registrar(topics, here.port, away.port)
        nursery.start_soon(one.run)
        await until_async(lambda: here.knows("T"))
        await nursery.start(away.serve)
        await until_async(lambda: away.knows("T"))
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_a_change_during_a_registration_is_told_right_after_it() -> None:
    topics, neighbour = table("T"), Neighbour()
    async with trio.open_nursery() as nursery:
        await nursery.start(neighbour.serve)
        one = registrar(topics, neighbour.port)
        handle = neighbour.server.handle

        def meanwhile(request: Command, peer: Any) -> Command | None:
            answer = handle(request, peer)
            if "U" not in topics:
                topics.update(TopicConfig("U"), NOW_MS)
                one.changed()
            return answer

        neighbour.server.handle = meanwhile  # type: ignore[method-assign]
        nursery.start_soon(one.run)
        await until_async(lambda: neighbour.knows("U"))
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_what_a_name_server_has_taken_is_told_by_its_generation() -> None:
    """A change during a registration is in the next one: who was told too early would find no route."""
    topics, neighbour = table("T"), Neighbour()
    told: list[tuple[int, bool]] = []
    async with trio.open_nursery() as nursery:
        await nursery.start(neighbour.serve)
        one = Registrar(
            IDENTITY,
            lambda: topics,
            period_s=30,
            call_s=5,
            permission=lambda: READ_WRITE,
            local=None,
            remote=(f"127.0.0.1:{neighbour.port}",),
            on_registered=lambda generation: told.append((generation, neighbour.knows("U"))),
        )
        handle = neighbour.server.handle

        def meanwhile(request: Command, peer: Any) -> Command | None:
            answer = handle(request, peer)
            if "U" not in topics:
                topics.update(TopicConfig("U"), NOW_MS)
                one.changed()
            return answer

        neighbour.server.handle = meanwhile  # type: ignore[method-assign]
        before = topics.generation
        nursery.start_soon(one.run)
        await until_async(lambda: len(told) == 2)
        nursery.cancel_scope.cancel()
    assert told == [(before, False), (topics.generation, True)] and topics.generation > before


@pytest.mark.trio
async def test_good_bye_gives_up_on_a_name_server_that_does_not_answer() -> None:
    async def swallow(stream: trio.SocketStream) -> None:
        async for _data in stream:
            pass

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, swallow, [listener])
        one = registrar(table(), listener.socket.getsockname()[1])
        with trio.fail_after(30):
            await one.unregister()
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_good_bye_to_a_name_server_that_is_gone_is_no_trouble() -> None:
    await registrar(table(), free_port()).unregister()


class NoRival:
    """A guard that finds every place free."""

    async def rival_at(self, link: object) -> None:
        await trio.lowlevel.checkpoint()


@pytest.mark.trio
async def test_a_name_server_that_comes_back_hears_first_of_the_broker_that_it_knew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A newcomer of the same name that waits for it would else shut the living broker out."""
    for name, seconds in (("_RETRY_S", 0.6), ("_WANTED_S", 0.02), ("_FIRST_S", 2.0)):
        monkeypatch.setattr(registrar_module, name, seconds)
    neighbour, heard = Neighbour(), list[str]()
    handle = neighbour.server.handle

    def listen(request: Command, peer: Any) -> Command | None:
        if request.code == RequestCode.REGISTER_BROKER:
            heard.append(request.ext["brokerAddr"])
        return handle(request, peer)

    neighbour.server.handle = listen  # type: ignore[method-assign]

    topics = table("T")

    def broker(address: str) -> Registrar:
        return Registrar(
            {**IDENTITY, "brokerAddr": address},
            lambda: topics,
            period_s=30,
            call_s=5,
            permission=lambda: READ_WRITE,
            local=None,
            remote=(f"127.0.0.1:{neighbour.port}",),
            guard=cast(RouteGuard, NoRival()),
        )

    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as life:
            await life.start(neighbour.serve)
            nursery.start_soon(broker("127.0.0.1:1").run)
            await until_async(lambda: heard == ["127.0.0.1:1"])
            life.cancel_scope.cancel()
        await trio.sleep(
            0.2
        )  # by now the first broker waits for its next try; the newcomer tries all the time
        monkeypatch.setattr(registrar_module, "_RETRY_S", 0.01)
        nursery.start_soon(broker("127.0.0.1:2").run)
        await trio.sleep(0.1)
        heard.clear()
        await nursery.start(neighbour.serve)
        await until_async(lambda: len(heard) == 2)
        nursery.cancel_scope.cancel()
    assert heard == ["127.0.0.1:1", "127.0.0.1:2"]


# -- a stranger in this broker's place ------------------------------------------------------------------

STRANGER = "127.0.0.1:6666"


def register_stranger(server: NameServer, peer: object, state_version: int) -> None:
    """Register another address under this broker's name and id, as of a later epoch than any broker's."""
    ext = IDENTITY | {"brokerAddr": STRANGER}
    version = {"stateVersion": state_version, "timestamp": NOW_MS, "counter": 1}
    body = json.dumps(
        {"topicConfigSerializeWrapper": {"topicConfigTable": {}, "dataVersion": version}}
    ).encode()
    answer = server.handle(Command(RequestCode.REGISTER_BROKER, ext, body), peer)
    assert answer is not None and answer.code == 0


@pytest.mark.trio
async def test_a_broker_whose_clients_are_sent_to_another_address_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The name server believes the stranger, whose later epoch turns the broker's own registrations away."""
    names, topics = Neighbour(), table("T")
    async with trio.open_nursery() as nursery:
        await nursery.start(names.serve)
        one = Registrar(
            IDENTITY, lambda: topics, period_s=0.02, call_s=5, permission=lambda: READ_WRITE, local=None,
            remote=(f"127.0.0.1:{names.port}",),
        )  # fmt: skip
        nursery.start_soon(one.run)
        await until_async(lambda: names.knows("T"))
        assert one.routes.count == 0
        stranger = object()
        register_stranger(names.server, stranger, state_version=9)
        await until_async(lambda: one.routes.count == 1)
        (note,) = one.routes.notes
        assert STRANGER in note and f"127.0.0.1:{names.port}" in note
        names.server.closed(cast(Any, stranger))
        await until_async(lambda: one.routes.count == 0)
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_a_stranger_in_the_embedded_name_server_is_told_too() -> None:
    server, topics = NameServer(lambda: NOW_MS), table("T")
    one = Registrar(
        IDENTITY,
        lambda: topics,
        period_s=0.02,
        call_s=5,
        permission=lambda: READ_WRITE,
        local=server,
        remote=(),
    )
    one.register_locally()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.run)
        register_stranger(server, object(), state_version=9)
        await until_async(lambda: one.routes.displaced_by == {"the embedded name server": STRANGER})
        nursery.cancel_scope.cancel()
