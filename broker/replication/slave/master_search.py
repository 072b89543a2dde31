"""`MasterSearch`: the search for a newer master, once a second among all members that are known.

A master of a newer epoch is followed. Which epoch is newer, and whether this broker may follow, `ha.group.roles` says.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog
import trio

from broker.namesrv.answers import group_addresses
from broker.replication.slave.peer import NotSame, Peer
from broker.replication.slave.slave_broker import SlaveBroker
from ha.group.hello import MemberStatusMessage
from ha.group.roles import MASTER_ID, SLAVE
from ropewalk.client.aio.connection import AsyncConnection, open_connection
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import RopewalkError
from ropewalk.format.remoting import Command

__all__ = ["MasterSearch"]

log = structlog.get_logger("broker.ha")

PROBE_S = 1.0
_PAUSE_S = 0.05


class MasterSearch:
    """The search of one broker."""

    def __init__(self, broker: SlaveBroker) -> None:
        self._broker = broker
        self._member = broker.member

    async def run(self) -> None:
        """Search until cancelled."""
        while True:
            if self._member.has_replicas:
                await self._find_newest_master()
                self._member.asked.set()
            await trio.sleep(PROBE_S if not self._member.master_hint else _PAUSE_S)

    async def _find_newest_master(self) -> None:
        """Find the newest master among everybody who may know, and follow it if it is newer than what is known."""
        member = self._member
        asked: set[str] = set()
        statuses: list[MemberStatusMessage] = []
        addresses = await self._candidate_addresses()
        for _round in range(2):  # whom the first ones name is asked too
            fresh = sorted(addresses - asked - {member.address, ""})
            asked |= set(fresh)
            found = await self._statuses_of(fresh)
            statuses += found
            addresses = {each.master for each in found}
        member.master_hint = ""
        config = self._broker.context.config
        masters = [
            each
            for each in statuses
            if each.role != SLAVE
            and (each.cluster, each.broker_name) == (config.broker_cluster_name, config.broker_name)
        ]
        newest = max(masters, key=lambda each: each.leader_epoch, default=None)
        record = member.record
        answered = {each.address for each in statuses}
        moved = record.role == SLAVE and record.master != "" and record.master not in answered
        # A master of the same epoch elsewhere is the same one, started again on another port.
        enough = record.leader_epoch if moved else record.leader_epoch + 1
        if (
            newest is not None
            and newest.leader_epoch >= max(enough, record.promised_epoch)
            and newest.address != record.master
        ):
            broker_id = self._id_under(newest)
            log.warning(
                "there is a newer master",
                address=newest.address,
                epoch=newest.leader_epoch,
                broker_id=broker_id,
            )
            try:
                await self._broker.become_slave(newest.leader_epoch, newest.address, newest.policy, broker_id)
            except NotSame as exc:
                self._broker.report_trouble("the newer master is not followed", str(exc))
        elif member.core.is_master:
            with self._broker.turn():
                member.compare_ends(statuses)
                member.confirm_no_newer_master()
        if not member.core.is_master:
            master = next((each for each in statuses if each.address == member.record.master), None)
            if master is not None and master.role != SLAVE and master.ha_address:
                with self._broker.turn():
                    self._broker.replication.set_master(master.ha_address, master.address)

    def _id_under(self, master: MemberStatusMessage) -> int:
        """The id that the new master keeps for this broker, or the lowest that nobody has."""
        own = [int(name) for name, address in master.policy.slaves.items() if address == self._member.address]
        if own:
            return min(own)
        if self._member.record.broker_id != MASTER_ID:
            return self._member.record.broker_id
        # Where the new master did not know whose place it took, it kept that place for whoever comes.
        return next(n for n in range(1, 1 << 16) if not master.policy.slaves.get(str(n)))

    async def _candidate_addresses(self) -> set[str]:
        member = self._member
        addresses = {member.master_hint, member.record.master, *member.record.policy.slaves.values()}
        found: list[str] = []

        async def ask(name_server: str) -> None:
            with trio.move_on_after(PROBE_S):
                try:
                    async with open_connection(name_server, timeout=PROBE_S) as link:
                        found.extend(await self._members(link))
                except (RopewalkError, OSError):
                    pass  # whoever else knows is asked too

        await _together(ask, self._broker.context.config.namesrv_addr)
        return addresses | set(found)

    async def _members(self, link: AsyncConnection) -> list[str]:
        config = self._broker.context.config
        ext = {"clusterName": config.broker_cluster_name, "brokerName": config.broker_name}
        answer = await link.call(Command(RequestCode.GET_BROKER_MEMBER_GROUP, ext), PROBE_S)
        if answer.code != ResponseCode.SUCCESS:
            return []
        return list(group_addresses(answer.body).values())

    async def _statuses_of(self, addresses: list[str]) -> list[MemberStatusMessage]:
        found: list[MemberStatusMessage] = []

        async def ask_one(address: str) -> None:
            with trio.move_on_after(PROBE_S):
                try:
                    async with open_connection(address, timeout=PROBE_S) as link:
                        peer = await Peer.of(link, self._broker.secret)
                        if peer is not None:
                            found.append(await peer.status())
                except (RopewalkError, OSError, ValueError):
                    pass  # it is away, or no member: nothing is learned from it

        await _together(ask_one, addresses)
        return found


async def _together(job: Callable[[str], Awaitable[None]], words: list[str] | tuple[str, ...]) -> None:
    async with trio.open_nursery() as nursery:
        for word in words:
            nursery.start_soon(job, word)
