"""Operations and their results, values and keys: as objects, as bytes, and the limits that are set to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct as Layout
from typing import Final, TypeVar

from msgspec import Struct

from ropewalk.errors import CorruptRecord

KEY_SIZE_MAX: Final = 4 << 10
VALUE_SIZE_MAX: Final = 1 << 20
OPERATIONS_MAX: Final = 1000
WRITE_SIZE_MAX: Final = 2 << 20
"""Of the operations of one write together."""
RESULTS_SIZE_MAX: Final = 4 << 20
"""Of the results of one write together, and of the values of one read."""
RANGE_KEYS_MAX: Final = 10_000
"""The most keys that one `DeleteRange` deletes: a loop that serves others may not stand still for a million keys."""
LEASE_MS_MAX: Final = 24 * 3600 * 1000


_I64: Final = Layout(">q")
_U32: Final = Layout(">I")
_U16: Final = Layout(">H")
_NONE: Final = 0xFFFF_FFFF


class _Item(Struct, frozen=True):
    """An operation or a result."""


# -- operations --------------------------------------------------------------------------------------------


class Put(_Item, frozen=True):
    """Store a value; the result is `Count(1)`."""

    key: bytes
    value: bytes


class PutIfAbsent(_Item, frozen=True):
    """Store a value where there is none; the result is `Swapped`, with the value that is there already."""

    key: bytes
    value: bytes


class ComparePut(_Item, frozen=True):
    """Store `value`, None to delete, if `expect` is there, None for nothing; the result is `Swapped`."""

    key: bytes
    expect: bytes | None
    value: bytes | None


class Delete(_Item, frozen=True):
    """Delete a key; the result is `Count` of the keys that were there."""

    key: bytes


class DeleteRange(_Item, frozen=True):
    """Delete the first `RANGE_KEYS_MAX` keys from `start` to before `end` (empty: to the last), and `Count` them."""

    start: bytes
    end: bytes


class NextSequence(_Item, frozen=True):
    """Take `step` numbers of a sequence, 0 to look; the result is `Count` of the first, or of the next."""

    key: bytes
    step: int


class AcquireLock(_Item, frozen=True):
    """Take a lock that is free, or whose lease is over; the result is `Lease`."""

    key: bytes
    owner: bytes
    lease_ms: int


class RenewLock(_Item, frozen=True):
    """Have the lease of a held lock end later; the result is `Lease`."""

    key: bytes
    owner: bytes
    token: int
    lease_ms: int


class ReleaseLock(_Item, frozen=True):
    """Give a lock back; the result is `Lease`, granted if it was the owner's."""

    key: bytes
    owner: bytes
    token: int


class Guard(_Item, frozen=True):
    """Refuse the whole write unless `token` is the newest that this lock was granted with; the result is `Count(1)`."""

    key: bytes
    token: int


Operation = (
    Put | PutIfAbsent | ComparePut | Delete | DeleteRange | NextSequence | AcquireLock | RenewLock | ReleaseLock | Guard
)  # fmt: skip

# -- results -----------------------------------------------------------------------------------------------


class Count(_Item, frozen=True):
    """A number: of keys, or of a sequence."""

    number: int


class Swapped(_Item, frozen=True):
    """The result of a write with a condition."""

    done: int
    """1 if the value was stored."""
    value: bytes | None
    """The value that was there, where it was not."""


class Lease(_Item, frozen=True):
    """A lock as it stands after an operation on it."""

    granted: int
    """1 if the operation did what was asked."""
    owner: bytes
    token: int
    """The index of the entry that granted the lock: a later grant has a higher one."""
    left_ms: int
    """How long the lease lasts from the leader's stamp on."""


Result = Count | Swapped | Lease


# -- items -------------------------------------------------------------------------------------------------

_KINDS: Final[dict[type, tuple[int, str]]] = {
    # b: bytes, o: bytes or None, q: i64
    Put: (1, "bb"),
    PutIfAbsent: (2, "bb"),
    ComparePut: (3, "boo"),
    Delete: (4, "b"),
    DeleteRange: (5, "bb"),
    NextSequence: (6, "bq"),
    AcquireLock: (7, "bbq"),
    RenewLock: (8, "bbqq"),
    ReleaseLock: (9, "bbq"),
    Guard: (10, "bq"),
    Count: (64, "q"),
    Swapped: (65, "qo"),
    Lease: (66, "qbqq"),
}
_ITEM = TypeVar("_ITEM")


def _of_kind(*classes: type[_ITEM]) -> dict[int, tuple[type[_ITEM], str]]:
    return {_KINDS[cls][0]: (cls, _KINDS[cls][1]) for cls in classes}


_OPERATIONS: Final[dict[int, tuple[type[Operation], str]]] = _of_kind(
    Put,
    PutIfAbsent,
    ComparePut,
    Delete,
    DeleteRange,
    NextSequence,
    AcquireLock,
    RenewLock,
    ReleaseLock,
    Guard,
)
_RESULTS: Final[dict[int, tuple[type[Result], str]]] = _of_kind(Count, Swapped, Lease)


def encode_items(items: Sequence[_Item]) -> bytes:
    """Return operations or results as bytes."""
    pieces = [_U16.pack(len(items))]
    for item in items:
        kind, fields = _KINDS[type(item)]
        pieces.append(bytes((kind,)))
        for name, field in zip(item.__struct_fields__, fields, strict=True):
            value = getattr(item, name)
            pieces.append(_I64.pack(value) if field == "q" else _with_size(value))
    return b"".join(pieces)


def decode_operations(data: bytes | memoryview) -> tuple[Operation, ...]:
    """Return the operations of a write. Raises `CorruptRecord`."""
    return _decode(_OPERATIONS, data)


def decode_results(data: bytes | memoryview) -> tuple[Result, ...]:
    """Return the results of a write. Raises `CorruptRecord`."""
    return _decode(_RESULTS, data)


def _decode(classes: Mapping[int, tuple[type[_ITEM], str]], data: bytes | memoryview) -> tuple[_ITEM, ...]:
    reader = _Reader(data)
    found = []
    for _ in range(reader.number(_U16)):
        cls, fields = classes.get(reader.byte(), (None, ""))
        if cls is None:
            raise CorruptRecord("an item of the key-value store is of no kind that may stand there")
        values: list[bytes | int | None] = []
        for field in fields:
            if field == "q":
                values.append(reader.number(_I64))
            else:
                values.append(value := reader.some_bytes())
                if value is None and field == "b":
                    raise CorruptRecord(f"a {cls.__name__} lacks bytes that it has to have")
        found.append(cls(*values))
    reader.finish()
    return tuple(found)


def encode_values(values: Sequence[bytes | None]) -> bytes:
    """Return keys or values as bytes, each with its size."""
    return _U32.pack(len(values)) + b"".join(map(_with_size, values))


def decode_values(data: bytes | memoryview) -> list[bytes | None]:
    """Return keys or values. Raises `CorruptRecord`."""
    reader = _Reader(data)
    values = [reader.some_bytes() for _ in range(reader.number(_U32))]
    reader.finish()
    return values


def _with_size(value: bytes | None) -> bytes:
    return _U32.pack(_NONE) if value is None else _U32.pack(len(value)) + value


class _Reader:
    """Fields out of bytes that nobody vouches for."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = memoryview(data)
        self._at = 0

    def number(self, layout: Layout) -> int:
        end = self._at + layout.size
        if end > len(self._data):
            raise self._cut_off()
        (value,) = layout.unpack_from(self._data, self._at)
        self._at = end
        return int(value)

    def byte(self) -> int:
        if self._at >= len(self._data):
            raise self._cut_off()
        self._at += 1
        return self._data[self._at - 1]

    def some_bytes(self) -> bytes | None:
        size = self.number(_U32)
        if size == _NONE:
            return None
        end = self._at + size
        if end > len(self._data):
            raise self._cut_off()
        value = bytes(self._data[self._at : end])
        self._at = end
        return value

    def finish(self) -> None:
        if self._at != len(self._data):
            raise CorruptRecord(
                f"{len(self._data) - self._at} bytes too many in items of the key-value store"
            )

    def _cut_off(self) -> CorruptRecord:
        return CorruptRecord(f"items of the key-value store end within a field, at byte {len(self._data)}")


# -- what may be asked -------------------------------------------------------------------------------------


def refusal_of(operations: Sequence[Operation]) -> str | None:
    """Return why a write with these operations is refused wherever it is sent, in words; None if it is not."""
    if not 0 < len(operations) <= OPERATIONS_MAX:
        return f"a write has 1 to {OPERATIONS_MAX} operations, this one has {len(operations)}"
    size = 0
    for operation in operations:
        size += size_of(operation)
        if (why := _refusal_of_one(operation)) is not None:
            return why
    if len(operations) > 1 and any(isinstance(each, _LOCKING) for each in operations):
        return "an operation on a lock is a write of its own: the index of its entry is the token"
    if size > WRITE_SIZE_MAX:
        return f"the operations of a write have {WRITE_SIZE_MAX} bytes at most, these have {size}"
    return None


def size_of(operation: Operation) -> int:
    """Return the bytes of keys and values of an operation."""
    values = [getattr(operation, name) for name in operation.__struct_fields__]
    return sum(len(value) for value in values if isinstance(value, bytes))


_LOCKING: Final = (AcquireLock, RenewLock, ReleaseLock)


def _refusal_of_one(operation: Operation) -> str | None:
    match operation:
        case DeleteRange():
            return key_refusal(operation.start or b"-") or key_refusal(operation.end or b"-")
        case Put() | PutIfAbsent() | ComparePut() if len(operation.value or b"") > VALUE_SIZE_MAX:
            return f"a value has {VALUE_SIZE_MAX} bytes at most, this one has {len(operation.value or b'')}"
        case NextSequence() if operation.step < 0:
            return f"a sequence goes up, and not by {operation.step}"
        case AcquireLock() | RenewLock() if not 0 < operation.lease_ms <= LEASE_MS_MAX:
            return f"a lease lasts 1 to {LEASE_MS_MAX} ms, and not {operation.lease_ms}"
        case AcquireLock() | RenewLock() | ReleaseLock() if not 0 < len(operation.owner) <= KEY_SIZE_MAX:
            return f"the owner of a lock has 1 to {KEY_SIZE_MAX} bytes, this one has {len(operation.owner)}"
    return key_refusal(operation.key)


def key_refusal(key: bytes) -> str | None:
    """Return why this is no key, in words; None if it is one."""
    return (
        None
        if 0 < len(key) <= KEY_SIZE_MAX
        else f"a key has 1 to {KEY_SIZE_MAX} bytes, this one has {len(key)}"
    )
