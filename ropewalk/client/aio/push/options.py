"""Options of a push consumer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ropewalk.client.aio.queue_reader import ReadingOptions
from ropewalk.client.core.consume.consume_from import ConsumeFrom
from ropewalk.format.names import TRACE_TOPIC


@dataclass(frozen=True, slots=True)
class PushOptions(ReadingOptions):
    """Options of a push consumer. Times are in seconds."""

    consume_from: ConsumeFrom = "latest"
    """Where a queue begins that the group never committed: "earliest", "latest", a datetime, or milliseconds."""
    broadcasting: bool = False
    offsets_folder: str | Path | None = None
    """Where a broadcasting consumer keeps its progress; without it, it begins anew each time."""
    concurrency: int = 20
    """Handlers at work at the same time."""
    max_retries: int = 16
    """Failures after which a message is a dead letter; -1 for an orderly consumer that never gives up."""
    consume_timeout: float = 15 * 60.0
    """How long a handler may be at a message before that is given back, to be handled again by whoever gets it, while
    the handler goes on; `math.inf` for ever. Orderly handlers have all the time they need."""
    order_pause: float = 1.0
    commit_interval: float = 5.0
    rebalance_interval: float = 20.0
    close_timeout: float = 10.0
    trace: bool = False
    """Whether deliveries and their outcomes are told to the trace topic."""
    trace_topic: str = TRACE_TOPIC
