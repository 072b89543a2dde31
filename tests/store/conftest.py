from pathlib import Path

import pytest

from tests.store.worlds import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A store directory that does not exist yet, under ASYNC_FLUSH."""
    return World(tmp_path / "store")


@pytest.fixture
def sync_world(tmp_path: Path) -> World:
    """The same under SYNC_FLUSH."""
    return World(tmp_path / "store", sync_flush=True)
