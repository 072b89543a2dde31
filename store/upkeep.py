"""`Upkeep`: the work that goes on beside the log: key index, retention, checksums and the scrubber that reads them.

Each of them is optional, has a helper thread or process of its own, and is told by `tick` how far it may go:

    index       messages that consumers may see                 (`readable`)
    cleaner     what is on disk, and in a snapshot of a group    (`flushed`, `removable`)
    checksums   what is on disk, so that no sum covers bytes that a crash changes

What they find is kept until somebody asks (`take_findings`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ropewalk.format.queue_entry import ENTRY_SIZE
from store.config import StoreConfig
from store.index.file import IndexPlace
from store.index.helper import KeyIndex, ProcessIndex, WorkerIndex
from store.integrity.block_repair import Damage
from store.integrity.checksums import Checksums
from store.integrity.scrubber import Scrubber
from store.io.disk import Disk
from store.io.workers import Completions, Helpers
from store.log.commitlog import CommitLog
from store.queues.queue_table import QueueTable
from store.retention.cleaner import Cleaner

__all__ = ["Upkeep"]


class Upkeep:
    """The key index, the cleaner, the checksums and the scrubber of one store."""

    def __init__(
        self,
        config: StoreConfig,
        log: CommitLog,
        queues: QueueTable,
        disk: Disk,
        now_ms: Callable[[], int],
        helpers: Helpers,
        completions: Completions,
    ) -> None:
        """Begin nothing yet: `open` does, when the log is what is true."""
        self.index: KeyIndex | None = None
        """The key index, while the store is open and has one."""
        self.checksums: Checksums | None = None
        self.damage: Damage | None = None
        """The known damage; None where nothing is under checksums."""
        self.cleaner: Cleaner | None = None
        self.scrubber: Scrubber | None = None
        self._config = config
        self._log = log
        self._queues = queues
        self._disk = disk
        self._now_ms = now_ms
        self._helpers = helpers
        self._completions = completions
        self._missing_said: set[Path] = set()
        if config.checksum_block:
            directory = config.root / "ropewalk" / "checksums"
            self.checksums = Checksums(directory, config.checksum_block, log, disk)
            self.damage = Damage(log, self.checksums)

    # -- open ----------------------------------------------------------------------------------------

    def open(
        self,
        readable: int,
        end: int,
        remove_files: Callable[[int, Sequence[Path]], None],
        index_checkpoint_ms: int,
        *,
        abnormal: bool,
    ) -> None:
        """Begin with a recovered log that is durable through `end`; `abnormal`: after a crash."""
        self._open_index(readable, index_checkpoint_ms, abnormal=abnormal)
        self._open_checksums(end)
        if self._config.retention is not None:
            self.cleaner = Cleaner(
                self._config.retention,
                self._log,
                self._queues.by_topic,
                self._queues.directory,
                self._disk,
                self._helpers.worker("ropewalk-cleaner", self._completions),
                self._now_ms,
                remove_files,
                self.checksums.directory if self.checksums is not None else None,
            )

    def _open_index(self, readable: int, checkpoint_ms: int, *, abnormal: bool) -> None:
        config = self._config
        if config.index is None:
            return
        place = IndexPlace(
            config.root / "index",
            config.log_directory,
            config.segment_size,
            config.index,
            config.root / "ropewalk" / "index.lock",
            self._log.placing.head_size,
        )
        if config.index_in_process:
            self.index = ProcessIndex(place, self._disk, self._now_ms, self._completions)
        else:
            worker = self._helpers.worker("ropewalk-index", self._completions)
            self.index = WorkerIndex(place, self._disk, self._now_ms, worker)
        self.index.start(readable, self._log.min_offset, checkpoint_ms, abnormal=abnormal)

    def _open_checksums(self, end: int) -> None:
        if self.checksums is None or self.damage is None:
            return
        self.checksums.begin(end)
        worker = self._helpers.worker("ropewalk-checksums", self._completions)
        self.checksums.start(worker)
        config = self._config
        if config.scrub_bytes_per_second > 0:
            self.scrubber = Scrubber(
                self._log,
                self.checksums,
                config.scrub_bytes_per_second,
                config.checksum_block,
                worker,
                self.damage.collect_reported,
            )

    # -- the work of time ----------------------------------------------------------------------------

    def tick(self, now: int, readable: int, flushed: int, removable: int) -> None:
        """Hand out due work; nothing behind `removable` is removed, however old."""
        if self.index is not None:
            self.index.follow(readable, self._log.min_offset)
        if self.cleaner is not None:
            self.cleaner.tick(min(flushed, removable))
        if self.checksums is not None:
            self.checksums.tick(flushed)
        if self.damage is not None:
            self.damage.collect_reported()
        if self.scrubber is not None:
            self.scrubber.tick(now, flushed)

    def remove_expired(self) -> None:
        """Have segments that are older than they are kept go soon, and not only in their hours."""
        if self.cleaner is not None:
            self.cleaner.remove_expired()

    def look_for_damage(self, done: Callable[[bool], None]) -> None:
        """Tell, soon, whether places of the log are known to be damaged; where none is, look for them."""
        checksums, damage = self.checksums, self.damage
        if checksums is None or damage is None or len(damage):
            done(damage is not None and len(damage) > 0)
            return

        def compared() -> None:
            damage.collect_reported()
            done(len(damage) > 0)

        checksums.compare(compared)

    # -- what people are told ------------------------------------------------------------------------

    @property
    def removed_files(self) -> int:
        """Return the number of this store's files that something else removed while they were in use."""
        segments = self.cleaner.removed_files if self.cleaner is not None else 0
        return segments + len(self._missing_said)

    def take_findings(self) -> list[str]:
        """Return the findings of index, retention and checksums since the last time."""
        findings = list(self._missing_queue_files())
        for source in (self.index, self.cleaner, self.checksums, self.scrubber):
            if source is not None and source.findings:
                findings += source.findings
                source.findings.clear()
        return findings

    def _missing_queue_files(self) -> Iterator[str]:
        """Say which queue files were missed since the last time, each once."""
        base = self._queues.directory
        missing = self._disk.missing
        while missing:
            path = missing.popleft()
            if path in self._missing_said or path.parent.parent.parent != base or not path.name.isdigit():
                continue
            queue = self._queues.find(path.parent.parent.name, int(path.parent.name))
            if queue is None or int(path.name) < queue.first * ENTRY_SIZE:
                continue  # a read that was slower than retention, or than the deletion of a topic
            self._missing_said.add(path)
            yield (
                f"{path} was removed by something else while it was in use: messages of queue {queue.queue_id} of "
                f"topic {queue.topic} are not found through it. They are in the commit log: the next start builds it "
                f"again"
            )

    # -- close ---------------------------------------------------------------------------------------

    def close(self, readable: int, flushed: int) -> None:
        """Stop all of it, with the log on disk through `flushed`. Blocks."""
        if self.index is not None:
            self.index.stop(readable, self._log.min_offset)
        if self.checksums is not None:
            self.checksums.stop()
            self._completions.run()
        if self.cleaner is not None:
            self.cleaner.close()
        if self.checksums is not None:
            self.checksums.finish(flushed)
