"""The shell on real sockets: what peers can do to it, and that none of it reaches the others."""

import errno
import gc
import os
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from types import SimpleNamespace
from typing import cast

import pytest
import trio
import trio.testing

from broker.broker import Broker
from broker.remoting import shell as serve
from broker.remoting.session import Handlers, Session
from broker.remoting.shell import Connection, Shell
from ropewalk.codes import RequestCode
from ropewalk.errors import RemoteProtocolError
from ropewalk.format.remoting import Command, FrameBuffer, decode_frame
from tests.broker.harness import InProcess, heartbeat_body, pull_ext, request, send_ext
from tests.support.waiting import until

StartBroker = Callable[..., InProcess]
PATIENCE_S = 60.0
V2 = RequestCode.SEND_MESSAGE_V2


class Echo:
    """A session that says everything back, `times` over."""

    def __init__(self, link: Connection, times: int = 1) -> None:
        self.link = link
        self.times = times
        self.seen = bytearray()
        self.has_backlog = False
        self.gone = 0

    def receive(self, data: bytes) -> None:
        if data.startswith(b"garbage"):
            raise RemoteProtocolError("garbage")
        self.seen += data
        self.link.send(data * self.times)

    def resume(self) -> None:
        self.has_backlog = False
        self.link.send(b"resumed")

    def closed(self) -> None:
        self.gone += 1


class Turns:
    """Counts turns, and forwards them to a broker if there is one."""

    def __init__(self, broker: Broker | None = None) -> None:
        self.broker = broker
        self.peer_reply_expected = False
        self.next_turn_s: float | None = None
        self.begun = self.ended = self.woken = self.reports = 0

    def begin_turn(self) -> None:
        self.begun += 1
        if self.broker is not None:
            self.broker.begin_turn()

    def end_turn(self) -> None:
        self.ended += 1
        if self.broker is not None:
            self.broker.end_turn()

    def on_wakeup(self) -> None:
        self.woken += 1
        if self.broker is not None:
            self.broker.on_wakeup()

    def on_priority_served(self) -> None:
        self.reports += 1
        if self.broker is not None:
            self.broker.on_priority_served()


class Net:
    """A shell, driven turn by turn, and clients of it."""

    def __init__(self, stack: ExitStack, turns: Turns | None = None, **options: float) -> None:
        self.turns = turns or Turns()
        self.shell = Shell(self.turns, **options)  # type: ignore[arg-type]
        self.sessions: list[Echo] = []
        self.times = 1
        self._stack = stack
        stack.callback(self.shell.close)
        self.port = self.shell.listen("127.0.0.1", 0, self._make)

    def _make(self, link: Connection) -> Echo:
        self.sessions.append(Echo(link, self.times))
        return self.sessions[-1]

    def connect(self, receive_buffer: int | None = None, port: int | None = None) -> socket.socket:
        client = socket.socket()
        self._stack.callback(client.close)
        if receive_buffer is not None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        client.connect(("127.0.0.1", port or self.port))
        client.setblocking(False)
        count = len(self.shell.connections)
        self.until(lambda: len(self.shell.connections) > count)
        return client

    def turn(self) -> None:
        events = self.shell._epoll.poll(0.002)
        if events:
            self.shell.turn(events)

    def until(self, condition: Callable[[], bool]) -> None:
        until(condition, patience_s=PATIENCE_S, pause_s=0, turn=self.turn)

    def idle(self, seconds: float = 0.03) -> None:
        """Turns until nothing has happened for a while."""
        quiet = time.monotonic() + seconds
        while time.monotonic() < quiet:
            events = self.shell._epoll.poll(0.002)
            if events:
                self.shell.turn(events)
                quiet = time.monotonic() + seconds

    def read(self, client: socket.socket, size: int) -> bytes:
        """Exactly `size` bytes that the client receives while the shell turns."""
        got = bytearray()

        def more() -> bool:
            try:
                data = client.recv(min(1 << 20, size - len(got)))
                assert data, "closed early"
                got.extend(data)
            except BlockingIOError:
                pass
            return len(got) == size

        self.until(more)
        return bytes(got)

    def is_closed(self, client: socket.socket) -> bool:
        """Whether the shell has hung up on the client, who reads whatever is left before."""
        try:
            while client.recv(1 << 20):
                pass
        except BlockingIOError:
            return False
        except ConnectionResetError:
            pass
        return True


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def net(stack: ExitStack) -> Net:
    return Net(stack)


def only(net: Net) -> Connection:
    (connection,) = net.shell.connections.values()
    return connection


# -- ordinary days ------------------------------------------------------------------------------------------


def test_what_is_sent_is_handled_in_a_turn_and_answered_at_its_end(net: Net) -> None:
    client = net.connect()
    client.send(b"hello")
    assert net.read(client, 5) == b"hello"
    assert net.turns.begun == net.turns.ended > 0


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
    assert only(net).mask == serve._IN


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


def test_who_goes_first_is_read_before_all_others_and_what_it_leads_to_has_left_by_then(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = [net.connect() for _ in range(3)]
    waiting, *_, priority_fds = (session.link for session in net.sessions)
    priority_fds.go_first()
    priority_fds.go_first()
    happened: list[tuple[str, int, int, bool]] = []

    def receive(session: Echo, _data: bytes) -> None:
        if session.link is priority_fds:
            waiting.send(b"answer")
        who = "first" if session.link is priority_fds else "other"
        happened.append((who, net.turns.reports, waiting.out_size, session.link.sole_ready))

    monkeypatch.setattr(Echo, "receive", receive)

    def turn(*senders: socket.socket) -> list[tuple[str, int, int, bool]]:
        happened.clear()
        for sender in senders:
            sender.send(b"x")
        net.shell.turn(net.shell._epoll.poll(1))
        return list(happened)

    before = net.turns.begun
    assert turn(*clients) == [("first", 0, 6, False), ("other", 1, 0, False), ("other", 1, 0, False)]
    assert turn(clients[1], clients[2]) == [("first", 1, 6, False), ("other", 2, 0, True)]
    assert turn(clients[2]) == [("first", 2, 6, True)]
    assert turn(clients[0], clients[1]) == [("other", 2, 0, False)] * 2
    assert net.turns.begun == net.turns.ended == before + 4, "all of it is one turn"
    assert net.turns.reports == 2, "where there are no others, the turn just ends"
    assert net.read(clients[0], 18) == b"answer" * 3
    clients[2].close()
    net.until(lambda: not net.shell.priority_fds)


def test_a_wake_from_another_thread_becomes_a_turn(net: Net) -> None:
    net.shell.wake()
    net.shell.wake()
    net.until(lambda: net.turns.woken > 0)
    net.idle()
    assert net.turns.woken == 1


@pytest.mark.trio
@pytest.mark.parametrize("chatty", [False, True])
async def test_no_wake_is_lost_whatever_the_loop_does_meanwhile(
    net: Net, monkeypatch: pytest.MonkeyPatch, chatty: bool
) -> None:
    """The thread waits until each wake has been heard: if that gets lost, no later one makes up for it."""
    left: deque[threading.Event] = deque()
    over = threading.Event()

    def on_wakeup() -> None:
        while left:
            left.popleft().set()

    def chat(client: socket.socket) -> None:
        while chatty and not over.is_set():
            client.sendall(b"x")
            client.recv(1)

    def wake_again_and_again() -> int:
        try:
            for n in range(600):
                left.append(threading.Event())
                heard = left[-1]
                net.shell.wake()
                if not heard.wait(PATIENCE_S):
                    return n
                time.sleep((0, 0.0001, 0.002)[n % 3])  # at work, looking, and asleep
            return 600
        finally:
            over.set()

    monkeypatch.setattr(net.turns, "on_wakeup", on_wakeup)
    client = net.connect()
    client.settimeout(PATIENCE_S)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(net.shell.run)
        nursery.start_soon(trio.to_thread.run_sync, chat, client)
        assert await trio.to_thread.run_sync(wake_again_and_again) == 600
        await trio.sleep(0.05)
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_a_wake_during_the_last_turn_before_others_have_theirs_is_heard(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = net.connect()
    monkeypatch.setattr(serve, "_HOLD_MAX_S", 0.0)
    heard = trio.Event()
    monkeypatch.setattr(net.turns, "on_wakeup", heard.set)
    monkeypatch.setattr(net.turns, "end_turn", lambda: None if heard.is_set() else net.shell.wake())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(net.shell.run)
        client.sendall(b"x")
        with trio.fail_after(PATIENCE_S):
            await heard.wait()
        nursery.cancel_scope.cancel()


@pytest.mark.trio
@pytest.mark.parametrize("wait_s", [0.0, 0.0001])
async def test_turns_go_on_without_events_while_they_are_wanted_and_others_are_heard_meanwhile(
    net: Net, monkeypatch: pytest.MonkeyPatch, wait_s: float
) -> None:
    """Also beyond the time for which the loop is held at once."""
    monkeypatch.setattr(serve, "_HOLD_MAX_S", 0.002)
    echoed, over = trio.Event(), trio.Event()

    def end_turn() -> None:
        net.turns.ended += 1
        if net.sessions and net.sessions[0].seen:
            echoed.set()
        if net.turns.ended == 500:
            net.turns.next_turn_s = None
            over.set()

    monkeypatch.setattr(net.turns, "end_turn", end_turn)
    net.turns.next_turn_s = wait_s
    client = net.connect()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(net.shell.run)
        client.sendall(b"x")
        with trio.fail_after(PATIENCE_S):
            await echoed.wait()
            await over.wait()
        await trio.testing.wait_all_tasks_blocked()
        ended = net.turns.ended
        await trio.sleep(0.01)
        assert net.turns.ended == ended, "and they end when none is wanted any more"
        nursery.cancel_scope.cancel()
    assert net.shell.idle_s >= wait_s * 100, "time without an event is not time of work"


def test_an_ipv4_peer_is_known_as_one_also_where_both_families_are_listened_to(net: Net) -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::", 0))
    except OSError:
        pytest.skip("this machine has no IPv6")
    port = net.shell.listen("::", 0, net._make)
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
        connection = await net.shell.dial("name", 1, net._make, 5.0)
        assert connection.peer == ("127.0.0.1", net.port)
        places.pop()
        with pytest.raises(ConnectionRefusedError):
            await net.shell.dial("name", 1, net._make, 5.0)


def test_a_port_in_use_is_an_error_that_says_so(net: Net) -> None:
    with pytest.raises(OSError, match="in use") as caught:
        net.shell.listen("127.0.0.1", net.port, net._make)
    assert caught.value.errno == errno.EADDRINUSE


# -- ends -----------------------------------------------------------------------------------------------


def test_a_peer_that_closes_is_forgotten_and_its_session_told_once(net: Net) -> None:
    client = net.connect()
    client.close()
    net.until(lambda: not net.shell.connections)
    net.shell.sweep()
    assert net.sessions[0].gone == 1


def test_a_peer_that_closes_its_half_has_what_it_asked_before_handled(net: Net) -> None:
    client = net.connect()
    client.send(b"last words")
    client.shutdown(socket.SHUT_WR)
    assert net.read(client, 10) == b"last words"
    net.until(lambda: not net.shell.connections)
    assert net.is_closed(client)


def test_a_reset_ends_one_connection_and_no_other(net: Net) -> None:
    first, second = net.connect(), net.connect()
    first.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    first.send(b"x")
    first.close()
    net.until(lambda: len(net.shell.connections) == 1)
    second.send(b"still here")
    assert net.read(second, 10) == b"still here"


def test_a_reset_while_it_is_owed_much_ends_it(net: Net) -> None:
    client = net.connect(receive_buffer=2048)
    only(net).send(b"z" * (1 << 20))
    net.shell.flush()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    net.until(lambda: not net.shell.connections)
    assert net.sessions[0].gone == 1


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


def test_closing_the_shell_ends_every_connection_and_session(net: Net) -> None:
    clients = [net.connect() for _ in range(3)]
    net.shell.stop_accepting()
    with socket.socket() as late:
        assert late.connect_ex(("127.0.0.1", net.port)) == errno.ECONNREFUSED
    clients[0].send(b"still served")
    assert net.read(clients[0], 12) == b"still served"


# -- peers that take nothing ------------------------------------------------------------------------------


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
    assert not connection.mask & serve._IN
    one_read = 256 << 10
    assert connection.out_size <= (1 << 20) + one_read * 20
    seen = len(net.sessions[0].seen)
    assert seen < sent
    other.send(b"me too")
    assert net.read(other, 120) == b"me too" * 20
    assert net.read(greedy, sent * 20) == b"x" * (sent * 20)
    assert len(net.sessions[0].seen) == sent, "it is read again as it takes what it is owed"
    assert connection.out_size == 0


def test_requests_put_off_are_resumed_when_the_peer_has_taken_enough(stack: ExitStack) -> None:
    net = Net(stack, out_max=100_000)
    client = net.connect(receive_buffer=64 << 10)
    only(net).send(b"y" * 8_000_000)
    net.sessions[0].has_backlog = True
    net.shell.flush()
    net.idle()
    assert net.sessions[0].has_backlog
    assert net.read(client, 8_000_007)[-7:] == b"resumed"


class HandSet:
    """The clock of a shell, moved by the test: a machine that stands still for a while makes nobody late."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(serve, "time", SimpleNamespace(monotonic=lambda: self.now))

    def pass_time(self, seconds: float) -> None:
        """So much on this clock, and at least as much in the kernel."""
        time.sleep(seconds)
        self.now += seconds


def test_the_time_without_anything_to_do_is_counted(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = HandSet(monkeypatch)
    net = Net(stack)
    client = net.connect()
    net.idle()
    before = net.shell.idle_s
    clock.now += 5.0
    assert net.shell.idle_until(clock.now) == before, "a turn takes its time"
    assert net.shell._linger() == []
    clock.now += 2.0
    assert net.shell.idle_until(clock.now) == before + 2.0
    client.send(b"x")
    net.idle()
    assert net.shell.idle_s == before + 2.0


def test_who_takes_nothing_for_too_long_is_closed_and_the_others_stay(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = HandSet(monkeypatch)
    net = Net(stack, stall_s=0.2)
    _silent, slow, idle = (net.connect(receive_buffer=size) for size in (2048, 16 << 10, 2048))
    stalled, reading, quiet = list(net.shell.connections.values())
    for connection in (stalled, reading):
        connection.send(b"z" * 20_000_000)
    net.shell.flush()
    for _ in range(12):
        clock.pass_time(0.04)
        with suppress(BlockingIOError):
            slow.recv(16 << 10)
        net.idle(0.005)
        net.shell.sweep()
    assert set(net.shell.connections) == {reading.fd, quiet.fd}
    assert not net.is_closed(idle)
    assert [session.gone for session in net.sessions] == [1, 0, 0]


def test_who_neither_says_nor_gets_anything_for_too_long_is_closed(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = HandSet(monkeypatch)
    net = Net(stack, idle_s=0.2)
    _silent, talks, listens = (net.connect() for _ in range(3))
    silent, talking, listening = list(net.shell.connections.values())
    for _ in range(8):
        clock.pass_time(0.05)
        talks.send(b"x")
        listening.send(b"news")
        net.shell.flush()
        net.idle(0.002)
        net.shell.sweep()
    assert set(net.shell.connections) == {talking.fd, listening.fd}
    assert not silent.is_open
    assert listens.recv(4) == b"news"


# -- too many ----------------------------------------------------------------------------------------------


def test_without_a_descriptor_left_nobody_is_accepted_and_everybody_else_served(
    net: Net, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    inside = net.connect()
    listener, make = net.shell._listeners.popitem()[1]

    class Exhausted:
        def __getattr__(self, name: str) -> object:
            return getattr(listener, name)

        def accept(self) -> tuple[socket.socket, tuple[str, int]]:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    net.shell._listeners[listener.fileno()] = (Exhausted(), make)  # type: ignore[assignment]
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
    net.shell._listeners[listener.fileno()] = (listener, make)
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


# -- with a broker ------------------------------------------------------------------------------------------


@pytest.fixture
def served(start_broker: StartBroker, stack: ExitStack) -> Net:
    running = start_broker()
    net = Net(stack, Turns(running.broker))
    net.port = net.shell.listen("127.0.0.1", 0, running.broker.new_session)
    net.turns.broker = running.broker
    return net


def exchange(net: Net, client: socket.socket, frames: bytes, count: int) -> list[Command]:
    buffer = FrameBuffer()
    answers: list[Command] = []
    client.setblocking(True)
    client.sendall(frames)
    client.setblocking(False)

    def more() -> bool:
        try:
            data = client.recv(1 << 20)
            assert data, "closed early"
            answers.extend(decode_frame(payload) for payload in buffer.feed(data))
        except BlockingIOError:
            pass
        return len(answers) >= count

    net.until(more)
    return answers


def test_a_thousand_idle_connections_do_not_keep_a_producer_waiting(served: Net) -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2300:
        pytest.skip("this machine allows too few descriptors for a thousand connections")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2300), hard))
    try:
        for _ in range(1000):
            served.connect()
        assert len(served.shell.connections) == 1000
        producer = served.connect()
        frames = b"".join(request(V2, send_ext("T"), opaque=n) for n in range(2000))
        started = time.monotonic()
        assert {c.code for c in exchange(served, producer, frames, 2000)} == {0}
        assert time.monotonic() - started < PATIENCE_S / 2
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_consumer_that_asks_for_much_and_takes_nothing_costs_a_bounded_amount(
    start_broker: StartBroker, stack: ExitStack
) -> None:
    running = start_broker(mappedFileSizeCommitLog=8 << 20)
    net = Net(stack, Turns(running.broker), out_max=1 << 20)
    port = net.shell.listen("127.0.0.1", 0, running.broker.new_session)
    producer, greedy = net.connect(port=port), net.connect(receive_buffer=64 << 10, port=port)
    net.until(lambda: len(net.shell.connections) == 2)
    body = b"m" * 60_000
    exchange(net, producer, b"".join(request(V2, send_ext("T"), body, opaque=n) for n in range(8)), 8)
    pulls = b"".join(request(RequestCode.PULL_MESSAGE, pull_ext("T"), opaque=n) for n in range(60))
    greedy.setblocking(True)
    greedy.settimeout(0.1)
    try:
        greedy.sendall(pulls)
    except TimeoutError:
        pytest.fail("sixty pulls fit a socket's buffers")
    greedy.setblocking(False)
    net.idle()
    connection = list(net.shell.connections.values())[1]
    assert connection.out_size < 2 << 20, "one answer beyond the bound and no more"
    assert {c.code for c in exchange(net, producer, request(V2, send_ext("T")), 1)} == {0}
    answers = exchange(net, greedy, b"", 60)
    assert sorted(c.opaque for c in answers) == list(range(60))
    assert {c.code for c in answers} == {0}


def test_a_producer_that_reads_no_answers_is_not_read_beyond_the_bound(
    start_broker: StartBroker, stack: ExitStack
) -> None:
    running = start_broker(mappedFileSizeCommitLog=8 << 20)
    net = Net(stack, Turns(running.broker), out_max=100_000)
    port = net.shell.listen("127.0.0.1", 0, running.broker.new_session)
    client = net.connect(receive_buffer=2048, port=port)
    frames = b"".join(request(V2, send_ext("T"), opaque=n) for n in range(100))
    sent = 0
    for _ in range(2000):
        try:
            sent += client.send(frames)
        except BlockingIOError:
            break
        net.turn()
    else:
        pytest.fail("the broker went on reading")
    net.idle()
    (connection,) = net.shell.connections.values()
    assert connection.congested
    assert connection.out_size < 100_000 + (512 << 10)


def test_members_of_a_group_hear_of_a_connection_that_closed(served: Net) -> None:
    stays, leaves = served.connect(), served.connect()
    for client, name in ((stays, "a"), (leaves, "b")):
        body = heartbeat_body(client_id=name)
        assert exchange(served, client, request(RequestCode.HEART_BEAT, body=body), 1)[0].code == 0
    broker = served.turns.broker
    assert broker is not None
    broker.tick()
    served.shell.flush()
    assert exchange(served, stays, b"", 1)[0].code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
    leaves.close()
    served.until(lambda: len(served.shell.connections) == 1)
    broker.tick()
    served.shell.flush()
    (told,) = exchange(served, stays, b"", 1)
    assert (told.code, told.ext) == (RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "cg"})


def test_a_tls_hello_is_hung_up_on_with_a_line_that_says_why(
    served: Net, capsys: pytest.CaptureFixture[str]
) -> None:
    client = served.connect()
    client.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
    served.until(lambda: not served.shell.connections)
    assert served.is_closed(client)
    assert "TLS" in capsys.readouterr().out


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
        session = Session(connection, Handlers(), lambda _session: None)
        connection.session = session
        connection.raw_receiver = cast("Callable[[memoryview], None]", session.receive)
        shell.connections[connection.fd] = connection
        shell._epoll.register(connection.fd, 1)
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
