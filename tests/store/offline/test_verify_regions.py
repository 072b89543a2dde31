"""`verify` on the regions of the key-value store: clean where they are, and told where a start would meet damage."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from ropewalk.format.kv.snapshot import Head, encode_part, end_part, head_part
from store.io.disk import Disk
from store.offline.findings import Finding
from store.region_snapshots import RegionSnapshots
from tests.store.region_world import SEGMENT, Region, filled
from tests.support.stores import GEOMETRY, damages, fill_ledger, flip, look


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store.offline.verify_regions.SEGMENT_SIZE", SEGMENT)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A member's store with a region, whose log begins behind its first file, and two snapshots of the region."""
    root = tmp_path / "store"
    fill_ledger(root)
    region = root / "kv" / "0"
    filled(region)
    again = Region(region)
    segments = again.store.log.segments
    points: list[tuple[int, int, int]] = []
    at = 0
    for index, term, command in again.applied:
        at = again.store._behind_filler(at)
        found = again.store._entry_at(at)
        assert found is not None and found[:2] == (index, term) and found[3] == command
        at += found[2]
        points.append((index, term, at))
    older = next(point for point in points if point[2] > segments[1].base_offset)
    for point in (older, points[-2]):
        save(region, point)
    again.store.retire_before(older[2])
    for _turn in range(20):
        again.settle()
    again.store.close()
    (root / "ropewalk" / "dledger").mkdir(exist_ok=True)
    (root / "ropewalk" / "dledger" / "kv-0").touch()
    assert not (region / "data" / f"{0:020d}").exists()
    return root


def save(region: Path, point: tuple[int, int, int], id: int = 0) -> None:
    file = RegionSnapshots(region, Disk()).begin(point[0])
    head = Head(*point, 0, id, 0, 0, b"", b"", b"n0")
    file.write(encode_part(0, head_part(head)))
    file.write(encode_part(1, end_part(1)))
    file.publish()


def snapshots(root: Path) -> list[Path]:
    return sorted((root / "kv" / "0" / "snapshots").iterdir())


def segments(root: Path) -> list[Path]:
    return sorted((root / "kv" / "0" / "data").iterdir())


def test_a_region_is_clean_and_all_of_it_was_looked_at(root: Path) -> None:
    found = look(root, GEOMETRY)
    assert not found.findings
    counts = found.counts
    assert (counts.regions, counts.snapshots) == (1, 2)
    assert counts.region_entries > 30


@pytest.mark.parametrize("seed", range(12))
def test_a_flipped_bit_of_the_log_is_told_with_file_and_place(root: Path, seed: int) -> None:
    draw = random.Random(seed)
    path = draw.choice(segments(root)[:-1])
    used = len(path.read_bytes().rstrip(b"\0"))
    flip(path, draw.choice((0, 9, 25, 41, 60, draw.randrange(48, used - 200))), draw.randrange(8))
    found = damages(root)
    assert [each.path for each in found] == [str(path)], found
    assert "log offset" in found[0].place and "readmit" in found[0].advice
    assert "takes those bytes" not in found[0].advice, "regions take none from other members"


def test_a_torn_tail_that_nobody_committed_is_no_damage(root: Path) -> None:
    (_index, _term, end) = json.loads((root / "kv" / "0" / "notes" / "commit").read_bytes())["commit"]
    last = next(path for path in reversed(segments(root)) if int(path.name) <= end)
    with last.open("r+b") as file:
        file.seek(end - int(last.name))
        file.write(b"\x7f" * 100)
    assert not damages(root)
    assert str(last) in {each.path for each in look(root, GEOMETRY).findings}


def test_a_damaged_snapshot_beside_a_whole_one_costs_no_start_and_is_told(root: Path) -> None:
    flip(snapshots(root)[1], 30)
    (found,) = damages(root)
    assert found.path == str(snapshots(root)[1])
    assert "checksum" in found.text and f"entry {int(snapshots(root)[0].name)}" in found.advice


def test_two_damaged_snapshots_before_which_the_log_is_gone_say_that_a_start_needs_one(root: Path) -> None:
    for path in snapshots(root):
        flip(path, 30)
    found = damages(root)
    assert [each.path for each in found] == [str(path) for path in reversed(snapshots(root))]
    assert all(
        "a start needs one" in each.advice and "fill the region again" in each.advice for each in found
    )


def put_back(root: Path) -> None:
    file = snapshots(root)[1]
    data = file.read_bytes()
    file.write_bytes(data[:-20])


def no_snapshots(root: Path) -> None:
    for path in snapshots(root):
        path.unlink()


def no_ballot(root: Path) -> None:
    (root / "kv" / "0" / "currterm").unlink()


def no_region(root: Path) -> None:
    (root / "kv").rename(root.parent / "kv")


def no_end(root: Path) -> None:
    for path in segments(root)[-3:]:
        path.unlink()


def of_another_region(root: Path) -> None:
    point = int(snapshots(root)[1].name), 1, segments_end(root)
    save(root / "kv" / "0", point, id=7)


def segments_end(root: Path) -> int:
    return int(segments(root)[-1].name)


def bad_commit(root: Path) -> None:
    (root / "kv" / "0" / "notes" / "commit").write_bytes(b"\xff{")


def bad_identity(root: Path) -> None:
    (root / "kv" / "0" / "notes" / "identity").write_bytes(b'{"incarnation":"xy"}')


def bad_incoming(root: Path) -> None:
    notes = root / "kv" / "0" / "notes"
    (notes / "install").write_bytes(b'{"kept":false}')
    (notes / "incoming").write_bytes(b"torn")


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (put_back, "is cut off"),
        (no_snapshots, "no snapshot is as old"),
        (no_ballot, "could vote twice"),
        (no_region, "is gone, where this member had a log"),
        (no_end, "the log ends here"),
        (of_another_region, "the state of region 7"),
        (bad_commit, "commit cannot be read"),
        (bad_identity, "identity cannot be read"),
        (bad_incoming, "was to replace the log, and is damaged"),
    ],
)
def test_what_keeps_a_region_from_starting_is_told_in_words(
    root: Path, harm: Callable[[Path], None], words: str
) -> None:
    harm(root)
    found: list[Finding] = damages(root)
    assert any(words in str(each) for each in found), found
    assert all("kv" in each.path for each in found), found


def test_a_snapshot_that_the_next_start_installs_is_a_note(root: Path, tmp_path: Path) -> None:
    filled(tmp_path / "leader")
    leader = Region(tmp_path / "leader")
    made = leader.store.member_snapshot(5, b"state")
    leader.store.close()
    assert made is not None
    notes = root / "kv" / "0" / "notes"
    no_snapshots(root)
    (notes / "install").write_bytes(b'{"kept":false}')
    (notes / "incoming").write_bytes(made[1])
    assert not damages(root)
    assert "about to replace the log" in " ".join(each.text for each in look(root, GEOMETRY).findings)


@pytest.mark.parametrize("name", ["commit", "doubt", "cut", "identity", "install"])
def test_unreadable_notes_of_a_member_are_damage(root: Path, name: str) -> None:
    (root / "ropewalk" / "dledger" / name).write_bytes(b"\xff\xff")
    found = damages(root)
    assert len(found) == 1 and found[0].path == str(root / "ropewalk" / "dledger"), found
