"""`ropewalk produce --transaction`: each message in a transaction of its own, which is committed, rolled back or left.

A message counts as acknowledged when the broker has confirmed what was asked: that its half is stored and, unless it
is left, that the transaction is ended. A half whose end was not confirmed has an unknown outcome.
"""

from __future__ import annotations

from collections.abc import Sequence

from ropewalk.client.blocking.transaction_producer import TransactionProducer
from ropewalk.client.core.consume.received import ReceivedMessage
from ropewalk.client.core.messages import Message
from ropewalk.client.core.produce.transacting import Outcome
from ropewalk.client.core.routes import Queue
from ropewalk.codes import ResponseCode
from ropewalk.errors import OutcomeUnknown, Rejected, RopewalkError
from tools.common.output import UsageError
from tools.messages.produce import Report, Stop
from tools.messages.queue_turns import QueueTurns

__all__ = ["GROUP", "TransactionSender", "parse_outcome", "unknown"]

GROUP = "ropewalk-produce"
"""The producer group that brokers ask about what was left."""
_OUTCOMES = {"commit": Outcome.COMMIT, "rollback": Outcome.ROLLBACK, "leave": Outcome.UNKNOWN}


def parse_outcome(text: str) -> Outcome:
    """Return the outcome that `--transaction` names. Raises `UsageError`."""
    outcome = _OUTCOMES.get(text)
    if outcome is None:
        raise UsageError(f"--transaction is commit, rollback or leave, not {text!r}")
    return outcome


def unknown(message: ReceivedMessage) -> Outcome:
    """Answer a check: nobody here knows."""
    return Outcome.UNKNOWN


class TransactionSender:
    """A sender of messages one by one, as `Sender` is one of batches."""

    def __init__(
        self,
        producer: TransactionProducer,
        topic: str,
        queues: Sequence[Queue],
        report: Report,
        outcome: Outcome,
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._turns = QueueTurns(queues)
        self._outcome = outcome
        self.report = report

    def send(self, messages: Sequence[Message]) -> None:
        """Send each message, and end its transaction."""
        for index, message in enumerate(messages):
            try:
                self._send_one(message)
            except BaseException:
                self.report.failed += len(messages) - index - 1
                raise

    def drain(self, timeout: float | None = None) -> None:
        """Wait for nothing: each message was waited for."""

    def abandon(self) -> None:
        """Give nothing up: nothing is under way."""

    def _send_one(self, message: Message) -> None:
        report = self.report
        queue = self._turns.queue_for(message)
        try:
            with self._producer.transaction(self._topic, message, queue=queue) as transaction:
                transaction.outcome = self._outcome
        except OutcomeUnknown as exc:
            report.unknown += 1
            report.problems[str(exc)] += 1
            return
        except KeyboardInterrupt:
            report.unknown += 1
            raise
        except RopewalkError as exc:
            report.failed += 1
            report.problems[str(exc)] += 1
            if isinstance(exc, Rejected) and exc.code != ResponseCode.MESSAGE_ILLEGAL:
                raise Stop from exc
            return
        if transaction.problem is not None:
            report.unknown += 1
            report.problems[f"stored, but not ended: {transaction.problem}"] += 1
            return
        report.acknowledged += 1
        report.body_bytes += len(message.body)
        if report.results is not None:
            report.results.append(transaction.half)
