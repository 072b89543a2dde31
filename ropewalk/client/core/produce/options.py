"""The options of a producer, which every shell of it takes as keywords."""

from __future__ import annotations

from dataclasses import dataclass

from ropewalk.client.core.messages import PRODUCER_GROUP
from ropewalk.client.core.produce.bodies import COMPRESS_OVER
from ropewalk.format.names import TRACE_TOPIC


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """Options of a producer. Times are in seconds, sizes in bytes."""

    group: str = PRODUCER_GROUP
    timeout: float = 3.0
    """For a send with all its attempts."""
    retries: int = 2
    """Attempts after the first, where the outcome of one is unknown or a broker cannot. What is refused for a moment is
    tried as long as there is time, and does not count."""
    compress_over: int = COMPRESS_OVER
    """Bodies longer than this are compressed (ZLIB) if that makes them shorter. Messages in a batch are not."""
    avoid_slow_brokers: bool = False
    """Leave brokers alone for a while that answered slowly or not at all."""
    retry_unless_ok: bool = False
    """Try another broker for a message that was stored with a reservation, at the price of a duplicate."""
    linger: float = 0.005
    """How long `send_async` lets a message wait for company; 0 sends every message by itself."""
    batch_bytes: int = 64 * 1024
    batch_count: int = 512
    pending_max: int = 10_000
    """Messages given to `send_async` and not yet accounted for; more of them wait before they are taken."""
    trace: bool = False
    """Whether what becomes of messages is told to the trace topic."""
    trace_topic: str = TRACE_TOPIC
