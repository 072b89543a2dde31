"""`TableSaver`: the tables of a broker on disk, and the settings that were changed while it ran in their file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from pathlib import Path
from typing import Final

import structlog
import trio

from broker.settings.config import keep_settings
from broker.state import json_file
from broker.state.json_text import TextSlices
from broker.turns import in_turns

__all__ = ["Kept", "TableSaver"]

log = structlog.get_logger("broker.process")

Kept = Callable[[str | None], None]
"""Callback for a change that is on disk (None), or cannot be kept at the moment (the reason)."""
Dumps = Mapping[Path, tuple[int, Callable[[], TextSlices]]]
"""By file: the version of a table, and its content, which is written between the turns of others."""
_BYTES_PER_S: Final = 8 << 20
"""Bytes of tables that are written in a second at most for changes that nobody waits for: a table of five megabytes is
not written again at once for each new topic."""


class TableSaver:
    """The files of a broker's tables, as far as they are behind the tables."""

    def __init__(self, config_file: Path | None) -> None:
        """Begin with no table written; changed settings are kept in `config_file`."""
        self._config_file = config_file
        self._saved: dict[Path, int] = {}
        self._waiting: dict[Path, list[tuple[int, Kept]]] = {}
        """By file: those that wait for a version of its table to be on disk."""
        self._failing: set[Path] = set()
        """Files that could not be written when that was tried last, which is told once."""
        self._soon = trio.Event()
        self._urgent = trio.Event()
        """Set while a caller waits for the next write."""
        self._free_at = -inf
        """Until then the tables that were written last are young enough, if nobody waits for one."""
        self._settings: dict[str, str] = {}
        """Settings that were changed while running, and are not in the file yet."""

    def save_soon(self) -> None:
        """Have changes written soon, and not only when the interval is over."""
        self._soon.set()

    def when_kept(self, path: Path, version: int, kept: Kept) -> None:
        """Write a table soon; call `kept` when this version of it is on disk, or cannot be written."""
        self._waiting.setdefault(path, []).append((version, kept))
        self._soon.set()
        self._urgent.set()

    def keep(self, changes: dict[str, str]) -> None:
        """Have changed settings be written to the configuration file."""
        if self._config_file is None:
            log.warning("there is no configuration file to keep the change in: it ends with this process")
            return
        self._settings.update(changes)
        self._soon.set()
        self._urgent.set()

    def forget(self) -> None:
        """Forget which tables are written: another broker has tables of its own."""
        self._saved.clear()
        self._waiting.clear()

    async def wait(self, interval_s: float) -> None:
        """Wait until something is to be written soon, or the interval is over."""
        with trio.move_on_after(interval_s):
            await self._soon.wait()
        if not self._is_urgent:
            with trio.move_on_at(self._free_at):
                await self._urgent.wait()
        self._soon, self._urgent = trio.Event(), trio.Event()

    @property
    def _is_urgent(self) -> bool:
        return bool(self._waiting or self._settings)

    async def save_settings(self) -> None:
        """Write the changed settings; where that fails it is tried again later."""
        settings, self._settings = self._settings, {}
        if settings and self._config_file is not None:
            try:
                await trio.to_thread.run_sync(keep_settings, self._config_file, settings)
            except OSError as exc:
                log.error("cannot keep changed settings", path=str(self._config_file), reason=str(exc))
                self._settings = settings | self._settings

    async def save_tables(self, dumps: Dumps) -> None:
        """Write the tables that have changed; one that cannot be written is tried again later."""
        for path, (version, dump) in dumps.items():
            reason = None
            if self._saved.get(path) != version:
                data = await in_turns(dump())
                self._free_at = max(self._free_at, trio.current_time()) + len(data) / _BYTES_PER_S
                try:
                    await trio.to_thread.run_sync(json_file.save, path, data)
                except OSError as exc:
                    # The older generation is whole; what could not be written is tried again at the next round.
                    reason = exc.strerror or str(exc)
                    self._tell_failure(path, exc)
                else:
                    self._saved[path] = version
                    if path in self._failing:
                        self._failing.remove(path)
                        log.info("a config file is written again", path=str(path))
            if path in self._waiting:
                self._tell_waiting(path, version, reason)

    def _tell_failure(self, path: Path, exc: OSError) -> None:
        if path not in self._failing:
            self._failing.add(path)
            log.error(
                "cannot write a config file",
                path=str(path),
                reason=str(exc),
                meaning="a restart forgets what changed since it was written last, topics made by a send included",
                remedy="make room; it is tried again by itself",
            )

    def _tell_waiting(self, path: Path, version: int, reason: str | None) -> None:
        waiting = self._waiting.pop(path)
        later = [each for each in waiting if each[0] > version]
        if later:
            self._waiting[path] = later
        for wanted, kept in waiting:
            if wanted <= version:
                kept(reason)
