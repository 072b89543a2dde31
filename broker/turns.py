"""Work of the loop that is done in steps, between which the clients have their turns."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

import trio

__all__ = ["in_turns"]

T = TypeVar("T")


async def in_turns(steps: Generator[None, None, T]) -> T:
    """Take all steps of a generator, others between two of them, and return its value."""
    while True:
        try:
            next(steps)
        except StopIteration as finished:
            value: T = finished.value
            return value
        await trio.lowlevel.checkpoint()
