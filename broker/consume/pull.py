"""Judge, read, hold or answer a consumer's pull: codes 11 and 361.

The checks come in the original's order. Reading is the store's (`store.read.reader`); waiting for messages is
`held_pulls`, and waiting for a share of a busy loop `catch_up_pulls`. This file knows which answer a read status
becomes. Every answer about a queue (0, 19, 20, 21) carries the four numbers without which a Java client fails with a
null pointer; a refusal carries none of them, as in the original.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

from broker.consume.fast.header_template import PullTemplates, bytes_max_of
from broker.consume.filtered_read import SCAN_BYTES_MAX, FilteredReader, all_properties
from broker.consume.filters import FilterTable
from broker.remoting.cold_lane import Steps
from broker.remoting.refused import RequestRefused
from broker.remoting.session import Request, Session
from broker.state.clients import BROADCASTING, ClientRegistry
from broker.state.groups import GroupTable, SubscriptionGroupConfig
from broker.state.ha_status import GroupLimits
from broker.state.offsets import OffsetTable
from broker.state.statistics import Statistics
from broker.state.subscription import (
    TAG,
    SubscriptionData,
    SubscriptionParseError,
    is_at_hand,
    split_in_slices,
)
from broker.state.topics import TopicTable
from broker.waiting.catch_up_pulls import CatchUpPulls
from broker.waiting.held_pulls import HeldPull, PullHold, size_of
from ropewalk.codes import FrameFlag, PullSysFlag, RequestCode, ResponseCode
from ropewalk.format.headers import PullMessageHeader, json_decoder
from ropewalk.format.remoting import JSON, Command, encode_frame
from store.message_store import MessageStore
from store.queues.consume_queue import ConsumeQueue
from store.read.columns import VIEW_MIN
from store.read.reader import Reader
from store.read.results import GetResult, GetStatus

_decode = json_decoder(PullMessageHeader).decode
_prefix = struct.Struct(">II").pack
_FOUND = (
    b'{"code":0,"extFields":{"maxOffset":"%d","minOffset":"%d","nextBeginOffset":"%d","suggestWhichBrokerId":"%d"},'
    b'"flag":1,"language":"PYTHON","opaque":%d,"remark":"FOUND","serializeTypeCurrentRPC":"JSON","version":479}'
)
SUSPEND_MS_MAX = 120_000

_CODES = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_RESET: ResponseCode.PULL_OFFSET_MOVED,
}


def code_of(status: GetStatus, asked: int) -> int:
    """Return the response code of a read; an empty or missing queue depends on the offset."""
    if status in (GetStatus.NO_MATCHED_LOGIC_QUEUE, GetStatus.NO_MESSAGE_IN_QUEUE):
        return ResponseCode.PULL_OFFSET_MOVED if asked else ResponseCode.PULL_NOT_FOUND
    return _CODES[status]


@dataclass(frozen=True, slots=True)
class PullRules:
    """The configuration keys that decide over pulls."""

    broker_readable: bool = True
    long_polling: bool = True
    short_polling_ms: int = 1000
    lite_pull: bool = True
    """Whether consumers that divide queues themselves (361) are served."""
    slave_reads: bool = False
    """Whether a consumer that reads messages which are no longer in memory is sent to a slave."""


class PullProcessor:
    """Handler of pulls over the broker's store and tables."""

    def __init__(
        self,
        rules: PullRules,
        store: MessageStore,
        reader: Reader,
        topics: TopicTable,
        groups: GroupTable,
        clients: ClientRegistry,
        offsets: OffsetTable,
        hold: PullHold,
        catch_up: CatchUpPulls,
        statistics: Statistics,
        filters: FilterTable,
        limits: GroupLimits,
        *,
        monotonic_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._reader = reader
        self._topics = topics
        self._groups = groups
        self._clients = clients
        self._offsets = offsets
        self._hold = hold
        self._catch_up = catch_up
        self._statistics = statistics
        self._filters = filters
        self._filtered = FilteredReader(reader, store.log)
        self._found_times = statistics.rpc.row(RequestCode.PULL_MESSAGE, ResponseCode.SUCCESS)
        self._monotonic_ms = monotonic_ms
        self.commit: Callable[[str, str, int, int, Session], object] = offsets.commit
        """Take the offset that a pull commits: group, topic, queue id, offset, client. Raises ValueError as it does."""
        self._limits = limits
        hold.properties_of = self._properties_of
        self.configure(rules)

    def configure(self, rules: PullRules) -> None:
        """Take over these rules from the next request on."""
        self._rules = rules

    def pull(self, session: Session, request: Request) -> None:
        """Handle one PULL_MESSAGE or LITE_PULL_MESSAGE. HOT."""
        header = request.header(PullMessageHeader, _decode)
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        is_posted = bool(header.sys_flag & PullSysFlag.SUBSCRIPTION)
        if is_posted and not _is_at_hand(header):
            session.serve_in_steps(
                request,
                self._split_and_pull(session, request, header.subscription or ""),
                len(header.subscription or ""),
            )
            return
        try:
            config = self._admit(session, group, topic, queue_id, request.code, self._limits.unread)
            subscription = self._subscription(group, topic, header, config.consume_broadcast_enable)
            wanted = None
            if subscription.expression_type != TAG and not subscription.class_filter:
                if not self._filters.is_at_hand(group, subscription, is_posted=is_posted):
                    steps = self._compile_and_pull(session, request, subscription)
                    session.serve_in_steps(request, steps, len(subscription.expression))
                    return
                version = header.sub_version or 0
                wanted = self._filters.filter_of(group, subscription, version, is_posted=is_posted)
        except RequestRefused as exc:
            session.answer(request, exc.code, exc.remark, exc.ext)
            return
        if header.sys_flag & PullSysFlag.COMMIT_OFFSET:
            try:
                self.commit(group, topic, queue_id, header.commit_offset, session)
            except ValueError as exc:
                self._refuse(session, request, ResponseCode.SYSTEM_ERROR, str(exc))
                return
        self._offsets.note_pull(group, topic, queue_id, header.queue_offset)
        # A queue that was never written is made here, so that a pull can wait for its first message.
        queue = self._store.queue(topic, queue_id)
        max_bytes = bytes_max_of(header)
        catch_up = self._catch_up
        put_off = catch_up.share.is_active and self._reader.is_far_behind(queue, header.queue_offset)
        if not put_off and subscription.wants_all and not self._offsets.resets and not session.link.congested:
            result = self._reader.get_resident(queue, header.queue_offset, header.max_msg_nums, max_bytes)
            if result is not None:
                self._respond(session, request, queue, group, header.queue_offset, result)
                return
        held = HeldPull(
            session,
            request,
            queue,
            header.queue_offset,
            max(1, header.max_msg_nums),
            max_bytes,
            None if subscription.wants_all or wanted is not None else subscription.codes.__contains__,
            0,
            self._read_again,
            wanted,
            scanned=header.queue_offset,
            group=group,
            codes=None if subscription.wants_all or wanted is not None else subscription.codes,
        )
        suspend = header.sys_flag & PullSysFlag.SUSPEND and header.suspend_timeout_millis > 0
        if suspend:
            wait_ms = (
                header.suspend_timeout_millis if self._rules.long_polling else self._rules.short_polling_ms
            )
            held.deadline_ms = self._monotonic_ms() + min(wait_ms, SUSPEND_MS_MAX)
        looks = header.queue_offset < queue.readable and (wanted is not None or not subscription.wants_all)
        if put_off or (looks and catch_up.filter_left_s <= 0):
            if looks and not catch_up.has_room:
                self._answer_again(held)
                return
            request.forget()
            kept = size_of(held)
            catch_up.add(session, lambda: self._read_put_off(held, may_hold=bool(suspend)), kept)
        elif looks:
            catch_up.look(lambda: self._read(held, may_hold=bool(suspend)))
        else:
            self._read(held, may_hold=bool(suspend))

    def _split_and_pull(self, session: Session, request: Request, expression: str) -> Steps:
        yield from split_in_slices(expression)
        if session.is_open:
            self.pull(session, request)

    def _compile_and_pull(self, session: Session, request: Request, wish: SubscriptionData) -> Steps:
        yield from self._filters.prepare(wish)
        if session.is_open:
            self.pull(session, request)

    def pull_by_template(self, session: Session, templates: PullTemplates, payload: bytes) -> bool:
        """Answer a pull whose header this client has sent before but for its numbers. HOT.

        False, and nothing is done, where there is more to it than messages that are at hand: `pull` is for all others.
        A test has both answer the same requests, and compares what they send.
        """
        found = templates.find(payload)
        if found is None:
            return False
        template, (queue_id, offset, commit_offset, opaque) = found
        if self._rules.slave_reads or self._offsets.resets or session.link.congested:
            return False
        header = template.header
        group, topic = header.consumer_group, header.topic
        try:
            config = self._admit(
                session, group, topic, queue_id, RequestCode.PULL_MESSAGE, self._limits.unread
            )
            if template.subscription is None:
                subscription = self._known_subscription(group, topic, header, config.consume_broadcast_enable)
                if not subscription.wants_all:
                    return False
        except RequestRefused:
            return False
        queue = self._store.queue(topic, queue_id)
        if self._catch_up.share.is_active and self._reader.is_far_behind(queue, offset):
            return False
        resident = self._reader.find_resident(queue, offset, header.max_msg_nums, template.bytes_max)
        if resident is None:
            return False
        pieces, count, size, _last = resident
        if template.commits:
            try:
                self.commit(group, topic, queue_id, commit_offset, session)
            except ValueError:
                return False
        self._offsets.note_pull(group, topic, queue_id, offset)
        statistics = self._statistics
        statistics.got(topic, group, self._store.now, count, size)
        numbers = queue.readable, queue.min_offset, offset + count, 0, opaque
        session.outbox.send_counted(self._found_times, *_found_frame(pieces, size, numbers))
        return True

    def _admit(
        self, session: Session, group: str, topic: str, queue_id: int, code: int, closed: str | None
    ) -> SubscriptionGroupConfig:
        """Return the group, if it may read this queue; called again after a wait. Raises `RequestRefused`."""
        if not self._rules.broker_readable:
            raise RequestRefused(ResponseCode.NO_PERMISSION, "the broker is not readable", _forbidden(1))
        if closed is not None:
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, closed)
        if not self._rules.lite_pull and code == RequestCode.LITE_PULL_MESSAGE:
            remark = "the broker does not serve lite pull consumers (litePullMessageEnable)"
            raise RequestRefused(ResponseCode.NO_PERMISSION, remark, _forbidden(1))
        config = self._groups.get(group) or self._groups.find_or_create(group, self._store.now, session)
        if config is None:
            reason = self._groups.creation_refusal(group, session)
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{group}] does not exist, {reason}",
            )
        if not config.consume_enable:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION, f"group {group} is not allowed to consume", _forbidden(2)
            )
        topic_config = self._topics.get(topic)
        if topic_config is None:
            raise RequestRefused(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!"
            )
        if not topic_config.readable:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"topic {topic} is not readable", _forbidden(3))
        if not 0 <= queue_id < topic_config.read_queues:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{queue_id}] is illegal, topic {topic} has {topic_config.read_queues} read queues",
            )
        return config

    def _subscription(
        self, group: str, topic: str, header: PullMessageHeader, broadcast_allowed: bool
    ) -> SubscriptionData:
        """Return the consumer's subscription: sent along, or known from its heartbeats. Raises `RequestRefused`."""
        if header.sys_flag & PullSysFlag.SUBSCRIPTION:
            try:
                subscription = SubscriptionData.parse(
                    topic,
                    header.subscription,
                    version=header.sub_version or 0,
                    expression_type=header.expression_type,
                )
            except SubscriptionParseError as exc:
                raise RequestRefused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(exc)) from exc
        else:
            subscription = self._known_subscription(group, topic, header, broadcast_allowed)
        return subscription

    def _known_subscription(
        self, group: str, topic: str, header: PullMessageHeader, broadcast_allowed: bool
    ) -> SubscriptionData:
        """Return the subscription of the group's heartbeats. Raises `RequestRefused`."""
        info = self._clients.consumer_group(group)
        if info is None:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer group {group} is not online on this broker",
            )
        if info.message_model == BROADCASTING and not broadcast_allowed:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION, f"group {group} may not consume by broadcasting", _forbidden(4)
            )
        if self._groups.read_forbidden(group, topic):
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"the consumer group {group} is forbidden for topic {topic}",
                _forbidden(5),
            )
        known = info.subscriptions.get(topic)
        if known is None:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer group {group} does not subscribe to {topic}",
            )
        if known.version < (header.sub_version or 0):
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_NOT_LATEST,
                f"the subscription of {group} to {topic} is older than the pull's: its heartbeat is on the way",
            )
        return known

    def _properties_of(self, queue: ConsumeQueue, start: int, end: int) -> list[bytes] | None:
        """Return the property texts of messages by their queue offsets, if all of them are in memory."""
        texts: list[bytes] = []
        while start < end:
            found = self._reader.find_resident(queue, start, end - start, SCAN_BYTES_MAX)
            if found is None:
                return None
            for piece in found[0]:
                texts += all_properties(piece)
            start += found[1]
        return texts

    # -- reading and waiting -------------------------------------------------------------------------

    def _read(self, held: HeldPull, *, may_hold: bool) -> None:
        if self._offsets.resets:
            queue = held.queue
            offset = self._offsets.take_reset(held.group, queue.topic, queue.queue_id, held.offset)
            if offset is not None:
                self._answer(
                    held, GetResult(GetStatus.OFFSET_RESET, offset, queue.min_offset, queue.readable)
                )
                return

        def done(result: GetResult | None) -> None:
            if result is None:
                busy = ResponseCode.SYSTEM_BUSY
                self._answer_now(
                    held, busy, held.request.reply(busy, "[OVERLOAD]system busy, too many reads from disk")
                )
                return
            if may_hold and self._hold_instead(held, result):
                return
            self._answer(held, result)

        if held.session.link.congested:
            self._answer_again(held)  # it takes nothing of what it is owed already
            return
        if held.wanted is None:
            self._reader.get(held.queue, held.scanned, held.max_count, held.max_bytes, held.matches, done)
        else:
            self._filtered.get(held.queue, held.scanned, held.max_count, held.max_bytes, held.wanted, done)

    def _answer_again(self, held: HeldPull) -> None:
        """Give a small answer that has the client ask again: it costs least."""
        low, high = held.queue.min_offset, held.queue.readable
        self._answer(held, GetResult(GetStatus.NO_MATCHED_MESSAGE, held.offset, low, high))

    def _hold_instead(self, held: HeldPull, result: GetResult) -> bool:
        """Hold the pull if there is nothing for it yet; return whether it is held."""
        if (
            not held.session.is_open
            or not self._hold.admits(held)
            or held.deadline_ms <= self._monotonic_ms()
        ):
            return False
        limits = self._limits
        if not limits.is_leader and (limits.has_master or result.status is GetStatus.OFFSET_OVERFLOW_BADLY):
            if limits.has_master:
                return False  # at the end of a queue the master has what comes next
            # This slave lacks what the consumer has read: it waits for it, and is never sent back.
            self._hold.park(held)
            return True
        if result.status is GetStatus.NO_MATCHED_MESSAGE:
            # Nothing matched up to the end: only a pull that has waited stays quiet about it. A first pass tells
            # the client, so that its offset moves on.
            if held not in held.session.held or held.queue.readable > result.next_offset:
                return False
            held.scanned = result.next_offset
        elif (
            result.status is GetStatus.OFFSET_FOUND_NULL  # the place is unreadable, and will be the next time
            or code_of(result.status, held.offset) != ResponseCode.PULL_NOT_FOUND
        ):
            return False
        elif held.queue.readable > result.max_offset:
            # It became longer while a reader thread was looking.
            self._read(held, may_hold=True)
            return True
        self._hold.park(held)
        return True

    def _read_again(self, held: HeldPull, last: bool) -> None:
        # Minutes may have passed: who has been forbidden to read meanwhile gets nothing more, as in the original.
        if self._is_still_admitted(held, None):
            if last:
                held.scanned = held.offset
            self._read(held, may_hold=not last)

    def _read_put_off(self, held: HeldPull, *, may_hold: bool) -> None:
        if self._is_still_admitted(held, self._limits.unread):
            self._read(held, may_hold=may_hold)

    def _is_still_admitted(self, held: HeldPull, closed: str | None) -> bool:
        """Whether a pull that waited may still be read for; refuses it if not."""
        if not held.session.is_open:
            return False
        try:
            self._admit(
                held.session, held.group, held.queue.topic, held.queue.queue_id, held.request.code, closed
            )
        except RequestRefused as exc:
            self._answer_now(held, exc.code, held.request.reply(exc.code, exc.remark, exc.ext))
            return False
        return True

    def _answer(self, held: HeldPull, result: GetResult) -> None:
        has_waited = held in held.session.held
        held.session.held.pop(held, None)
        self._respond(held.session, held.request, held.queue, held.group, held.offset, result, has_waited)

    def _respond(
        self,
        session: Session,
        request: Request,
        queue: ConsumeQueue,
        group: str,
        offset: int,
        result: GetResult,
        has_waited: bool = False,
    ) -> None:
        """Answer with the messages at the offset that was asked for, or with the reason why there are none. HOT."""
        found = result.status is GetStatus.FOUND
        if found:
            self._statistics.got(queue.topic, group, self._store.now, result.count, result.size)
        else:
            self._statistics.missed += 1
        code, suggested, next_offset = self._place(group, offset, result)
        if found and request.serialize_type == JSON:
            numbers = result.max_offset, result.min_offset, next_offset, suggested, request.opaque
            pieces = _found_frame(result.records, result.size, numbers)
            session.outbox.send_frame(request, code, *pieces, long_polling=has_waited)
            return
        answer = Command(
            code=code,
            ext={
                "suggestWhichBrokerId": str(suggested),
                "nextBeginOffset": str(next_offset),
                "minOffset": str(result.min_offset),
                "maxOffset": str(result.max_offset),
            },
            body=b"".join(result.records),
            opaque=request.opaque,
            flag=FrameFlag.RESPONSE,
            remark=result.status.value,
            serialize_type=request.serialize_type,
        )
        session.outbox.send_frame(request, code, encode_frame(answer), long_polling=has_waited)

    def _place(self, group: str, offset: int, result: GetResult) -> tuple[int, int, int]:
        """Return the response code, the id of the broker that the consumer should pull from next, and the offset there.

        A consumer that is so far behind that what it reads has left the memory is sent to a slave, and back when it has
        caught up: the master's memory is for those at the end. A slave sends nobody to another offset, because it may
        only be late itself: what it has next counts to clients, whatever the code is.
        """
        code = code_of(result.status, offset)
        limits = self._limits
        if limits.is_leader and not self._rules.slave_reads:
            return code, 0, result.next_offset
        config = self._groups.get(group)
        looked = result.status in (GetStatus.FOUND, GetStatus.NO_MATCHED_MESSAGE)
        behind = self._store.log.end_offset - result.last_physical if looked else 0
        slow = behind > self._reader.limits.memory_window
        suggested = 0
        if self._rules.slave_reads and config is not None:
            suggested = config.which_broker_when_consume_slowly if slow else config.broker_id
        if not limits.is_leader:
            if code == ResponseCode.PULL_OFFSET_MOVED and result.status is not GetStatus.OFFSET_RESET:
                master = config.broker_id if config is not None else 0
                return ResponseCode.PULL_RETRY_IMMEDIATELY, master, offset
            if limits.has_master and not slow:
                suggested = 0
                if result.status is not GetStatus.FOUND:
                    code = ResponseCode.PULL_RETRY_IMMEDIATELY
        return code, suggested, result.next_offset

    def _answer_now(self, held: HeldPull, code: int, frame: bytes) -> None:
        session = held.session
        has_waited = held in session.held
        session.held.pop(held, None)
        session.outbox.send_frame(held.request, code, frame, long_polling=has_waited)

    def _refuse(
        self, session: Session, request: Request, code: int, remark: str, forbidden_type: int | None = None
    ) -> None:
        session.answer(
            request, code, remark, {"forbiddenType": str(forbidden_type)} if forbidden_type else None
        )


def _is_at_hand(header: PullMessageHeader) -> bool:
    """Tell whether the tag expression that a pull posts takes no time to speak of."""
    expression = header.subscription
    return not expression or is_at_hand(expression) or (header.expression_type or TAG) != TAG


def _found_frame(
    pieces: list[bytes | memoryview], size: int, numbers: tuple[int, int, int, int, int]
) -> tuple[bytes | memoryview, ...]:
    """Return the answer in JSON with what was found, in one piece or two; `numbers` are those of `_FOUND`. HOT."""
    header = _FOUND % numbers
    length = len(header)
    head = _prefix(4 + length + size, length) + header
    if size < VIEW_MIN or len(pieces) > 1:
        return (b"".join((head, *pieces)),)
    return head, pieces[0]


def _forbidden(kind: int) -> dict[str, str]:
    """Return the extFields that tell official clients which rule forbids a read (`forbiddenType`)."""
    return {"forbiddenType": str(kind)}
