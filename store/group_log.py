"""`GroupLog`: the log of a store in DLedger mode, from its recovery on.

    MessageStore   turns, queues, what consumers see
    GroupLog       the entries, what is on disk of them, and the first of them for a member that lacks it
    EntryLog       what the core of the group saves, cuts, places and flushes

What is on disk may be cut again as long as no quorum has it: `host` has the true extent, and the store claims of it
what is shown, which never falls.
"""

from __future__ import annotations

from pathlib import Path

from ropewalk.format.dledger.snapshot import MemberSnapshot, encode_member_snapshot
from store.entries.entry_log import EntryLog
from store.entries.files import LogPoint
from store.entry_host import EntryHost
from store.io.disk import Disk
from store.io.workers import Completions, Flusher, Helpers
from store.log.commitlog import CommitLog
from store.log.preallocate import Preallocator
from store.queues.queue_table import QueueTable
from store.recovery.opening import Opening
from store.recovery.scan import Recovered

__all__ = ["GroupLog"]


class GroupLog:
    """The entries of a store's log, and how far they are on disk."""

    host: EntryHost
    """How far the log is on disk, once it has begun."""

    def __init__(self, root: Path, directory: Path, log: CommitLog, table: QueueTable, disk: Disk) -> None:
        """`root` is the store's; the index of the entries is below `directory`."""
        own = root / "ropewalk"
        self.entries = EntryLog(directory, own / "dledger", own / "tails", log, disk)
        self._root = root
        self._log = log
        self._table = table

    def recover(self, opening: Opening, queue_file_size: int) -> Recovered:
        """Recover log and queue files, in whose place a snapshot is put first if it was to replace them. Blocks.

        Raises `StoreDamaged`, or OSError of a disk without room.
        """
        done = self.entries.installation(self._root, queue_file_size).redo()
        found = opening.run_shown(self._recover_log, self.entries.find_damage)
        found.findings = *done, *self.entries.found.findings
        return found

    def _recover_log(self) -> int:
        self._log.load()
        return self.entries.recover().commit_pos

    def begin(
        self, flusher: Flusher, preallocator: Preallocator, helpers: Helpers, completions: Completions
    ) -> None:
        """Begin with a recovered log, all of which is on disk."""
        self.host = EntryHost(self._log, flusher, preallocator)
        self.entries.begin(
            self.host,
            completions,
            helpers.worker("ropewalk-entries", completions),
            helpers.worker("ropewalk-laggards", completions),
        )

    def flushed(self, offset: int, shown: int) -> None:
        """Hear that the log is on disk through `offset`; consumers may see it through `shown`."""
        self.host.flushed_offset = offset
        self.claim_flushed(shown)
        self.entries.flushed(offset)

    def claim_flushed(self, shown: int) -> None:
        """Count the log as flushed through its part that is on disk and shown: no cut takes that away."""
        self._log.flushed_offset = max(self._log.flushed_offset, min(self.host.flushed_offset, shown))

    def make_snapshot(self, state_index: int, state: bytes) -> tuple[LogPoint, bytes] | None:
        """Return a snapshot for a member that lacks the beginning of this log, and the log through its first entry.

        `state` are the tables through `state_index`, which reach to the first entry at least. None if there is no
        entry that is known to be committed.
        """
        first = self.entries.first_entry()
        if first is None:
            return None
        point, entry, commit = first
        begin = self._log.min_offset
        queues = [
            (queue.topic, queue.queue_id, queue.next_offset)
            for queue in self._table
            if queue.next_offset and queue.max_physical <= begin
        ]
        return point, encode_member_snapshot(MemberSnapshot(commit, queues, state_index, state, entry))
