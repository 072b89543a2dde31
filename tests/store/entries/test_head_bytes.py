"""Any flipped byte of an entry's head is found, or nobody reads it. Its CRC is over the body alone; all else is known:

magic, size      one of few values, and the body's size again    index, pos       the entry before, and the place
CRC, body size   the body                                        term             the records that open terms
channel, chain CRC    zeros of DLedger's; nobody reads them
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ropewalk.format.dledger.entry import HEAD_SIZE, UNREAD_AT, UNREAD_SIZE
from store.entries.files import CommitNote, LedgerFiles
from store.io.disk import Disk
from store.log.commitlog import StoreDamaged
from tests.store.entries.host import SEGMENT, Entry, Host, point_of
from tests.store.entries.records import encoded, opening
from tests.support.stores import GEOMETRY, fill_ledger, flip, look

COMMIT, FLIPPED, LAST, TERM = 1, 4, 6, 5
UNREAD = range(UNREAD_AT, UNREAD_AT + UNREAD_SIZE)
FLIPS = (0x01, 0x02, 0x03, 0x80, 0xFF)


def written(root: Path, flipped: int, at: int, mask: int) -> list[Entry]:
    """Write a log of two terms, committed in part, of which one byte of one head is another than was written."""
    entries: list[Entry] = []
    pos = 0
    for number in range(LAST + 1):
        term = TERM if number < 3 else TERM + 2
        is_opening = number in (0, 3)
        data = opening(number, pos, term) if is_opening else encoded(number, pos, term=term)
        entries.append((number, term, pos, data))
        pos += len(data)
    log = bytearray(b"".join(entry[3] for entry in entries).ljust(SEGMENT, b"\0"))
    log[entries[flipped][2] + at] ^= mask
    folder = root / "dledger-n0" / "data"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{0:020d}").write_bytes(log)
    files = LedgerFiles(root / "dledger-n0", root / "ropewalk" / "dledger", Disk())
    files.save_ballot(TERM + 3, "n1")
    files.save_commit(CommitNote(point_of(entries[COMMIT]), [(TERM, 0, 0)]), COMMIT)
    files.remove("doubt")
    return entries


@pytest.mark.parametrize("at", range(HEAD_SIZE))
def test_a_start_takes_no_entry_with_a_flipped_byte_in_its_head_but_where_nobody_reads_it(
    tmp_path: Path, at: int
) -> None:
    for flipped in (3, FLIPPED, LAST):  # the one that opens a term, one in the middle, the last
        for mask in FLIPS:
            entries = written(tmp_path, flipped, at, mask)
            host = Host(tmp_path)
            whole = LAST if at in UNREAD else flipped - 1
            assert host.entries.end == point_of(entries[whole]), (flipped, mask)
            assert host.entries.rows == tuple(
                row for row in ((TERM, 0, 0), (TERM + 2, 3, entries[3][2])) if row[1] <= whole
            )
            is_in_doubt = at not in UNREAD and flipped < LAST
            assert (host.found.doubt == point_of(entries[LAST])) is is_in_doubt
            host.close()


@pytest.mark.parametrize("at", range(HEAD_SIZE))
def test_verify_tells_of_a_flipped_byte_in_a_head(tmp_path: Path, at: int) -> None:
    fill_ledger(tmp_path / "store")
    path = max((tmp_path / "store" / "dledger-n0" / "data").iterdir())  # no checksums of the whole file yet
    flip(path, at, at % 8)
    found = [each for each in look(tmp_path / "store", GEOMETRY).findings if each.path == str(path)]
    assert len(found) >= 1 and found[0].place.startswith("byte 0 "), found
    assert found[0].damage is (at not in UNREAD)


@pytest.mark.parametrize("at", range(HEAD_SIZE))
def test_no_other_member_is_sent_an_entry_with_a_flipped_head(tmp_path: Path, at: int) -> None:
    """Reads for members that lag follow the heads: a damaged one stops this member, before another one has it."""
    entries = written(tmp_path, 0, UNREAD_AT, 0)
    for flipped in (3, FLIPPED):
        host = Host(tmp_path)
        data = host.log.segments[0].map
        place = entries[flipped][2] + at
        data[place : place + 1] = bytes([data[place] ^ (1 << at % 8)])
        taken: list[Entry] = []
        try:
            taken = host.read_all()
        except StoreDamaged as exc:
            assert "`ropewalk admin dledger readmit ID`" in str(exc)
        assert all(entry[:3] == wanted[:3] for entry, wanted in zip(taken, entries, strict=False))
        assert not taken or len(taken) == len(entries)
        assert bool(taken) is (at in UNREAD)
        data[place : place + 1] = bytes([data[place] ^ (1 << at % 8)])
        host.close()
