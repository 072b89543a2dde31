"""A region's store that leads by itself, for tests of its log and of what looks at its files."""

from __future__ import annotations

import random
import time
from pathlib import Path

from ropewalk.format.dledger.configuration import Configuration, encode_configuration
from store.io.disk import Disk
from store.io.workers import Completions
from store.region_store import RegionStore

SEGMENT = 64 << 10


def term_body(term: int) -> bytes:
    return encode_configuration(Configuration(term, "n0", ("n0",)))


class Region:
    """A region's store that leads by itself, and the commands that were applied."""

    def __init__(self, root: Path, segment_size: int | None = SEGMENT) -> None:
        self.applied: list[tuple[int, int, bytes]] = []
        self.completions = Completions(lambda: None)
        self.store = RegionStore(
            root,
            Disk(),
            self.completions,
            lambda *entry: self.applied.append(entry),
            lambda body: body,
            segment_size,
        )
        self.findings = self.store.open()

    def settle(self) -> None:
        time.sleep(0.002)
        self.completions.run()
        self.store.tick(time.monotonic_ns() // 1_000_000)

    def lead(self, term: int) -> None:
        entries = self.store.entries
        entries.save(term, "n0", lambda: None)
        assert self.store.lead(term, entries.end[0] + 1)
        while not self.store.append_term_record(term_body(term)):
            self.settle()

    def append(self, command: bytes) -> int:
        while (index := self.store.append(command)) is None:
            self.settle()
        self.store.take_appended(1 << 20)
        return index

    def commit(self) -> None:
        """Have all of it flushed, committed and applied."""
        entries, flushed = self.store.entries, [False]

        def done(point: tuple[int, int, int], cuts: int) -> None:
            flushed[0] = True

        entries.flush(done)
        while not flushed[0]:
            self.settle()
        end = entries.end
        entries.committed(*end)
        while self.store.show_through(*end)[0] < end[0]:
            pass


def filled(root: Path) -> list[tuple[int, int, bytes]]:
    """Return the entries of a region that was led and stopped."""
    region = Region(root)
    region.lead(1)
    draw = random.Random(32)
    commands = [draw.randbytes(draw.choice((1, 300, 20_000))) for _ in range(60)]
    assert [region.append(each) for each in commands] == list(range(1, 61))
    region.commit()
    region.store.close()
    assert region.applied == [
        (0, 1, term_body(1)),
        *((number, 1, each) for number, each in enumerate(commands, 1)),
    ]
    return region.applied
