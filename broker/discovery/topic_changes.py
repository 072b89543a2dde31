"""News of changed topics: from a turn that changed some to the name servers and the config file, and on to consumers.

note       a handler, or another member's table, has changed topics
publish    the turn ends: name servers and the config file catch up, before any answer of the turn leaves
announce   a name server knows: consumers of the changed topics are told to ask for routes again
"""

from __future__ import annotations

from collections.abc import Callable

from broker.consume.member_notifier import MemberNotifier
from broker.state.clients import ClientRegistry
from broker.state.topics import TopicTable

__all__ = ["TopicChanges"]


class TopicChanges:
    """The changes of one topic table that others have not heard of yet. The loop owns it."""

    def __init__(self, topics: TopicTable, clients: ClientRegistry, notifier: MemberNotifier) -> None:
        self._topics = topics
        self._clients = clients
        self._notifier = notifier
        self.on_published: Callable[[], None] = lambda: None
        """Called when name servers and the config file have to catch up; the process listens."""
        self.noted = False
        """Whether this turn may have changed topics."""
        self._published_generation = -1

    def note(self) -> None:
        """Have the name servers and the config file catch up when this turn ends, before any answer of it leaves.

        Once a turn: the whole table travels, and one read can bring hundreds of new names.
        """
        self.noted = True

    def publish(self) -> None:
        """Tell the name servers and the config file now, if anything is different."""
        self.noted = False
        if self._published_generation != self._topics.generation:
            self._published_generation = self._topics.generation
            self.on_published()

    def announce(self, generation: int) -> None:
        """Tell consumers of changes up to this generation of the topics: a name server knows these routes now.

        The notification is that of a changed group (40): clients ask for the routes again and divide the queues anew,
        those of RocketMQ too, if by the routes that they have. So a consumer that waits for a topic reads it at once.
        """
        unannounced = self._topics.unannounced
        news = [name for name, changed in unannounced.items() if changed <= generation]
        for name in news:
            del unannounced[name]
        if news:
            self._notifier.notify(self._clients.consumers_of(news))
