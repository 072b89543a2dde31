"""Timer messages in a broker of this process, with a clock that the test moves."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from threading import Event
from typing import Any

import pytest

from broker.timers import timer_service
from ha.group.metadata import Seen, SyncRequest
from ha.group.roles import QuorumPolicy
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format import sliced_json
from ropewalk.format.headers import RecallHandle
from ropewalk.format.remoting import Command
from store.io.workers import Worker
from store.timer.layout import Checkpoint
from store.timer.progress import ProgressPage
from tests.broker.harness import Client, FlushGate, InProcess, config_of
from tests.broker.timers.timing import bodies, pass_time, pass_time_with_disk, timed
from tests.broker.transactions.transacting import COMMIT, Producer
from tests.support.clocks import START_MS

StartBroker = Callable[..., InProcess]
TIMERS = "rmq_sys_wheel_timer"
PAST = "9223372036854775807"


# -- in -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "properties",
    [{"TIMER_DELAY_SEC": 5}, {"TIMER_DELAY_MS": 5_000}, {"TIMER_DELIVER_MS": START_MS + 5_000}],
    ids=lambda properties: next(iter(properties)),
)
def test_a_timer_message_waits_in_the_timer_topic(running: InProcess, properties: dict[str, int]) -> None:
    client = running.connect()
    client.send("T", queueId=3)
    answer = client.send("T", b"later", queueId=3, properties={"TAGS": "a", **map_texts(properties)})
    assert (answer.code, answer.ext["queueId"], answer.ext["queueOffset"]) == (0, "3", "0")
    (record,) = running.stored(TIMERS)
    assert record.body == b"later"
    waits = {"REAL_TOPIC": "T", "REAL_QID": "3", "TIMER_OUT_MS": str(START_MS + 4_000)}
    assert {**waits, **map_texts(properties)}.items() <= record.properties.items()
    assert bodies(running, "T", 3) == [b"x"]


def map_texts(properties: dict[str, int]) -> dict[str, str]:
    return {name: str(value) for name, value in properties.items()}


def test_seconds_win_over_milliseconds_and_these_over_a_time(running: InProcess) -> None:
    client = running.connect()
    timed(client, TIMER_DELIVER_MS=START_MS + 50_000, TIMER_DELAY_MS=9_000, TIMER_DELAY_SEC=3)
    timed(client, TIMER_DELIVER_MS=START_MS + 50_000, TIMER_DELAY_MS=9_000)
    assert [record.properties["TIMER_OUT_MS"] for record in running.stored(TIMERS)] == [
        str(START_MS + 2_000),
        str(START_MS + 8_000),
    ]


@pytest.mark.parametrize(
    ("ahead_ms", "slot_ms"), [(1, 0), (999, 0), (1_000, 0), (1_001, 1_000), (2_500, 2_000), (3_000, 2_000)]
)
def test_a_time_is_rounded_to_the_slot_before_it(running: InProcess, ahead_ms: int, slot_ms: int) -> None:
    timed(running.connect(), TIMER_DELIVER_MS=START_MS + ahead_ms)
    (record,) = running.stored(TIMERS)
    assert record.properties["TIMER_OUT_MS"] == str(START_MS + slot_ms)


@pytest.mark.parametrize("ahead_ms", [0, -1, -10_000_000])
def test_a_time_that_has_passed_is_no_wait(running: InProcess, ahead_ms: int) -> None:
    answer = timed(running.connect(), TIMER_DELIVER_MS=START_MS + ahead_ms)
    assert "recallHandle" not in answer.ext
    assert bodies(running) == [b"x"] and not running.stored(TIMERS)


def test_a_delivered_message_that_is_sent_again_goes_to_its_topic(running: InProcess) -> None:
    timed(running.connect(), TIMER_DELAY_SEC=5, TIMER_OUT_MS=START_MS)
    assert bodies(running) == [b"x"]


@pytest.mark.parametrize(
    ("properties", "code", "words"),
    [
        ({"TIMER_DELAY_SEC": "259201"}, 13, "should not be bigger than the max delay 259200000ms"),
        ({"TIMER_DELAY_SEC": "soon"}, 13, "'soon' is no number"),
        ({"TIMER_DELAY_MS": "99999999999999999999"}, 13, "is no number"),
        ({"TIMER_DELIVER_MS": "5", "TIMER_DEL_UNIQKEY": "k"}, 13, "cannot be recalled any more"),
    ],
)
def test_a_time_that_is_none_is_refused(
    client: Client, properties: dict[str, str], code: int, words: str
) -> None:
    answer = client.send("T", properties=properties)
    assert answer.code == code
    assert words in (answer.remark or "")


def test_nothing_is_taken_where_the_wheel_is_switched_off(start_broker: StartBroker) -> None:
    running = start_broker(timerWheelEnable=False)
    client = running.connect()
    answer = client.send("T", properties={"TIMER_DELAY_SEC": "5"})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "accurate timer message is not enabled" in (answer.remark or "")
    assert client.call(RequestCode.GET_TIMER_CHECK_POINT).code == ResponseCode.SYSTEM_ERROR
    assert client.call(RequestCode.GET_TIMER_METRICS).code == ResponseCode.SYSTEM_ERROR


# -- out ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead_ms", [1, 500, 1_000, 1_500, 2_000, 59_999, 60_000])
def test_it_comes_within_a_second_of_its_time_and_never_before(running: InProcess, ahead_ms: int) -> None:
    timed(running.connect(), TIMER_DELIVER_MS=START_MS + ahead_ms)
    running.tick()
    running.tick(ahead_ms - 1)
    assert bodies(running) == []
    pass_time(running, 1_000)
    assert bodies(running) == [b"x"]
    pass_time(running, 3_000)
    assert bodies(running) == [b"x"]
    assert not running.broker.timers.pending()


def test_what_is_delivered_is_what_was_sent(running: InProcess) -> None:
    client = running.connect(peer=("10.1.2.3", 4567))
    sent = {"TAGS": "TagB", "KEYS": "k1 k2", "mine": "ä", "TIMER_DELAY_SEC": "5"}
    answer = client.send("T", b"body", queueId=1, properties=sent, flag=77, sysFlag=1, reconsumeTimes=3)
    assert answer.code == 0
    (waiting,) = running.stored(TIMERS)
    running.tick()
    running.tick(5_000)
    (record,) = running.stored("T", 1)
    assert (record.body, record.flag, record.sys_flag, record.reconsume_times) == (b"body", 77, 1, 3)
    assert (record.born_host, record.born_timestamp) == (("10.1.2.3", 4567), START_MS - 5)
    own = {"TIMER_ENQUEUE_MS": str(START_MS), "TIMER_DEQUEUE_MS": str(START_MS + 5_000)}
    assert record.properties == {**waiting.properties, **own}


def test_a_topic_that_only_timers_knew_of_is_served_when_they_are_delivered(running: InProcess) -> None:
    """Its master made it and died: the slave has the timers, and never heard of the topic."""
    client = running.connect()
    for queue_id in (0, 2):
        answer = client.send(
            "fresh", b"x", queueId=queue_id, properties={"TIMER_DELAY_SEC": str(2 + 3 * queue_id)}
        )
        assert answer.code == 0
    running.tick(50)
    running.broker.topics.delete("fresh", START_MS)
    running.broker.store.delete_topic("fresh", lambda _noted: None)
    pass_time(running, 4_000)
    assert bodies(running, "fresh", 0) == [b"x"]
    made = running.broker.topics.get("fresh")
    assert made is not None and made.read_queues == 1
    pass_time(running, 5_000)
    assert bodies(running, "fresh", 0) == [b"x", b"x"], "in a queue that is read"
    assert client.pull("fresh", queueId=0).code == ResponseCode.SUCCESS


def test_a_topic_that_a_new_timer_names_is_served_before_that_is_due(start_broker: StartBroker) -> None:
    """So the message can be recalled at the promoted slave."""
    running = start_broker(recallMessageEnable=True)
    client = running.connect()
    properties = {"TIMER_DELAY_SEC": "60", "UNIQ_KEY": "7F0000010ABC18B4AAC2"}
    running.broker.timers.enabled = False  # a slave's: it enqueues later than its master
    handle = client.send("fresh", queueId=2, properties=properties).ext["recallHandle"]
    running.broker.topics.delete("fresh", START_MS)
    running.broker.timers.enabled = True
    pass_time(running, 200)
    assert running.broker.topics.get("fresh").read_queues == 3  # type: ignore[union-attr]
    assert recall(client, handle, "fresh").code == ResponseCode.SUCCESS


def test_two_days_and_more_come_back_into_the_timer_topic_half_way(running: InProcess) -> None:
    timed(running.connect(), TIMER_DELAY_SEC=200_100)
    running.tick()
    running.tick(86_401_000)
    assert bodies(running) == []
    first, second = running.stored(TIMERS)
    assert second.properties["TIMER_ROLL_TIMES"] == "1"
    assert second.properties["TIMER_OUT_MS"] == first.properties["TIMER_OUT_MS"]
    pass_time(running, 100)
    running.tick(200_100_000 - 86_401_000 - 101)
    assert bodies(running) == []
    pass_time(running, 1_000)
    (record,) = running.stored("T")
    assert record.properties["TIMER_ROLL_TIMES"] == "1"
    assert len(running.stored(TIMERS)) == 2


def test_a_slot_of_many_is_delivered_in_order_and_by_pieces(running: InProcess) -> None:
    client = running.connect()
    wanted = [b"%d" % number for number in range(1_000)]
    for body in wanted:
        timed(client, body, TIMER_DELAY_SEC=2)
    running.tick()
    running.tick(2_000)
    assert 0 < len(bodies(running)) <= 256
    pass_time(running, 500)
    assert bodies(running) == wanted


# -- the clock ------------------------------------------------------------------------------------------


def test_a_clock_set_back_makes_nothing_early_and_nothing_twice(running: InProcess) -> None:
    client = running.connect()
    timed(client, b"first", TIMER_DELAY_SEC=2)
    pass_time(running, 3_000)
    assert bodies(running) == [b"first"]
    running.settle()
    running.clock.set_wall(-3_000)
    pass_time(running, 100)
    timed(client, b"second", TIMER_DELAY_SEC=2)
    timed(client, b"third", TIMER_DELAY_SEC=60)
    pass_time_with_disk(running, 1_800)
    assert bodies(running) == [b"first"]
    pass_time_with_disk(running, 1_300)
    assert bodies(running) == [b"first", b"second"]
    pass_time(running, 59_000)
    assert bodies(running) == [b"first", b"second", b"third"]


def test_the_checkpoint_follows_a_clock_that_was_set_back_before_anything_more_is_flushed(
    running: InProcess, flush_gate: FlushGate
) -> None:
    client, store, timers = running.connect(), running.broker.store, running.broker.timers
    timed(client, b"first", TIMER_DELAY_SEC=2)
    pass_time(running, 5_000)
    running.until(lambda: store.log.flushed_offset == store.log.end_offset)
    pass_time(running, 100)
    flush_gate.shut()
    client.send("U", b"unflushed")
    pass_time(running, 50)
    running.clock.set_wall(-4_000)
    pass_time(running, 50)
    timed(client, b"second", TIMER_DELAY_SEC=60)

    def is_enqueued() -> bool:
        running.tick(10)
        return timers.timers.queue_offset == 2

    running.until(is_enqueued)
    # With the later time, a start after a power cut would skip the slot of the second message.
    assert timers._checkpoint().read_ms <= timers.timers.read_ms == running.clock.ms // 1000 * 1000
    assert timers._checkpoint().queue_offset == 1, "the second is enqueued, and not flushed"
    flush_gate.open()


def test_a_clock_set_forward_delivers_what_is_due_by_it(running: InProcess) -> None:
    client = running.connect()
    timed(client, b"soon", TIMER_DELAY_SEC=60)
    timed(client, b"late", TIMER_DELAY_SEC=7_200)
    pass_time(running, 100)
    running.clock.set_wall(3_600_000)
    pass_time(running, 500)
    assert bodies(running) == [b"soon"]
    running.clock.set_wall(-3_600_000)
    pass_time(running, 70_000, 1_000)
    assert bodies(running) == [b"soon"]


# -- restarts ----------------------------------------------------------------------------------------------


def test_what_waits_survives_a_restart_and_is_delivered_once(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    with InProcess(config) as running:
        for number in range(10):
            timed(running.connect(), b"%d" % number, TIMER_DELAY_SEC=number + 1)
        pass_time(running, 4_000)
        assert bodies(running) == [b"0", b"1", b"2", b"3"]
        now = running.clock.ms
    with InProcess(config, now_ms=now + 2_000) as again:
        pass_time(again, 100)
        assert bodies(again) == [b"0", b"1", b"2", b"3", b"4", b"5"]
        pass_time(again, 5_000)
        assert bodies(again) == [b"%d" % number for number in range(10)]


def test_the_progress_of_a_broker_that_had_the_directory_meanwhile_counts(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    with InProcess(config) as running:
        for number in (1, 5, 15):
            timed(running.connect(), b"%d" % number, TIMER_DELAY_SEC=number)
        pass_time(running, 3_000)
        now = running.clock.ms
    path = tmp_path / "config" / "timercheck"
    known = Checkpoint.decode(path.read_bytes())
    path.write_bytes(replace(known, read_ms=now + 7_000).encode())
    with InProcess(config, now_ms=now + 8_000) as again:
        pass_time(again, 1_000)
        assert bodies(again) == [b"1"], "the original delivered 5, and wrote that down"
        pass_time(again, 10_000)
        assert bodies(again) == [b"1", b"15"]


def test_nothing_is_enqueued_before_the_checkpoint_has_followed_a_clock_that_was_set_back(
    running: InProcess,
) -> None:
    client, store, timers = running.connect(), running.broker.store, running.broker.timers
    timed(client, b"first", TIMER_DELAY_SEC=2)

    def flushed() -> bool:
        pass_time(running, 100)
        return (
            store.log.flushed_offset == store.log.end_offset and timers.timers.checkpoint.read_ms > START_MS
        )

    pass_time(running, 5_000)
    running.until(flushed)
    running.clock.set_wall(-4_000)
    timed(client, b"second", TIMER_DELAY_SEC=60)

    def is_enqueued() -> bool:
        running.tick(10)
        # A start would drop the slots before the time in the file.
        assert timers.timers.queue_offset == 1 or timers.timers.checkpoint.read_ms <= running.clock.ms
        return timers.timers.queue_offset == 2

    running.until(is_enqueued)


def copy_of_kill(root: Path, then: Path) -> None:
    """Copy a store as a kill would leave it; blocks of zeros, of which the wheel has 38 MB, are left out."""
    for path in root.rglob("*"):
        if path.is_dir() or path.name == "lock":
            continue
        there = then / path.relative_to(root)
        there.parent.mkdir(parents=True, exist_ok=True)
        with path.open("rb") as source, there.open("wb") as target:
            while block := source.read(1 << 20):
                if block.count(0) == len(block):
                    target.seek(len(block), 1)
                else:
                    target.write(block)
            target.truncate()


def kill(running: InProcess, root: Path, then: Path) -> None:
    """Leave what a kill at this moment leaves, in another directory, and end the broker."""
    copy_of_kill(root, then)
    running.__exit__(None, None, None)


def wait_for_page(running: InProcess) -> None:
    """Turn until the page says how far timers are now."""
    timers, page = running.broker.timers, running.broker.timers._page_worker
    assert page is not None
    running.until(lambda: not page.pending and timers._written == timers._progress())


def test_a_kill_after_the_clock_was_set_back_delivers_nothing_twice(tmp_path: Path) -> None:
    running = InProcess(config_of(tmp_path / "a"))
    timed(running.connect(), b"first", TIMER_DELAY_SEC=1)
    pass_time(running, 1_000)
    running.settle()
    store = running.broker.store
    store.request_flush()
    running.until(lambda: store.log.flushed_offset == store.log.end_offset)
    assert bodies(running) == [b"first"]
    running.clock.set_wall(-60_000)
    timers = running.broker.timers.timers

    def follows() -> bool:
        running.tick(10)
        return timers.read_ms < START_MS

    running.until(follows)
    wait_for_page(running)
    now = running.clock.ms
    kill(running, tmp_path / "a", tmp_path / "b")
    with InProcess(config_of(tmp_path / "b"), now_ms=now) as again:
        pass_time(again, 65_000, 1_000)
        assert bodies(again) == [b"first"]


def test_a_start_with_a_clock_that_was_set_back_enqueues_what_the_last_process_did_not(
    tmp_path: Path,
) -> None:
    running = InProcess(config_of(tmp_path / "a"), now_ms=START_MS + 3_600_000)
    timed(running.connect(), b"first", TIMER_DELAY_SEC=1)
    pass_time(running, 3_000)
    timed(running.connect(), b"second", TIMER_DELIVER_MS=START_MS + 3_600_000 + 9_000)
    running.settle()
    wait_for_page(running)
    assert running.broker.timers.timers.queue_offset == 1
    kill(running, tmp_path / "a", tmp_path / "b")
    with InProcess(config_of(tmp_path / "b"), now_ms=START_MS) as again:
        timed(again.connect(), b"third", TIMER_DELAY_SEC=60)
        again.settle()

        def is_enqueued() -> bool:
            again.tick(10)
            return again.broker.timers.timers.queue_offset == 3

        again.until(is_enqueued)
        pass_time(again, 65_000, 1_000)
        assert bodies(again) == [b"first", b"third"]


def test_a_page_that_is_still_to_be_written_is_not_newer_than_the_checkpoint_of_a_clock_that_was_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = InProcess(config_of(tmp_path / "a"))
    timed(running.connect(), b"first", TIMER_DELAY_SEC=1)
    pass_time(running, 9_000)
    running.settle()
    wait_for_page(running)
    gate = Event()
    write = ProgressPage.write

    def write_late(*args: Any) -> None:
        assert gate.wait(20)
        write(*args)

    monkeypatch.setattr(ProgressPage, "write", write_late)
    running.clock.set_wall(-8_000)
    timed(running.connect(), b"second", TIMER_DELAY_SEC=7)
    sync = running.broker.timers._worker
    assert sync is not None
    for _ in range(50):
        pass_time(running, 100)
        running.until(lambda: not sync.pending)
    copy_of_kill(tmp_path / "a", tmp_path / "b")
    gate.set()
    now = running.clock.ms
    running.__exit__(None, None, None)
    with InProcess(config_of(tmp_path / "b"), now_ms=now) as again:

        def is_enqueued() -> bool:
            again.tick(10)
            return again.broker.timers.timers.queue_offset == 2

        again.until(is_enqueued)
        pass_time(again, 9_000, 1_000)
        assert bodies(again) == [b"first", b"second"]


def test_a_slot_that_is_delivered_in_part_waits_for_a_clock_that_was_set_back_and_goes_on_where_it_was(
    running: InProcess,
) -> None:
    wanted = [b"%d" % number for number in range(1_000)]
    for body in wanted:
        timed(running.connect(), body, TIMER_DELIVER_MS=START_MS + 2_000)
    service, timers = running.broker.timers, running.broker.timers.timers
    running.tick()
    running.tick(2_000)
    while timers._done_to == -1 or service._walk is not None:
        running.turn()
    begun = len(bodies(running))
    assert 0 < begun < 1_000
    running.clock.set_wall(-60_000)

    def went_back() -> bool:
        running.tick(10)
        progress = service.progress()
        assert progress.done == (begun if progress.read_ms > START_MS else 0)
        return timers.read_ms < START_MS and timers.queue_offset == 1_000

    running.broker.store.request_flush()
    running.until(went_back)
    pass_time(running, START_MS + 1_950 - running.clock.ms)
    assert len(bodies(running)) == begun
    pass_time(running, 1_000)
    assert bodies(running) == wanted


# -- recall ----------------------------------------------------------------------------------------------


def recall(client: Client, handle: str, topic: str = "T") -> Command:
    ext = {"producerGroup": "g", "topic": topic, "recallHandle": handle}
    return client.call(RequestCode.RECALL_MESSAGE, ext)


def test_a_recalled_message_is_not_delivered(start_broker: StartBroker) -> None:
    running = start_broker(recallMessageEnable=True)
    client = running.connect()
    first = timed(client, b"first", TIMER_DELAY_SEC=10)
    timed(client, b"second", TIMER_DELAY_SEC=10)
    handle = RecallHandle.decode(first.ext["recallHandle"])
    assert handle == RecallHandle(
        "T", running.broker.config.broker_name, START_MS + 9_001, first.ext["transactionId"]
    )
    answer = recall(client, first.ext["recallHandle"])
    assert (answer.code, answer.ext["msgId"]) == (0, first.ext["transactionId"])
    pass_time(running, 11_000)
    assert bodies(running) == [b"second"]
    assert running.broker.timers.pending() == 0


def test_a_recall_takes_the_message_of_its_own_topic_alone(start_broker: StartBroker) -> None:
    running = start_broker(recallMessageEnable=True)
    client = running.connect()
    mine = timed(client, b"same", "T", TIMER_DELAY_SEC=10)
    timed(client, b"same", "U", TIMER_DELAY_SEC=10)
    assert recall(client, mine.ext["recallHandle"]).code == 0
    pass_time(running, 11_000)
    assert (bodies(running, "T"), bodies(running, "U")) == ([], [b"same"])


def test_more_recalls_than_a_turn_takes_hide_no_message(start_broker: StartBroker) -> None:
    running = start_broker(recallMessageEnable=True)
    client = running.connect()
    timed(client, b"before", TIMER_DELAY_SEC=10)
    gone = [timed(client, b"%d" % number, TIMER_DELAY_SEC=10) for number in range(300)]
    for answer in gone:
        assert recall(client, answer.ext["recallHandle"]).code == 0
    timed(client, b"behind", TIMER_DELAY_SEC=10)
    pass_time(running, 11_000)
    assert bodies(running) == [b"before", b"behind"]
    assert running.broker.timers.cancelled == 300


def test_messages_among_many_recalls_are_found_piece_by_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn looks at a bounded number of units, also after a start in the middle of their slot."""
    monkeypatch.setattr(timer_service, "_SCAN_MAX", 2)
    monkeypatch.setattr(timer_service, "_DELIVER_MAX", 3)
    expected = [b"%03d" % number for number in range(0, 40, 5)]
    with InProcess(config_of(tmp_path, recallMessageEnable=True)) as running:
        client = running.connect()
        for number in range(40):
            answer = timed(client, b"%03d" % number, TIMER_DELAY_SEC=10)
            if number % 5:
                assert recall(client, answer.ext["recallHandle"]).code == 0
        running.tick(11_000)
        running.until(lambda: running.broker.timers.delivered >= 3)
        begun = len(bodies(running))
    with InProcess(config_of(tmp_path, recallMessageEnable=True)) as running:
        running.clock.ms += 12_000
        pass_time(running, 200)
        assert bodies(running) == expected and 3 <= begun < len(expected)


def test_a_wrong_handle_is_refused_in_words(start_broker: StartBroker) -> None:
    running = start_broker(recallMessageEnable=True)
    client = running.connect()
    name = running.broker.config.broker_name
    client.send("T")
    client.send("U")
    rows = [
        ("nonsense!", "T", 604, "recall handle is invalid"),
        (RecallHandle("T", name, START_MS + 5_000, "K").encode(), "U", 604, "topic not match"),
        (
            RecallHandle("T", "other", START_MS + 5_000, "K").encode(),
            "T",
            604,
            "broker service not available",
        ),
        (RecallHandle("T", name, START_MS, "K").encode(), "T", 604, "due already"),
        (RecallHandle("T", name, START_MS + 300_000_000, "K").encode(), "T", 604, "timerMaxDelaySec"),
        (RecallHandle("V", name, START_MS + 5_000, "K").encode(), "V", 17, "topic[V] not exist"),
    ]
    for handle, topic, code, words in rows:
        answer = recall(client, handle, topic)
        assert answer.code == code and words in (answer.remark or ""), (handle, answer)


def test_recalls_are_forbidden_unless_switched_on(client: Client) -> None:
    answer = recall(client, "x")
    assert answer.code == ResponseCode.NO_PERMISSION
    assert "recallMessageEnable" in (answer.remark or "")


@pytest.mark.parametrize("half", [False, True])
def test_a_message_that_recalls_another_is_refused_where_recalls_are(client: Client, half: bool) -> None:
    timed(client, b"precious", TIMER_DELIVER_MS=START_MS + 5_000, UNIQ_KEY="7F0000010ABC18B4AAC2")
    marker = {
        "TIMER_DELIVER_MS": str(START_MS + 5_000),
        "TIMER_DEL_UNIQKEY": "T+7F0000010ABC18B4AAC2",
        "UNIQ_KEY": "other",
        **({"TRAN_MSG": "true", "PGROUP": "g"} if half else {}),
    }
    answer = client.send("T", properties=marker, sysFlag=4 if half else 0)
    assert answer.code == ResponseCode.NO_PERMISSION
    assert "recallMessageEnable" in (answer.remark or "")
    pass_time(client.owner, 7_000)
    assert bodies(client.owner) == [b"precious"]


def test_a_message_recalls_another_of_its_topic_where_recalls_are_switched_on(
    start_broker: StartBroker,
) -> None:
    """As RocketMQ has it, whose tests recall in this way."""
    running = start_broker(recallMessageEnable=True)
    client = running.connect()
    for topic in ("T", "U"):
        timed(client, topic=topic, TIMER_DELIVER_MS=START_MS + 5_000, UNIQ_KEY="7F0000010ABC18B4AAC2")
    timed(client, TIMER_DELIVER_MS=START_MS + 5_000, TIMER_DEL_UNIQKEY="T+7F0000010ABC18B4AAC2", UNIQ_KEY="k")
    pass_time(running, 7_000)
    assert bodies(running) == [] and bodies(running, "U") == [b"x"]


# -- kills --------------------------------------------------------------------------------------------------


def test_a_kill_in_the_middle_of_a_slot_repeats_what_no_page_knew_and_loses_nothing(tmp_path: Path) -> None:
    running = InProcess(config_of(tmp_path / "a"))
    wanted = [b"%d" % number for number in range(1_000)]
    for body in wanted:
        timed(running.connect(), body, TIMER_DELAY_SEC=2)
    running.tick()
    running.tick(2_000)
    running.turn()
    page = running.broker.timers._page_worker
    assert page is not None
    finish(page)
    running.turn()
    finish(page)
    delivered = len(bodies(running))
    assert 128 < delivered < 1_000
    copytree(tmp_path / "a", tmp_path / "b")
    running.__exit__(None, None, None)
    (tmp_path / "b" / "lock").unlink(missing_ok=True)
    with InProcess(config_of(tmp_path / "b"), now_ms=START_MS + 2_500) as again:
        pass_time(again, 1_000)
        found = bodies(again)
        assert list(dict.fromkeys(found)) == wanted
        assert len(found) <= len(wanted) + 2 * 128, "more is repeated than the turns whose page was under way"


DELAYS_S = (1, 2, 60, 3_600, 86_399, 86_400, 172_799, 172_800, 200_100, 230_401, 259_199, 259_200)


def test_times_of_a_second_to_three_days_come_in_their_second_over_a_stop_and_kills(tmp_path: Path) -> None:
    """The clock goes by hours, and by milliseconds around each time; two of the brokers are killed, one is stopped."""
    root, wanted = tmp_path / "0", [b"%d" % delay_s for delay_s in DELAYS_S]
    running = InProcess(config_of(root))
    for body, delay_s in zip(wanted, DELAYS_S, strict=True):
        timed(running.connect(), body, TIMER_DELAY_SEC=delay_s)
    for number, delay_s in enumerate(DELAYS_S):
        due_ms = START_MS + delay_s * 1_000
        while running.clock.ms < due_ms - 1:
            pass_time(running, step := min(due_ms - 1 - running.clock.ms, 3_600_000), step)
        assert bodies(running) == wanted[:number], f"{delay_s} s, a millisecond before"
        pass_time(running, 1_000)
        assert bodies(running) == wanted[: number + 1], f"{delay_s} s, a second later"
        if delay_s in (3_600, 86_400, 200_100):
            running.settle()
            page = running.broker.timers._page_worker
            assert page is not None
            running.until(lambda page=page: not page.pending)  # type: ignore[misc]
            before, root, now_ms = root, tmp_path / str(delay_s), running.clock.ms
            if delay_s == 86_400:
                running.__exit__(None, None, None)
                copytree(before, root)
            else:
                copytree(before, root)
                running.__exit__(None, None, None)
            (root / "lock").unlink(missing_ok=True)
            running = InProcess(config_of(root), now_ms=now_ms)
    rolls = [record.properties.get("TIMER_ROLL_TIMES") for record in running.stored("T")]
    assert rolls == [None] * 8 + ["1"] * 4
    assert not running.broker.timers.pending()
    running.__exit__(None, None, None)


def finish(worker: Worker) -> None:
    """Wait until a helper thread has done all that it was given, without a turn of the loop."""
    done = Event()
    worker.submit(done.set, lambda _: None)
    assert done.wait(60)


def test_a_kill_before_the_first_flush_loses_no_timer(tmp_path: Path) -> None:
    running = InProcess(config_of(tmp_path / "a"))
    for number in range(20):
        timed(running.connect(), b"%d" % number, TIMER_DELAY_SEC=number + 5)
    running.settle()
    copytree(tmp_path / "a", tmp_path / "b")
    running.__exit__(None, None, None)
    with InProcess(config_of(tmp_path / "b"), now_ms=START_MS + 60_000) as again:
        pass_time(again, 500)
        assert sorted(bodies(again)) == sorted(b"%d" % number for number in range(20))


# -- what slaves and administrators ask ----------------------------------------------------------------------


def test_the_checkpoint_says_how_far_timers_have_come(running: InProcess) -> None:
    client = running.connect()
    timed(client, TIMER_DELAY_SEC=100)
    pass_time(running, 5_000)
    answer = client.call(RequestCode.GET_TIMER_CHECK_POINT)
    assert len(answer.body) == 56
    found = Checkpoint.decode(answer.body)
    assert (found.read_ms, found.queue_offset, found.master_queue_offset) == (START_MS + 5_000, 1, 1)
    metrics = client.call(RequestCode.GET_TIMER_METRICS)
    assert b'"timingCount":{"T":{"count":1,' in metrics.body


# -- with transactions ---------------------------------------------------------------------------------------


def test_the_time_of_a_half_message_begins_to_count_at_its_commit(running: InProcess) -> None:
    producer = Producer(running)
    half = producer.half(b"paid", TIMER_DELAY_SEC="2")
    refused = producer.half_answer(b"never", TIMER_DELAY_SEC="999999")
    assert refused.code == ResponseCode.MESSAGE_ILLEGAL, "told now, and not at the commit"
    pass_time(running, 3_000)
    assert running.stored(TIMERS) == [] == bodies(running)
    producer.end(half, COMMIT)
    pass_time(running, 1_900)
    assert len(running.stored(TIMERS)) == 1 and bodies(running) == []
    pass_time(running, 1_200)
    (record,) = running.stored("T")
    assert record.body == b"paid" and record.sys_flag & 0xC == COMMIT


def test_slaves_hear_no_read_time_of_a_master_that_has_messages_to_enqueue(running: InProcess) -> None:
    """Messages before that time are those that it has not enqueued: a slave that took it over would drop them."""
    tables, timers = running.broker.member.tables, running.broker.timers
    ask = SyncRequest(1, "10.0.0.2:10911", 0, Seen())
    timers.enabled = False
    for _ in range(3):
        timed(running.connect(), TIMER_DELAY_SEC=5)
    timers.lead()
    assert sliced_json.finish(tables.answer(ask, 1, QuorumPolicy())).timers is None
    timers.enabled = True
    pass_time(running, 200)
    assert sliced_json.finish(tables.answer(ask, 1, QuorumPolicy())).timers == (timers.timers.read_ms, 3, 0)
