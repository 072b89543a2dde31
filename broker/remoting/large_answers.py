"""Answers that grow with the tables of a broker: their text is written in steps, and no step copies it whole.

A handler that returns `body_in_steps` names the fields of a JSON object. The value of a field is written at once, or it
is an iterator over the fragments of its text (`written_list`, `written_object`, `written_table`): a step takes
`ENTRIES_PER_STEP` of them, or `STEP_SIZE_MAX` bytes, and makes them a piece of the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Final, TypeAlias, TypeVar

from broker.remoting.refused import RequestRefused
from broker.remoting.request import LargeAnswer
from broker.remoting.session import Stepwise
from ropewalk.codes import ResponseCode
from ropewalk.format import fastjson
from ropewalk.format.remoting import FRAME_SIZE_MAX, Command

__all__ = [
    "ENTRIES_PER_STEP",
    "Work",
    "body_in_steps",
    "in_pieces",
    "large_answer",
    "written_fields",
    "written_list",
    "written_object",
    "written_table",
]

ENTRIES_PER_STEP: Final = 50
"""Rows of an answer that are collected or written before others are served."""
STEP_SIZE_MAX: Final = 8 << 10
"""Bytes of an answer that are written before others are served."""
BODY_SIZE_MAX: Final = FRAME_SIZE_MAX - (4 << 10)
"""Bytes of a body: what a frame holds beside its header."""

T = TypeVar("T")
Work: TypeAlias = Generator[None, None, T]
"""Work in steps, each of which costs the loop little, and its result."""


def in_pieces(fragments: Iterable[bytes]) -> Work[list[bytes]]:
    """Join the fragments of a text into pieces, one at each step.

    Raises `RequestRefused` for more than a frame holds.
    """
    pieces: list[bytes] = []
    piece: list[bytes] = []
    size, total = 0, 0
    for fragment in fragments:
        piece.append(fragment)
        size += len(fragment)
        if len(piece) >= ENTRIES_PER_STEP or size >= STEP_SIZE_MAX:
            total += size
            if total > BODY_SIZE_MAX:
                raise RequestRefused(
                    ResponseCode.SYSTEM_ERROR,
                    f"the answer is larger than a frame, which holds {FRAME_SIZE_MAX} bytes: ask for less at a time",
                )
            pieces.append(b"".join(piece))
            piece, size = [], 0
            yield
    pieces.append(b"".join(piece))
    return pieces


def body_in_steps(request: Command, fields: Mapping[str, Any]) -> Stepwise:
    """Return success with a JSON object of these fields (`written_fields`) as its body."""
    return large_answer(request, (yield from in_pieces(written_fields(fields))))


def large_answer(request: Command, pieces: list[bytes]) -> Command:
    """Return success with a body in pieces."""
    if len(pieces) == 1:
        return request.reply(ResponseCode.SUCCESS, body=pieces[0])
    reply = request.reply(ResponseCode.SUCCESS)
    return LargeAnswer(
        reply.code,
        opaque=reply.opaque,
        flag=reply.flag,
        serialize_type=reply.serialize_type,
        pieces=pieces,
    )


def written_fields(fields: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield the fragments of a JSON object in the order of names; a value that is an iterator yields its own."""
    return written_object(
        chain(
            [fastjson.dumps(name) + b":"],
            fields[name] if isinstance(fields[name], Iterator) else [fastjson.dumps(fields[name])],
        )
        for name in sorted(fields)
    )


def written_object(entries: Iterable[bytes | Iterator[bytes]]) -> Iterator[bytes]:
    """Yield the fragments of a JSON object of these entries, each a text or its fragments.

    An empty text stands for work without an entry.
    """
    return chain([b"{"], _listed(entries), [b"}"])


def written_list(entries: Iterable[bytes | Iterator[bytes]]) -> Iterator[bytes]:
    """Yield the fragments of a JSON list of these entries, as `written_object` does."""
    return chain([b"["], _listed(entries), [b"]"])


def _listed(entries: Iterable[bytes | Iterator[bytes]]) -> Iterator[bytes]:
    comma = b""
    for entry in entries:
        if isinstance(entry, bytes):
            yield comma + entry if entry else b""
        else:
            yield comma
            yield from entry
        if entry:
            comma = b","


def written_table(rows: Iterable[tuple[str, T]], write: Callable[[T], Any]) -> Iterator[bytes]:
    """Yield the fragments of a JSON object with a row under each name."""
    return written_object(fastjson.dumps(name) + b":" + fastjson.dumps(write(row)) for name, row in rows)
