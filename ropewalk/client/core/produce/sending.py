"""The producer's decisions: which queue, which broker, whether to try again. Conversations, no sockets.

A send that fails is tried again, at another broker if there is one, all within one `timeout`, which covers the search
for the route and the connecting:

    refused for a moment (TryLater, TryElsewhere, Unreachable)    until the time is up: nothing was stored
    no answer, or another one of `RETRY_CODES`                    up to `retries` times, as the official clients do

Once every broker has refused for a moment it pauses, twice as long each time: a broker that restarts is back in
seconds, and a group whose leader died has another one sooner; until then its route names no master, which is a refusal
for a moment too. What is told to the caller at the end is the truth about all attempts: if any of them may have stored
the message, the error is `OutcomeUnknown`, whatever the last one was. With `retries=0` the first unknown outcome is the
end: no attempt can store a message twice.

A send to a given queue (also: chosen by a selector, or by a message group) is tried again there, and only if it was
refused for a moment. Trying elsewhere would break its order, and trying again after silence could store it twice.

`FLUSH_DISK_TIMEOUT`, `SLAVE_NOT_AVAILABLE` and `FLUSH_SLAVE_TIMEOUT` are statuses of a stored message and no errors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ropewalk.client.core.addresses import AddressRing, parse_address_list
from ropewalk.client.core.backoff import Backoff
from ropewalk.client.core.connection import Unreachable
from ropewalk.client.core.consume.membership import (
    HEARTBEAT_S,
    HEARTBEAT_TIMEOUT_S,
    heartbeat_request,
    unregister_request,
)
from ropewalk.client.core.directory import Directory, NoNameServer
from ropewalk.client.core.ids import UniqueKeys
from ropewalk.client.core.messages import (
    SEND_STATUSES,
    Message,
    SendResult,
    SendStatus,
    batch_request,
    recall_request,
    send_request,
)
from ropewalk.client.core.options import check_kind, check_timeout
from ropewalk.client.core.produce.attempts import MOMENTARY, Attempts
from ropewalk.client.core.produce.batcher import Batcher
from ropewalk.client.core.produce.bodies import compress_body
from ropewalk.client.core.produce.choice import LatencyFaults, RoundRobin, queue_of_group
from ropewalk.client.core.produce.counts import SendCounts
from ropewalk.client.core.produce.options import ProducerOptions
from ropewalk.client.core.produce.results import read_send_result
from ropewalk.client.core.produce.sendable import BODY_SIZE_MAX, check_call, check_sendable
from ropewalk.client.core.produce.target_queues import (
    NoSuchQueue,
    QueueSelector,
    existing_queue,
    writable_queues,
    write_queues,
)
from ropewalk.client.core.request_reply import reply_topic
from ropewalk.client.core.routes import Queue, TopicRoute
from ropewalk.client.core.steps import Ask, Oneway, Pause, Steps, T, answer_header, ask_twice, require_success
from ropewalk.client.core.tracing.trace_buffer import TraceBuffer
from ropewalk.errors import (
    LocalProtocolError,
    OutcomeUnknown,
    RopewalkError,
    error_for,
)
from ropewalk.format.headers import MsgIdResponseHeader, RecallHandle
from ropewalk.format.names import check_group
from ropewalk.format.remoting import Command

UNREGISTER_S = 1.0
"""How long a broker may take to be connected to for a goodbye."""


class ProducerCore:
    """The state of a producer, and its conversations."""

    def __init__(
        self,
        name_servers: str,
        options: ProducerOptions,
        *,
        client_id: str,
        unique_keys: UniqueKeys,
        clock: Callable[[], float],
        now_ms: Callable[[], int],
        traced_group: str | None = None,
    ) -> None:
        """`traced_group`: the group of trace records, where that is not the producer's own."""
        if (reason := check_group(options.group)) is not None:
            raise LocalProtocolError(reason)
        self.options = options
        self.client_id = client_id
        self.counts = SendCounts()
        self.trace: TraceBuffer | None = None
        if options.trace:
            self.trace = TraceBuffer(options.trace_topic, traced_group or options.group, client_id)
        self.directory = Directory(AddressRing(parse_address_list(name_servers)), clock, options.timeout)
        self._unique_keys = unique_keys
        self._clock = clock
        self.now_ms = now_ms
        self._turns = RoundRobin()
        self._faults = LatencyFaults(options.avoid_slow_brokers)
        self._announced: dict[str, float] = {}

    def new_batcher(self) -> Batcher[Any]:
        """Return a place for messages to wait for company, as the options want it."""
        return Batcher(self.options.linger, self.options.batch_bytes, self.options.batch_count)

    def queues(self, topic: str) -> Steps[tuple[Queue, ...]]:
        """Return the queues a message to this topic can go to."""
        deadline = self._clock() + self.options.timeout

        def attempt() -> Steps[tuple[Queue, ...]]:
            route = yield from self.directory.write_route(topic, deadline)
            return write_queues(topic, route)

        return self.until_deadline(topic, deadline, attempt)

    def now(self) -> float:
        """Return the seconds of the clock that deadlines are on."""
        return self._clock()

    def until_deadline(self, topic: str, deadline: float, attempt: Callable[[], Steps[T]]) -> Steps[T]:
        """Hold a conversation about a topic again while it is refused for a moment, until its time is up.

        `attempt` must be one that may be held twice. The name server is asked again before each.
        """
        backoff = Backoff()
        while True:
            try:
                return (yield from attempt())
            except MOMENTARY as exc:
                failure: RopewalkError = exc
            self.directory.invalidate(topic)
            remaining = deadline - self._clock()
            if remaining > 0:
                yield Pause(min(backoff.next_s(), remaining))
            if self._clock() >= deadline:
                raise failure

    def send(
        self,
        topic: str,
        messages: Sequence[Message],
        *,
        queue: Queue | None = None,
        selector: QueueSelector | None = None,
        timeout: float | None = None,
    ) -> Steps[SendResult]:
        """Send one message, or several as a batch, and account for them."""
        check_call(topic, queue, selector, timeout)
        return self._accounted(topic, messages, queue, selector, timeout)

    def send_gathered(self, topic: str, messages: Sequence[Message]) -> Steps[SendResult]:
        """Send a batch that the batcher has closed, each message of which has passed `check_sendable`."""
        return self._accounted(topic, messages, check=self.options.batch_bytes > BODY_SIZE_MAX)

    def _accounted(
        self,
        topic: str,
        messages: Sequence[Message],
        queue: Queue | None = None,
        selector: QueueSelector | None = None,
        timeout: float | None = None,
        *,
        check: bool = True,
    ) -> Steps[SendResult]:
        self.counts.submitted += len(messages)
        keys: tuple[str, ...] = ()
        try:
            if check:
                check_sendable(topic, messages)
            keys = self._keys(messages)
            steps = self._send(topic, messages, keys, queue, selector, timeout)
            result = yield from (steps if self.trace is None else self._traced(topic, messages, keys, steps))
        except BaseException as exc:
            self.counts.record_outcome(len(messages), exc)
            raise
        self.counts.record_outcome(len(messages), result)
        return result

    def _traced(
        self, topic: str, messages: Sequence[Message], keys: tuple[str, ...], steps: Steps[SendResult]
    ) -> Steps[SendResult]:
        trace, began_ms, began = self.trace, self.now_ms(), self._clock()
        assert trace is not None
        result: SendResult | None = None
        try:
            result = yield from steps
            return result
        finally:
            cost_ms = int((self._clock() - began) * 1000)  # not rounded up: began_ms was cut as well
            trace.record_send(topic, messages, keys, began_ms, cost_ms, result)

    def send_traces(self) -> Steps[None]:
        """Send the trace records that wait, beside the counts. Raises as a send does; what was not sent is dropped."""
        trace = self.trace
        while trace is not None and (message := trace.next_message()) is not None:
            try:
                check_sendable(trace.topic, [message])
                yield from self._send(trace.topic, [message], self._keys([message]))
            except RopewalkError:
                trace.lost()
                raise
            trace.sent()

    def recall(self, recall_handle: str, timeout: float | None = None) -> Steps[str]:
        """Take back a message that waits for its time, at the broker that keeps it; its unique key."""
        check_kind("the recall handle", recall_handle, str, "text, as the result of a send has it")
        check_timeout(timeout)
        try:
            handle = RecallHandle.decode(recall_handle)
        except ValueError as exc:
            raise LocalProtocolError(f"{exc}: a handle is what the result of a send carries") from exc
        deadline = self._clock() + (self.options.timeout if timeout is None else timeout)
        return self._recall(handle, recall_handle, deadline)

    def _recall(self, handle: RecallHandle, recall_handle: str, deadline: float) -> Steps[str]:
        command = recall_request(recall_handle, handle.topic, producer_group=self.options.group)

        def attempt() -> Steps[str]:
            yield from self.directory.write_route(handle.topic, deadline)
            address = self.directory.master_of(handle.topic, handle.broker)
            answer = yield Ask(address, command, max(deadline - self._clock(), 0.001))
            assert isinstance(answer, Command), "an Ask is resumed with its answer"
            if answer.code not in SEND_STATUSES:
                require_success(answer)
            return answer_header(MsgIdResponseHeader, answer).msg_id

        recalled = False
        try:
            unique_key = yield from self.until_deadline(handle.topic, deadline, attempt)
            recalled = True
            return unique_key
        finally:
            if self.trace is not None:
                self.trace.record_recall(handle.topic, handle.unique_key, self.now_ms(), success=recalled)

    def send_oneway(
        self,
        topic: str,
        message: Message,
        *,
        queue: Queue | None = None,
        selector: QueueSelector | None = None,
    ) -> Steps[None]:
        """Send without asking for an answer: for messages that may be lost."""
        check_call(topic, queue, selector, None)
        return self._send_oneway(topic, message, queue, selector)

    def _send_oneway(
        self, topic: str, message: Message, queue: Queue | None, selector: QueueSelector | None
    ) -> Steps[None]:
        check_sendable(topic, [message])
        deadline = self._clock() + self.options.timeout
        keys = self._keys([message])

        def attempt() -> Steps[None]:
            route = yield from self.directory.write_route(topic, deadline)
            try:
                chosen = self._fixed_queue(topic, route, [message], queue, selector)
            except NoSuchQueue:
                self.directory.invalidate(topic)  # it may be newer than what is known of its topic
                raise
            chosen = chosen or self._turns.next(
                topic, writable_queues(topic, route), self._faults, self._clock(), avoid=()
            )
            command = self._command(topic, chosen, [message], keys)
            address = self.directory.master_of(topic, chosen.broker_name)
            yield Oneway(address, command, max(deadline - self._clock(), 0.001))

        self.counts.submitted += 1
        try:
            yield from self.until_deadline(topic, deadline, attempt)
        except BaseException as exc:
            self.counts.record_outcome(1, exc)
            raise
        self.counts.oneway += 1

    def announce_for_replies(self, topic: str, timeout: float) -> Steps[None]:
        """Announce this client at every broker through which a request over this topic may be answered."""
        deadline = self._clock() + timeout

        def attempt() -> Steps[None]:
            route = yield from self.directory.write_route(topic, deadline)
            write_queues(
                topic, route
            )  # raises while there is no master: nobody who would hear of this client
            topics = sorted({reply_topic(broker.cluster) for broker in route.brokers.values()})
            try:
                for name in topics:
                    yield from self.directory.route(name, deadline=deadline)
                for address in self.directory.addresses(topics, masters_only=True):
                    now = self._clock()
                    if now - self._announced.get(address, now - HEARTBEAT_S) >= HEARTBEAT_S:
                        limit = min(HEARTBEAT_TIMEOUT_S, max(deadline - now, 0.001) / 2)
                        yield from self._announce(address, limit, wait=True)
            except MOMENTARY:
                for name in topics:
                    self.directory.invalidate(name)
                raise

        return self.until_deadline(topic, deadline, attempt)

    def announce(self, address: str) -> Steps[None]:
        """Announce this client at a broker, and wait until it has heard. Raises as an ask does."""
        return self._announce(address, HEARTBEAT_TIMEOUT_S, wait=True)

    def heartbeats(self) -> Steps[None]:
        """Send a heartbeat to every broker this producer uses. A broker that does not take it is left out."""
        for address in sorted(self._announced):
            try:
                yield from self._announce(address, HEARTBEAT_TIMEOUT_S)
            except RopewalkError:
                del self._announced[address]

    def unregister(self) -> Steps[None]:
        """Leave the group at every broker that knows of us."""
        for address in sorted(self._announced):
            try:
                command = unregister_request(self.client_id, producer=self.options.group)
                yield Oneway(address, command, UNREGISTER_S)
            except RopewalkError:
                continue
        self._announced.clear()

    # One message's attempts

    def _send(
        self,
        topic: str,
        messages: Sequence[Message],
        keys: tuple[str, ...],
        queue: Queue | None = None,
        selector: QueueSelector | None = None,
        timeout: float | None = None,
    ) -> Steps[SendResult]:
        """Send messages that may be sent. `keys` are the same for every attempt: by them a duplicate is recognised."""
        deadline = self._clock() + (self.options.timeout if timeout is None else timeout)
        attempts, backoff = Attempts(self.options.retries), Backoff()
        tried: set[str] = set()
        failure: RopewalkError
        asked_for_queue = self.directory.fresh_write_route(topic) is None
        while True:
            fixed: Queue | None = queue
            chosen: Queue | None = None
            others = False
            try:
                route = self.directory.fresh_write_route(topic) or (
                    yield from self.directory.write_route(topic, deadline)
                )
                fixed = self._fixed_queue(topic, route, messages, queue, selector)
                now = self._clock()
                queues = writable_queues(topic, route) if fixed is None else ()
                chosen = fixed or self._turns.next(topic, queues, self._faults, now, tried)
                tried.add(chosen.broker_name)
                others = any(one.broker_name not in tried for one in queues)
                address = self.directory.master_of(topic, chosen.broker_name)
                if now - self._announced.get(address, now - HEARTBEAT_S) >= HEARTBEAT_S:
                    yield from self._announce(address, deadline - now)
                command = self._command(topic, chosen, messages, keys)
                answer = yield Ask(address, command, max(deadline - self._clock(), 0.001))
                assert isinstance(answer, Command), "an Ask is resumed with its answer"
            except NoNameServer as exc:
                failure = exc
            except NoSuchQueue:
                if asked_for_queue:
                    raise
                asked_for_queue = True  # it may be newer than what is known of its topic
                self.directory.invalidate(topic)
                continue
            except (Unreachable, OutcomeUnknown) as exc:
                failure = exc
                if chosen is not None:
                    self._faults.failed(chosen.broker_name, self._clock())
                self.directory.invalidate(topic)
            else:
                self._faults.answered(chosen.broker_name, (self._clock() - now) * 1000, self._clock())
                if answer.code in SEND_STATUSES:  # raises where sending again would store it again
                    result, header = read_send_result(answer, chosen.broker_name, keys)
                    if self.trace is not None:
                        self.trace.record_broker(chosen.broker_name, header.msg_region, header.trace_on)
                    if result.status is SendStatus.SEND_OK or not self.options.retry_unless_ok:
                        return result
                    attempts.reserved = result
                    failure = OutcomeUnknown(f"stored with {result.status.name}")
                else:
                    failure = error_for(answer.code, answer.remark)
                    self.directory.heed(topic, answer)
            remaining = deadline - self._clock()
            if not attempts.failed(failure, has_choice=fixed is None) or remaining <= 0:
                break
            if not others:
                if isinstance(failure, MOMENTARY):
                    yield Pause(min(backoff.next_s(), remaining))
                tried.clear()
                if self._clock() >= deadline:
                    break
        return attempts.outcome()

    def _command(
        self, topic: str, queue: Queue, messages: Sequence[Message], keys: tuple[str, ...]
    ) -> Command:
        group = self.options.group
        if len(messages) > 1:
            batch_key = self._unique_keys.next()
            return batch_request(topic, queue, messages, keys, batch_key, self.now_ms(), producer_group=group)
        sys_flag, body = compress_body(messages[0].body, self.options.compress_over)
        return send_request(
            topic,
            queue,
            messages[0],
            keys[0],
            self.now_ms(),
            producer_group=group,
            sys_flag=sys_flag,
            body=body,
        )

    def _keys(self, messages: Sequence[Message]) -> tuple[str, ...]:
        return (
            self._unique_keys.next_many(len(messages)) if len(messages) > 1 else (self._unique_keys.next(),)
        )

    def _fixed_queue(
        self,
        topic: str,
        route: TopicRoute,
        messages: Sequence[Message],
        queue: Queue | None,
        selector: QueueSelector | None,
    ) -> Queue | None:
        """Return the queue this message must go to, if its choice is not ours. Raises `NoSuchQueue`."""
        if queue is not None:
            return existing_queue(topic, route, queue)
        if selector is not None:
            return existing_queue(topic, route, selector(writable_queues(topic, route)))
        group = messages[0].group
        return queue_of_group(group, writable_queues(topic, route)) if group else None

    def _announce(self, address: str, timeout_s: float, *, wait: bool = False) -> Steps[None]:
        command = heartbeat_request(self.client_id, producers=[self.options.group])
        if wait:
            require_success((yield from ask_twice(address, command, timeout_s)))
        else:
            # Nobody waits for its answer: the send that follows on the same connection is handled after it.
            yield Oneway(address, command, max(timeout_s, 0.001))
        self._announced[address] = self._clock()
