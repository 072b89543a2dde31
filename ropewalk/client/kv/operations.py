"""The operations of a key-value client as items, and their results with their types."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from ropewalk.client.kv.routes import Route
from ropewalk.errors import LocalProtocolError, RemoteProtocolError
from ropewalk.format.kv.items import (
    LEASE_MS_MAX,
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
R = TypeVar("R", bound=Result)
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


def result_untrusted(kind: type[R], results: Sequence[Result]) -> R:
    """Return the result of the only operation of a request. Raises `RemoteProtocolError` for another kind or number."""
    if len(results) != 1 or not isinstance(results[0], kind):
        found = ", ".join(type(each).__name__ for each in results) or "nothing"
        raise RemoteProtocolError(
            f"the key-value store answered {found} instead of one {kind.__name__}: it is unknown what it did"
        )
    return results[0]


def swapped(result: Result) -> Swapped:
    """Return the result of `put_if_absent` or `compare_and_put` with its type. Raises `RemoteProtocolError`."""
    return result_untrusted(Swapped, (result,))


def counted(result: Result) -> int:
    """Return the number of a result that counts. Raises `RemoteProtocolError`."""
    return result_untrusted(Count, (result,)).number


def as_bytes(name: str, value: Text) -> bytes:
    """Return text or bytes as bytes. Raises `TypeError`, and `LocalProtocolError` for text with lone surrogates."""
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as exc:
            raise LocalProtocolError(f"{name} is text that UTF-8 cannot carry: {exc}") from exc
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
    """Return a lease in milliseconds, one at least. Raises `LocalProtocolError` for one that no store grants."""
    if not seconds * 1000 <= LEASE_MS_MAX:
        raise LocalProtocolError(f"a lease lasts at most {LEASE_MS_MAX // 1000} s, and not {seconds:g}")
    return max(int(seconds * 1000), 1)
