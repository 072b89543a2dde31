"""The attempts of one send: which failures allow another one, and the truth about all of them. Pure."""

from __future__ import annotations

from ropewalk.client.core.connection import Unreachable
from ropewalk.client.core.messages import SendResult
from ropewalk.codes import ResponseCode
from ropewalk.errors import OutcomeUnknown, RopewalkError, TryElsewhere, TryLater

RETRY_CODES = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.GO_AWAY,
    }
)

MOMENTARY = (TryLater, TryElsewhere, Unreachable)
"""Certainly not stored, and perhaps taken in a moment."""


class Attempts:
    """The state of a send between its attempts."""

    def __init__(self, retries: int) -> None:
        self.reserved: SendResult | None = None
        """The result of an attempt that was stored, but not as safely as was asked for."""
        self._retries = retries
        self._repeats = 0
        self._doubtful: OutcomeUnknown | None = None
        self._failure: RopewalkError | None = None

    def failed(self, failure: RopewalkError, *, has_choice: bool) -> bool:
        """Record a failed attempt; return whether another one may be made, as long as there is time.

        `has_choice`: the message may go to another queue.
        """
        self._failure = failure
        if isinstance(failure, OutcomeUnknown):
            self._doubtful = failure
        if isinstance(failure, MOMENTARY):
            return True
        self._repeats += 1
        repeatable = isinstance(failure, OutcomeUnknown) or failure.code in RETRY_CODES
        return repeatable and has_choice and self._repeats <= self._retries

    def outcome(self) -> SendResult:
        """Return the result that was stored with a reservation, or raise the error that is true of all attempts."""
        if self.reserved is not None:
            return self.reserved
        assert self._failure is not None, "an attempt has failed"
        if self._doubtful is not None and self._failure is not self._doubtful:
            raise self._doubtful from self._failure
        raise self._failure
