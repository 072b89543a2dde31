"""A shell on real sockets that a test drives turn by turn, and clients of it."""

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from broker.broker import Broker
from broker.remoting import connection, event_loop, shell
from broker.remoting.connection import Connection, MakeSession
from broker.remoting.shell import Shell
from broker.remoting.sockets import Kind
from ropewalk.errors import RemoteProtocolError
from tests.support.waiting import until

PATIENCE_S = 60.0


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
        self.now_s = time.monotonic
        self._stack = stack
        stack.callback(self.shell.close)
        self.port = self.listen("127.0.0.1", self.make)

    def listen(self, host: str, make_session: MakeSession, kind: Kind = Kind.CLIENT) -> int:
        """Have clients of another port too."""
        return self.shell.listeners.listen(host, 0, make_session, kind)

    def make(self, link: Connection) -> Echo:
        self.sessions.append(Echo(link, self.times))
        return self.sessions[-1]

    def connect(
        self, receive_buffer: int | None = None, port: int | None = None, source: str = "127.0.0.1"
    ) -> socket.socket:
        """A client whose connection the shell has accepted; `source` is one of the loopback's many addresses."""
        client = socket.socket()
        self._stack.callback(client.close)
        client.bind((source, 0))
        if receive_buffer is not None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        client.connect(("127.0.0.1", port or self.port))
        client.setblocking(False)
        name = client.getsockname()
        self.until(lambda: any(each.peer == name for each in self.shell.connections.values()))
        return client

    def turn(self, patience_s: float = 0.002) -> bool:
        """Have a turn about all that comes soon; return whether anything came."""
        events = self.shell.epoll.poll(patience_s)
        if events:
            self.shell.turn(events, self.now_s())
        return bool(events)

    def until(self, condition: Callable[[], bool]) -> None:
        until(condition, patience_s=PATIENCE_S, pause_s=0, turn=self.turn)

    def idle(self, seconds: float = 0.03) -> None:
        """Turns until nothing has happened for a while."""
        quiet = time.monotonic() + seconds
        while time.monotonic() < quiet:
            if self.turn():
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


def only(net: Net) -> Connection:
    (connection,) = net.shell.connections.values()
    return connection


class HandSet:
    """The clock of a shell, moved by the test: a machine that stands still for a while makes nobody late."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        for module in (connection, event_loop, shell):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=self.read))

    def read(self) -> float:
        return self.now

    def pass_time(self, seconds: float) -> None:
        """So much on this clock, and at least as much in the kernel."""
        time.sleep(seconds)
        self.now += seconds
