"""The sender of a task that reads back which rows of its batch are stored (`resume`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, TypeVar

from ropewalk.client.core.connection import Unreachable
from ropewalk.client.core.messages import Message, encoded_batch_request
from ropewalk.client.core.produce.row_identity import (
    CONTENT_SIZE,
    RowIdentity,
    earlier_rows_reason,
    parse_identity,
)
from ropewalk.client.core.routes import Queue
from ropewalk.errors import OutcomeUnknown, RopewalkError
from ropewalk.format.properties import P
from ropewalk.format.remoting import Command
from ropewalk.spark.options import Options
from ropewalk.spark.sink.keyed import KeyedSender
from ropewalk.spark.sink.resume import Anchors, read_record, read_rows
from ropewalk.spark.sink.routes import WriteFailed
from ropewalk.spark.sink.rows import Outgoing
from ropewalk.spark.sink.run import Run, TaskIdentity, TaskResult
from ropewalk.spark.sink.send import PRODUCER_GROUP, Sender, Sent, Target

__all__ = ["COPIES_PARTITION", "ReadingBackSender"]

T = TypeVar("T")

_RETRY_S: Final = 0.2
_LATE_S: Final = 1.0
"""After so long no broker carries out a request whose sender is gone: RocketMQ drops one that waits for 200 ms."""


COPIES_PARTITION: Final = 1 << 30
"""The partition of the copies that a driver sends; no task has it."""

Place = tuple[Queue, int]
"""A queue, and an offset in it."""


class ReadingBackSender(KeyedSender):
    """A sender of a task's rows to brokers that compare no rows."""

    def __init__(self, options: Options, run: Run, identity: TaskIdentity, **more: Any) -> None:
        super().__init__(options, run, identity, **more)
        assert run.anchors is not None
        self._anchors: Anchors = run.anchors
        self._before: dict[bytes, list[Place]] = {}
        """The rows of earlier runs of the batch, by their content."""
        self._own: dict[bytes, Place] = {}
        """The rows of earlier attempts of this task, by their keys."""
        self._held: dict[bytes, int] = {}
        self._committed = self._anchors.committed_digest(identity.query, identity.batch)
        self._is_read = False

    def _is_new(self, row: Outgoing) -> bool:
        if self._committed is not None:
            self.sent.known += 1
            return False
        self._read()
        if not (self._before or self._own):
            return True
        key = self._row_keys.key_of(row)
        if (content := key[:CONTENT_SIZE]) in self._before:
            self.sent.known += 1
            self._held[content] = self._held.get(content, 0) + 1
            return False
        return not self._is_own(row.topic, key)

    def _is_own(self, topic: str, key: bytes) -> bool:
        """Return whether an earlier attempt of this task stored a row, which is counted then."""
        known = self._own.pop(key, None)
        if known is not None:
            self._count_known(topic, *known)
        return known is not None

    def _read(self) -> None:
        """Read what the topic holds of this batch, once."""
        if self._is_read:
            return
        self._is_read = True
        if self._identity.retries:
            self._sleep(_LATE_S)
        task, run = self._identity, self._run
        for queue, anchor in self._anchors.offsets.items():
            end = self._anchors.ends[queue]
            for row, offset in self._rows_in(queue, anchor):
                if row[:3] != (run.sink_id, task.query, task.batch):
                    continue
                if row.writer is None:
                    raise WriteFailed(earlier_rows_reason(run.sink_id, task.batch))
                if offset < end:
                    self._before.setdefault(row.content, []).append((queue, offset))
                elif row.writer.run != run.number:
                    raise WriteFailed(
                        f"rows of batch {task.batch} of sink {run.sink_id} came after this run of it had begun: an "
                        f"executor of an earlier run still writes, or the query runs twice. Start the query again when "
                        f"the other one has ended"
                    )
                elif row.writer.partition == task.partition:
                    self._own[row.key] = queue, offset

    def stored_before(self) -> dict[bytes, list[Place]]:
        """Return the places of all rows that earlier runs of this batch stored, by their content."""
        self._read()
        return self._before

    def copy(self, place: Place, count: int) -> None:
        """Send copies of a row that is stored, unless they are stored already."""
        if count <= 0:
            return
        queue, offset = place
        record = self._patiently(queue, lambda call: read_record(call, self._anchors.topic, queue, offset))
        identity = parse_identity(record.properties[P.SINK_ROW])
        assert identity is not None, "it was read as a row a moment ago"
        own = (P.SINK_ROW, P.UNIQ_KEY)
        properties = {name: value for name, value in record.properties.items() if name not in own}
        message = Message(record.body, properties=properties, flag=record.flag)
        for ordinal in range(count):
            row = Outgoing(
                self._anchors.topic,
                message,
                len(record.body),
                queue.queue_id,
                queue.broker_name,
                record.born_timestamp,
            )
            row.digest, row.ordinal = self._row_keys.digest_in(identity.key), ordinal
            if not self._is_own(row.topic, self._row_keys.key_of(row)):
                Sender.add(self, row)

    def finish(self) -> Sent:
        """Send the remaining rows, and wait until everything is stored. Raises WriteFailed."""
        sent = super().finish()
        if self._own:
            raise WriteFailed(
                f"batch {self._identity.batch} of sink {self._run.sink_id} has {len(self._own)} rows in partition "
                f"{self._identity.partition} that an earlier attempt wrote and this one does not: the plan is not "
                f"deterministic (rand(), uuid() and the like)"
            )
        return sent

    def result(self) -> TaskResult:
        return replace(super().result(), held=self._held)

    def _count_known(self, topic: str, queue: Queue, offset: int) -> None:
        self.sent.known += 1
        self._count_broker(queue.broker_name, 1)
        self._count_offsets((topic, queue.broker_name, queue.queue_id), offset, offset)

    # -- requests ------------------------------------------------------------------------------------

    def _command(self, target: Target) -> Command:
        born = target.sending[0].born_ms
        return encoded_batch_request(
            target.topic,
            target.queue,
            self._encode(target),
            self._keys.next(),
            self._now_ms() if born is None else born,
            producer_group=PRODUCER_GROUP,
        )

    def _record_stored(self, target: Target, answer: Command) -> None:
        super()._record_stored(target, answer)
        self._count_broker(target.queue.broker_name, len(target.sending))

    def _requires_replication(self, target: Target) -> bool:
        return False  # a row that is stored on one machine only cannot be sent again

    def _retry(self, target: Target, exc: RopewalkError, *more: float) -> None:
        target.unsure = target.unsure or isinstance(exc, OutcomeUnknown)
        super()._retry(target, exc, *more)

    def _attempt(self, target: Target) -> None:
        if target.unsure:
            self._sleep(_LATE_S)
            keys = self._own_in(target.queue)
            rows: list[Outgoing] = []
            for row in target.sending:
                offset = keys.get(self._row_keys.key_of(row))
                if offset is None:
                    rows.append(row)
                else:
                    self._count_known(target.topic, target.queue, offset)
            target.sending, target.unsure = rows, False
            if not rows:
                return
        super()._attempt(target)

    def _own_in(self, queue: Queue) -> dict[bytes, int]:
        """Return the keys of the rows that this task stored in a queue in this run, with their offsets."""
        rows = self._rows_in(queue, self._anchors.ends.get(queue, 0))
        task, run = self._identity, self._run
        return {
            row.key: offset
            for row, offset in rows
            if row[:3] == (run.sink_id, task.query, task.batch)
            and row.writer is not None
            and row.writer[:2] == (run.number, task.partition)
        }

    def _rows_in(self, queue: Queue, start: int) -> list[tuple[RowIdentity, int]]:
        return self._patiently(queue, lambda call: read_rows(call, self._anchors.topic, queue, start))

    def _patiently(self, queue: Queue, read: Callable[[Callable[[Command], Command]], T]) -> T:
        """Read from a queue, and try again while its broker is away. Raises WriteFailed."""
        topic = self._anchors.topic
        deadline = self._monotonic() + self._timeout_s
        while True:
            try:
                address = self._routes.master(topic, queue.broker_name)
                return read(lambda command: self._links.call_all(address, [command])[0])  # noqa: B023
            except (Unreachable, OutcomeUnknown) as exc:
                if self._monotonic() >= deadline:
                    raise WriteFailed(
                        f"queue {queue.queue_id} of {topic} at {queue.broker_name} cannot be read back: {exc}"
                    ) from exc
                self._routes.forget(topic)
                self._sleep(_RETRY_S)
