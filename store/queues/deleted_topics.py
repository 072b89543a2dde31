"""`ropewalk/deleted`: which topics were deleted, and up to where the log still holds records of them.

    {"topic": log offset, ...}

Deleting a topic removes its queues; its records stay in the log until their segments go. A recovery that walks the
log would bring the queues back, and mix their numbers with those of a topic that was created later under the same
name. So the end of the log at the moment of the deletion is kept here, durably and before the first file is removed:
a record of the topic that lies before it is dead. RocketMQ has no such memory; a store it recovers shows deleted
topics again, as it always did.
"""

from __future__ import annotations

import json
from pathlib import Path

from store.io.disk import Disk

__all__ = ["DeletedTopics"]


class DeletedTopics:
    """The topics deleted from one store. The loop owns the table; `save` may run on a helper thread."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self._path = path
        self._disk = disk
        self._ends: dict[str, int] = {}

    def load(self) -> None:
        """Read the file. One that cannot be read counts as none: deleted topics then show up again. Blocks."""
        try:
            value = json.loads(self._disk.read_file(self._path) or b"{}")
        except ValueError:
            value = {}
        entries = value.items() if isinstance(value, dict) else ()
        self._ends = {topic: end for topic, end in entries if isinstance(end, int)}

    def is_dead(self, topic: str, offset: int) -> bool:
        """Tell whether a record of `topic` at this log offset was deleted with its topic."""
        return offset < self._ends.get(topic, 0)

    def knows(self, topic: str) -> bool:
        """Tell whether `topic` was ever deleted, as far as the log still tells."""
        return topic in self._ends

    def note(self, topic: str, end_offset: int, log_min_offset: int) -> bytes:
        """Remember a deletion; the text that `save` has to make durable. Forgets those the log has outlived."""
        self._ends = {name: end for name, end in self._ends.items() if end > log_min_offset}
        self._ends[topic] = max(end_offset, self._ends.get(topic, 0))
        return json.dumps(self._ends, indent=1, sort_keys=True).encode()

    def save(self, text: bytes) -> None:
        """Make the table durable. Blocks; raises OSError, and the older file is whole then."""
        self._disk.replace_file(self._path, text)
