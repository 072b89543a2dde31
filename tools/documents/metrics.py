"""The metrics reference: every family of a broker's `/metrics`, with its kind, labels and meaning."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from broker.broker import Broker
from broker.metrics.families import SERIES_MAX, MetricSources, of_broker
from broker.metrics.snapshot import Family, HistogramFamily
from broker.settings.config import METRICS_PORT, METRICS_PORTS
from tools.documents.markdown import cell, code, head, table

__all__ = ["families", "page"]

T = TypeVar("T")

_INTRODUCTION: Final = f"""
Every broker serves `/metrics` for Prometheus on port {METRICS_PORT} (`metricsPromExporterPort`), in the text form or as
OpenMetrics. Families carry RocketMQ 5's names where it has them, so that its dashboards work; those of Ropewalk's own
begin with `ropewalk_`. Every series also has `cluster`, `node_type` and `node_id`, and what `metricsLabel` adds.
Counters are shown with `_total`, histograms with `_bucket`, `_count` and, where sums are kept, `_sum`.

A second broker of one machine takes the next port up to {METRICS_PORT + METRICS_PORTS - 1} that is free, and any free
one where none of these is; its ready line and its log tell which. They may swap when both start again, so give a port
to each broker that is scraped: a port that was set is never left for another.

`/livez` answers 200 while the broker's loop turns. `/readyz` answers 200 while messages are taken, and 503 with the
reasons in words otherwise: a full disk, too few slaves, a broker that starts or stops. A slave answers 200 while it
serves, and a follower of a DLedger group while it knows a leader: they take no messages by their role. It answers 503
where its master refuses it, or it refuses its master, for longer than three seconds.

Sixty-four connections to this port are kept at most, fewer where the limit of open files is below 1024: one more takes
the place of the oldest, and one that asks nothing for half a minute is closed. A probe always gets in.

A family is cut at {SERIES_MAX:_} series, and `ropewalk_metrics_left_out` then counts what is missing. A broker that is
not scraped counts nothing for it.
""".strip()


def page(broker: Broker) -> str:
    """Return the reference for the families that this broker serves."""
    rows = [
        (code(family.name), _kind(family), cell(", ".join(family.labels)) or "-", cell(family.help))
        for family in sorted(families(broker), key=lambda family: family.name)
    ]
    both = {"RocketMQ's": "rocketmq_", "Ropewalk's own": "ropewalk_"}
    parts = [head("Metrics", "`broker/metrics/families.py`", _INTRODUCTION)]
    for title, prefix in both.items():
        own = [row for row in rows if row[0].startswith(f"`{prefix}")]
        parts.append(f"## {title}\n\n{table(('family', 'kind', 'labels', 'what it tells'), own)}")
    return "\n".join(parts)


def families(broker: Broker) -> Iterator[Family | HistogramFamily]:
    """Yield every family of a broker that nothing else runs: what the loop would be asked for is asked directly."""

    def ask(look: Callable[[], T], /) -> T:
        return look()

    role, delays = broker.group.role, broker.metrics.loop_delays
    services = broker.transactions, broker.timers, broker.sinks
    sources = MetricSources(broker.context, role, None, None, *services, 0, delays, ask)
    found, later = of_broker(sources)
    yield from found
    for source in later:
        yield from source()


def _kind(family: Family | HistogramFamily) -> str:
    return family.kind if isinstance(family, Family) else "histogram"
