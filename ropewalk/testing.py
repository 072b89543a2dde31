"""Pytest fixtures: a real broker for tests of programs that send and consume.

pytest finds this module by itself once ropewalk is installed (entry point `pytest11`); a test asks for a fixture:

    def test_an_order_is_announced(ropewalk_broker):
        topic = ropewalk_broker.topic("orders")
        announce(order, name_servers=ropewalk_broker.namesrv, topic=topic)
        assert [message.body for message in ropewalk_broker.messages(topic, 1)] == [b"order 7"]

`ropewalk_broker` is one broker process for the whole session, on free ports of the loopback interface, its data in a
temporary folder that is removed at the end. Tests do not meet on it because every test gets names of its own:
`topic("orders")` and `group("billing")` carry a prefix that no other test has. That was chosen over emptying the
broker between tests because it has no way to leak. A delayed message of an earlier test, a consumer that still lives,
a commit on its way: each of them still has its old name, and nothing has to be waited for.

The helpers block. A test that is a coroutine waits in another thread, so that its event loop goes on:
`await asyncio.to_thread(ropewalk_broker.messages, topic, 1)`.

A program whose names cannot be chosen takes `ropewalk_own_broker`: a process of its own for one test, ready in about
half a second. It is also the one to kill. `ropewalk_settings` is the fixture to override for configuration:

    @pytest.fixture(scope="session")
    def ropewalk_settings():
        return {"messageDelayLevel": "1s 2s 5s"}

Brokers run on Linux. Where tests run elsewhere, or with `ropewalk-client`, which has no broker, ROPEWALK_TEST_NAMESRV
names the name server of one that runs already, in a container say: `ropewalk_broker` is that one then, topics of the
tests stay there, and tests that ask for `ropewalk_own_broker` are skipped.

No broker of a fixture joins another cluster: it has a name server of its own, whatever NAMESRV_ADDR says. None outlives
its pytest, not even one that is killed (-9): it watches a pipe whose other end dies with its parent.

A broker that died (a test killed it) is replaced before the next test. Everything raises `BrokerDidNotStart`, with the
broker's own words, where no ready line comes within `READY_TIMEOUT_S` seconds.
"""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ropewalk.client.blocking.simple import Client
    from ropewalk.client.core.consume.received import ReceivedMessage
    from ropewalk.client.core.messages import Message, SendResult

READY_TIMEOUT_S = 60.0
"""A loaded machine may be slow; a healthy one needs about half a second."""
STOP_TIMEOUT_S = 10.0
WAIT_S = 30.0
"""How long the helpers wait for what a test expects, and for an answer: longer than a loaded machine takes."""

_NAME_SERVERS = ("NAMESRV_ADDR", "ROPEWALK_NAMESRV_ADDR")
"""Variables that would make a test's broker register with a cluster of others, and take its messages."""

OUTSIDE = "ROPEWALK_TEST_NAMESRV"
"""The variable that names the name server of a broker that runs already, for the fixtures to use."""

_BROKER = """
import os, runpy, shutil, signal, sys, threading, time

def watch():
    global orphaned
    while os.read(0, 1):
        pass
    orphaned = True
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep({patience})
    os._exit(1)

orphaned = False
threading.Thread(target=watch, daemon=True).start()
sys.argv[0] = "ropewalk"
try:
    runpy.run_module("ropewalk", run_name="__main__")
finally:
    if orphaned:
        shutil.rmtree(os.getcwd(), ignore_errors=True)
"""
"""`python -m ropewalk`, ended by the end of its standard input."""

_prefixes = itertools.count(1)
_RUN = secrets.token_hex(3)
"""Tells the names of this session from those of earlier ones, at a broker that outlives the session."""


class BrokerDidNotStart(RuntimeError):
    """The broker process ended or stayed silent; the message holds its output."""


class BrokerProcess:
    """A `ropewalk broker --ephemeral` in a process of its own, from its start to its end."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        """Start it and wait until it serves. `settings` are RocketMQ's configuration keys.

        Raises `BrokerDidNotStart`, also where brokers do not run: there is none in `ropewalk-client`.
        """
        if importlib.util.find_spec("ropewalk.__main__") is None:
            raise BrokerDidNotStart(
                "ropewalk-client is installed, which has no broker: on Linux install ropewalk in its place; elsewhere "
                f"set {OUTSIDE} to the name server of a broker that runs, in a container say (host:port)"
            )
        self._folder = tempfile.TemporaryDirectory(prefix="ropewalk-test-")
        home = Path(self._folder.name)
        self.log = home / "broker.log"
        """The file that holds the broker's standard error."""
        broker = _BROKER.format(patience=STOP_TIMEOUT_S)
        command = [sys.executable, "-c", broker, "broker", "--ephemeral", "--json"]
        for key, value in {"listenPort": "0", **(settings or {})}.items():
            command += ["--set", f"{key}={value}"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--namesrv-port", "0"],
                cwd=home,  # not the test's folder: a module of the user's that lies there is not ours to import
                env={
                    **{name: value for name, value in os.environ.items() if name not in _NAME_SERVERS},
                    "TMPDIR": str(home),
                },  # its store goes with the folder, however it ends
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                process_group=0,  # it hears of a Ctrl-C, or of a job that is cancelled, by the end of its input alone
            )
        try:
            self.ready = self._ready_line()
        except BaseException:
            self.close()
            raise
        self.namesrv = str(self.ready["namesrv"])
        """The address of its name server: what clients take."""
        self.broker = str(self.ready["broker"])
        """The address of the broker itself."""

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        """End it without a goodbye, as a power switch would (kill -9), and wait until it is gone."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """End it and remove its files. Closing twice is harmless."""
        if self.alive:
            self.process.terminate()
            try:
                self.process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self._folder.cleanup()

    def __enter__(self) -> BrokerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ready_line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        limit = threading.Timer(READY_TIMEOUT_S, self.process.kill)
        limit.start()
        line = self.process.stdout.readline()
        limit.cancel()
        if not line:
            said = self.log.read_text(errors="replace") or "nothing"
            raise BrokerDidNotStart(f"ropewalk broker did not become ready; it said: {said}")
        ready: dict[str, Any] = json.loads(line)
        return ready


class OutsideBroker:
    """A broker outside of the tests, in a container say. It is left as it is, but for the topics of the tests."""

    alive = True

    def __init__(self, namesrv: str) -> None:
        """Find the master. Raises `BrokerDidNotStart` when there is no name server, or no master."""
        from ropewalk.client.blocking.admin import Admin
        from ropewalk.errors import RopewalkError

        self.namesrv = namesrv
        """The address of its name server: what clients take."""
        try:
            with Admin(namesrv) as admin:
                self.broker = admin.masters()[0].address
                """The address of the broker itself."""
        except RopewalkError as exc:
            raise BrokerDidNotStart(f"{OUTSIDE}={namesrv}: {exc}") from exc

    def close(self) -> None:
        """Leave it running."""


class RopewalkBroker:
    """A test's view of a broker: its address, names of the test's own, and helpers to look inside."""

    def __init__(self, process: BrokerProcess | OutsideBroker, prefix: str) -> None:
        self._place = process
        self.namesrv = process.namesrv
        """The address of the name server, `host:port`: what clients take."""
        self.broker = process.broker
        """The address of the broker, `host:port`."""
        self.prefix = prefix
        """The prefix of every name of this test; empty at a broker of the test's own."""
        self._clients: dict[int, Client] = {}
        """By the thread that it belongs to."""

    @property
    def process(self) -> BrokerProcess:
        """The broker's process. Raises `BrokerDidNotStart` where the broker is one that ran already."""
        if isinstance(self._place, OutsideBroker):
            raise BrokerDidNotStart(f"the broker is the one of {OUTSIDE}, whose process is not the tests'")
        return self._place

    def name(self, plain: str) -> str:
        """Return a name that belongs to this test alone, the same for the same `plain`."""
        return self.prefix + plain

    def topic(self, plain: str = "topic", *, queues: int = 4) -> str:
        """Create a topic of this test's own and return its name. Consumers may subscribe at once.

        Creating it again changes nothing but the number of queues.
        """
        from ropewalk.client.core.messages import command_of
        from ropewalk.codes import Permission, RequestCode, ResponseCode
        from ropewalk.errors import LocalProtocolError, error_for
        from ropewalk.format.headers import CreateTopicHeader
        from ropewalk.format.names import check_topic

        topic = self.name(plain)
        if (reason := check_topic(topic)) is not None:
            raise LocalProtocolError(reason)
        header = CreateTopicHeader(
            topic=topic,
            default_topic="TBW102",
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=Permission.READ | Permission.WRITE,
            topic_filter_type="SINGLE_TAG",
        )
        answer = self.client.connection_to(self.broker).call(
            command_of(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        )
        if answer.code != ResponseCode.SUCCESS:
            raise error_for(answer.code, answer.remark)
        self.wait_until(lambda: self._has_queues(topic, queues), f"the route of {topic}")
        return topic

    def group(self, plain: str = "group") -> str:
        """Return the name of a consumer group of this test's own; brokers create groups when they are used."""
        return self.name(plain)

    @property
    def client(self) -> Client:
        """A blocking client without a group, to look at the program's messages and offsets. Closed with the test.

        Each thread has its own: a handler may send while the test waits for messages.
        """
        client = self._clients.get(threading.get_ident())
        if client is None:
            from ropewalk.client.blocking.simple import Client

            client = self._clients[threading.get_ident()] = Client(self.namesrv, timeout=WAIT_S)
        return client

    def send(self, topic: str, body: bytes | str | Message) -> SendResult:
        """Send one message from a client of the test's own, apart from the program under test."""
        from ropewalk.client.core.messages import Message

        if not isinstance(body, Message):
            body = Message(body.encode() if isinstance(body, str) else body)
        return self.client.send(topic, body)

    def messages(
        self, topic: str, count: int | None = None, *, timeout: float = WAIT_S
    ) -> list[ReceivedMessage]:
        """Return the messages of a topic as a consumer gets them, in the order of their storing. Consumes nothing.

        With `count`, waits up to `timeout` seconds until at least that many are there; raises `TimeoutError`. The topic
        need not exist yet: `messages(f"%DLQ%{group}", 1)` waits for the first dead letter of a group, and without
        `count` a topic that does not exist has no messages.
        """
        found: list[ReceivedMessage] = []

        def enough() -> bool:
            found[:] = self._read(topic)
            return count is None or len(found) >= count

        try:
            self.wait_until(enough, f"{count} messages in {topic}", timeout=timeout)
        except TimeoutError as exc:
            raise TimeoutError(f"{exc}; it holds {len(found)}") from None
        return found

    def committed(self, group: str, topic: str) -> int:
        """Return the number of messages of a topic that a group has committed, over all its queues."""
        offsets = (
            self.client.committed_offset(group, topic, queue) for queue in self.client.read_queues(topic)
        )
        return sum(offset or 0 for offset in offsets)

    def wait_until(
        self, condition: Callable[[], bool], what: str = "a condition", *, timeout: float = WAIT_S
    ) -> None:
        """Call `condition` until it is true, for at most `timeout` seconds; then raise `TimeoutError`."""
        deadline = time.monotonic() + timeout
        while not condition():
            if time.monotonic() >= deadline:
                raise TimeoutError(f"{what}: not within {timeout:g} s{_hint_of_a_loop()}")
            time.sleep(0.005)

    def close(self) -> None:
        """Hang up. The broker goes on for the next test."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    def _read(self, topic: str) -> list[ReceivedMessage]:
        from ropewalk.client.core.consume.received import TopicQueue, received
        from ropewalk.client.core.messages import PullStatus
        from ropewalk.codes import ResponseCode
        from ropewalk.errors import Rejected

        try:
            queues = self.client.read_queues(topic)
        except Rejected as exc:
            if exc.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            self.client.forget_routes()
            return []
        messages: list[ReceivedMessage] = []
        for queue in queues:
            source = TopicQueue(topic, queue)
            offset = self.client.min_offset(topic, queue)
            while (result := self.client.pull(topic, queue, offset)).status is PullStatus.FOUND:
                messages += [received(record, source) for record in result.records]
                offset = result.next_offset
        return sorted(messages, key=lambda message: message.log_offset)

    def _has_queues(self, topic: str, count: int) -> bool:
        from ropewalk.errors import Rejected

        self.client.forget_routes()
        try:
            return len(self.client.read_queues(topic)) == count
        except Rejected:
            return False


def _hint_of_a_loop() -> str:
    """Return a sentence for a wait in the thread of an event loop, which stood still meanwhile."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        if "trio" not in sys.modules:
            return ""
        import trio

        if not trio.lowlevel.in_trio_run():
            return ""
    return (
        ". Meanwhile the event loop of this thread stood still, with what the test runs in it: wait in another thread, "
        "as in await asyncio.to_thread(ropewalk_broker.messages, topic, 1), or with anyio.to_thread.run_sync"
    )


@pytest.fixture(scope="session")
def ropewalk_settings() -> dict[str, str]:
    """RocketMQ configuration keys for the brokers of this session. Override it to set some."""
    return {}


@pytest.fixture(scope="session")
def _ropewalk_processes(ropewalk_settings: dict[str, str]) -> Iterator[list[BrokerProcess | OutsideBroker]]:
    """Return the shared process, once somebody needed it: at most one is alive."""
    processes: list[BrokerProcess | OutsideBroker] = []
    yield processes
    for process in processes:
        process.close()


@pytest.fixture
def ropewalk_broker(
    request: pytest.FixtureRequest,
    ropewalk_settings: dict[str, str],
    _ropewalk_processes: list[BrokerProcess | OutsideBroker],
) -> Iterator[RopewalkBroker]:
    """Return a broker shared by the session, with names that belong to this test alone."""
    outside = os.environ.get(OUTSIDE, "")
    if not _ropewalk_processes or not _ropewalk_processes[-1].alive:
        _ropewalk_processes.append(OutsideBroker(outside) if outside else BrokerProcess(ropewalk_settings))
    readable = re.sub(r"[^a-zA-Z0-9_]+", "_", request.node.name)[:40]
    run = f"{_RUN}-" if outside else ""
    broker = RopewalkBroker(_ropewalk_processes[-1], f"t{next(_prefixes)}-{run}{readable}-")
    yield broker
    broker.close()


@pytest.fixture
def ropewalk_own_broker(ropewalk_settings: dict[str, str]) -> Iterator[RopewalkBroker]:
    """Return a broker for this test alone: names are what the program says, and it may be killed."""
    if os.environ.get(OUTSIDE):
        pytest.skip(f"{OUTSIDE} is set: there is one broker, and it is not this test's own")
    with BrokerProcess(ropewalk_settings) as process:
        broker = RopewalkBroker(process, "")
        yield broker
        broker.close()
