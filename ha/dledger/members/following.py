"""`Following`: groups that share the links of the first one, and follow its members.

A region begins with the members that the first group had when its store began, and takes the steps to those that it
has now: a new voter learns first. Its leader asks its core for one step at a time. The region's records note which
configuration of the first group it follows (`ha.dledger.members.configurations`).
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from ha.dledger.links.address_book import AddressBook
from ha.dledger.links.frames import config_of
from ha.dledger.links.peer_status import region_field
from ha.dledger.members.changes import next_step
from ha.dledger.members.configurations import Configurations
from ha.raft.types import ChangeResult, Config
from ropewalk.format.dledger.configuration import Configuration

__all__ = ["Following"]

log = structlog.get_logger("ha.dledger")


class Following:
    """The steps of one group to the members of the first one."""

    def __init__(
        self,
        group: int,
        configurations: Configurations,
        book: AddressBook,
        change: Callable[[Config, Callable[[ChangeResult], None]], None],
    ) -> None:
        """Begin without a step under way. `change` asks the core of the group for a change, and tells its outcome."""
        self._group = group
        self._configurations = configurations
        self._book = book
        self._change = change

    def follow(self, index: int, found: Configuration) -> None:
        """Take a step to the members of group 0, as its configuration `index` says them, as the leader of this group.

        A leader may know an older configuration than the one before it did, so nobody goes back.
        """
        configurations = self._configurations
        if configurations.following >= 0:
            return
        target = config_of(found)
        step = next_step(configurations.current, target)
        is_last = {*step.voters} == {*target.voters}
        configurations.following = index if is_last else max(index - 1, 0)
        self._book.tell_strangers(found.addresses)
        self._change(step, self._followed)

    def _followed(self, result: ChangeResult) -> None:
        self._configurations.following = -1
        if result is ChangeResult.SUCCESS:
            config = self._configurations.current
            log.info(
                "a group follows the members of the first one",
                voters=", ".join(config.voters), learners=", ".join(config.learners), **region_field(self._group),
            )  # fmt: skip
