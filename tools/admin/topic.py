"""`ropewalk admin topic …`: look at topics, make, change and delete them."""

from __future__ import annotations

from typing import Annotated

import typer

from ropewalk.client.admin.results import BrokerMember, TopicConfig, permission_text, topic_kind
from ropewalk.client.blocking.admin import Admin
from ropewalk.format.names import check_topic
from tools.admin.base import (
    Broker,
    Cluster,
    Moment,
    Sheet,
    Topic,
    Yes,
    command,
    confirm,
    parse_permission,
    show_facts,
    tell_skipped,
)
from tools.common.options import (
    complete_topic,
)
from tools.common.output import (
    UsageError,
    counted,
    note,
    parse_pairs,
    print_json,
    print_line,
    print_table,
)

app = typer.Typer(
    name="topic",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Topics: look, make, change, delete.",
)

Queues = Annotated[
    int | None, typer.Option("--queues", "-q", min=1, max=65_536, help="Queues to read and to write.")
]
Permission = Annotated[
    str | None,
    typer.Option("--permission", "-p", metavar="rw|r|w|none", help="What clients may do with it."),
]
Attributes = Annotated[
    list[str] | None,
    typer.Option("--attribute", metavar="NAME=VALUE", help="Set an attribute; may be repeated."),
]


@command(app, "list")
def list_topics(
    admin: Admin,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Also retry and dead-letter topics, and the brokers' own.")
    ] = False,
    long: Annotated[
        bool, typer.Option("--long", "-l", help="Also queues and permission at each broker.")
    ] = False,
    cluster: Cluster = None,
    *,
    as_json: bool,
) -> None:
    """List the topics.

    Example: `ropewalk admin topic list --long`
    """
    names = admin.topics(cluster=cluster)
    system = admin.system_names()
    kinds = [(name, topic_kind(name, system)) for name in names]
    shown = [(name, kind) for name, kind in kinds if everything or kind == "normal"]
    if long:
        sheet = Sheet(
            (("topic", "topic"), ("kind", "kind"), *_CONFIG_COLUMNS),
            [
                (name, kind, *_config_cells(member, config))
                for name, kind in shown
                for member, config in admin.topic_config(name).items()
            ],
        )
    else:
        sheet = Sheet((("topic", "topic"), ("kind", "kind")), shown)
    sheet.show(
        as_json=as_json, nothing="there are no topics yet: `ropewalk admin topic create TOPIC` makes one"
    )
    if not as_json and len(shown) < len(kinds):
        note(f"{len(kinds) - len(shown)} more with --all: retry, dead letters, and the brokers' own")
    tell_skipped(admin)


_CONFIG_COLUMNS = (
    ("broker", "broker"),
    ("read", "readQueues"),
    ("write", "writeQueues"),
    ("perm", "permission"),
    ("order", "order"),
    ("attributes", "attributes"),
)


def _config_cells(member: BrokerMember, config: TopicConfig) -> tuple[object, ...]:
    attributes = " ".join(f"{key}={value}" for key, value in config.attributes.items())
    return (
        member.broker_name,
        config.read_queues,
        config.write_queues,
        permission_text(config.permission),
        config.order,
        attributes,
    )


def _show_configs(configs: dict[BrokerMember, TopicConfig], *, as_json: bool) -> None:
    rows = [_config_cells(member, config) for member, config in configs.items()]
    Sheet(_CONFIG_COLUMNS, rows).show(as_json=as_json, nothing="no broker has it")


_QUEUE_COLUMNS = (
    ("broker", "broker"),
    ("queue", "queueId"),
    ("from", "minOffset"),
    ("to", "maxOffset"),
    ("messages", "messages"),
    ("last stored", "lastUpdated"),
)


@command(app, "show")
def show_topic(
    admin: Admin,
    topic: Topic,
    *,
    as_json: bool,
) -> None:
    """Show a topic: its settings at each broker, what lies in its queues, and which groups read it."""
    configs = admin.topic_config(topic)
    status = admin.topic_status(topic)
    groups = admin.topic_groups(topic)
    kind = topic_kind(topic, admin.system_names())
    at_brokers = Sheet(_CONFIG_COLUMNS, [_config_cells(*item) for item in configs.items()])
    queues = Sheet(
        _QUEUE_COLUMNS,
        [
            (
                one.queue.broker_name,
                one.queue.queue_id,
                one.min_offset,
                one.max_offset,
                one.max_offset - one.min_offset,
                Moment(one.last_update_ms),
            )
            for one in status.queues
        ],
    )
    if as_json:
        print_json(
            {
                "topic": topic,
                "kind": kind,
                "messages": status.count,
                "putTps": status.put_tps,
                "brokers": at_brokers.as_json(),
                "queues": queues.as_json(),
                "groups": groups,
            }
        )
    else:
        tps = f"{status.put_tps:,.1f} a second"
        show_facts(
            {
                "topic": topic,
                "kind": kind,
                "messages": f"{status.count:,}",
                "sent": tps,
                "groups": groups or "none",
            },
            as_json=False,
        )
        print_line()
        print_table(at_brokers.headings, at_brokers.cells)
        print_line()
        print_table(queues.headings, queues.cells)
    tell_skipped(admin)


@command(app, "route")
def route(
    admin: Admin,
    topic: Topic,
    *,
    as_json: bool,
) -> None:
    """Show where clients are sent for a topic: what the name server answers."""
    columns = (
        ("broker", "broker"),
        ("cluster", "cluster"),
        ("read", "readQueues"),
        ("write", "writeQueues"),
        ("perm", "permission"),
        ("id", "brokerId"),
        ("address", "address"),
    )
    found = admin.topic_route(topic)
    rows = [
        (
            data.broker_name,
            broker.cluster if broker else None,
            data.read_queue_count,
            data.write_queue_count,
            permission_text(data.permission),
            broker_id,
            address,
        )
        for data in sorted(found.queues, key=lambda data: data.broker_name)
        for broker in (found.brokers.get(data.broker_name),)
        for broker_id, address in (sorted(broker.addresses.items()) if broker else ((None, None),))
    ]
    Sheet(columns, rows).show(as_json=as_json, nothing=f"no broker serves {topic} at the moment")


@command(app, "create")
def create(
    admin: Admin,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Letters, digits and _ - % |.")],
    queues: Annotated[
        int, typer.Option("--queues", "-q", min=1, max=65_536, help="Queues at each broker.")
    ] = 8,
    permission: Permission = None,
    order: Annotated[
        bool,
        typer.Option("--order", help="Fix its queues at the name servers, for consumers that need an order."),
    ] = False,
    attributes: Attributes = None,
    cluster: Cluster = None,
    broker: Broker = None,
    *,
    as_json: bool,
) -> None:
    """Make a topic at every broker, or at those of a cluster, or at one.

    A topic is made by its first message too, with four queues at most; made by hand, it has what you say.

    Example: `ropewalk admin topic create orders --queues 16`
    """
    if (reason := check_topic(topic)) is not None:
        raise UsageError(reason)
    bits = parse_permission(permission or "rw")
    made = admin.create_topic(
        topic,
        queues,
        permission=bits,
        order=order,
        attributes=parse_pairs(attributes or (), "--attribute"),
        cluster=cluster,
        broker=broker,
    )
    where = [member.broker_name or member.address for member in made]
    if as_json:
        print_json({"topic": topic, "queues": queues, "permission": permission_text(bits), "brokers": where})
    else:
        print_line(f"{topic}: {counted(queues, 'queue')} at {', '.join(where)}")


@command(app, "update")
def update(
    admin: Admin,
    topic: Topic,
    queues: Queues = None,
    read_queues: Annotated[
        int | None, typer.Option("--read-queues", min=1, max=65_536, help="Queues that consumers read.")
    ] = None,
    write_queues: Annotated[
        int | None, typer.Option("--write-queues", min=1, max=65_536, help="Queues that producers write.")
    ] = None,
    permission: Permission = None,
    order: Annotated[
        bool | None, typer.Option("--order/--no-order", help="Fix its queues, or no longer.")
    ] = None,
    attributes: Attributes = None,
    remove: Annotated[
        list[str] | None, typer.Option("--remove-attribute", metavar="NAME", help="May be repeated.")
    ] = None,
    cluster: Cluster = None,
    broker: Broker = None,
    yes: Yes = False,
    *,
    as_json: bool,
) -> None:
    """Change the named settings of a topic, and leave the others.

    To have fewer queues without losing sight of messages, first lower `--write-queues`, wait until the consumers have
    read the others to their end, and then lower `--read-queues`.
    """
    edits: dict[str, str | None] = dict(parse_pairs(attributes or (), "--attribute"))
    edits |= dict.fromkeys(remove or ())
    given = (queues, read_queues, write_queues, permission, order)
    if all(value is None for value in given) and not edits:
        raise UsageError("say what to change: --queues, --permission, --order, --attribute … (see --help)")
    reading = read_queues if read_queues is not None else queues
    if reading is not None:
        hidden = sum(
            one.max_offset - one.min_offset
            for one in admin.topic_status(topic).queues
            if one.queue.queue_id >= reading
        )
        if hidden:
            confirm(
                f"{counted(hidden)} of {topic} lie in queues that would no longer be read. Go on?",
                yes=yes,
            )
    changed = admin.update_topic(
        topic,
        queues=queues,
        read_queues=read_queues,
        write_queues=write_queues,
        permission=parse_permission(permission) if permission is not None else None,
        order=order,
        attributes=edits,
        cluster=cluster,
        broker=broker,
    )
    _show_configs(changed, as_json=as_json)


@command(app, "perm")
def perm(
    admin: Admin,
    topic: Topic,
    permission: Annotated[
        str, typer.Argument(metavar="rw|r|w|none", help="Or RocketMQ's numbers: 6, 4, 2, 0.")
    ],
    cluster: Cluster = None,
    broker: Broker = None,
    *,
    as_json: bool,
) -> None:
    """Set the permissions of clients on a topic: read, write, both or nothing.

    Example: `ropewalk admin topic perm orders r` lets consumers finish and turns producers away.
    """
    bits = parse_permission(permission)
    before = admin.topic_config(topic)
    changed = admin.update_topic(topic, permission=bits, cluster=cluster, broker=broker)
    rows = [
        (
            member.broker_name,
            permission_text(before[member].permission) if member in before else None,
            permission_text(config.permission),
        )
        for member, config in changed.items()
    ]
    Sheet((("broker", "broker"), ("was", "before"), ("is", "permission")), rows).show(
        as_json=as_json, nothing="no broker has it"
    )


@command(app, "delete")
def delete(
    admin: Admin,
    topics: Annotated[
        list[str], typer.Argument(metavar="TOPIC", help="One or more.", autocompletion=complete_topic)
    ],
    cluster: Cluster = None,
    yes: Yes = False,
    *,
    as_json: bool,
) -> None:
    """Delete topics and every message in them. Asks first."""
    counts = {topic: admin.topic_status(topic).count for topic in topics}
    for topic, count in counts.items():
        readers = admin.topic_groups(topic)
        also = f" {len(readers)} groups read it: {', '.join(readers)}." if len(readers) > 1 else ""
        also = f" Group {readers[0]} reads it." if len(readers) == 1 else also
        confirm(f"Delete {topic} with {counted(count)}?{also}", yes=yes)
    done = []
    for topic in topics:
        where = [member.broker_name for member in admin.delete_topic(topic, cluster=cluster)]
        done.append({"topic": topic, "messages": counts[topic], "brokers": where})
        if not as_json:
            print_line(f"{topic} deleted at {', '.join(where)}")
    if as_json:
        print_json(done)
