"""The requests that brokers and administrators send to a consumer, and their answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from ropewalk.client.aio.push.handling import Handling
from ropewalk.client.aio.push.member import Member
from ropewalk.client.aio.push.sharing import Sharing
from ropewalk.client.core.admin_requests import (
    QueueState,
    RequestFailed,
    answered,
    handled_document,
    message_to_handle,
    offsets_document,
    require_group,
    reset_offsets,
    running_document,
)
from ropewalk.client.core.connection import refuse_peer_request
from ropewalk.client.machine import clock, now_ms
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format.headers import ConsumerStatusHeader, RelayHeader, decode_header
from ropewalk.format.remoting import Command


class ClientRequests:
    """Answers requests that brokers send to a member over its own connections."""

    def __init__(self, member: Member, handling: Handling, sharing: Sharing, name_servers: str) -> None:
        self._member = member
        self._handling = handling
        self._sharing = sharing
        self._name_servers = name_servers
        self._started_ms = now_ms()

    def answer(self, request: Command) -> Command | Callable[[], Awaitable[Command]] | None:
        """Answer a request: at once, with what takes a while, or not at all."""
        match request.code:
            case RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
                self._sharing.rebalance_soon()
                return None
            case RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
                for queue, offset in reset_offsets(request, self._member.group).items():
                    if queue in self._member.readers:
                        self._member.readers[queue].seek(offset)
                return None
            case RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT:
                return answered(request, lambda: self._offsets_body(request))
            case RequestCode.GET_CONSUMER_RUNNING_INFO:
                return answered(request, lambda: self._running_body(request))
            case RequestCode.CONSUME_MESSAGE_DIRECTLY:
                return self._handle_now(request)
        return refuse_peer_request(request)

    # What administrators ask, by way of a broker

    def _offsets_body(self, request: Command) -> bytes:
        header = decode_header(ConsumerStatusHeader, request.ext)
        if header.group != self._member.group:
            raise RequestFailed(f"this consumer is of group {self._member.group}, not {header.group}")
        return offsets_document(self._states(), header.topic)

    def _running_body(self, request: Command) -> bytes:
        require_group(decode_header(RelayHeader, request.ext), self._member.group)
        return running_document(
            self._states(),
            self._member.core.identity.subscriptions,
            {topic: stats.document(clock()) for topic, stats in self._member.stats.items()},
            name_servers=self._name_servers,
            concurrency=self._member.options.concurrency,
            orderly=self._member.options.orderly,
            started_ms=self._started_ms,
            with_stacks=request.ext.get("jstackEnable") == "true",
        )

    def _states(self) -> list[QueueState]:
        states = []
        # Locks are timed by a clock that nobody sets; tools are shown where that is on the wall clock of now.
        shown_ms = now_ms() - clock() * 1000
        for queue, reader in sorted(self._member.readers.items()):
            cache = reader.cache
            states.append(
                QueueState(
                    queue,
                    cache.committable,
                    cache.next_offset,
                    cache.count,
                    cache.size,
                    self._member.locks,
                    round(shown_ms + reader.locked_at * 1000) if self._member.locks else 0,
                    reader.pulled_ms,
                    round(shown_ms + reader.handled_at * 1000) if reader.handled_at else 0,
                )
            )
        return states

    def _handle_now(self, request: Command) -> Command | Callable[[], Awaitable[Command]]:
        """Handle the message that a request brings, whatever its queue; the reply says what became of it."""
        try:
            message = message_to_handle(request, self._member.group)
        except RequestFailed as exc:
            return request.reply(ResponseCode.SYSTEM_ERROR, str(exc))
        handled = anyio.Event()
        body = b""

        async def handle() -> None:
            nonlocal body
            began = clock()
            failure = await self._handling.call(message)
            body = handled_document(failure, orderly=self._member.options.orderly, took_s=clock() - began)
            handled.set()

        async def reply() -> Command:
            await handled.wait()
            return request.reply(ResponseCode.SUCCESS, body=body)

        # Not in the connection's task: who handles a message is not stopped because a broker hangs up.
        self._member.tasks.start_soon(handle)
        return reply
