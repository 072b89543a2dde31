"""The remedy, in words, for damaged bytes of a log: they come from another copy, and how depends on the store."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from store.log.placing import Placing

REFILL: Final = (
    "move this member's store away, start it with an empty one, and have the others let it in by `ropewalk admin "
    "dledger readmit ID`: only while a majority of the group runs with whole stores, and one member at a time. Never "
    "start two with empty stores, which could be a majority that has forgotten everything: give them copies of a "
    "whole store (docs/operate/dledger.md)"
)
"""The advice for a member whose log cannot be used: the leader has all of it, while there is one."""

FILL: Final = (
    "start this member while most of the others run with whole stores: they fill the region again, and it votes there "
    f"when it has all. Else {REFILL}"
)
"""The advice for a member with a region of the key-value store that cannot be used."""

MEND: Final = (
    "start this member while others run: it takes those bytes from one of them before it votes again. Where none of "
    f"them has them, {REFILL}"
)
"""The advice for a member whose log has bytes that are not what was written."""


def bytes_from_a_copy(placing: Placing, root: Path) -> str:
    """Return the way to take the bytes of the store at `root` from another copy; a sentence without its full stop.

    `root` is of a plain store: a DLedger member mends its log itself.
    """
    if placing.head_size:
        return f"To have them from another member of the group, {MEND}"
    return f"`ropewalk store repair {root} --to COPY --from OTHER` takes them from a replica or a backup"
