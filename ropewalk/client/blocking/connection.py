"""The blocking shell: one core over one plain socket, for scripts, executors and the command line.

`call` asks and waits. `start`, `poll_answer` and `wait` are the same in pieces, so that many requests can
be under way on one connection; answers come in any order and are kept until they are taken.

The socket is non-blocking underneath, and a write that does not fit reads in the meantime: a peer
that waits for us to take its answers would otherwise never take our requests.

A `Connection` belongs to one thread. After an error it stays closed; make another one. An exception from elsewhere that
arrives in the middle of a read or write (a signal handler's, Ctrl-C, a timeout of gevent's) is such an error: nobody
knows how much of a frame has left or was read.
"""

from __future__ import annotations

import select
import socket
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType
from typing import Final

from ropewalk.client.core.addresses import Address, parse_address
from ropewalk.client.core.connection import (
    PeerRequestHandler,
    RemotingCore,
    Response,
    Unreachable,
    check_waiting_replies,
    refuse_peer_request,
)
from ropewalk.client.fork import renew_after_fork
from ropewalk.client.machine import clock
from ropewalk.client.resolver import resolve
from ropewalk.errors import OutcomeUnknown, RemoteProtocolError
from ropewalk.format.remoting import Command, encode_frame

READ_SIZE = 256 * 1024
TIMEOUT_S = 3.0
"""Seconds to connect, and seconds to wait for an answer, as the official clients do."""
QUIET_S = 0.01
"""After so long without a read, whoever is about to write first looks whether the peer has hung up."""
_HAS_POLL: Final = hasattr(select, "poll")  # Windows has none, and no limit to what `select` takes


def _connected(address: Address, timeout_s: float) -> socket.socket:
    """Return a connected socket. All addresses of a host share the time. Raises OSError, ValueError, `Unreachable`."""
    deadline = clock() + timeout_s
    found = resolve(address.host, timeout_s)
    failure: OSError = TimeoutError()
    for place, (_, ip) in enumerate(found):
        share = (deadline - clock()) / (len(found) - place)
        try:
            return socket.create_connection((ip, address.port), max(share, 0.001))
        except OSError as exc:
            failure = exc
    raise failure


class Connection:
    """A connection to one name server or broker."""

    def __init__(
        self,
        address: Address | str,
        timeout: float = TIMEOUT_S,
        *,
        on_request: PeerRequestHandler = refuse_peer_request,
        connect_timeout: float | None = None,
    ) -> None:
        """Connect, within `connect_timeout` or `timeout` seconds. Raises `Unreachable`."""
        self.address = address if isinstance(address, Address) else parse_address(address)
        self.timeout = timeout
        self._on_request = on_request
        self._core = RemotingCore()
        self._answers: dict[int, Command] = {}
        self._replies: deque[bytes] = deque()
        """Frames of answers to the peer's own requests, to be written."""
        self._closed_because: str | None = None
        try:
            self._socket = _connected(self.address, timeout if connect_timeout is None else connect_timeout)
        except OSError as exc:
            raise Unreachable(f"cannot connect to {self.address}: {_reason(exc)}") from exc
        except ValueError as exc:  # a peer may call another one by a name that no host can have
            raise Unreachable(f"cannot connect to {self.address}: {exc}") from exc
        renew_after_fork(self)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        peer = self._socket.getpeername()
        self.remote_address = Address(str(peer[0]), int(peer[1]))
        """The other end, as this end's socket has it: an IP and a port."""
        self._heard_at = clock()

    @property
    def closed(self) -> bool:
        return self._closed_because is not None

    @property
    def ignored_count(self) -> int:
        """Answers that came after their asker had given up."""
        return self._core.ignored_count

    def fileno(self) -> int:
        return self._socket.fileno()

    def call(self, command: Command, timeout: float | None = None) -> Command:
        """Send a request, and return its answer with any code.

        Raises `OutcomeUnknown` when no answer came in time or the connection broke, and
        `Unreachable` when the request never left.
        """
        return self.wait(self.start(command), timeout)

    def start(self, command: Command) -> int:
        """Send a request without waiting. Returns what `poll_answer` and `wait` know its answer by."""
        self._require_open()
        opaque, frame = self._core.request(command)
        self._write(frame)
        return opaque

    def oneway(self, command: Command) -> None:
        """Send a request that the peer will not answer."""
        self._require_open()
        self._write(self._core.oneway(command))

    def poll_answer(self, opaque: int) -> Command | None:
        """Return the answer, if it has been taken in already. Reads nothing from the socket.

        Raises `OutcomeUnknown` when it can no longer come.
        """
        answer = self._answers.pop(opaque, None)
        if answer is None and self._closed_because is not None:
            raise OutcomeUnknown(f"no answer from {self.address}: {self._closed_because}")
        return answer

    def wait(self, opaque: int, timeout: float | None = None) -> Command:
        """Wait for an answer. When time is up the request is forgotten and `OutcomeUnknown` raised."""
        seconds = self.timeout if timeout is None else timeout
        deadline = clock() + seconds
        try:
            while (answer := self.poll_answer(opaque)) is None:
                remaining = deadline - clock()
                if remaining <= 0:
                    raise OutcomeUnknown(f"no answer from {self.address} within {seconds:g} s")
                self.receive(remaining)
        except BaseException:
            self.forget(opaque)
            raise
        return answer

    def forget(self, opaque: int) -> None:
        """Give up on a request: its answer will be dropped, or is dropped now."""
        if not self._core.forget(opaque):
            self._answers.pop(opaque, None)

    def receive(self, timeout: float) -> None:
        """Receive the frames that arrive within `timeout` seconds; returns after the first read."""
        if self._closed_because is None and _ready(self._socket, timeout)[0]:
            self._read()
            if self._replies:
                self._answer_peer()

    @property
    def is_quiet(self) -> bool:
        """Tell whether the connection is gone, or was silent for so long that it may be."""
        return self._closed_because is not None or clock() - self._heard_at > QUIET_S

    def detect_close(self) -> None:
        """Notice a peer that hung up while we were silent; costs next to nothing while there is traffic."""
        if clock() - self._heard_at > QUIET_S:
            self.receive(0)

    def close(self) -> None:
        """Hang up. What is under way will never be answered; closing twice is harmless."""
        self._close("the connection was closed by this program")

    def _renew(self) -> None:
        """Let go of the socket in a child process: it is the parent's, for whom it stays open."""
        self._answers.clear()
        self._close("this process was forked: the connection is its parent's")

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _require_open(self) -> None:
        if self._closed_because is not None:
            raise Unreachable(f"the connection to {self.address} is gone: {self._closed_because}")

    def _write(self, frame: bytes) -> None:
        try:
            self._write_whole(frame)
        except BaseException as exc:
            self._close(f"a request was interrupted by {exc!r}")
            raise

    def _write_whole(self, frame: bytes) -> None:
        deadline = clock() + self.timeout
        rest = memoryview(frame)
        while rest:
            try:
                rest = rest[self._socket.send(rest) :]
                continue
            except (BlockingIOError, InterruptedError):
                pass
            except OSError as exc:
                self._close(_reason(exc))
                raise OutcomeUnknown(f"{self.address} hung up during a request: {_reason(exc)}") from exc
            remaining = deadline - clock()
            if remaining <= 0:
                # Half a frame is out: whatever we wrote next would be taken for its other half.
                self._close("it did not take a request in time")
                raise OutcomeUnknown(f"{self.address} did not take a request within {self.timeout:g} s")
            if _ready(self._socket, remaining, writing=True)[0]:
                self._read()
                if self._closed_because is not None:
                    raise OutcomeUnknown(f"{self.address} hung up: {self._closed_because}")

    def _read(self) -> None:
        try:
            self._read_once()
        except BaseException as exc:
            self._close(f"a read was interrupted by {exc!r}")
            raise

    def _read_once(self) -> None:
        try:
            data = self._socket.recv(READ_SIZE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as exc:
            self._close(_reason(exc))
            return
        if not data:
            self._close("the peer closed the connection")
            return
        self._heard_at = clock()
        try:
            for event in self._core.feed(data):
                if isinstance(event, Response):
                    self._answers[event.opaque] = event.command
                else:
                    self._hear_request(event.command)
        except RemoteProtocolError as exc:
            self._close(f"the peer broke the protocol: {exc}")

    def _hear_request(self, request: Command) -> None:
        reply = self._on_request(request)
        if reply is not None and not request.is_oneway:
            self._replies.append(encode_frame(reply))
            check_waiting_replies(len(self._replies))

    def _answer_peer(self) -> None:
        # Apart from `_read`, which also runs while one of our own frames is half written: there is
        # no place for a reply inside it.
        while self._replies and not self.closed:
            with suppress(OutcomeUnknown):  # closed now, which those hear who wait for an answer of their own
                self._write(self._replies.popleft())

    def _close(self, reason: str) -> None:
        if self._closed_because is None:
            self._closed_because = reason
            self._core.fail()
            self._socket.close()


def receive_any(connections: Iterable[Connection], timeout: float) -> None:
    """Wait until at least one connection has something, and take it in; return when time is up."""
    waited_for = list(connections)
    if any(connection.closed for connection in waited_for):
        return  # its askers must hear of it now, not after the wait
    if len(waited_for) == 1:
        waited_for[0].receive(timeout)
        return
    if not _HAS_POLL:
        readable, _, _ = select.select(waited_for, (), (), timeout)
    else:
        poll = select.poll()
        by_fileno = {connection.fileno(): connection for connection in waited_for}
        for fileno in by_fileno:
            poll.register(fileno, select.POLLIN)
        readable = [by_fileno[fileno] for fileno, _ in poll.poll(timeout * 1000)]
    for connection in readable:
        connection.receive(0)


def _ready(sock: socket.socket, timeout: float, *, writing: bool = False) -> tuple[bool, bool]:
    """Whether a socket can be read, and written if that is asked for; waits until either, or time is up.

    A socket whose peer is gone counts as readable: reading tells why. Not `selectors`, which costs a call 3 us more.
    """
    if not _HAS_POLL:
        readable, writable, _ = select.select((sock,), (sock,) if writing else (), (), timeout)
        return bool(readable), bool(writable)
    poll = select.poll()
    poll.register(sock, select.POLLIN | select.POLLOUT if writing else select.POLLIN)
    for _, events in poll.poll(timeout * 1000):
        return bool(events & ~select.POLLOUT), bool(events & select.POLLOUT)
    return False, False


def _reason(exc: OSError) -> str:
    if isinstance(exc, TimeoutError):
        return "it does not answer in time"
    return exc.strerror or str(exc)
