"""Listening, accepting and connecting, also where descriptors run out."""

import errno
import os
import socket
from contextlib import ExitStack

import pytest
import trio

from tests.broker.remoting.net import Net, only


def test_an_ipv4_peer_is_known_as_one_also_where_both_families_are_listened_to(net: Net) -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::", 0))
    except OSError:
        pytest.skip("this machine has no IPv6")
    port = net.listen("::", net.make)
    client = net.connect(port=port)
    assert only(net).peer == client.getsockname()
    assert only(net).local == client.getpeername()


@pytest.mark.trio
async def test_a_name_with_several_addresses_is_dialled_until_one_answers(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as reserved:  # bound and not listened to: whoever dials it is refused
        reserved.bind(("127.0.0.1", 0))
        places = [reserved.getsockname(), ("127.0.0.1", net.port)]

        async def look_up(host: str, port: int, type: int) -> list[object]:
            return [(socket.AF_INET, type, 0, "", place) for place in places]

        monkeypatch.setattr(trio.socket, "getaddrinfo", look_up)
        connection = await net.shell.dial("name", 1, net.make, 5.0)
        assert connection.peer == ("127.0.0.1", net.port)
        places.pop()
        with pytest.raises(ConnectionRefusedError):
            await net.shell.dial("name", 1, net.make, 5.0)


def test_a_port_in_use_is_an_error_that_says_so(net: Net) -> None:
    with pytest.raises(OSError, match="in use") as caught:
        net.shell.listeners.listen("127.0.0.1", net.port, net.make)
    assert caught.value.errno == errno.EADDRINUSE


def test_who_is_connected_is_served_when_nobody_else_is_accepted_any_more(net: Net) -> None:
    clients = [net.connect() for _ in range(3)]
    net.shell.listeners.close()
    with socket.socket() as late:
        assert late.connect_ex(("127.0.0.1", net.port)) == errno.ECONNREFUSED
    clients[0].send(b"still served")
    assert net.read(clients[0], 12) == b"still served"


def test_without_a_descriptor_left_nobody_is_accepted_and_everybody_else_served(
    net: Net, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    inside = net.connect()
    listener, make = net.shell.listeners._listening.popitem()[1]

    class Exhausted:
        def __getattr__(self, name: str) -> object:
            return getattr(listener, name)

        def accept(self) -> tuple[socket.socket, tuple[str, int]]:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    net.shell.listeners._listening[listener.fileno()] = (Exhausted(), make)  # type: ignore[assignment]
    outside = socket.socket()
    outside.connect(("127.0.0.1", net.port))
    for _ in range(20):
        net.turn()
    assert len(net.shell.connections) == 1
    assert capsys.readouterr().out.count("cannot accept more connections") == 1
    begun = net.turns.begun
    net.idle()
    assert net.turns.begun == begun, "a listener that is ready for ever does not spin"
    inside.send(b"served")
    assert net.read(inside, 6) == b"served"
    net.shell.listeners._listening[listener.fileno()] = (listener, make)
    net.shell.sweep()
    net.until(lambda: len(net.shell.connections) == 2)
    outside.close()


def test_connections_leave_descriptors_to_the_store(
    stack: ExitStack, capsys: pytest.CaptureFixture[str]
) -> None:
    net = Net(stack, connections_max=2)
    first, _second = net.connect(), net.connect()
    third = socket.socket()
    stack.callback(third.close)
    third.connect(("127.0.0.1", net.port))
    third.setblocking(False)
    net.idle()
    assert len(net.shell.connections) == 2
    assert "cannot accept more connections" in capsys.readouterr().out
    first.close()
    net.until(lambda: len(net.shell.connections) == 1)
    net.shell.sweep()
    net.until(lambda: len(net.shell.connections) == 2)
    third.send(b"at last")
    assert net.read(third, 7) == b"at last"
