"""The pull consumer's decisions: positions in assigned queues, and what a poll does. Conversations, no sockets.

Its program chooses the queues; it shares them with nobody and is not a member of its group, which only names whose
progress is read and committed. A position is where the next `poll` goes on in a queue: at first the group's committed
offset, else where `consume_from` says. `poll` moves it, `commit` records it, `seek` sets it.

A poll looks into every queue in turn and returns what the first one has that has something. If none has, it asks all
of them at once, with the broker holding the answers, until one comes or the time is up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ropewalk.client.consuming import PULL_MARGIN_S, ConsumerCore
from ropewalk.client.messages import PullResult, PullStatus
from ropewalk.client.received import ReceivedMessage, TopicQueue, received
from ropewalk.client.steps import Ask, Steps, ask_any
from ropewalk.codes import ResponseCode
from ropewalk.errors import OutcomeUnknown, Rejected, RopewalkError

HOLD_MS_MAX = 15_000
HOLD_MS_MIN = 20
"""Below this a hold costs more than it waits."""


class PullCore:
    """Positions, and conversations that move them."""

    def __init__(self, consumer: ConsumerCore, clock: Callable[[], float]) -> None:
        self._consumer = consumer
        self._clock = clock
        self._positions: dict[TopicQueue, int | None] = {}
        self._turn = 0

    @property
    def assignment(self) -> tuple[TopicQueue, ...]:
        return tuple(self._positions)

    def assign(self, queues: Iterable[TopicQueue]) -> None:
        """Read these queues from now on, and no others. Queues that stay keep their position."""
        self._positions = {queue: self._positions.get(queue) for queue in sorted(queues)}

    def assign_topics(self) -> Steps[tuple[TopicQueue, ...]]:
        """Read every queue of the topics that were subscribed to."""
        queues: list[TopicQueue] = []
        for subscription in self._consumer.identity.subscriptions:
            queues += yield from self._consumer.queues(subscription.topic)
        self.assign(queues)
        return self.assignment

    def seek(self, queue: TopicQueue, offset: int) -> None:
        """Go on at this offset. Raises `KeyError` for a queue that is not assigned."""
        if queue not in self._positions:
            raise KeyError(f"{queue} is not assigned")
        self._positions[queue] = offset

    def seek_to_begin(self) -> Steps[None]:
        """Go on at the first message that is still there, in every queue."""
        for queue in self.assignment:
            self._positions[queue] = yield from self._consumer.begin_of(queue)

    def seek_to_end(self) -> Steps[None]:
        """Go on behind the last message, in every queue."""
        for queue in self.assignment:
            self._positions[queue] = yield from self._consumer.end_offset(queue)

    def seek_to_time(self, timestamp_ms: int) -> Steps[None]:
        """Go on at the first message stored at or after a time, in every queue."""
        for queue in self.assignment:
            self._positions[queue] = yield from self._consumer.offset_at(queue, timestamp_ms)

    def position(self, queue: TopicQueue) -> Steps[int]:
        """Where the next poll goes on. Raises `KeyError` for a queue that is not assigned."""
        position = self._positions[queue]
        if position is None:
            position = self._positions[queue] = yield from self._consumer.begin_offset(queue)
        return position

    def poll(self, max_count: int, timeout_s: float) -> Steps[list[ReceivedMessage]]:
        """The next messages of one queue, at most `max_count`; nothing if none came within `timeout_s` seconds.

        Raises what a broker refused, and `Unreachable` or `OutcomeUnknown` if no queue could be asked.
        """
        deadline = self._clock() + timeout_s
        found = yield from self._round(max_count, 0)
        while not found and self._positions:
            remaining_ms = int((deadline - self._clock()) * 1000)
            if remaining_ms < HOLD_MS_MIN:
                break
            found = yield from self._round(max_count, min(remaining_ms, HOLD_MS_MAX))
        return found

    def commit(self) -> Steps[None]:
        """Record every position that is known as the group's progress. Raises what a broker refused."""
        for queue, position in list(self._positions.items()):
            if position is None:
                continue
            try:
                yield from self._consumer.commit(queue, position)
            except Rejected as exc:
                if exc.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                    raise
                # Brokers make a group when somebody shows up in it; then it can be left again.
                yield from self._consumer.heartbeats()
                yield from self._consumer.goodbye()
                yield from self._consumer.commit(queue, position)

    def _round(self, max_count: int, hold_ms: int) -> Steps[list[ReceivedMessage]]:
        """Ask the queues: one after the other, or with a hold all at once. Moves on past what nobody wants."""
        queues = list(self._positions)
        self._turn += 1
        queues = queues[self._turn % len(queues) :] + queues[: self._turn % len(queues)] if queues else []
        asks: list[Ask] = []
        for queue in queues:
            position = yield from self.position(queue)
            yield from self._consumer.directory.route(queue.topic)
            address, command = self._consumer.pull_command(queue, position, max_count, hold_ms)
            asks.append(Ask(address, command, hold_ms / 1000 + PULL_MARGIN_S))
        if hold_ms:
            return (yield from self._ask_all(queues, asks))
        for queue, one in zip(queues, asks, strict=True):
            found = yield from self._ask_all([queue], [one])
            if found:
                return found
        return []

    def _ask_all(self, queues: list[TopicQueue], asks: list[Ask]) -> Steps[list[ReceivedMessage]]:
        outcomes = yield from ask_any(tuple(asks))
        found: list[ReceivedMessage] = []
        failure: RopewalkError | None = None
        for place, outcome in sorted(outcomes.items()):
            queue = queues[place]
            if isinstance(outcome, RopewalkError):
                self._consumer.directory.doubt(queue.topic)
                failure = outcome
                continue
            result = self._consumer.read_pull(queue, outcome)
            if found and result.status is PullStatus.FOUND:
                continue  # one queue at a time: its position stays, and the next poll brings it
            found += self._wanted(queue, result)
            self._positions[queue] = result.next_offset
        if failure is not None and not found and not isinstance(failure, OutcomeUnknown):
            raise failure
        return found

    def _wanted(self, queue: TopicQueue, result: PullResult) -> list[ReceivedMessage]:
        subscription = self._consumer.subscription(queue.topic)
        messages = (received(record, queue) for record in result.records)
        return [message for message in messages if subscription.wants(message.tags)]
