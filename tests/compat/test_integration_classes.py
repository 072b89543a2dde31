"""RocketMQ 5.5.0's own integration test classes, as its makers compiled them, against processes of Ropewalk.

They come from Maven (`rocketmq-test`, main and tests). Of the base that starts their servers one class is replaced,
see java/integration: it starts a name server and three brokers of Ropewalk where theirs starts the original's in its
own JVM. With ROPEWALK_COMPAT_TARGET=rocketmq nothing is replaced, and they run against the original.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.bench.peers.rocketmq.artifacts import JavaUnavailable, classpath, compiled, program
from tests.compat.conftest import unavailable
from tests.compat.driver import JAVA_DIR
from tests.support.processes import checkout_environment, stop

pytestmark = [pytest.mark.compat, pytest.mark.slow]

HOME = JAVA_DIR / "integration"
TESTS_JAR = "rocketmq-test-5.5.0-tests.jar"
PACKAGE = "org.apache.rocketmq.test."
RUN_TIMEOUT_S = 900.0

# Each line runs in one JVM against one cluster.
CLASSES = {
    "produce": """
        client.producer.oneway.OneWaySendIT client.producer.oneway.OneWaySendExceptionIT
        client.producer.oneway.OneWaySendWithMQIT client.producer.oneway.OneWaySendWithSelectorIT
        client.producer.async.AsyncSendExceptionIT client.producer.async.AsyncSendWithMessageQueueIT
        client.producer.async.AsyncSendWithMessageQueueSelectorIT
        client.producer.async.AsyncSendWithOnlySendCallBackIT
        client.producer.exception.msg.ChinaPropIT client.producer.exception.msg.MessageExceptionIT
        client.producer.exception.msg.MessageUserPropIT
        client.producer.exception.producer.ProducerGroupAndInstanceNameValidityIT
        client.producer.querymsg.QueryMsgByIdExceptionIT client.producer.querymsg.QueryMsgByIdIT
        client.producer.querymsg.QueryMsgByKeyIT client.producer.batch.BatchSendIT
    """,
    "order": """
        client.producer.order.OrderMsgIT client.producer.order.OrderMsgWithTagIT
        client.producer.order.OrderMsgRebalanceIT client.producer.order.OrderMsgDynamicRebalanceIT
    """,
    "consume": """
        client.consumer.tag.MulTagSubIT client.consumer.tag.TagMessageWith1ConsumerIT
        client.consumer.tag.TagMessageWithMulConsumerIT client.consumer.tag.TagMessageWithSameGroupConsumerIT
        client.consumer.topic.MulConsumerMulTopicIT client.consumer.topic.OneConsumerMulTopicIT
        client.consumer.balance.NormalMsgDynamicBalanceIT client.consumer.balance.NormalMsgStaticBalanceIT
        client.consumer.cluster.DynamicAddAndCrashIT client.consumer.cluster.DynamicAddConsumerIT
        client.consumer.cluster.DynamicCrashConsumerIT
    """,
    "broadcast": """
        client.consumer.broadcast.normal.BroadcastNormalMsgNotReceiveIT
        client.consumer.broadcast.normal.BroadcastNormalMsgRecvCrashIT
        client.consumer.broadcast.normal.BroadcastNormalMsgRecvStartLaterIT
        client.consumer.broadcast.normal.BroadcastNormalMsgTwoDiffGroupRecvIT
        client.consumer.broadcast.normal.NormalMsgTwoSameGroupConsumerIT
        client.consumer.broadcast.tag.BroadcastTwoConsumerFilterIT
        client.consumer.broadcast.tag.BroadcastTwoConsumerSubDiffTagIT
        client.consumer.broadcast.tag.BroadcastTwoConsumerSubTagIT
    """,
    "rest": """
        client.consumer.filter.SqlFilterIT
        delay.NormalMsgDelayIT offset.LagCalculationIT offset.OffsetNotFoundIT offset.OffsetResetIT
        route.CreateAndUpdateTopicIT smoke.NormalMessageSendAndRecvIT
    """,
    "transactions": "client.producer.transaction.TransactionalMsgIT",
}

# Single methods that ask for what is refused, or reach into the memory of a broker of their own JVM.
NOT_HERE = {
    "client.producer.batch.BatchSendIT#testBatchSend_SysInnerBatch": "batch consume queues",
    "offset.LagCalculationIT#testEstimateLag": "the estimated lag of a filter, asked of the broker object",
    "offset.OffsetNotFoundIT#testConsumeStopAndResume": "a hook that runs inside the broker",
    "route.CreateAndUpdateTopicIT#testStaticTopicNotAffected": "static topics",
}

# Packages, and single classes, that are about what README.md says is refused, or that their makers ignore.
LEFT_OUT = {
    "autoswitchrole.": "controller mode",
    "client.consumer.broadcast.normal.BroadcastNormalMsgRecvFailIT": "ignored by its makers",
    "client.consumer.broadcast.order.OrderMsgBroadcastIT": "ignored by its makers",
    "client.consumer.pop.": "POP",
    "container.": "broker containers and acting masters",
    "dledger.": "the original's DLedger in its own JVM",
    "grpc.": "proxies",
    "offset.OffsetResetForPopIT": "POP",
    "recall.": "timer messages",
    "retry.PopConsumerRetryIT": "POP",
    "statictopic.": "static topics",
    "tls.": "TLS",
}


@dataclass(frozen=True)
class Java:
    jars: str
    ours: Path


@pytest.fixture(scope="module")
def integration(java: str, long_run: bool) -> Iterator[Java]:
    if not long_run:
        pytest.skip("the original's integration classes take ten minutes: `make test-long`")
    try:
        jars = classpath(HOME / "pom.xml")
        yield Java(jars, compiled(sorted(HOME.glob("*.java")), jars))
    except JavaUnavailable as missing:
        unavailable(str(missing))


def command(integration: Java, home: Path, names: list[str]) -> list[str]:
    options = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dfile.encoding=UTF-8"]
    options += [
        f"-Duser.home={home}",
        f"-Djava.io.tmpdir={home}",
        f"-Drocketmq.client.logRoot={home / 'logs'}",
    ]
    for package in ("java.lang", "java.nio", "sun.nio.ch"):
        options += ["--add-opens", f"java.base/{package}=ALL-UNNAMED"]
    if os.environ.get("ROPEWALK_COMPAT_TARGET") == "rocketmq":
        # The runner alone: what else was compiled would stand in for the original's base.
        runner = home / "runner"
        runner.mkdir()
        for path in integration.ours.glob("RunClasses*.class"):
            (runner / path.name).write_bytes(path.read_bytes())
        where = f"{runner}:{integration.jars}"
        skipped: list[str] = []
    else:
        where = f"{integration.ours}:{integration.jars}"
        skipped = [name for name in NOT_HERE if name.partition("#")[0] in names]
    ropewalk = "\t".join((sys.executable, "-m", "ropewalk"))
    options += [f"-Dropewalk.command={ropewalk}", f"-Dropewalk.home={home}", "-cp", where]
    return [program("java"), *options, "RunClasses", *(PACKAGE + name for name in (*names, *skipped))]


@pytest.mark.parametrize("names", CLASSES)
def test_the_originals_integration_classes_pass(names: str, integration: Java, tmp_path: Path) -> None:
    wanted = CLASSES[names].split()
    output = tmp_path / "output.txt"
    with output.open("wb") as stdout:
        process = subprocess.Popen(
            command(integration, tmp_path, wanted),
            stdout=stdout,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=checkout_environment(),
        )
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):  # what has not ended is missing below
            process.wait(RUN_TIMEOUT_S)
    finally:
        stop(process)  # in peace: its hook ends the brokers
    text = output.read_text(errors="replace")
    events = [json.loads(line) for line in text.splitlines() if line.startswith('{"event"')]
    failed = [f"{e['class']}.{e['method']}: {e['trace'][:3000]}" for e in events if e["event"] == "failed"]
    assert not failed, "\n".join(failed)
    ended = [e["class"].removeprefix(PACKAGE) for e in events if e["event"] == "ended"]
    assert ended == wanted, f"the last that was heard: {events[-1:]}\n{text[-3000:]}"
    finished = {e["class"].removeprefix(PACKAGE) for e in events if e["event"] == "finished"}
    assert finished == set(wanted)


def test_every_integration_class_runs_or_is_left_out_for_a_reason(integration: Java) -> None:
    (jar,) = [path for path in integration.jars.split(":") if path.endswith(TESTS_JAR)]
    found = {
        name.removesuffix(".class").replace("/", ".").removeprefix(PACKAGE)
        for name in zipfile.ZipFile(jar).namelist()
        if name.endswith(("IT.class", "IntegrationTest.class"))
    }
    runs = {name for names in CLASSES.values() for name in names.split()}
    assert runs <= found
    left = {name for name in found - runs if not name.startswith(tuple(LEFT_OUT))}
    assert not left
    assert all(any(name.startswith(left_out) for name in found - runs) for left_out in LEFT_OUT)
