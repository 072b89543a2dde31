"""The queues that a send may go to: those of the route, and the one that a caller names or selects. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ropewalk.client.core.connection import NoMaster
from ropewalk.client.core.options import check_kind
from ropewalk.client.core.routes import Queue, TopicRoute
from ropewalk.codes import ResponseCode
from ropewalk.errors import LocalProtocolError, error_for

QueueSelector = Callable[[Sequence[Queue]], Queue]
"""Picks one of a topic's queues, which come in the same order every time."""


class NoSuchQueue(LocalProtocolError):
    """A topic has no queue of the number that a send was to go to."""


def write_queues(topic: str, route: TopicRoute) -> tuple[Queue, ...]:
    """Return the queues that a route offers to producers.

    Raises `Unreachable` if there would be some with a master, as while a group elects one.
    """
    queues = route.write_queues()
    if not queues and (names := route.brokers_without_master()):
        raise NoMaster(f"topic {topic}: broker {', '.join(names)} has no master at the moment", names)
    return queues


def writable_queues(topic: str, route: TopicRoute) -> tuple[Queue, ...]:
    """Return the queues that can be written to now. Raises `Unreachable` as `write_queues`, and `Refused` for none."""
    queues = write_queues(topic, route)
    if not queues:
        raise error_for(ResponseCode.NO_PERMISSION, f"topic {topic} has no queue that can be written to")
    return queues


def existing_queue(topic: str, route: TopicRoute, queue: object) -> Queue:
    """Return a queue that was given or selected. Raises `NoSuchQueue` if its broker has the topic without it."""
    check_kind("a selected queue", queue, Queue, "one of those that the selector was given")
    assert isinstance(queue, Queue)
    if queue in route.write_queues():
        return queue
    for data in route.queues:
        if data.broker_name == queue.broker_name and not 0 <= queue.queue_id < data.write_queue_count:
            there = (
                f"queues 0 to {data.write_queue_count - 1}" if data.write_queue_count else "none to write to"
            )
            raise NoSuchQueue(
                f"topic {topic} has no queue {queue.queue_id} at {queue.broker_name}: it has {there}"
            )
    return queue  # of a broker that is away at the moment, perhaps


def at_broker(broker_name: str) -> QueueSelector:
    """Return a selector that prefers the queues of one broker."""

    def select(queues: Sequence[Queue]) -> Queue:
        return next((queue for queue in queues if queue.broker_name == broker_name), queues[0])

    return select
