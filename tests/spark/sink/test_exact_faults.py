"""Exactly-once writes while executors are cut off and brokers change roles. No Spark: drivers and tasks are called."""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ropewalk.client.admin.results import BrokerMember
from ropewalk.client.blocking.admin import Admin
from ropewalk.client.core.connection import Unreachable
from ropewalk.client.core.messages import Message
from ropewalk.client.core.routes import TopicRoute
from ropewalk.errors import Rejected, RopewalkError
from ropewalk.spark.sink import exact
from ropewalk.spark.sink.exact import SinkDriver
from ropewalk.spark.sink.routes import WriteFailed
from ropewalk.spark.sink.rows import Outgoing
from ropewalk.spark.sink.run import Run, TaskIdentity, TaskResult
from ropewalk.spark.sink.writer import sender_of
from ropewalk.testing import BrokerProcess, RopewalkBroker
from tests.crash.ledger_group import LedgerGroup
from tests.ha.process_group import BROKER, Group, group_of
from tests.spark.sink.exact_tasks import begin, bodies, commit, options_of, write
from tests.support.holding_proxy import HoldingProxy
from tests.support.long_run import long_only

TOPIC = "T"


@pytest.mark.parametrize("is_committed", [False, True])
def test_an_executor_that_was_cut_off_appends_nothing_when_it_is_let_go(
    ropewalk_broker: RopewalkBroker, is_committed: bool
) -> None:
    topic = ropewalk_broker.topic(queues=2)
    options = options_of(
        ropewalk_broker.namesrv, topic, sinkId=f"cut-off-{is_committed}", sendTimeoutMs="20s"
    )
    host, _, port = ropewalk_broker.broker.rpartition(":")
    proxy = HoldingProxy((host, int(port)))
    run = begin(options)
    zombie = sender_of(options, run, TaskIdentity("q", 0, 0, 1))
    through = zombie._links.get
    zombie._links.get = (  # type: ignore[method-assign]
        lambda address: through(proxy.address if address == ropewalk_broker.broker else address)
    )
    failures: list[Exception] = []

    def go_on() -> None:
        try:
            write(zombie, topic, range(200))
        except WriteFailed as exc:
            failures.append(exc)

    # Cut off in the middle: some of its requests are stored, others on the way.
    for row in range(200, 260):
        zombie.add(Outgoing(topic, Message(b"%d" % row), 20))
    proxy.hold()
    thread = threading.Thread(target=go_on)
    thread.start()
    ropewalk_broker.wait_until(lambda: proxy.held > 0, "requests that are held back")
    # Spark has given it up, and runs the task elsewhere.
    result = write(sender_of(options, run, TaskIdentity("q", 0, 0, 2)), topic, reversed(range(260)))
    if is_committed:
        commit(options, [result])
    proxy.release()
    thread.join(30)
    proxy.close()
    assert not thread.is_alive()
    assert len(failures) == 1
    assert ("was committed" if is_committed else "attempt 1 of partition 0") in str(failures[0])
    assert Counter(int(each.body) for each in ropewalk_broker.messages(topic, 260)) == Counter(range(260))


@pytest.mark.slow
def test_a_batch_outlives_the_failover_of_its_master(tmp_path: Path) -> None:
    with group_of(tmp_path, "b") as group:
        with Admin(group.namesrv) as admin:
            admin.create_topic(TOPIC, 3)
        options = options_of(group.namesrv, TOPIC)
        commit(
            options, [write(sender_of(options, begin(options), TaskIdentity("q", 6, 0)), TOPIC, range(50))]
        )
        first = begin(options)
        write(sender_of(options, first, TaskIdentity("q", 7, 0)), TOPIC, range(50, 650))
        group.kill("a")
        assert group.admin("failover", BROKER)["newMaster"] == group.replicas["b"].address
        group.start("a")
        # A task that Spark still runs under the epoch of before goes on; a new driver fences it.
        going_on = sender_of(options, first, TaskIdentity("q", 7, 0, 1))
        write(going_on, TOPIC, range(600, 700))
        second = begin(options)
        assert second.epochs[BROKER] > first.epochs[BROKER]
        result = write(
            sender_of(options, second, TaskIdentity("q", 7, 0, 3)), TOPIC, reversed(range(50, 800))
        )
        with pytest.raises(WriteFailed, match="is over"):
            write(sender_of(options, first, TaskIdentity("q", 7, 0, 2)), TOPIC, range(900, 910))
        commit(options, [result])
        third = begin(options)
        assert third.committed[BROKER][:2] == ("q", 7)
        group.until(lambda: len(bodies(group.namesrv, TOPIC)) >= 800, "all rows")
        assert sorted(bodies(group.namesrv, TOPIC)) == list(range(800))


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Group]:
    """Two masters of one cluster, of which the second is not there yet."""
    group = Group(tmp_path)
    try:
        group.start("a")
        yield group
    finally:
        group.close()


def create(group: Group, count: int) -> None:
    with Admin(group.namesrv) as admin:
        group.until(lambda: len(members(admin)) == count, f"{count} brokers")
        for member in admin.members():
            if TOPIC not in topics_of(admin, member.broker_name):
                admin.create_topic(TOPIC, 2, broker=member.broker_name)
        group.until(lambda: len(brokers_of(admin)) == count, "the topic at all brokers")


def members(admin: Admin) -> tuple[BrokerMember, ...]:
    try:
        return admin.members()
    except RopewalkError:
        return ()


def brokers_of(admin: Admin) -> set[str]:
    try:
        return {queue.broker_name for queue in admin.topic_route(TOPIC).write_queues()}
    except Rejected:
        return set()


def topics_of(admin: Admin, broker: str) -> set[str]:
    return {TOPIC} if broker in brokers_of(admin) else set()


@pytest.mark.slow
@pytest.mark.parametrize("way", ["keys compared by the broker", pytest.param("read back", marks=long_only)])
def test_a_batch_ends_at_the_brokers_where_it_began_and_the_next_uses_new_ones(
    pair: Group, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compares = way != "read back"
    if not compares:
        monkeypatch.setattr(SinkDriver, "_init", lambda *_given: None)
    create(pair, 1)
    options = options_of(pair.namesrv, TOPIC)
    rows = iter(itertools.count(0, 100))

    def task(run: Run, batch: int, first: int, attempt: int = 0) -> TaskResult:
        sender = sender_of(options, run, TaskIdentity("q", batch, 0, attempt))
        return write(sender, TOPIC, random.Random(attempt).sample(range(first, first + 100), 100))

    # A second broker appears while a batch is open: the batch stays where it is.
    first = next(rows)
    task(begin(options), 0, first)
    pair.start("b", brokerName="broker-b")
    create(pair, 2)
    again = begin(options)
    if compares:
        assert again.brokers == ("broker-a",)
    commit(options, [task(again, 0, first, 1)])
    # A driver that repeats the batch although it was committed writes nothing, to neither.
    commit(options, [task(begin(options), 0, first, 2)])
    assert sorted(bodies(pair.namesrv, TOPIC)) == list(range(100))
    # The next batch uses both. Its commit reaches one of them, and the driver dies.
    second = next(rows)
    run = begin(options)
    assert run.brokers == ("broker-a", "broker-b")
    result = task(run, 1, second)
    assert set(result.by_broker) == {"broker-a", "broker-b"}
    if compares:
        half = SinkDriver(options)
        with monkeypatch.context() as patch:
            patch.setattr("ropewalk.spark.sink.exact._master", only(half, "broker-a"))
            patch.setattr(half, "_timeout_s", 0.0)
            with pytest.raises(WriteFailed, match="broker-b is away"):
                half.commit([result])
        half.close()
        replay = begin(options)
        assert replay.finished_brokers("q", 1) == {"broker-a"}
        commit(options, [task(replay, 1, second, 1)])
    else:
        commit(options, [result])
    assert sorted(bodies(pair.namesrv, TOPIC)) == list(range(200))
    # One of them is away in the middle of a batch: it is waited for, and named.
    third = next(rows)
    task(begin(options), 2, third)
    pair.kill("b")
    impatient = options_of(pair.namesrv, TOPIC, sendTimeoutMs="3s")
    with Admin(pair.namesrv) as admin:
        pair.until(lambda: len(brokers_of(admin)) == 1, "the name server misses broker-b")
    with pytest.raises(WriteFailed, match="a batch has to end where it began"):
        begin(impatient)
    pair.start("b")
    with Admin(pair.namesrv) as admin:
        pair.until(lambda: len(brokers_of(admin)) == 2, "broker-b is back")
    commit(options, [task(begin(options), 2, third, 1)])
    assert sorted(bodies(pair.namesrv, TOPIC)) == list(range(300))


def only(driver: SinkDriver, name: str) -> Callable[[TopicRoute, str], str]:
    """Finds the masters of one broker set alone."""
    find = exact._master

    def found(route: TopicRoute, broker: str) -> str:
        if broker != name:
            raise Unreachable(f"{broker} is away")
        return find(route, broker)

    return found


@pytest.mark.slow
def test_a_batch_outlives_the_leader_of_a_dledger_group(tmp_path: Path) -> None:
    with LedgerGroup(tmp_path) as group:
        namesrv = group.name_server
        group.leader()
        with Admin(namesrv, timeout=10.0) as admin:
            admin.create_topic(TOPIC, 2)
        options = options_of(namesrv, TOPIC)
        commit(
            options, [write(sender_of(options, begin(options), TaskIdentity("q", 0, 0)), TOPIC, range(40))]
        )
        first = begin(options)
        write(sender_of(options, first, TaskIdentity("q", 1, 0)), TOPIC, range(40, 240))
        group.leader().kill()
        going_on = sender_of(options, first, TaskIdentity("q", 1, 0, 1))
        write(going_on, TOPIC, range(200, 260))
        second = begin(options)
        result = write(
            sender_of(options, second, TaskIdentity("q", 1, 0, 3)), TOPIC, reversed(range(40, 300))
        )
        with pytest.raises(WriteFailed, match="is over"):
            write(sender_of(options, first, TaskIdentity("q", 1, 0, 2)), TOPIC, range(900, 910))
        commit(options, [result])
        assert sorted(bodies(namesrv, TOPIC)) == list(range(300))


def test_a_master_without_its_slave_serves_a_sink_that_says_so(tmp_path: Path) -> None:
    with BrokerProcess({"brokerRole": "SYNC_MASTER", "inSyncReplicas": "2"}) as process:
        with Admin(process.namesrv) as admin:
            admin.create_topic(TOPIC, 2)
        with pytest.raises(WriteFailed, match=r"could not begin a batch within 300 ms.*SLAVE_NOT_AVAILABLE"):
            begin(options_of(process.namesrv, TOPIC, sendTimeoutMs="300"))
        options = options_of(process.namesrv, TOPIC, requireReplication="false")
        commit(
            options, [write(sender_of(options, begin(options), TaskIdentity("q", 0, 0)), TOPIC, range(40))]
        )
        assert sorted(bodies(process.namesrv, TOPIC)) == list(range(40))
        assert begin(options).committed[BROKER][:2] == ("q", 0)
