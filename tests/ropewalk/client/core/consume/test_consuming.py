"""A consumer's exchanges with brokers, told as conversations: where a queue begins, how a message is given back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime

import pytest

from ropewalk.client.core.consume.consume_from import ConsumeFrom
from ropewalk.client.core.consume.consuming import ConsumerCore, ConsumerIdentity, Pulled
from ropewalk.client.core.consume.received import ReceivedMessage, TopicQueue
from ropewalk.client.core.consume.skipped import gaps
from ropewalk.client.core.ids import UniqueKeys
from ropewalk.client.core.messages import PullStatus
from ropewalk.client.core.routes import Queue
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import RemoteProtocolError, RopewalkError, TryElsewhere
from ropewalk.format.properties import parse_properties
from ropewalk.format.remoting import Command
from tests.ropewalk.client.scripted import Script, route_body, stored

ANSWERS = {
    RequestCode.GET_MIN_OFFSET: "4",
    RequestCode.GET_MAX_OFFSET: "100",
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: "50",
}


def stage(
    consume_from: ConsumeFrom = "last",
    *,
    committed: int | None = None,
    broadcasting: bool = False,
    takes_back: bool = True,
) -> tuple[Script, ConsumerCore]:
    """A consumer of topic T at one broker, which has committed this much and takes messages back or does not."""

    def handler(_address: str, command: Command) -> Command | RopewalkError:
        if command.code == RequestCode.QUERY_CONSUMER_OFFSET:
            if committed is None:
                return command.reply(ResponseCode.QUERY_NOT_FOUND)
            return command.reply(ResponseCode.SUCCESS, None, {"offset": str(committed)})
        if command.code == RequestCode.SEND_MESSAGE_V2:
            return stored(command)
        if command.code == RequestCode.CONSUMER_SEND_MSG_BACK:
            return command.reply(ResponseCode.SUCCESS if takes_back else ResponseCode.SYSTEM_ERROR)
        return command.reply(ResponseCode.SUCCESS, None, {"offset": ANSWERS[command.code]})

    script = Script(handler, {"T": route_body("a"), "%RETRY%g": route_body("a", queues=1)})
    identity = ConsumerIdentity("g", "me", (), consume_from, broadcasting=broadcasting)
    keys = UniqueKeys(bytes(4), 1, 2, lambda: 0)
    core = ConsumerCore("ns:9876", identity, unique_keys=keys, clock=script.clock, now_ms=lambda: 5)
    return script, core


@pytest.mark.parametrize(
    "consume_from, committed, broadcasting, topic, begin",
    [
        ("last", None, False, "T", 100),
        ("first", None, False, "T", 4),
        ("earliest", None, False, "T", 4),
        ("latest", None, False, "T", 100),
        ("End", None, False, "T", 100),
        (datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC), None, False, "T", 50),
        (1_700_000_000_000, None, False, "T", 50),
        ("last", 7, False, "T", 7),
        (1_700_000_000_000, 7, False, "T", 7),
        ("last", None, False, "%RETRY%g", 4),
        ("last", 7, True, "T", 100),
    ],
)
def test_a_queue_begins_where_the_group_is_or_where_it_wants(
    consume_from: ConsumeFrom,
    committed: int | None,
    broadcasting: bool,
    topic: str,
    begin: int,
) -> None:
    script, core = stage(consume_from, committed=committed, broadcasting=broadcasting)
    assert script.hold(core.begin_offset(TopicQueue(topic, Queue("a", 0)))) == begin
    searched = [c.ext["timestamp"] for _, c in script.asked if c.code == 29]
    assert searched == (["1700000000000"] if begin == 50 else [])
    asked = [
        c.ext.get("setZeroIfNotFound") for _, c in script.asked if c.code == RequestCode.QUERY_CONSUMER_OFFSET
    ]
    exact = None if isinstance(consume_from, str) else "false"
    assert asked == [] if broadcasting else asked == [exact], "a time is meant, whatever is young"


def message(**properties: str) -> ReceivedMessage:
    source = TopicQueue("T", Queue("a", 1))
    return ReceivedMessage("T", b"body", [], None, properties, "M1", 2, 0, 0, source, 5, 777, "OFFSET-ID")


def test_a_message_is_given_back_by_its_place_with_the_level_and_the_maximum() -> None:
    script, core = stage()
    script.hold(core.directory.route("T"))
    script.hold(core.send_back(message(), 4, 16))
    ((address, asked),) = script.asked
    assert address == "a:1" and asked.code == RequestCode.CONSUMER_SEND_MSG_BACK
    expected = {"offset": "777", "group": "g", "delayLevel": "4", "maxReconsumeTimes": "16"}
    assert expected.items() <= asked.ext.items()
    assert asked.ext["originTopic"] == "T" and asked.ext["originMsgId"] == "M1"


def test_what_no_broker_takes_back_is_sent_again_and_waits_longer_than_before() -> None:
    script, core = stage(takes_back=False)
    script.hold(core.send_back(message(KEYS="k", ORIGIN_MESSAGE_ID="M0"), 0, 16))
    _, sent = script.asked[-1]
    assert sent.code == RequestCode.SEND_MESSAGE_V2 and sent.body == b"body"
    assert (sent.ext["b"], sent.ext["j"], sent.ext["l"]) == ("%RETRY%g", "3", "16")
    properties = parse_properties(sent.ext["i"])
    expected = {
        "KEYS": "k", "RETRY_TOPIC": "T", "ORIGIN_MESSAGE_ID": "M0",
        "RECONSUME_TIME": "3", "MAX_RECONSUME_TIMES": "16", "DELAY": "5",
    }  # fmt: skip
    assert expected.items() <= properties.items()


def pulled(status: PullStatus, next_offset: int, low: int, high: int) -> Pulled:
    return Pulled(status, [], next_offset, low, high)


@pytest.mark.parametrize(
    "offset, low, high, next_offset, knows_last, begin, reason",
    [
        (10, 500, 900, 500, True, 500, "removed"),  # retention overtook us
        (10, 500, 900, 500, False, 500, "removed"),
        (600, 500, 900, 800, True, 800, "reset"),  # an administrator moved the group
        (100, 0, 60, 60, True, 50, "truncated"),  # by the time of the last message: 50, the script says
        (100, 0, 30, 30, True, 30, "truncated"),
        (100, 0, 60, 60, False, 0, "truncated"),  # whatever is there may be new
        (100, 20, 60, 60, False, 60, "truncated"),
    ],
)
def test_where_to_go_on_in_a_queue_that_is_not_what_it_was(
    offset: int, low: int, high: int, next_offset: int, knows_last: bool, begin: int, reason: str
) -> None:
    script, core = stage()
    queue = TopicQueue("T", Queue("a", 0))
    answer = pulled(PullStatus.OFFSET_ILLEGAL, next_offset, low, high)
    last = message() if knows_last else None
    assert script.hold(core.relocate(queue, offset, answer, last)) == (begin, reason)


def test_gaps_are_what_lies_between_and_behind() -> None:
    queue = TopicQueue("T", Queue("a", 0))

    def at(*offsets: int) -> list[ReceivedMessage]:
        return [ReceivedMessage("T", b"", [], None, {}, "", 0, 0, 0, queue, n, 0, "") for n in offsets]

    assert gaps(queue, 5, at(5, 6, 7), 8) == []
    assert gaps(queue, 5, [], 5) == []
    found = gaps(queue, 5, at(7, 8, 10), 13)
    assert [(gap.first, gap.next, gap.reason) for gap in found] == [
        (5, 7, "missing"), (9, 10, "missing"), (11, 13, "missing"),
    ]  # fmt: skip
    assert sum(gap.count for gap in found) == 5


def test_what_is_sent_again_drops_what_leaves_no_room_for_the_tries() -> None:
    script, core = stage(takes_back=False)
    script.hold(core.send_back(message(KEYS="k", colour="blue", long="x" * 32_700), 0, 16))
    properties = parse_properties(script.asked[-1][1].ext["i"])
    assert properties["colour"] == "blue" and properties["RECONSUME_TIME"] == "3"
    assert "long" not in properties and properties["DROPPED_PROPERTIES"] == "long"


@pytest.mark.parametrize("how", ["commit", "pull", "lock", "give back", "send back"])
def test_a_leader_that_lives_on_as_a_follower_is_left_at_its_first_refusal(how: str) -> None:
    script, core = stage()
    script.handler = lambda _address, command: command.reply(ResponseCode.SERVICE_NOT_AVAILABLE, "follows n1")
    queue = TopicQueue("T", Queue("a", 0))

    def attempt() -> None:
        script.hold(core.directory.route("T"))
        if how == "commit":
            script.hold(core.commit(queue, 7))
        elif how == "pull":
            script.hold(core.pull(queue, 7, 1, 0))
        elif how == "lock":
            assert not script.hold(core.lock([queue]))
        elif how == "give back":
            script.hold(core.send_back(message(), 0, 16))
        else:
            script.hold(core.resend(message(), 16))

    asked = []
    for master in ("a:1", "new:1"):
        for topic in ("T", "%RETRY%g"):
            script.routes[topic] = route_body("a").replace(b"a:1", master.encode())
        with suppress(TryElsewhere):
            attempt()
        asked.append({address for address, _ in script.asked})
        script.asked.clear()
    assert asked == [{"a:1"}, {"new:1"}]


@pytest.mark.parametrize(
    "body", [b"{}", b"null", b"[]", b"{", b'{"consumerIdList": [1]}', b'{"consumerIdList": "ab"}']
)
def test_members_that_cannot_be_read_are_a_named_error(body: bytes) -> None:
    script, core = stage()
    script.handler = answering(body)
    with pytest.raises(RemoteProtocolError, match="members of the group cannot be read"):
        script.hold(core.members("T"))


@pytest.mark.parametrize(
    "body", [b"null", b"[]", b"{", b'{"lockOKMQSet": [{"topic": "T"}]}', b'{"lockOKMQSet": 7}']
)
def test_locks_that_cannot_be_read_grant_nothing(body: bytes) -> None:
    script, core = stage()
    script.handler = answering(body)
    script.hold(core.directory.route("T"))
    assert script.hold(core.lock([TopicQueue("T", Queue("a", 0))])) == set()
    assert RequestCode.LOCK_BATCH_MQ in [command.code for _, command in script.asked]


def answering(body: bytes) -> Callable[[str, Command], Command]:
    def handler(_address: str, command: Command) -> Command:
        answer = command.reply(ResponseCode.SUCCESS)
        answer.body = body
        return answer

    return handler
