"""`Admin` and `ropewalk admin` with two brokers: what is done at both, what is added up, and what goes without one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ropewalk import Admin, Message, OutcomeUnknown, Producer, TopicQueue
from ropewalk.client.admin.groups import EARLIEST, LATEST
from ropewalk.client.core.routes import Queue
from tests.support.processes import checkout_environment, first_line, stop
from tests.support.waiting import until
from tests.tools.conftest import RunCommand

pytestmark = pytest.mark.slow

NAMES = ("broker-a", "broker-b")


class Pair:
    """A name server and two brokers of one cluster, each a process of its own."""

    def __init__(self, opened: ExitStack, home: Path) -> None:
        self._opened = opened
        self._home = home
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.namesrv = self._start("namesrv", "--port", "0")["namesrv"]
        for name in NAMES:
            self.start_broker(name, brokerName=name)

    def start_broker(self, folder: str, **settings: str) -> str:
        """Start a broker and return its address."""
        settings |= {"listenPort": "0", "storePathRootDir": str(self._home / folder)}
        words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        return self._start("broker", "-n", self.namesrv, *words, name=folder)["broker"]

    def _start(self, command: str, *words: str, name: str = "namesrv") -> dict[str, str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "ropewalk", command, "--json", *words],
            cwd=self._home,
            env=checkout_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._processes[name] = process
        self._opened.callback(stop, process)
        line = first_line(process, 30)
        assert line, f"{name} did not become ready"
        ready: dict[str, str] = json.loads(line)
        return ready

    def stop_the_clock(self, name: str) -> None:
        """Let a broker answer nobody, while its connections stay and the name server goes on naming it."""
        process = self._processes[name]
        process.send_signal(signal.SIGSTOP)
        self._opened.callback(process.send_signal, signal.SIGCONT)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with ExitStack() as opened:
        yield Pair(opened, tmp_path)


def test_both_brokers_are_administered_as_one_cluster(pair: Pair, ropewalk: RunCommand) -> None:
    with Admin(pair.namesrv) as admin:
        until(lambda: len(admin.masters()) == 2)
        assert [member.broker_name for member in admin.create_topic("orders", 2)] == list(NAMES)
        assert [member.broker_name for member in admin.create_topic("local", 1, broker="broker-b")] == [
            "broker-b"
        ]
        queues = [Queue(name, number) for name in NAMES for number in range(2)]
        # Brokers answer when they have the topic; the name server hears of it a moment later.
        until(lambda: "orders" in admin.topics() and len(admin.topic_route("orders").read_queues()) == 4)
        with Producer(pair.namesrv) as producer:
            for number, queue in enumerate(queues * 3):
                producer.send("orders", Message(b"%d" % number, keys="all"), queue=queue)
        status = admin.topic_status("orders")
        assert [(one.queue, one.max_offset) for one in status.queues] == [(queue, 3) for queue in queues]
        until(lambda: len(admin.messages_by_key("orders", "all")) == 12)

        assert len(admin.create_group("g")) == 2
        assert set(admin.reset_offsets("g", "orders", EARLIEST).values()) == {0}
        assert admin.progress("g").lag == 12
        moved = admin.reset_offset("g", "orders", queues[3], 2)
        assert moved == {TopicQueue("orders", queues[3]): 2} and admin.progress("g").lag == 10
        admin.create_group("h")
        assert len(admin.clone_offsets("g", "h", "orders")) == 4
        assert admin.committed_offset("h", TopicQueue("orders", queues[3])) == 2
        assert len(admin.messages_by_time("orders", 0, time.time_ns())) == 12

        def shell(*words: str, status: int = 0) -> str:
            ended = ropewalk("admin", *words, name_server=pair.namesrv)
            assert ended.status == status, ended
            return ended.out.decode() + ended.errors

        several = shell("message", "by-offset", "orders", "0", "0", status=2)
        assert "choose one with --broker (broker-a, broker-b)" in several
        assert "body" in shell("message", "by-offset", "orders", "0", "0", "--broker", "broker-b")
        refused = shell("broker", "config", "set", "maxMessageSize=4000000", status=2)
        assert "at 2 brokers (broker-a, broker-b)?" in refused

        pair.stop_the_clock("broker-b")
        told = shell("broker", "list", "--timeout", "1.5")
        assert "does not answer" in told and told.count("DefaultCluster") == 2
        told = shell("group", "lag", "g", "--timeout", "1.5")
        assert "without the broker at" in told and "broker-a" in told
        # What changes something does not pass over a broker that is away.
    with Admin(pair.namesrv, timeout=1.5) as hasty:
        with pytest.raises(OutcomeUnknown):
            hasty.reset_offsets("g", "orders", LATEST)
        with pytest.raises(OutcomeUnknown, match=r"broker-b .*; done at broker-a"):
            hasty.set_broker_config({"maxMessageSize": "4000000"})


def test_settings_are_shown_and_changed_at_every_replica_of_a_broker(
    pair: Pair, ropewalk: RunCommand
) -> None:
    def config(*words: str, status: int = 0) -> list[str]:
        ended = ropewalk("admin", "broker", "config", *words, name_server=pair.namesrv)
        assert ended.status == status, ended
        return [" ".join(line.split()) for line in (ended.out.decode() + ended.errors).splitlines()]

    with Admin(pair.namesrv) as admin:
        master = next(member.address for member in admin.members() if member.broker_name == "broker-a")
        slave = pair.start_broker("slave", brokerName="broker-a", brokerRole="SLAVE", brokerId="1")
        until(lambda: slave in {member.address for member in admin.members()}, "the slave is not registered")

    assert config("set", "logLevel=warning", "-b", "broker-a") == [
        "broker role address setting was is",
        f"broker-a master {master} logLevel info warning",
        f"broker-a slave 1 {slave} logLevel info warning",
        "a broker that was started without a configuration file forgets this when it stops",
    ]
    assert config("get", "logLevel", "-b", "broker-a") == [
        f"== broker-a master at {master}",
        *("logLevel=warning", "", f"== broker-a slave 1 at {slave}", "logLevel=warning"),
    ]
    assert config("set", "logLevel=info", "-b", slave)[1:-1] == [
        f"broker-a slave 1 {slave} logLevel warning info"
    ]
    assert config("get", "LOGLEVEL", "-b", slave) == [f"== broker-a slave 1 at {slave}", "logLevel=info"]

    for words in (("get", "maxMesageSize"), ("set", "maxmessagesize=1", "-b", "broker-a")):
        (told,) = config(*words, status=2)
        assert "the nearest one is maxMessageSize" in told
    (told,) = config("get", "broker-a", status=2)
    assert "name it with --broker broker-a" in told
