"""Load a broker with pulls: every connection reads its queue in a circle, one request in flight, never held.

Requests do not suspend (sysFlag 4: subscription included, nothing else), so a broker answers each at
once or not at all. The records of a reply are counted by walking their sizes; a size that leads outside
of the body ends the load, because a broker that sends damaged records has no speed.

A request is one `%` into a frame that was built once, and of an answer that is as it should be only three numbers
are looked for: its header costs the load as little as a send's. Every other answer goes through the ordinary codec.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from functools import lru_cache

from ropewalk.errors import RopewalkError
from ropewalk.format.remoting import JSON, ROCKETMQ, Command, decode_frame, encode_frame
from tools.bench.frames import OPAQUE_FIRST
from tools.bench.link import POLL_S, Link, Links, LoadFailed, Tally, now_us
from tools.bench.spec import Outcome, PullSpec

PULL_MESSAGE = 11
SUBSCRIPTION_INCLUDED = 4

_SIZE: Callable[[bytes, int], tuple[int]] = struct.Struct(">i").unpack_from
_CODE = re.compile(rb'"code":(-?\d+)').findall
_OPAQUE = re.compile(rb'"opaque":(-?\d+)').findall
_NEXT = re.compile(rb'"nextBeginOffset":"(\d+)"').findall
_ALIKE_MAX = 64
_OPEN_OFFSET = "##OFFSET##"
_PREFIX: Callable[[int, int], bytes] = struct.Struct(">II").pack
_LENGTHS: Callable[[bytes, int], tuple[int, int]] = struct.Struct(">iI").unpack_from


@lru_cache(maxsize=64)
def _sizes_at(size: int, count: int) -> Callable[[bytes, int], tuple[int, ...]]:
    return struct.Struct(">" + f"i{size - 4}x" * count).unpack_from


def count_records(data: bytes, position: int, end: int) -> int:
    """Count the stored records that lie back to back between two positions."""
    size = _SIZE(data, position)[0] if position + 4 <= end else 0
    if size >= 4 and (count := (end - position) // size) * size == end - position and count <= _ALIKE_MAX:
        # Where a record of this size stands at each such place, the walk finds these and no others.
        if set(_sizes_at(size, count)(data, position)) == {size}:
            return count
    count = 0
    while position < end:
        size = _SIZE(data, position)[0] if position + 4 <= end else 0
        if size < 4 or position + size > end:
            raise LoadFailed(f"record {count} of a pulled body claims {size} of {end - position} bytes left")
        position += size
        count += 1
    return count


def starting_points(spec: PullSpec) -> list[tuple[int, int]]:
    """Return the queue of each connection, and where in it the connection begins.

    Several connections on one queue start evenly spread over it, or all would ask for the same bytes.
    """
    queues = len(spec.begin)
    points = []
    for index in range(spec.connections):
        queue = index % queues
        sharers = len(range(queue, spec.connections, queues))
        length = spec.end[queue] - spec.begin[queue]
        points.append((queue, spec.begin[queue] + length * (index // queues) // sharers))
    return points


def request_maker(spec: PullSpec, queue: int) -> Callable[[int, int], bytes]:
    """Return a function that makes the frame of a pull of this queue out of an opaque and a queue offset."""
    header = {
        "consumerGroup": "ropewalk-bench",
        "topic": spec.topic,
        "queueId": str(queue),
        "queueOffset": _OPEN_OFFSET,
        "maxMsgNums": str(spec.max_messages),
        "sysFlag": str(SUBSCRIPTION_INCLUDED),
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }
    if spec.serialization == "binary":
        return lambda opaque, offset: encode_frame(
            Command(
                PULL_MESSAGE,
                {**header, "queueOffset": str(offset)},
                opaque=opaque,
                serialize_type=ROCKETMQ,
            )
        )
    text = encode_frame(Command(PULL_MESSAGE, header, opaque=OPAQUE_FIRST, serialize_type=JSON))[8:]
    opaque_text, offset_text = b'"opaque":%d' % OPAQUE_FIRST, _OPEN_OFFSET.encode()
    assert text.count(opaque_text) == text.count(offset_text) == 1
    text = text.replace(b"%", b"%%").replace(opaque_text, b'"opaque":%(opaque)d')
    text = text.replace(offset_text, b"%(offset)d")

    def make(opaque: int, offset: int) -> bytes:
        frame = text % {b"opaque": opaque, b"offset": offset}
        return _PREFIX(4 + len(frame), len(frame)) + frame

    return make


def run_pulls(spec: PullSpec) -> Outcome:
    """Carry out one run of pulls."""
    tally = Tally(spec.server_pid)
    links = Links(spec)
    error = None
    try:
        _PullLoad(spec, links, tally).run()
    except LoadFailed as exc:
        error = str(exc)
    finally:
        outstanding = links.outstanding
        links.close()
    return tally.outcome(0 if error else outstanding, error)


class _PullLoad:
    def __init__(self, spec: PullSpec, links: Links, tally: Tally) -> None:
        self._spec = spec
        self._links = links
        self._tally = tally
        self._points = starting_points(spec)
        self._opaque = OPAQUE_FIRST
        self._frames = [request_maker(spec, queue) for queue in range(len(spec.begin))]
        self._last_reply_us = now_us()

    def run(self) -> None:
        spec = self._spec
        for link in self._links.all:
            self._ask(link)
        window_start = now_us() + int(spec.warm_up_s * 1e6)
        window_end = window_start + int(spec.duration_s * 1e6)
        for end in (window_start, window_end):
            if end == window_end:
                self._tally.begin()
            while now_us() < end:
                for link in self._links.ready(POLL_S):
                    if self._take(link):
                        self._ask(link)
                if now_us() - self._last_reply_us > spec.reply_timeout_s * 1e6:
                    raise LoadFailed(
                        f"no reply for {spec.reply_timeout_s:g} s "
                        f"with {self._links.outstanding} requests unanswered"
                    )
        self._tally.end()
        # What is still in flight counts for no rate, but it has to come.
        counted = self._tally.messages, self._tally.replies, self._tally.body_bytes
        deadline = now_us() + int(spec.reply_timeout_s * 1e6)
        while self._links.outstanding and now_us() < deadline:
            for link in self._links.ready(POLL_S):
                self._take(link)
        self._tally.messages, self._tally.replies, self._tally.body_bytes = counted

    def _ask(self, link: Link) -> None:
        queue, offset = self._points[link.index]
        self._opaque = opaque = self._opaque + 1
        link.sent_at[opaque] = now_us()
        self._links.send(link, self._frames[queue](opaque, offset))

    def _take(self, link: Link) -> int:
        """Read and check what has arrived; returns how many replies there were: none, or one."""
        data, count = link.receive()
        position = 0
        for _ in range(count):
            length, word = _LENGTHS(data, position)
            body = position + 8 + (word & 0xFF_FFFF)
            end = position + 4 + length
            now = self._last_reply_us = now_us()
            header = data[position + 8 : body]
            codes, opaques, nexts = _CODE(header), _OPAQUE(header), _NEXT(header)
            if data[position + 4] == 0 and codes == [b"0"] and len(opaques) == len(nexts) == 1:
                self._count(link, int(opaques[0]), int(nexts[0]), data, body, end, now)
            else:
                self._count_slowly(link, data[position + 4 : body], data, body, end, now)
            position = end
        return count

    def _count_slowly(self, link: Link, payload: bytes, data: bytes, body: int, end: int, now: int) -> None:
        """Count a reply that does not look like a plain success: a refusal, or another serialization."""
        try:
            reply = decode_frame(payload)
        except RopewalkError as exc:
            raise LoadFailed(f"the server sent a frame that cannot be read: {exc}") from exc
        if reply.code:
            link.answered((reply.opaque,))
            self._tally.refused(((reply.opaque, reply.code, reply.remark or ""),))
            return
        self._count(link, reply.opaque, int(reply.ext.get("nextBeginOffset", -1)), data, body, end, now)

    def _count(
        self, link: Link, opaque: int, following: int, data: bytes, body: int, end: int, now: int
    ) -> None:
        (sent,) = link.answered((opaque,))
        records = count_records(data, body, end)
        if not records:
            raise LoadFailed("a pull was answered with status 0 and no record")
        self._tally.accepted([now - sent], records, end - body)
        queue, offset = self._points[link.index]
        if following != offset + records:
            raise LoadFailed(
                f"queue {queue} was read at {offset}, {records} records came, "
                f"and the next offset is said to be {following}"
            )
        if following >= self._spec.end[queue]:
            following = self._spec.begin[queue]
        self._points[link.index] = queue, following
