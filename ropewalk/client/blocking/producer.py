"""`Producer`: sends for programs without an event loop, over plain sockets.

    with Producer("127.0.0.1:9876", group="shop") as producer:
        result = producer.send("orders", Message(b"one"))
        future = producer.send_async("orders", Message(b"two"))
        producer.flush()

Threads may share a producer. Each has connections of its own, so that `send` in one never waits for another; what the
producer knows is guarded by one lock, which is never held while somebody waits for a broker. `send_async` hands
messages to one thread of the producer's own, which gathers them; it is started by the first of them.

Heartbeats travel with sends: a producer that sends nothing for two minutes is forgotten by brokers, and known again
with its next message.
"""

from __future__ import annotations

import atexit
import math
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures._base import FINISHED, PENDING
from dataclasses import asdict
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Never

from ropewalk.client.blocking.links import BlockingLinks, ConversationPool, LinksPool
from ropewalk.client.blocking.trace_thread import TraceThread
from ropewalk.client.core.connection import NotOpen, Unreachable
from ropewalk.client.core.consume.received import ReceivedMessage
from ropewalk.client.core.ids import default_unique_keys
from ropewalk.client.core.messages import PRODUCER_GROUP, Message, SendResult
from ropewalk.client.core.options import check_wait, make_options
from ropewalk.client.core.produce.bodies import COMPRESS_OVER
from ropewalk.client.core.produce.counts import SendCounts
from ropewalk.client.core.produce.options import ProducerOptions
from ropewalk.client.core.produce.results import split_result
from ropewalk.client.core.produce.sendable import (
    MESSAGE_OVERHEAD,
    as_message,
    as_messages,
    batch_key,
    check_call,
    check_sendable,
)
from ropewalk.client.core.produce.sending import ProducerCore
from ropewalk.client.core.produce.target_queues import QueueSelector, at_broker
from ropewalk.client.core.request_reply import ReplyMessage, reply_message
from ropewalk.client.core.routes import Queue
from ropewalk.client.core.steps import Steps, T
from ropewalk.client.fork import renew_after_fork
from ropewalk.client.log import Troubles, log_lost, logger
from ropewalk.client.machine import clock, name_servers_or_default, new_client_id, now_ms, own_client_id
from ropewalk.errors import LocalProtocolError, OutcomeUnknown, RopewalkError
from ropewalk.format.names import TRACE_TOPIC

if TYPE_CHECKING:
    from ropewalk.client.aio.producer import AsyncProducer
    from ropewalk.client.blocking.loop_thread import LoopThread


class _Settled(threading.Condition):
    """The condition that is notified when a message of a producer has its outcome."""

    forked = False
    """It was the parent's: in this process nobody will speak of it again."""

    def forsake(self) -> None:
        """Stand for nothing, in a child process. Its lock may be held by a thread that is not here."""
        super().__init__()
        self.forked = True


class _Outcome(Future[SendResult]):
    """The outcome of one message. The message is on its way, so it cannot be cancelled.

    The outcomes of a producer share one condition: to make one for each message, and to notify each, would cost more
    than sending it.
    """

    _done_callbacks: list[Callable[[Future[SendResult]], object]]

    def __init__(self, settled: _Settled) -> None:
        self._condition = self._shared = settled
        self._state = PENDING
        self._result = None
        self._exception = None
        self._waiters = []
        self._done_callbacks = []

    def cancel(self) -> bool:
        return False

    def result(self, timeout: float | None = None) -> SendResult:
        self._await(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._await(timeout)
        return super().exception(0)

    def _await(self, timeout: float | None) -> None:
        # The condition also speaks of others.
        if self._state != FINISHED and self._shared.forked:
            self._exception = OutcomeUnknown(
                "this message was handed over before the fork: the parent process knows its outcome"
            )
            self._state = FINISHED
        if self._state != FINISHED:
            with self._condition:
                self._condition.wait_for(lambda: self._state == FINISHED, timeout)


def _settle_together(outcomes: Sequence[_Outcome], results: Sequence[SendResult] | Exception) -> None:
    """Tell everybody who waits for one of these, once."""
    if not outcomes:
        return
    settled = outcomes[0]._condition
    with settled:
        for place, outcome in enumerate(outcomes):
            if isinstance(results, Exception):
                outcome._exception = results
            else:
                outcome._result = results[place]
            outcome._state = FINISHED
            for waiter in outcome._waiters:  # of `concurrent.futures.wait` and `as_completed`
                if isinstance(results, Exception):
                    waiter.add_exception(outcome)
                else:
                    waiter.add_result(outcome)
        settled.notify_all()
    for outcome in outcomes:
        if outcome._done_callbacks:
            try:
                outcome._invoke_callbacks()  # type: ignore[attr-defined]
            except BaseException as exc:  # a `SystemExit` ends its own thread, and not the sends of others
                logger().error("a callback of a send failed", reason=repr(exc), exc_info=exc)


_Pending = tuple[Message, _Outcome]

TOGETHER_MAX = 16
"""Batches that wait for their answers at the same time."""
LOOK_S = 0.002
"""How often the thread that sends looks for new batches while it waits for answers."""


_SENDING: weakref.WeakSet[Producer] = weakref.WeakSet()
"""The producers that gather messages."""


@atexit.register
def _send_the_rest() -> None:
    """Send what is pending when a program ends without `close`, or say that it is lost."""
    began = clock()
    for producer in list(_SENDING):
        producer._send_at_exit(clock() - began)


class Producer:
    """A producer whose methods block. Use it as `with`, or `close` it."""

    def __init__(
        self,
        name_servers: str | None = None,
        *,
        client_id: str | None = None,
        group: str = PRODUCER_GROUP,
        timeout: float = 3.0,
        retries: int = 2,
        compress_over: int = COMPRESS_OVER,
        avoid_slow_brokers: bool = False,
        retry_unless_ok: bool = False,
        linger: float = 0.005,
        batch_bytes: int = 64 * 1024,
        batch_count: int = 512,
        pending_max: int = 10_000,
        trace: bool = False,
        trace_topic: str = TRACE_TOPIC,
        **unknown: Never,
    ) -> None:
        """Make it without connecting. Times are in seconds, sizes in bytes.

        name_servers: as in "host:port;host:port"; ROPEWALK_NAMESRV_ADDR or NAMESRV_ADDR if absent, else a local one.
        client_id: the name of this client at brokers; one that no other client has, if absent.
        group: the producer group.
        timeout: for a send with all its attempts.
        retries: attempts after the first, where the outcome of one is unknown or a broker cannot. What is refused for
            a moment is tried as long as there is time, and does not count.
        compress_over: bodies longer than this are compressed if that makes them shorter; those of a batch are not.
        avoid_slow_brokers: leave brokers alone for a while that answered slowly or not at all.
        retry_unless_ok: try another broker for a message that was stored with a reservation, at the price of a
            duplicate.
        linger: how long `send_async` lets a message wait for company; 0 sends every message by itself.
        batch_bytes: the size at which gathered messages leave.
        batch_count: the number at which gathered messages leave.
        pending_max: messages given to `send_async` and not yet accounted for; more of them wait.
        trace: tell the trace topic what becomes of each message, for `ropewalk admin message trace`; in the background.
        trace_topic: the topic of the traces; the broker has it where `traceTopicEnable` says so.

        Raises `BadAddress` when the list cannot be read, `LocalProtocolError` for a group that cannot be one,
        `TypeError` and `ValueError` for options that mean nothing.
        """
        self._name_servers = name_servers_or_default(name_servers)
        self._options = make_options(ProducerOptions, locals(), unknown)
        self._given_id = client_id
        self._begin(client_id or new_client_id())
        renew_after_fork(self)

    def _begin(self, client_id: str) -> None:
        self._core = ProducerCore(
            self._name_servers,
            self._options,
            client_id=client_id,
            unique_keys=default_unique_keys(),
            clock=clock,
            now_ms=now_ms,
        )
        self._batcher = self._core.new_batcher()
        self._under_way = 0
        self._sending: dict[int, list[_Pending]] = {}
        """The batches that the thread took and has not settled, by identity."""
        lock = threading.RLock()
        self._changed = threading.Condition(lock)
        """There is something to send, or to stop for. Its lock guards everything."""
        self._fewer = threading.Condition(lock)
        """Half of what may be pending is through, or all of it: handing the interpreter from thread to thread for
        every batch costs more than sending it."""
        self._lock = lock
        self._settled = _Settled()
        self._closing = False
        self._sender: threading.Thread | None = None
        self._requester_lock = threading.Lock()
        self._requester: tuple[LoopThread, AsyncProducer] | None = None
        self._troubles = Troubles()
        self._links = LinksPool(timeout=self._options.timeout, troubles=self._troubles)
        self._traces = TraceThread(self._core, lock, self._troubles) if self._options.trace else None

    def _renew(self) -> None:
        """Begin anew in a child process, as another client and with counts of its own.

        What the parent has pending is the parent's. Its locks may have been held by threads that the child has not.
        """
        self._settled.forsake()
        closed = self._closing
        self._begin(own_client_id(self._given_id))
        self._closing = closed

    @property
    def counts(self) -> SendCounts:
        """The outcomes of all messages so far, by kind."""
        return self._core.counts

    @property
    def client_id(self) -> str:
        """The name of this client at brokers."""
        return self._core.client_id

    # Sending

    def send(
        self,
        topic: str,
        message: Message | bytes,
        *,
        queue: Queue | None = None,
        selector: QueueSelector | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Send one message and wait for the broker's answer, for at most `timeout` seconds with all attempts.

        Raises `Refused` and its kinds when nothing was stored, `OutcomeUnknown` when that cannot be said,
        `Unreachable` when nobody was there, `LocalProtocolError` for a message that no broker would take.
        """
        return self.send_batch(topic, [message], queue=queue, selector=selector, timeout=timeout)

    def send_batch(
        self,
        topic: str,
        messages: Sequence[Message | bytes],
        *,
        queue: Queue | None = None,
        selector: QueueSelector | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Send messages as one: all lie in one queue, in order, or none is stored. Raises as `send`."""
        batch = as_messages(messages)
        steps = self._core.send(topic, batch, queue=queue, selector=selector, timeout=timeout)
        return self._drive(steps)

    def recall(self, recall_handle: str, *, timeout: float | None = None) -> str:
        """Take back a message that waits for its time; return its unique key.

        It is not delivered, if the broker has this before the message is due. Raises `LocalProtocolError` for what is
        no handle, and `Refused` where the broker does not allow recalls (`recallMessageEnable`), has no such topic, or
        the time has come.
        """
        return self._drive(self._core.recall(recall_handle, timeout))

    def send_oneway(
        self,
        topic: str,
        message: Message | bytes,
        *,
        queue: Queue | None = None,
        selector: QueueSelector | None = None,
    ) -> None:
        """Send one message without asking whether it arrived."""
        steps = self._core.send_oneway(topic, as_message(message), queue=queue, selector=selector)
        self._drive(steps)

    def send_async(self, topic: str, message: Message | bytes) -> Future[SendResult]:
        """Hand a message over, to be sent with others within `linger` seconds.

        Blocks while `pending_max` messages are pending, but not in a callback of such a future. Raises
        `LocalProtocolError` for a message that no broker would take; everything later is the outcome of the future,
        which cannot be cancelled.
        """
        message = as_message(message)
        check_sendable(topic, [message])
        future = _Outcome(self._settled)
        key, ordered, alone = batch_key(topic, message)
        size = len(message.body) + MESSAGE_OVERHEAD
        with self._lock:
            self._require_open()
            if self._sender is None:
                self._sender = threading.Thread(
                    target=self._send_what_gathers, name="ropewalk-producer", daemon=True
                )
                self._sender.start()
                _SENDING.add(self)
            room = self._core.options.pending_max
            # A callback runs in the thread that sends: what it waited for would never come.
            if self._pending_count >= room and not self._is_sender:
                self._fewer.wait_for(lambda: self._pending_count <= room // 2 or self._closing)
                self._require_open()
            if self._batcher.add(key, (message, future), size, clock(), ordered=ordered, alone=alone):
                self._changed.notify_all()
        return future

    def request(
        self,
        topic: str,
        message: Message | bytes,
        *,
        timeout: float | None = None,
        queue: Queue | None = None,
        selector: QueueSelector | None = None,
    ) -> ReplyMessage:
        """Send a message and wait for a consumer's `reply` to it, for at most `timeout` seconds.

        Raises `NoReply` when nobody did, and what `send` raises when the request was not stored. An answer can come
        at any time, so the first request starts an event loop in a thread, which goes on until `close`; requests
        are not among `counts`.
        """
        from ropewalk.client.aio.producer import AsyncProducer  # an event loop, for programs that ask
        from ropewalk.client.blocking.loop_thread import LoopThread

        check_call(topic, queue, selector, timeout)
        with self._requester_lock:
            self._require_open()
            if self._requester is None:
                requester = AsyncProducer(self._name_servers, **asdict(self._options))
                thread = LoopThread(requester, "ropewalk-requests")
                thread.start()
                self._requester = thread, requester
            thread, requester = self._requester
        return thread.call(
            partial(requester.request, topic, message, timeout=timeout, queue=queue, selector=selector)
        )

    def reply(
        self, request: ReceivedMessage, message: Message | bytes, *, timeout: float | None = None
    ) -> SendResult:
        """Answer a message that was sent with `request`, by any client. Raises as `send`.

        A requester that is gone, or waits no more, is an answer of the broker with code 1: `Refused`.
        """
        topic, answer = reply_message(request, as_message(message))
        # The requester is known for certain where its request was stored; and a reply is tried once.
        selector = at_broker(request.source.queue.broker_name)
        return self.send(topic, answer, selector=selector, timeout=timeout)

    def flush(self, timeout: float | None = None) -> bool:
        """Send the waiting batches at once, and wait until every message has its outcome. False if time was up.

        Raises `LocalProtocolError` in a callback of a send, which runs in the thread that would do all that.
        """
        self._refuse_sender("flush")
        if timeout is not None:
            check_wait(timeout)
        with self._changed:
            self._batcher.close_batches()
            self._changed.notify_all()
            return self._fewer.wait_for(
                lambda: not self._pending_count, None if timeout == math.inf else timeout
            )

    def queues(self, topic: str) -> tuple[Queue, ...]:
        """Return the queues a message to this topic can go to."""
        return self._drive(self._core.queues(topic))

    def close(self) -> None:
        """Send the pending messages, leave the group and disconnect. Closing twice is harmless.

        Raises `LocalProtocolError` in a callback of a send, as `flush` does.
        """
        self._refuse_sender("close")
        if not self._closing:
            self.flush()
            self._stop()

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if exc is None:
            self.close()
        else:
            self._stop()  # whoever leaves by an exception does not want to wait for what is pending

    # Inside

    @property
    def _pending_count(self) -> int:
        return len(self._batcher) + self._under_way

    def _drive(self, steps: Steps[T]) -> T:
        self._require_open()
        return self._links.drive(steps, self._changed)

    @property
    def _is_sender(self) -> bool:
        return threading.current_thread() is self._sender

    def _refuse_sender(self, what: str) -> None:
        if self._is_sender:
            raise LocalProtocolError(
                f"{what}() in a callback of a send waits for the thread that it runs in: have another thread call it"
            )

    def _require_open(self) -> None:
        if self._closing:
            raise NotOpen("the producer is closed")

    def _stop(self) -> None:
        with self._changed:
            was_open = not self._closing
            self._closing = True
            abandoned = self._batcher.pop_all()
            self.counts.submitted += (count := sum(len(batch) for _, batch in abandoned))
            self.counts.refused += count
            self._changed.notify_all()
            self._fewer.notify_all()
        for _, batch in abandoned:
            never_left = Unreachable("the producer was closed before this message was sent")
            _settle_together([future for _, future in batch], never_left)
        if (sender := self._sender) is not None:
            sender.join()  # bounded by the time limit of the send it is in
        if self._traces is not None:
            self._traces.close()
        if was_open:
            self._links.drive(self._core.unregister(), self._changed)
        self._links.close()
        if self._requester is not None:
            self._requester[0].close()

    def _send_at_exit(self, spent_s: float) -> None:
        if self._closing or not self._pending_count or self._sender is None:
            return
        if not self.flush(max(0.0, self._core.options.timeout - spent_s)):
            reason = "the program ended without close(), and no broker answered in time"
            logger().error("messages lost", messages=self._pending_count, reason=reason)

    def _send_what_gathers(self) -> None:
        links = BlockingLinks(timeout=self._core.options.timeout, troubles=self._troubles)
        talks: ConversationPool[tuple[Any, list[_Pending]], SendResult] = ConversationPool(
            links, self._changed
        )
        try:
            self._send_until_closed(talks)
        except BaseException as exc:
            logger().error("send_async failed", reason=repr(exc), exc_info=exc)
            talks.close()
            self._fail_pending(exc)
        finally:
            links.close()

    def _send_until_closed(self, talks: ConversationPool[tuple[Any, list[_Pending]], SendResult]) -> None:
        while (batches := self._next_batches(wait=not talks)) or talks:
            for key, batch in batches:
                messages = [message for message, _ in batch]
                talks.begin((key, batch), self._core.send_gathered(key[0], messages))
                while len(talks) >= TOGETHER_MAX:
                    talks.wait(LOOK_S)
                    self._settle(talks)
            talks.wait(LOOK_S)
            self._settle(talks)

    def _fail_pending(self, cause: BaseException) -> None:
        """Settle everything pending: its thread ends by an error. The next message starts another one."""
        with self._changed:
            sending, self._sending = self._sending, {}
            waiting = [batch for _, batch in self._batcher.pop_all()]
            self.counts.submitted += (count := sum(map(len, waiting)))
            self.counts.refused += count
            self._under_way += count
            self._batcher = self._core.new_batcher()
            self._sender = None
        reason = f"the thread that sends ended by {type(cause).__name__}: {cause}"
        for batches, error in ((sending.values(), OutcomeUnknown), (waiting, Unreachable)):
            for batch in batches:
                _settle_together([future for _, future in batch], error(reason))
        with self._changed:
            self._under_way -= count + sum(map(len, sending.values()))
            self._fewer.notify_all()

    def _settle(self, talks: ConversationPool[tuple[Any, list[_Pending]], SendResult]) -> None:
        """Tell everybody who waits for a batch that has its outcome."""
        ended, talks.ended = talks.ended, []
        for (key, batch), outcome in ended:
            if isinstance(outcome, RopewalkError):
                log_lost(key[0], len(batch), outcome)
            results = split_result(outcome) if isinstance(outcome, SendResult) else outcome
            _settle_together([future for _, future in batch], results)
        if ended:
            with self._changed:
                for (key, batch), _ in ended:
                    self._under_way -= len(batch)
                    del self._sending[id(batch)]
                    self._batcher.completed(key)
                if self._pending_count <= self._core.options.pending_max // 2:
                    self._fewer.notify_all()

    def _next_batches(self, *, wait: bool) -> list[tuple[Any, list[_Pending]]]:
        """Return the messages to send now. Waits for them if told to; none then means that the producer closes."""
        with self._changed:
            while not self._closing:
                now = clock()
                batches = self._batcher.pop_ready(now)
                if batches or not wait:
                    self._under_way += sum(len(batch) for _, batch in batches)
                    self._sending.update((id(batch), batch) for _, batch in batches)
                    return batches
                due = self._batcher.next_due()
                self._changed.wait(None if due is None else max(0.0, due - now))
            return []
