"""A pool of queue entries in the order of the log, each of which its queue takes over when it is asked for.

A client that sends to tens of thousands of queues leaves one entry in each before it comes to the first again. Every
object of a queue's own has left the processor's caches by then, and to fetch five of them for each message costs more
than the message. Here the entries of all such queues stand one behind the other, and all that is looked at of a queue
are two numbers in two arrays. Its place in both is its *slot*:

    numbers    what the queue's next message gets
    newest     where its newest entry stands below, or -1

    entries    | a0 -1 | b7 -1 | c3 -1 | a1  0 | ...    each with where the same queue's entry before that stands
                                                        (`linked_entries`); in pieces of one size

A queue takes its entries along these places, all at once: when anything is asked of it, or when it gets an entry in
another way (`ConsumeQueue.drain_pool`). Until then its own numbers are behind, which nobody sees. Here are only entries
that consumers may read.

Most are never taken. The write-back has somebody else follow the places of a queue and write what it finds
(`Frozen`, `chain`), and then tells the queue that all of it is in its file (`mark_filed`).
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Final, Generic, TypeAlias, TypeVar

from store.queues.linked_entries import LinkedEntries
from store.queues.pooled_queue import PooledQueue

Pieces: TypeAlias = Mapping[int, LinkedEntries]
"""Runs of linked entries, by their numbers."""
PIECE: Final = 1 << 15
"""Entries in a piece."""


_Q = TypeVar("_Q", bound=PooledQueue)


class EntryPool(Generic[_Q]):
    """The entries that wait for their queues, and the queues that have a slot; the loop owns it."""

    __slots__ = ("_first", "_newest", "_numbers", "_pieces", "end", "held", "log_end", "queues", "topics")

    def __init__(self) -> None:
        self.queues: list[_Q | None] = []
        """By slot, which is never given to another queue; None for one that was deleted."""
        self.topics: list[str] = []
        """Theirs, of the deleted ones too."""
        self.held: set[int] = set()
        """Slots of queues that somebody waits for."""
        self._numbers = array("q")
        """-1 for a queue that is out: its numbers are its own alone, until it enters again."""
        self._newest = array("q")
        self.end = 0
        """Where the next entry will stand: places are counted from the first that ever was."""
        self.log_end = 0
        """The log offset behind the newest entry's record."""
        self._pieces: dict[int, LinkedEntries] = {}
        self._first = 0
        """By number, from this one on; the last is not full."""

    # -- queues --------------------------------------------------------------------------------------

    def enter(self, queue: _Q) -> int:
        """The slot of a queue, which is in from now on."""
        slot = queue.slot
        if slot < 0:
            slot = queue.slot = len(self.queues)
            queue.pool = self
            self.queues.append(queue)
            self.topics.append(queue.topic)
            self._numbers.append(queue.tail_next)
            self._newest.append(-1)
            self.update_held(queue)
        elif self._numbers[slot] < 0:
            self._numbers[slot] = queue.tail_next
        return slot

    def is_in(self, slot: int) -> bool:
        """Tell whether entries can be added to a slot's queue here."""
        return self._numbers[slot] >= 0

    def queues_in(self, slots: Sequence[int]) -> list[_Q] | None:
        """Return the queues of these slots; None if one of the queues is out."""
        queues = [queue for slot in slots if (queue := self.queues[slot]) is not None and self.is_in(slot)]
        return queues if len(queues) == len(slots) else None

    def leave(self, queue: _Q) -> None:
        """Drain a queue's entries into it, and put the queue out of the pool."""
        self.drain(queue)
        self._numbers[queue.slot] = -1

    def forget(self, queue: _Q) -> None:
        """Take a deleted queue out of the pool for good."""
        if queue.slot >= 0:
            self.leave(queue)
            self.held.discard(queue.slot)
            self.queues[queue.slot] = None
            queue.pool, queue.slot = None, -1

    def update_held(self, queue: _Q) -> None:
        """Take in whether a long poll waits for this queue."""
        if queue.held is None:
            self.held.discard(queue.slot)
        else:
            self.held.add(queue.slot)

    def sync_next(self, queue: _Q) -> None:
        """Go on behind entries that a drained queue got in another way. HOT."""
        if self._numbers[queue.slot] >= 0:
            self._numbers[queue.slot] = queue.tail_next

    # -- entries -------------------------------------------------------------------------------------

    def add(
        self, slots: Sequence[int], offsets: Sequence[int], size: int, tag_code: int
    ) -> tuple[list[int], list[int]] | None:
        """The next entries, one for each slot: their queue offsets, and which slots had none waiting. HOT.

        They are of records of one size, side by side at these log offsets. None, with nothing done, if a queue is out.
        """
        numbers_of, newest_of = self._numbers, self._newest
        numbers = list(map(numbers_of.__getitem__, slots))
        if min(numbers) < 0:
            return None
        earlier = list(map(newest_of.__getitem__, slots))
        at = self.end
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
        self.log_end = offsets[-1] + size
        self._extend(offsets[0], size, tag_code, earlier)
        first = (
            [slot for slot, before in zip(slots, earlier, strict=True) if before < 0]
            if min(earlier) < 0
            else []
        )
        return numbers, first

    def _extend(self, offset: int, size: int, tag_code: int, links: list[int]) -> None:
        """Entries with these links stand behind all others, of records side by side. HOT."""
        number, used = divmod(self.end, PIECE)
        self.end += len(links)
        if used == 0:
            self._pieces[number] = LinkedEntries()
        room = PIECE - used
        if len(links) <= room:
            self._pieces[number].add(offset, size, tag_code, links)
            return
        self._pieces[number].add(offset, size, tag_code, links[:room])
        for start in range(room, len(links), PIECE):
            number += 1
            piece = self._pieces[number] = LinkedEntries()
            piece.add(offset + start * size, size, tag_code, links[start : start + PIECE])

    def drain(self, queue: _Q) -> None:
        """Hand a queue the entries that wait for it. HOT."""
        slot = queue.slot
        count = self._numbers[slot] - queue.tail_next
        if count > 0:
            queue.extend_from_pool(chain(self._pieces, self._newest[slot], count), self._numbers[slot])
        self._newest[slot] = -1

    # -- write-back ----------------------------------------------------------------------------------

    def frozen(self) -> Frozen:
        """Return a snapshot of the pool."""
        last = self.end // PIECE
        pieces = {number: piece.copy() if number == last else piece for number, piece in self._pieces.items()}
        return Frozen(pieces, self._numbers[:], self._newest[:])

    def mark_filed(self, queue: _Q, through: int, newest: int, keep: int) -> bool:
        """The queue's entries below `through`, the last of which stands at `newest`, are in its file.

        Whether it has got no more meanwhile.
        """
        if queue.tail_next < through:
            number, at = divmod(newest, PIECE)
            queue.continue_at(through, self._pieces[number].entry(at)[0])
        else:
            queue.mark_written(through, keep)
        if max(self._numbers[queue.slot], queue.tail_next) > through:
            return False
        self._newest[queue.slot] = -1
        return True

    def drop_before(self, before: int) -> None:
        """Drop the pieces before this place, whose entries all queues have, in memory or in files."""
        for number in range(self._first, before // PIECE):
            del self._pieces[number]
            self._first = number + 1


class Frozen:
    """A pool as it was at one moment, of which another thread may read `pieces`."""

    __slots__ = ("_newest", "_numbers", "pieces")

    def __init__(self, pieces: Pieces, numbers: array[int], newest: array[int]) -> None:
        self.pieces = pieces
        self._numbers = numbers
        self._newest = newest

    def waiting(self, queue: PooledQueue) -> tuple[int, int] | None:
        """Through which number entries waited for a queue, and where the last stands; None if it has others."""
        slot = queue.slot
        if not 0 <= slot < len(self._numbers) or queue.tail_next != queue.written:
            return None
        through = self._numbers[slot]
        return (through, self._newest[slot]) if through > queue.written else None


def chain(pieces: Pieces, newest: int, count: int) -> bytes:
    """Return so many entries of one queue, the last of which stands at `newest`, in their order. HOT."""
    entries: list[bytes] = []
    at = newest
    for _ in repeat(None, count):
        number, index = divmod(at, PIECE)
        entry, at = pieces[number].entry(index)
        entries.append(entry)
    entries.reverse()
    return b"".join(entries)
