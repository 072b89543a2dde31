"""`GroupMembers`: the members of one group, as a member of it has them in its process.

    a group without a configuration in its log   --found-->   the members that every member begins with
    leader   --change, following-->   core   --a record in the log-->   configurations   -->   in force
    first group   --founding, settled-->   the groups that share its links

Nothing is decided here: a change is asked of the core, which answers when it is on a quorum.
"""

from __future__ import annotations

from collections.abc import Callable

from ha.dledger.callbacks import Callbacks
from ha.dledger.links.frames import config_of
from ha.dledger.links.peers import Peers
from ha.dledger.members.changes import Change, target_of
from ha.dledger.members.configurations import Configurations
from ha.dledger.members.following import Following
from ha.dledger.storage import LogStorage
from ha.raft.node import RaftNode
from ha.raft.types import UNKNOWN, ChangeAsked, ChangeResult, Config, Event, Founded
from ropewalk.format.dledger.configuration import Configuration

__all__ = ["GroupMembers"]


class GroupMembers:
    """The configurations in the log of a group, and the changes that its leader was asked for."""

    def __init__(
        self,
        first: Config,
        group: int,
        storage: LogStorage,
        peers: Peers,
        core: Callable[[], RaftNode],
        tell: Callable[[Event], None],
        now: Callable[[], int],
        wake: Callable[[], None],
    ) -> None:
        """Begin with the rows of an opened log; `first` is in force while the log names none.

        `core` returns the core of the member, and `tell` tells it an event; `wake` has the owner end a turn soon.
        """
        self.configurations = Configurations(first, group, storage, peers)
        self.following = Following(group, self.configurations, peers.book, self._ask)
        self.changes: Callbacks[ChangeResult] = Callbacks()
        """The changes that the core was asked for, until it tells their outcome."""
        self._book = peers.book
        self._core = core
        self._tell = tell
        self._now = now
        self._wake = wake

    @property
    def config(self) -> Config:
        """Return the configuration in force."""
        return self.configurations.current

    # -- the beginning -----------------------------------------------------------------------------------

    @property
    def is_founded(self) -> bool:
        """Tell whether this member knows the members of the group."""
        return self._core().config != UNKNOWN

    def found(self, base: Config) -> None:
        """Begin with these members, which every member of the group begins with: the log names none."""
        self.configurations.first = base
        self._tell(Founded(base, self._now()))

    # -- changes -----------------------------------------------------------------------------------------

    def change(self, change: Change, done: Callable[[ChangeResult], None]) -> None:
        """Change the members of the group, as its leader; `done` is told the outcome, once it is on a quorum.

        Raises `ChangeRefused` for a change that makes no sense.
        """
        config = self.config
        target = config if config.old else target_of(change, config, self.configurations.addresses)
        if change.address and change.member not in config.members:
            self._book.tell(change.member, change.address)
        self._ask(target, done)

    def _ask(self, target: Config, done: Callable[[ChangeResult], None]) -> None:
        self._tell(ChangeAsked(self.changes.add(done), target, self._now()))
        self._wake()

    # -- groups that share the links ---------------------------------------------------------------------

    @property
    def founding(self) -> Config | None:
        """Return the members with which the first other group begins; None while this log has none for good."""
        index, found = self.configurations.of_store
        committed = self._core().log.commit.index
        return config_of(found) if found is not None and index <= committed else None

    @property
    def settled(self) -> tuple[int, Configuration] | None:
        """Return the configuration to follow, and its index; None while it is joint or not committed."""
        log, newest = self._core().log, self.configurations.newest
        is_settled = 0 <= log.configs.index <= log.commit.index and not log.configs.in_force.old
        return (log.configs.index, newest) if is_settled and newest else None
