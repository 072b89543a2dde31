"""What a crash leaves, byte by byte: what is kept, what is cut, and when the start is refused."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.format.checkpoint import Checkpoint
from ropewalk.format.queue_entry import ENTRY_SIZE
from store.io.disk import Disk
from store.log.commitlog import StoreDamaged, segment_name
from store.log.durable_bound import Bound, boot_id, decode_bound
from store.recovery.scan import RULES, Verdict, judge
from tests.store.worlds import SEGMENT_SIZE, World, bodies, damage, put, records, settle, write_back

# -- the table ---------------------------------------------------------------------------------------


def meaningful(blank: bool, filler: bool, valid: bool) -> bool:
    """What stands at a place is one thing: zeros, a filler, a record, or none of them."""
    return blank + filler + valid <= 1


def test_every_sighting_has_exactly_one_verdict() -> None:
    cases = [case for case in itertools.product((False, True), repeat=6) if meaningful(*case[:3])]
    assert len(cases) == 4 * 8
    for case in cases:
        verdicts = [
            verdict
            for *row, verdict in RULES
            if all(want is None or want == have for want, have in zip(row, case, strict=True))
        ]
        assert len(verdicts) == 1, case
        names = ("blank", "filler", "valid", "past_durable", "valid_follows", "sync_flush")
        assert judge(**dict(zip(names, case, strict=True))) is verdicts[0]


def test_durable_bytes_are_never_cut() -> None:
    for case in itertools.product((False, True), repeat=6):
        blank, filler, valid, past_durable, follows, sync_flush = case
        if meaningful(blank, filler, valid) and not past_durable and not (filler or valid):
            verdict = judge(
                blank=blank,
                filler=False,
                valid=False,
                past_durable=False,
                valid_follows=follows,
                sync_flush=sync_flush,
            )
            assert verdict is Verdict.REFUSE, case


# -- a torn tail -------------------------------------------------------------------------------------


def world_with(world: World, count: int, *, size: int = 100) -> World:
    """A log of `count` records, whose broker was killed after writing its queue entries."""
    with world.opened() as store:
        put(store, [bytes([65 + n % 26]) * size for n in range(count)])
        world.clock.ms += 2000
        store.tick()
        write_back(store)
        return world.killed()


def tails(world: World) -> bytes:
    folder = world.root / "ropewalk" / "tails"
    return b"".join(p.read_bytes() for p in sorted(folder.iterdir())) if folder.exists() else b""


@pytest.mark.parametrize("hints", [True, False])
def test_a_tail_torn_at_every_byte_of_the_last_record_loses_that_record_only(
    world: World, hints: bool
) -> None:
    """The bound file still knows of the whole record in one case: then it was flushed, and nothing may be cut."""
    with world.opened() as store:
        # No checksum covers the properties: whether they are torn is told only where the log may end.
        put(store, [b"first", b"second"], tags="" if hints else "a")
        settle(store)
        (_, _), (last, _) = [(r.offset, r.size) for r in records(store)]
        size = records(store)[1].size
        store._write_back.write_bound(clean=False)
        settle(store)
        whole = world.killed()
    original = whole.segment().read_bytes()
    for kept in range(size):
        damage(whole.segment(), 0, original)
        damage(whole.segment(), last + kept, bytes(size - kept))
        torn = whole.segment().read_bytes()
        if torn == original:
            continue
        if hints:
            with pytest.raises(StoreDamaged, match=f"log offset {last}"), whole.opened():
                pass
            assert whole.segment().read_bytes() == torn, "a refused start changes nothing"
            continue
        whole.forget_hints()
        with whole.opened() as store:
            assert bodies(store) == [b"first"]
            assert store.log.end_offset == last
            settle(store)
        assert whole.segment().read_bytes()[last:].strip(b"\0") == b"", "dead bytes would come back to life"
    if not hints:
        assert tails(whole).startswith(original[last : last + 1]), "what is cut is copied aside first"


def test_stale_bytes_behind_the_cut_do_not_come_back(world: World) -> None:
    """RocketMQ leaves them: a new record of the same size then makes the old ones behind it parse again."""
    killed = world_with(world, 3)
    with killed.opened() as store:
        offsets = [r.offset for r in records(store)]
        size = records(store)[0].size
    killed.forget_hints()
    damage(killed.segment(), offsets[1] + 90, b"????")
    for round_ in range(2):
        with killed.opened() as store:
            if round_ == 0:
                assert bodies(store) == [b"A" * 100], (
                    "under ASYNC_FLUSH the pages may reach the disk out of order"
                )
                ((offset, number),) = put(store, [b"N" * 100])
                assert (offset, number) == (offsets[1], 1)
                settle(store)
                assert store.log.end_offset == offset + size
        killed.forget_hints()
    with killed.opened() as store:
        assert bodies(store) == [b"A" * 100, b"N" * 100]
    assert b"C" * 100 in tails(killed)


def test_under_sync_flush_a_hole_before_a_valid_record_is_refused(sync_world: World) -> None:
    killed = world_with(sync_world, 3)
    killed.forget_hints()
    with killed.opened() as store:
        offset, size = records(store)[1].offset, records(store)[1].size
    killed.forget_hints()
    damage(killed.segment(), offset, bytes(size))
    before = killed.segment().read_bytes()
    with pytest.raises(StoreDamaged) as info, killed.opened():
        pass
    assert str(killed.segment()) in str(info.value)
    assert f"log offset {offset}" in str(info.value)
    assert "ropewalk store recover" in str(info.value)
    assert "ropewalk store repair" in str(info.value)
    assert killed.segment().read_bytes() == before


@pytest.mark.parametrize("what", ["zeros", "noise", "one bit"])
def test_damage_below_the_durable_bound_stops_the_start_and_changes_nothing(world: World, what: str) -> None:
    with world.opened() as store:
        put(store, [b"x" * 100] * 5)
        settle(store)
        victim = records(store)[2]
    patch = {"zeros": bytes(victim.size), "noise": b"\xa5" * victim.size, "one bit": b"y"}[what]
    position = victim.offset + (88 if what == "one bit" else 0)
    damage(world.segment(), position, patch)
    bound = decode_bound((world.root / "ropewalk" / "bound").read_bytes())
    assert bound is not None
    (world.root / "ropewalk" / "bound").write_bytes(Bound(flushed=bound.flushed).encode())
    (world.root / "checkpoint").unlink()
    before = snapshot(world.root)
    with pytest.raises(StoreDamaged, match=f"log offset {victim.offset}"), world.opened():
        pass
    assert snapshot(world.root) == before


def snapshot(root: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(root)): p.read_bytes()
        for p in sorted(root.rglob("*"))
        if p.is_file() and p.name != "lock"
    }


def test_damage_in_a_sealed_segment_stops_the_start_without_any_hint(world: World) -> None:
    with world.opened() as store:
        while len(store.log.segments) < 3:
            put(store, [b"x" * 500])
        settle(store)
        victim = records(store)[1]
    damage(world.segment(0), victim.offset + 88, b"y")
    world.forget_hints()
    with pytest.raises(StoreDamaged, match=f"{segment_name(0)} at byte {victim.offset} "), world.opened():
        pass


def test_damage_before_a_record_that_the_checkpoint_covers_stops_the_start(world: World) -> None:
    """A RocketMQ store has no bound file: its checkpoint tells up to which time the log was flushed."""
    with world.opened() as store:
        for _ in range(3):
            world.clock.ms += 1000
            put(store, [b"x" * 100])
        settle(store)
        victim, last = records(store)[1], records(store)[2]
    world.forget_hints()
    damage(world.segment(), victim.offset + 88, b"y")
    before = world.segment().read_bytes()
    after = Checkpoint(physic_msg_timestamp=last.store_timestamp + 1)
    (world.root / "checkpoint").write_bytes(after.encode())
    with pytest.raises(StoreDamaged, match=f"log offset {victim.offset}"), world.opened():
        pass
    assert world.segment().read_bytes() == before
    earlier = Checkpoint(physic_msg_timestamp=last.store_timestamp)
    (world.root / "checkpoint").write_bytes(earlier.encode())
    with world.opened() as store:
        assert len(bodies(store)) == 1, "nothing promised the last one: it may have been flushed out of order"


def test_an_all_zero_spare_behind_the_log_is_not_part_of_it(world: World) -> None:
    killed = world_with(world, 3)
    assert len(list((killed.root / "commitlog").iterdir())) == 2, (
        "the spare is there when the broker is killed"
    )
    with killed.opened() as store:
        assert len(bodies(store)) == 3
        assert len(store.log.segments) == 1


def test_a_torn_first_record_of_a_new_segment_ends_the_log_at_the_segment_before(world: World) -> None:
    with world.opened() as store:
        while len(store.log.segments) < 2:
            put(store, [b"x" * 500])
        settle(store)
        count, last = len(records(store)), records(store)[-1]
        killed = world.killed()
    assert last.offset == SEGMENT_SIZE
    damage(killed.segment(1), 88, b"torn")
    killed.forget_hints()
    with killed.opened() as store:
        assert len(bodies(store)) == count - 1
        assert store.log.end_offset == SEGMENT_SIZE
        ((offset, number),) = put(store, [b"next"])
        assert (offset, number) == (SEGMENT_SIZE, count - 1)
    assert b"torn" in tails(killed)


def test_a_log_whose_first_segments_are_gone_goes_on_at_its_offsets_and_numbers(world: World) -> None:
    with world.opened() as store:
        while len(store.log.segments) < 3:
            put(store, [b"x" * 500])
        settle(store)
        all_records = records(store)
    world.segment(0).unlink()
    kept = [r for r in all_records if r.offset >= SEGMENT_SIZE]
    for forget in (False, True):
        if forget:
            world.forget_hints()
        with world.opened() as store:
            assert store.log.min_offset == SEGMENT_SIZE
            assert [r.queue_offset for r in records(store)] == [r.queue_offset for r in kept]
            assert store.queue("T", 0).next_offset == len(all_records)


def test_a_log_that_is_cut_to_nothing_behind_deleted_segments_keeps_its_place(world: World) -> None:
    """The one segment left holds a torn first record: the next offset is its base, not zero."""
    with world.opened() as store:
        while len(store.log.segments) < 2:
            put(store, [b"x" * 500])
        settle(store)
        count = len(records(store))
    world.segment(0).unlink()
    damage(world.segment(0), 88, b"torn")
    world.forget_hints()
    with world.opened() as store:
        assert store.log.end_offset == SEGMENT_SIZE
        assert put(store, [b"next"]) == [(SEGMENT_SIZE, count - 1)]


def test_a_log_shorter_than_it_was_known_to_be_is_refused(world: World) -> None:
    with world.opened() as store:
        while len(store.log.segments) < 3:
            put(store, [b"x" * 500])
        settle(store)
    world.segment(-1).unlink()
    with pytest.raises(StoreDamaged, match="promised to be durable"), world.opened():
        pass


@pytest.mark.parametrize("hints", [True, False])
def test_a_log_that_vanished_altogether_is_refused_and_its_queues_are_left_alone(
    world: World, hints: bool
) -> None:
    with world.opened() as store:
        put(store, [b"x"] * 5)
        settle(store)
    queue_file = world.root / "consumequeue" / "T" / "0" / segment_name(0)
    before = queue_file.read_bytes()
    world.segment(0).unlink()
    if not hints:  # as of a store that RocketMQ wrote, whose log is on a disk that is not mounted
        shutil.rmtree(world.root / "ropewalk")
    wanted = (
        "promised to be durable" if hints else "name 5 messages .*Nothing was changed.*`ropewalk store repair"
    )
    with pytest.raises(StoreDamaged, match=wanted), world.opened():
        pass
    assert queue_file.read_bytes() == before
    shutil.rmtree(world.root / "consumequeue")  # as it says
    if not hints:
        with world.opened() as store:
            assert store.log.end_offset == 0


# -- where the walk begins ---------------------------------------------------------------------------


def test_a_clean_start_reads_no_record(world: World) -> None:
    with world.opened() as store:
        put(store, [b"x"] * 100)
    with world.opened() as store:
        assert store.recovered.records == 0
        assert len(bodies(store)) == 100


def test_after_a_kill_only_what_has_no_queue_entry_is_read_again(world: World) -> None:
    with world.opened() as store:
        put(store, [b"x"] * 20)
        write_back(store)
        put(store, [b"y"] * 3)
        killed = world.killed()
    with killed.opened() as store:
        assert store.recovered.records == 3
        assert bodies(store) == [b"x"] * 20 + [b"y"] * 3


def test_after_a_reboot_queue_files_are_believed_only_as_far_as_the_checkpoint(world: World) -> None:
    """Written is not on disk: the bound's word about queue files ends with the boot in which it was given."""
    killed = world_with(world, 20)
    bound = decode_bound((killed.root / "ropewalk" / "bound").read_bytes())
    assert bound is not None
    assert bound.boot == boot_id(Disk())
    other_boot = Bound(bound.flushed, bound.queues, bound.entries, boot=bytes(16))
    (killed.root / "ropewalk" / "bound").write_bytes(other_boot.encode())
    (killed.root / "checkpoint").unlink(missing_ok=True)
    queue_file = killed.root / "consumequeue" / "T" / "0" / segment_name(0)
    damage(queue_file, 3 * ENTRY_SIZE, bytes(ENTRY_SIZE))  # a page that did not make it
    with killed.opened() as store:
        assert store.recovered.records == 20
        assert len(records(store)) == 20


def test_rocketmqs_checkpoint_alone_is_enough_to_start_at_the_right_segment(world: World) -> None:
    with world.opened() as store:
        while len(store.log.segments) < 4:
            world.clock.ms += 1000
            put(store, [b"x" * 500])
        settle(store)
        count = len(records(store))
        third = next(r for r in records(store) if r.offset == 2 * SEGMENT_SIZE)
    world.forget_hints()
    (world.root / "ropewalk").rename(world.root / "elsewhere")
    stamp = third.store_timestamp + 3000  # its start looks three seconds further back
    (world.root / "checkpoint").write_bytes(Checkpoint(stamp, stamp).encode())
    with world.opened() as store:
        assert store.recovered.scanned_from == 2 * SEGMENT_SIZE
        assert len(records(store)) == count
    for physic, logics in ((stamp + 5000, stamp - 1), (stamp - 1, stamp + 5000)):  # the earlier one counts
        shutil.rmtree(world.root / "ropewalk")
        (world.root / "checkpoint").write_bytes(Checkpoint(physic, logics).encode())
        with world.opened() as store:
            assert store.recovered.scanned_from == SEGMENT_SIZE
            assert len(records(store)) == count


@pytest.mark.parametrize("content", [b"", b"RWB", bytes(70), b"x" * 200])
def test_a_bound_file_that_cannot_be_read_counts_as_none(world: World, content: bytes) -> None:
    with world.opened() as store:
        put(store, [b"x"] * 5)
    (world.root / "ropewalk" / "bound").write_bytes(content)
    with world.opened() as store:
        assert len(bodies(store)) == 5


@given(
    bound=st.builds(
        Bound,
        st.integers(0, 2**63 - 1),
        st.integers(0, 2**63 - 1),
        st.integers(0, 2**63 - 1),
        st.integers(0, 2**63 - 1),
        st.booleans(),
        st.binary(min_size=16, max_size=16),
    ),
    flip=st.integers(0, 500),
)
def test_a_bound_is_read_as_it_was_written_or_not_at_all(bound: Bound, flip: int) -> None:
    data = bytearray(bound.encode())
    assert decode_bound(bytes(data)) == bound
    data[flip % len(data)] ^= 1 << flip % 8
    assert decode_bound(bytes(data)) is None
    assert decode_bound(bytes(data[:-1])) is None
    assert decode_bound(None) is None
