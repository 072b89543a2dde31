"""Message filters beyond tags: expressions over a message's properties, pure and without a broker.

`sql92` is the one language that RocketMQ has. The broker evaluates expressions, clients only carry them.
"""

from __future__ import annotations

from typing import Protocol


class PropertyFilter(Protocol):
    """A test of a message by its property text."""

    @property
    def cost(self) -> int:
        """Return how many searches through a property text one test makes at most."""
        raise AssertionError  # a protocol has no body to run

    @property
    def size(self) -> int:
        """Return the bytes of memory that it takes, about."""
        raise AssertionError

    def matches(self, properties: bytes) -> bool:
        """Return whether the message is wanted."""
        raise AssertionError
