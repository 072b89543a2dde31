"""Store directories for the tests: made here record by record, or written by Apache RocketMQ (tests/compat)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ropewalk.format.properties import encode_properties, tags_code
from ropewalk.format.queue_entry import ENTRY_SIZE, pack
from ropewalk.format.record import encode_blank, encode_host, encode_record
from tests.support.recorded_stores import STORES, unpack

COMPAT_NAMES = ("clean", "killed", "restarted")

BORN_HOST = encode_host("10.0.0.1", 50001)
STORE_HOST = encode_host("10.0.0.2", 10911)
START_MS = 1_700_000_000_000


def unpack_compat(name: str, folder: Path) -> tuple[Path, list[dict[str, Any]]]:
    """A store that RocketMQ wrote, and its messages as the Java consumer got them, in log order."""
    unpack(name, folder)
    lines = (STORES / f"{name}.jsonl").read_text().splitlines()
    return folder, [json.loads(line) for line in lines]


@dataclass
class MadeStore:
    """A store in the making: a log and its consume queues, small enough to look at."""

    root: Path
    segment_size: int = 1 << 16
    queue_file_size: int = 100 * ENTRY_SIZE
    first_offset: int = 0
    written: list[tuple[int, bytes]] = field(default_factory=list)
    """Log offset and bytes of each record."""

    def __post_init__(self) -> None:
        self.offset = self.first_offset
        self._next: dict[tuple[str, int], int] = {}
        self._clock_ms = START_MS

    def append(
        self,
        topic: str = "orders",
        queue_id: int = 0,
        body: bytes = b"hello",
        *,
        dispatch: bool = True,
        sys_flag: int = 0,
        **properties: str,
    ) -> int:
        """Write one record, and its queue entry unless told not to. Returns its log offset."""
        raw = encode_properties(properties)
        queue_offset = self._next.get((topic, queue_id), 0)
        size = 91 + len(body) + len(topic.encode()) + len(raw)
        position = self.offset % self.segment_size
        if position + size + 8 > self.segment_size:
            self.write(self.offset, encode_blank(self.segment_size - position))
            self.offset += self.segment_size - position
        self._clock_ms += 1
        record = encode_record(
            topic.encode(),
            queue_id,
            0,
            queue_offset,
            self.offset,
            sys_flag,
            self._clock_ms - 1,
            BORN_HOST,
            self._clock_ms,
            STORE_HOST,
            0,
            0,
            body,
            raw,
        )
        offset = self.offset
        self.write(offset, record)
        self.written.append((offset, record))
        self.offset += len(record)
        self._next[topic, queue_id] = queue_offset + 1
        if dispatch:
            self.write_entry(topic, queue_id, queue_offset, offset, len(record), properties.get("TAGS"))
        return offset

    def fill(self, count: int, topics: Sequence[str] = ("orders", "bills"), queues: int = 2) -> None:
        """Records of several topics, queues, tags and sizes."""
        for number in range(count):
            self.append(
                topics[number % len(topics)],
                number // len(topics) % queues,
                bytes([number % 251]) * (number * 37 % 700),
                KEYS=f"key-{number}",
                TAGS=f"tag{number % 3}",
                UNIQ_KEY=f"{number:032X}",
            )

    def write(self, offset: int, data: bytes) -> None:
        """Put bytes at a log offset."""
        base = offset - offset % self.segment_size
        _write(self.root / "commitlog" / f"{base:020d}", self.segment_size, offset - base, data)

    def write_entry(
        self, topic: str, queue_id: int, queue_offset: int, offset: int, size: int, tag: str | None = None
    ) -> None:
        """Put an entry into a consume queue."""
        at = queue_offset * ENTRY_SIZE
        base = at - at % self.queue_file_size
        path = self.root / "consumequeue" / topic / str(queue_id) / f"{base:020d}"
        _write(path, self.queue_file_size, at - base, pack(offset, size, tags_code(tag)))


def _write(path: Path, size: int, position: int, data: bytes) -> None:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.truncate(size)
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)
