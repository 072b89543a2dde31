"""The same stories under trio and under asyncio."""

import socket
import threading
from collections.abc import Awaitable, Callable
from contextlib import closing

import anyio
import anyio.to_thread
import pytest

from ropewalk.client.anyio_shell import open_connection
from ropewalk.client.core import Unreachable
from ropewalk.codes import RequestCode
from ropewalk.errors import OutcomeUnknown
from ropewalk.format.remoting import Command
from tests.ropewalk.client.fake_cluster import FakeCluster

ROUTE = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
SEND = Command(RequestCode.SEND_MESSAGE_V2)

Run = Callable[[Callable[[], Awaitable[None]]], None]


@pytest.fixture(params=["trio", "asyncio"])
def run(request: pytest.FixtureRequest) -> Run:
    def run_story(story: Callable[[], Awaitable[None]]) -> None:
        async def bounded() -> None:
            with anyio.fail_after(20):
                await story()

        anyio.run(bounded, backend=request.param)

    return run_story


def test_many_tasks_share_one_connection(cluster: FakeCluster, run: Run) -> None:
    codes: list[int] = []

    async def story() -> None:
        async with open_connection(cluster.address) as connection:

            async def ask() -> None:
                codes.append((await connection.call(ROUTE)).code)

            async with anyio.create_task_group() as tasks:
                for _ in range(50):
                    tasks.start_soon(ask)
            assert connection.local_address.host == "127.0.0.1"

    run(story)
    assert codes == [17] * 50


def test_nobody_there_is_unreachable(run: Run) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]

    async def story() -> None:
        with pytest.raises(Unreachable, match="cannot connect"):
            async with open_connection(f"127.0.0.1:{port}"):
                pass

    run(story)


def test_what_the_block_raises_comes_out_of_it_unwrapped(cluster: FakeCluster, run: Run) -> None:
    async def story() -> None:
        with pytest.raises(KeyError):
            async with open_connection(cluster.address):
                raise KeyError("mine")

    run(story)


def test_no_answer_in_time_is_an_unknown_outcome_and_the_connection_lives_on(
    cluster: FakeCluster, run: Run
) -> None:
    release = threading.Event()

    def slow(request: Command) -> Command:
        release.wait(5)
        return request.reply(0)

    cluster.answers[RequestCode.SEND_MESSAGE_V2] = slow

    async def story() -> None:
        async with open_connection(cluster.address) as connection:
            with pytest.raises(OutcomeUnknown, match=r"within 0\.05 s"):
                await connection.call(SEND, timeout=0.05)
            release.set()
            assert (await connection.call(ROUTE)).code == 17
            assert connection.ignored_count == 1

    run(story)


def test_a_cancelled_call_is_forgotten_and_the_connection_lives_on(cluster: FakeCluster, run: Run) -> None:
    cluster.answers[RequestCode.SEND_MESSAGE_V2] = lambda request: None

    async def story() -> None:
        async with open_connection(cluster.address) as connection:
            with anyio.move_on_after(0.05) as scope:
                await connection.call(SEND, timeout=10)
            assert scope.cancelled_caught
            assert not connection.closed
            assert (await connection.call(ROUTE)).code == 17

    run(story)


def test_a_frame_cancelled_half_way_takes_the_connection_with_it(run: Run) -> None:
    async def story() -> None:
        with closing(socket.create_server(("127.0.0.1", 0))) as listener:
            async with open_connection(f"127.0.0.1:{listener.getsockname()[1]}") as connection:
                with pytest.raises(OutcomeUnknown):
                    await connection.call(Command(10, body=bytes(12 << 20)), timeout=0.1)
                assert connection.closed
                with pytest.raises(Unreachable):
                    await connection.call(ROUTE)

    run(story)


def test_a_peer_that_hangs_up_wakes_everybody(cluster: FakeCluster, run: Run) -> None:
    cluster.answers[RequestCode.SEND_MESSAGE_V2] = lambda request: None
    lost: list[OutcomeUnknown] = []

    async def story() -> None:
        async with open_connection(cluster.address) as connection:

            async def ask() -> None:
                try:
                    await connection.call(SEND, timeout=10)
                except OutcomeUnknown as exc:
                    lost.append(exc)

            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(ask)
                await anyio.to_thread.run_sync(cluster.wait_for_request, SEND.code, 3)
                cluster.hang_up()
            with pytest.raises(Unreachable, match="gone"):
                await connection.call(ROUTE)

    run(story)
    assert len(lost) == 3


def test_leaving_the_block_while_a_call_waits_tells_the_caller(cluster: FakeCluster, run: Run) -> None:
    cluster.answers[RequestCode.SEND_MESSAGE_V2] = lambda request: None
    told: list[str] = []

    async def story() -> None:
        async with anyio.create_task_group() as tasks, open_connection(cluster.address) as connection:

            async def ask() -> None:
                try:
                    await connection.call(SEND, timeout=10)
                except OutcomeUnknown as exc:
                    told.append(str(exc))

            tasks.start_soon(ask)
            await anyio.sleep(0.05)

    run(story)
    assert len(told) == 1
    assert "closed by this program" in told[0]


def test_a_peers_request_is_answered_and_a_oneway_goes_out(cluster: FakeCluster, run: Run) -> None:
    asked: list[int] = []

    async def story() -> None:
        came = anyio.Event()

        def offer(request: Command) -> Command:
            asked.append(request.code)
            came.set()
            return request.reply(0)

        async with open_connection(cluster.address, on_request=offer) as connection:
            await connection.oneway(Command(RequestCode.HEART_BEAT))
            await connection.call(ROUTE)
            cluster.push(Command(40))
            await came.wait()

    run(story)
    assert asked == [40]
    assert [request.is_oneway for request in cluster.requests] == [True, False]
