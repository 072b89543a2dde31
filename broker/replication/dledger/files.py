"""Refuse a store of the other mode: records side by side are no log of entries, and entries are no plain log.

    <root>/commitlog/<20 digits>             a plain store, or its `storePathCommitLog`
    <root>/dledger-<member>/data/<20 digits> a member's log of entries, or its `storePathDLedgerCommitLog`

A broker started in the wrong mode would begin an empty log beside the full one, and nobody would miss a message until
a consumer does. So the start is refused, with the ways out.
"""

from __future__ import annotations

from pathlib import Path

from broker.settings.config import BrokerConfig
from ropewalk.errors import RopewalkError

__all__ = ["WrongMode", "refuse_other_mode"]

_SEGMENT_NAME_SIZE = 20


class WrongMode(RopewalkError):
    """The store was written in the other mode, or by another member."""


def refuse_other_mode(config: BrokerConfig) -> None:
    """Raise `WrongMode` where the store's root holds a log that this broker would not open. Blocks."""
    root = config.store_path_root_dir
    if config.enable_d_leger_commit_log:
        plain = root / "commitlog"
        if plain != config.store_path_commit_log and _has_log(plain):
            raise WrongMode(
                f"{plain} holds the log of a plain broker, which DLedger mode does not read: its members would "
                "begin with an empty log. To go on as before, leave enableDLegerCommitLog out. To move, start the "
                "group beside this broker with another storePathRootDir, have producers send there, and stop this one "
                "when its consumers have reached the end"
            )
        if (root / "ropewalk" / "role.json").exists():
            raise WrongMode(
                f"{root / 'ropewalk' / 'role.json'} says that this store belongs to a group of master and slaves: a "
                "member of a DLedger group needs a storePathRootDir of its own"
            )
    others = [each for each in _members(root) if each != config.store_path_commit_log and _has_log(each)]
    if others and not _has_log(config.store_path_commit_log):
        if config.enable_d_leger_commit_log:
            raise WrongMode(
                f"{others[0]} holds the log of another member: dLegerSelfId = {config.d_leger_self_id} would begin "
                "with an empty one. Give each member a storePathRootDir of its own, or this one its old dLegerSelfId"
            )
        raise WrongMode(
            f"{others[0]} holds the log of a member of a DLedger group, which a plain broker does not read. Start it "
            "with enableDLegerCommitLog = true, dLegerPeers and dLegerSelfId as before. To move, start a plain broker "
            "beside it with another storePathRootDir, have producers send there, and stop this one when its consumers "
            "have reached the end"
        )


def _members(root: Path) -> list[Path]:
    return sorted(each / "data" for each in root.glob("dledger-*") if each.is_dir())


def _has_log(directory: Path) -> bool:
    if not directory.is_dir():
        return False
    return any(len(each.name) == _SEGMENT_NAME_SIZE and each.name.isdecimal() for each in directory.iterdir())
