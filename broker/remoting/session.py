"""One client's conversation: bytes in, effects out, no socket and no clock of its own.

`receive` cuts what arrived into frames, hands each to the handler of its code, and owes all immediate answers in one
piece. An answer that must wait (for a flush, for a message) is handed to whoever knows when:
`broker.waiting.pending_acks` or `broker.waiting.held_pulls`. Handlers come in two kinds. A *hot* one takes the request
with its typed fields still unread and owes its answers itself; a *cold* one takes a whole `Command` and returns the
answer, or None.

What a peer can do wrong ends in one of two ways. Bytes that are no frame raise `RemoteProtocolError`: there is no
next frame to find, the shell hangs up. Everything else is answered, in the protocol's codes, and the connection
lives on. A oneway request is never answered, not even with an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

import structlog
from msgspec import MsgspecError, Raw, Struct

from broker.remoting.rpc_times import FAILED, ONEWAY, PLAIN, SUCCESS, Kind, RpcTimes
from ropewalk.codes import FrameFlag, RequestCode, ResponseCode
from ropewalk.errors import RemoteProtocolError
from ropewalk.format.headers import HeaderError, decode_header
from ropewalk.format.remoting import (
    FRAME_SIZE_MAX,
    JSON,
    ROCKETMQ,
    Command,
    FrameBuffer,
    JsonHeader,
    decode_ext,
    decode_frame,
    decode_json_header,
    encode_frame,
    split_payload,
)

if TYPE_CHECKING:
    from broker.consume.fast.header_template import PullTemplates
    from broker.produce.fast.header_template import Shapes
    from broker.waiting.held_pulls import HeldPull

log = structlog.get_logger("broker.session")

_NO_FIELDS = Raw(b"")
_H = TypeVar("_H", bound=Struct)
RUN_MAX = 256
"""Requests that a run takes at most, before what it answered leaves."""
_RUN_MIN = 24
"""Half a run has as many, or is not split off: what each costs by itself is then more than its client gains."""
TABLE_MIN = 16
"""Fewer frames are not worth a look at them all together."""
_PULL = b'{"code":11,'
_TLS_HELLO = 0x16
_REMARK_MAX = 1000
_FEW = 16
"""Answers that are made in no time."""

_Hot: TypeAlias = "Callable[[Session, Request], None]"


class Link(Protocol):
    """The connection as a session sees it."""

    peer: tuple[str, int]

    @property
    def congested(self) -> bool:
        """Whether the peer is owed more bytes than it may be."""

    def send(self, data: bytes | memoryview) -> None: ...

    @property
    def alone(self) -> bool:
        """Whether this connection is the only one with anything to say in this turn."""

    def push(self) -> None:
        """Try to have what is owed leave now, and not only when the turn ends; never waits."""

    def close(self) -> None: ...


class Request:
    """One request whose `extFields` are still as they came: JSON text or a table of strings."""

    __slots__ = (
        "body",
        "code",
        "ext",
        "flag",
        "json",
        "language",
        "opaque",
        "read_at",
        "serialize_type",
        "version",
    )

    def __init__(self, header: JsonHeader | Command, body: bytes, read_at: float = 0.0) -> None:
        """`read_at`: when its last byte had been read, by the clock of `rpc_times`."""
        self.code = header.code
        self.opaque = header.opaque
        self.flag = header.flag
        self.version = header.version
        self.language = header.language
        self.body = body
        self.read_at = read_at
        if isinstance(header, JsonHeader):
            self.serialize_type = JSON
            self.json = header.extFields
            self.ext: dict[str, str] | None = None
        else:
            self.serialize_type = ROCKETMQ
            self.ext = header.ext

    @property
    def is_oneway(self) -> bool:
        return self.flag & FrameFlag.ONEWAY != 0

    def header(self, kind: type[_H], decode: Callable[[Raw], _H]) -> _H:
        """The typed header; `decode` is its JSON decoder. Raises `HeaderError`, naming the field. HOT."""
        if self.ext is None:
            try:
                return decode(self.json)
            except (MsgspecError, UnicodeDecodeError, RecursionError):
                pass  # values that are no strings, or a field missing: the tolerant way also names it
        return decode_header(kind, self.fields())

    def forget(self) -> None:
        """Keep only what an answer needs: a request that waits for minutes must not keep megabytes waiting too."""
        self.body = b""
        self.json = _NO_FIELDS
        self.ext = None

    def fields(self) -> dict[str, str]:
        """All extFields as strings."""
        return decode_ext(self.json) if self.ext is None else self.ext

    def reply(self, code: int, remark: str | None = None, ext: dict[str, str] | None = None) -> bytes:
        """The frame of an answer without a body."""
        return encode_frame(
            Command(
                code=code,
                ext=ext or {},
                opaque=self.opaque,
                flag=FrameFlag.RESPONSE,
                remark=remark,
                serialize_type=self.serialize_type,
            )
        )


@dataclass(slots=True)
class Asked(Command):
    """A request as a whole, for handlers that are not hot."""

    read_at: float = 0.0
    """As that of `Request`."""


class Handlers:
    """Which code is answered by whom, and how long that took."""

    def __init__(self, times: RpcTimes | None = None) -> None:
        self.times = times or RpcTimes()
        self.hot: dict[int, _Hot] = {}
        self.run: Callable[[Session, list[bytes], int, int], int] | None = None
        """Takes the run of requests of one kind from one index up to another, and returns the index behind it."""
        self.sends: Callable[[Session, bytes], bool] | None = None
        """Takes a plain send that came alone and is like an earlier one of its client, or leaves it to `run`."""
        self.table: Callable[[Session, bytes, int], bool] | None = None
        """Takes so many frames of one size, if all are plain sends like an earlier one, or leaves them to `run`."""
        self.pulls: Callable[[Session, bytes], bool] | None = None
        """Takes a plain pull that is like an earlier one of its client, or leaves it (False) to `hot`."""
        self.cold: dict[int, Callable[[Command, Session], Command | None]] = {}
        self.hurry: Callable[[], None] | None = None
        """Has what was stored in this turn leave for the slaves that answers wait for, before the turn ends."""

    def without(self, codes: frozenset[int]) -> Handlers:
        """The same table less some codes: what the port at P-2 serves."""
        rest = Handlers(self.times)
        rest.run, rest.sends, rest.table, rest.hurry = self.run, self.sends, self.table, self.hurry
        if RequestCode.PULL_MESSAGE not in codes:
            rest.pulls = self.pulls
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


class Unfinished:
    """Bytes of frames that have begun to arrive, over all connections of a process: strangers can open many."""

    def __init__(self, limit: int = 256 << 20) -> None:
        self.limit = limit
        self.size = 0


class Session:
    """The state of one connection."""

    __slots__ = (
        "_asked",
        "_backlog",
        "_backlog_at",
        "_counted",
        "_first",
        "_frames",
        "_handlers",
        "_on_closed",
        "_opaque",
        "_times",
        "_unfinished",
        "holds",
        "is_open",
        "kinds",
        "link",
        "pulls",
        "put_off",
        "read_at",
        "ready",
        "shapes",
        "wait_for",
        "waiting",
        "waiting_kinds",
    )

    def __init__(
        self,
        link: Link,
        handlers: Handlers,
        on_closed: Callable[[Session], None],
        *,
        frame_size_max: int = FRAME_SIZE_MAX,
        unfinished: Unfinished | None = None,
    ) -> None:
        self.link = link
        self.is_open = True
        self.ready: list[bytes] = []
        """Answers of this read that can leave now."""
        self.waiting: list[bytes] = []
        """Answers of this read that leave when the log is flushed and replicated through `wait_for`."""
        self.kinds: list[Kind] = []
        """What `ready` answers where that is no plain send, in no order (`rpc_times`)."""
        self.waiting_kinds: list[Kind] = []
        """The same for `waiting`."""
        self.read_at = 0.0
        """When the requests at hand had been read."""
        self.wait_for: Callable[[Session], None] | None = None
        self.holds: set[HeldPull] = set()
        self.put_off = False
        """Whether sends of this session are appended only when the turn ends (`broker.produce.fast.runs`)."""
        self.shapes: Shapes | None = None
        """What `broker.produce.send` has learned of this client's headers."""
        self.pulls: PullTemplates | None = None
        """And `broker.consume.pull`."""
        self._handlers = handlers
        self._times = handlers.times
        self._on_closed = on_closed
        self._frames = FrameBuffer(frame_size_max)
        self._opaque = 0
        self._asked: dict[int, Callable[[Command | None], None]] = {}
        self._first = True
        self._backlog: list[bytes] = []
        self._backlog_at = 0.0
        self._unfinished = unfinished or Unfinished()
        self._counted = 0

    # -- in ------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Handle what arrived, and owe the answers. Raises `RemoteProtocolError`."""
        if self._first and data:
            self._first = False
            if data[0] == _TLS_HELLO:
                raise RemoteProtocolError("a TLS hello, but TLS is not built yet: connect without TLS")
        self.read_at = self._times.at
        tried, handlers = False, self._handlers
        count = 0
        if self.shapes is not None and handlers.sends is not None and not self._backlog:
            # One request and nothing else is what most clients send nearly always: there is nothing to cut or to owe.
            if not self._frames.is_whole(data):
                count = self._frames.count_alike(data)
            elif handlers.sends(self, data[4:]):
                return
        if (
            data.startswith(_PULL, 8)
            and not self._backlog
            and not self.put_off
            and handlers.pulls is not None
            and self._frames.is_whole(data)
        ):
            if handlers.pulls(self, data[4:]):
                return
            tried = True
        try:
            if count >= TABLE_MIN and handlers.table is not None:
                data = self._take_tables(data, count)
                if not data:
                    return
            payloads = self._frames.feed(data)
            if self._frames.buffered != self._counted:
                self._count_unfinished(self._frames.buffered)
            if self._backlog:
                payloads = self._backlog + payloads
                self._backlog = []
                self.read_at = self._backlog_at
            self._work_through(payloads, tried=tried)
        finally:
            self.owe()

    def _take_tables(self, data: bytes, count: int) -> bytes:
        """Have what may be frames of one size taken as they are; the bytes that are left are for `feed`. HOT.

        What is taken counts, and may be answered, also where the rest of the read turns out to be no frames.
        """
        table, start = self._handlers.table, 0
        assert table is not None
        size = 4 + int.from_bytes(data[:4], "big")
        while count >= TABLE_MIN:
            run = self._run_of(count)
            end = start + run * size
            if not table(self, data if end - start == len(data) else data[start:end], run):
                break
            start, count = end, count - run
            if count:
                self._pass_on()
        return data[start:]

    def _run_of(self, left: int) -> int:
        """How many of the requests that are left are taken together."""
        if left >= 2 * _RUN_MIN and self.link.alone:
            left = (left + 1) // 2
        return min(left, RUN_MAX)

    def _pass_on(self) -> None:
        """Have the answers of a run leave, or what they wait for. HOT.

        A client with its window full works on these answers while we work on the rest of its requests. When nobody else
        has work for us, halves keep both at work: 1.5 times the rate at 1 x 64. The same goes for slaves that these
        answers wait for: 1.2 times.
        """
        if self.ready:
            self._owe_ready()
            self.link.push()
        if self.waiting and self.wait_for is not None and self._handlers.hurry is not None:
            self.wait_for(self)
            self._handlers.hurry()

    def _count_unfinished(self, buffered: int) -> None:
        unfinished = self._unfinished
        grown = buffered - self._counted
        if grown > 0 and unfinished.size + grown > unfinished.limit:
            raise RemoteProtocolError(
                f"{unfinished.size} bytes of unfinished frames are kept already, of all connections together"
            )
        unfinished.size += grown
        self._counted = buffered

    def owe(self) -> None:
        """Owe the peer what is answered, and have wait what must. HOT."""
        if self.ready:
            self._owe_ready()
        if self.waiting and self.wait_for is not None:
            self.wait_for(self)

    def _owe_ready(self) -> None:
        count, times = len(self.ready), self._times
        self.hand_over()
        if count > _FEW or self.kinds:
            times.add_all(count, self.kinds, times.look() - self.read_at)
            self.kinds = []
        else:
            times.count(times.plain, count, times.at - self.read_at)

    def hand_over(self) -> None:
        """Owe the answers in `ready`, which somebody else counts. HOT."""
        ready = self.ready
        self.link.send(ready[0] if len(ready) == 1 else b"".join(ready))
        self.ready = []

    @property
    def has_backlog(self) -> bool:
        return bool(self._backlog)

    def resume(self) -> None:
        """The peer has taken enough: go on with what it had asked before."""
        if self._backlog:
            self.receive(b"")

    def _work_through(self, payloads: list[bytes], *, tried: bool = False) -> None:
        """Handle requests in order, until the peer is owed more than it may be: the rest waits for `resume`.

        One read can hold hundreds of pulls, each with an answer a thousand times its size. `tried`: there is one
        request, and `Handlers.pulls` has left it.
        """
        run, pulls, link = self._handlers.run, None if tried else self._handlers.pulls, self.link
        index, count = 0, len(payloads)
        while index < count:
            if (
                pulls is not None
                and payloads[index].startswith(_PULL, 4)
                and not self.put_off
                and pulls(self, payloads[index])
            ):
                index += 1
                continue
            if run is not None:
                end = index + self._run_of(count - index)
                index = run(self, payloads, index, end)
                if index == count:
                    return
                if index == end:
                    self._pass_on()
                    continue
            if link.congested:
                self._backlog = payloads[index:]
                self._backlog_at = self.read_at
                return
            self.handle(payloads[index])
            index += 1

    def handle(self, payload: bytes) -> None:
        """One request by itself, or the answer to one of ours. Raises `RemoteProtocolError`."""
        serialize_type, header_bytes, body = split_payload(payload)
        header: JsonHeader | Command
        if serialize_type == JSON:
            header = decode_json_header(header_bytes)
        elif serialize_type == ROCKETMQ:
            header = decode_frame(payload)
        else:
            raise RemoteProtocolError(f"serialize type {serialize_type} is unknown")
        if header.flag & FrameFlag.RESPONSE:
            answered = self._asked.pop(header.opaque, None)
            if answered is not None:  # else nobody waits any more
                answered(decode_frame(payload))
            return
        request = Request(header, body, self.read_at)
        try:
            hot = self._handlers.hot.get(header.code)
            if hot is not None:
                hot(self, request)
                return
            cold = self._handlers.cold.get(header.code)
            if cold is None:
                self.answer(
                    request,
                    ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                    f" request type {header.code} not supported",
                )
                return
            answer = cold(self._command(request), self)
            if answer is not None:
                self.owe_frame(request, answer.code, encode_frame(answer))
        except HeaderError as exc:
            self.answer(request, ResponseCode.SYSTEM_ERROR, str(exc))
        except RemoteProtocolError:
            raise
        except OSError:
            raise  # the disk, not the request: the process decides
        except Exception as exc:
            log.exception("a request handler failed", code=header.code, peer=self.link.peer)
            # Whatever the text quotes, this answer has to leave: no lone surrogates, no megabytes.
            text = f"{type(exc).__name__}: {exc}"[:_REMARK_MAX]
            self.answer(request, ResponseCode.SYSTEM_ERROR, text.encode("utf-8", "replace").decode())

    def _command(self, request: Request) -> Command:
        return Asked(
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
        """Owe an answer without a body, unless the sender reads none."""
        self.owe_frame(request, code, request.reply(code, remark, ext))

    def owe_frame(self, request: Request, code: int, frame: bytes, *, waits: bool = False) -> None:
        """Owe an answer together with all of this read, or when the log has come so far; it has this code."""
        if request.flag & FrameFlag.ONEWAY:
            self.owes_now(request, code)
        elif waits:
            self.waiting.append(frame)
            self.waiting_kinds.append((request.code, code))
        else:
            self.ready.append(frame)
            self.kinds.append((request.code, code))

    def unanswered(self, count: int) -> None:
        """So many plain sends of this read were stored whose sender reads no answer. HOT."""
        times = self._times
        times.add(*PLAIN, times.at - self.read_at, count, result=ONEWAY)

    def owes_now(self, request: Request | Command, code: int, long_polling: bool = False) -> bool:
        """Whether the answer to this request, which has this code, is to be handed to the connection by itself.

        It is not if its sender reads none, or is gone; it counts as answered all the same.
        """
        times = self._times
        times.at = at = times.clock()
        took_s = at - (request.read_at if isinstance(request, (Request, Asked)) else self.read_at)
        result = ONEWAY if request.flag & FrameFlag.ONEWAY else SUCCESS if self.is_open else FAILED
        times.add(request.code, code, took_s, 1, long_polling, result)
        return result is SUCCESS

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
        self._asked[opaque] = answered
        return opaque

    def give_up(self, opaque: int) -> None:
        """Nobody waits for this answer any more; one that still comes is dropped."""
        answered = self._asked.pop(opaque, None)
        if answered is not None:
            answered(None)

    def _send_own(self, request: Command) -> int:
        self._opaque = request.opaque = (self._opaque + 1) & 0x7FFFFFFF
        self.link.send(encode_frame(request))
        return self._opaque

    def handled_by(self, *tables: Handlers) -> bool:
        """Whether one of these tables says what its requests mean."""
        return any(self._handlers is table for table in tables)

    def closed(self) -> None:
        """The connection is gone. What was kept for it goes now, and not when a collector looks at it."""
        self.is_open = False
        self._on_closed(self)
        self._unfinished.size -= self._counted
        self._counted = 0
        self._frames = FrameBuffer()
        self._backlog = []
        for opaque in list(self._asked):
            self.give_up(opaque)
