"""Code 37: a producer commits or rolls back its half message, by itself or in answer to a check.

The half record is found by its log offset, and group and queue offset have to fit it. A commit appends the message to
its own topic; both decisions take the transaction out of `OpenHalves`, so that the second of two decisions finds none:
it is answered in words and stores nothing. RocketMQ would store a message that is committed twice twice.

    on a slave                       11
    neither commit nor rollback      no answer
    no such half record              1    "Find prepared transaction message failed"
    another group, another offset    1
    decided already                  1
    the immunity is over, no check   604
    the broker takes no messages     as a send is refused

A half that the log still holds in memory is read at once; others are read by the reader's threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import structlog

from broker.context import BrokerContext
from broker.remoting.outbox import Owed
from broker.remoting.refused import RequestRefused
from broker.remoting.rpc_times import Kind
from broker.remoting.session import Request, Session
from broker.transactions.records import HALF_QUEUE, half_of, origin_of, plain_properties, stored_properties
from broker.transactions.service import TransactionService
from ropewalk.codes import MessageSysFlag, RequestCode, ResponseCode
from ropewalk.errors import CorruptRecord, LocalProtocolError
from ropewalk.format import names
from ropewalk.format.headers import EndTransactionHeader, ResumeCheckHeader, decode_header, json_decoder
from ropewalk.format.properties import P, encode_properties
from ropewalk.format.record import Record, decode_record, encode_host, parse_message_id
from ropewalk.format.remoting import Command
from store.append import Message
from store.queues.consume_queue import ConsumeQueue

__all__ = ["EndTransaction"]

log = structlog.get_logger("broker.transactions")

_COMMIT: Final = MessageSysFlag.TRANSACTION_COMMIT
_ROLLBACK: Final = MessageSysFlag.TRANSACTION_ROLLBACK
_RECORD_BYTES_MAX: Final = 32 << 20
_SLAVE: Final = "this broker is a slave: transactions are ended at its master"
_decode = json_decoder(EndTransactionHeader).decode


class EndTransaction:
    """The handler of 37, and of 323, which has a half message checked again."""

    def __init__(
        self,
        context: BrokerContext,
        transactions: TransactionService,
        *,
        is_slave: Callable[[], bool],
        refusal: Callable[[], tuple[int, str] | None],
        waits: Callable[[], bool],
        wait: Callable[[Sequence[Owed], float, Sequence[Kind]], None],
        place: Callable[[ConsumeQueue, dict[str, str]], tuple[ConsumeQueue, int]],
    ) -> None:
        """`waits()` tells whether answers wait for the disk or for slaves, and `wait` has them do so.

        `place` says where a message goes, and with which tag code: a committed message may be a delayed one.
        """
        self._context = context
        self._transactions = transactions
        self._is_slave = is_slave
        self._refusal = refusal
        self._waits = waits
        self._wait = wait
        self._place = place

    def end(self, session: Session, request: Request) -> None:
        """Decide one transaction."""
        header = request.header(EndTransactionHeader, _decode)
        if self._is_slave():
            session.answer(request, ResponseCode.SLAVE_NOT_AVAILABLE, _SLAVE)
            return
        if header.commit_or_rollback not in (_COMMIT, _ROLLBACK):
            log.info(
                "a producer cannot decide a transaction yet",
                group=header.producer_group,
                transaction=header.msg_id,
                checked=header.from_transaction_check,
            )
            return
        if (refused := self._refusal()) is not None:
            session.answer(request, *refused)
            return
        context = self._context
        queue = context.store.find_queue(names.TRANS_HALF_TOPIC, HALF_QUEUE)
        offset = header.tran_state_table_offset
        found = None
        if queue is not None and offset >= 0:
            found = context.reader.get_resident(queue, offset, 1, _RECORD_BYTES_MAX)
        request.body = b""
        if found is not None:
            data = bytes(found.records[0])
            if int.from_bytes(data[28:36], "big") == header.commit_log_offset:
                self._have_record(session, request, header, data, at_once=True)
                return
        context.reader.look_up(
            header.commit_log_offset,
            context.store.find_queue,
            lambda data: self._have_record(session, request, header, data, at_once=False),
            lambda _result: self._answer(
                session,
                request,
                (ResponseCode.SYSTEM_BUSY, "[OVERLOAD]system busy, too many reads from disk"),
                False,
            ),
        )

    def _have_record(
        self,
        session: Session,
        request: Request,
        header: EndTransactionHeader,
        data: bytes | None,
        *,
        at_once: bool,
    ) -> None:
        """Judge the half record, and decide as soon as it is known what is open."""
        try:
            record = _half_record(data, header)
        except RequestRefused as exc:
            self._answer(session, request, (exc.code, exc.remark), at_once)
            return
        state = [at_once]
        go_on = partial(self._decide, session, request, header, record, state)
        if not self._transactions.when_loaded(go_on):
            busy = ResponseCode.SYSTEM_BUSY, "[OVERLOAD]system busy, open transactions are being read"
            self._answer(session, request, busy, at_once)
        state[0] = False

    def _decide(
        self,
        session: Session,
        request: Request,
        header: EndTransactionHeader,
        record: Record,
        at_once: list[bool],
    ) -> None:
        outcome: tuple[int, str] | None = None
        try:
            self._end(header, record)
        except RequestRefused as exc:
            outcome = exc.code, exc.remark
        except (LocalProtocolError, ValueError) as exc:
            outcome = ResponseCode.MESSAGE_ILLEGAL, f"the half message cannot be committed: {exc}"
        self._answer(session, request, outcome, at_once[0])

    def _end(self, header: EndTransactionHeader, record: Record) -> None:
        """Commit or roll back. Raises `RequestRefused`, and what says that the message can never be stored."""
        transactions, context = self._transactions, self._context
        if self._is_slave():
            raise RequestRefused(ResponseCode.SLAVE_NOT_AVAILABLE, _SLAVE)
        if (refused := self._refusal()) is not None:
            raise RequestRefused(*refused)
        named = half_of(record)
        half = transactions.halves.find(named.offset, named.first)
        if half is None:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"transaction {record.uniq_key} has been decided or given up already: it is decided once",
            )
        now = context.now_ms()
        if not header.from_transaction_check and transactions.rules.is_late(half, now):
            raise RequestRefused(
                ResponseCode.ILLEGAL_OPERATION,
                f"{P.CHECK_IMMUNITY_TIME_IN_SECONDS} of transaction {record.uniq_key} is over: it waits for a check",
            )
        if header.commit_or_rollback == _COMMIT:
            self._commit(record)
            transactions.counts.finished(half.topic, max(now - half.since_ms, 0) / 1000)
        else:
            transactions.counts.rolled_back[half.topic] += 1
        transactions.close(half)
        if header.from_transaction_check:
            log.info(
                "a check decided a transaction",
                topic=half.topic,
                group=half.group,
                transaction=record.uniq_key,
                committed=header.commit_or_rollback == _COMMIT,
            )

    def _commit(self, record: Record) -> None:
        """Append the message of a half record to its own topic."""
        context = self._context
        origin = origin_of(record.properties)
        queue = context.store.queue(origin.topic, context.topics.read_queue(origin.topic, origin.queue_id))
        properties = plain_properties(record)
        placed, tag_code = self._place(queue, properties)
        raw = stored_properties(record) if placed is queue else encode_properties(properties)
        message: Message = (
            placed,
            record.body,
            raw,
            record.flag,
            record.sys_flag & ~MessageSysFlag.TRANSACTION_MASK | _COMMIT,
            record.born_timestamp,
            record.reconsume_times,
            record.offset,
            tag_code,
        )
        store = context.store
        if not store.put([message], encode_host(*record.born_host)):
            raise RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, store.shortage)
        context.statistics.put(placed.topic, store.now, 1, store.sizes[0], sizes=store.sizes)

    def _answer(
        self, session: Session, request: Request, refused: tuple[int, str] | None, at_once: bool
    ) -> None:
        """Answer; success only when the decision is as safe as is promised of a message."""
        if refused is not None and request.is_oneway:
            log.warning(
                "a transaction was not ended", reason=refused[1], code=refused[0], peer=session.link.peer
            )
        outbox = session.outbox
        code = ResponseCode.SUCCESS if refused is None else refused[0]
        frame = request.reply(code, None if refused is None else refused[1])
        if at_once:
            owe = outbox.after if refused is None and self._waits() else outbox.now
            owe(request, code, frame)
        elif refused is not None or request.is_oneway or not session.is_open or not self._waits():
            outbox.send_frame(request, code, frame)
        else:
            self._wait([(outbox, [frame])], request.read_at, [(request.code, code)])

    # -- resume --------------------------------------------------------------------------------------

    def resume(self, session: Session, request: Command) -> Command | None:
        """Have a half message checked again from the beginning, also one that was given up (323)."""
        header = decode_header(ResumeCheckHeader, request.ext)
        if self._is_slave():
            return request.reply(ResponseCode.SLAVE_NOT_AVAILABLE, _SLAVE)
        if (refused := self._refusal()) is not None:
            return request.reply(*refused)
        try:
            _host, _port, log_offset = parse_message_id(header.msg_id)
        except ValueError as exc:
            return request.reply(
                ResponseCode.SYSTEM_ERROR, f"msgId {header.msg_id!r} is no message id: {exc}"
            )

        def send(code: int, remark: str | None) -> None:
            session.outbox.send(request, request.reply(code, remark))

        def found(data: bytes | None) -> None:
            try:
                record = self._resumable(data, header.msg_id)
            except RequestRefused as exc:
                send(exc.code, exc.remark)
                return
            self._transactions.when_loaded(lambda: resume(record))

        def resume(record: Record) -> None:
            try:
                stored = self._transactions.resume(record)
            except LocalProtocolError as exc:
                send(ResponseCode.SYSTEM_ERROR, f"the message cannot be stored again: {exc}")
                return
            if not stored:
                send(ResponseCode.SERVICE_NOT_AVAILABLE, self._context.store.shortage)
            else:
                send(ResponseCode.SUCCESS, None)

        def busy(_result: None) -> None:
            send(ResponseCode.SYSTEM_BUSY, "[OVERLOAD]system busy, too many reads from disk")

        self._context.reader.look_up(log_offset, self._context.store.find_queue, found, busy)
        return None

    def _resumable(self, data: bytes | None, msg_id: str) -> Record:
        try:
            record = decode_record(data) if data is not None else None
        except CorruptRecord:
            record = None
        if record is None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"there is no message {msg_id}")
        if record.topic not in (names.TRANS_HALF_TOPIC, names.TRANS_CHECK_MAX_TIME_TOPIC):
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"message {msg_id} is of topic {record.topic}, and no half message",
            )
        if record.topic == names.TRANS_HALF_TOPIC:
            named = half_of(record)
            if self._transactions.halves.find(named.offset, named.first) is None:
                raise RequestRefused(
                    ResponseCode.SYSTEM_ERROR, f"the transaction of message {msg_id} has been decided already"
                )
        return record

    @property
    def handlers(self) -> dict[int, Callable[[Session, Command], Command | None]]:
        """Return the handlers of rare codes."""
        return {RequestCode.RESUME_CHECK_HALF_MESSAGE: self.resume}


def _half_record(data: bytes | None, header: EndTransactionHeader) -> Record:
    """Return the half record that a producer means. Raises `RequestRefused`."""
    try:
        record = decode_record(data, check_crc=False) if data is not None else None
    except CorruptRecord:
        record = None
    if record is None or record.topic != names.TRANS_HALF_TOPIC or record.offset != header.commit_log_offset:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")
    if record.properties.get(P.PGROUP) != header.producer_group:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
    if record.queue_offset != header.tran_state_table_offset:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
    return record
