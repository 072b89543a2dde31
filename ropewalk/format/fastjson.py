"""The JSON of RocketMQ's files and message bodies: fastjson's dialect, one reader and one writer.

Most of it is ordinary JSON and is read by msgspec. What is not:

    {0:"a",1:"b"}                                         integer keys without quotes
    {{"brokerName":"b","queueId":0,"topic":"T"}:5}        objects as keys
    {"$ref":"$.offsetTable"}                              the same Java object a second time
    {a:'b'}                                               bare words as keys, single quotes

A reader gets ordinary values back. Integer keys become their text (`"0"`), object keys their canonical JSON
text, so that a table looks the same however its writer quoted it; `queue_keys` turns the latter into
`QueueKey`s.

A reference may point back only to something already read to its end, which is where a fastjson writer points
unless the data is a cycle. Everything else reads as None: what this module returns can always be walked, and
its size with every reference written out is bounded, because heartbeats come from strangers. For the same
reason reading costs time and memory in proportion to the text, whatever the text: no pattern here looks at a
character a second time because of what follows it, and an object that is a key holds no object as a key of
its own, whose text would double its backslashes at every level.

The writer sorts keys: that is fastjson's order for the fields of an object, and its order for maps is
arbitrary. None values are left out. Bytes that are not this dialect raise `FastjsonError` and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from ropewalk.errors import RopewalkError

EXPANDED_NODES_MAX: Final = 1_000_000
"""Values a document may hold once its references are written out; long text counts as several."""

_TEXT_PER_NODE: Final = 32
"""Characters of a string or key that count as one value more."""

DEPTH_MAX: Final = 200
"""Containers within containers, references written out: few enough for a recursive function to walk them."""


class FastjsonError(RopewalkError, ValueError):
    """An error for bytes that are neither JSON nor fastjson's dialect of it."""


class QueueKey(NamedTuple):
    """A queue in RocketMQ's form of a map's key, a MessageQueue."""

    topic: str
    broker_name: str
    queue_id: int


class IntKeys(dict[int, Any]):
    """A map that is written with unquoted integer keys."""


class QueueKeys(dict[QueueKey, Any]):
    """A map that is written with MessageQueue objects as keys."""


def loads(data: bytes | bytearray | memoryview | str, *, references: bool = True) -> Any:
    """Read one document, ordinary JSON or dialect.

    Without `references`, `{"$ref": path}` is an object like any other, and the value is as large as its text
    and not as what a few references stand for.
    """
    raw = data.encode("utf-8", "replace") if isinstance(data, str) else bytes(data)
    try:
        value = _loads(raw)
    except RecursionError:
        raise FastjsonError("JSON is nested too deeply") from None
    if raw.count(b"{") + raw.count(b"[") > DEPTH_MAX:
        check_depth(value)
    if references and b"$ref" in raw:
        return _References(value).resolved()
    return value


def dumps(value: Any) -> bytes:
    """Write one document without any whitespace: the form of message bodies."""
    parts: list[str] = []
    _write(value, parts.append, None)
    return "".join(parts).encode()


def pretty(value: Any) -> bytes:
    """Write one document in fastjson's indented form, as RocketMQ's configuration files have it.

    Entries of a map with string keys and items of a list stand on lines of their own, indented by tabs.
    Entries of a map with other keys follow each other on one line, and only the closing brace moves to the
    next.
    """
    parts: list[str] = []
    _write(value, parts.append, "\n")
    return "".join(parts).encode()


def queue_keys(table: Mapping[str, Any]) -> QueueKeys:
    """Return the map of `loads` with `QueueKey`s, whether its writer used objects as keys or their text."""
    result = QueueKeys()
    for text, value in table.items():
        key = loads(text, references=False)
        try:
            names = key["topic"], key["brokerName"]
            if any(isinstance(name, (dict, list)) for name in names):
                raise ValueError
            result[QueueKey(str(names[0]), str(names[1]), int(key["queueId"]))] = value
        except (TypeError, KeyError, ValueError, OverflowError):
            raise FastjsonError(f"not a message queue: {text[:200]!r}") from None
    return result


# Reading


# Every repetition is possessive ("*+", "++"): with nothing to go back to, a failed match costs one pass, and a
# long string no memory for the ways it could have matched otherwise.
_OPEN_STRING: Final = r'"[^"\\]*+(?:\\.[^"\\]*+)*+'
_STRING: Final = _OPEN_STRING + '"'
# A string without an end is taken up to the end of the text. Otherwise every quote behind its first would be
# tried as the start of one more, in quadratic time.
_STRING_OR_INT_KEY: Final = re.compile(
    rf'({_OPEN_STRING}(?:"|\\?\Z))|([{{,]\s*+)(-?\d++)(?=\s*+:)'.encode(), re.DOTALL
)
_NO_JSON: Final = (msgspec.DecodeError, UnicodeError)


def _loads(raw: bytes) -> Any:
    try:
        return msgspec.json.decode(raw)
    except _NO_JSON:
        pass
    # Integer keys are by far the most common departure, offset tables hold thousands of them, and with quotes
    # around them the fast parser can read the rest: five times the speed of the reader below on such a table.
    try:
        return msgspec.json.decode(_STRING_OR_INT_KEY.sub(_quote_key, raw))
    except _NO_JSON:
        pass
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise FastjsonError(f"not UTF-8: {error}") from None
    return _Reader(text).document()


def check_depth(value: Any) -> None:
    """Raise `FastjsonError` for a value with more than `DEPTH_MAX` containers within each other."""
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(DEPTH_MAX):
        level = [
            item
            for container in level
            for item in (container.values() if isinstance(container, dict) else container)
            if isinstance(item, (dict, list))
        ]
        if not level:
            return
    raise FastjsonError(f"JSON is nested more than {DEPTH_MAX} levels deep")


def _quote_key(match: re.Match[bytes]) -> bytes:
    string, before, digits = match.groups()
    return string if string is not None else before + b'"' + digits + b'"'


class _Reader:
    """A recursive reader of the dialect over one text."""

    _SPACE = re.compile(r"\s*+")
    _DOUBLE = re.compile(_STRING, re.DOTALL)
    _SINGLE = re.compile(_STRING.replace('"', "'"), re.DOTALL)
    _WORD = re.compile(r"[^\s:,{}\[\]\"']++")
    _NUMBER = re.compile(r"[-+]?(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][-+]?\d++)?")
    _WORDS: Final[dict[str, Any]] = {
        "true": True,
        "false": False,
        "null": None,
        "NaN": None,
        "undefined": None,
    }

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._in_key = False

    def document(self) -> Any:
        value = self._value(0)
        if self._next():
            raise self._error("nothing after the value")
        return value

    def _value(self, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise self._error(f"at most {DEPTH_MAX} levels")
        mark = self._next()
        if mark == "{":
            return self._object(depth)
        if mark == "[":
            return self._array(depth)
        if mark in ('"', "'"):
            return self._string(mark)
        word = self._word()
        if word in self._WORDS:
            return self._WORDS[word]
        # The bound keeps int() from the quadratic cost of a number with a million digits.
        if len(word) > 400 or not self._NUMBER.fullmatch(word) or not word.isascii():
            raise self._error(f"a value and not {word[:40]!r}")
        return float(word) if any(mark in word for mark in ".eE") else int(word)

    def _object(self, depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        self._position += 1
        while True:
            mark = self._next()
            if mark == "}":
                self._position += 1
                return result
            if mark in ("{", "["):
                key = self._container_key(depth)
            elif mark in ('"', "'"):
                key = self._string(mark)
            else:
                key = self._word()
            self._take(":")
            result[key] = self._value(depth + 1)
            if self._next() == ",":
                self._position += 1
            elif self._next() != "}":
                raise self._error("',' or '}'")

    def _container_key(self, depth: int) -> str:
        """The text of an object (or array) that is a key."""
        if self._in_key:
            raise self._error("no object as a key within an object that is a key")
        self._in_key = True
        value = self._value(depth + 1)
        self._in_key = False
        return dumps(value).decode()

    def _array(self, depth: int) -> list[Any]:
        result: list[Any] = []
        self._position += 1
        while True:
            if self._next() == "]":
                self._position += 1
                return result
            result.append(self._value(depth + 1))
            if self._next() == ",":
                self._position += 1
            elif self._next() != "]":
                raise self._error("',' or ']'")

    def _string(self, quote: str) -> str:
        match = (self._DOUBLE if quote == '"' else self._SINGLE).match(self._text, self._position)
        if not match:
            raise self._error("the end of a string")
        self._position = match.end()
        text = match.group()[1:-1]
        return _unescape(text) if "\\" in text else text

    def _word(self) -> str:
        match = self._WORD.match(self._text, self._position)
        if not match:
            raise self._error("a value")
        self._position = match.end()
        return match.group()

    def _next(self) -> str:
        """The next character that is not a blank, "" at the end; it is not consumed."""
        match = self._SPACE.match(self._text, self._position)
        if match:
            self._position = match.end()
        return self._text[self._position : self._position + 1]

    def _take(self, mark: str) -> None:
        if self._next() != mark:
            raise self._error(repr(mark))
        self._position += 1

    def _error(self, wanted: str) -> FastjsonError:
        return FastjsonError(f"position {self._position}: expected {wanted}")


_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "0": "\0"}


def _unescape(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code[1:], 16)) if len(code) > 1 else _ESCAPED.get(code, code)

    text = _ESCAPE.sub(one, text)
    # Two escapes may be the halves of one character; half a character alone could not be encoded again.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class _References:
    """One pass over a document in its order, which puts earlier values in place of `{"$ref": path}`."""

    _STEP = re.compile(r"""\.((?>(?:\\.|[^.\[\\])+))|\[(\d++)\]|\[(["'])(.*?)\3\]""", re.DOTALL)

    def __init__(self, root: Any) -> None:
        self._root = root
        # Containers read to their end: how many values are in them once written out, and how deep they go.
        self._extents: dict[int, tuple[int, int]] = {}

    def resolved(self) -> Any:
        if self._is_reference(self._root):
            return None
        self._walk(self._root)
        return self._root

    def _walk(self, container: Any) -> tuple[int, int]:
        size, depth = 1, 0
        entries: Iterable[tuple[Any, Any]] = ()
        if isinstance(container, dict):
            entries = list(container.items())
        elif isinstance(container, list):
            entries = enumerate(container)
        for key, value in entries:
            extent = (1, 0)
            if isinstance(key, str):
                size += len(key) // _TEXT_PER_NODE
            if isinstance(value, str):
                extent = (1 + len(value) // _TEXT_PER_NODE, 0)
            elif self._is_reference(value):
                value = container[key] = self._target(value["$ref"])
                extent = self._extents.get(id(value), extent)
            elif isinstance(value, (dict, list)):
                extent = self._walk(value)
            size += extent[0]
            depth = max(depth, extent[1])
            if size > EXPANDED_NODES_MAX or depth >= DEPTH_MAX:
                raise FastjsonError(
                    f"references expand to more than {EXPANDED_NODES_MAX} values or {DEPTH_MAX} levels"
                )
        self._extents[id(container)] = (size, depth + 1)
        return size, depth + 1

    @staticmethod
    def _is_reference(value: Any) -> bool:
        return isinstance(value, dict) and len(value) == 1 and isinstance(value.get("$ref"), str)

    def _target(self, path: str) -> Any:
        # "@" (the object itself) and ".." (its parent) can only name something that is still being read.
        if not path.startswith("$"):
            return None
        node, position = self._root, 1
        while position < len(path):
            step = self._STEP.match(path, position)
            if not step:
                return None
            position = step.end()
            name, index, _, quoted = step.groups()
            key = name and re.sub(r"\\(.)", r"\1", name, flags=re.DOTALL)
            if isinstance(node, dict):
                node = node.get(key or index or quoted)
            elif isinstance(node, list) and index and len(index) < 10 and int(index) < len(node):
                node = node[int(index)]
            else:
                return None
        return node if id(node) in self._extents else None


# Writing


def _write(value: Any, put: Any, newline: str | None) -> None:
    """Append the text of one value; `newline` is the current line break with its indentation, None if
    compact.
    """
    if isinstance(value, dict):
        _write_map(value, put, newline)
    elif isinstance(value, (list, tuple, set, frozenset)):
        _write_list(sorted(value) if isinstance(value, (set, frozenset)) else value, put, newline)
    elif isinstance(value, str):
        put(_text(value))
    elif value is None or isinstance(value, (bool, int, float)):
        put(msgspec.json.encode(value).decode())
    else:
        raise TypeError(f"fastjson cannot write {type(value).__name__}")


def _write_map(table: dict[Any, Any], put: Any, newline: str | None) -> None:
    inner = None if newline is None else newline + "\t"
    separator = "{"
    for key in sorted(table):
        value = table[key]
        if value is None:
            continue
        put(separator)
        separator = ","
        if isinstance(table, IntKeys):
            put(str(int(key)))
        elif isinstance(table, QueueKeys):
            topic, broker_name, queue_id = key
            put(f'{{"brokerName":{_text(broker_name)},"queueId":{int(queue_id)},"topic":{_text(topic)}}}')
        elif isinstance(key, str):
            if inner is not None:
                put(inner)
            put(_text(key))
        else:
            raise TypeError(f"a plain map has string keys, not {type(key).__name__}")
        put(":")
        _write(value, put, inner)
    if separator == "{":
        put("{}")
    else:
        put("}" if newline is None else newline + "}")


def _write_list(items: Iterable[Any], put: Any, newline: str | None) -> None:
    inner = None if newline is None else newline + "\t"
    separator = "["
    for item in items:
        put(separator)
        separator = ","
        if inner is not None:
            put(inner)
        _write(item, put, inner)
    if separator == "[":
        put("[]")
    else:
        put("]" if newline is None else newline + "]")


def _text(value: str) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        # Half a surrogate pair: Java writes a question mark as well.
        return msgspec.json.encode(value.encode("utf-8", "replace").decode()).decode()
