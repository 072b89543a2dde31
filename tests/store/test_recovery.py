"""What a crash leaves, byte by byte: what is kept, what is cut, and when the start is refused."""

from __future__ import annotations

import itertools
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ropewalk.errors import CorruptRecord
from ropewalk.format.checkpoint import Checkpoint
from ropewalk.format.properties import tags_code
from ropewalk.format.queue_entry import ENTRY_SIZE
from ropewalk.format.record import decode_record, encode_blank, encode_host, encode_record
from store.bound import Bound, boot_id, decode_bound
from store.commitlog import StoreDamaged, segment_name
from store.consume_queue import ConsumeQueue
from store.disk import Disk
from store.plain import note_plain, take_plain
from store.recovery import RULES, Sight, Sighted, Verdict, judge, look
from tests.store.worlds import SEGMENT_SIZE, World, bodies, put, queues, records, settle, write_back

V4 = encode_host("127.0.0.1", 1)
V6 = encode_host("::1", 1)


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


# -- look --------------------------------------------------------------------------------------------


def segment_of(data: bytes, base: int = 0) -> object:
    return SimpleNamespace(map=data, size=len(data), base_offset=base)


def see(data: bytes, position: int = 0, base: int = 0) -> Sighted | Sight:
    return look(segment_of(data, base), position)  # type: ignore[arg-type]


def record(
    *,
    offset: int = 0,
    topic: bytes = b"T",
    body: bytes = b"body",
    properties: bytes = b"TAGS\x01a\x02",
    born_host: bytes = V4,
    store_host: bytes = V4,
    sys_flag: int = 0,
    queue_id: int = 1,
    queue_offset: int = 5,
) -> bytes:
    return encode_record(
        topic,
        queue_id,
        0,
        queue_offset,
        offset,
        sys_flag,
        11,
        born_host,
        22,
        store_host,
        0,
        0,
        body,
        properties,
    )


@given(
    offset=st.integers(0, 2**40),
    topic=st.text(
        st.characters(codec="ascii", min_codepoint=48, max_codepoint=122), min_size=1, max_size=200
    ),
    body=st.binary(max_size=300),
    tags=st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), max_size=20),
    born_host=st.sampled_from([V4, V6]),
    store_host=st.sampled_from([V4, V6]),
    behind=st.binary(max_size=20),
)
def test_every_record_is_seen_as_the_reader_of_records_reads_it(
    offset: int, topic: str, body: bytes, tags: str, born_host: bytes, store_host: bytes, behind: bytes
) -> None:
    properties = f"KEYS\x01k\x02TAGS\x01{tags}\x02".encode() if tags else b""
    data = record(
        offset=offset,
        topic=topic.encode(),
        body=body,
        properties=properties,
        born_host=born_host,
        store_host=store_host,
    )
    read = decode_record(data)
    seen = see(data + behind, base=offset)
    assert isinstance(seen, Sighted)
    assert (seen.offset, seen.size, seen.topic) == (read.offset, read.size, read.topic)
    assert (seen.queue_id, seen.queue_offset) == (read.queue_id, read.queue_offset)
    assert seen.store_timestamp == read.store_timestamp == 22
    assert seen.tags_code == tags_code(tags)
    assert seen.indexed


PROPERTIES = st.lists(
    st.tuples(
        st.sampled_from(["TAGS", "KEYS", "XTAGS", "UNIQ_KEY"]), st.sampled_from(["", "a", "TAGS", "b c"])
    ),
    max_size=4,
).map(lambda pairs: "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode())


KINDS = st.tuples(
    PROPERTIES | PROPERTIES.map(lambda text: text[:-1]) | st.binary(max_size=12),
    st.sampled_from([0, 0, 0, 0x8]),
    st.sampled_from([V4, V4, V4, V6]),
    st.sampled_from([b"", b"body"]),
)
EVERYDAY = st.tuples(
    st.sampled_from([b"", b"KEYS\x01k\x02", b"TAGS\x01a\x02", b"TAGS\x01b\x02", b"K\x01v\x02TAGS\x01a"]),
    st.just(0),
    st.just(V4),
    st.sampled_from([b"", b"body", b"a longer body"]),
)


@settings(max_examples=300)
@given(
    kinds=st.lists(EVERYDAY, max_size=14).flatmap(lambda some: st.lists(KINDS, max_size=5).map(some.__add__)),
    topics=st.lists(st.sampled_from([b"T", b"T", b"other"]), min_size=20, max_size=20),
    queue_ids=st.lists(st.sampled_from([1, 1, 2]), min_size=20, max_size=20),
    shows=st.booleans(),
    damage=st.none() | st.tuples(st.floats(0, 0.999), st.integers(1, 255)),
)
def test_the_quick_way_through_records_sees_what_a_look_at_each_does(
    kinds: list[tuple[bytes, int, bytes, bytes]], topics: list[bytes], queue_ids: list[int], shows: bool,
    damage: tuple[float, int] | None,
) -> None:  # fmt: skip
    data, plain = b"", dict[bytes, dict[int, ConsumeQueue]]()
    queues = {
        (topic, number): ConsumeQueue(topic, number, Path("nowhere"), 200, Disk())
        for topic in ("T", "other")
        for number in (1, 2)
    }
    for (topic, number), queue in queues.items():
        example = see(record(topic=topic.encode(), queue_id=number))
        assert isinstance(example, Sighted)
        note_plain(example, queue, plain)
    ends = dict.fromkeys(queues, 0)
    everyday = (b"KEYS\x01k\x02", 0, V4, b"first")
    for (properties, sys_flag, host, body), name, queue_id in zip(
        [everyday, *kinds], topics, queue_ids, strict=False
    ):
        where = (name.decode(), queue_id)
        data += record(
            offset=len(data), topic=name, queue_id=queue_id, queue_offset=ends[where],
            properties=properties, sys_flag=sys_flag, born_host=host, body=body,
        )  # fmt: skip
        ends[where] += 1
    if damage is not None:
        at = int(damage[0] * len(data))
        data = data[:at] + bytes((data[at] ^ damage[1],)) + data[at + 1 :]
    grown: dict[ConsumeQueue, None] = {}
    segment = segment_of(data)
    end, count, latest = take_plain(segment, 0, len(data), plain, None if shows else grown)  # type: ignore[arg-type]
    at = newest = 0
    ends = dict.fromkeys(queues, 0)
    furthest = dict.fromkeys(queues, 0)
    for _ in range(count):
        seen = see(data[at:], base=at)
        assert isinstance(seen, Sighted)
        where = (seen.topic, seen.queue_id)
        assert seen.queue_offset <= ends[where]
        if seen.queue_offset == ends[where]:
            assert queues[where].read(ends[where]) == (at, seen.size, seen.tags_code)
            ends[where] += 1
            furthest[where] = at + seen.size
        at += seen.size
        newest = max(newest, seen.store_timestamp)
    assert (at, latest) == (end, newest)
    assert {where: queue.max_physical for where, queue in queues.items()} == furthest
    assert {where: queue.next_offset for where, queue in queues.items()} == ends
    assert {where: queue.readable for where, queue in queues.items()} == (
        ends if shows else dict.fromkeys(queues, 0)
    )
    assert grown.keys() == (set() if shows else {queues[where] for where, many in ends.items() if many})
    if end < len(data) and damage is None:
        stopped = see(data[end:], base=end)
        properties, sys_flag, host, _body = kinds[count - 1]
        # Whatever is not everyday is left to the look.
        assert (
            not (isinstance(stopped, Sighted) and properties)
            or stopped.ends_in_zero
            or sys_flag
            or host == V6
        )


@given(data=st.binary(max_size=300), position=st.integers(0, 300))
@example(data=bytes(8), position=0)
@example(data=encode_blank(8), position=0)
@example(data=record()[:90], position=0)
def test_hostile_bytes_are_only_ever_a_sighting(data: bytes, position: int) -> None:
    seen = see(data, min(position, len(data)))
    assert isinstance(seen, (Sighted, Sight))


@settings(max_examples=300)
@given(
    at=st.integers(0, 110),
    patch=st.binary(min_size=1, max_size=8)
    | st.sampled_from([b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", bytes(4)]),
    born_host=st.sampled_from([V4, V6]),
)
def test_a_patched_record_is_seen_only_where_the_reader_of_records_can_read_it(
    at: int, patch: bytes, born_host: bytes
) -> None:
    data = bytearray(record(born_host=born_host))
    data[at : at + len(patch)] = patch
    del data[len(record(born_host=born_host)) :]
    seen = see(bytes(data) + bytes(30))
    if isinstance(seen, Sighted):
        try:
            read = decode_record(bytes(data))
        except CorruptRecord:
            pytest.fail(f"seen as {seen}, but it cannot be read")
        assert (seen.topic, seen.queue_offset, seen.size) == (read.topic, read.queue_offset, read.size)


@pytest.mark.parametrize("cut", range(1, len(record())))
def test_a_record_torn_at_any_byte_shows_it(cut: int) -> None:
    data = record()
    seen = see(data[:cut] + bytes(len(data) - cut + 50))
    assert seen in (Sight.BAD, Sight.BLANK) or (isinstance(seen, Sighted) and seen.ends_in_zero)


@pytest.mark.parametrize("position", range(len(record())))
def test_a_flipped_bit_in_body_or_lengths_is_bad(position: int) -> None:
    data = bytearray(record(body=bytes(range(40)), properties=b""))
    lengths_and_body = [*range(12), *range(28, 36), *range(84, 88 + 40), len(data) - 2, len(data) - 1]
    if position in lengths_and_body:
        data[position] ^= 0x40
        assert see(bytes(data) + bytes(200)) is Sight.BAD


@pytest.mark.parametrize("topic", [b"a/b", b"/", b"..", b".", b"a\0b", b"\xff\xfe"])
def test_a_name_that_no_broker_took_and_no_directory_may_have_is_bad(topic: bytes) -> None:
    assert see(record(topic=topic)) is Sight.BAD


def test_a_record_that_says_it_stands_elsewhere_is_bad() -> None:
    data = record(offset=1000)
    assert isinstance(see(data, base=1000), Sighted)
    assert see(data, base=0) is Sight.BAD


@pytest.mark.parametrize(("sys_flag", "indexed"), [(0x0, True), (0x4, False), (0x8, True), (0xC, False)])
def test_half_messages_and_rollbacks_have_no_queue_entry(sys_flag: int, indexed: bool) -> None:
    seen = see(record(sys_flag=sys_flag))
    assert isinstance(seen, Sighted)
    assert seen.indexed is indexed


def test_an_empty_tag_is_no_tag() -> None:
    empty, none = see(record(properties=b"TAGS\x01\x02")), see(record(properties=b""))
    assert isinstance(empty, Sighted)
    assert isinstance(none, Sighted)
    assert empty.tags_code == none.tags_code == 0


def test_fillers_and_zeros_are_told_apart_from_garbage() -> None:
    assert see(encode_blank(100) + bytes(92)) is Sight.FILLER
    assert see(bytes(100)) is Sight.BLANK
    assert see(b"\1" * 100) is Sight.BAD
    assert see(bytes(7)) is Sight.BAD


# -- a torn tail -------------------------------------------------------------------------------------


def world_with(world: World, count: int, *, size: int = 100) -> World:
    """A log of `count` records, whose broker was killed after writing its queue entries."""
    with world.opened() as store:
        put(store, [bytes([65 + n % 26]) * size for n in range(count)])
        world.clock.ms += 2000
        store.tick()
        write_back(store)
        return world.killed()


def damage(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


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


def test_a_log_that_vanished_altogether_is_refused_and_its_queues_are_left_alone(world: World) -> None:
    with world.opened() as store:
        put(store, [b"x"] * 5)
        settle(store)
    world.segment(0).unlink()
    with pytest.raises(StoreDamaged, match="promised to be durable"), world.opened():
        pass
    assert (world.root / "consumequeue" / "T" / "0" / segment_name(0)).stat().st_size > 0


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


# -- queues that are not what they were --------------------------------------------------------------


def _remove_all(world: World) -> None:
    for path in (world.root / "consumequeue").rglob("*"):
        if path.is_file():
            path.unlink()


def _remove_one(world: World) -> None:
    (world.root / "consumequeue" / "T" / "0" / segment_name(0)).unlink()


def _remove_middle(world: World) -> None:
    (world.root / "consumequeue" / "T" / "0" / segment_name(200)).unlink()


def _zero_the_end(world: World) -> None:
    path = world.root / "consumequeue" / "T" / "0" / segment_name(400)
    path.write_bytes(bytes(path.stat().st_size))


def _wrong_last(world: World) -> None:
    path = world.root / "consumequeue" / "T" / "0" / segment_name(400)
    damage(path, 4 * ENTRY_SIZE, struct.pack(">qiq", 0, 200, 0))


def _last_is_another_of_the_same_queue(world: World) -> None:
    path = world.root / "consumequeue" / "T" / "0" / segment_name(400)
    damage(path, 4 * ENTRY_SIZE, path.read_bytes()[3 * ENTRY_SIZE : 4 * ENTRY_SIZE])


def _stale_behind_the_end(world: World) -> None:
    path = world.root / "consumequeue" / "T" / "0" / segment_name(400)
    damage(path, 5 * ENTRY_SIZE, struct.pack(">qiq", 119, 119, 0) * 5)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    "harm",
    [
        _remove_all,
        _remove_one,
        _remove_middle,
        _zero_the_end,
        _wrong_last,
        _last_is_another_of_the_same_queue,
        _stale_behind_the_end,
    ],
)
def test_queues_are_built_again_from_the_log_whatever_became_of_their_files(
    world: World, harm: Callable[[World], None], clean: bool
) -> None:
    with world.opened() as store:
        for number in range(25):
            put(store, [b"%d" % number], queue_id=0, tags="a")
            put(store, [b"%d" % number], queue_id=1)
        put(store, [b"last"], queue_id=1)  # no record of queue 0 behind this one
        write_back(store)
        before = {q.queue_id: [q.read(n) for n in range(q.next_offset)] for q in queues(store)}
        killed = world.killed()
    here = world if clean else killed
    harm(here)
    for _ in range(2):
        with here.opened() as store:
            assert {q.queue_id: [q.read(n) for n in range(q.next_offset)] for q in queues(store)} == before
            assert bodies(store) == [b"%d" % number for number in range(25)]
    last = here.root / "consumequeue" / "T" / "0" / segment_name(400)
    assert not any(last.read_bytes()[5 * ENTRY_SIZE :]), (
        "RocketMQ would take a stale entry for a message some day"
    )


def test_a_kill_while_queues_are_built_again_loses_no_queue(world: World) -> None:
    """Half-built files beside an older bound: the bound's count of entries shows that they are not whole."""
    with world.opened() as store:
        for queue_id in (0, 1, 0, 1):
            put(store, [b"x"] * 7, queue_id=queue_id)
        put(store, [b"y"], queue_id=1)
        write_back(store)
        killed = world.killed()
    (killed.root / "consumequeue" / "T" / "0" / segment_name(200)).unlink()
    with killed.opened() as store:
        assert len(bodies(store, queue_id=0)) == 14
        again = killed.killed()  # before anything of the rebuilt queue was flushed by a close
    with again.opened() as store:
        assert len(bodies(store, queue_id=0)) == 14
        assert len(bodies(store, queue_id=1)) == 15


def test_a_message_missing_from_the_log_is_named_rather_than_guessed_around(world: World) -> None:
    with world.opened() as store:
        put(store, [b"x" * 50] * 5)
        settle(store)
        victim = records(store)[2]
    world.forget_hints()
    damage(world.segment(), victim.offset + 12, (7).to_bytes(4, "big"))  # now it says queue 7
    with (
        pytest.raises(StoreDamaged, match=r"message 2 of queue 0 of topic T is not in the log"),
        world.opened(),
    ):
        pass


@pytest.mark.parametrize("folder", ["consumequeue_ext/T/0", "batchconsumequeue/T/0", "consumequeue/%LMQ%T/0"])
def test_queues_of_a_kind_that_is_not_read_here_are_refused(world: World, folder: str) -> None:
    (world.root / folder).mkdir(parents=True)
    with pytest.raises(StoreDamaged, match="does not read"), world.opened():
        pass
