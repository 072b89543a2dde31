"""The requests that are not hot: heartbeats, offsets, queue boundaries, single messages.

Each handler takes a whole `Command` and returns the answer. What needs the disk (offset by time, message by id,
earliest store time) is looked up on a reader thread and answered when it comes back; such a handler returns None
and owes the answer to the session later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from broker.consume.filters import FilterTable
from broker.consume.member_notifier import MemberNotifier
from broker.context import BrokerContext
from broker.remoting.large_answers import (
    body_in_steps,
    in_pieces,
    large_answer,
    written_fields,
    written_list,
)
from broker.remoting.session import Handlers, Session, Stepwise
from broker.state.clients import HeartbeatData, HeartbeatRefused, Member
from broker.state.heartbeat import SUBSCRIPTIONS_PER_STEP
from broker.state.queue_locks import LockRequest
from broker.state.shares import Stranger
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format import fastjson
from ropewalk.format.headers import (
    SUBSCRIPTION_CONFLICT,
    ConsumerGroupHeader,
    GetMaxOffsetHeader,
    HeaderError,
    QueryConsumerOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    UnregisterClientHeader,
    UpdateConsumerOffsetHeader,
    ViewMessageHeader,
    decode_header,
)
from ropewalk.format.remoting import Command
from store.read.store_times import offset_by_time, store_time

GROUPS_COMPARED_PER_STEP: Final = 10
"""Groups of a client whose subscriptions are compared with others' before others are served."""
LANGUAGE_SIZE_MAX: Final = 32
"""Characters of the name of a client's language that are kept."""


class Requests:
    """Handlers over the broker's state."""

    def __init__(self, broker: BrokerContext, filters: FilterTable, notifier: MemberNotifier) -> None:
        self._broker = broker
        self._filters = filters
        self._notifier = notifier

    def register(self, handlers: Handlers) -> None:
        handlers.cold.update(
            {
                RequestCode.HEART_BEAT: self.heartbeat,
                RequestCode.UNREGISTER_CLIENT: self.unregister,
                RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.consumer_list,
                RequestCode.LOCK_BATCH_MQ: self.lock,
                RequestCode.UNLOCK_BATCH_MQ: self.unlock,
                RequestCode.QUERY_CONSUMER_OFFSET: self.query_offset,
                RequestCode.UPDATE_CONSUMER_OFFSET: self.update_offset,
                RequestCode.GET_MAX_OFFSET: self.max_offset,
                RequestCode.GET_MIN_OFFSET: self.min_offset,
                RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.search_offset,
                RequestCode.GET_EARLIEST_MSG_STORETIME: self.earliest_store_time,
                RequestCode.VIEW_MESSAGE_BY_ID: self.view_message,
            }
        )

    # -- clients -------------------------------------------------------------------------------------

    def heartbeat(self, session: Session, request: Command) -> Stepwise:
        broker = self._broker
        now = broker.now_ms()
        try:
            data = yield from HeartbeatData.decode_in_slices(request.body)
            known = []
            for count, consumer in enumerate(data.consumers):
                if count % SUBSCRIPTIONS_PER_STEP == SUBSCRIPTIONS_PER_STEP - 1:
                    yield
                config = broker.groups.find_or_create(consumer.group, now, session)
                if config is None:
                    continue  # unknown and not to be created: skipped without a word, as clients expect
                broker.topics.create_retry(consumer.group, queue_nums=config.retry_queue_nums, now_ms=now)
                known.append(consumer)
            ip, port = session.link.peer
            broker.clients.check_bounds(session, data, session)
            for part in data.with_consumers(known).parts():
                changed = broker.clients.heartbeat(
                    session,
                    part,
                    broker.monotonic_ms(),
                    language=request.language[:LANGUAGE_SIZE_MAX],
                    version=request.version,
                    address=f"{ip}:{port}",
                    by=session,
                )
                if not data.without_sub:
                    for consumer in part.consumers:
                        info = broker.clients.consumer_group(consumer.group)
                        table = info.subscriptions if info is not None else {}
                        wishes = [table.get(wish.topic, wish) for wish in consumer.subscriptions]
                        yield from self._filters.register_in_slices(consumer.group, wishes, now, session)
                self._notifier.notify(changed)
                if len(part.consumers) < len(known):
                    yield
        except HeartbeatRefused as exc:
            return request.reply(ResponseCode.SYSTEM_ERROR, str(exc))
        # The client asks for the route of its retry topic next: the name server has to know it by then.
        broker.topics_changed()
        ext = {"IS_SUPPORT_HEART_BEAT_V2": "false", "IS_SUB_CHANGE": "true"}
        for count, consumer in enumerate(known, 1):
            conflict = broker.clients.conflict_of(session, [consumer.group])
            if conflict is not None:
                ext[SUBSCRIPTION_CONFLICT] = conflict
                break
            if count % GROUPS_COMPARED_PER_STEP == 0:
                yield
        return request.reply(ResponseCode.SUCCESS, ext=ext)

    def unregister(self, session: Session, request: Command) -> Command:
        header = decode_header(UnregisterClientHeader, request.ext)
        self._notifier.notify(
            self._broker.clients.unregister(
                session, consumer_group=header.consumer_group, producer_group=header.producer_group
            )
        )
        return request.reply(ResponseCode.SUCCESS)

    def lock(self, session: Session, request: Command) -> Stepwise:
        broker = self._broker
        try:
            wanted = yield from LockRequest.decode_in_slices(request.body)
        except ValueError as exc:
            return request.reply(ResponseCode.SYSTEM_ERROR, str(exc))

        def granted() -> Iterator[bytes]:
            for part in wanted.parts():
                for queue in broker.locks.lock(part, broker.monotonic_ms(), session):
                    yield fastjson.dumps(queue.to_json())
                yield b""

        return (yield from body_in_steps(request, {"lockOKMQSet": written_list(granted())}))

    def unlock(self, session: Session, request: Command) -> Stepwise:
        try:
            wanted = yield from LockRequest.decode_in_slices(request.body)
        except ValueError as exc:
            return request.reply(ResponseCode.SYSTEM_ERROR, str(exc))
        for part in wanted.parts():
            self._broker.locks.unlock(part)
            if len(part.queues) < len(wanted.queues):
                yield
        return request.reply(ResponseCode.SUCCESS)

    def consumer_list(self, session: Session, request: Command) -> Stepwise:
        group = decode_header(ConsumerGroupHeader, request.ext).consumer_group
        info = self._broker.clients.consumer_group(group)
        if info is None:
            return request.reply(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group}")
        version, pieces = info.ids_version, info.ids_text
        if pieces is None:
            members, seen = list(info.members.values()), set[str]()

            def text(member: Member) -> bytes:
                if member.client_id in seen:
                    return b""  # two connections of one client
                seen.add(member.client_id)
                return fastjson.dumps(member.client_id)

            pieces = yield from in_pieces(
                written_fields({"consumerIdList": written_list(map(text, members))})
            )
            if info.ids_version == version:
                info.ids_text = pieces
        return large_answer(request, list(pieces))

    # -- offsets -------------------------------------------------------------------------------------

    def query_offset(self, session: Session, request: Command) -> Command | None:
        decode_header(QueryConsumerOffsetHeader, request.ext)  # what it cannot be is refused at once
        return self._newest(session, request, self._query_offset)

    def _newest(
        self, session: Session, request: Command, look: Callable[[Command], Command]
    ) -> Command | None:
        """Return the answer of `look`; in a DLedger group send it when it is the newest, whichever member is asked."""
        reads = self._broker.newest
        if reads is None:
            return look(request)

        def found() -> Command:
            try:
                return look(request)
            except OSError as exc:
                return request.reply(ResponseCode.SYSTEM_ERROR, f"the disk could not be read: {exc}")

        reads.read(
            found,
            lambda why: request.reply(ResponseCode.SERVICE_NOT_AVAILABLE, why),
            lambda answer: session.outbox.send(request, answer),
        )
        return None

    def _query_offset(self, request: Command) -> Command:
        header = decode_header(QueryConsumerOffsetHeader, request.ext)
        broker = self._broker
        offset = broker.offsets.query(header.consumer_group, header.topic, header.queue_id)
        if offset is None and header.set_zero_if_not_found is not False:
            offset = self._young_start(header.topic, header.queue_id)
        if offset is None:
            return request.reply(
                ResponseCode.QUERY_NOT_FOUND,
                "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first",
            )
        return request.reply(ResponseCode.SUCCESS, ext={"offset": str(offset)})

    def _young_start(self, topic: str, queue_id: int) -> int | None:
        """0 for a queue whose very first message is still near the end of the log, else None.

        A new group on a young topic starts at its beginning, also when it asked for the end: clients rely on it.
        """
        broker = self._broker
        queue = broker.store.find_queue(topic, queue_id)
        if queue is None or queue.readable == 0:
            return 0
        if queue.min_offset > 0:
            return None
        end = broker.store.log.end_offset
        window = broker.reader.limits.memory_window
        if end - broker.store.log.min_offset <= window:
            return 0
        entry = queue.entries_nowait(0, 1)
        physical = int.from_bytes(entry[:8], "big") if entry else 0
        return 0 if end - physical <= window else None

    def update_offset(self, session: Session, request: Command) -> Command | None:
        newest = self._broker.newest
        if newest is None or newest.takes_offsets:
            return self.commit_offset(request, lambda answer: session.outbox.send(request, answer), session)
        if request.is_oneway:
            newest.forward(request, request.reply, lambda answer: None)
        else:
            newest.forward(request, request.reply, lambda answer: session.outbox.send(request, answer))
        return None

    def commit_offset(
        self, request: Command, send: Callable[[Command], None], by: Stranger | None = None
    ) -> Command | None:
        """Commit an offset where offsets are committed; `send` the answer that is not returned."""
        try:
            header = decode_header(UpdateConsumerOffsetHeader, request.ext)
        except HeaderError as exc:
            return request.reply(ResponseCode.INVALID_PARAMETER, str(exc))
        broker = self._broker
        group, topic = header.consumer_group, header.topic
        if group not in broker.groups:
            return request.reply(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} not exist!")
        if topic not in broker.topics:
            return request.reply(ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic} not exist!")
        try:
            broker.offsets.commit(group, topic, header.queue_id, header.commit_offset, by)
        except ValueError as exc:
            return request.reply(ResponseCode.INVALID_PARAMETER, str(exc))
        answer = request.reply(ResponseCode.SUCCESS)
        if broker.newest is None or request.is_oneway:
            return answer
        broker.newest.logged(lambda why: request.reply(ResponseCode.SERVICE_NOT_AVAILABLE, why), answer, send)
        return None

    def max_offset(self, session: Session, request: Command) -> Command | None:
        decode_header(GetMaxOffsetHeader, request.ext)
        return self._newest(session, request, self._max_offset)

    def _max_offset(self, request: Command) -> Command:
        header = decode_header(GetMaxOffsetHeader, request.ext)
        queue = self._broker.store.find_queue(header.topic, header.queue_id)
        return request.reply(ResponseCode.SUCCESS, ext={"offset": str(queue.readable if queue else 0)})

    def min_offset(self, session: Session, request: Command) -> Command:
        header = decode_header(QueueHeader, request.ext)
        queue = self._broker.store.find_queue(header.topic, header.queue_id)
        return request.reply(ResponseCode.SUCCESS, ext={"offset": str(queue.min_offset if queue else 0)})

    def search_offset(self, session: Session, request: Command) -> Command | None:
        header = decode_header(SearchOffsetHeader, request.ext)
        queue = self._broker.store.find_queue(header.topic, header.queue_id)
        if queue is None or queue.readable == 0:
            return request.reply(ResponseCode.SUCCESS, ext={"offset": "0"})
        upper = (header.boundary_type or "").upper() == "UPPER"
        log, frozen = self._broker.store.log, queue.frozen()
        self._later(
            session,
            request,
            lambda: offset_by_time(frozen, log, header.timestamp, upper=upper),
            lambda offset: request.reply(ResponseCode.SUCCESS, ext={"offset": str(offset)}),
        )
        return None

    def earliest_store_time(self, session: Session, request: Command) -> Command | None:
        header = decode_header(QueueHeader, request.ext)
        queue = self._broker.store.find_queue(header.topic, header.queue_id)
        if queue is None or queue.min_offset >= queue.readable:
            return request.reply(ResponseCode.SUCCESS, ext={"timestamp": "-1"})
        log, frozen = self._broker.store.log, queue.frozen()
        self._later(
            session,
            request,
            lambda: store_time(frozen, log, frozen.min_offset),
            lambda time: request.reply(ResponseCode.SUCCESS, ext={"timestamp": str(time)}),
        )
        return None

    # -- one message ---------------------------------------------------------------------------------

    def view_message(self, session: Session, request: Command) -> Command | None:
        offset = decode_header(ViewMessageHeader, request.ext).offset

        def done(record: bytes | None) -> None:
            if record is None:
                answer = request.reply(
                    ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}"
                )
            else:
                answer = request.reply(ResponseCode.SUCCESS, body=record)
            self._send(session, request, answer)

        self._broker.reader.look_up(
            offset, self._broker.store.find_queue, done, lambda _result: self._send_busy(session, request)
        )
        return None

    def _later(
        self,
        session: Session,
        request: Command,
        job: Callable[[], int],
        answer: Callable[[int], Command],
    ) -> None:
        """Answer from a reader thread's result, or "busy" if too many wait already."""

        self._broker.reader.run(
            job,
            lambda result: self._send(session, request, answer(result)),
            lambda _result: self._send_busy(session, request),
        )

    def _send_busy(self, session: Session, request: Command) -> None:
        answer = request.reply(ResponseCode.SYSTEM_BUSY, "[OVERLOAD]system busy, too many reads from disk")
        self._send(session, request, answer)

    def _send(self, session: Session, request: Command, answer: Command) -> None:
        session.outbox.send(request, answer)
