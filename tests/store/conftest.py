import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from store.io.disk import Disk
from tests.store.worlds import World


@pytest.fixture(scope="module", autouse=True)
def syncs_cost_nothing() -> Iterator[None]:
    """Nothing here pulls the plug: a kill keeps the page cache, and real syncs would be most of the run time."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, os.fstat)  # still refuses a descriptor that is closed
        yield


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A store directory that does not exist yet, under ASYNC_FLUSH."""
    return World(tmp_path / "store")


@pytest.fixture
def sync_world(tmp_path: Path) -> World:
    """The same under SYNC_FLUSH."""
    return World(tmp_path / "store", sync_flush=True)


@pytest.fixture(autouse=True)
def close_disks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A disk keeps a pool of open files; a test makes many disks, and the process runs all tests."""
    made: list[Disk] = []
    make = Disk.__init__

    def remember(disk: Disk) -> None:
        make(disk)
        made.append(disk)

    monkeypatch.setattr(Disk, "__init__", remember)
    yield
    for disk in made:
        Disk.close(disk)
