"""The same stories under trio and under asyncio."""

import socket
import struct
import threading
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress

import anyio
import anyio.to_thread
import pytest

from ropewalk.client.aio.connection import open_connection
from ropewalk.client.core.connection import Unreachable
from ropewalk.codes import RequestCode
from ropewalk.errors import LocalProtocolError, OutcomeUnknown
from ropewalk.format.remoting import Command, FrameBuffer, decode_frame, encode_frame
from tests.ropewalk.client.fake_cluster import FakeCluster

ROUTE = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
SEND = Command(RequestCode.SEND_MESSAGE_V2)

Run = Callable[[Callable[[], Awaitable[None]]], None]


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


def test_a_peer_that_takes_nothing_loses_the_connection_and_callers_hear_what_left(run: Run) -> None:
    told: list[type[Exception]] = []

    async def story() -> None:
        with closing(socket.create_server(("127.0.0.1", 0))) as listener:
            address = f"127.0.0.1:{listener.getsockname()[1]}"
            async with open_connection(address, timeout=1.0) as connection:

                async def ask(size: int) -> None:
                    try:
                        await connection.call(Command(10, body=bytes(size)), timeout=10)
                    except (OutcomeUnknown, Unreachable) as exc:
                        told.append(type(exc))

                with pytest.raises(OutcomeUnknown, match=r"within 0\.1 s"):
                    await connection.call(Command(10, body=bytes(12 << 20)), timeout=0.1)
                assert not connection.closed, "half a frame is out, and the other half may follow"
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(ask, 100)
                    await connection.wait_closed()
                with pytest.raises(Unreachable, match=r"gone: it did not take a request within 1 s"):
                    await connection.call(ROUTE)

    run(story)
    assert told == [Unreachable], "the second request had not begun to leave"


def test_a_call_whose_time_is_up_before_it_left_is_taken_back(run: Run) -> None:
    async def story() -> None:
        with closing(socket.create_server(("127.0.0.1", 0))) as listener:
            address = f"127.0.0.1:{listener.getsockname()[1]}"
            async with (
                open_connection(address, timeout=5) as connection,
                anyio.create_task_group() as tasks,
            ):
                tasks.start_soon(connection.oneway, Command(10, body=bytes(12 << 20)))
                await anyio.sleep(0.05)
                with pytest.raises(Unreachable, match="did not leave"):
                    await connection.call(ROUTE, timeout=0.05)
                tasks.cancel_scope.cancel()

    run(story)


def test_what_tasks_ask_in_one_turn_leaves_in_one_write(run: Run) -> None:
    reads: list[int] = []

    def serve(listener: socket.socket) -> None:
        peer, _ = listener.accept()
        with peer:
            frames = FrameBuffer()
            answered = 0
            while answered < 20:
                payloads = frames.feed(peer.recv(1 << 16))
                reads.append(len(payloads))
                for payload in payloads:
                    peer.sendall(encode_frame(decode_frame(payload).reply(0)))
                answered += len(payloads)

    async def story() -> None:
        with closing(socket.create_server(("127.0.0.1", 0))) as listener:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(anyio.to_thread.run_sync, serve, listener)
                address = f"127.0.0.1:{listener.getsockname()[1]}"
                async with open_connection(address) as connection, anyio.create_task_group() as askers:
                    for _ in range(20):
                        askers.start_soon(connection.call, ROUTE)

    run(story)
    assert reads == [20]


def test_calls_end_in_the_order_of_their_time_limits(cluster: FakeCluster, run: Run) -> None:
    cluster.answers[RequestCode.SEND_MESSAGE_V2] = lambda request: None
    ended: list[float] = []

    async def story() -> None:
        async with open_connection(cluster.address) as connection:

            async def ask(seconds: float) -> None:
                with pytest.raises(OutcomeUnknown):
                    await connection.call(SEND, timeout=seconds)
                ended.append(seconds)

            async with anyio.create_task_group() as tasks:
                for seconds in (0.7, 0.1, 0.4):
                    tasks.start_soon(ask, seconds)
            assert (await connection.call(ROUTE)).code == 17

    run(story)
    assert ended == [0.1, 0.4, 0.7]


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


def test_a_peer_that_asks_and_hangs_up_is_no_exception_of_the_block(run: Run) -> None:
    async def story() -> None:
        with closing(socket.create_server(("127.0.0.1", 0))) as listener:
            async with open_connection(f"127.0.0.1:{listener.getsockname()[1]}") as connection:
                peer, _ = await anyio.to_thread.run_sync(listener.accept)
                with peer:
                    peer.sendall(encode_frame(Command(40)) * 300)
                    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                await connection.wait_closed()

    run(story)


def test_a_peer_that_asks_without_end_and_reads_nothing_loses_the_connection(run: Run) -> None:
    async def story() -> None:
        with closing(socket.create_server(("127.0.0.1", 0))) as listener:
            address = f"127.0.0.1:{listener.getsockname()[1]}"
            async with open_connection(address, timeout=30) as connection:
                peer, _ = await anyio.to_thread.run_sync(listener.accept)

                def flood() -> None:
                    with peer, suppress(OSError):
                        while True:
                            peer.sendall(encode_frame(Command(307)) * 100)

                thread = threading.Thread(target=flood, daemon=True)
                thread.start()
                with pytest.raises(OutcomeUnknown, match=r"broke the protocol.*more than 1000 requests"):
                    await connection.call(ROUTE)
            await anyio.to_thread.run_sync(thread.join, 30)
            assert not thread.is_alive()

    run(story)


def test_a_reply_that_cannot_be_made_ends_the_connection_and_not_the_block(run: Run) -> None:
    async def story() -> None:
        async def reply() -> Command:
            raise LocalProtocolError("a body too long")

        with closing(socket.create_server(("127.0.0.1", 0))) as listener:
            address = f"127.0.0.1:{listener.getsockname()[1]}"
            async with open_connection(address, on_request=lambda _: reply) as connection:
                peer, _ = await anyio.to_thread.run_sync(listener.accept)
                with peer:
                    peer.sendall(encode_frame(Command(309)))
                    await connection.wait_closed()
                assert connection.closed_because == "a reply to it cannot be made: a body too long"

    run(story)
