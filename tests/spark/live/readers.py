"""The live source's readers for the tests, without Spark around them: messages to fill a topic, rows to compare."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from ropewalk.client.core.messages import Message
from ropewalk.spark.options import Use, parse_options
from ropewalk.testing import RopewalkBroker

if TYPE_CHECKING:
    from ropewalk.spark.live.source import LiveReader, LiveStreamReader

MakeReader: TypeAlias = "Callable[..., LiveReader]"
MakeStream: TypeAlias = "Callable[..., LiveStreamReader]"


def options_for(broker: RopewalkBroker, use: Use, given: dict[str, Any]) -> Any:
    raw = {"nameServer": broker.namesrv, "pullTimeoutMs": "5000", "routeRefreshMs": "0", **given}
    return parse_options({name: value for name, value in raw.items() if value is not None}, use, {})


def fill(broker: RopewalkBroker, topic: str, count: int, *, start: int = 0, tags: str = "") -> None:
    """Messages `start` to `start + count`, turn by turn over the queues of a topic."""
    queues = broker.client.read_queues(topic)
    for at, queue in enumerate(queues):
        numbers = range(start + at, start + count, len(queues))
        messages = [
            Message(
                b"%06d" % n,
                keys=f"k{n}",
                tags=tags.split(",")[n // len(queues) % len(tags.split(","))] if tags else None,
                properties={"n": str(n)},
            )
            for n in numbers
        ]
        for first in range(0, len(messages), 200):
            broker.client.send_batch(topic, messages[first : first + 200], queue)


def rows_of(reader: LiveReader | LiveStreamReader, partitions: Any) -> list[dict[str, Any]]:
    batches = [batch for partition in partitions for batch in reader.read(partition)]
    return [row for batch in batches for row in batch.to_pylist()]


def numbers(rows: list[dict[str, Any]]) -> list[int]:
    return sorted(int(row["body"]) for row in rows)
