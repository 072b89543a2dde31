"""Hold the outcome of a drill: one document, which the reports print and `--json` shows as it is."""

from __future__ import annotations

from typing import Literal

import msgspec

from tools.drill.audit import Audit
from tools.drill.timeline import Event, Gap, repair_wait_s

BUCKET_S = 0.1
"""Width of the pieces in which answers are counted."""


class Link(msgspec.Struct, frozen=True):
    """The traffic from one end to another through the proxy."""

    source: str
    target: str
    bytes: int
    hits: int
    """How often bytes met a fault on this way."""


class Latency(msgspec.Struct, frozen=True):
    """Milliseconds from a request to its acknowledgement."""

    p50: float
    p99: float
    max: float


class Replicas(msgspec.Struct, frozen=True):
    """The comparison of the members' logs at the end."""

    equal: bool | None
    """None: there was nothing to compare, or it could not be; the text says why."""
    text: str


class Series(msgspec.Struct, frozen=True):
    """Counts for each `width` seconds, and samples."""

    width: float
    acknowledged: list[int]
    unknown: list[int]
    refused: list[int]
    lag: dict[str, list[tuple[float, int]]]
    """By member: seconds, and bytes behind the furthest log."""


class Result(msgspec.Struct, kw_only=True):
    """The result of a single run of a drill."""

    drill: str
    title: str
    verdict: Literal["clean", "broken"]
    reasons: list[str]
    """Why it is broken; empty when it is clean."""
    mode: str
    """Role and flush of the group, as its master said."""
    promise: str
    """The meaning of status 0."""
    version: str
    began: str
    seconds: float
    """Length of the load."""
    rate: float
    """The rate that was asked for, messages a second."""
    acknowledged_rate: float
    """The rate that was acknowledged, on average."""
    write_gap: Gap
    """The longest time without an acknowledgement since the first fault."""
    stored_gap: Gap
    """The longest time in which no message could be stored: the RTO."""
    calm_gap: Gap
    """The longest one before it: what of the gap is noise."""
    gaps: list[Gap]
    latency: Latency | None
    answers: dict[str, int]
    """Answers by code, "none" for requests without one."""
    remarks: dict[str, str]
    audit: Audit
    overlapping: int
    """Acknowledgements by a broker to requests sent after another one had taken over: must be 0 under SYNC_MASTER."""
    replicas: Replicas
    faults_hit: list[str]
    """Evidence that the fault took effect."""
    notes: list[str]
    events: list[Event]
    series: Series
    links: list[Link]
    settings: dict[str, str]
    folder: str | None = None
    """Where the files are, if they were kept."""

    @property
    def repair_wait_s(self) -> float:
        """The part of `stored_gap` in which the drill's script had not yet ordered the repair."""
        return repair_wait_s(self.stored_gap, self.events)

    @property
    def copy_wait_s(self) -> float:
        """The part of `write_gap` in which messages were stored and a second copy was missing."""
        both = min(self.write_gap.end, self.stored_gap.end) - max(self.write_gap.begin, self.stored_gap.begin)
        return self.write_gap.seconds - max(both, 0.0)

    @property
    def lost(self) -> int:
        return self.audit.lost
