"""Entries that wait in the pool for their queue: nobody can tell them from those that the queue has already."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator, Sequence

import pytest

import store.queues.entry_pool
import store.write_back
from ropewalk.format.record_pattern import RecordPattern
from store.io.disk import Disk
from store.log.limits import NO_LIMIT
from store.message_store import MessageStore
from store.queues.consume_queue import ConsumeQueue
from store.queues.entry_pool import EntryPool, Pieces
from store.queues.file_layout import Waiting, Write
from store.queues.queue_writer import QueueFileWriter
from tests.store.worlds import (
    HOST,
    World,
    abandon,
    bodies,
    put,
    queues,
    records,
    settle,
    wait_for,
    write_back,
)
from tests.support.long_run import LONG

TOPICS = "ABCDEFGH"
_KEY = b"%04d"


def put_wide(
    store: MessageStore, targets: Sequence[tuple[str, int]], marks: Sequence[bytes]
) -> list[int] | None:
    """One turn that appends a message of four bytes to each of these queues, by their slots; their queue offsets."""
    if not store.log.segments:
        put(store, [b"the first segment"], "Z")
    store.begin_turn()
    names = [topic.encode() for topic, _ in targets]
    slots = [store.pool.enter(store.queue(*target)) for target in targets]
    pattern = RecordPattern(b"?", 5, 0, HOST, store.config.store_host, 0, b"UNIQ_KEY\x01", 4, b"\x02")
    common = pattern.middle[2:]
    pieces = ([b"\1"] * len(names), names, [common] * len(names))
    run = marks, [77] * len(names), marks, pattern.in_pieces(1, 1, len(common)), 0
    stored = store.put_wide(slots, [queue_id for _, queue_id in targets], run, *pieces)
    store.publish()
    return None if stored is None else list(stored[1])


def put_alike(
    store: MessageStore, targets: Sequence[tuple[str, int]], marks: Sequence[bytes], *, by_columns: bool
) -> list[int] | None:
    """The same for queues of one topic, in the ways of those that send to few."""
    queues = [store.queue(*target) for target in targets]
    name, host = queues[0].topic_bytes, store.config.store_host
    pattern = RecordPattern(name, 5, 0, HOST, host, 0, b"UNIQ_KEY\x01", 4, b"\x02")
    store.begin_turn()
    if by_columns:
        stored = store.put_columns(queues, (marks, [77] * len(marks), marks, pattern, 0))
        numbers = None if stored is None else list(stored[1])
    else:
        batch = [(queue, mark, 77, mark, pattern, 0) for queue, mark in zip(queues, marks, strict=True)]
        numbers = [number for _, number in store.put_alike(batch)]
    store.publish()
    return numbers


class Model:
    """What each queue was given, and by turns in which way."""

    def __init__(self, opened: MessageStore, chance: random.Random, wide_share: float) -> None:
        self.opened = opened
        self.chance = chance
        self.wide_share = wide_share
        """How many sends go through the pool."""
        self.given: dict[tuple[str, int], list[bytes]] = {}
        self.count = self.wide = 0

    def send(self) -> None:
        some = [(topic, queue_id) for topic in TOPICS[: self.chance.randint(1, 8)] for queue_id in range(2)]
        targets = self.chance.choices(some, k=self.chance.randint(1, 12))
        marks = [_KEY % (self.count + n) for n in range(len(targets))]
        self.count += len(targets)
        if self.chance.random() < self.wide_share:
            numbers = put_wide(self.opened, targets, marks)
            self.wide += numbers is not None
        elif (way := self.chance.random()) < 0.6:
            targets = [(targets[0][0], queue_id) for _, queue_id in targets]
            numbers = put_alike(self.opened, targets, marks, by_columns=way < 0.4)
        else:
            numbers = [
                put(self.opened, [mark], *target)[0][1] for target, mark in zip(targets, marks, strict=True)
            ]
        if numbers is None:
            return  # a segment is full, or a queue out of the pool: others would take another way
        for target, mark, number in zip(targets, marks, numbers, strict=True):
            queue = self.given.setdefault(target, [])
            assert number == len(queue)
            queue.append(mark)

    def look_at(self, target: tuple[str, int]) -> None:
        given = self.given.get(target, [])
        assert bodies(self.opened, *target) == given
        queue = self.opened.queue(*target)
        assert (queue.readable, queue.next_offset) == (len(given), len(given))
        if given:
            last = records(self.opened, *target)[-1]
            assert queue.max_physical == last.offset + last.size

    def look_at_all(self) -> None:
        for target in list(self.given):
            self.look_at(target)


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("seed", range(15 if LONG else 8))
def test_whatever_is_sent_and_looked_at_in_whatever_order_every_queue_has_what_it_was_given(
    world: World, monkeypatch: pytest.MonkeyPatch, seed: int, sync: bool
) -> None:
    """Through short and long passes of the write-back at any moment, deleted topics, and a kill."""
    monkeypatch.setattr(store.write_back, "_QUEUES_AT_ONCE", 3)
    monkeypatch.setattr(store.write_back, "_MANY", 3)
    filed: list[bool] = []
    mark_filed = EntryPool.mark_filed

    def spy(pool: EntryPool[ConsumeQueue], queue: ConsumeQueue, *rest: int) -> bool:
        filed.append(mark_filed(pool, queue, *rest))
        return filed[-1]

    monkeypatch.setattr(EntryPool, "mark_filed", spy)
    chance = random.Random(seed)
    world.sync_flush, world.segment_size = sync, 1 << 16
    opened = world.store()
    opened.open()
    if seed % 3:  # with every third, the process follows the entries
        monkeypatch.setattr(store.queues.entry_pool, "PIECE", 5)
        opened._write_back._files = QueueFileWriter(Disk())
    model = Model(opened, chance, wide_share=0.75 if seed % 2 else 0.97)
    waiting: dict[ConsumeQueue, int] = {}
    for step in range(150):
        model.send()
        if sync:
            settle(opened)
        assert {queue for queue, at in waiting.items() if queue.next_offset > at} <= set(opened.woken)
        waiting.clear()
        for queue in opened.woken:
            queue.held = None
        opened.woken.clear()
        match chance.randrange(12):
            case 0:
                model.look_at((chance.choice(TOPICS), chance.randrange(2)))
            case 1 if step % 3 == 0 and not opened._write_back.writing:
                opened._write_back.write_queues(opened.readable_offset)
            case 1 | 2:
                world.clock.ms += 20_000
                opened.tick()
            case 5 | 6 | 7:
                wait_for(opened, lambda: not opened._write_back.worker.pending or chance.random() < 0.5)
            case 8:
                wait_for(opened, lambda: not opened._write_back.writing)
            case 3:
                queue = opened.queue(chance.choice(TOPICS), chance.randrange(2))
                queue.held = object()
                waiting[queue] = queue.next_offset
            case 4 if step % 10 == 0:
                topic = chance.choice(TOPICS)
                opened.delete_topic(topic, lambda _done: None)
                model.given = {target: given for target, given in model.given.items() if target[0] != topic}
    assert model.wide > 60
    assert sync or seed % 2 or min(filed.count(True), filed.count(False)) > 3, "filed from where they waited"
    if seed % 2:
        write_back(opened)
        assert all(queue.written == queue.next_offset for queue in queues(opened))
    model.look_at_all()
    settle(opened)  # the helper may be removing a directory, and a copy would stumble over that
    opened._write_back._files.stop()
    killed = world.killed()
    abandon(opened)
    with killed.opened() as again:
        for target, given in model.given.items():
            assert bodies(again, *target) == given


def test_what_waits_in_the_pool_is_let_go_of_when_it_was_written(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store.queues.entry_pool, "PIECE", 16)
    world.segment_size = 1 << 16
    with world.opened() as opened:
        targets = [(topic, 0) for topic in TOPICS]
        for _ in range(5):
            assert put_wide(opened, targets, [b"%04d" % n for n in range(8)]) is not None
        pool = opened.pool
        assert (list(pool._pieces), pool.end) == ([0, 1, 2], 40)
        write_back(opened)
        assert (list(pool._pieces), pool.end) == ([2], 40), "the last goes when it is full"
        assert put_wide(opened, targets, [b"%04d" % n for n in range(8)]) == [5] * 8
        assert all(len(bodies(opened, *target)) == 6 for target in targets)


def test_a_frozen_pool_stays_as_it_was_and_can_be_read_while_the_pool_grows(world: World) -> None:
    world.segment_size = 1 << 16
    with world.opened() as opened:
        targets, marks = [(topic, 0) for topic in TOPICS], [b"%04d" % n for n in range(8)]
        assert put_wide(opened, targets, marks) == [0] * 8
        frozen = opened.pool.frozen()
        waiting = [frozen.waiting(opened.queue(*target)) for target in targets]
        before = [piece.packed() for piece in frozen.pieces.values()]
        assert put_wide(opened, targets, marks) == [1] * 8
        assert [piece.packed() for piece in frozen.pieces.values()] == before
        assert [piece.packed() for piece in opened.pool.frozen().pieces.values()] != before
        assert [frozen.waiting(opened.queue(*target)) for target in targets] == waiting
        assert waiting == [(1, place) for place in range(8)]


def test_a_long_pass_that_finds_no_room_halfway_is_made_again_and_lets_go_of_nothing_before(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound that tells a start how many entries are in files is right after it, too."""
    monkeypatch.setattr(store.write_back, "_QUEUES_AT_ONCE", 3)
    monkeypatch.setattr(store.write_back, "_MANY", 3)
    monkeypatch.setattr(store.queues.entry_pool, "PIECE", 4)
    world.segment_size = 1 << 16
    with world.opened() as opened:
        files = opened._write_back._files = HeldFiles(Disk())
        targets, marks = [(topic, 0) for topic in TOPICS], [b"%04d" % n for n in range(8)]

        def long_pass() -> None:
            opened.tick()
            world.clock.ms += 20_000
            opened.tick()
            wait_for(opened, lambda: not opened._write_back.writing and not opened._write_back.worker.pending)

        for number in range(3):
            assert put_wide(opened, targets, marks) == [number] * 8
        files.room = 4
        long_pass()
        pool, back = opened.pool, opened._write_back
        assert [opened.queue(*target).written for target in targets] == [3, 3] + [0] * 6
        assert list(pool._pieces) == list(range(6)) and not files.held
        assert put_wide(opened, targets, marks) == [3] * 8
        files.room = 1000
        long_pass()
        assert [opened.queue(*target).written for target in targets] == [4] * 8
        assert not pool._pieces and not files.held
        others = sum(queue.written for queue in queues(opened)) - 32
        assert back._entries_written == 32 + others
        assert all(bodies(opened, *target) == [mark] * 4 for target, mark in zip(targets, marks, strict=True))


def test_a_long_pass_claims_no_entries_of_records_that_nobody_may_read_yet(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No turn lets a pass begin there today; if one does, the claim is right all the same."""
    monkeypatch.setattr(store.write_back, "_MANY", 3)
    monkeypatch.setattr(store.write_back, "_QUEUES_AT_ONCE", 3)
    world.segment_size = 1 << 16
    with world.opened() as opened:
        opened._write_back._files = HeldFiles(Disk())
        targets, marks = [(topic, 0) for topic in TOPICS], [b"%04d" % n for n in range(8)]
        for number in range(2):
            if number:
                monkeypatch.setattr(opened, "publish", lambda: None)
            assert put_wide(opened, targets, marks) == [number] * 8
            opened.tick()
            world.clock.ms += 20_000
            opened.tick()
            wait_for(opened, lambda: not opened._write_back.writing and not opened._write_back.worker.pending)
        back = opened._write_back
        assert opened.readable_offset == back.queues_written < opened.log.end_offset
        assert back._entries_written == 1 + 8, "that of the first segment's record too"
        monkeypatch.undo()
        opened.publish()


class HeldFiles(QueueFileWriter):
    """Room for so many writes, and whether there are pieces."""

    room = 1000
    held = False

    def hold(self, pieces: Pieces) -> None:
        super().hold(pieces)
        self.held = bool(pieces)

    def _writes_of(self, waiting: Waiting) -> Iterator[Write]:
        for write in super()._writes_of(waiting):
            self.room -= 1
            if self.room < 0:
                raise OSError(errno.ENOSPC, "no room")
            yield write


def test_a_pass_that_finds_no_room_leaves_everything_where_consumers_find_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.segment_size = 1 << 16
    with world.opened() as opened:
        targets = [(topic, 0) for topic in TOPICS]
        assert put_wide(opened, targets, [b"%04d" % n for n in range(8)]) is not None

        def no_room(*_args: object) -> bool:
            raise OSError(errno.ENOSPC, "no room")

        with monkeypatch.context() as patch:
            patch.setattr(Disk, "write_paged", no_room)
            write_back(opened)
        assert put_wide(opened, targets, [b"%04d" % n for n in range(8)]) == [1] * 8
        assert all(len(bodies(opened, *target)) == 2 for target in targets)
        write_back(opened)
        assert all(opened.queue(*target).written == 2 for target in targets)


def test_a_slave_and_the_master_it_becomes_go_on_where_the_pool_ended(world: World) -> None:
    world.segment_size = 1 << 16
    with (
        world.opened() as opened,
        World(world.root.with_name("other"), segment_size=1 << 16).opened() as other,
    ):
        targets = [(topic, 0) for topic in TOPICS]
        marks = [b"%04d" % n for n in range(8)]
        for each in (opened, other):
            assert put_wide(each, targets, marks) == [0] * 8
        assert put_wide(other, targets, marks) == [1] * 8
        log, end = other.log.segments[0], opened.log.end_offset
        follower = opened.follow()
        assert follower.append(end, bytes(log.map[end : other.log.end_offset])) == other.log.end_offset - end
        opened.publish()
        assert all(len(bodies(opened, *target)) == 2 for target in targets)
        opened.lead()
        assert put_wide(opened, targets, marks) == [2] * 8
        assert all(bodies(opened, *target) == [mark] * 3 for target, mark in zip(targets, marks, strict=True))


def test_what_is_behind_a_limit_stays_hidden_though_it_went_to_queues_in_the_pool(world: World) -> None:
    world.segment_size = 1 << 16
    with world.opened() as opened:
        targets = [(topic, 0) for topic in TOPICS]
        marks = [b"%04d" % n for n in range(8)]

        def shown() -> list[int]:
            return [opened.queue(*target).readable for target in targets]

        assert put_wide(opened, targets, marks) is not None
        opened.limit_readable(opened.log.end_offset)
        assert put_wide(opened, targets, marks) == [1] * 8
        assert shown() == [1] * 8
        opened.limit_readable(NO_LIMIT)
        assert put_wide(opened, targets, marks) == [2] * 8
        assert shown() == [3] * 8


def test_a_deleted_queue_is_in_no_pool_and_its_topic_can_come_back(world: World) -> None:
    world.segment_size = 1 << 16
    with world.opened() as opened:
        targets = [(topic, 0) for topic in TOPICS]
        marks = [b"%04d" % n for n in range(8)]
        assert put_wide(opened, targets, marks) == [0] * 8
        old = opened.queue("A", 0)
        old.held = object()
        slot = old.slot
        opened.delete_topic("A", lambda _done: None)
        assert opened.pool.queues[slot] is None and not opened.pool.held
        assert (old.pool, old.next_offset) == (None, 0)
        assert put_wide(opened, targets, marks) == [0] + [1] * 7
        assert bodies(opened, "A", 0) == [b"0000"]
        assert opened.pool.topics[slot] == opened.pool.topics[opened.queue("A", 0).slot] == "A"
