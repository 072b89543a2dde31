"""Digests of the bytes in front of a log offset, by which a position in a store's log knows the log again.

A log never changes: other bytes there are another store under that name, or a tail that was cut and written anew.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

from ropewalk.spark.store.files import Store

__all__ = ["tail_of", "tails_of"]

_SIZE: Final = 256


def tail_of(store: Store, end: int) -> str | None:
    """Return a digest of the bytes in front of an offset. Blocks.

    None where the log does not hold them any more, or not yet, and at the beginning of a segment, where a filler is in
    front, which is the same in every log.
    """
    segment = store.segment_at(end - 1)
    if segment is None or end == segment.end_offset:
        return None
    start = max(segment.base_offset, end - _SIZE)
    try:
        with open(segment.path, "rb") as opened:
            data = os.pread(opened.fileno(), end - start, start - segment.base_offset)
    except FileNotFoundError:
        return None
    if len(data) < end - start or not any(data):
        return None
    return blake2b(data, digest_size=8).hexdigest()


def tails_of(stores: Mapping[str, Store], ends: Mapping[str, int]) -> dict[str, str]:
    """Return the digests of several logs by their keys; those that have none are missing. Blocks."""
    found = {key: tail_of(stores[key], end) for key, end in sorted(ends.items()) if key in stores}
    return {key: tail for key, tail in found.items() if tail is not None}
