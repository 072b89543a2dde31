"""A broker for generated pages: opened in a temporary folder, without a socket, and never served."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from broker.broker import Broker
from broker.settings.config import load_config
from store.io.disk import Disk

__all__ = ["sample_broker"]

_NOON_MS: Final = 1_700_000_000_000


@contextmanager
def sample_broker() -> Iterator[Broker]:
    """Open a broker on an empty store, with its clocks standing still; close it at the end."""
    with tempfile.TemporaryDirectory(prefix="ropewalk-documents-") as folder:
        settings = (f"storePathRootDir={Path(folder)}", "mappedFileSizeCommitLog=65536")
        broker = Broker(
            load_config(settings=settings),
            address=("127.0.0.1", 10911),
            disk=Disk(),
            now_ms=lambda: _NOON_MS,
            monotonic_ms=lambda: _NOON_MS,
            rng=random.Random(1),
            wake=lambda: None,
        )
        broker.open()
        try:
            yield broker
        finally:
            broker.close()
