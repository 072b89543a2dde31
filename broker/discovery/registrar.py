"""Keep this broker registered at its name servers: at start, every half minute, and at once when topics or permissions
change.

An embedded name server is told by a plain call in the same turn, so that a topic has its route before the producer
that created it has its answer. The others are told over the wire by one task each; one that is away is tried again
and delays nobody.

What they answer is passed on: to a slave where its master is, to a master how many slaves of its group are registered
from each address, which decides whose reports count. Both are asked for again every second while they are wanted.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Protocol

import structlog
import trio

from broker.discovery.route_guard import RouteGuard
from broker.namesrv.answers import group_addresses
from broker.namesrv.server import NameServer
from broker.state.route_status import RouteStatus
from ropewalk.client.aio.connection import AsyncConnection, open_connection
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import RopewalkError
from ropewalk.format.remoting import Command

log = structlog.get_logger("broker.registrar")

_EMBEDDED = "the embedded name server"
_RETRY_S = 3.0
_WANTED_S = 1.0
_FIRST_S = 2 * _RETRY_S
"""The pause of a newcomer before a name server that was away: brokers that it knew before come first."""
_FAREWELL_S = 3.0
"""As long as other requests to a name server may take; the broker goes on serving meanwhile."""


class Group(Protocol):
    """The broker's own group, as far as name servers tell of it."""

    @property
    def seeks_master(self) -> bool:
        """Return whether the broker is a slave that does not know its master."""

    @property
    def seeks_slaves(self) -> bool:
        """Return whether the broker is a master that needs the number of registered slaves."""

    def set_master(self, ha_address: str, master_address: str) -> None:
        """Take the master's addresses."""

    def set_registered(self, slaves: Mapping[str, int]) -> None:
        """Take the numbers of registered slaves, by IP."""


class Registrar:
    """Registers one broker with all its name servers."""

    def __init__(
        self,
        identity: dict[str, str],
        body: Callable[[], bytes],
        *,
        period_s: float,
        call_s: float,
        local: NameServer | None,
        remote: tuple[str, ...],
        group: Group | None = None,
        guard: RouteGuard | None = None,
        generation: Callable[[], int] = lambda: 0,
        on_registered: Callable[[int], None] = lambda generation: None,
    ) -> None:
        """`identity` holds brokerName, brokerAddr, clusterName, haServerAddr and brokerId as the wire spells them.

        `on_registered` hears which `generation` of the topics a name server has taken, each time.
        """
        self._generation = generation
        self._on_registered = on_registered
        self._identity = identity
        self._body = body
        self._period_s = period_s
        self._call_s = call_s
        self._local = local
        self._remote = remote
        self._changed = {address: trio.Event() for address in remote}
        self._registered: set[str] = set()
        self._group = group
        self._guard = guard
        self.routes = RouteStatus()
        self._slaves: dict[str, Mapping[str, int]] = {}
        """Name server -> what it says about the slaves of this group."""

    def _command(self) -> Command:
        body = self._body()
        ext = self._identity | {
            "compressed": "false",
            "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF),
            "enableActingMaster": "false",
        }
        return Command(RequestCode.REGISTER_BROKER, ext, body)

    def _farewell(self) -> Command:
        names = ("brokerName", "brokerAddr", "clusterName", "brokerId")
        return Command(RequestCode.UNREGISTER_BROKER, {name: self._identity[name] for name in names})

    def set_broker_id(self, broker_id: int) -> None:
        """Register under another id from now on, because the role has changed."""
        self._identity["brokerId"] = str(broker_id)
        self.changed()

    def changed(self) -> None:
        """Topics or permissions are different now: tell everyone at once."""
        self.register_locally()
        for address, event in self._changed.items():
            self._changed[address] = trio.Event()
            event.set()

    def register_locally(self) -> None:
        if self._local is not None:
            generation = self._generation()
            answer = self._local.handle(self._command(), self)
            assert answer is not None
            if answer.code != ResponseCode.SUCCESS:
                log.error("the embedded name server refused this broker", reason=answer.remark)
            else:
                self._take_master(answer)
                self._on_registered(generation)

    async def run(self) -> None:
        """Register and stay registered, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_local)
            for address in self._remote:
                nursery.start_soon(self._keep, address)

    async def _keep_local(self) -> None:
        passed = 0.0
        while self._local is not None:
            await trio.sleep(min(_WANTED_S, self._period_s))
            passed += min(_WANTED_S, self._period_s)
            if passed >= self._period_s or self._seeks_master:
                passed = 0.0
                # Before: the registration takes the place back, where that is possible.
                self._compare_place(_EMBEDDED, self._ask_locally())
                self.register_locally()
            if self._group is not None and self._group.seeks_slaves:
                self._take_slaves("", self._ask_locally())

    async def _keep(self, address: str) -> None:
        """Register with one name server for ever; its troubles are logged once each time they begin."""
        trouble, is_known = False, False
        while True:
            try:
                async with open_connection(address) as connection:
                    if trouble and not is_known and self._guard is not None:
                        await trio.sleep(_FIRST_S)
                    while True:
                        # Taken before the call: a change during the call is told in the next round.
                        changed = self._changed[address]
                        if await self._steps_back(address, connection):
                            break
                        generation = self._generation()
                        answer = await connection.call(self._command(), self._call_s)
                        if answer.code != ResponseCode.SUCCESS:
                            log.error(
                                "a name server refused this broker", namesrv=address, reason=answer.remark
                            )
                        elif address not in self._registered or trouble:
                            log.info("registered", namesrv=address)
                            self._registered.add(address)
                        if answer.code == ResponseCode.SUCCESS:
                            is_known = True
                            self._take_master(answer)
                            self._on_registered(generation)
                            self._compare_place(address, await connection.call(self._members(), self._call_s))
                        trouble = False
                        await self._until_due(address, connection, changed)
            except* (RopewalkError, OSError) as group:
                if not trouble:
                    log.warning("name server out of reach", namesrv=address, reason=str(group.exceptions[0]))
                trouble = True
                self._registered.discard(address)
            await trio.sleep(_RETRY_S)

    async def _steps_back(self, address: str, connection: AsyncConnection) -> bool:
        """Return whether another living broker has this one's place; its route is left to it as long as it lives."""
        why = await self._guard.rival_at(connection) if self._guard is not None else None
        if why is None:
            if self.routes.rivals.pop(address, None) is not None:
                log.info("this broker's place is free again", namesrv=address)
            return False
        if address not in self.routes.rivals:
            log.error("not registered: the place is taken", namesrv=address, reason=why)
        self.routes.rivals[address] = why
        self._registered.discard(address)
        return True

    def _compare_place(self, name_server: str, answer: Command) -> None:
        """Find out whether clients of this broker are sent here; tell it once when that changes."""
        if answer.code != ResponseCode.SUCCESS:
            return  # a name server of RocketMQ 4 cannot tell
        found = group_addresses(answer.body).get(self._identity["brokerId"], "")
        before = self.routes.displaced_by
        if not found or found == self._identity["brokerAddr"]:
            if before.pop(name_server, None) is not None:
                log.info("clients of this broker are sent here again", namesrv=name_server)
        elif before.get(name_server) != found:
            before[name_server] = found
            log.error("clients of this broker are sent elsewhere", namesrv=name_server, address=found)

    async def _until_due(self, address: str, connection: AsyncConnection, changed: trio.Event) -> None:
        """Wait until it is time to register again, or the connection is gone; ask for what is wanted sooner."""
        until = trio.current_time() + self._period_s
        while not changed.is_set() and not connection.closed and trio.current_time() < until:
            if self._group is not None and self._group.seeks_slaves:
                self._take_slaves(address, await connection.call(self._members(), self._call_s))
            with trio.move_on_after(min(_WANTED_S, until - trio.current_time())):
                await changed.wait()
            if self._seeks_master:
                return

    # -- what they say about the group ---------------------------------------------------------------

    @property
    def _seeks_master(self) -> bool:
        return self._group is not None and self._group.seeks_master

    def _take_master(self, answer: Command) -> None:
        if self._group is not None and self._identity["brokerId"] != "0":
            self._group.set_master(answer.ext.get("haServerAddr") or "", answer.ext.get("masterAddr") or "")

    def _members(self) -> Command:
        ext = {"clusterName": self._identity["clusterName"], "brokerName": self._identity["brokerName"]}
        return Command(RequestCode.GET_BROKER_MEMBER_GROUP, ext)

    def _ask_locally(self) -> Command:
        assert self._local is not None
        answer = self._local.handle(self._members(), self)
        assert answer is not None
        return answer

    def _take_slaves(self, address: str, answer: Command) -> None:
        """Where several name servers differ, whoever knows more slaves of an address is believed."""
        assert self._group is not None
        if answer.code != ResponseCode.SUCCESS:
            return  # an old one, which cannot tell; the others can
        self._slaves[address] = slaves_by_ip(answer.body)
        most: Counter[str] = Counter()
        for found in self._slaves.values():
            most |= Counter(found)
        self._group.set_registered(most)

    async def unregister(self) -> None:
        """Say good-bye, so that no client is sent here any more; gives up on a name server that does not answer."""
        if self._local is not None:
            self._local.handle(self._farewell(), self)
        async with trio.open_nursery() as nursery:
            for address in self._remote:
                nursery.start_soon(self._leave, address)

    async def _leave(self, address: str) -> None:
        with trio.move_on_after(_FAREWELL_S):
            try:
                async with open_connection(address) as connection:
                    await connection.call(self._farewell(), _FAREWELL_S)
            except* (RopewalkError, OSError):
                pass  # it will notice by itself: no heartbeat comes any more


def slaves_by_ip(body: bytes) -> dict[str, int]:
    """Count the slaves of each IP in the answer about a group's members; an unreadable answer counts none."""
    addresses = group_addresses(body)
    return dict(
        Counter(address.rpartition(":")[0] for broker_id, address in addresses.items() if broker_id != "0")
    )
