"""`AsyncTransactionProducer`: messages that consumers see when a local transaction has succeeded, and never else.

    async def on_check(message: ReceivedMessage) -> Outcome:
        return Outcome.COMMIT if await is_paid(message.keys[0]) else Outcome.ROLLBACK

    async with AsyncTransactionProducer(on_check, "127.0.0.1:9876", group="shop", topics=["orders"]) as producer:
        async with producer.transaction("orders", Message(b"one", keys="7")) as transaction:
            await pay(order)

The message is stored when the block begins, and delivered when it ends; an exception rolls it back. When the broker
hears of no end, because this program died or the network did, it asks any producer of the group: `on_check` tells what
became of the local transaction, from what that left behind (a row in a database, found by `message.keys`). So it has
to work in a process that was started since. `Outcome.UNKNOWN`, or an exception, has the broker ask again later, some
fifteen times by default.

Everything else is as with `AsyncProducer`. A half message is not sent again after an unknown outcome: the broker would
ask about both.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict
from typing import Never

import anyio
from anyio.abc import TaskGroup

from ropewalk.client.aio.links import AsyncLinks
from ropewalk.client.aio.producer import AsyncProducer
from ropewalk.client.aio.threads import in_thread
from ropewalk.client.core.consume.received import ReceivedMessage
from ropewalk.client.core.messages import Message
from ropewalk.client.core.options import check_hook, make_options
from ropewalk.client.core.produce.bodies import COMPRESS_OVER
from ropewalk.client.core.produce.options import ProducerOptions
from ropewalk.client.core.produce.sendable import as_message
from ropewalk.client.core.produce.transacting import (
    Check,
    Outcome,
    Transaction,
    TransactionCore,
    check_of,
    require_outcome,
    set_outcome,
)
from ropewalk.client.core.routes import DEFAULT_TOPIC, Queue
from ropewalk.client.log import logger
from ropewalk.codes import RequestCode
from ropewalk.errors import RopewalkError
from ropewalk.format.names import TRACE_TOPIC
from ropewalk.format.remoting import Command

__all__ = ["AsyncTransactionProducer", "OnCheck", "OnCheckAsync"]

ANNOUNCE_S = 10.0
"""How often brokers hear of this producer. One that begins anew can ask no sooner."""
CHECKS_MAX = 1_000
"""Checks that wait for `on_check`; further ones are dropped, and come again."""
CONCURRENCY = 8
"""Checks that `on_check` is asked at a time."""

OnCheck = Callable[[ReceivedMessage], Outcome]
"""Tells what became of the local transaction of a message. Called in worker threads."""
OnCheckAsync = Callable[[ReceivedMessage], Awaitable[Outcome]]


class AsyncTransactionProducer(AsyncProducer):
    """A transactional producer for trio and asyncio programs. Use it as `async with`, or `start` and `close` it."""

    def __init__(
        self,
        on_check: OnCheck | OnCheckAsync,
        name_servers: str | None = None,
        *,
        group: str = "",
        topics: Sequence[str] = (),
        client_id: str | None = None,
        timeout: float = 3.0,
        retries: int = 0,
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

        on_check: called with a message whose outcome the broker asks for; returns an `Outcome`. A coroutine
            function, or a plain one.
        name_servers: as in "host:port;host:port"; ROPEWALK_NAMESRV_ADDR or NAMESRV_ADDR if absent, else a local one.
        group: the producer group; brokers ask any of its members.
        topics: those whose brokers may ask from the start, also about halves of an earlier process.
        client_id: the name of this client at brokers; one that no other client has, if absent.
        timeout: for a send with all its attempts.
        retries: attempts after the first, where the outcome of one is unknown or a broker cannot. With more than 0 a
            half message may be stored twice, and the broker asks about both.
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

        Raises `ValueError` without a group, `BadAddress` when the list cannot be read, `LocalProtocolError` for a group
        that cannot be one, `TypeError` and `ValueError` for options that mean nothing.
        """
        options = make_options(ProducerOptions, locals(), unknown)
        if not group:
            raise ValueError("a transactional producer needs a group of its own: brokers ask its members")
        check_hook("on_check", on_check, "a message")
        if isinstance(topics, str):
            raise TypeError(f"topics are several, as in [{topics!r}]")
        super().__init__(name_servers, client_id=client_id, **asdict(options))
        self._on_check = on_check
        self._topics = dict.fromkeys((*topics, DEFAULT_TOPIC))
        self._transactions = TransactionCore(self._core)
        self._checks: set[str] = set()
        """Transactions whose checks are at work."""
        self._limit: anyio.CapacityLimiter
        self._threads: anyio.CapacityLimiter
        self._tasks: TaskGroup | None = None

    async def __aenter__(self) -> AsyncTransactionProducer:
        await self.start()
        return self

    def transaction(
        self,
        topic: str,
        message: Message | bytes,
        *,
        queue: Queue | None = None,
        timeout: float | None = None,
    ) -> AbstractAsyncContextManager[Transaction]:
        """Store a message that is delivered when the block ends well, and never when it raises an exception.

        Entering raises as `send`. A block that is cancelled tells the broker nothing, and neither does one that called
        `leave`: then `on_check` decides. An end that the broker did not confirm is no exception either; see
        `Transaction.confirmed`.
        """
        return self._block(topic, as_message(message), queue, timeout)

    @asynccontextmanager
    async def _block(
        self, topic: str, message: Message, queue: Queue | None, timeout: float | None
    ) -> AsyncIterator[Transaction]:
        transaction = await self.begin(topic, message, queue=queue, timeout=timeout)
        try:
            yield transaction
        except Exception:
            transaction.rollback()
            await self.end(transaction)
            raise
        await self.end(transaction)

    async def send_in_transaction(
        self,
        topic: str,
        message: Message | bytes,
        local: Callable[[Message], Outcome | Awaitable[Outcome]],
        *,
        queue: Queue | None = None,
        timeout: float | None = None,
    ) -> Transaction:
        """Store a message, carry out `local`, and commit, roll back or leave the transaction as that says.

        An exception of `local` rolls back and is raised. One that returns no `Outcome` leaves the transaction to
        `on_check`, and raises `TypeError`. Raises as `send` when the message was not stored: `local` has
        not been called then.
        """
        check_hook("local", local, "a message")
        async with self.transaction(topic, message, queue=queue, timeout=timeout) as transaction:
            outcome = local(transaction.message)
            outcome = await outcome if inspect.isawaitable(outcome) else outcome
            set_outcome(transaction, outcome)
        require_outcome(outcome)
        return transaction

    async def begin(
        self,
        topic: str,
        message: Message | bytes,
        *,
        queue: Queue | None = None,
        timeout: float | None = None,
    ) -> Transaction:
        """Store a half message, for programs that `end` it elsewhere. Raises as `send`."""
        steps = self._transactions.begin(topic, as_message(message), queue=queue, timeout=timeout)
        transaction = await self._open_links.drive(steps)
        self._topics[topic] = None
        return transaction

    async def end(self, transaction: Transaction) -> None:
        """Tell the broker `transaction.outcome`. Once; what goes wrong is `transaction.problem`."""
        require_outcome(transaction.outcome)
        await self._open_links.drive(self._transactions.end(transaction))
        if transaction.problem is not None:
            logger().warning(
                "a transaction's end is not confirmed; a check will ask",
                transaction=transaction.id,
                reason=str(transaction.problem),
            )

    # Inside

    @asynccontextmanager
    async def _run(self) -> AsyncIterator[None]:
        self._limit = anyio.CapacityLimiter(CONCURRENCY)
        self._threads = anyio.CapacityLimiter(CONCURRENCY)
        failure: Exception | None = None
        async with super()._run():
            async with anyio.create_task_group() as self._tasks:
                self._tasks.start_soon(self._announce_forever, await self._announced())
                try:
                    yield
                except Exception as exc:
                    failure = exc  # kept out of the task group, which would wrap it
                self._tasks.cancel_scope.cancel()
            self._tasks = None
            if failure is not None:
                raise failure

    async def _announced(self) -> AsyncLinks:
        """Announce the group, and return the links to do so with again."""
        links = self._links
        assert links is not None, "open from the first moment to the last"
        await links.drive(self._transactions.announce(tuple(self._topics)))
        return links

    async def _announce_forever(self, links: AsyncLinks) -> None:
        while True:
            await anyio.sleep(ANNOUNCE_S)
            await links.drive(self._transactions.announce(tuple(self._topics)))

    def _on_request(self, request: Command) -> Command | None:
        if request.code != RequestCode.CHECK_TRANSACTION_STATE:
            return super()._on_request(request)
        try:
            check = check_of(request)
        except RopewalkError as exc:
            logger().warning("a check of a transaction is dropped", reason=str(exc))
            return None
        transaction = check.message.message_id
        if self._tasks is not None and transaction not in self._checks and len(self._checks) < CHECKS_MAX:
            self._checks.add(transaction)
            self._tasks.start_soon(self._answer, check)
        return None

    async def _answer(self, check: Check) -> None:
        try:
            async with self._limit:
                outcome = await self._ask_program(check.message)
            await self._open_links.drive(self._transactions.answer(check, outcome))
        except RopewalkError as exc:
            logger().warning(
                "a check of a transaction is not answered",
                transaction=check.message.message_id,
                reason=str(exc),
            )
        finally:
            self._checks.discard(check.message.message_id)

    async def _ask_program(self, message: ReceivedMessage) -> Outcome:
        """Return what `on_check` says; its failure is no answer."""
        try:
            if inspect.iscoroutinefunction(self._on_check):
                outcome = await self._on_check(message)
            else:
                (outcome,) = await in_thread(lambda: (self._on_check(message),), self._threads)
                if inspect.isawaitable(outcome):
                    outcome = await outcome
            return Outcome(outcome)
        except Exception as exc:
            logger().error("on_check failed", transaction=message.message_id, exc_info=exc)
            return Outcome.UNKNOWN
