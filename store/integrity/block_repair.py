"""Damaged places of a log that is open: nobody is served from them, and bytes of another copy take their place.

Whoever finds damage reports it (`Checksums.reported`). From the next moment of the loop every read of that segment is
held against its checksums again, and nothing up to there counts as warm: a read that meets the place fails, and all
others go on. So it stays until bytes have come that match what was written.

They are put back in an order in which a crash is harmless at each step: what stands there is copied aside, durably
(`ropewalk/replaced/`, as `ropewalk store repair` does); the pages that differ are written; they are synced; the place
is read again. Whatever a crash leaves of that is the place as it was, or partly mended, or whole, and the checksum
says which. A page that was right is never written.

`Damage` belongs to the loop. `probe_place`, `put_back` and `vouched` block and are for a helper thread, which holds the
segment (`pins`). Left to others: finding damage (`checksums`, `scrub`), and asking somebody for the bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ropewalk.errors import CorruptRecord, RopewalkError
from ropewalk.format.sidecar import Sidecar, block_sum
from store.integrity.checksums import Checksums, Damaged
from store.integrity.scrubber import check_of
from store.io.disk import Disk
from store.log.commitlog import CommitLog
from store.log.segment import Segment

__all__ = [
    "FOLDER",
    "Damage",
    "Damaged",
    "NotDurable",
    "NotVouched",
    "NotWhole",
    "probe_place",
    "put_back",
    "vouched",
]

FOLDER = "replaced"
PLACES_MAX = 4096
"""Places that are kept in mind; what is more is found again by the scrubber's next round."""


class NotVouched(RopewalkError):
    """The copy here cannot be given to a member that has lost its own: the text says why."""


class NotWhole(RopewalkError):
    """The bytes put back do not read as they should: the text says where."""


class NotDurable(RopewalkError):
    """The bytes put back read well, but may be in the page cache alone."""


class Damage:
    """The damaged places of one log that are known, and how many became whole. The loop owns it."""

    def __init__(self, log: CommitLog, checksums: Checksums) -> None:
        self.mended = 0
        """Places that were put back since this store was opened."""
        self._log = log
        self._checksums = checksums
        self._places: dict[int, Damaged] = {}
        self._trusted_offset = 0
        """The trusted offset of the log before the first damaged place was found."""

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, place: Damaged) -> bool:
        return self._places.get(place.offset) == place

    def places(self) -> tuple[Damaged, ...]:
        """The damaged places of the log, the oldest first."""
        low = self._log.min_offset
        for offset in [offset for offset in self._places if offset < low]:
            self._remove(self._places[offset])  # retention took it away
        return tuple(self._places[offset] for offset in sorted(self._places))

    def collect_reported(self) -> None:
        """Take in the reported places: from now on every read there is checked. Cheap when there is nothing."""
        reported = self._checksums.reported
        while reported:
            place = reported.popleft()
            segment = self._log.find(place.offset)
            if segment is None or place.offset in self._places or len(self._places) >= PLACES_MAX:
                continue
            if not self._places:
                self._trusted_offset = self._log.trusted_offset
            self._places[place.offset] = place
            self._distrust(segment)
            self._log.trusted_offset = max(self._log.trusted_offset, place.end)

    def hold(self, place: Damaged) -> Segment | None:
        """The segment of a place, pinned for a thread; None if retention has taken it."""
        segment = self._log.find(place.offset)
        if segment is not None:
            segment.pins += 1
        return segment

    def frozen(self, segment: Segment) -> Sidecar | None:
        """A segment's checksums as they are now. Any thread may ask, and keep what it gets."""
        return self._checksums.frozen(segment)

    def report(self, place: Damaged) -> None:
        """Report a damaged place, from any thread."""
        self._checksums.reported.append(place)

    def is_whole(self, place: Damaged, *, mended: bool) -> None:
        """The place matches again: because it was mended, or because what was reported about it was old."""
        if place not in self:
            return
        self.mended += mended
        self._remove(place)
        segment = self._log.find(place.offset)
        if segment is not None:
            self._distrust(segment)

    def _remove(self, place: Damaged) -> None:
        del self._places[place.offset]
        if not self._places:
            self._log.trusted_offset = self._trusted_offset

    def _distrust(self, segment: Segment) -> None:
        size = self._checksums.block_size
        here = [place for place in self._places.values() if place.base_offset == segment.base_offset]
        self._checksums.distrust(segment, [place.start // size for place in here])


# -- on a helper thread --------------------------------------------------------------------------------------


def probe_place(segment: Segment, place: Damaged) -> tuple[bool, bytes]:
    """Tell whether a place is whole by now, and return its bytes before the records of which one was not.

    Blocks. Raises OSError for bytes without a checksum that cannot be read.
    """
    if place.wanted is not None:
        try:
            data = segment.file.read_at(place.start, place.stop - place.start)
        except OSError:
            return False, b""  # a sector that the disk cannot read: writing it is what may help
        return block_sum(data) == place.wanted, b""
    data = segment.file.read_at(place.start, place.stop - place.start)
    at = place.record - place.start
    try:
        check = check_of(segment.placing)
        used, at_filler = check(data[at:], place.base_offset + place.record, segment.size - place.record)
    except CorruptRecord:
        return False, data[:at]
    return bool(used or at_filler), data[:at]


def put_back(
    segment: Segment, place: Damaged, data: bytes, root: Path, disk: Disk, *, anew: bool = False
) -> Path:
    """Write `data` to a damaged place, durably; the bytes that it held are kept in the file returned.

    `anew` writes all of it, whatever is read there: after a sync that failed, what is read may be on no disk. Blocks.
    Raises `NotDurable` for such a sync; OSError or `NotWhole` otherwise: the place is then as it was, or its checksum
    still says that it is damaged.
    """
    assert len(data) == place.stop - place.start, (len(data), place)
    assert place.wanted is None or block_sum(data) == place.wanted, place
    aside = root / "ropewalk" / FOLDER / f"{place.offset:020d}"
    try:
        old = segment.file.read_at(place.start, len(data))
    except OSError:
        old = b""  # nothing to keep, and every page is written
    if old and old != data:
        disk.append_file(aside, old)
    segment.file.mend(place.start, b"" if anew else old, data)
    try:
        segment.file.sync()
    except OSError as exc:
        raise NotDurable(
            f"{segment.file.path} was written at byte {place.start}, and not synced: {exc}"
        ) from exc
    if segment.file.read_at(place.start, len(data)) != data:
        raise NotWhole(f"{segment.file.path} does not keep what is written at byte {place.start}")
    return aside


def vouched(
    segment: Segment,
    sidecar: Sidecar | None,
    start: int,
    stop: int,
    wanted: int | None,
    damaged: Callable[[Damaged], None],
) -> bytes:
    """Return the bytes of a segment for a member whose copy is damaged, if this one is good. Blocks.

    Good is what matches this segment's own checksums. Where there are none yet, the other's sum decides; where both
    have one they must agree. Raises `NotVouched`, or OSError; `damaged` is told of damage here.
    """
    file = segment.file
    data = file.read_at(start, stop - start)
    if sidecar is not None and stop <= sidecar.covered:
        for number in sidecar.blocks_of(start, stop - start):
            begin, end = sidecar.block(number)
            block = data if (begin, end) == (start, stop) else file.read_at(begin, end - begin)
            if block_sum(block) != sidecar.sums[number]:
                damaged(Damaged(segment.base_offset, begin, end, sidecar.sums[number]))
                raise NotVouched("the copy here is damaged too")
    elif wanted is None:
        raise NotVouched("there are no checksums of these bytes here either")
    if wanted is not None and block_sum(data) != wanted:
        raise NotVouched("the copy here does not match that checksum either")
    return data
