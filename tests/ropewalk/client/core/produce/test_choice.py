import pytest

from ropewalk.client.core.produce.choice import LatencyFaults, RoundRobin, queue_of_group
from ropewalk.client.core.routes import Queue

A0, A1, B0, B1 = Queue("a", 0), Queue("a", 1), Queue("b", 0), Queue("b", 1)
QUEUES = (A0, A1, B0, B1)


def test_queues_take_turns_by_topic() -> None:
    turns = RoundRobin()
    faults = LatencyFaults()
    assert [turns.next("T", QUEUES, faults, 0.0) for _ in range(5)] == [A0, A1, B0, B1, A0]
    assert turns.next("U", QUEUES, faults, 0.0) == A0


def test_a_second_attempt_goes_to_another_broker_if_there_is_one() -> None:
    turns = RoundRobin()
    assert turns.next("T", QUEUES, LatencyFaults(), 0.0, avoid={"a"}) == B0
    assert turns.next("T", (A0, A1), LatencyFaults(), 0.0, avoid={"a"}) in (A0, A1)


@pytest.mark.parametrize(
    ("latency_ms", "left_alone_s"), [(99, 0), (549, 0), (550, 2), (1800, 5), (20_000, 30)]
)
def test_a_slow_broker_is_left_alone_by_its_class(latency_ms: float, left_alone_s: float) -> None:
    faults = LatencyFaults()
    faults.answered("a", latency_ms, 100.0)
    assert faults.is_available("a", 100.0 + left_alone_s)
    assert faults.is_available("a", 100.0) is (left_alone_s == 0)
    assert left_alone_s == 0 or not faults.is_available("a", 100.0 + left_alone_s - 0.01)


def test_a_failed_broker_is_left_alone_until_it_is_the_only_one() -> None:
    faults = LatencyFaults()
    faults.failed("a", 0.0)
    turns = RoundRobin()
    assert [turns.next("T", QUEUES, faults, 1.0) for _ in range(3)] == [B0, B1, B0]
    assert turns.next("T", (A0,), faults, 1.0) == A0


def test_switched_off_nobody_is_left_alone() -> None:
    faults = LatencyFaults(enabled=False)
    faults.failed("a", 0.0)
    assert faults.is_available("a", 0.0)


def test_a_group_always_gets_the_queue_that_java_would_give_it() -> None:
    # "order-paid".hashCode() is 710106603, "TagA".hashCode() is 2598919.
    assert queue_of_group("order-paid", QUEUES) == QUEUES[710106603 % 4]
    assert queue_of_group("TagA", QUEUES) == QUEUES[2598919 % 4]
    # "tenant-b".hashCode() is -1306694657, and Java's remainder is that of its absolute value.
    assert queue_of_group("tenant-b", QUEUES) == QUEUES[1306694657 % 4] != QUEUES[-1306694657 % 4]
