"""`checkpoint`: RocketMQ's file of the times up to which log, queue files and index are on disk.

The layout is `ropewalk.format.checkpoint`'s; here is what a store makes of a file that a crash left.
"""

from __future__ import annotations

from ropewalk.format.checkpoint import CHECKPOINT_SIZE, Checkpoint


def decode_checkpoint(data: bytes | None) -> Checkpoint:
    """Decode the file; a missing or short one says nothing, which costs time at a start and no message."""
    return Checkpoint.decode(data) if data is not None and len(data) >= CHECKPOINT_SIZE else Checkpoint()
