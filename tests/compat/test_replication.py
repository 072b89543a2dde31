"""Apache RocketMQ 5.5.0 as a slave of Ropewalk, and as its master: the same log, and the same word to a producer."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from ropewalk.client.blocking.connection import Connection
from ropewalk.codes import ResponseCode
from tests.bench.peers.rocketmq.artifacts import classpath, compiled, program
from tests.bench.peers.rocketmq.original import Original
from tests.compat.driver import JAVA_DIR
from tests.compat.originals import original
from tests.ha.pairs import (
    Pair,
    Traffic,
    difference,
    missing,
    send,
    until_acknowledged,
)
from tests.support.jvm import SHORT_LIVED
from tests.support.ports import free_ports
from tests.support.waiting import until

pytestmark = [pytest.mark.compat, pytest.mark.slow]

SOURCES = sorted((JAVA_DIR / "status").glob("*.java"))
SLAVE_TIMEOUT_MS = 1_500
TOPIC = "statuses"


class JavaProgram:
    """A small program of ours over the official client; what it says stands behind "= "."""

    def __init__(self, home: Path, main: str, *arguments: str) -> None:
        home.mkdir(exist_ok=True)
        jars = classpath(JAVA_DIR / "client-5.5.0.xml")
        options = ["-Xmx96m", *SHORT_LIVED, f"-Duser.home={home}"]
        options.append(f"-Drocketmq.client.logRoot={home / 'logs'}")
        self._process = subprocess.Popen(
            [program("java"), *options, "-cp", f"{compiled(SOURCES, jars)}:{jars}", main, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def line(self) -> str:
        """What it says next; "" when it has ended."""
        assert self._process.stdout is not None
        for line in iter(self._process.stdout.readline, ""):
            if line.startswith("= "):
                return line[2:].strip()
        return ""

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


class Producer(JavaProgram):
    """`send` gives the status of one message."""

    def __init__(self, pair: Pair) -> None:
        super().__init__(pair.root / "producer", "Statuses", pair.namesrv, TOPIC)
        assert self.line() == "ready"

    def send(self, body: str = "x") -> str:
        self.tell(body)
        return self.line()


class Consumer(JavaProgram):
    """A push consumer that takes `pause_ms` for each message; `got` has them as (queue, offset, body)."""

    def __init__(self, pair: Pair, pause_ms: int) -> None:
        super().__init__(pair.root / "consumer", "Receiving", pair.namesrv, TOPIC, str(pause_ms))
        assert self.line() == "ready"
        self.got: list[tuple[str, ...]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while line := self.line():
            self.got.append(tuple(line.split(" ", 2)))

    def bodies(self) -> set[str]:
        return {body for _queue, _offset, body in self.got}


def until_equal(pair: Pair, name: str, other: Original) -> None:
    logs = pair.log_of(name), other.store_dir / "commitlog"
    until(lambda: not difference(*logs), lambda: f"{difference(*logs)}\n{pair.errors()}", pause_s=0.1)


def until_status(java_producer: Producer, status: str) -> None:
    until(lambda: java_producer.send() == status, lambda: f"no message was answered {status}")


def flow_on(traffic: Traffic, count: int, pair: Pair) -> None:
    """Wait until so many more messages are acknowledged."""
    before = traffic.codes[ResponseCode.SUCCESS]
    until(lambda: traffic.codes[ResponseCode.SUCCESS] >= before + count, pair.errors)


def test_a_rocketmq_slave_follows_a_ropewalk_master(tmp_path: Path, java: str, tools_classpath: str) -> None:
    with Pair(tmp_path) as pair:
        (port,) = free_ports(1)
        ports: dict[str, str | int] = {"listenPort": port, "haListenPort": port + 1}
        master = pair.start("master", brokerRole="SYNC_MASTER", slaveTimeout=SLAVE_TIMEOUT_MS, **ports)
        slave = original(pair, brokerRole="SLAVE", brokerId=1)
        with Producer(pair) as sender:
            assert sender.send() == "SLAVE_NOT_AVAILABLE"
            slave.start()
            try:
                until_status(sender, "SEND_OK")
                traffic = Traffic(master.address, size=3_000, gap_s=0.003)
                traffic.start()
                try:
                    flow_on(traffic, 200, pair)
                    slave.kill9()
                    until(lambda: traffic.codes[ResponseCode.SLAVE_NOT_AVAILABLE] > 0, pair.errors)
                    slave.start_broker()
                    flow_on(traffic, 200, pair)
                    acknowledged = list(traffic.acknowledged)
                    pair.kill("master")
                    assert missing(slave.store_dir / "commitlog", acknowledged) == []
                    pair.start("master")
                    flow_on(traffic, 50, pair)
                finally:
                    traffic.end()
                until_status(sender, "SEND_OK")
                until_equal(pair, "master", slave)
                assert len(list(pair.log_of("master").iterdir())) > 4, "the log has rolled"
                assert set(traffic.codes) <= {0, 11, 12, 14}
                slave_process = slave.broker_pid
                _signal(slave_process, signal.SIGSTOP)
                assert sender.send() == "FLUSH_SLAVE_TIMEOUT"
                _signal(slave_process, signal.SIGCONT)
                until_status(sender, "SEND_OK")
                until_equal(pair, "master", slave)
                slave.kill9()
                until_status(sender, "SLAVE_NOT_AVAILABLE")
            finally:
                slave.stop(orderly=False)


def test_a_ropewalk_slave_follows_a_rocketmq_master(tmp_path: Path, java: str, tools_classpath: str) -> None:
    with Pair(tmp_path) as pair:
        master = original(
            pair, brokerRole="SYNC_MASTER", brokerId=0, inSyncReplicas=2, slaveTimeout=SLAVE_TIMEOUT_MS
        )
        pair.start("slave", brokerRole="SLAVE", brokerId=1)
        master.start()
        try:
            with Producer(pair) as sender:
                until_status(sender, "SEND_OK")
                traffic = Traffic(master.broker, TOPIC, 3_000, 0.003)
                traffic.start()
                try:
                    flow_on(traffic, 200, pair)
                    pair.kill("slave")
                    assert sender.send() == "FLUSH_SLAVE_TIMEOUT", "as RocketMQ has it without a slave too"
                    pair.start("slave")
                    flow_on(traffic, 200, pair)
                    acknowledged = list(traffic.acknowledged)
                    master.kill9()
                    assert missing(pair.log_of("slave"), acknowledged) == []
                    master.start_broker()
                    flow_on(traffic, 50, pair)
                finally:
                    traffic.end()
                until_status(sender, "SEND_OK")
            until_equal(pair, "slave", master)
            assert len(list(pair.log_of("slave").iterdir())) > 4, "the log has rolled"
            assert set(traffic.codes) <= {0, 12}
            pair.end("slave")
            pair.start("slave")
            until_acknowledged(master.broker, TOPIC)
            with Connection(master.broker, 30.0) as connection:
                assert send(connection, 1, TOPIC) == 0
            until_equal(pair, "slave", master)
        finally:
            master.stop(orderly=False)


def test_a_java_push_consumer_goes_on_through_the_death_and_the_return_of_the_master(
    tmp_path: Path, java: str
) -> None:
    with Pair(tmp_path) as pair:
        (port,) = free_ports(1)
        ports: dict[str, str | int] = {"listenPort": port, "haListenPort": port + 1}
        master = pair.start("master", brokerRole="SYNC_MASTER", **ports)
        pair.start("slave", brokerRole="SLAVE", brokerId=1)
        until_acknowledged(master.address)
        with Connection(master.address, 30.0) as connection:
            assert {send(connection, number, TOPIC, 50) for number in range(400)} == {0}
        with Consumer(pair, 15) as consumer:
            until(lambda: len(consumer.got) > 50, pair.errors)
            pair.kill("master")
            had = len(consumer.got)
            assert had < 300, "there has to be something left"
            keys = {f"K{number:06}" for number in range(400)}
            until(lambda: keys <= {body[:7] for body in consumer.bodies()}, pair.errors)
            offsets = Counter((queue, offset) for queue, offset, _body in consumer.got)
            assert sum(offsets.values()) - len(offsets) < 100, (
                "what was consumed does not come again from the start"
            )
            pair.start("master")
            until_acknowledged(master.address)
            with Connection(master.address, 30.0) as connection:
                assert {send(connection, number, TOPIC, 50) for number in range(400, 450)} == {0}
            keys |= {f"K{number:06}" for number in range(400, 450)}
            until(lambda: keys <= {body[:7] for body in consumer.bodies()}, pair.errors)
            time.sleep(1.5)  # for what should not come
            offsets = Counter((queue, offset) for queue, offset, _body in consumer.got)
            assert sum(offsets.values()) - len(offsets) < 100, (
                "offsets do not go back when the master returns"
            )


def _signal(process: int, number: signal.Signals) -> None:
    os.kill(process, number)
    time.sleep(0.2)
