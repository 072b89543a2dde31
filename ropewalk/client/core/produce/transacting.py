"""The conversations of a transactional producer: half message, end, and the check that a broker sends. Pure.

    half   an ordinary send with TRAN_MSG and PGROUP: the broker keeps it where no consumer reads
    end    37, COMMIT or ROLLBACK, to the master of the half's broker set: a promoted slave has the half too
    check  39, from the broker, about a half that nobody ended; the answer is an end as well

A producer is asked at the brokers that know its group from heartbeats, so it announces itself at those of its topics.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from ropewalk.client.core.consume.received import ReceivedMessage, TopicQueue, received
from ropewalk.client.core.messages import Message, SendResult, SendStatus, command_of
from ropewalk.client.core.options import check_kind
from ropewalk.client.core.produce.sending import ProducerCore
from ropewalk.client.core.routes import Queue
from ropewalk.client.core.steps import Oneway, Steps, ask, require_success
from ropewalk.client.core.tracing.trace_buffer import store_host_of
from ropewalk.codes import MessageSysFlag, RequestCode
from ropewalk.errors import LocalProtocolError, OutcomeUnknown, RemoteProtocolError, RopewalkError
from ropewalk.format.headers import CheckTransactionStateHeader, EndTransactionHeader, decode_header
from ropewalk.format.properties import P
from ropewalk.format.record import decode_record, parse_message_id
from ropewalk.format.remoting import Command

__all__ = ["Check", "Outcome", "Transaction", "TransactionCore", "check_of", "half_message"]


class Outcome(enum.Enum):
    """The outcome of a transaction."""

    COMMIT = MessageSysFlag.TRANSACTION_COMMIT
    ROLLBACK = MessageSysFlag.TRANSACTION_ROLLBACK
    UNKNOWN = MessageSysFlag.TRANSACTION_NONE
    """Not known yet: the broker asks later, and again."""


STATES: Mapping[Outcome, str] = {
    Outcome.COMMIT: "COMMIT_MESSAGE",
    Outcome.ROLLBACK: "ROLLBACK_MESSAGE",
    Outcome.UNKNOWN: "UNKNOW",
}
"""The names of outcomes in traces."""


@dataclass(slots=True, eq=False)
class Transaction:
    """A transaction, from its half message on."""

    topic: str
    message: Message
    half: SendResult
    """The place of the half message; `half.message_ids[0]` is the id of the transaction."""
    outcome: Outcome = Outcome.COMMIT
    """The outcome that the end of the block tells the broker; an exception makes it a rollback."""
    confirmed: bool = False
    """Whether the broker has answered that this is so. If not, it asks `on_check`."""
    problem: RopewalkError | None = None
    """Why it is not confirmed."""

    @property
    def id(self) -> str:
        """Return the id that consumers see as message id, and checks as transaction id."""
        return self.half.message_ids[0]

    def rollback(self) -> None:
        """Have the end of the block roll back."""
        self.outcome = Outcome.ROLLBACK

    def leave(self) -> None:
        """Have the end of the block tell the broker nothing: a check will ask what became of it."""
        self.outcome = Outcome.UNKNOWN


@dataclass(frozen=True, slots=True)
class Check:
    """A broker's question about one transaction."""

    message: ReceivedMessage
    """The message that waits, under its own topic."""
    group: str
    header: CheckTransactionStateHeader
    store_address: str
    """Where the half was stored, for brokers that do not name themselves."""


def set_outcome(transaction: Transaction, outcome: object) -> None:
    """Set the outcome that a program gave; anything else is UNKNOWN, so that the broker asks."""
    transaction.outcome = outcome if isinstance(outcome, Outcome) else Outcome.UNKNOWN


def require_outcome(outcome: object) -> None:
    """Raise `TypeError` for a value that is no outcome."""
    check_kind("the outcome of a transaction", outcome, Outcome, "Outcome.COMMIT, ROLLBACK or UNKNOWN")


def half_message(message: Message, group: str) -> Message:
    """Return a message as a half message of this producer group. Raises `LocalProtocolError` for a delayed one."""
    if not message.can_be_batched:
        raise LocalProtocolError("a transactional message cannot be delayed: RocketMQ would lose it")
    properties = {**message.properties, P.TRAN_MSG: "true", P.PGROUP: group}
    return msgspec.structs.replace(message, properties=properties)


def check_of(request: Command) -> Check:
    """Decode a broker's check (39). Raises `RemoteProtocolError`."""
    try:
        header = decode_header(CheckTransactionStateHeader, request.ext)
        record = decode_record(request.body)
        source = TopicQueue(record.topic, Queue(header.broker_name or "", record.queue_id))
        message = received(record, source)
    except (RopewalkError, ValueError) as exc:
        raise RemoteProtocolError(f"a check of a transaction cannot be read: {exc}") from exc
    host, port = record.store_host
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return Check(message, record.properties.get(P.PGROUP, ""), header, address)


class TransactionCore:
    """The transactional part of a producer, over its ordinary one."""

    def __init__(self, producer: ProducerCore) -> None:
        self._producer = producer
        self._group = producer.options.group

    def begin(
        self, topic: str, message: Message, *, queue: Queue | None = None, timeout: float | None = None
    ) -> Steps[Transaction]:
        """Send a half message. Raises as a send does, and `OutcomeUnknown` for one that is stored with a reservation.

        Such a half is rolled back: who cannot count on it must not begin.
        """
        half = half_message(message, self._group)
        result = yield from self._producer.send(topic, [half], queue=queue, timeout=timeout)
        transaction = Transaction(topic, message, result)
        if result.status is not SendStatus.SEND_OK:
            transaction.rollback()
            yield from self.end(transaction)
            raise OutcomeUnknown(f"the half message is stored, but {result.status.name}: it was rolled back")
        return transaction

    def end(self, transaction: Transaction) -> Steps[None]:
        """Tell the broker the outcome, and again while it is refused for a moment.

        What goes wrong is kept in `problem`: the broker will ask.
        """
        half, topic, producer = transaction.half, transaction.topic, self._producer
        store_host = store_host_of(half.offset_message_ids[0])
        self._record_end(topic, transaction.message, transaction.id, store_host, transaction.outcome)
        if transaction.outcome is Outcome.UNKNOWN:
            return
        deadline = producer.now() + producer.options.timeout

        def attempt() -> Steps[None]:
            log_offset = _log_offset_of(half.offset_message_ids[0])
            command = self._end_command(
                topic, half.queue_offset, log_offset, transaction.id, transaction.outcome
            )
            yield from producer.directory.write_route(topic, deadline)
            address = producer.directory.master_of(topic, half.queue.broker_name)
            require_success((yield from ask(address, command, max(deadline - producer.now(), 0.001))))

        try:
            yield from producer.until_deadline(topic, deadline, attempt)
        except RopewalkError as exc:
            transaction.problem = exc
            self._producer.directory.invalidate(topic)
        else:
            transaction.confirmed = True

    def answer(self, check: Check, outcome: Outcome) -> Steps[None]:
        """Answer a check, where its broker set has its master now."""
        self._record_end(
            check.message.topic,
            check.message,
            check.message.message_id,
            check.store_address,
            outcome,
            checked=True,
        )
        if outcome is Outcome.UNKNOWN:
            return
        directory, topic, name = self._producer.directory, check.message.topic, check.header.broker_name
        address = check.store_address
        if name:
            try:
                yield from directory.route(topic)
                address = directory.master_of(topic, name)
            except RopewalkError:
                pass  # nobody knows better than the half itself
        command = self._end_command(
            topic,
            check.header.tran_state_table_offset,
            check.header.commit_log_offset,
            check.message.message_id,
            outcome,
            from_check=True,
        )
        yield Oneway(address, command)

    def announce(self, topics: Iterable[str]) -> Steps[None]:
        """Announce the group at the masters of these topics, so that they can ask. One that is away is left out."""
        producer = self._producer
        known = tuple(topics)
        for topic in known:
            try:
                yield from producer.directory.write_route(topic)
            except RopewalkError:
                continue
        for address in producer.directory.addresses(masters_only=True):
            try:
                yield from producer.announce(address)
            except RopewalkError:
                # Another may be the master now: the next time asks the name server.
                for topic in known:
                    producer.directory.invalidate(topic)

    def _record_end(
        self,
        topic: str,
        message: Message | ReceivedMessage,
        transaction_id: str,
        store_host: str,
        outcome: Outcome,
        *,
        checked: bool = False,
    ) -> None:
        """Trace the outcome that the broker is told; a half that is left open too, as the original does."""
        if self._producer.trace is not None:
            now_ms = self._producer.now_ms()
            self._producer.trace.record_end(
                topic, message, transaction_id, store_host, STATES[outcome], now_ms, checked=checked
            )

    def _end_command(
        self,
        topic: str,
        queue_offset: int,
        log_offset: int,
        transaction_id: str,
        outcome: Outcome,
        *,
        from_check: bool = False,
    ) -> Command:
        header = EndTransactionHeader(
            producer_group=self._group,
            tran_state_table_offset=queue_offset,
            commit_log_offset=log_offset,
            commit_or_rollback=outcome.value,
            msg_id=transaction_id,
            topic=topic,
            from_transaction_check=from_check,
            transaction_id=transaction_id,
        )
        return command_of(RequestCode.END_TRANSACTION, header)


def _log_offset_of(offset_message_id: str) -> int:
    """Return the log offset of a half message. Raises `RemoteProtocolError` for an id that tells none."""
    try:
        return parse_message_id(offset_message_id)[2]
    except ValueError as exc:
        raise RemoteProtocolError(
            f"the broker stored a half message as {offset_message_id!r}: {exc}"
        ) from exc
