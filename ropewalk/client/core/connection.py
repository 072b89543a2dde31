"""The sans-IO heart of a remoting connection: requests out, bytes in, events back.

One `RemotingCore` serves one connection. The two directions of a connection are independent name
spaces: what we ask is matched to its answer by `opaque`, what the peer asks carries the peer's own
`opaque` and is told apart by the response bit alone.

Invariants:
  * an opaque is in the table from the moment its bytes were handed out until its answer came, its
    asker gave up (`forget`), or the connection died (`fail`);
  * no two requests in the table share an opaque, however often the counter wraps;
  * an answer to an opaque that is not in the table is ordinary weather (the asker gave up): it is
    counted and dropped, and never raises.

The core reads no clock and no socket. Time limits and the order of writes belong to the shells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from ropewalk.codes import FrameFlag, ResponseCode
from ropewalk.errors import RemoteProtocolError, RopewalkError
from ropewalk.format.remoting import FRAME_SIZE_MAX, Command, FrameBuffer, decode_frame, encode_frame

OPAQUE_MAX = 0x7FFF_FFFF
"""The counter stays positive: the wire allows any i32, people reading a capture prefer these."""


class Unreachable(RopewalkError):
    """No peer answers at an address, or the connection is already gone. The request never left."""


class NoMaster(Unreachable):
    """A broker set has no master at the moment: its leader died, or it restarts."""

    def __init__(self, message: str, brokers: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.brokers = tuple(brokers)
        """The names of the broker sets."""


class NotOpen(Unreachable):
    """A client was used that is not open: before it was opened, after it was closed, or across a fork."""


class Response(NamedTuple):
    """The answer to one of our requests."""

    opaque: int
    command: Command


class PeerRequest(NamedTuple):
    """A request of the peer. Answer with `command.reply(...)` unless it is oneway."""

    command: Command


Event = Response | PeerRequest

PeerRequestHandler = Callable[[Command], Command | None]
"""The handler a shell calls for a request of the peer; it returns a reply, or None where none is due."""


PEER_REPLIES_MAX = 1000
"""Replies to a peer's requests that may wait for being written. Who asks more and reads none is no broker."""


def check_waiting_replies(count: int) -> None:
    """Refuse a peer that does not read our replies and goes on asking. Raises `RemoteProtocolError`."""
    if count > PEER_REPLIES_MAX:
        raise RemoteProtocolError(f"it has more than {PEER_REPLIES_MAX} requests for us and reads no replies")


def refuse_peer_request(request: Command) -> Command | None:
    """Refuse a peer's request with code 3, as a broker would."""
    remark = f" request type {request.code} not supported"
    return request.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)


class RemotingCore:
    """The state of one connection: the requests whose answers are awaited."""

    def __init__(self, frame_size_max: int = FRAME_SIZE_MAX, first_opaque: int = 0) -> None:
        self._frames = FrameBuffer(frame_size_max)
        self._next_opaque = first_opaque
        self._pending: set[int] = set()
        self.ignored_count = 0
        """Answers that came for nobody: late ones, and ones we never asked for."""

    @property
    def pending(self) -> frozenset[int]:
        """The opaques whose answers are still awaited."""
        return frozenset(self._pending)

    def request(self, command: Command) -> tuple[int, bytes]:
        """Enter a request in the table, and return its opaque and the bytes to write.

        `command` is left as it is, so that the same command can be sent again.
        """
        opaque = self._take_opaque()
        frame = encode_frame(command, opaque)
        self._pending.add(opaque)  # last: a command that cannot be encoded leaves no trace
        return opaque, frame

    def oneway(self, command: Command) -> bytes:
        """Return the bytes of a oneway request, which the broker does not answer."""
        return encode_frame(command, self._take_opaque(), command.flag | FrameFlag.ONEWAY)

    def feed(self, data: bytes | bytearray | memoryview) -> list[Event]:
        """Decode the received bytes into events, in the order of the wire.

        Raises `RemoteProtocolError` on bytes that cannot be a frame; the connection is then of no
        further use, since nobody knows where the next frame would begin.
        """
        events: list[Event] = []
        for payload in self._frames.feed(data):
            command = decode_frame(payload)
            if not command.is_response:
                events.append(PeerRequest(command))
            elif command.opaque in self._pending:
                self._pending.remove(command.opaque)
                events.append(Response(command.opaque, command))
            else:
                self.ignored_count += 1
        return events

    def forget(self, opaque: int) -> bool:
        """Stop waiting for an answer. False if it was not awaited: it came, or never was asked for."""
        if opaque not in self._pending:
            return False
        self._pending.remove(opaque)
        return True

    def fail(self) -> tuple[int, ...]:
        """Empty the table of a broken connection, and return the requests whose outcome stays unknown."""
        lost = tuple(sorted(self._pending))
        self._pending.clear()
        return lost

    def _take_opaque(self) -> int:
        # A request that was never answered nor forgotten may still sit at the number the counter
        # reaches after two billion requests; handing it out twice would cross two answers.
        while self._next_opaque in self._pending:
            self._next_opaque = (self._next_opaque + 1) & OPAQUE_MAX
        opaque = self._next_opaque
        self._next_opaque = (opaque + 1) & OPAQUE_MAX
        return opaque
