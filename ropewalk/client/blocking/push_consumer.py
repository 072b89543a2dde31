"""`PushConsumer`: a member of a group for programs without an event loop.

    with PushConsumer("billing", {"orders": "*"}, handle, "127.0.0.1:9876"):
        ...

It is `AsyncPushConsumer`, whose docstring has the rules, run by an event loop in a thread of its own: heartbeats and
pulls have to go on whatever the program does. The handler is a plain function and is called in worker threads, up to
`concurrency` at a time. Leaving the block waits for those that are at work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Never

from ropewalk.client.aio.handler import OnError, log_failure
from ropewalk.client.aio.push.options import PushOptions
from ropewalk.client.aio.push_consumer import AsyncPushConsumer
from ropewalk.client.blocking.loop_thread import LoopClient
from ropewalk.client.core.consume.consume_from import ConsumeFrom
from ropewalk.client.core.consume.received import ReceivedMessage, TopicQueue
from ropewalk.client.core.consume.skipped import OnSkipped
from ropewalk.client.core.options import make_options
from ropewalk.client.core.produce.bodies import BODY_BYTES_MAX
from ropewalk.client.stop_signals import StopSignals
from ropewalk.format.names import TRACE_TOPIC

LOOK_S = 0.5
"""How often `run` looks whether consumption has ended by itself."""


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
        handler: called with every message; what it raises gives the message back, what it returns means nothing.
        name_servers: as in "host:port;host:port"; ROPEWALK_NAMESRV_ADDR or NAMESRV_ADDR if absent, else a local one.
        client_id: the name of this member; one that no other client has, if absent.
        on_error: called in the consumer's own thread with a message and what its handler raised; logs it by default.
        on_skipped: called in the consumer's own thread where messages are passed over.
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
        options = make_options(PushOptions, locals(), unknown)
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
                **asdict(options),
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

    def run(self) -> None:
        """Consume until SIGTERM or Ctrl-C, then close as `close` does. A whole program, in the main thread.

        A second signal does what it would do without this: it ends the program at once. Raises what `start` raises, and
        what ended consumption by itself.
        """
        with StopSignals() as signals:
            if self._thread is None:
                self.start()
            while not signals.wait(LOOK_S) and not self.closed:
                pass
        self.close()
