"""`TransactionProducer`: transactional messages for programs without an event loop.

    def on_check(message: ReceivedMessage) -> Outcome:
        return Outcome.COMMIT if is_paid(message.keys[0]) else Outcome.ROLLBACK

    with TransactionProducer(on_check, "127.0.0.1:9876", group="shop", topics=["orders"]) as producer:
        with producer.transaction("orders", Message(b"one", keys="7")):
            pay(order)

It is `AsyncTransactionProducer`, whose docstring has the rules, run by an event loop in a thread of its own: checks
come at any time. `on_check` is called in worker threads, the block and `local` in the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from functools import partial
from typing import Never

from ropewalk.client.aio.transaction_producer import AsyncTransactionProducer, OnCheck
from ropewalk.client.blocking.loop_thread import LoopClient, LoopThread
from ropewalk.client.core.connection import NotOpen
from ropewalk.client.core.messages import Message, SendResult
from ropewalk.client.core.options import check_hook, make_options
from ropewalk.client.core.produce.bodies import COMPRESS_OVER
from ropewalk.client.core.produce.options import ProducerOptions
from ropewalk.client.core.produce.transacting import Outcome, Transaction, require_outcome, set_outcome
from ropewalk.client.core.routes import Queue
from ropewalk.format.names import TRACE_TOPIC

__all__ = ["TransactionProducer"]


class TransactionProducer(LoopClient[AsyncTransactionProducer]):
    """A transactional producer whose methods block. Use it as `with`, or `start` and `close` it."""

    def __init__(
        self,
        on_check: OnCheck,
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

        on_check: called with a message whose outcome the broker asks for; returns an `Outcome`. Called in worker
            threads.
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
        super().__init__(
            lambda own_id: AsyncTransactionProducer(
                on_check, name_servers, topics=topics, client_id=own_id, **asdict(options)
            ),
            client_id,
            "ropewalk-transactions",
        )

    def transaction(
        self,
        topic: str,
        message: Message | bytes,
        *,
        queue: Queue | None = None,
        timeout: float | None = None,
    ) -> AbstractContextManager[Transaction]:
        """Store a message that is delivered when the block ends well, and never when it raises an exception.

        Entering raises as `Producer.send`. A block that called `leave`, or is left by KeyboardInterrupt, tells the
        broker nothing: then `on_check` decides. An end that the broker did not confirm is no exception either; see
        `Transaction.confirmed`.
        """
        return self._block(topic, message, queue, timeout)

    @contextmanager
    def _block(
        self, topic: str, message: Message | bytes, queue: Queue | None, timeout: float | None
    ) -> Iterator[Transaction]:
        producer = self._client
        transaction = self._open.call(partial(producer.begin, topic, message, queue=queue, timeout=timeout))
        try:
            yield transaction
        except Exception:
            transaction.rollback()
            self._open.call(partial(producer.end, transaction))
            raise
        self._open.call(partial(producer.end, transaction))

    def send_in_transaction(
        self,
        topic: str,
        message: Message | bytes,
        local: Callable[[Message], Outcome],
        *,
        queue: Queue | None = None,
        timeout: float | None = None,
    ) -> Transaction:
        """Store a message, carry out `local`, and commit, roll back or leave the transaction as that says.

        An exception of `local` rolls back and is raised. One that returns no `Outcome` leaves the transaction to
        `on_check`, and raises `TypeError`. Raises as `Producer.send` when the message was not stored: `local` has not
        been called then.
        """
        check_hook("local", local, "a message")
        with self.transaction(topic, message, queue=queue, timeout=timeout) as transaction:
            outcome = local(transaction.message)
            set_outcome(transaction, outcome)
        require_outcome(outcome)
        return transaction

    def send(
        self,
        topic: str,
        message: Message | bytes,
        *,
        queue: Queue | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Send a message outside any transaction. Raises as `Producer.send`."""
        return self._open.call(partial(self._client.send, topic, message, queue=queue, timeout=timeout))

    @property
    def _open(self) -> LoopThread:
        if self._thread is None:
            raise NotOpen("the transactional producer is not started, or closed")
        return self._thread
