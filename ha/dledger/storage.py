"""The log and the store as `LedgerShell` sees them: `LogStorage` of entries, and `ReplicaStore` of their records.

The store knows nothing of Raft and imports nothing of `ha`, so all of this is spoken in plain values:

    LogPoint    (index, term, pos)                   the log through an entry; pos is the offset behind it
    LogRun      (first, count, term, pos, size)      whole entries of one term, side by side in one segment

The empty log is the point (-1, -1, 0). Every call is made on the loop and returns at once; every `done` is called on
the loop, from the store's completions, and never inside the call that it answers. A write that fails raises on the
loop, as everywhere in the store: a member that cannot write has to stop.

*The storage queue.* `save`, `cut`, `place` and `flush` are carried out in the order in which they were asked for. A
`place` with nothing in front of it is written at once; behind a cut, or without room on the disk, it waits, and
`on_stuck(True)` is called; `on_stuck(False)` when no run waits any more. A flush covers all that was placed or
appended before it began, and says how many cuts had been done by then; flushes that wait are joined.

*Showing.* Records are indexed, and seen by consumers, through the commit point only: `show_through` does that for a
follower in pieces (the entries are indexed from the log), for a leader at once (it indexed them as it appended).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from ropewalk.format.dledger.configuration import Configuration

LogPoint: TypeAlias = tuple[int, int, int]
"""(index, term, pos)"""
LogRun: TypeAlias = tuple[int, int, int, int, int]
"""(first, count, term, pos, size)"""
TermRow: TypeAlias = tuple[int, int, int]
"""(term, first index, offset behind the entry before)"""


class LogStorage(Protocol):
    """A log of entries and the ballot beside it, opened and recovered; `store.log.entry_log.EntryLog` is one."""

    on_stuck: Callable[[bool], None]
    """Called on the loop when a run has to wait for room or for a cut, and when none does any more."""

    @property
    def ballot(self) -> tuple[int, str]:
        """Return the term and the vote in it ("" if there is none), as they are on disk."""

    @property
    def rows(self) -> Sequence[TermRow]:
        """Return the term rows of the log, from its first retained entry on."""

    @property
    def configurations(self) -> Sequence[tuple[int, Configuration]]:
        """Return the configurations in the log and the indexes of their entries, from the one in force at its start."""

    @property
    def end(self) -> LogPoint:
        """Return the log through its last entry."""

    @property
    def commit(self) -> LogPoint:
        """Return the commit point that was written down last; it claims less than the truth."""

    @property
    def doubt(self) -> LogPoint | None:
        """Return the furthest whole entry that recovery saw behind a hole, which it cut; None if there was none."""

    @property
    def segment_size(self) -> int:
        """Return the size of a file of the log."""

    @property
    def incarnation(self) -> bytes:
        """Return the 16 bytes that were drawn when this log was made: a wiped member comes back with others."""

    def configured(self, rows: Sequence[tuple[int, Configuration]]) -> None:
        """Note which configurations the log carries now."""

    def save(self, term: int, vote: str, done: Callable[[], None]) -> None:
        """Put the ballot on disk, its file's name included."""

    def cut(self, index: int, term: int, pos: int, done: Callable[[], None]) -> None:
        """End the log at this point; `done` when no start will find an entry behind it."""

    def place(self, first: int, count: int, term: int, pos: int, data: bytes | memoryview, skip: int) -> None:
        """Write a run whose bytes are `data`, but for its first `skip` bytes, which are here already.

        Raises `CorruptRecord` before anything is changed if the first entry to be written is not the one that the
        arguments say.
        """

    def flush(self, done: Callable[[LogPoint, int], None]) -> None:
        """Put on disk all that was placed and appended; `done` gets the point, and how many cuts came before."""

    def read(
        self, index: int, bytes_max: int, done: Callable[[LogPoint, LogRun | None, bytes | memoryview], None]
    ) -> None:
        """Read whole entries of one term and one segment from `index` on: at most so many bytes, at least one entry.

        `done` gets the point in front of them, the run (None where retention has removed the index) and its bytes.
        """

    def committed(self, index: int, term: int, pos: int) -> None:
        """Note the commit point, to be written down soon. Never ahead of what is on disk here."""

    def end_doubt(self) -> None:
        """Remove the note of a doubtful recovery."""

    def stage_snapshot(self, data: bytes, done: Callable[[], None]) -> None:
        """Put a snapshot on disk, beside the log. Raises `CorruptRecord` for bytes that are none."""

    def install_staged(self, done: Callable[[], None]) -> None:
        """Have the next start begin with the snapshot that was staged last, in place of this log."""


class ReplicaStore(Protocol):
    """The store around a log of entries: who may append, and what is shown. `store.replica.Replica` is one."""

    def lead(self, term: int, next_index: int) -> bool:
        """Prepare to append as the leader of `term`: index, unseen, what lies behind the shown end, a part at a time.

        Returns True once all of it is indexed and the appender is open, its next entry being `next_index` of `term`;
        False: call again in the next turn.
        """

    def follow(self) -> None:
        """Close the appender, or give up preparing it; take back queue entries behind the shown end."""

    def append_term_record(self, body: bytes) -> bool:
        """Append the entry that opens a term; `take_appended` returns it as any other. False: there is no room yet."""

    def take_appended(self, bytes_max: int) -> Sequence[tuple[int, int, int, int, int, bytes]]:
        """Return (first, count, term, pos, size, bytes) of the runs appended since the last call, in order.

        Contiguous entries of one segment are joined up to `bytes_max`; the bytes are the very ones that were written.
        """

    def show_through(self, index: int, term: int, pos: int) -> LogPoint:
        """Index and show the committed entries through this point, at most a turn's share of them.

        Returns the point through which they are shown now; the shell calls again in the next turn while that is less.
        """
