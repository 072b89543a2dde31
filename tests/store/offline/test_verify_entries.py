"""`verify` on the store of a DLedger member: clean where it is, and damage told with its entry."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from ropewalk.format.dledger.entry import HEAD_SIZE, decode_head, filler_size
from tests.support.stores import GEOMETRY, RECORDS, damages, fill_ledger, flip, look


@pytest.fixture
def root(tmp_path: Path) -> Path:
    fill_ledger(tmp_path / "store")
    return tmp_path / "store"


def files_of(root: Path) -> list[Path]:
    return sorted((root / "dledger-n0" / "data").iterdir())


def heads_of(path: Path) -> list[tuple[int, int]]:
    """The (position, index) of each entry in a file."""
    data, at, found = path.read_bytes(), 0, []
    while at + HEAD_SIZE <= len(data) and filler_size(data, at) is None and any(data[at : at + HEAD_SIZE]):
        head = decode_head(data, at)
        found.append((at, head.index))
        at += head.size
    return found


def test_the_store_of_a_member_is_clean_and_everything_was_looked_at(root: Path) -> None:
    found = look(root, GEOMETRY)
    assert not found.findings
    assert (found.counts.records, found.counts.entries, found.counts.items) == (RECORDS, RECORDS, RECORDS)
    assert found.entries is not None and found.entries.index == found.entries.committed_index == RECORDS - 1


def test_entries_that_are_not_committed_need_no_queue_entry(tmp_path: Path) -> None:
    fill_ledger(tmp_path, committed=RECORDS // 2)
    found = look(tmp_path, GEOMETRY)
    assert not [each for each in found.findings if each.damage], found.findings
    assert found.counts.records == RECORDS
    assert found.entries is not None and found.entries.committed_index == RECORDS // 2 - 1


@pytest.mark.parametrize("seed", range(12))
def test_a_flipped_bit_of_an_entry_is_told_with_its_file_and_entry(root: Path, seed: int) -> None:
    """The term of a head and its two unused numbers are under no checksum of DLedger's; the store's own see them."""
    draw = random.Random(seed)
    path = draw.choice(files_of(root)[:-1])
    at, index = draw.choice(heads_of(path))
    flip(path, at + draw.choice((*range(16), *range(40, 120))), draw.randrange(8))
    found = damages(root)
    assert found and all("dledger readmit" in each.advice for each in found if each.path == str(path)), found
    assert any(each.path == str(path) and f"entry {index}," in each.place for each in found), (index, found)


def test_what_is_lacking_is_told_in_words(root: Path) -> None:
    ledger = root / "dledger-n0"
    (ledger / "currterm").unlink()
    files_of(root)[-1].unlink()
    texts = " | ".join(str(each) for each in damages(root))
    assert "could vote twice" in texts and "ends here" in texts
    assert re.search(r"entries through 59 were committed", texts)


def test_a_directory_of_dledgers_own_files_alone_is_verified(root: Path) -> None:
    for name in ("ropewalk", "consumequeue", "index"):
        for path in sorted((root / name).rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
    (root / "checkpoint").unlink(missing_ok=True)
    found = look(root)
    assert found.counts.records == RECORDS
    assert found.entries is not None and found.entries.committed_index == RECORDS - 1
    assert all("queue" in each.text or "queue" in each.path for each in found.findings), found.findings
