"""Run the load process: read one spec from standard input, load the server, print one outcome.

Sends come in two forms. A closed loop keeps `in_flight` requests on every connection: each read of replies
is followed by one write of as many new requests. An open loop sends at a fixed rate whatever the
server does, and measures each reply from the moment its request was *due*: a stall then costs every
request that should have been sent meanwhile, as it would cost the clients of a real server.

An end-to-end run has three parts. The warm-up counts nothing; the measured window counts replies that
arrive in it (open loop: requests that were due in it); then sending stops, and whatever was sent must
still be answered before `reply_timeout_s` has passed without any reply.
"""

from __future__ import annotations

import gc
import signal
import sys
import time
from typing import NoReturn

import msgspec

from tools.bench.frames import OPAQUE_END, OPAQUE_FIRST, SendPattern
from tools.bench.link import POLL_S, Link, Links, LoadFailed, Stopped, Tally, now_us, parse_replies
from tools.bench.pull import run_pulls
from tools.bench.spec import ClientSpec, Outcome, ProduceSpec, Spec

STAMP_US = 50_000
PACED_SEND_MAX = 64
# Between two looks at the clock an open loop waits at least this long, or it would only ever spin.
PACED_TURN_US = 100


class SendLoad:
    """Carry out one run of sends."""

    def __init__(self, spec: ProduceSpec) -> None:
        self._spec = spec
        self._body_size = spec.body_size * spec.batch
        self._frames_max = spec.in_flight if spec.rate is None else PACED_SEND_MAX
        self._pattern = SendPattern(spec, self._frames_max)
        self._tally = Tally(spec.server_pid)
        self._links = Links(spec)
        # Every connection numbers its requests from a range of its own, so that a reply that went to the
        # wrong connection is found by its opaque alone.
        self._share = (OPAQUE_END - OPAQUE_FIRST) // spec.connections
        self._next = [OPAQUE_FIRST + index * self._share for index in range(spec.connections)]
        self._numbers_end = [first + self._share for first in self._next]
        self._queue = [index % spec.queues for index in range(spec.connections)]
        self._stamp_due = 0
        self._last_reply_us = now_us()
        self._count_from_us = 0

    def run(self) -> Outcome:
        error = None
        try:
            if self._spec.rate is None:
                self._closed_loop()
            else:
                self._open_loop(self._spec.rate / self._spec.batch)
            self._drain()
        except LoadFailed as exc:
            error = str(exc)
        finally:
            outstanding = self._links.outstanding
            self._links.close()
        return self._tally.outcome(0 if error else outstanding, error)

    def _closed_loop(self) -> None:
        spec = self._spec
        for link in self._links.all:
            self._send(link, spec.in_flight)
        start = now_us()
        window_start = start + int(spec.warm_up_s * 1e6)
        window_end = window_start + int(spec.duration_s * 1e6)
        turn = self._turn_of_one if spec.in_flight == 1 and spec.serialization == "json" else self._turn
        for end in (window_start, window_end):
            if end == window_end:
                self._tally.begin()
            while now_us() < end:
                turn()
                self._check_silence()
        self._tally.end()

    def _turn(self) -> None:
        """Read what has come, and replace every request that was answered."""
        for link in self._links.ready(POLL_S):
            count = self._receive(link)
            if count:
                self._send(link, count)

    def _turn_of_one(self) -> None:
        """`_turn` for one request in flight: no work is shared between messages, so every call tells.

        The only reply that can come is known but for its ids: one frame, `"code":0,` and the opaque of
        the request. Whatever is not exactly that is judged by the general road.
        """
        numbers, queues, pattern, singles = self._next, self._queue, self._pattern, []
        now = 0
        for link in self._links.ready(POLL_S):
            data, count = link.receive()
            now = now_us()
            index = link.index
            number = numbers[index] - 1
            if count != 1 or b'"code":0,' not in data or b'"opaque":%d,' % number not in data:
                if count:
                    self._send(link, self._judge(link, data, count, now))
                continue
            singles.append(now - link.sent_at.pop(number))
            if now >= self._stamp_due or number + 2 > self._numbers_end[index]:
                self._send(link, 1)
                continue
            numbers[index] = number + 2
            link.sent_at[number + 1] = now
            queue = queues[index]
            queues[index] = (queue + 1) % pattern.queues
            self._links.send(link, pattern.take_one(queue, number + 1))
        if singles:
            self._last_reply_us = now
            self._tally.accepted(singles, self._spec.batch, self._body_size)

    def _open_loop(self, frames_per_s: float) -> None:
        links = self._links.all
        interval_us = 1e6 / frames_per_s
        start = now_us()
        window_start = start + int(self._spec.warm_up_s * 1e6)
        window_end = window_start + int(self._spec.duration_s * 1e6)
        sent = 0
        began = False
        while True:
            now = now_us()
            if not began and now >= window_start:
                began = True
                self._count_from_us = window_start
                self._tally.begin()
            due = int((min(now, window_end - 1) - start) / interval_us) + 1
            if due > sent:
                for link in links:
                    # Request i belongs to connection i mod C and was due at start + i intervals.
                    first = sent + (link.index - sent) % len(links)
                    turns = range(first, due, len(links))
                    if turns:
                        self._send_due(link, [start + int(turn * interval_us) for turn in turns])
                sent = due
            if now >= window_end:
                break
            wait_us = max(start + due * interval_us - now_us(), PACED_TURN_US)
            for link in self._links.ready_within(wait_us / 1e6):
                self._receive(link)
            self._check_silence()
        self._tally.end()

    def _drain(self) -> None:
        """Wait for what is in flight. It counts only in an open loop, where it was due in the window."""
        if self._spec.rate is None:
            self._count_from_us = sys.maxsize
        self._last_reply_us = now_us()
        while self._links.outstanding and not self._is_silent():
            for link in self._links.ready(POLL_S):
                self._receive(link)

    def _send(self, link: Link, count: int) -> None:
        now = now_us()
        numbers = self._take_numbers(link, count, now)
        link.sent_at.update(dict.fromkeys(numbers, now))
        self._write(link, numbers)

    def _send_due(self, link: Link, due: list[int]) -> None:
        for first in range(0, len(due), self._frames_max):
            times = due[first : first + self._frames_max]
            numbers = self._take_numbers(link, len(times), now_us())
            link.sent_at.update(zip(numbers, times, strict=True))
            self._write(link, numbers)

    def _take_numbers(self, link: Link, count: int, now: int) -> range:
        if now >= self._stamp_due:
            self._pattern.stamp(time.time_ns() // 1_000_000)
            self._stamp_due = now + STAMP_US
        index = link.index
        first = self._next[index]
        if first + count > self._numbers_end[index]:
            first = self._numbers_end[index] - self._share
        self._next[index] = first + count
        return range(first, first + count)

    def _write(self, link: Link, numbers: range) -> None:
        queue = self._queue[link.index]
        self._queue[link.index] = (queue + len(numbers)) % self._spec.queues
        self._links.send(link, self._pattern.take(queue, numbers))

    def _receive(self, link: Link) -> int:
        """Read, check and count replies; returns how many requests they answered."""
        data, count = link.receive()
        return self._judge(link, data, count, now_us()) if count else 0

    def _judge(self, link: Link, data: bytes, count: int, now: int) -> int:
        self._last_reply_us = now
        opaques, refusals = parse_replies(data, count)
        sent_at = link.answered(opaques)
        if refusals:
            self._tally.refused(refusals)
            refused = {opaque for opaque, _, _ in refusals}
            sent_at = [sent for sent, number in zip(sent_at, opaques, strict=True) if number not in refused]
        if self._count_from_us:
            sent_at = [sent for sent in sent_at if sent >= self._count_from_us]
        self._tally.accepted([now - sent for sent in sent_at], self._spec.batch, self._body_size)
        return len(opaques)

    def _is_silent(self) -> bool:
        return now_us() - self._last_reply_us > self._spec.reply_timeout_s * 1e6

    def _check_silence(self) -> None:
        if self._is_silent() and self._links.outstanding:
            raise LoadFailed(
                f"no reply for {self._spec.reply_timeout_s:g} s "
                f"with {self._links.outstanding} requests unanswered"
            )


def run(spec: Spec) -> Outcome:
    """Carry out one load in this process."""
    try:
        if isinstance(spec, ClientSpec):
            from tools.bench.client import run_client

            return run_client(spec)
        return SendLoad(spec).run() if isinstance(spec, ProduceSpec) else run_pulls(spec)
    except LoadFailed as exc:
        return Outcome(error=str(exc))


def _stop(number: int, frame: object) -> NoReturn:
    signal.signal(number, signal.SIG_IGN)  # once is enough: what is left is to say what was counted
    raise Stopped("stopped by Ctrl-C")


def main() -> None:
    spec: Spec = msgspec.json.decode(sys.stdin.buffer.read(), type=Spec)
    signal.signal(signal.SIGTERM, _stop)
    # A collection in the middle would be measured as the server's latency, and the raw sender makes no cycles. The
    # client library does, and its users' programs collect them.
    if not isinstance(spec, ClientSpec):
        gc.disable()
    sys.stdout.buffer.write(msgspec.json.encode(run(spec)) + b"\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
