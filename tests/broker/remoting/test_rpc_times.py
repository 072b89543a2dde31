"""How long requests took to answer, by kind: what waits counts when it is answered, and everything counts once.

That whatever leaves a broker is counted is seen to by the harness, in every test that uses it.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.remoting.rpc_times import BOUNDS_MS, RpcTimes, Series
from broker.state.statistics import TopicMeter
from ropewalk.codes import RequestCode
from store.io.disk import MappedFile
from tests.broker.harness import (
    UNIQ,
    FlushGate,
    InProcess,
    batch_of,
    config_of,
    pull_ext,
    request,
    send_ext,
    text_of,
)
from tests.support.clocks import START_MS

V2 = RequestCode.SEND_MESSAGE_V2
ONEWAY = 2


class Timed(InProcess):
    """A broker whose fine clock stands still with the others."""

    def __init__(self, root: Path, **settings: object) -> None:
        super().__init__(config_of(root, **settings), clock=lambda: (self.clock.ms - START_MS) / 1000)

    def series(self, request: str, **about: object) -> dict[str, Series]:
        """By answer; all of them have this in common."""
        return {
            one.response: one
            for one in self.broker.rpc_times.series()
            if one.request == request and about.items() <= one._asdict().items()
        }

    def classes(self, request: str, response: str = "success", **about: object) -> dict[float, int]:
        """Upper bound -> how many, where there are any."""
        counts = self.series(request, **about)[response].counts
        return {bound: n for bound, n in zip((*BOUNDS_MS, float("inf")), counts, strict=True) if n}


@pytest.fixture
def timed(tmp_path: Path) -> Iterator[Timed]:
    running = Timed(tmp_path)
    with running:
        yield running


@pytest.fixture
def gated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Timed, FlushGate]]:
    """A broker whose answers wait for a flush, and the gate before the flush."""
    gate = FlushGate()
    monkeypatch.setattr(MappedFile, "sync", lambda file: gate.sync(file))  # noqa: PLW0108 - to be bound
    try:
        running = Timed(tmp_path, flushDiskType="SYNC_FLUSH")
        with running:
            yield running, gate
            gate.open()
    finally:
        gate.open()


def frames(count: int, *, flag: int = 0, properties: str = "") -> bytes:
    return b"".join(
        request(
            V2,
            send_ext("T", properties=text_of({"UNIQ_KEY": f"{UNIQ[:-4]}{n:04d}"}) + properties),
            opaque=1000 + n,
            flag=flag,
        )
        for n in range(count)
    )


def test_a_duration_equal_to_a_bound_belongs_below_it() -> None:
    times = RpcTimes()
    for took_ms in (0.0, 0.999, 1.0, 1.001, 7.0, 3000.0, 3000.5):
        times.add(V2, 0, took_ms / 1000)
    (one,) = times.series()
    assert one.counts == (3, 1, 0, 1, 0, 0, 0, 0, 1, 1)
    assert one.total_ms == pytest.approx(6010.5)


def test_requests_that_have_no_name_share_a_row() -> None:
    times = RpcTimes()
    for code in range(40_000, 45_000):
        times.add(code, 3, 0.0)
    times.add(RequestCode.GET_CONSUMER_RUNNING_INFO, 77_777, 0.0)
    assert [(one.request, one.response, sum(one.counts)) for one in times.series()] == [
        ("unknown", "request_code_not_supported", 5000),
        ("get_consumer_running_info", "unknown", 1),
    ]


def test_a_send_that_waits_for_the_disk_counts_when_it_is_answered(gated: tuple[Timed, FlushGate]) -> None:
    running, gate = gated
    client = running.connect()
    client.send("T")
    before = running.classes("send_message_v2")
    assert before == {1: 1}
    gate.shut()
    # One for itself, a run, and one that has no time to wait.
    client.feed(request(V2, send_ext("T", properties=text_of({"DELAY": "1"}))))
    client.feed(frames(40))
    client.feed(request(V2, send_ext("T", properties=text_of({"WAIT": "false"}))))
    assert running.classes("send_message_v2") == {1: 2}
    running.clock.ms += 6
    gate.open()
    running.settle()
    assert running.classes("send_message_v2") == {1: 2, 7: 41}
    assert running.series("send_message_v2")["success"].total_ms == pytest.approx(41 * 6)


def test_a_send_whose_flush_does_not_come_counts_as_answered_so(gated: tuple[Timed, FlushGate]) -> None:
    running, gate = gated
    client = running.connect()
    client.send("T")
    gate.shut()
    client.feed(frames(3))
    gone = running.connect()
    gone.feed(frames(2))
    gone.disconnect()
    running.tick(running.broker.config.sync_flush_timeout)
    assert running.classes("send_message_v2", "flush_disk_timeout", result="success") == {float("inf"): 3}
    failed = running.classes("send_message_v2", "flush_disk_timeout", result="write_channel_failed")
    assert failed == {float("inf"): 2}


def test_a_send_without_slaves_to_wait_for_counts_as_answered_so(tmp_path: Path) -> None:
    running = Timed(tmp_path, brokerRole="SYNC_MASTER")
    with running:
        client = running.connect()
        client.feed(frames(20))
        assert {answer.code for answer in client.answers()} == {11}
        assert running.classes("send_message_v2", "slave_not_available") == {1: 20}
        assert set(running.series("send_message_v2")) == {"slave_not_available"}


@pytest.mark.parametrize("count", [1, 3, 40])
def test_sends_whose_sender_reads_no_answer_count_apart(timed: Timed, count: int) -> None:
    client = timed.connect()
    client.send("T")
    for _ in range(3):  # judged, learned, taken by columns
        client.feed(frames(count, flag=ONEWAY))
    client.feed(request(V2, send_ext("T", properties=text_of({"INNER_NUM": "2"})), flag=ONEWAY))
    assert client.answers() == []
    assert timed.classes("send_message_v2", result="oneway") == {1: 3 * count}
    assert timed.classes("send_message_v2", "message_illegal", result="oneway") == {1: 1}
    assert timed.classes("send_message_v2", result="success") == {1: 1}


def test_a_pull_that_waits_counts_when_a_message_or_the_end_of_its_time_comes(timed: Timed) -> None:
    client, reader = timed.connect(), timed.connect()
    client.send("T")
    reader.heartbeat(topics={"T": "*"})
    wait = {"sysFlag": 2, "suspendTimeoutMillis": 2500}
    reader.pull("T")
    for _ in range(2):
        reader.feed(request(RequestCode.PULL_MESSAGE, pull_ext("T", queueOffset=1, **wait)))
        reader.feed(request(RequestCode.LITE_PULL_MESSAGE, pull_ext("T", queueId=1, **wait)))
    assert reader.answers() == []
    timed.clock.ms += 150
    client.send("T")
    timed.until(lambda: bool(reader.link.sent))
    assert timed.classes("pull_message", long_polling=True) == {1000: 2}
    assert timed.classes("pull_message", long_polling=False) == {1: 1}
    timed.tick(2400)
    timed.until(lambda: "pull_not_found" in timed.series("lite_pull_message"))
    assert timed.classes("lite_pull_message", "pull_not_found", long_polling=True) == {3000: 2}


def test_what_a_helper_thread_looks_up_counts_when_it_is_answered(timed: Timed) -> None:
    client = timed.connect()
    client.send("T")
    search = {"topic": "T", "queueId": 0, "timestamp": 1}
    client.owner.broker.begin_turn()
    client.session.receive(request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, search))
    timed.clock.ms += 20
    timed.until(lambda: bool(client.link.sent))
    assert timed.classes("search_offset_by_timestamp") == {100: 1}
    gone = timed.connect()
    gone.owner.broker.begin_turn()
    gone.session.receive(request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, search))
    gone.disconnect()
    timed.until(lambda: len(timed.series("search_offset_by_timestamp", result="write_channel_failed")) == 1)


def test_requests_that_wait_for_the_peer_to_take_answers_have_been_read_before(timed: Timed) -> None:
    client = timed.connect()
    client.send("T")
    client.link.congested = True
    client.feed(request(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": 0}))
    assert client.session.has_backlog and not client.link.sent
    timed.clock.ms += 50
    client.link.congested = False
    timed.broker.begin_turn()
    client.session.resume()
    timed.broker.end_turn()
    assert timed.classes("get_max_offset") == {100: 1}


def test_a_batch_counts_once_by_size_at_the_average_of_its_messages(timed: Timed) -> None:
    client = timed.connect()
    client.send("T", bytes(5000))
    meter = dict(timed.broker.statistics.meters("TOPIC_PUT_NUMS"))["T"]
    assert isinstance(meter, TopicMeter)
    assert meter.classes == [0, 0, 1, 0, 0, 0, 0]
    total = meter.classes_total
    for bodies in ([b"x" * 3000] * 4, [b"x" * 900, b"x" * 2100, b""]):  # by columns, and item by item
        before = meter.bytes
        client.send("T", batch_of(*bodies), batch=True)
        total += (meter.bytes - before) // len(bodies)
    assert meter.classes == [0, 2, 1, 0, 0, 0, 0]
    assert (meter.messages, meter.classes_total) == (8, total)


def test_records_of_one_run_count_each_by_its_own_size(timed: Timed) -> None:
    client = timed.connect()
    client.send("T")
    sizes = [10, 10, 2000, 600_000, 10, 3000]
    client.feed(
        b"".join(
            request(
                V2,
                send_ext("T", properties=text_of({"UNIQ_KEY": f"{UNIQ[:-4]}{n:04d}"})),
                bytes(size),
                opaque=10 + n,
            )
            for n, size in enumerate(sizes)
        )
    )
    meter = dict(timed.broker.statistics.meters("TOPIC_PUT_NUMS"))["T"]
    assert isinstance(meter, TopicMeter)
    assert meter.classes == [4, 2, 0, 1, 0, 0, 0]
    assert meter.classes_total == meter.bytes
