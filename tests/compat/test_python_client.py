"""Our own client against both servers: what works with Ropewalk works with Apache RocketMQ."""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from pathlib import Path

import pytest

from ropewalk import (
    Message,
    NoReply,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    RetryLater,
    SendStatus,
)
from tests.compat.conftest import Server
from tests.support.waiting import until_answered

pytestmark = [pytest.mark.compat, pytest.mark.slow]

WAIT_S = 60.0
TURNS = itertools.count(1)


@pytest.fixture(scope="module", params=["ropewalk_server", "original_server"])
def namesrv(request: pytest.FixtureRequest) -> str:
    server: Server = request.getfixturevalue(request.param)
    return server.namesrv


@pytest.fixture
def topic(namesrv: str) -> str:
    """A topic with its four queues there already, so that consumers find all of them."""
    name = f"python-{next(TURNS)}"
    with Producer(namesrv, timeout=20.0) as producer:
        producer.send(name, b"first")

        def visible() -> bool:
            with PullConsumer("python-looking", {name: "*"}, namesrv) as looking:
                return len(looking.assign_topics()) == 4

        until_answered(visible, "the route of the topic")
    return name


def test_what_is_sent_in_every_way_is_pulled(namesrv: str, topic: str) -> None:
    with Producer(namesrv) as producer:
        message = Message(b"z" * 5000, keys="k", tags="t", properties={"shop": "7"})
        assert producer.send(topic, message).status is SendStatus.SEND_OK
        producer.send_batch(topic, [b"b1", b"b2"])
        producer.send_oneway(topic, b"oneway")
        futures = [producer.send_async(topic, b"%d" % number) for number in range(200)]
        producer.flush()
        assert len({future.result(0).offset_message_ids for future in futures}) == 200
        assert producer.counts.acknowledged == 203 and producer.counts.pending == 0
    got: list[ReceivedMessage] = []
    with PullConsumer(f"{topic}-g", {topic: "*"}, namesrv, consume_from="first") as consumer:
        consumer.assign_topics()

        def all_there() -> bool:
            got.extend(consumer.poll(timeout=0.2))
            return len(got) == 205

        until_answered(all_there, "205 messages")
        consumer.commit()
    (large,) = [one for one in got if one.keys == ["k"]]
    assert large.body == b"z" * 5000 and large.tags == "t" and large.properties["shop"] == "7"
    with PullConsumer(f"{topic}-g", {topic: "*"}, namesrv, consume_from="first") as again:
        again.assign_topics()
        assert again.poll(timeout=0.5) == []


def test_a_group_consumes_retries_and_goes_on_after_a_restart(namesrv: str, topic: str) -> None:
    seen: list[tuple[bytes, int]] = []

    def handle(message: ReceivedMessage) -> None:
        seen.append((message.body, message.reconsume_times))
        if message.body == b"bad" and message.reconsume_times == 0:
            raise RetryLater(delay_level=1)

    def consumer() -> PushConsumer:
        return PushConsumer(f"{topic}-g", {topic: "*"}, handle, namesrv, consume_from="first")

    with Producer(namesrv) as producer:
        with consumer():
            for number in range(20):
                producer.send(topic, b"%d" % number)
            producer.send(topic, b"bad")
            until_answered(
                lambda: (b"bad", 1) in seen and len({body for body, _ in seen}) == 22, "all, one twice"
            )
        producer.send(topic, b"later")
        before = len(seen)
        with consumer():
            until_answered(lambda: (b"later", 0) in seen, "the later one")
            time.sleep(0.3)
    assert len(seen) == before + 1, seen[before:]


def test_orderly_members_share_queues_without_a_gap_or_a_duplicate(namesrv: str, topic: str) -> None:
    seen: dict[int, list[int]] = defaultdict(list)

    def handle(message: ReceivedMessage) -> None:
        time.sleep(0.005)
        seen[message.source.queue.queue_id].append(message.queue_offset)

    def consumer() -> PushConsumer:
        return PushConsumer(
            f"{topic}-g", {topic: "*"}, handle, namesrv, consume_from="first", orderly=True, pull_count=4
        )

    with Producer(namesrv) as producer:
        for number in range(399):
            producer.send(topic, Message(b"%d" % number))
    with consumer() as one:
        until_answered(lambda: sum(map(len, seen.values())) > 10, "the first member is at it")
        with consumer() as other:
            until_answered(lambda: len(one.queues) == len(other.queues) == 2, "they share")
        until_answered(lambda: sum(map(len, seen.values())) >= 400, "all are handled")
        time.sleep(0.3)
    assert not [str(each) for each in seen.items() if each[1] != list(range(len(each[1])))]
    assert sum(map(len, seen.values())) == 400


def test_a_delayed_message_comes_when_it_is_due(namesrv: str, topic: str) -> None:
    arrived: list[tuple[bytes, float]] = []
    with (
        PushConsumer(
            f"{topic}-g", {topic: "*"}, lambda m: arrived.append((m.body, time.monotonic())), namesrv
        ) as consumer,
        Producer(namesrv) as producer,
    ):
        until_answered(lambda: len(consumer.queues) == 4, "all queues are ours")
        began = time.monotonic()
        producer.send(topic, Message(b"later", delay_level=1))
        until_answered(lambda: any(body == b"later" for body, _ in arrived), "the delayed one")
    (moment,) = [moment for body, moment in arrived if body == b"later"]
    assert 0.9 <= moment - began < 10


class Seen:
    """A handler that remembers."""

    def __init__(self) -> None:
        self.messages: list[ReceivedMessage] = []

    def __call__(self, message: ReceivedMessage) -> None:
        self.messages.append(message)

    @property
    def bodies(self) -> list[str]:
        return sorted(message.body.decode() for message in self.messages)


def test_every_member_of_a_broadcasting_group_gets_everything(
    namesrv: str, topic: str, tmp_path: Path
) -> None:
    ann, bob = Seen(), Seen()

    def member(handler: Seen, name: str) -> PushConsumer:
        return PushConsumer(
            f"{topic}-g", {topic: "*"}, handler, namesrv,
            broadcasting=True, offsets_folder=tmp_path / name, consume_from="first",
        )  # fmt: skip

    with Producer(namesrv) as producer, member(bob, "bob"):
        with member(ann, "ann"):
            for number in range(10):
                producer.send(topic, b"%d" % number)
            until_answered(lambda: len(ann.bodies) == len(bob.bodies) == 11, "both have all 11")
        producer.send(topic, b"later")
        again = Seen()
        with member(again, "ann"):
            until_answered(lambda: bool(again.bodies) and len(bob.bodies) == 12, "both have the later one")
            time.sleep(0.5)
    assert again.bodies == ["later"], "ann goes on where she stopped"
    assert ann.bodies == sorted(["first", *map(str, range(10))])


def test_two_groups_get_everything_each_and_tags_are_filtered(namesrv: str, topic: str) -> None:
    with Producer(namesrv) as producer:
        for number in range(12):
            tag = "ABC"[number % 3]
            producer.send(topic, Message(f"{tag}{number}".encode(), tags=tag))
    everything, some = Seen(), Seen()
    with (
        PushConsumer(f"{topic}-g1", {topic: "*"}, everything, namesrv, consume_from="first"),
        PushConsumer(f"{topic}-g2", {topic: "A || C"}, some, namesrv, consume_from="first"),
    ):
        until_answered(
            lambda: len(everything.bodies) == 13 and len(some.bodies) == 8, "each has its messages"
        )
        time.sleep(0.5)
    assert everything.bodies == sorted(["first", *(f"{'ABC'[n % 3]}{n}" for n in range(12))])
    assert some.bodies == sorted(f"{'ABC'[n % 3]}{n}" for n in range(12) if n % 3 != 1)


def test_what_nobody_can_handle_becomes_a_dead_letter(namesrv: str, topic: str) -> None:
    group = f"{topic}-g"
    tries: list[int] = []

    def handle(message: ReceivedMessage) -> None:
        if message.body == b"hopeless":
            tries.append(message.reconsume_times)
            raise RetryLater(delay_level=1)

    with Producer(namesrv) as producer:
        producer.send(topic, Message(b"hopeless", keys="key-1", tags="t"))
    dead: list[ReceivedMessage] = []
    letters = f"%DLQ%{group}"
    with (
        PushConsumer(group, {topic: "*"}, handle, namesrv, consume_from="first", max_retries=1),
        PullConsumer(f"{group}-undertaker", {letters: "*"}, namesrv, consume_from="first") as undertaker,
    ):

        def found() -> bool:
            undertaker.assign_topics()
            dead.extend(undertaker.poll(timeout=0.5))
            return bool(dead)

        until_answered(found, "the dead letter")
    assert tries == [0, 1]
    assert (dead[0].body, dead[0].keys, dead[0].tags, dead[0].topic) == (b"hopeless", ["key-1"], "t", letters)
    assert dead[0].reconsume_times == 2


def test_a_request_is_answered_and_one_without_an_answer_times_out(namesrv: str, topic: str) -> None:
    with Producer(namesrv) as responder, Producer(namesrv) as asker:

        def answer(message: ReceivedMessage) -> None:
            if message.body.startswith(b"question"):
                responder.reply(message, b"re: " + message.body)

        with PushConsumer(f"{topic}-g", {topic: "*"}, answer, namesrv, consume_from="first"):
            found = [asker.request(topic, b"question %d" % n, timeout=30).body for n in range(3)]
            assert found == [b"re: question %d" % n for n in range(3)]
            with pytest.raises(NoReply):
                asker.request(topic, b"silence", timeout=1)


def test_a_pull_consumer_goes_where_it_is_sent(namesrv: str, topic: str) -> None:
    with Producer(namesrv) as producer:
        queue = producer.queues(topic)[1]
        before = producer.send(topic, b"0", queue=queue).queue_offset
        for number in range(1, 6):
            producer.send(topic, b"%d" % number, queue=queue)
    with PullConsumer(f"{topic}-g", {topic: "*"}, namesrv, consume_from="first") as consumer:
        (place,) = [one for one in consumer.assign_topics() if one.queue == queue]
        consumer.assign([place])

        def read(count: int) -> list[bytes]:
            got: list[bytes] = []

            def enough() -> bool:
                got.extend(message.body for message in consumer.poll(timeout=0.2))
                return len(got) >= count

            until_answered(enough, f"{count} messages")
            return got

        consumer.seek(place, before + 3)
        assert read(3) == [b"3", b"4", b"5"]
        consumer.seek_to_begin()
        assert read(6)[-6:] == [b"%d" % n for n in range(6)]
        consumer.seek(place, before + 4)
        consumer.commit()
    with PullConsumer(f"{topic}-g", {topic: "*"}, namesrv) as successor:
        successor.assign([place])
        assert successor.position(place) == before + 4
