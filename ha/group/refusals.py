"""`Refusals`: the refusals between a slave and its master that last. Pure.

A refusal of a moment is ordinary: an epoch begins, a log is cut, a master is at another address. One that lasts means
that this slave gets nothing, although its master is there, and that a person has to act.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

__all__ = ["REFUSAL_LASTS_MS", "Conversation", "Refusals"]

REFUSAL_LASTS_MS: Final = 3_000
"""How long a refusal goes on before it is told."""


class Conversation(Enum):
    """The conversations of a slave with its master, or about it."""

    HELLO = "hello"
    METADATA = "metadata"
    SEARCH = "search"


class Refusals:
    """The refusals of one slave, by the conversation in which they come."""

    def __init__(self) -> None:
        self._since: dict[Conversation, tuple[int, str]] = {}

    def refused(self, conversation: Conversation, why: str, now_ms: int) -> None:
        """Note that one end refuses the other, for this reason in words."""
        since, _before = self._since.get(conversation, (now_ms, ""))
        self._since[conversation] = since, why

    def over(self, conversation: Conversation) -> None:
        """Note that neither end refuses the other, or that the master does not answer."""
        self._since.pop(conversation, None)

    def clear(self) -> None:
        """Forget all refusals: this broker has another role, or another master."""
        self._since.clear()

    def lasting(self, now_ms: int) -> str | None:
        """Return the reason of the refusal that has lasted longest, or None where none has lasted."""
        since, why = min(self._since.values(), default=(now_ms, ""))
        return why if now_ms - since >= REFUSAL_LASTS_MS else None
