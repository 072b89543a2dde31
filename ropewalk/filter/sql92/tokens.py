"""Tokens of a filter expression, read one at a time.

    keyword      NOT AND OR BETWEEN IN TRUE FALSE NULL IS CONTAINS STARTSWITH ENDSWITH, in any case
    name         [A-Za-z_$][A-Za-z0-9_$]*
    integer      0, or [1-9][0-9]* with or without an L
    decimal      5.  5.5  .5  5E1  5.0e-2
    string       '...', with '' for a quote inside
    symbol       = <> > >= < <= ( ) , + -

Blanks, `-- to the end of the line` and `/* ... */` separate tokens. The longest token wins, so `05` is two integers
and `5E` an integer and a name. Tokens are read lazily, because a caller may stop in front of text that is none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from ropewalk.errors import RopewalkError

EXPRESSION_SIZE_MAX: Final = 32_768
"""Characters of the longest expression that is read."""
NAME_SIZE_MAX: Final = 255
KEYWORDS: Final = frozenset(
    ("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH")
)
_SHOWN_MAX = 24

_SURROGATE = re.compile("[\ud800-\udfff]")
_SKIPPED = re.compile(r"(?:[ \t\n\r\f]+|--[^\n\r]*|/\*[^*]*\*+(?:[^/*][^*]*\*+)*/)*")
_TOKEN = re.compile(
    r"(?P<decimal>[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)"
    r"|(?P<integer>0|[1-9][0-9]*[lL]?)"
    r"|(?P<name>[A-Za-z_$][A-Za-z0-9_$]*)"
    r"|(?P<string>'[^']*(?:''[^']*)*')"
    r"|(?P<symbol><>|<=|>=|[=<>(),+-])"
)


class SqlSyntaxError(RopewalkError, ValueError):
    """An expression that cannot be used; the text names the place, and the tokens that may stand there."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token and its place in the text; `kind` of a keyword or symbol is the thing itself, in capitals."""

    kind: str
    text: str
    start: int

    @property
    def shown(self) -> str:
        """Return the token as an error message names it."""
        if self.kind == "end":
            return "the end"
        return self.text if len(self.text) <= _SHOWN_MAX else f"{self.text[:_SHOWN_MAX]}..."


class Tokens:
    """A cursor over the tokens of one expression: `current`, and `following` for the rare look ahead."""

    def __init__(self, text: str) -> None:
        """Read the first token. Raises `SqlSyntaxError`."""
        if len(text) > EXPRESSION_SIZE_MAX:
            raise SqlSyntaxError(
                f"an expression of {len(text)} characters; at most {EXPRESSION_SIZE_MAX} are read"
            )
        if _SURROGATE.search(text):
            raise SqlSyntaxError("the expression holds half of a surrogate pair, which no message can hold")
        self.text = text
        self._next = 0
        self._ahead: Token | None = None
        self.current = self._read()

    @property
    def following(self) -> Token:
        """Return the token behind the current one. Raises `SqlSyntaxError`."""
        if self._ahead is None:
            self._ahead = self._read()
        return self._ahead

    def advance(self) -> Token:
        """Move on, and return the token that was current. Raises `SqlSyntaxError` if text follows that is no token."""
        token = self.current
        self.current, self._ahead = self._ahead or self._read(), None
        return token

    def _read(self) -> Token:
        skipped = _SKIPPED.match(self.text, self._next)
        start = skipped.end() if skipped else self._next
        if start == len(self.text):
            return Token("end", "", start)
        match = _TOKEN.match(self.text, start)
        if match is None:
            raise self.error(start, _why_no_token(self.text, start))
        self._next = match.end()
        kind, text = str(match.lastgroup), match.group()
        if kind == "symbol":
            kind = text
        elif kind == "name":
            if text.upper() in KEYWORDS:
                kind = text.upper()
            elif len(text) > NAME_SIZE_MAX:
                raise self.error(
                    start, f"a name of {len(text)} characters; at most {NAME_SIZE_MAX} are allowed"
                )
        return Token(kind, text, start)

    def error(self, start: int, problem: str) -> SqlSyntaxError:
        """Return the error that names a place of the text."""
        around = self.text[max(0, start - _SHOWN_MAX) : start].replace("\n", " ")
        where = f"at character {start + 1}" + (f", behind {around!r}" if around.strip() else "")
        return SqlSyntaxError(f"{problem} ({where})")


_HINTS = {
    "'": "a string that does not end: its closing quote is missing",
    '"': "strings stand in single quotes, as in 'x'",
    "!": "not equal is written <>",
    ".": "names have no dots",
    "/": "a comment that does not end, or a division, which is not part of the language",
}


def _why_no_token(text: str, start: int) -> str:
    char = text[start]
    return f"{char!r} starts no token" + (f"; {_HINTS[char]}" if char in _HINTS else "")
