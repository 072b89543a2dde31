"""Queue entries in the order of the log, each of which its queue takes when somebody looks.

A client that sends to tens of thousands of queues leaves one entry in each before it comes to the first again. Every
object of a queue's own has left the processor's caches by then, and to fetch five of them for each message costs more
than the message. Here the entries of all such queues stand one behind the other, and all that is looked at of a queue
are two numbers in two arrays. Its place in both is its *slot*:

    numbers    what the queue's next message gets
    newest     where its newest entry stands below, or -1

    entries    | a0 | b7 | c3 | a1 | ...                20 bytes each, as in the queue files
    earlier    | -1 | -1 | -1 |  0 | ...                where the same queue's entry before that stands, or -1

A queue takes its entries along the last line, all at once: when anything is asked of it, when it gets an entry in
another way, or when the write-back comes to it (`ConsumeQueue.settle`). Until then its own numbers are behind, which
nobody sees. Here are only entries that consumers may read.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ropewalk.format.queue_entry import ENTRY_SIZE

if TYPE_CHECKING:
    from store.consume_queue import ConsumeQueue


class EntryPool:
    """The entries that wait for their queues, and the queues that have a slot; the loop owns it."""

    __slots__ = ("_earlier", "_entries", "_gone", "_newest", "_numbers", "held", "queues", "topics")

    def __init__(self) -> None:
        self.queues: list[ConsumeQueue | None] = []
        """By slot, which is never given to another queue; None for one that was deleted."""
        self.topics: list[str] = []
        """Theirs, of the deleted ones too."""
        self.held: set[int] = set()
        """Slots of queues that somebody waits for."""
        self._numbers = array("q")
        """-1 for a queue that is out: its numbers are its own alone, until it enters again."""
        self._newest = array("q")
        self._entries = bytearray()
        self._earlier = array("q")
        self._gone = 0
        """How many entries were let go of: places are counted from the first that ever was."""

    @property
    def end(self) -> int:
        """Where the next entry will stand."""
        return self._gone + len(self._earlier)

    # -- queues --------------------------------------------------------------------------------------

    def enter(self, queue: ConsumeQueue) -> int:
        """The slot of a queue, which is in from now on."""
        slot = queue.slot
        if slot < 0:
            slot = queue.slot = len(self.queues)
            queue.pool = self
            self.queues.append(queue)
            self.topics.append(queue.topic)
            self._numbers.append(queue.own_next)
            self._newest.append(-1)
            self.note_held(queue)
        elif self._numbers[slot] < 0:
            self._numbers[slot] = queue.own_next
        return slot

    def is_in(self, slot: int) -> bool:
        """Whether entries can be added to its queue here."""
        return self._numbers[slot] >= 0

    def queues_in(self, slots: Sequence[int]) -> list[ConsumeQueue] | None:
        """These queues; None if one of them is out."""
        queues = [queue for slot in slots if (queue := self.queues[slot]) is not None and self.is_in(slot)]
        return queues if len(queues) == len(slots) else None

    def leave(self, queue: ConsumeQueue) -> None:
        """Have a queue take what waits for it, and be out."""
        self.settle(queue)
        self._numbers[queue.slot] = -1

    def forget(self, queue: ConsumeQueue) -> None:
        """A queue was deleted, and is in no pool any more."""
        if queue.slot >= 0:
            self.leave(queue)
            self.held.discard(queue.slot)
            self.queues[queue.slot] = None
            queue.pool, queue.slot = None, -1

    def note_held(self, queue: ConsumeQueue) -> None:
        """Somebody waits for this queue, or nobody does any more."""
        if queue.held is None:
            self.held.discard(queue.slot)
        else:
            self.held.add(queue.slot)

    def note_grown(self, queue: ConsumeQueue) -> None:
        """A queue that had taken all got entries in another way: here it goes on behind them. HOT."""
        if self._numbers[queue.slot] >= 0:
            self._numbers[queue.slot] = queue.own_next

    # -- entries -------------------------------------------------------------------------------------

    def add(self, slots: Sequence[int], entries: Iterable[bytes]) -> tuple[list[int], list[int]] | None:
        """The next entries, one for each slot: their queue offsets, and which slots had none waiting. HOT.

        None, with nothing done, if one of the queues is out.
        """
        numbers_of, newest_of = self._numbers, self._newest
        numbers = list(map(numbers_of.__getitem__, slots))
        if min(numbers) < 0:
            return None
        earlier = list(map(newest_of.__getitem__, slots))
        at = self._gone + len(self._earlier)
        if len(set(slots)) == len(slots):
            for slot, number in zip(slots, numbers, strict=True):
                numbers_of[slot] = number + 1
                newest_of[slot] = at
                at += 1
        else:
            for index, slot in enumerate(slots):
                numbers[index], earlier[index] = numbers_of[slot], newest_of[slot]
                numbers_of[slot] += 1
                newest_of[slot] = at + index
        self._earlier.extend(earlier)
        self._entries += b"".join(entries)
        first = (
            [slot for slot, before in zip(slots, earlier, strict=True) if before < 0]
            if min(earlier) < 0
            else []
        )
        return numbers, first

    def settle(self, queue: ConsumeQueue) -> None:
        """Have a queue take what waits for it. HOT."""
        slot = queue.slot
        at = self._newest[slot]
        if at < 0:
            return
        earlier, entries, gone = self._earlier, self._entries, self._gone
        pieces: list[bytearray] = []
        while at >= 0:
            at -= gone
            start = at * ENTRY_SIZE
            pieces.append(entries[start : start + ENTRY_SIZE])
            at = earlier[at]
        pieces.reverse()
        queue.own_tail += b"".join(pieces)
        queue.own_next = queue.own_readable = self._numbers[slot]
        self._newest[slot] = -1

    def let_go(self, before: int) -> None:
        """Every queue has taken its entries that stand before this place."""
        count = before - self._gone
        del self._earlier[:count]
        del self._entries[: count * ENTRY_SIZE]
        self._gone = before
