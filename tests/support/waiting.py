"""Waiting for what another thread or process does: a condition, a deadline that a busy machine meets, and a reason.

A test waits for a condition and never for a time. The patience is no bound on the code under test: it only ends a test
that would hang.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import anyio

PATIENCE_S = 60.0
"""Longer than anything takes on a busy machine, and shorter than a person waits."""


def until(
    condition: Callable[[], object],
    what: str | Callable[[], str] = "the condition did not come true",
    *,
    patience_s: float = PATIENCE_S,
    pause_s: float = 0.02,
    turn: Callable[[], object] = lambda: None,
    forgiving: tuple[type[Exception], ...] = (),
) -> None:
    """Return as soon as the condition holds; raise AssertionError with `what` when the patience is at its end.

    `turn` runs before each look, for code whose loop the test drives. Exceptions of the classes in `forgiving` count
    as a condition that does not hold yet; the last of them is raised at the end.
    """
    give_up = time.monotonic() + patience_s
    while True:
        turn()
        failure: Exception | None = None
        try:
            if condition():
                return
        except forgiving as error:
            failure = error
        if time.monotonic() >= give_up:
            reason = what if isinstance(what, str) else what()
            raise AssertionError(f"not within {patience_s:g} s: {reason}") from failure
        time.sleep(pause_s)


def until_answered(condition: Callable[[], object], what: str) -> None:
    """Return as soon as the condition holds, whatever a broker that does not know yet made it raise before."""
    until(condition, what, forgiving=(Exception,))


async def until_async(
    condition: Callable[[], object],
    what: str | Callable[[], str] = "the condition did not come true",
    *,
    patience_s: float = PATIENCE_S,
    pause_s: float = 0.02,
) -> None:
    """Return as soon as the condition holds, under trio or asyncio, while other tasks run."""
    with anyio.move_on_after(patience_s):
        while not condition():  # noqa: ASYNC110 - the condition knows nothing of tasks: it may be another process's
            await anyio.sleep(pause_s)
        return
    raise AssertionError(f"not within {patience_s:g} s: {what if isinstance(what, str) else what()}")
