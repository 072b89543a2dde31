"""Keep this broker registered at its name servers: at start, every half minute, and at once when topics or permissions
change.

An embedded name server is told of changed topics, and of these alone, by a plain call in the same turn: a topic has its
route before the producer that created it has its answer. The others are told of the whole table over the wire, by one
task each; one that is away is tried again and delays nobody. A large table is written in slices, between which clients
are served, and travels once a second at most, however many topics change.

What they answer is passed on: to a slave where its master is, to a master how many slaves of its group are registered
from each address, which decides whose reports count. Both are asked for again every second while they are wanted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import structlog
import trio

from broker.discovery.route_guard import RouteGuard
from broker.namesrv.answers import group_addresses
from broker.namesrv.registration import crc32_in_slices
from broker.namesrv.routes import Registration, SingleTopicRefused, TableFull
from broker.namesrv.routes import TopicConfig as RegisteredTopic
from broker.namesrv.server import NameServer
from broker.state.route_status import RouteStatus
from broker.state.topics import TopicTable, permission_mask
from broker.turns import in_turns
from ropewalk.client.aio.connection import AsyncConnection, open_connection
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import RopewalkError
from ropewalk.format.names import HIDDEN_TOPICS
from ropewalk.format.remoting import Command
from ropewalk.format.sliced_json import finish

log = structlog.get_logger("broker.registrar")

_EMBEDDED = "the embedded name server"
_RETRY_S = 3.0
_WANTED_S = 1.0
_FIRST_S = 2 * _RETRY_S
"""The pause of a newcomer before a name server that was away: brokers that it knew before come first."""
_PAUSE_S: Final = 1.0
"""Seconds between two registrations of a large table with one name server that changed topics ask for."""
_LARGE: Final = 1_000
"""Topics of a large table."""
_STEPS_AT_ONCE: Final = 2
"""Steps of a registration with the embedded name server that are taken at once: a thousand topics."""
_DONE: Final = object()
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


@dataclass(frozen=True, slots=True)
class _Listed:
    """Topics of a table that are registered, each as it is when its turn comes."""

    table: TopicTable
    names: list[str]
    mask: int

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[RegisteredTopic]:
        for name in self.names:
            topic = self.table.get(name)
            if topic is not None and name not in HIDDEN_TOPICS:
                yield RegisteredTopic(
                    topic_name=name,
                    perm=topic.perm & self.mask,
                    read_queue_nums=topic.read_queues,
                    topic_sys_flag=topic.sys_flag,
                    write_queue_nums=topic.write_queues,
                )


class Registrar:
    """Registers one broker with all its name servers."""

    def __init__(
        self,
        identity: dict[str, str],
        topics: Callable[[], TopicTable],
        *,
        period_s: float,
        call_s: float,
        local: NameServer | None,
        remote: tuple[str, ...],
        group: Group | None = None,
        guard: RouteGuard | None = None,
        permission: Callable[[], int],
        on_registered: Callable[[int], None] = lambda generation: None,
    ) -> None:
        """`identity` holds brokerName, brokerAddr, clusterName, haServerAddr and brokerId as the wire spells them.

        `topics` returns the table as it is now (another one after the store was opened again), `permission` the
        broker's own. `on_registered` hears which generation of the topics a name server has taken, each time.
        """
        self._topics = topics
        self._permission = permission
        self._on_registered = on_registered
        self._identity = identity
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
        self._told: tuple[TopicTable, int] | None = None
        """The table and the generation up to which the embedded name server has heard of its changes."""
        self._whole: Generator[None, None, None] | None = None
        """The registration of the whole table with the embedded name server that is under way."""
        self._whole_begun = trio.Event()
        self._is_refused = False
        self._is_running = False
        self._has_left = False

    def _command(self, body: bytes, crc: int) -> Command:
        ext = self._identity | {
            "compressed": "false",
            "bodyCrc32": str(crc),
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

    # -- the embedded name server ----------------------------------------------------------------------

    def register_locally(self) -> None:
        """Register changed topics with the embedded name server; the whole table, if this broker has no place there.

        Of a large table it hears at once what has changed, and the rest in the following turns.
        """
        if self._local is not None and not self._has_left and not self._update(self._local):
            topics, told = self._topics(), self._told
            if told is None or told[0] is not topics or topics.changed_since(told[1]) is None:
                self._told = topics, topics.generation  # what changes from here on is told beside the whole
            self._begin_whole(self._local)
            self._update(self._local)

    def _update(self, local: NameServer) -> bool:
        """Tell the embedded name server of changed topics alone; False if it has to hear of all."""
        topics, told = self._topics(), self._told
        changed = topics.changed_since(told[1]) if told is not None and told[0] is topics else None
        if changed is None:
            return False
        generation = topics.generation
        gone = [name for name in changed if name not in topics]
        try:
            accepted = local.update(self._registration(topics, changed), gone, self)
        except TableFull as full:
            self._tell_refused(str(full))
            self._told = topics, generation  # the whole table is told now and then
            return True
        if accepted is None:
            return False
        self._take_master(accepted.ha_address, accepted.master_address)
        self._told = topics, generation
        if self._whole is None:
            self._on_registered(generation)
        return True

    def _begin_whole(self, local: NameServer) -> None:
        """Begin to register the whole table with the embedded name server; a small one is registered at once."""
        self._whole = whole = self._register_whole(local)
        if not self._is_running:
            finish(whole)
            return
        for _ in range(_STEPS_AT_ONCE):
            if next(whole, _DONE) is _DONE:
                return
        self._whole_begun.set()

    def _register_whole(self, local: NameServer) -> Generator[None, None, None]:
        topics = self._topics()
        generation = topics.generation
        try:
            accepted = yield from local.register(
                self._registration(topics, [topic.name for topic in topics]), self
            )
        except (TableFull, SingleTopicRefused) as refused:
            self._tell_refused(str(refused) or "a broker that is not on record has more than one topic")
        else:
            self._is_refused = False
            self._take_master(accepted.ha_address, accepted.master_address)
            self._on_registered(generation)
        self._whole = None

    def _registration(self, topics: TopicTable, listed: list[str]) -> Registration:
        identity = self._identity
        return Registration(
            cluster=identity["clusterName"],
            broker_name=identity["brokerName"],
            address=identity["brokerAddr"],
            broker_id=int(identity["brokerId"]),
            ha_address=identity["haServerAddr"],
            enable_acting_master=False,
            version=topics.data_version,
            topics=_Listed(topics, listed, permission_mask(self._permission())),
            filter_servers=(),
        )

    def _tell_refused(self, reason: str) -> None:
        if not self._is_refused:
            log.error("the embedded name server refused this broker", reason=reason)
        self._is_refused = True

    async def run(self) -> None:
        """Register and stay registered, until cancelled."""
        self._is_running = True
        async with trio.open_nursery() as nursery:
            if self._local is not None:
                nursery.start_soon(self._keep_local, self._local)
            for address in self._remote:
                nursery.start_soon(self._keep, address)

    async def _keep_local(self, local: NameServer) -> None:
        due = trio.current_time() + self._period_s
        while True:
            with trio.move_on_after(min(_WANTED_S, self._period_s)):
                await self._whole_begun.wait()
            self._whole_begun = trio.Event()
            is_due = trio.current_time() >= due
            if is_due or self._seeks_master:
                # Before: the registration takes the place back, where that is possible.
                self._compare_place(_EMBEDDED, self._ask_locally())
                self.register_locally()
            if is_due:
                due = trio.current_time() + self._period_s
                if self._whole is None and not self._has_left:
                    self._begin_whole(local)  # for topics that somebody had the name server forget
            if self._whole is not None:
                await in_turns(self._whole)
            if self._group is not None and self._group.seeks_slaves:
                self._take_slaves("", self._ask_locally())

    # -- name servers elsewhere ------------------------------------------------------------------------

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
                        generation = self._topics().generation
                        began = trio.current_time()
                        answer = await self._register_over(connection)
                        if answer.code != ResponseCode.SUCCESS:
                            log.error(
                                "a name server refused this broker", namesrv=address, reason=answer.remark
                            )
                        elif address not in self._registered or trouble:
                            log.info("registered", namesrv=address)
                            self._registered.add(address)
                        if answer.code == ResponseCode.SUCCESS:
                            is_known = True
                            self._take_master(answer.ext.get("haServerAddr"), answer.ext.get("masterAddr"))
                            self._on_registered(generation)
                            self._compare_place(address, await connection.call(self._members(), self._call_s))
                        trouble = False
                        await self._until_due(address, connection, changed)
                        if len(self._topics()) > _LARGE:
                            await trio.sleep_until(began + _PAUSE_S)
            except* (RopewalkError, OSError) as group:
                if not trouble:
                    log.warning("name server out of reach", namesrv=address, reason=str(group.exceptions[0]))
                trouble = True
                self._registered.discard(address)
            await trio.sleep(_RETRY_S)

    async def _register_over(self, connection: AsyncConnection) -> Command:
        """Register the whole table; its text is written, and summed, between the turns of others."""
        body = await in_turns(self._topics().register_body_in_slices(self._permission()))
        return await connection.call(self._command(body, await in_turns(crc32_in_slices(body))), self._call_s)

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

    def _take_master(self, ha_address: str | None, master_address: str | None) -> None:
        if self._group is not None and self._identity["brokerId"] != "0":
            self._group.set_master(ha_address or "", master_address or "")

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
        self._has_left = True
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
