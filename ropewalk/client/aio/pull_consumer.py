"""`AsyncPullConsumer`: reads queues at its program's pace, under trio and asyncio.

    async with AsyncPullConsumer("audit", {"orders": "*"}, "127.0.0.1:9876", consume_from="earliest") as consumer:
        await consumer.assign_topics()
        while messages := await consumer.poll(timeout=1):
            ...
            await consumer.commit()

One task at a time uses a consumer. What a poll does, and what a position is, is in `pulling.py`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from types import TracebackType
from typing import Never

import anyio

from ropewalk.client.aio.lifespan import Lifespan
from ropewalk.client.aio.links import AsyncLinks
from ropewalk.client.aio.trace_sender import send_last_traces, send_traces_forever
from ropewalk.client.core.consume.consume_from import ConsumeFrom
from ropewalk.client.core.consume.received import ReceivedMessage, TopicQueue
from ropewalk.client.core.consume.skipped import OnSkipped, Skipped
from ropewalk.client.core.ids import default_unique_keys
from ropewalk.client.core.options import check_count, check_flag, check_hook, check_text, refuse_unknown
from ropewalk.client.core.produce.bodies import BODY_BYTES_MAX
from ropewalk.client.core.produce.sending import ProducerCore
from ropewalk.client.fork import renew_after_fork
from ropewalk.client.log import Troubles, log_skipped
from ropewalk.client.machine import (
    name_servers_or_default,
    new_client_id,
    new_pull_core,
    new_trace_core,
    now_ms,
)
from ropewalk.format.names import TRACE_TOPIC


class AsyncPullConsumer:
    """A consumer that reads the queues its program chooses. Use it as `async with`, or `start` and `close` it."""

    def __init__(
        self,
        group: str,
        topics: Mapping[str, str],
        name_servers: str | None = None,
        *,
        sql: Mapping[str, str] | None = None,
        consume_from: ConsumeFrom = "latest",
        on_skipped: OnSkipped | None = None,
        body_bytes_max: int = BODY_BYTES_MAX,
        trace: bool = False,
        trace_topic: str = TRACE_TOPIC,
        **unknown: Never,
    ) -> None:
        """Make it without connecting.

        group: the consumer group, whose committed progress it reads and writes; it is no member that shares queues.
        topics: what is wanted of each: "*", or tags as in "paid || refunded".
        name_servers: as in "host:port;host:port"; ROPEWALK_NAMESRV_ADDR or NAMESRV_ADDR if absent, else a local one.
        sql: further topics, each with an SQL92 expression over properties: {"orders": "amount > 3 AND region = 'eu'"}.
        consume_from: where a queue begins that the group never committed: "earliest", "latest", a datetime, or
            milliseconds since 1970. With "latest", a young queue, whose first message is still at hand, begins at that.
        on_skipped: called where messages are passed over.
        body_bytes_max: bytes that a compressed body may unpack to; asking for one that would take more raises
            `BodyTooLarge`.
        trace: tell the trace topic which messages were polled, in the background.
        trace_topic: the topic of the traces; the broker has it where `traceTopicEnable` says so.

        Raises `LocalProtocolError` for a group or topic that cannot be one, `BadAddress` when the name servers cannot
        be read, `TypeError` and `ValueError` for options that mean nothing, `SqlSyntaxError` (a ValueError) for an
        expression that is none.
        """
        known = (
            "sql",
            "consume_from",
            "on_skipped",
            "body_bytes_max",
            "trace",
            "trace_topic",
            "name_servers",
        )
        refuse_unknown(unknown, known)
        check_count("body_bytes_max", body_bytes_max, 1)
        check_hook("on_skipped", on_skipped, "a Skipped")
        check_flag("trace", trace)
        check_text("trace_topic", trace_topic)
        name_servers = name_servers_or_default(name_servers)
        self.skipped = 0
        """Messages that were passed over without having been returned."""
        self._group = group
        self._on_skipped = on_skipped
        self._core = new_pull_core(group, topics, name_servers, consume_from, self._skip, sql, body_bytes_max)
        self._tracing: ProducerCore | None = None
        if trace:
            self._tracing = new_trace_core(name_servers, trace_topic, new_client_id(), group)
        self._links: AsyncLinks | None = None
        renew_after_fork(self)
        self._lifespan = Lifespan("pull consumer", self._run)

    def _renew(self) -> None:
        """Be another client in a child process, if it was not opened; one that was is refused there."""
        self._core.renew(new_client_id())
        if self._tracing is not None:
            self._tracing.client_id = new_client_id()

    async def start(self) -> None:
        """Open it in the running event loop; any task may use it from now on. Raises `NotOpen` the second time."""
        await self._lifespan.start()

    async def close(self) -> None:
        """Hang up. Nothing is committed by it. Closing twice is harmless."""
        await self._lifespan.close()

    async def __aenter__(self) -> AsyncPullConsumer:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._lifespan.leave(kind, exc, trace)

    def _skip(self, skipped: Skipped) -> None:
        self.skipped += skipped.count
        log_skipped(self._group, skipped)
        if self._on_skipped is not None:
            self._on_skipped(skipped)

    @property
    def assignment(self) -> tuple[TopicQueue, ...]:
        return self._core.assignment

    def assign(self, queues: Iterable[TopicQueue]) -> None:
        """Read these queues from now on, and no others. Queues that stay keep their position."""
        self._core.assign(queues)

    async def assign_topics(self) -> tuple[TopicQueue, ...]:
        """Read every queue that the topics have now, as the first `poll` does where none were assigned.

        Raises `Rejected` (17) for a topic that does not exist.
        """
        return await self._open.drive(self._core.assign_topics())

    def seek(self, queue: TopicQueue, offset: int) -> None:
        """Go on at this offset. Raises `KeyError` for a queue that is not assigned."""
        self._core.seek(queue, offset)

    async def seek_to_begin(self) -> None:
        """Go on at the first message that is still there, in every queue."""
        await self._open.drive(self._core.seek_to_begin())

    async def seek_to_end(self) -> None:
        """Go on behind the last message, in every queue."""
        await self._open.drive(self._core.seek_to_end())

    async def seek_to_time(self, moment: datetime | int) -> None:
        """Go on at the first message stored at or after a time (milliseconds, if a number), in every queue."""
        await self._open.drive(self._core.seek_to_time(moment))

    async def position(self, queue: TopicQueue) -> int:
        """Return the offset at which the next poll reads a queue."""
        return await self._open.drive(self._core.position(queue))

    async def poll(self, max_count: int = 32, *, timeout: float = 1.0) -> list[ReceivedMessage]:
        """Return the next messages of one queue; nothing if none came within `timeout` seconds.

        Raises what a broker refused, and, when the time is up, `Unreachable` or `OutcomeUnknown` if none of the brokers
        was there in all of it.
        """
        messages = await self._open.drive(self._core.poll(max_count, timeout))
        if self._tracing is not None and self._tracing.trace is not None:
            self._tracing.trace.record_poll(messages, default_unique_keys().next(), now_ms())
        return messages

    async def commit(self) -> None:
        """Record every position as the group's progress."""
        await self._open.drive(self._core.commit())

    @property
    def _open(self) -> AsyncLinks:
        self._lifespan.require_open()
        assert self._links is not None, "open from the first moment to the last"
        return self._links

    @asynccontextmanager
    async def _run(self) -> AsyncIterator[None]:
        troubles = Troubles()
        async with AsyncLinks.open(troubles=troubles) as self._links:
            if self._tracing is None:
                yield
                return
            failure: Exception | None = None
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send_traces_forever, self._tracing, self._links, troubles)
                try:
                    yield
                except Exception as exc:
                    failure = exc  # kept out of the task group, which would wrap it
                tasks.cancel_scope.cancel()
            await send_last_traces(self._tracing, self._links)
            if failure is not None:
                raise failure
