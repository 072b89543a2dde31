"""`Outbox`: everything that one session owes its peer. The only way out, and the only place that counts answers.

    now     answers of this read that leave together when the read is worked through
    after   answers of this read that leave when the log is flushed and replicated as far as is promised
    send    an answer by itself, from whichever turn knows it: a look-up of the disk, a pull that was held
    write   bytes that answer nothing: requests of the broker's own

A oneway request is counted and answered by nothing. `flush` ends a read: what is ready leaves in one piece, what waits
becomes one entry of the queue of waiting answers (`broker.waiting.pending_acks`), which hands it back to `release`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from struct import Struct
from typing import Protocol, TypeAlias

import structlog

from broker.remoting.request import LargeAnswer
from broker.remoting.rpc_times import FAILED, ONEWAY, PLAIN, SUCCESS, Kind, RpcTimes
from ropewalk.codes import FrameFlag, ResponseCode
from ropewalk.format.remoting import JSON, Command, decode_frame, encode_frame, encode_head

__all__ = ["Asker", "Link", "Outbox", "Owed", "Wait", "flush_together", "refuse_to_wait", "release"]

log = structlog.get_logger("broker.session")

_FEW = 16
"""Answers that are made in no time: they are counted by the clock as it was looked at last."""
_SIZES = Struct(">II")  # of the frame, and of the header with the serialize type on top, which is 0 here
_SUCCESS = b'{"code":0,'  # how our own answers to sends begin, after the sizes
_NO_REMARK = b'"remark":'


class Link(Protocol):
    """The connection as a session sees it."""

    peer: tuple[str, int]

    @property
    def local(self) -> tuple[str, int]:
        """The address of this end."""

    @property
    def congested(self) -> bool:
        """Tell whether the peer is owed more bytes than it may be."""

    def send(self, data: bytes | memoryview) -> None: ...

    @property
    def sole_ready(self) -> bool:
        """Tell whether this connection is the only one with requests in this turn."""

    def push(self) -> None:
        """Try to write owed bytes now, and not only when the turn ends; never waits."""

    def pause(self) -> None:
        """Read nothing more until `go_on`."""

    def go_on(self) -> None:
        """Read again."""

    def close(self) -> None: ...


class Counted(Protocol):
    """A request, as far as its answer is counted."""

    @property
    def code(self) -> int: ...

    @property
    def flag(self) -> int: ...


class Asker(Counted, Protocol):
    """A request, as far as its answer depends on it."""

    def reply(self, code: int, remark: str | None = None) -> Command | bytes: ...


Owed: TypeAlias = "tuple[Outbox, Sequence[bytes]]"
"""Answers, and the outbox of their session."""
Wait: TypeAlias = Callable[[Sequence[Owed], float, Sequence[Kind]], None]
"""Has answers wait for all that is appended: whose they are, when their requests had been read, what they answer."""


def refuse_to_wait(owed: Sequence[Owed], read_at: float, kinds: Sequence[Kind]) -> None:
    """Stand in as `Wait` for sessions that answer nothing which waits for a log: a name server's."""
    raise AssertionError("this session answers nothing that waits for a log")


class Outbox:
    """The answers of one session, on their way to its link."""

    __slots__ = (
        "_kinds",
        "_ready",
        "_times",
        "_wait",
        "_waiting",
        "_waiting_kinds",
        "is_open",
        "link",
        "read_at",
    )

    def __init__(self, link: Link, times: RpcTimes, wait: Wait = refuse_to_wait) -> None:
        self.link = link
        self.is_open = True
        """Whether anybody reads what is written; the session ends it."""
        self.read_at = 0.0
        """When the requests at hand had been read, by the clock of `times`."""
        self._times = times
        self._wait = wait
        self._ready: list[bytes] = []
        self._waiting: list[bytes] = []
        self._kinds: list[Kind] = []
        """The request kinds that `_ready` answers, plain sends left out, in no order (`rpc_times`)."""
        self._waiting_kinds: list[Kind] = []

    # -- answers of the read at hand -------------------------------------------------------------------

    def now(self, request: Counted, code: int, frame: bytes) -> None:
        """Owe an answer with this code, together with all others of this read."""
        if request.flag & FrameFlag.ONEWAY:
            self._count(request, code)
        else:
            self._ready.append(frame)
            self._kinds.append((request.code, code))

    def after(self, request: Counted, code: int, frame: bytes) -> None:
        """Owe an answer with this code when the log is as safe as is promised through its end of then."""
        if request.flag & FrameFlag.ONEWAY:
            self._count(request, code)
        else:
            self._waiting.append(frame)
            self._waiting_kinds.append((request.code, code))

    def stored(self, frames: Iterable[bytes], *, waits: bool) -> None:
        """Owe answers that say "stored" to plain sends, now or as `after` does. HOT: once for a run."""
        (self._waiting if waits else self._ready).extend(frames)

    def stored_one(self, frame: bytes, waits: bool) -> None:
        """Owe one answer as `stored` does. HOT."""
        (self._waiting if waits else self._ready).append(frame)

    def stored_oneway(self, count: int) -> None:
        """Count plain sends of this read that were stored, and whose sender reads no answer. HOT."""
        times = self._times
        times.add(*PLAIN, times.at - self.read_at, count, result=ONEWAY)

    def flush(self) -> None:
        """Send the ready answers, and hand the others over to wait. HOT: once for a read."""
        if self._ready:
            self._send_ready()
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            kinds, self._waiting_kinds = self._waiting_kinds, []
            self._wait(((self, waiting),), self.read_at, kinds)

    def flush_part(self, replicate_early: Callable[[], None]) -> None:
        """Flush in the middle of a read, and have it under way at once: its peer works while the rest is handled. HOT.

        `replicate_early` has slaves that these answers wait for work on what is appended.
        """
        if self._ready:
            self._send_ready()
            self.link.push()
        if self._waiting:
            self.flush()
            replicate_early()

    def _send_ready(self) -> None:
        count, times = len(self._ready), self._times
        self._write_ready()
        if count > _FEW or self._kinds:
            times.add_all(count, self._kinds, times.clock_now() - self.read_at)
            self._kinds = []
        else:
            times.count(times.plain, count, times.at - self.read_at)

    def _write_ready(self) -> None:
        ready, self._ready = self._ready, []
        self.link.send(ready[0] if len(ready) == 1 else b"".join(ready))

    # -- answers by themselves, from any turn ------------------------------------------------------------

    def send(self, request: Asker, answer: Command) -> None:
        """Send an answer by itself. One that no frame can hold is replaced by an error that says so."""
        if not self._count(request, answer.code):
            return
        pieces: Sequence[bytes] = answer.pieces if isinstance(answer, LargeAnswer) else ()
        try:
            frame = encode_head(answer, sum(map(len, pieces))) if pieces else encode_frame(answer)
        except Exception as exc:
            # Parts of it can be a stranger's: a code of too many bits, a table too long for any frame.
            log.warning("an answer that no frame can hold", code=request.code, reason=str(exc)[:200])
            refusal = request.reply(ResponseCode.SYSTEM_ERROR, "the answer does not fit a frame")
            frame, pieces = refusal if isinstance(refusal, bytes) else encode_frame(refusal), ()
        self.link.send(frame)
        for piece in pieces:
            self.link.send(piece)

    def send_frame(
        self, request: Asker, code: int, *pieces: bytes | memoryview, long_polling: bool = False
    ) -> None:
        """Send an answer with this code by itself: its frame, in one piece or several. HOT: once for a pull."""
        if self._count(request, code, long_polling):
            for piece in pieces:
                self.link.send(piece)

    def send_counted(self, row: list[float], *pieces: bytes | memoryview) -> None:
        """Send an answer to a request of this read, counted in `row` (`RpcTimes.row`). HOT: once for a pull."""
        times = self._times
        times.count(row, 1, times.clock_now() - self.read_at)
        for piece in pieces:
            self.link.send(piece)

    def _count(self, request: Counted, code: int, long_polling: bool = False) -> bool:
        """Count a request as answered with this code; whether anybody reads the answer."""
        times = self._times
        times.at = at = times.clock()
        result = ONEWAY if request.flag & FrameFlag.ONEWAY else SUCCESS if self.is_open else FAILED
        read_at = getattr(request, "read_at", self.read_at)
        times.add(request.code, code, at - read_at, 1, long_polling, result)
        return result is SUCCESS

    # -- what answers nothing ----------------------------------------------------------------------------

    def write(self, frame: bytes) -> None:
        """Send a request of the broker's own."""
        self.link.send(frame)


def flush_together(outboxes: Sequence[Outbox]) -> None:
    """Flush the outboxes of sessions whose plain sends were appended at once: one entry waits, one sum counts. HOT.

    All were read in the same turn, but for those of a peer that took too little: these come last, and count as quick.
    """
    owed: list[Owed] = []
    first, count = outboxes[0], 0
    for outbox in outboxes:
        if outbox._kinds or outbox._waiting_kinds:
            outbox.flush()
            continue
        if outbox._waiting:
            owed.append((outbox, outbox._waiting))
            outbox._waiting = []
        if outbox._ready:
            count += len(outbox._ready)
            outbox._write_ready()
    if owed:
        first._wait(owed, first.read_at, ())
    if count:
        times = first._times
        times.count(times.plain, count, times.clock_now() - first.read_at)


def release(
    times: RpcTimes,
    owed: Sequence[Owed],
    kinds: Sequence[Kind],
    read_at: float,
    code: int | None = None,
    remark: str = "",
) -> None:
    """Hand over answers that waited: as they are, or with another code than the "stored" that they say. HOT.

    `times.at` has to be the time of now.
    """
    sent = failed = 0
    for outbox, answers in owed:
        if not outbox.is_open:
            failed += len(answers)
            continue
        sent += len(answers)
        if code is not None:
            answers = [_with_code(answer, code, remark) for answer in answers]
        outbox.link.send(answers[0] if len(answers) == 1 else b"".join(answers))
    took_s = times.at - read_at
    if failed:
        times.add_all(failed, kinds, took_s, FAILED, code)
    if sent:
        if kinds or code is not None:
            times.add_all(sent, kinds, took_s, SUCCESS, code)
        else:  # HOT: as it nearly always is
            times.count(times.plain, sent, took_s)


def _with_code(answer: bytes, code: int, remark: str) -> bytes:
    """The frame of an answer, with another code and a remark. HOT where a master has lost its slaves."""
    if answer[4] == JSON and answer.startswith(_SUCCESS, 8) and _NO_REMARK not in answer:
        header = (
            b'{"code":%d,"remark":%b,' % (code, json.dumps(remark).encode()) + answer[8 + len(_SUCCESS) :]
        )
        grown = len(header) + 8 - len(answer)
        size, header_size = _SIZES.unpack_from(answer)
        return _SIZES.pack(size + grown, header_size + grown) + header
    command = decode_frame(answer[4:])
    command.code = code
    command.remark = remark
    return encode_frame(command)
