"""`ropewalk admin sink …`: pipelines that write exactly once, as brokers know them."""

from __future__ import annotations

from typing import Annotated

import typer

from ropewalk.client.blocking.admin import Admin
from tools.admin.base import Cluster, Moment, Sheet, Yes, command, confirm, tell_skipped
from tools.common.output import UsageError, print_json

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
        for sink in sorted(admin.sinks(cluster=cluster), key=lambda sink: (sink.sink_id, sink.member))
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
    done = admin.forget_sink(sink)
    tell_skipped(admin)
    if not done:
        raise UsageError(f"no broker knows a sink {sink}; `ropewalk admin sink list` shows them")
    if as_json:
        print_json([member.broker_name for member in done])
    else:
        print(f"{sink} is forgotten at {', '.join(member.broker_name for member in done)}")
