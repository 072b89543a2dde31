"""Reading a range of one queue as fast as a broker gives it: several requests on the way, answers in order.

A `RangeReader` decides, without a socket: it cuts `[low, high)` into windows, keeps up to `in_flight` of them asked
for, and hands out what came as `Chunk`s in the order of the queue. A Ropewalk broker is asked by bulk pulls (30020),
whose windows are ranges. A broker that answers 3 to that is a stock one, and is asked by ordinary pulls from then on:
their windows are as many messages as its caps let through lately, because queue offsets are dense and the next
window can be asked for before the last is answered. With a tag filter an ordinary pull can come any distance, so
there is only one on the way.

A window that was answered in part is asked again for its rest. What a broker no longer has, or does not have any
more after a fail-over, is `RangeLost`, or is skipped and counted when the caller prefers that. What it does not have
*yet* (a slave that is behind) is asked for again, until the shell's patience ends.

`read_range` is the shell: blocking sockets, a connection that is made anew when it breaks, and a time limit without
progress. Bodies are handed on undecoded; whoever decodes them sees whether records are missing in between.
"""

from __future__ import annotations

import struct
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count as counter

from ropewalk.client.blocking.connection import Connection
from ropewalk.client.core.connection import Unreachable
from ropewalk.client.core.messages import READER_GROUP, command_of, pull_request
from ropewalk.client.core.routes import Queue
from ropewalk.client.core.steps import answer_header
from ropewalk.client.machine import clock
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import (
    OutcomeUnknown,
    RemoteProtocolError,
    RopewalkError,
    TryElsewhere,
    TryLater,
    error_for,
)
from ropewalk.format.headers import BulkPullHeader, PullResponseHeader
from ropewalk.format.remoting import Command

STOCK_COUNT_MAX = 32
"""The most messages in a pull that a stock broker allows, unless its limits were raised."""
_GROW_AFTER = 64
_AGAIN_S = 0.05

ALL = "*"
_PLACE = struct.Struct(">i16xq")  # of a record: its size, and its queue offset at 20


class RangeLost(RopewalkError):
    """Messages of the range are not there any more: removed by retention, or lost in a fail-over."""

    def __init__(self, text: str, *, wanted: int, minimum: int, maximum: int) -> None:
        super().__init__(text)
        self.wanted, self.minimum, self.maximum = wanted, minimum, maximum


@dataclass(frozen=True, slots=True)
class Chunk:
    """Records of `[first, next)`, one after the other as they stand in the log; some may be missing."""

    first: int
    next: int
    body: bytes
    lost: bool = False
    """Nothing is left of this part of the range."""


class _Window:
    __slots__ = ("asked", "chunk", "high", "low")

    def __init__(self, low: int, high: int) -> None:
        self.low = low
        self.high = high
        self.asked = False
        self.chunk: Chunk | None = None


class RangeReader:
    """The state of reading one range of one queue: requests, answers, and the next chunk."""

    def __init__(
        self,
        topic: str,
        queue: Queue,
        low: int,
        high: int,
        *,
        subscription: str = ALL,
        bulk: bool = True,
        in_flight: int = 8,
        count: int = 1024,
        max_bytes: int = 4 << 20,
        skip_lost: bool = False,
    ) -> None:
        assert low <= high, (low, high)
        self.position = low
        """The next offset to be handed out."""
        self.high = high
        self.lost = 0
        """Offsets that were skipped because nothing is left of them."""
        self.bulk = bulk
        """Whether the broker is thought to know bulk pulls."""
        self.wait_s = 0.0
        """How long to wait before `requests` is worth calling again."""
        self.starving: str | None = None
        """Why the broker cannot give more at the moment."""
        self._topic = topic
        self._queue = queue
        self._subscription = subscription
        self._in_flight = in_flight
        self._count = count
        self._stock_count = min(count, STOCK_COUNT_MAX)
        self._full = 0
        self._max_bytes = max_bytes
        self._skip_lost = skip_lost
        self._windows: deque[_Window] = deque()
        self._planned = low
        self._tickets = counter()
        self._asked: dict[int, _Window] = {}

    @property
    def done(self) -> bool:
        return self.position >= self.high

    @property
    def filtered(self) -> bool:
        return self._subscription != ALL

    def requests(self) -> list[tuple[int, Command]]:
        """Return the requests to send now, each with the ticket that `answer` takes."""
        self.wait_s = 0.0
        limit = self._in_flight if self.bulk or not self.filtered else 1
        while len(self._windows) < limit and self._planned < self.high:
            high = min(self._planned + self._window_size(), self.high)
            self._windows.append(_Window(self._planned, high))
            self._planned = high
        result = []
        for window in self._windows:
            if not window.asked and len(self._asked) < limit:
                window.asked = True
                ticket = next(self._tickets)
                self._asked[ticket] = window
                result.append((ticket, self._request(window)))
        return result

    def answer(self, ticket: int, answer: Command) -> None:
        """Take an answer. Raises `RangeLost`, and what the broker refused."""
        window = self._asked.pop(ticket, None)
        if window is None:
            return  # from before everything was planned anew
        match answer.code:
            case ResponseCode.SUCCESS | ResponseCode.PULL_RETRY_IMMEDIATELY:
                self._came(window, answer)
            case ResponseCode.PULL_NOT_FOUND:
                header = answer_header(PullResponseHeader, answer)
                if header.next_begin_offset > window.low:
                    self._came(window, answer)  # an unreadable place in the queue, and where it ends
                else:
                    self._not_yet(window, header.max_offset)
            case ResponseCode.PULL_OFFSET_MOVED:
                self._moved(window, answer_header(PullResponseHeader, answer))
            case ResponseCode.REQUEST_CODE_NOT_SUPPORTED if self.bulk:
                self.bulk = False
                self.forget()
            case ResponseCode.SYSTEM_BUSY | ResponseCode.FLOW_CONTROL:
                self.starving = f"the broker is busy ({answer.remark})"
                self._again(window)
            case _:
                raise error_for(answer.code, answer.remark)

    def next_chunk(self) -> Chunk | None:
        """Return the next piece of the range, if it came."""
        if not self._windows or self._windows[0].chunk is None:
            return None
        chunk = self._windows.popleft().chunk
        assert chunk is not None
        assert chunk.first == self.position
        self.position = chunk.next
        if chunk.lost:
            self.lost += chunk.next - chunk.first
        self.starving = None
        return chunk

    def forget(self) -> None:
        """Plan the outstanding reads anew: the connection is gone, or the broker needs another kind of request."""
        self._asked.clear()
        kept: deque[_Window] = deque()
        while self._windows and self._windows[0].chunk is not None:
            kept.append(self._windows.popleft())
        self._windows = kept
        last = kept[-1].chunk if kept else None
        self._planned = last.next if last is not None else self.position

    def _window_size(self) -> int:
        if self.bulk:
            return self._count
        return self.high - self._planned if self.filtered else self._stock_count

    def _request(self, window: _Window) -> Command:
        if not self.bulk:
            count = STOCK_COUNT_MAX if self.filtered else window.high - window.low
            return pull_request(self._topic, self._queue, window.low, count, self._subscription, 0)
        header = BulkPullHeader(
            READER_GROUP,
            self._topic,
            self._queue.queue_id,
            window.low,
            window.high,
            self._max_bytes,
            self._subscription if self.filtered else None,
        )
        return command_of(RequestCode.ROPEWALK_BULK_PULL, header)

    def _came(self, window: _Window, answer: Command) -> None:
        reached = answer_header(PullResponseHeader, answer).next_begin_offset
        if reached <= window.low:
            if answer.body:
                raise RemoteProtocolError(
                    f"a pull of queue {self._queue} of {self._topic} at {window.low} was answered with messages, and "
                    f"with {reached} as the place to go on"
                )
            self.starving = f"the broker cannot read offset {window.low} at the moment"
            self._again(window)
            return
        if not self.bulk and not self.filtered:
            self._learn(window, reached)
        body = answer.body
        if reached > window.high:
            # An ordinary pull counts messages: it goes on over gaps, and over what a filter does not let through.
            reached = window.high
            body = _before(body, reached)
        self._finish(window, Chunk(window.low, reached, body))

    def _learn(self, window: _Window, reached: int) -> None:
        """Ask for as many as come: less after an answer that was cut, and now and then for more."""
        if reached < window.high:
            self._stock_count = max(1, reached - window.low)
            self._full = 0
        else:
            self._full += 1
            if self._full >= _GROW_AFTER:
                self._full = 0
                self._stock_count = min(self._stock_count * 2, STOCK_COUNT_MAX, self._count)

    def _moved(self, window: _Window, header: PullResponseHeader) -> None:
        low, minimum, maximum = window.low, header.min_offset, header.max_offset
        if minimum > low:
            reached = min(minimum, window.high)
            self._lose(
                window,
                reached,
                f"messages {low} to {reached - 1} are gone (the queue begins at {minimum} now): retention removed them "
                f"before they were read",
                header,
            )
        elif maximum < low:
            self._not_yet(window, maximum)
        else:
            raise RemoteProtocolError(
                f"offset {low} is refused although the queue goes from {minimum} to {maximum}"
            )

    def _lose(self, window: _Window, reached: int, text: str, header: PullResponseHeader) -> None:
        if not self._skip_lost:
            raise RangeLost(
                f"{self._topic}, queue {self._queue.queue_id} of {self._queue.broker_name}: {text}",
                wanted=window.low,
                minimum=header.min_offset,
                maximum=header.max_offset,
            )
        self._finish(window, Chunk(window.low, reached, b"", lost=True))

    def _not_yet(self, window: _Window, maximum: int) -> None:
        self.starving = f"the broker's queue ends at {maximum}, and {window.low} is wanted"
        self._again(window)

    def give_up(self) -> None:
        """Count the rest of the range as lost, because the broker will not get any further.

        Raises `RangeLost` instead.
        """
        text = (
            f"{self._topic}, queue {self._queue.queue_id} of {self._queue.broker_name}: messages {self.position} to "
            f"{self.high - 1} do not come ({self.starving or 'no answer'})"
        )
        if not self._skip_lost:
            raise RangeLost(text, wanted=self.position, minimum=-1, maximum=-1)
        self.forget()
        window = _Window(self._planned, self.high)
        window.asked = True
        window.chunk = Chunk(self._planned, self.high, b"", lost=True)
        self._windows.append(window)
        self._planned = self.high

    def _again(self, window: _Window) -> None:
        window.asked = False
        self.wait_s = _AGAIN_S

    def _finish(self, window: _Window, chunk: Chunk) -> None:
        window.chunk = chunk
        if chunk.next < window.high:
            rest = _Window(chunk.next, window.high)
            window.high = chunk.next
            self._windows.insert(self._windows.index(window) + 1, rest)


def _before(body: bytes, high: int) -> bytes:
    """Return the records of an answer that stand before an offset."""
    at = 0
    while at + _PLACE.size <= len(body):
        size, offset = _PLACE.unpack_from(body, at)
        if offset >= high:
            return body[:at]
        if size < _PLACE.size:
            raise RemoteProtocolError(f"an answer to a pull holds a record of {size} bytes")
        at += size
    return body


def read_range(
    reader: RangeReader,
    connect: Callable[[], Connection],
    *,
    timeout_s: float,
    answer_s: float = 5.0,
    monotonic: Callable[[], float] = clock,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Chunk]:
    """Read it to its end, in order.

    `connect` gives a connection to whoever serves the queue now. It is asked again when one broke, gave no answer or
    had nothing to give for `answer_s` seconds, or is not the one to ask; it may raise `Unreachable`. After `timeout_s`
    seconds without progress the last such error is raised, or `RangeLost` if the broker is there and has not got that
    far. Connections belong to the caller, who may use one again when this has ended well.
    """
    connection: Connection | None = None
    pending: dict[int, int] = {}
    progress = heard = since = monotonic()
    try:
        while not reader.done:
            try:
                if connection is None:
                    connection = connect()
                    heard = since = monotonic()
                for ticket, command in reader.requests():
                    pending[connection.start(command)] = ticket
                answered = False
                for opaque in list(pending):
                    answer = connection.poll_answer(opaque)
                    if answer is not None:
                        answered = True
                        reader.answer(pending.pop(opaque), answer)
                        heard = monotonic()
                moved = False
                while (chunk := reader.next_chunk()) is not None:
                    moved = True
                    yield chunk
                now = monotonic()
                if moved:
                    progress = heard = now
                    continue
                if now - progress >= timeout_s:
                    reader.give_up()
                elif reader.wait_s and now - max(progress, since) >= answer_s:
                    # A master that became a slave says "not now" for ever: another member may serve the queue.
                    raise TryElsewhere(reader.starving or "nothing came")
                elif reader.wait_s:
                    sleep(reader.wait_s)  # it said "not now", and would say so again at once
                    connection.receive(0)
                elif not answered:  # an answer without records leaves something else to ask
                    if now - heard >= answer_s:
                        raise OutcomeUnknown(f"no answer from {connection.address} within {answer_s:g} s")
                    connection.receive(min(answer_s, timeout_s))
            except (Unreachable, OutcomeUnknown, TryLater, TryElsewhere):
                if connection is not None:
                    connection.close()
                connection = None
                pending.clear()
                reader.forget()
                if monotonic() - progress >= timeout_s:
                    raise
                sleep(_AGAIN_S)
    finally:
        if connection is not None:
            for opaque in pending:
                connection.forget(opaque)
