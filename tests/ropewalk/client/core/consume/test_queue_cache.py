import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.client.core.consume.queue_cache import QueueCache
from ropewalk.client.core.consume.received import ReceivedMessage, TopicQueue
from ropewalk.client.core.routes import Queue
from ropewalk.errors import RemoteProtocolError

SOURCE = TopicQueue("T", Queue("b", 0))


def message(offset: int, size: int = 1) -> ReceivedMessage:
    return ReceivedMessage(
        "T", bytes(size), [], None, {}, f"m{offset}", 0, 0, 0, SOURCE, offset, offset * 100, ""
    )


def cache(
    next_offset: int = 0, *, count_max: int = 100, size_max: int = 1000, span_max: int = 50
) -> QueueCache:
    return QueueCache(next_offset, count_max=count_max, size_max=size_max, span_max=span_max)


def full(it: QueueCache) -> bool:
    return it.is_full


def test_only_what_every_earlier_message_is_finished_of_may_be_committed() -> None:
    it = cache(10)
    messages = [message(offset) for offset in range(10, 15)]
    it.add(messages, 15)
    for place, committable in ((2, 10), (0, 11), (3, 11), (1, 14), (4, 15)):
        it.finish(messages[place])
        assert it.committable == committable
    assert it.count == it.size == 0


def test_what_nobody_wanted_is_progress_too() -> None:
    it = cache()
    it.add([message(3)], 8)
    assert it.committable == 3
    it.finish(message(3))
    assert it.committable == 8
    it.add([], 20)
    assert it.committable == 20


def test_it_is_full_by_count_by_bytes_and_by_span() -> None:
    by_count = cache(count_max=2)
    by_count.add([message(0)], 1)
    assert not full(by_count)
    by_count.add([message(1)], 2)
    assert full(by_count)
    by_count.finish(message(0))
    assert not full(by_count)
    by_size = cache(size_max=10)
    by_size.add([message(0, 10)], 1)
    assert by_size.is_full
    by_span = cache(span_max=10)
    by_span.add([message(0)], 11)
    assert by_span.is_full


@given(st.integers(1, 30), st.randoms(use_true_random=False))
def test_progress_never_goes_back_and_never_passes_an_unfinished_message(
    count: int, chance: random.Random
) -> None:
    it = cache(5)
    waiting: list[ReceivedMessage] = []
    offset, before = 5, 5
    for _ in range(count):
        if waiting and chance.random() < 0.5:
            it.finish(waiting.pop(chance.randrange(len(waiting))))
        else:
            added = [message(offset + step) for step in range(chance.randrange(4))]
            offset += len(added) + chance.randrange(3)
            it.add(added, offset)
            waiting += added
        assert before <= it.committable
        assert it.committable == min((one.queue_offset for one in waiting), default=offset)
        assert it.count == len(waiting) and it.size == sum(len(one.body) for one in waiting)
        before = it.committable


def test_a_message_that_comes_again_while_it_is_handled_is_the_brokers_fault() -> None:
    it = cache()
    it.add([message(3)], 4)
    with pytest.raises(RemoteProtocolError, match="message 3 came again"):
        it.add([message(3)], 4)
    assert it.count == 1
