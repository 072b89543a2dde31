"""The injector's own test: every fault it can make is seen to take effect, and to end."""

import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
import trio
import trio.testing

from tests.support.long_run import ROOM_S
from tools.drill.testbed.proxy import Proxy, Rule

pytestmark = pytest.mark.trio


@dataclass
class World:
    """An echo server behind a door."""

    proxy: Proxy
    door: tuple[str, int]
    peers: list[tuple[str, int]]

    @property
    def there(self) -> Rule:
        return self.proxy.rule("client", "server")

    @property
    def back(self) -> Rule:
        return self.proxy.rule("server", "client")

    async def connect(self) -> trio.SocketStream:
        return await trio.open_tcp_stream(*self.door)


@asynccontextmanager
async def world(*, keep_ports: bool = True) -> AsyncIterator[World]:
    peers: list[tuple[str, int]] = []

    async def echo(stream: trio.SocketStream) -> None:
        peers.append(stream.socket.getpeername()[:2])
        try:
            async for data in stream:
                await stream.send_all(data)
        except trio.BrokenResourceError:
            pass

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, echo, [listener])
        proxy = Proxy(nursery, lambda source, door: "client", keep_ports=keep_ports)
        door = await proxy.add_door(("127.0.0.1", 0), listener.socket.getsockname()[:2], "server")
        yield World(proxy, door, peers)
        nursery.cancel_scope.cancel()


async def read(stream: trio.SocketStream, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = await stream.receive_some(65536)
        if not more:
            break
        data += more
    return data


async def test_without_a_fault_everything_passes_in_order_and_is_counted() -> None:
    data = bytes(range(256)) * 4096
    async with world() as w, await w.connect() as stream, trio.open_nursery() as nursery:
        nursery.start_soon(stream.send_all, data)
        assert await read(stream, len(data)) == data
        await trio.testing.wait_all_tasks_blocked()
        assert (w.there.passed, w.back.passed) == (len(data), len(data))
        assert (w.there.hits, w.back.hits) == (0, 0)


async def test_an_end_of_stream_is_passed_on_behind_the_bytes() -> None:
    async with world() as w, await w.connect() as stream:
        await stream.send_all(b"last words")
        await stream.send_eof()
        assert await read(stream, 100) == b"last words"


async def test_a_cut_holds_bytes_back_and_lets_them_go_when_it_heals() -> None:
    async with world() as w, await w.connect() as stream:
        await stream.send_all(b"1")
        assert await read(stream, 1) == b"1"
        w.there.change(cut=True)
        await stream.send_all(b"2")
        with trio.move_on_after(0.15) as scope:
            await stream.receive_some(1)
        assert scope.cancelled_caught
        assert w.there.hits > 0
        w.proxy.heal()
        assert await read(stream, 1) == b"2"


async def test_a_cut_one_way_leaves_the_other_way_open() -> None:
    async with world() as w, await w.connect() as stream:
        await stream.send_all(b"1")
        assert await read(stream, 1) == b"1"
        w.back.change(cut=True)
        passed = w.there.passed
        await stream.send_all(b"22")
        with trio.fail_after(20):
            while w.there.passed < passed + 2:  # noqa: ASYNC110 - the count has no event
                await trio.sleep(0.005)
        with trio.move_on_after(0.1) as scope:
            await stream.receive_some(1)
        assert scope.cancelled_caught
        w.back.heal()
        assert await read(stream, 2) == b"22"


async def test_a_new_connection_over_a_cut_waits_for_its_end() -> None:
    async with world() as w:
        w.back.change(cut=True)
        async with await w.connect() as stream:
            await stream.send_all(b"x")
            await trio.sleep(0.1)
            assert not w.peers
            w.back.heal()
            assert await read(stream, 1) == b"x"


async def test_a_delay_is_waited_once_and_not_for_every_piece() -> None:
    async with world() as w, await w.connect() as stream:
        w.there.change(delay_s=0.2)
        began = trio.current_time()
        for number in range(10):
            await stream.send_all(b"%d" % number)
            await trio.sleep(0.005)
        assert await read(stream, 10) == b"0123456789"
        took_s = trio.current_time() - began
        assert 0.2 <= took_s < 1.9 + ROOM_S
        assert w.there.hits > 0


async def test_a_rate_is_kept() -> None:
    async with world() as w, await w.connect() as stream, trio.open_nursery() as nursery:
        w.there.change(bytes_per_s=100_000)
        began = trio.current_time()
        nursery.start_soon(stream.send_all, bytes(30_000))
        assert len(await read(stream, 30_000)) == 30_000
        assert 0.25 <= trio.current_time() - began < 10.0 + ROOM_S
        assert w.there.hits > 0


async def test_a_reset_comes_at_its_byte_and_only_once() -> None:
    async with world() as w:
        w.there.change(reset_after=1000)
        async with await w.connect() as stream:
            with pytest.raises(trio.BrokenResourceError):
                await stream.send_all(bytes(5000))
                while await stream.receive_some(65536):
                    pass
        assert (w.there.passed, w.there.hits) == (1000, 1)
        async with await w.connect() as stream:
            await stream.send_all(bytes(5000))
            assert len(await read(stream, 5000)) == 5000


async def test_a_peer_that_resets_is_seen_to_reset() -> None:
    async with world() as w:
        stream = await w.connect()
        await stream.send_all(b"x")
        await read(stream, 1)
        stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        stream.socket.close()
        async with await w.connect() as other:
            await other.send_all(b"y")
            assert await read(other, 1) == b"y"


async def test_nobody_behind_a_door_is_a_reset() -> None:
    async with world() as w:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            nobody = unused.getsockname()
        door = await w.proxy.add_door(("127.0.0.1", 0), nobody, "nobody")
        async with await trio.open_tcp_stream(*door) as stream:
            with pytest.raises(trio.BrokenResourceError):
                await stream.receive_some(1)


async def test_the_source_port_is_kept_where_the_kernel_can() -> None:
    with socket.socket() as probe:
        try:
            probe.setsockopt(socket.IPPROTO_IP, 51, struct.pack("=I", 0))
        except OSError:
            pytest.skip("this kernel has no IP_LOCAL_PORT_RANGE")
    async with world() as w, await w.connect() as stream:
        await stream.send_all(b"x")
        await read(stream, 1)
        assert w.peers == [stream.socket.getsockname()[:2]]


async def test_where_ports_are_not_kept_a_source_that_names_its_end_is_translated() -> None:
    async with world(keep_ports=False) as w, await w.connect() as stream:
        host, port = stream.socket.getsockname()[:2]
        words = f"my end is {host}:{port}, I say".encode()
        await stream.send_all(b"x")
        await read(stream, 1)
        await stream.send_all(words)
        (seen,) = w.peers
        assert seen != (host, port)
        assert await read(stream, len(words)) == f"my end is {seen[0]}:{seen[1]}, I say".encode()


async def test_what_was_on_its_way_when_a_connection_is_severed_never_arrives() -> None:
    async with world() as w, await w.connect() as stream:
        await stream.send_all(b"1")
        assert await read(stream, 1) == b"1"
        w.back.change(delay_s=20.0)
        await stream.send_all(b"2")
        await trio.sleep(0.05)
        assert w.proxy.sever("client", "somebody else") == 0
        assert w.proxy.sever("server", "client") == 1
        with pytest.raises(trio.BrokenResourceError):
            await stream.receive_some(1)
        assert w.back.passed == 1
