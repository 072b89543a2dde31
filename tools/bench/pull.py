"""The load of pulls: every connection reads its queue in a circle, one request in flight, never held.

Requests do not suspend (sysFlag 4: subscription included, nothing else), so a broker answers each at
once or not at all. The records of a reply are counted by walking their sizes; a size that leads outside
of the body ends the load, because a broker that sends damaged records has no speed.

One request stands for up to 32 messages, so headers go through the ordinary codec here; only what is done
for every record is done by hand.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from ropewalk.errors import RopewalkError
from ropewalk.format.remoting import JSON, ROCKETMQ, Command, decode_frame, encode_frame
from tools.bench.frames import OPAQUE_FIRST
from tools.bench.link import POLL_S, Link, Links, LoadFailed, Tally, now_us
from tools.bench.spec import Outcome, PullSpec

PULL_MESSAGE = 11
SUBSCRIPTION_INCLUDED = 4

_SIZE: Callable[[bytes, int], tuple[int]] = struct.Struct(">i").unpack_from
_LENGTHS: Callable[[bytes, int], tuple[int, int]] = struct.Struct(">iI").unpack_from


def count_records(data: bytes, position: int, end: int) -> int:
    """How many stored records lie back to back between two positions."""
    count = 0
    while position < end:
        size = _SIZE(data, position)[0] if position + 4 <= end else 0
        if size < 4 or position + size > end:
            raise LoadFailed(f"record {count} of a pulled body claims {size} of {end - position} bytes left")
        position += size
        count += 1
    return count


def starting_points(spec: PullSpec) -> list[tuple[int, int]]:
    """The queue of each connection, and where in it the connection begins.

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


def run_pulls(spec: PullSpec) -> Outcome:
    """One run of pulls."""
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
        self._opaque += 1
        header = {
            "consumerGroup": "ropewalk-bench",
            "topic": self._spec.topic,
            "queueId": str(queue),
            "queueOffset": str(offset),
            "maxMsgNums": str(self._spec.max_messages),
            "sysFlag": str(SUBSCRIPTION_INCLUDED),
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": "*",
            "subVersion": "0",
            "expressionType": "TAG",
        }
        serialize_type = ROCKETMQ if self._spec.serialization == "binary" else JSON
        frame = encode_frame(
            Command(PULL_MESSAGE, header, opaque=self._opaque, serialize_type=serialize_type)
        )
        link.sent_at[self._opaque] = now_us()
        self._links.send(link, frame)

    def _take(self, link: Link) -> int:
        """Read and check what has arrived; returns how many replies there were: none, or one."""
        data, count = link.receive()
        position = 0
        for _ in range(count):
            length, word = _LENGTHS(data, position)
            body = position + 8 + (word & 0xFF_FFFF)
            end = position + 4 + length
            try:
                reply = decode_frame(data[position + 4 : body])
            except RopewalkError as exc:
                raise LoadFailed(f"the server sent a frame that cannot be read: {exc}") from exc
            self._count(link, reply, data, body, end)
            position = end
        return count

    def _count(self, link: Link, reply: Command, data: bytes, body: int, end: int) -> None:
        now = self._last_reply_us = now_us()
        (sent,) = link.answered((reply.opaque,))
        if reply.code:
            self._tally.refused(((reply.opaque, reply.code, reply.remark or ""),))
            return
        records = count_records(data, body, end)
        if not records:
            raise LoadFailed("a pull was answered with status 0 and no record")
        self._tally.accepted([now - sent], records, end - body)
        queue, offset = self._points[link.index]
        following = int(reply.ext.get("nextBeginOffset", -1))
        if following != offset + records:
            raise LoadFailed(
                f"queue {queue} was read at {offset}, {records} records came, "
                f"and the next offset is said to be {following}"
            )
        if following >= self._spec.end[queue]:
            following = self._spec.begin[queue]
        self._points[link.index] = queue, following
