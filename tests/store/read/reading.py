"""Readers of small stores, near the end of the log, far from it, and with a disk that is slow."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from ropewalk.format.record import decode_records
from store.io.disk import Disk, MappedFile, PagedFile
from store.message_store import MessageStore
from store.read.reader import Reader
from store.read.results import GetResult, GetStatus, ReadLimits
from tests.store.worlds import wait_for

EVERYTHING = 128 << 20


WARM = ReadLimits(memory_window=1 << 40, warm_window=1 << 40)
"""All of the log counts as near its end, and may be touched by the loop."""


COLD = ReadLimits(memory_window=1 << 40, warm_window=0)


FAR = ReadLimits(memory_window=0, warm_window=0)


@contextmanager
def reading(store: MessageStore, limits: ReadLimits = WARM, **options: int) -> Iterator[Reader]:
    reader = Reader(store.log, limits, store.completions, **options)  # type: ignore[arg-type]
    try:
        yield reader
    finally:
        reader.stop()
        store.run_completions()


def get(
    store: MessageStore,
    reader: Reader,
    offset: int,
    max_count: int = 32,
    max_bytes: int = EVERYTHING,
    matches: Callable[[int], bool] | None = None,
    topic: str = "T",
) -> GetResult:
    results: list[GetResult | None] = []
    reader.get(store.find_queue(topic, 0), offset, max_count, max_bytes, matches, results.append)
    wait_for(store, lambda: bool(results))
    (result,) = results
    assert result is not None
    return result


def numbers(result: GetResult) -> list[int]:
    return [record.queue_offset for record in decode_records(b"".join(result.records))]


def outcome(result: GetResult) -> tuple[GetStatus, int, int, int, list[int], int]:
    return (
        result.status,
        result.next_offset,
        result.min_offset,
        result.max_offset,
        numbers(result),
        result.last_physical,
    )


class ColdDisk(Disk):
    """A disk whose page cache never has anything: nothing is resident, and each read takes its time."""

    def __init__(self, delay_s: float = 0.0) -> None:
        super().__init__()
        self.delay_s = delay_s
        self.loop = threading.get_ident()
        self.reads = 0

    def allocate(self, path: Path, size: int) -> MappedFile:
        return self._chilled(super().allocate(path, size))

    def open_mapped(self, path: Path) -> MappedFile:
        return self._chilled(super().open_mapped(path))

    def open_paged(self, path: Path) -> PagedFile:
        return self._chilled(super().open_paged(path))

    def _chilled(self, file: AnyFile) -> AnyFile:
        whole = file.read_at

        def read_at(position: int, size: int) -> bytes:
            assert self.delay_s == 0 or threading.get_ident() != self.loop, "the loop waits for the disk"
            self.reads += 1
            time.sleep(self.delay_s)
            return whole(position, size)

        file.read_at = read_at  # type: ignore[method-assign]
        file.read_at_nowait = lambda position, size: None  # type: ignore[method-assign]
        if isinstance(file, MappedFile):
            file.is_resident = lambda position, size: False  # type: ignore[method-assign]
        return file


AnyFile = TypeVar("AnyFile", MappedFile, PagedFile)
