"""Topics that are made for messages which came without them, so that they are served."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import structlog

from broker.context import BrokerContext
from broker.state.topics import LOADED_QUEUES_MAX, TopicConfig
from ropewalk.format.names import HIDDEN_TOPICS
from store.queues.consume_queue import ConsumeQueue

log = structlog.get_logger("broker")


class TopicAdoption:
    """The topics of one broker, and the queues of its store that may know more of them."""

    def __init__(self, context: BrokerContext, is_leader: Callable[[], bool]) -> None:
        self._context = context
        self._topics = context.topics
        self._store = context.store
        self._is_leader = is_leader
        self._adopted: set[str] = set()
        """Topics that were made for their queues, and have as many as have messages."""

    def adopt_orphans(self, now: int) -> None:
        """A topic whose creation did not reach its file before a crash: its messages are here, so it exists."""
        self._store.table.made.clear()
        self._adopt(tuple(self._store.queues), now)

    def _adopt(self, names: Iterable[str], now: int) -> None:
        """Make the topics of these names that have messages, or give them more queues."""
        for name in names:
            queues, config = self._store.queues.get(name, {}), self._topics.get(name)
            if config is not None:
                self._widen(config, queues, now)
            elif name in HIDDEN_TOPICS or not queues:
                continue
            elif any(queue.next_offset for queue in queues.values()):
                self._adopt_topic(name, max(queues) + 1, now)
            else:
                self._store.table.made[name] = None  # until it has a message

    def _adopt_topic(self, name: str, count: int, now: int) -> None:
        try:
            self._topics.update(TopicConfig(name, count, count), now, queues_max=LOADED_QUEUES_MAX)
        except ValueError as exc:
            log.warning(
                "queues under a name that no topic can have are not served", topic=name, reason=str(exc)
            )
            return
        self._adopted.add(name)
        log.warning("topic in the log but in no config file; served again", topic=name, queues=count)

    def _widen(self, config: TopicConfig, queues: Mapping[int, ConsumeQueue], now: int) -> None:
        """Serve every queue with messages of a topic that another member made, with more queues than are known here."""
        if not (self._store.may_be_cut or config.name in self._adopted):
            return
        count = max((id + 1 for id, queue in queues.items() if queue.next_offset), default=0)
        if config.read_queues < count and not self._topics.is_system(config.name):
            wider = replace(config, read_queues=count, write_queues=count)
            self._topics.update(wider, now, queues_max=LOADED_QUEUES_MAX)

    def adopt_new_queues(self) -> None:
        """Make the topics of messages that have come without them, so that they are served.

        A follower of a DLedger group hears of no topic but by messages. A master that was a slave has timers and half
        messages of topics that its own master made moments before it died: their first message is a delivered one.
        """
        now, before = self._context.now_ms(), self._topics.generation
        made = self._store.table.made
        if made:
            names = tuple(made)
            made.clear()
            self._adopt(names, now)
        while self._context.timers.orphans:
            name, count = self._context.timers.orphans.popitem()
            if name not in self._topics:
                self._adopt_topic(name, count, now)
        if self._is_leader() and self._topics.generation != before:
            self._context.topics_changed()
