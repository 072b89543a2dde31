"""The report of a job, for all outputs: tables on a terminal, one JSON object, and a page with plots (`page`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

OK: Final = 0
FINDINGS: Final = 1
"""The job was done, and something is not as it should be."""
USAGE: Final = 2
FAILED: Final = 3
DATA_LOSS: Final = 4

Cell = str | int | float | None


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a title; every row has as many cells as there are columns."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[Cell, ...]]
    bad: frozenset[int] = frozenset()
    """Numbers of the rows that tell of damage."""


@dataclass(frozen=True, slots=True)
class Lines:
    """Points joined by lines, one line for each name."""

    title: str
    x_label: str
    y_label: str
    series: Mapping[str, Sequence[tuple[float, float]]]
    x_is_time: bool = False
    """x is seconds since 1970, shown as UTC."""
    x_is_log: bool = False
    step: float | None = None
    """The distance of neighbours along x: where two points are further apart, there was nothing between them."""


@dataclass(frozen=True, slots=True)
class Bars:
    """A bar chart: one bar for each label."""

    title: str
    y_label: str
    bars: Sequence[tuple[str, float]]


@dataclass(frozen=True, slots=True)
class Strips:
    """Ranges drawn to scale below each other, with marks on them: (label, begin, end, marks as (begin, end, kind))."""

    title: str
    x_label: str
    strips: Sequence[tuple[str, int, int, Sequence[tuple[int, int, str]]]]
    damage: frozenset[str] = frozenset()
    """The kinds of marks that are damage."""


Plot = Lines | Bars | Strips


@dataclass(slots=True)
class Report:
    """The outcome of one job."""

    job: str
    title: str
    """The job and its source, in a line."""
    summary: dict[str, Any] = field(default_factory=dict)
    tables: list[Table] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)
    exit_code: int = OK
    bad: frozenset[str] = frozenset()
    """Figures of the summary that are bad unless they are 0."""

    def document(self) -> dict[str, Any]:
        """Return the report as a JSON document: tables as lists of objects, without the plots."""
        tables = {
            table.title: [dict(zip(table.columns, row, strict=True)) for row in table.rows]
            for table in self.tables
        }
        return {"job": self.job, "exit_code": self.exit_code, **self.summary, **tables}
