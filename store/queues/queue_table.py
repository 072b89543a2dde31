"""`QueueTable`: the consume queues of a store, by topic and number."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from store.io.disk import Disk
from store.queues.consume_queue import ConsumeQueue

__all__ = ["QueueTable"]


class QueueTable:
    """All queues that exist, those included that have no file yet."""

    def __init__(self, directory: Path, file_size: int, disk: Disk) -> None:
        """Begin without queues; their files are below `directory`, of `file_size` bytes each."""
        self.directory = directory
        self.by_topic: dict[str, dict[int, ConsumeQueue]] = {}
        self.made: dict[str, None] = {}
        """Topics of queues that came into being, until the broker has looked at them."""
        self._file_size = file_size
        self._disk = disk

    def __iter__(self) -> Iterator[ConsumeQueue]:
        for queues in self.by_topic.values():
            yield from queues.values()

    def __len__(self) -> int:
        return sum(map(len, self.by_topic.values()))

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return the queue, created in memory if it is new; its directory appears with its first entries."""
        queues = self.by_topic.get(topic)
        if queues is None:
            queues = self.by_topic[topic] = {}
        queue = queues.get(queue_id)
        if queue is None:
            self.made[topic] = None
            directory = f"{self.directory}/{topic}/{queue_id}"
            queue = queues[queue_id] = ConsumeQueue(topic, queue_id, directory, self._file_size, self._disk)
        return queue

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return the queue if it exists."""
        queues = self.by_topic.get(topic)
        return queues.get(queue_id) if queues is not None else None
