"""A store that is closed for a moment, because its log has a part of its own: that is kept aside, and room awaited."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TypeVar

import structlog
import trio

from broker.replication.group_member import LogCut
from broker.settings.config import BrokerConfig
from store.io.disk import Disk, DiskFull
from store.offline.diverged import cut_store, empty_store

__all__ = ["keep_aside", "when_room"]

log = structlog.get_logger("broker.process")

_T = TypeVar("_T")

_ROOM_S = 2.0


async def when_room(job: Callable[[], _T]) -> _T:
    """Do a job of a store off the loop, again and again for as long as the disk has no room for it."""
    is_told = False
    while True:
        try:
            done = await trio.to_thread.run_sync(job)
        except (DiskFull, OSError) as exc:
            if isinstance(exc, OSError) and exc.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            if not is_told:
                log.error(
                    "no room on the disk to open the store again: nobody is served meanwhile",
                    reason=str(exc),
                    remedy="make room; it goes on by itself",
                )
            is_told = True
            await trio.sleep(_ROOM_S)
        else:
            if is_told:
                log.info("there is room to open the store again")
            return done


def keep_aside(config: BrokerConfig, cut: LogCut) -> None:
    """Cut the log of a store that is closed, and keep the bytes that its leader lacks in a folder. Blocks."""
    about = cut.about
    root, directory = config.store_path_root_dir, config.store_path_commit_log
    disk = Disk()
    try:
        if cut.everything:
            kept = empty_store(root, directory, about, disk)
        else:
            kept = cut_store(root, directory, config.mapped_file_size_commit_log, about, disk)
    finally:
        disk.close()
    log.warning("what the master does not have is kept", path=str(kept))
