"""`kvMemoryMax` is a promise about the process: what a region counts is not less than what its state takes."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator

import pytest

from ha.kv.machine import KvMachine
from ha.kv.region import Region
from ropewalk.format.kv.commands import Command, OpenSession, Write, decode_command, encode_command
from ropewalk.format.kv.items import AcquireLock, ComparePut, NextSequence, Put

COUNT = 8_000


def _writes(kind: str) -> Iterator[Command]:
    yield OpenSession(0)
    for seq in range(1, COUNT + 1):
        key = b"%08d" % (seq * 7919 % 1_000_003)
        match kind:
            case "short values":
                yield Write(0, 0, seq, seq, 1, (Put(key, b""),))
            case "values":
                yield Write(0, 0, seq, seq, 1, (Put(key * 3, bytes(100)),))
            case "large values":
                yield Write(0, 0, seq, seq, 1, (Put(key * 3, bytes(1000)),))
            case "sequences":
                yield Write(0, 0, seq, seq, 1, (NextSequence(key, 1 << 40),))
            case "locks":
                yield Write(0, 0, seq, seq, 1, (AcquireLock(key, b"owner" + key, 1000),))
            case "sessions":
                yield OpenSession(0)


def _outcomes() -> Iterator[Command]:
    """Sessions, each with as many outcomes as its client may have open."""
    for session in range(COUNT // 200):
        yield OpenSession(0)
        first = session * 201
        for seq in range(1, 201):
            operation = (
                NextSequence(b"s", 1),
                ComparePut(b"k", b"other", b"x"),
                Put(b"k", bytes(300)),
                AcquireLock(b"l", b"me", 1000),
            )[seq % 4]
            yield Write(0, first, seq, 1, 1, (operation,))


def _taken(commands: Iterator[Command], sessions_max: int = 10_000) -> tuple[int, int]:
    """Return the bytes that a machine counts after these commands, and those that were allocated for it."""
    data = [encode_command(each) for each in commands]
    machine = KvMachine(Region(0), 1 << 40, sessions_max)
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for index, each in enumerate(data):
            machine.apply(index, decode_command(each))
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    return machine.used_bytes, taken


@pytest.mark.parametrize(
    "kind", ["short values", "values", "large values", "sequences", "locks", "sessions", "outcomes"]
)
def test_what_is_counted_is_what_is_taken(kind: str) -> None:
    commands = _outcomes() if kind == "outcomes" else _writes(kind)
    counted, taken = _taken(commands, COUNT * 2)
    print(f"{kind}: counted {counted / COUNT:.0f} each, taken {taken / COUNT:.0f}")
    assert taken <= counted * 1.1, "more is taken than is counted"
    assert counted <= taken * 3, "less could be kept than there is room for"
