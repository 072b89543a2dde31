"""`Gathering`: calls of many tasks that leave together, in one request, and each of which gets its own outcome.

The first call of a turn of the event loop has a batch sent at the end of the turn, with every call that came until
then: whoever waits for nobody is not held up, and sixty-four tasks that were answered together ask together again. A
batch that is full leaves at once.
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

import anyio
from anyio.abc import TaskGroup

from ropewalk.errors import OutcomeUnknown, RopewalkError

T = TypeVar("T")
R = TypeVar("R")


class _Call(Generic[T, R]):
    __slots__ = ("done", "item", "outcome")

    def __init__(self, item: T) -> None:
        self.item = item
        self.done = anyio.Event()
        self.outcome: R | RopewalkError = OutcomeUnknown("the client was closed before an answer came")


class Gathering(Generic[T, R]):
    """The calls of one kind. `carry` makes one request of items and returns their outcomes, in their order."""

    def __init__(
        self,
        tasks: TaskGroup,
        carry: Callable[[Sequence[T]], Awaitable[Sequence[R | RopewalkError]]],
        *,
        count_max: int,
        size_max: int,
    ) -> None:
        """`tasks` sends the batches; a batch has `count_max` items and about `size_max` bytes at most."""
        self._tasks = tasks
        self._carry = carry
        self._count_max = count_max
        self._size_max = size_max
        self._calls: list[_Call[T, R]] = []
        self._size = 0

    async def call(self, item: T, size: int) -> R:
        """Have an item of `size` bytes carried, and return its outcome or raise it."""
        call: _Call[T, R] = _Call(item)
        if self._calls and self._size + size > self._size_max:
            self._tasks.start_soon(self._send, self._take())
        if not self._calls:
            self._tasks.start_soon(self._send_what_came)
        self._calls.append(call)
        self._size += size
        if len(self._calls) >= self._count_max:
            self._tasks.start_soon(self._send, self._take())
        await call.done.wait()
        if isinstance(call.outcome, RopewalkError):
            raise call.outcome
        return call.outcome

    def _take(self) -> list[_Call[T, R]]:
        calls, self._calls, self._size = self._calls, [], 0
        return calls

    async def _send_what_came(self) -> None:
        if self._calls:  # else a full batch took them along
            await self._send(self._take())

    async def _send(self, calls: list[_Call[T, R]]) -> None:
        try:
            outcomes = await self._carry([call.item for call in calls])
            for call, outcome in zip(calls, outcomes, strict=True):
                call.outcome = _copy(outcome) if isinstance(outcome, RopewalkError) else outcome
        except RopewalkError as exc:
            for call in calls:
                call.outcome = _copy(exc)
        finally:
            for call in calls:
                call.done.set()


def _copy(exc: RopewalkError) -> Any:
    """Return an error for one task of many: raised in each, one object would collect the traceback of all."""
    copied = copy.copy(exc)
    copied.__cause__ = exc
    return copied
