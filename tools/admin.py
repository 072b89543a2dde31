"""`ropewalk admin …`: look after a running cluster, Ropewalk's or Apache RocketMQ's.

This file only puts the families together; each has a file of its own, `admin_<family>.py`. A command there parses,
asks `ropewalk.client.blocking_admin.Admin`, and prints what it was told. What they share is in `admin_base.py`.
"""

from __future__ import annotations

import typer

from tools import admin_topic

app = typer.Typer(
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


app.add_typer(admin_topic.app)
