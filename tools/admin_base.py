"""What the commands of `ropewalk admin` share: their common options, and the question before something is destroyed."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ropewalk.client.addresses import DEFAULT_NAME_SERVER
from tools.output import UsageError

__all__ = ["DEFAULT_NAME_SERVER", "Json", "NameServers", "Timeout", "Yes", "confirm"]

NameServers = Annotated[
    str,
    typer.Option(
        "--name-server",
        "-n",
        envvar="NAMESRV_ADDR",
        metavar="HOST:PORT[;HOST:PORT]",
        help="The name servers to ask; any one that answers will do.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Timeout = Annotated[
    float, typer.Option("--timeout", min=0.001, help="Seconds to wait for a connection or an answer.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking first.")]


class Declined(UsageError):
    """Nobody said yes."""


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something is destroyed, on the terminal. Raises `UsageError` unless the answer is yes.

    A script has no terminal to answer on, and must have said `--yes`.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(
            f"{question} Nothing was done: there is no terminal to answer on; add --yes to do it"
        )
    sys.stdout.flush()
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Declined("nothing was done")
