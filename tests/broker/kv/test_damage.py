"""A damaged log of a region: its member starts, does not vote there, is filled again by the others, and votes again."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.kv import snapshots
from broker.kv.marker import RegionMarker
from broker.kv.snapshots import Limits
from ropewalk.format.kv.items import Put
from store import region_store
from store.io.disk import Disk
from store.log.commitlog import StoreDamaged
from tests.broker.harness import without_fsync
from tests.broker.kv.members import KvGroup, Session, get, region, regions, write_patiently


@pytest.fixture(autouse=True)
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    without_fsync(monkeypatch)


def few_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have snapshots taken each few entries, of a log in small files."""
    monkeypatch.setattr(snapshots, "LIMITS", Limits(entries=20, keys_a_turn=10))
    monkeypatch.setattr(region_store, "SEGMENT_SIZE", 8 << 10)


def store_of(group: KvGroup, id: int = 0, index: int = 2) -> Path:
    return group.root / f"n{index}" / "kv" / str(id)


def fill(group: KvGroup, count: int, id: int = 0, first: int = 0) -> None:
    """Write so many values, and let all members apply them."""
    session = Session(leader := group.region_leader(id), id)
    for number in range(first, first + count):
        write_patiently(group, session, leader, Put(b"%d%03d" % (id, number), b"%d" % number * 50))
    group.all_applied()


def flip_bytes(path: Path, position: int, count: int = 1) -> None:
    data = bytearray(path.read_bytes())
    for at in range(position, min(position + count, len(data))):
        data[at] ^= 1
    path.write_bytes(data)


def damage(group: KvGroup, id: int = 0) -> None:
    """Stop a member, and flip bytes in the middle of the entries that its next start applies.

    So many that they are not all of the eight bytes of a head that mean nothing; and whole entries follow, or it would
    be a torn end, which is cut.
    """
    newest = region(group.members[2], id)
    group.until(lambda: not newest.snapshots.is_under_way, "no snapshot is published by the stop")
    while newest.replay_bytes < 2_500:
        fill(group, 3, id, first=900)
        group.until(lambda: not newest.snapshots.is_under_way, "no snapshot is published by the stop")
    begin, end = newest.ledger.core.log.end.pos - newest.replay_bytes, newest.ledger.core.log.end.pos
    group.stop(2)
    place = (begin + end) // 2
    files = sorted(store_of(group, id).glob("data/*"))
    path = next(each for each in reversed(files) if int(each.name) <= place)
    # Not at the end of a file, where there may be nothing but its filler.
    flip_bytes(path, min(place - int(path.name), path.stat().st_size - 1_000), 300)


def learns(group: KvGroup, id: int = 0) -> bool:
    return region(group.members[2], id).ledger.core.readmission.is_learner


def votes_again(group: KvGroup, id: int = 0) -> None:
    """Wait until the member is one as every other, and nothing is left of the damage."""
    root = store_of(group, id)
    note = group.root / "n2" / "ropewalk" / "dledger" / f"kv-{id}"
    group.until(
        lambda: regions(group.members[2]).get(id) is not None and not learns(group, id), "it votes again"
    )
    group.until(lambda: not note.read_bytes() and not (root / "damaged").exists(), "that is noted")


@pytest.mark.parametrize("is_shortened", [False, True])
def test_a_member_with_a_flipped_byte_in_a_regions_log_is_filled_again_and_votes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_shortened: bool
) -> None:
    """By the entries where the leader has them all, and by its snapshot where it has not."""
    if is_shortened:
        few_entries(monkeypatch)
    with KvGroup(tmp_path) as group:
        fill(group, 150 if is_shortened else 20)
        damage(group)
        member = group.start(2)
        assert region(member).status()["learns"]
        assert list((store_of(group) / "damaged" / "data").iterdir()), "what was here is kept until then"
        votes_again(group)
        fill(group, 5, first=200)
        group.stop(2)
        group.start(2)
        group.region_leader()
        assert not learns(group)
        group.all_applied()
        assert get(group.members[2], b"0203") == [b"203" * 50]


def test_a_damaged_member_elects_nobody_who_lacks_what_it_had_confirmed(tmp_path: Path) -> None:
    with KvGroup(tmp_path) as group:
        fill(group, 10)
        group.have_lead(0)
        kept, other, leader = 0, 1, group.members[0]
        group.apart.add(other)
        group.members[other].cut_off()
        session = Session(leader)
        session.write(leader, Put(b"precious", b"1"))
        group.until(lambda: region(group.members[2]).machine.get(b"precious"), "two have it")
        group.turn(200)
        group.turn(200)
        damage(group)
        group.stop(kept)
        group.apart.discard(other)
        group.start(2)
        for _ in range(200):
            group.turn()
        assert not any(region(each).leads for each in group.members.values())
        assert learns(group)
        group.start(kept)
        votes_again(group)
        assert region(group.members[2]).machine.get(b"precious") == b"1"
        assert region(group.region_leader()).machine.get(b"precious") == b"1"


@pytest.mark.parametrize("is_shortened", [False, True])
def test_other_regions_and_messages_go_on_beside_a_damaged_region(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_shortened: bool
) -> None:
    """Its state comes from the region that it was cut from, or from the others where that one's log was shortened."""
    if is_shortened:
        few_entries(monkeypatch)
    with KvGroup(tmp_path, "1000;") as group:
        group.until(lambda: all(len(list(regions(each))) == 2 for each in group.members.values()), "two")
        for id in (0, 1):
            fill(group, 200 if is_shortened else 10, id)
        damage(group, id=1)
        member = group.start(2)
        kv = regions(member)
        assert (kv.get(1) is None) is is_shortened
        awaited = kv._awaiting[1] if is_shortened else region(member, 1)
        assert awaited.ledger.core.readmission.is_learner
        assert not learns(group) and not member.member.ledger.core.readmission.is_learner
        group.leader()
        group.region_leader()
        assert get(group.members[2], b"0005") == [b"5" * 50]
        votes_again(group, id=1)
        group.region_leader(1)
        group.all_applied()
        assert get(group.members[2], b"1005", region=1) == [b"5" * 50]


def test_a_region_without_its_own_snapshot_waits_with_the_damaged_one_that_it_was_cut_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots.Snapshots, "turn", lambda *about: None)
    with KvGroup(tmp_path, "1000;") as group:
        group.until(lambda: all(len(list(regions(each))) == 2 for each in group.members.values()), "two")
        fill(group, 10)
        fill(group, 10, id=1)
        before = region(group.members[2], 1).ledger.core.log.end.index
        assert not any(each.snapshots.points for each in regions(group.members[2])) and before > 10
        group.stop(2)
        flip_bytes(store_of(group) / "data" / f"{0:020d}", 60)
        member = group.start(2)
        assert learns(group)
        assert regions(member)._awaiting[1].ledger.core.readmission.is_learner, "its state begins in that log"
        votes_again(group)
        votes_again(group, id=1)
        group.all_applied()
        assert get(group.members[2], b"1005", region=1) == [b"5" * 50]


def test_a_damaged_region_that_is_cut_before_it_is_filled_again_comes_back_in_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither part waits for the other, and no client is told of regions that have not all keys."""
    few_entries(monkeypatch)
    with KvGroup(tmp_path, "1000;") as group:
        group.until(lambda: all(len(list(regions(each))) == 2 for each in group.members.values()), "two")
        for id in (0, 1):
            fill(group, 200, id)
        damage(group, id=1)
        outcomes: list[object] = []
        leader = group.region_leader(1)
        regions(leader).split(region(leader, 1), b"1100", outcomes.append)
        group.region_leader(2)
        fill(group, 100, 1, first=0)
        group.start(2)
        assert regions(group.members[2]).get(1) is None and not regions(group.members[2]).table()
        votes_again(group, id=1)
        group.until(lambda: regions(group.members[2]).get(2) is not None, "the new region has come, too")
        group.all_applied()
        assert get(group.members[2], b"1150", region=2) == [b"150" * 50]
        assert len(regions(group.members[2]).table()) == 3


def test_a_leader_whose_log_is_damaged_where_a_lagging_member_needs_it_leaves_the_lead_and_is_filled_again(
    tmp_path: Path,
) -> None:
    with KvGroup(tmp_path) as group:
        fill(group, 5)
        place = region(group.members[0]).ledger.core.log.end.pos + 500
        group.stop(0)
        fill(group, 20, first=100)
        for index in (1, 2):  # what was written is in no memory any more
            group.stop(index)
            group.start(index)
        group.region_leader()
        group.have_lead(2)
        group.all_applied()
        begun = group.members[2]
        log = store_of(group) / "data" / f"{0:020d}"
        with log.open("r+b") as file:
            file.seek(place)
            data = file.read(40)
            file.seek(place)
            file.write(bytes(byte ^ 1 for byte in data))
        group.start(0)
        group.until(lambda: group.members[2] is not begun, "it opens its stores again")
        assert learns(group)
        votes_again(group)
        group.region_leader()
        group.all_applied()
        assert get(group.members[0], b"0110") == get(group.members[2], b"0110") == [b"110" * 50]


def test_a_changed_term_of_an_entry_is_damage_as_its_body_is(tmp_path: Path) -> None:
    with KvGroup(tmp_path) as group:
        fill(group, 10)
        group.stop(2)
        flip_bytes(store_of(group) / "data" / f"{0:020d}", 23)  # the last byte of the first entry's term
        group.start(2)
        assert learns(group)
        votes_again(group)
        group.all_applied()


def test_two_members_that_need_each_other_refuse_to_start_with_a_damaged_region(tmp_path: Path) -> None:
    """The other one leads nothing without this one's vote, so nobody could fill it again."""
    with KvGroup(tmp_path, size=2) as group:
        fill(group, 20)
        group.stop(1)
        log = store_of(group, index=1) / "data" / f"{0:020d}"
        flip_bytes(log, 1000, 40)
        before = log.read_bytes()
        with pytest.raises(StoreDamaged, match=r"one member at a time\. Never start two with empty stores"):
            group.start(1)
        assert log.read_bytes() == before and not (store_of(group, index=1) / "damaged").exists()


@pytest.mark.parametrize("moved", [0, 1, 3])
def test_a_start_goes_on_where_a_kill_interrupted_the_move_of_a_damaged_log(
    tmp_path: Path, moved: int
) -> None:
    """Files that are aside already are those of this loss, and stay."""
    root, disk = tmp_path / "kv" / "0", Disk()
    names = ["data/1", "data/2", "notes/commit", "snapshots/1"]
    for name in [*names, "currterm"]:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"first {name}")
    marker = RegionMarker(tmp_path / "kv-0", root, disk)
    marker.begin()
    marker.note_damage()
    for name in names[:moved]:
        disk.move(root / name, root / "damaged" / name)
    RegionMarker(tmp_path / "kv-0", root, disk).put_aside()
    assert [(root / "damaged" / name).read_text() for name in names] == [f"first {name}" for name in names]
    assert marker.is_lost and (root / "currterm").exists() and not (root / names[0]).exists()
    (root / "data" / "1").write_text("second")
    marker.note_damage()
    marker.put_aside()
    assert (root / "damaged" / "data" / "1").read_text() == "first data/1", "it had more than what came since"
    assert not (root / "data" / "1").exists()
    marker.end()
    assert marker.exists and not (root / "damaged").exists() and marker.is_lost is False
