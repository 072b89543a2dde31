"""A snapshot is the state at one entry of the log, while the machine goes on; damage of it is told."""

from __future__ import annotations

import random

import pytest

from ha.kv.machine import KvMachine
from ha.kv.region import Region
from ha.kv.snapshot import Encoder, Restorer, StateWalk, restored, whole_state
from ropewalk.errors import CorruptRecord
from ropewalk.format.kv.commands import OpenSession, OpenTerm, Write
from ropewalk.format.kv.items import (
    AcquireLock,
    ComparePut,
    Count,
    Delete,
    DeleteRange,
    NextSequence,
    Operation,
    Put,
    ReleaseLock,
    RenewLock,
)

MEMORY = 1 << 24


class Log:
    """A machine, and entries drawn from a seed."""

    def __init__(self, seed: int, sessions_max: int = 10_000) -> None:
        self.chance = random.Random(seed)
        self.machine = KvMachine(Region(3, b"a", b"y", 7), MEMORY, sessions_max, origin=1000)
        self.machine.ids.fill(3, 6, 4)
        self._sessions: list[int] = []
        self._seqs: dict[int, int] = {}
        self._locks: list[tuple[bytes, bytes, int]] = []
        self.go_on(1)

    def go_on(self, count: int) -> None:
        chance, machine = self.chance, self.machine
        for _ in range(count):
            index, stamp = machine.applied + 1, machine.clock_ms + chance.randrange(3)
            if not self._sessions or chance.random() < 0.05:
                (opened,) = machine.apply(index, OpenSession(stamp, f"10.0.0.{chance.randrange(4)}")).results
                assert isinstance(opened, Count)
                self._sessions.append(opened.number)
            elif chance.random() < 0.02:
                machine.apply(index, OpenTerm(stamp, f"10.0.0.{chance.randrange(9)}:10911"))
            else:
                session = chance.choice(self._sessions[-20:])
                seq = self._seqs[session] = self._seqs.get(session, 0) + 1
                operation = self._operation()
                lowest = max(1, seq - chance.randrange(5))
                machine.apply(index, Write(stamp, session, seq, lowest, 7, (operation,)))
                if isinstance(operation, AcquireLock):
                    self._locks.append((operation.key, operation.owner, machine.origin + index))

    def _operation(self) -> Operation:
        chance = self.chance
        key = b"%03d" % chance.randrange(200)
        if self._locks and chance.random() < 0.1:
            lock = chance.choice(self._locks[-5:])
            return RenewLock(*lock, 50) if chance.random() < 0.7 else ReleaseLock(*lock)
        return chance.choice(
            (
                Put(key, chance.randbytes(chance.randrange(40))),
                Put(key, b"x"),
                ComparePut(key, b"x", b"y"),
                Delete(key),
                Delete(key),
                DeleteRange(key, key + b"~"),
                NextSequence(key, 1),
                AcquireLock(key, b"me", chance.randrange(1, 90)),
            )
        )


@pytest.mark.parametrize("seed", range(20))
def test_a_snapshot_is_the_state_at_its_beginning_while_the_machine_goes_on(seed: int) -> None:
    log = Log(seed, sessions_max=15)
    log.go_on(600)
    for _ in range(3):
        taken, used = log.machine.digest(), log.machine.used_bytes
        walk, encoder = StateWalk(log.machine, 5, 12345), Encoder()
        chunks = [encoder.head(walk.head)]
        while (rows := walk.step(log.chance.choice((1, 7, 30)))) is not None:
            chunks.append(encoder.rows(rows))
            log.go_on(log.chance.randrange(20))
        chunks.append(encoder.end())
        machine, head = restored(b"".join(chunks), MEMORY)
        assert machine.digest() == taken
        assert machine.used_bytes == used
        assert (head.term, head.pos) == (5, 12345)
        assert log.machine.digest() != taken


def test_a_restored_machine_goes_on_as_the_one_it_was_taken_of() -> None:
    log = Log(1)
    log.go_on(2000)
    log.machine, _head = restored(whole_state(log.machine, 1, 1), MEMORY)
    other = Log(1)
    other.go_on(2000)
    log.go_on(2000)
    other.go_on(2000)
    assert log.machine.digest() == other.machine.digest()


@pytest.mark.parametrize("seed", range(10))
def test_a_restored_machine_drops_the_sessions_that_the_other_one_drops(seed: int) -> None:
    """Strangers open sessions at a member that has the log, and at one that got a snapshot: both drop the same."""
    log = Log(seed, sessions_max=15)
    log.go_on(700)
    restorer = Restorer(MEMORY, sessions_max=15)
    restorer.feed(whole_state(log.machine, 1, 1))
    machine = restorer.finish()[0]
    for number in range(60):
        for each in (log.machine, machine):
            each.apply(each.applied + 1, OpenSession(0, f"10.0.0.{number % 5}"))
        assert machine.digest() == log.machine.digest()
    log.go_on(300)


def test_a_walk_that_is_given_up_leaves_nothing_behind() -> None:
    log = Log(2)
    log.go_on(500)
    walk = StateWalk(log.machine, 1, 1)
    walk.step(5)
    log.go_on(100)
    walk.give_up()
    taken = log.machine.digest()
    assert restored(whole_state(log.machine, 1, 1), MEMORY)[0].digest() == taken


def test_an_empty_region_has_a_snapshot_too() -> None:
    machine = KvMachine(Region(0), MEMORY)
    assert restored(whole_state(machine, 0, 0), MEMORY)[0].digest() == machine.digest()


def test_a_snapshot_may_come_byte_by_byte() -> None:
    log = Log(3)
    log.go_on(50)
    restorer = Restorer(MEMORY)
    for byte in whole_state(log.machine, 1, 1):
        restorer.feed(bytes((byte,)))
    assert restorer.finish()[0].digest() == log.machine.digest()


def test_a_snapshot_that_is_cut_off_anywhere_is_refused() -> None:
    log = Log(4)
    log.go_on(60)
    data = whole_state(log.machine, 1, 1)
    for size in range(len(data)):
        with pytest.raises(CorruptRecord):
            restored(data[:size], MEMORY)


def test_a_bit_that_is_flipped_anywhere_is_found() -> None:
    log = Log(5)
    log.go_on(60)
    data = whole_state(log.machine, 1, 1)
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << log.chance.randrange(8)
        with pytest.raises(CorruptRecord):
            restored(bytes(damaged), MEMORY)


def test_bytes_behind_the_end_of_a_snapshot_are_refused() -> None:
    with pytest.raises(CorruptRecord):
        restored(whole_state(Log(6).machine, 1, 1) + b"\0", MEMORY)


def test_chunks_in_another_order_are_refused() -> None:
    log = Log(7)
    log.go_on(300)
    walk, encoder = StateWalk(log.machine, 1, 1), Encoder()
    chunks = [encoder.head(walk.head)]
    while (rows := walk.step(20)) is not None:
        chunks.append(encoder.rows(rows))
    chunks.append(encoder.end())
    chunks[1], chunks[2] = chunks[2], chunks[1]
    with pytest.raises(CorruptRecord):
        restored(b"".join(chunks), MEMORY)


def test_large_values_go_a_few_at_a_time() -> None:
    """The pieces of a turn are written by a helper whose memory is not to hold thousands of megabytes."""
    machine = KvMachine(Region(0), 1 << 30)
    machine.apply(0, OpenSession(0))
    for seq in range(1, 31):
        machine.apply(seq, Write(0, 0, seq, seq, 1, (Put(b"%02d" % seq, bytes(400_000)),)))
    walk, sizes = StateWalk(machine, 1, 1), []
    while (rows := walk.step()) is not None:
        sizes.append(len(Encoder().rows(rows)))
    assert max(sizes) < 1_700_000
