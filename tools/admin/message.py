"""Serve `ropewalk admin message …`: find messages, see what became of them, send one, have one consumed."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from ropewalk.client.admin.results import MessageTrack
from ropewalk.client.blocking.admin import Admin
from ropewalk.client.blocking.producer import Producer
from ropewalk.client.core.addresses import DEFAULT_NAME_SERVER
from ropewalk.client.core.connection import Unreachable
from ropewalk.client.core.consume.received import ReceivedMessage
from ropewalk.client.core.messages import Message, SendStatus
from ropewalk.client.core.produce.bodies import decompress_body
from ropewalk.client.core.routes import Queue
from ropewalk.client.core.tracing.records import TraceRecord, decode_trace
from ropewalk.errors import Rejected
from ropewalk.format import names
from ropewalk.format.properties import P
from ropewalk.format.record import parse_message_id
from tools.admin.base import (
    TIMEOUT_S,
    BrokerNameOption,
    Group,
    Moment,
    Sheet,
    Topic,
    TopicOption,
    Yes,
    administrator,
    command,
    confirm,
    show_facts,
    tell_skipped,
)
from tools.admin.offset import choose_queue
from tools.admin.trace import life_of
from tools.common.options import (
    Json,
    NameServers,
    Timeout,
)
from tools.common.output import (
    FAILED,
    UsageError,
    counted,
    note,
    parse_pairs,
    print_json,
    print_line,
)
from tools.messages.consume import parse_moment, received_json, shortened
from tools.messages.delay import parse_delay, tables_of
from tools.messages.input import Stamp, check_properties

app = typer.Typer(
    name="message",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Messages: find one, see what became of it, send one.",
)

BODY_WIDTH = 60
_COLUMNS = (
    ("stored", "storeTimestamp"),
    ("msgId", "msgId"),
    ("broker", "broker"),
    ("queue", "queueId"),
    ("offset", "queueOffset"),
    ("tags", "tags"),
    ("keys", "keys"),
    ("body", "body"),
)

_TRACE_COLUMNS = (
    ("time", "time"),
    ("event", "event"),
    ("group", "group"),
    ("topic", "topic"),
    ("host", "host"),
    ("attempt", "attempt"),
    ("took", "took"),
    ("outcome", "outcome"),
    ("msgId", "msgId"),
)


def message_json(message: ReceivedMessage) -> dict[str, Any]:
    """A message as `ropewalk consume --format json` prints it, with its place in the log."""
    return received_json(message) | {"topic": message.source.topic, "logOffset": message.log_offset}


def _show_list(messages: list[ReceivedMessage], *, as_json: bool, nothing: str) -> None:
    if as_json:
        print_json([message_json(message) for message in messages])
        return
    rows = [
        (
            Moment(message.store_timestamp_ms),
            message.message_id,
            message.source.queue.broker_name,
            message.source.queue.queue_id,
            message.queue_offset,
            message.tags,
            " ".join(message.keys) or None,
            shortened(decompress_body(*message.wire_body)[0], BODY_WIDTH),
        )
        for message in messages
    ]
    Sheet(_COLUMNS, rows).show(as_json=False, nothing=nothing)


def _show_one(message: ReceivedMessage, tracks: tuple[MessageTrack, ...] | None, *, as_json: bool) -> None:
    """Everything about one message, and what became of it in each group."""
    if as_json:
        document = message_json(message)
        if tracks is not None:
            document["groups"] = [
                {
                    "group": track.group,
                    "state": track.state,
                    "online": track.online,
                    "failures": track.failures,
                    "nextAt": track.next_ms,
                    "deadSince": track.dead_since_ms,
                }
                for track in tracks
            ]
        print_json(document)
        return
    queue = message.source.queue
    body, trouble = decompress_body(*message.wire_body)
    own = {key: value for key, value in message.properties.items() if key not in (P.KEYS, P.TAGS, P.UNIQ_KEY)}
    facts: dict[str, Any] = {
        "topic": message.source.topic,
        "msgId": message.message_id,
        "offset id": message.offset_message_id,
        "queue": f"{queue.broker_name} queue {queue.queue_id}, offset {message.queue_offset}",
        "log offset": message.log_offset,
        "keys": " ".join(message.keys) or None,
        "tags": message.tags,
        "properties": " ".join(f"{key}={value}" for key, value in own.items()),
        "sent": Moment(message.born_timestamp_ms),
        "stored": Moment(message.store_timestamp_ms),
        "tried again": message.reconsume_times or None,
        "note": trouble,
        "size": counted(len(body), "byte"),
        "body": shortened(body, 2_000),
    }
    show_facts({key: value for key, value in facts.items() if value not in (None, "")}, as_json=False)
    if tracks:
        print_line()
        Sheet(
            (
                ("group", "group"),
                ("state", "state"),
                ("failed", "failures"),
                ("when", "when"),
                ("online", "online"),
            ),
            [
                (track.group, track.state, _times(track.failures), _when(track), track.online)
                for track in tracks
            ],
        ).show(as_json=False, nothing="")
    elif tracks is not None:
        note("no group has read its topic")


def _times(count: int) -> str | None:
    return f"{counted(count, 'time')}" if count else None


def _when(track: MessageTrack) -> str | None:
    """When a message is tried again, or since when it is dead."""
    if track.dead_since_ms is not None:
        return f"dead since {Moment(track.dead_since_ms)}"
    if track.state != "waiting for retry":
        return None
    if track.next_ms is None:
        return "next: not known"
    return f"next at {Moment(track.next_ms)}" if track.next_ms > time.time_ns() // 1_000_000 else "next: now"


AnyId = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="The offsetMsgId of a message, or with --topic also its msgId, which producers and consumers print.",
    ),
]


def _by_any_id(admin: Admin, message_id: str, topic: str | None) -> ReceivedMessage:
    """The message with this id, whichever of the two it is. Raises `Rejected`, or `UsageError` for want of a topic."""
    if topic is not None:
        found = admin.messages_by_unique_key(topic, message_id)
        if found:
            return found[-1]
    try:
        _host, port, _ = parse_message_id(message_id)
    except ValueError as exc:
        raise UsageError(f"{message_id!r} is no message id: {exc}") from exc
    if _names_a_place(port):
        return _at_its_place(admin, message_id)
    if topic is None:
        raise UsageError(
            f"{message_id} is a msgId: its producer made it, and it does not say where the message lies. Name the "
            "topic with --topic, to look it up there; only an offsetMsgId needs none"
        )
    raise Rejected(f"no message of {topic} has the id {message_id}")


def _at_its_place(admin: Admin, offset_id: str) -> ReceivedMessage:
    """The message at the place that an offsetMsgId names. Raises `Rejected`."""
    try:
        return admin.message_by_id(offset_id)
    except Unreachable as exc:
        raise Rejected(
            f"{offset_id} names a broker that does not answer: {exc}. Where another replica has taken over, the "
            "message is found by its msgId: `ropewalk admin message show MSGID --topic TOPIC`"
        ) from exc


def _names_a_place(port: int) -> bool:
    """Return whether an id with this port names a broker: a msgId has its process and a random number there."""
    return 0 < port < 1 << 16


@command(app, "show")
def show(
    admin: Admin,
    message_id: AnyId,
    topic: TopicOption = None,
    *,
    as_json: bool,
) -> None:
    """Show a message and its outcome in each group, by its offsetMsgId, or by --topic and its msgId.

    The msgId is what `ropewalk produce`, `consume` and the official clients print. The offsetMsgId, which they give
    with --json or on request, names the broker and the place, and needs no topic.
    """
    message = _by_any_id(admin, message_id, topic)
    _show_one(message, admin.message_track(message), as_json=as_json)
    tell_skipped(admin)


@command(app, "by-id")
def by_id(
    admin: Admin,
    message_id: Annotated[
        str, typer.Argument(metavar="OFFSET-ID", help="The id that says where it lies (offsetMsgId).")
    ],
    *,
    as_json: bool,
) -> None:
    """Show the message at the place that an offset id names."""
    try:
        _host, port, _offset = parse_message_id(message_id)
        if not _names_a_place(port):
            raise ValueError(f"it would say port {port}")
    except ValueError as exc:
        raise UsageError(
            f"{message_id!r} is no id that says where a message lies ({exc}); one that a producer printed is looked up "
            f"with `ropewalk admin message by-unique-key TOPIC ID`"
        ) from exc
    _show_one(_at_its_place(admin, message_id), None, as_json=as_json)


@command(app, "by-unique-key")
def by_unique_key(
    admin: Admin,
    topic: Topic,
    message_id: Annotated[
        str, typer.Argument(metavar="ID", help="The id that its producer gave it (msgId).")
    ],
    *,
    as_json: bool,
) -> None:
    """Find a message by the id that its producer gave it; there are several if a send was repeated."""
    found = admin.messages_by_unique_key(topic, message_id)
    _show_list(found, as_json=as_json, nothing=f"no message of {topic} has the id {message_id}")
    tell_skipped(admin)
    if not found:
        raise typer.Exit(FAILED)


@command(app, "by-key")
def by_key(
    admin: Admin,
    topic: Topic,
    key: Annotated[str, typer.Argument(metavar="KEY", help="One of the keys it was sent with.")],
    count: Annotated[int, typer.Option("--max", "-m", min=1, help="At most so many, the latest ones.")] = 32,
    *,
    as_json: bool,
) -> None:
    """Find messages by one of their keys, in the order they were stored."""
    found = admin.messages_by_key(topic, key, max_count=count)
    _show_list(found, as_json=as_json, nothing=f"no message of {topic} has the key {key}")
    tell_skipped(admin)
    if not found:
        raise typer.Exit(FAILED)


@command(app, "trace")
def trace(
    admin: Admin,
    wanted: Annotated[str, typer.Argument(metavar="KEY|ID", help="A key of the message, or its msgId.")],
    trace_topic: Annotated[
        str, typer.Option("--trace-topic", help="The topic that the clients send their traces to.")
    ] = names.TRACE_TOPIC,
    count: Annotated[int, typer.Option("--max", "-m", min=1, help="At most so many trace messages.")] = 64,
    *,
    as_json: bool,
) -> None:
    """Draw the life of a message from its clients' traces: sent, stored, delivered to whom, how often, how long.

    Clients have to be told to trace (trace=True in Python, enableMsgTrace in RocketMQ's clients), and brokers to keep
    it (traceTopicEnable). A message found by its key leads to the traces of its msgId.
    """
    found = traced(admin, trace_topic, wanted, count)
    steps = life_of(wanted, found)
    for message_id in dict.fromkeys(step.message_id for step in steps):
        if message_id != wanted:  # consumers may trace a message under its id alone
            found += traced(admin, trace_topic, message_id, count)
    steps = life_of(wanted, found)
    rows = [
        (
            Moment(step.time_ms), step.event, step.group, step.topic or None, step.host or None,
            step.attempt, None if step.cost_ms is None else f"{step.cost_ms} ms", step.outcome, step.message_id,
        )
        for step in steps
    ]  # fmt: skip
    Sheet(_TRACE_COLUMNS, rows).show(as_json=as_json, nothing=f"no trace of {wanted} in {trace_topic}")
    tell_skipped(admin)
    if not steps:
        raise typer.Exit(FAILED)


def traced(admin: Admin, trace_topic: str, key: str, count: int) -> list[TraceRecord]:
    """Return the trace records of messages that a key or id leads to."""
    messages = admin.messages_by_key(trace_topic, key, max_count=count)
    return [record for message in messages for record in decode_trace(decompress_body(*message.wire_body)[0])]


@command(app, "by-offset")
def by_offset(
    admin: Admin,
    topic: Topic,
    queue: Annotated[int, typer.Argument(min=0, metavar="QUEUE")],
    offset: Annotated[int, typer.Argument(min=0, metavar="OFFSET")],
    broker: BrokerNameOption = None,
    *,
    as_json: bool,
) -> None:
    """Show the message at an offset of a queue, and its outcome in each group."""
    chosen = choose_queue(admin.topic_route(topic).read_queues(), topic, queue, broker)
    message = admin.message_at(topic, chosen, offset)
    if message is None:
        raise Rejected(f"{chosen.broker_name} queue {queue} of {topic} has no message at offset {offset}")
    _show_one(message, admin.message_track(message), as_json=as_json)


@command(app, "by-time")
def by_time(
    admin: Admin,
    topic: Topic,
    begin: Annotated[
        str,
        typer.Option("--from", metavar="TIME", help="As in 2026-01-31T12:00:00, or milliseconds since 1970."),
    ],
    end: Annotated[str | None, typer.Option("--to", metavar="TIME", help="Without it: until now.")] = None,
    count: Annotated[int, typer.Option("--max", "-m", min=1, help="At most so many, the first ones.")] = 64,
    *,
    as_json: bool,
) -> None:
    """List the messages that were stored in a span of time, oldest first."""
    begin_ms = parse_moment(begin, "--from")
    end_ms = parse_moment(end, "--to") if end is not None else time.time_ns() // 1_000_000
    if end_ms < begin_ms:
        raise UsageError("--to is before --from")
    found = admin.messages_by_time(topic, begin_ms, end_ms, max_count=count)
    _show_list(found, as_json=as_json, nothing=f"nothing was stored in {topic} in that time")
    if not as_json and len(found) == count:
        note(f"the first {counted(count)}; there may be more (--max)")


@app.command("send")
def send(
    topic: Topic,
    body: Annotated[str, typer.Argument(metavar="BODY")],
    keys: Annotated[
        str | None, typer.Option("--keys", "-k", help="Keys to find it by, separated by blanks.")
    ] = None,
    tags: Annotated[str | None, typer.Option("--tags", help="A tag that consumers can filter by.")] = None,
    properties: Annotated[
        list[str] | None,
        typer.Option("--property", "-p", metavar="NAME=VALUE", help="A property; may be repeated."),
    ] = None,
    message_group: Annotated[
        str | None, typer.Option("--message-group", help="Messages of one message group stay in order.")
    ] = None,
    delay: Annotated[
        str | None,
        typer.Option(
            "--delay", metavar="LEVEL|TIME", help="A time, as in 10s, 90s, 2d, or a level (1 to 18)."
        ),
    ] = None,
    queue: Annotated[int | None, typer.Option("--queue", "-q", min=0, help="To this queue.")] = None,
    broker: BrokerNameOption = None,
    name_server: NameServers = DEFAULT_NAME_SERVER,
    timeout: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Send one message and show where it lies. For many, there is `ropewalk produce`."""
    with administrator(name_server, timeout, as_json=as_json) as admin:
        tables = tables_of(
            name_server, timeout, lambda: [one.broker_name for one in admin.masters(broker=broker)]
        )
        stamp = Stamp(
            keys,
            tags,
            check_properties(parse_pairs(properties or (), "--property")),
            group=message_group,
            later=parse_delay(delay, tables) if delay is not None else {},
        )
        message: Message = stamp.message(body.encode())
        with Producer(name_server, timeout=timeout) as producer:
            chosen: Queue | None = None
            if queue is not None or broker is not None:
                queues = tuple(one for one in producer.queues(topic) if broker in (None, one.broker_name))
                if not queues:
                    raise UsageError(f"topic {topic} has no queue at broker {broker} that can be written to")
                chosen = choose_queue(queues, topic, queue, broker) if queue is not None else queues[0]
            result = producer.send(topic, message, queue=chosen)
        show_facts(
            {
                "status": result.status.name,
                "broker": result.queue.broker_name,
                "queueId": result.queue.queue_id,
                "queueOffset": result.queue_offset,
                "msgId": result.message_id,
                "offsetMsgId": result.offset_message_ids[0],
            },
            as_json=as_json,
        )
        if result.status is not SendStatus.SEND_OK:
            raise typer.Exit(FAILED)


@command(app, "consume-directly")
def consume_directly(
    admin: Admin,
    message_id: AnyId,
    group: Group,
    topic: TopicOption = None,
    client: Annotated[
        str | None, typer.Option("--client", help="Which member; without it, the group's only one.")
    ] = None,
    yes: Yes = False,
    *,
    as_json: bool,
) -> None:
    """Have one running member of a group consume one message now, also again. Asks first.

    The group's progress does not move. Exit code 0 says that the member was content with the message.
    """
    message = _by_any_id(admin, message_id, topic)
    online = admin.consumers(group)
    if online is None:
        raise Rejected(f"nobody of group {group} is online; start one of its consumers first")
    names = [one.client_id for one in online.clients]
    if client is None and len(names) > 1:
        raise UsageError(f"group {group} has several members: choose one with --client ({', '.join(names)})")
    chosen = client or names[0]
    if chosen not in names:
        raise UsageError(f"group {group} has no member {chosen}; it has {', '.join(names)}")
    confirm(f"Have {chosen} consume this message of {message.source.topic} now?", yes=yes)
    result = admin.consume_directly(group, chosen, message)
    show_facts(
        {
            "result": result.result,
            "spentMs": result.spent_ms,
            "order": result.order,
            "remark": result.remark,
            "client": chosen,
        },
        as_json=as_json,
    )
    if result.result not in ("CR_SUCCESS", "CR_COMMIT"):
        raise typer.Exit(FAILED)
