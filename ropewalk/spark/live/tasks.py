"""Turn ranges of queues into tasks, with the addresses to read from."""

from __future__ import annotations

from ropewalk.spark.live.cluster import Cluster
from ropewalk.spark.live.offsets import Position, Range
from ropewalk.spark.live.plan import split
from ropewalk.spark.live.read import Task
from ropewalk.spark.options import Options

__all__ = ["tasks_of"]


def tasks_of(
    ranges: list[Range], options: Options, cluster: Cluster, end: Position | None = None
) -> list[Task]:
    """Split ranges into tasks, each with the address to read from.

    With the `end` of a batch, the task that reads up to it checks that its last message is still the same.
    """
    pieces = split(
        ranges, max_records=options.max_records_per_partition, min_partitions=options.min_partitions
    )
    bases = _partition_bases(cluster)
    return [
        Task(
            piece.key,
            piece.low,
            piece.high,
            cluster.member(piece.key)[0],
            bases.get(piece.key[:2], 0),
            end.last_ms.get(piece.key) if end is not None and piece.high == end.queues[piece.key] else None,
        )
        for piece in pieces
    ]


def _partition_bases(cluster: Cluster) -> dict[tuple[str, str], int]:
    """Return, for each topic and broker, how many queues of the topic the brokers sorted before it have."""
    bases: dict[tuple[str, str], int] = {}
    for topic, route in cluster.routes.items():
        count = 0
        for data in sorted(route.queues, key=lambda data: data.broker_name):
            bases[topic, data.broker_name] = count
            count += data.read_queue_count
    return bases
