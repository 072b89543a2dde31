"""Derive columns of scanned records: topics, tag codes, index hashes. Each distinct text is processed once.

Texts are taken out of the bytes by `ranges_of`, and cut into properties by `cut_pairs`, as a read of a store does it:
10 GB/s where a Python loop makes half of one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from ropewalk.errors import RopewalkError
from ropewalk.format.names import SCHEDULE_TOPIC
from ropewalk.format.properties import find_property, tags_code
from ropewalk.spark.jobs.records.scan import Bools, Ints, Records
from ropewalk.spark.rows.headers import Buffer
from ropewalk.spark.rows.property_columns import cut_pairs, ranges_of

DEFAULT_DELAYS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
"""`messageDelayLevel` as brokers have it unless told otherwise."""

_TRANSACTION_MASK: Final = 0xC
_PREPARED: Final = 0x4
_ROLLBACK: Final = 0xC
_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_NUMBER: Final = re.compile(rb"[+-]?[0-9]{1,10}")


class BadDelayLevels(RopewalkError):
    """A `messageDelayLevel` that cannot be read."""


def parse_delays(text: str) -> tuple[int, ...]:
    """Parse the milliseconds of each level of a `messageDelayLevel`."""
    words = text.split()
    if not words or not all(word[-1:] in _UNITS_MS and word[:-1].isdigit() for word in words):
        raise BadDelayLevels(
            f"{text!r} is no list of delays: each is a number and s, m, h or d, as in 1s 5s 10m 2h"
        )
    return tuple(int(word[:-1]) * _UNITS_MS[word[-1]] for word in words)


def slices(data: Buffer, at: Ints, size: Ints) -> pa.Array:
    """Return the texts at ascending, disjoint positions as an Arrow array of binaries."""
    return ranges_of(pa.py_buffer(data), at, at + size)


@dataclass(slots=True)
class Names:
    """A dictionary-encoded text column: a number for each record, and the text of each number."""

    ids: Ints
    values: list[str]


def topics_of(data: Buffer, records: Records) -> Names:
    """Return the topic of each record."""
    encoded = slices(data, records.topic_at, records.topic_size).dictionary_encode()
    values = [value.decode("utf-8", "replace") for value in encoded.dictionary.to_pylist()]
    return Names(np.asarray(encoded.indices).astype(np.int64), values)


def is_queued(records: Records) -> Bools:
    """Return a mask of the records that have an entry in a consume queue."""
    kind = records.sys_flag & _TRANSACTION_MASK
    queued: Bools = (kind != _PREPARED) & (kind != _ROLLBACK)
    return queued


def is_indexed(records: Records) -> Bools:
    """Return a mask of the records that stand in the key index."""
    indexed: Bools = records.sys_flag & _TRANSACTION_MASK != _ROLLBACK
    return indexed


def property_texts(data: Buffer, records: Records) -> pa.Array:
    """Return the property text of each record, raw."""
    return slices(data, records.properties_at, records.properties_size)


def tag_codes(data: Buffer, records: Records, topics: Names, delays_ms: tuple[int, ...]) -> Ints:
    """Return the third field of each record's queue entry."""
    texts = property_texts(data, records)
    tags = cut_pairs(texts).column(b"TAGS").dictionary_encode()
    table = [tags_code(value.decode("utf-8", "replace")) for value in tags.dictionary.to_pylist()]
    ids = np.asarray(tags.indices.fill_null(len(table))).astype(np.int64)
    codes = np.array([*table, 0], np.int64)[ids]
    if SCHEDULE_TOPIC in topics.values:
        late = np.flatnonzero(topics.ids == topics.values.index(SCHEDULE_TOPIC))
        for index in late.tolist():
            delay = _delay_ms(find_property(texts[index].as_py(), b"DELAY"), delays_ms)
            if delay:
                codes[index] = records.stored[index] + delay
    return codes


def _delay_ms(text: bytes | None, delays_ms: tuple[int, ...]) -> int:
    if not text or not _NUMBER.fullmatch(text):
        return 0
    level = min(int(text), len(delays_ms))
    return delays_ms[level - 1] if level > 0 else 0
