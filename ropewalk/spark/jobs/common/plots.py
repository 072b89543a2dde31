r"""Plots of a report as SVG, drawn here: lines over time or numbers, bars, and strips of a log with marks on them.

    y title
    200k |------------------------------------
         |      /\                    o          a line ends where points are missing; a point without
    100k |-----/--\-----------------------       neighbours is a dot
         |    /    \      ____/
       0 +----+---------+---------+------+--
            12:00     13:00     14:00            round numbers, round times, none on top of another
            2025-06-01
                          x title

Colours are names that the page's style gives values to, for light and dark. Names of lines stand in a legend below the
plot, where they have room. Whatever is damage has the warning colour and is drawn last, so that nothing covers it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from html import escape
from typing import Final

from ropewalk.spark.jobs.common.report import Bars, Lines, Plot, Strips

__all__ = ["PALETTE_SIZE", "bytes_text", "draw", "legend", "ticks", "time_ticks"]

WIDTH: Final = 1000
PALETTE_SIZE: Final = 8
_HEIGHT: Final = 240
_LEFT: Final = 72
_RIGHT: Final = 48
"""Room for one half of the last label of an axis."""
_TOP: Final = 34
_BOTTOM: Final = 58
_CHARACTER: Final = 6.8
"""The width of a character, in the style's 12 px."""
_DOTS_MAX: Final = 60
_BAR_HEIGHT: Final = 26
_LABEL_MAX: Final = 38
_MARK_MIN: Final = 3.0

_TIME_STEPS: Final = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200,
    *(86_400 * days for days in (1, 2, 7, 14, 28, 91, 182, 364, 728, 1820, 3640)),
)  # fmt: skip
_DAY: Final = 86_400


def draw(plot: Plot) -> str:
    """Draw one plot as an SVG element."""
    match plot:
        case Lines():
            return _lines(plot)
        case Bars():
            return _bars(plot)
        case Strips():
            return _strips(plot)


def legend(plot: Plot) -> list[tuple[str, str]]:
    """Return the meaning of a plot's colours, as (CSS colour, name); nothing where there is one colour only."""
    match plot:
        case Lines():
            return [(_colour(n), name) for n, name in enumerate(plot.series)] if len(plot.series) > 1 else []
        case Strips():
            return [(_mark_colour(plot, kind), kind) for kind in _kinds(plot)]
        case Bars():
            return []


# -- axes --------------------------------------------------------------------------------------------


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return about `count` round numbers from `low` to `high`."""
    if not high > low:
        return [low]
    step = _round_up((high - low) / count)
    first = math.ceil(low / step - 1e-9)
    return [step * n for n in range(first, math.floor(high / step + 1e-9) + 1)]


def time_ticks(low: float, high: float, count: int = 8) -> list[tuple[float, str, str]]:
    """Return round times as (seconds since 1970, label, second line), at most `count` or so.

    The second line is the date, where the label is a time of day: at the first label and at each new day.
    """
    if not high > low:
        return [(low, *_time_text(low, 1, ""))]
    step = next((s for s in _TIME_STEPS if (high - low) / s <= count), _TIME_STEPS[-1])
    marks: list[tuple[float, str, str]] = []
    date = ""
    for n in range(math.ceil(low / step), math.floor(high / step) + 1):
        label, line = _time_text(step * n, step, date)
        marks.append((step * n, label, line))
        date = line or date
    return marks or [(low, *_time_text(low, step, ""))]


def _time_text(seconds: float, step: float, date: str) -> tuple[str, str]:
    day = time.strftime("%Y-%m-%d", time.gmtime(seconds))
    if step >= _DAY:
        return day, ""
    label = time.strftime("%H:%M:%S" if step < 60 else "%H:%M", time.gmtime(seconds))
    return label, day if day != date else ""


def _log_ticks(low: float, high: float, *, of_bytes: bool) -> list[float]:
    """Return round numbers between two logarithms: powers of ten (of two, for bytes), or closer where few would do."""
    if of_bytes:
        step = max(1, math.ceil((high - low) * math.log2(10) / 10))
        first, last = math.ceil(low * math.log2(10) / step), math.floor(high * math.log2(10) / step)
        marks = [2.0 ** (step * n) for n in range(first, last + 1)]
    else:
        factors = (1, 2, 5) if high - low <= 4 else (1,)
        powers = range(math.floor(low), math.ceil(high) + 1)
        marks = [factor * 10.0**power for power in powers for factor in factors]
        marks = [mark for mark in marks if low - 1e-9 <= math.log10(mark) <= high + 1e-9]
    return marks if len(marks) > 2 else ticks(10.0**low, 10.0**high, 6)


def _round_up(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= value * 0.999)


def _number_text(value: float) -> str:
    for factor, sign in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.4g}{sign}"
    return f"{value:.4g}"


def bytes_text(value: float) -> str:
    """Return a number of bytes in the unit that fits it."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} TiB"


def _bytes_ticks(low: float, high: float, count: int = 5) -> list[float]:
    unit = 1.0
    while high - low > 1024 * unit:
        unit *= 1024
    return [mark * unit for mark in ticks(low / unit, high / unit, count)]


# -- pieces of SVG -----------------------------------------------------------------------------------


def _colour(number: int) -> str:
    return f"var(--series-{number % PALETTE_SIZE})"


def _frame(inner: Sequence[str], height: float, name: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(name)}">'
        f"{''.join(inner)}</svg>"
    )


def _empty(name: str) -> str:
    return _frame([_text(WIDTH / 2, 34, "nothing to draw")], 60, name)


def _line(x1: float, y1: float, x2: float, y2: float, kind: str = "axis") -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str = "middle", kind: str = "") -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{style}>{escape(text)}</text>'


def _shortened(text: str, size: int = _LABEL_MAX) -> str:
    """Return a name that has room: of a long one its beginning and its end, which tell names apart."""
    if len(text) <= size:
        return text
    return f"{text[: size // 2 - 1]}…{text[-(size - size // 2) :]}"


def _axis_x(marks: Sequence[tuple[float, str, str]], y: float, top: float | None = None) -> list[str]:
    """Draw labels below an axis, leaving out those without room; with `top`, grid lines up to it."""
    parts: list[str] = []
    free_from = -math.inf
    for x, label, line in marks:
        half = max(len(label), len(line)) * _CHARACTER / 2
        if top is not None:
            parts.append(_line(x, top, x, y, "grid"))
        parts.append(_line(x, y, x, y + 5))
        if x - half < free_from:
            continue
        free_from = x + half + 8
        parts.append(_text(x, y + 19, label))
        if line:
            parts.append(_text(x, y + 34, line))
    return parts


def _axis_y(high: float, label: str, bottom: float) -> tuple[list[str], Callable[[float], float]]:
    """Draw grid lines with round numbers from 0 on; the last is not below `high`, so that nothing is cut."""
    high = high if high > 0 else 1.0
    find, text = (_bytes_ticks, bytes_text) if label == "bytes" else (ticks, _number_text)
    marks = find(0, high)
    if marks[-1] < high * (1 - 1e-9):
        marks.append(marks[-1] + (marks[1] - marks[0] if len(marks) > 1 else high))
    top_value = marks[-1]

    def place(value: float) -> float:
        return _TOP + (bottom - _TOP) * (1 - value / top_value)

    parts = [_text(2, _TOP - 16, label, "start", "title")]
    for value in marks:
        parts.append(_line(_LEFT, place(value), WIDTH - _RIGHT, place(value), "grid" if value else "axis"))
        parts.append(_text(_LEFT - 10, place(value) + 4, text(value), "end"))
    parts.append(_line(_LEFT, _TOP, _LEFT, bottom))
    return parts, place


# -- lines -------------------------------------------------------------------------------------------


def _lines(plot: Lines) -> str:
    points = [point for series in plot.series.values() for point in series]
    if not points:
        return _empty(plot.title)
    scale: Callable[[float], float] = (lambda x: math.log10(max(x, 1e-9))) if plot.x_is_log else (lambda x: x)
    low, high = min(scale(x) for x, _y in points), max(scale(x) for x, _y in points)
    bottom = _TOP + _HEIGHT
    parts, y_place = _axis_y(max(y for _x, y in points), plot.y_label, bottom)

    def x_place(value: float) -> float:
        share = (scale(value) - low) / (high - low) if high > low else 0.5
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * share

    text = bytes_text if plot.x_label == "bytes" else _number_text
    if plot.x_is_time:
        marks = [(x_place(at), label, line) for at, label, line in time_ticks(low, high)]
    elif plot.x_is_log:
        marks = [
            (x_place(value), text(value), "")
            for value in _log_ticks(low, high, of_bytes=plot.x_label == "bytes")
        ]
    else:
        marks = [(x_place(value), text(value), "") for value in ticks(low, high, 7)]
    parts += _axis_x(marks, bottom)
    parts.append(_text(WIDTH - _RIGHT, bottom + 50, plot.x_label, "end", "title"))
    for number, (name, series) in enumerate(plot.series.items()):
        for run in _runs(series, plot.step):
            places = [f"{x_place(x):.1f} {y_place(y):.1f}" for x, y in run]
            if len(run) > 1:
                parts.append(
                    f'<path class="curve" d="M{" L".join(places)}" stroke="{_colour(number)}">'
                    f"<title>{escape(name)}</title></path>"
                )
            if len(run) == 1 or len(points) <= _DOTS_MAX:
                parts += [_dot(x_place(x), y_place(y), name, y, number) for x, y in run]
    return _frame(parts, bottom + _BOTTOM, plot.title)


def _runs(series: Sequence[tuple[float, float]], step: float | None) -> list[list[tuple[float, float]]]:
    """Cut a series where points are missing between two, so that no line tells of what was not there."""
    runs: list[list[tuple[float, float]]] = []
    for point in series:
        if runs and (step is None or point[0] - runs[-1][-1][0] <= 1.5 * step):
            runs[-1].append(point)
        else:
            runs.append([point])
    return runs


def _dot(x: float, y: float, name: str, value: float, number: int) -> str:
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{_colour(number)}">'
        f"<title>{escape(name)}: {_number_text(value)}</title></circle>"
    )


# -- bars --------------------------------------------------------------------------------------------


def _bars(plot: Bars) -> str:
    if not plot.bars:
        return _empty(plot.title)
    is_bytes = plot.y_label == "bytes"
    find, text = (_bytes_ticks, bytes_text) if is_bytes else (ticks, _number_text)
    left = 24 + _CHARACTER * min(max(len(label) for label, _value in plot.bars), _LABEL_MAX)
    room = WIDTH - left - _RIGHT - 60  # the longest bar has its value behind it
    largest = max(value for _label, value in plot.bars) or 1.0
    bottom = _TOP - 16 + _BAR_HEIGHT * len(plot.bars)

    def place(value: float) -> float:
        return left + room * value / largest

    marks = [(place(value), text(value), "") for value in find(0, largest)]
    parts = _axis_x(marks, bottom, _TOP - 16)
    for number, (label, value) in enumerate(plot.bars):
        y = _TOP - 16 + _BAR_HEIGHT * number
        parts.append(_text(left - 10, y + 17, _shortened(label), "end", "name"))
        parts.append(
            f'<rect x="{left:.1f}" y="{y + 4:.1f}" width="{max(place(value) - left, 1):.1f}" '
            f'height="{_BAR_HEIGHT - 8}" rx="2" fill="{_colour(0)}">'
            f"<title>{escape(label)}: {text(value)}</title></rect>"
        )
        parts.append(_text(place(value) + 8, y + 17, text(value), "start"))
    parts.append(_line(left, _TOP - 16, left, bottom))
    parts.append(_line(left, bottom, WIDTH - _RIGHT, bottom))
    parts.append(_text(WIDTH - _RIGHT, bottom + 38, plot.y_label, "end", "title"))
    return _frame(parts, bottom + 46, plot.title)


# -- strips ------------------------------------------------------------------------------------------


def _kinds(plot: Strips) -> list[str]:
    """Return the kinds of marks, damage first."""
    found = {kind for *_rest, marks in plot.strips for _begin, _end, kind in marks}
    return sorted(found, key=lambda kind: (kind not in plot.damage, kind))


def _mark_colour(plot: Strips, kind: str) -> str:
    kinds = _kinds(plot)
    if kind in plot.damage:
        return f"var(--bad-{[each for each in kinds if each in plot.damage].index(kind) % 4})"
    return f"var(--mild-{[each for each in kinds if each not in plot.damage].index(kind) % 2})"


def _strips(plot: Strips) -> str:
    if not plot.strips:
        return _empty(plot.title)
    low = min(begin for _label, begin, _end, _marks in plot.strips)
    high = max(end for _label, _begin, end, _marks in plot.strips)
    left, row = 24, 58
    bottom = 8 + row * len(plot.strips)

    def place(value: float) -> float:
        return left + (WIDTH - left - _RIGHT) * ((value - low) / (high - low) if high > low else 0)

    marks = [(place(value), bytes_text(value), "") for value in _bytes_ticks(low, high, 8)]
    parts = _axis_x(marks, bottom, 8)
    for number, (label, begin, end, found) in enumerate(plot.strips):
        y = 8 + row * number
        count = sum(kind in plot.damage for _begin, _end, kind in found)
        state = f"{count:,} damaged place{'' if count == 1 else 's'}" if count else "no damage"
        parts.append(_text(left, y + 16, _shortened(label, 90), "start", "name"))
        parts.append(_text(WIDTH - _RIGHT, y + 16, state, "end", "bad" if count else "good"))
        parts.append(
            f'<rect x="{place(begin):.1f}" y="{y + 26}" width="{max(place(end) - place(begin), 1):.1f}" height="16" '
            f'rx="3" fill="var(--whole)"><title>{escape(label)}: {begin:,} to {end:,}</title></rect>'
        )
        # Damage last, and the narrow in front of the wide: nothing covers it.
        for start, stop, kind in sorted(
            found, key=lambda mark: (mark[2] in plot.damage, mark[0] - mark[1], mark[0])
        ):
            wide = max(place(stop) - place(start), _MARK_MIN)
            high_mark = kind in plot.damage
            x = min(place(start), WIDTH - _RIGHT - wide)
            parts.append(
                f'<rect x="{x:.1f}" y="{y + (22 if high_mark else 26)}" width="{wide:.1f}" '
                f'height="{24 if high_mark else 16}" fill="{_mark_colour(plot, kind)}" class="mark">'
                f"<title>{escape(kind)}, {start:,} to {stop:,}</title></rect>"
            )
    parts.append(_line(left, bottom, WIDTH - _RIGHT, bottom))
    parts.append(_text(WIDTH - _RIGHT, bottom + 38, plot.x_label, "end", "title"))
    return _frame(parts, bottom + 46, plot.title)
