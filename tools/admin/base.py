"""Share options, result sheets and questions among the commands of `ropewalk admin`.

A command is a function of an `Admin`, of options of its own and of `as_json`; `command` registers it with the options
that all of them have, and turns its errors into sentences.

A result is a `Sheet`: columns with a heading for people and a key for programs. It prints as a table, or with `--json`
as one array of objects. Times are shown in the reader's zone, and are milliseconds since 1970 in JSON.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, NoReturn, get_type_hints

import typer

from ropewalk.client.blocking.admin import Admin
from ropewalk.client.core.addresses import DEFAULT_NAME_SERVER
from ropewalk.codes import Permission, ResponseCode
from ropewalk.errors import Rejected, RopewalkError
from ropewalk.member_proof import ProofRefused
from ropewalk.printable import printable
from tools.common.options import (
    Json,
    NameServers,
    Timeout,
    complete_broker,
    complete_cluster,
    complete_group,
    complete_topic,
)
from tools.common.output import (
    FAILED,
    ShortenedText,
    UsageError,
    expected_errors,
    fail,
    hint_for,
    note,
    print_json,
    print_line,
    print_table,
)

SECRET_VARIABLE = "ROPEWALK_SECRET"
"""The environment variable that hands a group's secret to a command."""

# Options and arguments

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking first.")]
Cluster = Annotated[
    str | None,
    typer.Option("--cluster", "-c", help="Only brokers of this cluster.", autocompletion=complete_cluster),
]
Broker = Annotated[
    str | None,
    typer.Option(
        "--broker",
        "-b",
        metavar="NAME|HOST:PORT",
        help="Only this broker: its name, or the address of one of its members.",
        autocompletion=complete_broker,
    ),
]
BrokerName = Annotated[
    str, typer.Argument(metavar="BROKER", help="The broker's name.", autocompletion=complete_broker)
]
BrokerNameOption = Annotated[
    str | None,
    typer.Option("--broker", "-b", metavar="NAME", help="The broker's name.", autocompletion=complete_broker),
]
Topic = Annotated[
    str, typer.Argument(metavar="TOPIC", help="The topic's name.", autocompletion=complete_topic)
]
TopicOption = Annotated[
    str | None, typer.Option("--topic", "-t", help="Only this topic.", autocompletion=complete_topic)
]
Group = Annotated[
    str, typer.Argument(metavar="GROUP", help="The consumer group's name.", autocompletion=complete_group)
]

TIMEOUT_S = 5.0


def command(app: typer.Typer, name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as a command, and leave it as it is for others to call.

    Where to look for name servers, how long to wait and how to print are options of every command; they stand behind
    those of its own.
    """
    shared = (
        _option("name_server", NameServers, DEFAULT_NAME_SERVER),
        _option("timeout", Timeout, TIMEOUT_S),
        _option("as_json", Json, False),
    )

    def register(carry_out: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(carry_out, include_extras=True)
        own = [
            parameter.replace(annotation=hints[parameter.name])
            for parameter in inspect.signature(carry_out).parameters.values()
            if parameter.name not in ("admin", "as_json")
        ]

        def run(*, name_server: str, timeout: float, as_json: bool, **options: Any) -> None:
            with administrator(name_server, timeout, as_json=as_json) as admin:
                carry_out(admin, as_json=as_json, **options)

        # What the command line is made from.
        signature = inspect.Signature([*own, *shared])
        run.__doc__ = carry_out.__doc__
        run.__signature__ = signature  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in signature.parameters.values()}
        app.command(name)(run)
        return carry_out

    return register


def _option(name: str, kind: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=kind)


# Results


class Moment(int):
    """Milliseconds since 1970: a time for people, a number for programs. 0 is never."""

    def __str__(self) -> str:
        from tools.messages.consume import time_text

        return time_text(int(self)) if self > 0 else "never"

    @property
    def short(self) -> str:
        """Return the time without milliseconds and without its zone, which is the reader's."""
        return str(self).partition(".")[0].partition("+")[0]


@dataclass(frozen=True, slots=True)
class Sheet:
    """Rows to show. `columns` are (heading, JSON key)."""

    columns: Sequence[tuple[str, str]]
    rows: Sequence[Sequence[object]]

    @property
    def headings(self) -> list[str]:
        return [heading for heading, _ in self.columns]

    @property
    def cells(self) -> list[list[object]]:
        """The rows as they are printed: a moment is text there, and no number."""
        return [[_cell(cell) for cell in row] for row in self.rows]

    def as_json(self) -> list[dict[str, object]]:
        return [
            {
                key: int(cell) if isinstance(cell, Moment) else cell
                for (_, key), cell in zip(self.columns, row, strict=True)
            }
            for row in self.rows
        ]

    def show(self, *, as_json: bool, nothing: str) -> None:
        """Print it; when there are no rows, people are told `nothing`."""
        if as_json:
            print_json(self.as_json())
        elif self.rows:
            print_table(self.headings, self.cells)
        else:
            note(nothing)


def _cell(value: object) -> object:
    match value:
        case bool():
            return "yes" if value else "no"
        case Moment():
            return ShortenedText(str(value), value.short)
        case list() | tuple():
            return ", ".join(map(str, value))
        case _:
            return value


def show_facts(facts: dict[str, Any], *, as_json: bool) -> None:
    """Print the properties of a single thing, a line for each."""
    if as_json:
        print_json({key: int(value) if isinstance(value, Moment) else value for key, value in facts.items()})
        return
    width = max(map(len, facts), default=0)
    for key, value in facts.items():
        text = "" if value is None else str(_cell(value))
        print_line(f"{key:<{width}}  {text}".rstrip())


# Working


@contextmanager
def administrator(name_server: str, timeout: float, *, as_json: bool) -> Iterator[Admin]:
    """Open an `Admin` whose errors end the command in a sentence with the remedy."""
    secret = os.environ.get(SECRET_VARIABLE, "")
    with expected_errors(as_json=as_json), Admin(name_server, timeout=timeout, secret=secret) as admin:
        try:
            yield admin
        except UsageError:
            raise
        except RopewalkError as exc:
            fail(str(exc), admin_hint(exc) or hint_for(exc), as_json=as_json)


def tell_skipped(admin: Admin) -> None:
    """Say which brokers the result leaves out."""
    for address, why in admin.skipped.items():
        note(f"without the broker at {address}: {why}")


def fail_in_part(reasons: Iterable[str]) -> NoReturn:
    """End a command that is done in part: some members gave no answer, for these reasons, which are told already."""
    if any("ropewalkSecret" in why for why in reasons):
        note(secret_hint())
    raise typer.Exit(FAILED)


def secret_hint() -> str:
    """Return the remedy where a member refuses a command for the secret of its group."""
    if os.environ.get(SECRET_VARIABLE):
        return f"{SECRET_VARIABLE} is set: compare it with the ropewalkSecret of that member, and those of all members"
    return f"give the group's secret to the command in the environment: {SECRET_VARIABLE}=…"


def admin_hint(exc: RopewalkError) -> str | None:
    """Return the remedy of an error, where an administrator has another one than a client."""
    if isinstance(exc, ProofRefused):
        return secret_hint()
    match exc.code:
        case ResponseCode.TOPIC_NOT_EXIST:
            return (
                "`ropewalk admin topic list` shows the topics, `ropewalk admin topic create TOPIC` makes one"
            )
        case ResponseCode.TOPIC_EXIST_ALREADY:
            return "`ropewalk admin topic update` changes a topic that exists"
        case ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
            return (
                "`ropewalk admin group list` shows the groups, `ropewalk admin group create GROUP` makes one"
            )
        case ResponseCode.NO_PERMISSION:
            if "ropewalkSecret" in str(exc):
                return secret_hint()
            return "the broker does not allow this while it runs; change its configuration and start it again"
    return None


def no_such_group(group: str) -> Rejected:
    """Return the error for a group that no broker knows."""
    error = Rejected(f"no broker knows a group {group}")
    error.code = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    return error


def require_group(admin: Admin, group: str) -> None:
    """Raises `Rejected` when no broker knows the group."""
    if not admin.group_config(group):
        raise no_such_group(group)


class Declined(UsageError):
    """The missing consent of a person at the terminal."""


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something is lost, on the terminal. Raises `UsageError` unless the answer is yes.

    A script has no terminal to answer on, and must have said `--yes`.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise Declined(f"{question} Nothing was done: there is no terminal to answer on; add --yes to do it")
    sys.stdout.flush()
    print(f"{printable(question)} [y/N] ", end="", file=sys.stderr, flush=True)  # noqa: T201 - an open line
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Declined("nothing was done")


PERMISSIONS = {
    "none": 0,
    "w": Permission.WRITE,
    "r": Permission.READ,
    "rw": Permission.READ | Permission.WRITE,
}


def parse_permission(text: str) -> int:
    """`rw`, `r`, `w`, `none`, or RocketMQ's numbers 6, 4, 2, 0. Raises `UsageError`."""
    known = PERMISSIONS | {str(bits): bits for bits in PERMISSIONS.values()} | {"wr": PERMISSIONS["rw"]}
    permission = known.get(text.strip().lower())
    if permission is None:
        raise UsageError(f"permission {text!r} is none of: rw (6), r (4), w (2), none (0)")
    return permission
