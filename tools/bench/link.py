"""Carry both loads: connections under one epoll, replies out of raw bytes, the measured window.

The rule of this module is that nothing is done once a message that can be done once a read. Replies are
parsed by two regular expressions over everything that arrived: in JSON a quote inside a string is always
escaped, so `"opaque":123` can only be the frame's own field, and the walk over the length fields says how
often it must be found. What does not fit that pattern goes to `ropewalk.format.remoting`, slowly.
"""

from __future__ import annotations

import contextlib
import re
import select
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import msgspec

from ropewalk.errors import RopewalkError
from ropewalk.format.remoting import FRAME_SIZE_MAX, decode_frame
from tools.bench import server
from tools.bench.report import summarize
from tools.bench.spec import Outcome, RawSpec

CONNECT_TIMEOUT_S = 3.0
READ_SIZE = 128 * 1024
POLL_S = 0.05

_SELECT_FD_MAX = 1024  # select() knows no descriptor beyond
_LENGTH: Callable[[bytes, int], tuple[int]] = struct.Struct(">i").unpack_from
_BINARY: Callable[[bytes, int], tuple[int, int, int, int, int, int]] = struct.Struct(">iIhbhi").unpack_from
_FIRST_OPAQUE = re.compile(rb'"opaque":(\d+),').search
_CODE = re.compile(rb'"code":(-?\d+)').findall
_OPAQUE = re.compile(rb'"opaque":(-?\d+)').findall
_ACCEPTED = b'{"code":0,'
"""The beginning of an accepted reply's header, as every known broker's JSON encoder writes it."""
_OPAQUE_MARK = b'"opaque":'
_ALIKE_MIN = 4
_LATENCY_BUFFER = 1 << 16

_numbers = msgspec.json.Decoder(list[int]).decode

Refusal = tuple[int, int, str]
"""The opaque, response code (not 0) and remark of a reply."""


class LoadFailed(Exception):
    """The load cannot go on, and its figures mean nothing; the text gives the reason."""


class Stopped(LoadFailed):
    """A signal asked the load to end now."""


def now_us() -> int:
    return time.perf_counter_ns() // 1000


def whole_frames(data: bytes) -> tuple[int, int]:
    """Return where the last complete frame of `data` ends, and how many there are."""
    end = count = 0
    size = len(data)
    first = 4 + _LENGTH(data, 0)[0] if size >= 4 else 0
    if 8 <= first <= min(size // _ALIKE_MIN, FRAME_SIZE_MAX) and not size % first:
        if len(set(_lengths_of(first).iter_unpack(data))) == 1:
            return size, size // first
    while end + 4 <= size:
        (length,) = _LENGTH(data, end)
        if not 4 <= length <= FRAME_SIZE_MAX - 4:
            raise LoadFailed(f"the server sent a frame length of {length}")
        following = end + 4 + length
        if following > size:
            break
        end = following
        count += 1
    return end, count


def parse_replies(data: bytes, count: int) -> tuple[Sequence[int], Sequence[Refusal]]:
    """Return the opaques of `count` complete frames, in their order, and every refusal among them."""
    if data[4] == 0:
        if count >= _ALIKE_MIN and (numbers := _opaques_alike(data, count)) is not None:
            return numbers, ()
        codes, opaques = _CODE(data), _OPAQUE(data)
        if len(opaques) == count and len(codes) == count == codes.count(b"0"):
            return list(map(int, opaques)), ()
    elif data[4] == 1:
        numbers = []
        position = 0
        for _ in range(count):
            length, word, code, _language, _version, opaque = _BINARY(data, position)
            if code or word >> 24 != 1:
                break
            numbers.append(opaque)
            position += 4 + length
        else:
            return numbers, ()
    return _parse_slowly(data)


def _opaques_alike(data: bytes, count: int) -> list[int] | None:
    """Return the opaques of accepted requests whose replies have the opaque at one place; None if they have not."""
    size, odd = divmod(len(data), count)
    first = _FIRST_OPAQUE(data, 0, size)
    if odd or first is None or first.start() < len(_ACCEPTED) + 8 or data.count(_OPAQUE_MARK) != count:
        return None
    at, end = first.span(1)
    codes, opaques = zip(*_columns_of(size, at, end).iter_unpack(data), strict=True)
    width = end - at
    texts = b"".join(opaques).replace(_OPAQUE_MARK, b"")
    if codes.count(_ACCEPTED) != count or len(texts) != count * (width + 1):
        return None  # each place without the mark leaves its bytes
    if texts[width :: width + 1] != b"," * count or texts.count(b",") != count:
        return None
    try:
        return _numbers(b"[%b]" % texts[:-1])
    except msgspec.MsgspecError:
        return None


@lru_cache(maxsize=256)
def _lengths_of(size: int) -> struct.Struct:
    return struct.Struct(f"4s{size - 4}x")


@lru_cache(maxsize=256)
def _columns_of(size: int, at: int, end: int) -> struct.Struct:
    code, mark = len(_ACCEPTED), len(_OPAQUE_MARK)
    return struct.Struct(f"8x{code}s{at - mark - code - 8}x{mark + end - at + 1}s{size - end - 1}x")


def _parse_slowly(data: bytes) -> tuple[Sequence[int], Sequence[Refusal]]:
    opaques: list[int] = []
    refusals: list[Refusal] = []
    position = 0
    while position < len(data):
        (length,) = _LENGTH(data, position)
        try:
            command = decode_frame(data[position + 4 : position + 4 + length])
        except RopewalkError as exc:
            raise LoadFailed(f"the server sent a frame that cannot be read: {exc}") from exc
        position += 4 + length
        if not command.is_response:
            continue
        opaques.append(command.opaque)
        if command.code:
            refusals.append((command.opaque, command.code, command.remark or ""))
    return opaques, refusals


class Link:
    """A connection: what was sent and not answered, bytes that wait to leave, bytes of half a frame.

    Invariant: `sent_at` holds the opaque of every request without a reply, with the microsecond at which
    it was sent or was due.
    """

    __slots__ = ("_waiting", "fd", "index", "sent_at", "sock", "tail")

    def __init__(self, sock: socket.socket, index: int) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.index = index
        self.sent_at: dict[int, int] = {}
        self.tail = b""
        self._waiting = b""

    def receive(self) -> tuple[bytes, int]:
        """Return the complete frames that have arrived, and their count; keep the rest for the next read."""
        try:
            data = self.sock.recv(READ_SIZE)
        except BlockingIOError:
            return b"", 0
        except OSError as exc:
            raise LoadFailed(f"connection {self.index} broke: {exc}") from exc
        if not data:
            raise LoadFailed(
                f"the server closed connection {self.index} with {len(self.sent_at)} requests unanswered"
            )
        if self.tail:
            data = self.tail + data
        end, count = whole_frames(data)
        if end == len(data):
            self.tail = b""
            return data, count
        self.tail = data[end:]
        return data[:end], count

    def send(self, data: bytes) -> bool:
        """Hand bytes to the socket, all or as many as it takes. True when some must wait for it."""
        if self._waiting:
            self._waiting += data
            return True
        try:
            sent = self.sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError as exc:
            raise LoadFailed(f"connection {self.index} broke: {exc}") from exc
        if sent == len(data):
            return False
        self._waiting = data[sent:]
        return True

    def send_waiting(self) -> bool:
        """Send the bytes that the socket had no room for. True when some of them still wait."""
        data, self._waiting = self._waiting, b""
        return bool(data) and self.send(data)

    def answered(self, opaques: Sequence[int]) -> list[int]:
        """Remove answered requests, and return when each was sent. Raises `LoadFailed` for an unknown opaque."""
        try:
            return list(map(self.sent_at.pop, opaques))
        except KeyError as exc:
            raise LoadFailed(
                f"connection {self.index} received a reply with opaque {exc.args[0]}, "
                "which is of no request in flight (a wrong opaque, or a second reply)"
            ) from None


class Links:
    """All connections of a load, under one epoll."""

    def __init__(self, spec: RawSpec) -> None:
        self._epoll = select.epoll()
        self.all: list[Link] = []
        self._by_fd: dict[int, Link] = {}
        self._events_max = spec.connections
        for index in range(spec.connections):
            try:
                sock = socket.create_connection((spec.host, spec.port), CONNECT_TIMEOUT_S)
            except OSError as exc:
                self.close()
                raise LoadFailed(f"{spec.host}:{spec.port} does not accept connections: {exc}") from exc
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setblocking(False)
            link = Link(sock, index)
            self.all.append(link)
            self._by_fd[link.fd] = link
            self._epoll.register(link.fd, select.EPOLLIN)

    @property
    def outstanding(self) -> int:
        return sum(len(link.sent_at) for link in self.all)

    def ready(self, timeout_s: float) -> Iterator[Link]:
        """Yield links that have something to read, waiting for the first one; writes that stalled go on here."""
        for fd, events in self._epoll.poll(timeout_s, self._events_max):
            link = self._by_fd[fd]
            if events & select.EPOLLOUT and not link.send_waiting():
                self._epoll.modify(fd, select.EPOLLIN)
            if events & ~select.EPOLLOUT:
                yield link

    def ready_within(self, timeout_s: float) -> Iterator[Link]:
        """`ready` with a timeout of finer grain: epoll's own is rounded up to whole milliseconds."""
        if self._epoll.fileno() >= _SELECT_FD_MAX:
            return self.ready(max(0.0, timeout_s))
        with contextlib.suppress(InterruptedError):
            select.select((self._epoll,), (), (), max(0.0, timeout_s))
        return self.ready(0)

    def send(self, link: Link, data: bytes) -> None:
        if link.send(data):
            self._epoll.modify(link.fd, select.EPOLLIN | select.EPOLLOUT)

    def close(self) -> None:
        for link in self.all:
            link.sock.close()
        self._epoll.close()


class Tally:
    """The counts of a load, and the marks at which the measured window begins and ends."""

    def __init__(self, server_pid: int | None) -> None:
        self._server_pid = server_pid
        self._latencies: list[int] = []
        self._histogram: Counter[int] = Counter()
        self._refused: Counter[int] = Counter()
        self._remarks: dict[int, str] = {}
        self._refused_in_warm_up = 0
        self.messages = 0
        self.replies = 0
        self.body_bytes = 0
        self._messages_in_warm_up = 0
        self._began: tuple[int, float, float | None] | None = None
        self._idle_since: int | None = None
        self._idle_us = 0
        self._measured: tuple[float, float, float | None] = (0.0, 0.0, None)

    def refused(self, refusals: Sequence[Refusal]) -> None:
        for _, code, remark in refusals:
            self.replies += 1
            self._refused[code] += 1
            if remark:
                self._remarks.setdefault(code, remark[:200])

    def accepted(self, latencies: list[int], messages: int, body_bytes: int) -> None:
        """Count replies of status 0, each of which answers for so many messages and body bytes."""
        count = len(latencies)
        self.replies += count
        self.messages += count * messages
        self.body_bytes += count * body_bytes
        self._latencies += latencies
        if len(self._latencies) > _LATENCY_BUFFER:
            self._fold()

    def begin(self) -> None:
        """Begin the measured window: forget the counts of the warm-up, remember the clocks."""
        self._refused_in_warm_up = self._refused.total()
        self._messages_in_warm_up = self.messages
        self._refused.clear()
        self._remarks.clear()
        self._latencies.clear()
        self._histogram.clear()
        self.messages = self.replies = self.body_bytes = 0
        self._began = (now_us(), time.process_time(), self._server_cpu())
        self._idle_us = 0
        if self._idle_since is not None:
            self._idle_since = self._began[0]

    def pause(self) -> None:
        """Stop the clock until `resume`: the time between counts for no rate."""
        self._idle_since = now_us()

    def resume(self) -> None:
        """Go on with the clock."""
        if self._idle_since is not None:
            self._idle_us += now_us() - self._idle_since
            self._idle_since = None

    def end(self) -> None:
        """End the measured window; replies that are still to come count for no rate."""
        assert self._began is not None, "a window ends after it began"
        self.resume()
        began_us, load_cpu, server_cpu = self._began
        server_now = self._server_cpu()
        self._measured = (
            (now_us() - began_us - self._idle_us) / 1e6,
            time.process_time() - load_cpu,
            None if server_now is None or server_cpu is None else server_now - server_cpu,
        )

    def outcome(self, missing: int, error: str | None = None) -> Outcome:
        self._fold()
        seconds, load_cpu, server_cpu = self._measured
        memory = server.memory(self._server_pid) if self._server_pid else None
        return Outcome(
            messages=self.messages,
            messages_in_warm_up=self._messages_in_warm_up,
            replies=self.replies,
            seconds=seconds,
            body_bytes=self.body_bytes,
            refused={str(code): count for code, count in self._refused.items()},
            remarks={str(code): remark for code, remark in self._remarks.items()},
            refused_in_warm_up=self._refused_in_warm_up,
            missing=missing,
            latency=summarize(self._histogram),
            load_cpu_s=load_cpu,
            server_cpu_s=server_cpu,
            rss_anon=memory[0] if memory else None,
            rss_file=memory[1] if memory else None,
            error=error,
        )

    def _fold(self) -> None:
        self._histogram.update(self._latencies)
        self._latencies.clear()

    def _server_cpu(self) -> float | None:
        return server.cpu_seconds(self._server_pid) if self._server_pid else None
