"""The operations of a key-value client as items, and their results with their types."""

from __future__ import annotations

from collections.abc import Iterable

from ropewalk.client.kv.routes import Route
from ropewalk.errors import LocalProtocolError
from ropewalk.format.kv.items import (
    ComparePut,
    Count,
    Delete,
    DeleteRange,
    NextSequence,
    Operation,
    Put,
    PutIfAbsent,
    Result,
    Swapped,
    key_refusal,
)

Text = str | bytes
"""A key, a value or the name of a lock: bytes, or text that is taken for its UTF-8."""


def keys_of(operation: Operation) -> tuple[bytes, bytes | None]:
    """Return the first key of an operation, and the end of its range; None for the end if it is on one key."""
    if isinstance(operation, DeleteRange):
        return operation.start, operation.end
    return operation.key, None


def elsewhere(route: Route, operations: Iterable[Operation]) -> bytes | None:
    """Return a key of operations that is not in this region; None if all are."""
    for each in operations:
        key, end = keys_of(each)
        if not route.has(key) or (end is not None and route.clip(end) != end):
            return key
    return None


def put_of(key: Text, value: Text) -> Put:
    """Return the operation of `put`."""
    return Put(checked_key(key), as_bytes("value", value))


def put_if_absent_of(key: Text, value: Text) -> PutIfAbsent:
    """Return the operation of `put_if_absent`."""
    return PutIfAbsent(checked_key(key), as_bytes("value", value))


def compare_and_put_of(key: Text, expect: Text | None, value: Text | None) -> ComparePut:
    """Return the operation of `compare_and_put`."""
    return ComparePut(
        checked_key(key),
        None if expect is None else as_bytes("expect", expect),
        None if value is None else as_bytes("value", value),
    )


def delete_of(key: Text) -> Delete:
    """Return the operation of `delete`."""
    return Delete(checked_key(key))


def sequence_of(name: Text, count: int) -> NextSequence:
    """Return the operation of `sequence`."""
    return NextSequence(checked_key(name), count)


def swapped(result: Result) -> Swapped:
    """Return the result of `put_if_absent` or `compare_and_put` with its type."""
    assert isinstance(result, Swapped)
    return result


def counted(result: Result) -> int:
    """Return the number of a result that counts."""
    assert isinstance(result, Count)
    return result.number


def as_bytes(name: str, value: Text) -> bytes:
    """Return text or bytes as bytes. Raises `TypeError`."""
    if isinstance(value, str):
        return value.encode()
    if not isinstance(value, bytes):
        raise TypeError(f"{name} is text or bytes, and not {value!r}")
    return value


def checked_key(value: Text) -> bytes:
    """Return a key as bytes. Raises `LocalProtocolError` for one that the store does not take."""
    key = as_bytes("key", value)
    if (why := key_refusal(key)) is not None:
        raise LocalProtocolError(why)
    return key


def milliseconds(seconds: float) -> int:
    """Return a lease in milliseconds, one at least."""
    return max(int(seconds * 1000), 1)
