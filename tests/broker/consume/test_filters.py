"""SQL92 subscriptions: which filter a pull has, what it is given, what is kept of them, and what it may cost."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.consume import filtered_read, filters
from broker.consume.bloom import BloomGeometry
from broker.consume.filters import NEW_CHARACTERS_MAX, FilterRules, FilterTable
from broker.state.subscription import SubscriptionData
from broker.waiting import catch_up_pulls
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format.record import decode_records
from ropewalk.format.remoting import Command
from ropewalk.format.sliced_json import finish
from tests.broker.harness import Client, InProcess, heartbeat_body, pull_ext, request, send_ext
from tests.support.clocks import START_MS
from tests.support.links import From

StartBroker = Callable[..., InProcess]
V2 = RequestCode.SEND_MESSAGE_V2


@pytest.fixture
def running(start_broker: StartBroker) -> InProcess:
    return start_broker(enablePropertyFilter=True)


def fill(client: Client, count: int, topic: str = "T", **properties: str) -> None:
    """Send messages with the properties `n` and `half`, numbered from 0."""
    stream = b"".join(
        request(
            V2,
            send_ext(topic, properties={"n": str(n), "half": "ab"[n % 2], **properties}),
            b"%d" % n,
            opaque=n,
        )
        for n in range(count)
    )
    client.feed(stream)
    assert {answer.code for answer in client.answers()} == {0}


def bodies(answer: Command) -> list[int]:
    return [int(record.body) for record in decode_records(answer.body)]


def pull(client: Client, expression: str, **changes: object) -> Command:
    return client.pull("T", subscription=expression, expressionType="SQL92", **changes)


def subscribe(
    client: Client, expression: str, *, version: int = 1, group: str = "cg", topic: str = "T"
) -> None:
    body = heartbeat_body(group=group, topics={topic: expression}, version=version)
    assert client.call(RequestCode.HEART_BEAT, body=body.replace(b'"TAG"', b'"SQL92"')).code == 0


def unsubscribe(client: Client, group: str = "cg") -> None:
    client.call(RequestCode.UNREGISTER_CLIENT, {"clientID": "c1", "consumerGroup": group})


# -- one pull -------------------------------------------------------------------------------------------


def test_a_pull_with_an_expression_gets_what_it_lets_through(client: Client) -> None:
    fill(client, 10)
    answer = pull(client, "n > 3 AND half = 'a'")
    assert (answer.code, answer.remark) == (0, "FOUND")
    assert bodies(answer) == [4, 6, 8]
    assert (answer.ext["nextBeginOffset"], answer.ext["maxOffset"]) == ("10", "10")
    binary = pull_ext("T", subscription="n = 3", expressionType="SQL92")
    assert bodies(client.call(RequestCode.LITE_PULL_MESSAGE, binary, serialize_type=1)) == [3]


def test_what_the_answer_has_no_room_for_is_where_the_next_pull_begins(client: Client) -> None:
    fill(client, 100)
    first = pull(client, "half = 'a'", maxMsgNums=3)
    assert (bodies(first), first.ext["nextBeginOffset"]) == ([0, 2, 4], "6")
    full = pull(client, "half = 'a'", maxMsgNums=1000)
    assert (len(bodies(full)), full.ext["nextBeginOffset"]) == (32, "64")
    small = pull(client, "half = 'b'", maxMsgBytes=1)
    assert (bodies(small), small.ext["nextBeginOffset"]) == ([1], "3")


def test_the_record_comes_as_it_is_stored(client: Client) -> None:
    fill(client, 40)
    every = {record.queue_offset: record for record in decode_records(client.pull("T").body)}
    for record in decode_records(pull(client, "n IN ('7', '9', '31')").body):
        assert record == every[record.queue_offset]


def test_what_matches_nothing_moves_the_client_on_by_a_bounded_step(client: Client) -> None:
    fill(client, 2000)
    offset, steps = 0, []
    while offset < 2000:
        answer = pull(client, "n > 100000", queueOffset=offset)
        assert (answer.code, answer.remark) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE")
        steps.append(int(answer.ext["nextBeginOffset"]) - offset)
        offset += steps[-1]
    assert steps == [800, 800, 400]
    assert pull(client, "n > 100000", queueOffset=2000, sysFlag=4).code == ResponseCode.PULL_NOT_FOUND


def test_a_costly_filter_over_long_properties_looks_at_fewer_messages(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(client, 30, long="x" * 5000)
    monkeypatch.setattr(filtered_read, "WORK_MAX", 1 << 20)
    costly = " OR ".join(f"n = {n}" for n in range(1000, 1100))
    answer = pull(client, costly)
    assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "3")
    monkeypatch.undo()
    monkeypatch.setattr(filtered_read, "SCAN_BYTES_MAX", 1)
    assert int(pull(client, "n > 100", maxMsgNums=1).ext["nextBeginOffset"]) == 30, "one chunk"


def test_statuses_at_the_ends_of_a_queue_are_those_of_every_pull(client: Client) -> None:
    fill(client, 3)
    for offset in (-1, 3, 4):
        plain, filtered = client.pull("T", queueOffset=offset), pull(client, "n = 1", queueOffset=offset)
        assert (plain.code, plain.remark, plain.ext) == (filtered.code, filtered.remark, filtered.ext)


def test_an_ipv6_record_and_a_long_topic_are_read_too(running: InProcess) -> None:
    client = running.connect(peer=("::1", 5))
    name = "T" * 127
    fill(client, 2, name)
    answer = client.pull(name, subscription="n = 1", expressionType="SQL92")
    assert bodies(answer) == [1]


def test_a_backlog_out_of_memory_is_filtered_too(start_broker: StartBroker) -> None:
    running = start_broker(
        enablePropertyFilter=True, accessMessageInMemoryMaxRatio=0, warmWindowBytes=1 << 20
    )
    client = running.connect()
    fill(client, 300, pad="p" * 8000)
    client.ask(RequestCode.PULL_MESSAGE, pull_ext("T", subscription="half = 'b'", expressionType="SQL92"))
    running.until(lambda: bool(client.link.sent))
    (answer,) = client.answers()
    found = bodies(answer)
    assert found and found == list(range(1, 2 * len(found), 2))


def test_a_bad_expression_is_answered_23_with_the_place(client: Client) -> None:
    fill(client, 1)
    for expression in ("n >", "n = 5 garbage", "*", ""):
        assert pull(client, expression).code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert "(at character 7" in str(pull(client, "n = 5 garbage").remark)


def test_trailing_text_may_be_ignored_as_rocketmq_does(start_broker: StartBroker) -> None:
    client = start_broker(enablePropertyFilter=True, filterIgnoreTrailingText=True).connect()
    fill(client, 3)
    assert bodies(pull(client, "n = 1 garbage")) == [1]


# -- waiting --------------------------------------------------------------------------------------------


def test_a_held_pull_is_answered_by_the_first_message_that_matches(
    running: InProcess, client: Client
) -> None:
    producer = running.connect()
    fill(producer, 1)
    subscribe(client, "n = 7")
    opaque = client.ask(RequestCode.PULL_MESSAGE, pull_ext("T", queueOffset=1, sysFlag=2, subVersion=1))
    assert running.broker.held_pulls.size == 1
    for n in (1, 2, 3):
        assert producer.send("T", b"%d" % n, properties={"n": str(n)}).code == 0
        assert client.link.sent == b"" and running.broker.held_pulls.size == 1
    assert producer.send("T", b"7", properties={"n": "7"}).code == 0
    answer = client.answer(opaque)
    assert (bodies(answer), answer.ext["nextBeginOffset"]) == ([7], "5")


def test_a_held_pull_whose_time_is_over_moves_on_behind_what_it_does_not_want(
    running: InProcess, client: Client
) -> None:
    producer = running.connect()
    fill(producer, 1)
    opaque = client.ask(
        RequestCode.PULL_MESSAGE,
        pull_ext("T", queueOffset=1, sysFlag=6, subscription="n = 7", expressionType="SQL92"),
    )
    producer.send("T", b"1", properties={"n": "1"})
    running.tick(16_000)
    answer = client.answer(opaque)
    assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "2")


# -- the groups' expressions ------------------------------------------------------------------------------


def test_two_groups_of_one_topic_have_an_expression_each(running: InProcess, client: Client) -> None:
    other = running.connect()
    fill(client, 6)
    subscribe(client, "half = 'a'", group="g1")
    subscribe(other, "half = 'b'", group="g2")
    assert bodies(client.pull("T", consumerGroup="g1", sysFlag=0)) == [0, 2, 4]
    assert bodies(other.pull("T", consumerGroup="g2", sysFlag=0)) == [1, 3, 5]
    assert bodies(other.pull("T", consumerGroup="g3")) == [0, 1, 2, 3, 4, 5]


def test_a_new_version_replaces_an_expression_and_an_old_one_does_not(
    running: InProcess, client: Client
) -> None:
    other = running.connect()
    fill(client, 4)
    subscribe(client, "n = 1", version=5)
    assert bodies(client.pull("T", sysFlag=0, subVersion=5)) == [1]
    assert client.pull("T", sysFlag=0, subVersion=6).code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    subscribe(other, "n = 2", version=4)
    assert bodies(client.pull("T", sysFlag=0, subVersion=5)) == [1]
    subscribe(other, "n = 3", version=6)
    assert bodies(client.pull("T", sysFlag=0, subVersion=6)) == [3]


@pytest.mark.parametrize("leaves", ["and the group with it", "and another member stays"])
def test_the_filter_of_a_client_whose_clock_is_behind_counts_when_the_one_before_has_gone(
    running: InProcess, client: Client, leaves: str
) -> None:
    fill(client, 4)
    first, second = running.connect(), running.connect()
    if leaves == "and another member stays":
        subscribe(second, "n = 2", version=3)
    subscribe(first, "n = 1", version=900)
    assert bodies(first.pull("T", sysFlag=0)) == [1]
    first.disconnect()
    subscribe(second, "n = 2", version=4)
    assert bodies(second.pull("T", sysFlag=0, subVersion=4)) == [2]


def test_an_expression_that_cannot_be_read_is_answered_27_with_the_reason(client: Client) -> None:
    fill(client, 4)
    subscribe(client, "n = 1", version=1)
    subscribe(client, "n == 1", version=2)
    answer = client.pull("T", sysFlag=0)
    assert answer.code == ResponseCode.FILTER_DATA_NOT_EXIST
    assert "= where a property, a literal, NOT or ( is expected (at character 4" in str(answer.remark)


def test_an_expression_older_than_the_pull_is_answered_28(running: InProcess, client: Client) -> None:
    fill(client, 1)
    subscribe(client, "n = 0", version=5)
    info = running.broker.clients.consumer_group("cg")
    assert info is not None
    info.subscriptions["T"] = SubscriptionData.parse("T", "n = 0", version=7, expression_type="SQL92")
    assert client.pull("T", sysFlag=0, subVersion=7).code == ResponseCode.FILTER_DATA_NOT_LATEST


def test_filters_can_be_switched_on_while_the_broker_runs(start_broker: StartBroker) -> None:
    client = start_broker().connect()
    fill(client, 3)
    subscribe(client, "n = 1")
    assert client.pull("T", sysFlag=0).code == pull(client, "n = 1").code == ResponseCode.SYSTEM_ERROR
    client.call(RequestCode.UPDATE_BROKER_CONFIG, body=b"enablePropertyFilter=true")
    assert bodies(client.pull("T", sysFlag=0)) == bodies(pull(client, "n = 1")) == [1]


RETRY = "%RETRY%cg"


@pytest.mark.parametrize("by_origin", [False, True])
def test_a_retry_topic_goes_by_the_expression_for_the_first_topic(
    start_broker: StartBroker, by_origin: bool
) -> None:
    running = start_broker(enablePropertyFilter=True, filterSupportRetry=by_origin)
    client = running.connect()
    fill(client, 1)
    subscribe(client, "n = 1")
    fill(client, 4, RETRY, RETRY_TOPIC="T")
    fill(client, 2, RETRY, RETRY_TOPIC="elsewhere")
    answer = client.pull(RETRY, subscription="half = 'a'", expressionType="SQL92")
    assert bodies(answer) == ([1, 0, 1] if by_origin else [0, 2, 0])
    assert bodies(client.pull(RETRY)) == [0, 1, 2, 3, 0, 1], "clients subscribe to it with *"


# -- the table and its file ------------------------------------------------------------------------------


def wish(expression: str, *, version: int = 1, topic: str = "T") -> SubscriptionData:
    return SubscriptionData(topic, expression, version=version, expression_type="SQL92")


@pytest.fixture
def table() -> FilterTable:
    return FilterTable(FilterRules(enabled=True, clean_ms=1000), BloomGeometry())


def test_expressions_die_with_their_group_and_live_again(table: FilterTable) -> None:
    table.register("g", [wish("a = 1"), wish("b = 1", topic="U")], 5)
    table.unregister("g", 10)
    data = table.get("T", "g")
    assert data is not None
    assert (data.is_dead, data.dead_ms) == (True, 10)
    table.register("g", [wish("a = 1")], 20)
    assert (data.is_dead, data.dead_ms) == (False, 0)
    assert table.get("T", "g") is data
    table.prune(1009)
    assert table.get("U", "g") is not None
    table.prune(1010)
    assert table.get("U", "g") is None and table.get("T", "g") is data


def test_a_topic_that_is_not_subscribed_to_any_more_dies_alone(table: FilterTable) -> None:
    table.register("g", [wish("a = 1"), wish("b = 1", topic="U")], 5)
    table.register("g", [wish("a = 1")], 6)
    one, other = table.get("T", "g"), table.get("U", "g")
    assert one is not None and other is not None
    assert (one.is_dead, other.is_dead) == (False, True)


def test_an_expression_is_compiled_once_for_all_groups(table: FilterTable) -> None:
    table.register("g", [wish("a = 1")], 5)
    table.register("h", [wish("a = 1")], 5)
    table.register("g", [wish("a = 1", version=2)], 6)
    one, other = table.get("T", "g"), table.get("T", "h")
    assert one is not None and other is not None and one.compiled is other.compiled
    assert (one.client_version, one.born_ms) == (2, 5)


def test_one_heartbeat_has_a_bounded_text_compiled_and_the_next_goes_on(table: FilterTable) -> None:
    size = NEW_CHARACTERS_MAX // 2
    wishes = [wish(f"a = {n}".ljust(size), topic=f"T{n}") for n in range(5)]
    known = []
    for _ in range(3):
        table.register("g", wishes, 5)
        known.append(sum(table.get(f"T{n}", "g") is not None for n in range(5)))
    assert known == [2, 4, 5]


def chain(number: int) -> str:
    """An expression of which the compiled form is a hundred times as large as the text."""
    return " OR ".join(f"a={number * 100 + n}" for n in range(50))


def test_all_expressions_together_have_a_bound_of_the_bytes_that_they_are_compiled_to(
    table: FilterTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filters, "SIZE_MAX", 400_000)
    for n in range(40):
        table.register(f"g{n}", [wish(chain(n))], 5)
    known = [n for n in range(40) if table.get("T", f"g{n}") is not None]
    assert known == list(range(len(known))) and 5 < len(known) < 20
    assert 300_000 < table.size <= 400_000
    for n in known:
        table.register(f"g{n}", [wish("a = 1", version=2)], 6)
    assert table.size < len(known) * 5_000


def test_where_there_is_no_room_those_go_whose_groups_are_gone_for_longest(
    table: FilterTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger's expressions were kept for a day after it had gone."""
    monkeypatch.setattr(filters, "SIZE_MAX", 400_000)
    for n in range(40):
        table.register(f"g{n}", [wish(chain(n))], 5)
    for n in (3, 2):
        table.unregister(f"g{n}", 10 - n)
    table.register("late", [wish(chain(41))], 9)
    assert table.get("T", "late") is not None
    assert table.get("T", "g3") is None and table.get("T", "g2") is not None


def test_one_address_leaves_half_of_the_room_for_expressions_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(filters, "SIZE_MAX", 400_000)
    table = FilterTable(FilterRules(enabled=True), BloomGeometry())
    for n in range(40):
        table.register(f"g{n}", [wish(chain(n))], 5, From("10.0.0.9"))
    assert table.size <= 250_000
    table.register("honest", [wish(chain(41))], 5, From("10.0.0.1"))
    assert table.get("T", "honest") is not None


def test_the_file_has_rocketmqs_shape(table: FilterTable) -> None:
    table.register("g", [wish("a > 1", version=7)], 5)
    assert json.loads(finish(table.dump_in_slices())) == {
        "filterDataByTopic": {
            "T": {
                "groupFilterData": {
                    "g": {
                        "bloomFilterData": {"bitNum": 112, "bitPos": [90, 68, 28]},
                        "bornTime": 5,
                        "clientVersion": 7,
                        "consumerGroup": "g",
                        "dead": False,
                        "deadTime": 0,
                        "expression": "a > 1",
                        "expressionType": "SQL92",
                        "topic": "T",
                    }
                },
                "topic": "T",
            }
        }
    }


def test_what_is_loaded_is_dead_until_a_heartbeat_comes(table: FilterTable) -> None:
    table.register("g", [wish("a > 1", version=7)], 5)
    again = FilterTable(FilterRules(enabled=True), BloomGeometry())
    assert again.load(json.loads(finish(table.dump_in_slices())), 100_000) == []
    data = again.get("T", "g")
    assert data is not None and (data.dead_ms, data.client_version) == (70_000, 7)
    again.register("g", [wish("a > 1", version=7)], 100_001)
    assert not data.is_dead


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"expression": "a ==", "expressionType": "SQL92"}, "is left out"),
        ({"expression": "a", "expressionType": "XPATH"}, "no kind of filter"),
        ({"expressionType": "SQL92"}, "has no expression"),
    ],
)
def test_what_cannot_be_used_of_a_file_is_told(
    table: FilterTable, entry: dict[str, str], problem: str
) -> None:
    (finding,) = table.load({"filterDataByTopic": {"T": {"groupFilterData": {"g": entry}}}}, 5)
    assert problem in finding and "group g" in finding
    odd: dict[str, Any]
    for odd in ({}, {"filterDataByTopic": []}, {"filterDataByTopic": {"T": 5}}):
        assert table.load(odd, 5) == []


def test_the_brokers_table_is_saved_and_a_group_that_left_is_dead_in_it(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    running = start_broker(enablePropertyFilter=True)
    path = tmp_path / "store" / "config" / "consumerFilter.json"
    assert path not in running.broker.dumps(), "without an expression there is no file"
    client = running.connect()
    subscribe(client, "n = 1")
    version, dump = running.broker.dumps()[path]
    entry = json.loads(finish(dump()))["filterDataByTopic"]["T"]["groupFilterData"]["cg"]
    assert (entry["dead"], entry["bornTime"]) == (False, START_MS)
    unsubscribe(client)
    later, dump = running.broker.dumps()[path]
    assert later > version
    assert json.loads(finish(dump()))["filterDataByTopic"]["T"]["groupFilterData"]["cg"]["dead"]
    subscribe(client, "n = 1")
    client.disconnect()
    assert json.loads(finish(running.broker.dumps()[path][1]()))["filterDataByTopic"]["T"]["groupFilterData"][
        "cg"
    ]["dead"]


# Computed by RocketMQ 5.5.0's BloomFilter.
BLOOM = [
    ((20, 32), "g#T", 112, [90, 68, 28]),
    ((20, 32), "groupA#TopicTest", 112, [49, 5, 28]),
    ((20, 32), "0123456789abcdef", 112, [11, 47, 60]),
    ((20, 32), "", 112, [0, 0, 0]),
    ((20, 32), "a-very-long-consumer-group-name#a-topic-with-a-name-of-some-length", 112, [18, 63, 3]),
    ((10, 128), "g#T", 616, [202, 292, 140, 261]),
    ((1, 5), "groupA#TopicTest", 48, [33, 37, 44, 44, 26, 14, 8]),
]


@pytest.mark.parametrize(("settings", "text", "bits", "positions"), BLOOM)
def test_bloom_positions_are_rocketmqs(
    settings: tuple[int, int], text: str, bits: int, positions: list[int]
) -> None:
    geometry = BloomGeometry.of(*settings)
    assert (geometry.bits, geometry.positions(text)) == (bits, positions)


@pytest.mark.parametrize("room", [True, False])
def test_many_pulls_that_look_for_messages_share_a_bounded_time_of_a_turn(
    running: InProcess, client: Client, monkeypatch: pytest.MonkeyPatch, room: bool
) -> None:
    """Eight hundred of them in one read had the loop look through thousands of messages for each, for seconds."""
    fill(client, 6)
    monkeypatch.setattr(catch_up_pulls, "FILTERED_TURN_S", 1e-9)
    if not room:
        monkeypatch.setattr(catch_up_pulls, "PULLS_MAX", 3)
    wish = {"subscription": "n > 3", "expressionType": "SQL92"}
    frames = [request(RequestCode.PULL_MESSAGE, pull_ext("T", **wish), opaque=100 + n) for n in range(20)]
    client.feed(b"".join(frames))
    waiting = running.broker.catch_up_pulls
    assert waiting.size == (19 if room else 3), "the first one has taken the time of the turn"
    answers = {each.opaque: each for each in client.answers()}
    while waiting.size:
        running.turn()
        waiting.share.begin_turn(waiting._clock(), 0.0, running.broker.store.log.end_offset)
        waiting.run()
    answers |= {each.opaque: each for each in client.answers()}
    assert answers.keys() == set(range(100, 120))
    found = [number for number, each in answers.items() if each.body and bodies(each) == [4, 5]]
    again = [number for number, each in answers.items() if not each.body]
    assert len(found) == (20 if room else 4) and len(found) + len(again) == 20
    assert all(answers[number].ext["nextBeginOffset"] == "0" for number in again)
