"""Carry out `ropewalk store diverged`: list the tails that a store keeps aside, and print their messages.

The lines it prints are those of `ropewalk consume --json`, so `ropewalk produce --json-lines` sends them again.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ropewalk.client.core.routes import Queue
from ropewalk.format.names import SCHEDULE_TOPIC
from ropewalk.format.properties import P
from ropewalk.format.record import Record
from store.io.disk import Disk
from store.offline.diverged import Kept, kept_in
from store.offline.reader import UnreadableStore, find_log_files, read_log
from tools.common.output import UsageError
from tools.messages.consume import message_json, time_text

__all__ = ["kept_json", "kept_row", "messages_of", "tails_of"]

COLUMNS = ("name", "from offset", "bytes", "messages", "when", "why")


def tails_of(root: Path) -> list[Kept]:
    """Return the tails that this store keeps. Raises `UnreadableStore` where no store is."""
    if not (root / "ropewalk").is_dir() and not (root / "commitlog").is_dir():
        raise UnreadableStore(f"cannot read {root}: no such store")
    disk = Disk()
    try:
        return kept_in(root, disk)
    finally:
        disk.close()


def kept_json(kept: Kept) -> dict[str, Any]:
    about = kept.about
    return {
        "name": kept.path.name,
        "path": str(kept.path),
        "fromOffset": about.begin,
        "endOffset": about.end,
        "bytes": kept.size,
        "messages": sum(1 for _ in _records(kept.path)),
        "time": about.time_ms,
        "why": about.why,
        "master": about.master,
        "epoch": about.epoch,
    }


def kept_row(kept: Kept) -> tuple[object, ...]:
    document = kept_json(kept)
    return (
        document["name"], document["fromOffset"], document["bytes"], document["messages"],
        time_text(document["time"]), document["why"],
    )  # fmt: skip


def messages_of(root: Path, name: str, topic: str | None) -> Iterator[dict[str, Any]]:
    """The messages of one tail, or of all, in the order of the log. Raises `UsageError` if it is not there."""
    tails = tails_of(root)
    chosen = [kept for kept in tails if name in ("all", kept.path.name)]
    if not chosen and name != "all":
        raise UsageError(
            f"no diverged tail is called {name}; there are: {', '.join(kept.path.name for kept in tails) or 'none'}"
        )
    for kept in chosen:
        for record in _records(kept.path):
            sent_to = _sent_to(record)
            if topic is None or sent_to == topic:
                yield message_json(Queue("", record.queue_id), record) | {"topic": sent_to}


def _sent_to(record: Record) -> str:
    """The topic that its producer named: a delayed message waits in a topic of the broker's own."""
    return (
        record.properties.get(P.REAL_TOPIC, record.topic) if record.topic == SCHEDULE_TOPIC else record.topic
    )


def _records(path: Path) -> Iterator[Record]:
    return (found for found in read_log(find_log_files(path)) if isinstance(found, Record))
