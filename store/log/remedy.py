"""The remedy, in words, for damaged bytes of a log: they come from another copy, and how depends on the store."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from store.log.placing import Placing

COPY_OF_A_MEMBER: Final = (
    "stop another member, put a copy of its store in the place of this one (its log under this member's own dledger-ID "
    "name, without `ropewalk/dledger/identity`), and start both"
)


def bytes_from_a_copy(placing: Placing, root: Path) -> str:
    """Return the way to take the bytes of the store at `root` from another copy; a sentence without its full stop.

    `root` is of a plain store: the log of a DLedger member is not repaired in place.
    """
    if placing.head_size:
        return f"To have them from another member of the group, {COPY_OF_A_MEMBER}"
    return f"`ropewalk store repair {root} --to COPY --from OTHER` takes them from a replica or a backup"
