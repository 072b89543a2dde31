"""Bit positions of a group's filter, as RocketMQ computes and keeps them in `consumerFilter.json`.

Two settings give the geometry: the expected share of false positives in percent, and the number of consumers that use
filters. Positions are double hashes over the first half of MurmurHash3 (128 bits, x64, seed 0) of `group#topic`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_MASK = (1 << 64) - 1
_C1, _C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F


@dataclass(frozen=True, slots=True)
class BloomGeometry:
    """The size of a Bloom filter in bits, and the number of bits that a group sets in it."""

    bits: int = 112
    hashes: int = 3

    @classmethod
    def of(cls, error_percent: int, consumers: int) -> BloomGeometry:
        """Return the geometry for a share of false positives and a number of consumers."""
        rate = error_percent / 100
        hashes = math.ceil(math.log(rate) / math.log(0.5))
        bits = math.ceil(consumers * (math.log(1 / rate) / math.log(2)) * (1 / math.log(2)))
        return cls(8 * math.ceil(bits / 8), hashes)

    def positions(self, text: str) -> list[int]:
        """Return the bits of a text."""
        first = murmur3_x64(text.encode())
        low, high = _signed(first), _signed(first >> 32)
        found = []
        for number in range(1, self.hashes + 1):
            combined = _signed(low + number * high)
            found.append((~combined if combined < 0 else combined) % self.bits)
        return found


def murmur3_x64(data: bytes) -> int:
    """Return the first 64 bits of the 128-bit MurmurHash3 with seed 0."""
    one = other = 0
    tail = len(data) - len(data) % 16
    for at in range(0, tail, 16):
        one = _rotate(one ^ _mix_one(int.from_bytes(data[at : at + 8], "little")), 27)
        one = ((one + other) * 5 + 0x52DCE729) & _MASK
        other = _rotate(other ^ _mix_other(int.from_bytes(data[at + 8 : at + 16], "little")), 31)
        other = ((other + one) * 5 + 0x38495AB5) & _MASK
    other ^= _mix_other(int.from_bytes(data[tail + 8 :], "little"))
    one ^= _mix_one(int.from_bytes(data[tail : tail + 8], "little"))
    one, other = one ^ len(data), other ^ len(data)
    one = (one + other) & _MASK
    other = (other + one) & _MASK
    return (_finish(one) + _finish(other)) & _MASK


def _mix_one(block: int) -> int:
    return (_rotate((block * _C1) & _MASK, 31) * _C2) & _MASK


def _mix_other(block: int) -> int:
    return (_rotate((block * _C2) & _MASK, 33) * _C1) & _MASK


def _rotate(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (64 - bits))) & _MASK


def _finish(value: int) -> int:
    value = ((value ^ (value >> 33)) * 0xFF51AFD7ED558CCD) & _MASK
    value = ((value ^ (value >> 33)) * 0xC4CEB9FE1A85EC53) & _MASK
    return value ^ (value >> 33)


def _signed(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value
