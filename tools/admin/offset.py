"""`ropewalk admin offset …`: single offsets, for those who know which one they mean."""

from __future__ import annotations

from typing import Annotated

import typer

from ropewalk.client.blocking.admin import Admin
from ropewalk.client.core.consume.received import TopicQueue
from ropewalk.client.core.routes import Queue
from ropewalk.errors import Rejected
from tools.admin.base import (
    BrokerNameOption,
    Group,
    Moment,
    Sheet,
    Topic,
    Yes,
    command,
    confirm,
    tell_skipped,
)
from tools.common.output import UsageError, note
from tools.messages.consume import parse_moment

app = typer.Typer(
    name="offset",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Offsets, queue by queue: look, search by time, set.",
)


def choose_queue(queues: tuple[Queue, ...], topic: str, queue_id: int, broker: str | None) -> Queue:
    """The one queue of this number. Raises `UsageError` when there is none, or several brokers have one."""
    found = [queue for queue in queues if queue.queue_id == queue_id and broker in (None, queue.broker_name)]
    if not found:
        raise UsageError(f"topic {topic} has no such queue; `ropewalk admin topic show {topic}` shows them")
    if len(found) > 1:
        names = ", ".join(sorted(queue.broker_name for queue in found))
        raise UsageError(
            f"several brokers have queue {queue_id} of {topic}: choose one with --broker ({names})"
        )
    return found[0]


@command(app, "show")
def show(
    admin: Admin,
    group: Group,
    topic: Topic,
    *,
    as_json: bool,
) -> None:
    """Show the committed offsets of a group in each queue of a topic, beside the queue's own offsets."""
    columns = (
        ("broker", "broker"),
        ("queue", "queueId"),
        ("from", "minOffset"),
        ("to", "maxOffset"),
        ("committed", "committed"),
        ("last stored", "lastUpdated"),
    )
    rows = [
        (
            one.queue.broker_name,
            one.queue.queue_id,
            one.min_offset,
            one.max_offset,
            admin.committed_offset(group, TopicQueue(topic, one.queue)),
            Moment(one.last_update_ms),
        )
        for one in admin.topic_status(topic).queues
    ]
    Sheet(columns, rows).show(as_json=as_json, nothing=f"{topic} has no queues")
    tell_skipped(admin)
    if not as_json and all(row[4] is None for row in rows):
        note(f"{group} has committed nothing in {topic}")


@command(app, "search")
def search(
    admin: Admin,
    topic: Topic,
    moment: Annotated[
        str,
        typer.Argument(
            metavar="TIME",
            help="As in 2026-01-31T12:00:00, local unless it names a zone; or milliseconds since 1970.",
        ),
    ],
    *,
    as_json: bool,
) -> None:
    """Find the first message stored at or after a time, in every queue of a topic."""
    found = admin.search_offsets(topic, parse_moment(moment, "TIME"))
    rows = [(queue.broker_name, queue.queue_id, offset) for queue, offset in found.items()]
    columns = (("broker", "broker"), ("queue", "queueId"), ("offset", "offset"))
    Sheet(columns, rows).show(as_json=as_json, nothing=f"{topic} has no queues")


@command(app, "set")
def set_offset(
    admin: Admin,
    group: Group,
    topic: Topic,
    queue: Annotated[int, typer.Argument(min=0, metavar="QUEUE")],
    offset: Annotated[int, typer.Argument(min=0, metavar="OFFSET", help="The next message it shall get.")],
    broker: BrokerNameOption = None,
    yes: Yes = False,
    *,
    as_json: bool,
) -> None:
    """Commit an offset in a group's name, as its members do. Asks first while they are running.

    A running member does not hear of it and commits its own place over it: for a running group use
    `ropewalk admin group reset`, which tells it.
    """
    chosen = choose_queue(admin.topic_route(topic).read_queues(), topic, queue, broker)
    source = TopicQueue(topic, chosen)
    before = admin.committed_offset(group, source)
    if admin.consumers(group) is not None:
        confirm(f"Group {group} is running and will commit its own place over it. Go on?", yes=yes)
    admin.commit_offset(group, source, offset)
    after = admin.committed_offset(group, source)
    if after != offset:
        # A broker takes nothing but a pull as the end of a reset, so that no member commits its old place over it.
        raise Rejected(
            f"the broker keeps {after}: the group was reset, and nobody has pulled since; send it on with "
            f"`ropewalk admin group reset {group} {topic} --to offset:{offset} --queue {queue}`"
        )
    columns = (("broker", "broker"), ("queue", "queueId"), ("was", "before"), ("is", "offset"))
    rows = [(chosen.broker_name, chosen.queue_id, before, after)]
    Sheet(columns, rows).show(as_json=as_json, nothing="")
