"""The progress file of a broadcasting consumer: JSON, its own, for no broker knows its offsets.

    {"orders|broker-a|0": 17, ...}

Written beside and renamed, so that a crash leaves the old file or the new one. A file that cannot be read is treated
as missing: its consumer begins where `consume_from` says.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from ropewalk.client.core.consume.received import TopicQueue
from ropewalk.client.core.routes import Queue


def load_offsets(path: Path) -> dict[TopicQueue, int]:
    """Return the offsets that a file holds; none if it is missing."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        offsets: dict[TopicQueue, int] = {}
        for name, offset in document.items():
            topic, broker, queue_id = name.split("|")
            offsets[TopicQueue(topic, Queue(broker, int(queue_id)))] = int(offset)
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
    return offsets


def save_offsets(path: Path, offsets: Mapping[TopicQueue, int]) -> None:
    """Replace the file. Raises `OSError` where the folder cannot be made or written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {f"{q.topic}|{q.queue.broker_name}|{q.queue.queue_id}": n for q, n in offsets.items()}
    beside = path.with_name(path.name + ".new")
    with beside.open("w", encoding="utf-8") as file:
        json.dump(document, file)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
