"""The message before a position: its store time is kept with the position, and compared before a query goes on from it.

Offsets alone do not tell one queue from another of its name. A topic that was deleted and made again, a broker with a
new store, another broker under its name, a fail-over to a replica that had less: all of them give the same offsets to
other messages, and once there are more of them than were read, nothing looks wrong. Store times of records never
change and travel with replication, so equal ones mean the same message.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ropewalk.spark.live.cluster import Cluster
from ropewalk.spark.live.offsets import (
    Bounds,
    Loss,
    Position,
    QueueKey,
    Queues,
    replaced_messages,
    reused_offsets,
)

__all__ = ["compare_last_read", "stored_before"]


def stored_before(
    cluster: Cluster, end: Queues, bounds: Mapping[QueueKey, Bounds], before: Position
) -> dict[QueueKey, int]:
    """Return the store time of the message before each offset; `before` knows that of queues that did not move."""
    known = {
        key: ms for key, ms in before.last_ms.items() if key in end and end[key] == before.queues.get(key)
    }
    last = {
        key: number - 1
        for key, number in end.items()
        if key not in known and key in bounds and bounds[key].low < number <= bounds[key].high
    }
    found = cluster.stored_ms(last) if last else {}
    return known | {key: ms for key, ms in found.items() if ms is not None}


def compare_last_read(
    cluster: Cluster,
    position: Position,
    keys: Iterable[QueueKey],
    bounds: Mapping[QueueKey, Bounds],
    changed: Collection[str] = (),
) -> list[Loss]:
    """Return the queues whose message before the position is not the one that was read.

    At brokers in `changed`, which have a new master, a position without store times is judged by its time.
    """
    last = {
        key: position.queues[key] - 1
        for key in keys
        if (key in position.last_ms or (key.broker in changed and position.time_ms is not None))
        and key in bounds
        and bounds[key].low < position.queues[key] <= bounds[key].high
    }
    if not last:
        return []
    stored_ms = cluster.stored_ms(last)
    losses = replaced_messages(position, bounds, stored_ms)
    if position.time_ms is not None:
        unknown = {key: ms for key, ms in stored_ms.items() if key not in position.last_ms}
        losses += reused_offsets(position.queues, unknown, position.time_ms)
    return losses
