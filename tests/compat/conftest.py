"""Official Java programs as fixtures, and the server they are pointed at.

The server is Ropewalk, as its users start it. With ROPEWALK_COMPAT_TARGET=rocketmq it is Apache RocketMQ:
a test that fails against the original expects something that is not so.
"""

from __future__ import annotations

import importlib.util
import json
import os
import selectors
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest

from tests.bench.peers.rocketmq.artifacts import JavaUnavailable, classpath, program
from tests.bench.peers.rocketmq.original import POM, Original
from tests.compat.driver import SERIALIZATIONS, VERSIONS, Driver, Run
from tests.compat.mqadmin import Mqadmin
from tests.support.long_run import long_only
from tests.support.spark_home import use_unpacked_spark

# As for `tests/spark`: without the `spark` extra it cannot be imported. Under CI=true that is an error as it is.
if importlib.util.find_spec("pyspark") is None and os.environ.get("CI", "").lower() != "true":
    collect_ignore = ["test_spark_exact.py", "test_spark_live.py"]

use_unpacked_spark()

QUICK = tuple(zip(VERSIONS, SERIALIZATIONS, strict=True))
"""Each client and each serialisation once."""

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Server:
    """Where a server under test listens, as HOST:PORT."""

    name: str
    namesrv: str
    broker: str


def unavailable(reason: str) -> None:
    """Skip for want of Java; where CI=true that is a failure, because there nobody reads skips."""
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def java() -> str:
    """The path of `java`, on a machine that can also compile and resolve artifacts."""
    path = ""
    try:
        program("javac")
        program("mvn")
        path = program("java")
    except JavaUnavailable as missing:
        unavailable(str(missing))
    return path


@pytest.fixture(scope="session")
def tools_classpath(java: str) -> str:
    """RocketMQ 5.5.0's server and tools: what mqadmin runs with."""
    try:
        return classpath(POM)
    except JavaUnavailable as missing:
        unavailable(str(missing))
        raise


@pytest.fixture(scope="session")
def ropewalk_server() -> Iterator[Server]:
    """A broker with its name server, as a process of its own, on free ports, without a trace afterwards."""
    command = [sys.executable, "-m", "ropewalk", "broker", "--ephemeral", "--json"]
    command += ["--set", "listenPort=0", "--namesrv-port", "0", "--set", "enablePropertyFilter=true"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as process:
        try:
            ready = _ready_line(process)
            yield Server("ropewalk", ready["namesrv"], ready["broker"])
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _ready_line(process: subprocess.Popen[bytes]) -> dict[str, str]:
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        if not selector.select(READY_TIMEOUT_S):
            pytest.fail(f"ropewalk broker printed no ready line within {READY_TIMEOUT_S:.0f} s")
    line = process.stdout.readline()
    if not line:
        pytest.fail(f"ropewalk broker ended with {process.wait()} before it was ready")
    ready: dict[str, str] = json.loads(line)
    return ready


@pytest.fixture(scope="session")
def original_server(tools_classpath: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Apache RocketMQ 5.5.0, name server and broker."""
    # While its JVM is cold, the original would turn sends away as late; that is not what is tested.
    # It writes its timer wheel, 38 MB, out every second unless it is told to wait: always a sixth of a processor.
    patient = {
        "waitTimeMillsInSendQueue": "10000",
        "enablePropertyFilter": "true",
        "timerFlushIntervalMs": "600000",
    }
    with Original(
        tmp_path_factory.mktemp("original"), heap="512m", broker_config=patient, short_lived=True
    ) as peer:
        yield Server("rocketmq", peer.namesrv, peer.broker)


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest) -> Server:
    """The server under test: Ropewalk, or what ROPEWALK_COMPAT_TARGET says."""
    target = os.environ.get("ROPEWALK_COMPAT_TARGET", "ropewalk")
    assert target in ("ropewalk", "rocketmq"), target
    chosen: Server = request.getfixturevalue("ropewalk_server" if target == "ropewalk" else "original_server")
    return chosen


@pytest.fixture(scope="session")
def mqadmin(
    server: Server, tools_classpath: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mqadmin]:
    """RocketMQ's mqadmin before the server under test, in one JVM for all who ask it."""
    with Mqadmin(server.namesrv, tools_classpath, tmp_path_factory.mktemp("mqadmin")) as running:
        yield running


@pytest.fixture(
    scope="session",
    params=[
        pytest.param(pair, id="-".join(pair), marks=() if pair in QUICK else long_only)
        for pair in product(VERSIONS, SERIALIZATIONS)
    ],
)
def driver(request: pytest.FixtureRequest, java: str) -> Driver:
    """Each official client with each serialisation."""
    try:
        return Driver(*request.param)
    except JavaUnavailable as missing:
        unavailable(str(missing))
        raise


@pytest.fixture(scope="session")
def run(driver: Driver, server: Server, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """All scenarios of one client, played once in one JVM; each test looks at its own."""
    home: Path = tmp_path_factory.mktemp("java")
    return driver.run(server.namesrv, home)
