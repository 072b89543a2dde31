"""Carry out `ropewalk store epoch`: show or lower the epochs of a member of a group that is stopped.

A store without epochs is told in words and is no error: a broker that never had another role than its configured one,
a member of a DLedger group, which has terms, and a RocketMQ broker.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from broker.replication.role_files import read_roles, write_roles
from broker.state.json_file import StoreConfigDamaged
from ha.group.epochs import Epochs
from ha.group.lowering import highest_epoch, lowered
from ha.group.roles import RoleRecord
from store.entries.files import LedgerFiles
from store.io.disk import Disk
from store.offline.reader import UnreadableStore, is_entry_log, log_folder
from tools.common.output import UsageError

__all__ = ["epochs_of", "lower_epochs", "without_epochs"]

_GROUP, _ALONE, _DLEDGER, _ROCKETMQ = "group", "alone", "dledger", "rocketmq"
_WITHOUT = {
    _ALONE: "this broker has no role but that of its configuration: its epoch is 0",
    _DLEDGER: "this is the store of a DLedger member: its group elects its leader, and has terms instead of epochs",
    _ROCKETMQ: "this is the store of a RocketMQ broker, which keeps no epochs",
}


def without_epochs(found: dict[str, Any]) -> str | None:
    """Return in words why a store has no epochs; None where it has."""
    return _WITHOUT.get(found["kind"])


def epochs_of(root: Path) -> dict[str, Any]:
    """Return the kind of a store, and its role and epochs or its term. Raises `UnreadableStore` where none is there."""
    with _opened(root) as (disk, kind):
        if kind == _DLEDGER:
            return {"kind": kind, "term": _term(root, disk)}
        if kind == _ROCKETMQ:
            return {"kind": kind}
        record, epochs = _read(root, disk)
        return _shown(record, epochs)


def lower_epochs(root: Path, bound: int) -> dict[str, Any]:
    """Lower every epoch of a store that is above `bound`; return its role and epochs.

    Raises `UsageError` where the bound cannot be, or none is above it, and as `epochs_of` does.
    """
    with _opened(root) as (disk, kind):
        record, epochs = _read(root, disk) if kind == _GROUP else (None, Epochs())
        if record is None:
            words = _WITHOUT.get(kind, _WITHOUT[_ALONE])
            raise UsageError(f"{words}. There is nothing to lower, and nothing was changed")
        highest = highest_epoch(record, epochs)
        if bound > highest:
            raise UsageError(
                f"no epoch of this store is above {bound}: the highest is {highest}. There is nothing to lower, and "
                "nothing was changed"
            )
        try:
            record, epochs = lowered(record, epochs, bound)
        except ValueError as exc:
            raise UsageError(str(exc)) from exc
        write_roles(root / "ropewalk", disk, record, epochs)
        return _shown(record, epochs)


@contextmanager
def _opened(root: Path) -> Iterator[tuple[Disk, str]]:
    """Hold the lock of a store, and tell its kind. Raises `StoreLocked` while a broker has it open."""
    folder = log_folder(root)
    is_ledger = is_entry_log(folder)
    if not (root / "ropewalk").is_dir():
        if folder == root or not folder.is_dir():
            raise UnreadableStore(f"cannot read {root}: no store of a broker is there")
        yield Disk(), _DLEDGER if is_ledger else _ROCKETMQ
        return
    disk = Disk()
    try:
        lock = disk.lock(root / "lock")
        try:
            yield disk, _DLEDGER if is_ledger else _GROUP
        finally:
            disk.unlock(lock)
    finally:
        disk.close()


def _read(root: Path, disk: Disk) -> tuple[RoleRecord | None, Epochs]:
    try:
        return read_roles(root / "ropewalk", disk)
    except StoreConfigDamaged as exc:
        raise UnreadableStore(str(exc)) from exc


def _term(root: Path, disk: Disk) -> int:
    """Return the term in which a DLedger member is; 0 for one that has not voted yet."""
    member = log_folder(root).parent
    ballot = LedgerFiles(member, root / "ropewalk" / "dledger", disk).load_ballot()
    return ballot[0] if ballot is not None else 0


def _shown(record: RoleRecord | None, epochs: Epochs) -> dict[str, Any]:
    log_epoch = epochs.entries[-1].epoch if epochs.entries else 0
    if record is None:
        return {"kind": _ALONE, "logEpoch": log_epoch}
    return {
        "kind": _GROUP,
        "role": record.role,
        "brokerId": record.broker_id,
        "leaderEpoch": record.leader_epoch,
        "promisedEpoch": record.promised_epoch,
        "promisedTo": record.promised_to,
        "logEpoch": log_epoch,
    }
