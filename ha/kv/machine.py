"""`KvMachine`: the state of a region, which is a function of the commands in its log.

*Time* is the leader's stamp in each command, and never falls: two members agree on when a lease was over, whatever
their own clocks say, and a leader whose clock is behind makes leases longer, never shorter.

*Token.* A lock's token is the number of the entry that granted it. It rises from grant to grant, also over members and
restarts, without a counter that could be lost. A lease alone keeps nobody out: its holder may sleep through the end of
it. Only the token is safe, where what the lock protects compares it (`Guard` does, for keys of the region itself).

*Number.* An entry's number is its index, and in a region that was cut from another one: `origin` and its index, where
the origin is behind the number of the entry that cut it. So tokens rise on for a lock whose key went to another log.

*Split.* The machine cuts itself in two at a key, and leaves the new one in `born` for the shell to find. Values,
sequences and locks go to the side of their keys. Sessions are on both sides from then on, with all outcomes that are
kept: a write that is sent again behind the cut finds its outcome wherever its key went. Both clocks go on from the same
moment: no lease gets longer or shorter.

*Memory* is counted as key and value and 200 for each item, kept outcomes of sessions included. Beyond the bound what
would grow is refused, and deletes go on.

Values, sequences and locks have key spaces of their own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import islice
from typing import Final

from msgspec import Struct

from ha.kv.region import Region, RegionIds
from ha.kv.sessions import SESSIONS_MAX, Sessions
from ha.kv.table import Table
from ropewalk.format.kv.commands import (
    Command,
    FoundRegions,
    OpenSession,
    OpenTerm,
    Outcome,
    ReserveRegion,
    SplitRegion,
    Status,
    Write,
)
from ropewalk.format.kv.items import (
    RANGE_KEYS_MAX,
    RESULTS_SIZE_MAX,
    AcquireLock,
    ComparePut,
    Count,
    Delete,
    DeleteRange,
    Guard,
    Lease,
    NextSequence,
    Operation,
    Put,
    PutIfAbsent,
    ReleaseLock,
    RenewLock,
    Result,
    Swapped,
    encode_items,
)

ITEM_BYTES: Final = 200
"""The bytes that an item counts as besides its own."""
SEQUENCE_MAX: Final = 2**63 - 1
LOCK_BYTES: Final = 260
"""The bytes that a lock counts as besides key and owner: it is an object of its own."""
_LOCKS_KEPT: Final = 10_000
"""Beyond so many locks those whose lease is over are dropped, now and then."""
_ONE: Final = Count(1)
_LOCKS_PACE: Final = 1000
"""The entries between two searches for them, which look at all locks."""


class Lock(Struct, frozen=True):
    """A lock that was granted and not given back; its lease may be over."""

    owner: bytes
    token: int
    ends_ms: int


class KvMachine:
    """The state of one region. Apply the entries of its log in their order; read between two of them."""

    def __init__(
        self, region: Region, memory_max: int, sessions_max: int = SESSIONS_MAX, origin: int = 0
    ) -> None:
        self.region = region
        self.origin = origin
        """The number of the entry with index 0."""
        self.ids = RegionIds()
        """The ids of all regions, in region 0; empty in any other."""
        self.born: list[KvMachine] = []
        """The regions that were cut from this one since the shell looked."""
        self.applied = -1
        """The index of the last entry that was applied."""
        self.leader = ""
        """The address of the member that opened the newest term."""
        self.clock_ms = 0
        self.values: Table[bytes] = Table()
        self.sequences: Table[int] = Table()
        self.locks: Table[Lock] = Table()
        self.sessions = Sessions(sessions_max)
        self.memory_max = memory_max
        self.bytes = 0
        """The bytes that the tables count as; sessions have a count of their own."""

    @property
    def used_bytes(self) -> int:
        """Return the size of the state, by the rule that bounds it."""
        return self.bytes + self.sessions.bytes

    # -- commands ----------------------------------------------------------------------------------------

    def apply(self, index: int, command: Command) -> Outcome:
        """Apply the entry with this index, and return its outcome."""
        assert index > self.applied, (index, self.applied)
        self.applied = index
        self.clock_ms = max(self.clock_ms, command.stamp_ms)
        number = self.origin + index
        match command:
            case Write():
                return self._write(number, command)
            case OpenTerm():
                self.leader = command.leader
                return Outcome(Status.OK)
            case OpenSession():
                id = self.region.session_id(number)
                self.sessions.open(id, command.origin)
                return Outcome(Status.OK, (Count(id),))
            case FoundRegions():
                return self._found(command.keys)
            case ReserveRegion():
                reserved = None if self.region.id else self.ids.reserve(command.parent, command.epoch)
                return (
                    Outcome(Status.TOO_MANY) if reserved is None else Outcome(Status.OK, (Count(reserved),))
                )
            case SplitRegion():
                if command.epoch != self.region.epoch or not self.region.may_be_cut_at(command.key):
                    return Outcome(Status.WRONG_EPOCH)
                self._split(command.key, command.id)
                return Outcome(Status.OK, (Count(command.id),))

    def _found(self, keys: tuple[bytes, ...]) -> Outcome:
        """Cut a store at all keys, unless it was cut before."""
        if self.region.id or len(self.ids) or self.region.epoch > 1:
            return Outcome(Status.WRONG_EPOCH)
        ids = {key: self.ids.fill(0, len(keys) - at, at + 1) for at, key in enumerate(keys)}
        for key in reversed(keys):
            self._split(key, ids[key])
        return Outcome(Status.OK)

    def _split(self, key: bytes, id: int) -> None:
        assert self.region.may_be_cut_at(key), (self.region, key)
        region = Region(id, key, self.region.end, self.region.epoch + 1)
        upper = KvMachine(region, self.memory_max, self.sessions.count_max, self.origin + self.applied + 1)
        upper.clock_ms = self.clock_ms
        upper.sessions = self.sessions.copy()
        upper.values = self.values.cut_off(key)
        upper.sequences = self.sequences.cut_off(key)
        upper.locks = self.locks.cut_off(key)
        self.region = Region(self.region.id, self.region.start, key, region.epoch)
        for half in (self, upper):
            half.bytes = half._count()
        self.born.append(upper)

    def _count(self) -> int:
        return (
            sum(ITEM_BYTES + len(key) + len(value) for key, value in self.values.items())
            + sum(ITEM_BYTES + len(key) for key in self.sequences)
            + sum(LOCK_BYTES + len(key) + len(lock.owner) for key, lock in self.locks.items())
        )

    def _write(self, number: int, write: Write) -> Outcome:
        outcome = self.sessions.begin(write.session, write.seq, write.lowest)
        if outcome is not None:
            return outcome
        if write.epoch != self.region.epoch:
            # Not kept: the client sends it again under the same number, by the cut as it is.
            return Outcome(Status.WRONG_EPOCH)
        refused = self._refused(write)
        if refused is not None:
            outcome = Outcome(refused)
        else:
            outcome = Outcome(Status.OK, tuple([self._do(number, each) for each in write.operations]))
        self.sessions.keep(write.session, write.seq, outcome)
        return outcome

    def _refused(self, write: Write) -> Status | None:
        """Return why nothing of a write is done, if so: it is done whole or not at all."""
        grows, results, is_fenced = self._growth(write.operations)
        if is_fenced:
            return Status.FENCED
        if results > RESULTS_SIZE_MAX:
            return Status.TOO_LARGE
        if grows and self.used_bytes + grows + results > self.memory_max:
            return Status.FULL
        return None

    def _growth(self, operations: Sequence[Operation]) -> tuple[int, int, bool]:
        """Return by how much operations may grow the state, how large the values in their results may be, and whether
        a guard of theirs refuses them. HOT.
        """
        grows = results = 0
        is_fenced, stored = False, None
        get = self.values.get
        for each in operations:
            match each:
                case Put() | PutIfAbsent() | ComparePut():
                    before = get(each.key)
                    size = len(each.value) if each.value is not None else 0
                    if before is None:
                        grows += ITEM_BYTES + len(each.key) + size
                    elif size > len(before):
                        grows += size - len(before)
                    if not isinstance(each, Put):
                        # What an operation before it in the same write stores may come back, too.
                        stored = stored or _largest(operations)
                        results += max(len(before or b""), stored[each.key])
                case NextSequence() if each.key not in self.sequences and each.step:
                    grows += ITEM_BYTES + len(each.key)
                case AcquireLock() if each.key not in self.locks:
                    grows += LOCK_BYTES + len(each.key) + len(each.owner)
                case Guard():
                    lock = self.locks.get(each.key)
                    is_fenced = is_fenced or lock is None or lock.token != each.token
        return grows, results, is_fenced

    def _do(self, number: int, operation: Operation) -> Result:
        """Do an operation. HOT."""
        match operation:
            case Put():
                self._store(operation.key, operation.value)
                return _ONE
            case PutIfAbsent():
                return self._compare(operation.key, None, operation.value)
            case ComparePut():
                return self._compare(operation.key, operation.expect, operation.value)
            case Delete():
                return Count(self._store(operation.key, None))
            case DeleteRange():
                keys = self._range(operation.start, operation.end)
                return Count(sum(self._store(each, None) for each in keys))
            case NextSequence():
                return self._next(operation.key, operation.step)
            case AcquireLock() | RenewLock() | ReleaseLock():
                return self._lock(number, operation)
            case Guard():
                return _ONE

    def _store(self, key: bytes, value: bytes | None) -> int:
        """Store a value, None for none; return how many keys were there."""
        before = self.values.replace(key, value)
        if before is not None:
            self.bytes -= ITEM_BYTES + len(key) + len(before)
        if value is not None:
            self.bytes += ITEM_BYTES + len(key) + len(value)
        return int(before is not None)

    def _compare(self, key: bytes, expect: bytes | None, value: bytes | None) -> Swapped:
        found = self.values.get(key)
        if found != expect:
            return Swapped(0, found)
        self._store(key, value)
        return Swapped(1, None)

    def _next(self, key: bytes, step: int) -> Count:
        first = self.sequences.get(key, 0)
        if step:
            if key not in self.sequences:
                self.bytes += ITEM_BYTES + len(key)
            self.sequences.replace(key, min(first + step, SEQUENCE_MAX))
        return Count(first)

    # -- locks -------------------------------------------------------------------------------------------

    def _lock(self, number: int, operation: AcquireLock | RenewLock | ReleaseLock) -> Lease:
        key, now = operation.key, self.clock_ms
        lock = self.locks.get(key)
        if isinstance(operation, AcquireLock):
            if lock is not None and lock.ends_ms > now:
                return self._lease(0, lock)
            return self._grant(number, operation)
        if lock is None or (lock.owner, lock.token) != (operation.owner, operation.token):
            return self._lease(0, lock)
        if isinstance(operation, ReleaseLock):
            self._drop(key)
            return Lease(1, operation.owner, operation.token, 0)
        if lock.ends_ms <= now:
            return self._lease(0, lock)  # whoever asks for it next may have been promised it already
        renewed = Lock(lock.owner, lock.token, now + operation.lease_ms)
        self.locks.replace(key, renewed)
        return self._lease(1, renewed)

    def _grant(self, number: int, operation: AcquireLock) -> Lease:
        self._drop(operation.key)
        if len(self.locks) >= _LOCKS_KEPT and not number % _LOCKS_PACE:
            for key in [key for key, each in self.locks.items() if each.ends_ms <= self.clock_ms]:
                self._drop(key)
        lock = Lock(operation.owner, number, self.clock_ms + operation.lease_ms)
        self.locks.replace(operation.key, lock)
        self.bytes += LOCK_BYTES + len(operation.key) + len(operation.owner)
        return self._lease(1, lock)

    def _drop(self, key: bytes) -> None:
        lock = self.locks.replace(key, None)
        if lock is not None:
            self.bytes -= LOCK_BYTES + len(key) + len(lock.owner)

    def _lease(self, granted: int, lock: Lock | None) -> Lease:
        if lock is None:
            return Lease(0, b"", -1, 0)
        return Lease(granted, lock.owner, lock.token, max(lock.ends_ms - self.clock_ms, 0))

    # -- reads -------------------------------------------------------------------------------------------

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key."""
        value: bytes | None = self.values.get(key)
        return value

    def scan(self, start: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return pairs from `start` to before `end` (empty: to the last), at most `limit` and what an answer holds."""
        found: list[tuple[bytes, bytes]] = []
        size = 0
        for key in self.values.irange(start, end or None, inclusive=(True, False)):
            value = self.values[key]
            size += len(key) + len(value)
            if len(found) == limit or (found and size > RESULTS_SIZE_MAX):
                break
            found.append((key, value))
        return found

    def _range(self, start: bytes, end: bytes) -> list[bytes]:
        return list(islice(self.values.irange(start, end or None, inclusive=(True, False)), RANGE_KEYS_MAX))

    def digest(self) -> str:
        """Return a hash of the whole state: equal on members that have applied the same entries."""
        told = hashlib.sha256()
        locks = sorted((key, each.owner, each.token, each.ends_ms) for key, each in self.locks.items())
        sessions = [
            (
                id,
                lowest,
                [(seq, each.status, encode_items(each.results)) for seq, each in sorted(outcomes.items())],
                origin,
            )
            for id, lowest, outcomes, origin in self.sessions
        ]
        for part in (
            self.region, self.origin, list(self.ids), self.applied, self.clock_ms, self.leader,
            list(self.values.items()), sorted(self.sequences.items()), locks, sessions, self.used_bytes,
        ):  # fmt: skip
            told.update(repr(part).encode())
        return told.hexdigest()


def _largest(operations: Sequence[Operation]) -> dict[bytes, int]:
    """Return the size of the largest value that operations store, by key."""
    sizes: dict[bytes, int] = {}
    for each in operations:
        if isinstance(each, Put | PutIfAbsent | ComparePut):
            sizes[each.key] = max(sizes.get(each.key, 0), len(each.value or b""))
    return sizes
