"""The group that is drilled: its name, members and name server, whether it is ours to break or alive and at work."""

from __future__ import annotations

import os
from dataclasses import dataclass

from ropewalk.client.admin.cluster import document_in
from ropewalk.client.admin.results import read_members
from ropewalk.client.aio.connection import open_connection
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import RopewalkError, error_for
from ropewalk.format.remoting import Command
from tools.common.output import counted

SECRET_VARIABLE = "ROPEWALK_SECRET"
"""Where `ropewalk admin ha` looks for a group's secret."""


class CannotRun(RopewalkError):
    """The drill could not be carried out; the text says why. That is no verdict."""


@dataclass
class Member:
    """A broker of the group."""

    name: str
    """The name in reports: of a process, because roles and ids change."""
    address: str
    """Where clients find it."""
    own_address: str
    """Where the drill asks it how far its log reaches: not through the proxy, where there is one."""

    @property
    def running(self) -> bool:
        """Return whether the member runs, as far as the drill has started and stopped it."""
        return True


class Group:
    """The group of a drill."""

    broker_name: str
    name_server: str
    members: list[Member]
    """The first one was the master when the drill began."""
    mode: str = ""
    promise: str = ""
    secret: str = ""
    """The secret that members ask for before they take orders; empty where they ask for none."""

    def member_at(self, address: str | None) -> Member | None:
        """The member with this address."""
        return next((each for each in self.members if address in (each.address, each.own_address)), None)

    def name_of(self, address: str) -> str:
        member = self.member_at(address)
        return member.name if member is not None else address


class LiveGroup(Group):
    """A group that is at work. A drill may do to it what an administrator may, and nothing else."""

    def __init__(self, name_server: str, broker_name: str, addresses: dict[int, str]) -> None:
        self.name_server = name_server
        self.broker_name = broker_name
        self.secret = os.environ.get(SECRET_VARIABLE, "")
        self.members = [
            Member(address, address, address) for _broker_id, address in sorted(addresses.items())
        ]


async def find_live_group(name_server: str, broker_name: str | None) -> LiveGroup:
    """The group of this name, or the only one there is. Raises `CannotRun` or another RopewalkError."""
    async with open_connection(name_server) as connection:
        answer = await connection.call(Command(RequestCode.GET_BROKER_CLUSTER_INFO))
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        raise CannotRun(
            f"{name_server} is no name server, but a broker perhaps: name servers listen at port 9876 by default"
        )
    if answer.code != ResponseCode.SUCCESS:
        raise error_for(answer.code, answer.remark)
    groups: dict[str, dict[int, str]] = {}
    for member in read_members(document_in(answer)):
        groups.setdefault(member.broker_name, {})[member.broker_id] = member.address
    if broker_name is None:
        if len(groups) != 1:
            raise CannotRun(
                f"{name_server} knows {len(groups)} groups ({', '.join(sorted(groups)) or 'none'}): "
                "choose one with --broker"
            )
        broker_name = next(iter(groups))
    addresses = groups.get(broker_name)
    if addresses is None:
        raise CannotRun(
            f"{name_server} knows no group {broker_name}; it knows {', '.join(sorted(groups)) or 'none'}"
        )
    if 0 not in addresses or len(addresses) < 2:
        raise CannotRun(
            f"group {broker_name} has {counted(len(addresses), 'member')} and "
            f"{'a' if 0 in addresses else 'no'} master: there is nobody to hand over to"
        )
    group = LiveGroup(name_server, broker_name, addresses)
    group.mode = await _mode(addresses[0])
    group.promise = "what its configuration promises"
    return group


async def _mode(address: str) -> str:
    """Role and flush of a broker, as its configuration says."""
    async with open_connection(address) as connection:
        answer = await connection.call(Command(RequestCode.GET_BROKER_CONFIG))
    settings = dict(
        line.split("=", 1) for line in answer.body.decode(errors="replace").splitlines() if "=" in line
    )
    return f"{settings.get('brokerRole', 'unknown role')} + {settings.get('flushDiskType', 'unknown flush')}"
