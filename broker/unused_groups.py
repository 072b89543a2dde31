"""Removal of groups that clients made by naming them and never used, where the bound of groups is reached.

A stranger invents group names as fast as heartbeats come. A group of those goes that nobody changed, that has no
member, no offset, and no message in its retry and dead-letter topics: whoever wants it makes it again by using it.
Groups that were there at the start stay, as nobody knows any more who made them.
"""

from __future__ import annotations

from typing import Final

import structlog

from broker.context import BrokerContext
from ropewalk.format import names

__all__ = ["UnusedGroups"]

log = structlog.get_logger("broker")

_AGAIN_MS: Final = 10_000
_NEW_MS: Final = 10_000
"""A group that was made a moment ago has its member when the request at hand is done."""
_SHARE: Final = 8


class UnusedGroups:
    """The remover of unused groups."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker
        self._next_ms = 0

    def make_room(self) -> None:
        """Remove unused groups, the oldest first and an eighth of all at most; the search is made every ten seconds."""
        broker = self._broker
        now = broker.monotonic_ms()
        if now < self._next_ms:
            return
        self._next_ms = now + _AGAIN_MS
        groups = broker.groups
        used = {group for _topic, group, _queues in broker.offsets.pairs(len(broker.offsets))}
        used.update(broker.clients.consumer_groups())
        before_ms = broker.now_ms() - _NEW_MS
        unused = [
            name
            for name, made_ms in groups.made.items()
            if made_ms < before_ms and name not in used and self._is_empty(name)
        ]
        removed = unused[: groups.groups_max // _SHARE]
        for name in removed:
            groups.delete(name, broker.now_ms())
            broker.statistics.forget_group(name)
            for topic in (names.retry_topic(name), names.dlq_topic(name)):
                broker.topics.delete(topic, broker.now_ms())
                for queue in list(broker.store.queues.get(topic, {}).values()):
                    broker.held_pulls.dismiss(queue)
        if removed:
            broker.topics_changed()
            log.warning(
                "removed groups that were never used, as the bound of groups is reached", groups=len(removed)
            )

    def _is_empty(self, group: str) -> bool:
        queues = self._broker.store.queues
        return not any(
            queue.next_offset
            for topic in (names.retry_topic(group), names.dlq_topic(group))
            for queue in queues.get(topic, {}).values()
        )
