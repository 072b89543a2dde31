"""The text of a config file that is mostly large tables, made from texts of their entries.

The tables are written on the loop, some of them every few seconds, and the general writer needs about 15 us for an
entry: a broker with 5000 topics would stand still for 70 ms. Entries rarely change, so each keeps its text, and a table
is written in slices: each step asks for the texts of some hundred entries, and others are served before the next.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from ropewalk.format import fastjson

__all__ = [
    "ENTRIES_PER_STEP",
    "TextSlices",
    "at_once",
    "entry_text",
    "object_entry",
    "object_text",
    "packed_entries",
    "quoted",
    "table_text",
    "value_entry",
]

ENTRIES_PER_STEP: Final = 400
"""Entries of a table that are written before others are served."""

TextSlices: TypeAlias = Generator[None, None, bytes]
"""A text that is being written: each step costs the loop little, and the text is what it returns."""


def entry_text(key: str, value: Any) -> str:
    """The text of one entry, its key included, as deep inside the file as the entries of its table are."""
    text = fastjson.pretty(value).decode().replace("\n", "\n\t\t")  # a newline inside a string is escaped
    return f"\n\t\t{quoted(key)}:{text}"


def table_text(fields: Mapping[str, Any], tables: Mapping[str, Iterable[str]]) -> TextSlices:
    """Write the whole file: some fields (at least one), and behind them tables of entries as `entry_text` writes them.

    An entry is asked for when it is written, so a table may change between two steps as far as its iterable copes.
    """
    pieces = [fastjson.pretty(dict(fields)).removesuffix(b"\n}")]
    for table, entries in tables.items():
        pieces.append(f",\n\t{quoted(table)}:{{".encode())
        is_empty = len(pieces)
        yield from _join(pieces, entries, ENTRIES_PER_STEP)
        pieces.append(b"}" if len(pieces) == is_empty else b"\n\t}")
    pieces.append(b"\n}")
    return b"".join(pieces)


def object_text(entries: Iterable[str], per_step: int = ENTRIES_PER_STEP) -> TextSlices:
    """Write an object without blanks from texts that are joined by commas."""
    pieces = [b"{"]
    yield from _join(pieces, entries, per_step)
    pieces.append(b"}")
    return b"".join(pieces)


def value_entry(key: str, value: Any) -> str:
    """Return the text of one entry of an object without blanks."""
    return f"{quoted(key)}:{fastjson.dumps(value).decode()}"


def object_entry(key: str, entries: Iterable[str]) -> Iterator[str]:
    """Yield the texts, to be joined by commas, of an entry that is an object of these entries itself."""
    held = f"{quoted(key)}:{{"
    separate = False
    for entry in entries:
        if separate:
            yield held
            held = ""
        held += entry
        separate = True
    yield held + "}"


class Entry(Protocol):
    """A topic or a group."""

    @property
    def name(self) -> str: ...
    def to_json(self) -> dict[str, Any]: ...


def packed_entries(entries: Iterable[Entry]) -> Generator[None, None, dict[str, msgspec.Raw]]:
    """Return the entries of a table in MessagePack by name, a slice of the table at each step."""
    packed: dict[str, msgspec.Raw] = {}
    for count, entry in enumerate(entries, 1):
        packed[entry.name] = msgspec.Raw(msgspec.msgpack.encode(entry.to_json()))
        if count % ENTRIES_PER_STEP == 0:
            yield
    return packed


def at_once(text: bytes) -> TextSlices:
    """Return a text that is too small to be written in slices."""
    yield from ()
    return text


def _join(pieces: list[bytes], entries: Iterable[str], per_step: int) -> Generator[None, None, None]:
    left, separator = iter(entries), ""
    while run := list(islice(left, per_step)):
        pieces.append((separator + ",".join(run)).encode())
        separator = ","
        if len(run) == per_step:
            yield


def quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()
