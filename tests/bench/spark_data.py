"""A gigabyte of log for the benchmarks of `ropewalk/spark`, in seconds: records of one size, made by numpy.

Every record is the same template with its own numbers patched in: queue, offsets, times, checksum, three properties and
the number in its body. Bodies read like JSON and are drawn from a few thousand, so that Parquet's codecs have something
to do and its dictionaries have nothing to gain: no two bodies are equal.

    one record, 1 KiB body: 91 bytes fixed | body | topic of 7 | properties of 103 bytes
"""

from __future__ import annotations

import random
import zlib
from pathlib import Path
from typing import Any, Final

import numpy as np

from ropewalk.format.properties import encode_properties
from ropewalk.format.record import encode_blank, encode_host, encode_record

SEGMENT_SIZE: Final = 256 << 20
TOPICS: Final = 4
QUEUES: Final = 8
START_MS: Final = 1_700_000_000_000
BROKER: Final = "broker-a"
_POOL: Final = 2048
_CHUNK: Final = 16_384
_BODY_AT: Final = 88
_NUMBER: Final = "0000000000"


def make_store(root: Path, size: int, body_size: int = 1024) -> int:
    """Write a commit log of `size` bytes. Returns how many records it has."""
    template, places = _template(body_size)
    pool = _bodies(body_size)
    folder = root / "commitlog"
    folder.mkdir(parents=True)
    width = len(template)
    count = 0
    for base in range(0, size, SEGMENT_SIZE):
        room = min(SEGMENT_SIZE, size - base)
        fitting = (room - 8) // width
        with (folder / f"{base:020d}").open("wb") as file:
            for first in range(0, fitting, _CHUNK):
                number = count + np.arange(first, min(first + _CHUNK, fitting), dtype=np.int64)
                offsets = base + width * (number - count)
                file.write(_records(template, places, pool, number, offsets).data)
            file.write(encode_blank(room - fitting * width))
            file.truncate(room)
        count += fitting
    return count


def _template(body_size: int) -> tuple[bytes, dict[str, int]]:
    """A record whose own numbers are still to come, and where they stand."""
    properties = encode_properties(
        {
            "UNIQ_KEY": "7F00000100002A9F18B4AA" + _NUMBER,
            "KEYS": "order-" + _NUMBER,
            "TAGS": "tag0",
            "CLUSTER": "DefaultCluster",
        }
    )
    body = _body(random.Random(0), body_size)
    record = encode_record(
        b"orders0", 0, 0, 0, 0, 0, START_MS, encode_host("10.0.0.1", 50001), START_MS,
        encode_host("10.0.0.2", 10911), 0, 0, body, properties,
    )  # fmt: skip
    end = _BODY_AT + body_size
    places = {
        "body": _BODY_AT,
        "number in body": _BODY_AT + body.index(_NUMBER.encode()),
        "topic": end + 1 + len("orders"),
        "unique": record.index(_NUMBER.encode(), end),
        "key": record.index(b"order-" + _NUMBER.encode(), end) + len("order-"),
        "tag": record.index(b"tag0", end) + len("tag"),
    }
    return record, places


def _body(chance: random.Random, size: int) -> bytes:
    """Text as services write it: names that repeat, values that do not."""
    text = f'{{"order":"{_NUMBER}","lines":['
    while len(text) < size:
        text += (
            f'{{"sku":"{chance.randrange(10**8):08d}","count":{chance.randrange(1, 20)},"price":'
            f'{chance.randrange(10**5) / 100},"note":"{chance.choice(("gift", "fragile", "express", ""))}"}},'
        )
    return text[: size - 2].encode() + b"]}"


def _bodies(size: int) -> Any:
    chance = random.Random(7)
    return np.frombuffer(b"".join(_body(chance, size) for _ in range(_POOL)), np.uint8).reshape(_POOL, size)


def _records(template: bytes, places: dict[str, int], pool: Any, number: Any, offsets: Any) -> Any:
    count, width, body_size = len(number), len(template), pool.shape[1]
    rows = np.empty((count, width), np.uint8)
    rows[:] = np.frombuffer(template, np.uint8)

    def put(at: int, values: Any, kind: str) -> None:
        octets = values.astype(kind)[:, None].view(np.uint8)
        rows[:, at : at + octets.shape[1]] = octets

    def put_digits(at: int, digits: Any) -> None:
        rows[:, at : at + digits.shape[1]] = digits

    powers = 10 ** np.arange(len(_NUMBER) - 1, -1, -1, dtype=np.int64)
    digits = (number[:, None] // powers % 10 + ord("0")).astype(np.uint8)
    # One queue after the other: a record's topic and queue follow from its number, and its queue offset does too.
    put(12, number // TOPICS % QUEUES, ">i4")
    put(20, number // (TOPICS * QUEUES), ">i8")
    put(28, offsets, ">i8")
    put(40, START_MS + number, ">i8")
    put(56, START_MS + number, ">i8")
    rows[:, places["body"] : places["body"] + body_size] = pool[number * 1009 % _POOL]
    put_digits(places["number in body"], digits)
    rows[:, places["topic"]] = number % TOPICS + ord("0")
    put_digits(places["unique"], digits)
    put_digits(places["key"], digits)
    rows[:, places["tag"]] = number % 7 + ord("0")
    view = memoryview(rows.reshape(-1).data)
    starts = range(places["body"], count * width, width)
    sums = np.fromiter((zlib.crc32(view[at : at + body_size]) for at in starts), np.int64, count)
    put(8, sums & 0x7FFFFFFF, ">i4")
    return rows
