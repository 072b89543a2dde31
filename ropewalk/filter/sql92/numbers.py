"""Numbers as Java reads them out of a property's bytes.

    32 and 64 bits    a sign or none, digits of any script, nothing else, and no overflow
    double            blanks around it do not count; decimal or hexadecimal, `NaN`, `Infinity`, an `f` or `d` behind it

Python's own `int` and `float` are more generous (underscores, blanks, `inf`), so they are asked only about text that
Java takes too. The order of doubles is Java's: NaN is above everything and equal to itself, -0.0 below 0.0.
"""

from __future__ import annotations

import math
import re

INT_MIN, INT_MAX = -(2**31), 2**31 - 1
LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1

_BLANKS = bytes(range(0x21))
_WHOLE = re.compile(rb"([+-]?)0*([0-9]*)")
_DECIMAL = re.compile(rb"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?")
_HEX = re.compile(rb"([+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?")
_NAMED = re.compile(rb"([+-]?)(NaN|Infinity)")
_DIGITS_MAX = 19  # of the largest 64-bit number


class NotANumber(Exception):
    """A property's text that is no number of the wanted width: it ends the evaluation, as it does in RocketMQ."""


def read_int(text: bytes) -> int:
    """Return the 32-bit number that a text is. Raises `NotANumber`. HOT."""
    if text.isdigit() and len(text) < 10:
        return int(text)
    return _read_whole(text, INT_MIN, INT_MAX)


def read_long(text: bytes) -> int:
    """Return the 64-bit number that a text is. Raises `NotANumber`. HOT."""
    if text.isdigit() and len(text) < 19:
        return int(text)
    return _read_whole(text, LONG_MIN, LONG_MAX)


def read_double(text: bytes) -> float:
    """Return the double that a text is. Raises `NotANumber`. HOT."""
    if text.isdigit() and len(text) < 16:
        return float(text)
    text = text.strip(_BLANKS)
    if match := _DECIMAL.fullmatch(text):
        return float(match[1])
    if match := _HEX.fullmatch(text):
        try:
            return float.fromhex(match[1].decode())
        except OverflowError:
            return -math.inf if text[:1] == b"-" else math.inf
    if match := _NAMED.fullmatch(text):
        value = math.nan if match[2] == b"NaN" else math.inf
        return -value if match[1] == b"-" else value
    raise NotANumber


def compare(one: float, other: float) -> int:
    """Return the sign of Java's `Double.compare`."""
    if one < other:
        return -1
    if one > other:
        return 1
    if one == other and one != 0.0:
        return 0
    return _rank(one) - _rank(other)


def _rank(value: float) -> int:
    """Where equal and unordered doubles stand: NaN last, and -0.0 before 0.0."""
    return 2 if value != value else 1 if math.copysign(1.0, value) > 0 else 0


def _read_whole(text: bytes, low: int, high: int) -> int:
    if not text.isascii():
        text = _ascii_digits(text)
    match = _WHOLE.fullmatch(text)
    if match is None or not (text[-1:].isdigit()) or len(match[2]) > _DIGITS_MAX:
        raise NotANumber
    value = int(match[2] or b"0")
    if match[1] == b"-":
        value = -value
    if not low <= value <= high:
        raise NotANumber
    return value


def _ascii_digits(text: bytes) -> bytes:
    """Return the text with digits of other scripts replaced; Java takes those of the basic plane."""
    try:
        digits = text.decode()
    except UnicodeDecodeError:
        raise NotANumber from None
    out = []
    for char in digits:
        if char.isdecimal() and char <= "\uffff":
            out.append(str(int(char)))
        elif char.isascii():
            out.append(char)
        else:
            raise NotANumber
    return "".join(out).encode()
