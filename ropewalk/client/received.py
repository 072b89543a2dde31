"""A message as a consumer meets it: unpacked, under the topic it was sent to, with a note of where it lies. Pure.

A message that is delivered again comes out of the group's retry topic; its handler sees the topic it was sent to, and
in `reconsume_times` how often it was given back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from ropewalk.client.bodies import readable_body
from ropewalk.client.routes import Queue
from ropewalk.format.properties import P
from ropewalk.format.record import Record


@dataclass(frozen=True, slots=True, order=True)
class TopicQueue:
    """One queue of one topic. Sorts as clients sort: by topic, then broker, then id."""

    topic: str
    queue: Queue


class RetryLater(Exception):
    """Raised by a handler that wants its message again: after the delay of a level, or as a dead letter.

    `delay_level` 0 lets the broker choose (10 s, 30 s, 1 min, … by the number of tries), -1 gives the message up.
    """

    def __init__(self, delay_level: int = 0) -> None:
        super().__init__(f"delay level {delay_level}")
        self.delay_level = delay_level


class ReceivedMessage(msgspec.Struct, frozen=True):
    """What a handler gets. Times are milliseconds since 1970."""

    topic: str
    body: bytes
    keys: str | None
    tags: str | None
    properties: Mapping[str, str]
    message_id: str
    """Given by its producer; the same for every delivery."""
    reconsume_times: int
    born_timestamp_ms: int
    store_timestamp_ms: int
    source: TopicQueue
    """The queue it was read from: of the retry topic, when it comes again."""
    queue_offset: int
    log_offset: int
    offset_message_id: str
    """Where it lies: what `ropewalk.client.simple.Client.view` takes."""
    note: str | None = None
    """Why the body is shown as it is stored, when it could not be unpacked."""

    @property
    def group(self) -> str | None:
        """The message group it was sent with."""
        return self.properties.get(P.SHARDING_KEY)


def received(record: Record, source: TopicQueue) -> ReceivedMessage:
    """A record read from `source`, as its consumer should see it."""
    body, note = readable_body(record.sys_flag, record.body)
    properties = record.properties
    offset_id = record.msg_id
    return ReceivedMessage(
        topic=properties.get(P.RETRY_TOPIC, source.topic),
        body=body,
        keys=properties.get(P.KEYS),
        tags=properties.get(P.TAGS),
        properties=properties,
        message_id=properties.get(P.UNIQ_KEY, offset_id),
        reconsume_times=record.reconsume_times,
        born_timestamp_ms=record.born_timestamp,
        store_timestamp_ms=record.store_timestamp,
        source=source,
        queue_offset=record.queue_offset,
        log_offset=record.offset,
        offset_message_id=offset_id,
        note=note,
    )
