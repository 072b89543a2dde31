"""What a scrape shows, as a Prometheus parser reads it, and when a broker says that it is not ready."""

import http.client
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families

from broker.metrics import families as metrics_families
from broker.metrics.families import version_name
from broker.metrics.snapshot import Family
from broker.state.ha_status import HaStatus, SlaveLink
from broker.web import server as metrics_server
from broker.web.server import STUCK_MS, MetricsServer
from ropewalk.codes import RequestCode
from store.io.disk import Disk, Space
from tests.broker.harness import FullDisk, InProcess, config_of
from tests.support.ledger_brokers import LedgerBrokers
from tests.support.processes import checkout_command, checkout_environment, running_broker
from tests.support.waiting import until

BASE = {"node_type", "cluster", "node_id"}
STORAGE = {"storage_type", "storage_medium"}
UPSTREAM = {
    # broker.md 8, those that apply: what a dashboard made for RocketMQ looks for.
    "rocketmq_processor_watermark": {"processor"},
    "rocketmq_broker_permission": set(),
    "rocketmq_topic_number": set(),
    "rocketmq_consumer_group_number": set(),
    "rocketmq_producer_connections": {"language", "version", "protocol_type"},
    "rocketmq_consumer_connections": {
        "consumer_group",
        "language",
        "version",
        "consume_mode",
        "protocol_type",
        "is_system",
    },
    "rocketmq_consumer_lag_messages": {"consumer_group", "topic", "is_retry", "is_system"},
    "rocketmq_consumer_lag_latency": {"consumer_group", "topic", "is_retry", "is_system"},
    "rocketmq_consumer_inflight_messages": {"consumer_group", "topic", "is_retry", "is_system"},
    "rocketmq_consumer_ready_messages": {"consumer_group", "topic", "is_retry", "is_system"},
    "rocketmq_consumer_queueing_latency": {"consumer_group", "topic", "is_retry", "is_system"},
    "rocketmq_topic_create_execution_time_bucket": {"le", "invocation_status", "is_system"},
    "rocketmq_consumer_group_create_execution_time_bucket": {"le", "invocation_status", "is_system"},
    "rocketmq_message_size_bucket": {"le", "topic", "message_type", "is_system"},
    "rocketmq_timer_enqueue_lag": STORAGE,
    "rocketmq_timer_enqueue_latency": STORAGE,
    "rocketmq_timer_dequeue_lag": STORAGE,
    "rocketmq_timer_dequeue_latency": STORAGE,
    "rocketmq_timing_messages": {"topic"},
    "rocketmq_timer_enqueue_total": {"topic"},
    "rocketmq_timer_dequeue_total": {"topic"},
    "rocketmq_timer_message_snapshot": {"timer_bound_s"},
    "rocketmq_delay_message_latency_bucket": {"le", "topic"},
    "rocketmq_rpc_latency_bucket": {
        "le",
        "protocol_type",
        "request_code",
        "response_code",
        "is_long_polling",
        "result",
    },
    "rocketmq_messages_in_total": {"topic", "message_type", "is_system"},
    "rocketmq_throughput_in_total": {"topic", "message_type", "is_system"},
    "rocketmq_messages_out_total": {"topic", "consumer_group", "is_system"},
    "rocketmq_throughput_out_total": {"topic", "consumer_group", "is_system"},
    "rocketmq_send_to_dlq_messages_total": {"consumer_group", "topic", "is_system"},
    "rocketmq_storage_size": STORAGE,
    "rocketmq_storage_flush_behind_bytes": STORAGE,
    "rocketmq_storage_dispatch_behind_bytes": STORAGE,
    "rocketmq_storage_message_reserve_time": STORAGE,
}
OURS = {
    "ropewalk_build_info": {"version"},
    "ropewalk_role": {"role"},
    "ropewalk_route_rivals": set(),
    "ropewalk_client_conflicts_total": {"kind"},
    "ropewalk_epoch": set(),
    "ropewalk_in_sync_slaves": set(),
    "ropewalk_replication_lag_bytes": {"slave"},
    "ropewalk_ready": set(),
    "ropewalk_forced_cleaning_room_ratio": set(),
    "ropewalk_forced_cleaning_segments_total": set(),
    "ropewalk_forced_cleaning_stopped": set(),
    "ropewalk_flush_seconds_bucket": {"le"},
    "ropewalk_loop_delay_seconds_bucket": {"le"},
    "ropewalk_append_seconds_bucket": {"le"},
    "ropewalk_consumer_queue_lag_messages": {"consumer_group", "topic", "queue"},
}


class Page(NamedTuple):
    status: int
    text: str
    content_type: str

    @property
    def families(self) -> dict[str, Metric]:
        return {family.name: family for family in text_string_to_metric_families(self.text)}

    def value(self, name: str, **labels: str) -> float:
        """The one sample of this name whose labels include these."""
        (found,) = [
            sample.value
            for family in self.families.values()
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        return found

    def bounds(self, name: str, **labels: str) -> list[float]:
        """The upper bounds of a histogram's buckets, in their order; no bucket holds less than the one before."""
        found = [
            (float(sample.labels["le"]), sample.value)
            for sample in self.families[name].samples
            if sample.name == f"{name}_bucket" and labels.items() <= sample.labels.items()
        ]
        assert [value for _bound, value in found] == sorted(value for _bound, value in found)
        *bounds, last = [bound for bound, _value in found]
        assert last == float("inf")
        return bounds


def get(port: int, path: str, accept: str = "") -> Page:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path, headers={"Accept": accept} if accept else {})
        answer = connection.getresponse()
        return Page(answer.status, answer.read().decode(), answer.headers["content-type"])
    finally:
        connection.close()


class Scraped:
    """A broker without sockets, but for the metrics server; a thread asks while the test is the loop."""

    def __init__(self, running: InProcess, port: int) -> None:
        self.running = running
        self._port = port

    def get(self, path: str, accept: str = "") -> Page:
        pages: list[Page] = []
        self.running.tick(1000)  # the pulse now knows what the test has done
        asker = threading.Thread(target=lambda: pages.append(get(self._port, path, accept)))
        asker.start()
        until = time.monotonic() + 60
        while asker.is_alive() and time.monotonic() < until:
            self.running.tick(1000)
            self.running.turn()
            asker.join(0.002)
        asker.join(20)
        (page,) = pages
        return page

    def frozen(self, path: str) -> Page:
        """The page while the loop does nothing."""
        return get(self._port, path)


@contextmanager
def scraped(running: InProcess) -> Iterator[Scraped]:
    server = MetricsServer(lambda: running.broker.metrics, running.clock.monotonic)
    port = server.listen("127.0.0.1", 0)
    server.start()
    try:
        running.tick()
        yield Scraped(running, port)
    finally:
        server.stop()


@pytest.fixture
def busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scraped]:
    """A broker that has seen every kind of thing that is counted."""
    with InProcess(config_of(tmp_path, metricsLabel="zone:north,rack:7")) as running, scraped(running) as it:
        client = running.connect()
        client.heartbeat(group="cg", topics={"T": "*"}, producers=["pg"])
        for _ in range(5):
            client.send("T", b"12345")
        running.settle()
        client.pull("T", maxMsgNums=2)
        client.call(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            {"consumerGroup": "cg", "topic": "T", "queueId": 0, "commitOffset": 2},
        )
        client.answers()
        send_to_dead_letters(running)
        make_things(running)
        set_timers(running)
        lagging = SlaveLink("10.0.0.2:40000", running.broker.store.log.end_offset - 100, True)
        status = HaStatus(epoch=3, slaves=[lagging])
        monkeypatch.setattr(type(running.broker.replication), "status", lambda *_about: status)
        running.broker.context.ha_status = status
        yield it


def send_to_dead_letters(running: InProcess) -> None:
    offset = running.stored("T")[0].offset
    header = {"group": "cg", "offset": offset, "delayLevel": -1, "originTopic": "T", "maxReconsumeTimes": 16}
    answer = running.connect().call(RequestCode.CONSUMER_SEND_MSG_BACK, header)
    assert answer.code == 0, answer.remark


def set_timers(running: InProcess) -> None:
    """Three timers of a topic, one of which is delivered."""
    client = running.connect()
    for seconds in (2, 40, 7200):
        assert client.send("timed", properties={"TIMER_DELAY_SEC": str(seconds)}).code == 0
    for _ in range(60):
        running.tick(50)


def make_things(running: InProcess) -> None:
    """A topic and a group that are made, and a topic that nobody may make."""
    client = running.connect()
    topic = {"defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    topic |= {"topicFilterType": "SINGLE_TAG"}
    made = client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "made", **topic})
    refused = client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "SCHEDULE_TOPIC_XXXX", **topic})
    group = client.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b'{"groupName":"made"}')
    assert (made.code, group.code) == (0, 0) and refused.code != 0


def test_names_and_labels_are_those_that_dashboards_look_for(busy: Scraped) -> None:
    page = busy.get("/metrics")
    assert page.status == 200 and page.content_type.startswith("text/plain; version=")
    labels: dict[str, set[str]] = {}
    for family in page.families.values():
        for sample in family.samples:
            labels.setdefault(sample.name, set(sample.labels) - BASE - {"zone", "rack"})
            if sample.name.startswith(("rocketmq_", "ropewalk_")):
                assert sample.labels.keys() >= BASE
                assert (sample.labels["zone"], sample.labels["rack"]) == ("north", "7")
    for name, wanted in {**UPSTREAM, **OURS}.items():
        assert labels.get(name) == wanted, name
    assert page.families["rocketmq_messages_in"].type == "counter"
    assert page.families["rocketmq_consumer_lag_messages"].type == "gauge"
    assert page.families["ropewalk_flush_seconds"].type == "histogram"
    assert "process_resident_memory_bytes" in labels


def test_numbers_are_what_happened(busy: Scraped) -> None:
    page = busy.get("/metrics")
    assert page.value("rocketmq_messages_in_total", topic="T", message_type="normal") == 5
    assert page.value("rocketmq_throughput_in_total", topic="T") > 25
    assert page.value("rocketmq_messages_out_total", topic="T", consumer_group="cg") == 2
    assert page.value("rocketmq_consumer_lag_messages", topic="T", consumer_group="cg") == 3
    assert page.value("ropewalk_consumer_queue_lag_messages", topic="T", queue="0") == 3
    assert page.value("rocketmq_consumer_lag_latency", topic="T", consumer_group="cg") >= 1000
    assert page.value("rocketmq_send_to_dlq_messages_total", topic="T", consumer_group="cg") == 1
    made = "rocketmq_topic_create_execution_time_count"
    assert page.value(made, invocation_status="success", is_system="false") == 1
    assert page.value(made, invocation_status="failure", is_system="true") == 1
    made = "rocketmq_consumer_group_create_execution_time_bucket"
    assert page.value(made, invocation_status="success", is_system="false", le="10") == 1
    assert page.value("rocketmq_consumer_connections", consumer_group="cg", language="java") == 1
    assert page.value("rocketmq_producer_connections", language="java") == 1
    assert page.value("rocketmq_broker_permission") == 6
    assert page.value("ropewalk_epoch") == 3
    assert page.value("ropewalk_replication_lag_bytes", slave="10.0.0.2:40000") == 100
    assert page.value("ropewalk_append_seconds_bucket", le="+Inf") >= 5
    assert page.value("ropewalk_ready") == 1
    size = page.value("rocketmq_message_size_sum", topic="T", message_type="normal")
    assert size == page.value("rocketmq_throughput_in_total", topic="T")
    assert page.value("rocketmq_message_size_count", topic="T") == 5
    assert page.bounds("rocketmq_message_size", topic="T") == [1024, 4096, 524288, 1 << 20, 2 << 20, 4 << 20]
    sends = {"request_code": "send_message_v2", "response_code": "success", "result": "success"}
    assert page.value("rocketmq_rpc_latency_count", **sends, protocol_type="remoting") == 8
    assert page.bounds("rocketmq_rpc_latency", **sends) == [1, 3, 5, 7, 10, 100, 1000, 2000, 3000]
    timed = {"topic": "timed"}
    assert page.value("rocketmq_timing_messages", **timed) == page.value("rocketmq_timer_dequeue_lag") == 2
    assert page.value("rocketmq_timer_enqueue_total", **timed) == 3
    assert page.value("rocketmq_timer_dequeue_total", **timed) == 1
    assert page.value("rocketmq_timer_enqueue_lag") == page.value("rocketmq_timer_enqueue_latency") == 0
    assert 0 <= page.value("rocketmq_timer_dequeue_latency") <= 1_000
    due = [page.value("rocketmq_timer_message_snapshot", timer_bound_s=str(s)) for s in (5, 60, 3600, 14400)]
    assert due == [0, 1, 0, 1]
    bounds = [
        page.value("rocketmq_delay_message_latency_bucket", le=str(s), **timed) for s in (60, 600, 43200)
    ]
    assert bounds == [2, 2, 3]
    again = busy.get("/metrics")
    assert again.value("rocketmq_consumer_lag_latency", topic="T") > page.value(
        "rocketmq_consumer_lag_latency", topic="T"
    )


def test_messages_that_were_fetched_and_not_committed_are_in_flight_and_the_others_ready(
    busy: Scraped,
) -> None:
    client = busy.running.connect()
    client.pull("T", queueOffset=2, maxMsgNums=2)
    client.pull("T", queueOffset=4, maxMsgNums=2)  # what was asked for next tells what has arrived
    page = busy.get("/metrics")
    about = {"topic": "T", "consumer_group": "cg"}
    assert page.value("rocketmq_consumer_lag_messages", **about) == 3
    assert page.value("rocketmq_consumer_inflight_messages", **about) == 2
    assert page.value("rocketmq_consumer_ready_messages", **about) == 1
    waited = page.value("rocketmq_consumer_queueing_latency", **about)
    assert 0 < waited <= page.value("rocketmq_consumer_lag_latency", **about)
    client.pull("T", queueOffset=5, maxMsgNums=2)
    page = busy.get("/metrics")
    assert page.value("rocketmq_consumer_inflight_messages", **about) == 3
    assert page.value("rocketmq_consumer_queueing_latency", **about) == 0


def test_a_group_that_has_read_everything_is_neither_messages_nor_time_behind(busy: Scraped) -> None:
    commit = {"consumerGroup": "cg", "topic": "T", "queueId": 0, "commitOffset": 5}
    busy.running.connect().call(RequestCode.UPDATE_CONSUMER_OFFSET, commit)
    page = busy.get("/metrics")
    assert page.value("rocketmq_consumer_lag_messages", topic="T", consumer_group="cg") == 0
    assert page.value("rocketmq_consumer_lag_latency", topic="T", consumer_group="cg") == 0


def test_the_oldest_message_of_a_dledger_member_has_the_age_of_its_record(tmp_path: Path) -> None:
    with LedgerBrokers(tmp_path, 1) as group:
        member = group.leader()
        assert member.connect().send("T", b"x").code == 0
        group.turn(1000)
        with scraped(member) as it:
            assert 0 < it.get("/metrics").value("rocketmq_storage_message_reserve_time") < 60_000


def test_whoever_asks_for_openmetrics_gets_it(busy: Scraped) -> None:
    page = busy.get("/metrics", "application/openmetrics-text; version=1.0.0")
    assert page.content_type.startswith("application/openmetrics-text")
    families = openmetrics_families(page.text)  # type: ignore[no-untyped-call]
    assert {family.name for family in families} >= {"rocketmq_messages_in", "ropewalk_ready"}


def test_what_other_parts_have_to_show_is_shown(busy: Scraped) -> None:
    metrics = busy.running.broker.metrics
    metrics.sources.append(
        lambda: [Family("rocketmq_half_messages", "gauge", "h", ("topic",), [(("T",), 4.0)])]
    )
    assert busy.get("/metrics").value("rocketmq_half_messages", topic="T") == 4


def test_names_that_strangers_invent_do_not_make_the_page_endless(
    busy: Scraped, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = busy.running
    assert metrics_families.SERIES_MAX <= 10_000
    monkeypatch.setattr(metrics_families, "SERIES_MAX", 50)
    for number in range(57):
        running.broker.statistics.put(f"invented-{number}", running.clock(), 1, 1)
    page = busy.get("/metrics")
    assert len(page.families["rocketmq_messages_in"].samples) == 50
    topics = len(running.broker.statistics.meters("TOPIC_PUT_NUMS"))
    assert page.value("ropewalk_metrics_left_out", family="rocketmq_messages_in") == topics - 50
    assert len(page.families["rocketmq_message_size"].samples) == 5 * 9, "buckets are series as well"
    assert page.value("ropewalk_metrics_left_out", family="rocketmq_message_size") == (topics - 5) * 9


def test_a_broker_that_nobody_scrapes_counts_nothing(tmp_path: Path) -> None:
    def taken() -> int:
        census = running.broker.metrics.census
        return 0 if census is None else census.number

    with InProcess(config_of(tmp_path)) as running, scraped(running) as it:
        for _ in range(5):
            running.tick(1000)
        assert it.get("/livez").status == 200 and taken() == 0
        it.get("/metrics")
        assert taken() == 1
        for _ in range(5):
            running.tick(1000)
        assert taken() == 1


def test_a_mistake_in_a_number_costs_a_scrape_and_not_the_broker(
    busy: Scraped, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = busy.running.broker.metrics

    def broken() -> list[Family]:
        raise ZeroDivisionError

    monkeypatch.setattr(metrics_server, "LOOP_WAIT_S", 0.3)
    metrics.sources.append(broken)
    assert busy.get("/metrics").status == 503
    metrics.sources.remove(broken)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(busy.running.broker.offsets, "pairs", lambda limit: 1 // 0)
        assert busy.get("/metrics").status == 500
    assert busy.get("/metrics").status == 200
    assert busy.get("/readyz").status == 200


# -- readiness -----------------------------------------------------------------------------------------


def fill_the_disk(disk: FullDisk, running: InProcess) -> None:
    disk.full = True
    for _ in range(30):
        running.connect().send("T", bytes(100_000))


def test_a_full_disk_is_not_ready_and_says_why(tmp_path: Path) -> None:
    disk = FullDisk()
    with InProcess(config_of(tmp_path), disk) as running, scraped(running) as it:
        assert it.get("/readyz") == (200, "ready\n", "text/plain; charset=utf-8")
        fill_the_disk(disk, running)
        page = it.get("/readyz")
        assert page.status == 503 and "No space left on device" in page.text
        assert it.get("/livez").status == 200
        assert it.get("/metrics").value("ropewalk_ready") == 0
        disk.full = False
        running.until(lambda: it.get("/readyz").status == 200)


def test_a_broker_that_is_ready_says_what_else_is_to_be_known(tmp_path: Path) -> None:
    with InProcess(config_of(tmp_path)) as running, scraped(running) as it:
        running.broker.context.ha_status = HaStatus(notes=("n3 learns, and does not vote",))
        assert it.get("/readyz")[:2] == (200, "ready\nn3 learns, and does not vote\n")


def test_a_disk_whose_young_messages_go_soon_is_ready_and_says_so_before_the_first_goes(
    tmp_path: Path,
) -> None:
    class Scales(Disk):
        used = 50

        def space(self, path: Path) -> Space:
            return Space(1000, 1000 - 10 * self.used, 1000 - 10 * self.used)

    disk = Scales()
    with InProcess(config_of(tmp_path, cleanResourceInterval=1000), disk) as running, scraped(running) as it:
        running.connect().send("T", b"x")

        def look() -> None:
            cleaner = running.broker.store.upkeep.cleaner
            assert cleaner is not None
            for _ in range(2):
                running.tick(61_000)
                running.until(lambda: not cleaner._looking)
            running.tick(1001)

        look()
        assert it.get("/metrics").value("ropewalk_forced_cleaning_room_ratio") == pytest.approx(0.35)
        assert "young" not in it.get("/readyz").text
        disk.used = 82
        look()
        assert it.get("/metrics").value("ropewalk_forced_cleaning_room_ratio") == pytest.approx(0.03)
        page = it.get("/readyz")
        assert page.status == 200 and "3.0 % more until messages younger than fileReservedTime" in page.text
        disk.used = 95
        look()
        page, metrics = it.get("/readyz"), it.get("/metrics")
        assert page.status == 503 and "forced cleaning has stopped" in page.text
        assert metrics.value("ropewalk_forced_cleaning_stopped") == 1
        assert metrics.value("ropewalk_forced_cleaning_segments_total") == 0


FENCE = "fenced: 10.0.0.2 became master under epoch 4"
QUORUM = "1 of 2 slaves is there, and an acknowledgement needs 2"


@pytest.mark.parametrize(
    ("status", "why"),
    [(HaStatus(fence=FENCE), FENCE), (HaStatus(quorum_missing=QUORUM), QUORUM)],
    ids=["fence", "quorum"],
)
def test_a_broker_that_replication_holds_back_is_not_ready(
    tmp_path: Path, status: HaStatus, why: str
) -> None:
    with InProcess(config_of(tmp_path)) as running, scraped(running) as it:
        assert it.get("/readyz").status == 200
        running.broker.context.ha_status = status
        assert it.get("/readyz")[:2] == (503, f"{why}\n")
        running.broker.context.ha_status = HaStatus()
        assert it.get("/readyz").status == 200


def test_a_stopping_broker_is_not_ready_and_still_alive(tmp_path: Path) -> None:
    with InProcess(config_of(tmp_path)) as running, scraped(running) as it:
        running.broker.context.stopping = True
        assert it.get("/readyz").status == 503
        assert it.get("/livez").status == 200


def test_a_loop_that_does_not_turn_is_not_alive(tmp_path: Path) -> None:
    with InProcess(config_of(tmp_path)) as running, scraped(running) as it:
        assert it.frozen("/livez").status == 200
        running.clock.ms += STUCK_MS + 1
        page = it.frozen("/livez")
        assert page.status == 503 and "has not turned for 10 s" in page.text
        assert it.frozen("/readyz").status == 503
        running.tick()
        assert it.frozen("/livez").status == 200


# -- versions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (317, "v4_5_2"),
        (409, "v4_9_8"),
        (413, "v5_0_0"),
        (453, "v5_2_0"),
        (479, "v5_3_3"),
        (232, "v4_1_0_snapshot"),
        (121, "v121"),
        (0, "v0"),
        (100_000, "v100000"),
    ],
)
def test_versions_have_the_names_of_rocketmq(number: int, name: str) -> None:
    assert version_name(number) == name


# -- a broker as a process of its own ------------------------------------------------------------------


def test_a_broker_serves_its_metrics_without_being_told_to(tmp_path: Path) -> None:
    with running_broker(checkout_command(), cwd=tmp_path, environment=checkout_environment()) as broker:
        host, _, port = str(broker.ready["metrics"]).partition(":")
        assert host == "127.0.0.1"
        time.sleep(0.3)
        before = anonymous_kib(broker.process.pid)
        until(lambda: get(int(port), "/readyz").status == 200)
        after = anonymous_kib(broker.process.pid)
        assert after - before > 1000, f"the web libraries come with the first visitor: {before} KiB, {after}"
        page = get(int(port), "/metrics")
        assert page.value("rocketmq_topic_number") > 5
        assert page.value("ropewalk_loop_delay_seconds_count") > 0
        assert get(int(port), "/nowhere").status == 404


def test_no_metrics_where_none_are_wanted(tmp_path: Path) -> None:
    words = ("--set", "metricsExporterType=DISABLE")
    with running_broker(
        checkout_command(), *words, cwd=tmp_path, environment=checkout_environment()
    ) as broker:
        assert broker.ready["metrics"] is None
        status = Path(f"/proc/{broker.process.pid}/task")
        assert "ropewalk-metric" not in {(task / "comm").read_text().strip() for task in status.iterdir()}


def anonymous_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1])
    raise AssertionError("no RssAnon")


def test_a_master_whose_slaves_are_not_there_is_not_ready(tmp_path: Path) -> None:
    words = ("--set", "brokerRole=SYNC_MASTER")
    with running_broker(
        checkout_command(), *words, cwd=tmp_path, environment=checkout_environment()
    ) as broker:
        port = int(str(broker.ready["metrics"]).partition(":")[2])
        until(lambda: get(port, "/readyz").status == 503)
        assert "0 of the 1 slaves" in get(port, "/readyz").text
        assert get(port, "/livez").status == 200
        assert get(port, "/metrics").value("ropewalk_role", role="SYNC_MASTER") == 1
