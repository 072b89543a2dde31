"""`Trial`: the attempts of one call of a key-value client, and the pauses between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from ropewalk.client.core.backoff import Backoff
from ropewalk.client.core.connection import Unreachable
from ropewalk.client.core.steps import Pause, Steps
from ropewalk.codes import ResponseCode
from ropewalk.errors import OutcomeUnknown, Rejected, RemoteProtocolError, RopewalkError, TryLater

ATTEMPT_S: Final = 2.0
"""How long an attempt waits: a member that was stopped answers nobody, and another one may lead by then."""


def kv_backoff() -> Backoff:
    """Return the pauses between attempts of a call, or to get a lock."""
    return Backoff(0.02, 0.5)


class Trial:
    """The attempts of one call: the time that is left, the pauses, and whether one of them may have been applied."""

    def __init__(self, clock: Callable[[], float], whole_s: float) -> None:
        self.in_doubt = False
        self.over = False
        """Whether no other attempt may be made."""
        self._clock = clock
        self._until = clock() + whole_s
        self._backoff = kv_backoff()
        self._failure: RopewalkError = OutcomeUnknown("time was up before the first attempt")

    @property
    def seconds(self) -> float:
        """Return how long the next attempt may take."""
        return max(min(self._until - self._clock(), ATTEMPT_S), 0.001)

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Note the failure of an attempt; raise it if another attempt would end alike, or time is up."""
        try:
            yield
        except (Rejected, RemoteProtocolError):
            raise
        except RopewalkError as exc:
            self.in_doubt = self.in_doubt or isinstance(exc, OutcomeUnknown)
            self._failure = exc
            if self.over or not self._may_go_on(exc):
                raise

    def _may_go_on(self, exc: RopewalkError) -> bool:
        transient = Unreachable | OutcomeUnknown | TryLater
        is_elsewhere = exc.code in (ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_BUSY)
        return isinstance(exc, transient) or is_elsewhere

    def pause(self) -> Steps[None]:
        """Pause before the next attempt. Raises the last failure, or `OutcomeUnknown`, when time is up."""
        pause_s = self._backoff.next_s()
        if self._clock() + pause_s >= self._until:
            if self.in_doubt and not isinstance(self._failure, OutcomeUnknown):
                raise OutcomeUnknown(f"an attempt got no answer, and no other one did: {self._failure}")
            raise self._failure
        yield Pause(pause_s)
