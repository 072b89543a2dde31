"""Send a task's rows: gathered by queue, one request of each on the way, nothing reported before all are stored.

At least once. A request that fails, or is not answered, is sent again to the same queue until `sendTimeoutMs` is over,
and may be stored twice. Then the task fails, and Spark does it again from its first row. With `routing=any` a second
attempt goes to another broker, if there is one.

A queue has at most one request on the way, so rows of one task stand in a queue in the order of the task, also where a
request had to be repeated. `sendInFlight` bounds how many queues are written to at once.

"Stored, but" (10 flush timeout, 11 no slave, 12 slave timeout) is a failed attempt where replication is required: the
rows are in the log of one machine and may be lost with it, so they are sent again. Otherwise it is counted.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ropewalk.client.blocking.connection import Connection, receive_any
from ropewalk.client.core.connection import Unreachable
from ropewalk.client.core.ids import UniqueKeys, default_unique_keys
from ropewalk.client.core.messages import (
    SEND_STATUSES,
    SendStatus,
    batch_request,
    send_request,
)
from ropewalk.client.core.produce.choice import queue_of_group
from ropewalk.client.core.produce.row_identity import ROWS_MAX, check_sink_id
from ropewalk.client.core.routes import Queue
from ropewalk.client.core.steps import answer_header, require_success
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import OutcomeUnknown, RopewalkError, TryElsewhere, TryLater, error_for
from ropewalk.format.headers import SendResponseHeader
from ropewalk.format.properties import P
from ropewalk.format.remoting import Command
from ropewalk.spark.live.cluster import ConnectionCache, check_live_options
from ropewalk.spark.options import BadOption, Options
from ropewalk.spark.sink.routes import NoWritableQueue, TopicRoutes, WriteFailed
from ropewalk.spark.sink.rows import Outgoing, RowRefused

__all__ = ["Sender", "Sent", "Target", "WriteFailed", "check_sink_options"]

PRODUCER_GROUP = "ropewalk-spark"
_RETRY_S = 0.1
_UNREPLICATED_RETRY_S = 0.5
_OVERHEAD = 64
_RETRY_CODES = frozenset(
    {ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL, ResponseCode.SERVICE_NOT_AVAILABLE}
)


def check_sink_options(options: Options) -> None:
    """Reject options that a sink cannot honour. Raises BadOption."""
    check_live_options(options)
    if options.brokers:
        raise BadOption("option brokers is for reads; a sink asks a nameServer where to write")
    if options.delivery == "exactly-once":
        _check_exact_options(options)


def _check_exact_options(options: Options) -> None:
    assert options.sink_id is not None
    if (reason := check_sink_id(options.sink_id)) is not None:
        raise BadOption(f"option sinkId is {options.sink_id!r}: {reason}")
    if len(options.topics) != 1:
        raise BadOption("delivery=exactly-once writes to one topic: give it as option topic")
    if options.routing != "key":
        raise BadOption(
            "delivery=exactly-once needs routing=key: a row that is sent again goes where it went before"
        )
    if not options.wait_store_ok:
        raise BadOption(
            "delivery=exactly-once counts on what brokers have stored: leave waitStoreOk=false out"
        )


@dataclass(slots=True)
class Sent:
    """The counts and offsets of a task's commit message."""

    rows: int = 0
    size: int = 0
    unreplicated: int = 0
    """Rows that were stored with a reservation (10, 11, 12)."""
    offsets: dict[tuple[str, str, int], tuple[int, int]] = field(default_factory=dict)
    """For each (topic, broker, queue) the first and last queue offset."""
    known: int = 0
    """Rows that an earlier attempt had stored; only exactly-once sinks know of any."""


@dataclass(slots=True)
class Target:
    """A queue of a topic, with the rows that wait for it and those on the way to it."""

    topic: str
    queue: Queue
    waiting: list[Outgoing] = field(default_factory=list)
    size: int = 0
    sending: list[Outgoing] = field(default_factory=list)
    connection: Connection | None = None
    """Where the request is on its way; None while it waits to be sent again. Numbers of answers are a connection's."""
    opaque: int = -1
    deadline: float = 0.0
    failure: RopewalkError | None = None
    """The failure of the last attempt, if it failed."""
    unsure: bool = False
    """Whether an attempt may have been stored without an answer; of interest to sinks that look."""


class Sender:
    """A sender of the rows of one task."""

    def __init__(
        self,
        options: Options,
        *,
        unique_keys: UniqueKeys | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        check_sink_options(options)
        self._options = options
        self._timeout_s = options.send_timeout_ms / 1000
        self._links = ConnectionCache(min(3.0, self._timeout_s))
        self._routes = TopicRoutes(options, self._links)
        self._keys = unique_keys or default_unique_keys()
        self._monotonic = monotonic
        self._sleep = sleep
        self._now_ms = now_ms
        self._targets: dict[tuple[str, Queue], Target] = {}
        self._in_flight: dict[tuple[str, Queue], Target] = {}
        self._required: dict[str, bool] = {}
        self._turn = 0
        self._rows_max = min(self._options.batch_messages, ROWS_MAX)
        self.sent = Sent()

    def add(self, row: Outgoing) -> None:
        """Add one row; sends when enough are together, and waits when too much is on the way."""
        target = self._target(row)
        alone = not row.message.can_be_batched or P.TIMER_DELIVER_MS in row.message.properties
        full = target.size + row.size + _OVERHEAD > self._options.batch_bytes
        # A request says once when its messages were made.
        older = bool(target.waiting) and target.waiting[-1].born_ms != row.born_ms
        if target.waiting and (alone or full or older or len(target.waiting) >= self._rows_max):
            self._launch(target)
        target.waiting.append(row)
        target.size += row.size + _OVERHEAD
        if alone:
            self._launch(target)
        elif self._in_flight:
            self._poll_answers(0)

    def finish(self) -> Sent:
        """Send the remaining rows, and wait until everything is stored. Raises WriteFailed."""
        for target in list(self._targets.values()):
            if target.waiting:
                self._launch(target)
        while self._in_flight:
            self._poll_answers(1.0)
        return self.sent

    def close(self) -> None:
        self._links.close()

    # -- which queue ---------------------------------------------------------------------------------

    def _target(self, row: Outgoing) -> Target:
        queue = self._queue(row)
        key = (row.topic, queue)
        target = self._targets.get(key)
        if target is None:
            target = self._targets[key] = Target(row.topic, queue)
        return target

    def _queue(self, row: Outgoing) -> Queue:
        """Return the queue of a row: the same for the same row while the topic's queues are the same; or any."""
        queues = self.queues(row.topic)
        message = row.message
        if row.queue_id is not None or row.broker is not None:
            fitting = [
                queue
                for queue in queues
                if row.queue_id in (None, queue.queue_id) and row.broker in (None, queue.broker_name)
            ]
            if not fitting:
                raise RowRefused(
                    f"topic {row.topic} has no writable queue"
                    + (f" {row.queue_id}" if row.queue_id is not None else "")
                    + (f" at broker {row.broker}" if row.broker is not None else "")
                    + f"; there are {', '.join(f'{queue.broker_name}/{queue.queue_id}' for queue in queues)}"
                )
            queues = fitting
        if len(queues) == 1:
            return queues[0]
        if message.group is not None:
            return queue_of_group(message.group, queues)
        if self._options.routing == "any":
            self._turn += 1
            return queues[self._turn % len(queues)]
        return queues[
            zlib.crc32(" ".join(message.keys).encode() if message.keys else message.body) % len(queues)
        ]

    def queues(self, topic: str) -> list[Queue]:
        """Return the queues of a topic that can be written to, as they were when they were first asked for."""
        deadline = self._monotonic() + self._timeout_s
        while True:
            try:
                return self._routes.queues(topic)
            except (NoWritableQueue, Unreachable):  # a group elects its leader, or a name server starts again
                if self._monotonic() >= deadline:
                    raise
            self._routes.forget(topic)
            self._sleep(_RETRY_S)

    # -- sending -------------------------------------------------------------------------------------

    def _launch(self, target: Target) -> None:
        """Send what waits for a queue, as soon as its last request is stored and there is room."""
        key = (target.topic, target.queue)
        while key in self._in_flight or len(self._in_flight) >= self._options.send_in_flight:
            self._poll_answers(1.0)
        target.sending, target.waiting, target.size = target.waiting, [], 0
        target.deadline = self._monotonic() + self._timeout_s
        target.failure = None
        self._in_flight[key] = target
        self._attempt(target)

    def _attempt(self, target: Target) -> None:
        """Write a request; if that cannot be done now, it is done again later."""
        try:
            connection = self._links.get(self._routes.master(target.topic, target.queue.broker_name))
            target.opaque = connection.start(self._command(target))
            target.connection = connection
        except (Unreachable, OutcomeUnknown) as exc:
            self._retry(target, exc)

    def _command(self, target: Target) -> Command:
        messages = [row.message for row in target.sending]
        keys = [self._keys.next() for _ in messages]
        born = target.sending[0].born_ms
        now = self._now_ms() if born is None else born
        if len(messages) == 1:
            return send_request(
                target.topic, target.queue, messages[0], keys[0], now, producer_group=PRODUCER_GROUP
            )
        command = batch_request(
            target.topic, target.queue, messages, keys, self._keys.next(), now, producer_group=PRODUCER_GROUP
        )
        if not self._options.wait_store_ok:
            # What the broker goes by is the property of the batch, not of its messages.
            command.ext["i"] = command.ext["i"].replace(f"{P.WAIT}\x01true", f"{P.WAIT}\x01false")
        return command

    def _poll_answers(self, wait_s: float) -> None:
        """Look at every request that is on the way, for at most `wait_s` seconds."""
        connections = {
            target.connection for target in self._in_flight.values() if target.connection is not None
        }
        if wait_s and connections:
            receive_any(connections, wait_s)
        elif wait_s:
            self._sleep(_RETRY_S)
        else:
            for connection in connections:
                connection.receive(0)
        for key, target in list(self._in_flight.items()):
            if self._check_done(target):
                del self._in_flight[key]

    def _check_done(self, target: Target) -> bool:
        """Whether a request is done with; sends it again if it failed."""
        if target.connection is None:
            self._check_deadline(target)
            self._attempt(target)
            return not target.sending
        try:
            answer = target.connection.poll_answer(target.opaque)
        except OutcomeUnknown as exc:
            self._retry(target, exc)
            return False
        if answer is None:
            self._check_deadline(target)
            return False
        return self._handle_answer(target, answer)

    def _handle_answer(self, target: Target, answer: Command) -> bool:
        status = SEND_STATUSES.get(answer.code)
        if status is None:
            exc = error_for(answer.code, answer.remark)
            if isinstance(exc, TryLater | TryElsewhere) or answer.code in _RETRY_CODES:
                self._retry(target, exc)
                return False
            raise WriteFailed(f"{self._describe(target)}: {exc}")
        count = len(target.sending)
        if status is not SendStatus.SEND_OK:
            if self._requires_replication(target):
                # A slave may be there again in a moment (after a switch of roles, say), and then the rows that are
                # sent anew are safe. That is dearer than one attempt and far cheaper than the whole task again.
                reason = WriteFailed(
                    f"{count} rows are stored on one machine only ({status.name}), and replication is required; "
                    f"requireReplication=false counts such rows as written"
                )
                self._retry(target, reason, _UNREPLICATED_RETRY_S)
                return False
            self.sent.unreplicated += count
        self._record_stored(target, answer)
        target.sending = []
        return True

    def _record_stored(self, target: Target, answer: Command) -> None:
        """Count the rows of a request that are stored."""
        header = answer_header(SendResponseHeader, answer)
        key = (target.topic, target.queue.broker_name, header.queue_id)
        count = len(target.sending)
        self._count_offsets(key, header.queue_offset, header.queue_offset + count - 1)
        self.sent.rows += count
        self.sent.size += sum(len(row.message.body) for row in target.sending)

    def _count_offsets(self, key: tuple[str, str, int], first: int, last: int) -> None:
        before = self.sent.offsets.get(key, (first, last))
        self.sent.offsets[key] = (min(before[0], first), max(before[1], last))

    def _retry(self, target: Target, exc: RopewalkError, wait_s: float = _RETRY_S) -> None:
        """This attempt failed: wait a moment and have the request sent anew, perhaps to somebody else."""
        target.failure = exc
        self._check_deadline(target)
        target.connection = None
        self._routes.forget(target.topic)
        if self._options.routing == "any" and all(row.queue_id is None for row in target.sending):
            others = [
                queue for queue in self.queues(target.topic) if queue.broker_name != target.queue.broker_name
            ]
            if others and all(row.message.group is None and row.broker is None for row in target.sending):
                self._move(target, others)
                return
        self._sleep(wait_s)

    def _move(self, target: Target, others: Sequence[Queue]) -> None:
        """Give the rows of a failed request to a queue of another broker."""
        rows, target.sending = target.sending, []
        self._turn += 1
        other = others[self._turn % len(others)]
        substitute = Target(target.topic, other, sending=rows, deadline=target.deadline)
        for key, flying in list(self._in_flight.items()):
            if flying is target:
                del self._in_flight[key]
        # Beside what may be on the way to that queue: rows that may go anywhere have no order to keep.
        self._in_flight[target.topic, Queue(f"{other.broker_name}#{self._turn}", other.queue_id)] = substitute

    def _check_deadline(self, target: Target) -> None:
        if self._monotonic() >= target.deadline:
            raise WriteFailed(
                f"{self._describe(target)}: {len(target.sending)} rows were not stored within "
                f"{self._options.send_timeout_ms} ms (sendTimeoutMs); the last attempt: {target.failure or 'no answer'}"
            ) from target.failure

    def _describe(self, target: Target) -> str:
        return f"queue {target.queue.queue_id} of {target.topic} at {target.queue.broker_name}"

    # -- whom to ask ---------------------------------------------------------------------------------

    def _requires_replication(self, target: Target) -> bool:
        """As the option says; else where the broker is a SYNC_MASTER, or does not tell what it is."""
        required = self._options.require_replication
        if required is not None:
            return required
        assert target.connection is not None
        address = str(target.connection.address)
        if address not in self._required:
            try:
                answer = self._links.call_all(address, [Command(RequestCode.GET_BROKER_CONFIG)])[0]
                text = require_success(answer).body.decode("utf-8", "replace")
            except RopewalkError:
                return True
            roles = [
                line.partition("=")[2].strip() for line in text.splitlines() if line.startswith("brokerRole")
            ]
            self._required[address] = roles in ([], ["SYNC_MASTER"])
        return self._required[address]
