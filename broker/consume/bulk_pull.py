"""Answer code 30020: many messages of one queue at once, for pipelines. Ropewalk's own; a stock broker answers 3.

The request names a range `[offset, end)`, so that a client can have several on the way without guessing how far each
will come. The answer's body is records as they stand in the log, its header holds the four numbers of a pull; the
codes are those of a pull too. Nothing is held: a range that is not there yet is answered at once.

Bounds: `bulkReadMaxBytes` an answer, eight reads from disk at once over all clients (more are told "busy"), and
nothing more for a peer that is owed too much already (`Session` leaves its requests unread). What leaves are views of
the log, so an answer of 4 MiB costs the loop its planning and the kernel's copy.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from broker.consume.pull import code_of
from broker.remoting.cold_lane import Steps
from broker.remoting.session import Request, Session
from broker.state.groups import GroupTable
from broker.state.ha_status import GroupLimits
from broker.state.statistics import Statistics
from broker.state.subscription import (
    TAG,
    SubscriptionData,
    SubscriptionParseError,
    is_at_hand,
    split_in_slices,
)
from broker.state.topics import TopicTable
from ropewalk.codes import FrameFlag, ResponseCode
from ropewalk.format.headers import BulkPullHeader, PullResponseHeader, encode_header, json_decoder
from ropewalk.format.remoting import FRAME_SIZE_MAX, Command, encode_frame
from store.message_store import MessageStore
from store.read.bulk import BulkReader, BulkResult
from store.read.results import GetStatus

_decode = json_decoder(BulkPullHeader).decode
_LENGTH = struct.Struct(">I")
_BODY_MAX = FRAME_SIZE_MAX - 64 * 1024


@dataclass(frozen=True, slots=True)
class BulkRules:
    broker_readable: bool = True
    max_bytes: int = 4 << 20


class BulkPull:
    """Handler of bulk pulls over the broker's store."""

    def __init__(
        self,
        rules: BulkRules,
        store: MessageStore,
        reader: BulkReader,
        topics: TopicTable,
        groups: GroupTable,
        statistics: Statistics,
        limits: GroupLimits,
    ) -> None:
        self.rules = rules
        self._limits = limits
        self._store = store
        self._reader = reader
        self._topics = topics
        self._groups = groups
        self._statistics = statistics

    def pull(self, session: Session, request: Request) -> None:
        """Handle one request, and answer it now or when the disk has been read."""
        if self._limits.unread is not None:  # a broker must not be read while it finds out what it has
            session.answer(request, ResponseCode.SYSTEM_BUSY, self._limits.unread)
            return
        header = request.header(BulkPullHeader, _decode)
        if header.subscription and not is_at_hand(header.subscription):
            steps = self._split_and_pull(session, request, header.subscription)
            session.serve_in_steps(request, steps, len(header.subscription))
            return
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        if not self.rules.broker_readable:
            session.answer(request, ResponseCode.NO_PERMISSION, "the broker is not readable")
            return
        config = self._groups.get(group)
        if config is not None and not config.consume_enable:
            session.answer(request, ResponseCode.NO_PERMISSION, f"group {group} is not allowed to consume")
            return
        topic_config = self._topics.get(topic)
        if topic_config is None:
            session.answer(
                request, ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!"
            )
            return
        if not topic_config.readable:
            session.answer(request, ResponseCode.NO_PERMISSION, f"topic {topic} is not readable")
            return
        if not 0 <= queue_id < topic_config.read_queues:
            session.answer(
                request,
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{queue_id}] is illegal, topic {topic} has {topic_config.read_queues} read queues",
            )
            return
        if header.end_offset <= header.offset:
            session.answer(
                request,
                ResponseCode.INVALID_PARAMETER,
                f"the range from {header.offset} to {header.end_offset} is empty",
            )
            return
        try:
            wish = SubscriptionData.parse(topic, header.subscription, expression_type=TAG)
        except SubscriptionParseError as exc:
            session.answer(request, ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(exc))
            return

        def done(result: BulkResult | None) -> None:
            code = code_of(result.status, header.offset) if result else ResponseCode.SYSTEM_BUSY
            if result is None:
                session.outbox.send_frame(request, code, request.reply(code, _BUSY))
            else:
                self._answer(session, request, code, header, result)

        limit = min(header.max_bytes or self.rules.max_bytes, self.rules.max_bytes, _BODY_MAX)
        queue = self._store.find_queue(topic, queue_id)
        matches = None if wish.wants_all else wish.codes.__contains__
        self._reader.get(queue, header.offset, header.end_offset, max(1, limit), matches, done)

    def _split_and_pull(self, session: Session, request: Request, expression: str) -> Steps:
        yield from split_in_slices(expression)
        self.pull(session, request)

    def _answer(
        self, session: Session, request: Request, code: int, header: BulkPullHeader, result: BulkResult
    ) -> None:
        if result.status is GetStatus.FOUND:
            self._statistics.got(
                header.topic, header.consumer_group, self._store.now, result.count, result.size
            )
        else:
            self._statistics.missed += 1
        numbers = PullResponseHeader(0, result.next_offset, result.min_offset, result.max_offset)
        head = encode_frame(
            Command(
                code=code,
                ext=encode_header(numbers),
                opaque=request.opaque,
                flag=FrameFlag.RESPONSE,
                remark=result.status.value,
                serialize_type=request.serialize_type,
            )
        )
        # The body follows in pieces of its own, so the frame is longer than the encoder knew.
        head = _LENGTH.pack(len(head) - 4 + result.size) + head[4:]
        session.outbox.send_frame(request, code, head, *result.pieces)


_BUSY = "[OVERLOAD]system busy, too many reads from disk"
