"""The Grafana dashboard over `/metrics`: rows of panels, each a title, a unit and its queries, as Grafana's JSON.

Grafana's own form of a dashboard is a thousand lines in which no query can be found again, so the panels stand here as
a table and `deploy/grafana/ropewalk.json` is written from it. A broker is `$cluster` and `$node` (its group's name);
`instance` tells the members of a group apart. Messages and lag are counted once for a group, by the largest of its
members' numbers: a slave knows the offsets of its master's consumers too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["PATH", "ROWS", "Panel", "dashboard", "queries"]

PATH: Final = "deploy/grafana/ropewalk.json"
_WIDTH: Final = 24
_BROKER: Final = 'cluster=~"$cluster", node_id=~"$node"'
_USERS: Final = f'{_BROKER}, is_system="false"'
_RATE: Final = "$__rate_interval"
_MEMBER: Final = "{{node_id}} {{instance}}"


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel: what it is called, how it is drawn, and the queries of its lines with their legends."""

    title: str
    unit: str
    help: str
    targets: tuple[tuple[str, str], ...]
    kind: str = "timeseries"
    width: int = 8
    thresholds: tuple[tuple[float | None, str], ...] = ((None, "green"),)
    text: str = "value_and_name"
    """What a `stat` writes into its field."""


def _rate(metric: str, labels: str = _BROKER, by: str = "node_id, instance") -> str:
    return f"sum by ({by}) (rate({metric}{{{labels}}}[{_RATE}]))"


def _quantile(quantile: float, metric: str, by: str = "node_id, instance", labels: str = _BROKER) -> str:
    return f"histogram_quantile({quantile}, {_rate(f'{metric}_bucket', labels, f'{by}, le')})"


def _once(metric: str, labels: str, by: str) -> str:
    """Count for a group what each of its members reports."""
    return f"max by ({by}) ({metric}{{{labels}}})"


_BAD: Final = ((None, "green"), (1.0, "red"))

ROWS: Final[tuple[tuple[str, tuple[Panel, ...]], ...]] = (
    (
        "Now",
        (
            Panel(
                "Takes messages", "none", "1 where /readyz answers 200.",
                ((f"ropewalk_ready{{{_BROKER}}}", _MEMBER),), "stat", 6, ((None, "red"), (1.0, "green")),
            ),
            Panel(
                "Role", "none", "The role of each member.",
                ((f"ropewalk_role{{{_BROKER}}}", "{{instance}} {{role}}"),), "stat", 6, text="name",
            ),
            Panel(
                "Damaged places", "none", "Places of the log that do not match their checksums. They are not served.",
                ((f"ropewalk_log_damaged_places{{{_BROKER}}}", _MEMBER),), "stat", 6, _BAD,
            ),
            Panel(
                "Dead letters in an hour", "none", "Messages that consumers gave up.",
                (
                    (
                        f"sum by (node_id) (increase(rocketmq_send_to_dlq_messages_total{{{_BROKER}}}[1h]))",
                        "{{node_id}}",
                    ),
                ),
                "stat", 6, _BAD,
            ),
        ),
    ),
    (
        "Producers",
        (
            Panel(
                "Messages in", "cps", "Messages stored for producers, by topic.",
                ((_rate("rocketmq_messages_in_total", _USERS, "topic"), "{{topic}}"),),
            ),
            Panel(
                "Bytes in", "Bps", "Bytes stored for producers, by topic.",
                ((_rate("rocketmq_throughput_in_total", _USERS, "topic"), "{{topic}}"),),
            ),
            Panel(
                "Time to answer a send", "ms", "From when the request had been read to its answer.",
                (
                    (
                        _quantile(0.5, "rocketmq_rpc_latency", "node_id", f'{_BROKER}, request_code=~"send_.*"'),
                        "{{node_id}} median",
                    ),
                    (
                        _quantile(0.99, "rocketmq_rpc_latency", "node_id", f'{_BROKER}, request_code=~"send_.*"'),
                        "{{node_id}} p99",
                    ),
                ),
            ),
            Panel(
                "Requests by answer", "reqps", "Answers other than success, by request and answer code.",
                (
                    (
                        _rate(
                            "rocketmq_rpc_latency_count", f'{_BROKER}, response_code!="success"',
                            "request_code, response_code",
                        ),
                        "{{request_code}} {{response_code}}",
                    ),
                ),
            ),
            Panel(
                "Messages not stored", "cps", "Sends that failed in the store.",
                ((_rate("ropewalk_put_failures_total"), _MEMBER),),
            ),
            Panel(
                "Requests that wait", "none", "For the disk or a slave, for messages, for a look at the disk.",
                ((f"rocketmq_processor_watermark{{{_BROKER}}}", "{{instance}} {{processor}}"),),
            ),
        ),
    ),
    (
        "Consumers",
        (
            Panel(
                "Messages out", "cps", "Messages given to consumers, by group.",
                ((_rate("rocketmq_messages_out_total", _USERS, "consumer_group"), "{{consumer_group}}"),),
            ),
            Panel(
                "Lag", "none", "Messages that a group has not committed yet.",
                (
                    (
                        f"sum by (consumer_group, topic) ("
                        f"{_once('rocketmq_consumer_lag_messages', _USERS, 'node_id, consumer_group, topic')})",
                        "{{consumer_group}} {{topic}}",
                    ),
                ),
            ),
            Panel(
                "Age of the lag", "ms", "How long ago the oldest message was stored that a group has not committed.",
                (
                    (
                        _once("rocketmq_consumer_lag_latency", _USERS, "consumer_group, topic"),
                        "{{consumer_group}} {{topic}}",
                    ),
                ),
            ),
            Panel(
                "Consumers", "none", "Connected consumers, by group.",
                (
                    (
                        f"sum by (consumer_group) (rocketmq_consumer_connections{{{_USERS}}})",
                        "{{consumer_group}}",
                    ),
                ),
            ),
            Panel(
                "Dead letters", "cps", "Messages given up, by group.",
                ((_rate("rocketmq_send_to_dlq_messages_total", _BROKER, "consumer_group"), "{{consumer_group}}"),),
            ),
            Panel(
                "Delayed messages", "none", "Messages that wait for their time, by delay level.",
                (
                    (
                        f"sum by (level) ({_once('ropewalk_delayed_messages', _BROKER, 'node_id, level')})",
                        "level {{level}}",
                    ),
                ),
            ),
        ),
    ),
    (
        "Replication",
        (
            Panel(
                "Slaves in sync", "none", "As their master counts them.",
                ((f"ropewalk_in_sync_slaves{{{_BROKER}}}", _MEMBER),),
            ),
            Panel(
                "Bytes that slaves are behind", "bytes", "Bytes of the master's log that a slave has not reported.",
                ((f"ropewalk_replication_lag_bytes{{{_BROKER}}}", "{{node_id}} {{slave}}"),),
            ),
            Panel(
                "Epoch", "none", "It rises by one with each change of the master.",
                ((f"ropewalk_epoch{{{_BROKER}}}", _MEMBER),),
            ),
        ),
    ),
    (
        "DLedger groups",
        (
            Panel(
                "Term", "none", "It rises with each election.",
                ((f"ropewalk_dledger_term{{{_BROKER}}}", _MEMBER),),
            ),
            Panel(
                "Not committed", "bytes", "Bytes of the log that most members are not known to have.",
                ((f"ropewalk_dledger_uncommitted_bytes{{{_BROKER}}}", _MEMBER),),
            ),
            Panel(
                "Entries that members lack", "none", "As the leader knows.",
                ((f"ropewalk_dledger_peer_lag_entries{{{_BROKER}}}", "{{node_id}} {{peer}}"),),
            ),
        ),
    ),
    (
        "Store and process",
        (
            Panel(
                "Flushes of the log", "s", "How long a flush took.",
                (
                    (_quantile(0.5, "ropewalk_flush_seconds"), f"{_MEMBER} median"),
                    (_quantile(0.99, "ropewalk_flush_seconds"), f"{_MEMBER} p99"),
                ),
            ),
            Panel(
                "Not flushed yet", "bytes", "Bytes of the log that a power cut would take.",
                ((f"rocketmq_storage_flush_behind_bytes{{{_BROKER}}}", _MEMBER),),
            ),
            Panel(
                "Disk", "percentunit", "Used, as df tells it.",
                ((f"ropewalk_disk_used_ratio{{{_BROKER}}}", _MEMBER),), thresholds=((None, "green"), (0.85, "red")),
            ),
            Panel(
                "Delay of the loop", "s", "By how much the loop's ticks came too late: all clients wait that long.",
                ((_quantile(0.99, "ropewalk_loop_delay_seconds"), f"{_MEMBER} p99"),),
            ),
            Panel(
                "Processor", "percentunit", "Seconds of processor time in a second.",
                (("rate(process_cpu_seconds_total{job=\"ropewalk\"}[$__rate_interval])", "{{instance}}"),),
            ),
            Panel(
                "Memory", "bytes", "Resident memory; pages of the log that are mapped at the moment count.",
                (('process_resident_memory_bytes{job="ropewalk"}', "{{instance}}"),),
            ),
        ),
    ),
)  # fmt: skip


def queries() -> Iterator[tuple[str, str]]:
    """Yield the title of each panel with each of its queries."""
    for _row, panels in ROWS:
        for panel in panels:
            for query, _legend in panel.targets:
                yield panel.title, query


def dashboard() -> str:
    """Return the dashboard as Grafana imports it."""
    board: dict[str, Any] = {
        "title": "Ropewalk",
        "uid": "ropewalk",
        "description": "Brokers of Ropewalk. Written by `make docs` from tools/documents/dashboard.py.",
        "tags": ["ropewalk", "rocketmq"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [*_variables()]},
        "panels": [*_panels()],
    }
    return json.dumps(board, indent=2) + "\n"


def _variables() -> Iterator[dict[str, Any]]:
    yield {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    for name, label, query in (
        ("cluster", "Cluster", "label_values(ropewalk_ready, cluster)"),
        ("node", "Group", 'label_values(ropewalk_ready{cluster=~"$cluster"}, node_id)'),
    ):
        yield {
            "name": name,
            "label": label,
            "type": "query",
            "datasource": _datasource(),
            "query": {"query": query, "refId": name},
            "refresh": 2,
            "includeAll": True,
            "multi": True,
            "current": {"text": "All", "value": "$__all"},
        }


def _datasource() -> dict[str, str]:
    return {"type": "prometheus", "uid": "${datasource}"}


def _panels() -> Iterator[dict[str, Any]]:
    number, top = 0, 0
    for title, panels in ROWS:
        number += 1
        yield {
            "id": number, "type": "row", "title": title, "collapsed": False, "panels": [],
            "gridPos": {"x": 0, "y": top, "w": _WIDTH, "h": 1},
        }  # fmt: skip
        top += 1
        left = height = 0
        for panel in panels:
            if left + panel.width > _WIDTH:
                left, top = 0, top + height
            height = 4 if panel.kind == "stat" else 8
            number += 1
            yield _panel(panel, number, {"x": left, "y": top, "w": panel.width, "h": height})
            left += panel.width
        top += height


def _panel(panel: Panel, number: int, position: dict[str, int]) -> dict[str, Any]:
    steps = [{"value": value, "color": color} for value, color in panel.thresholds]
    options: dict[str, Any] = {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True}}
    if panel.kind == "stat":
        options = {"reduceOptions": {"calcs": ["lastNotNull"]}, "textMode": panel.text, "colorMode": "value"}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.help,
        "datasource": _datasource(),
        "gridPos": position,
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "min": 0, "thresholds": {"mode": "absolute", "steps": steps}},
            "overrides": [],
        },
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "expr": query,
                "legendFormat": legend,
                "datasource": _datasource(),
            }
            for index, (query, legend) in enumerate(panel.targets)
        ],
    }
