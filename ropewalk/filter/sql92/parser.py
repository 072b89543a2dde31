"""Parse expression text to a syntax tree, by recursive descent, with RocketMQ's rules about comparable types.

    or      := and { OR and }
    and     := equal { AND equal }
    equal   := order { ("=" | "<>") order | IS [NOT] NULL }
    order   := unary { (">" | ">=" | "<" | "<=") unary | [NOT] BETWEEN unary AND unary
                     | [NOT] IN "(" string { "," string } ")" | [NOT] (CONTAINS | STARTSWITH | ENDSWITH) string }
    unary   := "+" unary | "-" unary | NOT unary | primary
    primary := string | integer | decimal | TRUE | FALSE | NULL | name | "(" or ")"

NOT binds tighter than any comparison: `NOT s = 'x'` is `(NOT s) = 'x'`, as it always was in RocketMQ, and never true.

RocketMQ stops behind the longest beginning that is an expression and drops the rest unread, so that
`s LIKE 'h%'` means `s`. Here the rest is an error, unless `ignore_rest` asks for the old ways.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, TypeAlias, TypeVar

from ropewalk.filter.sql92.numbers import INT_MAX, LONG_MAX, compare
from ropewalk.filter.sql92.syntax import (
    DOUBLE,
    INT,
    LONG,
    All,
    AnyOf,
    Condition,
    Equal,
    In,
    Negate,
    Node,
    Not,
    Number,
    Order,
    Present,
    Property,
    Text,
    TextMatch,
    Truth,
)
from ropewalk.filter.sql92.tokens import Token, Tokens
from ropewalk.format.sliced_json import finish

DEPTH_MAX: Final = 50
"""Of parentheses, signs and NOTs around one value, and of the tree."""
NODES_MAX: Final = 1_000
"""Values and conditions in one expression; the strings of an IN count as one each hundred."""
PARTS_PER_STEP: Final = 50
"""Values, signs and strings of an IN that are read in one step."""

_T = TypeVar("_T")
Steps: TypeAlias = Generator[None, None, _T]
_ORDERS = (">", ">=", "<", "<=")
_TEXT_MATCHES = ("CONTAINS", "STARTSWITH", "ENDSWITH")
_NULL = Truth(None)


def parse(text: str, *, ignore_rest: bool = False) -> Condition:
    """Return the condition that an expression is. Raises `SqlSyntaxError` and nothing else."""
    return finish(parse_in_slices(text, ignore_rest=ignore_rest))


def parse_in_slices(text: str, *, ignore_rest: bool = False) -> Steps[Condition]:
    """Read an expression as `parse` does, some values and conditions at each step."""
    parser = _Parser(text)
    first = parser.tokens.current
    condition = parser.condition((yield from parser.either()), first)
    rest = parser.tokens.current
    if rest.kind != "end" and not ignore_rest:
        raise parser.tokens.error(
            rest.start, f"{rest.shown} where a comparison, AND, OR or the end is expected{_hint(rest)}"
        )
    return condition


def _hint(token: Token) -> str:
    if token.text.upper() == "LIKE":
        return "; for LIKE there are CONTAINS, STARTSWITH and ENDSWITH"
    if token.kind in ("+", "-"):
        return "; there is no arithmetic"
    if token.kind in ("integer", "decimal"):
        return "; a number has no leading zeros"
    return ""


class _Parser:
    """One pass over one expression, in steps: of a stranger's 32 KiB it takes tens of milliseconds."""

    def __init__(self, text: str) -> None:
        self.tokens = Tokens(text)
        self._until_yield = PARTS_PER_STEP
        self._nodes = 0
        self._nesting = 0

    # -- from the loosest to the tightest ------------------------------------------------------------

    def either(self) -> Steps[Node]:
        return (yield from self._chain("OR", AnyOf))

    def _both(self) -> Steps[Node]:
        return (yield from self._chain("AND", All))

    def _chain(self, word: str, node: type[All] | type[AnyOf]) -> Steps[Node]:
        """Read conditions that one word joins. A single one stays what it is, value or condition."""
        operand = self._equality if word == "AND" else self._both
        first_token = self.tokens.current
        first = yield from operand()
        if self.tokens.current.kind != word:
            return first
        operands: list[Node] = [self.condition(first, first_token)]
        while self.tokens.current.kind == word:
            self.tokens.advance()
            token = self.tokens.current
            operands.append(self.condition((yield from operand()), token))
        return self._new(node(tuple(operands)), first_token)

    def _equality(self) -> Steps[Node]:
        first = self.tokens.current
        left = yield from self._order()
        while True:
            token = self.tokens.current
            negated = token.kind == "<>"
            if token.kind in ("=", "<>"):
                self.tokens.advance()
                left = self._equal(token, left, (yield from self._order()))
            elif token.kind == "IS":
                self.tokens.advance()
                negated = self.tokens.current.kind == "NOT"
                if negated:
                    self.tokens.advance()
                self._expect("NULL")
                left = self._new(Equal(left, _NULL), first)
            else:
                return left
            if negated:
                left = self._new(Not(left), first)

    def _equal(self, token: Token, left: Node, right: Node) -> Node:
        for side in (left, right):
            if isinstance(side, Truth) and side.value is None:
                raise self.tokens.error(
                    token.start, "nothing can be compared with NULL; ask for IS NULL or IS NOT NULL"
                )
        if isinstance(left, Truth) and isinstance(right, (Number, Text)):
            raise self.tokens.error(token.start, "a truth value can be compared with no number and no string")
        return self._new(Equal(left, right), token)

    def _order(self) -> Steps[Node]:
        left = yield from self._unary()
        while True:
            token = self.tokens.current
            negated = token.kind == "NOT"
            word = self.tokens.following.kind if negated else token.kind
            if word in _ORDERS and not negated:
                self.tokens.advance()
                left = self._ordered(token, left, (yield from self._unary()))
            elif word == "BETWEEN":
                self._skip(negated)
                left = yield from self._between(token, left, negated)
            elif word == "IN":
                self._skip(negated)
                left = yield from self._in(token, left, negated)
            elif word in _TEXT_MATCHES:
                self._skip(negated)
                text = _unquoted(self._expect("string"))
                left = self._new(TextMatch(word, left, text, negated), token)
            elif negated:
                found = self.tokens.following
                raise self.tokens.error(
                    found.start,
                    f"{found.shown} where BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH is expected behind NOT",
                )
            else:
                return left

    def _ordered(self, token: Token, left: Node, right: Node) -> Node:
        for side in (left, right):
            if isinstance(side, (Text, Condition)):
                raise self.tokens.error(
                    token.start, f"{token.shown} compares numbers and properties, and nothing else"
                )
        operator = token.kind
        return self._new(Order(operator, left, right), token)

    def _between(self, token: Token, value: Node, negated: bool) -> Steps[Node]:
        low = yield from self._unary()
        self._expect("AND")
        high = yield from self._unary()
        if isinstance(low, Number) and isinstance(high, Number) and compare_numbers(high, low) < 0:
            raise self.tokens.error(token.start, "the first bound of BETWEEN is greater than the second")
        below, above = ("<", ">") if negated else (">=", "<=")
        bounds = (
            self._ordered(Token(below, token.text, token.start), value, low),
            self._ordered(Token(above, token.text, token.start), value, high),
        )
        return self._new(AnyOf(bounds) if negated else All(bounds), token)

    def _in(self, token: Token, left: Node, negated: bool) -> Steps[Node]:
        if not isinstance(left, Property):
            raise self.tokens.error(token.start, "IN wants a property on its left")
        self._expect("(")
        values = [_unquoted(self._expect("string"))]
        while self.tokens.current.kind == ",":
            self.tokens.advance()
            values.append(_unquoted(self._expect("string")))
            if len(values) % PARTS_PER_STEP == 0:
                yield
        self._expect(")")
        self._nodes += len(values) // 100
        return self._new(In(left.name, tuple(values), negated), token)

    def _unary(self) -> Steps[Node]:
        self._until_yield -= 1
        if not self._until_yield:
            self._until_yield = PARTS_PER_STEP
            yield
        token = self.tokens.current
        if token.kind not in ("+", "-", "NOT"):
            return (yield from self._primary())
        self._enter(token)
        self.tokens.advance()
        inner = self.tokens.current
        operand = yield from self._unary()
        self._nesting -= 1
        if token.kind == "+":
            return operand
        if token.kind == "-":
            return self._new(Negate(operand), token)
        return self._new(Not(self.condition(operand, inner)), token)

    def _primary(self) -> Steps[Node]:
        token = self.tokens.current
        match token.kind:
            case "(":
                self._enter(token)
                self.tokens.advance()
                inner = yield from self.either()
                self._expect(")")
                self._nesting -= 1
                return inner
            case "string":
                node: Node = Text(_unquoted(token))
            case "integer":
                node = self._integer(token)
            case "decimal":
                node = self._decimal(token)
            case "TRUE" | "FALSE":
                node = Truth(token.kind == "TRUE")
            case "NULL":
                node = _NULL
            case "name":
                node = Property(token.text)
            case _:
                raise self.tokens.error(
                    token.start, f"{token.shown} where a property, a literal, NOT or ( is expected"
                )
        self.tokens.advance()
        return self._new(node, token)

    # -- pieces --------------------------------------------------------------------------------------

    def condition(self, node: Node, token: Token) -> Condition:
        """Return the node as a condition. Raises `SqlSyntaxError` for a value that is none."""
        if isinstance(node, Condition):
            return node
        if isinstance(node, Property):
            return Present(node.name)
        raise self.tokens.error(
            token.start, "a value where a condition is expected: compare it with something"
        )

    def _integer(self, token: Token) -> Number:
        value = int(token.text.rstrip("lL")) if len(token.text) <= 20 else LONG_MAX + 1
        if value > LONG_MAX:
            raise self.tokens.error(token.start, f"{token.shown} has more than 64 bits")
        return Number(INT if value <= INT_MAX else LONG, value)

    def _decimal(self, token: Token) -> Number:
        value = float(token.text)
        if not 0.0 < value < float("inf"):
            raise self.tokens.error(
                token.start, f"{token.shown} is none of the doubles above zero, and no other is allowed here"
            )
        return Number(DOUBLE, value)

    def _expect(self, kind: str) -> Token:
        if self.tokens.current.kind != kind:
            token = self.tokens.current
            wanted = "a string in single quotes" if kind == "string" else kind
            raise self.tokens.error(token.start, f"{token.shown} where {wanted} is expected")
        return self.tokens.advance()

    def _skip(self, negated: bool) -> None:
        self.tokens.advance()
        if negated:
            self.tokens.advance()

    def _enter(self, token: Token) -> None:
        self._nesting += 1
        if self._nesting > DEPTH_MAX:
            raise self.tokens.error(
                token.start, f"an expression may be nested {DEPTH_MAX} deep, and no deeper"
            )

    def _new(self, node: Node, token: Token) -> Node:
        self._nodes += 1
        if self._nodes > NODES_MAX:
            raise self.tokens.error(token.start, f"an expression may have {NODES_MAX} parts, and no more")
        if node.depth > DEPTH_MAX:
            raise self.tokens.error(
                token.start, f"an expression may be nested {DEPTH_MAX} deep, and no deeper"
            )
        return node


def _unquoted(token: Token) -> str:
    return token.text[1:-1].replace("''", "'")


def compare_numbers(one: Number, other: Number) -> int:
    """Return the sign of a comparison of two literals: as doubles where one of them is a double."""
    if DOUBLE in (one.kind, other.kind):
        return compare(float(one.value), float(other.value))
    return (one.value > other.value) - (one.value < other.value)
