"""A broker in this process, without sockets: the test is the shell, the clock and the network.

Threads of the store are the real ones, so that what crosses from them to the loop is exercised; `turn` and
`until` take in what they finished. Time stands still until the test moves it.
"""

import errno
import json
import os
import random
import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import pytest

from broker.broker import Broker
from broker.remoting.connection import Connection
from broker.remoting.session import Session
from broker.settings.config import BrokerConfig, load_config
from ropewalk.codes import RequestCode
from ropewalk.format.batch import BatchItem, encode_batch
from ropewalk.format.record import Record, decode_records
from ropewalk.format.remoting import JSON, Command, FrameBuffer, decode_frame, encode_frame
from store.io.disk import Disk, DiskFull, MappedFile
from tests.support.clocks import START_MS, Clock
from tests.support.links import FakeLink
from tests.support.waiting import until

ADDRESS = ("127.0.0.1", 10911)
PATIENCE_S = 60.0
"""How long a helper thread may take on a busy machine before a test gives up on it."""

UNIQ = "7F0000010ABC18B4AAC20000000000AB"


FAST_PATH = os.environ.get("ROPEWALK_TEST_FAST_PATH") != "off"
"""Whether brokers recognise what comes again and again; `make test-long` runs tests/broker once more without."""


def config_of(root: Path, **settings: object) -> BrokerConfig:
    values = {
        "storePathRootDir": root,
        "mappedFileSizeCommitLog": 1 << 20,
        "mappedFileSizeConsumeQueue": 20_000,
        "fastPathEnable": FAST_PATH,
        # The time of an append is real: a process that stands still meanwhile says nothing about the disk.
        "osPageCacheBusyTimeOutMills": 30_000,
        **settings,
    }
    words = [f"{key}={_word(value)}" for key, value in values.items()]
    return load_config(config_file=None, settings=words, named={}, environ={})


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class Client:
    """One connection to the broker of a test."""

    def __init__(self, owner: "InProcess", session: Session, link: FakeLink) -> None:
        self.owner = owner
        self.session = session
        self.link = link
        self.answered = 0
        """Answers that were looked at."""
        self._opaque = 0

    def feed(self, data: bytes) -> None:
        """Have bytes arrive, in a turn of their own."""
        self.owner.broker.begin_turn()
        try:
            self.session.receive(data)
        finally:
            self.owner.broker.end_turn()

    def ask(
        self,
        code: int,
        ext: Mapping[str, object] | None = None,
        body: bytes = b"",
        *,
        flag: int = 0,
        serialize_type: int = JSON,
    ) -> int:
        """Send a request and return its opaque."""
        self._opaque += 1
        self.feed(request(code, ext, body, opaque=self._opaque, flag=flag, serialize_type=serialize_type))
        return self._opaque

    def call(
        self,
        code: int,
        ext: Mapping[str, object] | None = None,
        body: bytes = b"",
        *,
        serialize_type: int = JSON,
    ) -> Command:
        """Send a request and wait for its answer, which must be the only thing that comes."""
        assert not self.link.sent, self.answers()
        opaque = self.ask(code, ext, body, serialize_type=serialize_type)
        return self.answer(opaque)

    def answer(self, opaque: int | None = None) -> Command:
        """Wait for the next thing that is sent, which must be one answer."""
        self.owner.until(lambda: bool(self.link.sent))
        (command,) = self.answers()
        assert command.is_response
        assert opaque is None or command.opaque == opaque
        return command

    def answers(self) -> list[Command]:
        """Everything sent since the last look."""
        data, self.link.sent = bytes(self.link.sent), bytearray()
        buffer = FrameBuffer()
        commands = [decode_frame(payload) for payload in buffer.feed(data)]
        assert not buffer.buffered, "an answer was cut short"
        self.answered += sum(command.is_response for command in commands)
        return commands

    def disconnect(self) -> None:
        self.session.closed()

    # -- the common requests --------------------------------------------------------------------------

    def send(self, topic: str, body: bytes = b"x", **header: Any) -> Command:
        return self.call(RequestCode.SEND_MESSAGE_V2, send_ext(topic, **header), body)

    def pull(self, topic: str, **header: object) -> Command:
        return self.call(RequestCode.PULL_MESSAGE, pull_ext(topic, **header))

    def heartbeat(self, **options: Any) -> Command:
        """Send a heartbeat; its answer, whatever notifications come with it."""
        opaque = self.ask(RequestCode.HEART_BEAT, body=heartbeat_body(**options))
        (answer,) = [c for c in self.answers() if c.is_response]
        assert answer.opaque == opaque
        return answer


class InProcess:
    """The broker and what drives it."""

    def __init__(
        self,
        config: BrokerConfig,
        disk: Disk | None = None,
        *,
        now_ms: int = START_MS,
        ip: str | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Every answer to its own clients has to be counted as one; `__exit__` looks after that."""
        self.clock = Clock(now_ms)
        self.broker = Broker(
            config,
            address=ADDRESS,
            disk=disk or Disk(),
            now_ms=self.clock,
            monotonic_ms=self.clock.monotonic,
            rng=random.Random(7),
            wake=lambda: None,
            ip=ip,
            clock=clock,
        )
        self.broker.lane.clock = lambda: 0.0  # how much a turn serves would depend on the machine
        self.broker.open()
        self.clients: list[Client] = []

    def __enter__(self) -> "InProcess":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.broker.close()
        intercepted = any("send" in vars(client.link) for client in self.clients)
        if kind is None and self.clients and not intercepted:
            for client in self.clients:
                client.answers()
            sent = sum(client.answered for client in self.clients)
            series = self.broker.rpc_times.series()
            assert sum(sum(one.counts) for one in series if one.result == "success") == sent

    def connect(self, *, fast: bool = False, peer: tuple[str, int] | None = None) -> Client:
        link = FakeLink(peer or ("127.0.0.1", 40_001 + len(self.clients)))
        make = self.broker.new_fast_session if fast else self.broker.new_session
        client = Client(self, make(cast(Connection, link)), link)
        self.clients.append(client)
        return client

    def turn(self) -> None:
        """A turn of the loop in which nothing arrives but what helper threads finished."""
        self.broker.begin_turn()
        self.broker.on_wakeup()
        self.broker.end_turn()

    def tick(self, later_ms: int = 0) -> None:
        """Let time pass, and do its work."""
        self.clock.ms += later_ms
        self.broker.tick()

    def until(self, condition: Callable[[], bool]) -> None:
        """Turn until something has come true."""
        until(condition, patience_s=PATIENCE_S, pause_s=0.0005, turn=self.turn)

    def settle(self) -> None:
        """Turn until everything stored is readable and nobody waits for the disk."""
        store, acks = self.broker.store, self.broker.acks
        self.until(lambda: not len(acks) and store.readable_offset == store.log.end_offset)

    def stored(self, topic: str, queue_id: int = 0, *, last: int = 1 << 62) -> list[Record]:
        """Every readable record of a queue, or the last ones, straight from the log."""
        queue = self.broker.store.find_queue(topic, queue_id)
        if queue is None:
            return []
        segments = self.broker.store.log
        found = b""
        for index in range(max(queue.min_offset, queue.readable - last), queue.readable):
            offset, size, _tags = queue.read(index)
            segment = segments.find(offset)
            assert segment is not None
            found += segment.file.read_at(offset - segment.base_offset, size)
        return decode_records(found)


class FlushGate:
    """Stands before fdatasync: nothing is flushed while it is shut. Patched over `MappedFile.sync`."""

    def __init__(self) -> None:
        self.calls = 0
        self.waiting = False
        """Whether somebody stands before the gate."""
        self._open = threading.Event()
        self._open.set()

    def shut(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def sync(self, file: MappedFile) -> None:
        self.calls += 1
        self.waiting = True
        assert self._open.wait(PATIENCE_S), "the test left the gate shut"
        self.waiting = False


def without_fsync(patch: pytest.MonkeyPatch) -> None:
    """These tests start hundreds of brokers, and none of them is about power loss."""
    patch.setattr(os, "fsync", lambda _fd: None)
    patch.setattr(os, "fdatasync", lambda _fd: None)


class FullDisk(Disk):
    """A disk on which, while `full`, no segment can be allocated."""

    def __init__(self) -> None:
        super().__init__()
        self.full = False

    def allocate(self, path: Path, size: int) -> MappedFile:
        if self.full:
            raise DiskFull(f"cannot allocate {size} bytes for {path}: No space left on device")
        return super().allocate(path, size)


class NoRoom(Disk):
    """A disk on which, while `full`, no small file can be replaced."""

    full = False

    def replace_file(self, path: Path, data: bytes) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        super().replace_file(path, data)


# -- requests -----------------------------------------------------------------------------------------


def request(
    code: int,
    ext: Mapping[str, object] | None = None,
    body: bytes = b"",
    *,
    opaque: int = 1,
    flag: int = 0,
    serialize_type: int = JSON,
) -> bytes:
    fields = {name: _word(value) for name, value in (ext or {}).items() if value is not None}
    return encode_frame(
        Command(code, fields, body, opaque=opaque, flag=flag, language="JAVA", serialize_type=serialize_type)
    )


def frame_of(header: bytes, body: bytes = b"", serialize_type: int = JSON) -> bytes:
    """A frame around any header bytes."""
    size = 4 + len(header) + len(body)
    return struct.pack(">iI", size, serialize_type << 24 | len(header)) + header + body


V2_NAMES = {
    "producerGroup": "a",
    "topic": "b",
    "defaultTopic": "c",
    "defaultTopicQueueNums": "d",
    "queueId": "e",
    "sysFlag": "f",
    "bornTimestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsumeTimes": "j",
    "unitMode": "k",
    "maxReconsumeTimes": "l",
    "batch": "m",
    "bname": "n",
}


def text_of(properties: Mapping[str, str] | Iterable[tuple[str, str]]) -> str:
    pairs = properties.items() if isinstance(properties, Mapping) else properties
    return "".join(f"{name}\x01{value}\x02" for name, value in pairs)


def taken(running: InProcess) -> tuple[int, int]:
    """Changes whenever a message is stored or a topic made."""
    return running.broker.store.log.end_offset, running.broker.topics.generation


def batch_of(*bodies: bytes, **properties: str) -> bytes:
    """The body of a batch; its messages have the ids K0, K1 ..."""
    return encode_batch(
        BatchItem(n, body, text_of({"UNIQ_KEY": f"K{n}", **properties}).encode())
        for n, body in enumerate(bodies)
    )


def told(client: Client) -> list[str]:
    """The groups of which this client was told, after the tick that tells."""
    client.owner.tick(50)
    pushed = client.answers()
    assert all(
        c.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED and c.is_oneway and not c.is_response
        for c in pushed
    )
    return [c.ext["consumerGroup"] for c in pushed]


def send_ext(topic: str, *, v1: bool = False, **changes: object) -> dict[str, object]:
    """The header of a send; `properties` may be a mapping. A field given as None is left out."""
    properties = changes.pop("properties", {})
    if isinstance(properties, Mapping):
        properties = text_of({"UNIQ_KEY": UNIQ, "WAIT": "true", **properties})
    fields: dict[str, object] = {
        "producerGroup": "pg",
        "topic": topic,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 4,
        "queueId": 0,
        "sysFlag": 0,
        "bornTimestamp": START_MS - 5,
        "flag": 0,
        "properties": properties,
        "reconsumeTimes": 0,
        "unitMode": False,
        "maxReconsumeTimes": 0,
        "batch": False,
        **changes,
    }
    return fields if v1 else {V2_NAMES[name]: value for name, value in fields.items()}


def pull_ext(topic: str, **changes: object) -> dict[str, object]:
    """The header of a pull that brings its subscription along and does not wait."""
    return {
        "consumerGroup": "cg",
        "topic": topic,
        "queueId": 0,
        "queueOffset": 0,
        "maxMsgNums": 32,
        "sysFlag": 4,
        "commitOffset": 0,
        "suspendTimeoutMillis": 15_000,
        "subscription": "*",
        "subVersion": 0,
        "expressionType": "TAG",
        **changes,
    }


def heartbeat_body(
    client_id: str = "c1",
    group: str | None = "cg",
    topics: Mapping[str, str] | None = None,
    *,
    version: int = 1,
    model: str = "CLUSTERING",
    producers: Iterable[str] = (),
) -> bytes:
    subscriptions = [
        {
            "topic": topic,
            "subString": expression,
            "tagsSet": [] if expression == "*" else expression.split(" || "),
            "codeSet": [],
            "subVersion": version,
            "expressionType": "TAG",
            "classFilterMode": False,
        }
        for topic, expression in ({"T": "*"} if topics is None else topics).items()
    ]
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": model,
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": subscriptions,
        "unitMode": False,
    }
    body = {
        "clientID": client_id,
        "consumerDataSet": [] if group is None else [consumer],
        "producerDataSet": [{"groupName": name} for name in producers],
    }
    return json.dumps(body, separators=(",", ":")).encode()
