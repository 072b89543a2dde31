"""A group with a member in Java and one in Python: they share the queues by the same rule, in order, without a gap."""

from __future__ import annotations

import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ropewalk import Message, Producer, PushConsumer, ReceivedMessage
from ropewalk.testing import RopewalkBroker
from tests.bench.peers.rocketmq.artifacts import JavaUnavailable, classpath, compiled, program
from tests.compat.conftest import unavailable
from tests.compat.driver import JAVA_DIR
from tests.support.jvm import SHORT_LIVED

pytestmark = [pytest.mark.compat, pytest.mark.slow]

SOURCE = JAVA_DIR / "mixed" / "Member.java"
COUNT = 600
QUEUES = 6
WAIT_S = 60.0


class JavaMember:
    """What the Java program has told so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.messages: list[tuple[int, int]] = []
        self.queues: set[int] = set()
        self._process = process
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            kind, _, rest = line.strip().partition(" ")
            if kind == "message":
                queue, offset = map(int, rest.split())
                self.messages.append((queue, offset))
            elif kind == "queues":
                self.queues = set(map(int, filter(None, rest.split(","))))

    def leave(self) -> None:
        """Let it shut down in an orderly way, and wait until it has."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._reader.join(5)


@contextmanager
def java_member(namesrv: str, group: str, topic: str, home: Path) -> Iterator[JavaMember]:
    try:
        jars = classpath(JAVA_DIR / "client-5.5.0.xml")
        command = [program("java"), "-Xmx96m", *SHORT_LIVED]
        command += [f"-Duser.home={home}", f"-Drocketmq.client.logRoot={home / 'logs'}"]
        command += ["-cp", f"{compiled([SOURCE], jars)}:{jars}", "Member", namesrv, group, topic]
    except JavaUnavailable as missing:
        unavailable(str(missing))
        raise
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield JavaMember(process)
        finally:
            if process.poll() is None:
                process.kill()


def test_java_and_python_share_a_group(java: str, ropewalk_broker: RopewalkBroker, tmp_path: Path) -> None:
    topic, group = ropewalk_broker.topic(queues=QUEUES), ropewalk_broker.group()
    with Producer(ropewalk_broker.namesrv) as producer:
        for number in range(COUNT):
            producer.send(topic, Message(b"%d" % number))
    ours: list[tuple[int, int]] = []

    def handle(message: ReceivedMessage) -> None:
        time.sleep(0.003)
        ours.append((message.source.queue.queue_id, message.queue_offset))

    with (
        PushConsumer(
            group,
            {topic: "*"},
            handle,
            ropewalk_broker.namesrv,
            orderly=True,
            consume_from="first",
            pull_count=4,
        ) as python,
        java_member(ropewalk_broker.namesrv, group, topic, tmp_path) as java_side,
    ):

        def own() -> set[int]:
            return {queue.queue.queue_id for queue in python.queues}

        ropewalk_broker.wait_until(
            lambda: len(java_side.queues) == len(own()) == QUEUES // 2 and not java_side.queues & own(),
            "each has half of the queues",
            timeout=WAIT_S,
        )
        with Producer(ropewalk_broker.namesrv) as producer:
            for number in range(COUNT):
                producer.send(topic, Message(b"%d" % number))
        ropewalk_broker.wait_until(lambda: len(java_side.messages) > 50, "Java is at work", timeout=WAIT_S)
        java_side.leave()
        ropewalk_broker.wait_until(lambda: len(own()) == QUEUES, "all queues are ours again", timeout=WAIT_S)
        ropewalk_broker.wait_until(
            lambda: len({*ours, *java_side.messages}) == 2 * COUNT, "nothing is lost", timeout=WAIT_S
        )
        time.sleep(0.2)
    # Who leaves may have handled a message of each of its queues that it did not come to commit.
    twice = len(ours) + len(java_side.messages) - 2 * COUNT
    assert 0 <= twice <= QUEUES // 2, "and nothing else came twice"
    for member in (ours, java_side.messages):
        by_queue: dict[int, list[int]] = defaultdict(list)
        for queue, offset in member:
            by_queue[queue].append(offset)
        assert all(offsets == sorted(offsets) for offsets in by_queue.values())
