"""`MasterSearch`: the search for a newer master, once a second among all members that are known.

A master of a newer epoch is followed. Which epoch is newer, and whether this broker may follow, `ha.group.roles` says.

Everybody whom this broker or a name server knows is asked, and whom those name that are believed (`Trust`). Only a
status that is believed changes a role. A claim to lead that is not believed is told in words, with what to do.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final

import structlog
import trio

from broker.namesrv.answers import group_addresses
from broker.replication.slave.peer import NotSame, Peer, reading_answers
from broker.replication.slave.slave_broker import SlaveBroker
from ha.group.hello import MemberStatusMessage
from ha.group.refusals import Conversation
from ha.group.roles import MASTER_ID, SLAVE, SLAVES_MAX
from ropewalk.client.aio.connection import AsyncConnection, open_connection
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import RopewalkError
from ropewalk.format.remoting import Command

__all__ = ["MasterSearch"]

log = structlog.get_logger("broker.ha")

PROBE_S = 1.0
_PAUSE_S = 0.05
_NAMED_MAX: Final = 2 * SLAVES_MAX
"""Addresses of one name server, or of one round, that are asked at most."""
_NOT_BELIEVED = "a master that is not believed"
_NOT_FOLLOWED = "the newer master is not followed"


@dataclass(frozen=True, slots=True)
class _Told:
    """The status of a member, and where it was asked."""

    dialed: str
    status: MemberStatusMessage
    is_believed: bool
    """Whether it may change a role."""
    is_known: bool


class MasterSearch:
    """The search of one broker."""

    def __init__(self, broker: SlaveBroker) -> None:
        self._broker = broker
        self._member = broker.member

    async def run(self) -> None:
        """Search until cancelled."""
        while True:
            if self._member.has_replicas:
                try:
                    with reading_answers("a member"):
                        await self._find_newest_master()
                except (RopewalkError, OSError) as exc:
                    self._broker.report_trouble("the search for a newer master failed", str(exc))
                self._member.asked.set()
            await trio.sleep(PROBE_S if not self._member.master_hint else _PAUSE_S)

    async def _find_newest_master(self) -> None:
        """Find the newest master among everybody who may know, and follow it if it is newer than what is known."""
        member = self._member
        told = await self._ask_members()
        member.master_hint = ""
        config = self._broker.context.config
        masters = [
            each
            for each in told
            if each.status.role != SLAVE
            and (each.status.cluster, each.status.broker_name)
            == (config.broker_cluster_name, config.broker_name)
        ]
        record = member.record
        answered = {each.dialed for each in told if each.is_believed or each.is_known}
        moved = record.role == SLAVE and record.master != "" and record.master not in answered
        # A master of the same epoch elsewhere is the same one, started again on another port.
        enough = record.leader_epoch if moved else record.leader_epoch + 1
        wanted = [
            each
            for each in masters
            if each.status.leader_epoch >= max(enough, record.promised_epoch)
            and record.master not in (each.dialed, each.status.address)
        ]
        newest = max(
            (each for each in wanted if each.is_believed),
            key=lambda each: each.status.leader_epoch,
            default=None,
        )
        doubtful = [each for each in wanted if not each.is_believed and newest is None]
        self._tell_doubtful(doubtful)
        believed = [each.status for each in told if each.is_believed or each.is_known]
        if newest is not None:
            await self._follow(newest.status)
        elif member.core.is_master:
            with self._broker.turn():
                member.compare_ends(believed)
                # A member that proves nothing yet, at an address that is known, may have been promoted all the same.
                if not any(each.is_known for each in doubtful):
                    member.confirm_no_newer_master()
        if not member.core.is_master:
            master = next((each.status for each in told if each.dialed == member.record.master), None)
            if master is not None and master.role != SLAVE and master.ha_address:
                with self._broker.turn():
                    self._broker.replication.set_master(master.ha_address, member.record.master)

    async def _ask_members(self) -> list[_Told]:
        """Ask everybody who may know, and then whom those name that are believed."""
        member = self._member
        asked: set[str] = {member.address, ""}
        told: list[_Told] = []
        addresses = await self._candidate_addresses()
        for _round in range(2):
            fresh = sorted(addresses - asked, key=lambda each: (not self._broker.trust.is_known(each), each))
            fresh = fresh[: 2 * _NAMED_MAX]
            asked |= set(fresh)
            found = await self._statuses_of(fresh)
            told += found
            addresses = {each.status.master for each in found if each.is_believed or each.is_known}
        if self._broker.secret:
            return told
        # A member that is believed vouches for the master that it follows.
        named = {each.status.master for each in told if each.is_believed}
        return [replace(each, is_believed=True) if each.dialed in named else each for each in told]

    async def _follow(self, newest: MemberStatusMessage) -> None:
        broker_id = self._id_under(newest)
        log.warning(
            "there is a newer master", address=newest.address, epoch=newest.leader_epoch, broker_id=broker_id
        )
        try:
            if broker_id is None:
                raise NotSame(f"{newest.address} has a slave under each id, and none is left for this broker")
            await self._broker.become_slave(newest.leader_epoch, newest.address, newest.policy, broker_id)
        except NotSame as exc:
            self._broker.report_trouble(_NOT_FOLLOWED, str(exc))

    def _tell_doubtful(self, doubtful: list[_Told]) -> None:
        """Say in words, in the log and in `/readyz`, whose claim to lead is not believed, and what to do."""
        claims = sorted(f"{each.dialed} (epoch {each.status.leader_epoch})" for each in doubtful)[:3]
        why = None
        if claims:
            whose = f"{', '.join(claims)} claims to lead this group, and is not followed"
            why = (
                f"{whose}, because it does not prove that it knows ropewalkSecret: if it is a member, upgrade it"
                if self._broker.secret
                else f"{whose}, because only a name server tells of it, which believes everybody: if it is the master, "
                "set ropewalkMasterAddress here and start this broker again, or give all members a ropewalkSecret"
            )
        self._broker.report_trouble(_NOT_BELIEVED, why)
        self._member.note(why)
        client = self._broker.replication.client
        left_alone = why if client is not None and client.link is None else None
        self._broker.note_contact(Conversation.SEARCH, NotSame(left_alone) if left_alone else None)

    def _id_under(self, master: MemberStatusMessage) -> int | None:
        """Return the id that the new master keeps for this broker, or the lowest that nobody has; None without any."""
        own = [int(name) for name, address in master.policy.slaves.items() if address == self._member.address]
        if own:
            return min(own)
        if self._member.record.broker_id != MASTER_ID:
            return self._member.record.broker_id
        # Where the new master did not know whose place it took, it kept that place for whoever comes.
        return next((n for n in range(1, 1 << 16) if not master.policy.slaves.get(str(n))), None)

    async def _candidate_addresses(self) -> set[str]:
        member = self._member
        addresses = {member.master_hint, member.record.master, *member.known_addresses()}
        found: list[str] = []

        async def ask(name_server: str) -> None:
            with trio.move_on_after(PROBE_S):
                try:
                    with reading_answers(name_server):
                        async with open_connection(name_server, timeout=PROBE_S) as link:
                            found.extend((await self._members(link))[:_NAMED_MAX])
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

    async def _statuses_of(self, addresses: list[str]) -> list[_Told]:
        found: list[_Told] = []
        trust = self._broker.trust

        async def ask_one(address: str) -> None:
            with trio.move_on_after(PROBE_S):
                try:
                    with reading_answers(address):
                        async with open_connection(address, timeout=PROBE_S) as link:
                            peer = await Peer.of(link, trust)
                            if peer is not None:
                                status = await peer.status()
                                found.append(_Told(address, status, peer.may_lead, trust.is_known(address)))
                except (RopewalkError, OSError):
                    pass  # it is away, or no member: nothing is learned from it

        await _together(ask_one, addresses)
        return found


async def _together(job: Callable[[str], Awaitable[None]], words: list[str] | tuple[str, ...]) -> None:
    async with trio.open_nursery() as nursery:
        for word in words:
            nursery.start_soon(job, word)
