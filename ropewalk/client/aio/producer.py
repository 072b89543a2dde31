"""`AsyncProducer`: sends that somebody waits for, and sends that gather, in a trio or asyncio program.

    async with AsyncProducer("127.0.0.1:9876", group="shop") as producer:
        result = await producer.send("orders", Message(b"one"))
        pending = await producer.send_async("orders", Message(b"two"))
        await producer.flush()

Runs under trio and asyncio. Any number of tasks may use one producer; `start` and `close` are the same as the
block, for programs that open it in one task and close it in another. `send_async` lets messages wait a few
milliseconds for company and sends those together that may lie in one queue; each gets an outcome of its own, and
`counts` accounts for all of them. Leaving the block waits for what is pending; leaving it by an exception or a
cancellation does not, and what had not been answered then is counted as unknown.

The rules of a single send are in `sending.py`, those of gathering in `batcher.py`.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import AsyncIterator, Hashable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Never

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from ropewalk.client.aio.lifespan import Lifespan, running_loop
from ropewalk.client.aio.links import AsyncLinks
from ropewalk.client.aio.trace_sender import send_last_traces, send_traces_forever
from ropewalk.client.core.connection import NotOpen, Unreachable, refuse_peer_request
from ropewalk.client.core.consume.membership import HEARTBEAT_S
from ropewalk.client.core.consume.received import ReceivedMessage
from ropewalk.client.core.ids import default_unique_keys
from ropewalk.client.core.messages import PRODUCER_GROUP, Message, SendResult
from ropewalk.client.core.options import make_options
from ropewalk.client.core.produce.batcher import Batcher
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
from ropewalk.client.core.request_reply import (
    NoReply,
    ReplyMessage,
    pushed_reply,
    reply_message,
    request_message,
)
from ropewalk.client.core.routes import Queue
from ropewalk.client.fork import renew_after_fork
from ropewalk.client.log import Troubles, log_lost, logger
from ropewalk.client.machine import clock, name_servers_or_default, new_client_id, now_ms, own_client_id
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import OutcomeUnknown, RopewalkError
from ropewalk.format.names import TRACE_TOPIC
from ropewalk.format.remoting import Command

UNREGISTER_S = 1.0
"""How long leaving may take once nothing is pending."""


@dataclass(slots=True, eq=False)
class PendingResult:
    """A message that `send_async` took. Its outcome comes with `wait`."""

    message: Message
    _loop: object = field(default_factory=running_loop)
    _settled: anyio.Event = field(default_factory=anyio.Event)
    _outcome: SendResult | RopewalkError | None = None

    @property
    def done(self) -> bool:
        return self._outcome is not None

    async def wait(self) -> SendResult:
        """Wait for the result of the send, and return it. Raises what the send raised, `NotOpen` in another loop."""
        if self._outcome is None:
            if running_loop() is not self._loop:
                raise NotOpen(
                    "this message was handed over in another event loop: wait for its outcome there"
                )
            await self._settled.wait()
        assert self._outcome is not None
        if isinstance(self._outcome, RopewalkError):
            raise self._outcome
        return self._outcome

    def _settle(self, outcome: SendResult | RopewalkError) -> None:
        self._outcome = outcome
        self._settled.set()


@dataclass(slots=True, eq=False)
class _Waiting:
    """A request whose answer is awaited."""

    answered: anyio.Event = field(default_factory=anyio.Event)
    reply: ReplyMessage | None = None


class AsyncProducer:
    """A producer for trio and asyncio programs. Use it as `async with`, or `start` and `close` it from any task."""

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
        self._core = ProducerCore(
            name_servers_or_default(name_servers),
            make_options(ProducerOptions, locals(), unknown),
            client_id=client_id or new_client_id(),
            unique_keys=default_unique_keys(),
            clock=clock,
            now_ms=now_ms,
        )
        self._batcher: Batcher[PendingResult] = self._core.new_batcher()
        self._under_way: set[PendingResult] = set()
        self._asked: dict[str, _Waiting] = {}
        self._links: AsyncLinks | None = None
        self._given_id = client_id
        renew_after_fork(self)
        self._lifespan = Lifespan("producer", self._run)

    @property
    def counts(self) -> SendCounts:
        """The outcomes of all messages so far, by kind."""
        return self._core.counts

    @property
    def client_id(self) -> str:
        """The name of this client at brokers."""
        return self._core.client_id

    def _renew(self) -> None:
        """Be another client in a child process, if it was not opened; one that was is refused there."""
        self._core.client_id = own_client_id(self._given_id)

    async def start(self) -> None:
        """Open it in the running event loop; any task may use it from now on. Raises `NotOpen` the second time."""
        await self._lifespan.start()

    async def close(self) -> None:
        """Send the pending messages, leave the group and disconnect. Closing twice is harmless."""
        await self._lifespan.close()

    async def __aenter__(self) -> AsyncProducer:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._lifespan.leave(kind, exc, trace)

    # Sending

    async def send(
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
        messages = [as_message(message)]
        return await self._open_links.drive(
            self._core.send(topic, messages, queue=queue, selector=selector, timeout=timeout)
        )

    async def send_batch(
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
        return await self._open_links.drive(
            self._core.send(topic, batch, queue=queue, selector=selector, timeout=timeout)
        )

    async def recall(self, recall_handle: str, *, timeout: float | None = None) -> str:
        """Take back a message that waits for its time; return its unique key.

        It is not delivered, if the broker has this before the message is due. Raises `LocalProtocolError` for what is
        no handle, and `Refused` where the broker does not allow recalls (`recallMessageEnable`), has no such topic, or
        the time has come.
        """
        return await self._open_links.drive(self._core.recall(recall_handle, timeout))

    async def send_oneway(
        self,
        topic: str,
        message: Message | bytes,
        *,
        queue: Queue | None = None,
        selector: QueueSelector | None = None,
    ) -> None:
        """Send one message without asking whether it arrived."""
        steps = self._core.send_oneway(topic, as_message(message), queue=queue, selector=selector)
        await self._open_links.drive(steps)

    async def send_async(self, topic: str, message: Message | bytes) -> PendingResult:
        """Hand a message over, to be sent with others within `linger` seconds.

        Waits while `pending_max` messages are pending. Raises `LocalProtocolError` for a message that no broker
        would take; everything later is the outcome of what is returned.
        """
        message = as_message(message)
        check_sendable(topic, [message])
        self._lifespan.require_open()
        while self._pending_count >= self._core.options.pending_max:
            await self._moved.wait()
        pending = PendingResult(message)
        key, ordered, alone = batch_key(topic, message)
        size = len(message.body) + MESSAGE_OVERHEAD
        self._batcher.add(key, pending, size, clock(), ordered=ordered, alone=alone)
        self._wake.set()
        await anyio.lowlevel.checkpoint()
        return pending

    async def flush(self) -> None:
        """Send the waiting batches at once, and return when every message handed over has its outcome."""
        if self._pending_count:
            self._lifespan.require_open()
        while self._pending_count:
            self._batcher.close_batches()
            self._wake.set()
            await self._moved.wait()

    async def request(
        self,
        topic: str,
        message: Message | bytes,
        *,
        timeout: float | None = None,
        queue: Queue | None = None,
        selector: QueueSelector | None = None,
    ) -> ReplyMessage:
        """Send a message and wait for a consumer's `reply` to it, for at most `timeout` seconds.

        Raises `NoReply` when nobody did, and what `send` raises when the request was not stored.
        """
        check_call(topic, queue, selector, timeout)
        seconds = self._core.options.timeout if timeout is None else timeout
        correlation_id = uuid.uuid4().hex
        asked = request_message(as_message(message), self.client_id, correlation_id, seconds)
        waiting = self._asked[correlation_id] = _Waiting()
        deadline = clock() + seconds
        try:
            await self._open_links.drive(self._core.announce_for_replies(topic, seconds))
            left = max(deadline - clock(), 0.001)
            await self.send(topic, asked, queue=queue, selector=selector, timeout=left)
            with anyio.move_on_after(deadline - clock()):
                await waiting.answered.wait()
        finally:
            del self._asked[correlation_id]
        if waiting.reply is None:
            raise NoReply(f"nobody answered the request to {topic} within {seconds:g} s")
        return waiting.reply

    async def reply(
        self, request: ReceivedMessage, message: Message | bytes, *, timeout: float | None = None
    ) -> SendResult:
        """Answer a message that was sent with `request`, by any client. Raises as `send`.

        A requester that is gone, or waits no more, is an answer of the broker with code 1: `Refused`.
        """
        topic, answer = reply_message(request, as_message(message))
        # The requester is known for certain where its request was stored; and a reply is tried once.
        selector = at_broker(request.source.queue.broker_name)
        return await self.send(topic, answer, selector=selector, timeout=timeout)

    async def queues(self, topic: str) -> tuple[Queue, ...]:
        """Return the queues a message to this topic can go to."""
        return await self._open_links.drive(self._core.queues(topic))

    # Inside

    @property
    def _open_links(self) -> AsyncLinks:
        self._lifespan.require_open()
        assert self._links is not None, "open from the first moment to the last"
        return self._links

    @property
    def _pending_count(self) -> int:
        return len(self._batcher) + len(self._under_way)

    @asynccontextmanager
    async def _run(self) -> AsyncIterator[None]:
        self._wake = anyio.Event()
        self._moved = anyio.Event()
        failure: Exception | None = None
        troubles = Troubles()
        async with AsyncLinks.open(
            timeout=self._core.options.timeout, on_request=self._on_request, troubles=troubles
        ) as self._links:
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._send_what_gathers, tasks)
                    tasks.start_soon(self._stay_known)
                    if self._core.trace is not None:
                        tasks.start_soon(send_traces_forever, self._core, self._links, troubles)
                    try:
                        yield
                        await self.flush()
                    except Exception as exc:
                        failure = exc
                    tasks.cancel_scope.cancel()
            finally:
                self._abandon()
                await send_last_traces(self._core, self._links)
                with anyio.move_on_after(UNREGISTER_S, shield=True):
                    await self._links.drive(self._core.unregister())
                self._links = None
        if failure is not None:
            raise failure

    async def _send_what_gathers(self, tasks: TaskGroup) -> None:
        while True:
            now = clock()
            for key, batch in self._batcher.pop_ready(now):
                self._under_way.update(batch)
                tasks.start_soon(self._send_together, key, batch)
            due = self._batcher.next_due()
            if self._wake.is_set():
                self._wake = anyio.Event()
            with anyio.move_on_after(math.inf if due is None else max(0.0, due - now)):
                await self._wake.wait()

    async def _send_together(self, key: Hashable, batch: list[PendingResult]) -> None:
        assert isinstance(key, tuple)
        outcome: SendResult | RopewalkError
        try:
            steps = self._core.send_gathered(key[0], [pending.message for pending in batch])
            outcome = await self._open_links.drive(steps)
        except RopewalkError as exc:
            outcome = exc
            log_lost(key[0], len(batch), exc)
        if isinstance(outcome, SendResult):
            for pending, share in zip(batch, split_result(outcome), strict=True):
                pending._settle(share)
        else:
            for pending in batch:
                pending._settle(outcome)
        self._under_way.difference_update(batch)
        self._batcher.completed(key)
        self._wake.set()
        self._notify_moved()

    def _abandon(self) -> None:
        """Return the block was left in a hurry: whoever waits for an outcome hears that there will be none."""
        never_left = Unreachable("the producer was closed before this message was sent")
        cut_off = OutcomeUnknown("the producer was closed before the broker answered")
        if self._pending_count:
            reason = "the producer was closed in a hurry, or its event loop ended before close()"
            logger().warning("messages given up", messages=self._pending_count, reason=reason)
        for pending in self._under_way:
            pending._settle(cut_off)  # already counted, by the send that was cut off
        self._under_way.clear()
        for _key, batch in self._batcher.pop_all():
            self.counts.submitted += len(batch)
            self.counts.refused += len(batch)
            for pending in batch:
                pending._settle(never_left)
        self._notify_moved()

    def _notify_moved(self) -> None:
        self._moved.set()
        self._moved = anyio.Event()

    def _on_request(self, request: Command) -> Command | None:
        if request.code != RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT:
            return refuse_peer_request(request)
        try:
            correlation_id, reply = pushed_reply(request)
        except RopewalkError as exc:
            return request.reply(ResponseCode.SYSTEM_ERROR, str(exc))
        waiting = self._asked.get(correlation_id)
        if waiting is not None and waiting.reply is None:
            waiting.reply = reply
            waiting.answered.set()
        # Also to an answer that came too late, as the official clients do.
        return request.reply(ResponseCode.SUCCESS)

    async def _stay_known(self) -> None:
        while True:
            await anyio.sleep(HEARTBEAT_S)
            await self._open_links.drive(self._core.heartbeats())
