"""Retries and dead letters: code 36, and messages that clients send to retry topics themselves."""

import json
from collections.abc import Callable

import pytest

from broker.state.groups import SubscriptionGroupConfig
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format.properties import encode_properties, tags_code
from ropewalk.format.record import Record, decode_record, encode_host, encode_record
from ropewalk.format.remoting import Command, encode_frame
from tests.broker.harness import Client, FlushGate, FullDisk, InProcess
from tests.support.clocks import START_MS

StartBroker = Callable[..., InProcess]
SCHEDULE, RETRY, DLQ = "SCHEDULE_TOPIC_XXXX", "%RETRY%cg", "%DLQ%cg"
OLD_VERSION = 120


def consumed(running: InProcess, **header: object) -> Record:
    """A message that a consumer of group cg has before it."""
    client = running.connect(peer=("10.0.0.9", 999))
    assert client.send("T", b"body", **header).code == 0
    running.until(lambda: bool(running.stored("T")))
    return running.stored("T")[-1]


def send_back(client: Client, record: Record, **header: object) -> Command:
    ext = {
        "offset": record.offset,
        "group": "cg",
        "delayLevel": 0,
        "originMsgId": record.msg_id,
        "originTopic": record.topic,
        "unitMode": False,
        "maxReconsumeTimes": 16,
        **header,
    }
    return client.call(RequestCode.CONSUMER_SEND_MSG_BACK, ext)


def waiting(running: InProcess) -> list[tuple[int, Record]]:
    """(level, record) of everything that waits."""
    return [(queue_id + 1, record) for queue_id in range(18) for record in running.stored(SCHEDULE, queue_id)]


# -- sent back ------------------------------------------------------------------------------------------


def test_a_message_sent_back_comes_again_in_the_retry_topic(running: InProcess) -> None:
    record = consumed(running, properties={"TAGS": "TagA", "KEYS": "k"}, flag=9, sysFlag=1)
    client = running.connect()
    assert send_back(client, record).code == 0
    ((level, delayed),) = waiting(running)
    assert level == 3
    assert delayed.properties["REAL_TOPIC"] == RETRY
    running.tick(9_999)
    assert running.stored(RETRY) == []
    running.tick(1)
    (again,) = running.stored(RETRY)
    assert (again.body, again.flag, again.sys_flag, again.reconsume_times) == (b"body", 9, 1, 1)
    assert (again.born_host, again.born_timestamp) == (("10.0.0.9", 999), START_MS - 5)
    expected = {
        "RETRY_TOPIC": "T",
        "ORIGIN_MESSAGE_ID": record.msg_id,
        "WAIT": "false",
        "TAGS": "TagA",
        "KEYS": "k",
        "UNIQ_KEY": record.uniq_key,
    }
    assert expected.items() <= again.properties.items()
    queue = running.broker.store.find_queue(RETRY, 0)
    assert queue is not None
    assert queue.read(0)[2] == tags_code("TagA")


def test_each_try_waits_longer_and_remembers_where_it_began(running: InProcess) -> None:
    record = first = consumed(running)
    client = running.connect()
    for tries, (level, delay_ms) in enumerate([(3, 10_000), (4, 30_000), (5, 60_000)], 1):
        assert send_back(client, record).code == 0
        assert waiting(running)[-1][0] == level
        running.tick(delay_ms)
        record = running.stored(RETRY)[-1]
        assert record.reconsume_times == tries
        assert record.properties["ORIGIN_MESSAGE_ID"] == first.msg_id
        assert record.properties["RETRY_TOPIC"] == "T"


@pytest.mark.parametrize(("asked", "level"), [(1, 1), (18, 18), (40, 18)])
def test_a_level_of_the_consumers_choice_is_taken(running: InProcess, asked: int, level: int) -> None:
    assert send_back(running.connect(), consumed(running), delayLevel=asked).code == 0
    assert [found for found, _ in waiting(running)] == [level]


def test_a_level_below_zero_goes_to_the_dead_letters_at_once(running: InProcess) -> None:
    record = consumed(running)
    assert send_back(running.connect(), record, delayLevel=-1).code == 0
    (dead,) = running.stored(DLQ)
    assert (dead.body, dead.reconsume_times) == (b"body", 1)
    assert (dead.properties["RETRY_TOPIC"], dead.properties["DELAY"]) == ("T", "0")
    assert dead.properties["ORIGIN_MESSAGE_ID"] == record.msg_id
    topic = running.broker.topics.get(DLQ)
    assert topic is not None
    assert (topic.read_queues, topic.write_queues, topic.perm) == (1, 1, 6)
    assert waiting(running) == []


@pytest.mark.parametrize(
    ("times", "maximum", "dead"), [(0, 1, False), (1, 1, True), (2, 1, True), (0, 0, True)]
)
def test_as_many_tries_as_the_maximum_are_enough(
    running: InProcess, times: int, maximum: int, dead: bool
) -> None:
    record = consumed(running, reconsumeTimes=times)
    assert send_back(running.connect(), record, maxReconsumeTimes=maximum).code == 0
    assert bool(running.stored(DLQ)) is dead
    assert bool(waiting(running)) is not dead


@pytest.mark.parametrize(
    ("version", "asked", "dead"), [(OLD_VERSION, 16, 1), (OLD_VERSION + 1, 16, 0), (479, None, 1)]
)
def test_the_groups_maximum_counts_for_old_clients_and_for_those_who_say_none(
    running: InProcess, version: int, asked: int | None, dead: int
) -> None:
    running.broker.groups.update(SubscriptionGroupConfig("cg", retry_max_times=1), START_MS)
    record = consumed(running, reconsumeTimes=1)
    ext = {"offset": str(record.offset), "group": "cg", "delayLevel": "0"}
    if asked is not None:
        ext["maxReconsumeTimes"] = str(asked)
    client = running.connect()
    client.feed(encode_frame(Command(36, ext, opaque=5, version=version)))
    assert client.answer(5).code == 0
    assert len(running.stored(DLQ)) == dead


def test_retries_spread_over_the_groups_retry_queues(running: InProcess) -> None:
    running.broker.groups.update(SubscriptionGroupConfig("cg", retry_queue_nums=4), START_MS)
    client = running.connect()
    for _ in range(40):
        send_back(client, consumed(running), delayLevel=1)
    topic = running.broker.topics.get(RETRY)
    assert topic is not None and topic.read_queues == 4
    assert {record.properties["REAL_QID"] for _, record in waiting(running)} == {"0", "1", "2", "3"}


def test_what_a_group_without_retry_queues_gives_back_is_a_dead_letter_at_once(running: InProcess) -> None:
    """RocketMQ answers success, and keeps it nowhere."""
    running.broker.groups.update(SubscriptionGroupConfig("cg", retry_queue_nums=0), START_MS)
    assert send_back(running.connect(), consumed(running)).code == 0
    assert waiting(running) == []
    assert [record.body for record in running.stored(DLQ)] == [b"body"]


def test_statistics_count_what_was_sent_back_by_topic_and_group(running: InProcess) -> None:
    send_back(running.connect(), consumed(running))
    view = running.broker.statistics.view("SNDBCK_PUT_NUMS", "T@cg", running.clock.ms)
    assert view is not None and view["statsMinute"].sum == 1


# -- what is wrong --------------------------------------------------------------------------------------


def test_an_unknown_group_is_26(start_broker: StartBroker) -> None:
    running = start_broker(autoCreateSubscriptionGroup=False)
    answer = send_back(running.connect(), consumed(running))
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def test_a_broker_that_is_not_writable_is_16(start_broker: StartBroker) -> None:
    running = start_broker(brokerPermission=4)
    answer = send_back(running.connect(), consumed(running))
    assert answer.code == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize("shift", [1, -1, 1 << 40])
def test_a_place_without_a_record_is_1(running: InProcess, shift: int) -> None:
    record = consumed(running)
    answer = send_back(running.connect(), record, offset=record.offset + shift)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert waiting(running) == []


def test_a_retried_message_is_sent_back_under_its_first_topics_name(running: InProcess) -> None:
    client = running.connect()
    send_back(client, consumed(running), delayLevel=1)
    running.tick(1_000)
    (again,) = running.stored(RETRY)
    # A Java client has put RETRY_TOPIC in the place of the topic by then.
    assert send_back(client, again, delayLevel=1, originTopic="T").code == 0
    running.tick(1_000)
    assert [record.reconsume_times for record in running.stored(RETRY)] == [1, 2]


def test_a_damaged_record_is_not_sent_back(running: InProcess) -> None:
    record = consumed(running)
    segment = running.broker.store.log.find(record.offset)
    assert segment is not None
    at = segment.map.find(b"body")
    segment.map[at : at + 4] = b"bode"
    assert send_back(running.connect(), record).code == ResponseCode.SYSTEM_ERROR


def test_what_a_body_holds_is_not_sent_back(running: InProcess) -> None:
    host = encode_host("127.0.0.1", 10911)
    at = running.broker.store.log.end_offset + 88
    client = running.connect()
    forged = encode_record(b"T", 0, 0, 0, at, 0, 1, host, 2, host, 0, 0, b"forged", b"")
    assert client.send("T", forged).code == 0
    answer = send_back(client, decode_record(forged))
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {at}")
    assert waiting(running) == []


def test_a_client_is_told_to_come_back_when_too_many_look_ups_wait(
    running: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = consumed(running)
    monkeypatch.setattr(running.broker.reader, "_in_flight_max", 0)
    assert send_back(running.connect(), record).code == ResponseCode.SYSTEM_BUSY
    assert waiting(running) == []


def test_a_missing_field_is_named(client: Client) -> None:
    answer = client.call(36, {"offset": 0, "delayLevel": 0})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "group" in (answer.remark or "")


def test_a_full_disk_is_1_and_the_client_keeps_the_message(start_broker: StartBroker) -> None:
    disk = FullDisk()
    running = start_broker(disk, mappedFileSizeCommitLog=128 << 10)
    record = consumed(running)
    disk.full = True
    while running.connect().send("T", b"z" * 4000).code == 0:
        running.tick()
    while running.connect().send("T", b"z").code == 0:
        pass
    answer = send_back(running.connect(), record)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "full" in (answer.remark or "")


def test_a_broker_that_is_stopping_takes_nothing_back(running: InProcess) -> None:
    record = consumed(running)
    running.broker.context.stopping = True
    assert send_back(running.connect(), record).code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_what_no_consumer_may_see_yet_cannot_be_sent_back(synced: InProcess, flush_gate: FlushGate) -> None:
    client = synced.connect()
    assert client.send("T").code == 0
    flush_gate.shut()
    client.ask(RequestCode.SEND_MESSAGE_V2, _plain_send())
    log = synced.broker.store.log
    (first,) = synced.stored("T")
    ext = {"offset": first.offset + first.size, "group": "cg", "delayLevel": 0}
    assert log.end_offset > first.offset + first.size
    assert synced.connect().call(36, ext).code == ResponseCode.SYSTEM_ERROR
    flush_gate.open()


def _plain_send() -> dict[str, object]:
    from tests.broker.harness import send_ext

    return send_ext("T")


def test_sending_back_is_answered_without_waiting_for_the_flush(
    synced: InProcess, flush_gate: FlushGate
) -> None:
    record = consumed(synced)
    flush_gate.shut()
    assert send_back(synced.connect(), record).code == 0
    flush_gate.open()


# -- sent anew by the client ----------------------------------------------------------------------------


@pytest.mark.parametrize("times", [0, 1])
def test_a_message_to_a_retry_topic_may_be_as_old_as_the_maximum(running: InProcess, times: int) -> None:
    answer = running.connect().send(RETRY, b"again", reconsumeTimes=times, maxReconsumeTimes=1)
    assert answer.code == 0
    (record,) = running.stored(RETRY)
    assert record.reconsume_times == times


def test_one_try_more_and_it_is_a_dead_letter(running: InProcess) -> None:
    client = running.connect()
    answer = client.send(
        RETRY, b"dead", reconsumeTimes=2, maxReconsumeTimes=1, properties={"DELAY": "3", "TAGS": "A"}
    )
    assert (answer.code, answer.ext["queueId"]) == (0, "0")
    (dead,) = running.stored(DLQ)
    assert (dead.body, dead.properties["DELAY"], dead.properties["TAGS"]) == (b"dead", "-1", "A")
    assert answer.ext["msgId"] == dead.msg_id
    assert running.stored(RETRY) == []
    assert waiting(running) == []


def test_its_delay_is_kept_while_it_may_be_tried(running: InProcess) -> None:
    answer = running.connect().send(
        RETRY, reconsumeTimes=1, maxReconsumeTimes=16, properties={"DELAY": "4", "RETRY_TOPIC": "T"}
    )
    assert answer.code == 0
    running.tick(30_000)
    assert len(running.stored(RETRY)) == 1


def test_the_hundredth_message_to_a_retry_topic_is_judged_like_the_first(running: InProcess) -> None:
    client = running.connect()
    for _ in range(5):
        client.send(RETRY, reconsumeTimes=1, maxReconsumeTimes=1)
    for _ in range(5):
        client.send(RETRY, reconsumeTimes=9, maxReconsumeTimes=1)
    assert (len(running.stored(RETRY)), len(running.stored(DLQ))) == (5, 5)


def test_while_the_group_holds_a_lock_everything_given_up_is_a_dead_letter(running: InProcess) -> None:
    client = running.connect()
    lock = {
        "clientId": "c",
        "consumerGroup": "cg",
        "mqSet": [{"brokerName": "broker-a", "queueId": 0, "topic": "T"}],
    }
    assert client.call(RequestCode.LOCK_BATCH_MQ, body=json.dumps(lock).encode()).code == 0
    client.send(RETRY, b"ordered", reconsumeTimes=1, maxReconsumeTimes=16)
    assert [record.body for record in running.stored(DLQ)] == [b"ordered"]
    running.clock.ms += 60_001
    client.send(RETRY, b"later", reconsumeTimes=1, maxReconsumeTimes=16)
    assert [record.body for record in running.stored(RETRY)] == [b"later"]


def test_a_retry_topic_of_no_group_is_26(start_broker: StartBroker) -> None:
    running = start_broker(autoCreateSubscriptionGroup=False)
    answer = running.connect().send(RETRY)
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def test_old_clients_are_judged_by_the_groups_maximum(running: InProcess) -> None:
    from tests.broker.harness import send_ext

    running.broker.groups.update(SubscriptionGroupConfig("cg", retry_max_times=2), START_MS)
    client = running.connect()
    for times in (2, 3):
        ext = {
            name: str(value).lower()
            for name, value in send_ext(RETRY, reconsumeTimes=times, maxReconsumeTimes=16).items()
        }
        ext["i"] = str(send_ext(RETRY)["i"])
        ext["b"] = RETRY
        client.feed(encode_frame(Command(310, ext, b"x", opaque=times, version=OLD_VERSION)))
        assert client.answer(times).code == 0
    assert (len(running.stored(RETRY)), len(running.stored(DLQ))) == (1, 1)


# -- properties that leave no room ----------------------------------------------------------------------


@pytest.mark.parametrize("spare", [0, 20, 60, 150])
def test_a_message_near_the_property_limit_is_tried_as_often_as_others_and_then_a_dead_letter(
    running: InProcess, spare: int
) -> None:
    properties = {"TAGS": "TagA", "KEYS": "order-7", "colour": "blue", "long": ""}
    record = consumed(running, properties=properties)
    room = 32_767 - len(encode_properties(record.properties)) - len("long") - 2
    record = consumed(running, properties={**properties, "long": "x" * (room - spare)})
    client = running.connect()
    for tries in range(3):
        assert send_back(client, record, maxReconsumeTimes=3).code == 0, tries
        running.tick(3_600_000)
        record = running.stored(RETRY, 0)[-1]
        assert record.reconsume_times == tries + 1
        assert (record.properties["RETRY_TOPIC"], record.properties["KEYS"]) == ("T", "order-7")
    assert send_back(client, record, maxReconsumeTimes=3).code == 0
    (dead,) = running.stored(DLQ)
    assert dead.reconsume_times == 4 and dead.body == b"body"
    assert dead.properties["colour"] == "blue" and dead.properties["TAGS"] == "TagA"
    if dead.properties.get("long") is None:
        assert dead.properties["DROPPED_PROPERTIES"] == "long"
