"""The templates of one client's send headers, and when another one is worth learning.

Templates are found by the first four bytes of a payload, which give the header's length. A client whose headers never
come again costs ever less: after each one that was learned in vain twice as many pass before the next is learned.
"""

from __future__ import annotations

from typing import Final

from broker.produce.fast.header_template import HeaderTemplate
from broker.produce.fast.many_topics import ManyTopicsTemplate

__all__ = ["SendTemplates"]

TEMPLATES_MAX: Final = 8
HEADER_SIZE_MAX: Final = 4 << 10
"""Bytes of a header that is learned: a template keeps all of it."""
_PATIENCE_MAX: Final = 4096


class SendTemplates:
    """The send templates of one client."""

    __slots__ = ("_changes", "_missed", "_patience", "any", "deferred", "known", "many_topics")

    def __init__(self) -> None:
        self.known: dict[bytes, HeaderTemplate] = {}
        self.many_topics: dict[bytes, ManyTopicsTemplate] = {}
        """Of headers that go to many topics, in place of those in `known`."""
        self.any = False
        """Whether anything was ever learned."""
        self.deferred = False
        """Whether sends of this client are put off until the turn ends (`runs`)."""
        self._changes = 0
        self._missed = 0
        self._patience = 1

    def wants_another(self) -> bool:
        """Count a request without a template; whether it should be learned from."""
        self._missed += 1
        if self._missed < self._patience:
            return False
        self._missed = 0
        self._patience = min(2 * self._patience, _PATIENCE_MAX)
        return True

    def record_hits(self, messages: int) -> None:
        """Count messages that had a template, one after the other. HOT."""
        self._patience = max(1, self._patience - messages)

    def record_change(self) -> int:
        """Count a template that makes room for one to another topic; return how often that was so."""
        self._changes += 1
        return self._changes

    def learn(self, payload: bytes, template: HeaderTemplate) -> None:
        """Keep the template of this payload's header."""
        self.any = True
        if len(self.known) >= TEMPLATES_MAX:
            self.known.clear()
        self.known[payload[:4]] = template

    def learn_many_topics(self, payload: bytes, template: ManyTopicsTemplate) -> None:
        """Keep the template of this payload's header for whichever topic is sent to."""
        self.any = True
        if len(self.many_topics) >= TEMPLATES_MAX:
            self.many_topics.clear()
        self.many_topics[payload[:4]] = template
