"""`AsyncAdmin`: look after a cluster from a program that runs on trio or asyncio.

    async with AsyncAdmin("127.0.0.1:9876") as admin:
        await admin.create_topic("orders", queues=4)
        print((await admin.progress("billing")).lag)

It works on Apache RocketMQ as on Ropewalk. Every method is a conversation of `AdminCore`, held to its end; tasks may
share an `AsyncAdmin`, and `skipped` tells of all their calls.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Any, Concatenate, Never, ParamSpec, TypeVar

from ropewalk.client.admin.brokers import AdminCore
from ropewalk.client.admin.cluster import ADMIN_TIMEOUT_S
from ropewalk.client.aio.lifespan import Lifespan
from ropewalk.client.aio.links import AsyncLinks
from ropewalk.client.core.options import check_arguments, check_seconds, refuse_unknown
from ropewalk.client.core.steps import Steps, told_as
from ropewalk.client.machine import clock, name_servers_or_default, new_asker

P = ParamSpec("P")
T = TypeVar("T")


def _held(
    conversation: Callable[Concatenate[AdminCore, P], Steps[T]],
) -> Callable[Concatenate[AsyncAdmin, P], Coroutine[Any, Any, T]]:
    """Return a method that holds this conversation, with its parameters and its docstring."""

    @told_as(conversation)
    async def method(self: AsyncAdmin, /, *args: P.args, **kwargs: P.kwargs) -> T:
        check_arguments(conversation, self._core, *args, **kwargs)
        self._lifespan.require_open()
        assert self._links is not None, "open from the first moment to the last"
        return await self._links.drive(conversation(self._core, *args, **kwargs))

    return method


class AsyncAdmin:
    """An administrator of one cluster. Use it as `async with`, or `start` and `close` it."""

    def __init__(
        self,
        name_servers: str | None = None,
        *,
        timeout: float = ADMIN_TIMEOUT_S,
        secret: str = "",
        **unknown: Never,
    ) -> None:
        """Make it without connecting.

        name_servers: as in "host:port;host:port"; ROPEWALK_NAMESRV_ADDR or NAMESRV_ADDR if absent, else a local one.
        timeout: seconds, for each connect and each answer.
        secret: the `ropewalkSecret` of the groups that are looked after; members want it proven by whoever changes one.

        Raises `BadAddress` when the list of name servers cannot be read, `TypeError` and `ValueError` for options that
        mean nothing.
        """
        refuse_unknown(unknown, ("name_servers", "timeout", "secret"))
        check_seconds("timeout", timeout)
        self._core = AdminCore(
            name_servers_or_default(name_servers),
            clock=clock,
            timeout_s=timeout,
            asker=partial(new_asker, secret) if secret else None,
        )
        self._timeout = timeout
        self._links: AsyncLinks | None = None
        self._lifespan = Lifespan("admin", self._run)

    async def start(self) -> None:
        """Open it in the running event loop; any task may use it from now on. Raises `NotOpen` the second time."""
        await self._lifespan.start()

    async def close(self) -> None:
        """Hang up. Closing twice is harmless."""
        await self._lifespan.close()

    async def __aenter__(self) -> AsyncAdmin:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._lifespan.leave(kind, exc, trace)

    @asynccontextmanager
    async def _run(self) -> AsyncIterator[None]:
        async with AsyncLinks.open(timeout=self._timeout) as self._links:
            yield

    @property
    def skipped(self) -> dict[str, str]:
        """Brokers that were asked and did not answer: address and reason, since `forget_skipped`."""
        return self._core.skipped

    def forget_skipped(self) -> None:
        self._core.forget_skipped()

    # The cluster

    members = _held(AdminCore.members)
    masters = _held(AdminCore.masters)

    # Topics

    topics = _held(AdminCore.topics)
    system_names = _held(AdminCore.system_names)
    topic_route = _held(AdminCore.topic_route)
    topic_clusters = _held(AdminCore.topic_clusters)
    topic_config = _held(AdminCore.topic_config)
    topic_status = _held(AdminCore.topic_status)
    topic_groups = _held(AdminCore.topic_groups)
    create_topic = _held(AdminCore.create_topic)
    update_topic = _held(AdminCore.update_topic)
    delete_topic = _held(AdminCore.delete_topic)

    # Groups

    groups = _held(AdminCore.groups)
    group_config = _held(AdminCore.group_config)
    create_group = _held(AdminCore.create_group)
    update_group = _held(AdminCore.update_group)
    delete_group = _held(AdminCore.delete_group)
    consumers = _held(AdminCore.consumers)
    producers = _held(AdminCore.producers)
    all_producers = _held(AdminCore.all_producers)
    running_info = _held(AdminCore.running_info)
    members_status = _held(AdminCore.members_status)

    # Progress

    progress = _held(AdminCore.progress)
    all_progress = _held(AdminCore.all_progress)
    reset_offsets = _held(AdminCore.reset_offsets)
    reset_offset = _held(AdminCore.reset_offset)
    clone_offsets = _held(AdminCore.clone_offsets)
    commit_offset = _held(AdminCore.commit_offset)
    committed_offset = _held(AdminCore.committed_offset)
    search_offsets = _held(AdminCore.search_offsets)

    # Messages

    message_by_id = _held(AdminCore.message_by_id)
    messages_by_key = _held(AdminCore.messages_by_key)
    messages_by_unique_key = _held(AdminCore.messages_by_unique_key)
    message_at = _held(AdminCore.message_at)
    messages_by_time = _held(AdminCore.messages_by_time)
    message_track = _held(AdminCore.message_track)
    dead_letters = _held(AdminCore.dead_letters)
    delayed_retries = _held(AdminCore.delayed_retries)
    consume_directly = _held(AdminCore.consume_directly)

    # Brokers and name servers

    broker_status = _held(AdminCore.broker_status)
    broker_config = _held(AdminCore.broker_config)
    set_broker_config = _held(AdminCore.set_broker_config)
    broker_statistics = _held(AdminCore.broker_statistics)
    wipe_write_permission = _held(AdminCore.wipe_write_permission)
    restore_write_permission = _held(AdminCore.restore_write_permission)
    clean_unused_topics = _held(AdminCore.clean_unused_topics)
    sinks = _held(AdminCore.sinks)
    ledger_status = _held(AdminCore.ledger_status)
    transfer_lead = _held(AdminCore.transfer_lead)
    readmit = _held(AdminCore.readmit)
    snapshot_tables = _held(AdminCore.snapshot_tables)
    change_members = _held(AdminCore.change_members)
    add_member = _held(AdminCore.add_member)
    promote_member = _held(AdminCore.promote_member)
    force_member = _held(AdminCore.force_member)
    trust_member = _held(AdminCore.trust_member)
    forget_sink = _held(AdminCore.forget_sink)
    name_server_config = _held(AdminCore.name_server_config)
