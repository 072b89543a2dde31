"""Listening, accepting and connecting, also where descriptors run out."""

import errno
import os
import socket
from contextlib import ExitStack
from typing import cast

import pytest
import trio

from broker.remoting.places import Places
from broker.remoting.sockets import Kind
from tests.broker.remoting.net import HandSet, Net, only


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


def test_where_descriptors_run_out_and_no_client_can_make_room_members_are_served_and_none_accepted(
    net: Net, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    net.shell.listeners.close()
    net.port = net.listen("127.0.0.1", net.make, Kind.MEMBER)
    inside = net.connect()
    listener, make, kind = net.shell.listeners._listening.popitem()[1]

    class Exhausted:
        def __getattr__(self, name: str) -> object:
            return getattr(listener, name)

        def accept(self) -> tuple[socket.socket, tuple[str, int]]:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    net.shell.listeners._listening[listener.fileno()] = (Exhausted(), make, kind)  # type: ignore[assignment]
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
    net.shell.listeners._listening[listener.fileno()] = (listener, make, kind)
    net.shell.sweep()
    net.until(lambda: len(net.shell.connections) == 2)
    outside.close()


def run_out(net: Net, times: int) -> None:
    """Have the listener of the clients meet the limit of open files so many times."""
    fd, (listener, make, kind) = net.shell.listeners._listening.popitem()

    class Exhausted:
        left = times

        def __getattr__(self, name: str) -> object:
            return getattr(listener, name)

        def accept(self) -> tuple[socket.socket, tuple[str, int]]:
            self.left -= 1
            if self.left >= 0:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return listener.accept()

    net.shell.listeners._listening[fd] = (Exhausted(), make, kind)  # type: ignore[assignment]


def test_where_descriptors_run_out_silent_clients_make_room_for_the_newcomer(net: Net) -> None:
    silent = [net.connect(source="127.0.0.2") for _ in range(70)]
    run_out(net, 1)
    newcomer = net.connect()
    newcomer.send(b"hello")
    assert net.read(newcomer, 5) == b"hello"
    assert [net.is_closed(each) for each in silent] == [True] * 64 + [False] * 6


def test_where_no_room_helps_clients_are_not_all_closed_for_it(net: Net) -> None:
    clients = [net.connect(source="127.0.0.2") for _ in range(70)]
    run_out(net, 10)
    outside = socket.socket()
    outside.connect(("127.0.0.1", net.port))
    net.idle()
    assert sum(net.is_closed(each) for each in clients) == 64
    outside.close()


def say(net: Net, *clients: socket.socket) -> None:
    for each in clients:
        each.send(b"x")
        assert net.read(each, 1) == b"x"


def test_when_all_places_are_taken_the_newest_comes_in_and_the_longest_silent_of_those_who_have_most_goes(
    stack: ExitStack, capsys: pytest.CaptureFixture[str]
) -> None:
    net = Net(stack, connections_max=6)
    many = [net.connect(source="127.0.0.2") for _ in range(4)]
    few = [net.connect() for _ in range(2)]
    say(net, *few, many[2], many[0], many[3], many[1])
    for n, source in enumerate(("127.0.0.1", "127.0.0.3"), 1):
        newest = net.connect(source=source)
        say(net, newest)
        net.shell.flush()
        assert [net.is_closed(each) for each in many] == [n > 1, False, True, False]
        assert len(net.shell.connections) == 6
    say(net, *few, many[1], many[3])
    net.shell.sweep()
    said = capsys.readouterr().out
    assert said.count("as all places are taken") == 1
    assert "127.0.0.2" in said
    assert "closed=2" in said


def test_connections_without_a_word_go_before_all_clients_that_have_said_something(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = HandSet(monkeypatch)
    net = Net(stack, connections_max=8)
    net.now_s = clock.read
    clients = [net.connect() for _ in range(5)]
    say(net, *clients)
    mute = [net.connect(source="127.0.0.2") for _ in range(3)]
    clock.pass_time(2)
    for n in range(1, 4):
        fresh = net.connect()
        net.idle(0.001)
        assert [net.is_closed(each) for each in mute] == [True] * n + [False] * (3 - n)
        say(net, fresh)
    assert not any(net.is_closed(each) for each in clients)


def test_whoever_says_nothing_after_connecting_is_closed_after_ten_seconds(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = HandSet(monkeypatch)
    net = Net(stack, connections_max=100)
    net.now_s = clock.read
    ports = {kind: net.listen("127.0.0.1", net.make, kind) for kind in Kind}
    mute = {kind: net.connect(port=port) for kind, port in ports.items()}
    spoken = net.connect()
    say(net, spoken)
    clock.now += 9
    net.shell.sweep()
    assert not any(map(net.is_closed, mute.values()))
    clock.now += 2
    net.shell.sweep()
    closed = {kind for kind, each in mute.items() if net.is_closed(each)}
    assert closed == {Kind.CLIENT}, "RocketMQ's clients connect to every name server and ask one"
    assert not net.is_closed(spoken)
    others = [net.connect() for _ in range(48)]
    say(net, *others)
    net.shell.sweep()
    assert net.is_closed(mute[Kind.LOOKUP]), "half of the places are taken"
    assert not net.is_closed(mute[Kind.MEMBER]), "members are bounded by whoever serves them"


def test_members_and_peers_that_were_dialled_never_make_room(stack: ExitStack) -> None:
    net = Net(stack, connections_max=1)
    port = net.listen("127.0.0.1", net.make, Kind.MEMBER)
    members = [net.connect(port=port) for _ in range(3)]
    first, second = net.connect(), net.connect()
    assert net.is_closed(first)
    say(net, second, *members)


def test_a_storm_of_newcomers_chooses_who_goes_some_hundreds_at_a_time() -> None:
    class Guest:
        origin = "192.0.2.1"
        looked = 0

        def __init__(self, n: int) -> None:
            self.n = n
            self.progress = float(n)

        @property
        def active(self) -> float:
            Guest.looked += 1
            return 1000.0 + self.n

        @active.setter
        def active(self, seconds: float) -> None:
            raise AssertionError

        def close(self) -> None:
            raise AssertionError

    places = Places(20_000)
    for n in range(20_000):
        places.add(Guest(n))
    gone = []
    for n in range(20_000, 25_000):
        places.add(Guest(n))
        gone.append(cast(Guest, places.pop_next(5000.0)).n)
    assert gone == list(range(5000))
    assert places.size == 20_000
    assert Guest.looked < 5000 * 200, "twenty thousand connections are not looked at for each newcomer"


def test_one_turn_accepts_a_bounded_number_and_the_others_have_turns_of_their_own(net: Net) -> None:
    waiting = []
    for _ in range(150):
        client = socket.socket()
        client.connect(("127.0.0.1", net.port))
        waiting.append(client)
    net.turn()
    assert len(net.shell.connections) == 64
    net.until(lambda: len(net.shell.connections) == 150)
    for client in waiting:
        client.close()
