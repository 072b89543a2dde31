"""SQL92 filter expressions: `a > 3 AND b = 'x'` over the properties of a message.

    text -> tokens -> syntax tree -> closures -> True, or the message is not delivered

Read in this order: `tokens`, `syntax` (the tree, and the rules that a tree obeys), `parser`, `numbers` (how Java
reads numbers), `evaluate`. The language and its oddities are RocketMQ's, because clients were written against them;
docs/compat/filters.md has each of them in a row, with what is done here and why.

Expressions come from strangers. Their size, their depth and their number of terms are bounded, `SqlSyntaxError` is
the only thing that a bad one raises, and `SqlFilter.cost` tells what one evaluation costs at most.
"""

from ropewalk.filter.sql92.evaluate import SqlFilter, compile_filter, compile_in_slices, is_compiled
from ropewalk.filter.sql92.tokens import EXPRESSION_SIZE_MAX, SqlSyntaxError

__all__ = [
    "EXPRESSION_SIZE_MAX",
    "SqlFilter",
    "SqlSyntaxError",
    "compile_filter",
    "compile_in_slices",
    "is_compiled",
]
