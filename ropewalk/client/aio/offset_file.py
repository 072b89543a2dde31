"""The progress file of a broadcasting consumer: JSON, its own, for no broker knows its offsets.

    {"orders|broker-a|0": 17, ...}

Written beside and renamed, so that a crash leaves the old file or the new one. A file that is none of these is kept
aside as `<name>.broken` and told to the log: its consumer begins where `consume_from` says. So it does where the file
cannot be read, which is told too.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from ropewalk.client.core.consume.received import TopicQueue
from ropewalk.client.core.routes import Queue
from ropewalk.client.log import logger


def load_offsets(path: Path) -> dict[TopicQueue, int]:
    """Return the offsets that a file holds; none if it is missing."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except OSError as exc:
        logger().warning("progress not read", file=path, reason=exc.strerror or str(exc))
        return {}
    except ValueError as exc:
        return _kept_aside(path, exc)
    try:
        offsets: dict[TopicQueue, int] = {}
        for name, offset in json.loads(text).items():
            topic, broker, queue_id = name.split("|")
            offsets[TopicQueue(topic, Queue(broker, int(queue_id)))] = int(offset)
    except (ValueError, AttributeError, TypeError) as exc:
        return _kept_aside(path, exc)
    return offsets


def _kept_aside(path: Path, reason: Exception) -> dict[TopicQueue, int]:
    aside = path.with_name(path.name + ".broken")
    with contextlib.suppress(OSError):
        path.replace(aside)
    logger().warning("progress file broken", file=path, kept_as=aside, reason=repr(reason))
    return {}


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
