"""Syntax tree to closures, and closures over the property text of a message.

A closure takes the raw property text with a 0x02 in front, so that a property is one search, and returns True,
False or None (unknown); a value's closure returns bytes, a truth value, a `Number` or None. What is known while
compiling (two literals, a negated property) is decided then. Nothing of a record is decoded: names and literals are
UTF-8 here and there, and a comparison of bytes is one of texts.

`NotANumber` leaves every closure and ends the evaluation: the message is not delivered, whatever else the expression
says, exactly where RocketMQ's evaluator throws. So what stands left of an OR is decided first, and may save it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from sys import getsizeof
from typing import Any, Final

from ropewalk.filter.sql92 import syntax
from ropewalk.filter.sql92.numbers import NotANumber, compare, read_double, read_int, read_long
from ropewalk.filter.sql92.parser import compare_numbers, parse_in_slices
from ropewalk.filter.sql92.syntax import DOUBLE, INT, LONG, Negate, Node, Number, Property, Text, Truth
from ropewalk.filter.sql92.tokens import SqlSyntaxError
from ropewalk.format.properties import find_property
from ropewalk.format.sliced_json import finish
from ropewalk.lru import SizedCache

Value = bytes | bool | Number | None
Truth3 = bool | None
Evaluate = Callable[[bytes], Any]
"""Property text to a `Truth3`, or to a `Value` for a node that is no condition."""

_READERS: Final[dict[str, Callable[[bytes], float]]] = {INT: read_int, LONG: read_long, DOUBLE: read_double}
_COMPARISONS: Final = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
_MIRRORED: Final = {">": "<", ">=": "<=", "<": ">", "<=": ">="}
_SIGNS: Final = {">": (1,), ">=": (0, 1), "<": (-1,), "<=": (-1, 0)}
_NODE_SIZE: Final = 800
"""Bytes that a closure and what it refers to take, about."""
_VALUE_SIZE: Final = 100
"""Bytes that a string of an IN takes besides its own."""
_RFIND_MAX: Final = 32
"""Bytes of a name up to which a search from the end is cheap on every text; longer ones are searched from the front,
where a search takes time in proportion to the text whatever a stranger put into it."""


@dataclass(frozen=True, slots=True)
class SqlFilter:
    """A compiled expression."""

    expression: str
    cost: int
    """Searches through a property text that one evaluation makes at most."""
    size: int = field(compare=False)
    """Bytes of memory that it takes, about."""
    _evaluate: Evaluate = field(repr=False, compare=False)

    def matches(self, properties: bytes) -> bool:
        """Return whether a message with this property text is delivered. Never raises. HOT."""
        try:
            return self._evaluate(b"\2" + properties) is True
        except NotANumber:
            return False


def compile_filter(expression: str, *, ignore_rest: bool = False) -> SqlFilter:
    """Compile an expression; the same text gives the same object while it is remembered. Raises `SqlSyntaxError`.

    `ignore_rest`: take what RocketMQ takes, the longest beginning that is an expression.
    """
    return finish(compile_in_slices(expression, ignore_rest=ignore_rest))


def compile_in_slices(expression: str, *, ignore_rest: bool = False) -> Generator[None, None, SqlFilter]:
    """Compile an expression as `compile_filter` does, a part at each step; one that is remembered takes none."""
    compiled = _cache.get((expression, ignore_rest))
    if compiled is None:
        try:
            compiled = yield from _compile(expression, ignore_rest)
        except SqlSyntaxError as exc:
            # Errors are remembered too: a client that pulls with a bad expression does so again and again.
            compiled = exc.with_traceback(None)
        size = compiled.size if isinstance(compiled, SqlFilter) else _NODE_SIZE
        _cache.put((expression, ignore_rest), compiled, size + getsizeof(expression))
    if isinstance(compiled, SqlSyntaxError):
        raise SqlSyntaxError(*compiled.args)
    return compiled


def is_compiled(expression: str, *, ignore_rest: bool = False) -> bool:
    """Tell whether `compile_filter` remembers an expression, and takes no time for it."""
    return (expression, ignore_rest) in _cache


_cache: Final[SizedCache[tuple[str, bool], SqlFilter | SqlSyntaxError]] = SizedCache(
    count_max=1_000, size_max=32 << 20
)


def _compile(expression: str, ignore_rest: bool) -> Generator[None, None, SqlFilter]:
    tree = yield from parse_in_slices(expression, ignore_rest=ignore_rest)
    yield
    compiler = _Compiler()
    evaluate = compiler.condition(tree)
    return SqlFilter(expression, max(1, compiler.searches), compiler.size, evaluate)


class _Compiler:
    """One pass over one tree."""

    def __init__(self) -> None:
        self.searches = 0
        self.size = 0

    # -- conditions ----------------------------------------------------------------------------------

    def condition(self, node: Node) -> Evaluate:
        self.size += _NODE_SIZE
        match node:
            case syntax.Truth(value=value):
                return lambda text: value
            case syntax.Present(name=name):
                find = self._property(name)
                return lambda text: None if find(text) is None else False
            case syntax.Not(operand=operand):
                return _negated(self.condition(operand))
            case syntax.All(operands=operands):
                return _joined([self.condition(one) for one in operands], decisive=False)
            case syntax.AnyOf(operands=operands):
                return _joined([self.condition(one) for one in operands], decisive=True)
            case syntax.Equal(left=left, right=right):
                return self._equal(_folded(left), _folded(right))
            case syntax.Order(operator=sign, left=left, right=right):
                return self._order(sign, _folded(left), _folded(right))
            case syntax.In(name=name, values=values, negated=negated):
                wanted = frozenset(value.encode() for value in values)
                self.size += sum(_VALUE_SIZE + len(value) for value in wanted)
                return self._in(name, wanted, negated)
            case syntax.TextMatch():
                return self._text_match(node)
        raise AssertionError(f"no condition: {node}")

    def _equal(self, left: Node, right: Node) -> Evaluate:
        match left, right:
            case Property(name=name), Truth(value=None):
                find = self._property(name)
                return lambda text: find(text) is None
            case Property(name=name), Text(value=value):
                return self._equals_text(name, value.encode())
            case Property(name=name), Number(kind=kind, value=number):
                find, read = self._property(name), _READERS[kind]

                def equals_number(text: bytes) -> Truth3:
                    found = find(text)
                    return None if found is None else read(found) == number

                return equals_number
        one, other = self.value(left), self.value(right)
        return lambda text: _equal_values(one(text), other(text))

    def _equals_text(self, name: str, value: bytes) -> Evaluate:
        find = self._property(name)

        def equals_text(text: bytes) -> Truth3:
            found = find(text)
            return None if found is None else found == value

        return equals_text

    def _order(self, sign: str, left: Node, right: Node) -> Evaluate:
        match left, right:
            case Number(), Number():
                decided = compare_numbers(left, right) in _SIGNS[sign]
                return lambda text: decided
            case Number(), Property():
                return self._order_of_number(right.name, _MIRRORED[sign], left)
            case Property(), Number():
                return self._order_of_number(left.name, sign, right)
            case Property(), Property():
                return self._order_of_properties(left.name, sign, right.name)
        # What is left is null on one side at least: a negated text or condition. It may still fail on the way there.
        one, other = self.value(left), self.value(right)

        def unknown(text: bytes) -> None:
            if one(text) is not None:
                other(text)

        return unknown

    def _order_of_number(self, name: str, sign: str, number: Number) -> Evaluate:
        find, read, holds, bound = (
            self._property(name),
            _READERS[number.kind],
            _COMPARISONS[sign],
            number.value,
        )
        is_above = sign in (">", ">=")

        def order(text: bytes) -> Truth3:
            found = find(text)
            return None if found is None else holds(read(found), bound)

        def order_of_double(text: bytes) -> Truth3:
            found = find(text)
            if found is None:
                return None
            value = read_double(found)
            return holds(value, bound) if value == value else is_above  # NaN is above everything

        return order_of_double if number.kind == DOUBLE else order

    def _order_of_properties(self, left: str, sign: str, right: str) -> Evaluate:
        one, other, wanted = self._property(left), self._property(right), _SIGNS[sign]

        def order(text: bytes) -> Truth3:
            first, second = one(text), other(text)
            if first is None or second is None:
                return None
            return compare(read_double(first), read_double(second)) in wanted

        return order

    def _in(self, name: str, values: frozenset[bytes], negated: bool) -> Evaluate:
        find = self._property(name)

        def is_in(text: bytes) -> Truth3:
            found = find(text)
            return None if found is None else (found in values) is not negated

        return is_in

    def _text_match(self, node: syntax.TextMatch) -> Evaluate:
        wanted, negated = node.text.encode(), node.negated
        if not wanted:
            return lambda text: False
        value = self.value(_folded(node.operand))
        holds = _TEXT_MATCHES[node.operator]
        self.searches += 1  # of the value, which may be as long as the text

        def match_text(text: bytes) -> Truth3:
            found = value(text)
            return isinstance(found, bytes) and holds(found, wanted) is not negated

        return match_text

    # -- values --------------------------------------------------------------------------------------

    def value(self, node: Node) -> Evaluate:
        self.size += _NODE_SIZE
        match node:
            case Property(name=name):
                return self._property(name)
            case Text(value=text_value):
                constant: Value = text_value.encode()
            case Number():
                constant = node
            case Truth(value=truth):
                constant = truth
            case Negate(operand=operand):
                inner = self.value(_folded(operand))

                def null(text: bytes) -> None:
                    inner(text)  # for what may fail in it

                return null
            case _:
                return self.condition(node)
        return lambda text: constant

    def _property(self, name: str) -> Callable[[bytes], bytes | None]:
        """Return how a property is found: the last of its name counts, and an empty one is none."""
        key = name.encode()
        mark = b"\2" + key + b"\1"
        size = len(mark)
        self.searches += 1

        def find_last(text: bytes) -> bytes | None:
            at = text.rfind(mark)
            if at < 0:
                return None
            at += size
            end = text.find(b"\2", at)
            value = text[at:] if end < 0 else text[at:end]
            return value or find_property(text, key)

        def find_first(text: bytes) -> bytes | None:
            value, at = None, text.find(mark)
            while at >= 0:
                end = text.find(b"\2", at + size)
                value = (text[at + size :] if end < 0 else text[at + size : end]) or value
                at = text.find(mark, at + size)
            return value

        return find_last if size <= _RFIND_MAX else find_first


def _folded(node: Node) -> Node:
    """Return a negated literal or property as what it always is: another number, or null."""
    if not isinstance(node, Negate):
        return node
    match _folded(node.operand):
        case Number(kind=kind, value=value):
            return Number(kind, -value)
        case Text() | Property() | Truth():
            return Truth(None)
        case inner:
            return Negate(inner)


def _negated(evaluate: Evaluate) -> Evaluate:
    def negate(text: bytes) -> Truth3:
        value = evaluate(text)
        return None if value is None else not value

    return negate


def _joined(operands: list[Evaluate], *, decisive: bool) -> Evaluate:
    """Return AND (where False decides) or OR (where True does) of conditions."""
    if len(operands) == 2:
        one, other = operands

        def join_two(text: bytes) -> Truth3:
            first: Truth3 = one(text)
            if first is decisive:
                return decisive
            second: Truth3 = other(text)
            if second is decisive:
                return decisive
            return None if first is None or second is None else not decisive

        return join_two

    def join(text: bytes) -> Truth3:
        result: Truth3 = not decisive
        for operand in operands:
            value: Truth3 = operand(text)
            if value is decisive:
                return decisive
            if value is None:
                result = None
        return result

    return join


def _equal_values(left: Value, right: Value) -> Truth3:
    """Compare what is known only now. Null is equal to null; null on the left alone is unknown, on the right not equal.

    The branches are RocketMQ's, the odd ones too: a truth value is never equal to a number, and cannot be compared
    with a text that stands on its right.
    """
    if left is None:
        return True if right is None else None
    if right is None:
        return False
    if isinstance(left, Number):
        if isinstance(right, Number):
            return compare_numbers(left, right) == 0
        return isinstance(right, bytes) and _READERS[left.kind](right) == left.value
    if isinstance(left, bool):
        if isinstance(right, bytes):
            raise NotANumber
        return left is right
    if isinstance(right, Number):
        return _READERS[right.kind](left) == right.value
    if isinstance(right, bool):
        return (left.lower() == b"true") is right
    return left == right


_TEXT_MATCHES: Final[dict[str, Callable[[bytes, bytes], bool]]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": bytes.startswith,
    "ENDSWITH": bytes.endswith,
}
