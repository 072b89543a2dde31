"""`AsyncPushConsumer`: a member of a group, whose handler is called for every message of its share of the queues.

    async def handle(message: ReceivedMessage) -> None: ...

    async with AsyncPushConsumer("billing", {"orders": "*"}, handle, "127.0.0.1:9876"):
        await anyio.sleep_forever()

Runs under trio and asyncio. Handlers are coroutine functions, or plain functions, which run in worker threads. A
message is delivered at least once: its handler may see it again after a crash, a rebalance or a failure.

A handler that raises, whatever it raises, gives its message back: it comes again after 10 s, 30 s, 1 min, … (or as
`RetryLater` says), and after `max_retries` it is a dead letter in `%DLQ%<group>`. One whose handler takes longer than
`consume_timeout` is given back too, and `on_error` hears of it as a `TimeoutError`. With `orderly=True` the messages of
a queue are handled one after the other by one member at a time; a failed one is tried again in place after
`order_pause` seconds. With `broadcasting=True` every member gets every message, a failed one is dropped, and progress
is kept in `offsets_folder`.

Members come and go; queues are divided anew every `rebalance_interval`, and at once when a broker says so, by the rule
of the official clients, so that a group may have members in several languages. Progress is recorded with every pull,
every `commit_interval`, when a queue is given up, and at the end. Leaving the block waits for the handlers that are at
work, for at most `close_timeout` seconds; a cancellation cancels them. Both record what was finished.

Nothing ends consumption unheard. What a handler, a hook or a disk does is told to the log (`ropewalk.client.log`), and
it goes on; what does end it is in `failure`, in the log, and raised by `close`. What is passed over without having been
handled is told to `on_skipped`, counted in `skipped`, and logged (`skipped.py` has the reasons).
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TypedDict, Unpack

import anyio
import anyio.lowlevel
import anyio.to_thread
from anyio.abc import TaskGroup

from ropewalk.client.aio.handler import Handler, HandlerCaller, OnError, call_hook, log_failure
from ropewalk.client.aio.lifespan import Lifespan
from ropewalk.client.aio.links import AsyncLinks
from ropewalk.client.aio.offset_file import load_offsets, save_offsets
from ropewalk.client.aio.queue_reader import QueueReader, ReadingOptions
from ropewalk.client.aio.worker_queue import TURN_S, WorkerQueue
from ropewalk.client.core.admin_requests import (
    QueueState,
    RequestFailed,
    answered,
    handled_document,
    message_to_handle,
    offsets_document,
    require_group,
    reset_offsets,
    running_document,
)
from ropewalk.client.core.connection import Unreachable, refuse_peer_request
from ropewalk.client.core.consume.consume_from import ConsumeFrom
from ropewalk.client.core.consume.consume_stats import ConsumeStats
from ropewalk.client.core.consume.consuming import ConsumerIdentity, is_missing_topic
from ropewalk.client.core.consume.membership import HEARTBEAT_S, Subscription
from ropewalk.client.core.consume.queue_cache import QueueCache
from ropewalk.client.core.consume.rebalance import allocate_queues
from ropewalk.client.core.consume.received import ReceivedMessage, RetryLater, TopicQueue
from ropewalk.client.core.consume.skipped import OnSkipped, Skipped
from ropewalk.client.core.options import make_options
from ropewalk.client.fork import renew_after_fork
from ropewalk.client.log import Troubles, log_skipped, logger
from ropewalk.client.machine import (
    clock,
    name_servers_or_default,
    new_client_id,
    new_consumer_core,
    now_ms,
    own_client_id,
    subscriptions,
)
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import OutcomeUnknown, Refused, RopewalkError
from ropewalk.format.headers import ConsumerStatusHeader, RelayHeader, decode_header
from ropewalk.format.remoting import Command

_Arrival = tuple[QueueReader, QueueCache, ReceivedMessage]

RELOCK_S = 20.0
UNBALANCED_PAUSE_S = 1.0
GIVE_BACK_PAUSE_S = 5.0
"""How long a failed message waits here when no broker takes it back."""
UNREGISTER_S = 3.0
EXPIRE_LOOK_S = 60.0
RESTART_PAUSE_S = 3.0
"""How long a task of the consumer's own rests that failed, before it is begun again."""
EXPIRED_LEVEL = 3
"""The delay level (10 s) after which a message comes again whose handler took too long, as in the official clients."""


@dataclass(frozen=True, slots=True)
class PushOptions(ReadingOptions):
    """Options of a push consumer. Times are in seconds."""

    consume_from: ConsumeFrom = "latest"
    """Where a queue begins that the group never committed: "earliest", "latest", a datetime, or milliseconds."""
    broadcasting: bool = False
    offsets_folder: str | Path | None = None
    """Where a broadcasting consumer keeps its progress; without it, it begins anew each time."""
    concurrency: int = 20
    """Handlers at work at the same time."""
    max_retries: int = 16
    """Failures after which a message is a dead letter; -1 for an orderly consumer that never gives up."""
    consume_timeout: float = 15 * 60.0
    """How long a handler may be at a message before that is given back, to be handled again by whoever gets it, while
    the handler goes on; `math.inf` for ever. Orderly handlers have all the time they need."""
    order_pause: float = 1.0
    commit_interval: float = 5.0
    rebalance_interval: float = 20.0
    close_timeout: float = 10.0


class PushSettings(TypedDict, total=False):
    """The fields of `PushOptions` as keywords, for type checkers."""

    pull_count: int
    suspend: float
    cached_count_max: int
    cached_bytes_max: int
    cached_span_max: int
    consume_from: ConsumeFrom
    orderly: bool
    broadcasting: bool
    offsets_folder: str | Path | None
    concurrency: int
    max_retries: int
    consume_timeout: float
    order_pause: float
    commit_interval: float
    rebalance_interval: float
    close_timeout: float


class AsyncPushConsumer:
    """A member of a consumer group. Use it as `async with`, or `start` and `close` it from any task."""

    def __init__(
        self,
        group: str,
        topics: Mapping[str, str],
        handler: Handler,
        name_servers: str | None = None,
        *,
        sql: Mapping[str, str] | None = None,
        client_id: str | None = None,
        on_error: OnError = log_failure,
        on_skipped: OnSkipped | None = None,
        **options: Unpack[PushSettings],
    ) -> None:
        """`topics` says what is wanted of each: `"*"`, or tags as in `"paid || refunded"`; `sql` names further topics,
        each with an SQL92 expression over properties: `{"orders": "amount > 3 AND region = 'eu'"}`. All members of a
        group must say the same. `options` are the fields of `PushOptions`. Raises `LocalProtocolError` for a group that
        cannot be one, `TypeError` and `ValueError` for options that mean nothing, `SqlSyntaxError` (a ValueError) for
        an expression that is none.

        `on_error(message, exception)` is called where a handler failed, `on_skipped(skipped)` where messages are
        passed over, both in the event loop.
        """
        name_servers = name_servers_or_default(name_servers)
        self._handler = HandlerCaller(handler, on_error)
        self.options = make_options(PushOptions, options)
        wanted = subscriptions(topics, sql)
        self._topics = tuple(subscription.topic for subscription in wanted)
        if not self.options.broadcasting:
            wanted += (Subscription(f"%RETRY%{group}", "*", now_ms()),)
        identity = ConsumerIdentity(
            group,
            client_id or new_client_id(),
            wanted,
            self.options.consume_from,
            broadcasting=self.options.broadcasting,
        )
        self._core = new_consumer_core(name_servers, identity)
        self._on_error = on_error
        self._on_skipped = on_skipped
        self.skipped = 0
        """Messages that were passed over without having been handled."""
        self._troubles = Troubles()
        self._locks = self.options.orderly and not self.options.broadcasting
        self._readers: dict[TopicQueue, QueueReader] = {}
        self._leaving: dict[TopicQueue, QueueReader] = {}
        self._kept: dict[TopicQueue, int] = {}
        self._asked: set[TopicQueue] = set()
        """Queues whose lock may be ours: asked for, perhaps without hearing the answer, and not given back."""
        self._missing: set[str] = set()
        """Topics that do not exist yet."""
        self._stats: dict[str, ConsumeStats] = {}
        self._name_servers = name_servers
        self._started_ms = now_ms()
        self._given_id = client_id
        renew_after_fork(self)
        self._lifespan = Lifespan("push consumer", self._run)

    @property
    def client_id(self) -> str:
        return self._core.identity.client_id

    @property
    def queues(self) -> tuple[TopicQueue, ...]:
        """The queues that are ours at the moment, without those of the retry topic."""
        return tuple(sorted(queue for queue in self._readers if queue.topic in self._topics))

    @property
    def failure(self) -> BaseException | None:
        """The error that ended consumption; None while it goes on, and if the program ended it."""
        return self._lifespan.failure

    @property
    def closed(self) -> bool:
        """Tell whether consumption is over: by `close`, or by the error in `failure`."""
        return self._lifespan.state == "closed"

    def renew(self) -> None:
        """Be another client in a child process, if it was not opened; one that was is refused there."""
        self._core.renew(own_client_id(self._given_id))

    async def start(self) -> None:
        """Join the group; handlers are called from now on.

        Raises `Unreachable` when there is no name server, and `NotOpen` the second time.
        """
        await self._lifespan.start()

    async def close(self) -> None:
        """Let the handlers that are at work finish, record the progress and leave. Closing twice is harmless."""
        await self._lifespan.close()

    async def __aenter__(self) -> AsyncPushConsumer:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._lifespan.leave(kind, exc, trace)

    # The course of a consumer's life

    @asynccontextmanager
    async def _run(self) -> AsyncIterator[None]:
        self._rebalance_now = anyio.Event()
        self._sharing: anyio.CancelScope | None = None
        self._shares = True
        self._in_order = anyio.CapacityLimiter(self.options.concurrency)
        self._handler.open(self.options.concurrency)
        self._arrivals = WorkerQueue[_Arrival]()
        self._saving = anyio.Lock()
        failure: Exception | None = None
        async with AsyncLinks.open(on_request=self._on_request, troubles=self._troubles) as self._links:
            try:
                async with anyio.create_task_group() as self._tasks:
                    try:
                        await self._begin(self._tasks)
                        yield
                        await self._settle()
                    except Exception as exc:
                        failure = exc
                    self._tasks.cancel_scope.cancel()
            finally:
                for reader in self._readers.values():
                    reader.release()
                with anyio.move_on_after(UNREGISTER_S, shield=True):
                    await self._leave()
        if failure is not None:
            raise failure

    async def _begin(self, tasks: TaskGroup) -> None:
        if self._offsets_file is not None:
            self._kept = await anyio.to_thread.run_sync(load_offsets, self._offsets_file)
        for topic in self._topics:
            try:
                await self._links.drive(self._core.queues(topic))
            except RopewalkError as exc:
                if not is_missing_topic(exc):
                    raise  # nobody to talk to at the start is an error; later it is weather
                self._tell_missing(topic)
        await self._heartbeat()
        for _ in range(0 if self.options.orderly else self.options.concurrency):
            tasks.start_soon(self._supervised, self._work)
        if not self.options.orderly and self.options.consume_timeout < math.inf:
            tasks.start_soon(self._supervised, self._expire_forever)
        tasks.start_soon(self._supervised, self._rebalance_forever)
        tasks.start_soon(self._supervised, self._heartbeat_forever)
        tasks.start_soon(self._supervised, self._commit_forever)
        if self._locks:
            tasks.start_soon(self._supervised, self._relock_forever)

    async def _supervised(self, run: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """Run a task of the consumer's own. One that fails is told, and begun again."""
        while True:
            try:
                await run(*arguments)
                return
            except Exception as exc:
                logger().error(
                    "consumer task failed",
                    group=self._core.identity.group,
                    task=getattr(run, "__name__", repr(run)),
                    reason=repr(exc),
                    exc_info=exc,
                )
            await anyio.sleep(RESTART_PAUSE_S)

    async def _settle(self) -> None:
        """Take nothing more on, stop reading, and let what is being handled come to its end."""
        self._shares = False
        if self._sharing is not None:
            self._sharing.cancel()
        for reader in self._readers.values():
            reader.release()
        with anyio.move_on_after(self.options.close_timeout):
            for reader in (*self._readers.values(), *self._leaving.values()):
                await reader.wait_idle()

    async def _leave(self) -> None:
        readers = [*self._readers.values(), *self._leaving.values()]
        for reader in readers:
            await self._record(reader)
        if self._locks:
            await self._unlock(list(self._asked))
        await self._links.drive(self._core.unregister())
        self._readers.clear()
        self._leaving.clear()

    def _on_request(self, request: Command) -> Command | Callable[[], Awaitable[Command]] | None:
        match request.code:
            case RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
                self._rebalance_now.set()
                return None
            case RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
                for queue, offset in reset_offsets(request, self._core.identity.group).items():
                    if queue in self._readers:
                        self._readers[queue].seek(offset)
                return None
            case RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT:
                return answered(request, lambda: self._offsets_body(request))
            case RequestCode.GET_CONSUMER_RUNNING_INFO:
                return answered(request, lambda: self._running_body(request))
            case RequestCode.CONSUME_MESSAGE_DIRECTLY:
                return self._handle_now(request)
        return refuse_peer_request(request)

    # What administrators ask, by way of a broker

    def _offsets_body(self, request: Command) -> bytes:
        header = decode_header(ConsumerStatusHeader, request.ext)
        if header.group != self._core.identity.group:
            raise RequestFailed(f"this consumer is of group {self._core.identity.group}, not {header.group}")
        return offsets_document(self._states(), header.topic)

    def _running_body(self, request: Command) -> bytes:
        require_group(decode_header(RelayHeader, request.ext), self._core.identity.group)
        return running_document(
            self._states(),
            self._core.identity.subscriptions,
            {topic: stats.document(clock()) for topic, stats in self._stats.items()},
            name_servers=self._name_servers,
            concurrency=self.options.concurrency,
            orderly=self.options.orderly,
            started_ms=self._started_ms,
            with_stacks=request.ext.get("jstackEnable") == "true",
        )

    def _states(self) -> list[QueueState]:
        states = []
        # Locks are timed by a clock that nobody sets; tools are shown where that is on the wall clock of now.
        shown_ms = now_ms() - clock() * 1000
        for queue, reader in sorted(self._readers.items()):
            cache = reader.cache
            states.append(
                QueueState(
                    queue,
                    cache.committable,
                    cache.next_offset,
                    cache.count,
                    cache.size,
                    self._locks,
                    round(shown_ms + reader.locked_at * 1000) if self._locks else 0,
                    reader.pulled_ms,
                    round(shown_ms + reader.handled_at * 1000) if reader.handled_at else 0,
                )
            )
        return states

    def _handle_now(self, request: Command) -> Command | Callable[[], Awaitable[Command]]:
        """Handle the message that a request brings, whatever its queue; the reply says what became of it."""
        try:
            message = message_to_handle(request, self._core.identity.group)
        except RequestFailed as exc:
            return request.reply(ResponseCode.SYSTEM_ERROR, str(exc))
        handled = anyio.Event()
        body = b""

        async def handle() -> None:
            nonlocal body
            began = clock()
            failure = await self._call(message)
            body = handled_document(failure, orderly=self.options.orderly, took_s=clock() - began)
            handled.set()

        async def reply() -> Command:
            await handled.wait()
            return request.reply(ResponseCode.SUCCESS, body=body)

        # Not in the connection's task: who handles a message is not stopped because a broker hangs up.
        self._tasks.start_soon(handle)
        return reply

    async def _heartbeat_forever(self) -> None:
        while True:
            await anyio.sleep(HEARTBEAT_S)
            await self._heartbeat()

    async def _heartbeat(self) -> None:
        outcomes = await self._links.drive(self._core.heartbeats())
        for address, failure in outcomes.items():
            if isinstance(failure, Refused):
                group = self._core.identity.group
                told = "heartbeat refused"
                self._troubles.began(("heartbeat", address), failure, told, group=group, broker=address)
            elif failure is None:
                self._troubles.ended(("heartbeat", address), "heartbeat accepted", broker=address)

    # Sharing queues

    @property
    def _shares_without_locks(self) -> bool:
        """Whether somebody else may begin with a queue while we are still at work on it."""
        return not self.options.orderly and not self.options.broadcasting

    async def _rebalance_forever(self) -> None:
        patience = UNBALANCED_PAUSE_S
        with anyio.CancelScope() as self._sharing:
            while self._shares:
                self._rebalance_now = anyio.Event()
                known = self._core.directory.addresses()
                balanced = all([await self._rebalance(s.topic) for s in self._core.identity.subscriptions])
                if self._core.directory.addresses() != known:
                    await self._heartbeat()  # a broker that has not heard of us yet
                    balanced = False
                pause = self.options.rebalance_interval
                if not balanced:
                    pause = min(pause, UNBALANCED_PAUSE_S)
                elif self._missing:
                    pause = min(pause, patience)
                # A topic may be made any moment, by its first message: nobody tells, so we look, ever more rarely.
                patience = patience * 2 if self._missing else UNBALANCED_PAUSE_S
                with anyio.move_on_after(pause):
                    await self._rebalance_now.wait()

    async def _rebalance(self, topic: str) -> bool:
        """Take what is ours of a topic and give up what is not. False if something is left to do."""
        try:
            queues = await self._links.drive(self._core.queues(topic))
            self._missing.discard(topic)
            if not any(reader.topic_is_gone for reader in self._readers.values()):
                self._troubles.ended(("topic", topic), "topic exists", topic=topic)
            mine = queues
            if not self.options.broadcasting:
                members = await self._links.drive(self._core.members(topic))
                if self.client_id not in members:
                    await self._heartbeat()  # a broker that began anew, perhaps
                    return False  # until it knows us again, nobody else can be given what is ours
                mine = allocate_queues(queues, members, self.client_id)
        except RopewalkError as exc:
            if not is_missing_topic(exc):
                if isinstance(exc, Refused):
                    self._troubles.began(("rebalance", topic), exc, "rebalance refused", topic=topic)
                return False
            self._missing.add(topic)
            if topic in self._topics:
                self._tell_missing(topic)
            return True
        self._troubles.ended(("rebalance", topic), "rebalances again", topic=topic)
        for queue in [queue for queue in self._readers if queue.topic == topic and queue not in mine]:
            self._give_up(self._readers[queue])
        wanted = [queue for queue in mine if queue not in self._readers]
        ready = [queue for queue in wanted if queue not in self._leaving]
        if self._locks:
            idle = {queue for queue in self._asked if queue.topic == topic and queue not in mine}
            await self._unlock([queue for queue in idle if queue not in self._leaving])
        if self._locks and ready:
            self._asked.update(ready)
            granted = await self._links.drive(self._core.lock(ready))
            ready = [queue for queue in ready if queue in granted]
        balanced = len(ready) == len(wanted)
        for queue in ready:
            try:
                await self._take_on(queue)
            except RopewalkError as exc:
                self._troubles.began(("take on", queue), exc, "queue not taken on", **_where(queue))
                balanced = False
            else:
                self._troubles.ended(("take on", queue), "queue taken on", **_where(queue))
        return balanced

    def _tell_missing(self, topic: str) -> None:
        reason = "it waits until there is one"
        self._troubles.began(("topic", topic), reason, "topic does not exist", topic=topic)

    async def _take_on(self, queue: TopicQueue) -> None:
        begin = self._kept.get(queue)
        if begin is None:
            begin = await self._links.drive(self._core.begin_offset(queue))
        stats = self._stats.setdefault(queue.topic, ConsumeStats())
        reader = QueueReader(
            self._core,
            self._links,
            queue,
            begin,
            self.options,
            self._hand_over,
            stats,
            on_skipped=self._skip,
            troubles=self._troubles,
        )
        reader.locked_at = clock() if self._locks else math.inf
        self._readers[queue] = reader
        self._tasks.start_soon(reader.read)
        if self.options.orderly:
            self._tasks.start_soon(self._supervised, self._work_in_order, reader)

    def _give_up(self, reader: QueueReader) -> None:
        del self._readers[reader.queue]
        self._leaving[reader.queue] = reader
        reader.release()
        self._tasks.start_soon(self._finish_giving_up, reader)

    async def _finish_giving_up(self, reader: QueueReader) -> None:
        try:
            if self._shares_without_locks:
                # The next owner begins there and does not wait. What is finished from here on is no longer ours to
                # record: it would take back what the next owner has recorded since.
                await self._record(reader)
                await reader.wait_idle()
            else:
                await reader.wait_idle()
                await self._record(reader)
            if self._locks:
                await self._unlock([reader.queue])
        except Exception as exc:
            logger().error(
                "queue not given up in order", **_where(reader.queue), reason=repr(exc), exc_info=exc
            )
        # Not where this is cancelled: then `_leave` records what is left.
        del self._leaving[reader.queue]
        self._rebalance_now.set()

    async def _unlock(self, queues: list[TopicQueue]) -> None:
        if queues:
            await self._links.drive(self._core.unlock(queues))
            self._asked.difference_update(queues)

    async def _relock_forever(self) -> None:
        while True:
            await anyio.sleep(RELOCK_S)
            readers = {**self._leaving, **self._readers}
            for queue in await self._links.drive(self._core.lock(readers)):
                if queue in readers:
                    readers[queue].locked_at = clock()

    # Progress

    async def _commit_forever(self) -> None:
        while True:
            await anyio.sleep(self.options.commit_interval)
            for reader in list(self._readers.values()):
                if not reader.released:  # given up while we recorded others
                    await self._record(reader)

    async def _record(self, reader: QueueReader) -> None:
        """Record the progress of a queue, if there is any. A failure is told; there will be another time."""
        async with reader.recording:
            offset = reader.cache.committable
            if offset == reader.committed or reader.topic_is_gone:
                return
            key = "progress" if self.options.broadcasting else ("progress", reader.queue)
            try:
                if self.options.broadcasting:
                    self._kept[reader.queue] = offset
                    if self._offsets_file is not None:
                        async with self._saving:  # several queues may be given up at once, and have one file
                            await anyio.to_thread.run_sync(save_offsets, self._offsets_file, dict(self._kept))
                else:
                    await self._links.drive(self._core.commit(reader.queue, offset))
            except (RopewalkError, OSError) as exc:
                if not isinstance(exc, (Unreachable, OutcomeUnknown)):
                    where = (
                        {"file": self._offsets_file} if self.options.broadcasting else _where(reader.queue)
                    )
                    group = self._core.identity.group
                    self._troubles.began(key, exc, "progress not saved", group=group, **where)
                return
            reader.committed = offset
            self._troubles.ended(key, "progress saved", group=self._core.identity.group)

    def _skip(self, skipped: Skipped) -> None:
        """Count, log and tell what is passed over."""
        self.skipped += skipped.count
        log_skipped(self._core.identity.group, skipped)
        if self._on_skipped is not None:
            call_hook(self._on_skipped, skipped)

    @property
    def _offsets_file(self) -> Path | None:
        folder = self.options.offsets_folder
        if not self.options.broadcasting or folder is None:
            return None
        return Path(folder) / f"{self._core.identity.group}.json"

    # Handling

    def _hand_over(self, reader: QueueReader, cache: QueueCache, messages: Sequence[ReceivedMessage]) -> None:
        if not self.options.orderly:
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
                failure = await self._handler.call(reader.attempt_of(message))
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
                    self._tasks.start_soon(self._again, reader, cache, message)
            if now > turn_ends:
                await anyio.lowlevel.checkpoint()
                now = clock()
                turn_ends = now + TURN_S

    async def _again(self, reader: QueueReader, cache: QueueCache, message: ReceivedMessage) -> None:
        await anyio.sleep(GIVE_BACK_PAUSE_S)
        if not reader.released and not cache.dropped:
            self._hand_over(reader, cache, [message])

    async def _give_back(self, reader: QueueReader, message: ReceivedMessage, level: int) -> bool:
        """Let the group have a claimed message later. False if no broker took it."""
        where = _where(reader.queue)
        try:
            if self.options.broadcasting:
                offset = message.queue_offset
                self._skip(Skipped(reader.queue, offset, offset + 1, "failed"))
            else:
                await self._links.drive(self._core.send_back(message, level, self.options.max_retries))
                self._troubles.ended(("give back", reader.queue), "message given back", **where)
        except RopewalkError as exc:
            reader.failed_again(message)
            self._troubles.began(("give back", reader.queue), exc, "message not given back", **where)
            return False
        finally:
            reader.unclaim(message)
        return True

    async def _expire_forever(self) -> None:
        """Give back what handlers have been at for too long: one that hangs must not hold up its queue's progress."""
        limit = self.options.consume_timeout
        while True:
            await anyio.sleep(min(limit / 10, EXPIRE_LOOK_S))
            for reader in list(self._readers.values()):
                for cache, message in reader.overdue(clock() - limit):
                    self._tasks.start_soon(self._expire, reader, cache, message)

    async def _expire(self, reader: QueueReader, cache: QueueCache, message: ReceivedMessage) -> None:
        if await self._give_back(reader, message, EXPIRED_LEVEL):
            reader.finish(cache, message)
            limit = self.options.consume_timeout
            late = TimeoutError(f"its handler has been at it for over {limit:g} s: given back")
            call_hook(self._on_error, message, late)
        elif not reader.is_in_hand(message) and cache.holds(message):
            self._tasks.start_soon(self._again, reader, cache, message)  # failed meanwhile, and left to us

    async def _work_in_order(self, reader: QueueReader) -> None:
        async def handle(message: ReceivedMessage) -> bool:
            async with self._in_order:
                return await self._call(message) is None

        async def give_up(message: ReceivedMessage) -> bool:
            if self.options.broadcasting:
                self._skip(Skipped(reader.queue, message.queue_offset, message.queue_offset + 1, "failed"))
                return True
            if self.options.max_retries < 0 or message.reconsume_times < self.options.max_retries:
                return False
            try:
                await self._links.drive(self._core.resend(message, self.options.max_retries))
            except RopewalkError as exc:
                self._troubles.began(
                    ("give back", reader.queue), exc, "message not given back", **_where(reader.queue)
                )
                return False
            return True

        await reader.handle_in_order(handle, pause_s=self.options.order_pause, give_up=give_up)

    async def _call(self, message: ReceivedMessage) -> Exception | None:
        """Call the handler; return what it raised."""
        began = clock()
        failure = await self._handler.call(message)
        topic = message.source.topic
        stats = self._stats.get(topic)
        if stats is None:
            stats = self._stats[topic] = ConsumeStats()
        now = clock()
        stats.handled(now, now - began, ok=failure is None)
        return failure


def _where(queue: TopicQueue) -> dict[str, object]:
    return {"topic": queue.topic, "broker": queue.queue.broker_name, "queue": queue.queue.queue_id}
