"""The scrubber: reads the whole log again and again, slowly, so that damage is found before somebody needs the bytes.

Segments with checksums are compared with them. Segments without, which RocketMQ wrote or whose sidecar was lost, are
read record by record, and get a sidecar if all is well. The loop hands out a budget of bytes a second and a helper
thread spends it; what was found comes back as sentences for the log, and as places for whoever can make them whole
(`mending`). Nothing is changed here but sidecars.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ropewalk.errors import CorruptRecord
from ropewalk.format.dledger.entry import HEAD_SIZE, check_body, decode_head, filler_size
from ropewalk.format.record import MAGIC_BLANK, RECORD_SIZE_MIN, decode_record, read_frame
from ropewalk.format.sidecar import Sidecar, block_sum
from store.integrity.checksums import Checksums, Damaged, block_at, damage_text
from store.io.workers import Worker
from store.log.commitlog import CommitLog
from store.log.placing import Placing
from store.log.segment import Segment

_AT_ONCE_MAX = 8 << 20
_SAVED_UP_S = 2
_RECORD_MAX = 64 << 20
"""No record is as long as this; a size that says so is damage."""


class Scrubber:
    """Belongs to the loop; `_spend` runs on the worker."""

    def __init__(
        self,
        log: CommitLog,
        checksums: Checksums,
        bytes_per_second: int,
        block_size: int,
        worker: Worker,
        reported: Callable[[], None] = lambda: None,
    ) -> None:
        """`reported` is called on the loop when there may be something new in `checksums.reported`."""
        self.findings: list[str] = []
        self.passes = 0
        """How often the whole log was read."""
        self._log = log
        self._checksums = checksums
        self._rate = bytes_per_second
        self._block_size = block_size
        self._worker = worker
        self._allowance = 0.0
        self._ticked_ms = 0
        self._busy = False
        self._told = reported
        self._next_base = 0
        self._segment: Segment | None = None
        self._reading: Iterator[int] = iter(())

    def tick(self, now_ms: int, flushed_offset: int) -> None:
        """Submit as many bytes as the budget allows by now to the worker."""
        elapsed = min(max(now_ms - self._ticked_ms, 0), 1000 * _SAVED_UP_S) if self._ticked_ms else 0
        self._ticked_ms = now_ms
        if self._rate <= 0 or self._busy:
            return
        ceiling = max(self._rate * _SAVED_UP_S, self._block_size)
        self._allowance = min(self._allowance + self._rate * elapsed / 1000, ceiling)
        if self._allowance < self._block_size:
            return
        segment = self._segment
        if segment is None or segment not in self._log.segments:
            segment = self._segment = self._choose(flushed_offset)
            if segment is None:
                return
            self._reading = self._read(segment, self._checksums.get(segment))
        budget = int(min(self._allowance, _AT_ONCE_MAX))
        self._busy = True
        segment.pins += 1

        def done(spent: tuple[int, bool], segment: Segment = segment) -> None:
            segment.pins -= 1
            self._busy = False
            self._allowance -= spent[0]
            if spent[1]:
                self._next_base = segment.end_offset
                self._segment = None
            self._told()

        self._worker.submit(lambda: self._spend(budget), done)

    def _choose(self, flushed_offset: int) -> Segment | None:
        """The next full segment, round and round."""
        full = [
            segment
            for segment in self._log.segments[:-1]
            if segment.end_offset <= flushed_offset and not self._checksums.is_owed(segment)
        ]
        chosen = next((s for s in full if s.base_offset >= self._next_base), None)
        if chosen is None and full:
            self.passes += 1
            chosen = full[0]
        return chosen

    def _spend(self, budget: int) -> tuple[int, bool]:
        """On the worker: read so much; how much it was, and whether the segment is done."""
        spent = 0
        try:
            while spent < budget:
                size = next(self._reading, None)
                if size is None:
                    return spent, True
                spent += size
        except OSError as exc:
            assert self._segment is not None
            self.findings.append(f"{self._segment.file.path} cannot be read: {exc}")
            return spent, True
        return spent, False

    def _read(self, segment: Segment, sidecar: Sidecar | None) -> Iterator[int]:
        if sidecar is not None and sidecar.is_complete:
            return self._compare(segment, sidecar)
        return self._adopt(segment)

    def _compare(self, segment: Segment, sidecar: Sidecar) -> Iterator[int]:
        for number, wanted in enumerate(list(sidecar.sums)):
            start, stop = sidecar.block(number)
            try:
                is_whole = block_sum(segment.file.read_at(start, stop - start)) == wanted
            except OSError as exc:
                self.findings.append(f"{segment.file.path} cannot be read at byte {start}: {exc}")
                is_whole = False
            if not is_whole:
                self.findings.append(damage_text(segment, start, stop, self._checksums.directory))
                self._checksums.reported.append(Damaged(segment.base_offset, start, stop, wanted))
            yield stop - start

    def _adopt(self, segment: Segment) -> Iterator[int]:
        """Read every record; if all are whole, the segment gets checksums. The filler's rest counts as it is."""
        sidecar = Sidecar(segment.base_offset, segment.size, self._block_size)
        rest, position, at_filler = b"", 0, False
        check = check_of(segment.placing)
        while sidecar.covered < segment.size:
            block = block_at(segment, sidecar.covered, min(self._block_size, segment.size - sidecar.covered))
            sidecar.sums.append(block_sum(block))
            sidecar.covered += len(block)
            if not at_filler:
                rest += block
                try:
                    used, at_filler = check(rest, segment.base_offset + position, segment.size - position)
                except CorruptRecord as exc:
                    self._report(segment, position, sidecar.covered, str(exc))
                    return
                rest, position = rest[used:], position + used
                if not at_filler and (len(rest) > _RECORD_MAX or sidecar.is_complete):
                    stop = min(position - position % self._block_size + self._block_size, segment.size)
                    self._report(segment, position, stop, "a record that does not end")
                    return
            yield len(block)
        self._checksums.save(sidecar)
        self._checksums.adopt(sidecar)

    def _report(self, segment: Segment, position: int, stop: int, why: str) -> None:
        """Tell of a run of records, in a segment without checksums, of which one before `stop` is not whole."""
        root = self._checksums.directory.parent.parent
        self.findings.append(
            f"damaged record in {segment.file.path} at or behind byte {position} (log offset "
            f"{segment.base_offset + position}): {why}. Look at it with `ropewalk store verify {root}`"
        )
        start = position - position % self._block_size
        self._checksums.reported.append(Damaged(segment.base_offset, start, stop, None, position))


def whole_records(data: bytes, offset: int, room: int) -> tuple[int, bool]:
    """Check the records that begin `data` and are whole in it: how many bytes they are, and if a filler follows.

    `offset` is the log offset of the first, `room` what the segment has from there. Raises `CorruptRecord`.
    """
    at = 0
    while len(data) - at >= 8:
        size, magic = read_frame(data, at)
        if magic == MAGIC_BLANK:
            return at, True
        if not RECORD_SIZE_MIN <= size <= room - at:
            raise CorruptRecord(f"a record of {size} bytes at log offset {offset + at}")
        if size > len(data) - at:
            break
        record = decode_record(data, at)
        if record.offset != offset + at:
            raise CorruptRecord(f"a record of offset {record.offset} at log offset {offset + at}")
        at += size
    return at, False


def whole_entries(data: bytes, offset: int, room: int) -> tuple[int, bool]:
    """Check the entries that begin `data`, as `whole_records` does for records. Raises `CorruptRecord`."""
    at = 0
    while len(data) - at >= HEAD_SIZE:
        if filler_size(data, at) is not None:
            return at, True
        head = decode_head(data, at)
        if head.pos != offset + at or head.size > room - at:
            raise CorruptRecord(
                f"an entry of {head.size} bytes for offset {head.pos} at log offset {offset + at}"
            )
        if head.size > len(data) - at:
            break
        check_body(head, data[at + HEAD_SIZE : at + head.size])
        if not head.crc and head.body_size:
            decode_record(data, at + HEAD_SIZE)
        at += head.size
    return at, len(data) - at >= 8 and filler_size(data, at) is not None


def check_of(placing: Placing) -> Callable[[bytes, int, int], tuple[int, bool]]:
    """Return the check of records as they stand in a log: `whole_records`, or `whole_entries`."""
    return whole_entries if placing.head_size else whole_records
