"""Stores made by the broker's own store, for jobs to read: small segments, checksums, queues and an index."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from ropewalk.format.index import Geometry
from ropewalk.format.properties import tags_code
from store.config import StoreConfig
from store.io.disk import Disk
from store.message_store import MessageStore
from tests.store.worlds import HOST, settle
from tests.support.clocks import Clock

SEGMENT_SIZE = 32768
QUEUE_FILE_SIZE = 2000
BLOCK = 4096
GEOMETRY = Geometry(211, 400)
TOPICS = ("orders", "payments", "trüb")
START_MS = 1_700_000_000_000


def config(root: Path, *, segment_size: int = SEGMENT_SIZE, index: Geometry | None = GEOMETRY) -> StoreConfig:
    return StoreConfig(
        root=root, log_directory=root / "commitlog", store_host=HOST, segment_size=segment_size,
        queue_file_size=QUEUE_FILE_SIZE, checksum_block=BLOCK, index=index, index_in_process=False,
    )  # fmt: skip


def fill(
    root: Path, records: int = 600, *, seed: int = 7, segment_size: int = SEGMENT_SIZE,
    index: Geometry | None = GEOMETRY, first: int = 0, step_ms: int = 37,
) -> None:  # fmt: skip
    """A store, or more in one that is there: bodies, tags and keys of many shapes; stopped in good order.

    A message is stored every `step_ms`.
    """
    disk = Disk()
    clock = Clock(START_MS + first * step_ms)
    store = MessageStore(config(root, segment_size=segment_size, index=index), disk, clock, lambda: None)
    store.open()
    rng = random.Random(seed)
    for number in range(first, first + records):
        append(store, number, rng)
        clock.ms += step_ms
        if number % 50 == 49:
            settle(store)
    settle(store)
    store.close()
    disk.close()


def append(store: MessageStore, number: int, rng: random.Random) -> None:
    topic = TOPICS[number % 7 % 3]
    tags = f"tag{number % 5}" if number % 4 else ""
    pairs = [("UNIQ_KEY", f"7F00000100002A9F{number:016X}")]
    if number % 3 == 0:
        pairs.append(("KEYS", f"order-{number} customer-{number % 11}"))
    if tags:
        pairs.append(("TAGS", tags))
    properties = "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode()
    body = rng.randbytes(rng.choice((1, 40, 100, 150, 300)))
    store.begin_turn()
    queue = store.queue(topic, number % 2)
    store.put([(queue, body, properties, 0, 0, store.now, 0, 0, tags_code(tags))], HOST)
    store.publish()


def replica_of(root: Path, target: Path) -> Path:
    """A copy of a store, as a slave that has everything would have it."""
    shutil.copytree(root, target)
    return target


def flip(path: Path, position: int, mask: int = 0x10) -> None:
    """Damage one bit, or a few, of one byte."""
    overwrite(path, position, bytes([path.read_bytes()[position] ^ mask]))


def overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def segment(root: Path, index: int = 0) -> Path:
    return sorted((root / "commitlog").iterdir())[index]
