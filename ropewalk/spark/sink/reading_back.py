"""The sender of a task that reads back the rows of its earlier attempts (`resume`)."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from ropewalk.client.core.connection import Unreachable
from ropewalk.client.core.messages import encoded_batch_request
from ropewalk.client.core.routes import Queue
from ropewalk.errors import OutcomeUnknown, RopewalkError
from ropewalk.format.remoting import Command
from ropewalk.spark.options import Options
from ropewalk.spark.sink.exact import Run, TaskIdentity
from ropewalk.spark.sink.keyed import KeyedSender
from ropewalk.spark.sink.resume import Anchors, read_keys
from ropewalk.spark.sink.routes import WriteFailed
from ropewalk.spark.sink.rows import Outgoing
from ropewalk.spark.sink.send import PRODUCER_GROUP, Sent, Target

__all__ = ["ReadingBackSender"]

_RETRY_S: Final = 0.2
_LATE_S: Final = 1.0
"""After so long no broker carries out a request whose sender is gone: RocketMQ drops one that waits for 200 ms."""


class ReadingBackSender(KeyedSender):
    """A sender of a task's rows to brokers that compare no keys."""

    def __init__(self, options: Options, run: Run, identity: TaskIdentity, **more: Any) -> None:
        super().__init__(options, run, identity, **more)
        assert run.anchors is not None
        self._anchors: Anchors = run.anchors
        self._found: dict[bytes, tuple[Queue, int]] = {}
        self._committed = self._anchors.committed_digest(identity.query, identity.batch)
        self._is_read = False

    def _is_new(self, row: Outgoing) -> bool:
        if self._committed is not None:
            self.sent.known += 1
            return False
        if not self._is_read:
            self._is_read = True
            if self._identity.retries:
                self._sleep(_LATE_S)
            for queue in self._anchors.offsets:
                self._found |= {key: (queue, offset) for key, offset in self._read_back(queue).items()}
        known = self._found.pop(self._row_keys.key_of(row.digest), None)
        if known is None:
            return True
        self._count_known(row.topic, *known)
        return False

    def finish(self) -> Sent:
        """Send the remaining rows, and wait until everything is stored. Raises WriteFailed."""
        sent = super().finish()
        if self._found:
            raise WriteFailed(
                f"batch {self._identity.batch} of sink {self._run.sink_id} has {len(self._found)} rows in partition "
                f"{self._identity.partition} that an earlier attempt wrote and this one does not: the plan is not "
                f"deterministic (rand(), uuid() and the like)"
            )
        return sent

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
            self._encode(target.sending),
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
            keys = self._read_back(target.queue)
            rows: list[Outgoing] = []
            for row in target.sending:
                offset = keys.get(self._row_keys.key_of(row.digest))
                if offset is None:
                    rows.append(row)
                else:
                    self._count_known(target.topic, target.queue, offset)
            target.sending, target.unsure = rows, False
            if not rows:
                return
        super()._attempt(target)

    def _read_back(self, queue: Queue) -> dict[bytes, int]:
        """Return the keys of this task in one queue, with their offsets. Raises WriteFailed."""
        topic = self._anchors.topic
        wanted = (self._run.sink_id, *self._identity[:3])
        deadline = self._monotonic() + self._timeout_s
        while True:
            try:
                address = self._routes.master(topic, queue.broker_name)
                call = partial(self._call, address)
                return read_keys(call, topic, queue, self._anchors.offsets[queue], wanted)
            except (Unreachable, OutcomeUnknown) as exc:
                if self._monotonic() >= deadline:
                    raise WriteFailed(
                        f"queue {queue.queue_id} of {topic} at {queue.broker_name} cannot be read back: {exc}"
                    ) from exc
                self._routes.forget(topic)
                self._sleep(_RETRY_S)

    def _call(self, address: str, command: Command) -> Command:
        return self._links.call_all(address, [command])[0]
