"""Segments in a row: the one stream of bytes in which every message of every topic stands.

Owns the order of segments, the place of the next record, and the spare segment that a helper thread allocates and
fills ahead. A position in the stream is an *offset*; a segment's file is named by the offset of its first byte,
twenty digits. Nothing here knows what a queue is.

Three offsets, always `min_offset <= flushed_offset <= end_offset`: where the log begins (retention moves it), up to
where it survives power loss (the flusher moves it), and behind the last record (append moves it).
"""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter
from pathlib import Path

from ropewalk.errors import RopewalkError
from store.io.disk import Disk, MappedFile
from store.log.placing import PLAIN, Placing
from store.log.segment import FILLER_HEADER_SIZE, Segment

NAME_DIGITS = 20
_base_offset = attrgetter("base_offset")


class StoreDamaged(RopewalkError):
    """The disk contradicts a promise; a person has to decide. Names file, offset and command."""


def segment_name(base_offset: int) -> str:
    return f"{base_offset:0{NAME_DIGITS}d}"


def _is_segment_name(name: str) -> bool:
    return len(name) == NAME_DIGITS and name.isdigit()


class CommitLog:
    def __init__(self, directory: Path, segment_size: int, disk: Disk, placing: Placing = PLAIN) -> None:
        self.directory = directory
        self.placing = placing
        self.segment_size = segment_size
        self.segments: list[Segment] = []
        self.spare: Segment | None = None
        self.flushed_offset = 0
        self.trusted_offset = 0
        """The log offset from which every record was checked when the store was opened, or written since."""
        self._disk = disk
        self._bases: list[int] = []

    # -- open ----------------------------------------------------------------------------------------

    def load(self) -> None:
        """Map every segment found. Blocks. Raises `StoreDamaged` for a file that cannot belong to this log."""
        names = self._disk.names(self.directory)
        if names and self._unfinished(self.directory / names[-1]):
            self._disk.remove(self.directory / names.pop())  # a crash between creating and allocating it
        for name in self._disk.directories(self.directory):
            if _is_segment_name(name):
                raise StoreDamaged(
                    f"{self.directory / name} is a directory, and has the name of a commit-log segment: move it out of "
                    f"{self.directory}"
                )
        for name in names:
            path = self.directory / name
            if not _is_segment_name(name):
                raise StoreDamaged(
                    f"{path} is not a commit-log segment: move it out of {self.directory}, and see with `ropewalk "
                    f"store verify {self.directory.parent}` what else is there"
                )
            size = self._disk.size_of(path)
            if size != self.segment_size:
                raise StoreDamaged(
                    f"{path} has {size} bytes, but mappedFileSizeCommitLog is {self.segment_size}: start with the "
                    f"size the store was written with (log offset {int(name)}); if it was cut, `ropewalk store repair "
                    f"{self.directory.parent} --to COPY --from OTHER` makes it whole"
                )
            base = int(name)
            if self.segments and base != self.segments[-1].end_offset:
                raise StoreDamaged(
                    f"the segment at offset {self.segments[-1].end_offset} is missing in {self.directory} "
                    f"(the next file is {name}, log offset {base}): restore it, or have it taken from a replica or a "
                    f"backup with `ropewalk store repair {self.directory.parent} --to COPY --from OTHER`"
                )
            self._add(Segment(base, self._disk.open_mapped(path), placing=self.placing))

    def _unfinished(self, path: Path) -> bool:
        """Whether this is a last file that never came to hold anything: too short, and without a byte."""
        return (
            _is_segment_name(path.name)
            and self._disk.size_of(path) < self.segment_size
            and self._disk.is_blank(path)
        )

    def _add(self, segment: Segment) -> None:
        self.segments.append(segment)
        self._bases.append(segment.base_offset)

    # -- append --------------------------------------------------------------------------------------

    @property
    def min_offset(self) -> int:
        return self._bases[0] if self._bases else 0

    @property
    def end_offset(self) -> int:
        if not self.segments:
            return 0
        last = self.segments[-1]
        return last.base_offset + last.write_position

    def fits(self, size: int, count: int = 1) -> bool:
        """Tell whether a run of `count` records of this many bytes can ever be stored (it must fit one segment)."""
        if count == 1 and size > self.placing.record_size_max:
            return False
        return self.placed_size(size, count) + FILLER_HEADER_SIZE <= self.segment_size

    def placed_size(self, size: int, count: int = 1) -> int:
        """Return the bytes that `count` records of this size together take in the log."""
        return size + count * self.placing.head_size

    def segment_for(self, size: int) -> Segment:
        """The segment in which the next `size` bytes go, rolled over if they need a new one.

        Raises `DiskFull` if there is no spare and none can be allocated; nothing has changed then.
        """
        if self.segments:
            last = self.segments[-1]
            if last.has_room_for(size):
                return last
            following = self.take_spare(last.end_offset)
            if last.write_position < last.size:  # recovery can leave a last segment that is full already
                last.seal()
        else:
            following = self.take_spare(0)
        self._add(following)
        return following

    def begin(self, segment: Segment) -> None:
        """Go on in this segment, which stands right behind the last one, or begins a log that was empty."""
        assert not self.segments or segment.base_offset == self.end_offset
        self._add(segment)

    def discard_spare(self) -> None:
        """Forget the spare segment, whose file is gone; another one is made."""
        assert self.spare is not None
        spare, self.spare = self.spare, None
        spare.file.close()

    def take_spare(self, base_offset: int) -> Segment:
        spare, self.spare = self.spare, None
        if spare is not None:
            assert spare.base_offset == base_offset, (spare.base_offset, base_offset)
            return spare
        # The helper thread is late or was refused. Allocation is milliseconds; the alternative is to refuse.
        return self.allocate(base_offset)

    def allocate(self, base_offset: int) -> Segment:
        """Create one segment. Called by the helper thread ahead of time. Blocks; raises `DiskFull`."""
        path = self.directory / segment_name(base_offset)
        file: MappedFile = self._disk.allocate(path, self.segment_size)
        return Segment(base_offset, file, placing=self.placing)

    def discard(self, segment: Segment) -> None:
        """Remove a segment that never came to be part of the log. Blocks; for the helper thread."""
        segment.file.close()
        self._disk.remove(segment.file.path)

    def drop_last(self) -> None:
        """Remove the last segment and its file. Blocks; for recovery, which knows that it is empty."""
        segment = self.segments.pop()
        self._bases.pop()
        segment.file.close()
        self._disk.remove(segment.file.path)
        # Durable before the next one goes: a later file that came back alone would leave a gap.
        self._disk.sync_directory(self.directory)

    def cut(self, offset: int) -> list[Segment]:
        """Let the log end in the segment of `offset`; return those behind it, whose files are for the caller to remove.

        The first segment stays, even if nothing in it does. The lists are replaced and not changed, as in `retire`.
        """
        keep = max(bisect_right(self._bases, offset), 1)
        if keep > 1 and self._bases[keep - 1] == offset:
            keep -= 1
        removed = self.segments[keep:]
        self.segments, self._bases = self.segments[:keep], self._bases[:keep]
        return removed

    def retire(self, count: int) -> list[Segment]:
        """Let the log begin `count` segments later; the caller removes them when no reader holds them any more.

        The lists are replaced and not changed: a reader thread may be looking something up in them.
        """
        assert 0 < count < len(self.segments), (count, len(self.segments))
        assert self.segments[count - 1].end_offset <= self.flushed_offset
        retired = self.segments[:count]
        self.segments, self._bases = self.segments[count:], self._bases[count:]
        return retired

    # -- read ----------------------------------------------------------------------------------------

    def find(self, offset: int) -> Segment | None:
        """The segment that contains `offset`, or None if it is before the log or behind its last file."""
        segments = self.segments  # one look, because reader threads ask too
        index = bisect_right(segments, offset, key=_base_offset) - 1
        if index < 0 or offset >= segments[index].end_offset:
            return None
        return segments[index]

    # -- flush and close -----------------------------------------------------------------------------

    def unflushed(self, target: int) -> list[MappedFile]:
        """The files with bytes in [flushed_offset, target), oldest first: what one flush has to sync."""
        index = max(0, bisect_right(self._bases, self.flushed_offset) - 1)
        return [s.file for s in self.segments[index:] if s.base_offset < target]

    def close(self, *, keep_spare: bool = False) -> None:
        if self.spare is not None:
            self.spare.file.close()
            if not keep_spare:
                self._disk.remove(self.spare.file.path)
            self.spare = None
        for segment in self.segments:
            segment.file.close()
        self.segments.clear()
        self._bases.clear()
