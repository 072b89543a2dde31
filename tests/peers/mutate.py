"""Odd answers of peers: seeded changes of valid ones, by structure and by bytes.

json, msgpack   a value somewhere in the document becomes an odd one, a key goes, comes twice, or is another's
bytes           bits flip, the end is missing, a number becomes an extreme one, parts are repeated
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from typing import Any

import msgspec

__all__ = ["ODD", "mutated"]

ODD: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 65_535, 1 << 31, 1 << 53, (1 << 62), (1 << 63) - 1, 1 << 63, (1 << 64) - 1,
    -(1 << 31), -(1 << 63), 0.5, -0.0, 1e300, float("nan"), float("inf"), "", "0", "-1", "x", "\u00b2", "\ud800",
    "9" * 5_000, "9" * 19, "a\0b", "x" * 300, ":", "host:0", "host:99999", "[::1", "a.b:-1", "NaN", "true",
    [], {}, [[]], [None], {"": ""}, {"0": None}, [1] * 2_000, {str(number): number for number in range(300)},
)  # fmt: skip
_EXTREMES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


def mutated(rng: random.Random, form: str, sample: bytes) -> bytes:
    """Return an odd neighbour of a valid answer; one in twenty is nothing but chance."""
    if rng.random() < 0.05:
        return rng.randbytes(rng.choice((0, 1, 3, 4, 20, 64, 200)))
    if form == "json" and rng.random() < 0.8:
        return _restructured(rng, sample, json.loads, _json)
    if form == "msgpack" and rng.random() < 0.8:
        return _restructured(rng, sample, msgspec.msgpack.decode, _msgpack)
    return _scrambled(rng, sample)


def _restructured(
    rng: random.Random, sample: bytes, decode: Callable[[bytes], Any], encode: Callable[[Any], bytes]
) -> bytes:
    document = decode(sample)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        document = _changed(rng, document)
    data = encode(document)
    return data.replace(b"{", b'{"a":1,"a":[],', 1) if rng.random() < 0.03 and encode is _json else data


def _changed(rng: random.Random, value: Any) -> Any:
    """Return the value with one place of it changed."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        chance = rng.random()
        if chance < 0.1:
            return {name: each for name, each in value.items() if name != key}
        if chance < 0.2:
            return {**value, str(rng.choice(ODD))[:40]: value[key]}
        return {**value, key: _changed(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        chance = rng.random()
        if chance < 0.1:
            return value[:at] + value[at + 1 :]
        if chance < 0.2:
            return value * rng.choice((2, 50))
        return [*value[:at], _changed(rng, value[at]), *value[at + 1 :]]
    if rng.random() < 0.03:
        deep: Any = 1
        for _ in range(rng.choice((20, 600))):
            deep = [deep] if rng.random() < 0.5 else {"a": deep}
        return deep
    return rng.choice(ODD)


def _json(document: Any) -> bytes:
    return json.dumps(document).encode().replace(b"Infinity", b"1e999")


def _msgpack(document: Any) -> bytes:
    try:
        return msgspec.msgpack.encode(document)
    except (OverflowError, UnicodeEncodeError, RecursionError):
        return b"\xc1"


def _scrambled(rng: random.Random, sample: bytes) -> bytes:
    data = bytearray(sample)
    for _ in range(rng.choice((1, 1, 2, 8))):
        if not data:
            break
        at = rng.randrange(len(data))
        match rng.randrange(6):
            case 0:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                del data[at:]
            case 2:
                data[at : at + 4] = struct.pack(">I", rng.choice(_EXTREMES))
            case 3:
                data[at : at + 8] = struct.pack(">Q", rng.choice(_EXTREMES) << rng.choice((0, 31, 32)))
            case 4:
                data[at:at] = data[at : at + rng.choice((1, 8, 64))]
            case 5:
                data[at : at + 1] = rng.randbytes(2)
    return bytes(data)
