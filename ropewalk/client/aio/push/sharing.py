"""The sharing of queues among the members of a group.

Queues are divided anew every `rebalance_interval`, and at once when a broker says that members or routes have changed,
by the rule of the official clients: each member computes the same division. A queue that is given up is released first,
then idle, then recorded, and unlocked last, so that its next owner finds everything that was done.

A topic that does not exist yet is looked for ever more rarely. Meanwhile the member announces itself at the brokers
that would make it, so that a broker of Ropewalk can tell when it has.
"""

from __future__ import annotations

import math

import anyio

from ropewalk.client.aio.push.handling import Handling
from ropewalk.client.aio.push.member import Member, queue_fields
from ropewalk.client.aio.push.progress import Progress
from ropewalk.client.aio.queue_reader import QueueReader
from ropewalk.client.core.consume.consuming import is_missing_topic
from ropewalk.client.core.consume.membership import HEARTBEAT_S
from ropewalk.client.core.consume.rebalance import allocate_queues
from ropewalk.client.core.consume.received import TopicQueue
from ropewalk.client.log import logger
from ropewalk.client.machine import clock, now_ms
from ropewalk.errors import Refused, RopewalkError

RELOCK_S = 20.0
UNBALANCED_PAUSE_S = 1.0


class Sharing:
    """Takes queues on and gives them up, as the group divides them."""

    def __init__(self, member: Member, progress: Progress, handling: Handling) -> None:
        self._member = member
        self._progress = progress
        self._handling = handling
        self._asked: set[TopicQueue] = set()
        """Queues whose lock may be ours: asked for, perhaps without hearing the answer, and not given back."""
        self._missing: set[str] = set()
        """Topics that do not exist yet."""
        self._shares = True
        self._since_ms: int | None = None
        """Since when the member has its place: at "latest", what it takes on later begins there, and not at the end."""
        self._scope: anyio.CancelScope | None = None

    def open(self) -> None:
        """Be ready, in the running event loop."""
        self._rebalance_now = anyio.Event()

    async def find_topics(self) -> None:
        """Look for the topics once. Raises what keeps a member from beginning; a topic may come later."""
        for topic in self._member.topics:
            try:
                await self._member.links.drive(self._member.core.queues(topic))
            except RopewalkError as exc:
                if not is_missing_topic(exc):
                    raise  # nobody to talk to at the start is an error; later it is weather
                await self._await_topic(topic)
        await self._heartbeat()

    async def take_place(self) -> None:
        """Take on the member's share of the queues: messages sent from now on are handled, also at "latest".

        What cannot be had yet, because a broker is away or another member has its lock, is taken on later.
        """
        began_ms = now_ms()
        for subscription in self._member.core.identity.subscriptions:
            try:
                await self._rebalance(subscription.topic)
            except Exception as exc:  # the task that goes on from here tries again
                self._member.tell_failure("take_place", exc)
        self._since_ms = began_ms

    def start(self) -> None:
        """Start the tasks that keep the member one."""
        self._member.start(self._rebalance_forever)
        self._member.start(self._heartbeat_forever)
        if self._member.locks:
            self._member.start(self._relock_forever)

    def rebalance_soon(self) -> None:
        """Divide the queues anew, now."""
        self._rebalance_now.set()

    async def settle(self) -> None:
        """Take no queue more on, stop reading, and wait for the handlers that are at work."""
        self._shares = False
        if self._scope is not None:
            self._scope.cancel()
        self.release()
        seconds = self._member.options.close_timeout
        readers = (*self._member.readers.values(), *self._member.leaving.values())
        with anyio.move_on_after(seconds):
            for reader in readers:
                await reader.wait_idle()
        if at_work := sum(reader.at_work for reader in readers):
            reason = f"still at work after close_timeout ({seconds:g} s): what they have comes again"
            logger().warning("handlers left behind", group=self._member.group, count=at_work, reason=reason)

    def release(self) -> None:
        """Stop reading."""
        for reader in self._member.readers.values():
            reader.release()

    async def leave(self) -> None:
        """Record all progress, give the locks back, and leave the group."""
        member = self._member
        for reader in (*member.readers.values(), *member.leaving.values()):
            await self._progress.record(reader)
        if member.locks:
            await self._unlock(list(self._asked))
        await member.links.drive(member.core.unregister())
        member.readers.clear()
        member.leaving.clear()

    async def _heartbeat_forever(self) -> None:
        while True:
            await anyio.sleep(HEARTBEAT_S)
            await self._heartbeat()

    async def _heartbeat(self) -> None:
        outcomes = await self._member.links.drive(self._member.core.heartbeats())
        self._tell_conflict()
        for address, failure in outcomes.items():
            if isinstance(failure, Refused):
                group = self._member.group
                told = "heartbeat refused"
                self._member.troubles.began(
                    ("heartbeat", address), failure, told, group=group, broker=address
                )
            elif failure is None:
                self._member.troubles.ended(("heartbeat", address), "heartbeat accepted", broker=address)

    def _tell_conflict(self) -> None:
        """Log that another member subscribes to other things: either gets too little then, or nothing."""
        group, troubles = self._member.group, self._member.troubles
        conflict = next(filter(None, self._member.core.conflicts.values()), None)
        if conflict is None:
            troubles.ended("subscriptions", "members of the group agree", group=group)
        elif not troubles.is_known("subscriptions"):  # of many members, each broker may name another one
            troubles.began("subscriptions", conflict, "members of the group disagree", group=group)

    @property
    def _shares_without_locks(self) -> bool:
        """Whether somebody else may begin with a queue while we are still at work on it."""
        return not self._member.options.orderly and not self._member.options.broadcasting

    async def _rebalance_forever(self) -> None:
        patience = UNBALANCED_PAUSE_S
        with anyio.CancelScope() as self._scope:
            while self._shares:
                self._rebalance_now = anyio.Event()
                known = self._member.core.directory.addresses()
                balanced = all(
                    [await self._rebalance(s.topic) for s in self._member.core.identity.subscriptions]
                )
                if self._member.core.directory.addresses() != known:
                    await self._heartbeat()  # a broker that has not heard of us yet
                    balanced = False
                pause = self._member.options.rebalance_interval
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
            queues = await self._member.links.drive(self._member.core.queues(topic))
            self._missing.discard(topic)
            if not any(reader.topic_is_gone for reader in self._member.readers.values()):
                self._member.troubles.ended(("topic", topic), "topic exists", topic=topic)
            mine = queues
            if not self._member.options.broadcasting:
                members = await self._member.links.drive(self._member.core.members(topic))
                if self._member.client_id not in members:
                    await self._heartbeat()  # a broker that began anew, perhaps
                    return False  # until it knows us again, nobody else can be given what is ours
                mine = allocate_queues(queues, members, self._member.client_id)
        except RopewalkError as exc:
            if not is_missing_topic(exc):
                if isinstance(exc, Refused):
                    self._member.troubles.began(("rebalance", topic), exc, "rebalance refused", topic=topic)
                return False
            self._missing.add(topic)
            if topic in self._member.topics:
                await self._await_topic(topic)
            return True
        self._member.troubles.ended(("rebalance", topic), "rebalances again", topic=topic)
        for queue in [queue for queue in self._member.readers if queue.topic == topic and queue not in mine]:
            self._give_up(self._member.readers[queue])
        wanted = [queue for queue in mine if queue not in self._member.readers]
        ready = [queue for queue in wanted if queue not in self._member.leaving]
        if self._member.locks:
            idle = {queue for queue in self._asked if queue.topic == topic and queue not in mine}
            await self._unlock([queue for queue in idle if queue not in self._member.leaving])
        if self._member.locks and ready:
            self._asked.update(ready)
            granted = await self._member.links.drive(self._member.core.lock(ready))
            ready = [queue for queue in ready if queue in granted]
        balanced = len(ready) == len(wanted)
        for queue in ready:
            try:
                await self._take_on(queue)
            except RopewalkError as exc:
                self._member.troubles.began(
                    ("take on", queue), exc, "queue not taken on", **queue_fields(queue)
                )
                balanced = False
            else:
                self._member.troubles.ended(("take on", queue), "queue taken on", **queue_fields(queue))
        return balanced

    async def _await_topic(self, topic: str) -> None:
        """Say that a topic is missing, and be known to the brokers that would make it."""
        reason = "it waits until there is one"
        self._member.troubles.began(("topic", topic), reason, "topic does not exist", topic=topic)
        await self._member.links.drive(self._member.core.find_makers(topic))

    async def _take_on(self, queue: TopicQueue) -> None:
        begin = self._progress.kept(queue)
        if begin is None:
            begin = await self._member.links.drive(self._member.core.begin_offset(queue, self._since_ms))
        stats = self._member.stats_of(queue.topic)
        reader = QueueReader(
            self._member.core,
            self._member.links,
            queue,
            begin,
            self._member.options,
            self._handling.hand_over,
            stats,
            on_skipped=self._member.skip,
            troubles=self._member.troubles,
        )
        reader.locked_at = clock() if self._member.locks else math.inf
        self._member.readers[queue] = reader
        self._member.tasks.start_soon(reader.read)
        if self._member.options.orderly:
            self._member.start(self._handling.work_in_order, reader)

    def _give_up(self, reader: QueueReader) -> None:
        del self._member.readers[reader.queue]
        self._member.leaving[reader.queue] = reader
        reader.release()
        self._member.tasks.start_soon(self._finish_giving_up, reader)

    async def _finish_giving_up(self, reader: QueueReader) -> None:
        try:
            if self._shares_without_locks:
                # The next owner begins there and does not wait. What is finished from here on is no longer ours to
                # record: it would take back what the next owner has recorded since.
                await self._progress.record(reader)
                await reader.wait_idle()
            else:
                await reader.wait_idle()
                await self._progress.record(reader)
            if self._member.locks:
                await self._unlock([reader.queue])
        except Exception as exc:
            logger().error(
                "queue not given up in order", **queue_fields(reader.queue), reason=repr(exc), exc_info=exc
            )
        # Not where this is cancelled: then `_leave` records what is left.
        del self._member.leaving[reader.queue]
        self._rebalance_now.set()

    async def _unlock(self, queues: list[TopicQueue]) -> None:
        if queues:
            await self._member.links.drive(self._member.core.unlock(queues))
            self._asked.difference_update(queues)

    async def _relock_forever(self) -> None:
        while True:
            await anyio.sleep(RELOCK_S)
            readers = {**self._member.leaving, **self._member.readers}
            for queue in await self._member.links.drive(self._member.core.lock(readers)):
                if queue in readers:
                    readers[queue].locked_at = clock()
