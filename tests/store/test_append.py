"""Every way of appending: what is stored, where, and what happens at the ends of a segment."""

from __future__ import annotations

from pathlib import Path

import pytest

from ropewalk.errors import LocalProtocolError
from ropewalk.format.properties import tags_code
from ropewalk.format.record_pattern import SPLIT_MIN, RecordPattern
from store.append import Alike, Message
from store.log.limits import NO_LIMIT
from tests.store.worlds import (
    HOST,
    SEGMENT_SIZE,
    World,
    bodies,
    put,
    queues,
    records,
    write_back,
)


def test_a_put_tells_log_and_queue_offset_of_each_message(world: World) -> None:
    with world.opened() as store:
        first = put(store, [b"a", b"b"], queue_id=0)
        second = put(store, [b"c"], queue_id=1)
        third = put(store, [b"d"], queue_id=0)
        assert [number for _, number in first + second + third] == [0, 1, 0, 2]
        offsets = [offset for offset, _ in first + second + third]
        assert offsets == [
            r.offset for r in (records(store)[:2] + records(store, queue_id=1) + records(store)[2:])
        ]
        assert bodies(store) == [b"a", b"b", b"d"]


def test_every_field_of_a_message_is_stored(world: World) -> None:
    with world.opened() as store:
        store.begin_turn()
        queue = store.queue("T" * 200, 3)  # a name this long makes a V2 record
        store.put([(queue, b"body", b"K\x01v\x02", 7, 0x100, 1234, 2, 99, 5)], HOST)
        store.publish()
        (record,) = records(store, "T" * 200, 3)
        assert (record.body, record.properties, record.flag) == (b"body", {"K": "v"}, 7)
        assert (record.sys_flag, record.born_timestamp, record.reconsume_times) == (0x100, 1234, 2)
        assert (record.prepared_transaction_offset, record.store_timestamp) == (99, world.clock.ms)
        assert queue.read(0)[2] == 5


def test_a_batch_runs_over_the_end_of_a_segment_and_no_record_spans_it(world: World) -> None:
    with world.opened() as store:
        put(store, [b"x" * 700] * 30)
        assert len(store.log.segments) > 2
        for record in records(store):
            assert record.offset // SEGMENT_SIZE == (record.offset + record.size + 7) // SEGMENT_SIZE
        assert len(records(store)) == 30


def test_what_fits_no_segment_is_refused_and_what_came_before_it_in_the_batch_is_kept(world: World) -> None:
    with world.opened() as store:
        with pytest.raises(LocalProtocolError, match="larger than a commit-log segment"):
            put(store, [b"fits", b"x" * SEGMENT_SIZE])
        store.publish()
        assert bodies(store) == [b"fits"]
        put(store, [b"next"])
        assert bodies(store) == [b"fits", b"next"]


def test_a_reserved_run_stands_in_one_piece(world: World) -> None:
    with world.opened() as store:
        put(store, [b"x" * 7500])
        store.reserve(3 * 200)
        stored = put(store, [b"y" * 100] * 3)
        assert [offset // SEGMENT_SIZE for offset, _ in stored] == [1, 1, 1]


@pytest.mark.parametrize("size", range(SEGMENT_SIZE - 8 - 92 - 3, SEGMENT_SIZE - 8 - 92))
def test_the_largest_record_fills_a_segment_up_to_its_filler(world: World, size: int) -> None:
    with world.opened() as store:
        put(store, [b"small"])
        put(store, [b"x" * size])
        put(store, [b"after"])
        assert [len(body) for body in bodies(store)] == [5, size, 5]
    with world.opened() as store:
        assert [len(body) for body in bodies(store)] == [5, size, 5]


def test_messages_that_are_alike_are_stored_as_any_others_are(tmp_path: Path) -> None:
    """Two stores get the same messages, one of them by the quick way; their segments fill up several times.

    Small bodies and large ones, which are placed by themselves, take turns.
    """
    before, after = b"TAGS\x01A\x02UNIQ_KEY\x01", b"\x02"
    kinds: dict[bytes, RecordPattern] = {}
    ends: list[int] = []
    worlds = [World(tmp_path / name, segment_size=4 * SPLIT_MIN) for name in ("one", "alike")]
    with worlds[0].opened() as one, worlds[1].opened() as alike:
        for store in (one, alike):
            store.limit_readable(0)
        number = 0
        while len(alike.log.segments) < 4:
            turn = [
                (
                    b"TU"[n % 2 : n % 2 + 1],
                    n % 3,
                    b"%04d" % n,
                    bytes([n % 256]) * (n % 4 * (SPLIT_MIN // 2) - n % 5),
                )
                for n in range(number, number + 5)
            ]
            number += len(turn)
            messages: list[Message] = []
            others: list[Alike] = []
            for topic, queue_id, key, body in turn:
                name = topic.decode()
                properties = before + key + after
                messages.append((one.queue(name, queue_id), body, properties, 5, 0, 77, 2, 0, tags_code("A")))
                kind = kinds.get(topic)
                if kind is None:
                    kind = kinds[topic] = RecordPattern(
                        topic, 5, 0, HOST, alike.config.store_host, 2, before, 4, after
                    )
                seen = memoryview(body) if queue_id and len(body) >= SPLIT_MIN else body
                others.append((alike.queue(name, queue_id), seen, 77, key, kind, tags_code("A")))
            for store in (one, alike):
                store.begin_turn()
            assert alike.put_alike(others) == one.put(messages, HOST)
            for store in (one, alike):
                store.publish()
            ends += [queue.max_physical for queue, *_rest in others]
        assert not any(queue.readable for queue in queues(alike)), "nobody is answered yet"
        for end in sorted(ends):
            alike.limit_readable(end)
            one.limit_readable(end)
            assert alike.readable_offset == one.readable_offset
            assert [queue.readable for queue in queues(alike)] == [queue.readable for queue in queues(one)]
        one.limit_readable(NO_LIMIT)
        for queue in queues(one):
            assert records(alike, queue.topic, queue.queue_id) == records(one, queue.topic, queue.queue_id)
        assert len(queues(one)) == len(queues(alike)) == 6
        write_back(alike)
        assert all(queue.written == queue.next_offset for queue in queues(alike))
