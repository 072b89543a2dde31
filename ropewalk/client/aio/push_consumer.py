"""`AsyncPushConsumer`: a member of a group, whose handler is called for every message of its share of the queues.

    async def handle(message: ReceivedMessage) -> None: ...

    async with AsyncPushConsumer("billing", {"orders": "*"}, handle, "127.0.0.1:9876"):
        await anyio.sleep_forever()

Runs under trio and asyncio. Handlers are coroutine functions, or plain functions, which run in worker threads. A
message is delivered at least once: its handler may see it again after a crash, a rebalance or a failure.

A handler that raises, whatever it raises, gives its message back: it comes again after 10 s, 30 s, 1 min, … (or as
`RetryLater` says), and after `max_retries` it is a dead letter in `%DLQ%<group>`. A message whose handler returns is
handled, whatever it returns; a value other than None and True is told to the log, once. One whose handler takes longer
than `consume_timeout` is given back too, and `on_error` hears of it as a `TimeoutError`. With `orderly=True` the
messages of a queue are handled one after the other by one member at a time; a failed one is tried again in place after
`order_pause` seconds. With `broadcasting=True` every member gets every message, a failed one is dropped, and progress
is kept in `offsets_folder`.

Members come and go; queues are divided anew every `rebalance_interval`, and at once when a broker says so, by the rule
of the official clients, so that a group may have members in several languages. Progress is recorded with every pull,
every `commit_interval`, when a queue is given up, and at the end. Leaving the block waits for the handlers that are at
work, for at most `close_timeout` seconds; a cancellation cancels them. Both record what was finished.

Nothing ends consumption unheard. What a handler, a hook or a disk does is told to the log (`ropewalk.client.log`), and
it goes on; what does end it is in `failure`, in the log, and raised by `close`. What is passed over without having been
handled is told to `on_skipped`, counted in `skipped`, and logged (`skipped.py` has the reasons).
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Never

import anyio

from ropewalk.client.aio.handler import Handler, HandlerCaller, OnError, log_failure
from ropewalk.client.aio.lifespan import Lifespan
from ropewalk.client.aio.links import AsyncLinks
from ropewalk.client.aio.push.handling import Handling
from ropewalk.client.aio.push.member import Member
from ropewalk.client.aio.push.options import PushOptions
from ropewalk.client.aio.push.progress import Progress
from ropewalk.client.aio.push.requests import ClientRequests
from ropewalk.client.aio.push.sharing import Sharing
from ropewalk.client.aio.trace_sender import send_last_traces, send_traces_forever
from ropewalk.client.core.consume.consume_from import ConsumeFrom
from ropewalk.client.core.consume.consuming import ConsumerIdentity
from ropewalk.client.core.consume.membership import Subscription
from ropewalk.client.core.consume.received import ReceivedMessage, TopicQueue
from ropewalk.client.core.consume.skipped import OnSkipped
from ropewalk.client.core.options import check_hook, check_text, make_options
from ropewalk.client.core.produce.bodies import BODY_BYTES_MAX
from ropewalk.client.fork import renew_after_fork
from ropewalk.client.machine import (
    name_servers_or_default,
    new_client_id,
    new_consumer_core,
    new_trace_core,
    now_ms,
    own_client_id,
    subscriptions,
)
from ropewalk.client.stop_signals import StopSignals
from ropewalk.format.names import TRACE_TOPIC

__all__ = ["AsyncPushConsumer", "ReceivedMessage"]

UNREGISTER_S = 3.0
LOOK_S = 0.2
"""How often `run` looks for signals."""


class AsyncPushConsumer:
    """A member of a consumer group. Use it as `async with`, or `start` and `close` it from any task."""

    def __init__(
        self,
        group: str,
        topics: Mapping[str, str],
        handler: Handler,
        name_servers: str | None = None,
        *,
        sql: Mapping[str, str] | None = None,
        client_id: str | None = None,
        on_error: OnError = log_failure,
        on_skipped: OnSkipped | None = None,
        consume_from: ConsumeFrom = "latest",
        orderly: bool = False,
        broadcasting: bool = False,
        offsets_folder: str | Path | None = None,
        concurrency: int = 20,
        max_retries: int = 16,
        consume_timeout: float = 15 * 60.0,
        order_pause: float = 1.0,
        pull_count: int = 32,
        suspend: float = 15.0,
        cached_count_max: int = 1000,
        cached_bytes_max: int = 100 * 1024 * 1024,
        cached_span_max: int = 2000,
        body_bytes_max: int = BODY_BYTES_MAX,
        commit_interval: float = 5.0,
        rebalance_interval: float = 20.0,
        close_timeout: float = 10.0,
        trace: bool = False,
        trace_topic: str = TRACE_TOPIC,
        **unknown: Never,
    ) -> None:
        """Make it without connecting. Times are in seconds.

        group: the consumer group, whose members share the queues of its topics.
        topics: what is wanted of each: "*", or tags as in "paid || refunded"; the same for all members of a group.
        sql: further topics, each with an SQL92 expression over properties: {"orders": "amount > 3 AND region = 'eu'"}.
        handler: called with every message; what it raises gives the message back, what it returns means nothing. A
            coroutine function, or a plain one.
        name_servers: as in "host:port;host:port"; ROPEWALK_NAMESRV_ADDR or NAMESRV_ADDR if absent, else a local one.
        client_id: the name of this member; one that no other client has, if absent.
        on_error: called in the event loop with a message and what its handler raised; logs it by default.
        on_skipped: called in the event loop where messages are passed over.
        consume_from: where a queue begins that the group never committed: "earliest", "latest", a datetime, or
            milliseconds since 1970. With "latest", a young queue, whose first message is still at hand, begins at that.
        orderly: handle the messages of a queue one after the other, under a lock from the broker.
        broadcasting: have every member get every message.
        offsets_folder: where a broadcasting consumer keeps its progress; without it, it begins anew each time.
        concurrency: handlers at work at the same time.
        max_retries: retries until a message is a dead letter; -1 for an orderly consumer that never gives up.
        consume_timeout: how long a handler may be at a message before that is given back, while the handler goes on;
            `math.inf` for ever. Orderly handlers have all the time they need.
        order_pause: how long an orderly consumer waits before a message that failed is tried again.
        pull_count: messages per pull.
        suspend: how long a broker may hold a pull that finds nothing.
        cached_count_max: unfinished messages of one queue at which reading pauses.
        cached_bytes_max: bytes of unfinished messages of one queue at which reading pauses.
        cached_span_max: offsets between the first unfinished message and the last read one at which reading pauses.
        body_bytes_max: bytes that a compressed body may unpack to; asking for one that would take more raises
            `BodyTooLarge`.
        commit_interval: how often progress is recorded.
        rebalance_interval: how often queues are divided anew, besides when a broker says so.
        close_timeout: how long `close` waits for handlers that are at work.
        trace: tell the trace topic when each message is handled and how that ended, in the background.
        trace_topic: the topic of the traces; the broker has it where `traceTopicEnable` says so.

        Raises `LocalProtocolError` for a group that cannot be one, `BadAddress` when the name servers cannot be read,
        `TypeError` and `ValueError` for options that mean nothing, `SqlSyntaxError` (a ValueError) for an expression
        that is none.
        """
        name_servers = name_servers_or_default(name_servers)
        options = make_options(PushOptions, locals(), unknown)
        check_text("client_id", client_id)
        check_hook("on_error", on_error, "a message", "an exception")
        check_hook("on_skipped", on_skipped, "a Skipped")
        caller = HandlerCaller(handler, on_error)
        wanted = subscriptions(topics, sql)
        read = tuple(subscription.topic for subscription in wanted)
        if not options.broadcasting:
            wanted += (Subscription(f"%RETRY%{group}", "*", now_ms()),)
        identity = ConsumerIdentity(
            group,
            client_id or new_client_id(),
            wanted,
            options.consume_from,
            broadcasting=options.broadcasting,
            body_bytes_max=options.body_bytes_max,
        )
        self._given_id = client_id
        self._core = new_consumer_core(name_servers, identity)
        self._tracing = None
        if options.trace:
            self._tracing = new_trace_core(name_servers, options.trace_topic, identity.client_id, group)
        buffer = self._tracing.trace if self._tracing is not None else None
        self._member = Member(self._core, options, read, on_skipped, buffer)
        self._progress = Progress(self._member)
        self._handling = Handling(self._member, caller, on_error)
        self._sharing = Sharing(self._member, self._progress, self._handling)
        self._requests = ClientRequests(self._member, self._handling, self._sharing, name_servers)
        renew_after_fork(self)
        self._lifespan = Lifespan("push consumer", self._run)

    @property
    def options(self) -> PushOptions:
        """The options that the consumer was made with."""
        return self._member.options

    @property
    def client_id(self) -> str:
        """The name of this member at brokers."""
        return self._member.client_id

    @property
    def queues(self) -> tuple[TopicQueue, ...]:
        """The queues that are ours at the moment, without those of the retry topic."""
        return self._member.queues

    @property
    def skipped(self) -> int:
        """The number of messages that were passed over without having been handled."""
        return self._member.skipped

    @property
    def failure(self) -> BaseException | None:
        """The error that ended consumption; None while it goes on, and if the program ended it."""
        return self._lifespan.failure

    @property
    def closed(self) -> bool:
        """Tell whether consumption is over: by `close`, or by the error in `failure`."""
        return self._lifespan.state == "closed"

    async def run(self) -> None:
        """Consume until SIGTERM or Ctrl-C, then close as `close` does. A whole program, in the main thread.

        A second signal does what it would do without this: it ends the program at once. Raises what `start` raises, and
        what ended consumption by itself.
        """
        if self._lifespan.is_open:
            self._lifespan.require_open()  # here, in this loop
        with StopSignals() as signals:
            if self._lifespan.state == "new":
                await self.start()
            try:
                while not signals.arrived and not self.closed:
                    with anyio.move_on_after(LOOK_S):
                        await self._lifespan.wait()
            except BaseException:
                await self._lifespan.leave(*sys.exc_info())
                raise
        await self.close()

    def _renew(self) -> None:
        """Be another client in a child process, if it was not opened; one that was is refused there."""
        self._core.renew(own_client_id(self._given_id))
        if self._tracing is not None:
            self._tracing.client_id = self.client_id

    async def start(self) -> None:
        """Join the group and take on its share of the queues: what is sent from now on is handled.

        Raises `Unreachable` when there is no name server, and `NotOpen` the second time.
        """
        await self._lifespan.start()

    async def close(self) -> None:
        """Let the handlers that are at work finish, record the progress and leave. Closing twice is harmless."""
        await self._lifespan.close()

    async def __aenter__(self) -> AsyncPushConsumer:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._lifespan.leave(kind, exc, trace)

    @asynccontextmanager
    async def _run(self) -> AsyncIterator[None]:
        self._handling.start()
        self._sharing.open()
        failure: Exception | None = None
        member = self._member
        async with AsyncLinks.open(on_request=self._requests.answer, troubles=member.troubles) as links:
            try:
                async with anyio.create_task_group() as tasks:
                    try:
                        member.open(links, tasks)
                        await self._progress.open()
                        await self._sharing.find_topics()
                        self._handling.start_workers()
                        await self._sharing.take_place()
                        self._sharing.start()
                        member.start(self._progress.commit_forever)
                        if self._tracing is not None:
                            member.start(send_traces_forever, self._tracing, links, member.troubles)
                        yield
                        await self._sharing.settle()
                    except Exception as exc:
                        failure = exc
                    tasks.cancel_scope.cancel()
            finally:
                self._sharing.release()
                if self._tracing is not None:
                    await send_last_traces(self._tracing, links)
                with anyio.move_on_after(UNREGISTER_S, shield=True):
                    await self._sharing.leave()
        if failure is not None:
            raise failure
