"""`ropewalk produce`: read messages, send them fast, and account for every single one.

Reading and sending are separate. A source (`message_input.py`) yields lists of messages, all that has
arrived so far; the `Sender` spreads each list over the queues in turn, one batch for each queue, and
keeps a few batches under way. Messages of one message group go to one queue, the one that every client
would choose, and the next batch for that queue waits until the last one is answered: what is tried again
must not be overtaken. Every message ends in exactly one of these counts:

    acknowledged   the broker answered SEND_OK
    reserved       stored, but without all that the broker was told to wait for (codes 10, 11, 12)
    failed         refused, or never sent: it is not stored
    unknown        sent, and no answer came: it may be stored

What is refused for a moment (a broker that is busy, restarts, or elects its leader) is sent again for as long as a
request may take, after ever longer pauses, and at another broker where its order allows it. A message with an unknown
outcome is never sent again: that could store it twice.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Protocol

from ropewalk.client.blocking.simple import Client, Message, PendingSend, SendResult, SendStatus
from ropewalk.client.core.backoff import Backoff
from ropewalk.client.core.connection import NoMaster
from ropewalk.client.core.produce.attempts import MOMENTARY
from ropewalk.client.core.routes import Queue
from ropewalk.codes import ResponseCode
from ropewalk.errors import OutcomeUnknown, Rejected, RopewalkError
from tools.common.interrupts import Interrupts
from tools.common.output import UsageError, counted
from tools.messages.input import BadLine
from tools.messages.queue_turns import QueueTurns

BATCH_COUNT_MAX = 1000
BATCH_BYTES_MAX = 1024 * 1024
IN_FLIGHT_MAX = 16
DRAIN_S = 2.0
RATE_AFTER_S = 0.2
"""Seconds below which a rate would say more about the clock than about the broker."""


@dataclass(slots=True)
class Report:
    """The outcome counts of one run."""

    topic: str
    acknowledged: int = 0
    reserved: int = 0
    failed: int = 0
    unknown: int = 0
    body_bytes: int = 0
    seconds: float = 0.0
    interrupted: bool = False
    given_up: bool = False
    """The broker failed in a way that makes going on pointless."""
    stopped_at_line: int | None = None
    """The line that is no message: it counts as failed, and nothing behind it was read."""
    problems: Counter[str] = field(default_factory=Counter)
    results: list[SendResult] | None = None
    """Every answer, kept only on request: a million of them is a lot of memory."""

    @property
    def complete(self) -> bool:
        return not (self.reserved or self.failed or self.unknown or self.problems)

    def as_json(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "topic": self.topic,
            "acknowledged": self.acknowledged,
            "reserved": self.reserved,
            "failed": self.failed,
            "unknown": self.unknown,
            "bytes": self.body_bytes,
            "seconds": round(self.seconds, 6),
            "interrupted": self.interrupted,
            "stoppedAtLine": self.stopped_at_line,
            "errors": [{"error": text, "messages": count} for text, count in self.problems.items()],
        }
        if self.results is not None:
            document["messages"] = [row for result in self.results for row in result_rows(result)]
        return document


def summary(report: Report) -> str:
    """Return the outcome of a run in one line."""
    parts = [f"{counted(report.acknowledged)} acknowledged"]
    if report.reserved:
        parts.append(f"{report.reserved:,} stored, but not flushed or replicated as the broker promises")
    if report.failed:
        parts.append(f"{report.failed:,} not stored")
    if report.unknown:
        parts.append(f"{report.unknown:,} with unknown outcome")
    rate = f" ({report.acknowledged / report.seconds:,.0f}/s)" if report.seconds > RATE_AFTER_S else ""
    stopped = "stopped: " if report.interrupted else ""
    return f"{stopped}{', '.join(parts)} in {report.seconds:.2f} s{rate}"


def result_rows(result: SendResult) -> Iterator[dict[str, Any]]:
    """Yield one row for each message of a send."""
    for index, unique_key in enumerate(result.message_ids):
        yield {
            "msgId": unique_key,
            "offsetMsgId": result.offset_message_ids[index]
            if index < len(result.offset_message_ids)
            else None,
            "broker": result.queue.broker_name,
            "queueId": result.queue.queue_id,
            "queueOffset": result.queue_offset + index,
            "status": result.status.name,
            **({"recallHandle": result.recall_handle} if result.recall_handle else {}),
        }


@dataclass(slots=True)
class _Batch:
    messages: list[Message]
    queue: Queue
    ordered: bool = False
    """Holds messages of a message group."""
    refused_at: float | None = None
    """The time of its first refusal for a moment."""
    backoff: Backoff = field(default_factory=Backoff)


class Stop(Exception):
    """Going on is pointless; the report says why."""


class Sender:
    """A sender of lists of messages that accounts for them in `report`."""

    def __init__(self, client: Client, topic: str, queues: Sequence[Queue], report: Report) -> None:
        self._client = client
        self._topic = topic
        self._turns = QueueTurns(queues)
        self._in_flight: deque[tuple[_Batch, PendingSend]] = deque()
        self._stopped = False
        """Going on is pointless: nothing is tried again."""
        self.report = report

    def send(self, messages: Sequence[Message]) -> None:
        """Spread messages over the queues and send them; waits only when enough is under way."""
        batches = self._spread(messages)
        for index, batch in enumerate(batches):
            never_sent = index
            try:
                while len(self._in_flight) >= IN_FLIGHT_MAX or (batch.ordered and self._is_busy(batch.queue)):
                    self._finish_oldest()
                never_sent = index + 1
                self._start(batch)
            except BaseException:
                self.report.failed += sum(len(later.messages) for later in batches[never_sent:])
                raise

    def _is_busy(self, queue: Queue) -> bool:
        """Whether something is under way to this queue that could be overtaken."""
        return any(batch.ordered and batch.queue == queue for batch, _ in self._in_flight)

    def drain(self, timeout: float | None = None) -> None:
        """Wait for everything that is under way, each for at most `timeout` seconds."""
        while self._in_flight:
            self._finish_oldest(timeout)

    def abandon(self) -> None:
        """Give up waiting: what is under way has an unknown outcome."""
        self.report.unknown += sum(len(batch.messages) for batch, _ in self._in_flight)
        self._in_flight.clear()

    def _spread(self, messages: Sequence[Message]) -> list[_Batch]:
        """Messages take the queues in turn, those of a group its queue; what goes to one queue travels together."""
        open_batches: dict[Queue, _Batch] = {}
        sizes: Counter[Queue] = Counter()
        batches: list[_Batch] = []
        for message in messages:
            queue = self._turns.queue_for(message)
            if not message.can_be_batched:
                batches.append(_Batch([message], queue, ordered=bool(message.group)))
                continue
            current = open_batches.get(queue)
            if (
                current is None
                or len(current.messages) >= BATCH_COUNT_MAX
                or sizes[queue] + len(message.body) > BATCH_BYTES_MAX
            ):
                current = open_batches[queue] = _Batch([], queue)
                sizes[queue] = 0
                batches.append(current)
            current.messages.append(message)
            current.ordered = current.ordered or bool(message.group)
            sizes[queue] += len(message.body)
        return batches

    def _start(self, batch: _Batch) -> None:
        """Send a batch, or account for it."""
        while True:
            try:
                pending = self._client.start_send(self._topic, batch.messages, batch.queue)
            except MOMENTARY as exc:
                if not self._pause(batch):
                    self._count_failure(batch, exc)
                    self._stopped = True
                    raise Stop from exc
            except OutcomeUnknown as exc:
                self._count_unknown(batch, exc)
                return
            except KeyboardInterrupt:
                self.report.unknown += len(batch.messages)
                raise
            else:
                self._in_flight.append((batch, pending))
                return

    def _finish_oldest(self, timeout: float | None = None) -> None:
        # The batch stays at the head until it is accounted for, so that a Ctrl-C in the middle of this
        # leaves it to `abandon`.
        batch, pending = self._in_flight[0]
        try:
            result = self._client.finish_send(pending, timeout)
        except OutcomeUnknown as exc:
            self._in_flight.popleft()
            self._count_unknown(batch, exc)
        except MOMENTARY as exc:
            try:
                again = self._pause(batch)
            finally:
                self._in_flight.popleft()
            if again:
                self._start(batch)
            else:
                self._count_failure(batch, exc)
        except RopewalkError as exc:
            self._in_flight.popleft()
            if exc.code == ResponseCode.MESSAGE_ILLEGAL and len(batch.messages) > 1:
                # One bad message sinks its batch; the others have done nothing wrong.
                for message in batch.messages:
                    self._start(_Batch([message], batch.queue, ordered=batch.ordered))
                return
            self._count_failure(batch, exc)
            if isinstance(exc, Rejected) and exc.code != ResponseCode.MESSAGE_ILLEGAL:
                self._stopped = True
                raise Stop from exc  # the next message would hear the same
        else:
            self._in_flight.popleft()
            self._count_stored(batch, result)

    def _pause(self, batch: _Batch) -> bool:
        """Wait before a batch that was refused for a moment is sent again. False if its time is up."""
        now = time.monotonic()
        if batch.refused_at is None:
            batch.refused_at = now
        left = batch.refused_at + self._client.timeout - now
        if self._stopped or left <= 0:
            return False
        time.sleep(min(batch.backoff.next_s(), left))
        self._client.forget_routes()  # the master is another one, perhaps
        elsewhere = [queue for queue in self._turns.queues if queue.broker_name != batch.queue.broker_name]
        if elsewhere and not batch.ordered:
            batch.queue = self._turns.next_of(elsewhere)
        return True

    def _count_stored(self, batch: _Batch, result: SendResult) -> None:
        report = self.report
        if result.status is SendStatus.SEND_OK:
            report.acknowledged += len(batch.messages)
        else:
            report.reserved += len(batch.messages)
        report.body_bytes += sum(len(message.body) for message in batch.messages)
        if report.results is not None:
            report.results.append(result)

    def _count_failure(self, batch: _Batch, exc: RopewalkError) -> None:
        self.report.failed += len(batch.messages)
        self.report.problems[str(exc)] += len(batch.messages)

    def _count_unknown(self, batch: _Batch, exc: RopewalkError) -> None:
        self.report.unknown += len(batch.messages)
        self.report.problems[str(exc)] += len(batch.messages)


def queues_to_write(
    client: Client, topic: str, queue_id: int | None, broker: str | None
) -> tuple[Queue, ...]:
    """Return the queues to send to that `--queue` and `--broker` leave. Raises `UsageError` when that is none.

    Waits for as long as a request may take for a broker that has no master at the moment.
    """
    deadline = time.monotonic() + client.timeout
    backoff = Backoff()
    while True:
        route = client.write_route(topic)
        away = [name for name in route.brokers_without_master() if broker in (None, name)]
        chosen = [queue for queue in route.write_queues() if broker in (None, queue.broker_name)]
        left = deadline - time.monotonic()
        if chosen or not away:
            return choose_queues(route.write_queues(), topic, queue_id, broker)
        if left <= 0:
            raise NoMaster(f"topic {topic}: broker {', '.join(away)} has no master at the moment", away)
        time.sleep(min(backoff.next_s(), left))
        client.forget_routes()


def choose_queues(
    queues: Sequence[Queue], topic: str, queue_id: int | None, broker: str | None
) -> tuple[Queue, ...]:
    """Return the queues that `--queue` and `--broker` leave. Raises `UsageError` when that is none."""
    if not queues:
        raise UsageError(
            f"topic {topic} has no usable queue: no broker serves it, or its permission forbids it "
            f"(`ropewalk admin topic show {topic}`)"
        )
    chosen = tuple(
        queue
        for queue in queues
        if (queue_id is None or queue.queue_id == queue_id)
        and (broker is None or queue.broker_name == broker)
    )
    if not chosen:
        names = sorted({queue.broker_name for queue in queues})
        there = "; ".join(
            f"{name}: queues {', '.join(str(q.queue_id) for q in sorted(queues) if q.broker_name == name)}"
            for name in names
        )
        raise UsageError(f"topic {topic} has no such queue. It has {there}")
    return chosen


def note_of_new_topic(client: Client, topic: str) -> str | None:
    """Return a note on a topic that its first message has just made, with the nearest other name; None otherwise."""
    if topic not in client.new_topics:
        return None
    near = near_topics(client, topic)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"topic {topic} did not exist and was made by its first message{hint}"


def near_topics(client: Client, topic: str) -> list[str]:
    """Return the topic with the nearest other name, if one is near."""
    try:
        return get_close_matches(topic, [name for name in client.topics() if name != topic], 1, 0.75)
    except RopewalkError:
        return []


class MessageSender(Protocol):
    """A sender of lists of messages, as `produce` drives it."""

    report: Report

    def send(self, messages: Sequence[Message]) -> None:
        """Send messages. Raises `Stop` when going on is pointless."""

    def drain(self, timeout: float | None = None) -> None:
        """Wait for everything that is under way."""

    def abandon(self) -> None:
        """Give up waiting."""


def produce(
    sender: MessageSender,
    source: Iterable[list[Message]],
    interrupts: Interrupts,
    on_progress: Callable[[Report], None] = lambda report: None,
) -> Report:
    """Send everything a source yields. Returns when it ends, or at Ctrl-C, or when going on is pointless.

    A source marks by an empty list that it is about to wait for more input; everything sent so far is
    then accounted for first. A line that is no message ends it, and counts as one message that failed.
    """
    report = sender.report
    started = time.monotonic()
    try:
        for messages in source:
            if interrupts.requested:
                raise KeyboardInterrupt
            if messages:
                sender.send(messages)
            else:
                sender.drain()
            on_progress(report)
        sender.drain()
    except KeyboardInterrupt:
        report.interrupted = True
        _drain_after_stop(sender, DRAIN_S)
    except BadLine as exc:
        report.failed += 1
        report.stopped_at_line = exc.number
        report.problems[f"stopped at line {exc.number}: {exc.reason}; the rest was not sent"] += 1
        _drain_after_stop(sender)
    except Stop:
        report.given_up = True
        _drain_after_stop(sender)
    report.seconds = time.monotonic() - started
    return report


def _drain_after_stop(sender: MessageSender, timeout: float | None = None) -> None:
    """Return the answers under way are worth a short wait: they turn `unknown` into `acknowledged`."""
    while True:
        try:
            sender.drain(timeout)
        except Stop:
            continue
        except KeyboardInterrupt:
            pass
        sender.abandon()
        return
