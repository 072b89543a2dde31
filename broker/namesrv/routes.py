"""The name server's memory: which broker serves which topic, and where it lives.

Four tables hold it, as in RocketMQ, so that its rules can be told in its words:

    broker sets   broker name -> addresses by id, cluster            who belongs together (id 0 is the master)
    live          (cluster, address) -> last sign of life            who is there, over which connection
    queues        topic -> broker name -> queue counts, permission   who serves what
    clusters      cluster -> broker names

A registration is the only way in; silence, a closed connection or a farewell is the way out. Name servers
share nothing, so every rule here decides from one registration and this memory alone:

- A set is known by its broker name. An address stands in a set under one id: the same address under
  another id is a broker that changed its role, and its old place is given up.
- Two addresses that claim one id are told apart by the state version (the epoch of their role): the lower
  one is turned away. Equal versions: the newcomer wins, as a restarted broker with a new address must.
- Topics are set by the master, and by the slave with the lowest id if it says what acting masters are.
  They are replaced only when the broker's data version changed, and never deleted by being left out
  (unless the name server was told to).
- The last address of a set takes the set's queues with it. If only the master goes, the queues stay
  readable and, where acting masters are on, lose their write permission.
- Whoever can connect can register, so every table has a bound. A broker that would exceed one is refused; of topics
  that would, those are refused, by name, and the broker is on record with the others. Who leaves takes all that it
  brought along.

Time is handed in as milliseconds. Nothing here knows frames, sockets or JSON text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Annotated, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from broker.remoting.origins import origin_of
from broker.state.data_version import DataVersion
from broker.state.shares import Shares, Stranger
from ropewalk.codes import Permission, UnitSysFlag
from ropewalk.format.names import SYNC_BROKER_MEMBER_PREFIX
from ropewalk.format.sliced_json import finish

MASTER_ID = 0
NAME_SIZE_MAX = 255
"""Characters of a topic, broker or cluster name."""
BROKER_EXPIRY_MS = 120_000
"""How long a broker may be silent when its registration names no time of its own."""

BROKERS_MAX = 1_000
BROKER_TOPICS_MAX = 50_000
TOPICS_PER_STEP = 250
"""Topics that are read, placed or dropped before others are served."""
"""Topics of one broker set, counting those its registrations no longer name."""
TOPICS_MAX = 500_000
"""Topics of all broker sets together; one that two sets serve counts twice."""
_SHARE = 3
"""How many times as many entries as are free the brokers of one address may have, while half of a table is taken."""
_DONE = object()
_NAMED_MAX = 5
"""Refused topics that an answer names."""

I31 = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
"""The range that Java's and Go's readers of a route accept as a count or as flags."""


class TopicConfig(msgspec.Struct, frozen=True, rename="camel"):
    """A topic as a broker registers it: the fields that matter to a route."""

    topic_name: Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_SIZE_MAX)]
    perm: I31 = Permission.READ | Permission.WRITE
    read_queue_nums: I31 = 16
    topic_sys_flag: I31 = 0
    write_queue_nums: I31 = 16


class QueueData(msgspec.Struct, frozen=True, rename="camel"):
    """The queues of a topic at a single broker set."""

    broker_name: str
    perm: int
    read_queue_nums: int
    topic_sys_flag: int
    write_queue_nums: int


class BrokerData(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A broker set as routes show it. Ids are strings, because they are keys of a JSON object."""

    broker_addrs: dict[str, str]
    broker_name: str
    cluster: str
    enable_acting_master: bool = False
    zone_name: str | UnsetType = UNSET


class RouteData(msgspec.Struct, rename="camel", kw_only=True):
    """The answer to a request for a topic's route."""

    broker_datas: list[BrokerData]
    filter_server_table: dict[str, list[str]] = {}
    order_topic_conf: str | UnsetType = UNSET
    queue_datas: list[QueueData]


class MemberGroup(msgspec.Struct, frozen=True, rename="camel"):
    """The members of a broker set."""

    broker_addrs: dict[str, str]
    broker_name: str
    cluster: str


class Topics(Protocol):
    """The topics of a registration, which are entered one after the other."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[TopicConfig]: ...


@dataclass(frozen=True, slots=True)
class Registration:
    """Everything one broker says about itself."""

    cluster: str
    broker_name: str
    address: str
    broker_id: int
    ha_address: str = ""
    zone: str | None = None
    timeout_ms: int | None = None
    enable_acting_master: bool | None = None
    """None: the sender is too old to know of acting masters."""
    version: DataVersion = field(default_factory=DataVersion)
    topics: Topics = ()
    filter_servers: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Accepted:
    """The broker is on record; a slave learns where its master is."""

    master_address: str | None = None
    ha_address: str | None = None


class SingleTopicRefused(Exception):
    """A broker not on record sent exactly one topic.

    That is what an incremental registration looks like. Taken as a whole one, it would hide every other
    topic of a broker that this name server has forgotten.
    """


class TableFull(Exception):
    """There is no room for this; the text says which bound it would exceed."""


@dataclass(slots=True)
class BrokerSet:
    """All brokers of one name."""

    name: str
    cluster: str
    addresses: dict[int, str] = field(default_factory=dict)
    acting_master_allowed: bool = False
    zone: str | None = None
    clusters: set[str] = field(default_factory=set)
    """The clusters that members have named; more than one where they disagree."""

    @property
    def has_master(self) -> bool:
        return MASTER_ID in self.addresses

    def as_data(self) -> BrokerData:
        return BrokerData(
            broker_addrs=_by_id(self.addresses),
            broker_name=self.name,
            cluster=self.cluster,
            enable_acting_master=self.acting_master_allowed,
            zone_name=UNSET if self.zone is None else self.zone,
        )


@dataclass(slots=True)
class Live:
    """The last sign of life of one address, and the connection it came over."""

    broker_name: str
    peer: Hashable
    seen_ms: int
    timeout_ms: int
    version: DataVersion
    ha_address: str
    filter_servers: tuple[str, ...] = ()


class RouteTable:
    """Registrations in, routes out."""

    def __init__(self, *, acting_masters: bool = False, delete_missing_topics: bool = False) -> None:
        self.acting_masters = acting_masters
        """Show the lowest slave of a masterless set as its master, for reading."""
        self.delete_missing_topics = delete_missing_topics
        """A topic left out of a registration is forgotten."""
        self._sets: dict[str, BrokerSet] = {}
        self._live: dict[tuple[str, str], Live] = {}
        self._queues: dict[str, dict[str, QueueData]] = {}
        self._topics_of: dict[str, set[str]] = {}
        """The queues table from the other side: broker name -> topics."""
        self._entries = 0
        self._clusters: dict[str, set[str]] = {}
        self._leaving: dict[str, None] = {}
        """Names of sets that have left, and whose topics are not all dropped yet."""
        self._wiping: dict[str, Generator[None, None, int]] = {}
        """Names of sets without a master, and the work of taking writing away from their topics: routes show them
        without it from the first moment."""
        self._by_hand = Shares()
        """Topics that were placed by hand on brokers of other addresses, and the address that did it."""
        self._by_hand_at: Counter[str] = Counter()
        """The number of these by broker name."""

    # --- a broker's life: register, refresh, leave -----------------------------------------------

    def register(self, registration: Registration, peer: Hashable, now_ms: int) -> Accepted:
        """Put a broker on record in one go: `register_in_slices` without its pauses."""
        return finish(self.register_in_slices(registration, peer, now_ms))

    def register_in_slices(
        self, registration: Registration, peer: Hashable, now_ms: int
    ) -> Generator[None, None, Accepted]:
        """Put a broker on record, or refresh it; a claim to an id that a newer epoch holds is ignored.

        The first step judges and puts the broker on record, further ones place its topics; a broker that leaves
        meanwhile takes them along. Raises SingleTopicRefused, or TableFull: for the broker, which is not put on record
        then, or for some of its topics. One that is on record has given a sign of life in any case.
        """
        r = registration
        key = (r.cluster, r.address)
        self.refresh(*key, now_ms)
        yield from self._purge(r.broker_name)
        if self._leaving and 2 * (self._entries + len(r.topics)) > TOPICS_MAX:
            for name in tuple(self._leaving):
                yield from self._purge(name)
        known = self._sets.get(r.broker_name)
        addresses = {
            broker_id: address
            for broker_id, address in (known.addresses.items() if known else ())
            if address != r.address or broker_id == r.broker_id
        }
        holder = addresses.get(r.broker_id)
        if holder is not None and holder != r.address:
            holder_live = self._live.get((r.cluster, holder))
            if holder_live and holder_live.version.state_version > r.version.state_version:
                # The set keeps its holder, and the address that was turned away counts as not here.
                assert known is not None
                known.addresses = addresses
                self._leave_other_set(key, r.broker_name)
                self._live.pop(key, None)
                return Accepted()
        if holder is None and len(r.topics) == 1:
            raise SingleTopicRefused
        addresses[r.broker_id] = r.address
        sets_topics = _sets_topics(r, addresses)
        self._check_room_for_broker(key, r.broker_name, peer)
        self._leave_other_set(key, r.broker_name)
        first = known is None or holder is None
        broker_set = known or self._sets.setdefault(r.broker_name, BrokerSet(r.broker_name, r.cluster))
        self._clusters.setdefault(r.cluster, set()).add(r.broker_name)
        broker_set.clusters.add(r.cluster)
        broker_set.acting_master_allowed = bool(r.enable_acting_master)
        broker_set.zone = r.zone
        broker_set.addresses = addresses

        before = self._live.get(key)
        live = self._live[key] = Live(
            broker_name=r.broker_name,
            peer=peer,
            seen_ms=now_ms,
            timeout_ms=BROKER_EXPIRY_MS if r.timeout_ms is None else r.timeout_ms,
            version=r.version,
            ha_address=r.ha_address,
            filter_servers=before.filter_servers
            if r.filter_servers is None and before
            else r.filter_servers or (),
        )
        if sets_topics:
            changed = first or before is None or before.version != r.version
            mask = _permissions_of(r, broker_set)
            if changed:
                # The version is entered when all topics are: a broker that asks meanwhile registers again.
                live.version = DataVersion(r.version.state_version)
            yield from self._finish_wiping(r.broker_name)
            yield from self._set_topics(live, r.topics, mask, changed)
            live.version = r.version
        return Accepted() if r.broker_id == MASTER_ID else self._master_of(broker_set)

    def update(
        self, registration: Registration, gone: Iterable[str], peer: Hashable, now_ms: int
    ) -> Accepted | None:
        """Enter the topics of a broker on record that have changed since it registered, and no others.

        None for a broker that has not its place here, or not over this connection: it has to register as a whole.
        Raises TableFull for some of the topics.
        """
        r = registration
        live, broker_set = self._live.get((r.cluster, r.address)), self._sets.get(r.broker_name)
        if live is None or broker_set is None or (live.broker_name, live.peer) != (r.broker_name, peer):
            return None
        if broker_set.addresses.get(r.broker_id) != r.address:
            return None
        live.seen_ms, live.version = now_ms, r.version
        if _sets_topics(r, broker_set.addresses):
            if self.delete_missing_topics:
                for name in gone:
                    self._drop_queue(name, r.broker_name)
            finish(self._enter_topics(live, r.topics, _permissions_of(r, broker_set), changed=True))
        return Accepted() if r.broker_id == MASTER_ID else self._master_of(broker_set)

    def _leave_other_set(self, key: tuple[str, str], broker_name: str) -> None:
        """An address that speaks for another set than before gives up its place in the old one."""
        live = self._live.get(key)
        if live is not None and live.broker_name != broker_name:
            self.unregister(key[0], live.broker_name, key[1])

    def _brokers_from(self, peer: Hashable) -> list[str]:
        """Return the names of the brokers that registered from the origin of this one, once for each address."""
        if not isinstance(peer, Stranger):
            return []
        origin = origin_of(peer.peer_host)
        return [
            live.broker_name
            for live in self._live.values()
            if isinstance(live.peer, Stranger) and origin_of(live.peer.peer_host) == origin
        ]

    def _check_room_for_broker(self, key: tuple[str, str], broker_name: str, peer: Hashable) -> None:
        # Every set has an address and every address a life, so that one bound holds for the three.
        count = len(self._live)
        if key not in self._live and count >= BROKERS_MAX:
            raise TableFull(f"{BROKERS_MAX} brokers are on record, and no more may be")
        if key not in self._live and 2 * count >= BROKERS_MAX:
            mine = len(self._brokers_from(peer))
            if mine >= _SHARE * (BROKERS_MAX - count):
                raise TableFull(
                    f"{count} of {BROKERS_MAX} brokers are on record, {mine} of them from this address"
                )
        known = self._clusters.get(key[0], set())
        if broker_name not in known and sum(map(len, self._clusters.values())) >= BROKERS_MAX:
            raise TableFull(f"clusters have {BROKERS_MAX} members on record, and no more may be")

    def _room_for_topics(self, broker_name: str, peer: Hashable) -> tuple[int, str]:
        """Return how many topics a connection may add to a broker now, and which bound leaves no more."""
        used, mine = self._entries, len(self._topics_of.get(broker_name, ()))
        rooms = [
            (BROKER_TOPICS_MAX - mine, f"a broker may have {BROKER_TOPICS_MAX} topics"),
            (TOPICS_MAX - used, f"all brokers together may have {TOPICS_MAX} topics"),
        ]
        if isinstance(peer, Stranger) and 2 * (used + TOPICS_PER_STEP) >= TOPICS_MAX:
            names = set(self._brokers_from(peer))
            own = sum(len(self._topics_of.get(name, ())) - self._by_hand_at[name] for name in names)
            held = self._by_hand.of(peer) + own
            free = TOPICS_MAX - used
            share = max((TOPICS_MAX - 1) // 2 - used, (_SHARE * free - held) // (_SHARE + 1))
            why = f"all brokers together may have {TOPICS_MAX} topics, and {held} are from this address"
            rooms.append((share, why))
        return min(rooms)

    def _set_topics(
        self, live: Live, topics: Topics, mask: int, changed: bool
    ) -> Generator[None, None, None]:
        """Write down the topics of one set; an unchanged version only fills in what is missing."""
        broker_name = live.broker_name
        if self.delete_missing_topics:
            named: set[str] = set()
            for count, topic in enumerate(topics, 1):
                named.add(topic.topic_name)
                if count % TOPICS_PER_STEP == 0:
                    yield
            for count, name in enumerate(self._topics_of.get(broker_name, set()) - named, 1):
                self._drop_queue(name, broker_name)
                if count % TOPICS_PER_STEP == 0:
                    yield
        yield from self._enter_topics(live, topics, mask, changed=changed)

    def _enter_topics(
        self, live: Live, topics: Topics, mask: int, *, changed: bool
    ) -> Generator[None, None, None]:
        """Enter topics of one set as far as there is room. Raises TableFull, at the end, for the others."""
        broker_name = live.broker_name
        refused: list[str] = []
        room, bound = self._room_for_topics(broker_name, live.peer)
        for count, topic in enumerate(topics, 1):
            if count % TOPICS_PER_STEP == 0:
                yield
                if broker_name not in self._sets or broker_name in self._leaving:
                    return  # it has left meanwhile
                room, why = self._room_for_topics(broker_name, live.peer)
                bound = bound if refused else why
            by_broker = self._queues.get(topic.topic_name)
            if by_broker is None or broker_name not in by_broker:
                if room <= 0:
                    refused.append(topic.topic_name)
                    continue
                room -= 1
            elif not changed:
                continue
            self._put_queue(topic.topic_name, _queue_of(broker_name, topic, mask))
        if refused:
            listed = ", ".join(refused[:_NAMED_MAX]) + (", …" if len(refused) > _NAMED_MAX else "")
            raise TableFull(
                f"no room for {len(refused)} of the topics of broker {broker_name} ({listed}): {bound}. "
                "Its other topics are registered"
            )

    def _master_of(self, broker_set: BrokerSet) -> Accepted:
        address = broker_set.addresses.get(MASTER_ID)
        live = self._live.get((broker_set.cluster, address)) if address is not None else None
        return Accepted(address, live.ha_address) if live else Accepted()

    def refresh(self, cluster: str, address: str, now_ms: int) -> None:
        """Note a sign of life; of an address that is not on record it means nothing."""
        live = self._live.get((cluster, address))
        if live:
            live.seen_ms = now_ms

    def version_of(self, cluster: str, address: str) -> DataVersion | None:
        live = self._live.get((cluster, address))
        return live.version if live else None

    def unregister(self, cluster: str, broker_name: str, address: str) -> None:
        """Forget an address, and all that it alone served. Of an unknown one there is nothing to forget."""
        live = self._live.pop((cluster, address), None)
        self._leave_set(broker_name, cluster, address)
        if live is not None and live.broker_name != broker_name:
            # Whoever says goodbye under a wrong name is gone all the same, and nobody would ever miss it again.
            self._leave_set(live.broker_name, cluster, address)

    def _leave_set(self, broker_name: str, cluster: str, address: str) -> None:
        broker_set = self._sets.get(broker_name)
        if broker_set is None:
            return
        broker_set.addresses = {i: a for i, a in broker_set.addresses.items() if a != address}
        if not broker_set.addresses:
            del self._sets[broker_name]
            self._wiping.pop(broker_name, None)
            for each in broker_set.clusters:
                self._leave_cluster(broker_name, each)
            if broker_name in self._topics_of:
                self._leaving[broker_name] = None
            return
        # A member of another cluster than its set's: its cluster goes with the last one of them.
        if cluster != broker_set.cluster and not any(
            (cluster, other) in self._live for other in broker_set.addresses.values()
        ):
            self._leave_cluster(broker_name, cluster)
            broker_set.clusters.discard(cluster)
        if broker_set.acting_master_allowed and not broker_set.has_master:
            self._wiping[broker_name] = self._change_permissions(broker_name, without_write)

    def _leave_cluster(self, broker_name: str, cluster: str) -> None:
        names = self._clusters.get(cluster, set())
        names.discard(broker_name)
        if not names:
            self._clusters.pop(cluster, None)

    def purge(self) -> None:
        """Drop topics of sets that have left, or take writing from those of sets without a master: a slice of them.

        No route shows it any more.
        """
        if self._leaving:
            next(self._purge(next(iter(self._leaving))), None)
        elif self._wiping:
            next(self._finish_wiping(next(iter(self._wiping))), None)

    def _finish_wiping(self, broker_name: str) -> Generator[None, None, None]:
        """Take writing away from the rest of the topics of a set without a master."""
        while (steps := self._wiping.get(broker_name)) is not None:
            if next(steps, _DONE) is _DONE:
                self._wiping.pop(broker_name, None)
                return
            yield

    def _purge(self, broker_name: str) -> Generator[None, None, None]:
        """Drop all topics of a set that has left."""
        while broker_name in self._leaving:
            for topic in tuple(islice(self._topics_of.get(broker_name, ()), TOPICS_PER_STEP)):
                self._drop_queue(topic, broker_name)
            if broker_name not in self._topics_of:
                del self._leaving[broker_name]
                return
            yield

    def closed(self, peer: Hashable) -> list[str]:
        """A connection is gone, and every broker that registered over it; return their addresses."""
        return self._leave([key for key, live in self._live.items() if live.peer == peer])

    def expire(self, now_ms: int) -> list[str]:
        """Forget brokers that were silent too long; return their addresses."""
        return self._leave([k for k, live in self._live.items() if live.seen_ms + live.timeout_ms < now_ms])

    def _leave(self, keys: Iterable[tuple[str, str]]) -> list[str]:
        gone = sorted(keys)
        for cluster, address in gone:
            self.unregister(cluster, self._live[cluster, address].broker_name, address)
        return [address for _, address in gone]

    # --- questions --------------------------------------------------------------------------------

    def route(self, topic: str, zone: str | None = None) -> RouteData | None:
        """Return the route of this topic, or None where no broker serves it; with `zone`, only brokers of that zone."""
        by_broker = self._queues.get(topic)
        sets = [self._sets[name] for name in sorted(by_broker or ()) if name in self._sets]
        if not by_broker or not sets:
            return None
        queues = [self._shown(by_broker[name]) for name in sorted(by_broker) if name in self._sets]
        act = self.acting_masters and not topic.startswith(SYNC_BROKER_MEMBER_PREFIX)
        shown = [self._acted(s, by_broker) if act else s.as_data() for s in sets]
        if zone is not None:
            # A set without a master is shown to every zone: reading from afar beats not reading.
            shown = [d for d in shown if str(MASTER_ID) not in d.broker_addrs or _is_in_zone(d, zone)]
            names = {data.broker_name for data in shown}
            queues = [queue for queue in queues if queue.broker_name in names]
        return RouteData(
            broker_datas=shown, filter_server_table=self._filter_servers(shown), queue_datas=queues
        )

    def _shown(self, queue: QueueData) -> QueueData:
        if queue.broker_name in self._wiping:
            return msgspec.structs.replace(queue, perm=without_write(queue.perm))
        return queue

    def _filter_servers(self, shown: Iterable[BrokerData]) -> dict[str, list[str]]:
        keys = [(data.cluster, address) for data in shown for address in data.broker_addrs.values()]
        found = ((key[1], self._live.get(key)) for key in keys)
        return {address: list(live.filter_servers) for address, live in found if live and live.filter_servers}

    def _acted(self, broker_set: BrokerSet, by_broker: Mapping[str, QueueData]) -> BrokerData:
        """The set as shown, its lowest slave standing in for a missing master (for reading only)."""
        data = broker_set.as_data()
        if broker_set.has_master or not broker_set.acting_master_allowed:
            return data
        if self._shown(by_broker[broker_set.name]).perm & Permission.WRITE:
            return data
        lowest = min(broker_set.addresses)
        addresses = {**broker_set.addresses, MASTER_ID: broker_set.addresses[lowest]}
        del addresses[lowest]
        return msgspec.structs.replace(data, broker_addrs=_by_id(addresses))

    def broker_table(self) -> dict[str, BrokerData]:
        return {name: self._sets[name].as_data() for name in sorted(self._sets)}

    def cluster_table(self) -> dict[str, list[str]]:
        return {cluster: sorted(self._clusters[cluster]) for cluster in sorted(self._clusters)}

    def members(self, cluster: str, broker_name: str) -> MemberGroup:
        """The set of that name; empty, not an error, when there is none."""
        broker_set = self._sets.get(broker_name)
        addresses = _by_id(broker_set.addresses) if broker_set else {}
        return MemberGroup(broker_addrs=addresses, broker_name=broker_name, cluster=cluster)

    def topics(self) -> list[str]:
        """Return the names of all topics, in order."""
        return sorted(filter(self.is_served, self._queues))

    def topic_names(self) -> list[str]:
        """Return all names that `is_served`, `is_in_cluster` and `has_flags` can be asked about, in no order."""
        return list(self._queues)

    def is_served(self, topic: str) -> bool:
        """Tell whether a set has this topic that has not left."""
        by_broker = self._queues.get(topic)
        return by_broker is not None and not (self._leaving and by_broker.keys() <= self._leaving.keys())

    def is_in_cluster(self, topic: str, cluster: str) -> bool:
        """Tell whether a set of this cluster has this topic."""
        return not self._clusters.get(cluster, set()).isdisjoint(self._queues.get(topic, ()))

    def has_flags(self, topic: str, *, unit: bool | None = None, subscribed: bool | None = None) -> bool:
        """Tell whether the topic's first queue data carries the flags asked for; None means either."""
        return self.is_served(topic) and _flags_are(
            next(iter(self._queues[topic].values())).topic_sys_flag, unit, subscribed
        )

    # --- an administrator's hand --------------------------------------------------------------------

    def wipe_write_permission(self, broker_name: str) -> int:
        """Take writing away from every topic of the set, until it registers a new data version.

        Returns the number of topics.
        """
        return finish(self.set_permissions(broker_name, without_write))

    def add_write_permission(self, broker_name: str) -> int:
        return finish(self.set_permissions(broker_name, with_write))

    def set_permissions(self, broker_name: str, rule: Callable[[int], int]) -> Generator[None, None, int]:
        """Change the permission of every topic of a set, a slice at each step; return the number of topics."""
        yield from self._finish_wiping(broker_name)
        return (yield from self._change_permissions(broker_name, rule))

    def _change_permissions(self, broker_name: str, rule: Callable[[int], int]) -> Generator[None, None, int]:
        mine = list(self._topics_of.get(broker_name, ()))
        for count, topic in enumerate(mine, 1):
            by_broker = self._queues.get(topic, {})
            queue = by_broker.get(broker_name)
            if queue is not None:  # it may have left meanwhile
                by_broker[broker_name] = msgspec.structs.replace(queue, perm=rule(queue.perm))
            if count % TOPICS_PER_STEP == 0:
                yield
        return len(mine)

    def register_topic(self, topic: str, queues: Iterable[QueueData], peer: Hashable = None) -> None:
        """Place a topic on brokers by hand; on none of them if one is not on record. Raises TableFull.

        On brokers that registered from elsewhere a topic counts for the address of this connection, and half of a
        broker's places is left to the broker itself.
        """
        by_broker = {queue.broker_name: queue for queue in queues}
        if not by_broker.keys() <= self._sets.keys():
            return
        own = set(self._brokers_from(peer))
        is_stranger = isinstance(peer, Stranger)
        added = [name for name in by_broker if topic not in self._topics_of.get(name, ())]
        for name in added:
            total = BROKER_TOPICS_MAX if name in own or not is_stranger else BROKER_TOPICS_MAX // 2
            if len(self._topics_of.get(name, ())) >= total:
                raise TableFull(f"broker {name} has {total} topics, and may have no more by hand")
        room, why = self._room_for_topics("", peer)
        if len(added) > room:
            raise TableFull(f"no room for topic {topic} at {len(added)} brokers: {why}")
        for queue in by_broker.values():
            self._put_queue(topic, queue)
        if isinstance(peer, Stranger):
            for name in added:
                if name not in own:
                    self._by_hand.add((topic, name), peer)
                    self._by_hand_at[name] += 1

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forget a topic, of one cluster or everywhere; it returns with a broker's next new version."""
        names = self._queues.get(topic, {}) if cluster is None else self._clusters.get(cluster, set())
        for name in list(names):
            self._drop_queue(topic, name)

    def _put_queue(self, topic: str, queue: QueueData) -> None:
        by_broker = self._queues.setdefault(topic, {})
        if queue.broker_name not in by_broker:
            self._entries += 1
            self._topics_of.setdefault(queue.broker_name, set()).add(topic)
        by_broker[queue.broker_name] = queue

    def _drop_queue(self, topic: str, broker_name: str) -> None:
        by_broker = self._queues.get(topic)
        if by_broker is None or by_broker.pop(broker_name, None) is None:
            return
        self._entries -= 1
        if (topic, broker_name) in self._by_hand:
            self._by_hand.discard((topic, broker_name))
            self._by_hand_at[broker_name] -= 1
        mine = self._topics_of[broker_name]
        mine.discard(topic)
        if not mine:
            del self._topics_of[broker_name]
            del self._by_hand_at[broker_name]
        if not by_broker:
            del self._queues[topic]


def _sets_topics(r: Registration, addresses: Iterable[int]) -> bool:
    """Tell whether the topics of this member of a set count: those of the master, or of the lowest slave."""
    return r.broker_id == MASTER_ID or (r.broker_id == min(addresses) and r.enable_acting_master is not None)


def _permissions_of(r: Registration, broker_set: BrokerSet) -> int:
    """Return the mask for the permissions of topics. Only a master may promise that its topics can be written."""
    return ~Permission.WRITE if r.broker_id != MASTER_ID and broker_set.acting_master_allowed else ~0


def _queue_of(broker_name: str, topic: TopicConfig, mask: int) -> QueueData:
    return QueueData(
        broker_name=broker_name,
        perm=topic.perm & mask,
        read_queue_nums=topic.read_queue_nums,
        topic_sys_flag=topic.topic_sys_flag,
        write_queue_nums=topic.write_queue_nums,
    )


def without_write(perm: int) -> int:
    return perm & ~Permission.WRITE


def with_write(perm: int) -> int:
    return Permission.READ | Permission.WRITE


def _by_id(addresses: Mapping[int, str]) -> dict[str, str]:
    return {str(broker_id): addresses[broker_id] for broker_id in sorted(addresses)}


def _is_in_zone(data: BrokerData, zone: str) -> bool:
    return isinstance(data.zone_name, str) and data.zone_name.lower() == zone.lower()


def _flags_are(flags: int, unit: bool | None, subscribed: bool | None) -> bool:
    return (unit is None or bool(flags & UnitSysFlag.UNIT) == unit) and (
        subscribed is None or bool(flags & UnitSysFlag.UNIT_SUB) == subscribed
    )
