"""Define the bench's question to its load process and the answer: one JSON document each way.

The load runs in an interpreter of its own, so these two records are all that the processes share. Times
are seconds in the question and microseconds in the answer; sizes are bytes; memory is bytes.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Serialization = Literal["json", "binary"]


class ProduceSpec(msgspec.Struct, frozen=True, kw_only=True, tag="produce"):
    """A load of sends. `rate` (messages per second) makes it open-loop; else `in_flight` is the limit."""

    host: str
    port: int
    topic: str
    queues: int = 4
    connections: int = 4
    in_flight: int = 32
    body_size: int = 1024
    batch: int = 1
    serialization: Serialization = "json"
    warm_up_s: float = 2.0
    duration_s: float = 10.0
    rate: float | None = None
    reply_timeout_s: float = 10.0
    server_pid: int | None = None

    def __post_init__(self) -> None:
        for name in ("queues", "connections", "in_flight", "batch", "port"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if self.body_size < 1:
            raise ValueError("body_size must be at least 1: an empty message is refused by brokers")
        if self.rate is not None and self.rate <= 0:
            raise ValueError("rate must be above 0")
        if self.duration_s <= 0 or self.warm_up_s < 0:
            raise ValueError("duration_s must be above 0, and warm_up_s not below it")


class PullSpec(msgspec.Struct, frozen=True, kw_only=True, tag="pull"):
    """A load of pulls over a backlog that is already there; one pull in flight per connection.

    `begin` and `end` are the queue offsets between which each queue is read, over and over.
    """

    host: str
    port: int
    topic: str
    begin: tuple[int, ...]
    end: tuple[int, ...]
    layout: str = ""
    """How the messages of the queues lie in the log, in words; empty if nobody knows."""
    connections: int = 4
    max_messages: int = 32
    serialization: Serialization = "json"
    warm_up_s: float = 2.0
    duration_s: float = 10.0
    reply_timeout_s: float = 10.0
    server_pid: int | None = None

    def __post_init__(self) -> None:
        if self.connections < 1 or self.max_messages < 1:
            raise ValueError("connections and max_messages must be at least 1")
        if not self.begin or len(self.begin) != len(self.end):
            raise ValueError("begin and end must name the same queues, at least one")
        if any(begin >= end for begin, end in zip(self.begin, self.end, strict=True)):
            raise ValueError("a queue without messages cannot be pulled")


ClientMode = Literal["sync", "async", "batched", "pull", "push"]
PRODUCING: tuple[ClientMode, ...] = ("sync", "async", "batched")
CONSUMING: tuple[ClientMode, ...] = ("pull", "push")


class ClientSpec(msgspec.Struct, frozen=True, kw_only=True, tag="client"):
    """A load by the client library, in one process, as programs use it; of one of these kinds:

    sync       `Producer.send`, one message after the other
    async      `AsyncProducer.send` under trio, `in_flight` tasks at a time
    batched    `Producer.send_async`: gathered into batches, as many pending as it allows
    pull       `PullConsumer.poll` over a backlog that is already there, over and over
    push       `AsyncPushConsumer` with a coroutine function as its handler, over the same backlog
    """

    name_servers: str
    topic: str
    mode: ClientMode
    body_size: int = 1024
    in_flight: int = 32
    max_messages: int = 32
    backlog: int = 0
    """The messages of the topic, of a load that consumes."""
    warm_up_s: float = 2.0
    duration_s: float = 10.0
    reply_timeout_s: float = 10.0
    server_pid: int | None = None

    def __post_init__(self) -> None:
        if self.in_flight < 1 or self.max_messages < 1 or self.body_size < 1:
            raise ValueError("in_flight, max_messages and body_size must be at least 1")
        if self.duration_s <= 0 or self.warm_up_s < 0:
            raise ValueError("duration_s must be above 0, and warm_up_s not below it")
        if self.mode in CONSUMING and self.backlog < 1:
            raise ValueError("a topic without messages cannot be consumed")

    @property
    def produces(self) -> bool:
        return self.mode in PRODUCING


RawSpec = ProduceSpec | PullSpec
Spec = RawSpec | ClientSpec


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Latencies in microseconds, from the send (open loop: from the moment it was due) to the reply."""

    p50: int
    p99: int
    p999: int
    max: int


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The measurements of one load. Counts are of the measured window, warm-up excluded, unless said otherwise.

    `refused` maps response codes other than 0 to how many replies carried them, `remarks` keeps one text
    for each. `body_bytes` are message bodies, of a pull whole stored records. `missing` replies never
    came. `error` is set when the load could not go on at all.
    """

    messages: int = 0
    messages_in_warm_up: int = 0
    replies: int = 0
    seconds: float = 0.0
    body_bytes: int = 0
    refused: dict[str, int] = msgspec.field(default_factory=dict)
    remarks: dict[str, str] = msgspec.field(default_factory=dict)
    refused_in_warm_up: int = 0
    missing: int = 0
    latency: Latency | None = None
    load_cpu_s: float = 0.0
    server_cpu_s: float | None = None
    rss_anon: int | None = None
    rss_file: int | None = None
    error: str | None = None

    @property
    def is_valid(self) -> bool:
        """Tell whether the rate means anything: every request was answered, and answered with status 0."""
        return self.error is None and not self.refused and not self.missing and self.messages > 0

    @property
    def rate(self) -> float:
        """The acknowledged messages per second."""
        return self.messages / self.seconds if self.seconds else 0.0

    @property
    def megabytes_per_s(self) -> float:
        """`body_bytes`, in units of 10^6 bytes per second."""
        return self.body_bytes / self.seconds / 1e6 if self.seconds else 0.0

    @property
    def server_cpu_s_per_million(self) -> float | None:
        if self.server_cpu_s is None or not self.messages:
            return None
        return self.server_cpu_s / self.messages * 1e6

    @property
    def load_cpu_s_per_million(self) -> float | None:
        return self.load_cpu_s / self.messages * 1e6 if self.messages else None

    def why_void(self) -> str | None:
        """Return why the rate must not be quoted, in one line; None when it may be."""
        if self.error is not None:
            return self.error
        reasons = [
            f"{count} replies with code {code}" + (f" ({self.remarks[code]})" if code in self.remarks else "")
            for code, count in sorted(self.refused.items())
        ]
        if self.missing:
            reasons.append(f"{self.missing} replies never came")
        if not reasons and not self.messages:
            reasons.append("nothing was acknowledged in the measured time")
        return "; ".join(reasons) or None
