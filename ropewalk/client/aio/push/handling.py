"""The handling of messages: workers that call the handler, and what becomes of what failed.

A message whose handler raised is given back to its broker, which delivers it again later; one that no broker takes
waits here. One that is handled for longer than `consume_timeout` is given back by a task that looks for such, while its
handler goes on. Whoever gives a message back has claimed it, so that it is given back once.

Messages that have to be handled in order stay with their queue's reader, and take one of `concurrency` places.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import anyio
import anyio.lowlevel

from ropewalk.client.aio.handler import HandlerCaller, OnError, call_hook
from ropewalk.client.aio.push.member import Member, queue_fields
from ropewalk.client.aio.queue_reader import QueueReader
from ropewalk.client.aio.worker_queue import TURN_S, WorkerQueue
from ropewalk.client.core.consume.queue_cache import QueueCache
from ropewalk.client.core.consume.received import ReceivedMessage, RetryLater
from ropewalk.client.core.consume.skipped import Skipped
from ropewalk.client.core.ids import default_unique_keys
from ropewalk.client.core.tracing.records import ConsumeCode
from ropewalk.client.machine import clock, now_ms
from ropewalk.errors import RopewalkError

Arrival = tuple[QueueReader, QueueCache, ReceivedMessage]

GIVE_BACK_PAUSE_S = 5.0
"""How long a failed message waits here when no broker takes it back."""
EXPIRE_LOOK_S = 60.0
EXPIRED_LEVEL = 3
"""The delay level (10 s) after which a message comes again whose handler took too long, as in the official clients."""


class Handling:
    """Calls the handler of a member for all that its readers bring."""

    def __init__(self, member: Member, handler: HandlerCaller, on_error: OnError) -> None:
        self._member = member
        self._handler = handler
        self._on_error = on_error
        self._request_ids = default_unique_keys()
        """Names of calls, by which the two trace records of each belong together."""
        self._call = handler.call if member.trace is None else self._call_traced

    def start(self) -> None:
        """Begin to work, in the running event loop."""
        options = self._member.options
        self._in_order = anyio.CapacityLimiter(options.concurrency)
        self._handler.open(options.concurrency)
        self._arrivals = WorkerQueue[Arrival]()

    def start_workers(self) -> None:
        """Start the tasks that handle messages in any order, if the program wants that."""
        options = self._member.options
        if options.orderly:
            return
        for _ in range(options.concurrency):
            self._member.start(self._work)
        if options.consume_timeout < math.inf:
            self._member.start(self._expire_forever)

    def hand_over(self, reader: QueueReader, cache: QueueCache, messages: Sequence[ReceivedMessage]) -> None:
        if not self._member.options.orderly:
            self._arrivals.put([(reader, cache, message) for message in messages])

    async def _work(self) -> None:
        # HOT: the clock is looked at once a message, and nothing is waited for that is there.
        arrivals = self._arrivals
        now = clock()
        turn_ends = now + TURN_S
        while True:
            arrival = arrivals.get_nowait()
            if arrival is None:
                arrival = await arrivals.get()
                now = clock()
            reader, cache, message = arrival
            if not reader.begin(cache, message, now):
                continue
            began, finished, ours = now, False, True
            try:
                failure = await self._call(reader.attempt_of(message))
                now = clock()
                reader.stats.handled(now, now - began, ok=failure is None)
                if failure is None:
                    finished = True
                elif ours := reader.claim(message):
                    level = failure.delay_level if isinstance(failure, RetryLater) else 0
                    finished = await self._give_back(reader, message, level)
            finally:
                reader.end(cache, message, now, finished=finished)
                if not finished and ours:
                    self._member.tasks.start_soon(self._again, reader, cache, message)
            if now > turn_ends:
                await anyio.lowlevel.checkpoint()
                now = clock()
                turn_ends = now + TURN_S

    async def _again(self, reader: QueueReader, cache: QueueCache, message: ReceivedMessage) -> None:
        await anyio.sleep(GIVE_BACK_PAUSE_S)
        if not reader.released and not cache.dropped:
            self.hand_over(reader, cache, [message])

    async def _give_back(self, reader: QueueReader, message: ReceivedMessage, level: int) -> bool:
        """Let the group have a claimed message later. False if no broker took it."""
        where = queue_fields(reader.queue)
        try:
            if self._member.options.broadcasting:
                offset = message.queue_offset
                self._member.skip(Skipped(reader.queue, offset, offset + 1, "failed"))
            else:
                await self._member.links.drive(
                    self._member.core.send_back(message, level, self._member.options.max_retries)
                )
                self._member.troubles.ended(("give back", reader.queue), "message given back", **where)
        except RopewalkError as exc:
            reader.failed_again(message)
            self._member.troubles.began(("give back", reader.queue), exc, "message not given back", **where)
            return False
        finally:
            reader.unclaim(message)
        return True

    async def _expire_forever(self) -> None:
        """Give back what handlers have been at for too long: one that hangs must not hold up its queue's progress."""
        limit = self._member.options.consume_timeout
        while True:
            await anyio.sleep(min(limit / 10, EXPIRE_LOOK_S))
            for reader in list(self._member.readers.values()):
                for cache, message in reader.overdue(clock() - limit):
                    self._member.tasks.start_soon(self._expire, reader, cache, message)

    async def _expire(self, reader: QueueReader, cache: QueueCache, message: ReceivedMessage) -> None:
        if await self._give_back(reader, message, EXPIRED_LEVEL):
            reader.finish(cache, message)
            limit = self._member.options.consume_timeout
            late = TimeoutError(f"its handler has been at it for over {limit:g} s: given back")
            call_hook(self._on_error, message, late)
        elif not reader.is_in_hand(message) and cache.holds(message):
            self._member.tasks.start_soon(
                self._again, reader, cache, message
            )  # failed meanwhile, and left to us

    async def work_in_order(self, reader: QueueReader) -> None:
        async def handle(message: ReceivedMessage) -> bool:
            async with self._in_order:
                return await self.call(message) is None

        async def give_up(message: ReceivedMessage) -> bool:
            if self._member.options.broadcasting:
                self._member.skip(
                    Skipped(reader.queue, message.queue_offset, message.queue_offset + 1, "failed")
                )
                return True
            if (
                self._member.options.max_retries < 0
                or message.reconsume_times < self._member.options.max_retries
            ):
                return False
            try:
                await self._member.links.drive(
                    self._member.core.resend(message, self._member.options.max_retries)
                )
            except RopewalkError as exc:
                self._member.troubles.began(
                    ("give back", reader.queue), exc, "message not given back", **queue_fields(reader.queue)
                )
                return False
            return True

        await reader.handle_in_order(handle, pause_s=self._member.options.order_pause, give_up=give_up)

    async def call(self, message: ReceivedMessage) -> Exception | None:
        """Call the handler, and return its exception or None."""
        began = clock()
        failure = await self._call(message)
        stats = self._member.stats_of(message.source.topic)
        now = clock()
        stats.handled(now, now - began, ok=failure is None)
        return failure

    async def _call_traced(self, message: ReceivedMessage) -> Exception | None:
        """Call the handler between two trace records. One whose handler does not come back has no second."""
        trace = self._member.trace
        assert trace is not None
        request_id, began = self._request_ids.next(), clock()
        trace.record_delivery(message, request_id, now_ms())
        failure = await self._handler.call(message)
        code = ConsumeCode.SUCCESS
        if failure is not None:
            code = ConsumeCode.FAILED if isinstance(failure, RetryLater) else ConsumeCode.EXCEPTION
        trace.record_consumption(message, request_id, now_ms(), round((clock() - began) * 1000), code)
        return failure
