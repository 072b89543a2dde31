"""The reader of one queue of a push consumer: reads ahead, hands messages on, keeps the progress.

A reader lives from the moment a queue is ours until it is *released*. Release stops the reading at once and lets the
handler that is at work finish; what was read and not begun is forgotten, the next owner will read it again. Only then
is the progress committed, and for an orderly consumer the lock given up, in this order: whoever holds the lock next
must find everything that was done.

Where a queue is not what it was (retention overtook us, an administrator moved the group, its topic was deleted and
made again), reading goes on where nothing is missed that can still be had; what is passed over is told as `Skipped`.
Messages that were read before are still handled then, unless they have to be handled in order, or the administrator
chose.

Concurrent messages go to the consumer's workers in any number. Orderly ones are handled here, one at a time; one that
fails stays where it is and stops its queue until it has been handled or has failed too often.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import anyio

from ropewalk.client.aio.links import AsyncLinks
from ropewalk.client.core.backoff import STANDSTILL, Backoff, Standstill
from ropewalk.client.core.connection import Unreachable
from ropewalk.client.core.consume.consume_stats import ConsumeStats
from ropewalk.client.core.consume.consuming import ConsumerCore, is_missing_topic
from ropewalk.client.core.consume.queue_cache import QueueCache
from ropewalk.client.core.consume.received import ReceivedMessage, TopicQueue
from ropewalk.client.core.consume.skipped import OnSkipped, Skipped, SkipReason, gaps
from ropewalk.client.core.messages import PullStatus, has_moved
from ropewalk.client.core.produce.bodies import BODY_BYTES_MAX
from ropewalk.client.log import Troubles, logger
from ropewalk.client.machine import clock, now_ms
from ropewalk.codes import ResponseCode
from ropewalk.errors import OutcomeUnknown, RopewalkError

ERROR_PAUSE_S = 3.0
AWAY_PAUSE_S = 0.1
"""The first pause while no broker answers; each is twice as long as the one before, up to `ERROR_PAUSE_S`."""
FLOW_CONTROL_PAUSE_S = 0.02
LOCK_LASTS_S = 30.0
"""How long we trust a lock after the broker last confirmed it; the broker keeps it for twice as long."""


@dataclass(frozen=True, slots=True)
class ReadingOptions:
    """Options of reading ahead."""

    pull_count: int = 32
    """Messages per pull."""
    suspend: float = 15.0
    """Seconds a broker may hold a pull that finds nothing."""
    cached_count_max: int = 1000
    """Unfinished messages of one queue at which reading pauses."""
    cached_bytes_max: int = 100 * 1024 * 1024
    body_bytes_max: int = BODY_BYTES_MAX
    """Bytes that a compressed body may unpack to."""
    cached_span_max: int = 2000
    """Offsets between the first unfinished message and the last read one at which reading pauses."""
    orderly: bool = False
    """Whether the messages of a queue are handled one at a time, under a lock from the broker."""


class QueueReader:
    """A reader of one queue. `arrived` is called with the messages of every pull."""

    def __init__(
        self,
        core: ConsumerCore,
        links: AsyncLinks,
        queue: TopicQueue,
        begin: int,
        options: ReadingOptions,
        arrived: Callable[[QueueReader, QueueCache, Sequence[ReceivedMessage]], None],
        stats: ConsumeStats | None = None,
        *,
        on_skipped: OnSkipped = lambda skipped: None,
        troubles: Troubles | None = None,
    ) -> None:
        self.queue = queue
        self.stats = stats or ConsumeStats()
        self.options = options
        self.cache = self._new_cache(begin)
        self.committed = -1
        """The offset last recorded; -1 for none yet."""
        self.recording = anyio.Lock()
        """Held while progress is recorded: two requests at once may overtake each other in a broker of many threads."""
        self.locked_at = 0.0
        """When the broker last confirmed our lock; matters only to messages that are handled in order."""
        self.released = False
        self.pulled_ms = 0
        """When the last pull was answered, in milliseconds since 1970; 0 for never."""
        self.handled_at = 0.0
        """When a handler last came to its end, by `clock`; 0 for never."""
        self._core = core
        self._links = links
        self._arrived = arrived
        self._on_skipped = on_skipped
        self._troubles = troubles or Troubles()
        self._last: ReceivedMessage | None = None
        """The message that was read last: by it a queue is known again."""
        self.topic_is_gone = False
        """The broker knew no such topic: is it the same one when it is back?"""
        self._tries: dict[int, int] = {}
        """Failures of messages that no broker took back, by offset."""
        self._scope = anyio.CancelScope()
        self._pulling = anyio.CancelScope()
        self._changed = anyio.Event()
        self._away = Backoff(AWAY_PAUSE_S, ERROR_PAUSE_S)
        self._standstill = Standstill()
        self._waiting = 0
        """The number of tasks that wait for a change: at 0, a message wakes none."""
        self.at_work = 0
        self._in_hand: dict[int, tuple[QueueCache, ReceivedMessage, float]] = {}
        """Messages that concurrent handlers are at work on, by identity, and since when."""
        self._claimed: set[int] = set()
        """Messages being given back, by their worker or for their time limit, so that each is given back once."""

    # Reading ahead

    async def read(self) -> None:
        """Pull until released."""
        with self._scope:
            while not self.released:
                while self.cache.is_full:
                    await self._change()
                try:
                    with anyio.CancelScope() as self._pulling:
                        began = clock()
                        moved = await self._pull_once()
                        if rest_s := self._standstill.rest_s(clock() - began, moved=moved):
                            await anyio.sleep(rest_s)
                    self._away.reset()
                    if self._standstill.goes_on:
                        self._troubles.began(("pull", self.queue), STANDSTILL, "pull failed", **self._where)
                    else:
                        self._troubles.ended(("pull", self.queue), "pulls again", **self._where)
                except RopewalkError as exc:
                    if is_missing_topic(exc):
                        self.topic_is_gone = True
                        self._troubles.began(
                            ("topic", self.queue.topic),
                            "it waits until there is one",
                            "topic does not exist",
                            topic=self.queue.topic,
                        )
                        await anyio.sleep(ERROR_PAUSE_S)
                    elif exc.code in (
                        ResponseCode.SUBSCRIPTION_NOT_EXIST,
                        ResponseCode.SUBSCRIPTION_NOT_LATEST,
                    ):
                        # A broker that was restarted has forgotten us; it need not stay so until the next heartbeat.
                        await self._links.drive(self._core.heartbeats())
                        await anyio.sleep(self._away.next_s())
                    elif exc.code == ResponseCode.FLOW_CONTROL:
                        await anyio.sleep(FLOW_CONTROL_PAUSE_S)
                    elif isinstance(exc, (Unreachable, OutcomeUnknown)):
                        # Connections tell of it. A group that elects has another master within a second.
                        await anyio.sleep(self._away.next_s())
                    else:
                        self._troubles.began(("pull", self.queue), exc, "pull failed", **self._where)
                        await anyio.sleep(ERROR_PAUSE_S)
                except Exception as exc:
                    logger().error("pull failed", **self._where, reason=repr(exc), exc_info=exc)
                    await anyio.sleep(ERROR_PAUSE_S)

    @property
    def _where(self) -> dict[str, object]:
        return {
            "topic": self.queue.topic,
            "broker": self.queue.queue.broker_name,
            "queue": self.queue.queue.queue_id,
        }

    async def _pull_once(self) -> bool:
        """Pull, and take in what came. False if the answer does not move us on in the queue."""
        if self.topic_is_gone:
            await self._know_again()
        cache = self.cache
        # A broadcasting group has no progress at the broker. Where a lock is held, the next holder begins at what is
        # recorded: a pull that a busy broker gets to late must not take that back after the last word.
        committable = 0 if self._core.identity.broadcasting or self.options.orderly else cache.committable
        began = clock()
        result = await self._links.drive(
            self._core.pull(
                self.queue,
                cache.next_offset,
                self.options.pull_count,
                int(self.options.suspend * 1000),
                committable,
            )
        )
        self.pulled_ms = now_ms()
        self.stats.pulled(clock(), clock() - began, len(result.messages))
        if cache.dropped:
            return True  # sent elsewhere meanwhile
        if result.status is PullStatus.OFFSET_ILLEGAL:
            steps = self._core.relocate(self.queue, cache.next_offset, result, self._last)
            offset, reason = await self._links.drive(steps)
            if not cache.dropped:
                self._go_on_at(offset, reason, result.min_offset)
            return False
        begin = cache.next_offset
        cache.add(result.messages, result.next_offset)
        if len(result.messages) != result.next_offset - begin and not self._is_filtered:
            for gap in gaps(self.queue, begin, result.messages, result.next_offset):
                self._on_skipped(gap)
        if result.messages:
            self._last = result.messages[-1]
            self._arrived(self, cache, result.messages)
        self._notify()
        return has_moved(result.status, begin, result.next_offset)

    async def _know_again(self) -> None:
        """Find out whether the topic that is there now is the one that was."""
        last = self._last
        if last is not None and not await self._links.drive(self._core.is_same_queue(self.queue, last)):
            self._last = None
            self._go_on_at(0, "truncated", 0)
        self.topic_is_gone = False
        self._troubles.ended(("topic", self.queue.topic), "topic exists", topic=self.queue.topic)

    def _go_on_at(self, offset: int, reason: SkipReason, min_offset: int) -> None:
        """Read on elsewhere, and tell what is passed over by that."""
        cache = self.cache
        forgets = reason == "reset" or self.options.orderly
        cache.dropped = forgets  # else what was read before is still to be handled
        first = cache.committable if forgets else cache.next_offset
        if reason == "truncated":
            first = min_offset  # of another queue, or of what is left of this one
        self.cache = self._new_cache(offset)
        self._notify()
        if offset > first:
            self._on_skipped(Skipped(self.queue, first, offset, reason))

    @property
    def _is_filtered(self) -> bool:
        return self._core.subscription(self.queue.topic).is_filtered

    def seek(self, offset: int) -> None:
        """Drop the messages that were read, and go on at an offset that an administrator has chosen."""
        self._go_on_at(offset, "reset", 0)
        self._pulling.cancel()

    def _new_cache(self, begin: int) -> QueueCache:
        return QueueCache(
            begin,
            count_max=self.options.cached_count_max,
            size_max=self.options.cached_bytes_max,
            span_max=self.options.cached_span_max,
        )

    # Handling

    def begin(self, cache: QueueCache, message: ReceivedMessage, now: float) -> bool:
        """Record that a worker begins with a message. False if the queue is no longer ours to handle."""
        if self.released or cache.dropped:
            return False
        self.at_work += 1
        self._in_hand[id(message)] = cache, message, now
        return True

    def end(self, cache: QueueCache, message: ReceivedMessage, now: float, *, finished: bool) -> None:
        """Record that a worker is through with a message, which is finished unless it has to be handled again."""
        self.at_work -= 1
        self.handled_at = now
        del self._in_hand[id(message)]
        if finished:
            self.finish(cache, message)
        elif self._waiting:
            self._notify()

    def finish(self, cache: QueueCache, message: ReceivedMessage) -> None:
        """Finish a message, if it had not been given back before."""
        if not cache.dropped and cache.holds(message):
            cache.finish(message)
            if self._tries:
                self._tries.pop(message.queue_offset, None)
        if self._waiting:
            self._notify()

    def failed_again(self, message: ReceivedMessage) -> None:
        """Count a failure of a message that no broker took back."""
        self._tries[message.queue_offset] = self._tries.get(message.queue_offset, 0) + 1

    def attempt_of(self, message: ReceivedMessage) -> ReceivedMessage:
        """Return the message with all its tries counted, those that no broker knows of included."""
        tries = self._tries.get(message.queue_offset, 0) if self._tries else 0
        return message.tried_again(tries) if tries else message

    def is_in_hand(self, message: ReceivedMessage) -> bool:
        return id(message) in self._in_hand

    def overdue(self, began_before: float) -> list[tuple[QueueCache, ReceivedMessage]]:
        """Return the messages that handlers began before a time, each once: `claim`ed for the caller."""
        if self.released:
            return []
        return [
            (cache, message)
            for cache, message, began in list(self._in_hand.values())
            if began < began_before and cache.holds(message) and not cache.dropped and self.claim(message)
        ]

    def claim(self, message: ReceivedMessage) -> bool:
        """Reserve a message for giving it back. False if it is reserved already; the caller must `unclaim` it."""
        if id(message) in self._claimed:
            return False
        self._claimed.add(id(message))
        return True

    def unclaim(self, message: ReceivedMessage) -> None:
        self._claimed.discard(id(message))

    async def handle_in_order(
        self,
        handle: Callable[[ReceivedMessage], Awaitable[bool]],
        *,
        pause_s: float,
        give_up: Callable[[ReceivedMessage], Awaitable[bool]],
    ) -> None:
        """Handle messages one by one until released. `handle` says whether it went well; `give_up`, asked after
        a failure, whether the message is somebody else's problem now."""
        tries: dict[int, int] = {}
        while not self.released:
            cache = self.cache
            message = cache.first
            if message is None or clock() - self.locked_at > LOCK_LASTS_S:
                with anyio.move_on_after(1.0):
                    await self._change()
                continue
            if not self.begin(cache, message, clock()):
                continue
            finished = False
            try:
                again = tries.get(message.queue_offset, 0)
                attempt = message.tried_again(again) if again else message
                finished = await handle(attempt) or await give_up(attempt)
            finally:
                self.end(cache, message, clock(), finished=finished)
            if finished:
                tries.pop(message.queue_offset, None)
            else:
                tries[message.queue_offset] = again + 1
                with anyio.move_on_after(pause_s):
                    while not self.released:
                        await self._change()

    # The end

    def release(self) -> None:
        """Stop: read nothing more, begin nothing more."""
        self.released = True
        self._scope.cancel()
        self._notify()

    async def wait_idle(self) -> None:
        """Return once no handler is at work on this queue."""
        while self.at_work:
            await self._change()

    async def _change(self) -> None:
        """Return when something about this queue has changed."""
        self._waiting += 1
        try:
            await self._changed.wait()
        finally:
            self._waiting -= 1

    def _notify(self) -> None:
        if self._waiting:
            self._changed.set()
            self._changed = anyio.Event()
