"""Stores with a scrubber whose time a test lets pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from store.config import StoreConfig
from store.io.disk import Disk
from store.message_store import MessageStore
from tests.store.worlds import put, settle, wait_for
from tests.support.clocks import Clock
from tests.support.stores import config


def scrubbing(root: Path, rate: int) -> StoreConfig:
    return replace(config(root), index=None, scrub_bytes_per_second=rate)


def turn(store: MessageStore, clock: Clock, ms: int) -> None:
    """Let time pass, and helpers finish what it is time for."""
    clock.ms += ms
    store.tick()
    wait_for(
        store,
        lambda: (
            store.upkeep.checksums is None
            or store.upkeep.checksums._worker is None
            or not store.upkeep.checksums._worker.pending
        ),
    )


@contextmanager
def running(config: StoreConfig, records: int = 0) -> Iterator[tuple[MessageStore, Clock]]:
    """An open store with so many records, all flushed."""
    clock = Clock()
    opened = MessageStore(config, Disk(), clock, lambda: None)
    opened.open()
    try:
        for number in range(records):
            put(opened, [f"message {number} ".encode() * 10])
        settle(opened)
        yield opened, clock
    finally:
        opened.close()
