"""A one-member directory of DLedger mode changes hands with Apache RocketMQ 5.5.0, both ways, and is read whole."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from ropewalk.client.blocking.connection import Connection
from ropewalk.client.core.messages import Message, command_of, pull_request, send_request
from ropewalk.client.core.routes import Queue
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import RopewalkError
from ropewalk.format.headers import GetMaxOffsetHeader, OffsetResponseHeader, decode_header
from ropewalk.format.record import decode_records
from tests.bench.peers.rocketmq.original import Original
from tests.support.ports import free_ports
from tests.support.processes import checkout_command, checkout_environment, first_line, stop

pytestmark = [pytest.mark.compat, pytest.mark.slow]

TOPIC = "TopicTest"
SEGMENT_SIZE, QUEUE_FILE_SIZE = 1 << 20, 20 * 50_000
PATIENCE_S = 60.0


class Directory:
    """A store that one broker after the other works on, and the bodies that were acknowledged so far."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.port, self.peer_port, self.name_server_port = free_ports(3)
        self.address = f"127.0.0.1:{self.port}"
        self.count = 0
        self._common = {
            "enableDLegerCommitLog": "true",
            "dLegerGroup": "broker-a",
            "dLegerPeers": f"n0-127.0.0.1:{self.peer_port}",
            "dLegerSelfId": "n0",
            "brokerName": "broker-a",
            "listenPort": str(self.port),
            "mappedFileSizeCommitLog": str(SEGMENT_SIZE),
            "mappedFileSizeConsumeQueue": str(QUEUE_FILE_SIZE),
        }

    def ours(self) -> subprocess.Popen[bytes]:
        """Start a Ropewalk broker on it."""
        settings = {
            **self._common,
            "storePathRootDir": str(self.root / "original" / "store"),
            "metricsExporterType": "DISABLE",
        }
        words = [f"--set={key}={value}" for key, value in settings.items()]
        with (self.root / "ours.err").open("ab") as errors:
            process = subprocess.Popen(
                [
                    *checkout_command(),
                    "broker",
                    "--json",
                    "--namesrv-port",
                    str(self.name_server_port),
                    *words,
                ],
                env=checkout_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        assert first_line(process, PATIENCE_S), (self.root / "ours.err").read_text()[-3000:]
        return process

    def original(self) -> Original:
        """Return a broker of Apache RocketMQ for it, to be started."""
        own = {"timerWheelEnable": "false", "waitTimeMillsInSendQueue": "10000"}
        return Original(self.root / "original", "512m", {**self._common, **own}, short_lived=True)

    def send(self, count: int) -> None:
        """Send messages one after the other, each until it is acknowledged."""
        target, until = self.count + count, time.monotonic() + PATIENCE_S
        while self.count < target:
            assert time.monotonic() < until, f"{self.count} of {target} acknowledged"
            try:
                with Connection(self.address, 5.0) as connection:
                    while self.count < target:
                        message = Message(b"%06d" % self.count + bytes(300))
                        command = send_request(TOPIC, Queue("broker-a", 0), message, f"K{self.count}", 0)
                        if connection.call(command, 5.0).code != ResponseCode.SUCCESS:
                            break
                        self.count += 1
            except (RopewalkError, OSError):
                pass
            time.sleep(0.1)

    def read(self) -> list[int]:
        """Return the numbers of all messages, as a consumer gets them, once the last is there."""
        until = time.monotonic() + PATIENCE_S
        found: list[int] = []
        with Connection(self.address, 5.0) as connection:
            while len(found) < self.count and time.monotonic() < until:
                answer = connection.call(
                    command_of(RequestCode.GET_MAX_OFFSET, GetMaxOffsetHeader(TOPIC, 0)), 5.0
                )
                if answer.code != ResponseCode.SUCCESS or decode_header(
                    OffsetResponseHeader, answer.ext
                ).offset <= len(found):
                    time.sleep(0.2)
                    continue
                answer = connection.call(pull_request(TOPIC, Queue("", 0), len(found), 32, "*", 0), 5.0)
                if answer.code == ResponseCode.SUCCESS:
                    found += [int(record.body[:6]) for record in decode_records(answer.body)]
        return found

    def verify(self) -> None:
        """Have the offline tools look at what the last broker left: it is clean, and holds every message."""
        store = str(self.root / "original" / "store")
        for words in (["verify", store], ["dump", store, "--topic", TOPIC, "--json"]):
            ended = subprocess.run(
                [*checkout_command(), "store", *words],
                env=checkout_environment(), capture_output=True, text=True, timeout=120, check=False,
            )  # fmt: skip
            assert ended.returncode == 0, f"{words}: {ended.stdout[-2000:]}{ended.stderr[-2000:]}"
        assert len(ended.stdout.splitlines()) == self.count

    @property
    def whole(self) -> list[int]:
        """The numbers of all acknowledged messages."""
        return list(range(self.count))


def test_a_directory_changes_hands_both_ways_and_is_read_whole(tools_classpath: str, tmp_path: Path) -> None:
    directory = Directory(tmp_path)
    ours = directory.ours()
    directory.send(3000)  # more than a segment
    ours.kill()
    ours.wait()
    stop(ours)
    ours = directory.ours()
    directory.send(200)
    assert directory.read() == directory.whole
    stop(ours)
    with directory.original():
        assert directory.read() == directory.whole
        directory.send(200)
        assert directory.read() == directory.whole
    directory.verify()
    ours = directory.ours()
    try:
        assert directory.read() == directory.whole
        directory.send(100)
        assert directory.read() == directory.whole
    finally:
        stop(ours)
