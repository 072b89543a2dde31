"""Deleted topics: their queues go at once, and no recovery brings them back."""

import shutil
from pathlib import Path

from ropewalk.format.record import encode_host
from store.config import StoreConfig
from store.io.disk import Disk
from store.message_store import MessageStore
from store.queues.deleted_topics import DeletedTopics
from tests.store.worlds import wait_for

HOST = encode_host("127.0.0.1", 10911)
BORN = encode_host("127.0.0.1", 40000)
START_MS = 1_700_000_000_000


def opened(root: Path) -> MessageStore:
    config = StoreConfig(root, root / "commitlog", HOST, segment_size=1 << 20, queue_file_size=2_000)
    store = MessageStore(config, Disk(), lambda: START_MS, lambda: None)
    store.open()
    return store


def put(store: MessageStore, topic: str, *bodies: bytes) -> None:
    store.begin_turn()
    queue = store.queue(topic, 0)
    store.put([(queue, body, b"", 0, 0, START_MS, 0, 0, 0) for body in bodies], BORN)
    store.publish()


def delete(store: MessageStore, topic: str) -> None:
    answers: list[bool] = []
    store.delete_topic(topic, answers.append)
    assert topic not in store.queues
    wait_for(store, lambda: bool(answers))
    assert answers == [True]


def test_a_deletion_is_remembered_until_the_log_has_outlived_it(tmp_path: Path) -> None:
    topics = DeletedTopics(tmp_path / "deleted", Disk())
    topics.note("a", 1_000, 0)
    topics.note("b", 2_000, 999)
    assert topics.knows("a") and topics.is_dead("a", 999) and not topics.is_dead("a", 1_000)
    topics.save(topics.note("c", 3_000, 1_000))
    again = DeletedTopics(tmp_path / "deleted", Disk())
    again.load()
    assert [again.knows(name) for name in "abc"] == [False, True, True]


def test_a_deleted_topics_files_are_removed_and_others_stay(tmp_path: Path) -> None:
    store = opened(tmp_path)
    put(store, "gone", b"1", b"2")
    put(store, "kept", b"3")
    store.close()
    store = opened(tmp_path)
    delete(store, "gone")
    assert not (tmp_path / "consumequeue" / "gone").exists()
    assert (tmp_path / "consumequeue" / "kept" / "0").exists()
    store.close()


def test_a_full_walk_of_the_log_does_not_bring_a_deleted_topic_back(tmp_path: Path) -> None:
    store = opened(tmp_path)
    put(store, "gone", b"1", b"2")
    put(store, "kept", b"3")
    delete(store, "gone")
    store.close()
    (tmp_path / "ropewalk" / "bound").unlink()
    (tmp_path / "checkpoint").unlink()
    store = opened(tmp_path)
    assert not any(queue.readable for queue in store.queues.get("gone", {}).values())
    assert store.queue("kept", 0).readable == 1
    store.close()


def test_a_topic_created_anew_under_the_name_keeps_its_own_numbers(tmp_path: Path) -> None:
    store = opened(tmp_path)
    put(store, "again", b"1", b"2", b"3")
    delete(store, "again")
    put(store, "again", b"new")
    place = store.queue("again", 0).read(0)
    store.close()
    (tmp_path / "ropewalk" / "bound").unlink()
    (tmp_path / "checkpoint").unlink()
    store = opened(tmp_path)
    assert store.queue("again", 0).readable == 1
    assert store.queue("again", 0).read(0) == place
    store.close()


def test_who_holds_a_deleted_queue_finds_it_empty_also_when_its_messages_may_be_seen_at_last(
    tmp_path: Path,
) -> None:
    """Slaves confirm what was put before the deletion after it."""
    store = opened(tmp_path)
    store.limit_readable(0)
    put(store, "again", b"1", b"2", b"3")
    put(store, "kept", b"4")
    held = store.queue("again", 0)
    delete(store, "again")
    put(store, "again", b"new")
    store.limit_readable(store.log.end_offset)
    assert held.readable == held.next_offset == 0
    assert [store.queue(topic, 0).readable for topic in ("again", "kept")] == [1, 1]
    store.close()


def test_where_nobody_remembers_the_deletion_a_number_that_comes_again_begins_the_queue_anew(
    tmp_path: Path,
) -> None:
    """A store of RocketMQ's, or a slave's: the log holds messages 0 and 1 twice, and the later ones count."""
    store = opened(tmp_path)
    put(store, "again", b"1", b"2", b"3")
    delete(store, "again")
    put(store, "again", b"new", b"newer")
    places = [store.queue("again", 0).read(number) for number in range(2)]
    store.close()
    shutil.rmtree(tmp_path / "ropewalk")
    shutil.rmtree(tmp_path / "consumequeue")
    for _ in range(2):
        store = opened(tmp_path)
        queue = store.queue("again", 0)
        assert (queue.min_offset, queue.readable) == (0, 2)
        assert [queue.read(number) for number in range(2)] == places
        store.close()


def test_a_deletion_that_is_heard_of_late_spares_queues_with_messages_from_after_it(tmp_path: Path) -> None:
    """A slave hears of its master's deletion beside the log, and may have messages of the new topic by then."""
    store = opened(tmp_path)
    put(store, "again", b"1", b"2")
    store.put([(store.queue("again", 1), b"3", b"", 0, 0, START_MS, 0, 0, 0)], BORN)
    end = store.log.end_offset
    put(store, "again", b"new")
    answers: list[bool] = []
    store.delete_topic("again", answers.append, end)
    wait_for(store, lambda: bool(answers))
    assert sorted(store.queues["again"]) == [0]
    assert store.queue("again", 0).readable == 3
    store.close()
    (tmp_path / "ropewalk" / "bound").unlink()
    (tmp_path / "checkpoint").unlink()
    store = opened(tmp_path)
    assert sorted(number for number, queue in store.queues["again"].items() if queue.readable) == [0]
    assert store.queue("again", 0).readable == 3 and store.queue("again", 0).min_offset == 2
    store.close()


def test_files_that_a_crash_left_behind_a_deletion_count_for_nothing(tmp_path: Path) -> None:
    store = opened(tmp_path)
    put(store, "gone", b"1", b"2")
    store.close()
    found = (tmp_path / "consumequeue" / "gone").rglob("0*")
    files = {path: path.read_bytes() for path in found if path.is_file()}
    store = opened(tmp_path)
    delete(store, "gone")
    store.close()
    for path, data in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    store = opened(tmp_path)
    assert store.queue("gone", 0).readable == 0
    store.close()


def test_a_queue_written_while_its_topic_was_deleted_is_not_counted(tmp_path: Path) -> None:
    store = opened(tmp_path)
    put(store, "gone", *[b"x"] * 50)
    store.tick()
    store._write_back.write_queues(store.readable_offset)  # on its way to the file when the deletion comes
    delete(store, "gone")
    put(store, "kept", b"1")
    store.close()
    store = opened(tmp_path)
    assert store.recovered.scanned_from == store.recovered.end, "nothing was missed, nothing is read again"
    assert store.queue("kept", 0).readable == 1
    store.close()
