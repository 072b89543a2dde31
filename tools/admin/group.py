"""`ropewalk admin group …`: look at consumer groups, make, change and delete them, and send them elsewhere."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import typer

from ropewalk.client.admin.groups import EARLIEST, LATEST
from ropewalk.client.admin.results import BrokerMember, GroupConfig, GroupProgress, MemberStatus, version_text
from ropewalk.client.blocking.admin import Admin
from ropewalk.client.core.consume.received import TopicQueue
from ropewalk.client.core.routes import Queue
from ropewalk.codes import ResponseCode
from ropewalk.errors import Rejected
from ropewalk.format.names import DLQ_PREFIX, RETRY_PREFIX, check_group, is_system_group
from tools.admin.base import (
    Broker,
    BrokerNameOption,
    Cluster,
    Group,
    Moment,
    Sheet,
    Topic,
    TopicOption,
    Yes,
    command,
    confirm,
    no_such_group,
    require_group,
    show_facts,
    tell_skipped,
)
from tools.admin.progress import Drawings, Interval, Watch, draw, queue_sheet
from tools.common.options import (
    complete_group,
)
from tools.common.output import (
    FAILED,
    UsageError,
    counted,
    note,
    print_json,
    print_line,
    print_table,
)
from tools.messages.consume import Start, parse_start

app = typer.Typer(
    name="group",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Consumer groups: look, make, change, delete, send elsewhere.",
)

_CONFIG_COLUMNS = (
    ("broker", "broker"),
    ("may consume", "consumeEnable"),
    ("retries", "retryMaxTimes"),
    ("retry queues", "retryQueues"),
    ("broadcast", "broadcastEnable"),
    ("orderly", "orderly"),
)
_CLIENT_COLUMNS = (
    ("client", "clientId"),
    ("address", "address"),
    ("language", "language"),
    ("version", "version"),
)


def _config_sheet(configs: dict[BrokerMember, GroupConfig]) -> Sheet:
    return Sheet(
        _CONFIG_COLUMNS,
        [
            (
                member.broker_name,
                config.consume_enable,
                config.retry_max_times,
                config.retry_queues,
                config.broadcast_enable,
                config.orderly,
            )
            for member, config in configs.items()
        ],
    )


@command(app, "list")
def list_groups(
    admin: Admin,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Also the brokers' own groups.")] = False,
    *,
    as_json: bool,
) -> None:
    """List the groups: members online, topics, how far behind they are (retries included), and their dead letters."""
    columns = (
        ("group", "group"),
        ("online", "clients"),
        ("model", "messageModel"),
        ("topics", "topics"),
        ("lag", "lag"),
        ("dead letters", "deadLetters"),
    )
    dead = admin.dead_letters()
    progress = {one.group: one for one in admin.all_progress()}
    known = sorted(set(admin.groups()) | set(progress))
    names = [group for group in known if everything or not is_system_group(group)]
    rows = []
    for group in names:
        online = admin.consumers(group)
        topics = set(progress[group].topics if group in progress else ())
        topics |= set(online.subscriptions if online else ())
        rows.append(
            (
                group,
                len(online.clients) if online else 0,
                online.message_model.lower() if online else None,
                sorted(topic for topic in topics if not topic.startswith(RETRY_PREFIX)),
                progress[group].lag if group in progress else None,
                dead.get(group, 0),
            )
        )
    Sheet(columns, rows).show(
        as_json=as_json, nothing="there are no groups yet: a group begins with its first consumer"
    )
    if not as_json and len(names) < len(known):
        note(f"{len(known) - len(names)} more with --all: the brokers' own")
    tell_skipped(admin)


@command(app, "show")
def show(
    admin: Admin,
    group: Group,
    *,
    as_json: bool,
) -> None:
    """Show a group: its settings, members and subscriptions, its lag, and what waits for a retry or is dead."""
    configs = admin.group_config(group)
    online = admin.consumers(group)
    if not configs and online is None:
        raise no_such_group(group)
    progress = admin.progress(group)
    clients = Sheet(
        _CLIENT_COLUMNS,
        [
            (one.client_id, one.address, one.language, version_text(one.version))
            for one in (online.clients if online else ())
        ],
    )
    settings = _config_sheet(configs)
    ready = sum(queue.lag for queue in progress.queues if queue.source.topic.startswith(RETRY_PREFIX))
    delayed, complete = admin.delayed_retries(group)
    facts = {
        "group": group,
        "online": len(clients.rows),
        "messageModel": online.message_model if online else None,
        "consumeType": online.consume_type if online else None,
        "consumeFrom": online.consume_from if online else None,
        "lag": progress.lag,
        "consumeTps": round(progress.consume_tps, 1),
        "waitingRetries": ready + delayed,
        "deadLetters": admin.dead_letters().get(group, 0),
    }
    if as_json:
        print_json(
            facts
            | {
                "subscriptions": dict(online.subscriptions) if online else {},
                "brokers": settings.as_json(),
                "clients": clients.as_json(),
                "topics": progress.topics,
            }
        )
    else:
        facts["subscriptions"] = (
            [f"{topic} ({what})" for topic, what in online.subscriptions.items()] if online else None
        )
        if facts["deadLetters"]:
            facts["deadLetters"] = f"{facts['deadLetters']}, in topic {DLQ_PREFIX}{group}"
        if not complete:
            facts["waitingRetries"] = f"{ready + delayed} at the least"
        show_facts({key: value for key, value in facts.items() if value is not None}, as_json=False)
        for sheet in (settings, clients):
            if sheet.rows:
                print_line()
                print_table(sheet.headings, sheet.cells)
    tell_skipped(admin)


_MEMBER_COLUMNS = (
    ("client", "clientId"),
    ("language", "language"),
    ("queues", "queues"),
    ("waiting", "cached"),
    ("handled/s", "handledPerSecond"),
    ("failed/s", "failedPerSecond"),
    ("handling ms", "handlingMs"),
    ("last handled", "lastConsumed"),
    ("started", "started"),
)


@command(app, "status")
def status(
    admin: Admin,
    group: Group,
    *,
    as_json: bool,
) -> None:
    """Ask every running member of a group for its status, and judge whether they agree.

    They do when all subscribe to the same, and every queue is in the hands of one member (of each, in broadcasting
    mode). Exit code 1 says that they do not; after a member came or went that may last some seconds.
    """
    online = admin.consumers(group)
    if online is None:
        require_group(admin, group)
        raise Rejected(f"nobody of group {group} is online; start one of its consumers first")
    members = admin.members_status(group)
    silent = admin.skipped
    # Who pulls when it likes shares nothing out.
    shared = online.consume_type != "CONSUME_ACTIVELY"
    queues = {queue for topic in online.subscriptions for queue in _queues(admin, topic) if shared}
    troubles = _disagreements(members, queues, broadcasting=online.message_model == "BROADCASTING")
    troubles += [f"{client_id} does not answer: {why}" for client_id, why in silent.items()]
    sheet = Sheet(_MEMBER_COLUMNS, [_member_row(member) for member in members])
    if as_json:
        print_json({"group": group, "members": sheet.as_json(), "agreed": not troubles, "troubles": troubles})
    else:
        sheet.show(as_json=False, nothing="no member answers")
        for trouble in troubles:
            note(trouble)
    if troubles:
        raise typer.Exit(FAILED)


def _queues(admin: Admin, topic: str) -> list[TopicQueue]:
    """A topic's queues; none while it does not exist, which a subscription may be ahead of."""
    try:
        return [TopicQueue(topic, queue) for queue in admin.topic_route(topic).read_queues()]
    except Rejected as exc:
        if exc.code != ResponseCode.TOPIC_NOT_EXIST:
            raise
        return []


def _member_row(member: MemberStatus) -> tuple[object, ...]:
    return (
        member.client.client_id,
        member.client.language,
        sum(not queue.source.topic.startswith(RETRY_PREFIX) for queue in member.queues),
        sum(queue.cached_count for queue in member.queues),
        round(member.handled_per_second, 1),
        round(member.failed_per_second, 1),
        round(member.handling_ms, 1),
        Moment(max((queue.last_consume_ms for queue in member.queues), default=0)),
        Moment(member.started_ms),
    )


def _disagreements(
    members: tuple[MemberStatus, ...], queues: set[TopicQueue], *, broadcasting: bool
) -> list[str]:
    """Why a group does not work as one, in sentences; none when it does."""
    troubles: list[str] = []
    first = members[0] if members else None
    for member in members:
        if first is not None and member.subscriptions != first.subscriptions:
            ours = ", ".join(f"{topic} ({what})" for topic, what in sorted(member.subscriptions.items()))
            troubles.append(f"{member.client.client_id} subscribes to something else than the others: {ours}")
    held = Counter(queue.source for member in members for queue in member.queues)
    wanted = len(members) if broadcasting else 1
    for queue in sorted(queues):
        place = f"{queue.topic} at {queue.queue.broker_name}, queue {queue.queue.queue_id}"
        if held[queue] < wanted:
            troubles.append(f"{place} is read by {'nobody' if not held[queue] else 'too few'}")
        elif held[queue] > wanted:
            troubles.append(f"{place} is in the hands of {held[queue]} members at once")
    return troubles


Retries = Annotated[
    int | None,
    typer.Option(
        "--retries",
        min=-1,
        help="How often a message is tried again before it is a dead letter, for consumers that name no number of "
        "their own. Most do, and theirs counts: see what is printed.",
    ),
]


def _tell_whose_retries_count(retries: int | None) -> None:
    """Say which consumers go by a group's number, if one was given."""
    if retries is not None:
        note(
            f"{retries} counts for consumers that name no number of their own. Most do, and theirs counts: "
            "max_retries of Ropewalk's Python consumers, maxReconsumeTimes of RocketMQ's clients since 3.4.9 "
            "(both 16 unless set)"
        )


@command(app, "create")
def create(
    admin: Admin,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="Letters, digits and _ - % |.")],
    retries: Retries = None,
    broadcast: Annotated[
        bool, typer.Option("--broadcast/--no-broadcast", help="Whether it may consume in broadcasting mode.")
    ] = True,
    orderly: Annotated[
        bool, typer.Option("--orderly", help="Note that its members consume in order.")
    ] = False,
    cluster: Cluster = None,
    broker: Broker = None,
    *,
    as_json: bool,
) -> None:
    """Make a group at every broker, or at those of a cluster, or at one.

    Most groups need not be made: a group begins with its first consumer, with 16 retries.
    """
    if (reason := check_group(group)) is not None:
        raise UsageError(reason)
    admin.create_group(
        group,
        retry_max_times=16 if retries is None else retries,
        broadcast_enable=broadcast,
        orderly=orderly,
        cluster=cluster,
        broker=broker,
    )
    _config_sheet(admin.group_config(group)).show(as_json=as_json, nothing="no broker has it")
    _tell_whose_retries_count(retries)


@command(app, "update")
def update(
    admin: Admin,
    group: Group,
    retries: Retries = None,
    consume: Annotated[
        bool | None, typer.Option("--consume/--no-consume", help="Whether it may consume at all.")
    ] = None,
    broadcast: Annotated[
        bool | None,
        typer.Option("--broadcast/--no-broadcast", help="Whether it may consume in broadcasting mode."),
    ] = None,
    orderly: Annotated[
        bool | None, typer.Option("--orderly/--no-orderly", help="Whether its members consume in order.")
    ] = None,
    cluster: Cluster = None,
    broker: Broker = None,
    *,
    as_json: bool,
) -> None:
    """Change the named settings of a group, and leave the others."""
    if all(value is None for value in (retries, consume, broadcast, orderly)):
        raise UsageError("say what to change: --retries, --consume, --broadcast, --orderly (see --help)")
    changed = admin.update_group(
        group,
        retry_max_times=retries,
        consume_enable=consume,
        broadcast_enable=broadcast,
        orderly=orderly,
        cluster=cluster,
        broker=broker,
    )
    _config_sheet(changed).show(as_json=as_json, nothing="no broker has it")
    _tell_whose_retries_count(retries)


@command(app, "delete")
def delete(
    admin: Admin,
    groups: Annotated[
        list[str], typer.Argument(metavar="GROUP", help="One or more.", autocompletion=complete_group)
    ],
    keep_offsets: Annotated[bool, typer.Option("--keep-offsets", help="Keep how far it has come.")] = False,
    cluster: Cluster = None,
    broker: Broker = None,
    yes: Yes = False,
    *,
    as_json: bool,
) -> None:
    """Delete groups with their progress, retries and dead letters. Asks first."""
    for group in groups:
        require_group(admin, group)
        online = admin.consumers(group)
        warning = f" {counted(len(online.clients), 'client')} of it would go on." if online else ""
        confirm(f"Delete group {group} with its progress, retries and dead letters?{warning}", yes=yes)
    done = []
    for group in groups:
        where = [
            member.broker_name
            for member in admin.delete_group(group, keep_offsets=keep_offsets, cluster=cluster, broker=broker)
        ]
        done.append({"group": group, "brokers": where})
        if not as_json:
            print_line(f"{group} deleted at {', '.join(where)}")
    if as_json:
        print_json(done)


@command(app, "lag")
def lag(
    admin: Admin,
    group: Group,
    topic: TopicOption = None,
    watch: Watch = False,
    interval: Interval = 2.0,
    count: Drawings = None,
    *,
    as_json: bool,
) -> None:
    """Show how far a group is behind, queue by queue."""
    if not watch:
        require_group(admin, group)
    draw(
        admin,
        lambda: queue_sheet(admin.progress(group, topic)),
        title=f"group {group}",
        nothing=f"{group} has committed nothing yet",
        as_json=as_json,
        watch=watch,
        interval=interval,
        count=count,
    )


# Sending groups elsewhere

_MOVE_COLUMNS = (
    ("broker", "broker"),
    ("queue", "queueId"),
    ("was", "before"),
    ("is", "offset"),
    ("again", "again"),
    ("skipped", "skipped"),
)


def _targets(admin: Admin, topic: str, place: Start, chosen: list[Queue]) -> dict[Queue, int]:
    """Where `place` is in each of the chosen queues."""
    bounds = {one.queue: (one.min_offset, one.max_offset) for one in admin.topic_status(topic).queues}
    by_time = admin.search_offsets(topic, place.timestamp_ms) if place.timestamp_ms is not None else {}
    targets: dict[Queue, int] = {}
    for queue in chosen:
        low, high = bounds.get(queue, (0, 0))
        if place.offset is not None:
            if not low <= place.offset <= high:
                raise UsageError(
                    f"offset {place.offset} is not in {queue.broker_name} queue {queue.queue_id}, "
                    f"which holds {low} to {high}"
                )
            targets[queue] = place.offset
        elif place.timestamp_ms is not None:
            targets[queue] = by_time.get(queue, high)
        else:
            targets[queue] = high if place.place == "latest" else low
    return targets


def _move_sheet(before: GroupProgress, topic: str, targets: dict[Queue, int]) -> Sheet:
    known = {queue.source: queue.consumer_offset for queue in before.queues}
    rows = []
    for queue, target in sorted(targets.items()):
        was = known.get(TopicQueue(topic, queue))
        back, forth = (max(was - target, 0), max(target - was, 0)) if was is not None else (None, None)
        rows.append((queue.broker_name, queue.queue_id, was, target, back, forth))
    return Sheet(_MOVE_COLUMNS, rows)


def _move(
    admin: Admin,
    group: str,
    topic: str,
    place: Start,
    *,
    queue_id: int | None,
    broker: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    require_group(admin, group)
    queues = list(admin.topic_route(topic).read_queues())
    chosen = [
        queue
        for queue in queues
        if queue_id in (None, queue.queue_id) and broker in (None, queue.broker_name)
    ]
    if not chosen:
        raise UsageError(f"topic {topic} has no such queue; `ropewalk admin topic show {topic}` shows them")
    targets = _targets(admin, topic, place, chosen)
    before = admin.progress(group, topic)
    sheet = _move_sheet(before, topic, targets)
    if dry_run:
        sheet.show(as_json=as_json, nothing="no queue")
        note("nothing was changed")
        return
    again = sum(row[4] for row in sheet.rows if isinstance(row[4], int))
    skipped = sum(row[5] for row in sheet.rows if isinstance(row[5], int))
    effect = " and ".join(
        text
        for number, text in (
            (again, f"consume {counted(again)} again"),
            (skipped, f"never see {counted(skipped)}"),
        )
        if number
    )
    if effect:
        confirm(f"Group {group} will {effect} of {topic}. Go on?", yes=yes)
    whole_topic = len(chosen) == len(queues) and place.offset is None
    if whole_topic:
        ends = {"earliest": EARLIEST, "latest": LATEST}
        moment = place.timestamp_ms if place.timestamp_ms is not None else ends[place.place]
        done = admin.reset_offsets(group, topic, moment)
    else:
        done = {}
        for queue in chosen:
            done |= admin.reset_offset(group, topic, queue, targets[queue])
    _move_sheet(before, topic, {source.queue: offset for source, offset in done.items()}).show(
        as_json=as_json, nothing="no queue was reset"
    )


DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would happen.")]


@command(app, "reset")
def reset(
    admin: Admin,
    group: Group,
    topic: Topic,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="WHERE",
            help="earliest, latest, offset:N, a time (2026-01-31T12:00:00, local unless it names a zone), "
            "or milliseconds since 1970.",
        ),
    ],
    queue: Annotated[int | None, typer.Option("--queue", "-q", min=0, help="Only this queue.")] = None,
    broker: BrokerNameOption = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    *,
    as_json: bool,
) -> None:
    """Send a group to another place in a topic, back or forth. Shows what that means, and asks first.

    It works for a group that is running as for one that is not. Examples:

        ropewalk admin group reset billing orders --to 2026-01-31T12:00:00
        ropewalk admin group reset billing orders --to offset:17 --queue 3
    """
    place = parse_start(to, "--to")
    _move(
        admin,
        group,
        topic,
        place,
        queue_id=queue,
        broker=broker,
        dry_run=dry_run,
        yes=yes,
        as_json=as_json,
    )


@command(app, "skip")
def skip(
    admin: Admin,
    group: Group,
    topic: Topic,
    dry_run: DryRun = False,
    yes: Yes = False,
    *,
    as_json: bool,
) -> None:
    """Have a group leave out everything that has piled up in a topic. The same as `reset --to latest`."""
    _move(
        admin,
        group,
        topic,
        Start("latest"),
        queue_id=None,
        broker=None,
        dry_run=dry_run,
        yes=yes,
        as_json=as_json,
    )


@command(app, "clone")
def clone(
    admin: Admin,
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", help="The group whose progress it is.", autocompletion=complete_group
        ),
    ],
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="The group that gets it.", autocompletion=complete_group)
    ],
    topic: Topic,
    yes: Yes = False,
    *,
    as_json: bool,
) -> None:
    """Give one group the progress of another in a topic. Asks first if the target has progress of its own."""
    require_group(admin, target)
    before = admin.progress(target, topic)
    if any(queue.consumer_offset for queue in before.queues):
        confirm(
            f"Group {target} has read {topic} already; replace its progress by that of {source}?", yes=yes
        )
    done = admin.clone_offsets(source, target, topic)
    _move_sheet(before, topic, {queue.queue: offset for queue, offset in done.items()}).show(
        as_json=as_json, nothing="nothing was cloned"
    )
