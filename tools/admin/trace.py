"""`ropewalk admin message trace`: the life of a message, drawn from the records that traced clients left.

A consumption has two records, joined by their request id; where the second is missing, the handler has not come back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ropewalk.client.core.tracing.records import TraceRecord

__all__ = ["Step", "life_of"]

_FIRST_EVENTS = {"sent": 0, "stored": 1}


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a message's life."""

    time_ms: int
    event: str
    group: str
    message_id: str
    outcome: str
    cost_ms: int | None = None
    attempt: int | None = None
    """Of a delivery, from 1 on."""
    host: str = ""
    """The client that sent it, or the broker that stored it."""
    topic: str = ""


def life_of(wanted: str, found: Iterable[TraceRecord]) -> list[Step]:
    """Return the steps of the messages that have an id or key, in order."""
    records = list(dict.fromkeys(found))
    ids = {one.message_id for one in records if wanted == one.message_id or wanted in one.keys.split()}
    mine = [
        one for one in records if one.message_id in ids or (one.kind == "SubAfter" and not one.message_id)
    ]
    ends = {(one.request_id, one.message_id): one for one in mine if one.kind == "SubAfter"}
    return sorted((step for one in mine for step in _steps(one, ends)), key=_order)


def _order(step: Step) -> tuple[int, int]:
    """By time; within a millisecond a message is sent and stored before anything else becomes of it."""
    return step.time_ms, _FIRST_EVENTS.get(step.event, len(_FIRST_EVENTS))


def _steps(one: TraceRecord, ends: Mapping[tuple[str, str], TraceRecord]) -> Iterator[Step]:
    group, message_id, told = one.group, one.message_id, "success" if one.success else "failed"
    match one.kind:
        case "Pub":
            yield Step(
                one.time_ms,
                "sent",
                group,
                message_id,
                told,
                one.cost_ms,
                host=one.client_host,
                topic=one.topic,
            )
            if one.success:
                stored_ms = one.time_ms + one.cost_ms
                yield Step(stored_ms, "stored", group, message_id, told, host=one.store_host, topic=one.topic)
        case "SubBefore":
            end = ends.get((one.request_id, message_id))
            told = "no answer yet" if end is None else "success" if end.success else "failed"
            cost_ms = None if end is None else end.cost_ms
            yield Step(one.time_ms, "delivered", group, message_id, told, cost_ms, one.retries + 1)
        case "EndTransaction":
            told = f"{one.state}, by a check" if one.checked else one.state
            yield Step(
                one.time_ms,
                "transaction ended",
                group,
                message_id,
                told,
                host=one.store_host,
                topic=one.topic,
            )
        case "Recall":
            yield Step(one.time_ms, "recalled", group, message_id, told, topic=one.topic)
