"""Reading a range: whatever a broker's caps, order of answers and mishaps are, each offset comes once and in order."""

import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.client.blocking.bulk import Chunk, RangeLost, RangeReader, read_range
from ropewalk.client.blocking.connection import Connection
from ropewalk.client.core.connection import Unreachable
from ropewalk.client.core.messages import Message
from ropewalk.client.core.routes import Queue
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import OutcomeUnknown, Rejected, RemoteProtocolError
from ropewalk.format.record import decode_records
from ropewalk.format.remoting import Command
from ropewalk.testing import RopewalkBroker

QUEUE = Queue("broker-a", 0)
RECORD = struct.Struct(">i16xq")


@dataclass
class Broker:
    """A queue of records that are nothing but a size and an offset; a filter lets every third through."""

    maximum: int
    minimum: int = 0
    knows_bulk: bool = True
    cap: int = 32
    scan: int = 800
    holes: frozenset[int] = frozenset()
    busy: int = 0
    asked: list[Command] = field(default_factory=list)

    def answer(self, command: Command) -> Command:
        self.asked.append(command)
        bulk = command.code == RequestCode.ROPEWALK_BULK_PULL
        if bulk and not self.knows_bulk:
            return command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        if self.busy:
            self.busy -= 1
            return command.reply(ResponseCode.SYSTEM_BUSY)
        ext = command.ext
        offset = int(ext["offset" if bulk else "queueOffset"])
        if offset < self.minimum:
            return self._numbers(command, ResponseCode.PULL_OFFSET_MOVED, self.minimum)
        if offset >= self.maximum:
            moved = offset > self.maximum
            code = ResponseCode.PULL_OFFSET_MOVED if moved else ResponseCode.PULL_NOT_FOUND
            return self._numbers(command, code, self.maximum)
        wants = ext.get("subscription", "*") in ("*", "")
        count = self.cap if bulk else min(self.cap, int(ext["maxMsgNums"]))
        end = min(self.maximum, int(ext["endOffset"])) if bulk else self.maximum
        found, at = b"", offset
        while at < end and len(found) < RECORD.size * count and at - offset < self.scan:
            if at not in self.holes and (wants or at % 3 == 0):
                found += RECORD.pack(RECORD.size, at)
            at += 1
        return self._numbers(command, 0 if found else ResponseCode.PULL_RETRY_IMMEDIATELY, at, found)

    def _numbers(self, command: Command, code: int, reached: int, body: bytes = b"") -> Command:
        numbers = (0, reached, self.minimum, self.maximum)
        names = ("suggestWhichBrokerId", "nextBeginOffset", "minOffset", "maxOffset")
        return command.reply(code, None, dict(zip(names, map(str, numbers), strict=True)), body)


def offsets(chunk: Chunk) -> list[int]:
    return [offset for _, offset in RECORD.iter_unpack(chunk.body)]


def drive(reader: RangeReader, broker: Broker, chance: random.Random, losses: int = 0) -> list[Chunk]:
    """Answer in any order; now and then the connection breaks, and what was under way is forgotten."""
    chunks: list[Chunk] = []
    waiting: list[tuple[int, Command]] = []
    for _ in range(100_000):
        if reader.done:
            return chunks
        waiting += reader.requests()
        if losses and chance.random() < 0.2:
            losses -= 1
            reader.forget()
            if chance.random() < 0.5:
                waiting.clear()  # else the old answers still come, for nobody
            continue
        if waiting:
            ticket, command = waiting.pop(chance.randrange(len(waiting)))
            reader.answer(ticket, broker.answer(command))
        while (chunk := reader.next_chunk()) is not None:
            chunks.append(chunk)
    raise AssertionError("no progress")


@given(
    low=st.integers(0, 50),
    size=st.integers(0, 400),
    bulk=st.booleans(),
    cap=st.integers(1, 60),
    scan=st.integers(1, 50),
    filtered=st.booleans(),
    in_flight=st.integers(1, 9),
    count=st.integers(1, 50),
    holes=st.frozensets(st.integers(0, 450), max_size=10),
    losses=st.integers(0, 5),
    busy=st.integers(0, 3),
    seed=st.integers(0, 2**32),
)
def test_every_offset_comes_once_and_in_order(
    low: int,
    size: int,
    bulk: bool,
    cap: int,
    scan: int,
    filtered: bool,
    in_flight: int,
    count: int,
    holes: frozenset[int],
    losses: int,
    busy: int,
    seed: int,
) -> None:
    broker = Broker(500, knows_bulk=bulk, cap=cap, scan=max(scan, 1), holes=holes, busy=busy)
    high = low + size
    subscription = "A" if filtered else "*"
    reader = RangeReader("T", QUEUE, low, high, subscription=subscription, in_flight=in_flight, count=count)
    chunks = drive(reader, broker, random.Random(seed), losses)
    at = low
    for chunk in chunks:
        assert chunk.first == at < chunk.next
        at = chunk.next
    assert at == high
    wanted = [n for n in range(low, high) if n not in holes and (not filtered or n % 3 == 0)]
    assert [n for chunk in chunks for n in offsets(chunk)] == wanted
    assert reader.lost == 0


def test_a_ropewalk_broker_is_asked_for_ranges_with_several_on_the_way() -> None:
    reader = RangeReader("T", QUEUE, 10, 100, in_flight=3, count=20, max_bytes=777)
    requests = [command for _, command in reader.requests()]
    assert [c.code for c in requests] == [RequestCode.ROPEWALK_BULK_PULL] * 3
    assert [(c.ext["offset"], c.ext["endOffset"], c.ext["maxBytes"]) for c in requests] == [
        ("10", "30", "777"),
        ("30", "50", "777"),
        ("50", "70", "777"),
    ]
    assert reader.requests() == []


def test_a_stock_broker_is_found_out_once_and_asked_in_its_own_way() -> None:
    broker = Broker(300, knows_bulk=False)
    reader = RangeReader("T", QUEUE, 0, 300, in_flight=4)
    drive(reader, broker, random.Random(1))
    codes = [command.code for command in broker.asked]
    assert codes.count(RequestCode.ROPEWALK_BULK_PULL) <= 4
    pulls = [c for c in broker.asked if c.code == RequestCode.PULL_MESSAGE]
    assert len(pulls) == 10  # 9 of 32 and one of 12: nothing is asked twice
    assert all(c.ext["sysFlag"] == "4" for c in pulls)  # neither waits nor commits


def test_windows_shrink_to_what_a_far_behind_read_gets_and_grow_again() -> None:
    broker = Broker(100_000, knows_bulk=False, cap=8)
    reader = RangeReader("T", QUEUE, 0, 4000, in_flight=4, bulk=False)
    drive(reader, broker, random.Random(1))
    assert len(broker.asked) < 4000 / 8 * 1.1
    broker.cap = 32
    broker.asked.clear()
    reader = RangeReader("T", QUEUE, 0, 40_000, in_flight=4, bulk=False)
    reader._stock_count = 8
    drive(reader, broker, random.Random(1))
    assert len(broker.asked) < 40_000 / 32 * 1.3


def test_a_filtered_read_of_a_stock_broker_has_one_request_on_the_way() -> None:
    reader = RangeReader("T", QUEUE, 0, 1000, subscription="A", bulk=False)
    assert len(reader.requests()) == 1


def test_messages_that_retention_removed_are_an_error_with_the_numbers() -> None:
    broker = Broker(100, minimum=40)
    reader = RangeReader("T", QUEUE, 10, 80)
    with pytest.raises(
        RangeLost, match=r"queue 0 of broker-a: messages 10 to 39 are gone.*begins at 40"
    ) as caught:
        drive(reader, broker, random.Random(1))
    assert (caught.value.wanted, caught.value.minimum, caught.value.maximum) == (10, 40, 100)


@pytest.mark.parametrize("minimum", [40, 90])
def test_or_they_are_skipped_and_counted(minimum: int) -> None:
    broker = Broker(100, minimum=minimum)
    reader = RangeReader("T", QUEUE, 10, 80, skip_lost=True, count=7)
    chunks = drive(reader, broker, random.Random(1))
    assert reader.lost == min(minimum, 80) - 10
    assert [n for chunk in chunks for n in offsets(chunk)] == list(range(minimum, 80))


def test_a_broker_that_is_not_there_yet_is_asked_again_later() -> None:
    broker = Broker(50)
    reader = RangeReader("T", QUEUE, 40, 60, count=5)
    waiting = reader.requests()
    for ticket, command in waiting:
        reader.answer(ticket, broker.answer(command))
    assert reader.wait_s > 0
    assert reader.starving is not None
    chunks = []
    while (chunk := reader.next_chunk()) is not None:
        chunks.append(chunk)
    broker.maximum = 60
    chunks += drive(reader, broker, random.Random(1))
    assert [n for chunk in chunks for n in offsets(chunk)] == list(range(40, 60))


def test_after_patience_the_missing_end_is_an_error_or_counted() -> None:
    reader = RangeReader("T", QUEUE, 40, 60)
    with pytest.raises(RangeLost, match="messages 40 to 59 do not come"):
        reader.give_up()
    reader = RangeReader("T", QUEUE, 40, 60, skip_lost=True)
    reader.requests()
    reader.give_up()
    assert reader.next_chunk() == Chunk(40, 60, b"", lost=True)
    assert reader.done
    assert reader.lost == 20


def test_a_refusal_is_raised_as_what_it_is() -> None:
    reader = RangeReader("T", QUEUE, 0, 10)
    ((ticket, command),) = reader.requests()
    with pytest.raises(Rejected, match="no such topic"):
        reader.answer(ticket, command.reply(ResponseCode.TOPIC_NOT_EXIST, "no such topic"))


def test_an_answer_that_goes_backwards_is_the_brokers_mistake() -> None:
    reader = RangeReader("T", QUEUE, 5, 10)
    ((ticket, command),) = reader.requests()
    ext = {"suggestWhichBrokerId": "0", "nextBeginOffset": "5", "minOffset": "0", "maxOffset": "10"}
    with pytest.raises(RemoteProtocolError, match="5 as the place to go on"):
        reader.answer(ticket, command.reply(0, None, ext, b"xxxxx"))


# -- the shell, with a real broker --------------------------------------------------------------------------


@pytest.fixture
def filled(ropewalk_own_broker: RopewalkBroker) -> Iterator[RopewalkBroker]:
    broker = ropewalk_own_broker
    topic = broker.topic("T", queues=1)
    queue = broker.client.read_queues(topic)[0]
    for start in range(0, 3000, 100):
        broker.client.send_batch(topic, [Message(b"%06d" % n) for n in range(start, start + 100)], queue)
    yield broker


@pytest.mark.parametrize("bulk", [True, False], ids=["bulk", "stock"])
def test_a_real_brokers_range_is_read_whole(filled: RopewalkBroker, bulk: bool) -> None:
    queue = filled.client.read_queues("T")[0]
    reader = RangeReader("T", queue, 100, 2900, bulk=bulk, count=300)
    connection = Connection(filled.broker)
    found = [
        record
        for chunk in read_range(reader, lambda: connection, timeout_s=10)
        for record in decode_records(chunk.body)
    ]
    assert [record.queue_offset for record in found] == list(range(100, 2900))
    assert [record.body for record in found] == [b"%06d" % n for n in range(100, 2900)]
    assert reader.bulk == bulk
    connection.close()


class Answering:
    """A connection to a broker that answers at once, and at which nobody may wait while nothing is asked."""

    address = "broker-a"

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._answers: dict[int, Command] = {}

    def start(self, command: Command) -> int:
        opaque = len(self._broker.asked)
        self._answers[opaque] = self._broker.answer(command)
        return opaque

    def poll_answer(self, opaque: int) -> Command | None:
        return self._answers.pop(opaque)

    def receive(self, timeout_s: float) -> None:
        assert timeout_s == 0, "there is nothing that could arrive"

    def close(self) -> None:
        self._answers.clear()

    def forget(self, opaque: int) -> None:
        raise AssertionError("every request was answered")


@pytest.mark.parametrize("subscription", ["*", "tag"])
def test_a_broker_without_bulk_pulls_is_asked_in_its_own_way_at_once(subscription: str) -> None:
    broker = Broker(100, knows_bulk=False)
    reader = RangeReader("T", QUEUE, 0, 100, subscription=subscription)
    connection = cast(Connection, Answering(broker))
    found = [
        offset for chunk in read_range(reader, lambda: connection, timeout_s=10) for offset in offsets(chunk)
    ]
    assert found == list(range(0, 100, 1 if subscription == "*" else 3))
    assert [command.code for command in broker.asked].count(RequestCode.ROPEWALK_BULK_PULL) <= 2


def test_a_broker_that_stays_busy_is_left_for_whoever_serves_the_queue_now() -> None:
    """A master that became a slave answers so, and would for ever."""
    members = [Broker(100, busy=1_000_000), Broker(100)]
    connected: list[Answering] = []
    now = [0.0]

    def connect() -> Connection:
        connected.append(Answering(members[min(len(connected), 1)]))
        return cast(Connection, connected[-1])

    def sleep(seconds: float) -> None:
        now[0] += seconds

    chunks = read_range(
        RangeReader("T", QUEUE, 0, 100), connect, timeout_s=30, monotonic=lambda: now[0], sleep=sleep
    )
    assert [offset for chunk in chunks for offset in offsets(chunk)] == list(range(100))
    assert len(connected) == 2
    assert now[0] < 6


def test_a_connection_that_breaks_is_made_anew_and_nothing_comes_twice(filled: RopewalkBroker) -> None:
    queue = filled.client.read_queues("T")[0]
    reader = RangeReader("T", queue, 0, 3000, count=50, in_flight=2)
    connections: list[Connection] = []

    def connect() -> Connection:
        connections.append(Connection(filled.broker))
        return connections[-1]

    found: list[int] = []
    for number, chunk in enumerate(read_range(reader, connect, timeout_s=10)):
        found += [record.queue_offset for record in decode_records(chunk.body)]
        if number % 10 == 3:
            connections[-1].close()
    assert found == list(range(3000))
    assert len(connections) >= 3
    connections[-1].close()


def test_a_broker_that_died_is_given_up_after_the_time_limit(filled: RopewalkBroker) -> None:
    queue = filled.client.read_queues("T")[0]
    reader = RangeReader("T", queue, 0, 3000, count=50, in_flight=2)
    chunks = read_range(reader, lambda: Connection(filled.broker), timeout_s=0.3)
    next(chunks)
    filled.process.kill()
    with pytest.raises((Unreachable, OutcomeUnknown)):
        list(chunks)


def test_a_range_beyond_the_end_is_lost_after_the_time_limit(filled: RopewalkBroker) -> None:
    queue = filled.client.read_queues("T")[0]
    connection = Connection(filled.broker)
    reader = RangeReader("T", queue, 2990, 3010)
    with pytest.raises(
        RangeLost, match=r"messages 3000 to 3009 do not come \(the broker's queue ends at 3000"
    ):
        list(read_range(reader, lambda: connection, timeout_s=0.2))
    connection.close()
