"""Small stores for tests: a clock that is set by hand, segments of a few KiB, and what a crash leaves behind.

A kill -9 keeps the page cache, so `killed` is a copy of the directory as the file system shows it at that moment:
what was written through a map is in it, what was still in the process is not.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ropewalk.format.properties import tags_code
from ropewalk.format.record import Record, decode_record, encode_host
from store.config import StoreConfig
from store.io.disk import Disk
from store.message_store import MessageStore
from store.queues.consume_queue import ConsumeQueue
from tests.support.clocks import Clock
from tests.support.waiting import until

HOST = encode_host("127.0.0.1", 10911)
SEGMENT_SIZE = 8192
QUEUE_FILE_SIZE = 200  # ten entries
_copies = itertools.count()


@dataclass
class World:
    """One store directory, and the clock of whoever opens it."""

    root: Path
    sync_flush: bool = False
    segment_size: int = SEGMENT_SIZE
    queue_file_size: int = QUEUE_FILE_SIZE
    clock: Clock = field(default_factory=Clock)

    @property
    def config(self) -> StoreConfig:
        return StoreConfig(
            root=self.root,
            log_directory=self.root / "commitlog",
            store_host=HOST,
            segment_size=self.segment_size,
            queue_file_size=self.queue_file_size,
            sync_flush=self.sync_flush,
        )

    def store(self, disk: Disk | None = None) -> MessageStore:
        """A store that is not open yet."""
        return MessageStore(self.config, disk or Disk(), self.clock, lambda: None)

    @contextmanager
    def opened(self, disk: Disk | None = None) -> Iterator[MessageStore]:
        store = self.store(disk)
        store.open()
        try:
            yield store
        finally:
            store.close()

    def killed(self) -> World:
        """The same world as a kill -9 at this moment would leave it, in a directory of its own."""
        target = self.root.with_name(f"killed-{next(_copies)}")
        shutil.copytree(self.root, target)
        return World(target, self.sync_flush, self.segment_size, self.queue_file_size, Clock(self.clock.ms))

    def segment(self, index: int = 0) -> Path:
        return sorted((self.root / "commitlog").iterdir())[index]

    def forget_hints(self) -> None:
        """Take away what tells recovery where to begin: it then reads the whole log."""
        (self.root / "ropewalk" / "bound").unlink(missing_ok=True)
        (self.root / "checkpoint").unlink(missing_ok=True)


def put(
    store: MessageStore, bodies: Iterable[bytes], topic: str = "T", queue_id: int = 0, tags: str = ""
) -> list[tuple[int, int]]:
    """One turn of the loop that appends these bodies to a queue."""
    properties = f"TAGS\x01{tags}\x02".encode() if tags else b""
    store.begin_turn()
    queue = store.queue(topic, queue_id)
    done = store.put(
        [(queue, body, properties, 0, 0, store.now, 0, 0, tags_code(tags)) for body in bodies], HOST
    )
    store.publish()
    return done


def settle(store: MessageStore) -> None:
    """Have everything flushed, and every helper thread come to rest."""
    store.request_flush()
    wait_for(store, lambda: store.log.flushed_offset == store.log.end_offset)
    wait_for(store, lambda: not store._write_back.worker.pending and not store._preallocator.worker.pending)


def wait_for(store: MessageStore, happened: Callable[[], object]) -> None:
    """Run the completions of helper threads until this has happened."""
    until(happened, "a helper thread never answered", pause_s=0.0005, turn=store.run_completions)


def write_back(store: MessageStore) -> None:
    """What the store does once a second: readable entries go to their files."""
    settle(store)
    store._write_back.write_queues(store.readable_offset)
    settle(store)
    store._write_back.write_bound(clean=False)
    settle(store)


def records(store: MessageStore, topic: str = "T", queue_id: int = 0) -> list[Record]:
    """What a consumer who reads everything gets: every readable record of a queue, checked in full."""
    queue = store.find_queue(topic, queue_id)
    if queue is None:
        return []
    found = []
    frozen = queue.frozen()
    for number in range(frozen.min_offset, frozen.readable):
        offset, size, _tags = frozen.read(number)
        segment = store.log.find(offset)
        assert segment is not None, (topic, queue_id, number, offset)
        position = offset - segment.base_offset
        record = decode_record(segment.map[position : position + size])
        assert (record.offset, record.size) == (offset, size)
        assert (record.topic, record.queue_id, record.queue_offset) == (topic, queue_id, number)
        found.append(record)
    return found


def bodies(store: MessageStore, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    return [record.body for record in records(store, topic, queue_id)]


def queues(store: MessageStore) -> list[ConsumeQueue]:
    return [queue for by_id in store.queues.values() for queue in by_id.values()]


def abandon(store: MessageStore) -> None:
    """Drop a store as a dying process does, without a word to its files."""
    for helper in (store._flusher, store._write_back.worker, store._preallocator.worker):
        assert helper is not None
        helper.stop()
    store.log.close(keep_spare=True)
    store._disk.close()
    store._disk.unlock(store._lock_fd)


def damage(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def bytes_of(world: World) -> bytes:
    """All bytes of a log that was closed in good order."""
    store = world.store()
    store.recover()
    try:
        end = store.log.end_offset
        return b"".join(bytes(s.map[: min(s.size, end - s.base_offset)]) for s in store.log.segments)
    finally:
        store.release()
