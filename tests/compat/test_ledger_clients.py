"""Official Java and Go clients and our own send and consume on while the leaders of a DLedger group are killed."""

from __future__ import annotations

import random
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from ropewalk.client.blocking.admin import Admin
from ropewalk.client.core.consume.received import TopicQueue
from ropewalk.client.core.routes import Queue
from ropewalk.errors import Rejected
from tests.bench.peers.rocketmq.artifacts import JavaUnavailable
from tests.compat.conftest import unavailable
from tests.compat.driver import VERSIONS, Driver
from tests.compat.failing_over import (
    KINDS,
    QUEUES,
    Client,
    OfficialClient,
    PythonClient,
    await_everything,
    await_progress,
    judge,
    latest_ms,
)
from tests.compat.go_driver import GoBroken, GoDriver, GoMissing, built
from tests.crash.campaign import chosen_seed
from tests.crash.ledger_group import LedgerGroup
from tests.support.waiting import until, until_answered

pytestmark = [pytest.mark.compat, pytest.mark.slow]

BROKER = "broker-a"
GO_COMMIT_MS = 5_000
"""The Go client has no setting for it."""


def test_clients_go_on_through_the_deaths_of_leaders_in_order_and_in_time(
    java: str, tmp_path: Path, long_run: bool
) -> None:
    draw, kills = random.Random(chosen_seed()), 10 if long_run else 2
    versions = VERSIONS if long_run else VERSIONS[:1]
    try:
        drivers = {f"java-{version.replace('.', '')}": Driver(version, "JSON") for version in versions}
    except JavaUnavailable as missing:
        unavailable(str(missing))
    # A pull of the Go client that waits when its broker dies goes on waiting for half a minute.
    names = [*drivers, *(["go"] if long_run and has_go() else []), PythonClient.name]
    kills_ms: list[int] = []
    with LedgerGroup(tmp_path) as group, ExitStack() as stack:
        group.leader()
        with Admin(group.name_server) as admin:
            for name in names:
                for kind in KINDS:
                    make_topic(admin, f"{name}-failing_over-{kind}", QUEUES)
        clients: list[Client] = []
        for name, driver in drivers.items():
            clients.append(OfficialClient(driver, name, group.name_server, tmp_path / name, 1_000))
        if "go" in names:
            clients.append(OfficialClient(GoDriver(), "go", group.name_server, tmp_path / "go", GO_COMMIT_MS))
        clients.append(PythonClient(group.name_server))
        for client in clients:
            stack.callback(client.close)
        for client in clients:
            await_progress(client, 10)
        for kill in range(kills):
            leader = group.leader()
            with Admin(group.name_server) as admin:
                make_names(admin, kill)
            time.sleep(draw.uniform(0.0, 1.0))
            kills_ms.append(time.time_ns() // 1_000_000)
            leader.kill()
            group.leader([member for member in group.members if member is not leader])
            assert_names(group, kill)
            for client in clients:
                await_progress(client, 10)
            leader.start()
        for client in clients:
            client.tell("stop")
        for client in clients:
            await_everything(client)
    faults = [
        f"{client.name}: {fault}"
        for client in clients
        for fault in judge(client.events(), kills_ms, client.commit_ms)
    ]
    for client in clients:
        events = client.events()
        print(
            f"{client.name}: {sum(each['event'] == 'sent' for each in events)} acknowledged, "
            f"{sum(each['event'] == 'failed' and each['unknown'] for each in events)} of unknown outcome, "
            f"{sum(each['event'] == 'received' for each in events)} deliveries; "
            f"the latest delayed one {latest_ms(events)} ms late"
        )
    assert not faults, f"{len(faults)} faults: " + "\n".join(faults[:20])


def has_go() -> bool:
    """Whether the program of the Go client is there, or can be built."""
    try:
        built()
    except GoMissing:
        return False
    except GoBroken as broken:
        unavailable(str(broken))
    return True


def make_topic(admin: Admin, topic: str, queues: int) -> None:
    """Make a topic, as soon as the name server knows a leader."""
    until(lambda: admin.create_topic(topic, queues, broker=BROKER), f"{topic} is made", forgiving=(Rejected,))


def make_names(admin: Admin, number: int) -> None:
    """Make a topic and a group, and commit an offset."""
    topic, group = f"fresh-{number}", f"fresh-group-{number}"
    make_topic(admin, topic, 3)
    admin.create_group(group, broker=BROKER, retry_max_times=7)
    until_answered(
        lambda: admin.commit_offset(group, TopicQueue(topic, Queue(BROKER, 1)), number + 5) is None,
        f"no name server knows {topic}",
    )


def assert_names(group: LedgerGroup, number: int) -> None:
    """The next leader has topic, group and offset."""
    topic, name = f"fresh-{number}", f"fresh-group-{number}"
    with Admin(group.name_server) as admin:

        def are_there() -> bool:
            topics = admin.topic_config(topic)
            groups = admin.group_config(name)
            assert [config.write_queues for config in topics.values()] == [3], topics
            assert [config.retry_max_times for config in groups.values()] == [7], groups
            committed = admin.committed_offset(name, TopicQueue(topic, Queue(BROKER, 1)))
            assert committed == number + 5, committed
            return True

        until_answered(are_there, f"{topic} and {name} are gone")
