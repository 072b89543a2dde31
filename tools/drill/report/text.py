"""A drill's result for a terminal: the timeline, the figures, the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from tools.drill.outcome import Result
from tools.drill.timeline import Event

_MARKS = {"phase": "·", "fault": "✗", "repair": "↻", "seen": "→", "trouble": "!"}


def event_line(event: Event) -> str:
    """Return the line of an event of the timeline."""
    return f"{event.at:8.3f} s  {_MARKS[event.kind]} {event.text}"


def figures(result: Result) -> list[tuple[str, str]]:
    """Names and values, in the order in which they are read."""
    audit = result.audit
    rows = [
        (
            "nothing could be stored (RTO)",
            f"{result.stored_gap.seconds * 1000:,.0f} ms, from {result.stored_gap.begin:.3f} s",
        ),
        ("  before the script's repair", f"{result.repair_wait_s * 1000:,.0f} ms"),
        (
            "nothing was acknowledged",
            f"{result.write_gap.seconds * 1000:,.0f} ms, from {result.write_gap.begin:.3f} s",
        ),
        ("  waiting for a second copy", f"{result.copy_wait_s * 1000:,.0f} ms"),
        ("  of which is noise", f"{result.calm_gap.seconds * 1000:,.0f} ms was the longest before the fault"),
        ("acknowledged but lost (RPO)", f"{audit.lost:,} of {audit.acknowledged:,}"),
        *([("removed by retention", f"{audit.removed:,}, the oldest")] if audit.removed else []),
        ("duplicates", f"{audit.duplicates:,} (of messages sent again because their fate was unknown)"),
        ("order violations", f"{audit.order_violations:,}"),
        ("fate unknown", f"{audit.unknown:,}, of which {audit.unknown_found:,} are there"),
        ("replicas byte-equal", f"{_yes(result.replicas.equal)}: {result.replicas.text}"),
        ("acknowledged", f"{result.acknowledged_rate:,.0f}/s of {result.rate:,.0f}/s asked for"),
    ]
    if result.latency is not None:
        latency = result.latency
        rows.append(
            ("time to acknowledge", f"p50 {latency.p50:g} ms, p99 {latency.p99:g} ms, max {latency.max:g} ms")
        )
    answers = ", ".join(f"{code}: {count:,}" for code, count in result.answers.items())
    rows.append(("answers by code", answers or "none"))
    rows.append(("the fault took effect", "; ".join(_each_once(result.faults_hit))))
    return rows


def _each_once(texts: Sequence[str]) -> Iterator[str]:
    """The same text once, with how often it was there."""
    for text, count in Counter(texts).items():
        yield text if count == 1 else f"{text} ({count} times)"


def _yes(value: bool | None) -> str:
    return "not compared" if value is None else "yes" if value else "NO"


def lines(result: Result) -> Iterator[str]:
    """The whole report."""
    yield f"{result.drill}: {result.title}"
    yield f"{result.mode}; SEND_OK means {result.promise}"
    yield ""
    for event in result.events:
        yield event_line(event)
    yield ""
    table = figures(result)
    width = max(len(name) for name, _ in table)
    for name, value in table:
        yield f"{name:{width}}  {value}"
    for note in result.notes:
        yield f"note: {note}"
    yield ""
    for reason in result.reasons:
        yield f"broken: {reason}"
    yield f"verdict: {result.verdict}"
