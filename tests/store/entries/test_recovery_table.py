"""The table of a start, row by row: each sighting at a place of the log, with whole entries behind it and without."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from ropewalk.format.dledger.entry import HEAD_SIZE, pack_head
from store.entries.files import CommitNote, LedgerFiles
from store.io.disk import Disk
from tests.store.entries.host import SEGMENT, Entry, Host, point_of
from tests.store.entries.records import TERM, encoded, opening, record_of

COUNT, SEEN_AT = 8, 4


def unchecked(number: int, pos: int, record: bytes) -> bytes:
    """Return an entry as DLedger writes it, with no CRC of its body."""
    size = len(record)
    return pack_head(1, HEAD_SIZE + size, number, TERM, pos, 0, 0, 0, size) + record


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes((data[at] ^ 0xFF,)) + data[at + 1 :]


WHOLE: dict[str, Callable[[int, int], bytes]] = {
    "whole": encoded,
    "whole, of a later term": lambda number, pos: opening(number, pos, TERM + 1),
    "whole by its record's own checksum": lambda number, pos: unchecked(number, pos, record_of(number, pos)),
}
ZEROS: dict[str, Callable[[int, int], bytes]] = {
    "zeros": lambda number, pos: bytes(len(encoded(number, pos)))
}
BAD: dict[str, Callable[[int, int], bytes]] = {
    "head torn off": lambda number, pos: bytes(HEAD_SIZE) + record_of(number, pos),
    "body torn off": lambda number, pos: encoded(number, pos)[: HEAD_SIZE + 20].ljust(
        len(encoded(number, pos)), b"\0"
    ),
    "another body": lambda number, pos: flipped(encoded(number, pos), HEAD_SIZE + 95),
    "another body, and no CRC": lambda number, pos: unchecked(
        number, pos, flipped(record_of(number, pos), 90)
    ),
    "an index that was there": lambda number, pos: encoded(number, pos, index=number - 1),
    "an index too far": lambda number, pos: encoded(number, pos, index=number + 1),
    "a term that falls": lambda number, pos: encoded(number, pos, term=TERM - 1),
    "another place's entry": lambda number, pos: encoded(number, pos + 8),
    "a filler in the middle": lambda number, pos: flipped(bytes(len(encoded(number, pos))), 0),
}
SIGHTINGS = WHOLE | ZEROS | BAD


def write_store(root: Path, sighting: str, *, behind: bool, commit: int) -> list[Entry]:
    """Write a log of which one place shows the sighting, and the notes beside it; the entries as they were."""
    entries: list[Entry] = []
    data, pos = b"", 0
    later = "later term" in sighting
    for number in range(COUNT):
        term = TERM + (later and number >= SEEN_AT)
        is_opening = later and number == SEEN_AT
        entry = opening(number, pos, term) if is_opening else encoded(number, pos, term=term)
        entries.append((number, term, pos, entry))
        shown = SIGHTINGS[sighting](number, pos) if number == SEEN_AT else entry
        assert len(shown) == len(entry)
        data += shown if behind or number <= SEEN_AT else bytes(len(entry))
        pos += len(entry)
    folder = root / "dledger-n0" / "data"
    folder.mkdir(parents=True)
    (folder / f"{0:020d}").write_bytes(data.ljust(SEGMENT, b"\0"))
    files = LedgerFiles(root / "dledger-n0", root / "ropewalk" / "dledger", Disk())
    files.save_ballot(TERM + 1, "n1")
    if commit >= 0:
        rows = [(TERM, 0, 0)]
        if later and commit >= SEEN_AT:
            rows.append((TERM + 1, SEEN_AT, entries[SEEN_AT][2]))
        files.save_commit(CommitNote(point_of(entries[commit]), rows), commit)
    return entries


@pytest.mark.parametrize("sighting", SIGHTINGS)
def test_every_sighting_above_the_commit_point_has_one_verdict(tmp_path: Path, sighting: str) -> None:
    for behind, commit in product((True, False), (-1, 1, SEEN_AT - 1)):
        root = tmp_path / f"{behind}{commit}"
        entries = write_store(root, sighting, behind=behind, commit=commit)
        kept = SEEN_AT if sighting not in WHOLE else COUNT - 1 if behind else SEEN_AT + 1
        if sighting in WHOLE and behind:
            kept = COUNT
        host = Host(root)
        try:
            assert host.entries.end == point_of(entries[kept - 1]), (behind, commit)
            in_doubt = sighting not in WHOLE and behind
            assert host.found.doubt == (point_of(entries[-1]) if in_doubt else None)
            segment = host.log.segments[0]
            end = host.entries.end[2]
            assert not any(segment.map[end:]), "dead bytes were left behind the end"
            saved = list((root / "ropewalk" / "tails").glob("*"))
            assert bool(saved) == (sighting not in WHOLE and (behind or sighting in BAD))
        finally:
            host.close()
        again = Host(root)  # and the next start finds the same, doubt included
        assert (again.entries.end, again.entries.doubt) == (host.entries.end, host.found.doubt)
        again.close()


@pytest.mark.parametrize("sighting", [*ZEROS, *BAD])
def test_no_sighting_below_the_commit_point_is_cut(tmp_path: Path, sighting: str) -> None:
    for behind, commit in ((True, SEEN_AT), (True, COUNT - 1), (False, SEEN_AT)):
        root = tmp_path / f"{behind}{commit}"
        entries = write_store(root, sighting, behind=behind, commit=commit)
        path = root / "dledger-n0" / "data" / f"{0:020d}"
        before = path.read_bytes()
        host = Host(root)
        assert host.entries.end == point_of(entries[-1] if behind else entries[SEEN_AT])
        assert host.found.commit == point_of(entries[commit]) and host.found.doubt is None
        host.close()
        assert path.read_bytes() == before
        assert not (root / "ropewalk" / "tails").exists()
