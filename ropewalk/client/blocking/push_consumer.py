"""`PushConsumer`: a member of a group for programs without an event loop.

    with PushConsumer("billing", {"orders": "*"}, handle, "127.0.0.1:9876"):
        ...

It is `AsyncPushConsumer`, whose docstring has the rules, run by an event loop in a thread of its own: heartbeats and
pulls have to go on whatever the program does. The handler is a plain function and is called in worker threads, up to
`concurrency` at a time. Leaving the block waits for those that are at work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Unpack

from ropewalk.client.aio.handler import OnError, log_failure
from ropewalk.client.aio.push_consumer import AsyncPushConsumer, PushSettings
from ropewalk.client.blocking.loop_thread import LoopClient
from ropewalk.client.core.consume.received import ReceivedMessage, TopicQueue
from ropewalk.client.core.consume.skipped import OnSkipped


class PushConsumer(LoopClient[AsyncPushConsumer]):
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
        super().__init__(
            lambda own_id: AsyncPushConsumer(
                group,
                topics,
                handler,
                name_servers,
                sql=sql,
                client_id=own_id,
                on_error=on_error,
                on_skipped=on_skipped,
                **options,
            ),
            client_id,
            "ropewalk-push-consumer",
        )

    @property
    def queues(self) -> tuple[TopicQueue, ...]:
        """The queues that are ours at the moment, without those of the retry topic."""
        return self._client.queues

    @property
    def skipped(self) -> int:
        """Messages that were passed over without having been handled."""
        return self._client.skipped

    @property
    def failure(self) -> BaseException | None:
        """The error that ended consumption; None while it goes on, and if the program ended it."""
        return self._client.failure

    @property
    def closed(self) -> bool:
        """Tell whether consumption is over: by `close`, or by the error in `failure`."""
        return self._client.closed
