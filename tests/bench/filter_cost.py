"""Evaluations of SQL92 filters a second: `python -m tests.bench.filter_cost`.

Each line is one expression over one message's property text, as the broker sees it, on one thread; the best of many
rounds. Nothing here is asserted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from ropewalk.filter.sql92 import compile_filter
from ropewalk.format.properties import encode_properties

ROUNDS = 30
COUNT = 20_000
PROPERTIES = encode_properties(
    {
        "UNIQ_KEY": "7F0000010BCC18B4AAC20A6B2C000001",
        "CLUSTER": "DefaultCluster",
        "WAIT": "true",
        "TAGS": "TagA",
        "a": "4",
        "b": "x",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }
)
EXPRESSIONS = (
    "a > 3 AND b = 'x'",
    "a > 4 AND b = 'x'",
    "a = 4",
    "TAGS IN ('TagA', 'TagB') AND a BETWEEN 1 AND 9",
    "missing IS NULL OR a > b",
    "a > b",
    "b CONTAINS 'y' OR b STARTSWITH 'x'",
)


def best_rate(job: Callable[[], object]) -> float:
    """Return calls a second of this thread's CPU time: the best of the rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.thread_time()
        for _ in range(COUNT):
            job()
        best = min(best, time.thread_time() - began)
    return COUNT / best


def main() -> None:
    for expression in EXPRESSIONS:
        compiled = compile_filter(expression)
        rate = best_rate(partial(compiled.matches, PROPERTIES))
        print(f"{rate:12,.0f} a second  {expression}  -> {compiled.matches(PROPERTIES)}")


if __name__ == "__main__":
    main()
