"""A client's conversation: bytes in, effects out, no socket and no clock of its own.

    receive -> Intake.take_read    what is taken of a read as it came
            -> FrameBuffer         cuts the rest into requests
            -> Intake.take_run     what is taken of them by runs
            -> handle              everything else: one request, one handler of its code
            -> Outbox              what the peer is owed, counted; the only way out (`outbox`)

An *intake* is a quick way for requests that come again and again; without one every request goes through `handle`,
with the same outcome. What it remembers of a client lies in `Session.fast`, which the session keeps and never looks at.

What a peer can do wrong ends in one of two ways. Bytes that are no frame raise `RemoteProtocolError`: there is no
next frame to find, the shell hangs up. Everything else is answered, in the protocol's codes, and the connection
lives on. A oneway request is never answered, not even with an error.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias

import structlog

from broker.remoting.cold_lane import ColdLane, Job, Steps
from broker.remoting.incoming import IncomingBudget
from broker.remoting.outbox import Link, Outbox, Wait, refuse_to_wait
from broker.remoting.request import CommandRequest, LargeAnswer, Request
from broker.remoting.rpc_times import RpcTimes
from ropewalk.codes import FrameFlag, RequestCode, ResponseCode
from ropewalk.errors import RemoteProtocolError
from ropewalk.format.headers import HeaderError
from ropewalk.format.remoting import (
    FRAME_SIZE_MAX,
    JSON,
    ROCKETMQ,
    Command,
    FrameBuffer,
    JsonHeader,
    decode_frame,
    decode_json_header,
    encode_frame,
    plain_json_header,
    split_payload,
)

__all__ = ["PULL_FAMILY", "Handlers", "Intake", "Request", "Session"]

log = structlog.get_logger("broker.session")

_TLS_HELLO = 0x16
_REMARK_MAX = 1000
FRAME_AT_ONCE_MAX = 6 << 20
"""Bytes of a frame that is taken apart as it comes; the largest message of an ordinary broker has 4 MiB."""
HEADER_SIZE_MAX = (1 << 20) + (64 << 10)
HEADER_AT_ONCE_MAX = 40 << 10
"""Bytes of a header that is read as it comes; a larger one is read by the cold lane."""
_COLONS_MAX = 20_000
"""Colons of such a header: there is one for each of its fields."""

_Hot: TypeAlias = "Callable[[Session, Request], None]"
Stepwise: TypeAlias = Generator[None, None, Command | None]
"""An answer in the making: each step costs the loop little, and the answer is what it returns."""
_Cold: TypeAlias = "Callable[[Session, Command], Command | Stepwise | None]"


class Handlers:
    """Which request code is answered by whom.

    A *hot* handler gets a `Request` and owes its answers to the session's outbox. A *cold* one gets a whole
    `CommandRequest` and returns the answer, or None where that comes later or by another way. One whose work is more
    than a moment's is a generator: it yields between two slices, and is served by the cold lane (`cold_lane`).
    """

    def __init__(self) -> None:
        self.hot: dict[int, _Hot] = {}
        self.cold: dict[int, _Cold] = {}

    def without(self, codes: frozenset[int]) -> Handlers:
        """Return the same table less some codes: what the port at P-2 serves."""
        rest = Handlers()
        rest.hot = {code: handler for code, handler in self.hot.items() if code not in codes}
        rest.cold = {code: handler for code, handler in self.cold.items() if code not in codes}
        return rest


PULL_FAMILY = frozenset(
    {
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.ROPEWALK_BULK_PULL,
        RequestCode.POP_MESSAGE,
        RequestCode.PEEK_MESSAGE,
        RequestCode.NOTIFICATION,
        RequestCode.POLLING_INFO,
    }
)


class Intake(Protocol):
    """A quick way in front of `Session.handle`, with the same outcome for all that it takes.

    It may put requests off until the turn ends, and hands what then turns out to need another look to `handle`.
    """

    def take_read(self, session: Session, data: bytes) -> bool:
        """Take a read that is one request; return whether it was taken. Nothing is owed for it yet."""

    def take_run(self, session: Session, payloads: Sequence[bytes], start: int) -> int:
        """Take requests from `start` on; return the index of the first one that is left."""


class Session:
    """The state of one connection."""

    __slots__ = (
        "__weakref__",
        "_backlog",
        "_backlog_at",
        "_budget",
        "_calls",
        "_first",
        "_handlers",
        "_intake",
        "_lane",
        "_on_closed",
        "_opaque",
        "_times",
        "fast",
        "frame_began_ms",
        "frames",
        "held",
        "lane_full",
        "lane_stalled",
        "incoming",
        "link",
        "outbox",
    )

    def __init__(
        self,
        link: Link,
        handlers: Handlers,
        on_closed: Callable[[Session], None],
        *,
        times: RpcTimes | None = None,
        intake: Intake | None = None,
        wait: Wait = refuse_to_wait,
        frame_size_max: int = FRAME_SIZE_MAX,
        budget: IncomingBudget,
        lane: ColdLane | None = None,
    ) -> None:
        """`wait` has answers wait for the log (`Outbox.after`); `times` is where answers are counted.

        Without a `lane` each request is served to its end at once.
        """
        self.link = link
        self.frames = FrameBuffer(frame_size_max)
        self._times = times or RpcTimes()
        self.outbox = Outbox(link, self._times, wait)
        self.fast: Any = None
        """The templates that the intake keeps of this client; only the intake reads them."""
        self.held: dict[Hashable, None] = {}
        """Requests of this session that are held elsewhere, oldest first, for whoever holds them."""
        self._handlers = handlers
        self._intake = intake
        self._on_closed = on_closed
        self._opaque = 0
        self._calls: dict[int, Callable[[Command | None], None]] = {}
        self._first = True
        self._backlog: list[bytes] = []
        self._backlog_at = 0.0
        self._budget = budget
        self.incoming = 0
        """Bytes of unfinished requests that are kept, as the budget knows them."""
        self.frame_began_ms = 0
        self._lane = lane
        self.lane_full = False
        """Whether so many of its requests wait in the lane that the rest of a read is kept here."""
        self.lane_stalled = False
        """Whether its requests in the lane wait until the peer has taken its answers."""

    @property
    def is_open(self) -> bool:
        """Tell whether the connection is there."""
        return self.outbox.is_open

    # -- in ------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Handle bytes that arrived, and owe the answers. Raises `RemoteProtocolError`. HOT."""
        if self._first and data:
            self._first = False
            if data[0] == _TLS_HELLO:
                raise RemoteProtocolError("a TLS hello, but TLS is not built yet: connect without TLS")
        self.outbox.read_at = self._times.at
        if self._intake is not None and not self._backlog and self._intake.take_read(self, data):
            return
        try:
            payloads: Sequence[bytes] = self.frames.feed_alike(data) or self.frames.feed(data)
            if self.frames.buffered or self.incoming:
                self._budget.count(self, self.frames.buffered, anew=bool(payloads))
            if self._backlog:
                payloads = [*self._backlog, *payloads]
                self._backlog = []
                self.outbox.read_at = self._backlog_at
            self._work_through(payloads)
        finally:
            self.outbox.flush()

    def _work_through(self, payloads: Sequence[bytes]) -> None:
        """Handle requests in order, until the peer is owed more than it may be: the rest waits for `resume`.

        One read can hold hundreds of pulls, each with an answer a thousand times its size.
        """
        index, count = 0, len(payloads)
        while index < count:
            if self._intake is not None:
                index = self._intake.take_run(self, payloads, index)
                if index == count:
                    return
            if self.link.congested or self.lane_full:
                if self.lane_full:
                    self.link.pause()
                self._backlog = list(payloads[index:])
                self._backlog_at = self.outbox.read_at
                kept = self.frames.buffered + sum(map(len, self._backlog))
                self._budget.count(self, kept, anew=True)
                return
            self.handle(payloads[index])
            index += 1

    @property
    def has_backlog(self) -> bool:
        """Tell whether requests wait until the peer has taken its answers."""
        return bool(self._backlog) or self.lane_stalled

    def resume(self) -> None:
        """Resume after the peer has taken its answers: go on with what it had asked before."""
        if self.lane_stalled and self._lane is not None:
            self._lane.resume(self)
        if self._backlog and not self.lane_full:
            self.receive(b"")

    def go_on(self) -> Steps:
        """Resume after the lane has served all requests of this session that waited in it."""
        self.lane_full = False
        self.link.go_on()
        self.resume()
        yield from ()

    # -- for the budget of all sessions --------------------------------------------------------------

    @property
    def peer_host(self) -> str:
        """Return the address of the peer."""
        return self.link.peer[0]

    @property
    def congested(self) -> bool:
        """Tell whether the peer is not read at the moment, or has requests that wait for it to take answers."""
        return self.link.congested or bool(self._backlog)

    @property
    def frame_size(self) -> int:
        """Return the size of the frame that has begun to arrive."""
        return self.frames.expected

    def discard_incoming(self, reason: str) -> None:
        """Forget kept bytes of requests, and close the connection: what still arrives of them is no frame."""
        self.frames.refuse(reason)
        self._backlog = []
        self.link.close()

    def handle(self, payload: bytes) -> None:
        """Handle one request by itself, or the answer to a request of the broker's. Raises `RemoteProtocolError`."""
        if len(payload) > FRAME_AT_ONCE_MAX:
            self._take_steps(len(payload), self._split(payload), self._without_body(payload), later=True)
            return
        serialize_type, header_bytes, body = split_payload(payload)
        header: JsonHeader | Command | None
        if len(header_bytes) > HEADER_AT_ONCE_MAX:
            self._take_steps(
                len(payload), self._read_header(payload, serialize_type, header_bytes, body), None
            )
            return
        if serialize_type == JSON:
            header = plain_json_header(header_bytes)
            if header is None:
                self._take_steps(len(payload), self._read_header(payload, JSON, header_bytes, body), None)
                return
        elif serialize_type == ROCKETMQ:
            header = decode_frame(payload)
        else:
            raise RemoteProtocolError(f"serialize type {serialize_type} is unknown")
        steps, request = self._handle_decoded(payload, header, body)
        if steps is not None:
            self._take_steps(len(payload), steps, request)

    def _handle_decoded(
        self, payload: bytes, header: JsonHeader | Command, body: bytes
    ) -> tuple[Steps | None, Request | None]:
        """Handle a request that is hot; return the steps of any other one."""
        if header.flag & FrameFlag.RESPONSE:
            answered = self._calls.pop(header.opaque, None)
            if answered is not None:  # else nobody waits any more
                answered(decode_frame(payload))
            return None, None
        request = Request(header, body, self.outbox.read_at)
        hot = self._handlers.hot.get(header.code)
        if hot is None:
            return self._handle_cold(request), request
        try:
            hot(self, request)
        except Exception as exc:
            self._answer_failure(request, exc)
        return None, None

    def _without_body(self, payload: bytes) -> Request | None:
        """Return the request of a large frame without its body, to refuse it by; None if its header is no plain one."""
        size = int.from_bytes(payload[1:4], "big")
        if payload[0] != JSON or size > HEADER_AT_ONCE_MAX:
            return None
        header = plain_json_header(payload[4 : 4 + size])
        if header is None or header.flag & FrameFlag.RESPONSE:
            return None
        return Request(header, b"", self.outbox.read_at)

    def _split(self, payload: bytes) -> Steps:
        """Handle a request whose copying alone takes a good part of a turn: in turns of its own."""
        serialize_type, header_bytes, body = split_payload(payload)
        yield
        yield from self._read_header(payload, serialize_type, header_bytes, body)

    def _read_header(self, payload: bytes, serialize_type: int, header_bytes: bytes, body: bytes) -> Steps:
        """Handle a request whose header is large, or no plain JSON."""
        size = len(header_bytes)
        if size > HEADER_SIZE_MAX:
            raise RemoteProtocolError(f"a header of {size} bytes; at most {HEADER_SIZE_MAX} are read")
        if size > HEADER_AT_ONCE_MAX and len(header_bytes.split(b":", _COLONS_MAX)) > _COLONS_MAX:
            raise RemoteProtocolError(f"a header of {size} bytes with more than {_COLONS_MAX} fields")
        header = decode_json_header(header_bytes) if serialize_type == JSON else decode_frame(payload)
        yield
        steps, _request = self._handle_decoded(payload, header, body)
        if steps is not None:
            yield from steps

    def _handle_cold(self, request: Request) -> Steps:
        """Handle a request that is not hot."""
        try:
            cold = self._handlers.cold.get(request.code)
            if cold is None:
                self.answer(
                    request,
                    ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                    f" request type {request.code} not supported",
                )
                return
            answer_to = self._command(request)
            answer = cold(self, answer_to)
            if isinstance(answer, Generator):
                answer = yield from answer
            if isinstance(answer, LargeAnswer):
                self.outbox.send(answer_to, answer)
            elif answer is not None:
                self.outbox.now(request, answer.code, encode_frame(answer))
        except Exception as exc:
            self._answer_failure(request, exc)

    def serve_in_steps(self, request: Request, steps: Steps, size: int) -> None:
        """Serve a hot request that takes longer than most in the lane; the request keeps `size` bytes meanwhile."""
        self._take_steps(size, self._guarded(request, steps), request)

    def _guarded(self, request: Request, steps: Steps) -> Steps:
        try:
            yield from steps
        except Exception as exc:
            self._answer_failure(request, exc)

    def answer_in_steps(self, request: Command, steps: Stepwise, *, must_end: bool = False) -> None:
        """Answer a request in steps that begin now: what they need came from elsewhere.

        With `must_end` all steps are taken, whether or not somebody reads the answer.
        """
        if self.is_open or must_end:
            self._take_steps(1, self._send_made(request, steps), request, must_end=must_end)

    def _send_made(self, request: Command, steps: Stepwise) -> Steps:
        answer = yield from steps
        if answer is not None:
            self.outbox.send(request, answer)

    def _take_steps(
        self,
        size: int,
        steps: Steps,
        request: Request | Command | None,
        *,
        later: bool = False,
        must_end: bool = False,
    ) -> None:
        if self._lane is None:
            for _ in steps:
                pass
            return
        refuse = partial(self._refuse_busy, request)
        job = Job(steps, size, self.outbox.read_at, refuse, must_end)
        self._lane.serve(self, job, later=later)

    def _refuse_busy(self, request: Request | Command | None) -> None:
        if request is None:
            self.link.close()  # a header that was not read has no number that an answer could name
            return
        remark = "[OVERLOAD]system busy, too many large requests wait"
        if isinstance(request, Command):
            self.outbox.send(request, request.reply(ResponseCode.SYSTEM_BUSY, remark))
            return
        self.answer(request, ResponseCode.SYSTEM_BUSY, remark)
        self.outbox.flush()

    def _answer_failure(self, request: Request, exc: Exception) -> None:
        """Answer that a handler has failed; raises what is not of this request alone."""
        if isinstance(exc, HeaderError):
            self.answer(request, ResponseCode.SYSTEM_ERROR, str(exc))
            return
        if isinstance(exc, (RemoteProtocolError, OSError)):
            raise exc  # the disk, not the request: the process decides
        log.exception("a request handler failed", code=request.code, peer=self.link.peer)
        # Whatever the text quotes, this answer has to leave: no lone surrogates, no megabytes.
        text = f"{type(exc).__name__}: {exc}"[:_REMARK_MAX]
        self.answer(request, ResponseCode.SYSTEM_ERROR, text.encode("utf-8", "replace").decode())

    def _command(self, request: Request) -> Command:
        return CommandRequest(
            code=request.code,
            ext=request.fields(),
            body=request.body,
            opaque=request.opaque,
            flag=request.flag,
            language=request.language if isinstance(request.language, str) else "OTHER",
            version=request.version,
            serialize_type=request.serialize_type,
            read_at=request.read_at,
        )

    # -- out -----------------------------------------------------------------------------------------

    def answer(
        self, request: Request, code: int, remark: str | None = None, ext: dict[str, str] | None = None
    ) -> None:
        """Owe an answer without a body, together with all of this read."""
        self.outbox.now(request, code, request.reply(code, remark, ext))

    def push(self, code: int, ext: Mapping[str, str], body: bytes = b"") -> None:
        """Send the client a oneway request of the broker's own."""
        self._send_own(Command(code=code, ext=dict(ext), body=body, flag=FrameFlag.ONEWAY))

    def ask(
        self, code: int, ext: Mapping[str, str], body: bytes, answered: Callable[[Command | None], None]
    ) -> int:
        """Send the client a request of the broker's own; return its opaque.

        `answered` is called once: with the answer, or with None when the connection ends or `give_up` comes first.
        Who waits for how long is for the caller to say (`broker.waiting.client_calls`).
        """
        opaque = self._send_own(Command(code=code, ext=dict(ext), body=body))
        self._calls[opaque] = answered
        return opaque

    def give_up(self, opaque: int) -> None:
        """Stop waiting for an answer; one that still comes is dropped."""
        answered = self._calls.pop(opaque, None)
        if answered is not None:
            answered(None)

    def _send_own(self, request: Command) -> int:
        self._opaque = request.opaque = (self._opaque + 1) & 0x7FFFFFFF
        self.outbox.write(encode_frame(request))
        return self._opaque

    def handled_by(self, *tables: Handlers) -> bool:
        """Tell whether requests are handled by one of these tables."""
        return any(self._handlers is table for table in tables)

    def closed(self) -> None:
        """Release everything of a connection that is gone.

        What was kept for it goes now, and not when a collector looks at it.
        """
        self.outbox.is_open = False
        if self._lane is not None:
            self._lane.release(self)
        self._on_closed(self)
        self._budget.count(self, 0, anew=True)
        self.frames = FrameBuffer()
        self._backlog = []
        for opaque in list(self._calls):
            self.give_up(opaque)
