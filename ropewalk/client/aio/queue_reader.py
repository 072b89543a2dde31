"""The reader of one queue of a push consumer: reads ahead, hands messages on, keeps the progress.

A reader lives from the moment a queue is ours until it is *released*. Release stops the reading at once and lets the
handler that is at work finish; what was read and not begun is forgotten, the next owner will read it again. Only then
is the progress committed, and for an orderly consumer the lock given up, in this order: whoever holds the lock next
must find everything that was done.

Concurrent messages go to the consumer's workers in any number. Orderly ones are handled here, one at a time; one that
fails stays where it is and stops its queue until it has been handled or has failed too often.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import anyio

from ropewalk.client.aio.links import AsyncLinks
from ropewalk.client.core.consume.consume_stats import ConsumeStats
from ropewalk.client.core.consume.consuming import ConsumerCore
from ropewalk.client.core.consume.queue_cache import QueueCache
from ropewalk.client.core.consume.received import ReceivedMessage, TopicQueue
from ropewalk.client.core.messages import PullStatus
from ropewalk.client.machine import clock, now_ms
from ropewalk.codes import ResponseCode
from ropewalk.errors import RopewalkError

ERROR_PAUSE_S = 3.0
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
    ) -> None:
        self.queue = queue
        self.stats = stats or ConsumeStats()
        self.options = options
        self.cache = self._new_cache(begin)
        self.committed = -1
        """What was last recorded; -1 for nothing yet."""
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
        self._scope = anyio.CancelScope()
        self._pulling = anyio.CancelScope()
        self._changed = anyio.Event()
        self._waiting = 0
        """Who waits for a change: where nobody does, none need be told, and most messages change nothing."""
        self._at_work = 0
        self._in_hand: dict[int, tuple[QueueCache, ReceivedMessage, float]] = {}
        """What concurrent handlers are at work on, by identity, and since when."""
        self._claimed: set[int] = set()
        """What somebody is giving back, so that nobody else does: its worker, or who found that it takes too long."""

    # Reading ahead

    async def read(self) -> None:
        """Pull until released."""
        with self._scope:
            while not self.released:
                while self.cache.is_full:
                    await self._change()
                try:
                    with anyio.CancelScope() as self._pulling:
                        await self._pull_once()
                except RopewalkError as exc:
                    if exc.code in (
                        ResponseCode.SUBSCRIPTION_NOT_EXIST,
                        ResponseCode.SUBSCRIPTION_NOT_LATEST,
                    ):
                        # A broker that was restarted has forgotten us; it need not stay so until the next heartbeat.
                        await self._links.drive(self._core.heartbeats())
                        await anyio.sleep(FLOW_CONTROL_PAUSE_S)
                    elif exc.code == ResponseCode.FLOW_CONTROL:
                        await anyio.sleep(FLOW_CONTROL_PAUSE_S)
                    else:
                        await anyio.sleep(ERROR_PAUSE_S)

    async def _pull_once(self) -> None:
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
            return  # sent elsewhere meanwhile
        if result.status is PullStatus.OFFSET_ILLEGAL:
            # Out of what there is, or set back by an administrator: begin again where the broker says.
            cache.dropped = True
            self.cache = self._new_cache(result.next_offset)
            self._notify()
            return
        cache.add(result.messages, result.next_offset)
        if result.messages:
            self._arrived(self, cache, result.messages)
        self._notify()

    def seek(self, offset: int) -> None:
        """Forget what was read, and go on at an offset that an administrator has chosen."""
        self.cache.dropped = True
        self.cache = self._new_cache(offset)
        self._pulling.cancel()
        self._notify()

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
        self._at_work += 1
        self._in_hand[id(message)] = cache, message, now
        return True

    def end(self, cache: QueueCache, message: ReceivedMessage, now: float, *, finished: bool) -> None:
        """Record that a worker is through with a message, which is finished unless it has to be handled again."""
        self._at_work -= 1
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
        if self._waiting:
            self._notify()

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
        while self._at_work:
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
