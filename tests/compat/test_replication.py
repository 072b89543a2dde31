"""Apache RocketMQ 5.5.0 as a slave of Ropewalk, and as its master: the same log, and the same word to a producer."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ropewalk.client.blocking import Connection
from ropewalk.codes import ResponseCode
from tests.bench.peers.rocketmq.artifacts import classpath, compiled, program
from tests.bench.peers.rocketmq.original import Original, free_ports
from tests.compat.driver import JAVA_DIR
from tests.ha.pairs import (
    PATIENCE_S,
    SETTINGS,
    Pair,
    Traffic,
    difference,
    eventually,
    missing,
    send,
    until_acknowledged,
)

pytestmark = [pytest.mark.compat, pytest.mark.slow]

SOURCES = [JAVA_DIR / "status" / "Statuses.java"]
SLAVE_TIMEOUT_MS = 1_500
TOPIC = "statuses"
HEAP = "192m"


class Producer:
    """The official Java producer; `send` gives the status of one message."""

    def __init__(self, namesrv: str, home: Path) -> None:
        jars = classpath(JAVA_DIR / "client-5.5.0.xml")
        options = ["-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Duser.home={home}"]
        options.append(f"-Drocketmq.client.logRoot={home / 'logs'}")
        self._process = subprocess.Popen(
            [
                program("java"),
                *options,
                "-cp",
                f"{compiled(SOURCES, jars)}:{jars}",
                "Statuses",
                namesrv,
                TOPIC,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._line() == "ready"

    def _line(self) -> str:
        assert self._process.stdout is not None
        while line := self._process.stdout.readline():
            if line.startswith("= "):
                return line[2:].strip()
        raise AssertionError("the Java producer ended")

    def send(self, body: str = "x") -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(body + "\n")
        self._process.stdin.flush()
        return self._line()

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


@contextmanager
def producer(pair: Pair) -> Iterator[Producer]:
    home = pair.root / "java"
    home.mkdir()
    made = Producer(pair.namesrv, home)
    try:
        yield made
    finally:
        made.close()


def original(pair: Pair, **settings: str | int) -> Original:
    """A broker of Apache RocketMQ in this group."""
    # The interval is also how long a RocketMQ slave is silent before its first report.
    own: dict[str, str | int] = {
        "timerWheelEnable": "false",
        "waitTimeMillsInSendQueue": "10000",
        "haSendHeartbeatInterval": 1000,
    }
    every: dict[str, str | int] = {**SETTINGS, **own, **settings}
    config = {key: str(value) for key, value in every.items()}
    return Original(pair.root / "original", HEAP, config, namesrv=pair.namesrv)


def until_equal(pair: Pair, name: str, other: Original) -> None:
    logs = pair.log_of(name), other.store_dir / "commitlog"
    eventually(lambda: not difference(*logs), lambda: f"{difference(*logs)}\n{pair.errors()}")


def until_status(java_producer: Producer, status: str) -> None:
    eventually(lambda: java_producer.send() == status, lambda: f"no message was answered {status}")


def flow_on(traffic: Traffic, count: int, pair: Pair) -> None:
    """Wait until so many more messages are acknowledged."""
    before = traffic.codes[ResponseCode.SUCCESS]
    eventually(lambda: traffic.codes[ResponseCode.SUCCESS] >= before + count, pair.errors, 2 * PATIENCE_S)


def test_a_rocketmq_slave_follows_a_ropewalk_master(tmp_path: Path, java: str, tools_classpath: str) -> None:
    with Pair(tmp_path) as pair:
        _, port = free_ports()
        ports: dict[str, str | int] = {"listenPort": port, "haListenPort": port + 1}
        master = pair.start("master", brokerRole="SYNC_MASTER", slaveTimeout=SLAVE_TIMEOUT_MS, **ports)
        slave = original(pair, brokerRole="SLAVE", brokerId=1)
        with producer(pair) as sender:
            assert sender.send() == "SLAVE_NOT_AVAILABLE"
            slave.start()
            try:
                until_status(sender, "SEND_OK")
                traffic = Traffic(master.address)
                traffic.start()
                try:
                    flow_on(traffic, 600, pair)
                    slave.kill9()
                    eventually(lambda: traffic.codes[ResponseCode.SLAVE_NOT_AVAILABLE] > 0, pair.errors)
                    slave.start_broker()
                    flow_on(traffic, 600, pair)
                    acknowledged = list(traffic.acknowledged)
                    pair.kill("master")
                    assert missing(slave.store_dir / "commitlog", acknowledged) == []
                    pair.start("master")
                    flow_on(traffic, 100, pair)
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
            with producer(pair) as sender:
                until_status(sender, "SEND_OK")
                traffic = Traffic(master.broker, TOPIC)
                traffic.start()
                try:
                    flow_on(traffic, 500, pair)
                    pair.kill("slave")
                    assert sender.send() == "FLUSH_SLAVE_TIMEOUT", "as RocketMQ has it without a slave too"
                    pair.start("slave")
                    flow_on(traffic, 500, pair)
                    acknowledged = list(traffic.acknowledged)
                    master.kill9()
                    assert missing(pair.log_of("slave"), acknowledged) == []
                    master.start_broker()
                    flow_on(traffic, 100, pair)
                finally:
                    traffic.end()
                until_status(sender, "SEND_OK")
            until_equal(pair, "slave", master)
            assert len(list(pair.log_of("slave").iterdir())) > 4, "the log has rolled"
            assert set(traffic.codes) <= {0, 12}
            pair.end("slave")
            pair.start("slave")
            until_acknowledged(master.broker, TOPIC)
            with Connection(master.broker, 5.0) as connection:
                assert send(connection, 1, TOPIC) == 0
            until_equal(pair, "slave", master)
        finally:
            master.stop(orderly=False)


def _signal(process: int, number: signal.Signals) -> None:
    os.kill(process, number)
    time.sleep(0.2)
