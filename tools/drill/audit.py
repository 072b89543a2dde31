"""Judge the outcome of every message of a drill: what was promised, against what is there. Pure functions.

Only status 0 is an acknowledgement. 10, 11 and 12, a timeout and a lost connection leave a message's fate open: it may
be there or not, and neither is a fault. Any other answer says that this attempt stored nothing.

A producer that does not know what became of a message sends it again, as every client does. A message that was sent
twice may therefore be there twice; one that was sent once may not.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from ropewalk.codes import ResponseCode
from tools.drill.messages import Identity

OPEN_CODES = frozenset(
    {ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.FLUSH_SLAVE_TIMEOUT}
)
"""Stored, but not as safely as was asked for: unknown, in an audit."""
EXAMPLES_MAX = 10

Outcome = Literal["acknowledged", "unknown", "refused"]


UNSURE_REMARKS = ("TERM_CHANGED", "QUORUM_LATE")
"""What a DLedger leader says, with code 1, where the next leader may keep the message or not."""


def outcome_of(code: int | None, remark: str = "") -> Outcome:
    """Return the outcome of a request by its answer; None: no answer came."""
    if code == ResponseCode.SUCCESS:
        return "acknowledged"
    if code == ResponseCode.SYSTEM_ERROR and remark.startswith(UNSURE_REMARKS):
        return "unknown"
    return "unknown" if code is None or code in OPEN_CODES else "refused"


@dataclass(slots=True)
class Attempt:
    """A request and its answer. Times are the timeline's."""

    sent_at: float
    broker: str
    answered_at: float | None = None
    """When it was answered, or given up."""
    code: int | None = None
    remark: str = ""
    queue_offset: int | None = None
    log_offset: int | None = None

    @property
    def outcome(self) -> Outcome:
        return outcome_of(self.code, self.remark)


@dataclass(slots=True)
class Sent:
    """A message and all attempts to send it."""

    identity: Identity
    attempts: list[Attempt] = field(default_factory=list)

    @property
    def acknowledgement(self) -> Attempt | None:
        return next((attempt for attempt in self.attempts if attempt.outcome == "acknowledged"), None)

    @property
    def outcome(self) -> Outcome:
        outcomes = {attempt.outcome for attempt in self.attempts}
        return (
            "acknowledged"
            if "acknowledged" in outcomes
            else "refused"
            if outcomes == {"refused"}
            else "unknown"
        )

    def is_before(self, begin: int) -> bool:
        """Return whether it was acknowledged at a place before this offset of the log."""
        promised = self.acknowledgement
        return promised is not None and promised.log_offset is not None and promised.log_offset < begin


@dataclass(frozen=True, slots=True)
class Found:
    """A record that was found: at which place of its queue, and whose it is."""

    queue: int
    queue_offset: int
    identity: Identity | None
    """None: nobody of this run sent it."""
    intact: bool = True


class Finding(msgspec.Struct, frozen=True):
    """A kind of broken promise: how often, and a few examples."""

    kind: str
    count: int
    examples: tuple[str, ...]


class Audit(msgspec.Struct, kw_only=True):
    """The account of one run."""

    sent: int = 0
    acknowledged: int = 0
    unknown: int = 0
    unknown_found: int = 0
    """Messages of unknown fate that are there."""
    refused: int = 0
    """Messages that were refused, each time they were sent."""
    lost: int = 0
    """Acknowledged, and not there: the RPO, in messages."""
    removed: int = 0
    """Acknowledged, and not there because retention has removed their segments."""
    duplicates: int = 0
    """Records beyond the first of a message that was sent more than once."""
    order_violations: int = 0
    """Messages whose first record stands before that of an earlier one of the same producer and queue."""
    findings: list[Finding] = msgspec.field(default_factory=list)
    """Every broken promise, lost messages and order included."""


class _Notes:
    """Gathers findings by kind."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._examples: defaultdict[str, list[str]] = defaultdict(list)

    def add(self, kind: str, example: str) -> None:
        self._counts[kind] += 1
        if len(self._examples[kind]) < EXAMPLES_MAX:
            self._examples[kind].append(example)

    def count(self, kind: str) -> int:
        return self._counts[kind]

    def findings(self) -> list[Finding]:
        return [Finding(kind, count, tuple(self._examples[kind])) for kind, count in self._counts.items()]


LOST = "acknowledged but lost"
ORDER = "out of order"


def audit(sent: Iterable[Sent], found: Sequence[Found], begin: int = 0) -> Audit:
    """Hold every message that was sent against every record that is there.

    `found` holds each queue's records in the order of their offsets; queues may alternate. `begin` is where the log
    begins: what was acknowledged before it may be gone.
    """
    ledger = {entry.identity: entry for entry in sent}
    notes = _Notes()
    places = _places(ledger, found, notes)
    result = Audit(sent=len(ledger))
    for identity, entry in ledger.items():
        offsets = places.get(identity, [])
        outcome = entry.outcome
        if outcome == "acknowledged":
            result.acknowledged += 1
            if not offsets and entry.is_before(begin):
                result.removed += 1
                continue
            _judge_acknowledged(entry, offsets, notes)
        elif outcome == "refused":
            result.refused += 1
            if offsets:
                notes.add("refused but stored", f"message {identity} is at offset {offsets[0]}")
        else:
            result.unknown += 1
            result.unknown_found += bool(offsets)
        if len(offsets) > 1:
            result.duplicates += len(offsets) - 1
        # A refused attempt stored nothing, so only the others can have left a record.
        stored_by = sum(attempt.outcome != "refused" for attempt in entry.attempts)
        if len(offsets) > max(1, stored_by):
            notes.add("stored more often than sent", f"message {identity}: {len(offsets)} records")
    result.lost = notes.count(LOST)
    result.order_violations = notes.count(ORDER)
    result.findings = notes.findings()
    return result


def _places(ledger: dict[Identity, Sent], found: Sequence[Found], notes: _Notes) -> dict[Identity, list[int]]:
    """Where each message is, and what is wrong with the places as such."""
    places: dict[Identity, list[int]] = {}
    next_offset: dict[int, int] = {}
    last_number: dict[tuple[int, int], int] = {}
    for record in found:
        place = f"queue {record.queue} offset {record.queue_offset}"
        expected = next_offset.get(record.queue, record.queue_offset)
        if record.queue_offset != expected:
            notes.add("gap in a queue", f"{place} follows {expected - 1}")
        next_offset[record.queue] = record.queue_offset + 1
        identity = record.identity
        if identity is None or identity not in ledger:
            notes.add("never sent", f"{place}: {identity or 'a record of somebody else'}")
            continue
        if not record.intact:
            notes.add("changed", f"{place}: message {identity} has another body than was sent")
        if identity.queue != record.queue:
            notes.add("in another queue", f"{place}: message {identity} was sent to queue {identity.queue}")
        if identity in places:
            places[identity].append(record.queue_offset)
            continue
        places[identity] = [record.queue_offset]
        key = identity.lane, record.queue
        before = last_number.get(key)
        if before is not None and identity.number < before:
            notes.add(ORDER, f"{place}: message {identity} stands behind number {before} of its producer")
        last_number[key] = max(before or 0, identity.number)
    return places


def _judge_acknowledged(entry: Sent, offsets: list[int], notes: _Notes) -> None:
    promised = entry.acknowledgement
    assert promised is not None, "asked only about acknowledged messages"
    what = f"message {entry.identity}, acknowledged by {promised.broker} at {promised.answered_at or 0:.3f} s"
    if not offsets:
        notes.add(LOST, f"{what} as offset {promised.queue_offset} of queue {entry.identity.queue}")
    elif promised.queue_offset is not None and promised.queue_offset not in offsets:
        notes.add("moved", f"{what} as offset {promised.queue_offset}, is at {offsets[0]}")


def overlapping_acknowledgements(sent: Sequence[Sent], masters: Sequence[tuple[float, str]]) -> int:
    """Count the acknowledgements of brokers whose period was over.

    `masters` says who was made the master and when, in order. From its first acknowledgement on, nobody else may
    acknowledge a request that was sent later, until another one is made the master. What was under way at that moment
    is not counted: its answer may have been given before.
    """
    answered = [
        (attempt.broker, attempt.sent_at, attempt.answered_at or 0.0)
        for entry in sent
        for attempt in entry.attempts
        if attempt.outcome == "acknowledged"
    ]
    count = 0
    ends = [*(begin for begin, _ in masters[1:]), float("inf")]
    for (begin, master), end in zip(masters, ends, strict=True):
        within = [(broker, sent_at) for broker, sent_at, at in answered if begin <= at < end]
        first = min((at for broker, _, at in answered if broker == master and begin <= at < end), default=end)
        count += sum(broker != master and sent_at > first for broker, sent_at in within)
    return count
