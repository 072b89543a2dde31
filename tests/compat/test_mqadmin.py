"""RocketMQ's own mqadmin reads routes and messages. One JVM per command, as for its users."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.bench.peers.rocketmq.artifacts import program
from tests.compat.conftest import Server
from tests.compat.driver import Driver

pytestmark = [pytest.mark.compat, pytest.mark.slow]

TOPIC = "mqadmin-view_by_id"


def mqadmin(server: Server, classpath: str, home: Path, command: str, *arguments: str) -> str:
    options = ["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Duser.home={home}"]
    options += [f"-Drocketmq.home.dir={home}", "-cp", classpath]
    done = subprocess.run(
        [
            *(program("java"), *options, "org.apache.rocketmq.tools.command.MQAdminStartup"),
            *(command, "-n", server.namesrv, *arguments),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def message_id(java: str, server: Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The offset id of a message with the body "view 0", key "key0" and tag "tag"."""
    driver = Driver("5.5.0", "JSON")
    run = driver.run(server.namesrv, tmp_path_factory.mktemp("java"), "view_by_id", prefix="mqadmin")
    offset_id: str = run.sent("view_by_id")[0]["offsetMsgId"]
    return offset_id


def test_mqadmin_shows_a_message_by_its_id(
    server: Server, tools_classpath: str, message_id: str, tmp_path: Path
) -> None:
    output = mqadmin(server, tools_classpath, tmp_path, "queryMsgById", "-i", message_id, "-t", TOPIC)
    shown = dict(line.split(":", 1) for line in output.splitlines() if ":" in line)
    shown = {name.strip(): value.strip() for name, value in shown.items()}
    assert shown["OffsetID"] == message_id
    assert shown["Topic"] == TOPIC
    assert shown["Tags"] == "[tag]"
    assert shown["Keys"] == "[key0]"
    assert shown["Store Host"] == server.broker


def test_mqadmin_shows_a_topics_route(
    server: Server, tools_classpath: str, message_id: str, tmp_path: Path
) -> None:
    output = mqadmin(server, tools_classpath, tmp_path, "topicRoute", "-t", TOPIC)
    assert server.broker in output
    assert '"writeQueueNums":4' in output.replace(" ", "").replace("\t", "")


def test_mqadmin_lists_topics(server: Server, tools_classpath: str, message_id: str, tmp_path: Path) -> None:
    output = mqadmin(server, tools_classpath, tmp_path, "topicList")
    assert TOPIC in output.split()
