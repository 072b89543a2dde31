"""Lower the epochs of a member that took one which no group comes to, so that its group can change its master again.

    promises above the bound        forgotten
    the role of an epoch above it   of the bound's epoch
    a part of the log above it      of the bound's epoch, from where it began

It is safe only while no member of the group runs, and if every member of it is lowered to the same epoch: a promise
holds two masters apart, and this takes promises back that their operators may count on.
"""

from __future__ import annotations

import msgspec

from ha.group.epochs import EpochEntry, Epochs
from ha.group.roles import RoleRecord

__all__ = ["highest_epoch", "lowered"]


def highest_epoch(record: RoleRecord, epochs: Epochs) -> int:
    """Return the highest epoch of a member: of its promise, of its role, of its log."""
    return max(record.promised_epoch, record.leader_epoch, *(entry.epoch for entry in epochs.entries))


def lowered(record: RoleRecord, epochs: Epochs, bound: int) -> tuple[RoleRecord, Epochs]:
    """Return the role and the epochs of a member with none above `bound`. Raises ValueError for a bound too low."""
    if bound < 0:
        raise ValueError(f"there is no epoch {bound}")
    kept = tuple(entry for entry in epochs.entries if entry.epoch <= bound)
    above = epochs.entries[len(kept) :]
    least = (kept[-1].epoch if kept else 0) + 1
    if (above or record.leader_epoch > bound) and bound < least:
        raise ValueError(
            f"epoch {bound} wrote a part of this log already: what was written later has to be of epoch {least} "
            "or above"
        )
    leader_epoch = min(record.leader_epoch, bound)
    promised = record.promised_epoch if record.promised_epoch <= bound else leader_epoch
    new = msgspec.structs.replace(
        record,
        leader_epoch=leader_epoch,
        promised_epoch=promised,
        promised_to=record.promised_to if promised == record.promised_epoch else "",
        superseded=tuple(each for each in record.superseded if leader_epoch < each[0] < promised),
    )
    return new, Epochs((*kept, EpochEntry(bound, above[0].start))) if above else epochs
