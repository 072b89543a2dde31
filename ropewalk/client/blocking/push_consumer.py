"""`PushConsumer`: a member of a group for programs without an event loop.

    with PushConsumer("billing", {"orders": "*"}, handle, "127.0.0.1:9876"):
        ...

It is `AsyncPushConsumer`, whose docstring has the rules, run by an event loop in a thread of its own: heartbeats and
pulls have to go on whatever the program does. The handler is a plain function and is called in worker threads, up to
`concurrency` at a time. Leaving the block waits for those that are at work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Unpack

from ropewalk.client.aio.handler import OnError, log_failure
from ropewalk.client.aio.push_consumer import AsyncPushConsumer, PushSettings
from ropewalk.client.blocking.loop_thread import LoopThread
from ropewalk.client.core.consume.received import ReceivedMessage, TopicQueue
from ropewalk.client.core.consume.skipped import OnSkipped
from ropewalk.client.fork import renew_after_fork
from ropewalk.client.machine import own_client_id


class PushConsumer:
    """A member of a consumer group. Use it as `with`, or `start` and `close` it."""

    def __init__(
        self,
        group: str,
        topics: Mapping[str, str],
        handler: Callable[[ReceivedMessage], None],
        name_servers: str | None = None,
        *,
        sql: Mapping[str, str] | None = None,
        client_id: str | None = None,
        on_error: OnError = log_failure,
        on_skipped: OnSkipped | None = None,
        **options: Unpack[PushSettings],
    ) -> None:
        """Make it as `AsyncPushConsumer`, without connecting."""
        self._given_id = client_id
        self._make = partial(
            AsyncPushConsumer,
            group,
            topics,
            handler,
            name_servers,
            sql=sql,
            on_error=on_error,
            on_skipped=on_skipped,
            **options,
        )
        self._consumer = self._make(client_id=client_id)
        self._thread: LoopThread | None = None
        renew_after_fork(self)

    @property
    def client_id(self) -> str:
        return self._consumer.client_id

    @property
    def queues(self) -> tuple[TopicQueue, ...]:
        """The queues that are ours at the moment, without those of the retry topic."""
        return self._consumer.queues

    @property
    def skipped(self) -> int:
        """Messages that were passed over without having been handled."""
        return self._consumer.skipped

    @property
    def failure(self) -> BaseException | None:
        """The error that ended consumption; None while it goes on, and if the program ended it."""
        return self._consumer.failure

    @property
    def closed(self) -> bool:
        """Tell whether consumption is over: by `close`, or by the error in `failure`."""
        return self._consumer.closed

    def start(self) -> None:
        """Join the group; handlers are called from now on.

        Raises `Unreachable` when there is no name server, and `NotOpen` the second time.
        """
        thread = LoopThread(self._consumer, "ropewalk-push-consumer")
        thread.start()
        self._thread = thread

    def close(self) -> None:
        """Let the handlers that are at work finish, record the progress and leave. Closing twice is harmless."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.close()

    def renew(self) -> None:
        """Begin anew in a child process: not started, and another client. The parent goes on consuming."""
        self._thread = None
        self._consumer = self._make(client_id=own_client_id(self._given_id))

    def __enter__(self) -> PushConsumer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
