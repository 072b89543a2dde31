"""`SlaveBroker`: this broker as its conversation with other members changes it.

Each change of its state is made in a turn of its own, between two awaits; a role counts once it is on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager

import structlog
import trio

from broker.context import BrokerContext
from broker.remoting.shell import Shell
from broker.replication.group_member import Turns
from broker.replication.master_slave import Replication
from broker.replication.member import HaMember
from broker.replication.slave.peer import NotSame, Peer, Trust, is_refusal
from ha.group.refusals import Conversation
from ha.group.roles import QuorumPolicy, RoleDecision, RoleRecord
from ropewalk.client.core.addresses import Address, BadAddress, parse_address

__all__ = ["SlaveBroker", "master_address"]

log = structlog.get_logger("broker.ha")

TROUBLE_S = 2.0


def master_address(record: RoleRecord, replication: Replication, configured: str) -> str:
    """Return the master's remoting address: by role, configuration, name server, or next to its HA port."""
    known = record.master or configured or replication.master_address
    if known or not replication.master_ha:
        return known
    try:
        host, port = parse_address(replication.master_ha)
    except BadAddress:
        return ""
    return str(Address(host, port - 1))


class SlaveBroker:
    """The broker, its role and its turns."""

    def __init__(
        self, context: BrokerContext, member: HaMember, replication: Replication, turns: Turns, shell: Shell
    ) -> None:
        self.context = context
        self.member = member
        self.replication = replication
        config = context.config
        self.secret = config.ropewalk_secret
        self.trust = Trust(
            config.ropewalk_secret,
            config.broker_cluster_name,
            config.broker_name,
            member.known_addresses,
            takes_version1=config.ropewalk_secret_v1,
        )
        self._turns = turns
        self._shell = shell
        self._troubles: dict[str, tuple[float, str]] = {}
        """Faults by name: since when each has lasted, and the part of it that was logged."""

    @property
    def master_address(self) -> str:
        """Return the master's remoting address; empty while it is not known."""
        return master_address(
            self.member.record, self.replication, self.context.config.ropewalk_master_address
        )

    def follows(self, address: str) -> bool:
        """Return whether this broker follows the master at an address."""
        return not self.member.core.is_master and self.master_address == address

    def may_lead(self, peer: Peer) -> bool:
        """Return whether a peer's word may change the role of this broker, or cut its log.

        Where there is no secret, a slave that has nothing yet joins whomever the name server names.
        """
        is_new = not self.member.record.master and not self.context.store.log.segments
        return peer.may_lead or (is_new and not self.secret)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """A turn of the broker, in which its state may change."""
        self._turns.begin_turn()
        try:
            yield
        finally:
            self._turns.end_turn()
            self._shell.flush()

    async def in_turns(self, steps: Generator[None, None, None], master: str) -> bool:
        """Take steps, each in a turn, as long as this broker follows a master; return whether all are taken."""
        while self.follows(master):
            with self.turn():
                if next(steps, steps) is steps:
                    return True
            await trio.lowlevel.checkpoint()
        return False

    async def saved(self, begin: Callable[[Callable[[], None]], None]) -> None:
        """Begin something that ends with a record on disk, and wait for that."""
        done = trio.Event()
        with self.turn():
            begin(done.set)
        await done.wait()

    def report_trouble(self, what: str, trouble: str | None) -> None:
        """Tell people once of a trouble that lasts, and once when it is over; one that is soon over is not told."""
        now = trio.current_time()
        if trouble is None:
            if self._troubles.pop(what, (0.0, ""))[1]:
                log.info("over", trouble=what)
            return
        since, told = self._troubles.setdefault(what, (now, ""))
        if told != trouble and now - since >= TROUBLE_S:
            self._troubles[what] = since, trouble
            log.warning(what, reason=trouble)

    def note_contact(self, conversation: Conversation, exc: Exception | None) -> None:
        """Note how a conversation with the master went: an error that is a refusal is told in `/readyz` once it lasts.

        A master that does not answer refuses nobody: its slave can be promoted.
        """
        refusals = self.replication.refusals
        if exc is not None and is_refusal(exc):
            refusals.refused(conversation, str(exc), self.context.monotonic_ms())
        else:
            refusals.over(conversation)

    async def become_slave(self, epoch: int, address: str, policy: QuorumPolicy, broker_id: int = 0) -> None:
        """Follow the master of an epoch, and wait until that is on disk. Raises `NotSame` where it is refused."""
        member = self.member
        decision: RoleDecision = member.core.follow(
            epoch, broker_id or member.record.broker_id, address, policy
        )
        if decision.refusal is not None:
            raise NotSame(decision.refusal)
        await self.saved(lambda done: member.apply_decision(decision, done))
