"""`ropewalk admin …`: look after a running cluster, Ropewalk's or Apache RocketMQ's.

This file puts the families together, each of which has a file of its own, `admin_<family>.py`, and holds the two
commands that belong to none. A command parses, asks `ropewalk.client.blocking.admin.Admin`, and prints what it was
told. What they share is in `admin_base.py`.
"""

from __future__ import annotations

from typing import Annotated

import typer

from ropewalk.client.admin.results import version_text
from ropewalk.client.blocking.admin import Admin
from tools.admin import broker as admin_broker
from tools.admin import group as admin_group
from tools.admin import ha as admin_ha
from tools.admin import message as admin_message
from tools.admin import offset as admin_offset
from tools.admin import sink as admin_sink
from tools.admin import topic as admin_topic
from tools.admin.base import (
    Moment,
    Sheet,
    command,
    require_group,
    tell_skipped,
)
from tools.admin.dledger import members as admin_dledger
from tools.admin.progress import Drawings, Interval, Watch, draw, group_sheet, queue_sheet
from tools.common.mqadmin import GroupKnowingMqadmin
from tools.common.options import (
    complete_group,
)

app = typer.Typer(
    cls=GroupKnowingMqadmin,
    name="admin",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Look after a running cluster: topics, groups, messages, brokers.",
    epilog="Every command takes `--json`, and asks before something is lost (`--yes` answers for you).",
)


@app.callback()
def admin() -> None:
    """Look after a running cluster: topics, groups, messages, brokers."""


for family in (
    admin_topic.app,
    admin_group.app,
    admin_message.app,
    admin_broker.app,
    admin_broker.cluster_app,
    admin_offset.app,
    admin_sink.app,
    admin_ha.app,
    admin_dledger.app,
):
    app.add_typer(family)


@command(app, "lag")
def lag(
    admin: Admin,
    group: Annotated[
        str | None,
        typer.Argument(
            metavar="GROUP",
            help="Its queues, one by one. Without it: all groups.",
            autocompletion=complete_group,
        ),
    ] = None,
    watch: Watch = False,
    interval: Interval = 2.0,
    count: Drawings = None,
    *,
    as_json: bool,
) -> None:
    """Show how far groups are behind; with --watch, redrawn as it changes."""
    if group is not None and not watch:
        require_group(admin, group)
    draw(
        admin,
        lambda: group_sheet(admin.all_progress()) if group is None else queue_sheet(admin.progress(group)),
        title=f"group {group}" if group else "all groups",
        nothing=f"{group} has committed nothing yet" if group else "no group has committed anything yet",
        as_json=as_json,
        watch=watch,
        interval=interval,
        count=count,
    )


@command(app, "connections")
def connections(
    admin: Admin,
    group: Annotated[
        str | None,
        typer.Argument(metavar="GROUP", help="Only this group.", autocompletion=complete_group),
    ] = None,
    *,
    as_json: bool,
) -> None:
    """Show which clients are connected: consumers and producers, by group."""
    columns = (
        ("kind", "kind"),
        ("group", "group"),
        ("client", "clientId"),
        ("address", "address"),
        ("language", "language"),
        ("version", "version"),
        ("last heard of", "lastSeen"),
    )
    rows: list[tuple[object, ...]] = []
    for name in [group] if group else list(admin.groups()):
        online = admin.consumers(name)
        for one in online.clients if online else ():
            rows.append(
                (
                    "consumer",
                    name,
                    one.client_id,
                    one.address,
                    one.language,
                    version_text(one.version),
                    None,
                )
            )
    for producer in admin.all_producers():
        if group in (None, producer.group):
            one = producer.client
            seen = Moment(producer.last_seen_ms)
            rows.append(
                (
                    "producer",
                    producer.group,
                    one.client_id,
                    one.address,
                    one.language,
                    version_text(one.version),
                    seen,
                )
            )
    Sheet(columns, rows).show(
        as_json=as_json,
        nothing=f"nobody of group {group} is connected" if group else "nobody is connected",
    )
    tell_skipped(admin)
