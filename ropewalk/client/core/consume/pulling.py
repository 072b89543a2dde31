"""The pull consumer's decisions: positions in assigned queues, and what a poll does. Conversations, no sockets.

Its program chooses the queues, all of its topics' where it assigns none; it shares them with nobody and is not a member
of its group, which only names whose progress is read and committed. A position is where the next `poll` goes on in a
queue: at first the group's committed offset, else where `consume_from` says. `poll` moves it, `commit` records it,
`seek` sets it.

A poll looks into every queue in turn and returns what the first one has that has something. If none has, it asks all
of them at once, with the broker holding the answers, until one comes or the time is up. Before it returns messages it
asks what the same queue has next, so that the broker finds the answer while the program handles these and those of the
queues between: one batch ahead for each of `AHEAD_MAX` queues, and no more. What was read ahead counts only if the poll
whose turn it is asks for the same; a seek makes it nothing.

A queue whose broker cannot be asked is left out of a poll that can ask another one. Where a queue is not what it was
(retention, a topic that was deleted and made again), the position moves to where nothing is missed that can still be
had, and what is passed over is told as `Skipped`.

A position moves past messages in the step that returns them, and in no earlier one: a poll that is cancelled or
interrupted while it reads ahead, or waits for a name server, has taken nothing, and the next one returns the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime
from typing import NamedTuple

from ropewalk.client.core.backoff import Backoff, Standstill
from ropewalk.client.core.connection import Unreachable
from ropewalk.client.core.consume.consuming import PULL_MARGIN_S, ConsumerCore, is_missing_topic
from ropewalk.client.core.consume.received import ReceivedMessage, TopicQueue
from ropewalk.client.core.consume.skipped import OnSkipped, Skipped, gaps
from ropewalk.client.core.directory import REFRESH_S
from ropewalk.client.core.messages import PullStatus, has_moved
from ropewalk.client.core.options import check_count, check_kind, check_wait, milliseconds_of
from ropewalk.client.core.steps import Ask, Pause, Steps, ask, ask_any, await_prefetched, prefetch
from ropewalk.codes import ResponseCode
from ropewalk.errors import OutcomeUnknown, Rejected, RopewalkError
from ropewalk.format.remoting import Command

HOLD_MS_MAX = 15_000
GRACE_S = 1.0
"""How long after its time a poll may end: what is there is worth a question, even to a poll that has no time."""
HOLD_MS_MIN = 20
"""Below this a hold costs more than it waits."""
AHEAD_MAX = 8
"""Queues whose next messages are on their way while the program handles others."""


class _Question(NamedTuple):
    """The limits of a pull without a hold."""

    queue: TopicQueue
    offset: int
    max_count: int


class _Found(NamedTuple):
    """Messages that no poll has returned yet: their queue stays where it is until one does."""

    queue: TopicQueue
    offset: int
    messages: list[ReceivedMessage]
    next_offset: int


class PullCore:
    """Positions, and conversations that move them."""

    def __init__(
        self,
        consumer: ConsumerCore,
        clock: Callable[[], float],
        on_skipped: OnSkipped = lambda skipped: None,
    ) -> None:
        self._consumer = consumer
        self._on_skipped = on_skipped
        self._last: dict[TopicQueue, ReceivedMessage] = {}
        """The message that was read last of each queue: by it the queue is known again."""
        self._gone: set[TopicQueue] = set()
        """Queues of whose topic a broker knew nothing: are they the same ones when they are back?"""
        self._clock = clock
        self._positions: dict[TopicQueue, int | None] = {}
        self._sought: set[TopicQueue] = set()
        """Queues whose position the program has just set: one beyond the end is its own affair."""
        self._by_topics = True
        """Whether the queues are those of the topics, and not some that the program assigned."""
        self._look_up_at = -math.inf
        """When the topics are looked up again while they have no queue."""
        self._moved = False
        """Whether an answer has moved a position on since it was last looked at."""
        self._turn = 0
        self._ahead: dict[TopicQueue, tuple[_Question, int]] = {}
        """The pull sent ahead, and its ticket. A ticket is taken sooner or later, wanted or not."""

    def renew(self, client_id: str) -> None:
        """Begin anew as another client, in a process that was forked. Positions stay."""
        self._consumer.renew(client_id)
        self._ahead.clear()

    @property
    def assignment(self) -> tuple[TopicQueue, ...]:
        return tuple(self._positions)

    def assign(self, queues: Iterable[TopicQueue]) -> None:
        """Read these queues from now on, and no others. Queues that stay keep their position."""
        if isinstance(queues, TopicQueue) or not isinstance(queues, Iterable):
            raise TypeError(f"queues are several, as `assign_topics` returns them, and not {queues!r}")
        queues = tuple(queues)
        for queue in queues:
            _check_queue(queue)
        self._positions = {queue: self._positions.get(queue) for queue in sorted(queues)}
        self._by_topics = False

    def assign_topics(self) -> Steps[tuple[TopicQueue, ...]]:
        """Read every queue of the topics that were subscribed to."""
        queues: list[TopicQueue] = []
        for subscription in self._consumer.identity.subscriptions:
            queues += yield from self._consumer.queues(subscription.topic)
        self.assign(queues)
        self._by_topics = True
        self._look_up_at = self._clock() + REFRESH_S
        return self.assignment

    def seek(self, queue: TopicQueue, offset: int) -> None:
        """Go on at this offset. Raises `KeyError` for a queue that is not assigned."""
        _check_queue(queue)
        check_count("offset", offset, 0)
        if queue not in self._positions:
            raise KeyError(f"{queue} is not assigned")
        self._positions[queue] = offset
        self._last.pop(queue, None)
        self._sought.add(queue)

    def seek_to_begin(self) -> Steps[None]:
        """Go on at the first message that is still there, in every queue."""
        yield from self._choose()
        for queue in self.assignment:
            self._positions[queue] = yield from self._consumer.begin_of(queue)

    def seek_to_end(self) -> Steps[None]:
        """Go on behind the last message, in every queue."""
        yield from self._choose()
        for queue in self.assignment:
            self._positions[queue] = yield from self._consumer.end_offset(queue)

    def seek_to_time(self, moment: datetime | int) -> Steps[None]:
        """Go on at the first message stored at or after a time, in every queue."""
        return self._seek_to_time(milliseconds_of("the time to seek", moment))

    def _seek_to_time(self, timestamp_ms: int) -> Steps[None]:
        yield from self._choose()
        for queue in self.assignment:
            self._positions[queue] = yield from self._consumer.offset_at(queue, timestamp_ms)

    def position(self, queue: TopicQueue) -> Steps[int]:
        """Return the offset at which the next poll reads a queue.

        Raises `KeyError` for a queue that is not assigned.
        """
        _check_queue(queue)
        if queue not in self._positions:
            raise KeyError(f"{queue} is not assigned")
        return self._position(queue)

    def _position(self, queue: TopicQueue) -> Steps[int]:
        position = self._positions[queue]
        if position is None:
            position = self._positions[queue] = yield from self._consumer.begin_offset(queue)
        return position

    def poll(self, max_count: int, timeout_s: float) -> Steps[list[ReceivedMessage]]:
        """Return the next messages of one queue, at most `max_count`; nothing if none came within `timeout_s` seconds.

        Raises what a broker refused, and, when the time is up, `Unreachable` or `OutcomeUnknown` if none of the brokers
        was there in all of it.
        """
        check_count("max_count", max_count, 1)
        check_wait(timeout_s)
        return self._poll_until(max_count, timeout_s)

    def _poll_until(self, max_count: int, timeout_s: float) -> Steps[list[ReceivedMessage]]:
        deadline = self._clock() + timeout_s
        self._consumer.deadline = deadline + GRACE_S
        try:
            return (yield from self._poll(max_count, deadline))
        finally:
            self._consumer.deadline = None

    def _choose(self) -> Steps[None]:
        """Assign the queues of the topics, unless the program has assigned some. Raises as `assign_topics`.

        Topics without a queue to read are looked up again as often as any route.
        """
        if self._by_topics and not self._positions and self._clock() >= self._look_up_at:
            yield from self.assign_topics()

    def _poll(self, max_count: int, deadline: float) -> Steps[list[ReceivedMessage]]:
        backoff = Backoff()
        heard = False
        while True:
            try:
                found, failure = yield from self._look_and_wait(max_count, deadline)
            except (Unreachable, OutcomeUnknown) as exc:
                found, failure = None, exc
            if found is not None:
                return self._deliver(found)
            heard = heard or failure is None
            remaining_s = deadline - self._clock()
            if remaining_s < HOLD_MS_MIN / 1000:
                if failure is not None and not heard:
                    raise failure
                return []
            yield Pause(min(backoff.next_s(), remaining_s))

    def _look_and_wait(
        self, max_count: int, deadline: float
    ) -> Steps[tuple[_Found | None, RopewalkError | None]]:
        """Look into every queue, and wait for all of them while any can be asked; the failure if none ever could."""
        yield from self._choose()
        for gone in [queue for queue in self._ahead if queue not in self._positions]:
            yield from self._drop_ahead(gone)
        failure: RopewalkError | None = None
        there: list[TopicQueue] = []
        queues = self._in_turn()
        self._turn += 1
        for queue in queues:
            try:
                found = yield from self._look(queue, max_count)
            except (Unreachable, OutcomeUnknown) as exc:
                self._consumer.directory.invalidate(queue.topic)
                failure = exc
                continue
            if found is not None:
                yield from self._look_ahead(_Question(queue, found.next_offset, max_count))
                return found, None
            there.append(queue)
        if there:
            return (yield from self._wait_for_any(there, max_count, deadline)), None
        return None, failure

    def _wait_for_any(
        self, queues: list[TopicQueue], max_count: int, deadline: float
    ) -> Steps[_Found | None]:
        """Ask these queues until one has something, the time is up, or the last of them can be asked no more."""
        standstill = Standstill()
        while queues:
            began = self._clock()
            remaining_ms = int(min((deadline - began) * 1000, HOLD_MS_MAX))
            if remaining_ms < HOLD_MS_MIN:
                break
            self._moved = False
            found, lost = yield from self._wait(queues, max_count, remaining_ms)
            if found is not None:
                return found
            for queue in lost:
                self._consumer.directory.invalidate(queue.topic)
                queues.remove(queue)
            now = self._clock()
            if rest_s := standstill.rest_s(now - began, moved=self._moved or bool(lost)):
                yield Pause(max(min(rest_s, deadline - now), 0.0))
        return None

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
                yield from self._consumer.unregister()
                yield from self._consumer.commit(queue, position)

    def _in_turn(self) -> list[TopicQueue]:
        """Return the queues, from the one whose turn it is."""
        queues = list(self._positions)
        first = self._turn % len(queues) if queues else 0
        return queues[first:] + queues[:first]

    def _look(self, queue: TopicQueue, max_count: int) -> Steps[_Found | None]:
        """Pull the messages that a queue has at the moment."""
        position = yield from self._position_now(queue)
        question = _Question(queue, position, max_count)
        answer = yield from self._answer_ahead(question)
        # An answer without messages is as old as its question: what has come since would be missed.
        if answer is None or answer.code != ResponseCode.SUCCESS:
            answer = yield from ask(*(yield from self._ask(question, 0)))
        return (yield from self._accept(question, answer))

    def _look_ahead(self, question: _Question) -> Steps[None]:
        """Ask what a later poll will ask. Whether that works is for that poll to find out."""
        if len(self._ahead) >= AHEAD_MAX:
            return
        try:
            ticket = yield from prefetch((yield from self._ask(question, 0)))
        except RopewalkError:
            return
        self._ahead[question.queue] = question, ticket

    def _answer_ahead(self, question: _Question) -> Steps[Command | None]:
        """Return the answer that was fetched ahead, if there is one and this is its question."""
        asked, ticket = self._ahead.pop(question.queue, (None, 0))
        if asked is None:
            return None
        try:
            answer = yield from await_prefetched(ticket, self._consumer.seconds_left(PULL_MARGIN_S))
        except (Unreachable, OutcomeUnknown):
            return None
        return answer if asked == question else None

    def _drop_ahead(self, queue: TopicQueue) -> Steps[None]:
        """Drop the pull that was sent ahead for a queue."""
        _, ticket = self._ahead.pop(queue)
        with suppress(Unreachable, OutcomeUnknown):
            yield from await_prefetched(ticket, 0.0)

    def _wait(
        self, queues: list[TopicQueue], max_count: int, hold_ms: int
    ) -> Steps[tuple[_Found | None, dict[TopicQueue, RopewalkError]]]:
        """Ask several queues at once: the messages of the first that has some, and which could not be asked."""
        asks: list[Ask] = []
        questions: list[_Question] = []
        for queue in queues:
            position = yield from self._position_now(queue)
            questions.append(_Question(queue, position, max_count))
            asks.append((yield from self._ask(questions[-1], hold_ms)))
        outcomes = yield from ask_any(tuple(asks))
        lost: dict[TopicQueue, RopewalkError] = {}
        refused: RopewalkError | None = None
        for place, outcome in sorted(outcomes.items()):
            queue = queues[place]
            if isinstance(outcome, RopewalkError):
                lost[queue] = outcome
                continue
            try:
                found = yield from self._accept(questions[place], outcome)
            except RopewalkError as exc:
                refused = exc
                continue
            if found is not None:
                return found, lost  # one queue at a time: the others stay where they are, for the next poll
        if refused is not None:
            raise refused
        return None, lost

    def _ask(self, question: _Question, hold_ms: int) -> Steps[Ask]:
        queue, offset, max_count = question
        yield from self._consumer.directory.route(queue.topic, deadline=self._consumer.deadline)
        address, command = self._consumer.pull_command(queue, offset, max_count, hold_ms)
        return Ask(address, command, self._consumer.seconds_left(hold_ms / 1000 + PULL_MARGIN_S))

    def _position_now(self, queue: TopicQueue) -> Steps[int]:
        """Return the position, after a look whether a queue that was gone is the same one."""
        last = self._last.get(queue)
        if queue in self._gone:
            if last is not None and not (yield from self._consumer.is_same_queue(queue, last)):
                self._positions[queue] = 0
                del self._last[queue]
            self._gone.discard(queue)
        return (yield from self._position(queue))

    def _accept(self, question: _Question, answer: Command) -> Steps[_Found | None]:
        """Return the messages that are wanted of an answer; without any, move on past what was read."""
        queue, offset, _ = question
        try:
            pulled = self._consumer.read_pull(queue, offset, answer)
        except RopewalkError as exc:
            if is_missing_topic(exc):
                self._gone.add(queue)
            raise
        if pulled.status is PullStatus.OFFSET_ILLEGAL:
            last = self._last.pop(queue, None)
            if queue in self._sought and offset > pulled.max_offset:
                self._positions[queue] = pulled.next_offset
                return None
            begin, reason = yield from self._consumer.relocate(queue, offset, pulled, last)
            self._positions[queue] = begin
            first = pulled.min_offset if reason == "truncated" else offset
            if begin > first:
                self._on_skipped(Skipped(queue, first, begin, reason))
            return None
        self._moved = self._moved or has_moved(pulled.status, offset, pulled.next_offset)
        found = _Found(queue, offset, pulled.messages, pulled.next_offset)
        if pulled.messages:
            return found
        self._deliver(found)
        return None

    def _deliver(self, found: _Found) -> list[ReceivedMessage]:
        """Move on past messages, and return them. The last step of a poll."""
        queue = found.queue
        if not self._consumer.subscription(queue.topic).is_filtered:
            for gap in gaps(queue, found.offset, found.messages, found.next_offset):
                self._on_skipped(gap)
        self._sought.discard(queue)
        if found.messages:
            self._last[queue] = found.messages[-1]
        self._positions[queue] = found.next_offset
        return found.messages


def _check_queue(queue: object) -> None:
    check_kind("a queue", queue, TopicQueue, "one of those that `assign_topics` returns")
