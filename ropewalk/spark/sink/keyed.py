"""The sender of a task whose rows have keys: what both ways of writing exactly once have in common.

The broker of a row follows from its content and the list of brokers alone, so that each attempt sends it to the same
one; so does its queue, as long as the broker has as many. At brokers that know the batch as committed nothing is sent.
"""

from __future__ import annotations

import zlib
from typing import Any, Final

from ropewalk.client.core.messages import message_properties
from ropewalk.client.core.produce.choice import queue_of_group
from ropewalk.client.core.produce.row_identity import Writer, row_prefix
from ropewalk.client.core.routes import Queue
from ropewalk.format.batch import encode_batch
from ropewalk.spark.options import Options
from ropewalk.spark.sink.routes import WriteFailed
from ropewalk.spark.sink.row_keys import RowKeys
from ropewalk.spark.sink.rows import Outgoing, RowRefused
from ropewalk.spark.sink.run import Run, TaskIdentity, TaskResult
from ropewalk.spark.sink.send import Sender, Target

__all__ = ["KeyedSender"]

_RETRY_S: Final = 0.2


class KeyedSender(Sender):
    """A sender of the rows of one attempt of a task."""

    def __init__(self, options: Options, run: Run, identity: TaskIdentity, **more: Any) -> None:
        run.check_query(identity.query)
        super().__init__(options, **more)
        self._run = run
        self._identity = identity
        # Where brokers compare rows, another task may claim the row that an attempt stored, and the next attempt stores
        # its equal: a message of its own. Elsewhere a row that two attempts stored by a mishap has one unique key.
        attempt = identity.attempt if run.anchors is None else 0
        writer = Writer(run.number, identity.partition, attempt)
        self._row_keys = RowKeys(run.sink_id, identity.query, identity.batch, writer)
        self._prefixes: dict[str, bytes] = {}
        self._finished = run.finished_brokers(identity.query, identity.batch)
        self._by_broker: dict[str, int] = {}
        self._queues_of: dict[str, list[Queue]] = {}

    def add(self, row: Outgoing) -> None:
        """Add one row, unless it is stored already."""
        if not row.message.can_be_batched:
            raise RowRefused(
                "delivery=exactly-once takes no delayed rows: they would reach their queue later"
            )
        self._row_keys.number(row)
        if self._finished and self._queue(row).broker_name in self._finished:
            self.sent.known += 1
        elif self._is_new(row):
            super().add(row)

    def _is_new(self, row: Outgoing) -> bool:
        return True

    def result(self) -> TaskResult:
        """Return the outcome, once everything is stored."""
        digest = self._row_keys.digest
        ends = {(broker, queue): last + 1 for (_, broker, queue), (_, last) in self.sent.offsets.items()}
        return TaskResult(self._run, self._identity, digest.rows, digest.total, dict(self._by_broker), ends)

    def _count_broker(self, name: str, rows: int) -> None:
        self._by_broker[name] = self._by_broker.get(name, 0) + rows

    def _encode(self, target: Target) -> bytes:
        """Return the body of a batch of rows, each with its key as its last property."""
        keys, broker = self._row_keys, target.queue.broker_name
        prefix = self._prefixes.get(broker)
        if prefix is None:
            run, task = self._run, self._identity
            writer = Writer(run.epochs.get(broker, run.number), task.partition, task.attempt)
            prefix = self._prefixes[broker] = row_prefix(run.sink_id, task.query, task.batch, writer)
        return encode_batch(
            (
                row.message.flag,
                row.message.body,
                b"%b%b%b\x02"
                % (message_properties(row.message, keys.unique_key(row)), prefix, keys.key_of(row)),
            )
            for row in target.sending
        )

    def _queue(self, row: Outgoing) -> Queue:
        message, brokers = row.message, self._run.brokers
        content = (message.group or " ".join(message.keys or ())).encode() or message.body
        number = zlib.crc32(content)
        broker = row.broker or brokers[number % len(brokers)]
        queues = self._queues_of.get(broker)
        if queues is None:
            if broker not in brokers:
                raise RowRefused(
                    f"broker {broker} is none of those that sink {self._run.sink_id} writes to: {', '.join(brokers)}"
                )
            queues = self._queues_of[broker] = self._queues_at(row.topic, broker)
        if row.queue_id is not None:
            for queue in queues:
                if queue.queue_id == row.queue_id:
                    return queue
            raise RowRefused(f"topic {row.topic} has no writable queue {row.queue_id} at broker {broker}")
        if message.group is not None:
            return queue_of_group(message.group, queues)
        return queues[number // len(brokers) % len(queues)]

    def _queues_at(self, topic: str, broker: str) -> list[Queue]:
        """Return the queues of a topic at one broker, which is waited for. Raises WriteFailed."""
        deadline = self._monotonic() + self._timeout_s
        while True:
            queues = [queue for queue in self.queues(topic) if queue.broker_name == broker]
            if queues:
                return queues
            if self._monotonic() >= deadline:
                raise WriteFailed(f"topic {topic} has no queue at broker {broker} that can be written to")
            self._routes.forget_queues(topic)
            self._sleep(_RETRY_S)
