"""Render a report as one HTML file that needs nothing else: no script, no font, no picture from anywhere.

Plots are SVG, drawn here: a frame, round numbers along the axes, and lines, bars or strips in it. Colours come from a
short list that can be told apart in print, and every line also has its name at its end.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from html import escape
from typing import Final

from ropewalk.spark.jobs.common.report import Bars, Cell, Lines, Plot, Report, Strips, Table

_WIDTH: Final = 860
_HEIGHT: Final = 300
_LEFT: Final = 70
_RIGHT: Final = 130
_TOP: Final = 16
_BOTTOM: Final = 44
_COLOURS: Final = ("#20639b", "#d1495b", "#3c896d", "#edae49", "#6a4c93", "#8a5a44", "#00798c", "#777777")
_ROWS_MAX: Final = 1000

_STYLE: Final = """
body{font:15px/1.5 system-ui,sans-serif;color:#222;max-width:64em;margin:2em auto;padding:0 1em}
h1{font-size:1.5em}h2{font-size:1.1em;margin-top:2em}table{border-collapse:collapse;font-size:14px}
th,td{padding:.2em .8em .2em 0;text-align:left;vertical-align:top;border-bottom:1px solid #ddd}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}.box{overflow-x:auto}
svg{font:12px system-ui,sans-serif;max-width:100%;height:auto}
footer{color:#777;margin-top:3em;font-size:13px}
"""


def render(report: Report, *, made_by: str) -> str:
    """Render the whole page."""
    parts = [
        "<!doctype html>", '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width">',
        f"<title>{escape(report.title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(report.title)}</h1>",
        _definitions([(name, value) for name, value in report.summary.items() if not isinstance(value, (list, dict))]),
    ]  # fmt: skip
    for plot in report.plots:
        parts += [f"<h2>{escape(plot.title)}</h2>", f'<div class="box">{draw(plot)}</div>']
    for table in report.tables:
        parts += [f"<h2>{escape(table.title)}</h2>", f'<div class="box">{_table(table)}</div>']
    parts += [f"<footer>{escape(made_by)}</footer>", "</body></html>\n"]
    return "\n".join(parts)


def _definitions(pairs: Sequence[tuple[str, Cell]]) -> str:
    rows = "".join(
        f"<tr><th>{escape(name.replace('_', ' '))}</th><td>{escape(_text(value))}</td></tr>"
        for name, value in pairs
    )
    return f"<table>{rows}</table>" if rows else ""


def _table(table: Table) -> str:
    numeric = [
        bool(table.rows) and all(isinstance(row[at], (int, float, type(None))) for row in table.rows)
        for at in range(len(table.columns))
    ]

    def cells(row: Sequence[Cell], tag: str) -> str:
        return "".join(
            f"<{tag}{' class=n' if is_number else ''}>{escape(_text(cell))}</{tag}>"
            for cell, is_number in zip(row, numeric, strict=True)
        )

    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in table.rows[:_ROWS_MAX])
    more = len(table.rows) - _ROWS_MAX
    note = f"<p>and {more} more rows, which --json has.</p>" if more > 0 else ""
    return f"<table><tr>{cells(table.columns, 'th')}</tr>{body}</table>{note}"


def _text(value: Cell) -> str:
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "" if value is None else str(value)


# -- plots -------------------------------------------------------------------------------------------


def draw(plot: Plot) -> str:
    """Draw one plot as an SVG element."""
    match plot:
        case Lines():
            return _lines(plot)
        case Bars():
            return _bars(plot)
        case Strips():
            return _strips(plot)


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers from `low` to `high`."""
    if not high > low:
        return [low]
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [step * n for n in range(first, math.floor(high / step + 1e-9) + 1)]


def _short(value: float) -> str:
    for factor, sign in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g}{sign}"
    return f"{value:.3g}"


def _clock(span: float) -> Callable[[float], str]:
    pattern = "%H:%M:%S" if span < 600 else "%H:%M" if span < 172_800 else "%m-%d"
    return lambda seconds: time.strftime(pattern, time.gmtime(seconds))


def _frame(inner: str, height: int = _HEIGHT) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" role="img">{inner}</svg>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _words(x: float, y: float, text: str, anchor: str = "middle", colour: str = "#444") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'


def _axis_y(high: float, label: str, plot_height: float) -> tuple[list[str], Callable[[float], float]]:
    high = high if high > 0 else 1.0

    def place(value: float) -> float:
        return _TOP + plot_height * (1 - value / high)

    marks = [_words(_LEFT - 8, _TOP - 4, label, "end")]
    for value in ticks(0, high):
        marks += [_line(_LEFT, place(value), _WIDTH - _RIGHT, place(value), "#e4e4e4")]
        marks += [_words(_LEFT - 8, place(value) + 4, _short(value), "end")] if value else []
    return marks, place


def _lines(plot: Lines) -> str:
    points = [point for series in plot.series.values() for point in series]
    if not points:
        return _frame(_words(_WIDTH / 2, 40, "nothing to draw"), 60)
    scale: Callable[[float], float] = (lambda x: math.log10(max(x, 1e-9))) if plot.x_is_log else (lambda x: x)
    low, high = min(scale(x) for x, _y in points), max(scale(x) for x, _y in points)
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    parts, y_place = _axis_y(max(y for _x, y in points), plot.y_label, height)

    def x_place(value: float) -> float:
        return _LEFT + width * ((scale(value) - low) / (high - low) if high > low else 0.5)

    text = _clock(high - low) if plot.x_is_time else _short
    along = (
        [10.0**n for n in range(math.ceil(low), math.floor(high) + 1)]
        if plot.x_is_log
        else ticks(low, high, 7)
    )
    for value in along:
        parts += [_words(x_place(value), _HEIGHT - _BOTTOM + 18, text(value))]
        parts += [_line(x_place(value), _HEIGHT - _BOTTOM, x_place(value), _HEIGHT - _BOTTOM + 4, "#888")]
    parts.append(_words(_LEFT + width / 2, _HEIGHT - 6, plot.x_label))
    used: list[float] = []
    for number, (name, series) in enumerate(plot.series.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        path = " ".join(f"{x_place(x):.1f},{y_place(y):.1f}" for x, y in series)
        if len(series) == 1:
            x, y = series[0]
            parts.append(f'<circle cx="{x_place(x):.1f}" cy="{y_place(y):.1f}" r="3" fill="{colour}"/>')
        else:
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        if series:
            at = y_place(series[-1][1]) + 4
            while any(abs(at - other) < 13 for other in used):
                at += 13
            used.append(at)
            parts.append(_words(_WIDTH - _RIGHT + 6, at, name[:20], "start", colour))
    return _frame("".join(parts))


def _bars(plot: Bars) -> str:
    if not plot.bars:
        return _frame(_words(_WIDTH / 2, 40, "nothing to draw"), 60)
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    parts, place = _axis_y(max(value for _label, value in plot.bars), plot.y_label, height)
    step = width / len(plot.bars)
    every = max(1, math.ceil(len(plot.bars) * 80 / width))
    for number, (label, value) in enumerate(plot.bars):
        x, y = _LEFT + step * number, place(value)
        parts.append(
            f'<rect x="{x + step * 0.1:.1f}" y="{y:.1f}" width="{step * 0.8:.1f}" '
            f'height="{_TOP + height - y:.1f}" fill="{_COLOURS[0]}">'
            f"<title>{escape(label)}: {_text(value)}</title></rect>"
        )
        if number % every == 0:
            parts.append(_words(x + step / 2, _HEIGHT - _BOTTOM + 18, label[:16]))
    return _frame("".join(parts))


def _strips(plot: Strips) -> str:
    if not plot.strips:
        return _frame(_words(_WIDTH / 2, 40, "nothing to draw"), 60)
    low = min(begin for _label, begin, _end, _marks in plot.strips)
    high = max(end for _label, _begin, end, _marks in plot.strips)
    left, row = 20, 46
    width = _WIDTH - 2 * left
    height = _TOP + row * len(plot.strips) + _BOTTOM
    kinds = sorted({kind for *_rest, marks in plot.strips for _b, _e, kind in marks})
    colour = {kind: _COLOURS[1:][number % (len(_COLOURS) - 1)] for number, kind in enumerate(kinds)}

    def place(value: float) -> float:
        return left + width * ((value - low) / (high - low) if high > low else 0)

    parts: list[str] = []
    for number, (label, begin, end, marks) in enumerate(plot.strips):
        y = _TOP + row * number
        parts.append(_words(left, y + 10, label, "start"))
        span = max(place(end) - place(begin), 1)
        parts.append(
            f'<rect x="{place(begin):.1f}" y="{y + 16}" width="{span:.1f}" height="18" fill="#c9dcec"/>'
        )
        for start, stop, kind in marks:
            wide = max(place(stop) - place(start), 2)
            parts.append(
                f'<rect x="{place(start):.1f}" y="{y + 13}" width="{wide:.1f}" height="24" fill="{colour[kind]}">'
                f"<title>{escape(kind)} at {start:,}</title></rect>"
            )
    for value in ticks(low, high, 7):
        parts.append(_words(place(value), height - _BOTTOM + 14, _short(value)))
    at = left
    for kind in kinds:
        parts.append(f'<rect x="{at}" y="{height - 16}" width="10" height="10" fill="{colour[kind]}"/>')
        parts.append(_words(at + 14, height - 7, kind, "start"))
        at += 30 + 8 * len(kind)
    parts.append(_words(_WIDTH - left, height - 7, plot.x_label, "end"))
    return _frame("".join(parts), height)
