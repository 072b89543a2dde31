"""`RegionStore`: the log of a region of the key-value store, and its entries given to the region's machine in order.

    <root>/data/<20 digits>        entries, in segments of 16 MiB
    <root>/currterm, checkpoint    as in DLedger mode
    <root>/notes/...               commit, doubt, cut, identity, incoming, install, installed
    <root>/snapshots/...           whole states (`region_snapshots`)
    <root>/tails, diverged         what recovery cut, and what another leader's entries replaced

It is the `ReplicaStore` and the log in one, with a flusher and helpers of its own. What is *shown* is what the machine
has applied: `apply` is called with each committed entry, once and in order, on a leader and on a follower alike. A
start applies everything through the commit point that was written down, from its snapshot on or from the first entry
on. Segments that no start needs any more are removed, the oldest first (`retire_before`).

The body of an entry is a record of RocketMQ's format in an internal topic, whose body is the command. So recovery tells
whole entries from torn ones as it does for messages. One that opens a term or changes the members is a record of the
same topic, and with the same body, as in a log of messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from ropewalk.format.dledger.entry import FILLER_HEAD_SIZE, filler_size
from ropewalk.format.dledger.snapshot import MemberSnapshot, encode_member_snapshot
from ropewalk.format.kv.entry import encode_body, entry_size, read_entry
from ropewalk.format.queue_entry import ENTRY_SIZE as QUEUE_ENTRY_SIZE
from store.entries.entry_log import EntryLog
from store.entries.files import NOTHING, LogPoint
from store.entry_host import EntryHost
from store.io.disk import Disk
from store.io.workers import Completions, Flusher, Helpers, Worker
from store.log.commitlog import CommitLog, StoreDamaged
from store.log.entry_writer import WrittenRun
from store.log.placing import ENTRY
from store.log.preallocate import Preallocator
from store.log.remedy import REFILL
from store.log.segment import Segment
from store.region_snapshots import RegionSnapshots

__all__ = ["RegionStore"]

SEGMENT_SIZE: Final = 16 << 20
_TURN_ENTRIES: Final = 500
_TURN_BYTES: Final = 1 << 20
"""How much is applied in one turn, so that heartbeats are answered in between."""
_GATHER_SIZE: Final = 64 << 10
"""How many bytes of commands are written together, or a little more: less than a frame to the followers."""
_FILL_WINDOW: Final = 1 << 20
_FILL_IDLE: Final = 256 << 10
STATE: Final = "state-"
INSTALLED: Final = "installed"

Apply = Callable[[int, int, bytes], None]
"""Called with index, term and command of a committed entry."""


class RegionStore:
    """The log of a region, and its entries given to the machine in order. The loop owns it."""

    def __init__(
        self,
        root: Path,
        disk: Disk,
        completions: Completions,
        apply: Apply,
        complete: Callable[[bytes], bytes],
        segment_size: int | None = None,
        helpers: Helpers | None = None,
    ) -> None:
        """`complete` returns the body of a configuration's record with what a region's has besides."""
        segment_size = segment_size or SEGMENT_SIZE
        self.log = CommitLog(root / "data", segment_size, disk, ENTRY)
        self.entries = EntryLog(root, root / "notes", root / "tails", self.log, disk, "ropewalk kv status")
        self.full: str | None = None
        """Why nothing can be appended at the moment."""
        self._root = root
        self._disk = disk
        self._completions = completions
        self._helpers = helpers or Helpers()
        self._apply = apply
        self._complete = complete
        self._applied: LogPoint = NOTHING
        self._leads = False
        self._gathered: list[bytes] = []
        """The bodies of entries that are appended, and still to be written behind the end of the log."""
        self._gathered_size = 0
        """The size of these entries."""
        self._preallocator = Preallocator(
            self.log, disk, segment_size, _FILL_WINDOW, _FILL_IDLE, True, self._helpers, completions
        )
        self._retired: deque[Segment] = deque()
        """Segments that are no part of the log any more, and whose files are there still."""
        self._is_removing = False
        self._storage: Worker
        self._flusher: Flusher
        self._host: EntryHost

    # -- open and close ----------------------------------------------------------------------------------

    def install(self, files: RegionSnapshots) -> tuple[str, ...]:
        """Finish the installation of a leader's snapshot, if one was begun; return the deed in words. Blocks.

        The state may be of a later entry than those of the log that came with it; `installed` tells of which, until the
        log has come so far. Raises `StoreDamaged`.
        """
        disk, notes = self._disk, self._root / "notes"
        done = self.entries.installation(self._root, QUEUE_ENTRY_SIZE).redo()
        for name in disk.names(notes):
            if name.startswith(STATE) and name[len(STATE) :].isdigit():
                index = int(name[len(STATE) :])
                disk.replace_file(notes / INSTALLED, str(index).encode())
                disk.move(notes / name, files.path(index))
                files.keep_only([index])
        return done

    def member_snapshot(self, index: int, state: bytes) -> tuple[LogPoint, bytes] | None:
        """Return a snapshot for a member that lacks the beginning of this log, and the log through its first entry.

        `state` is that behind entry `index`. None if the log begins behind that entry, or has none that is committed.
        """
        first = self.entries.first_entry()
        if first is None or first[0][0] > index:
            return None
        point, entry, commit = first
        return point, encode_member_snapshot(MemberSnapshot(commit, [], index, state, entry))

    def open(self, snapshot: LogPoint = NOTHING, *, lacks_state: bool = False) -> tuple[str, ...]:
        """Recover, and apply the entries that are known to be committed; return the findings of recovery. Blocks.

        `snapshot` is the point through which entries are applied already; `lacks_state`: there is no state to apply any
        to. Raises `StoreDamaged`, and may be abandoned then.
        """
        self.log.load()
        if snapshot[2] < self.log.min_offset:
            raise StoreDamaged(
                f"{self.log.directory} begins at log offset {self.log.min_offset}, and there is no whole snapshot "
                f"beside it that is as old: what was before is lost here. Put a snapshot back, or {REFILL}"
            )
        self._applied = snapshot
        installed = self._disk.read_file(self._root / "notes" / INSTALLED)
        is_ahead = installed is not None and int(installed) == snapshot[0]
        found = self.entries.recover(NOTHING if is_ahead else snapshot)
        if installed is not None and found.end[0] >= int(installed):
            self._disk.remove(self._root / "notes" / INSTALLED)
        for file in self.log.unflushed(self.log.end_offset):
            file.sync()  # what a kill left in the page cache will be vouched for
        if lacks_state and found.end[0] >= 0:
            raise StoreDamaged(
                f"{self.log.directory} has entries, and the state in front of them is gone: put a snapshot back, or "
                f"{REFILL}"
            )
        while self._applied[2] < found.commit_pos:
            self._apply_next()
            index, term, _pos = self._applied
            if term != self.entries.term_at(index):
                raise StoreDamaged(
                    f"entry {index} of the log in {self.log.directory} says that it is of term {term}: {REFILL}"
                )
        self._flusher = self._helpers.flusher(self._completions, self._flushed)
        self._host = EntryHost(self.log, self._flusher, self._preallocator)
        self._preallocator.begin(self.log.end_offset)
        self._storage = self._helpers.worker("ropewalk-kv-entries", self._completions)
        self.entries.begin(
            self._host,
            self._completions,
            self._storage,
            self._helpers.worker("ropewalk-kv-laggards", self._completions),
        )
        self.log.flushed_offset = found.commit_pos
        return found.findings

    def abandon(self) -> None:
        """Close a log that could not be opened."""
        self.log.close()

    def tick(self, now_ms: int) -> None:
        """Do the work of time: waiting orders, the note of the commit point, zeros ahead of the writer."""
        self.entries.tick(now_ms)
        self._preallocator.tick(now_ms)
        self._remove_retired()

    def close(self) -> None:
        """Put everything on disk. Blocks."""
        self._host.request_flush()
        self._flusher.stop()
        self._completions.run()
        self.entries.close()
        self._preallocator.stop()
        self._completions.run()
        self.log.close()

    def _flushed(self, offset: int) -> None:
        self._host.flushed_offset = offset
        self._claim_flushed()
        self.entries.flushed(offset)

    def _claim_flushed(self) -> None:
        """Count as flushed, for the log's files, what is on disk and applied: no cut takes that away."""
        claimed = min(self._host.flushed_offset, self._applied[2])
        self.log.flushed_offset = max(self.log.flushed_offset, claimed)

    # -- leading -----------------------------------------------------------------------------------------

    def lead(self, term: int, next_index: int) -> bool:
        """Open the log to `append` for this term. True: commands are judged when applied, so nothing is prepared."""
        if not self._leads:
            self.entries.writer.begin(term, next_index)
            self._leads = True
        return True

    def follow(self) -> None:
        """Close the log to `append`."""
        self._leads = False
        self._gathered, self._gathered_size = [], 0
        self.entries.writer.forget()

    def append_term_record(self, body: bytes) -> bool:
        """Append the entry that opens a term, or changes the members; False while there is no room."""
        return self._append(self._complete(body), configures=True) is not None

    def append(self, command: bytes) -> int | None:
        """Append a command as the leader, and return its index; None while there is no room for it.

        Commands of a turn are written together, once they are taken.
        """
        return self._append(command, configures=False)

    def _append(self, body: bytes, *, configures: bool) -> int | None:
        assert self._leads, "only a leader appends"
        size = entry_size(body, configures=configures)
        segment = self.log.segments[-1] if self.log.segments else None
        if segment is None or not segment.has_room_for(self._gathered_size + size):
            self._write_gathered()
            segment = self._segment_for(size)
            if segment is None:
                return None
        index = self.entries.writer.next_index + len(self._gathered)
        pos = segment.base_offset + segment.write_position + self._gathered_size
        self._gathered.append(encode_body(index, pos, body, configures=configures))
        self._gathered_size += size
        if self._gathered_size >= _GATHER_SIZE:
            self._write_gathered()
        return index

    def _write_gathered(self) -> None:
        if self._gathered:
            self.entries.writer(self.log.segments[-1], self._gathered)
            self._gathered, self._gathered_size = [], 0

    def _segment_for(self, size: int) -> Segment | None:
        log, host = self.log, self._host
        last = log.segments[-1] if log.segments else None
        if last is not None and last.has_room_for(size):
            return last
        base = last.end_offset if last is not None else 0
        self.full = self._preallocator.full
        is_ready = log.spare is not None and log.spare.base_offset == base
        if not is_ready or (last is not None and host.flushed_offset < last.base_offset):
            begun = host.next_segment(base)  # begins none, and has it made, or the log flushed
            assert begun is None, base
            return None
        if last is not None and last.write_position < last.size:
            last.seal()
        return host.next_segment(base)

    def take_appended(self, bytes_max: int) -> Sequence[WrittenRun]:
        """Return the runs appended since the last call, in order, as (first, count, term, pos, size, bytes)."""
        if not self._leads:
            return ()
        self._write_gathered()
        return self.entries.writer.take(bytes_max, self.log.segment_size)

    # -- the beginning of the log ------------------------------------------------------------------------

    @property
    def applied(self) -> LogPoint:
        """Return the log through the last entry that was applied."""
        return self._applied

    def retire_before(self, pos: int) -> None:
        """Let the log begin at the segment that holds this offset, or earlier if a start would read older entries."""
        log = self.log
        pos = min(pos, self.entries.noted[2], log.flushed_offset)
        count = sum(segment.end_offset <= pos for segment in log.segments[:-1])
        if count:
            self._retired += log.retire(count)
            self._remove_retired()

    def _remove_retired(self) -> None:
        """Remove the oldest segment that is retired, once no reader holds it: a crash leaves no gap in the log."""
        if self._retired and not self._is_removing and not self._retired[0].pins:
            self._is_removing = True
            self._storage.submit(partial(self._remove, self._retired.popleft()), self._removed)

    def _remove(self, segment: Segment) -> None:
        segment.file.close()
        self._disk.remove(segment.file.path)
        self._disk.sync_directory(self.log.directory)

    def _removed(self, _none: None) -> None:
        self._is_removing = False
        self._remove_retired()

    # -- applying ----------------------------------------------------------------------------------------

    def show_through(self, index: int, term: int, pos: int) -> LogPoint:
        """Apply the committed entries through this point, a turn's share of them; return the last applied one."""
        begin = self._applied
        while self._applied[2] < pos:
            if self._applied[0] - begin[0] >= _TURN_ENTRIES or self._applied[2] - begin[2] >= _TURN_BYTES:
                break
            self._apply_next()
        self._claim_flushed()
        # The state of a leader's snapshot is ahead of the log for a while.
        return self._applied if self._applied[0] <= index else (index, term, pos)

    def _apply_next(self) -> None:
        """Apply the entry behind the last applied one. HOT."""
        at = self._applied[2]
        found = self._entry_at(at)
        if found is None:
            at = self._behind_filler(at)
            found = self._entry_at(at)
        if found is None:
            raise StoreDamaged(
                f"there is no whole entry at offset {at} of the log in {self.log.directory}, which is committed: "
                f"{REFILL}"
            )
        index, term, size, command = found
        self._applied = index, term, at + size
        self._apply(index, term, command)

    def _entry_at(self, at: int) -> tuple[int, int, int, bytes] | None:
        segment = self.log.find(at)
        return read_entry(segment.map, at - segment.base_offset, at) if segment is not None else None

    def _behind_filler(self, at: int) -> int:
        """Return the offset of the next segment where a filler stands at this one; else this one."""
        segment = self.log.find(at)
        if segment is None:
            return at
        size = filler_size(
            segment.map[at - segment.base_offset : at - segment.base_offset + FILLER_HEAD_SIZE]
        )
        return segment.end_offset if size == segment.end_offset - at else at
