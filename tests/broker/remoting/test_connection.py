"""One connection on a real socket: what is owed leaves in order, and what its peer does ends no other one."""

import gc
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import cast

import pytest

from broker.remoting.connection import IN, Connection
from broker.remoting.incoming import IncomingBudget
from broker.remoting.session import Handlers, Session
from broker.remoting.shell import Shell
from tests.broker.remoting.net import Net, Turns, only


def test_all_that_one_turn_owes_a_peer_leaves_in_one_piece(net: Net) -> None:
    client = net.connect()
    for piece in (b"a", b"b" * 10, b"c"):
        only(net).send(piece)
    net.shell.flush()
    assert client.recv(100) == b"abbbbbbbbbbc"


def test_large_answers_in_many_pieces_arrive_whole_and_in_order(net: Net) -> None:
    client = net.connect(receive_buffer=4096)
    pieces = [bytes([n % 256]) * (1000 + n) for n in range(600)]
    for piece in pieces:
        only(net).send(piece)
    net.shell.flush()
    whole = b"".join(pieces)
    assert net.read(client, len(whole)) == whole
    assert only(net).out_size == 0
    assert only(net).mask == IN


def test_a_reader_of_single_bytes_gets_everything(net: Net) -> None:
    client = net.connect(receive_buffer=2048)
    only(net).send(b"0123456789" * 30)
    net.shell.flush()
    got = b""
    while len(got) < 300:
        got += client.recv(1)
        net.turn()
    assert got == b"0123456789" * 30


def test_a_writer_of_single_bytes_is_heard(net: Net) -> None:
    client = net.connect()
    for byte in b"slowly":
        client.send(bytes([byte]))
        net.turn()
    net.until(lambda: bytes(net.sessions[0].seen) == b"slowly")


def test_garbage_ends_its_connection_with_a_line_in_the_log(
    net: Net, capsys: pytest.CaptureFixture[str]
) -> None:
    client, other = net.connect(), net.connect()
    client.send(b"garbage")
    net.until(lambda: len(net.shell.connections) == 1)
    assert net.is_closed(client)
    assert "garbage" in capsys.readouterr().out
    other.send(b"fine")
    assert net.read(other, 4) == b"fine"


def test_what_stays_owed_is_copied_out_of_the_map_that_it_was_in() -> None:
    shell, (left, right) = Shell(Turns()), socket.socketpair()
    with closing(shell), left, right:
        connection = Connection(shell, left, ("127.0.0.1", 1))
        page = bytearray(b"of the log")
        connection.send(b"head ")
        connection.send(memoryview(page))
        connection.detach_from_map()
        page[:] = bytes(10)
        page += b"and no view of it is left"
        assert b"".join(connection.out) == b"head of the log"


def test_what_is_sent_to_a_connection_that_is_being_closed_goes_nowhere(net: Net) -> None:
    net.connect()
    connection = only(net)
    connection.close()
    connection.close()
    connection.send(b"late")
    assert not connection.is_open
    net.shell.flush()
    assert not net.shell.connections
    connection.send(b"later")
    net.shell.flush()


def test_a_peer_that_takes_nothing_is_not_read_beyond_the_bound(stack: ExitStack) -> None:
    net = Net(stack, out_max=1 << 20)
    net.times = 20
    greedy, other = net.connect(receive_buffer=64 << 10), net.connect()
    sent = 0
    for _ in range(100):
        try:
            sent += greedy.send(b"x" * 20_000)
        except BlockingIOError:
            break
        net.turn()
    net.idle()
    connection = next(iter(net.shell.connections.values()))
    assert connection.congested
    assert not connection.mask & IN
    one_read = 256 << 10
    assert connection.out_size <= (1 << 20) + one_read * 20
    seen = len(net.sessions[0].seen)
    assert seen < sent
    other.send(b"me too")
    assert net.read(other, 120) == b"me too" * 20
    assert net.read(greedy, sent * 20) == b"x" * (sent * 20)
    assert len(net.sessions[0].seen) == sent, "it is read again as it takes what it is owed"
    assert connection.out_size == 0


def test_where_all_owe_twice_as_much_as_they_may_those_that_took_nothing_for_longest_are_closed(
    stack: ExitStack, capsys: pytest.CaptureFixture[str]
) -> None:
    net = Net(stack, out_max=100_000, out_total_max=60 << 20)
    answer = b"y" * (40 << 20)
    for _ in range(5):
        net.connect(receive_buffer=4096)
    net.until(lambda: len(net.shell.connections) == 5)
    connections = list(net.shell.connections.values())
    connections[-1].go_first()
    for age, connection in enumerate(connections):
        net.shell.now = time.monotonic() - age / 10  # the last one was owed something first
        connection.send(answer)
        net.shell.flush()
    net.shell.sweep()
    assert [connection.is_open for connection in connections] == [True, False, False, False, True]
    assert "all together are owed too much" in capsys.readouterr().out
    assert net.shell.budget.size <= 60 << 20


def test_a_connection_that_goes_first_is_read_whatever_others_owe(stack: ExitStack) -> None:
    net = Net(stack, out_max=100_000, out_total_max=1 << 20)
    net.connect(receive_buffer=4096)
    net.connect(receive_buffer=4096)
    net.until(lambda: len(net.shell.connections) == 2)
    greedy, member = net.shell.connections.values()
    member.go_first()
    greedy.send(b"y" * (14 << 20))
    member.send(b"y" * 10)
    net.shell.flush()
    assert greedy.budget.limit == 0
    member.send(b"y" * 50_000)
    assert not member.congested


def test_requests_put_off_are_resumed_when_the_peer_has_taken_enough(stack: ExitStack) -> None:
    net = Net(stack, out_max=100_000)
    client = net.connect(receive_buffer=64 << 10)
    only(net).send(b"y" * 8_000_000)
    net.sessions[0].has_backlog = True
    net.shell.flush()
    net.idle()
    assert net.sessions[0].has_backlog
    assert net.read(client, 8_000_007)[-7:] == b"resumed"


def test_a_closed_connection_leaves_nothing_for_the_collector() -> None:
    """The collector hardly ever runs in a broker: what a peer left behind has to go with its connection."""

    def sessions() -> int:
        return sum(isinstance(thing, Session) for thing in gc.get_objects())

    gc.collect()
    gc.disable()
    before = sessions()
    try:
        left, right = socket.socketpair()
        shell = Shell(Turns())
        connection = Connection(shell, left, ("127.0.0.1", 1))
        session = Session(connection, Handlers(), lambda _session: None, budget=IncomingBudget(lambda: 0))
        connection.session = session
        connection.raw_receiver = cast("Callable[[memoryview], None]", session.receive)
        shell.connections[connection.fd] = connection
        shell.epoll.register(connection.fd, 1)
        session.receive((1_000_000).to_bytes(4, "big") + bytes(100_000))
        assert sessions() == before + 1
        connection.close()
        shell.flush()
        del session, connection
        assert sessions() == before
        right.close()
        shell.close()
    finally:
        gc.enable()
