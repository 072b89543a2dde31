"""The text form of Java's `Properties`: what configuration files and some admin bodies are written in.

    # comment            ! comment too
    key = value          key: value          key value
    long = first \\
           second        a line that ends in an odd number of backslashes goes on; leading blanks are dropped

A backslash also stands before a blank, `=` or `:` that belongs to a key, and in front of t, n, r, f and
uXXXX; before any other character it vanishes. A key without a separator has an empty value. Blanks before
a value are dropped and those behind it are kept; whoever reads numbers strips them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_BLANKS = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_LINE_END = re.compile(r"\r\n|\n|\r")


class PropertiesError(ValueError):
    """A text that Java could not read either; `line` counts from 1."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"line {line}: {reason}")
        self.line = line
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Entry:
    """A key and its value, with the line it begins on."""

    key: str
    value: str
    line: int


def read_properties(text: str) -> Iterator[Entry]:
    """Yield the entries in order; of a key that stands there twice, Java keeps the last.

    Raises PropertiesError where a unicode escape is cut short.
    """
    for line, content in _logical_lines(text):
        end = _end_of_key(content)
        rest = content[end:].lstrip(_BLANKS)
        if rest[:1] in ("=", ":"):
            rest = rest[1:].lstrip(_BLANKS)
        yield Entry(_unescape(content[:end], line), _unescape(rest, line), line)


def write_properties(values: Mapping[str, str]) -> str:
    """Write `key=value` lines as RocketMQ's admin answers hold them: nothing is escaped.

    Its tools read them with Java's rules all the same, so a value with a backslash does not come back whole.
    """
    return "".join(f"{key}={value}\n" for key, value in values.items())


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines without comments and empty ones, continued ones joined; numbers are those of the first part."""
    parts: list[str] = []  # none of them empty
    first = 0
    for number, natural in enumerate(_LINE_END.split(text), start=1):
        line = natural.lstrip(_BLANKS)
        if not parts:
            # Only what begins a line can be a comment; behind a continuation a '#' is text.
            if not line or line[0] in "#!":
                continue
            first = number
        backslashes = len(line) - len(line.rstrip("\\"))
        part = line[:-1] if backslashes % 2 else line
        if part:
            parts.append(part)
        if backslashes % 2 == 0:
            yield first, "".join(parts)
            parts = []
    if parts:
        yield first, "".join(parts)


def _end_of_key(content: str) -> int:
    """Where the key ends: the first separator that no backslash stands before."""
    escaped = False
    for index, char in enumerate(content):
        if not escaped and (char in "=:" or char in _BLANKS):
            return index
        escaped = char == "\\" and not escaped
    return len(content)


def _unescape(text: str, line: int) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    index = 0
    while index < len(text):
        char = text[index]
        index += 1
        if char != "\\" or index == len(text):
            out.append(char if char != "\\" else "")
            continue
        char = text[index]
        index += 1
        if char == "u":
            digits = text[index : index + 4]
            if not re.fullmatch(r"[0-9A-Fa-f]{4}", digits):
                raise PropertiesError(line, f"\\u{digits} is not a unicode escape of four hex digits")
            out.append(chr(int(digits, 16)))
            index += 4
        else:
            out.append(_ESCAPES.get(char, char))
    # Java's characters are halves of the larger ones; two escapes in a row can make one of ours.
    return "".join(out).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
