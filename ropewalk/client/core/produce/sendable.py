"""Messages as callers hand them over: the checks before anything leaves, and batches of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from ropewalk.client.core.messages import Message, check_properties
from ropewalk.client.core.options import check_hook, check_kind, check_timeout
from ropewalk.client.core.routes import Queue
from ropewalk.errors import LocalProtocolError
from ropewalk.format.names import check_topic

BODY_SIZE_MAX = 4 * 1024 * 1024
"""Bytes a broker takes by default, for a batch as for a message."""
MESSAGE_OVERHEAD = 128
"""Bytes a message costs in a batch beside its body, roughly: lengths and properties."""
_check_topic = lru_cache(maxsize=1_000)(check_topic)


def check_call(topic: object, queue: object, selector: object, timeout: object) -> None:
    """Check the options of a send. Raises `TypeError` and `ValueError`, which say what is right."""
    check_kind("the topic", topic, str, "text")
    if queue is not None:
        check_kind("queue", queue, Queue, "one of `producer.queues(topic)`")
        if selector is not None:
            raise ValueError("a send has a queue or a selector, not both")
    check_hook("selector", selector, "queues")
    check_timeout(timeout)


def as_message(message: Message | bytes) -> Message:
    """Return a message; plain bytes become one without anything else."""
    return message if isinstance(message, Message) else Message(message)


def as_messages(messages: Iterable[Message | bytes]) -> list[Message]:
    """Return the messages of a batch. Raises `TypeError` for a single one."""
    if isinstance(messages, bytes | str | Message):
        raise TypeError("a batch is several messages, as in [b'one', b'two']")
    return [as_message(message) for message in messages]


def check_sendable(topic: str, messages: Sequence[Message]) -> None:
    """Refuse messages that no broker would take. Raises `LocalProtocolError`, before anything leaves."""
    check_kind("the topic", topic, str, "text")
    reason = _check_topic(topic)
    if reason is not None:
        raise LocalProtocolError(reason)
    for message in messages:
        check_properties(message)
    if len(messages) == 1 and 0 < len(messages[0].body) <= BODY_SIZE_MAX:
        return
    if not messages:
        raise LocalProtocolError("nothing to send")
    sizes = [len(message.body) for message in messages]  # no generators: every message comes by here
    if not all(sizes):
        raise LocalProtocolError("the body is empty, and RocketMQ has no empty messages")
    if (size := sum(sizes)) > BODY_SIZE_MAX:
        raise LocalProtocolError(f"{size} bytes to send; brokers take {BODY_SIZE_MAX}")
    if len(messages) > 1:
        if not all(message.can_be_batched for message in messages):
            raise LocalProtocolError("a delayed message cannot be part of a batch")
        if len({message.group for message in messages}) > 1:
            raise LocalProtocolError("the messages of a batch lie in one queue, so they have one group")


def batch_key(topic: str, message: Message) -> tuple[tuple[str, str | None], bool, bool]:
    """Return a message's batch key, whether its order matters, and whether it is sent alone."""
    return (topic, message.group), message.group is not None, not message.can_be_batched
