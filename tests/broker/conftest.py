from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from store.io.disk import Disk, MappedFile
from tests.broker.harness import FAST_PATH, Client, FlushGate, InProcess, config_of, without_fsync
from tests.broker.name_server_world import World
from tests.broker.send_pairs import Pair, pair_of

StartBroker = Callable[..., InProcess]

# Without the fast path there is nothing for its own tests to look at; and this run must not start another one.
FAST_PATH_ALONE = ["produce/fast", "consume/fast", "transactions/test_end_runs.py", "test_fast_path_off.py"]
collect_ignore = [] if FAST_PATH else FAST_PATH_ALONE


@pytest.fixture
def start_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StartBroker]:
    """Start a broker of this process with configuration keys of the test's choice."""
    without_fsync(monkeypatch)
    with ExitStack() as stack:

        def start(disk: Disk | None = None, **settings: object) -> InProcess:
            return stack.enter_context(InProcess(config_of(tmp_path / "store", **settings), disk))

        yield start


@pytest.fixture
def running(start_broker: StartBroker) -> InProcess:
    """A broker with ASYNC_FLUSH."""
    return start_broker()


@pytest.fixture
def client(running: InProcess) -> Client:
    return running.connect()


@pytest.fixture
def world() -> World:
    """A name server nobody has registered with yet."""
    return World()


@pytest.fixture
def flush_gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[FlushGate]:
    """Decides when the disk has flushed; open at first, and again at the end."""
    gate = FlushGate()
    monkeypatch.setattr(MappedFile, "sync", lambda file: gate.sync(file))  # noqa: PLW0108 - to be bound
    yield gate
    gate.open()


@pytest.fixture
def synced(flush_gate: FlushGate, start_broker: StartBroker) -> Iterator[InProcess]:
    """A broker with SYNC_FLUSH, behind `flush_gate`."""
    running = start_broker(flushDiskType="SYNC_FLUSH")
    yield running
    flush_gate.open()


@pytest.fixture(scope="module", params=["ASYNC_FLUSH", "SYNC_FLUSH"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two brokers that get the same bytes, one of them without the fast way."""
    with pair_of(request.param, tmp_path_factory.mktemp("pair")) as pair:
        yield pair
