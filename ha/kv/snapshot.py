"""The state of a `KvMachine` as parts of a snapshot, taken while it goes on changing, and a machine made from parts.

StateWalk     on the loop: some rows a turn, as they were when the walk began
encoded       the chunk of a part: costs more, and may be done by another thread
Restored      a machine out of bytes, which are judged before any of them counts
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from ha.kv.machine import ITEM_BYTES, LOCK_BYTES, KvMachine, Lock
from ha.kv.region import Region
from ha.kv.sessions import SESSIONS_MAX, SessionRow
from ropewalk.errors import CorruptRecord
from ropewalk.format.kv.commands import decode_outcome, encode_outcome
from ropewalk.format.kv.snapshot import (
    OUTCOME_COLUMNS,
    Column,
    Head,
    Kind,
    Part,
    SnapshotReader,
    decode_columns,
    encode_columns,
    encode_part,
    end_part,
    head_part,
)

KEYS_A_TURN: Final = 2000
_BYTES_A_TURN: Final = 1 << 20
_SESSIONS_A_TURN: Final = 500


class SessionRows(Struct, frozen=True):
    """Sessions that a walk has come to; their outcomes are encoded with the chunk."""

    rows: list[SessionRow]


class StateWalk:
    """The state of a machine as it is now, in rows. One walk of a machine at a time."""

    def __init__(self, machine: KvMachine, term: int, pos: int) -> None:
        """`term` and `pos` are those of the entry that was applied last."""
        region = machine.region
        self.head = Head(
            machine.applied, term, pos, machine.clock_ms, region.id, region.epoch, machine.origin,
            region.start, region.end, machine.leader.encode(),
        )  # fmt: skip
        self._machine = machine
        self._ids = list(machine.ids)
        self._kinds = [Kind.REGIONS, Kind.VALUES, Kind.SEQUENCES, Kind.LOCKS, Kind.SESSIONS]
        for each in (machine.values, machine.sequences, machine.locks, machine.sessions):
            each.begin_walk()

    def step(self, keys_max: int = KEYS_A_TURN) -> Part | SessionRows | None:
        """Return the next rows, of the same table each; None at the end of the walk."""
        while self._kinds:
            found = self._rows(self._kinds[0], keys_max)
            if found is not None:
                return found
            del self._kinds[0]
        return None

    def _rows(self, kind: Kind, keys_max: int) -> Part | SessionRows | None:
        machine = self._machine
        if kind is Kind.SESSIONS:
            rows = machine.sessions.walk(min(keys_max, _SESSIONS_A_TURN))
            return SessionRows(rows) if rows else None
        columns: list[Column] | None = None
        if kind is Kind.REGIONS:
            ids, self._ids = self._ids, []
            columns = [list(column) for column in zip(*ids, strict=True)] if ids else None
        elif kind is Kind.VALUES:
            if (values := machine.values.walk(keys_max, len, _BYTES_A_TURN)) is not None:
                columns = list(values)
        elif kind is Kind.SEQUENCES:
            if (numbers := machine.sequences.walk(keys_max, lambda number: 8, _BYTES_A_TURN)) is not None:
                columns = list(numbers)
        elif (locks := machine.locks.walk(keys_max, lambda lock: len(lock.owner), _BYTES_A_TURN)) is not None:
            columns = [
                locks[0],
                [lock.owner for lock in locks[1]],
                [lock.token for lock in locks[1]],
                [lock.ends_ms for lock in locks[1]],
            ]
        return Part(kind, columns) if columns is not None else None

    def give_up(self) -> None:
        """End the walk where it is."""
        self._kinds.clear()
        machine = self._machine
        for each in (machine.values, machine.sequences, machine.locks, machine.sessions):
            each.end_walk()


class Encoder:
    """The chunks of a snapshot, in order."""

    def __init__(self) -> None:
        self._count = 0

    def head(self, head: Head) -> bytes:
        """Return the first chunk."""
        return self._chunk(head_part(head))

    def rows(self, rows: Part | SessionRows) -> bytes:
        """Return the chunk of some rows."""
        if isinstance(rows, SessionRows):
            outcomes = [
                encode_columns(OUTCOME_COLUMNS, [list(each), [encode_outcome(one) for one in each.values()]])
                for _id, _lowest, each, _origin in rows.rows
            ]
            ids, lowest = [row[0] for row in rows.rows], [row[1] for row in rows.rows]
            origins = [row[3].encode() for row in rows.rows]
            return self._chunk(Part(Kind.SESSIONS, [ids, lowest, outcomes, origins]))
        return self._chunk(rows)

    def end(self) -> bytes:
        """Return the last chunk."""
        return self._chunk(end_part(self._count))

    def _chunk(self, part: Part) -> bytes:
        self._count += 1
        return encode_part(self._count - 1, part)


class Restorer:
    """A machine out of the bytes of a snapshot, which come piece by piece."""

    def __init__(self, memory_max: int, sessions_max: int = SESSIONS_MAX) -> None:
        self._machine = KvMachine(Region(0), memory_max, sessions_max)
        self._reader = SnapshotReader()
        self._last = (Kind.HEAD, b"")

    def feed(self, data: bytes) -> None:
        """Take the next bytes. Raises `CorruptRecord`."""
        for part in self._reader.feed(data):
            self._fill(part)

    def finish(self) -> tuple[KvMachine, Head]:
        """Return the machine, whose state has come as a whole. Raises `CorruptRecord`."""
        head, machine = self._reader.finish(), self._machine
        machine.region = Region(head.region, head.start, head.end, head.epoch)
        machine.origin = head.origin
        machine.applied, machine.clock_ms = head.index, head.clock_ms
        machine.leader = head.leader.decode("utf-8", "replace")
        return machine, head

    def _fill(self, part: Part) -> None:
        machine, columns = self._machine, part.columns
        kind, keys = part.kind, columns[0]
        if not keys:
            return
        if kind is Kind.REGIONS:
            for parent, epoch, id in zip(*columns, strict=True):
                machine.ids.fill(parent, epoch, id)
            return
        if kind is Kind.SESSIONS:
            decoded = [decode_columns(OUTCOME_COLUMNS, each) for each in columns[2]]
            machine.sessions.fill(
                (
                    id,
                    lowest,
                    dict(zip(seqs, map(decode_outcome, outcomes), strict=True)),
                    origin.decode("utf-8", "replace"),
                )
                for id, lowest, (seqs, outcomes), origin in zip(
                    *columns[:2], decoded, columns[3], strict=True
                )
            )
            return
        if not self._last < (kind, keys[0]):
            raise CorruptRecord("the keys of a snapshot are not in order")
        self._last = (kind, keys[-1])
        sizes = (LOCK_BYTES if kind is Kind.LOCKS else ITEM_BYTES) * len(keys) + sum(map(len, keys))
        if kind is Kind.VALUES:
            machine.values.fill(keys, columns[1])
            sizes += sum(map(len, columns[1]))
        elif kind is Kind.SEQUENCES:
            machine.sequences.fill(keys, columns[1])
        else:
            sizes += sum(map(len, columns[1]))
            machine.locks.fill(keys, list(map(Lock, *columns[1:])))
        machine.bytes += sizes


def whole_state(machine: KvMachine, term: int, pos: int) -> bytes:
    """Return the snapshot of a machine at once: for tests, and where the loop may wait."""
    walk, encoder = StateWalk(machine, term, pos), Encoder()
    chunks = [encoder.head(walk.head)]
    while (rows := walk.step()) is not None:
        chunks.append(encoder.rows(rows))
    return b"".join([*chunks, encoder.end()])


def restored(data: bytes, memory_max: int) -> tuple[KvMachine, Head]:
    """Return the machine of a whole snapshot. Raises `CorruptRecord`."""
    restorer = Restorer(memory_max)
    restorer.feed(data)
    return restorer.finish()
