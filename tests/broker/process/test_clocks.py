"""Setting the wall clock, by hours and in either direction, decides nothing that lasts a while or has a deadline."""

import json
import time

import pytest

from broker.admin.relay import RELAY_TIMEOUT_MS
from broker.namesrv.server import NameServer
from broker.process import launch
from broker.state.queue_locks import EXPIRY_MS as LOCK_EXPIRY_MS
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format.remoting import Command
from tests.broker.harness import Client, FlushGate, InProcess, pull_ext, send_ext
from tests.support.clocks import START_MS, Clock

HOUR_MS = 3_600_000
JUMPS = pytest.mark.parametrize("jump_ms", [-2 * HOUR_MS, -1_000, 0, 1_000, 2 * HOUR_MS, 5 * HOUR_MS])
CLIENT_EXPIRY_MS = 120_000


def lock(client: Client, client_id: str) -> bool:
    queue = {"brokerName": "b", "queueId": 0, "topic": "T"}
    wish = {"clientId": client_id, "consumerGroup": "g", "mqSet": [queue]}
    answer = client.call(RequestCode.LOCK_BATCH_MQ, body=json.dumps(wish).encode())
    granted: list[object] = json.loads(answer.body)["lockOKMQSet"]
    return granted == [queue]


@JUMPS
def test_a_queue_lock_stays_exclusive_and_ends_after_its_time(
    running: InProcess, client: Client, jump_ms: int
) -> None:
    assert lock(client, "a")
    running.clock.set_wall(jump_ms)
    running.broker.expire_clients()
    assert not lock(client, "b")
    running.tick(LOCK_EXPIRY_MS)
    assert not lock(client, "b")
    running.tick(1)
    assert lock(client, "b")


@JUMPS
@pytest.mark.parametrize("held", [True, False])
def test_whether_an_ordered_retry_is_given_up_goes_by_the_lock_and_not_by_the_wall_clock(
    running: InProcess, client: Client, jump_ms: int, held: bool
) -> None:
    client.heartbeat(client_id="a", group="g")
    running.tick()
    client.answers()
    assert lock(client, "a")
    running.tick(0 if held else LOCK_EXPIRY_MS + 1)
    running.clock.set_wall(jump_ms)
    client.send("%RETRY%g", properties={"RETRY_TOPIC": "T"}, reconsumeTimes=1, maxReconsumeTimes=16)
    assert bool(running.stored("%DLQ%g")) is held


@JUMPS
def test_a_client_lives_by_the_age_of_its_heartbeat(running: InProcess, jump_ms: int) -> None:
    client = running.connect()
    client.heartbeat(client_id="c1", group="g", producers=["pg"])
    running.tick(11_000)
    running.clock.set_wall(jump_ms)
    running.broker.expire_clients()
    assert running.broker.clients.consumer_ids("g") == ["c1"]
    running.tick(CLIENT_EXPIRY_MS - 11_000)
    running.broker.expire_clients()
    assert running.broker.clients.consumer_ids("g") == ["c1"]
    running.tick(1)
    running.broker.expire_clients()
    assert client.link.closed
    assert running.broker.clients.consumer_ids("g") == []


@JUMPS
def test_a_producers_last_sign_of_life_is_shown_in_the_wall_clocks_time(
    running: InProcess, client: Client, jump_ms: int
) -> None:
    client.heartbeat(client_id="c1", group=None, producers=["pg"])
    running.tick(7_000)
    running.clock.set_wall(jump_ms)
    (info,) = json.loads(client.call(RequestCode.GET_ALL_PRODUCER_INFO).body)["data"]["pg"]
    assert info["lastUpdateTimestamp"] == running.clock.ms - 7_000


@JUMPS
def test_a_held_pull_is_answered_at_its_time(running: InProcess, client: Client, jump_ms: int) -> None:
    client.send("T")
    opaque = client.ask(RequestCode.PULL_MESSAGE, pull_ext("T", queueOffset=1, sysFlag=6))
    running.clock.set_wall(jump_ms)
    running.tick(14_999)
    assert not client.link.sent
    running.tick(1)
    assert client.answer(opaque).code == ResponseCode.PULL_NOT_FOUND


@JUMPS
def test_a_pull_that_is_woken_for_nothing_waits_on_for_the_rest_of_its_time(
    running: InProcess, client: Client, jump_ms: int
) -> None:
    client.send("T")
    ext = pull_ext("T", queueOffset=1, sysFlag=6, subscription="wanted")
    opaque = client.ask(RequestCode.PULL_MESSAGE, ext)
    running.clock.set_wall(jump_ms)
    producer = running.connect()
    producer.send("T", properties={"TAGS": "other"})
    running.turn()
    running.tick(14_999)
    assert not client.link.sent
    running.tick(1)
    assert client.answer(opaque).code != ResponseCode.SUCCESS


@JUMPS
def test_an_answer_waits_for_the_flush_as_long_as_it_should(
    synced: InProcess, flush_gate: FlushGate, jump_ms: int
) -> None:
    client = synced.connect()
    flush_gate.shut()
    opaque = client.ask(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"x")
    synced.clock.set_wall(jump_ms)
    synced.tick(4_999)
    assert not client.link.sent
    synced.tick(1)
    assert client.answer(opaque).code == ResponseCode.FLUSH_DISK_TIMEOUT


@JUMPS
def test_an_answer_after_a_clock_that_was_set_back_still_waits_as_long_as_it_should(
    synced: InProcess, flush_gate: FlushGate, jump_ms: int
) -> None:
    client = synced.connect()
    synced.clock.set_wall(jump_ms)
    flush_gate.shut()
    opaque = client.ask(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"x")
    synced.tick(4_999)
    assert not client.link.sent
    synced.tick(1)
    assert client.answer(opaque).code == ResponseCode.FLUSH_DISK_TIMEOUT


@JUMPS
def test_what_a_client_is_asked_is_given_up_at_its_time(
    running: InProcess, client: Client, jump_ms: int
) -> None:
    member = running.connect()
    member.heartbeat(client_id="c1", group="g")
    running.tick()
    opaque = client.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "g", "clientId": "c1"})
    running.clock.set_wall(jump_ms)
    running.tick(RELAY_TIMEOUT_MS - 1)
    assert not client.link.sent
    running.tick(1)
    assert client.answer(opaque).code == ResponseCode.CONSUME_MSG_TIMEOUT


def test_store_times_and_versions_go_by_the_wall_clock(running: InProcess, client: Client) -> None:
    running.clock.set_wall(2 * HOUR_MS)
    client.send("T")
    (record,) = running.stored("T")
    assert record.store_timestamp == START_MS + 2 * HOUR_MS
    assert running.broker.topics.data_version.timestamp == START_MS + 2 * HOUR_MS


@JUMPS
def test_a_broker_stays_with_the_name_server_for_as_long_as_it_is_heard(jump_ms: int) -> None:
    clock = Clock()
    server = NameServer(clock.monotonic)
    ext = {
        "brokerName": "b",
        "brokerAddr": "10.0.0.1:10911",
        "clusterName": "c",
        "haServerAddr": "",
        "brokerId": "0",
    }
    answer = server.handle(Command(RequestCode.REGISTER_BROKER, ext), "peer")
    assert answer is not None
    assert answer.code == ResponseCode.SUCCESS
    clock.set_wall(jump_ms)
    clock.ms += CLIENT_EXPIRY_MS
    server.expire()
    assert server.table.broker_table()
    clock.ms += 1
    server.expire()
    assert not server.table.broker_table()


def test_the_sleep_of_the_machine_counts_so_that_no_lease_is_honoured_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept_s = 3_600
    awake = time.clock_gettime_ns

    def after_a_sleep(clock: int) -> int:
        return awake(clock) + (slept_s * 10**9 if clock == time.CLOCK_BOOTTIME else 0)

    if not hasattr(time, "CLOCK_BOOTTIME"):
        pytest.skip("this system has no clock that counts sleep")
    before = launch.monotonic_ms()
    monkeypatch.setattr(time, "clock_gettime_ns", after_a_sleep)
    assert launch.monotonic_ms() - before >= slept_s * 1000
