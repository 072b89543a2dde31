"""`RegionMarker`: the note that a member is one of a region's group, and whether its log there was damaged.

    <root>/ropewalk/dledger/kv-<region>    empty      there is a log: one that is gone may not be begun anew
                                           damaged    bytes of it are not what was written: it is to go aside
                                           learns     it began anew, and lacks what this member may have confirmed
    <root>/kv/<region>/damaged/...         what went aside, until the member votes again: log, notes and snapshots

The note is on disk before anything is moved or served. Each step may be done twice, and a start does the rest. The
ballot stays in its place, and with it the last term in which this member voted or confirmed entries; how it learns is
told in `ha.raft.membership`.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

from store.io.disk import Disk
from store.write_back import unless_full

__all__ = ["RegionMarker"]

_DAMAGED: Final = b"damaged"
_LEARNS: Final = b"learns"
_ASIDE: Final = ("data", "notes", "snapshots")


class RegionMarker:
    """The note of one region. All of it blocks, for a start or a helper thread."""

    def __init__(self, path: Path, region: Path, disk: Disk) -> None:
        """`region` is the directory with the region's files."""
        self._path = path
        self._region = region
        self._aside = region / "damaged"
        self._disk = disk

    @property
    def exists(self) -> bool:
        """Tell whether this member is one of the region's group since an earlier life."""
        return self._disk.exists(self._path)

    @property
    def is_lost(self) -> bool:
        """Tell whether the log began anew, and this member does not vote again yet."""
        return bool(self._disk.read_file(self._path))

    def begin(self) -> None:
        """Note that there is a log."""
        if not self.exists:
            self._disk.replace_file(self._path, b"")

    def note_damage(self) -> None:
        """Note that the log is damaged: the next start puts it aside."""
        if not self.is_lost:
            self._disk.remove_tree(self._aside)
        self._disk.replace_file(self._path, _DAMAGED)

    def put_aside(self) -> None:
        """Move the files of a log that is noted to be damaged. Of two losses in a row, those of the first are kept."""
        disk = self._disk
        if disk.read_file(self._path) != _DAMAGED:
            return
        for folder in _ASIDE:
            for name in disk.names(self._region / folder):
                source, target = self._region / folder / name, self._aside / folder / name
                if disk.exists(target):
                    disk.remove(source)
                    disk.sync_directory(source.parent)
                else:
                    disk.move(source, target)
        disk.replace_file(self._path, _LEARNS)

    def end(self) -> None:
        """Note that this member votes again, and remove the old log. A disk without room has it learn once more."""
        if self.is_lost and unless_full(partial(self._disk.replace_file, self._path, b"")):
            self._disk.remove_tree(self._aside)
