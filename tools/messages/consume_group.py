"""`ropewalk consume --group`: read topics as a member of a consumer group, and commit what was printed.

The command is an ordinary member: it takes its share of the queues beside the others, in whatever language they are,
and gives it back when it ends. A message counts as consumed once it is printed. Without `--follow` the command ends
when the group has consumed everything that was there when it began, whoever of its members did so.

After `--count` messages nothing more is taken on: the handler of the next message waits, unprinted, until the consumer
is cancelled, and so its message stays the group's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import anyio

from ropewalk.client.aio.admin import AsyncAdmin
from ropewalk.client.aio.push_consumer import AsyncPushConsumer
from ropewalk.client.core.connection import Unreachable
from ropewalk.client.core.consume.consume_from import ConsumeFrom
from ropewalk.client.core.consume.received import ReceivedMessage, TopicQueue
from ropewalk.errors import OutcomeUnknown, Refused, RopewalkError
from ropewalk.format.names import check_group
from tools.common.interrupts import Interrupts
from tools.common.output import OutputFailed, UsageError
from tools.messages.consume import Start

LOOK_S = 0.1
PROGRESS_S = 0.3
COMMIT_S = 0.2
"""How often progress is recorded: soon, because the end is judged by it."""
CACHED_MAX = 64
"""Messages held ahead in each queue: few, since others of the group may want them when we end."""


@dataclass(frozen=True, slots=True)
class GroupReading:
    """The topics to read, and the group to read them as."""

    group: str
    topics: Sequence[str]
    start: Start
    """Where queues begin that the group has never committed."""
    subscription: str = "*"
    orderly: bool = False
    follow: bool = False
    count_max: int | None = None
    sql: str | None = None
    """An expression over properties, in place of a subscription to tags."""

    def __post_init__(self) -> None:
        if (reason := check_group(self.group)) is not None:
            raise UsageError(f"--group: {reason}")
        if self.start.offset is not None:
            raise UsageError(
                "--from offset:N and --group do not go together; `ropewalk admin group reset` sends a group there"
            )

    @property
    def consume_from(self) -> ConsumeFrom:
        if self.start.timestamp_ms is not None:
            return self.start.timestamp_ms
        return self.start.place


def consume_as_group(
    name_server: str,
    timeout: float,
    reading: GroupReading,
    print_one: Callable[[ReceivedMessage], None],
    interrupts: Interrupts,
) -> int:
    """Print the messages of the queues that are assigned to this member of the group.

    Returns their count, at Ctrl-C too (`interrupts.requested` tells).
    """
    if reading.count_max == 0:
        return 0
    member = _Member(reading, print_one, interrupts)
    anyio.run(member.run, name_server, timeout, backend="trio")
    if member.failure is not None:
        raise member.failure
    return member.handled


class _Member:
    """One run of the command."""

    def __init__(
        self, reading: GroupReading, print_one: Callable[[ReceivedMessage], None], interrupts: Interrupts
    ) -> None:
        self._reading = reading
        self._print_one = print_one
        self._interrupts = interrupts
        self.handled = 0
        self.failure: Exception | None = None

    async def run(self, name_server: str, timeout: float) -> None:
        try:
            await self._consume(name_server, timeout)
        except (RopewalkError, OutputFailed) as exc:
            self.failure = exc  # told outside the event loop, as every error

    async def _consume(self, name_server: str, timeout: float) -> None:
        reading = self._reading
        async with AsyncAdmin(name_server, timeout=timeout) as admin:
            ends = {} if reading.follow else await self._ends(admin)
            with anyio.CancelScope() as scope:
                async with AsyncPushConsumer(
                    reading.group,
                    {} if reading.sql is not None else dict.fromkeys(reading.topics, reading.subscription),
                    self._handle,
                    name_server,
                    sql=dict.fromkeys(reading.topics, reading.sql) if reading.sql is not None else None,
                    consume_from=reading.consume_from,
                    orderly=reading.orderly,
                    concurrency=1,
                    commit_interval=COMMIT_S,
                    cached_count_max=CACHED_MAX,
                    pull_count=CACHED_MAX,
                ):
                    await self._until_done(admin, ends)
                    scope.cancel()

    async def _ends(self, admin: AsyncAdmin) -> dict[TopicQueue, int]:
        """Where every queue ends now."""
        ends: dict[TopicQueue, int] = {}
        for topic in self._reading.topics:
            route = await admin.topic_route(topic)
            readable = set(route.read_queues())
            for one in (await admin.topic_status(topic)).queues:
                if one.queue in readable:
                    ends[TopicQueue(topic, one.queue)] = one.max_offset
        return ends

    async def _until_done(self, admin: AsyncAdmin, ends: dict[TopicQueue, int]) -> None:
        next_look = anyio.current_time()
        while not (self._interrupts.requested or self.failure is not None or self._has_enough):
            await anyio.sleep(LOOK_S)
            if not self._reading.follow and anyio.current_time() >= next_look:
                if await self._has_read(admin, ends):
                    return
                next_look = anyio.current_time() + PROGRESS_S

    @property
    def _has_enough(self) -> bool:
        return self._reading.count_max is not None and self.handled >= self._reading.count_max

    async def _has_read(self, admin: AsyncAdmin, ends: dict[TopicQueue, int]) -> bool:
        """Whether the group has committed up to the ends. A broker that is away is asked again."""
        try:
            for source, end in ends.items():
                if end and (await admin.committed_offset(self._reading.group, source) or 0) < end:
                    return False
        except (Unreachable, OutcomeUnknown, Refused):
            return False
        return True

    async def _handle(self, message: ReceivedMessage) -> None:
        if self._has_enough or self._interrupts.requested or self.failure is not None:
            await anyio.sleep_forever()
        try:
            self._print_one(message)
            if self._reading.follow:
                sys.stdout.flush()
        except OutputFailed as exc:
            self.failure = exc
            await anyio.sleep_forever()
        self.handled += 1
