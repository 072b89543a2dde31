"""`ropewalk admin sink …`: pipelines that write exactly once, as brokers know them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, Final, TypeVar

import typer

from ropewalk.client.admin.results import BrokerMember, SinkStatus
from ropewalk.client.blocking.admin import Admin
from ropewalk.errors import Rejected, TryLater
from tools.admin.base import Cluster, Moment, Sheet, Yes, command, confirm, tell_skipped
from tools.common.output import (
    print_json,
    print_line,
)

app = typer.Typer(
    name="sink",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Pipelines that write exactly once: look, forget.",
)

_COLUMNS = (
    ("sink", "sinkId"),
    ("broker", "broker"),
    ("epoch", "epoch"),
    ("query", "query"),
    ("committed", "batch"),
    ("open", "open"),
    ("open rows", "openRows"),
    ("topics", "topics"),
    ("last activity", "lastActivity"),
)


_LOADING_S: Final = 10.0
_RETRY_S: Final = 0.2

T = TypeVar("T")


def _when_loaded(ask: Callable[[], T]) -> T:
    """Ask again while a broker that has just started reads its sinks from the log."""
    deadline = time.monotonic() + _LOADING_S
    while True:
        try:
            return ask()
        except TryLater:
            if time.monotonic() >= deadline:
                raise
        time.sleep(_RETRY_S)


def _order(sink: SinkStatus) -> tuple[str, BrokerMember]:
    return sink.sink_id, sink.member


@command(app, "list")
def list_sinks(
    admin: Admin,
    cluster: Cluster = None,
    *,
    as_json: bool,
) -> None:
    """List the sinks: the batch that each broker has committed last, and how many rows of the next it has."""
    rows = [
        (
            sink.sink_id,
            sink.member.broker_name,
            sink.epoch,
            sink.query,
            sink.batch,
            sink.is_open,
            sink.rows,
            " ".join(sink.topics),
            Moment(sink.last_activity_ms),
        )
        for sink in sorted(_when_loaded(lambda: admin.sinks(cluster=cluster)), key=_order)
    ]
    Sheet(_COLUMNS, rows).show(
        as_json=as_json, nothing="no pipeline has written here with delivery=exactly-once"
    )
    tell_skipped(admin)


@command(app, "forget")
def forget_sink(
    admin: Admin,
    sink: Annotated[str, typer.Argument(metavar="SINK", help="The pipeline's sinkId.")],
    yes: Yes = False,
    *,
    as_json: bool,
) -> None:
    """Forget a sink. What its open batch has written stays, and is written again if the batch is repeated."""
    confirm(f"Forget sink {sink}? A batch that it repeats afterwards is written twice.", yes=yes)
    _when_loaded(admin.sinks)  # else one broker might forget it, and another one be too early
    done = _when_loaded(lambda: admin.forget_sink(sink))
    tell_skipped(admin)
    if not done:
        raise Rejected(f"no broker knows a sink {sink}; `ropewalk admin sink list` shows them")
    if as_json:
        print_json([member.broker_name for member in done])
    else:
        print_line(f"{sink} is forgotten at {', '.join(member.broker_name for member in done)}")
