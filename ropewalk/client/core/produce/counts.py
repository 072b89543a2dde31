"""The counts of a producer's messages by outcome: every message that was submitted is one of them, or pending."""

from __future__ import annotations

from dataclasses import dataclass

from ropewalk.client.core.messages import SendResult, SendStatus
from ropewalk.errors import OutcomeUnknown, RopewalkError


@dataclass(slots=True)
class SendCounts:
    """Counts of a producer's messages by outcome."""

    submitted: int = 0
    acknowledged: int = 0
    """SEND_OK: what the broker's mode promises holds."""
    reserved: int = 0
    """Stored, with one of the other statuses."""
    refused: int = 0
    """Certainly not stored."""
    unknown: int = 0
    """Perhaps stored, perhaps twice."""
    oneway: int = 0
    """Sent without asking for an answer."""

    @property
    def pending(self) -> int:
        settled = self.acknowledged + self.reserved + self.refused + self.unknown + self.oneway
        return self.submitted - settled

    def record_outcome(self, count: int, outcome: SendResult | BaseException) -> None:
        """Account for `count` messages that shared a request."""
        if isinstance(outcome, SendResult):
            if outcome.status is SendStatus.SEND_OK:
                self.acknowledged += count
            else:
                self.reserved += count
        elif isinstance(outcome, RopewalkError) and not isinstance(outcome, OutcomeUnknown):
            self.refused += count
        else:
            # Cancelled, or interrupted: the request may have left.
            self.unknown += count
