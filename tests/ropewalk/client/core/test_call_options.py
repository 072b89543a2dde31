"""Options of calls are checked before anything leaves, as those of constructors are."""

import inspect
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest

from ropewalk import (
    Admin,
    AsyncAdmin,
    AsyncProducer,
    AsyncPullConsumer,
    Message,
    Producer,
    PullConsumer,
    Queue,
    RetryLater,
    TopicQueue,
)
from ropewalk.client.core.consume.pulling import PullCore
from ropewalk.client.core.messages import copied_tags, message_properties
from ropewalk.client.machine import new_pull_core
from ropewalk.format.properties import P, parse_properties

NOWHERE = "127.0.0.1:1"
"""A name server that nobody is: what reaches it has passed every check."""
HERE = TopicQueue("T", Queue("a", 0))

SENDS: list[tuple[dict[str, Any], str]] = [
    ({"topic": 5}, "the topic is text, and not 5"),
    ({"topic": None}, "the topic is text, and not None"),
    ({"timeout": "5"}, "timeout is a number of seconds, and not '5'"),
    ({"timeout": True}, "timeout is a number of seconds, and not True"),
    ({"timeout": -5}, "timeout must be more than 0 and finite, and is -5"),
    ({"timeout": 0}, "timeout must be more than 0"),
    ({"timeout": math.inf}, "timeout must be more than 0 and finite, and is inf"),
    ({"timeout": math.nan}, "timeout must be more than 0"),
    ({"queue": 99}, r"queue is one of `producer.queues\(topic\)`, and not 99"),
    ({"queue": HERE}, "queue is one of"),
    ({"selector": 3}, "selector is a function, and not 3"),
    ({"queue": Queue("a", 0), "selector": max}, "a queue or a selector, not both"),
]
CALLS: dict[str, tuple[str, ...]] = {
    "send": ("topic", "timeout", "queue", "selector"),
    "request": ("topic", "timeout", "queue", "selector"),
    "send_oneway": ("topic", "queue", "selector"),
}


@pytest.mark.parametrize("kind", [Producer, AsyncProducer])
@pytest.mark.parametrize("name", CALLS)
def test_what_is_wrong_with_a_send_is_told_before_anything_leaves(kind: Any, name: str) -> None:
    async def hold(method: Any, topic: Any, options: dict[str, Any]) -> None:
        outcome = method(topic, b"x", **options)
        if inspect.isawaitable(outcome):
            await outcome

    async def story() -> None:
        producer = kind(NOWHERE, timeout=0.1)
        if kind is AsyncProducer:
            await producer.start()
        for options, said in SENDS:
            if not set(options) <= set(CALLS[name]):
                continue
            rest = dict(options)
            with pytest.raises((TypeError, ValueError), match=said):
                await hold(getattr(producer, name), rest.pop("topic", "T"), rest)
        assert producer.counts.submitted == 0
        closed = producer.close()
        if inspect.isawaitable(closed):
            await closed

    anyio.run(story)


@pytest.mark.parametrize("batch", [b"one", Message(b"one")])
def test_a_batch_is_several_messages(batch: Any) -> None:
    with Producer(NOWHERE) as producer, pytest.raises(TypeError, match="a batch is several messages"):
        producer.send_batch("T", batch)


def test_other_calls_of_a_producer_are_checked_too() -> None:
    with Producer(NOWHERE, timeout=0.1) as producer:
        with pytest.raises(TypeError, match="the topic is text"):
            producer.send_async(5, b"x")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="timeout is a number"):
            producer.flush("5")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="timeout must be at least 0"):
            producer.flush(-1)
        assert producer.flush(0) and producer.flush(math.inf)
        with pytest.raises(TypeError, match="the recall handle is text"):
            producer.recall(7)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="timeout must be more than 0"):
            producer.recall("x", timeout=-1)
        with pytest.raises(TypeError, match="a reply is to a message that was received"):
            producer.reply(Message(b"x"), b"y")  # type: ignore[arg-type]
        assert producer.counts.submitted == 0


def pull_core() -> PullCore:
    core = new_pull_core("g", {"T": "*"}, NOWHERE, "latest", lambda skipped: None)
    core.assign([HERE])
    return core


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda core: core.poll("3", 1.0), "max_count is a whole number, and not '3'"),
        (lambda core: core.poll(0, 1.0), "max_count must be at least 1, and is 0"),
        (lambda core: core.poll(1, "1"), "timeout is a number of seconds"),
        (lambda core: core.poll(1, -1), "timeout must be at least 0, and is -1"),
        (lambda core: core.poll(1, math.nan), "timeout must be at least 0"),
        (lambda core: core.seek(HERE, -1), "offset must be at least 0, and is -1"),
        (lambda core: core.seek(HERE, "5"), "offset is a whole number"),
        (lambda core: core.seek(HERE.queue, 5), "a queue is one of those that `assign_topics` returns"),
        (lambda core: core.position(3), "a queue is one of those"),
        (lambda core: core.assign(HERE), "queues are several"),
        (lambda core: core.assign([HERE.queue]), "a queue is one of those"),
        (lambda core: core.seek_to_time("now"), "the time to seek is a datetime or milliseconds"),
        (lambda core: core.seek_to_time(1_700_000_000), "these may be seconds"),
    ],
)
def test_calls_of_a_pull_consumer_are_checked(call: Callable[[PullCore], Any], said: str) -> None:
    core = pull_core()
    with pytest.raises((TypeError, ValueError), match=said):
        call(core)
    assert core.assignment == (HERE,)


def test_both_pull_consumers_take_a_datetime_to_seek() -> None:
    moment = datetime(2026, 1, 31, tzinfo=UTC)
    for kind in (PullConsumer, AsyncPullConsumer):
        seeks = inspect.signature(kind.seek_to_time).parameters
        assert list(seeks) == ["self", "moment"]
    with PullConsumer("g", {"T": "*"}, NOWHERE) as consumer:
        consumer.assign([])
        consumer.seek_to_time(moment)


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda admin: admin.create_topic("T", queues="4"), "queues is a whole number, and not '4'"),
        (lambda admin: admin.create_topic("T", queues=True), "queues is a whole number, and not True"),
        (lambda admin: admin.create_topic(4), "topic is text, and not 4"),
        (lambda admin: admin.update_topic("T", order="yes"), "order is True or False or None, and not 'yes'"),
        (lambda admin: admin.progress(["g"]), r"group is text, and not \['g'\]"),
        (lambda admin: admin.topics(clusters="c"), "unexpected keyword argument 'clusters'"),
    ],
)
def test_calls_of_an_administrator_are_checked(call: Callable[[Any], Any], said: str) -> None:
    with Admin(NOWHERE) as admin, pytest.raises(TypeError, match=said):
        call(admin)

    async def story() -> None:
        with pytest.raises(TypeError, match=said):
            await call(AsyncAdmin(NOWHERE))

    anyio.run(story)


def test_a_delay_level_of_retry_later_is_checked() -> None:
    with pytest.raises(TypeError, match="delay_level is a whole number"):
        RetryLater("3")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="delay_level must be at least -1"):
        RetryLater(-2)


@pytest.mark.parametrize(
    "fields, said",
    [
        ({"deliver_at": 1_700_000_000}, "these may be seconds"),
        ({"deliver_at": -5}, "long ago"),
        ({"deliver_at": 2**63}, "too far ahead"),
        ({"deliver_at": datetime(2026, 1, 31)}, "no time zone"),
        ({"deliver_at": True}, "a datetime or milliseconds"),
        ({"delay": 5}, "delay is a timedelta"),
        ({"delay": timedelta(seconds=-1)}, "lies in the past"),
        ({"delay_level": 2**31}, "32 bits"),
        ({"delay_level": True}, "whole numbers"),
        ({"flag": 2**40}, "32 bits"),
        ({"tags": "paid||refunded"}, "a message has one tag, without ||"),
        ({"tags": " paid"}, "without blanks around it"),
    ],
)
def test_what_a_message_cannot_have_is_told_when_it_is_made(fields: dict[str, Any], said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        Message(b"x", **fields)


@pytest.mark.parametrize("tags", [None, "", "paid", "a||b", " a "])
def test_a_copy_has_the_tags_that_another_client_gave(tags: str | None) -> None:
    own, properties = copied_tags(tags)
    message = Message(b"x", tags=own, properties=properties)
    found = parse_properties(message_properties(message, "k").decode())
    assert found.get(P.TAGS) == (tags or None)
