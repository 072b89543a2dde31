"""Markdown of generated pages: the notice at their head, tables, and text that may stand in a table's cell."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

__all__ = ["cell", "code", "head", "table"]


def head(title: str, source: str, *paragraphs: str) -> str:
    """Return a page's title, the notice that the page is generated from `source`, and its first paragraphs."""
    wrapped = [one if "\n" in one else textwrap.fill(one, 118) for one in paragraphs]
    notice = f"<!-- Generated from {source} by `make docs`; change it there. -->"
    return "\n\n".join((f"# {title}", notice, *wrapped)) + "\n"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table with a header row; every row has one cell for each column."""
    lines = [columns, ["---"] * len(columns), *rows]
    assert all(len(line) == len(columns) for line in lines), columns
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def cell(text: str) -> str:
    """Return text on one line, with the table's own sign escaped."""
    return " ".join(text.split()).replace("|", "\\|")


def code(text: str) -> str:
    """Return text as code, or a dash for none."""
    return f"`{cell(text)}`" if text else "-"
