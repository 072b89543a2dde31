"""The pytest fixtures, as a user's test meets them: in this process, and from an installed wheel."""

import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from ropewalk import Admin, AsyncProducer, LocalProtocolError, Producer
from ropewalk.client.blocking.simple import Client
from ropewalk.client.core.messages import Message
from ropewalk.testing import BrokerDidNotStart, BrokerProcess, RopewalkBroker
from tests.bench.fixture_times import reset_gaps
from tests.support.long_run import LONG
from tests.support.processes import checkout_environment
from tests.support.waiting import until

START_S = 1.0
RESET_S = 0.05
SLOW_MACHINE = 4 if LONG else 40
"""How much slower a shared machine may be before a test calls it a fault of ours."""

SEEN: list[str] = []


@pytest.mark.parametrize("turn", [1, 2])
def test_every_test_has_names_of_its_own(ropewalk_broker: RopewalkBroker, turn: int) -> None:
    topic = ropewalk_broker.topic("orders", queues=2)
    assert topic == ropewalk_broker.name("orders") and topic not in SEEN
    SEEN.append(topic)
    assert ropewalk_broker.messages(topic) == [], "nothing of the test before"
    ropewalk_broker.send(topic, f"turn {turn}")
    ropewalk_broker.send(topic, Message(b"keyed", keys="k1"))
    bodies = [record.body for record in ropewalk_broker.messages(topic, 2)]
    assert bodies == [f"turn {turn}".encode(), b"keyed"]
    assert ropewalk_broker.committed(ropewalk_broker.group(), topic) == 0


@pytest.mark.slow
def test_the_process_is_shared_and_a_dead_one_replaced(pytester_folder: Path) -> None:
    (pytester_folder / "test_inner.py").write_text(
        "pids = []\n"
        "def test_first(ropewalk_broker):\n"
        "    pids.append(ropewalk_broker.process.process.pid)\n"
        "def test_second(ropewalk_broker):\n"
        "    assert ropewalk_broker.process.process.pid == pids[0]\n"
        "    ropewalk_broker.process.kill()\n"
        "def test_third(ropewalk_broker):\n"
        "    assert ropewalk_broker.process.process.pid != pids[0]\n"
        "    ropewalk_broker.send(ropewalk_broker.topic(), 'served')\n"
    )
    assert "3 passed" in inner_pytest(pytester_folder)


@pytest.mark.slow
def test_settings_reach_the_broker(pytester_folder: Path) -> None:
    (pytester_folder / "test_inner.py").write_text(
        "import pytest\n"
        "from ropewalk.client.core.messages import Message\n"
        "@pytest.fixture(scope='session')\n"
        "def ropewalk_settings():\n"
        "    return {'autoCreateTopicEnable': 'false'}\n"
        "def test_it(ropewalk_broker):\n"
        "    with pytest.raises(Exception, match='TOPIC_NOT_EXIST'):\n"
        "        ropewalk_broker.client.send('nowhere', Message(b''))\n"
    )
    assert "1 passed" in inner_pytest(pytester_folder)


def test_a_broker_of_its_own_takes_names_as_they_are(ropewalk_own_broker: RopewalkBroker) -> None:
    assert ropewalk_own_broker.topic("orders") == "orders"
    ropewalk_own_broker.send("orders", b"plain")
    assert [record.body for record in ropewalk_own_broker.messages("orders", 1)] == [b"plain"]


def test_a_topic_that_comes_later_is_waited_for(ropewalk_broker: RopewalkBroker) -> None:
    topic = ropewalk_broker.name("made by its first message")
    topic = topic.replace(" ", "-")
    assert ropewalk_broker.messages(topic) == [], "which does not exist"
    late = threading.Timer(0.2, lambda: ropewalk_broker.send(topic, "at last"))
    late.start()
    assert [message.body for message in ropewalk_broker.messages(topic, 1)] == [b"at last"]
    late.join()


def test_threads_may_use_the_helpers_at_once(ropewalk_broker: RopewalkBroker) -> None:
    """As a handler that sends while the test waits for messages: a client belongs to one thread."""
    topic = ropewalk_broker.topic()
    together = threading.Barrier(4)

    def use(_number: int) -> Client:
        together.wait(60)
        for _ in range(20):
            ropewalk_broker.send(topic, b"x")
            ropewalk_broker.messages(topic, 1)
        return ropewalk_broker.client

    with ThreadPoolExecutor(4) as threads:
        assert len(set(threads.map(use, range(4)))) == 4
    assert len(ropewalk_broker.messages(topic)) == 80


def test_bodies_that_the_default_producer_compressed_are_unpacked(ropewalk_broker: RopewalkBroker) -> None:
    topic = ropewalk_broker.topic()
    body = b"compressible " * 1000
    with Producer(ropewalk_broker.namesrv) as producer:
        sent = producer.send(topic, Message(body, keys=["a", "b"], tags="t"))
    (message,) = ropewalk_broker.messages(topic, 1)
    assert (message.body, message.topic, message.keys, message.tags) == (body, topic, ["a", "b"], "t")
    assert message.message_id == sent.message_id
    assert message.offset_message_id == sent.offset_message_ids[0]
    assert repr(message).endswith("… (13000 bytes)>")


def test_waiting_for_what_never_comes_says_what_is_there(ropewalk_broker: RopewalkBroker) -> None:
    topic = ropewalk_broker.topic()
    ropewalk_broker.send(topic, b"only")
    with pytest.raises(TimeoutError, match="it holds 1"):
        ropewalk_broker.messages(topic, 2, timeout=0.1)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_wait_that_holds_an_event_loop_up_says_so(ropewalk_broker: RopewalkBroker, backend: str) -> None:
    topic = ropewalk_broker.topic()

    async def blocks_its_loop() -> None:
        with pytest.raises(TimeoutError, match=r"stood still.*asyncio\.to_thread"):
            ropewalk_broker.messages(topic, 1, timeout=0.05)

    async def waits_in_a_thread() -> None:
        async with AsyncProducer(ropewalk_broker.namesrv) as producer, anyio.create_task_group() as tasks:
            tasks.start_soon(producer.send, topic, b"meanwhile")
            (message,) = await anyio.to_thread.run_sync(ropewalk_broker.messages, topic, 1)
            assert message.body == b"meanwhile"

    anyio.run(blocks_its_loop, backend=backend)
    anyio.run(waits_in_a_thread, backend=backend)


def test_a_broker_that_cannot_start_is_quoted() -> None:
    with pytest.raises(BrokerDidNotStart, match="noSuchKey"):
        BrokerProcess({"noSuchKey": "1"})


def test_it_is_ready_within_a_second_and_leaves_nothing() -> None:
    began = time.monotonic()
    with BrokerProcess() as process:
        took = time.monotonic() - began
        data = Path(process.ready["dataDir"])
        assert data.exists()
    assert took < START_S * SLOW_MACHINE, f"{took:.2f} s"
    assert not data.exists() and not process.log.exists()


@pytest.mark.slow
def test_the_next_test_waits_for_nothing(pytester_folder: Path) -> None:
    gaps = reset_gaps(pytester_folder)
    assert statistics.median(gaps) < RESET_S, gaps


@pytest.fixture
def pytester_folder(tmp_path: Path) -> Path:
    """A folder of a user's tests, with a configuration of its own."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    return tmp_path


def inner_pytest(folder: Path) -> str:
    """Run a user's tests; the plugin is found through its entry point."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=180, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_no_broker_of_a_fixture_joins_the_cluster_of_the_environment(
    ropewalk_broker: RopewalkBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With NAMESRV_ADDR set, as on every developer's machine, its route would take the place of the real one's."""
    for name in ("NAMESRV_ADDR", "ROPEWALK_NAMESRV_ADDR"):
        monkeypatch.setenv(name, ropewalk_broker.namesrv)
    with Admin(ropewalk_broker.namesrv) as admin:
        before = admin.members()
        with BrokerProcess() as other:
            assert other.namesrv != ropewalk_broker.namesrv
            with Admin(other.namesrv) as its_own:
                assert [member.address for member in its_own.members()] == [other.broker]
            time.sleep(0.3)
            assert admin.members() == before


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no kill -9 here")
@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "os.killpg(0, signal.SIGTERM)"])
def test_a_pytest_that_is_killed_leaves_no_broker_behind(
    pytester_folder: Path, tmp_path: Path, end: str
) -> None:
    (pytester_folder / "test_inner.py").write_text(
        "import os, signal, pathlib\n"
        "def test_it(ropewalk_broker):\n"
        "    ropewalk_broker.send(ropewalk_broker.topic(), b'x')\n"
        "    pathlib.Path('broker').write_text(str(ropewalk_broker.process.process.pid))\n"
        f"    {end}\n"
    )
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    inner = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_inner.py"],
        cwd=pytester_folder, env={**checkout_environment(), "TMPDIR": str(temporary)}, capture_output=True,
        timeout=180, check=False, start_new_session=True,
    )  # fmt: skip
    assert inner.returncode in (-signal.SIGKILL, -signal.SIGTERM), inner.stdout
    pid = int((pytester_folder / "broker").read_text())

    def left() -> list[Path]:
        return [path for path in temporary.iterdir() if path.name.startswith("ropewalk-")]

    until(lambda: not is_alive(pid) and not left(), lambda: f"broker {pid}: {is_alive(pid)}, files {left()}")


def test_a_broker_that_was_killed_leaves_no_files_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with BrokerProcess() as process:
        process.kill()
    assert list(tmp_path.iterdir()) == []


def test_a_topic_that_no_broker_takes_is_refused_where_it_is_made(ropewalk_broker: RopewalkBroker) -> None:
    with pytest.raises(LocalProtocolError, match="the topic name contains"):
        ropewalk_broker.topic("a/b")


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "zombie" not in (Path(f"/proc/{pid}/status").read_text() if Path("/proc").exists() else "")
