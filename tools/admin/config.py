"""`ropewalk admin broker config …`: the settings of running brokers, shown and changed alike.

Both commands concern every replica of the brokers that are chosen, and say which replicas those were: a setting that
a master has and its slaves have not is lost with the next change of roles.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from ropewalk.client.admin.results import BrokerMember
from ropewalk.client.blocking.admin import Admin
from tools.admin.base import Cluster, Sheet, Yes, command, confirm, tell_skipped
from tools.common.options import complete_broker
from tools.common.output import (
    UsageError,
    note,
    parse_pairs,
    print_json,
    print_line,
)

config_app = typer.Typer(
    name="config", no_args_is_help=True, rich_markup_mode="markdown", help="A broker's settings."
)


def complete_changeable(incomplete: str) -> list[str]:
    """The settings of a Ropewalk broker that can be changed while it runs."""
    from broker.admin.broker import CHANGEABLE  # for whoever presses Tab here, and nobody else

    return sorted(f"{key}=" for key in CHANGEABLE if key.startswith(incomplete))


def complete_key(incomplete: str) -> list[str]:
    """Return the settings of a Ropewalk broker."""
    from broker.settings.keys import KEYS

    return sorted(key for key in KEYS if key.startswith(incomplete))


Replicas = Annotated[
    str | None,
    typer.Option(
        "--broker",
        "-b",
        metavar="NAME|HOST:PORT",
        help="Only this broker: its name, for all of its replicas, or the address of one of them.",
        autocompletion=complete_broker,
    ),
]


@command(config_app, "get")
def config_get(
    admin: Admin,
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY", help="Only these. * stands for anything.", autocompletion=complete_key),
    ] = None,
    broker: Replicas = None,
    cluster: Cluster = None,
    *,
    as_json: bool,
) -> None:
    """Show the settings of running brokers, slaves too.

    Example: `ropewalk admin broker config get 'flush*' --broker broker-a`
    """
    found = admin.broker_config(cluster=cluster, broker=broker)
    chosen = {member: _matching(settings, keys or ()) for member, settings in found.items()}
    for key in keys or ():
        if not any(_matching(settings, (key,)) for settings in found.values()):
            raise _no_such_key(key, found)
    if as_json:
        print_json(
            [
                {
                    "broker": member.broker_name,
                    "brokerId": member.broker_id,
                    "role": role(member),
                    "address": member.address,
                    "config": settings,
                }
                for member, settings in chosen.items()
            ]
        )
    else:
        for number, (member, settings) in enumerate(chosen.items()):
            print_line(("\n" if number else "") + title(member))
            for key, value in settings.items():
                print_line(f"{key}={value}")
    tell_skipped(admin)


def _matching(settings: Mapping[str, str], patterns: Sequence[str]) -> dict[str, str]:
    if not patterns:
        return dict(settings)
    wanted = re.compile(
        "|".join(".*".join(map(re.escape, pattern.split("*"))) for pattern in patterns), re.IGNORECASE
    )
    return {key: value for key, value in settings.items() if wanted.fullmatch(key)}


def _no_such_key(key: str, found: Mapping[BrokerMember, Mapping[str, str]]) -> UsageError:
    """Return the error for a setting that no broker has, with the nearest right name."""
    if key in {member.broker_name for member in found}:
        return UsageError(f"{key} is a broker and no setting: name it with --broker {key}")
    known = {name.lower(): name for settings in found.values() for name in settings}
    near = difflib.get_close_matches(key.lower(), known, n=1)
    return UsageError(
        f"no broker has a setting {key}" + (f"; the nearest one is {known[near[0]]}" if near else "")
    )


@command(config_app, "set")
def config_set(
    admin: Admin,
    settings: Annotated[
        list[str],
        typer.Argument(metavar="KEY=VALUE", help="One or more.", autocompletion=complete_changeable),
    ],
    broker: Replicas = None,
    cluster: Cluster = None,
    yes: Yes = False,
    *,
    as_json: bool,
) -> None:
    """Change settings of running brokers, slaves too. Asks first when it concerns several brokers.

    Only some settings can be changed while a broker runs; it says which, when it refuses. A broker that was started
    with a configuration file keeps the change there; another one forgets it when it stops.

    Example: `ropewalk admin broker config set maxMessageSize=1000000 --broker broker-a`
    """
    changes = parse_pairs(settings, "KEY=VALUE")
    before = admin.broker_config(cluster=cluster, broker=broker)
    for key in changes:
        if not any(key in settings for settings in before.values()):
            raise _no_such_key(key, before)
    names = sorted({member.broker_name for member in before})
    if len(names) > 1:
        confirm(f"Change {', '.join(changes)} at {len(names)} brokers ({', '.join(names)})?", yes=yes)
    done = admin.set_broker_config(changes, cluster=cluster, broker=broker)
    after = admin.broker_config(cluster=cluster, broker=broker)
    rows = [
        (
            member.broker_name or None,
            role(member),
            member.address,
            key,
            before.get(member, {}).get(key),
            after.get(member, {}).get(key),
        )
        for member in done
        for key in changes
    ]
    columns = (
        ("broker", "broker"),
        ("role", "role"),
        ("address", "address"),
        ("setting", "key"),
        ("was", "before"),
        ("is", "value"),
    )
    Sheet(columns, rows).show(as_json=as_json, nothing="nothing was changed")
    if rows:
        note("a broker that was started without a configuration file forgets this when it stops")


def title(member: BrokerMember) -> str:
    name = f"{member.broker_name} {role(member)} at " if member.broker_name else ""
    return f"== {name}{member.address}"


def role(member: BrokerMember) -> str | None:
    """Return the role in words; None for a broker that no name server knows."""
    if not member.broker_name:
        return None
    return "master" if member.is_master else f"slave {member.broker_id}"
