"""A scan of the log behind a crash, from a safe place on, with a verdict on every place where no record begins.

The decision is the table `RULES`; nothing else in the store cuts bytes. Recovery first finds where to begin (the
bound file, else the checkpoint as RocketMQ uses it, else the beginning), walks the records, lets queues catch up,
and stops at the first sighting that is no record and no filler. Dead bytes behind the end are copied aside under
`ropewalk/tails/` before they are zeroed: left in place they would come back to life when the log grows over them.

What is damage (bytes that were promised to be durable) stops the start with a message that names file, offset and
command. It is never repaired here: a person decides.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ropewalk.format.find import find_bytes
from ropewalk.format.record import MAGIC_V1, MAGIC_V2
from store.io.disk import Disk
from store.log.commitlog import CommitLog, StoreDamaged
from store.log.durable_bound import Bound
from store.log.remedy import bytes_from_a_copy
from store.log.segment import FILLER_HEADER_SIZE, Segment
from store.queues.consume_queue import ConsumeQueue
from store.recovery.record_scan import BORN_V6, HEAD, SIZE_MIN, STORE_V6, NoRecord, ScannedRecord, scan_record

_I32 = struct.Struct(">i")
_CHUNK = 1 << 20
_MAGIC_BYTES = (struct.pack(">I", MAGIC_V1), struct.pack(">I", MAGIC_V2))


# -- the decision ------------------------------------------------------------------------------------


class Verdict(enum.Enum):
    KEEP = "a record"
    NEXT_FILE = "carry on in the next segment"
    LOG_ENDS = "the log ends here"
    CUT = "cut here, after a copy"
    REFUSE = "damage: a person decides"


F, T, ANY = False, True, None
RULES: tuple[
    tuple[bool | None, bool | None, bool | None, bool | None, bool | None, bool | None, Verdict], ...
] = (
    # blank filler valid past_durable valid_follows sync_flush
    (F, F, T, ANY, ANY, ANY, Verdict.KEEP),
    (F, T, ANY, ANY, ANY, ANY, Verdict.NEXT_FILE),
    (T, ANY, ANY, T, F, ANY, Verdict.LOG_ENDS),
    (F, F, F, T, F, ANY, Verdict.CUT),  # torn at the tail: no one was told it was safe
    (T, ANY, ANY, T, T, F, Verdict.CUT),  # pages reached the disk out of order
    (F, F, F, T, T, F, Verdict.CUT),  # a cut is copied aside first, then zeroed
    (T, ANY, ANY, T, T, T, Verdict.REFUSE),
    (F, F, F, T, T, T, Verdict.REFUSE),
    (T, ANY, ANY, F, ANY, ANY, Verdict.REFUSE),  # a hole before durable data
    (F, F, F, F, ANY, ANY, Verdict.REFUSE),
)


def judge(
    *, blank: bool, filler: bool, valid: bool, past_durable: bool, valid_follows: bool, sync_flush: bool
) -> Verdict:
    """The one verdict of RULES for a sighting."""
    case = (blank, filler, valid, past_durable, valid_follows, sync_flush)
    for *row, verdict in RULES:
        if all(want is ANY or want == have for want, have in zip(row, case, strict=True)):
            return verdict
    raise AssertionError(f"no rule for {case}")


# -- the walk ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Recovered:
    """The result of recovery: where the log ends now, and what it did about it, in words for the log."""

    end: int
    scanned_from: int
    durable: int = 0
    """Up to here the log has survived a flush; what lies behind may be in the page cache only."""
    records: int = 0
    findings: tuple[str, ...] = ()
    last_store_timestamp: int = 0


class QueueGap(Exception):
    """A queue's files lack entries from before the place where the walk began: begin at the beginning."""


def walk(
    log: CommitLog,
    start: int,
    durable: int,
    sync_flush: bool,
    flushed_ms: int = 0,
    delay_ms: Callable[[str], int] | None = None,
    skip: Callable[[int], int] | None = None,
) -> Iterator[ScannedRecord | tuple[Verdict, int]]:
    """Yield every record from `start` on, then one (verdict, offset) that says why and where the walk ended.

    `skip` may take records itself, from an offset on, and says where the next one is. Durable is what lies below
    `durable`, and below a record stored before `flushed_ms`, the checkpoint's time.
    """
    offset = start
    while (segment := log.find(offset)) is not None:
        if skip is not None and (further := skip(offset)) > offset:
            offset = further
            continue
        seen = scan_record(segment, offset - segment.base_offset, delay_ms)
        if isinstance(seen, ScannedRecord):
            if not lost_its_tail(log, seen, durable):
                yield seen
                offset = seen.end
                continue
            seen = NoRecord.BAD  # whole as far as checksums tell, and yet torn
        if seen is NoRecord.FILLER:
            offset = segment.end_offset
            continue
        follows = follower(log, offset)
        verdict = judge(
            blank=seen is NoRecord.BLANK,
            filler=False,
            valid=False,
            past_durable=offset >= durable and (follows is None or follows.store_timestamp >= flushed_ms),
            valid_follows=follows is not None,
            sync_flush=sync_flush,
        )
        yield verdict, offset
        return
    yield (Verdict.LOG_ENDS if offset >= durable else Verdict.REFUSE), offset


def lost_its_tail(log: CommitLog, record: ScannedRecord, durable: int) -> bool:
    """Tell whether the end of a record's properties may be zeros of a page that never reached the disk.

    No checksum covers them. They are genuine if the next record, or the filler, begins right behind them: its head
    would be zeros too. Records further on prove nothing, since pages reach a disk in any order.
    """
    if not record.ends_in_zero or record.offset < durable:
        return False
    end = record.end
    segment = log.find(end)
    return segment is None or not (
        isinstance(found := scan_record(segment, end - segment.base_offset), ScannedRecord)
        or found is NoRecord.FILLER
    )


def next_valid(log: CommitLog, offset: int) -> ScannedRecord | None:
    """Return the next possible record behind a place, bad or not: for reports, and to read on where a walk has stopped.

    What a record claims for itself is passed over, as in `follower`. In a stretch that no header vouches for, bytes
    that a producer made to look like a record are taken for one.
    """
    offset, seen = _past_claims(log, offset)
    return seen or next(candidates(log, offset), None)


def follower(log: CommitLog, offset: int) -> ScannedRecord | None:
    """A record that proves that the bad place before it was written, and was followed by more; None if there is none.

    Producers choose bodies, and can guess at which log offset one will stand: a body can hold bytes that are a valid
    record for their very place. So nothing inside the extent that the record at `offset`, or one adjoining it, claims
    for itself counts. Where the claim is lost (the page with the header never reached the disk), only such a record
    counts as leads from record to record to the end of everything that was ever written: forged ones end inside
    their body, with the rest of the record that carries them behind them.

    What remains: forged records that take the topic and properties behind the body for their own end where their
    carrier does, and count if it was the last of the log and a power loss took the page with its header; the start
    is refused then, and nothing is cut. And genuine records between a lost header and a second torn place are not
    told from forged ones: they are copied aside with the rest, where the log was not known to be durable.
    """
    offset, seen = _past_claims(log, offset)
    if seen is not None:
        return seen
    last: int | None = None
    dead_ends: set[int] = set()
    for candidate in candidates(log, offset):
        if last is None:
            last = _last_written(log)
        if _leads_to_end(log, candidate, last, dead_ends):
            return candidate
    return None


def _past_claims(log: CommitLog, offset: int) -> tuple[int, ScannedRecord | None]:
    """Go from `offset` over what records there claim for themselves, up to a whole one or to what claims nothing.

    Returns where that is and the whole record, if it is one behind `offset`.
    """
    begin = offset
    while (segment := log.find(offset)) is not None:
        position = offset - segment.base_offset
        seen = scan_record(segment, position)
        if isinstance(seen, ScannedRecord):
            if offset > begin:
                return offset, seen
            offset = seen.end
        elif seen is NoRecord.FILLER:
            offset = segment.end_offset
        elif (size := _claimed_size(segment, position)) is not None:
            offset += size
        else:
            break
    return offset, None


def _claimed_size(segment: Segment, position: int) -> int | None:
    """The size that a torn record claims, if what is there of its lengths does not contradict it."""
    data, size_left = segment.map, segment.size - position
    if size_left < SIZE_MIN:
        return None
    size: int
    size, magic, _crc, _queue_id, _flag, _number, offset, sys_flag, _born = HEAD.unpack_from(data, position)
    if magic not in (MAGIC_V1, MAGIC_V2) or not SIZE_MIN <= size <= size_left:
        return None
    if offset != segment.base_offset + position:
        return None
    body_at: int = 84 + (12 if sys_flag & BORN_V6 else 0) + (12 if sys_flag & STORE_V6 else 0)
    if body_at + 4 > size:
        return None
    (body_size,) = _I32.unpack_from(data, position + body_at)
    topic_at = body_at + 4 + body_size
    topic_bytes = 1 if magic == MAGIC_V1 else 2
    if body_size < 0 or not 2 + topic_bytes <= size - topic_at <= 0x10000 + 0x8000:
        return None
    topic_size = int.from_bytes(data[position + topic_at : position + topic_at + topic_bytes], "big")
    properties_at = topic_at + topic_bytes + topic_size + 2
    if topic_size and properties_at > size:
        return None
    if topic_size and (stated := data[position + properties_at - 2 : position + properties_at]) != bytes(2):
        return size if properties_at + int.from_bytes(stated, "big") == size else None
    return size  # the tail is torn off, and the zeros in its place claim nothing


def candidates(log: CommitLog, offset: int) -> Iterator[ScannedRecord]:
    """Yield every valid record for its place behind `offset`, or at it; overlapping ones too."""
    for segment in log.segments:
        for start, end in segment.file.data_ranges(max(offset - segment.base_offset, 0)):
            for magic in _MAGIC_BYTES:
                found = find_bytes(segment.map, magic, start, end)
                while found >= 0:
                    place = found - 4 - segment.placing.head_size
                    if segment.base_offset + place >= offset and place >= 0:
                        seen = scan_record(segment, place)
                        if isinstance(seen, ScannedRecord):
                            yield seen
                    found = find_bytes(segment.map, magic, found + 1, end)


def _leads_to_end(log: CommitLog, seen: ScannedRecord, last: int, dead_ends: set[int]) -> bool:
    """Whether records follow each other from this one to behind `last`. Remembers in `dead_ends` what does not."""
    passed: list[int] = []
    offset = seen.offset
    while offset <= last:
        passed.append(offset)
        segment = log.find(offset)
        if segment is None or offset in dead_ends:
            break
        position = offset - segment.base_offset
        at = scan_record(segment, position)
        if isinstance(at, ScannedRecord):
            offset = at.end
        elif at is NoRecord.FILLER and _last_in(segment, position) < position + FILLER_HEADER_SIZE:
            offset = segment.end_offset
        else:
            break
    else:
        return True
    dead_ends.update(passed)
    return False


def _last_written(log: CommitLog) -> int:
    """The log offset of the last byte that is not zero, or -1."""
    for segment in reversed(log.segments):
        if (position := _last_in(segment, 0)) >= 0:
            return segment.base_offset + position
    return -1


def _last_in(segment: Segment, position: int) -> int:
    """The last place at or behind `position` with a byte that is not zero, or -1."""
    for start, end in reversed(segment.file.data_ranges(position)):
        for at in range(end, start, -_CHUNK):
            begin = max(start, at - _CHUNK)
            data = segment.map[begin:at].rstrip(b"\0")
            if data:
                return begin + len(data) - 1
    return -1


def refuse(log: CommitLog, offset: int, durable: int) -> StoreDamaged:
    segment = log.find(offset)
    root, verb = log.directory.parent, "recover"
    if log.placing.head_size:
        root, verb = root.parent, "verify"
    if segment is not None:
        what = f"damaged record in {segment.file.path} at byte {offset - segment.base_offset} (log offset {offset})"
    else:
        what = f"files are missing from {log.directory}, which ends at log offset {offset}"
    return StoreDamaged(
        f"{what}; bytes up to {durable} were promised to be durable. "
        f"Nothing was changed. `ropewalk store {verb} {root}` tells more. {bytes_from_a_copy(log.placing, root)}"
    )


def cut(log: CommitLog, end: int, tails: Path, disk: Disk) -> list[str]:
    """Make the log end at `end`: dead bytes go to `tails`, then to zero; empty later segments are removed.

    Afterwards the disk has it so, whatever was found: a start that was killed in the middle of this leaves zeros in the
    page cache and dead bytes under them, and removed files whose names a loss of power brings back. Dead bytes behind
    the end would be believed again as soon as the log has grown up to one of their records.
    """
    findings: list[str] = []
    # The first segment stays, even if nothing in it does: its name tells where the log goes on.
    while len(log.segments) > 1 and log.segments[-1].base_offset >= end:
        segment = log.segments[-1]
        findings += _copy_aside(segment, 0, tails, disk)
        log.drop_last()
    if log.segments and log.segments[-1].base_offset <= end:
        segment = log.segments[-1]
        position = end - segment.base_offset
        findings += _copy_aside(segment, position, tails, disk)
        segment.end_at(position)
        for earlier in log.segments[:-1]:
            earlier.end_at(earlier.size)
        segment.file.sync()
        disk.sync_directory(log.directory)
    return findings


def _copy_aside(segment: Segment, position: int, tails: Path, disk: Disk) -> list[str]:
    """Save what is not zero behind `position`, and zero it. Returns a finding if there was anything."""
    saved = 0
    target = tails / f"{segment.base_offset + position:020d}"
    for start, end in segment.file.data_ranges(position):
        for at in range(start, end, _CHUNK):
            data = segment.map[at : min(at + _CHUNK, end)]
            if data.count(0) == len(data):
                continue
            disk.append_file(target, data)
            saved += len(data)
            segment.map[at : at + len(data)] = bytes(len(data))
    if not saved:
        return []
    return [
        f"dead bytes behind log offset {segment.base_offset + position} were moved to {target} ({saved} bytes)"
    ]


def start_of_walk(log: CommitLog, bound: Bound | None, boot: bytes, checkpoint_ms: int) -> int:
    """The nearest log offset from which walking misses no record that a queue file might lack.

    `checkpoint_ms` is RocketMQ's rule: records stored before it are in the log and in the queue files.
    """
    if not log.segments:
        return 0
    if bound is not None and log.min_offset <= bound.queues <= log.segments[-1].end_offset:
        if bound.clean or bound.boot == boot:
            return bound.queues
    for segment in reversed(log.segments):
        first = scan_record(segment, 0)
        if isinstance(first, ScannedRecord) and first.store_timestamp <= checkpoint_ms:
            return segment.base_offset
    return log.min_offset


def last_store_time(queue: ConsumeQueue, log: CommitLog) -> int:
    """Return when the last message of a queue was stored, ms; 0 if its record is gone."""
    if queue.next_offset == queue.min_offset:
        return 0
    offset, _size, _tags = queue.read(queue.next_offset - 1)
    segment = log.find(offset)
    place = offset - log.placing.head_size
    seen = scan_record(segment, place - segment.base_offset) if segment is not None else None
    return seen.store_timestamp if isinstance(seen, ScannedRecord) else 0


def confirm_queue(queue: ConsumeQueue, log: CommitLog, start: int) -> int:
    """Count the entries of a queue's files that the walk builds on: those of records before `start`.

    What the files say about later records is not believed, since the walk knows better. The last entry that stays
    must name its own record, or the files are not what they were: `QueueGap`. Those before it are not looked at.
    """
    count = queue.next_offset
    if queue.max_physical <= start and _names_its_record(queue, log, count - 1):
        return count
    count = queue.find(start)
    # Where the segment is gone there is nothing to compare with, and the numbers still count.
    if count > queue.min_offset and _names_its_record(queue, log, count - 1) is False:
        raise QueueGap
    return count


def _names_its_record(queue: ConsumeQueue, log: CommitLog, number: int) -> bool | None:
    """Whether an entry names the record that it is for; None where that is gone, or there is no such entry."""
    if number < queue.min_offset:
        return None
    offset, size, _tags = queue.read(number)
    segment = log.find(offset)
    if segment is None:
        return None
    seen = scan_record(segment, offset - log.placing.head_size - segment.base_offset)
    return isinstance(seen, ScannedRecord) and (seen.size, seen.topic, seen.queue_id, seen.queue_offset) == (
        size,
        queue.topic,
        queue.queue_id,
        number,
    )
