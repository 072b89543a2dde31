"""A second evaluator of syntax trees, slow and plain, written from the description of RocketMQ's.

It walks the tree for each message over a dictionary of texts, converts as Java's classes do, and raises `Aborted`
where Java throws. `evaluate` (closures over bytes) is compared with it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from ropewalk.filter.sql92 import syntax
from ropewalk.filter.sql92.syntax import Node


class Aborted(Exception):
    """Java would have thrown."""


@dataclass(frozen=True)
class Num:
    """An Integer, a Long or a Double, by its kind."""

    kind: str
    value: float


Value = str | bool | Num | None


def matches(tree: Node, properties: Mapping[str, str]) -> bool:
    try:
        return walk(tree, properties) is True
    except Aborted:
        return False


def walk(node: Node, properties: Mapping[str, str]) -> Value:
    match node:
        case syntax.Number(kind=kind, value=number):
            return Num(kind, number)
        case syntax.Text(value=text):
            return text
        case syntax.Truth(value=truth):
            return truth
        case syntax.Property(name=name):
            return properties.get(name)
        case syntax.Present(name=name):
            return False if name in properties else None
        case syntax.Negate(operand=operand):
            value = walk(operand, properties)
            return Num(value.kind, -value.value) if isinstance(value, Num) else None
        case syntax.Not(operand=operand):
            value = walk(operand, properties)
            return None if value is None else not value
        case syntax.All(operands=operands):
            return _chain(operands, properties, decisive=False)
        case syntax.AnyOf(operands=operands):
            return _chain(operands, properties, decisive=True)
        case syntax.Equal(left=left, right=right):
            one, other = walk(left, properties), walk(right, properties)
            if one is None and other is None:
                return True
            if one is None:
                return None
            return False if other is None else _compared(one, other) == 0
        case syntax.Order(operator=operator, left=left, right=right):
            one = walk(left, properties)
            other = None if one is None else walk(right, properties)
            if one is None or other is None:
                return None
            if isinstance(one, str) and isinstance(other, str):
                one, other = Num(syntax.DOUBLE, _double(one)), Num(syntax.DOUBLE, _double(other))
            sign = _compared(one, other)
            return {">": sign > 0, ">=": sign >= 0, "<": sign < 0, "<=": sign <= 0}[operator]
        case syntax.In(name=name, values=values, negated=negated):
            found = properties.get(name)
            return None if found is None else (found in values) != negated
        case syntax.TextMatch(operator=operator, operand=operand, text=wanted, negated=negated):
            if not wanted:
                return False
            value = walk(operand, properties)
            if not isinstance(value, str):
                return False
            held = {
                "CONTAINS": wanted in value,
                "STARTSWITH": value.startswith(wanted),
                "ENDSWITH": value.endswith(wanted),
            }
            return held[operator] != negated
    raise AssertionError(node)


def _chain(operands: tuple[Node, ...], properties: Mapping[str, str], *, decisive: bool) -> bool | None:
    first = walk(operands[0], properties)
    for operand in operands[1:]:
        if first is decisive:
            return decisive
        second = walk(operand, properties)
        first = decisive if second is decisive else None if None in (first, second) else not decisive
    assert first is None or isinstance(first, bool)
    return first


def _compared(one: Value, other: Value) -> int:
    """`compareTo` behind Java's conversions; -1 for what it gives up on."""
    if isinstance(one, str) and isinstance(other, bool):
        one = one.lower() == "true"
    elif isinstance(one, bool) and isinstance(other, str):
        raise Aborted("a Boolean is no String")
    elif isinstance(one, str) and isinstance(other, Num):
        one = Num(other.kind, _number(one, other.kind))
    elif isinstance(one, Num) and isinstance(other, str):
        other = Num(one.kind, _number(other, one.kind))
    if isinstance(one, str) and isinstance(other, str):
        return (one > other) - (one < other)
    if isinstance(one, bool) and isinstance(other, bool):
        return one - other
    if isinstance(one, Num) and isinstance(other, Num):
        if syntax.DOUBLE in (one.kind, other.kind):
            return _total_order(float(one.value), float(other.value))
        return (one.value > other.value) - (one.value < other.value)
    return -1


def _total_order(one: float, other: float) -> int:
    def key(value: float) -> tuple[bool, float, float]:
        return (True, 0, 0) if math.isnan(value) else (False, value, math.copysign(1, value))

    return (key(one) > key(other)) - (key(one) < key(other))


def _number(text: str, kind: str) -> float:
    if kind == syntax.DOUBLE:
        return _double(text)
    if not re.fullmatch(r"[+-]?[0-9]+", text):
        raise Aborted(text)
    bits = 31 if kind == syntax.INT else 63
    if not -(2**bits) <= int(text) < 2**bits:
        raise Aborted(text)
    return int(text)


def _double(text: str) -> float:
    text = text.strip("".join(map(chr, range(33))))
    if re.fullmatch(r"[+-]?(NaN|Infinity)", text):
        return float(text)
    if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[fFdD]?", text):
        raise Aborted(text)
    return float(text.rstrip("fFdD"))
