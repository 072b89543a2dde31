"""`Configurations`: the configurations that one member's log names, by the index of their entries.

The newest is in force from the moment its entry is in the log, and again until a cut takes it away. Links come and go
with it, and the storage keeps the rows so that a start needs no scan. A configuration is a run of its own in every
log, so a run that is read for a peer ends in front of the next one (`first_part`).

A region (`group` not 0) shares the links of the first group, and has rows of its own. They note which configuration of
the first group they follow (`ropewalk.format.dledger.configuration`).
"""

from __future__ import annotations

from bisect import bisect_left

from ha.dledger.links.address_book import Membership
from ha.dledger.links.frames import config_of
from ha.dledger.links.peers import Peers
from ha.dledger.storage import LogStorage
from ha.raft.types import Config, MemberId, Run
from ropewalk.format.dledger.configuration import Configuration
from ropewalk.format.dledger.entry import decode_head

__all__ = ["Configurations"]


class Configurations:
    """The configurations in a member's log, and the one in force."""

    def __init__(self, first: Config, group: int, storage: LogStorage, peers: Peers) -> None:
        """Begin with the rows of an opened log; `first` is in force while the log names none."""
        self.first = first
        """The configuration while the log names none."""
        self.has_store = False
        """Whether the records that this member writes say that the group has a key-value store."""
        self.following = -1
        """Of a region: the index that the change under way follows; -1 if there is none."""
        self._group = group
        self._storage = storage
        self._peers = peers
        self._rows = list(storage.configurations)
        if self._rows:
            self._publish()

    @property
    def current(self) -> Config:
        """Return the configuration in force."""
        return config_of(self._rows[-1][1]) if self._rows else self.first

    @property
    def newest(self) -> Configuration | None:
        """Return the newest configuration in the log; None if it names none."""
        return self._rows[-1][1] if self._rows else None

    @property
    def of_store(self) -> tuple[int, Configuration | None]:
        """Return the first configuration that says that the group has a key-value store, and its index."""
        return next((row for row in self._rows if row[1].store), (-1, None))

    @property
    def follows(self) -> int:
        """Return the index of the configuration of the first group that a region follows; -1: it began with it."""
        return self._rows[-1][1].follows if self._rows else -1

    @property
    def addresses(self) -> dict[MemberId, str]:
        """Return the members of the configuration in force and their addresses."""
        return {id: self._peers.book.address(id) for id in self.current.members}

    @property
    def rows(self) -> list[tuple[int, Config]]:
        """Return the configurations as the core knows them."""
        return [(index, config_of(each)) for index, each in self._rows]

    def record(self, config: Config, term: int, me: MemberId) -> Configuration:
        """Return the record of a new configuration, with the addresses of its members."""
        return Configuration(
            term,
            me,
            config.voters,
            config.old,
            config.learners,
            {id: self._peers.book.address(id) for id in config.members},
            dict(config.incarnations),
            store=self.has_store or self.of_store[1] is not None,
            follows=max(self.follows, self.following),
        )

    def add(self, index: int, found: Configuration) -> None:
        """Note a configuration that the log has now."""
        self._rows.append((index, found))
        self._publish()

    def cut(self, index: int) -> None:
        """Go back to the configuration in front of a cut, which left `index` as the last entry."""
        kept = [each for each in self._rows if each[0] <= index]
        if len(kept) < len(self._rows):
            self._rows = kept
            self._publish()

    def first_part(self, run: Run, data: bytes | memoryview) -> tuple[Run, bytes | memoryview]:
        """Return the part of a run in front of the next configuration, or the entry of that one alone."""
        rows = self._rows
        at = bisect_left(rows, run.first, key=lambda row: row[0])
        if at == len(rows) or rows[at][0] > run.last:
            return run, data
        index, found = rows[at]
        config = config_of(found) if index == run.first else None
        entries, size = max(index - run.first, 1), 0
        for _ in range(entries):
            size += decode_head(data, size).size
        return Run(run.first, entries, run.term, run.pos, size, config), data[:size]

    def _publish(self) -> None:
        """Have links come and go with the configuration in force."""
        self._storage.configured(self._rows)
        index, told = (self._rows[-1][0], self._rows[-1][1].addresses) if self._rows else (-1, {})
        book = self._peers.book
        if self._group:
            book.tell_strangers(told)
            return
        self._peers.configure(
            Membership(index, {id: told.get(id) or book.address(id) for id in self.current.members})
        )
