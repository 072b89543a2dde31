"""Compute percentiles from a histogram, and show an outcome to people and to programs.

A histogram maps whole microseconds to how many replies took that long. It keeps every reply: nothing is
sampled, and its size is bounded by how much latencies differ and not by how long the load runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from rich.table import Table

from tools.bench.spec import ClientSpec, Latency, Outcome, ProduceSpec, PullSpec, Spec


def percentiles(histogram: Mapping[int, int], fractions: tuple[float, ...]) -> list[int]:
    """Return, for each of these fractions in ascending order, the least latency that it of all replies did not exceed.

    Ranks are the nearest ones; all are found in one walk.
    """
    assert histogram, "no reply, no percentile"
    assert list(fractions) == sorted(fractions) and all(0 < each <= 1 for each in fractions)
    total = sum(histogram.values())
    found: list[int] = []
    seen = 0
    for latency, count in sorted(histogram.items()):
        seen += count
        # Compared in whole replies, with a hair of tolerance: 0.999 x 1000 must be rank 999, not 1000.
        while len(found) < len(fractions) and seen >= fractions[len(found)] * total - 1e-6:
            found.append(latency)
    return found


def summarize(histogram: Mapping[int, int]) -> Latency | None:
    if not histogram:
        return None
    p50, p99, p999, worst = percentiles(histogram, (0.5, 0.99, 0.999, 1.0))
    return Latency(p50=p50, p99=p99, p999=p999, max=worst)


def shape(spec: Spec) -> str:
    """Describe the connections and requests in flight, as in "4 x 32"."""
    if isinstance(spec, ClientSpec):
        return {
            "sync": "1 process x 1",
            "async": f"1 process x {spec.in_flight}",
            "batched": "1 process, auto-batched",
            "pull": f"1 process, up to {spec.max_messages} a poll",
            "push": "1 process, read ahead",
        }[spec.mode]
    if isinstance(spec, PullSpec):
        return f"{spec.connections} x 1, {spec.max_messages} a time"
    if spec.rate is not None:
        return f"{spec.connections} connections, fixed {spec.rate:,.0f}/s"
    return f"{spec.connections} x {spec.in_flight}"


def is_pull(spec: Spec) -> bool:
    """Tell whether the load fetches messages; otherwise it sends them."""
    return isinstance(spec, PullSpec) or (isinstance(spec, ClientSpec) and not spec.produces)


def sender(spec: Spec) -> str:
    """Name the sender of the load: two rows compare two servers only if this is the same in both."""
    return f"client library, {spec.mode}" if isinstance(spec, ClientSpec) else "raw sender"


def as_document(spec: Spec, outcome: Outcome, label: str) -> dict[str, Any]:
    """Return the outcome for programs: what was asked, what was measured, whether it counts, and why not."""
    latency = outcome.latency
    return {
        "command": "pull" if is_pull(spec) else "produce",
        "sender": sender(spec),
        "label": label,
        "valid": outcome.is_valid,
        "void": outcome.why_void(),
        "rate": round(outcome.rate, 1),
        "megabytesPerSecond": round(outcome.megabytes_per_s, 3),
        "messages": outcome.messages,
        "replies": outcome.replies,
        "seconds": round(outcome.seconds, 3),
        "refused": outcome.refused,
        "refusedInWarmUp": outcome.refused_in_warm_up,
        "missing": outcome.missing,
        "latencyMs": None
        if latency is None
        else {name: value / 1000 for name, value in msgspec.structs.asdict(latency).items()},
        "serverCpuSecondsPerMillion": _rounded(outcome.server_cpu_s_per_million),
        "loadCpuSecondsPerMillion": _rounded(outcome.load_cpu_s_per_million),
        "rssAnonBytes": outcome.rss_anon,
        "rssFileBytes": outcome.rss_file,
        "spec": msgspec.to_builtins(spec),
    }


def as_table(spec: Spec, outcome: Outcome, label: str) -> Table:
    """Return the outcome for people, one figure a line, so that it reads the same in any terminal."""
    title = "bench pull" if is_pull(spec) else "bench produce"
    table = Table(title=f"{title} {label}".rstrip(), show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_row("connections x in flight", shape(spec))
    if isinstance(spec, ProduceSpec):
        batch = f", batches of {spec.batch}" if spec.batch > 1 else ""
        table.add_row("message", f"{spec.body_size} B{batch}")
    if isinstance(spec, PullSpec):
        count = sum(spec.end) - sum(spec.begin)
        layout = f", {spec.layout}" if spec.layout else ""
        table.add_row("backlog", f"{count:,} messages in {len(spec.begin)} queues{layout}")
    if isinstance(spec, ClientSpec):
        table.add_row("message", f"{spec.body_size} B")
        table.add_row("header", f"json, {sender(spec)}")
    else:
        table.add_row("header", f"{spec.serialization}, {sender(spec)}")
    void = outcome.why_void()
    if void is not None:
        table.add_row("[red]VOID[/red]", f"[red]{_plain(void)}[/red]")
    table.add_row("messages / s", f"{outcome.rate:,.0f}")
    # Of a pull one cannot tell bodies from records without decoding them, so it counts whole records.
    measured = "records" if isinstance(spec, PullSpec) else "bodies"  # a client has decoded them
    table.add_row(f"MB / s of {measured}", f"{outcome.megabytes_per_s:,.1f}")
    if outcome.latency is not None:
        for name, value in zip(
            ("p50", "p99", "p99.9", "max"), msgspec.structs.astuple(outcome.latency), strict=True
        ):
            table.add_row(f"{name} ms", f"{value / 1000:,.2f}")
    table.add_row("server CPU s / million", _shown(outcome.server_cpu_s_per_million))
    table.add_row("load CPU s / million", _shown(outcome.load_cpu_s_per_million))
    table.add_row("server RssAnon MB", _megabytes(outcome.rss_anon))
    table.add_row("server RssFile MB", _megabytes(outcome.rss_file))
    if outcome.refused_in_warm_up:
        table.add_row("refused in warm-up", f"{outcome.refused_in_warm_up:,}")
    return table


def _plain(text: str) -> str:
    """Escape a peer's remark, which is text and not markup."""
    return text.replace("[", "\\[")


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def _shown(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.1f}"


def _megabytes(value: int | None) -> str:
    return "unknown" if value is None else f"{value / 1e6:,.1f}"
