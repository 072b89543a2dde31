"""Operations and their results, values and keys: as objects, as bytes, and the limits that are set to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct as Layout
from struct import error as LayoutError
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
_NO_BYTES: Final = _U32.pack(_NONE)


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

_KINDS: Final[dict[type[_Item], tuple[int, str]]] = {
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
_ITEM = TypeVar("_ITEM", bound=_Item)
_LAYOUTS: Final = {
    cls: (bytes((kind,)), tuple(zip(cls.__struct_fields__, fields, strict=True)))
    for cls, (kind, fields) in _KINDS.items()
}


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
    """Return operations or results as bytes. HOT."""
    number, size_of_bytes = _I64.pack, _U32.pack
    pieces = [_U16.pack(len(items))]
    add = pieces.append
    for item in items:
        kind, layout = _LAYOUTS[type(item)]
        add(kind)
        for name, field in layout:
            value = getattr(item, name)
            if field == "q":
                add(number(value))
            elif value is None:
                add(_NO_BYTES)
            else:
                add(size_of_bytes(len(value)))
                add(value)
    return b"".join(pieces)


def decode_operations(data: bytes | memoryview, at: int = 0) -> tuple[Operation, ...]:
    """Return the operations of a write, which begin at `at`. Raises `CorruptRecord`."""
    return _decode(_OPERATIONS, data, at)


def decode_results(data: bytes | memoryview, at: int = 0) -> tuple[Result, ...]:
    """Return the results of a write, which begin at `at`. Raises `CorruptRecord`."""
    return _decode(_RESULTS, data, at)


def _decode(
    classes: Mapping[int, tuple[type[_ITEM], str]], data: bytes | memoryview, at: int
) -> tuple[_ITEM, ...]:
    """Return the items from `at` to the end. HOT."""
    data, number, size_of_bytes = bytes(data), _I64.unpack_from, _U32.unpack_from
    found = []
    try:
        (count,) = _U16.unpack_from(data, at)
        at += _U16.size
        for _ in range(count):
            cls, fields = classes[data[at]]
            at += 1
            values: list[bytes | int | None] = []
            for field in fields:
                if field == "q":
                    values.append(number(data, at)[0])
                    at += 8
                    continue
                (size,) = size_of_bytes(data, at)
                at += 4
                if size != _NONE:
                    values.append(data[at : at + size])
                    at += size
                elif field == "o":
                    values.append(None)
                else:
                    raise CorruptRecord(f"a {cls.__name__} lacks bytes that it has to have")
            found.append(cls(*values))
    except KeyError:
        raise CorruptRecord("an item of the key-value store is of no kind that may stand there") from None
    except (LayoutError, IndexError):
        raise _cut_off(data) from None
    _finish(data, at)
    return tuple(found)


def encode_values(values: Sequence[bytes | None]) -> bytes:
    """Return keys or values as bytes, each with its size. HOT."""
    size_of_bytes = _U32.pack
    pieces = [size_of_bytes(len(values))]
    for value in values:
        if value is None:
            pieces.append(_NO_BYTES)
        else:
            pieces += (size_of_bytes(len(value)), value)
    return b"".join(pieces)


def decode_values(data: bytes | memoryview, at: int = 0) -> list[bytes | None]:
    """Return keys or values, which begin at `at`. Raises `CorruptRecord`. HOT."""
    data, size_of_bytes = bytes(data), _U32.unpack_from
    values: list[bytes | None] = []
    try:
        (count,) = size_of_bytes(data, at)
        at += 4
        for _ in range(count):
            (size,) = size_of_bytes(data, at)
            at += 4
            if size == _NONE:
                values.append(None)
            else:
                values.append(data[at : at + size])
                at += size
    except LayoutError:
        raise _cut_off(data) from None
    _finish(data, at)
    return values


def _finish(data: bytes, at: int) -> None:
    """Raise `CorruptRecord` unless the last field, which began before the end, ended there."""
    if at > len(data):
        raise _cut_off(data)
    if at < len(data):
        raise CorruptRecord(f"{len(data) - at} bytes too many in items of the key-value store")


def _cut_off(data: bytes) -> CorruptRecord:
    return CorruptRecord(f"items of the key-value store end within a field, at byte {len(data)}")


# -- what may be asked -------------------------------------------------------------------------------------


def refusal_of(operations: Sequence[Operation]) -> str | None:
    """Return why a write with these operations is refused wherever it is sent, in words; None if it is not. HOT."""
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
    """Return the bytes of keys and values of an operation. HOT."""
    size = 0
    for name, field in _LAYOUTS[type(operation)][1]:
        if field != "q":
            size += len(getattr(operation, name) or b"")
    return size


_LOCKING: Final = (AcquireLock, RenewLock, ReleaseLock)


def _refusal_of_one(operation: Operation) -> str | None:
    match operation:
        case Put() | PutIfAbsent() | ComparePut():
            if len(operation.value or b"") > VALUE_SIZE_MAX:
                return (
                    f"a value has {VALUE_SIZE_MAX} bytes at most, this one has {len(operation.value or b'')}"
                )
        case DeleteRange():
            return key_refusal(operation.start or b"-") or key_refusal(operation.end or b"-")
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
