"""Exactly once by Ropewalk's brokers: they append a row only if they do not know its key (codes 30030 to 30032).

The broker finds out which rows earlier attempts stored, whichever tasks had them (`broker.sinks.windows`).

A request without an answer is simply sent again. So is one that was stored on one machine only where replication is
required: the broker knows the rows, and answers again when its slave has them.
"""

from __future__ import annotations

from ropewalk.client.core.messages import command_of
from ropewalk.client.core.steps import answer_header
from ropewalk.codes import RequestCode
from ropewalk.format.headers import SinkAppendedHeader, SinkAppendHeader
from ropewalk.format.remoting import Command
from ropewalk.spark.sink.keyed import KeyedSender
from ropewalk.spark.sink.send import PRODUCER_GROUP, Target

__all__ = ["IdempotentSender"]


class IdempotentSender(KeyedSender):
    """A sender of a task's rows to brokers that compare keys."""

    def _command(self, target: Target) -> Command:
        run, identity = self._run, self._identity
        born = target.sending[0].born_ms
        header = SinkAppendHeader(
            run.sink_id,
            run.epochs[target.queue.broker_name],
            identity.attempt,
            identity.query,
            identity.batch,
            identity.partition,
            target.topic,
            target.queue.queue_id,
            self._now_ms() if born is None else born,
            PRODUCER_GROUP,
        )
        command = command_of(RequestCode.ROPEWALK_SINK_APPEND, header)
        command.body = self._encode(target)
        return command

    def _record_stored(self, target: Target, answer: Command) -> None:
        header = answer_header(SinkAppendedHeader, answer)
        if header.appended:
            key = (target.topic, target.queue.broker_name, header.queue_id)
            self._count_offsets(key, header.queue_offset, header.queue_offset + header.appended - 1)
        self._count_broker(target.queue.broker_name, len(target.sending))
        self.sent.rows += header.appended
        self.sent.known += header.known
        self.sent.size += sum(len(row.message.body) for row in target.sending)
