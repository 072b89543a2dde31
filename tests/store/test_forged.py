"""A body can hold bytes that are a valid record for the very place where they will stand: nobody is fooled."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest

from ropewalk.format.record import encode_blank, encode_record
from store.io.disk import Disk
from store.log.commitlog import StoreDamaged
from store.message_store import MessageStore
from store.recovery.scan import _claimed_size, follower, next_valid
from tests.store.worlds import HOST, World, bodies, put, settle, write_back

BODY_AT = 88
"""Where the body of a record between two IPv4 hosts begins."""


def forged(
    offset: int, body: bytes = b"forged", *, stored_ms: int = 1_700_000_000_000, queue_offset: int = 0
) -> bytes:
    return encode_record(
        b"T", 0, 0, queue_offset, offset, 0, 11, HOST, stored_ms, HOST, 0, 0, body, b"TAGS\x01a\x02"
    )


def carrier(
    store_end: int, *, lead: int = 0, behind: bytes = b"", stored_ms: int = 1_700_000_000_000
) -> bytes:
    """A body that holds a valid record for its own place, if the message is appended at `store_end`."""
    return b"x" * lead + forged(store_end + BODY_AT + lead, stored_ms=stored_ms) + behind


def tear(world: World, position: int) -> None:
    """Zero the first segment from here on: the bytes were never written."""
    path = world.segment()
    data = path.read_bytes()
    path.write_bytes(data[:position] + bytes(len(data) - position))


def torn(tmp_path: Path, *, sync_flush: bool, stored_ms: int = 1_700_000_000_000) -> World:
    """Killed in the middle of writing a message whose body holds a forged record that was written in full."""
    world = World(tmp_path / "a", sync_flush=sync_flush)
    with world.opened() as store:
        put(store, [b"one", b"two"])
        write_back(store)
        end = store.log.end_offset
        world.clock.ms += 5000
        put(store, [carrier(end, behind=b"y" * 300, stored_ms=stored_ms)], tags="t")
        killed = world.killed()
    tear(killed, end + BODY_AT + len(carrier(end)) + 20)
    return killed


@pytest.mark.parametrize("sync_flush", [False, True])
@pytest.mark.parametrize("hints", [False, True])
def test_a_kill_inside_a_message_that_holds_a_forged_record_is_a_torn_tail_like_any_other(
    tmp_path: Path, sync_flush: bool, hints: bool
) -> None:
    world = torn(tmp_path, sync_flush=sync_flush)
    if not hints:
        world.forget_hints()
    with world.opened() as store:
        assert bodies(store) == [b"one", b"two"]
        put(store, [b"three"])
        settle(store)
        assert bodies(store) == [b"one", b"two", b"three"]


@pytest.mark.parametrize("stored_ms", [1, 1_700_000_000_001])
def test_a_forged_store_time_does_not_make_the_tail_count_as_flushed(tmp_path: Path, stored_ms: int) -> None:
    world = torn(tmp_path, sync_flush=False, stored_ms=stored_ms)
    with world.opened() as store:
        assert bodies(store) == [b"one", b"two"]


def lose_header(tmp_path: Path, body_behind: bytes, *, more: int = 0) -> World:
    """A power loss took the first page of the last message, and left the forged record on its second."""
    world = World(tmp_path / "a", sync_flush=True, segment_size=65536)
    with world.opened() as store:
        put(store, [b"one", b"two"])
        write_back(store)
        end = store.log.end_offset
        put(store, [carrier(end, lead=5000, behind=body_behind)], tags="t")
        put(store, [b"more"] * more)
        settle(store)
        killed = world.killed()
    path = killed.segment()
    data = bytearray(path.read_bytes())
    data[end:4096] = bytes(4096 - end)
    path.write_bytes(data)
    return killed


@pytest.mark.parametrize(
    "behind",
    [b"", bytes(600), b"z" * 600, encode_blank(1000) + bytes(100)],
    ids=["nothing", "zeros", "bytes", "a filler"],
)
def test_a_forged_record_behind_a_lost_header_proves_nothing(tmp_path: Path, behind: bytes) -> None:
    world = lose_header(tmp_path, behind)
    world.forget_hints()
    with world.opened() as store:
        assert bodies(store) == [b"one", b"two"]


def test_genuine_records_behind_a_lost_header_still_stop_the_start_under_sync_flush(tmp_path: Path) -> None:
    world = lose_header(tmp_path, b"z" * 600, more=3)
    world.forget_hints()
    with pytest.raises(StoreDamaged), world.opened():
        pass


def test_genuine_records_behind_a_damaged_one_still_stop_the_start_under_sync_flush(tmp_path: Path) -> None:
    world = World(tmp_path / "a", sync_flush=True)
    with world.opened() as store:
        (_first, _), (second, _), _third = put(store, [b"one", b"two" * 50, b"three"], tags="t")
        settle(store)
        killed = world.killed()
    whole = killed.segment().read_bytes()
    killed.forget_hints()
    # Whichever byte of a header is damaged: size, magic, checksum, place, or the length of the body.
    for position in (0, 1, 2, 3, 4, 8, 28, 35, 84, 87, BODY_AT):
        data = bytearray(whole)
        data[second + position] ^= 0x10
        killed.segment().write_bytes(data)
        with pytest.raises(StoreDamaged, match=f"log offset {second}"), killed.opened():
            pass


def test_a_record_that_adjoins_a_torn_one_and_is_torn_too_hides_its_body_as_well(tmp_path: Path) -> None:
    world = World(tmp_path / "a")
    with world.opened() as store:
        ((first, _),) = put(store, [b"b" * 200], tags="t")
        second = store.log.end_offset
        put(store, [carrier(second, behind=b"y" * 200)], tags="t")
        segment = store.log.segments[0]
        segment.map[first + 100 : first + 120] = bytes(20)
        position = second + BODY_AT + len(carrier(second)) + 5
        segment.map[position : position + 10] = bytes(10)
        assert _claimed_size(segment, first) == second - first
        assert follower(store.log, first) is None
        assert next_valid(store.log, first) is None
        put(store, [b"genuine"])
        found = follower(store.log, first)
        assert found is not None and found.queue_offset == 2
        settle(store)


def test_the_second_look_at_the_end_does_not_begin_inside_a_body(tmp_path: Path) -> None:
    world = World(tmp_path / "a")
    with world.opened() as store:
        put(store, [b"one"])
        end = store.log.end_offset
        put(store, [carrier(end, lead=10, behind=b"y" * 100), b"last"])
        write_back(store)
        size = store.log.end_offset - end - BODY_AT
    for check in range(size - 5, size + 5):
        config = replace(world.store().config, check_at_start=check)
        again = MessageStore(config, Disk(), world.clock, lambda: None)
        again.open()
        try:
            assert [body[:4] for body in bodies(again)] == [b"one", b"xxxx", b"last"]
            assert again.recovered.records == 0, "everything was as the bound file says"
        finally:
            again.close()


def test_a_header_that_contradicts_itself_claims_nothing(tmp_path: Path) -> None:
    world = World(tmp_path / "a")
    with world.opened() as store:
        ((offset, _),) = put(store, [b"b" * 50], tags="t")
        segment = store.log.segments[0]
        size = store.log.end_offset - offset
        assert _claimed_size(segment, offset) == size
        for wrong in (size + 100, size - 1, 90, segment.size + 1, -1):
            segment.map[offset : offset + 4] = struct.pack(">i", wrong)
            assert _claimed_size(segment, offset) is None, wrong
        segment.map[offset : offset + 4] = struct.pack(">i", size)
        settle(store)
