"""Delay levels in a broker of this process, with a clock that the test moves."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.timers import delay_progress
from broker.timers.delay_progress import decode_page, encode_page
from ropewalk.codes import MessageSysFlag, RequestCode
from ropewalk.format import fastjson
from ropewalk.format.properties import tags_code
from ropewalk.format.sliced_json import finish
from store.io.disk import MappedFile
from tests.broker.harness import (
    UNIQ,
    Client,
    FlushGate,
    FullDisk,
    InProcess,
    config_of,
    request,
    send_ext,
    text_of,
)
from tests.support.clocks import START_MS

StartBroker = Callable[..., InProcess]
SCHEDULE = "SCHEDULE_TOPIC_XXXX"
LEVELS = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)


def bodies(running: InProcess, topic: str, queue_id: int = 0) -> list[bytes]:
    return [record.body for record in running.stored(topic, queue_id)]


def delayed(client: Client, level: int | str, body: bytes = b"x", topic: str = "T", **header: object) -> None:
    properties = {"DELAY": str(level), **header.pop("properties", {})}  # type: ignore[dict-item]
    answer = client.send(topic, body, properties=properties, **header)
    assert answer.code == 0, answer


# -- in -------------------------------------------------------------------------------------------------


def test_a_delayed_message_waits_in_the_queue_of_its_level(running: InProcess) -> None:
    client = running.connect()
    client.send("T", queueId=3)
    answer = client.send("T", b"later", queueId=3, properties={"DELAY": "4", "TAGS": "TagA", "KEYS": "k"})
    assert (answer.ext["queueId"], answer.ext["queueOffset"]) == ("3", "0")
    (record,) = running.stored(SCHEDULE, 3)
    assert record.body == b"later"
    assert {"REAL_TOPIC": "T", "REAL_QID": "3", "DELAY": "4", "TAGS": "TagA", "KEYS": "k"}.items() <= (
        record.properties.items()
    )
    assert answer.ext["msgId"] == record.msg_id
    assert bodies(running, "T", 3) == [b"x"]


def test_the_entry_of_a_waiting_message_says_when_it_is_due(running: InProcess) -> None:
    delayed(running.connect(), 3, properties={"TAGS": "TagA"})
    queue = running.broker.store.find_queue(SCHEDULE, 2)
    assert queue is not None
    assert queue.read(0)[2] == START_MS + 10_000


def test_a_level_beyond_the_table_is_its_last(running: InProcess) -> None:
    delayed(running.connect(), 99)
    (record,) = running.stored(SCHEDULE, 17)
    assert record.properties["DELAY"] == "18"


def test_a_delay_begins_no_earlier_than_its_message_was_sent_however_long_the_turn_is(
    running: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, clock = running.broker.store.begin_turn, running.clock

    def begin_long_before() -> None:
        begin()
        clock.ms += 40

    monkeypatch.setattr(running.broker.store, "begin_turn", begin_long_before)
    delayed(running.connect(), 1)
    running.settle()
    (record,) = running.stored(SCHEDULE, 0)
    assert record.store_timestamp == START_MS + 40


def test_messages_that_are_stored_together_are_due_by_the_time_at_which_they_were_stored(
    running: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, store = running.connect(fast=True), running.broker.store
    client.send("T")
    refresh, clock = store.refresh_time, running.clock

    def refresh_later() -> None:
        clock.ms += 1
        refresh()

    monkeypatch.setattr(store, "refresh_time", refresh_later)
    texts = [text_of({"UNIQ_KEY": f"{UNIQ[:-4]}{n:04d}", "DELAY": "1"}) for n in range(5)]
    frames = [
        request(RequestCode.SEND_MESSAGE_V2, send_ext("T", properties=text), b"x", opaque=100 + n)
        for n, text in enumerate(texts)
    ]
    client.feed(b"".join(frames))
    running.settle()
    records = running.stored(SCHEDULE, 0)
    assert len(records) == 5
    for _ in range(1_010):
        running.tick(1)
    for waited, copy in zip(records, running.stored("T")[1:], strict=True):
        assert copy.store_timestamp >= waited.store_timestamp + 1_000


def test_a_delay_level_wins_over_a_timer(running: InProcess) -> None:
    delayed(running.connect(), 1, properties={"TIMER_DELAY_SEC": "9", "TIMER_DELIVER_MS": "5"})
    (record,) = running.stored(SCHEDULE, 0)
    assert not {"TIMER_DELAY_SEC", "TIMER_DELIVER_MS"} & record.properties.keys()


def test_nobody_sends_to_the_delay_topic_itself(client: Client) -> None:
    assert client.send(SCHEDULE).code == 16


# -- out ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", range(1, 19))
def test_each_level_is_delivered_when_its_time_has_come_and_not_before(
    running: InProcess, level: int
) -> None:
    delayed(running.connect(), level)
    wait_ms = LEVELS[level - 1] * 1000
    running.tick()
    running.tick(wait_ms - 1)
    assert bodies(running, "T") == []
    running.tick(1)
    assert bodies(running, "T") == [b"x"]
    running.tick(wait_ms)
    assert bodies(running, "T") == [b"x"]


def test_the_table_is_the_configurations(start_broker: StartBroker) -> None:
    running = start_broker(messageDelayLevel="3s 1m")
    delayed(running.connect(), 1)
    delayed(running.connect(), 7, b"y")
    running.tick(3_000)
    assert bodies(running, "T") == [b"x"]
    running.tick(57_000)
    assert bodies(running, "T") == [b"x", b"y"]


def test_what_is_delivered_is_what_was_sent(running: InProcess) -> None:
    client = running.connect(peer=("10.1.2.3", 4567))
    sent = {"TAGS": "TagB", "KEYS": "k1 k2", "mine": "ä"}
    delayed(client, 2, b"body", queueId=1, properties=sent, flag=77, sysFlag=1, reconsumeTimes=3)
    (waiting,) = running.stored(SCHEDULE, 1)
    running.tick(5_000)
    (record,) = running.stored("T", 1)
    assert (record.body, record.flag, record.sys_flag, record.reconsume_times) == (b"body", 77, 1, 3)
    assert (record.born_host, record.born_timestamp) == (("10.1.2.3", 4567), START_MS - 5)
    assert record.store_timestamp == START_MS + 5_000
    assert record.prepared_transaction_offset == 0
    # The text is the waiting record's, as the original leaves it.
    assert record.raw_properties == waiting.raw_properties
    assert {**sent, "DELAY": "2", "REAL_TOPIC": "T", "REAL_QID": "1"}.items() <= record.properties.items()
    queue = running.broker.store.find_queue("T", 1)
    assert queue is not None
    assert queue.read(0)[2] == tags_code("TagB")


def test_a_checksum_of_the_waiting_record_is_not_copied(running: InProcess) -> None:
    store = running.broker.store
    running.broker.begin_turn()
    raw = b"DELAY\x011\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02__CRC32#\x010123456789\x02"
    message = (store.queue(SCHEDULE, 0), b"x", raw, 0, 0, 0, 0, 0, START_MS)
    store.put([message], bytes(8))
    running.broker.end_turn()
    running.tick(1)
    (record,) = running.stored("T")
    assert "__CRC32#" not in record.properties


def test_a_held_pull_is_answered_by_what_is_delivered(running: InProcess) -> None:
    client = running.connect()
    client.send("T")
    waiting = running.connect()
    opaque = waiting.ask(11, _suspended("T", offset=1))
    delayed(client, 1, b"later")
    running.tick()
    assert not waiting.answers()
    running.tick(1_000)
    assert b"later" in waiting.answer(opaque).body


def _suspended(topic: str, offset: int) -> dict[str, object]:
    from tests.broker.harness import pull_ext

    return pull_ext(topic, queueOffset=offset, sysFlag=6)


def test_messages_of_one_level_keep_their_order_across_batches(running: InProcess) -> None:
    client = running.connect()
    for number in range(100):
        delayed(client, 1, b"%d" % number)
    running.tick(1_000)
    running.until(lambda: len(bodies(running, "T")) == 100)
    assert bodies(running, "T") == [b"%d" % number for number in range(100)]


def test_a_great_many_due_at_once_are_delivered_over_several_turns(running: InProcess) -> None:
    client = running.connect()
    for level in (1, 2):
        for number in range(600):
            delayed(client, level, b"%d" % number, queueId=level - 1)
    running.tick(5_000)
    first = len(bodies(running, "T", 0)) + len(bodies(running, "T", 1))
    assert 0 < first < 1200
    running.turn()  # a broker's process is wakened for it at once
    assert len(bodies(running, "T", 0)) + len(bodies(running, "T", 1)) > first
    running.until(lambda: len(bodies(running, "T", 1)) == 600)
    assert bodies(running, "T", 0) == bodies(running, "T", 1) == [b"%d" % number for number in range(600)]


def test_cold_records_are_read_off_the_loop_and_delivered_once(start_broker: StartBroker) -> None:
    running = start_broker(warmWindowBytes=1 << 20, mappedFileSizeConsumeQueue=200)
    client = running.connect()
    for number in range(50):
        delayed(client, 1, b"%d" % number)
    for _ in range(3):
        client.send("filler", b"z" * (1 << 20))
    refuse = lambda *_: None  # noqa: E731 - as if the page cache had nothing
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MappedFile, "read_at_nowait", refuse)
        patch.setattr(MappedFile, "is_resident", refuse)
        running.tick(1_000)

        def later() -> bool:
            running.tick(200)
            return len(bodies(running, "T")) >= 50

        running.until(later)
    running.tick(1_000)
    assert bodies(running, "T") == [b"%d" % number for number in range(50)]


def test_with_sync_flush_a_delivered_message_is_seen_after_its_flush(
    synced: InProcess, flush_gate: FlushGate
) -> None:
    client = synced.connect()
    delayed(client, 1)
    flush_gate.shut()
    synced.tick(1_000)
    synced.turn()
    assert bodies(synced, "T") == []
    flush_gate.open()
    synced.until(lambda: bodies(synced, "T") == [b"x"])


def test_a_full_disk_puts_the_delivery_off_and_loses_nothing(start_broker: StartBroker) -> None:
    disk = FullDisk()
    running = start_broker(disk=disk, mappedFileSizeCommitLog=1 << 20)
    client = running.connect()
    body = b"y" * 100_000
    for _ in range(4):
        delayed(client, 1, body)
    disk.full = True
    while client.send("filler", b"z" * 200_000).code == 0:
        running.tick()
    running.tick(1_000)
    assert len(bodies(running, "T")) < 4
    disk.full = False

    def later() -> bool:
        running.tick(1_000)
        return len(bodies(running, "T")) >= 4

    running.until(later)
    running.tick(5_000)
    assert bodies(running, "T") == [body] * 4


def test_a_damaged_record_is_given_up_and_the_next_is_delivered(running: InProcess) -> None:
    client = running.connect()
    delayed(client, 1, b"first")
    delayed(client, 1, b"second")
    (record, _second) = running.stored(SCHEDULE, 0)
    segment = running.broker.store.log.find(record.offset)
    assert segment is not None
    at = segment.map.find(b"first", record.offset - segment.base_offset)
    segment.map[at : at + 5] = b"worst"
    running.tick(1_000)
    assert bodies(running, "T") == [b"second"]


@pytest.mark.parametrize(
    "text",
    [
        "DELAY\x011\x02",
        "DELAY\x011\x02REAL_TOPIC\x01T\x02",
        "DELAY\x011\x02REAL_TOPIC\x01T\x02REAL_QID\x01-1\x02",
        "DELAY\x011\x02REAL_TOPIC\x01../T\x02REAL_QID\x010\x02",
        "DELAY\x011\x02REAL_TOPIC\x01RMQ_SYS_TRANS_HALF_TOPIC\x02REAL_QID\x010\x02",
        "DELAY\x011\x02REAL_TOPIC\x01SCHEDULE_TOPIC_XXXX\x02REAL_QID\x010\x02",
    ],
)
def test_a_record_with_nowhere_to_go_does_not_stop_its_level(running: InProcess, text: str) -> None:
    store = running.broker.store
    running.broker.begin_turn()
    store.put([(store.queue(SCHEDULE, 0), b"x", text.encode(), 0, 0, 0, 0, 0, START_MS)], bytes(8))
    running.broker.end_turn()
    delayed(running.connect(), 1, b"good")
    running.tick(1_000)
    assert bodies(running, "T") == [b"good"]
    assert set(store.queues) == {SCHEDULE, "T"}


def test_a_broker_that_is_stopping_delivers_no_more(running: InProcess) -> None:
    delayed(running.connect(), 1)
    running.broker.context.stopping = True
    running.tick(2_000)
    assert bodies(running, "T") == []


def test_statistics_count_a_message_when_it_reaches_its_topic(running: InProcess) -> None:
    delayed(running.connect(), 1)
    statistics = running.broker.statistics
    assert statistics.view("TOPIC_PUT_NUMS", "T", running.clock.ms) is None
    running.tick(1_000)
    view = statistics.view("TOPIC_PUT_NUMS", "T", running.clock.ms)
    assert view is not None and view["statsMinute"].sum == 1
    got = statistics.view("GROUP_GET_NUMS", f"{SCHEDULE}@SCHEDULE_CONSUMER", running.clock.ms)
    assert got is not None and got["statsMinute"].sum == 1


# -- clocks ---------------------------------------------------------------------------------------------


def test_a_clock_that_is_trimmed_back_makes_nothing_early(running: InProcess) -> None:
    client = running.connect()
    delayed(client, 1)
    running.clock.set_wall(-300)
    running.tick()
    running.tick(1_299)
    assert bodies(running, "T") == []
    running.tick(1)
    assert bodies(running, "T") == [b"x"]


def test_after_a_clock_was_set_back_an_hour_messages_still_wait_as_long_as_they_should(
    running: InProcess,
) -> None:
    client = running.connect()
    delayed(client, 5, b"before")
    running.clock.set_wall(-3_600_000)
    running.tick()
    assert bodies(running, "T") == [
        b"before"
    ]  # how long it has waited nobody knows: at once, as the original
    delayed(client, 5, b"after")
    running.tick(59_999)
    assert bodies(running, "T") == [b"before"]
    running.tick(1)
    assert bodies(running, "T") == [b"before", b"after"]


# -- what a restart knows -------------------------------------------------------------------------------


def restarted(root: Path, now_ms: int, **settings: object) -> InProcess:
    return InProcess(config_of(root / "store", **settings), now_ms=now_ms)


def test_a_graceful_stop_writes_how_far_each_level_is(tmp_path: Path) -> None:
    with restarted(tmp_path, START_MS) as running:
        client = running.connect()
        for level in (1, 1, 3):
            delayed(client, level)
        running.tick(1_000)
    text = (tmp_path / "store" / "config" / "delayOffset.json").read_bytes()
    assert b'"offsetTable":{1:2,3:0' in text
    assert fastjson.loads(text)["offsetTable"] == {"1": 2, "3": 0}


def test_after_a_restart_nothing_is_repeated_and_what_is_due_comes_at_once(tmp_path: Path) -> None:
    with restarted(tmp_path, START_MS) as running:
        client = running.connect()
        delayed(client, 1, b"first")
        delayed(client, 3, b"second")
        running.tick(1_000)
    with restarted(tmp_path, START_MS + 9_999) as running:
        running.tick()
        assert bodies(running, "T") == [b"first"]
        running.tick(1)
        assert bodies(running, "T") == [b"first", b"second"]


def test_without_the_page_the_durable_file_counts(tmp_path: Path) -> None:
    with restarted(tmp_path, START_MS) as running:
        delayed(running.connect(), 1)
        running.tick(1_000)
    (tmp_path / "store" / "ropewalk" / "delay").unlink()
    with restarted(tmp_path, START_MS + 5_000) as running:
        running.tick()
        assert bodies(running, "T") == [b"x"]


def test_a_file_that_rocketmq_wrote_is_taken_over(tmp_path: Path) -> None:
    with restarted(tmp_path, START_MS) as running:
        client = running.connect()
        for number in range(3):
            delayed(client, 1, b"%d" % number)
    path = tmp_path / "store" / "config" / "delayOffset.json"
    path.write_bytes(b'{"offsetTable":{1:2,2:0}\n}')
    with restarted(tmp_path, START_MS + 5_000) as running:
        running.tick()
        assert bodies(running, "T") == [b"2"]


def test_an_offset_that_no_queue_can_have_is_brought_back_into_it(tmp_path: Path) -> None:
    with restarted(tmp_path, START_MS) as running:
        delayed(running.connect(), 1)
    path = tmp_path / "store" / "config" / "delayOffset.json"
    path.write_text(json.dumps({"offsetTable": {"1": 50}}))
    with restarted(tmp_path, START_MS + 500) as running:
        delayed(running.connect(), 1, b"new")
        running.tick(2_000)
        assert bodies(running, "T") == [b"new"]


def test_the_durable_file_names_only_what_is_flushed(tmp_path: Path, flush_gate: FlushGate) -> None:
    with restarted(tmp_path, START_MS) as running:
        store = running.broker.store

        def named() -> object:
            path = tmp_path / "store" / "config" / "delayOffset.json"
            return fastjson.loads(finish(running.broker.dumps()[path][1]()))["offsetTable"]

        def flushed() -> bool:
            running.tick(500)
            return store.log.flushed_offset == store.log.end_offset

        delayed(running.connect(), 3)
        running.until(flushed)
        running.tick()
        flush_gate.shut()
        running.tick(10_000)
        running.tick(10_000)
        assert bodies(running, "T") == [b"x"]
        assert named() in ({}, {"1": 0}, {"3": 0})
        flush_gate.open()
        running.until(flushed)
        running.tick()
        assert named() == {"3": 1}


def test_a_level_that_the_table_lost_is_delivered_all_the_same(tmp_path: Path) -> None:
    with restarted(tmp_path, START_MS) as running:
        delayed(running.connect(), 3)
    with restarted(tmp_path, START_MS + 10_000, messageDelayLevel="1s") as running:
        running.tick()
        assert bodies(running, "T") == [b"x"]


def test_a_delayed_message_keeps_its_flags_through_a_restart(tmp_path: Path) -> None:
    with restarted(tmp_path, START_MS) as running:
        delayed(running.connect(), 1, sysFlag=MessageSysFlag.COMPRESSED)
    with restarted(tmp_path, START_MS + 1_000) as running:
        running.tick()
        assert running.stored("T")[0].sys_flag == MessageSysFlag.COMPRESSED


# -- the page -------------------------------------------------------------------------------------------

BOOT = bytes(range(16))


def test_a_page_says_what_was_written() -> None:
    offsets = {1: 5, 18: 1 << 40}
    page = encode_page(BOOT, 1234, offsets)
    assert len(page) == delay_progress.PAGE_SIZE
    assert decode_page(page, BOOT, 1234) == offsets


@pytest.mark.parametrize(
    ("boot", "log_end", "why"),
    [
        (bytes(16), 1234, "the kernel does not tell its boots apart"),
        (b"\1" * 16, 1234, "the machine was started again: the copies may be gone"),
        (BOOT, 1233, "the log ends before the copies of which the page speaks"),
    ],
)
def test_a_page_that_may_be_ahead_of_the_log_is_not_believed(boot: bytes, log_end: int, why: str) -> None:
    page = encode_page(BOOT if any(boot) else boot, 1234, {1: 5})
    assert decode_page(page, boot, log_end) == {}, why


def test_no_bytes_are_taken_for_a_page_by_mistake() -> None:
    page = encode_page(BOOT, 0, {1: 5, 2: 6})
    assert (
        decode_page(None, BOOT, 0)
        == decode_page(page[:-1], BOOT, 0)
        == decode_page(bytes(4096), BOOT, 0)
        == {}
    )
    for at in range(60):
        damaged = bytearray(page)
        damaged[at] ^= 0x41
        assert decode_page(bytes(damaged), BOOT, 0) == {}


def test_a_page_holds_the_first_levels_of_a_table_that_is_too_long() -> None:
    offsets = {level: level for level in range(1, 1000)}
    kept = decode_page(encode_page(BOOT, 0, offsets), BOOT, 0)
    assert list(kept) == list(range(1, delay_progress.LEVELS_MAX + 1))
