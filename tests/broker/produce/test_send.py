"""Sends: what is refused and how, what is stored, and when it is answered."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker import refusal as refusal_module
from broker.state.topics import TopicConfig
from ropewalk.codes import MessageSysFlag, Permission, RequestCode, ResponseCode
from ropewalk.format import names
from ropewalk.format.properties import tags_code
from ropewalk.format.record import message_id
from ropewalk.format.remoting import JSON, ROCKETMQ
from tests.broker.harness import (
    UNIQ,
    Client,
    FlushGate,
    FullDisk,
    InProcess,
    batch_of,
    request,
    send_ext,
    taken,
    text_of,
)
from tests.support.clocks import START_MS

StartBroker = Callable[..., InProcess]
KINDS = pytest.mark.parametrize("kind", [JSON, ROCKETMQ], ids=["json", "binary"])
V2 = RequestCode.SEND_MESSAGE_V2
BATCH = RequestCode.SEND_BATCH_MESSAGE
OWN = {"CLUSTER": "DefaultCluster", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
"""What the broker stores with every single message, as the original does."""


# -- what a send that is taken looks like ---------------------------------------------------------------


@KINDS
@pytest.mark.parametrize("v1", [True, False], ids=["code 10", "code 310"])
def test_a_message_is_stored_as_it_came_with_the_brokers_own_properties(
    running: InProcess, v1: bool, kind: int
) -> None:
    client = running.connect(peer=("10.1.2.3", 4567))
    running.clock.ms += 17
    ext = send_ext(
        "T", v1=v1, queueId=2, flag=77, reconsumeTimes=3, sysFlag=1, properties={"TAGS": "TagA", "k": "é"}
    )
    answer = client.call(RequestCode.SEND_MESSAGE if v1 else V2, ext, b"\x00body", serialize_type=kind)
    (record,) = running.stored("T", 2)
    assert record.body == b"\x00body"
    assert record.properties == {
        "UNIQ_KEY": UNIQ,
        "WAIT": "true",
        "TAGS": "TagA",
        "k": "é",
        **OWN,
    }
    assert (record.flag, record.reconsume_times, record.sys_flag) == (77, 3, 1)
    assert record.born_timestamp == START_MS - 5
    assert record.store_timestamp == START_MS + 17
    assert record.born_host == ("10.1.2.3", 4567)
    assert record.store_host == ("127.0.0.1", 10911)
    assert answer.code == 0
    assert answer.ext == {
        "msgId": record.msg_id,
        "queueId": "2",
        "queueOffset": "0",
        "transactionId": UNIQ,
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }
    queue = running.broker.store.find_queue("T", 2)
    assert queue is not None
    assert queue.read(0)[2] == tags_code("TagA")


def test_a_message_without_an_id_is_given_one_and_told_it(client: Client) -> None:
    seen = set()
    for properties in ("", None, text_of({"TAGS": "A"}), "UNIQ_KEY\x01\x02"):
        answer = client.send("T", properties=properties)
        assert answer.code == 0
        key = answer.ext["transactionId"]
        assert client.owner.stored("T")[-1].uniq_key == key
        assert len(key) == 32
        seen.add(key)
    assert len(seen) == 4


@pytest.mark.parametrize("close", ["\x02", ""])
def test_added_properties_do_not_run_into_the_last_one(client: Client, close: str) -> None:
    for _way in ("the readable one, the topic is new", "the fast one"):
        client.send("T", properties=f"UNIQ_KEY\x01{UNIQ}\x02TAGS\x01A{close}")
        record = client.owner.stored("T")[-1]
        assert record.properties == {"UNIQ_KEY": UNIQ, "TAGS": "A", **OWN}


def test_what_a_client_says_about_the_cluster_is_replaced(client: Client) -> None:
    for _way in range(2):
        client.send("T", properties={"CLUSTER": "elsewhere", "POP_CK": "x", "__CRC32#": "1"})
        assert client.owner.stored("T")[-1].properties == {
            "UNIQ_KEY": UNIQ,
            "WAIT": "true",
            **OWN,
        }


def test_a_region_that_needs_escaping_is_told_unharmed(start_broker: StartBroker) -> None:
    running = start_broker(regionId='100% "a\\b" %d é', traceOn=False)
    client = running.connect()
    for _way in range(2):
        answer = client.send("T")
        assert answer.ext["MSG_REGION"] == '100% "a\\b" %d é'
        assert answer.ext["TRACE_ON"] == "false"


def test_offsets_of_a_queue_count_its_messages_only(client: Client) -> None:
    answers = [client.send(topic, queueId=q) for topic, q in [("T", 0), ("U", 0), ("T", 1), ("T", 0)]]
    assert [a.ext["queueOffset"] for a in answers] == ["0", "0", "0", "1"]


def test_store_times_never_go_back_even_if_the_clock_does(running: InProcess) -> None:
    client = running.connect()
    client.send("T")
    running.clock.set_wall(-60_000)
    client.send("T")
    assert [r.store_timestamp for r in running.stored("T")] == [START_MS, START_MS]


# -- topics -------------------------------------------------------------------------------------------------


@KINDS
@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE, V2, BATCH])
@pytest.mark.parametrize(
    "topic",
    [
        "../../etc/passwd",
        "/etc",
        "a/b",
        "..",
        ".",
        "a.b",
        " ",
        "a b",
        "tab\t",
        "T\x00",
        "T\n",
        "é",
        "標籤",
        "T" * 128,
        "%RETRY%" + "g" * 249,
        "@",
        "a\\b",
        "C:",
    ],
)
def test_a_name_no_topic_can_have_is_answered_29(
    running: InProcess, topic: str, code: int, kind: int, tmp_path: Path
) -> None:
    before = taken(running)
    ext = send_ext(topic, v1=code == RequestCode.SEND_MESSAGE)
    answer = running.connect().call(code, ext, b"x", serialize_type=kind)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert "topic name" in (answer.remark or "")
    assert answer.ext == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
    assert taken(running) == before
    assert running.broker.store.find_queue(topic, 0) is None
    assert {p.name for p in tmp_path.iterdir()} == {"store"}


def test_an_empty_topic_name_is_answered_29(client: Client) -> None:
    assert client.send("").code == ResponseCode.INVALID_PARAMETER


def test_the_longest_names_are_taken(client: Client) -> None:
    assert client.send("T" * 127).code == 0
    retry = "%RETRY%" + "g" * 120
    assert client.send(retry).code == 0
    assert client.owner.stored(retry)[0].topic == retry


@pytest.mark.parametrize("topic", sorted(names.SEND_FORBIDDEN_TOPICS))
def test_topics_of_the_broker_itself_are_answered_16(running: InProcess, topic: str) -> None:
    before = taken(running)
    assert running.connect().send(topic).code == ResponseCode.NO_PERMISSION
    assert taken(running) == before


def test_a_topic_is_made_with_the_queues_asked_for_up_to_the_create_keys(running: InProcess) -> None:
    client = running.connect()
    for wanted, given_ in ((4, 4), (100, 8), (1, 1)):
        name = f"T{wanted}"
        assert client.send(name, defaultTopicQueueNums=wanted).code == 0
        config = running.broker.topics.get(name)
        assert config is not None
        assert (config.read_queues, config.write_queues, config.perm) == (given_, given_, 6)


@pytest.mark.parametrize("key", ["TBW102", "DefaultCluster", "broker-a"])
def test_without_automatic_topics_every_create_key_is_answered_17(
    start_broker: StartBroker, key: str
) -> None:
    running = start_broker(autoCreateTopicEnable=False)
    before = taken(running)
    answer = running.connect().send("T", defaultTopic=key)
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert "not exist, apply first please!" in (answer.remark or "")
    assert taken(running) == before


@pytest.mark.parametrize("key", ["", "nobody", "plain", "../x", "SCHEDULE_TOPIC_XXXX"])
def test_a_create_key_that_is_none_is_answered_17(running: InProcess, key: str) -> None:
    running.broker.topics.update(TopicConfig("plain"), START_MS)
    assert running.connect().send("T", defaultTopic=key).code == ResponseCode.TOPIC_NOT_EXIST


def test_a_retry_topic_is_always_made_with_one_queue(start_broker: StartBroker) -> None:
    running = start_broker(autoCreateTopicEnable=False)
    assert running.connect().send("%RETRY%g", defaultTopic="").code == 0
    config = running.broker.topics.get("%RETRY%g")
    assert config is not None
    assert (config.read_queues, config.write_queues) == (1, 1)
    assert running.connect().send("%RETRY%", defaultTopic="").code == ResponseCode.TOPIC_NOT_EXIST


def test_a_topic_without_write_permission_is_still_written_as_in_the_original(running: InProcess) -> None:
    running.broker.topics.update(TopicConfig("T", 4, 4, Permission.READ), START_MS)
    client = running.connect()
    assert [client.send("T").code for _ in range(2)] == [0, 0]


def test_a_broker_that_may_not_be_written_refuses_order_topics_first_of_all(
    start_broker: StartBroker,
) -> None:
    running = start_broker(brokerPermission=Permission.READ)
    running.broker.topics.update(TopicConfig("ordered", 4, 4, order=True), START_MS)
    client = running.connect()
    assert client.send("ordered", queueId=99).code == ResponseCode.NO_PERMISSION
    assert client.send("T").code == 0


@pytest.mark.parametrize("queue_id", [8, 100, 2**31 - 1])
def test_a_queue_beyond_the_topics_is_answered_29(client: Client, queue_id: int) -> None:
    for _way in range(2):
        answer = client.send("T", queueId=queue_id, defaultTopicQueueNums=8)
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert str(queue_id) in (answer.remark or "")
        client.send("T")


@pytest.mark.parametrize("queue_id", [-1, -7, -(2**31)])
def test_a_negative_queue_means_any_that_can_be_written(running: InProcess, queue_id: int) -> None:
    running.broker.topics.update(TopicConfig("T", read_queues=8, write_queues=3), START_MS)
    client = running.connect()
    answers = [client.send("T", queueId=queue_id) for _ in range(60)]
    assert {int(a.ext["queueId"]) for a in answers} == {0, 1, 2}
    for queue_id in range(3):
        assert len(running.stored("T", queue_id)) == sum(a.ext["queueId"] == str(queue_id) for a in answers)


def test_queues_that_are_only_read_are_still_written_when_asked_for(running: InProcess) -> None:
    running.broker.topics.update(TopicConfig("T", read_queues=8, write_queues=3), START_MS)
    client = running.connect()
    assert [client.send("T", queueId=q).code for q in (7, 7, 8)] == [0, 0, ResponseCode.INVALID_PARAMETER]


def test_a_topic_that_becomes_smaller_refuses_the_queues_it_lost(running: InProcess) -> None:
    running.broker.topics.update(TopicConfig("T", 8, 8), START_MS)
    client = running.connect()
    assert [client.send("T", queueId=7).code for _ in range(2)] == [0, 0]
    running.broker.topics.update(TopicConfig("T", 4, 4), START_MS)
    assert client.send("T", queueId=7).code == ResponseCode.INVALID_PARAMETER


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"topic": "a/b", "queueId": 99, "properties": {"TRAN_MSG": "true"}}, ResponseCode.INVALID_PARAMETER),
        (
            {"topic": "SELF_TEST_TOPIC", "queueId": 99, "properties": {"TRAN_MSG": "true"}},
            ResponseCode.NO_PERMISSION,
        ),
        (
            {"topic": "new", "defaultTopic": "none", "queueId": 99, "properties": {"TRAN_MSG": "true"}},
            ResponseCode.TOPIC_NOT_EXIST,
        ),
        ({"topic": "T", "queueId": 99, "properties": {"TRAN_MSG": "true"}}, ResponseCode.INVALID_PARAMETER),
    ],
)
def test_the_first_check_that_fails_is_the_one_answered(
    client: Client, changes: dict[str, Any], code: int
) -> None:
    body = b"x" * ((4 << 20) + 1)
    topic = changes.pop("topic")
    assert client.send(topic, body, **changes).code == code


# -- sizes ----------------------------------------------------------------------------------------------


def test_a_body_at_the_limit_is_taken_and_one_byte_more_is_answered_13(start_broker: StartBroker) -> None:
    running = start_broker(maxMessageSize=5000)
    client = running.connect()
    for _way in range(2):
        assert client.send("T", b"x" * 5000).code == 0
        refused = client.send("T", b"x" * 5001)
        assert refused.code == ResponseCode.MESSAGE_ILLEGAL
        assert "5001" in (refused.remark or "")
    assert [len(r.body) for r in running.stored("T")] == [5000, 5000]


def test_a_body_larger_than_a_segment_is_answered_13_whichever_way_it_comes(
    start_broker: StartBroker,
) -> None:
    running = start_broker(mappedFileSizeCommitLog=128 << 10)
    client = running.connect()
    client.send("T")
    for size in (131_072, 131_000, 130_950):
        client.feed(
            request(V2, send_ext("T"), b"before", opaque=1)
            + request(V2, send_ext("T"), b"x" * size, opaque=2)
            + request(V2, send_ext("T"), b"behind", opaque=3)
        )
        answers = {c.opaque: c.code for c in client.answers()}
        assert answers == {1: 0, 2: ResponseCode.MESSAGE_ILLEGAL, 3: 0}
    assert [r.body for r in running.stored("T")] == [b"x"] + [b"before", b"behind"] * 3


def test_the_largest_message_a_segment_holds_is_stored(start_broker: StartBroker) -> None:
    running = start_broker(mappedFileSizeCommitLog=128 << 10)
    client = running.connect()
    client.send("T")
    overhead = running.stored("T")[0].size - 1
    largest = (128 << 10) - overhead - 8
    codes = [client.send("T", b"y" * size).code for size in (largest + 2, largest + 1, largest - 1)]
    assert codes[0] == ResponseCode.MESSAGE_ILLEGAL
    assert codes[2] == 0
    assert len(running.stored("T")[-1].body) == largest - 1


def test_properties_are_limited_with_the_brokers_own_among_them(client: Client) -> None:
    own = len(text_of({"UNIQ_KEY": UNIQ, "WAIT": "true", "k": "", **OWN}).encode())
    for _way in range(2):
        assert client.send("T", properties={"k": "v" * (32_767 - own)}).code == 0
        refused = client.send("T", properties={"k": "v" * (32_767 - own + 1)})
        assert refused.code == ResponseCode.MESSAGE_ILLEGAL
        assert "32768" in (refused.remark or "")
        umlauts = client.send("T", properties={"k": "é" * 20_000})
        assert umlauts.code == ResponseCode.MESSAGE_ILLEGAL
    assert all(len(r.raw_properties) == 32_767 for r in client.owner.stored("T"))


def test_an_empty_body_is_a_message(client: Client) -> None:
    for _way in range(2):
        assert client.send("T", b"").code == 0
    assert [r.body for r in client.owner.stored("T")] == [b"", b""]


# -- what is not built is refused, never stored as if it were plain --------------------------------------


NOT_BUILT = [
    ({}, MessageSysFlag.TRANSACTION_COMMIT, ResponseCode.MESSAGE_ILLEGAL, "transaction"),
    ({}, MessageSysFlag.TRANSACTION_ROLLBACK, ResponseCode.MESSAGE_ILLEGAL, "transaction"),
    ({"TRAN_MSG": "true", "INNER_NUM": "2"}, 0, ResponseCode.MESSAGE_ILLEGAL, "inner batch"),
    ({"TRAN_MSG": "true", "DELAY": "soon"}, 0, ResponseCode.SYSTEM_ERROR, "delay level 'soon' is no number"),
    ({"DELAY": "soon"}, 0, ResponseCode.SYSTEM_ERROR, "delay level 'soon' is no number"),
    ({"INNER_NUM": "2"}, 0, ResponseCode.MESSAGE_ILLEGAL, "inner batch"),
    ({}, MessageSysFlag.INNER_BATCH, ResponseCode.MESSAGE_ILLEGAL, "inner batch"),
    ({}, MessageSysFlag.NEED_UNWRAP, ResponseCode.MESSAGE_ILLEGAL, "inner batch"),
    ({"INNER_MULTI_DISPATCH": "%LMQ%a"}, 0, ResponseCode.MESSAGE_ILLEGAL, "light queues"),
]


@KINDS
@pytest.mark.parametrize(("properties", "sys_flag", "code", "word"), NOT_BUILT)
def test_what_is_not_built_is_refused_with_its_name(
    running: InProcess, properties: dict[str, str], sys_flag: int, code: int, word: str, kind: int
) -> None:
    client = running.connect()
    client.send("T")
    before = taken(running)
    answer = client.call(V2, send_ext("T", properties=properties, sysFlag=sys_flag), serialize_type=kind)
    assert answer.code == code
    assert word in (answer.remark or "").lower() + (answer.remark or "")
    assert taken(running) == before


@pytest.mark.parametrize(
    "properties",
    [
        {"TRAN_MSG": "false"},
        {"DELAY": "0"},
        {"DELAY": "-1"},
        {"TIMER_DELAY_MS": "5", "TIMER_OUT_MS": "6"},
        {"MY_TRAN_MSG": "true"},
        {"AWAIT": "false"},
        {"XDELAY": "3"},
    ],
)
def test_what_only_looks_like_it_is_stored(running: InProcess, properties: dict[str, str]) -> None:
    client = running.connect()
    for _way in range(2):
        assert client.send("T", properties=properties).code == 0
        assert properties.items() <= running.stored("T")[-1].properties.items()


def test_a_message_sent_back_keeps_the_property_of_its_transaction(running: InProcess) -> None:
    client = running.connect()
    answer = client.send(
        "%RETRY%g", properties={"TRAN_MSG": "true", "DELAY": "3"}, reconsumeTimes=1, maxReconsumeTimes=16
    )
    assert answer.code == 0
    (record,) = running.stored("SCHEDULE_TOPIC_XXXX", 2)
    assert record.properties["TRAN_MSG"] == "true"


@pytest.mark.parametrize("sys_flag", [MessageSysFlag.TRANSACTION_PREPARED, MessageSysFlag.TRANSACTION_COMMIT])
def test_a_message_sent_back_is_outside_its_transaction(running: InProcess, sys_flag: int) -> None:
    client = running.connect()
    answer = client.send(
        "%RETRY%g", properties={"DELAY": "3"}, reconsumeTimes=1, maxReconsumeTimes=16, sysFlag=sys_flag
    )
    assert answer.code == 0
    (record,) = running.stored("SCHEDULE_TOPIC_XXXX", 2)
    assert record.sys_flag == 0


# -- waiting for the flush --------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["readable", "fast"])
@pytest.mark.parametrize(
    ("properties", "waits"),
    [
        ({"WAIT": "true"}, True),
        ({"WAIT": "false"}, False),
        ({"AWAIT": "false"}, True),
        ({"WAIT": "falsely"}, True),
        ({"note": "WAIT\x01false"}, True),
        ({"WAIT": "FALSE"}, True),
    ],
)
def test_only_who_says_so_is_answered_before_the_flush(
    synced: InProcess, flush_gate: FlushGate, properties: dict[str, str], waits: bool, way: str
) -> None:
    client = synced.connect()
    if way == "fast":
        client.send("T")
    flush_gate.shut()
    client.ask(V2, send_ext("T", properties=text_of({"UNIQ_KEY": UNIQ, **properties})))
    synced.turn()
    assert [c.code for c in client.answers()] == ([] if waits else [0])
    flush_gate.open()
    if waits:
        assert client.answer().code == 0


# -- when there is no room, or no will ---------------------------------------------------------------------


def test_a_full_disk_is_answered_14_and_reads_and_later_sends_go_on(start_broker: StartBroker) -> None:
    disk = FullDisk()
    running = start_broker(disk, mappedFileSizeCommitLog=128 << 10)
    client = running.connect()
    client.send("T")
    running.tick(100)
    running.until(lambda: running.broker.store.log.spare is not None)
    disk.full = True
    codes: list[int] = []
    while not codes or codes[-1] == 0:
        codes.append(client.send("T", b"y" * 20_000).code)
        assert len(codes) < 20
    assert codes[-1] == ResponseCode.SERVICE_NOT_AVAILABLE
    stored = 1 + len(codes) - 1
    assert len(running.stored("T")) == stored
    client.feed(b"".join(request(V2, send_ext("T"), b"y" * 20_000, opaque=n) for n in range(3)))
    refused = client.answers()
    assert [c.code for c in refused] == [ResponseCode.SERVICE_NOT_AVAILABLE] * 3
    assert "disk is full" in (refused[0].remark or "")
    assert client.call(BATCH, send_ext("T"), batch_of(b"z" * 30_000)).code == 14
    assert client.pull("T", queueOffset=stored - 1).code == 0
    assert client.send("T", b"small").code == 0, "what fits behind the last record is still taken"
    disk.full = False
    running.tick(10_000)  # the helper thread asks again from time to time
    running.until(lambda: running.broker.store.log.spare is not None)
    assert client.send("T", b"y" * 20_000).code == 0


def test_a_broker_that_is_stopping_answers_14_and_makes_no_topics(running: InProcess) -> None:
    client = running.connect()
    client.send("T")
    running.broker.context.stopping = True
    before = taken(running)
    for topic in ("T", "new"):
        answer = client.send(topic)
        assert (answer.code, answer.remark) == (14, "the broker is shutting down")
    assert client.call(BATCH, send_ext("T"), batch_of(b"a")).code == 14
    assert taken(running) == before
    assert client.pull("T").code == 0


def test_what_waited_behind_a_stalled_append_is_answered_2_and_then_all_is_well(
    running: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The original's page-cache-busy rule: its senders may have another broker, and know it before they time out."""
    client = running.connect()
    client.send("T")
    times = iter((0.0, 30.5))
    monkeypatch.setattr(running.broker.statistics, "clock", lambda: next(times, 30.5))
    assert client.send("T").code == 0, "it is stored, however long that took"
    before = taken(running)
    refused = client.send("T")
    assert refused.code == ResponseCode.SYSTEM_BUSY
    assert (refused.remark or "").startswith("[PCBUSY_CLEAN_QUEUE]")
    assert taken(running) == before
    running.tick(later_ms=100)
    assert client.send("T").code == 0


def test_too_many_messages_waiting_for_the_disk_are_answered_2_at_once(
    synced: InProcess, flush_gate: FlushGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusal_module, "ACKS_WAITING_MAX", 3)
    client = synced.connect()
    client.send("T")
    flush_gate.shut()
    for _ in range(3):
        client.ask(V2, send_ext("T"))
    assert client.answers() == []
    refused = client.send("T")
    assert refused.code == ResponseCode.SYSTEM_BUSY
    assert (refused.remark or "").startswith("[OVERLOAD]")
    flush_gate.open()
    synced.until(lambda: not len(synced.broker.acks))
    assert [c.code for c in client.answers()] == [0, 0, 0]
    assert client.send("T").code == 0


def test_the_id_of_a_message_is_its_address_and_offset(client: Client) -> None:
    answer = client.send("T")
    host = bytes([127, 0, 0, 1]) + (10911).to_bytes(4, "big")
    assert answer.ext["msgId"] == message_id(host, 0)
