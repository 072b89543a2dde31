"""`StoreConfig`: the sizes, times and directories of a store."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ropewalk.format.index import Geometry
from store.recovery.delay_levels import DEFAULT_LEVELS, DelayLevels
from store.retention.rules import RetentionRules

__all__ = ["StoreConfig"]


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Sizes in bytes, times in ms. `store_host` is the encoded address that clients can reach."""

    root: Path
    log_directory: Path
    store_host: bytes
    segment_size: int = 1 << 30
    queue_file_size: int = 6_000_000
    sync_flush: bool = False
    flush_interval_ms: int = 500
    queue_flush_interval_ms: int = 1000
    warm_window: int = 256 << 20
    fill_window: int = 32 << 20
    fill_idle: int = 4 << 20
    """How far zeros are written ahead of the log's end under SYNC_FLUSH: at most, and while nothing is sent."""
    delay_levels: DelayLevels = DEFAULT_LEVELS
    index: Geometry | None = None
    """The shape of the key index; None builds none."""
    index_in_process: bool = True
    """Whether a process of its own builds it, or a helper thread."""
    retention: RetentionRules | None = None
    """None keeps everything, however full the disk is."""
    checksum_block: int = 0
    """Bytes under one checksum of the log; 0 makes none and looks at none."""
    check_at_start: int = 0
    """How much of the log's end is checked before a start believes it, records and queue entries alike."""
    scrub_bytes_per_second: int = 0
    """The read rate of the scrubber, in bytes a second; 0 starts none."""
    ledger: Path | None = None
    """The directory of a log of entries, of DLedger mode; None is a plain store."""
