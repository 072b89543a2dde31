"""What became of a message that its group could not handle: it waits, it was handled at last, or it is dead."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from ropewalk import Message, PushConsumer
from ropewalk.client.admin.retries import Retries, delays_of, judge
from ropewalk.client.blocking.admin import Admin
from ropewalk.client.core.consume.received import ReceivedMessage, TopicQueue
from ropewalk.client.core.routes import Queue
from ropewalk.testing import RopewalkBroker


@pytest.fixture
def admin(ropewalk_broker: RopewalkBroker) -> Iterator[Admin]:
    with Admin(ropewalk_broker.namesrv) as found:
        yield found


RETRY = TopicQueue("%RETRY%g", Queue("a", 0))


def copy(failures: int, at_ms: int, offset: int = 0, delay: str = "") -> ReceivedMessage:
    return ReceivedMessage(
        topic="t",
        source=RETRY, body=b"", keys=(), tags=None, properties={"DELAY": delay}, queue_offset=offset,
        log_offset=0, born_timestamp_ms=0, store_timestamp_ms=at_ms, reconsume_times=failures, message_id="",
        offset_message_id="",
    )  # fmt: skip


def test_the_copy_with_the_most_failures_tells_how_a_message_stands() -> None:
    delays = delays_of("1s 5s 2m")
    assert delays == (1_000, 5_000, 120_000)
    assert judge([], [], [], {}, delays) is None
    first = copy(1, 100, delay="3")
    assert judge([first], [], [], {}, delays) == Retries(1, 120_100, waits=True)
    assert judge([first], [], [], {}, ()) == Retries(1, None, waits=True), "a broker that tells no delays"
    there = copy(1, 120_100, offset=4)
    assert judge([first], [there], [], {RETRY: 4}, delays) == Retries(1, 120_100, waits=True)
    assert judge([first], [there], [], {RETRY: 5}, delays) == Retries(1), "handled at the second try"
    second = copy(2, 130_000, delay="9")
    assert judge([first, second], [there], [], {RETRY: 5}, delays) == Retries(2, None, waits=True)
    dead = copy(3, 140_000)
    assert judge([first, second], [there], [dead], {RETRY: 5}, delays) == Retries(3, dead_since_ms=140_000)


def test_a_delay_table_that_cannot_be_read_is_none() -> None:
    assert delays_of("1s soon") == () and delays_of("") == ()


def test_a_message_that_fails_is_waiting_and_then_dead_and_no_longer_consumed(
    admin: Admin, ropewalk_broker: RopewalkBroker
) -> None:
    topic, group = ropewalk_broker.topic(queues=1), ropewalk_broker.group()
    admin.create_group(group)
    handled: list[int] = []

    def handle(message: ReceivedMessage) -> None:
        handled.append(message.reconsume_times)
        raise ValueError("poison")

    began_ms = time.time_ns() // 1_000_000
    with PushConsumer(
        group, {topic: "*"}, handle, ropewalk_broker.namesrv, consume_from="first", on_error=lambda *_: None,
        max_retries=1, commit_interval=0.1,
    ):  # fmt: skip
        ropewalk_broker.send(topic, Message(b"poison"))
        ropewalk_broker.wait_until(lambda: ropewalk_broker.committed(group, topic) == 1)
        (message,) = admin.messages_by_time(topic, 0, 2**62)
        (track,) = admin.message_track(message)
        assert (track.state, track.failures, track.dead_since_ms) == ("waiting for retry", 1, None)
        assert track.next_ms is not None and 9_000 <= track.next_ms - began_ms <= 30_000, "level 3 is 10 s"
        assert admin.delayed_retries(group) == (1, True)
        assert group not in admin.dead_letters()


def test_a_dead_letter_says_since_when_and_its_group_counts_it(
    admin: Admin, ropewalk_broker: RopewalkBroker
) -> None:
    topic, group = ropewalk_broker.topic(queues=1), ropewalk_broker.group()
    admin.create_group(group)

    def handle(message: ReceivedMessage) -> None:
        raise ValueError("poison")

    began_ms = time.time_ns() // 1_000_000
    with PushConsumer(
        group, {topic: "*"}, handle, ropewalk_broker.namesrv, consume_from="first", on_error=lambda *_: None,
        max_retries=0,
    ):  # fmt: skip
        ropewalk_broker.send(topic, Message(b"poison"))
        ropewalk_broker.wait_until(lambda: admin.dead_letters().get(group) == 1)
        (message,) = admin.messages_by_time(topic, 0, 2**62)
        (track,) = admin.message_track(message)
        assert (track.state, track.failures, track.next_ms) == ("dead letter", 1, None)
        assert track.dead_since_ms is not None and track.dead_since_ms >= began_ms
        assert admin.delayed_retries(group) == (0, True)
