"""`ConfigurationRecords`: configurations that a leader has still to append, as the core asks for them.

The first entry of a term carries the configuration, and every change is one. Either is a run of its own, behind what
was appended before, and waits where the disk has no room; a term's first entry also waits until the store is prepared
to append, a part in each turn.
"""

from __future__ import annotations

from collections.abc import Callable

from ha.dledger.members.configurations import Configurations
from ha.dledger.storage import ReplicaStore
from ha.raft.types import Config, MemberId
from ropewalk.format.dledger.configuration import encode_configuration

__all__ = ["ConfigurationRecords"]


class ConfigurationRecords:
    """The configuration of a term that is to begin, and of a change that is to be made."""

    def __init__(
        self,
        me: MemberId,
        configurations: Configurations,
        replica: ReplicaStore,
        drain: Callable[[], None],
        tell_appended: Callable[[Config], None],
    ) -> None:
        """Begin with none. `drain` tells the core what was appended; `tell_appended` the one entry of a configuration.

        Until then the core does not know of that entry: the end of its log is in front of it.
        """
        self.opening: Config | None = None
        """The configuration of the term whose first entry is still to be appended."""
        self.changing: Config | None = None
        """A configuration whose entry is still to be appended."""
        self.lacks_room = False
        """Whether such an entry waits for room on the disk, which each tick looks for again."""
        self._me = me
        self._configurations = configurations
        self._replica = replica
        self._drain = drain
        self._tell_appended = tell_appended

    def forget(self) -> None:
        """Forget the configurations that are still to be appended: this member leads no more, or another term."""
        self.opening = self.changing = None

    def append(self, end: Callable[[], tuple[int, int]]) -> None:
        """Append the configuration that is due, if that is possible.

        `end` returns the core's term, and the index of its last entry.
        """
        if (config := self.opening) is not None:
            term, index = end()
            if self._replica.lead(term, index + 1) and self._append(config, term, index):
                self.opening = None
        elif (config := self.changing) is not None:
            self._drain()
            if self.changing is config and self._append(config, *end()):
                self.changing = None

    def _append(self, config: Config, term: int, index: int) -> bool:
        """Append the record of a configuration, a run of its own. False: there is no room yet."""
        found = self._configurations.record(config, term, self._me)
        self.lacks_room = not self._replica.append_term_record(encode_configuration(found))
        if self.lacks_room:
            return False
        self._configurations.add(index + 1, found)
        self._tell_appended(config)
        return True
