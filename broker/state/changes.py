"""The names of a table's entries that changed last, by the generation of the table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

__all__ = ["CHANGES_MAX", "Changes"]

CHANGES_MAX: Final = 1_000
"""Changed entries that are remembered; for one who has heard of none of them, all may have changed."""


class Changes:
    """The last changes of one table: who looked at it in a generation is told what is different since."""

    def __init__(self) -> None:
        self._changed: dict[str, int] = {}
        """Name -> the generation in which its entry was changed or removed last, the newest at the end."""
        self._begin = 0
        """The generation behind which all changes are known."""

    def note(self, names: Iterable[str], generation: int) -> None:
        """Note the entries that are different, or gone, in this generation of the table."""
        for name in names:
            self._changed.pop(name, None)
            self._changed[name] = generation
        while len(self._changed) > CHANGES_MAX:
            self._begin = self._changed.pop(next(iter(self._changed)))

    def note_all(self, generation: int) -> None:
        """Note that all entries may be different."""
        self._changed.clear()
        self._begin = generation

    def since(self, generation: int) -> list[str] | None:
        """Return the entries that were changed or removed after a generation; None: all of them may have been."""
        if generation < self._begin:
            return None
        changed = []
        for name in reversed(self._changed):
            if self._changed[name] <= generation:
                break
            changed.append(name)
        return changed
