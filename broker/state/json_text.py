"""The text of a config file that is mostly large tables, made from texts of their entries.

The tables are written on the loop, some of them every few seconds, and the general writer needs about 15 us for an
entry: a broker with 5000 topics would stand still for 70 ms. Entries rarely change, so each keeps its text, and
writing a table is joining what is there (0.1 us an entry). Who adds thousands at once writes their texts in slices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from ropewalk.format import fastjson

__all__ = ["entry_text", "quoted", "table_text"]


def entry_text(key: str, value: Any) -> str:
    """The text of one entry, its key included, as deep inside the file as the entries of its table are."""
    text = fastjson.pretty(value).decode().replace("\n", "\n\t\t")  # a newline inside a string is escaped
    return f"\n\t\t{quoted(key)}:{text}"


def table_text(fields: Mapping[str, Any], tables: Mapping[str, Iterable[str]]) -> bytes:
    """The whole file: some fields (at least one), and behind them tables of entries as `entry_text` writes them."""
    parts = [fastjson.pretty(dict(fields)).decode().removesuffix("\n}")]
    for table, entries in tables.items():
        body = ",".join(entries)
        parts.append(f"\n\t{quoted(table)}:{{{body}" + ("\n\t}" if body else "}"))
    return (",".join(parts) + "\n}").encode()


def quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()
