"""An exception from elsewhere in the middle of a call (a signal handler's, say) leaves a client that works."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from ropewalk import Message, Producer, PullConsumer
from ropewalk.client.blocking import connection
from tests.ropewalk.client.fake_cluster import FakeCluster

WHILE = {"call", "start", "wait", "receive", "poll_answer", "_write", "_write_whole", "_read", "_read_once"}
"""The functions of a connection in whose lines an exception arrives."""


class Alarm(BaseException):
    """The exception of a signal handler."""


class Interruption:
    """Raises an exception at the n-th line of a connection's work, as a handler of a signal would."""

    def __init__(self, at: int, kind: type[BaseException]) -> None:
        self._left = at
        self._kind = kind

    @property
    def happened(self) -> bool:
        return self._left <= 0

    def trace(self, frame: FrameType, event: str, _argument: Any) -> Any:
        if frame.f_code.co_filename != connection.__file__ or frame.f_code.co_name not in WHILE:
            return None
        if event == "line":
            self._left -= 1
            if self._left == 0:
                raise self._kind("now")
        return self.trace


@contextmanager
def interrupted(at: int, kind: type[BaseException]) -> Iterator[Interruption]:
    interruption = Interruption(at, kind)
    before = sys.gettrace()
    sys.settrace(interruption.trace)
    try:
        yield interruption
    except kind:
        pass
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("kind", [Alarm, ValueError])
def test_a_send_that_is_interrupted_at_any_line_leaves_a_producer_that_works(
    cluster: FakeCluster, kind: type[BaseException]
) -> None:
    large = os.urandom(4_000_000)  # leaves in several pieces
    at, happened = 0, True
    while happened:
        at += 1 if at < 50 else 13
        assert at < 5000, "the call has no end"
        with Producer(cluster.address, retries=0) as producer:
            producer.send("T", Message(b"opens connections"))
            with interrupted(at, kind) as interruption:
                producer.send("T", Message(large))
            happened = interruption.happened
            for number in range(2):
                body = b"%s %d %d" % (kind.__name__.encode(), at, number)
                sent = producer.send("T", Message(body), timeout=5)
                stored = cluster.topics["T"][sent.queue.queue_id].records[sent.queue_offset]
                assert body in stored, "the answer was another request's"
    assert at > 10


def test_a_poll_that_is_interrupted_at_any_line_has_taken_nothing(cluster: FakeCluster) -> None:
    bodies = [b"%d" % number for number in range(12)]
    with Producer(cluster.address) as producer:
        for body in bodies:
            producer.send("T", Message(body))
    at, happened = 0, True
    while happened:
        at += 1
        assert at < 2000, "the call has no end"
        got: list[bytes] = []
        with PullConsumer(f"g{at}", {"T": "*"}, cluster.address, consume_from="earliest") as consumer:
            got += [message.body for message in consumer.poll(4)]
            with interrupted(at, Alarm) as interruption:
                got += [message.body for message in consumer.poll(4)]
            happened = interruption.happened
            while len(got) < len(bodies):
                more = [message.body for message in consumer.poll(4)]
                assert more, f"lost: {set(bodies) - set(got)}"
                got += more
        assert sorted(got) == sorted(bodies)
    assert at > 10
