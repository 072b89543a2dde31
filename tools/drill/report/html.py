"""A drill's result as a page of its own: one file, no script, nothing that is fetched from anywhere.

The timeline is drawn as SVG: answers per tenth of a second above, how far each member was behind below, the times
without an acknowledgement shaded, and a numbered mark for every event, which the list below it explains. Colours
follow the reader's light or dark setting; everything that a colour says is said in words too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from tools.drill.outcome import Result, Series
from tools.drill.report.text import figures
from tools.drill.timeline import Event

WIDTH = 1000
_LEFT = 64
_RIGHT = 16
_MARKS_HEIGHT = 40
_RATE_HEIGHT = 200
_LAG_HEIGHT = 120
_BETWEEN = 34
_AXIS_HEIGHT = 30
_TICKS_MAX = 12
_BARS_MAX = 300
_NUMBERS_MAX = 40

_STYLE = """
:root { color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --ink: #1c2330; --soft: #667085; --line: #d9dee7;
  --ack: #2f9e6e; --unknown: #e0a100; --refused: #d1495b; --gap: #d1495b22;
  --fault: #c0324a; --repair: #2463c9; --seen: #667085; --phase: #98a2b3; --trouble: #8b1e9b;
  --lag-0: #2463c9; --lag-1: #c26a1b; --lag-2: #7a52c7; }
@media (prefers-color-scheme: dark) { :root {
  --page: #12151b; --card: #1b2029; --ink: #e8ebf1; --soft: #9aa4b5; --line: #333b49;
  --ack: #43c08a; --unknown: #f0bd38; --refused: #ef6f80; --gap: #ef6f8026;
  --fault: #f2798b; --repair: #74a7ff; --seen: #9aa4b5; --phase: #667085; --trouble: #d48be0;
  --lag-0: #74a7ff; --lag-1: #f0a35e; --lag-2: #b79af0; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 24px; margin: 0 0 4px; }
h2 { font-size: 19px; margin: 0; }
h3 { font-size: 14px; margin: 22px 0 8px; color: var(--soft); font-weight: 600; }
p { margin: 4px 0; } .soft { color: var(--soft); }
section { background: var(--card); border: 1px solid var(--line); border-radius: 12px;
  padding: 20px 22px; margin: 18px 0; }
header.drill { display: flex; gap: 14px; align-items: baseline; flex-wrap: wrap; }
.badge { border-radius: 999px; padding: 2px 12px; font-weight: 600; font-size: 13px; color: #fff; }
.badge.clean { background: #23855b; } .badge.broken { background: #b3283f; }
.reasons { border-left: 4px solid var(--refused); padding: 4px 12px; margin: 12px 0; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(112px, 1fr)); gap: 10px; margin: 16px 0; }
.card { border: 1px solid var(--line); border-radius: 10px; padding: 10px 12px; }
.card b { display: block; font-size: 20px; line-height: 1.25; font-variant-numeric: tabular-nums; }
.card span { color: var(--soft); font-size: 13px; } .card.bad b { color: var(--refused); }
svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--soft); font: 12px system-ui, sans-serif; }
svg .title { fill: var(--ink); font-weight: 600; }
.axis { stroke: var(--line); stroke-width: 1; }
.legend { display: flex; gap: 18px; flex-wrap: wrap; color: var(--soft); font-size: 13px; margin: 6px 0 0; }
.legend i { display: inline-block; width: 11px; height: 11px; margin-right: 6px;
  border: 1px solid var(--line); border-radius: 3px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th { text-align: left; color: var(--soft); font-weight: 600; }
td, th { padding: 4px 10px 4px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.kind { font-weight: 600; white-space: nowrap; }
.events td:last-child { width: 100%; }
.scroll { overflow-x: auto; }
pre { white-space: pre-wrap; margin: 0; font: inherit; }
"""


def page(results: Sequence[Result]) -> str:
    """All results as one HTML document."""
    clean = sum(result.verdict == "clean" for result in results)
    title = (
        f"Drill {results[0].drill}: {results[0].verdict}"
        if len(results) == 1
        else f"{len(results)} drills, {clean} clean"
    )
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body><main>",
        f"<h1>{escape(title)}</h1>",
    ]
    if results:
        parts.append(f'<p class="soft">Ropewalk {escape(results[0].version)}, {escape(results[0].began)}</p>')
    if len(results) > 1:
        parts.append(_overview(results))
    parts += [_section(result) for result in results]
    parts.append("</main></body></html>")
    return "\n".join(parts) + "\n"


def _overview(results: Sequence[Result]) -> str:
    rows = "".join(
        f'<tr><td><a href="#{escape(r.drill)}">{escape(r.drill)}</a></td><td>{escape(r.title)}</td>'
        f'<td class="n">{r.stored_gap.seconds * 1000:,.0f} ms</td><td class="n">{r.audit.lost:,}</td>'
        f"<td>{_badge(r)}</td></tr>"
        for r in results
    )
    return (
        '<section><h2>Overview</h2><div class="scroll"><table><tr><th>drill</th><th>what was done</th>'
        f"<th>nothing stored</th><th>lost</th><th>verdict</th></tr>{rows}</table></div></section>"
    )


def _badge(result: Result) -> str:
    return f'<span class="badge {result.verdict}">{result.verdict}</span>'


def _section(result: Result) -> str:
    reasons = "".join(f"<pre>{escape(reason)}</pre>" for reason in result.reasons)
    parts = [
        f'<section id="{escape(result.drill)}"><header class="drill"><h2>{escape(result.drill)}</h2>',
        f"{_badge(result)}</header><p>{escape(result.title)}</p>",
        f'<p class="soft">{escape(result.mode)}; SEND_OK means {escape(result.promise)}</p>',
        f'<div class="reasons">{reasons}</div>' if reasons else "",
        _cards(result),
        draw(result),
        _legend(result),
        "<h3>Timeline</h3>",
        _events(result),
        "<h3>Figures</h3>",
        _table((), [(escape(name), escape(value)) for name, value in figures(result)]),
        "<h3>Links</h3>",
        _links(result),
    ]
    if result.settings:
        parts += [
            "<h3>Settings</h3>",
            _table((), [(escape(k), escape(v)) for k, v in result.settings.items()]),
        ]
    parts += [f'<p class="soft">{escape(text)}</p>' for text in result.notes]
    return "\n".join([*parts, "</section>"])


def _cards(result: Result) -> str:
    audit = result.audit
    equal = {None: "–", True: "yes", False: "no"}[result.replicas.equal]
    cards = [
        (f"{result.stored_gap.seconds * 1000:,.0f} ms", "nothing could be stored (RTO)", False),
        (f"{result.repair_wait_s * 1000:,.0f} ms", "of it, before the script's repair", False),
        (f"{result.copy_wait_s * 1000:,.0f} ms", "stored, waiting for a second copy", False),
        (f"{audit.lost:,}", "acknowledged but lost (RPO)", audit.lost > 0),
        (f"{audit.acknowledged:,}", "acknowledged", False),
        (f"{audit.duplicates:,}", "duplicates", False),
        (f"{audit.order_violations:,}", "order violations", audit.order_violations > 0),
        (equal, "replicas byte-equal", result.replicas.equal is False),
    ]
    return (
        '<div class="cards">'
        + "".join(
            f'<div class="card{" bad" if bad else ""}"><b>{escape(value)}</b><span>{escape(label)}</span></div>'
            for value, label, bad in cards
        )
        + "</div>"
    )


# -- the drawing -------------------------------------------------------------------------------------


class _Plane:
    """Seconds to x, for all panels."""

    def __init__(self, seconds: float) -> None:
        self.seconds = max(seconds, 0.001)

    def x(self, at: float) -> float:
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * min(max(at / self.seconds, 0.0), 1.0)


def draw(result: Result) -> str:
    """The timeline as one SVG element."""
    plane = _Plane(result.seconds)
    lag = _measured(result)
    top = _MARKS_HEIGHT
    bottom = top + _RATE_HEIGHT
    height = bottom + (_BETWEEN + _LAG_HEIGHT if lag else 0) + _AXIS_HEIGHT
    last = height - _AXIS_HEIGHT
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="Timeline of {escape(result.drill)}">',
        *_shaded(result, plane, top, last),
        *_rate_panel(result, plane, top),
    ]
    if lag:
        parts += _lag_panel(lag, plane, bottom + _BETWEEN)
    parts += _time_axis(plane, last)
    parts += _marks(result.events, plane, last)
    return "\n".join([*parts, "</svg>"])


def _measured(result: Result) -> dict[str, list[tuple[float, int]]]:
    """The members of which it is known how far they were behind; a colour each, in this order."""
    return {node: points for node, points in result.series.lag.items() if points}


def _shaded(result: Result, plane: _Plane, top: float, bottom: float) -> list[str]:
    return [
        f'<rect x="{plane.x(gap.begin):.1f}" y="{top}" width="{max(1.0, plane.x(gap.end) - plane.x(gap.begin)):.1f}" '
        f'height="{bottom - top}" fill="var(--gap)"><title>no acknowledgement for {gap.seconds * 1000:,.0f} ms, '
        f"from {gap.begin:.3f} s</title></rect>"
        for gap in result.gaps
    ]


def _rate_panel(result: Result, plane: _Plane, top: float) -> list[str]:
    """Answers in each bucket, stacked: acknowledged, unknown, refused."""
    width_s, counted = _wide(result.series)
    stacked = [sum(counts) / width_s for counts in zip(*(each for _, each in counted), strict=True)]
    peak = nice_ceiling(max([*stacked, result.rate]))
    bottom = top + _RATE_HEIGHT
    parts = [
        f'<text class="title" x="{_LEFT}" y="{top - 26}">answers per second</text>',
        *_grid(peak, top, _RATE_HEIGHT, lambda value: f"{value:,.0f}"),
    ]
    width = max(0.6, plane.x(width_s) - plane.x(0) - 0.4)
    for index in range(len(stacked)):
        y = bottom
        for kind, counts in counted:
            size = counts[index] / width_s / peak * _RATE_HEIGHT
            if size > 0:
                y -= size
                parts.append(
                    f'<rect x="{plane.x(index * width_s):.1f}" y="{y:.1f}" width="{width:.1f}" '
                    f'height="{size:.1f}" fill="var(--{kind})"/>'
                )
    return parts


def _wide(series: Series) -> tuple[float, list[tuple[str, list[int]]]]:
    """The counts in pieces so wide that each can be seen: their width, and for each colour the counts."""
    factor = max(1, -(-len(series.acknowledged) // _BARS_MAX))
    kinds = (("ack", series.acknowledged), ("unknown", series.unknown), ("refused", series.refused))
    return series.width * factor, [
        (kind, [sum(counts[at : at + factor]) for at in range(0, len(counts), factor)])
        for kind, counts in kinds
    ]


def _lag_panel(lag: dict[str, list[tuple[float, int]]], plane: _Plane, top: float) -> list[str]:
    """How many bytes each member was behind, as steps."""
    peak = nice_bytes(max(behind for points in lag.values() for _, behind in points))
    bottom = top + _LAG_HEIGHT
    parts = [
        f'<text class="title" x="{_LEFT}" y="{top - 10}">bytes behind the furthest log</text>',
        *_grid(peak, top, _LAG_HEIGHT, _bytes),
    ]
    for number, (node, points) in enumerate(sorted(lag.items())):
        path: list[str] = []
        before: float | None = None
        for at, behind in points:
            y = bottom - behind / peak * _LAG_HEIGHT
            # A member that said nothing for a while was away: no line across that time.
            path.append(f"{'M' if before is None or at - before > 1.0 else 'L'}{plane.x(at):.1f} {y:.1f}")
            before = at
        parts.append(
            f'<path d="{" ".join(path)}" fill="none" stroke="var(--lag-{number % 3})" stroke-width="2">'
            f"<title>{escape(node)}</title></path>"
        )
    return parts


def _grid(peak: float, top: float, height: float, label: Callable[[float], str]) -> list[str]:
    parts = []
    for step in range(3):
        value = peak * step / 2
        y = top + height - height * step / 2
        parts.append(
            f'<line class="axis" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{label(value)}</text>'
        )
    return parts


def _time_axis(plane: _Plane, y: float) -> list[str]:
    step = nice_ceiling(plane.seconds / _TICKS_MAX)
    parts = []
    tick = 0
    while tick * step <= plane.seconds + 1e-9:
        at = tick * step
        parts.append(f'<text x="{plane.x(at):.1f}" y="{y + 20}" text-anchor="middle">{at:g} s</text>')
        tick += 1
    return parts


def _marks(events: Sequence[Event], plane: _Plane, bottom: float) -> list[str]:
    """A line for each event, with its number above. Numbers that would lie on each other are put side by side.

    Where there are too many for that, only faults and troubles are drawn, faintly, and a number that finds no room is
    left out: its line tells it to a pointer.
    """
    parts = []
    free_from = -100.0
    crowded = len(events) > _NUMBERS_MAX
    for number, event in enumerate(events, 1):
        if crowded and event.kind not in ("fault", "trouble"):
            continue
        x = plane.x(event.at)
        colour = f"var(--{event.kind})"
        dash = ' stroke-dasharray="3 4"' if event.kind in ("seen", "phase") else ""
        parts.append(
            f'<g><line x1="{x:.1f}" x2="{x:.1f}" y1="{_MARKS_HEIGHT - 4}" y2="{bottom}" stroke="{colour}" '
            f'stroke-width="{0.6 if crowded else 1.5}"{dash}/>'
        )
        if not crowded or x >= free_from:
            label_x = min(max(x, free_from), WIDTH - 9.0)
            free_from = label_x + 19
            parts.append(
                f'<circle cx="{label_x:.1f}" cy="{_MARKS_HEIGHT - 12}" r="8.5" fill="{colour}"/>'
                f'<text x="{label_x:.1f}" y="{_MARKS_HEIGHT - 8}" text-anchor="middle" '
                f'style="fill:#fff;font-size:{10 if number < 100 else 8}px;font-weight:600">{number}</text>'
            )
        parts.append(f"<title>{event.at:.3f} s: {escape(event.text)}</title></g>")
    return parts


def nice_ceiling(value: float) -> float:
    """The least of 1, 2, 5, 10, 20 … (and their tenths) that is not below."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= value * (1 - 1e-9))


def nice_bytes(value: float) -> float:
    """Return a scale of round numbers in units of 1024."""
    unit = 1.0
    while value > 512 * unit:
        unit *= 1024
    return max(nice_ceiling(value / unit), 0.5) * unit


def _bytes(value: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if value < 512:
            return f"{value:g} {unit}"
        value /= 1024
    return f"{value:g} GiB"


# -- the tables --------------------------------------------------------------------------------------


def _legend(result: Result) -> str:
    items = [
        ("--ack", "acknowledged (status 0)"),
        ("--unknown", "unknown (10, 11, 12, or no answer)"),
        ("--refused", "refused"),
        ("--gap", "shaded: no acknowledgement"),
        *((f"--lag-{n % 3}", f"{node} behind") for n, node in enumerate(sorted(_measured(result)))),
    ]
    return (
        '<div class="legend">'
        + "".join(
            f'<span><i style="background:var({name})"></i>{escape(text)}</span>' for name, text in items
        )
        + "</div>"
    )


def _events(result: Result) -> str:
    rows = "".join(
        f'<tr><td class="n">{number}</td><td class="n">{event.at:.3f} s</td>'
        f'<td class="kind" style="color:var(--{event.kind})">{event.kind}</td>'
        f"<td><pre>{escape(event.text)}</pre></td></tr>"
        for number, event in enumerate(result.events, 1)
    )
    return f'<div class="scroll"><table class="events">{rows}</table></div>'


def _links(result: Result) -> str:
    return _table(
        ("from", "to", "bytes", "met a fault"),
        [
            (escape(link.source), escape(link.target), f"{link.bytes:,}", f"{link.hits:,}")
            for link in result.links
        ],
    )


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells are HTML already."""
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table>{f"<tr>{head}</tr>" if head else ""}{body}</table></div>'
