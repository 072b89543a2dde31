"""The official Java clients see what they would see from Apache RocketMQ.

Each test runs for client 5.5.0 and 4.9.8, in both serialisations. The expectations were met by Apache
RocketMQ 5.5.0 itself: ROPEWALK_COMPAT_TARGET=rocketmq runs them against it again.
"""

from __future__ import annotations

from collections import defaultdict

import pytest

from tests.compat.conftest import Server
from tests.compat.driver import Driver, Event, Run

pytestmark = [pytest.mark.compat, pytest.mark.slow]

# How late a held pull may be answered on a machine that is busy with other things; an answer that only
# comes with the end of the hold takes fifteen seconds or more.
PROMPT_MS = 2_000
REBALANCE_MS = 8_000
COMPRESSION_TYPE = 0x700
ZLIB = 0x300
TOPIC_NOT_EXIST = 17
MESSAGE_ILLEGAL = 13
INVALID_PARAMETER = 29


def queue_offsets(messages: list[Event]) -> dict[int, list[int]]:
    """By queue, the offsets in the order in which they were seen."""
    offsets: dict[int, list[int]] = defaultdict(list)
    for message in messages:
        offsets[message["queueId"]].append(message["queueOffset"])
    return offsets


def assert_dense(messages: list[Event]) -> None:
    """Every queue's offsets begin at nought and leave none out."""
    for queue, offsets in queue_offsets(messages).items():
        assert sorted(offsets) == list(range(len(offsets))), (queue, offsets)


def bodies(messages: list[Event]) -> list[str]:
    return [message["body"] for message in messages]


def test_synchronous_sends_are_stored_one_by_one_over_all_queues(run: Run) -> None:
    results = run.sent("send_sync")
    assert [result["status"] for result in results] == ["SEND_OK"] * 8
    assert run.one("send_sync", "queues")["count"] == 4
    assert set(queue_offsets(results)) == {0, 1, 2, 3}
    assert_dense(results)


def test_an_answer_names_the_message_by_its_place_in_the_store(run: Run, server: Server) -> None:
    ip, _, port = server.broker.rpartition(":")
    host = "".join(f"{int(part):02X}" for part in ip.split(".")) + f"{int(port):08X}"
    offsets = []
    for result in run.sent("send_sync"):
        assert len(result["offsetMsgId"]) == 32
        assert result["offsetMsgId"].startswith(host)
        offsets.append(int(result["offsetMsgId"][16:], 16))
    assert offsets == sorted(set(offsets))


def test_asynchronous_sends_are_all_answered(run: Run) -> None:
    assert run.one("send_async", "answered")["all"]
    assert run.events("send_async", "refused") == []
    results = run.sent("send_async")
    assert [result["status"] for result in results] == ["SEND_OK"] * 33
    assert len({result["offsetMsgId"] for result in results}) == 33
    assert_dense(results)


def test_oneway_sends_are_stored(run: Run) -> None:
    messages = run.received("send_oneway")
    assert sorted(bodies(messages)) == [f"oneway {i}" for i in range(8)]
    assert_dense(messages)


def test_a_batch_is_stored_as_messages_of_one_queue_in_order(run: Run) -> None:
    (result,) = run.sent("send_batch")
    messages = run.received("send_batch")
    assert result["status"] == "SEND_OK"
    assert result["queueOffset"] == 0
    assert bodies(messages) == [f"batch {i}" for i in range(10)]
    assert queue_offsets(messages) == {result["queueId"]: list(range(10))}
    assert [message["msgId"] for message in messages] == result["msgId"].split(",")
    for i, message in enumerate(messages):
        assert (message["tags"], message["keys"]) == (f"tag{i % 2}", f"key{i}")
        assert message["properties"]["index"] == str(i)


def test_a_batchs_answer_names_every_message_in_it(run: Run) -> None:
    (result,) = run.sent("send_batch")
    offsets = [int(name[16:], 16) for name in result["offsetMsgId"].split(",")]
    assert offsets == [message["commitLogOffset"] for message in run.received("send_batch")]


def test_a_selector_decides_the_queue(run: Run) -> None:
    selected = run.events("send_selected", "selected")
    assert [event["result"]["queueId"] for event in selected] == [i % 4 for i in range(12)]
    assert [event["result"]["queueOffset"] for event in selected] == [i // 4 for i in range(12)]


def test_a_topic_is_created_with_as_many_queues_as_its_first_producer_asks_for(run: Run) -> None:
    (result,) = run.sent("auto_create")
    assert (result["status"], result["queueOffset"]) == ("SEND_OK", 0)
    assert run.one("auto_create", "queues")["count"] == 2


def test_big_bodies_come_back_whole(run: Run) -> None:
    wanted = [event["sha256"] for event in run.events("big_bodies", "body")]
    messages = sorted(run.received("big_bodies"), key=lambda message: int(message["commitLogOffset"]))
    assert [message["bodySha256"] for message in messages] == wanted
    assert [message["bodyLength"] for message in messages] == [100 * 1024] * 2


def test_a_compressible_body_is_stored_compressed(run: Run) -> None:
    smallest = min(run.received("big_bodies"), key=lambda message: int(message["storeSize"]))
    assert smallest["storeSize"] < 1_000
    # Client 5.5.0 clears the flag "compressed" as it inflates the body, 4.9.8 does not. The compressor's
    # number stays with both.
    assert smallest["sysFlag"] & COMPRESSION_TYPE == ZLIB


def test_keys_tags_flags_and_properties_survive_in_any_script(run: Run) -> None:
    (message,) = run.received("round_trip")
    assert message["body"] == "Tauwerk für Zoë \N{KNOT} 索具"
    assert message["tags"] == "标签"
    assert message["keys"] == "ключ key-2 κλειδί"
    assert message["flag"] == -7
    properties = message["properties"]
    assert properties["ünïcode"] == "välue \N{ROCKET}"
    assert properties["with spaces"] == 'a=b; c:d, "quoted" \\ and {braces}'
    assert properties["BUYER_ID"] == "buyer-1"
    assert properties["WAIT"] == "true"
    assert properties["UNIQ_KEY"] == message["msgId"] == run.sent("round_trip")[0]["msgId"]


def test_the_broker_adds_its_own_to_the_properties_of_a_single_message(run: Run) -> None:
    (message,) = run.received("round_trip")
    own = {name: message["properties"][name] for name in ("CLUSTER", "MSG_REGION", "TRACE_ON")}
    assert own == {"CLUSTER": "DefaultCluster", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}


def test_a_message_knows_who_sent_it_and_who_stored_it(run: Run, server: Server) -> None:
    (message,) = run.received("round_trip")
    assert message["bornHost"].startswith("/127.0.0.1:")
    assert message["storeHost"] == f"/{server.broker}"
    assert message["bornTimestamp"] <= message["storeTimestamp"] + PROMPT_MS
    assert message["reconsumeTimes"] == 0


def test_a_body_over_the_limit_is_refused_and_the_connection_lives_on(run: Run) -> None:
    refused = {event["what"]: event["code"] for event in run.events("send_refused", "refused")}
    assert refused["body"] == MESSAGE_ILLEGAL
    assert [result["status"] for result in run.sent("send_refused")] == ["SEND_OK"]


def test_a_queue_beyond_the_topics_is_refused_to_producers(run: Run) -> None:
    refused = {event["what"]: event["code"] for event in run.events("send_refused", "refused")}
    assert refused["queue"] == INVALID_PARAMETER


def test_the_old_pull_consumer_reads_a_queue_in_order(run: Run) -> None:
    assert run.one("pull_old", "queues")["count"] == 4
    bounds = run.one("pull_old", "bounds")
    messages = run.received("pull_old")
    assert bodies(messages)[-50:] == [f"pull {i}" for i in range(50)]
    assert queue_offsets(messages) == {messages[0]["queueId"]: list(range(bounds["max"]))}
    assert bounds["min"] == 0
    forward = [event for event in run.events("pull_old", "pulled") if event["where"] == "forward"]
    assert [event["count"] for event in forward] == [20, 20, bounds["max"] - 40]
    assert {event["status"] for event in forward} == {"FOUND"}
    assert forward[-1]["next"] == forward[-1]["max"] == bounds["max"]


def test_a_pull_at_the_end_finds_nothing_new_and_one_beyond_it_is_set_right(run: Run) -> None:
    end = run.one("pull_old", "bounds")["max"]
    pulled = {event["where"]: event for event in run.events("pull_old", "pulled")}
    assert (pulled["at the end"]["status"], pulled["at the end"]["next"]) == ("NO_NEW_MSG", end)
    assert (pulled["beyond the end"]["status"], pulled["beyond the end"]["next"]) == ("OFFSET_ILLEGAL", end)


def test_a_committed_offset_is_read_back(run: Run) -> None:
    committed = {event["when"]: event["offset"] for event in run.events("pull_old", "committed")}
    assert committed["after"] == 17


def test_a_group_without_a_committed_offset_begins_at_nought_while_the_queue_still_does(run: Run) -> None:
    committed = {event["when"]: event["offset"] for event in run.events("pull_old", "committed")}
    assert committed["before"] == 0


def test_pulls_from_nowhere_are_refused(run: Run) -> None:
    refused = {event["what"]: event["code"] for event in run.events("pull_old", "refused")}
    assert refused == {"topic": TOPIC_NOT_EXIST, "queue": INVALID_PARAMETER}


def test_a_held_pull_is_answered_by_the_next_message(run: Run) -> None:
    held = run.one("pull_held", "held")
    assert held["waitedMs"] >= 1_400
    assert held["afterAckMs"] < PROMPT_MS
    assert bodies(run.received("pull_held")) == ["what the held pull waits for"]


def test_the_broker_filters_by_tag(run: Run) -> None:
    filtered = {event["expression"]: event for event in run.events("tag_filter", "filtered")}

    def ends(expression: str) -> list[str]:
        return [body for body in filtered[expression]["bodies"] if body != "A first"]

    assert ends("*") == ["A 0", "B 1", "C 2", "null 3", "A 4", "B 5"]
    assert ends("A") == ["A 0", "A 4"]
    assert ends("A || C") == ["A 0", "C 2", "A 4"]
    assert ends("B||nothing") == ["B 1", "B 5"]
    assert filtered["nothing"]["bodies"] == []
    assert filtered["nothing"]["statuses"] == ["NO_MATCHED_MSG"]


def test_the_lite_consumer_polls_assigned_queues(run: Run) -> None:
    assert run.one("lite_assign", "queues")["count"] == 4
    messages = run.received("lite_assign")
    assert set(queue_offsets(messages)) == {0, 1}
    assert_dense(messages)


def test_the_lite_consumer_seeks(run: Run) -> None:
    events = run.events("lite_seek")
    (turn,) = (i for i, event in enumerate(events) if event["event"] == "seek")
    before = [event["message"] for event in events[:turn]]
    after = [event["message"] for event in events[turn:] if event["event"] == "received"]
    assert_dense(before)
    assert sorted(places(after)) == sorted(place for place in places(before) if place[1] >= 5)


def places(messages: list[Event]) -> list[tuple[int, int]]:
    return [(message["queueId"], message["queueOffset"]) for message in messages]


def test_the_lite_consumers_commit_is_found_by_the_next_member(run: Run) -> None:
    committed = run.events("lite_assign", "committed")
    assert [event["queue"] for event in committed] == [0, 1]
    assert all(event["offset"] == event["end"] for event in committed)


def test_the_lite_consumer_subscribes_with_a_tag(run: Run) -> None:
    messages = run.received("lite_subscribe")
    assert sorted(bodies(messages)) == sorted(f"lite {i}" for i in range(0, 40, 2))
    assert {message["tags"] for message in messages} == {"even"}


def test_offsets_are_found_by_time(run: Run) -> None:
    bounds = run.one("offsets", "bounds")
    assert (bounds["min"], bounds["max"]) == (0, bounds["count"])
    searched = {event["for"]: event for event in run.events("offsets", "searched")}
    assert searched["long ago"]["offset"] == 0
    for name in ("exactly the sixth", "just after the sixth"):
        assert searched[name]["offset"] == searched[name]["expected"], name
    assert searched["the future"]["offset"] == searched["the future"]["max"] == bounds["max"]


def test_a_message_is_viewed_by_its_id(run: Run) -> None:
    results, messages = run.sent("view_by_id"), run.received("view_by_id")
    assert len(results) == 3
    assert bodies(messages) == ["view 0", "view 1", "view 2"]
    for result, message in zip(results, messages, strict=True):
        assert message["msgId"] == result["msgId"]
        assert message["commitLogOffset"] == int(result["offsetMsgId"][16:], 16)
        assert places([message]) == places([result])


def test_a_push_consumer_gets_every_message_once_and_in_the_queues_order(run: Run) -> None:
    first = [event["message"] for event in run.events("push", "received") if event["member"] == "first"]
    assert sorted(bodies(first)) == sorted([f"push {i}" for i in range(40)] + [f"held {i}" for i in range(5)])
    assert_dense(first)


def test_a_push_consumers_held_pull_is_answered_by_the_next_message(run: Run) -> None:
    held = run.events("push", "held")
    assert len(held) == 5
    assert all(event["afterAckMs"] < PROMPT_MS for event in held), held


def test_a_group_resumes_where_it_had_committed(run: Run) -> None:
    assert run.one("push", "resumed")["bodies"] == [f"later {i}" for i in range(6)]


def test_a_push_consumer_filters_by_tags(run: Run) -> None:
    messages = run.received("push_tags")
    assert run.one("push_tags", "filtered")["count"] == 16
    assert sorted(bodies(messages)) == sorted(f"{'ABC'[i % 3]}{i}" for i in range(24) if i % 3 != 1)


def test_two_members_share_the_queues(run: Run) -> None:
    shared = run.one("push_pair", "shared")
    assert sorted(shared["ann"] + shared["bob"]) == [0, 1, 2, 3]
    assert len(shared["ann"]) == len(shared["bob"]) == 2
    assert shared["ms"] < REBALANCE_MS
    together = run.one("push_pair", "together")
    assert together["ann"] >= 20
    assert together["bob"] >= 20


def test_the_remaining_member_takes_over_when_the_other_leaves(run: Run) -> None:
    left = run.one("push_pair", "left")
    assert left["ann"] == [0, 1, 2, 3]
    # The client's own turn comes every twenty seconds: sooner than that, the broker must have told it.
    assert left["ms"] < REBALANCE_MS
    alone = [
        event["member"]
        for event in run.events("push_pair", "received")
        if event["message"]["body"].startswith("alone")
    ]
    assert alone == ["ann"] * 40


def by_member(run: Run, scenario: str) -> dict[str, list[str]]:
    """The bodies that each member received."""
    seen: dict[str, list[str]] = {}
    for event in run.events(scenario, "received"):
        seen.setdefault(event["member"], []).append(event["message"]["body"])
    return seen


def test_every_member_of_a_broadcasting_group_gets_everything_and_goes_on_where_it_stopped(run: Run) -> None:
    seen = by_member(run, "broadcast")
    before, later = ["first", *(f"all {n}" for n in range(20))], [f"later {n}" for n in range(8)]
    assert sorted(seen["ann"]) == sorted(before)
    assert sorted(seen["bob"]) == sorted(before + later)
    assert sorted(seen["again"]) == sorted(later)


def test_two_groups_know_nothing_of_each_other(run: Run) -> None:
    seen = by_member(run, "two_groups")
    before, later = ["first", *(f"both {n}" for n in range(40))], [f"later {n}" for n in range(8)]
    assert sorted(seen["one"]) == sorted(before)
    assert sorted(seen["two"]) == sorted(before + later)


def test_members_may_leave_the_division_of_queues_to_the_broker(run: Run, driver: Driver) -> None:
    if driver.version == "4.9.8":
        assert run.one("assigned", "unsupported")
        return
    assigned = run.events("assigned", "assigned")
    assert [event["byBroker"] for event in assigned] == [True, True]
    assert sorted(queue for event in assigned for queue in event["queues"]) == [0, 1, 2, 3]
    seen = by_member(run, "assigned")
    assert set(seen["ann"]) | set(seen["bob"]) == {"first", *(f"together {n}" for n in range(40))}
