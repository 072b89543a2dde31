"""Where a topic is on all brokers: asked of a name server, kept for a while, and nobody waits for ever."""

from collections.abc import Callable
from typing import Any

import pytest
import trio

from broker.discovery.registrar import Registrar
from broker.discovery.route_finder import RouteFinder
from broker.namesrv.server import NameServer
from broker.state.topics import READ_WRITE, TopicConfig, TopicTable
from ropewalk.client.core.routes import TopicRoute
from ropewalk.codes import RequestCode
from ropewalk.format.remoting import FrameBuffer, decode_frame, encode_frame

NOW_MS = 1_700_000_000_000
IDENTITY = {
    "brokerName": "broker-a", "brokerAddr": "127.0.0.1:10911", "clusterName": "DefaultCluster",
    "haServerAddr": "127.0.0.1:10912", "brokerId": "0",
}  # fmt: skip


def name_server(*topics: str) -> NameServer:
    """One that a broker with these topics has registered with."""
    table = TopicTable()
    for name in topics:
        table.update(TopicConfig(name, 4, 4), NOW_MS)
    server = NameServer(lambda: NOW_MS)
    Registrar(
        IDENTITY, lambda: table, period_s=30, call_s=1, permission=lambda: READ_WRITE, local=server, remote=()
    ).register_locally()
    return server


def queues(route: TopicRoute | None) -> int | None:
    return None if route is None else len(route.read_queues())


def test_the_embedded_name_server_answers_at_once() -> None:
    finder = RouteFinder(name_server("T", "U"), (), lambda: 0.0)
    found: list[TopicRoute | None] = []
    finder.find("T", found.append)
    finder.find("unknown", found.append)
    assert [queues(route) for route in found] == [4, None]


class Remote:
    """A name server on a real socket, which counts what it is asked."""

    def __init__(self, server: NameServer) -> None:
        self.server = server
        self.asked = 0

    async def serve(self, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        await trio.serve_listeners(self._talk, listeners, task_status=task_status)

    async def _talk(self, stream: trio.SocketStream) -> None:
        frames = FrameBuffer()
        async for data in stream:
            for payload in frames.feed(data):
                request = decode_frame(payload)
                assert request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC
                self.asked += 1
                answer = self.server.handle(request, self)
                assert answer is not None
                await stream.send_all(encode_frame(answer))


async def start(remote: Remote, nursery: trio.Nursery) -> str:
    listeners = await nursery.start(remote.serve)
    return f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"


async def ask(finder: RouteFinder, topic: str) -> int | None:
    done = trio.Event()
    found: list[TopicRoute | None] = []

    def bring(route: TopicRoute | None) -> None:
        found.append(route)
        done.set()

    with trio.fail_after(20):
        finder.find(topic, bring)
        await done.wait()
    return queues(found[0])


@pytest.mark.trio
async def test_a_remote_name_server_is_asked_once_for_a_while(nursery: trio.Nursery) -> None:
    remote = Remote(name_server("T", "U"))
    now = 0.0
    finder = RouteFinder(None, (await start(remote, nursery),), lambda: now)
    nursery.start_soon(finder.run)
    assert [await ask(finder, "T") for _ in range(3)] == [4, 4, 4]
    assert remote.asked == 1
    now = 31.0
    assert await ask(finder, "T") == 4
    assert remote.asked == 2


@pytest.mark.trio
async def test_an_asker_that_fails_leaves_nobody_else_waiting(nursery: trio.Nursery) -> None:
    finder = RouteFinder(None, (await start(Remote(name_server("T", "U")), nursery),))
    finder.find("T", lambda route: 1 // 0)  # type: ignore[arg-type]
    nursery.start_soon(finder.run)
    assert await ask(finder, "T") == 4
    assert await ask(finder, "U") == 4


@pytest.mark.trio
async def test_a_name_server_that_is_away_is_passed_over(
    nursery: trio.Nursery, unused_port: Callable[[], int]
) -> None:
    remote = Remote(name_server("T", "U"))
    finder = RouteFinder(None, (f"127.0.0.1:{unused_port()}", await start(remote, nursery)))
    nursery.start_soon(finder.run)
    assert await ask(finder, "T") == 4
    assert await ask(finder, "unknown") is None


@pytest.mark.trio
async def test_without_any_name_server_nothing_is_known(
    nursery: trio.Nursery, unused_port: Callable[[], int]
) -> None:
    finder = RouteFinder(None, (f"127.0.0.1:{unused_port()}",))
    nursery.start_soon(finder.run)
    assert await ask(finder, "T") is None


@pytest.fixture
def unused_port() -> Callable[[], int]:
    import socket

    def find() -> int:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            return int(sock.getsockname()[1])

    return find
