"""A member of a consumer group: the state that the parts of a push consumer share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
from anyio.abc import TaskGroup

from ropewalk.client.aio.handler import call_hook
from ropewalk.client.aio.links import AsyncLinks
from ropewalk.client.aio.push.options import PushOptions
from ropewalk.client.aio.queue_reader import QueueReader
from ropewalk.client.core.consume.consume_stats import ConsumeStats
from ropewalk.client.core.consume.consuming import ConsumerCore
from ropewalk.client.core.consume.received import TopicQueue
from ropewalk.client.core.consume.skipped import OnSkipped, Skipped
from ropewalk.client.core.tracing.trace_buffer import TraceBuffer
from ropewalk.client.log import Troubles, log_skipped, logger

RESTART_PAUSE_S = 3.0
"""How long a task of the consumer's own rests that failed, before it is begun again."""


class Member:
    """The state of a member. `links` and `tasks` are there from `open` on."""

    links: AsyncLinks
    tasks: TaskGroup

    def __init__(
        self,
        core: ConsumerCore,
        options: PushOptions,
        topics: tuple[str, ...],
        on_skipped: OnSkipped | None,
        trace: TraceBuffer | None = None,
    ) -> None:
        self.core = core
        self.options = options
        self.topics = topics
        self.trace = trace
        """The buffer of trace records; None for a consumer that leaves none."""
        self.troubles = Troubles()
        self.locks = options.orderly and not options.broadcasting
        """Whether a queue is read under a lock from its broker."""
        self.readers: dict[TopicQueue, QueueReader] = {}
        self.leaving: dict[TopicQueue, QueueReader] = {}
        """Readers of queues that are being given up. A queue is in one of the two at most."""
        self.stats: dict[str, ConsumeStats] = {}
        self.skipped = 0
        self._on_skipped = on_skipped

    @property
    def group(self) -> str:
        """Return the name of the group."""
        return self.core.identity.group

    @property
    def client_id(self) -> str:
        """Return the name of this member."""
        return self.core.identity.client_id

    @property
    def queues(self) -> tuple[TopicQueue, ...]:
        """Return the queues that are read at the moment, without those of the retry topic."""
        return tuple(sorted(queue for queue in self.readers if queue.topic in self.topics))

    def open(self, links: AsyncLinks, tasks: TaskGroup) -> None:
        """Be ready to talk and to start tasks."""
        self.links = links
        self.tasks = tasks

    def stats_of(self, topic: str) -> ConsumeStats:
        """Return the counts of a topic."""
        return self.stats.setdefault(topic, ConsumeStats())

    def skip(self, skipped: Skipped) -> None:
        """Count, log and report messages that are passed over."""
        self.skipped += skipped.count
        log_skipped(self.group, skipped)
        if self._on_skipped is not None:
            call_hook(self._on_skipped, skipped)

    def start(self, run: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """Start a task of the consumer's own. One that fails is told, and begun again."""
        self.tasks.start_soon(self._supervised, run, *arguments)

    async def _supervised(self, run: Callable[..., Awaitable[None]], *arguments: object) -> None:
        while True:
            try:
                await run(*arguments)
                return
            except Exception as exc:
                self.tell_failure(getattr(run, "__name__", repr(run)), exc)
            await anyio.sleep(RESTART_PAUSE_S)

    def tell_failure(self, task: str, exc: Exception) -> None:
        """Log an exception that ended something of the consumer's own, which will be begun again."""
        group = self.group
        logger().error("consumer task failed", group=group, task=task, reason=repr(exc), exc_info=exc)


def queue_fields(queue: TopicQueue) -> dict[str, object]:
    """Return the place of a queue, as fields of a log event."""
    return {"topic": queue.topic, "broker": queue.queue.broker_name, "queue": queue.queue.queue_id}
