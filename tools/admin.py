"""`ropewalk admin …`: look after a running cluster, Ropewalk's or Apache RocketMQ's.

This file only puts the families together; each has a file of its own, `admin_<family>.py`. A command there parses,
asks `ropewalk.client.admin.Admin`, and prints what it was told. What they share is in `admin_base.py`.
"""

from __future__ import annotations

import typer

app = typer.Typer(
    name="admin",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Look after a running cluster: topics, groups, messages, brokers.",
    epilog="Every command takes `--json`, and asks before it destroys anything (`--yes` answers for you).",
)


@app.callback()
def admin() -> None:
    """Look after a running cluster: topics, groups, messages, brokers."""
