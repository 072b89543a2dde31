"""Heartbeats, member lists, offsets, queue boundaries and single messages, as clients see them."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from broker.state.groups import SubscriptionGroupConfig
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format.record import decode_record, encode_host, encode_record
from ropewalk.format.remoting import JSON, ROCKETMQ
from tests.broker.harness import Client, InProcess, heartbeat_body, pull_ext, send_ext, told
from tests.support.clocks import START_MS

StartBroker = Callable[..., InProcess]
KINDS = pytest.mark.parametrize("kind", [JSON, ROCKETMQ], ids=["json", "binary"])


def members(client: Client, group: str = "cg") -> list[str]:
    answer = client.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
    if answer.code == ResponseCode.SYSTEM_ERROR:
        assert f"no consumer for this group, {group}" in (answer.remark or "")
        return []
    body = json.loads(answer.body)
    assert list(body) == ["consumerIdList"]
    return sorted(body["consumerIdList"])


# -- heartbeats and members -----------------------------------------------------------------------------


@KINDS
def test_a_heartbeat_is_answered_0_and_asks_for_full_ones(client: Client, kind: int) -> None:
    opaque = client.ask(RequestCode.HEART_BEAT, body=heartbeat_body(), serialize_type=kind)
    (answer,) = client.answers()
    assert (answer.opaque, answer.code, answer.serialize_type) == (opaque, 0, kind)
    assert answer.ext["IS_SUPPORT_HEART_BEAT_V2"] == "false"
    assert answer.version >= 232


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b"{}", b'{"clientID":5}', b"\xff", b"[" * 10_000]
)
def test_what_is_no_heartbeat_is_answered_1_and_registers_nothing(running: InProcess, body: bytes) -> None:
    client = running.connect()
    answer = client.call(RequestCode.HEART_BEAT, body=body)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark
    assert running.broker.clients.client_count == 0


def test_all_members_are_told_of_a_newcomer_and_the_newcomer_too(running: InProcess) -> None:
    first, second = running.connect(), running.connect()
    first.heartbeat(client_id="a")
    assert told(first) == ["cg"]
    second.heartbeat(client_id="b")
    assert (told(first), told(second)) == (["cg"], ["cg"])
    assert members(first) == ["a", "b"]
    first.heartbeat(client_id="a")
    assert (told(first), told(second)) == ([], []), "nothing is new"


def test_a_changed_set_of_topics_is_told_and_a_newer_expression_is_not(running: InProcess) -> None:
    client = running.connect()
    client.heartbeat(topics={"T": "*"})
    assert told(client) == ["cg"]
    client.heartbeat(topics={"T": "A"}, version=2)
    assert told(client) == []
    client.heartbeat(topics={"T": "A", "U": "*"}, version=2)
    assert told(client) == ["cg"]
    client.heartbeat(topics={"U": "*"}, version=2)
    assert told(client) == ["cg"]


@pytest.mark.parametrize("how", ["closes", "unregisters", "falls silent"])
def test_the_rest_are_told_when_a_member_leaves(running: InProcess, how: str) -> None:
    stays, leaves = running.connect(), running.connect()
    stays.heartbeat(client_id="stays")
    leaves.heartbeat(client_id="leaves")
    told(stays)
    told(leaves)
    if how == "closes":
        leaves.disconnect()
    elif how == "unregisters":
        ext = {"clientID": "leaves", "consumerGroup": "cg", "producerGroup": "nobody"}
        assert leaves.call(RequestCode.UNREGISTER_CLIENT, ext).code == 0
    else:
        running.clock.ms += 100_000
        stays.heartbeat(client_id="stays")
        running.clock.ms += 50_000
        running.broker.expire_clients()
        assert (leaves.link.closed, stays.link.closed) == (True, False)
    assert told(stays) == ["cg"]
    assert leaves.answers() == []
    assert members(stays) == ["stays"]


def test_a_group_without_members_is_answered_1(running: InProcess) -> None:
    client = running.connect()
    assert members(client) == []
    client.heartbeat()
    told(client)
    client.call(RequestCode.UNREGISTER_CLIENT, {"clientID": "c1", "consumerGroup": "cg"})
    assert members(client) == []


@pytest.mark.parametrize("why", ["broadcasting", "its group is not to be told"])
def test_some_groups_are_never_told(running: InProcess, why: str) -> None:
    first, second = running.connect(), running.connect()
    if why != "broadcasting":
        config = running.broker.groups.find_or_create("cg", START_MS)
        assert config is not None
        running.broker.groups.update(replace(config, notify_consumer_ids_changed_enable=False), START_MS)
    for client, name in ((first, "a"), (second, "b")):
        client.heartbeat(client_id=name, model="BROADCASTING" if why == "broadcasting" else "CLUSTERING")
    assert (told(first), told(second)) == ([], [])
    assert members(first) == ["a", "b"]


def test_a_group_that_may_not_be_made_is_skipped_without_a_word(start_broker: StartBroker) -> None:
    running = start_broker(autoCreateSubscriptionGroup=False)
    client = running.connect()
    assert client.heartbeat().code == 0
    assert members(client) == []
    assert "%RETRY%cg" not in running.broker.topics


def test_a_heartbeat_makes_as_many_retry_queues_as_the_group_wants(running: InProcess) -> None:
    running.broker.groups.update(SubscriptionGroupConfig("cg", retry_queue_nums=4), START_MS)
    running.connect().heartbeat(group="cg")
    config = running.broker.topics.get("%RETRY%cg")
    assert config is not None and (config.read_queues, config.write_queues) == (4, 4)


def test_producers_are_registered_and_forgotten(running: InProcess) -> None:
    client = running.connect(peer=("10.0.0.9", 77))
    client.heartbeat(group=None, producers=["pg"])
    assert [m.address for m in running.broker.clients.producer_members("pg").values()] == ["10.0.0.9:77"]
    client.call(RequestCode.UNREGISTER_CLIENT, {"clientID": "c1", "producerGroup": "pg"})
    assert running.broker.clients.producer_groups() == []


# -- consumer offsets -----------------------------------------------------------------------------------


def query(client: Client, queue_id: int = 0, topic: str = "T", **more: Any) -> tuple[int, str | None]:
    ext = {"consumerGroup": "cg", "topic": topic, "queueId": queue_id, **more}
    answer = client.call(RequestCode.QUERY_CONSUMER_OFFSET, ext)
    return answer.code, answer.ext.get("offset")


def update(client: Client, **changes: Any) -> int:
    ext = {"consumerGroup": "cg", "topic": "T", "queueId": 0, "commitOffset": 5, **changes}
    return client.call(RequestCode.UPDATE_CONSUMER_OFFSET, ext).code


@KINDS
def test_a_committed_offset_is_answered_also_after_it_went_back(client: Client, kind: int) -> None:
    client.send("T")
    client.heartbeat()
    client.owner.tick(50)
    client.answers()
    for offset in (5, 9, 3):
        assert update(client, commitOffset=offset) == 0
        ext = {"consumerGroup": "cg", "topic": "T", "queueId": 0}
        answer = client.call(RequestCode.QUERY_CONSUMER_OFFSET, ext, serialize_type=kind)
        assert (answer.code, answer.ext) == (0, {"offset": str(offset)})
    assert query(client, 1) == (0, "0"), "another queue's is its own"


def test_a_commit_needs_its_group_its_topic_and_all_its_fields(client: Client) -> None:
    client.send("T")
    assert update(client) == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    client.pull("T")
    assert update(client, topic="none") == ResponseCode.TOPIC_NOT_EXIST
    for field in ("consumerGroup", "topic", "queueId", "commitOffset"):
        assert update(client, **{field: None}) == ResponseCode.INVALID_PARAMETER
    assert update(client, commitOffset="many") == ResponseCode.INVALID_PARAMETER
    for queue_id in (-1, 2**31 - 1):
        assert update(client, queueId=queue_id) == ResponseCode.INVALID_PARAMETER
    assert len(client.owner.broker.offsets) == 0
    assert update(client) == 0


def test_commits_are_taken_of_queues_that_a_topic_has_no_more(client: Client) -> None:
    """As in RocketMQ: consumers commit while their topic is made smaller, and the number of offsets has a bound."""
    client.send("T", queueId=3)
    client.pull("T")
    running = client.owner
    config = running.broker.topics.get("T")
    assert config is not None and config.queues == 4
    running.broker.topics.update(replace(config, read_queues=2, write_queues=2), running.clock.ms)
    assert [update(client, queueId=queue_id) for queue_id in (3, 2, 9)] == [0, 0, 0]


def test_a_oneway_commit_counts_and_is_not_answered(client: Client) -> None:
    client.send("T")
    client.pull("T")
    ext = {"consumerGroup": "cg", "topic": "T", "queueId": 0, "commitOffset": 4}
    client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext, flag=2)
    assert client.answers() == []
    assert query(client) == (0, "4")


def test_a_new_group_starts_a_young_queue_at_its_beginning(client: Client) -> None:
    for _ in range(3):
        client.send("T")
    assert query(client) == (0, "0")
    assert query(client, setZeroIfNotFound="true") == (0, "0")
    assert query(client, setZeroIfNotFound="false")[0] == ResponseCode.QUERY_NOT_FOUND


def test_a_queue_that_lost_messages_or_reaches_far_back_is_not_young(running: InProcess) -> None:
    client = running.connect()
    for _ in range(3):
        client.send("T")
    broker = running.broker
    queue = broker.store.find_queue("T", 0)
    assert queue is not None
    broker.reader.limits = replace(broker.reader.limits, memory_window=1)
    assert query(client) == (ResponseCode.QUERY_NOT_FOUND, None)
    broker.reader.limits = replace(broker.reader.limits, memory_window=broker.store.log.end_offset)
    assert query(client) == (0, "0")
    queue.min_offset = 1
    assert query(client) == (ResponseCode.QUERY_NOT_FOUND, None)


# -- boundaries -------------------------------------------------------------------------------------------


def offset(client: Client, code: int, **ext: Any) -> int:
    answer = client.call(code, {"topic": "T", "queueId": 0, **ext})
    assert answer.code == 0, answer.remark
    return int(answer.ext["offset"])


@KINDS
def test_the_ends_of_a_queue_are_its_first_kept_and_its_next_message(client: Client, kind: int) -> None:
    for _ in range(3):
        client.send("T")
    ext = {"topic": "T", "queueId": 0, "committed": True}
    assert client.call(RequestCode.GET_MAX_OFFSET, ext, serialize_type=kind).ext == {"offset": "3"}
    assert client.call(RequestCode.GET_MIN_OFFSET, ext, serialize_type=kind).ext == {"offset": "0"}


@pytest.mark.parametrize("code", [RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET])
@pytest.mark.parametrize(("topic", "queue_id"), [("none", 0), ("T", 99), ("T", -1), ("../x", 0), ("", 0)])
def test_a_queue_nobody_knows_begins_and_ends_at_0(
    client: Client, code: int, topic: str, queue_id: int
) -> None:
    client.send("T")
    assert offset(client, code, topic=topic, queueId=queue_id) == 0


def test_a_time_finds_the_first_message_stored_at_or_after_it(running: InProcess) -> None:
    client = running.connect()
    for at in (0, 10, 10, 20):
        running.clock.ms = START_MS + at
        client.send("T")
    search = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
    found = [offset(client, search, timestamp=START_MS + at) for at in (-5, 0, 1, 10, 11, 20, 21, 10**9)]
    assert found == [0, 0, 1, 1, 3, 3, 4, 4]
    upper = [
        offset(client, search, timestamp=START_MS + at, boundaryType="upper") for at in (0, 1, 10, 11, 20, 99)
    ]
    assert upper == [0, 0, 2, 2, 3, 3]
    assert offset(client, search, timestamp=-(2**63)) == 0
    assert offset(client, search, timestamp=2**63 - 1) == 4
    assert offset(client, search, timestamp=5, topic="none") == 0


def test_the_earliest_store_time_is_that_of_the_first_kept_message(running: InProcess) -> None:
    client = running.connect()
    earliest = RequestCode.GET_EARLIEST_MSG_STORETIME
    assert client.call(earliest, {"topic": "T", "queueId": 0}).ext == {"timestamp": "-1"}
    client.send("T")
    running.clock.ms += 7
    client.send("T")
    assert client.call(earliest, {"topic": "T", "queueId": 0}).ext == {"timestamp": str(START_MS)}
    queue = running.broker.store.find_queue("T", 0)
    assert queue is not None
    queue.min_offset = 1
    assert client.call(earliest, {"topic": "T", "queueId": 0}).ext == {"timestamp": str(START_MS + 7)}


# -- one message --------------------------------------------------------------------------------------------


@KINDS
def test_a_message_is_found_by_the_offset_in_its_id(client: Client, kind: int) -> None:
    client.send("T")
    ids = [client.send("T", b"sought").ext["msgId"] for _ in range(2)]
    at = int(ids[0][-16:], 16)
    answer = client.call(RequestCode.VIEW_MESSAGE_BY_ID, {"topic": "T", "offset": at}, serialize_type=kind)
    assert answer.code == 0
    record = decode_record(answer.body)
    assert (record.msg_id, record.body, record.size) == (ids[0], b"sought", len(answer.body))


@pytest.mark.parametrize("at", [1, 50, -1, -(2**63), 10**6, 2**62])
def test_an_offset_at_which_no_message_begins_is_answered_1(client: Client, at: int) -> None:
    client.send("T")
    answer = client.call(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": at})
    assert (answer.code, answer.body) == (ResponseCode.SYSTEM_ERROR, b"")
    assert str(at) in (answer.remark or "")


def test_what_looks_like_a_message_inside_a_message_is_none(client: Client) -> None:
    host = encode_host("127.0.0.1", 10911)
    at = client.owner.broker.store.log.end_offset + 88
    forged = encode_record(b"T", 0, 0, 0, at, 0, 1, host, 2, host, 0, 0, b"forged", b"")
    assert client.send("T", forged).code == 0
    answer = client.call(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": at - 88})
    assert decode_record(answer.body).body == forged
    answer = client.call(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": at})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == f"can not find message by the offset, {at}"


def test_the_end_of_the_log_is_no_message(client: Client) -> None:
    client.send("T")
    end = client.owner.broker.store.log.end_offset
    assert client.call(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": end}).code == ResponseCode.SYSTEM_ERROR


def test_an_answer_from_the_disk_comes_after_the_close_to_nobody(running: InProcess) -> None:
    client = running.connect()
    client.send("T")
    client.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": 0})
    client.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {"topic": "T", "queueId": 0, "timestamp": 0})
    client.disconnect()
    running.until(lambda: not any(worker.pending for worker in running.broker.reader._workers))
    assert client.answers() == []


def test_too_many_look_ups_are_answered_at_once(running: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    client = running.connect()
    client.send("T")
    monkeypatch.setattr(running.broker.reader, "_in_flight_max", 0)
    search = {"topic": "T", "queueId": 0, "timestamp": 0}
    answer = client.call(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, search)
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert client.call(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": 0}).code == ResponseCode.SYSTEM_BUSY
    assert client.pull("T").code == 0, "what needs no disk goes on"
    assert client.call(RequestCode.SEND_MESSAGE_V2, send_ext("T")).code == 0
    assert client.call(RequestCode.PULL_MESSAGE, pull_ext("T", queueOffset=2)).code == 19
