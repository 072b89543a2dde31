"""Keep this broker from taking another one's route: two of one name and id, both alive.

A name server believes whoever registered last: a broker that starts under the name of a living one gets its clients,
and the messages that they send are gone with it. So before it registers, a broker asks the name server which address
its place has, and asks that address what it is:

    nobody, this broker, or no answer   register: a broker that starts again may have another port
    another broker, or another id       register: the entry is old, and its broker has another role by now
    a member of another epoch           register: roles of this group have changed, and the higher epoch wins
    no member of a group with a secret  register: it does not prove that it knows ropewalkSecret
    anything else that answers          a rival: this broker does not register there, and does not start at all if
                                        that is found before it has served anybody

`rival` is the rule. Questions are asked over connections of the guard's own, each for a moment only: a name server
that says nothing delays a start by `PATIENCE_S`, a rival that says nothing by `RIVAL_S`, and neither forbids it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import trio

from broker.namesrv.answers import broker_addresses, group_addresses
from broker.replication.slave.peer import Peer, Trust, reading_answers
from broker.settings.java_properties import read_properties
from ha.group.roles import MASTER_ID, RoleRecord
from ropewalk.client.aio.connection import AsyncConnection, open_connection
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import RemoteProtocolError, RopewalkError
from ropewalk.format.remoting import Command

__all__ = ["Occupant", "RouteGuard", "rival", "silent_among"]

PATIENCE_S = 1.0
RIVAL_S = 3.0
"""How long a broker that has this one's place may take to answer: one that is alive may be busy."""


async def silent_among(name_servers: tuple[str, ...]) -> tuple[str, ...]:
    """Return the name servers that do not answer, in their order; all are dialed at once."""
    reached: set[str] = set()

    async def dial(name_server: str) -> None:
        try:
            async with open_connection(name_server, timeout=PATIENCE_S):
                reached.add(name_server)
        except* (RopewalkError, OSError):
            pass

    with trio.move_on_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            for name_server in name_servers:
                nursery.start_soon(dial, name_server)
    return tuple(each for each in name_servers if each not in reached)


@dataclass(frozen=True, slots=True)
class Occupant:
    """A broker that answers at an address, with the identity that it gives."""

    cluster: str = ""
    broker_name: str = ""
    broker_id: int | None = None
    """None where it does not say."""
    leader_epoch: int | None = None
    """None for a RocketMQ broker, and for one that wants a secret to be proven."""


def rival(cluster: str, broker_name: str, record: RoleRecord, occupant: Occupant | None) -> bool:
    """Return whether the broker at the address that has this broker's place is another one that needs it."""
    if occupant is None:
        return False
    if occupant.broker_name and occupant.broker_name != broker_name:
        return False
    if occupant.broker_id is not None and occupant.broker_id != record.broker_id:
        return False
    if occupant.cluster and occupant.cluster != cluster:
        return True  # name servers keep routes by the broker's name, whatever its cluster
    is_member = record.leader_epoch > 0 or bool(record.policy.slaves)
    return not is_member or occupant.leader_epoch in (None, record.leader_epoch)


class RouteGuard:
    """The questions about one broker's place."""

    def __init__(
        self, cluster: str, broker_name: str, address: str, record: Callable[[], RoleRecord], secret: str = ""
    ) -> None:
        """`address` is this broker's own; with a `secret`, only a broker that proves it is a rival."""
        self._cluster = cluster
        self._broker_name = broker_name
        self._address = address
        self._record = record
        self._trust = Trust(secret, cluster, broker_name, tuple, takes_version1=False)

    async def find_rival(self, name_servers: tuple[str, ...]) -> str | None:
        """Ask all name servers at once; return in words which rival there is, or None."""
        found: list[str] = []

        async def ask(name_server: str) -> None:
            try:
                async with open_connection(name_server, timeout=PATIENCE_S) as link:
                    if (why := await self.rival_at(link)) is not None:
                        found.append(why)
            except* (RopewalkError, OSError):
                pass  # one that is away is asked again before the first registration there

        with trio.move_on_after(2 * PATIENCE_S + RIVAL_S):
            async with trio.open_nursery() as nursery:
                for name_server in name_servers:
                    nursery.start_soon(ask, name_server)
        return min(found, default=None)

    async def rival_at(self, link: AsyncConnection) -> str | None:
        """Return in words which rival has this broker's place at this name server, or None."""
        broker_id = self._record().broker_id
        address = (await self._members(link)).get(str(broker_id), "")
        if not address or address == self._address:
            return None
        occupant: Occupant | None = None
        with trio.move_on_after(RIVAL_S):
            occupant = await self._occupant(address)
        record = self._record()  # it may have changed while the other one was asked
        if record.broker_id != broker_id or not rival(self._cluster, self._broker_name, record, occupant):
            return None
        is_slave = broker_id != MASTER_ID
        return (
            f"another broker {self._broker_name} of cluster {self._cluster} with id {broker_id} is registered at "
            f"{address} with name server {link.address}, and answers there: "
            + (
                "give each slave a brokerId of its own"
                if is_slave
                else "one of the two would get the other's messages. Stop that one, give this one another brokerName, "
                "or a name server of its own (--namesrv-port 0)"
            )
            + (
                ""
                if self._trust.secret
                else ". If that is a stranger, which anybody can register: --take-place, or a ropewalkSecret"
            )
        )

    async def _members(self, link: AsyncConnection) -> Mapping[str, str]:
        """Return the addresses of this broker's group by id; empty where the name server does not know."""
        ext = {"clusterName": self._cluster, "brokerName": self._broker_name}
        answer = await link.call(Command(RequestCode.GET_BROKER_MEMBER_GROUP, ext), PATIENCE_S)
        if answer.code == ResponseCode.SUCCESS:
            return group_addresses(answer.body)
        # A name server of RocketMQ 4: it tells of all brokers at once.
        answer = await link.call(Command(RequestCode.GET_BROKER_CLUSTER_INFO), PATIENCE_S)
        return broker_addresses(answer.body, "brokerAddrTable", self._broker_name)

    async def _occupant(self, address: str) -> Occupant | None:
        """Return what answers at this address; None if nothing does."""
        found: Occupant | None = None
        try:
            with reading_answers(address):
                async with open_connection(address, timeout=RIVAL_S) as link:
                    found = await self._asked(link)
        except* (RopewalkError, OSError):
            pass
        return found

    async def _asked(self, link: AsyncConnection) -> Occupant | None:
        try:
            peer = await Peer.of(link, self._trust)
            if peer is not None:
                status = await peer.status()
                return Occupant(status.cluster, status.broker_name, status.broker_id, status.leader_epoch)
        except (OSError, RemoteProtocolError):
            if self._trust.secret:
                return None  # whoever it is: it is no member of this group
            # The broker there answers, and wants to be shown a secret.
        answer = await link.call(Command(RequestCode.GET_BROKER_CONFIG), RIVAL_S)
        try:
            given = {entry.key: entry.value for entry in read_properties(answer.body.decode())}
        except ValueError:
            given = {}
        return Occupant(given.get("brokerClusterName", ""), given.get("brokerName", ""))
