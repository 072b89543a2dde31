"""Carry out `ropewalk store epoch`: show or lower the epochs of a member of a group that is stopped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from broker.replication.role_files import read_roles, write_roles
from broker.state.json_file import StoreConfigDamaged
from ha.group.epochs import Epochs
from ha.group.lowering import lowered
from ha.group.roles import RoleRecord
from store.io.disk import Disk
from store.offline.reader import UnreadableStore
from tools.common.output import UsageError

__all__ = ["epochs_of", "lower_epochs"]


def epochs_of(root: Path) -> dict[str, Any]:
    """Return the role and the epochs of a store. Raises `UnreadableStore` where it has none of its own."""
    with _role(root) as (_disk, record, epochs):
        return _shown(record, epochs)


def lower_epochs(root: Path, bound: int) -> dict[str, Any]:
    """Lower every epoch of a store that is above `bound`; return its role and epochs. Raises as `epochs_of` does."""
    with _role(root) as (disk, record, epochs):
        try:
            record, epochs = lowered(record, epochs, bound)
        except ValueError as exc:
            raise UsageError(str(exc)) from exc
        write_roles(root / "ropewalk", disk, record, epochs)
        return _shown(record, epochs)


@contextmanager
def _role(root: Path) -> Iterator[tuple[Disk, RoleRecord, Epochs]]:
    """Hold the lock of a store while its role is read or changed. Raises `StoreLocked` while a broker has it open."""
    if not (root / "ropewalk").is_dir():
        raise UnreadableStore(f"cannot read {root}: no store of a Ropewalk broker is there")
    disk = Disk()
    try:
        lock = disk.lock(root / "lock")
        try:
            try:
                record, epochs = read_roles(root / "ropewalk", disk)
            except StoreConfigDamaged as exc:
                raise UnreadableStore(str(exc)) from exc
            if record is None:
                raise UnreadableStore(f"{root} has no role but that of its configuration: its epoch is 0")
            yield disk, record, epochs
        finally:
            disk.unlock(lock)
    finally:
        disk.close()


def _shown(record: RoleRecord, epochs: Epochs) -> dict[str, Any]:
    return {
        "role": record.role,
        "brokerId": record.broker_id,
        "leaderEpoch": record.leader_epoch,
        "promisedEpoch": record.promised_epoch,
        "promisedTo": record.promised_to,
        "logEpoch": epochs.entries[-1].epoch if epochs.entries else 0,
    }
