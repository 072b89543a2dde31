"""Tables that count how often all of them is looked at, for tests of work that must not grow with a table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class Walked(dict[Any, Any]):
    """A table that counts the walks through it."""

    walks = 0

    def __iter__(self) -> Iterator[Any]:
        self.walks += 1
        return super().__iter__()

    def items(self) -> Any:
        self.walks += 1
        return super().items()

    def values(self) -> Any:
        self.walks += 1
        return super().values()
