"""The findings about a store that is looked at offline: damage, notes, lost stretches of the log, and counts.

Damage names file, place and remedy, and somebody relies on what it names; a note is odd and harmless, or what the next
start sees to by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Finding:
    """A thing that is not as it should be, or odd."""

    damage: bool
    """False: harmless, or the next start sees to it."""
    path: str
    place: str
    """Where in the file: a byte, an entry, an item."""
    text: str
    advice: str = ""

    def __str__(self) -> str:
        place = f" at {self.place}" if self.place else ""
        return f"{self.path}{place}: {self.text}" + (f"; {self.advice}" if self.advice else "")


@dataclass(frozen=True, slots=True)
class Lost:
    """A lost stretch of the log: its bytes differ from those that were written."""

    offset: int
    end: int
    path: Path
    position: int
    text: str
    to_be_cut: bool
    """The next start cuts here by itself: nobody was told that these bytes are safe."""


@dataclass(slots=True)
class Counts:
    """The extent of a verification."""

    records: int = 0
    record_bytes: int = 0
    segments: int = 0
    entries: int = 0
    queues: int = 0
    items: int = 0
    blocks: int = 0
    regions: int = 0
    region_entries: int = 0
    snapshots: int = 0
    timers: int = 0


class Findings:
    """A collector of findings about one store."""

    def __init__(self, root: Path, *, members_have: str | None = None) -> None:
        """`members_have` is the advice for bytes of a DLedger member's log, which other members have."""
        self.findings: list[Finding] = []
        self.lost: list[Lost] = []
        self.counts = Counts()
        self.holes: list[tuple[int, int]] = []
        """Stretches of the log for which there is no file."""
        self.messages_lost = 0
        """How many messages are known to have stood in lost stretches and holes."""
        self._root = root
        self._members_have = members_have

    @property
    def lost_count(self) -> int:
        """The number of lost stretches and holes met so far."""
        return len(self.lost) + len(self.holes)

    def is_lost(self, offset: int) -> bool:
        """Tell whether a log offset lies where the log is said to be damaged or missing."""
        return any(lost.offset <= offset < lost.end for lost in self.lost) or any(
            begin <= offset < end for begin, end in self.holes
        )

    def damage(self, path: Path, place: str, text: str, advice: str = "") -> None:
        """Report damage."""
        self.findings.append(Finding(True, str(path), place, text, advice))

    def note(self, path: Path, place: str, text: str, advice: str = "") -> None:
        """Report an oddity that is harmless, or that the next start sees to."""
        self.findings.append(Finding(False, str(path), place, text, advice))

    @property
    def repair(self) -> str:
        """The advice for bytes of the log that another copy has."""
        if self._members_have is not None:
            return self._members_have
        return (
            f"`ropewalk store repair {self._root} --to COPY --from OTHER` takes it from a replica or a backup"
        )

    @property
    def rebuild(self) -> str:
        """The advice for files that the log tells."""
        if self._members_have is not None:
            return "move it away: the next start builds it again from the log"
        return f"`ropewalk store repair {self._root} --to COPY` builds it again from the log"
