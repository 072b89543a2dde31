"""Read a large JSON document in slices: the reader of a loop that has others to serve.

A document of a few kilobytes is read at once (`fastjson.loads`, or msgspec for plain JSON). A larger one is read by a
generator, which yields after each slice of at most some hundred microseconds, so that the time of one slice, and not
the size of the document, is what others wait for:

    runs of entries that are at most `NESTED` levels deep    found by one pattern in a window of bytes, read by msgspec
    all else: deeper values, bare words, objects as keys     read token by token

Both ways read the dialect that `fastjson` reads, with bounds that it does not have: a large document holds no
`$ref`, no string of more than `STRING_SIZE_MAX` bytes, no key that is an object of more than `KEY_SIZE_MAX`, and no
object or list of more than `ENTRIES_MAX` entries.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from ropewalk.format.fastjson import DEPTH_MAX, FastjsonError, check_depth, dumps, loads

__all__ = ["DIALECT_AT_ONCE_MAX", "PLAIN_AT_ONCE_MAX", "Slices", "finish", "loads_at_once", "loads_in_slices"]

PLAIN_AT_ONCE_MAX: Final = 32 << 10
"""Bytes of plain JSON that are read at once."""
DIALECT_AT_ONCE_MAX: Final = 8 << 10
"""Bytes of fastjson's dialect that are read at once: its reader is a hundred times slower than that of plain JSON."""
STRING_SIZE_MAX: Final = 64 << 10
KEY_SIZE_MAX: Final = 4 << 10
ENTRIES_MAX: Final = 100_000
"""Entries of one object or list."""
_WINDOW: Final = 16 << 10
"""Bytes that are searched for a run of entries."""
_DIALECT_WINDOW: Final = 2 << 10
"""Bytes of a run that msgspec did not read."""
_RETRY: Final = 4 << 10
"""Bytes that are read token by token after no run was found, so that searching costs a fraction of reading."""
_TOKENS: Final = 100
"""Tokens of a slice."""
NESTED: Final = 2

Slices: TypeAlias = Generator[None, None, Any]
"""A document that is being read: each step is a slice, and the value is what it returns."""

T = TypeVar("T")

_PLAIN = msgspec.json.Decoder()
_REFERENCE: Final = b'"$ref"'
_NO_JSON: Final = (msgspec.MsgspecError, UnicodeError, RecursionError)


def finish(steps: Generator[None, None, T]) -> T:
    """Take all steps of a generator at once, and return its value."""
    while True:
        try:
            next(steps)
        except StopIteration as finished:
            value: T = finished.value
            return value


def loads_at_once(data: bytes) -> Any:
    """Read a document that is small enough to be read at once. Raises `FastjsonError`, also for a larger one."""
    reading = loads_in_slices(data, PLAIN_AT_ONCE_MAX)
    try:
        next(reading)
    except StopIteration as read:
        return read.value
    raise FastjsonError(
        f"{len(data)} bytes are not plain JSON; at most {DIALECT_AT_ONCE_MAX} bytes of another dialect are read here"
    )


def loads_in_slices(data: bytes, size_max: int, entries_max: int = ENTRIES_MAX) -> Slices:
    """Read one document as `fastjson.loads` does, a slice at each step; a small one within the first step.

    Raises `FastjsonError`, for a document of more than `size_max` bytes, and for a list or object in it of more than
    `entries_max` entries, too.
    """
    size = len(data)
    if size > size_max:
        raise FastjsonError(f"a document of {size} bytes; at most {size_max} are read here")
    if size <= DIALECT_AT_ONCE_MAX:
        return loads(data)
    if size <= PLAIN_AT_ONCE_MAX:
        try:
            value = _PLAIN.decode(data)
        except _NO_JSON:
            pass
        else:
            if _REFERENCE not in data:
                check_depth(value)
                return value
    yield
    reader = _Reader(data, entries_max)
    value = yield from reader.value(0)
    if reader.next_mark():
        raise reader.error("nothing after the value")
    return value


def _pattern(nested: int) -> tuple[bytes, bytes]:
    """Return the patterns of a value with so many levels of containers within it, and of a key with its colon."""
    string = rb'"(?:[^"\\]++|\\.)*+"'
    key = rb"(?:%b|-?\d++)\s*+:\s*+" % string
    value = rb"(?>%b|[-+.\w]++)" % string
    for _ in range(nested):
        items = rb"\[\s*+(?:%b\s*+(?:,\s*+|(?=\])))*+\]" % value
        fields = rb"\{\s*+(?:%b%b\s*+(?:,\s*+|(?=\})))*+\}" % (key, value)
        value = rb"(?>%b|[-+.\w]++|%b|%b)" % (string, fields, items)
    return value, key


_VALUE, _KEY = _pattern(NESTED)
_ITEMS: Final = re.compile(rb"(?:%b\s*+,\s*+)++" % _VALUE, re.DOTALL)
_FIELDS: Final = re.compile(rb"(?:%b%b\s*+,\s*+)++" % (_KEY, _VALUE), re.DOTALL)
_SPACE: Final = re.compile(rb"\s*+")
_STRINGS: Final = {
    ord('"'): re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL),
    ord("'"): re.compile(rb"'(?:[^'\\]++|\\.)*+'", re.DOTALL),
}
_WORD: Final = re.compile(rb"[^\s:,{}\[\]\"']++")
_OPEN, _CLOSE, _OPEN_LIST, _CLOSE_LIST, _COMMA, _COLON = b"{}[],:"


class _Reader:
    """A recursive reader whose steps are slices."""

    def __init__(self, text: bytes, entries_max: int = ENTRIES_MAX) -> None:
        self._text = text
        self._entries_max = entries_max
        self._position = 0
        self._retry_at = 0
        """The position from which a run is searched again."""
        self._tokens = 0
        self._in_key = False

    def value(self, depth: int) -> Slices:
        """Read one value."""
        if depth > DEPTH_MAX:
            raise self.error(f"at most {DEPTH_MAX} levels")
        if self._tokens >= _TOKENS:
            self._tokens = 0
            yield
        mark = self.next_mark()
        if mark == _OPEN:
            return (yield from self._object(depth))
        if mark == _OPEN_LIST:
            return (yield from self._list(depth))
        return self._scalar(mark)

    def _object(self, depth: int) -> Slices:
        result: dict[str, Any] = {}
        self._position += 1
        while (mark := self.next_mark()) != _CLOSE:
            run = yield from self._run(_FIELDS, b"{%b}")
            if run is not None:
                if not isinstance(run, dict):
                    raise self.error("fields of an object")
                result.update(run)
                self._check_count(len(result))
                continue
            if mark in (_OPEN, _OPEN_LIST):
                key = yield from self._container_key(depth)
            else:
                key = self._string(mark) if mark in _STRINGS else self._word().decode("utf-8", "replace")
            if self.next_mark() != _COLON:
                raise self.error("':'")
            self._position += 1
            if key == "$ref":
                raise self.error(f"no $ref, which at most {DIALECT_AT_ONCE_MAX} bytes are read with")
            result[key] = yield from self.value(depth + 1)
            self._end_entry(_CLOSE, "',' or '}'", len(result))
        self._position += 1
        return result

    def _list(self, depth: int) -> Slices:
        result: list[Any] = []
        self._position += 1
        while self.next_mark() != _CLOSE_LIST:
            run = yield from self._run(_ITEMS, b"[%b]")
            if run is not None:
                result += run
                self._check_count(len(result))
                continue
            result.append((yield from self.value(depth + 1)))
            self._end_entry(_CLOSE_LIST, "',' or ']'", len(result))
        self._position += 1
        return result

    def _end_entry(self, close: int, wanted: str, count: int) -> None:
        self._check_count(count)
        mark = self.next_mark()
        if mark == _COMMA:
            self._position += 1
        elif mark != close:
            raise self.error(wanted)

    def _check_count(self, count: int) -> None:
        # A table that grows is copied as a whole now and then, which no slice may take longer for.
        if count > self._entries_max:
            raise self.error(f"at most {self._entries_max} entries")

    def _run(self, pattern: re.Pattern[bytes], brackets: bytes) -> Slices:
        """Read a run of entries that ends with a comma, or return None where there is none."""
        at = self._position
        if at < self._retry_at or self._in_key:
            return None
        found = pattern.match(self._text, at, at + _WINDOW)
        if found is None:
            self._retry_at = at + _RETRY
            return None
        run = brackets % found.group().rstrip().removesuffix(b",")
        if _REFERENCE in run:
            self._retry_at = at + _WINDOW  # whether it is one, or a part of a text, is found token by token
            return None
        try:
            value = _PLAIN.decode(run)
        except _NO_JSON:
            found = pattern.match(self._text, at, at + _DIALECT_WINDOW)
            if found is None:
                self._retry_at = at + _RETRY
                return None
            yield
            value = loads(brackets % found.group().rstrip().removesuffix(b","), references=False)
        self._position = found.end()
        self._tokens = 0
        yield
        return value

    def _container_key(self, depth: int) -> Slices:
        """Read an object (or list) that is a key: its canonical text."""
        if self._in_key:
            raise self.error("no object as a key within an object that is a key")
        self._in_key, began = True, self._position
        value = yield from self.value(depth + 1)
        self._in_key = False
        if self._position - began > KEY_SIZE_MAX:
            raise self.error(f"an object of at most {KEY_SIZE_MAX} bytes as a key")
        return dumps(value).decode()

    def _scalar(self, mark: int) -> Any:
        if mark not in _STRINGS:
            word = self._word()
            if len(word) > STRING_SIZE_MAX:
                raise self.error("a shorter word")
            return self._small(word)
        return self._string(mark)

    def _string(self, mark: int) -> str:
        at = self._position
        found = _STRINGS[mark].match(self._text, at, at + STRING_SIZE_MAX)
        if found is None:
            raise self.error(f"the end of a string within {STRING_SIZE_MAX} bytes")
        self._position = found.end()
        self._tokens += 1 + len(found.group()) // 512
        return str(self._small(found.group()))

    def _small(self, token: bytes) -> Any:
        try:
            return _PLAIN.decode(token)
        except _NO_JSON:
            return loads(token)

    def _word(self) -> bytes:
        found = _WORD.match(self._text, self._position, self._position + STRING_SIZE_MAX)
        if found is None:
            raise self.error("a value")
        self._position = found.end()
        self._tokens += 1
        return found.group()

    def next_mark(self) -> int:
        """Return the next byte that is not a blank, which is not consumed; 0 at the end."""
        found = _SPACE.match(self._text, self._position, self._position + STRING_SIZE_MAX)
        assert found is not None
        if found.end() - found.start() == STRING_SIZE_MAX:
            raise self.error("fewer blanks")
        self._position = at = found.end()
        self._tokens += 1
        return self._text[at] if at < len(self._text) else 0

    def error(self, wanted: str) -> FastjsonError:
        """Return the error for a place where something else was expected."""
        return FastjsonError(f"position {self._position}: expected {wanted}")
