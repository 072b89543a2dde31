"""Keep the list of a log's epochs: which master wrote which part, so that two logs are compared without reading them.

    {"epochs": [[1, 0], [4, 73810], [5, 2210944]]}          <root>/ropewalk/epochs.json

An epoch is the time of one master. The list holds where each began: bytes from `start` up to the next start were
appended by that epoch's master. One epoch has one writer, so two lists that agree on an epoch's number and start
agree on its bytes, as far as both logs reach.

Invariants: epochs and starts both rise from entry to entry. An epoch that ended without a byte leaves no entry. A log
that never changed its master, and one that came from RocketMQ, has the empty list: all its bytes are of epoch 0.

A slave takes its master's list over whole, also entries that begin behind its own end: `of_end` looks at bytes that
are there and at nothing else. Left to others: the file (the caller's), and the meaning of a difference
(`ha.group.divergence`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["EpochEntry", "Epochs"]

EPOCHS_MAX = 10_000
"""Changes of master that are remembered; the oldest go first, and their bytes then count as epoch 0."""


class EpochEntry(NamedTuple):
    """An epoch and the place at which it begins in the log."""

    epoch: int
    start: int
    """Log offset of the first byte of this epoch."""


@dataclass(frozen=True, slots=True)
class Epochs:
    """An immutable list of epochs; a change makes a new one."""

    entries: tuple[EpochEntry, ...] = ()

    def __post_init__(self) -> None:
        for before, after in zip(self.entries, self.entries[1:], strict=False):
            if not (before.epoch < after.epoch and before.start < after.start):
                raise ValueError(f"epochs {before} and {after} are out of order")
        if self.entries and (self.entries[0].epoch < 1 or self.entries[0].start < 0):
            raise ValueError(f"{self.entries[0]} is no epoch")

    @classmethod
    def of(cls, pairs: Iterable[Sequence[int]], newest: int | None = None) -> Epochs:
        """Make a list from pairs of numbers, as files and peers bring them. Raises ValueError for others.

        `newest` is the epoch of the peer: a list of later ones would keep this log from ever beginning one.
        """
        entries = []
        for pair in pairs:
            if len(pair) != 2 or not all(isinstance(number, int) for number in pair):
                raise ValueError(f"{pair!r} is no epoch and start")
            entries.append(EpochEntry(pair[0], pair[1]))
        if newest is not None and entries and entries[-1].epoch > newest:
            raise ValueError(f"epoch {entries[-1].epoch} is above {newest}, which its master leads")
        return cls(tuple(entries[-EPOCHS_MAX:]))

    def pairs(self) -> list[tuple[int, int]]:
        """Return the list as pairs of numbers, for files and peers."""
        return [(entry.epoch, entry.start) for entry in self.entries]

    def of_end(self, end: int) -> int:
        """Return the epoch of the last byte of a log that ends at `end`."""
        return max((entry.epoch for entry in self.entries if entry.start < end), default=0)

    def cut(self, end: int) -> Epochs:
        """Return the list of this log when it is cut to end at `end`."""
        return Epochs(tuple(entry for entry in self.entries if entry.start < end))

    def begin(self, epoch: int, start: int) -> Epochs:
        """Begin the epoch of a new master at the end of its log.

        What the list says about bytes behind that is about bytes which this log does not have, and goes.
        """
        kept = self.cut(start).entries
        if kept and kept[-1].epoch >= epoch:
            raise ValueError(f"epoch {epoch} cannot follow epoch {kept[-1].epoch}")
        return Epochs((*kept, EpochEntry(epoch, start))[-EPOCHS_MAX:])

    def agree_up_to(self, end: int, other: Epochs, other_end: int) -> int:
        """Return the offset up to which two logs have the same writers, by these lists alone.

        What a log really has in common with another one is for its bytes to say (`divergence`).
        """
        ends = dict(_spans(self, end))
        bound = 0
        for entry, its_end in _spans(other, other_end):
            if entry in ends:
                bound = max(bound, min(ends[entry], its_end))
        return bound


def _spans(epochs: Epochs, end: int) -> list[tuple[EpochEntry, int]]:
    """Each epoch that has bytes in a log of this end, with where they end; bytes before the first are of epoch 0."""
    entries = [EpochEntry(0, 0), *(entry for entry in epochs.entries if entry.start < end)]
    if len(entries) > 1 and entries[1].start == 0:
        entries = entries[1:]  # no byte is older than the first epoch
    starts = [entry.start for entry in entries[1:]] + [end]
    return list(zip(entries, starts, strict=True))
