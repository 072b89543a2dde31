"""Repair a damaged place of the log from another member's copy: which members to ask, and which bytes to believe.

    LOG_BLOCK (30011)   any member to any other, on the remoting port: `BlockRequest` -> `BlockResponse`

Either side asks: a slave its master first, a master its slaves, and each then the other slaves of the policy.
RocketMQ's brokers are never asked. The damaged place is known in whole blocks, and how to tell that a block is right
depends on what its owner still has:

    checksum of the block    the bytes must have it; it was made when the block was flushed
    no checksums             the other's must vouch for them, and spliced into what is whole here they must be records
                             that stand where they say; what both have in front of them must be the same

A member that is asked gives nothing that does not match its own checksums, and nothing of a part of the log that its
list of epochs and the asker's tell apart: on a part that diverged, each copy is right and neither is the other's.

Pure: `RepairSchedule` says which place is due, `repair_bytes` what to fetch and whether to take it, `refusal_of` what
to give. Left to others: the conversation (the caller's), and reading and writing the place
(`store.integrity.block_repair`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from ha.group.epochs import Epochs
from ha.group.hello import EpochPairs, decode_untrusted
from ha.group.roles import Number, RoleRecord
from ropewalk.errors import CorruptRecord, RemoteProtocolError
from ropewalk.format.sidecar import BLOCK_SIZE, block_sum
from store.integrity.checksums import Damaged
from store.integrity.scrubber import whole_records

__all__ = [
    "BlockRequest",
    "BlockResponse",
    "RepairSchedule",
    "RepairRefused",
    "Span",
    "repair_bytes",
    "refusal_of",
    "block_untrusted",
    "repair_sources",
]

PIECES_MAX = 8
"""Blocks that one place may need: the longest record and its neighbours."""
RETRY_FIRST_MS, RETRY_MAX_MS = 1_000, 60_000


class BlockRequest(msgspec.Struct, frozen=True):
    """A member's request for bytes that it has lost."""

    cluster: str
    broker_name: str
    address: str
    """The address of the sender on the remoting port."""
    segment_size: Number
    start: Number
    """Log offsets, of one segment."""
    end: Number
    wanted: Number | None
    """The CRC32C that the bytes have; None where the sender has no checksums of them."""
    log_end: Number
    epochs: EpochPairs = []


class BlockResponse(msgspec.Struct, frozen=True):
    """The bytes that were asked for."""

    start: Number
    sum: Number
    """CRC32C of `data`."""
    data: bytes


class RepairRefused(Exception):
    """A refusal of another member's bytes: the text says why they are not those that are missing here."""


@dataclass(frozen=True, slots=True)
class Span:
    """A range of the log to be asked for, at most a block."""

    start: int
    end: int
    wanted: int | None


# -- whoever is asked -----------------------------------------------------------------------------------------


def refusal_of(
    ask: BlockRequest,
    cluster: str,
    broker_name: str,
    segment_size: int,
    epochs: Epochs,
    begin: int,
    flushed: int,
) -> str | None:
    """Return the reason why this member does not even look for these bytes, or None.

    Its log goes from `begin`; what is `flushed` is final.
    """
    if (ask.cluster, ask.broker_name) != (cluster, broker_name):
        return f"this broker belongs to {broker_name} of cluster {cluster}"
    if ask.segment_size != segment_size:
        return f"mappedFileSizeCommitLog is {segment_size} here and {ask.segment_size} there"
    if not 0 <= ask.start < ask.end <= ask.start - ask.start % segment_size + segment_size:
        return f"from {ask.start} to {ask.end} is no part of one segment"
    if ask.end - ask.start > BLOCK_SIZE:
        return f"{ask.end - ask.start} bytes; at most {BLOCK_SIZE} are given at a time"
    if not begin <= ask.start or ask.end > flushed:
        return f"this log has {begin} to {flushed}, and not all of {ask.start} to {ask.end}"
    try:
        theirs = Epochs.of(ask.epochs)
    except ValueError as exc:
        return f"this list of epochs makes no sense: {exc}"
    same = epochs.agree_up_to(flushed, theirs, ask.log_end)
    if ask.end > same:
        return f"the two logs have the same writers up to {same} only"
    return None


# -- whoever asks ---------------------------------------------------------------------------------------------


def repair_sources(
    record: RoleRecord, own: str, master: str, acknowledged: Mapping[str, int], end: int
) -> tuple[str, ...]:
    """Return the other members, those first that are most likely to have the bytes before `end`.

    `master` is a slave's master; `acknowledged` what slaves that are connected here have reported.
    """
    others = set(record.policy.slaves.values()) | ({master} if master else set()) | set(acknowledged)
    return tuple(
        sorted(others - {own, ""}, key=lambda each: (each != master, acknowledged.get(each, -1) < end, each))
    )


def block_untrusted(span: Span, body: bytes) -> bytes:
    """Return the bytes of an answer. Raises `RemoteProtocolError` if they are not those that were asked for."""
    answer = decode_untrusted(BlockResponse, body)
    if answer.start != span.start or len(answer.data) != span.end - span.start:
        raise RemoteProtocolError(
            f"asked for log offset {span.start} to {span.end}, it sent {len(answer.data)} bytes of {answer.start}"
        )
    found = block_sum(answer.data)
    if found != answer.sum:
        raise RemoteProtocolError(f"the bytes of log offset {span.start} were changed on their way")
    if span.wanted is not None and found != span.wanted:
        raise RemoteProtocolError(
            f"the bytes of log offset {span.start} to {span.end} do not match the checksum kept here"
        )
    return answer.data


def repair_bytes(
    place: Damaged,
    before: bytes,
    segment_size: int,
    block_size: int = BLOCK_SIZE,
    check: Callable[[bytes, int, int], tuple[int, bool]] = whole_records,
) -> Generator[Span, bytes, bytes]:
    """Collect the bytes of a damaged place: yields each span to ask for, is sent its bytes, returns those to put there.

    `before` is what is whole in the place, in front of the records of which one is not, by `check`. What is returned
    can be longer than the place, by whole blocks: a damaged size does not tell where its record ends. Raises
    `RepairRefused`.
    """
    data = b""
    if place.stop - place.start > PIECES_MAX * block_size:
        raise RepairRefused(
            f"{place.stop - place.start} bytes are more than is fetched while the broker runs"
        )
    while True:
        start = place.start + len(data)
        stop = min(start + block_size, segment_size)
        if place.wanted is not None:
            stop = place.stop
        if start >= stop or len(data) // block_size >= PIECES_MAX:
            raise RepairRefused(f"no record ends in the {len(data)} bytes from log offset {place.offset} on")
        data += yield Span(place.base_offset + start, place.base_offset + stop, place.wanted)
        if place.wanted is not None:
            return data
        if place.start + len(data) < place.stop:
            continue
        at = place.record - place.start
        if data[:at] != before:
            raise RepairRefused("it differs in what is whole here, too: its log is another one")
        try:
            used, at_filler = check(data[at:], place.base_offset + place.record, segment_size - place.record)
        except CorruptRecord as exc:
            raise RepairRefused(f"its copy is damaged, too: {exc}") from exc
        if used or at_filler:
            return data


# -- when, and of whom ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Tried:
    again_ms: int = 0
    pause_ms: int = RETRY_FIRST_MS
    told: str = ""


@dataclass(slots=True)
class RepairSchedule:
    """The order in which damaged places are repaired, and the reports about those that no member could repair."""

    _tried: dict[Damaged, _Tried] = field(default_factory=dict)
    _uncertain: set[Damaged] = field(default_factory=set)

    def due(self, places: Sequence[Damaged], now_ms: int) -> Damaged | None:
        """Return the place to repair now: the oldest bytes of those whose time has come."""
        for gone in self._tried.keys() - set(places):
            del self._tried[gone]
            self._uncertain.discard(gone)
        return next(
            (place for place in places if place not in self._tried or self._tried[place].again_ms <= now_ms),
            None,
        )

    def is_uncertain(self, place: Damaged) -> bool:
        """Return whether the bytes at this place may be on no disk: they are written anew, however good they look."""
        return place in self._uncertain

    def not_durable(self, place: Damaged) -> None:
        """Note that a place was written and its sync failed: after that the page cache proves nothing."""
        self._uncertain.add(place)

    def failed(self, place: Damaged, reasons: Iterable[str], now_ms: int) -> str | None:
        """Schedule a failed place anew, ever more rarely; return the reasons, unless they were reported already."""
        tried = self._tried.setdefault(place, _Tried())
        tried.again_ms, tried.pause_ms = now_ms + tried.pause_ms, min(2 * tried.pause_ms, RETRY_MAX_MS)
        text = "; ".join(reasons) or "there is no other member to ask"
        if text == tried.told:
            return None
        tried.told = text
        return text
