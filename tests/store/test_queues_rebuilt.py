"""Queue files that are gone, cut, stale or wrong: a start builds them again from the log, or says why it cannot."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from ropewalk.format.queue_entry import ENTRY_SIZE
from store.log.commitlog import StoreDamaged, segment_name
from tests.store.worlds import World, bodies, damage, put, queues, records, settle, write_back


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


def test_a_last_entry_that_names_a_place_before_the_log_does_not_vouch_for_those_before_it(
    world: World,
) -> None:
    """Retention took what stood there: there is no record to hold the entry against, and the log has the right one."""
    with world.opened() as store:
        put(store, [b"%d" % n * 50 for n in range(100)])
        write_back(store)
        bound = (world.root / "ropewalk" / "bound").read_bytes()
        put(store, [b"%d" % n * 50 for n in range(100, 105)])
        write_back(store)
        killed = world.killed()
    (killed.root / "ropewalk" / "bound").write_bytes(bound)
    killed.segment(0).unlink()
    damage(
        killed.root / "consumequeue" / "T" / "0" / segment_name(2000),
        4 * ENTRY_SIZE,
        struct.pack(">q", 32),
    )
    for _ in range(2):
        with killed.opened() as again:
            queue = again.find_queue("T", 0)
            assert queue is not None and queue.readable == 105
            assert 0 < queue.min_offset < 100
            assert bodies(again)[-5:] == [b"%d" % n * 50 for n in range(100, 105)]
