"""Show the progress of consumer groups: the tables of `admin lag` and `admin group lag`, and how they are redrawn."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Annotated

import typer

from ropewalk.client.admin.results import GroupProgress
from ropewalk.client.blocking.admin import Admin
from ropewalk.client.core.connection import Unreachable
from ropewalk.errors import OutcomeUnknown
from ropewalk.format.names import RETRY_PREFIX
from ropewalk.printable import printable
from tools.admin.base import Moment, Sheet, tell_skipped
from tools.common.interrupts import Interrupts
from tools.common.options import check_seconds
from tools.common.output import (
    INTERRUPTED,
    fit_table,
    note,
    print_json,
    print_line,
    row_lines,
)

Watch = Annotated[bool, typer.Option("--watch", "-w", help="Draw it again and again, until Ctrl-C.")]
Interval = Annotated[
    float, typer.Option("--interval", min=0.1, callback=check_seconds, help="Seconds between two drawings.")
]
Drawings = Annotated[
    int | None, typer.Option("--count", min=1, help="With --watch: stop after so many drawings.")
]

READ_UP_TO = "read up to"
MEANING = f"{READ_UP_TO}: the time at which the last message that the group has consumed was stored"

QUEUE_COLUMNS = (
    ("topic", "topic"),
    ("broker", "broker"),
    ("queue", "queueId"),
    ("end", "brokerOffset"),
    ("committed", "consumerOffset"),
    ("lag", "lag"),
    ("in flight", "inFlight"),
    (READ_UP_TO, "lastConsumed"),
)
GROUP_COLUMNS = (
    ("group", "group"),
    ("topics", "topics"),
    ("lag", "lag"),
    ("waiting retries", "retryLag"),
    ("consumed/s", "consumeTps"),
    (READ_UP_TO, "lastConsumed"),
)


def queue_sheet(progress: GroupProgress) -> Sheet:
    """A row for each queue; the group's own retry topic comes last."""
    queues = sorted(progress.queues, key=lambda queue: (queue.source.topic.startswith(RETRY_PREFIX), queue))
    return Sheet(
        QUEUE_COLUMNS,
        [
            (
                queue.source.topic,
                queue.source.queue.broker_name,
                queue.source.queue.queue_id,
                queue.broker_offset,
                queue.consumer_offset,
                queue.lag,
                queue.in_flight,
                Moment(queue.last_consumed_ms),
            )
            for queue in queues
        ],
    )


def group_sheet(all_progress: tuple[GroupProgress, ...]) -> Sheet:
    """A row for each group, the one that is furthest behind first."""
    ordered = sorted(all_progress, key=lambda progress: (-progress.lag, progress.group))
    return Sheet(GROUP_COLUMNS, [_group_row(progress) for progress in ordered])


def _group_row(progress: GroupProgress) -> tuple[object, ...]:
    retries = [queue for queue in progress.queues if queue.source.topic.startswith(RETRY_PREFIX)]
    return (
        progress.group,
        [topic for topic in progress.topics if not topic.startswith(RETRY_PREFIX)],
        progress.lag,
        sum(queue.lag for queue in retries),
        round(progress.consume_tps, 1),
        Moment(max((queue.last_consumed_ms for queue in progress.queues), default=0)),
    )


def draw(
    admin: Admin,
    look: Callable[[], Sheet],
    *,
    title: str,
    nothing: str,
    as_json: bool,
    watch: bool,
    interval: float,
    count: int | None,
) -> None:
    """Show a sheet once, or again and again until Ctrl-C. On a terminal it is redrawn in its place.

    While it watches, a broker or name server that is away is noted and asked again.
    """
    if not watch:
        sheet = look()
        sheet.show(as_json=as_json, nothing=nothing)
        if sheet.rows and not as_json:
            note(MEANING)
        tell_skipped(admin)
        return
    with Interrupts() as interrupts:
        try:
            if sys.stdout.isatty() and not as_json:
                _redraw(look, interrupts, title=title, interval=interval, count=count)
            else:
                _draw_lines(
                    look, interrupts, nothing=nothing, as_json=as_json, interval=interval, count=count
                )
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


def _draw_lines(
    look: Callable[[], Sheet],
    interrupts: Interrupts,
    *,
    nothing: str,
    as_json: bool,
    interval: float,
    count: int | None,
) -> None:
    drawn = 0
    while count is None or drawn < count:
        if drawn:
            with interrupts.while_waiting():
                time.sleep(interval)
        with interrupts.while_waiting():
            try:
                sheet = look()
            except (Unreachable, OutcomeUnknown) as exc:
                note(f"{exc}; trying again")
                drawn += 1
                continue
        if as_json:
            print_json({"time": time.time_ns() // 1_000_000, "rows": sheet.as_json()})
        else:
            print_line(f"-- {Moment(time.time_ns() // 1_000_000)}")
            sheet.show(as_json=False, nothing=nothing)
            sys.stdout.flush()
        drawn += 1


def _redraw(
    look: Callable[[], Sheet], interrupts: Interrupts, *, title: str, interval: float, count: int | None
) -> None:
    from rich.console import Group, RenderableType
    from rich.live import Live
    from rich.text import Text

    drawn = 0
    sheet = Sheet((), ())
    with interrupts.while_waiting(), Live(auto_refresh=False) as live:
        while True:
            try:
                sheet = look()
                trouble = ""
            except (Unreachable, OutcomeUnknown) as exc:
                trouble = printable(f"{exc}; trying again")
            moment = Moment(time.time_ns() // 1_000_000)
            lines = [Text(f"{title}   {moment}   every {interval:g} s, Ctrl-C ends", style="dim")]
            if trouble:
                lines.append(Text(trouble, style="bold red"))
            lines.append(Text(MEANING, style="dim"))
            body: RenderableType = Text("nothing yet")
            if sheet.rows:
                table = fit_table(live.console, sheet.headings, sheet.cells)
                body = table or Text("\n".join(row_lines(sheet.headings, sheet.cells)))
            live.update(Group(*lines, body), refresh=True)
            drawn += 1
            if count is not None and drawn >= count:
                return
            time.sleep(interval)
