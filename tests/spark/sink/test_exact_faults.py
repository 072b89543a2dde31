"""Exactly-once writes while executors are cut off and brokers change roles. No Spark: drivers and tasks are called."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import pytest

from ropewalk.client.blocking.admin import Admin
from ropewalk.client.core.messages import Message
from ropewalk.spark.sink.exact import TaskIdentity
from ropewalk.spark.sink.routes import WriteFailed
from ropewalk.spark.sink.rows import Outgoing
from ropewalk.spark.sink.writer import sender_of
from ropewalk.testing import RopewalkBroker
from tests.ha.process_group import BROKER, group_of
from tests.spark.sink.exact_tasks import begin, bodies, commit, options_of, write
from tests.support.holding_proxy import HoldingProxy

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
        with pytest.raises(WriteFailed, match="is over"):
            write(sender_of(options, first, TaskIdentity("q", 7, 0, 2)), TOPIC, range(900, 910))
        result = write(
            sender_of(options, second, TaskIdentity("q", 7, 0, 3)), TOPIC, reversed(range(50, 800))
        )
        commit(options, [result])
        third = begin(options)
        assert third.committed[BROKER][:2] == ("q", 7)
        group.until(lambda: len(bodies(group.namesrv, TOPIC)) >= 800, "all rows")
        assert sorted(bodies(group.namesrv, TOPIC)) == list(range(800))
