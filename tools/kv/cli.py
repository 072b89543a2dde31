"""`ropewalk kv …`: the replicated key-value store of a DLedger group, from the command line.

Keys and values are text on the command line and in tables. Values that are no UTF-8 are shown with escapes; `--json`
carries them in base64, under another name.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ropewalk.client.core.addresses import DEFAULT_NAME_SERVER
from ropewalk.printable import printable
from tools.common.options import Json, NameServers, check_seconds, complete_broker
from tools.common.output import FAILED, OK, UsageError, expected_errors, note, print_json, print_table

if TYPE_CHECKING:
    from ropewalk.client.blocking.kv import Kv
    from ropewalk.client.kv.results import KvStatus

__all__ = ["app"]

_HELP: Final = (
    "Use the key-value store that a DLedger group replicates. Exit codes: 0 done; 1 the store answered, and there is "
    "no such value, another one, or the lock is taken; 2 there was no answer, or a refusal (no store, no name server, "
    "no quorum, wrong use)."
)

app = typer.Typer(
    name="kv",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help=_HELP,
)

Key = Annotated[str, typer.Argument(metavar="KEY", help="The key.")]
Value = Annotated[str, typer.Argument(metavar="VALUE", help="The value.")]
Group = Annotated[
    str | None,
    typer.Option(
        "--broker",
        "-b",
        metavar="NAME",
        help="The group, where several have a key-value store.",
        autocompletion=complete_broker,
    ),
]
Unsafe = Annotated[
    bool,
    typer.Option("--unsafe", help="Read what a member has, however old, without asking the leader."),
]
TIMEOUT_S = 10.0
_UNREAD: Final = (
    "the read was not answered, and changed nothing: most members have to be there (`ropewalk kv status`); --unsafe "
    "reads what one of them has"
)
NOT_DONE: Final = 2
"""The exit code where the store did not answer, or refused: 1 says that a value or a lock is not there to have."""
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout",
        min=0.001,
        callback=check_seconds,
        help="Seconds for the whole call, attempts at all members included.",
    ),
]


@app.callback()
def kv() -> None:
    """Use the key-value store that a DLedger group replicates."""


@contextmanager
def _opened(
    name_server: str,
    broker: str | None,
    timeout: float,
    *,
    as_json: bool = False,
    unanswered: str | None = None,
) -> Iterator[Kv]:
    from ropewalk.client.blocking.kv import Kv

    with (
        expected_errors(as_json=as_json, failed=NOT_DONE, unanswered=unanswered),
        Kv(name_server, broker=broker, timeout=timeout) as store,
    ):
        yield store


@app.command()
def get(
    key: Key,
    unsafe: Unsafe = False,
    broker: Group = None,
    name_server: NameServers = DEFAULT_NAME_SERVER,
    timeout: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Print the value of a key, the newest there is, whichever member is asked.

    Exits with 1 where it has none, and with 2 where no answer came.
    """
    with _opened(name_server, broker, timeout, as_json=as_json, unanswered=_UNREAD) as store:
        value = store.get(key, unsafe=unsafe)
    if as_json:
        print_json({"key": key, **_shown(value)})
    elif value is None:
        note(f"{key} has no value")
    else:
        sys.stdout.buffer.write((_text(value).encode() if sys.stdout.isatty() else value) + b"\n")
    raise typer.Exit(FAILED if value is None else OK)


@app.command()
def put(
    key: Key,
    value: Value,
    if_absent: Annotated[
        bool, typer.Option("--if-absent", help="Only where there is no value; exits with 1 if there is.")
    ] = False,
    broker: Group = None,
    name_server: NameServers = DEFAULT_NAME_SERVER,
    timeout: Timeout = TIMEOUT_S,
) -> None:
    """Store a value under a key. When it exits with 0, most members have the value on their disks."""
    with _opened(name_server, broker, timeout) as store:
        if not if_absent:
            store.put(key, value)
            return
        before = store.put_if_absent(key, value)
    if before is not None:
        note(f"{key} has a value: {_text(before)}")
        raise typer.Exit(FAILED)


@app.command()
def cas(
    key: Key,
    expect: Annotated[str, typer.Argument(metavar="EXPECT", help="The value that has to be there.")],
    value: Value,
    broker: Group = None,
    name_server: NameServers = DEFAULT_NAME_SERVER,
    timeout: Timeout = TIMEOUT_S,
) -> None:
    """Replace a value if it is the expected one (compare and set). Exits with 1 where it is another one."""
    with _opened(name_server, broker, timeout) as store:
        done = store.compare_and_put(key, expect, value)
    if not done:
        note(f"{key} has another value: nothing was stored")
        raise typer.Exit(FAILED)


@app.command()
def delete(
    key: Key,
    broker: Group = None,
    name_server: NameServers = DEFAULT_NAME_SERVER,
    timeout: Timeout = TIMEOUT_S,
) -> None:
    """Delete a key. Exits with 1 where it had no value."""
    with _opened(name_server, broker, timeout) as store:
        found = store.delete(key)
    if not found:
        note(f"{key} had no value")
        raise typer.Exit(FAILED)


@app.command()
def scan(
    start: Annotated[
        str, typer.Argument(metavar="[START]", help="The first key; empty: from the first.")
    ] = "",
    end: Annotated[
        str, typer.Argument(metavar="[END]", help="The key to stop before; empty: to the last.")
    ] = "",
    limit: Annotated[int, typer.Option("--limit", min=1, help="Print so many keys at most.")] = 100,
    unsafe: Unsafe = False,
    broker: Group = None,
    name_server: NameServers = DEFAULT_NAME_SERVER,
    timeout: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Print keys and values in the order of keys."""
    with _opened(name_server, broker, timeout, as_json=as_json, unanswered=_UNREAD) as store:
        found = store.scan(start, end, limit=limit, unsafe=unsafe)
    if as_json:
        print_json([{"key": _text(key), **_shown(value)} for key, value in found])
    elif found:
        print_table(["key", "value"], [(_text(key), _text(value)) for key, value in found])
    else:
        note("there are no keys in this range")


@app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def lock(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The lock's name.")],
    words: Annotated[
        list[str], typer.Argument(metavar="COMMAND", help="What to run while the lock is held.")
    ],
    lease: Annotated[
        float,
        typer.Option(
            "--lease",
            min=0.1,
            callback=check_seconds,
            help="Seconds after which the lock is free if this process is gone.",
        ),
    ] = 10.0,
    wait: Annotated[
        float,
        typer.Option(
            "--wait",
            min=0.0,
            callback=check_seconds,
            help="Seconds to wait for the lock while somebody else has it.",
        ),
    ] = 0.0,
    broker: Group = None,
    name_server: NameServers = DEFAULT_NAME_SERVER,
    timeout: Timeout = TIMEOUT_S,
) -> None:
    """Run a command while holding a lock, and exit with its code; options stand in front of NAME.

    The fencing token is in the command's environment, as ROPEWALK_LOCK_TOKEN: a later holder has a higher one.
    Exits with 1 where another owner has the lock, and with 75 when the lock was lost and the command ended.
    """
    from tools.kv.held import run_held

    with _opened(name_server, broker, timeout) as store:
        held = store.acquire(name, lease=lease, wait=wait)
        if held is None:
            note(f"somebody else has the lock {name}")
            raise typer.Exit(FAILED)
        try:
            code = run_held(store, held, words)
        finally:
            store.release(held)
    raise typer.Exit(code)


@app.command()
def split(
    key: Key,
    broker: Group = None,
    name_server: NameServers = DEFAULT_NAME_SERVER,
    timeout: Timeout = TIMEOUT_S,
) -> None:
    """Cut the region that has a key in two: the keys from there on get a log and a leader of their own.

    Nothing is lost or done twice meanwhile. Where a region begins at the key already, nothing is changed.
    """
    with _opened(name_server, broker, timeout) as store:
        region = store.split(key)
    note(f"region {region} begins at {key}")


_COLUMNS: Final = {
    "region": "region",
    "from": "firstKey",
    "member": "member",
    "role": "role",
    "term": "term",
    "log end": "end",
    "applied": "applied",
    "keys": "keys",
    "locks": "locks",
    "sessions": "sessions",
    "bytes": "usedBytes",
    "log bytes": "logBytes",
}
"""The headings of `kv status`, and what a member's answer calls the values."""


def status_rows(found: Sequence[KvStatus]) -> list[tuple[object, ...]]:
    """Return a row for each member of each region, in the order of keys: the leader first, who did not answer last."""
    ordered = sorted(
        found, key=lambda each: (_first_key(each), not each.values["leads"], each.values["member"])
    )
    members = _members(found)
    rows = [tuple(_cell(each, key, members) for key in _COLUMNS.values()) for each in ordered]
    heard = {(each.values["region"], each.values["member"]) for each in found}
    named = {(region, member) for region, those in members.items() for member in those}
    unheard = [""] * (len(_COLUMNS) - 4)
    return rows + [(region, "", member, "?  no answer", *unheard) for region, member in sorted(named - heard)]


def _members(found: Sequence[KvStatus]) -> dict[int, tuple[str, ...]]:
    """Return the members of each region, as its leader has them, or who is in the newest term."""
    newest = sorted(found, key=lambda each: (each.values["leads"], each.values.get("term", 0)))
    return {each.values["region"]: tuple(each.values["members"]) for each in newest}


def _cell(found: KvStatus, key: str, members: Mapping[int, Sequence[str]]) -> object:
    if key == "firstKey":
        return _text(_first_key(found))
    if key == "role" and found.values["member"] not in members[found.values["region"]]:
        return "no member any more"
    if key == "role" and found.values.get("learns"):
        return f"{found.values[key]}, learns"
    return found.values.get(key, "")


def _first_key(found: KvStatus) -> bytes:
    return bytes.fromhex(found.values.get("firstKey", ""))


@app.command()
def status(
    broker: Group = None,
    name_server: NameServers = DEFAULT_NAME_SERVER,
    timeout: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Show each member of each region: who leads, how far its log is applied, what it holds.

    With `--json` the keys that bound a region are in hexadecimal: `firstKey` is `6d` where the table says `m`.
    """
    with _opened(name_server, broker, timeout, as_json=as_json) as store:
        found = store.status()
        if not found:
            raise UsageError("no member of a group serves a key-value store")
    if as_json:
        print_json(
            [
                {"broker": each.member.broker_name, "address": each.member.address, **each.values}
                for each in found
            ]
        )
        return
    print_table(tuple(_COLUMNS), status_rows(found))


def _text(value: bytes) -> str:
    return printable(value.decode(errors="backslashreplace"), keep="\n\t")


def _shown(value: bytes | None) -> dict[str, str | None]:
    try:
        return {"value": None if value is None else value.decode()}
    except UnicodeDecodeError:
        assert value is not None
        return {"valueBase64": base64.b64encode(value).decode()}
