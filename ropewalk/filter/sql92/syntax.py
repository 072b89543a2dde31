"""The syntax tree of a filter expression.

Two kinds of node: values (literals, properties, a negated value) and conditions, which are true, false or unknown.
`TRUE`, `FALSE` and `NULL` are both. What may stand where is `parser`'s; what a node means is `evaluate`'s.

Every node knows its `depth`: chains such as `a = 1 = TRUE = TRUE` are deep without any parenthesis, and whoever walks
a tree does so by recursion.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

INT: Final = "int"
LONG: Final = "long"
DOUBLE: Final = "double"
"""The width of a number: text that is compared with it is read as a number of this width."""


@dataclass(frozen=True, slots=True)
class Node:
    """A part of an expression."""

    depth: int = field(default=1, init=False, compare=False, repr=False)

    def _deepen(self, *children: Node) -> None:
        object.__setattr__(self, "depth", 1 + max(child.depth for child in children))


@dataclass(frozen=True, slots=True)
class Number(Node):
    """A number: 32 bits where it fits, else 64, or a double."""

    kind: str
    value: int | float


@dataclass(frozen=True, slots=True)
class Text(Node):
    """A string literal."""

    value: str


@dataclass(frozen=True, slots=True)
class Property(Node):
    """The text of a property, or null."""

    name: str


@dataclass(frozen=True, slots=True)
class Negate(Node):
    """`-value`: the negative of a number, and null for everything else, a property's text included."""

    operand: Node

    def __post_init__(self) -> None:
        self._deepen(self.operand)


@dataclass(frozen=True, slots=True)
class Condition(Node):
    """A node that is true, false or unknown."""


@dataclass(frozen=True, slots=True)
class Truth(Condition):
    """`TRUE`, `FALSE`, or `NULL` with the value None."""

    value: bool | None


@dataclass(frozen=True, slots=True)
class Present(Condition):
    """A bare property as a condition: false where the message has it, and null where it has not."""

    name: str


@dataclass(frozen=True, slots=True)
class Not(Condition):
    """`NOT condition`."""

    operand: Node

    def __post_init__(self) -> None:
        self._deepen(self.operand)


@dataclass(frozen=True, slots=True)
class All(Condition):
    """`a AND b AND ...`, decided from left to right."""

    operands: tuple[Node, ...]

    def __post_init__(self) -> None:
        self._deepen(*self.operands)


@dataclass(frozen=True, slots=True)
class AnyOf(Condition):
    """`a OR b OR ...`, decided from left to right."""

    operands: tuple[Node, ...]

    def __post_init__(self) -> None:
        self._deepen(*self.operands)


@dataclass(frozen=True, slots=True)
class Equal(Condition):
    """`left = right`; also `value IS NULL`, where the right side is null."""

    left: Node
    right: Node

    def __post_init__(self) -> None:
        self._deepen(self.left, self.right)


@dataclass(frozen=True, slots=True)
class Order(Condition):
    """`left > right` and its kin."""

    operator: str
    left: Node
    right: Node

    def __post_init__(self) -> None:
        self._deepen(self.left, self.right)


@dataclass(frozen=True, slots=True)
class In(Condition):
    """`property [NOT] IN ('x', 'y')`."""

    name: str
    values: tuple[str, ...]
    negated: bool


@dataclass(frozen=True, slots=True)
class TextMatch(Condition):
    """`value [NOT] CONTAINS | STARTSWITH | ENDSWITH 'text'`."""

    operator: str
    operand: Node
    text: str
    negated: bool

    def __post_init__(self) -> None:
        self._deepen(self.operand)
