"""Find expressions of a plan that give other rows each time: `rand()`, `uuid()`, functions said to be nondeterministic.

The time of a query (`current_timestamp()`, `now()`, `current_date()`) is one of them in a batch plan, as is a frame in
`foreachBatch`: a write that is run again has another time. Spark fixes it for each micro-batch of a streaming plan.

An exactly-once sink repeats a batch and relies on its rows being the same. A data source is not shown the plan that it
ends, so the plan is judged here, on the driver, before the query starts. What Spark itself does not know of (a Python
function that reads a clock) is found by brokers only: they count the rows of a batch that was repeated.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from ropewalk.errors import RopewalkError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["NotDeterministic", "require_deterministic"]


_TIMES: Final = frozenset(("CurrentTimestamp", "Now", "CurrentDate", "LocalTimestamp", "CurrentTime"))


class NotDeterministic(RopewalkError):
    """A plan that would give other rows when it is run again."""


def require_deterministic(frame: DataFrame) -> DataFrame:
    """Return the frame, if its plan gives the same rows whenever it is run. Raises NotDeterministic."""
    plan: Any = getattr(frame, "_jdf").queryExecution().analyzed()  # noqa: B009 - no part of PySpark's typed API
    times = [] if frame.isStreaming else [text for node in _nodes(plan) for text in _times(node)]
    if plan.deterministic() and not times:
        return frame
    found = sorted({text for node in _nodes(plan) for text in _changing(node)} | set(times))
    raise NotDeterministic(
        f"the plan is not deterministic: {', '.join(found) or 'Spark does not say which part'}. A batch that is "
        f"repeated would have other rows, and be written a second time. Derive such values from the rows (a hash of "
        f"the body, the queueOffset), or add them on the reading side"
    )


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    children = plan.children()
    for number in range(children.size()):
        yield from _nodes(children.apply(number))


def _times(node: Any) -> Iterator[str]:
    """Yield the expressions of a node that read the time of the query."""
    expressions = node.expressions()
    waiting = [expressions.apply(number) for number in range(expressions.size())]
    while waiting:
        one = waiting.pop()
        if one.getClass().getSimpleName() in _TIMES:
            yield str(one.toString())
        children = one.children()
        waiting += [children.apply(number) for number in range(children.size())]


def _changing(node: Any) -> Iterator[str]:
    expressions = node.expressions()
    for number in range(expressions.size()):
        if not expressions.apply(number).deterministic():
            yield str(expressions.apply(number).toString())
