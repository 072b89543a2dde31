"""Define the options that commands of several families share, and complete the names that a name server knows.

An option's text, its variable and its bounds stand here once, so that `-n` or `--timeout` mean the same everywhere.
Completion asks a name server only while a shell asks for it: nothing of a client is imported before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from ropewalk.client.core.addresses import DEFAULT_NAME_SERVER, NAME_SERVER_VARIABLES

if TYPE_CHECKING:
    from ropewalk.client.blocking.admin import Admin

__all__ = [
    "Json",
    "NameServers",
    "Timeout",
    "check_seconds",
    "complete_broker",
    "complete_cluster",
    "complete_group",
    "complete_topic",
]

COMPLETION_TIMEOUT_S = 0.5
"""A person who presses Tab does not wait for a name server that is away."""

NameServers = Annotated[
    str,
    typer.Option(
        "--name-server",
        "-n",
        envvar=list(NAME_SERVER_VARIABLES),
        metavar="HOST:PORT[;HOST:PORT]",
        help="The name servers to ask; any one that answers will do.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
SECONDS_MAX = 1_000_000.0
"""As long as systems wait that count milliseconds in 31 bits, and a round number."""


def check_seconds(value: float) -> float:
    """Return the value of an option in seconds. Raises `BadParameter` for no number, and for more than can pass."""
    if not value <= SECONDS_MAX:
        raise typer.BadParameter(f"{value} is no number of seconds up to {SECONDS_MAX:.0f}")
    return value


Timeout = Annotated[
    float,
    typer.Option(
        "--timeout",
        min=0.001,
        callback=check_seconds,
        help="Seconds to wait for a connection or an answer.",
    ),
]


def _complete(names: Callable[[Admin], Sequence[str]]) -> Callable[[typer.Context, str], list[str]]:
    """Make a completion of the names that a name server knows; empty when it does not answer."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        from ropewalk.client.blocking.admin import Admin
        from ropewalk.errors import RopewalkError

        name_server = str(ctx.params.get("name_server") or DEFAULT_NAME_SERVER)
        with (
            suppress(RopewalkError, ValueError, OSError),
            Admin(name_server, timeout=COMPLETION_TIMEOUT_S) as admin,
        ):
            return [name for name in names(admin) if name.startswith(incomplete)]
        return []

    return complete


complete_topic = _complete(lambda admin: admin.topics())
complete_group = _complete(lambda admin: tuple(admin.groups()))
complete_cluster = _complete(lambda admin: sorted({member.cluster for member in admin.members()}))
complete_broker = _complete(lambda admin: sorted({member.broker_name for member in admin.members()}))
