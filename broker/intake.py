"""The fast intake: requests that a client sends again and again, recognised by their bytes and taken by runs.

    a read that is one send     known header -> put off until the turn ends, with the sends of other clients
    a run of requests           sends, and decisions of transactions -> appended at once
                                known pulls  -> answered from memory

Everything else is left for `Session.handle`, with which this has to agree: the tests send the same messages by both
ways and compare what is stored and answered, and run once more without an intake (`fastPathEnable=false`).

What was learned of a client (`ClientTemplates`) is kept in its session. Left to others: recognising and storing sends
(`broker.produce.fast`), deciding transactions (`broker.transactions.end_runs`), recognising pulls
(`broker.consume.fast`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from broker.consume.fast.header_template import PullTemplates
from broker.consume.pull import PullProcessor
from broker.produce.fast.runs import RUN_MAX, SendRuns
from broker.produce.fast.template_cache import SendTemplates
from broker.remoting.session import Session
from broker.transactions.end_runs import END_OPENING, EndRuns

__all__ = ["ClientTemplates", "FastIntake"]

_PULL: Final = b'{"code":11,'
_HALVED_MAX: Final = 128
"""A run of as many is not split: its client has enough to do with the answers of the run before."""
_RUN_MIN: Final = 24
"""Half a run has as many requests, or is not split off: each run costs more by itself than its client gains."""


@dataclass(slots=True)
class ClientTemplates:
    """The templates of one client's headers."""

    sends: SendTemplates = field(default_factory=SendTemplates)
    pulls: PullTemplates = field(default_factory=PullTemplates)


class FastIntake:
    """The intake of one port. `Intake` says what a session expects of it."""

    def __init__(
        self,
        runs: SendRuns,
        ends: EndRuns,
        pulls: PullProcessor | None,
        replicate_early: Callable[[], None],
    ) -> None:
        """`pulls` is None where the port serves none; `replicate_early` has slaves work on what is appended so far."""
        self._runs = runs
        self._ends = ends
        self._pulls = pulls
        self._replicate_early = replicate_early
        self.flush_deferred = runs.flush_deferred
        """Store and answer deferred sends; before a turn ends. HOT."""

    def take_read(self, session: Session, data: bytes) -> bool:
        """Take a read that is one known send, if it is; return whether it was taken, which owes nothing yet. HOT."""
        templates = session.fast
        # One request and nothing else is what most clients send nearly always: there is nothing to cut.
        return (
            templates is not None
            and templates.sends.any
            and session.frames.is_whole(data)
            and self._runs.defer_single(session, templates.sends, data[4:])
        )

    def take_run(self, session: Session, payloads: Sequence[bytes], start: int) -> int:
        """Take known pulls, sends and ends from `start` on; return the index of the first request that is left. HOT."""
        templates = session.fast
        if templates is None:
            templates = session.fast = ClientTemplates()
        sends, index, count = templates.sends, start, len(payloads)
        while index < count:
            payload = payloads[index]
            if payload.startswith(_PULL, 4):
                # What was put off is stored before its sender hears of anything behind it.
                if sends.deferred:
                    self._runs.flush_deferred()
                if self._pulls is None or not self._pulls.pull_by_template(session, templates.pulls, payload):
                    return index
                index += 1
                continue
            end = index + _run_of(session, count - index)
            if payload.startswith(END_OPENING, 4):
                if sends.deferred:
                    self._runs.flush_deferred()
                behind = self._ends.end_run(session, payloads, index, end)
            else:
                behind = self._runs.store_run(session, sends, payloads, index, end)
            if behind == index:
                return index
            index = behind
            if index < count:
                # A client with its window full works on these answers while the rest of its requests is handled. Where
                # nobody else has work for this loop, halves keep both at work: 1.5 times the rate at 1 x 64.
                session.outbox.flush_part(self._replicate_early)
        return index


def _run_of(session: Session, left: int) -> int:
    """How many of the requests that are left are taken together."""
    if 2 * _RUN_MIN <= left < _HALVED_MAX and session.link.sole_ready:
        left = (left + 1) // 2
    return min(left, RUN_MAX)
