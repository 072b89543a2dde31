"""Render a report as one HTML file that needs nothing else: no script, no font, no picture from anywhere.

The verdict and the figures stand first, then the plots (`plots`), then the tables. Colours follow the reader's light or
dark setting; whatever a colour says stands there in words too.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any, Final

from ropewalk.spark.jobs.common.plots import draw, legend
from ropewalk.spark.jobs.common.report import OK, Cell, Plot, Report, Table

__all__ = ["render"]

_ROWS_MAX: Final = 1000
_WHOLE_CELL: Final = 40
"""The longest text of a table that is never broken: a time or an address in pieces is read wrongly."""

_STYLE: Final = """
:root { color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --ink: #1c2330; --soft: #667085; --line: #d9dee7; --grid: #eceff4;
  --series-0: #2463c9; --series-1: #c26a1b; --series-2: #23855b; --series-3: #7a52c7;
  --series-4: #0e8a9c; --series-5: #a8558a; --series-6: #8a6d1f; --series-7: #5c6675;
  --whole: #c5d8ef; --mild-0: #e0a100; --mild-1: #98a2b3;
  --bad: #b3283f; --bad-0: #d1304a; --bad-1: #e8590c; --bad-2: #8b1e9b; --bad-3: #7d1128; --good: #23855b; }
@media (prefers-color-scheme: dark) { :root {
  --page: #12151b; --card: #1b2029; --ink: #e8ebf1; --soft: #9aa4b5; --line: #333b49; --grid: #262d39;
  --series-0: #74a7ff; --series-1: #f0a35e; --series-2: #43c08a; --series-3: #b79af0;
  --series-4: #4cc4d6; --series-5: #e290c4; --series-6: #d6b85a; --series-7: #a9b3c2;
  --whole: #34506f; --mild-0: #f0bd38; --mild-1: #7b8698;
  --bad: #ef6f80; --bad-0: #ff5c74; --bad-1: #ff924d; --bad-2: #d48be0; --bad-3: #ff8fa3; --good: #43c08a; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 28px 20px 60px; }
header { display: flex; gap: 14px; align-items: baseline; flex-wrap: wrap; margin-bottom: 16px; }
h1 { font-size: 24px; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 0 0 10px; }
.badge { border-radius: 999px; padding: 2px 12px; font-weight: 600; font-size: 13px; color: #fff; }
.badge.clean { background: #23855b; } .badge.findings { background: #b3283f; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 12px;
  padding: 18px 22px; margin: 18px 0; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(136px, 1fr)); gap: 10px; }
.card { border: 1px solid var(--line); border-radius: 10px; padding: 10px 12px; background: var(--card); }
.card b { display: block; font-size: 20px; line-height: 1.25; font-variant-numeric: tabular-nums; }
.card span { color: var(--soft); font-size: 13px; } .card.bad b { color: var(--bad); }
svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--soft); font: 12px system-ui, sans-serif; }
svg .title { fill: var(--ink); font-weight: 600; } svg .name { fill: var(--ink); }
svg .bad { fill: var(--bad); font-weight: 600; } svg .good { fill: var(--good); }
.axis { stroke: var(--soft); stroke-width: 1; } .grid { stroke: var(--grid); stroke-width: 1; }
.mark { stroke: var(--card); stroke-width: .8; }
.curve { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.legend { display: flex; gap: 6px 18px; flex-wrap: wrap; color: var(--soft); font-size: 13px; margin: 10px 0 0; }
.legend span { overflow-wrap: anywhere; }
.legend i { display: inline-block; width: 11px; height: 11px; margin-right: 6px; border-radius: 3px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th { text-align: left; color: var(--soft); font-weight: 600; white-space: nowrap; }
td, th { padding: 4px 14px 4px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td { white-space: nowrap; } td.long { white-space: normal; overflow-wrap: anywhere; min-width: 15em; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
tr.bad td:first-child { color: var(--bad); font-weight: 600; border-left: 3px solid var(--bad); padding-left: 9px; }
.facts th { width: 1%; padding-right: 24px; } .facts td { white-space: normal; overflow-wrap: anywhere; }
footer, .soft { color: var(--soft); font-size: 13px; }
"""


def render(report: Report, *, made_by: str) -> str:
    """Render the whole page."""
    verdict = "clean" if report.exit_code == OK else "findings"
    parts = [
        "<!doctype html>", '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(report.title)}</title><style>{_STYLE}</style></head><body><main>",
        f'<header><h1>{escape(report.title)}</h1><span class="badge {verdict}">{verdict}</span></header>',
        _cards(report),
        _facts(report),
        *(_plot(plot) for plot in report.plots),
        *(_table(table) for table in report.tables if table.rows),
        f"<footer>{escape(made_by)}</footer>", "</main></body></html>\n",
    ]  # fmt: skip
    return "\n".join(parts)


def _cards(report: Report) -> str:
    """Render the figures; those that should be 0 and are not have the warning colour."""
    figures = [(name, value) for name, value in report.summary.items() if _is_number(value)]
    cards = "".join(
        f'<div class="card{" bad" if name in report.bad and value else ""}"><b>{escape(_text(value))}</b>'
        f"<span>{escape(name.replace('_', ' '))}</span></div>"
        for name, value in figures
    )
    return f'<div class="cards">{cards}</div>' if cards else ""


def _facts(report: Report) -> str:
    """Render what the summary says in words."""
    rows = "".join(
        f"<tr><th>{escape(name.replace('_', ' '))}</th><td>{escape(_words(value))}</td></tr>"
        for name, value in report.summary.items()
        if not _is_number(value) and value not in (None, "", [], {})
    )
    return f'<section><table class="facts">{rows}</table></section>' if rows else ""


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_text(each)}" for name, each in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else _text(value)


def _plot(plot: Plot) -> str:
    colours = "".join(
        f'<span><i style="background:{colour}"></i>{escape(name)}</span>' for colour, name in legend(plot)
    )
    return (
        f"<section><h2>{escape(plot.title)}</h2>{draw(plot)}"
        + (f'<div class="legend">{colours}</div>' if colours else "")
        + "</section>"
    )


def _table(table: Table) -> str:
    numeric = [
        all(isinstance(row[at], int | float | None) for row in table.rows) for at in range(len(table.columns))
    ]

    def cells(row: Sequence[Cell], tag: str) -> str:
        return "".join(
            f"<{tag}{_kind(_text(cell), is_number=is_number)}>{escape(_text(cell))}</{tag}>"
            for cell, is_number in zip(row, numeric, strict=True)
        )

    body = "".join(
        f"<tr{' class=bad' if number in table.bad else ''}>{cells(row, 'td')}</tr>"
        for number, row in enumerate(table.rows[:_ROWS_MAX])
    )
    more = len(table.rows) - _ROWS_MAX
    note = f'<p class="soft">and {more:,} more rows, which --json has</p>' if more > 0 else ""
    return (
        f'<section><h2>{escape(table.title[:1].upper() + table.title[1:])}</h2><div class="scroll">'
        f"<table><tr>{cells(table.columns, 'th')}</tr>{body}</table></div>{note}</section>"
    )


def _kind(text: str, *, is_number: bool) -> str:
    """Return the class of a table's cell."""
    return " class=n" if is_number else " class=long" if len(text) > _WHOLE_CELL else ""


def _text(value: Cell) -> str:
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "" if value is None else str(value)
