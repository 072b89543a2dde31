"""The metric families of the key-value store: what a region holds, how long its log is, and how far it is applied.

They are served by every broker, and have values where a member of a DLedger group serves regions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from broker.kv.region import KvRegion
from broker.metrics.snapshot import GAUGE, Family

__all__ = ["kv_families"]

_TEXTS: Final = {
    "ropewalk_kv_leader": "1 where this member leads a region of the key-value store",
    "ropewalk_kv_keys": "Keys of a region",
    "ropewalk_kv_used_bytes": "Bytes that the state of a region counts as, of kvMemoryMax",
    "ropewalk_kv_memory_max_bytes": "The bound of that, kvMemoryMax",
    "ropewalk_kv_sessions": "Sessions of clients that a region knows, at most 10,000: too many from one address go",
    "ropewalk_kv_log_bytes": "The length of a region's log",
    "ropewalk_kv_replay_bytes": "The length of a region's log behind its newest snapshot, which a start applies",
    "ropewalk_kv_snapshot_failing": "1 where the last snapshot of a region could not be written",
    "ropewalk_kv_unapplied_entries": "Committed entries of a region that this member has not applied",
    "ropewalk_kv_waiting": "Writes that wait for a quorum",
}


def kv_families(regions: Iterable[KvRegion]) -> list[Family]:
    """Return the families of the regions of a member; without values where there are none."""
    found = [(str(region.machine.region.id), _values(region)) for region in regions]
    return [
        Family(name, GAUGE, text, ("region",), [((label,), float(values[at])) for label, values in found])
        for at, (name, text) in enumerate(_TEXTS.items())
    ]


def _values(region: KvRegion) -> tuple[float, ...]:
    machine, ledger = region.machine, region.ledger
    return (
        region.leads, len(machine.values), machine.used_bytes, machine.memory_max, len(machine.sessions),
        region.log_bytes, region.replay_bytes, bool(region.snapshots.failure),
        max(ledger.core.log.commit.index - machine.applied, 0), region.waiting,
    )  # fmt: skip
