"""The page of a report: whole, without anything from outside, and drawn so that nothing is covered, cut or invented."""

from __future__ import annotations

import math
import re
from collections import Counter
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from ropewalk.spark.jobs.common.page import render
from ropewalk.spark.jobs.common.plots import WIDTH, draw, legend, ticks, time_ticks
from ropewalk.spark.jobs.common.report import FINDINGS, Bars, Lines, Plot, Report, Strips, Table


class _Page(HTMLParser):
    """Checks that elements are closed in order, and notes what would be fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: Counter[str] = Counter()
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen[tag] += 1
        self.outside += [
            f"{name}={value}" for name, value in attrs if name in ("src", "href") or "://" in (value or "")
        ]
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


START = 1_750_000_000
DAMAGE = frozenset(("bit-rot", "diverged"))


def report() -> Report:
    plots: list[Plot] = [
        Lines("l", "x", "y", {"a": [(1, 1), (2, 3)], "b": [(1, 2)]}),
        Lines("none", "x", "y", {}),
        Bars("b", "y", [("one", 1.0), ("two", 2.0)]),
        Bars("none", "y", []),
        Strips("s", "x", [("side", 0, 100, [(5, 6, "bit-rot"), (50, 80, "diverged")])], DAMAGE),
        Strips("none", "x", []),
    ]
    tables = [
        Table("t", ("kind", "n"), [("bit-rot", 1), ("behind", None)], frozenset((0,))),
        Table("e", ("n",), []),
    ]
    summary = {"a": 1.5, "b": None, "missing": 3, "doubles": 0, "what": "<store> & more", "counts": {"x": 1}}
    return Report(
        "j", "A <report> & more", summary, tables, plots, FINDINGS, frozenset(("missing", "doubles"))
    )


def test_a_page_is_whole_and_fetches_nothing() -> None:
    text = render(report(), made_by="test")
    page = _Page()
    page.feed(text)
    assert not page.open and not page.outside
    assert page.seen["svg"] == 6 and page.seen["script"] == 0 and page.seen["link"] == 0
    assert "A &lt;report&gt; &amp; more" in text and "&lt;store&gt; &amp; more" in text and "http" not in text


def test_what_is_wrong_has_the_warning_colour_and_stands_there_in_words() -> None:
    text = render(report(), made_by="test")
    assert '<span class="badge findings">findings</span>' in text
    assert '<div class="card bad"><b>3</b><span>missing</span>' in text
    assert '<div class="card"><b>0</b><span>doubles</span>' in text
    assert "<tr class=bad><td>bit-rot</td>" in text and "<tr><td>behind</td>" in text
    assert "2 damaged places" in text
    used = set(re.findall(r"var\((--[a-z0-9-]+)\)", text))
    assert used <= set(re.findall(r"(--[a-z0-9-]+):", text))


def test_a_table_breaks_long_texts_and_neither_times_nor_addresses() -> None:
    time, address, text = "2026-11-25T14:38:50Z", "192.168.100.200:10911", "a sentence about a place " * 4
    table = Table("t", ("from", "at", "what", "n"), [(time, address, text, 3)])
    page = render(Report("j", "title", {}, [table], [], FINDINGS), made_by="test")
    assert f"<td>{time}</td><td>{address}</td><td class=long>{text}</td><td class=n>3</td>" in page
    assert re.search(r"\ntd \{ white-space: nowrap; \} td\.long \{ white-space: normal;", page)


def paths(svg: str) -> list[list[tuple[float, float]]]:
    """The lines that are drawn, as points."""
    return [
        [(float(x), float(y)) for x, y in re.findall(r"[ML]?([\d.]+) ([\d.]+)", path)]
        for path in re.findall(r'd="([^"]*)"', svg)
    ]


def texts(svg: str) -> list[tuple[float, float, float, str]]:
    """The labels of a plot: from x to x, y, and what they say."""
    found = []
    for x, y, anchor, text in re.findall(
        r'<text x="([\d.]+)" y="([\d.]+)" text-anchor="(\w+)"[^>]*>([^<]*)', svg
    ):
        wide = 6.8 * len(text)
        left = float(x) - {"start": 0, "middle": wide / 2, "end": wide}[anchor]
        found.append((left, left + wide, float(y), text))
    return found


def test_no_line_is_drawn_through_minutes_without_a_message() -> None:
    minutes = [*range(10), *range(60, 100), 200]
    svg = draw(
        Lines("l", "UTC", "n", {"a": [(START + 60 * n, 5.0) for n in minutes]}, x_is_time=True, step=60.0)
    )
    assert [len(path) for path in paths(svg)] == [10, 40]
    assert svg.count("<circle") == len(minutes)  # so few are drawn as dots too, the lone one among them
    many = {"a": [(START + 60 * n, 5.0) for n in (*range(100), 200)]}
    svg = draw(Lines("l", "UTC", "n", many, x_is_time=True, step=60.0))
    assert [len(path) for path in paths(svg)] == [100] and svg.count("<circle") == 1


@pytest.mark.parametrize("seconds", [1, 40, 600, 7200, 86_400, 14 * 86_400, 400 * 86_400, 4000 * 86_400])
def test_times_are_round_few_and_apart(seconds: int) -> None:
    marks = time_ticks(START, START + seconds)
    assert 1 <= len(marks) <= 9
    assert all(START <= at <= START + seconds for at, *_ in marks)
    assert len({round(b[0] - a[0]) for a, b in pairwise(marks)}) <= 1
    # Whatever the span is, the first label tells the day.
    assert re.search(r"\d{4}-\d\d-\d\d", marks[0][1] + marks[0][2])


LONG = "a-very-long-topic-name-of-the-payments-department"
PLOTS = [
    *(
        Lines(
            "l",
            "UTC",
            "messages",
            {"a": [(START + span * n / 20, n * 12_345.0) for n in range(21)]},
            x_is_time=True,
        )
        for span in (1, 90, 3600, 86_400, 90 * 86_400)
    ),
    Lines("sizes", "bytes", "share", {"a": [(2.0**n, n / 24) for n in range(3, 25)]}, x_is_log=True),
    Lines("near", "bytes", "share", {"a": [(120.0 + n, n / 24) for n in range(24)]}, x_is_log=True),
    Lines("ms", "ms", "share", {"a": [(10.0**n, n / 6) for n in range(-1, 6)]}, x_is_log=True),
    Bars("b", "bytes", [(f"{LONG}-{n}", 2.0 ** (40 - n)) for n in range(30)]),
    Strips("s", "log offset", [(f"/mnt/{LONG * 3}/{n}", 0, 40 << 30, []) for n in range(3)], DAMAGE),
]


@pytest.mark.parametrize("plot", PLOTS, ids=lambda plot: plot.title)
def test_labels_neither_cover_each_other_nor_are_cut(plot: Lines | Bars | Strips) -> None:
    found = texts(draw(plot))
    assert len(found) > 4
    assert all(left >= 0 and right <= WIDTH for left, right, _y, _text in found), found
    for number, (left, right, y, text) in enumerate(found):
        for other_left, other_right, other_y, other in found[:number]:
            assert abs(y - other_y) >= 11 or right <= other_left or other_right <= left, (text, other)


def test_lines_have_their_names_in_a_legend_whole() -> None:
    lines = Lines("l", "x", "y", {f"{LONG}-{n}": [(0, n), (1, n)] for n in range(8)})
    assert [name for _colour, name in legend(lines)] == list(lines.series)
    assert len({colour for colour, _name in legend(lines)}) == 8
    assert legend(Lines("l", "x", "y", {"all": [(0, 1), (1, 1)]})) == []


def test_damage_is_in_front_of_everything_and_never_too_narrow_to_be_seen() -> None:
    marks = [
        (20 << 30, 20 << 30 | 1, "bit-rot"), (0, 40 << 30, "behind"), (10 << 30, 30 << 30, "diverged"),
        ((40 << 30) - 1, 40 << 30, "torn-tail"),
    ]  # fmt: skip
    strips = Strips("s", "log offset", [("a", 0, 40 << 30, marks), ("b", 0, 40 << 30, [])], DAMAGE)
    svg = draw(strips)
    drawn = re.findall(r'<rect x="([\d.]+)" [^>]*width="([\d.]+)" [^>]*class="mark"><title>([a-z-]+),', svg)
    assert [kind for *_, kind in drawn] == ["behind", "torn-tail", "diverged", "bit-rot"]
    assert all(float(width) >= 3 and float(x) + float(width) <= WIDTH for x, width, _kind in drawn)
    colours = {name: colour for colour, name in legend(strips)}
    assert list(colours) == ["bit-rot", "diverged", "behind", "torn-tail"]
    assert all(("--bad" in colours[name]) == (name in DAMAGE) for name in colours)
    assert "2 damaged places" in svg and "no damage" in svg


def test_a_line_stays_inside_its_axes() -> None:
    svg = draw(Lines("l", "x", "y", {"a": [(n, math.sin(n) * 1234 + 1234) for n in range(50)]}))
    assert all(34 <= y <= 34 + 240 and 72 <= x <= WIDTH - 48 for path in paths(svg) for x, y in path)


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 0.003), (17, 23_456), (-5, 5), (3, 3)])
def test_axis_numbers_are_round_few_and_inside(low: float, high: float) -> None:
    found = ticks(low, high)
    assert 1 <= len(found) <= 11
    assert all(low - 1e-9 <= each <= high + 1e-9 for each in found)
