"""`ropewalk admin broker …` and `admin cluster …`: which brokers there are, how they are, and their settings."""

from __future__ import annotations

from typing import Annotated

import typer

from ropewalk.client.admin.results import BrokerMember, BrokerStatus, topic_kind
from ropewalk.client.blocking.admin import Admin
from ropewalk.format.names import is_system_group
from tools.admin.base import (
    BrokerName,
    Cluster,
    Moment,
    Sheet,
    TopicOption,
    Yes,
    command,
    confirm,
    show_facts,
    tell_skipped,
)
from tools.admin.config import config_app, title
from tools.common.options import (
    complete_broker,
)
from tools.common.output import (
    UsageError,
    counted,
    note,
    print_json,
    print_line,
)

app = typer.Typer(
    name="broker",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Brokers: how they are, and their settings.",
)
app.add_typer(config_app)
cluster_app = typer.Typer(
    name="cluster", no_args_is_help=True, rich_markup_mode="markdown", help="The cluster as a whole."
)

WhichBroker = Annotated[
    str | None,
    typer.Argument(
        metavar="BROKER",
        help="Its name, or the address of one of its members. Without it: all there are.",
        autocompletion=complete_broker,
    ),
]


def _percent(status: BrokerStatus, name: str) -> str | None:
    ratio = status.number(name)
    return None if ratio is None else f"{ratio * 100:.0f} %"


def _rate(status: BrokerStatus, *names: str) -> float | None:
    for name in names:
        number = status.number(name)
        if number is not None:
            return round(number, 1)
    return None


@command(app, "list")
def list_brokers(
    admin: Admin,
    cluster: Cluster = None,
    *,
    as_json: bool,
) -> None:
    """List the brokers: where they are, whether they answer, how much goes through them."""
    columns = (
        ("cluster", "cluster"),
        ("broker", "broker"),
        ("id", "brokerId"),
        ("address", "address"),
        ("answers", "answers"),
        ("ropewalk", "ropewalkVersion"),
        ("as RocketMQ", "version"),
        ("in/s", "putTps"),
        ("out/s", "getTps"),
        ("disk", "disk"),
        ("started", "bootTimestamp"),
    )
    found = {status.member: status for status in admin.broker_status(cluster=cluster)}
    away = admin.skipped
    rows = []
    for member in admin.members():
        if cluster not in (None, member.cluster):
            continue
        status = found.get(member)
        rows.append((*_identity(member), member.address not in away, *_figures(status)))
    Sheet(columns, rows).show(
        as_json=as_json, nothing="no broker is registered: start one with `ropewalk broker`"
    )
    for address, why in away.items():
        note(f"{address} does not answer: {why}")


def _identity(member: BrokerMember) -> tuple[object, ...]:
    return member.cluster, member.broker_name, member.broker_id, member.address


def _figures(status: BrokerStatus | None) -> tuple[object, ...]:
    if status is None:
        return None, None, None, None, None, None
    return (
        status.runtime.get("ropewalkVersion"),
        status.runtime.get("brokerVersionDesc"),
        _rate(status, "putTps"),
        _rate(status, "getTransferredTps", "getTransferedTps"),
        _percent(status, "commitLogDiskRatio"),
        Moment(int(status.number("bootTimestamp") or 0)),
    )


@command(app, "status")
def status(
    admin: Admin,
    broker: WhichBroker = None,
    cluster: Cluster = None,
    *,
    as_json: bool,
) -> None:
    """Show everything a broker tells about itself, under RocketMQ's names."""
    found = admin.broker_status(cluster=cluster, broker=broker)
    if as_json:
        print_json(
            [
                {
                    "cluster": one.member.cluster,
                    "broker": one.member.broker_name,
                    "brokerId": one.member.broker_id,
                    "address": one.member.address,
                    "runtime": dict(sorted(one.runtime.items())),
                }
                for one in found
            ]
        )
    else:
        for number, one in enumerate(found):
            print_line(("\n" if number else "") + title(one.member))
            show_facts(dict(sorted(one.runtime.items())), as_json=False)
    tell_skipped(admin)


@command(app, "wipe-write-perm")
def wipe_write_perm(
    admin: Admin,
    broker: BrokerName,
    yes: Yes = False,
    *,
    as_json: bool,
) -> None:
    """Turn producers away from a broker, so that it can be emptied and stopped. Asks first.

    Consumers go on reading what is there. It counts until the broker registers anew after a restart, or until
    `restore-write-perm`.
    """
    masters = admin.masters()
    _require_known(broker, masters)
    others = [member.broker_name for member in masters if member.broker_name != broker]
    warning = "" if others else " There is no other broker for them."
    confirm(f"Turn producers away from {broker}?{warning}", yes=yes)
    _show_counts(admin.wipe_write_permission(broker), as_json=as_json)


@command(app, "restore-write-perm")
def restore_write_perm(
    admin: Admin,
    broker: BrokerName,
    *,
    as_json: bool,
) -> None:
    """Let producers write to a broker again."""
    _require_known(broker, admin.masters())
    _show_counts(admin.restore_write_permission(broker), as_json=as_json)


def _require_known(broker: str, masters: tuple[BrokerMember, ...]) -> None:
    names = sorted({member.broker_name for member in masters})
    if broker not in names:
        raise UsageError(f"there is no broker {broker}; the name server knows {', '.join(names)}")


def _show_counts(counts: dict[str, int], *, as_json: bool) -> None:
    Sheet((("name server", "nameServer"), ("topics", "topics")), list(counts.items())).show(
        as_json=as_json, nothing="there is no name server"
    )


@command(app, "stats")
def stats(
    admin: Admin,
    topic: TopicOption = None,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Also topics in which nothing happened.")
    ] = False,
    *,
    as_json: bool,
) -> None:
    """Show the incoming and outgoing messages, by topic and group: each second, and in the last 24 hours.

    A broker counts from its start on.
    """
    columns = (
        ("topic", "topic"),
        ("group", "group"),
        ("lag", "lag"),
        ("in/s", "inTps"),
        ("out/s", "outTps"),
        ("in, 24 h", "inDay"),
        ("out, 24 h", "outDay"),
    )
    system = admin.system_names()
    names = [topic] if topic else [name for name in admin.topics() if topic_kind(name, system) == "normal"]
    rows = [row for name in names for row in _topic_rows(admin, name)]
    shown = [row for row in rows if everything or topic or any(row[2:])]
    Sheet(columns, shown).show(
        as_json=as_json, nothing="nothing goes on; --all shows the topics all the same"
    )
    if not as_json and shown and len(shown) < len(rows):
        note(f"{counted(len(rows) - len(shown), 'quiet row')} more with --all")
    tell_skipped(admin)


def _topic_rows(admin: Admin, topic: str) -> list[tuple[object, ...]]:
    masters = list(admin.topic_config(topic))
    groups = [group for group in admin.topic_groups(topic) if not is_system_group(group)]
    put = [admin.broker_statistics(member, "TOPIC_PUT_NUMS", topic) for member in masters]
    in_tps = round(sum(one.minute.per_second for one in put if one), 1)
    in_day = sum(one.lately for one in put if one)
    rows: list[tuple[object, ...]] = []
    for group in groups:
        got = [admin.broker_statistics(member, "GROUP_GET_NUMS", f"{topic}@{group}") for member in masters]
        out_tps = round(sum(one.minute.per_second for one in got if one), 1)
        out_day = sum(one.lately for one in got if one)
        rows.append((topic, group, admin.progress(group, topic).lag, in_tps, out_tps, in_day, out_day))
    return rows or [(topic, None, None, in_tps, None, in_day, None)]


@command(cluster_app, "list")
def list_clusters(
    admin: Admin,
    *,
    as_json: bool,
) -> None:
    """List the clusters: their brokers, and what went through them yesterday and today.

    A broker counts from its start on.
    """
    columns = (
        ("cluster", "cluster"),
        ("broker", "broker"),
        ("members", "members"),
        ("in/s", "putTps"),
        ("out/s", "getTps"),
        ("in today", "inToday"),
        ("out today", "outToday"),
        ("in yesterday", "inYesterday"),
        ("out yesterday", "outYesterday"),
    )
    members = admin.members()
    found = {one.member: one for one in admin.broker_status()} if members else {}
    rows = []
    for member in members:
        if not member.is_master and any(
            (other.broker_name, other.is_master) == (member.broker_name, True) for other in members
        ):
            continue  # told of by its master's row
        same = [
            f"{other.broker_id}={other.address}"
            for other in members
            if other.broker_name == member.broker_name
        ]
        rows.append((member.cluster, member.broker_name, same, *_totals(found.get(member))))
    Sheet(columns, rows).show(
        as_json=as_json, nothing="no broker is registered: start one with `ropewalk broker`"
    )
    tell_skipped(admin)


def _totals(one: BrokerStatus | None) -> tuple[object, ...]:
    if one is None:
        return (None,) * 6
    names = ("YesterdayMorning", "TodayMorning", "TodayNow")
    put = [int(one.number(f"msgPutTotal{name}") or 0) for name in names]
    get = [int(one.number(f"msgGetTotal{name}") or 0) for name in names]
    return (
        _rate(one, "putTps"),
        _rate(one, "getTransferredTps", "getTransferedTps"),
        put[2] - put[1],
        get[2] - get[1],
        put[1] - put[0],
        get[1] - get[0],
    )


@command(cluster_app, "name-servers")
def name_servers(
    admin: Admin,
    *,
    as_json: bool,
) -> None:
    """Show the settings of every name server of the list."""
    found = admin.name_server_config()
    if as_json:
        print_json([{"address": address, "config": config} for address, config in found.items()])
    else:
        for number, (address, config) in enumerate(found.items()):
            print_line(("\n" if number else "") + f"== {address}")
            for key, value in config.items():
                print_line(f"{key}={value}")
