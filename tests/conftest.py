"""What every test may rely on: hypothesis profiles, the long counts, and programs that may be missing."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from hypothesis import HealthCheck, settings

from tests.support.long_run import LONG

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import Scheduling
    from xdist.workermanage import WorkerController

# A broker of a test allocates this much ahead, and not RocketMQ's gigabyte; `--set` in a test goes before it.
os.environ.setdefault("ROPEWALK_MAPPED_FILE_SIZE_COMMIT_LOG", str(64 << 20))
# On a machine that runs all tests at once, a disk that is slow for a second says nothing about the code.
os.environ.setdefault("ROPEWALK_OS_PAGE_CACHE_BUSY_TIME_OUT_MILLS", "30000")

# Neither a deadline nor a check of how fast examples are drawn: on a shared machine a slow one says nothing about the
# code. One commit has one verdict, so the quick run draws what it drew before; the long run looks for what nobody has
# seen.
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", UNHURRIED, max_examples=100, derandomize=True)
settings.register_profile("long", UNHURRIED, max_examples=5_000)
settings.load_profile("long" if LONG else "quick")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Let no garbage collector look over the tests meanwhile: all are kept, and it takes a third of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Six thousand tests are a quarter of a million objects that stay: no collection has to look at them again.

    A simulated life takes a fifth less for it. And the worker that stands behind the others does so from here on:
    they would have to wait for it to collect.
    """
    gc.collect()
    gc.freeze()
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is not None:
        from tests.parallel import stand_behind

        stand_behind(worker)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    """Who runs what under `make test`. In a plain `pytest` nobody asks."""
    from tests.parallel import make_scheduler

    return make_scheduler(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    """Tell a worker whether all tests are to be run, so that it may collect its own alone."""
    config = node.config
    is_chosen = config.args_source is not pytest.Config.ArgsSource.TESTPATHS or config.option.keyword
    node.workerinput["collects_its_own"] = not (is_chosen or config.option.markexpr)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave files out that another worker runs the tests of."""
    worker: dict[str, Any] | None = getattr(config, "workerinput", None)
    if worker is None or not worker.get("collects_its_own") or collection_path.suffix != ".py":
        return None
    from tests.parallel import collects

    file = collection_path.relative_to(config.rootpath).as_posix()
    return None if collects(worker["workerid"], file) else True


@pytest.fixture(scope="session", autouse=True)
def _loggers_are_not_cached() -> None:
    """A command that a test runs in this process must not decide where the logs of all later tests go."""
    configure = structlog.configure

    def configure_uncached(**options: Any) -> None:
        configure(**{**options, "cache_logger_on_first_use": False})

    structlog.configure = configure_uncached  # type: ignore[assignment]


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    yield
    if structlog.is_configured():
        structlog.reset_defaults()


@pytest.fixture(scope="session")
def long_run() -> bool:
    """Whether `make test-long` asked for the long counts."""
    return LONG


@pytest.fixture(scope="session")
def need_program() -> Callable[[str], str]:
    """Return the path of a program this test cannot do without.

    A missing one skips the test on a person's machine. With CI=true it fails it, because there a skip
    would look the same as a pass.
    """

    def need(name: str) -> str:
        path = shutil.which(name)
        if path is None:
            if os.environ.get("CI") == "true":
                pytest.fail(f"{name} is missing, and CI=true does not allow this test to be skipped")
            pytest.skip(f"{name} is not installed")
        return path

    return need
