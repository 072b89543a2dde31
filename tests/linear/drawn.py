"""Histories drawn as time lines, for tests: a line for each client, a pair of brackets for each call.

[w1 ]     [r1]      a call lasts from the column of its first bracket to that of its last
   [w2?]            unknown: no answer came

w1 write 1    r1 read 1      r. read nothing       d+ d- delete, of something or nothing
1>2+ 1>2-     compare_and_put 1 by 2, done or not  .>2+ where there is nothing
i1. i1:2      put_if_absent 1: there was nothing, or 2
+3:1          add 3 to what was 1                  a4 append, at place 4
"""

from __future__ import annotations

import re
from typing import Any

from tests.linear.history import Call, Operation

__all__ = ["drawn"]

_CALL = re.compile(r"\[([^\]]*?) *\]")
_PARTS = re.compile(
    r"w(?P<write>\d)|r(?P<read>\d|\.)|(?P<old>\d|\.)>(?P<new>\d)(?P<done>[+-]?)|i(?P<put>\d)(?P<was>:\d|\.)?"
    r"|d(?P<gone>[+-]?)|\+(?P<add>\d):?(?P<at>\d?)|a(?P<place>\d?)"
)


def drawn(*lines: str) -> list[Call]:
    """Return the history that is drawn; the lines are those of clients a, b, c."""
    calls = []
    for number, line in enumerate(lines):
        for found in _CALL.finditer(line):
            text = found[1]
            match = _PARTS.fullmatch(text.rstrip("?"))
            assert match is not None, text
            operation, result = _read(match)
            call = Call("abcdefgh"[number], "k", operation, found.start())
            if not text.endswith("?"):
                call.end, call.result = found.end() - 1, result
            calls.append(call)
    return calls


def _read(match: re.Match[str]) -> tuple[Operation, Any]:
    parts = match.groupdict()
    if parts["write"]:
        return ("write", int(parts["write"])), None
    if parts["read"]:
        return ("read",), _value(parts["read"])
    if parts["old"]:
        return ("compare_and_put", _value(parts["old"]), int(parts["new"])), parts["done"] == "+"
    if parts["put"]:
        return ("put_if_absent", int(parts["put"])), _value((parts["was"] or ".").lstrip(":"))
    if parts["add"]:
        return ("add", int(parts["add"])), int(parts["at"] or 0)
    if parts["place"] is not None:
        return ("append",), int(parts["place"] or 0)
    return ("delete",), parts["gone"] == "+"


def _value(text: str) -> int | None:
    return None if text == "." else int(text)
