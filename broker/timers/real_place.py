"""The topic and queue that a waiting message goes to when its time has come, as REAL_TOPIC and REAL_QID name them."""

from __future__ import annotations

from collections.abc import Container
from typing import Protocol

from broker.state.offsets import real_queue_id
from ropewalk.format import names
from ropewalk.format.properties import P
from ropewalk.format.record import Record

__all__ = ["described", "real_place"]


class Topics(Protocol):
    """Topics that exist."""

    def __contains__(self, topic: str, /) -> bool: ...


def described(record: Record) -> str:
    """Return words for a waiting record: its place in the log, its queue, its message id and its keys."""
    properties = record.properties
    queue_text, topic = properties.get(P.REAL_QID, ""), properties.get(P.REAL_TOPIC, "")
    keys = f", keys {properties[P.KEYS]!r}" if P.KEYS in properties else ""
    key = f", message {properties[P.UNIQ_KEY]}" if P.UNIQ_KEY in properties else ""
    return f"the record at log offset {record.offset}, for queue {queue_text!r} of topic {topic!r}{key}{keys}"


def real_place(record: Record, topics: Topics, forbidden: Container[str]) -> tuple[str, int]:
    """Return topic and queue id. Raises ValueError with the reason why the record has no place to go.

    `topics` are those that exist, whatever their names; nothing is delivered into the `forbidden` ones.
    """
    topic, queue_id = record.properties.get(P.REAL_TOPIC, ""), real_queue_id(record.properties)
    if queue_id is None:
        raise ValueError(f"{described(record)}: no such queue can be")
    if topic in forbidden:
        raise ValueError(f"{described(record)}: nothing is delivered into that topic")
    if topic not in topics and (reason := names.check_topic(topic)) is not None:
        raise ValueError(f"{described(record)}: {reason}")
    return topic, queue_id
