"""Append messages to the store and count them: the one place at which what producers send enters the log by objects.

The fast ways that append by columns count here too (`count_run`, `took`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence, Sized
from functools import lru_cache

from broker.remoting.session import Session
from broker.state.statistics import Statistics
from ropewalk.format.record import encode_host
from store.append import Message
from store.message_store import MessageStore
from store.queues.consume_queue import ConsumeQueue

__all__ = ["Appends", "host_of"]


class Appends:
    """Appends of a store, each measured and counted by topic."""

    def __init__(self, store: MessageStore, statistics: Statistics) -> None:
        self.store = store
        self.statistics = statistics
        self.stall_s = math.inf
        self.stalled: Callable[[float], None] = lambda took_s: None
        """Called after an append that took longer than `stall_s`."""

    def put(
        self, batch: list[Message], session: Session, *, one_topic: bool = True, as_one: bool = False
    ) -> list[tuple[int, int]]:
        """Append messages and count them; `as_one` if one request brought all of them. HOT."""
        clock = self.statistics.clock
        began = clock()
        stored = self.store.put(batch, host_of(session.link.peer))
        self.statistics.rpc.at = ended = clock()
        self.count(batch, stored, ended - began, one_topic=one_topic, as_one=as_one)
        return stored

    def count(
        self,
        batch: Sequence[tuple[ConsumeQueue, *tuple[object, ...]]],
        stored: Sized,
        took_s: float,
        *,
        one_topic: bool,
        as_one: bool = False,
    ) -> None:
        """As many messages, from the first on, as `stored` are were stored just now. HOT."""
        sizes = self.store.sizes
        assert len(sizes) == len(stored)
        if not sizes:
            self.took(took_s)
            return
        if one_topic:
            size = sum(sizes)
            seen = (size // len(sizes),) if as_one else sizes
            self.count_run(batch[0][0].topic, len(sizes), size, took_s, seen)
            return
        self.took(took_s)
        by_topic: dict[str, list[int]] = {}
        for message, size in zip(batch, sizes, strict=False):
            by_topic.setdefault(message[0].topic, []).append(size)
        for topic, found in by_topic.items():
            self.statistics.put(topic, self.store.now, len(found), sum(found), took_s, found)

    def count_run(
        self, topic: str, messages: int, size: int, took_s: float, sizes: Sequence[int] = ()
    ) -> None:
        """So many messages of a topic were stored in `size` bytes of log; `sizes` as in `Statistics.put`. HOT."""
        self.took(took_s)
        self.statistics.put(topic, self.store.now, messages, size, took_s, sizes)

    def took(self, append_s: float) -> None:
        if append_s > self.stall_s:
            self.stalled(append_s)


@lru_cache(maxsize=4096)
def host_of(peer: tuple[str, int]) -> bytes:
    """Return the host of a client as a record has it."""
    return encode_host(*peer)
