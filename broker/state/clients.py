"""Connected clients: the consumers and producers that announced themselves by heartbeat.

A heartbeat names a client and the groups it belongs to, and for each consumer group what it subscribes to.
The registry keeps one entry per connection and group, keeps a group's subscriptions (the newest version of
each topic), and answers every change with the groups that have changed: each of their members is owed code 40, so
that the members divide the queues anew at once and not at their next 20-second look.

Decisions worth knowing:

- Two live connections with one client id in one group are usually the same program before and after a
  reconnect, or two containers that share a name. Both entries are kept; the id is listed once. Listed
  twice, each client would take the share of the first of the two places and the queues of the second would
  belong to nobody.
- A group exists while it has a member. The last one takes the subscriptions along.
- Members whose subscriptions differ lose messages without a word: each heartbeat takes the other's topics
  away. That is reported, once per change, through `take_findings`, always in `conflicts`, and to each member of
  Ropewalk's clients with the answer to its heartbeat (`conflict_of`).
- What a stranger can make us keep is bounded: by the heartbeat's size, by groups and subscriptions per
  client, by groups in all, and by the bytes of all clients together. Past a bound the heartbeat is refused with
  `HeartbeatRefused` and nothing of it is kept; when all bytes are taken, the connection with most of them is closed.
- A stranger can be in a thousand groups with thousands of others. So the end of a connection, and the look at all
  clients, are taken in steps, and members of a changed group are looked up when they are told.

Plain and synchronous: connections are any hashable key, time is a parameter, iteration follows insertion.
Whether a group may exist is `groups.py`; drop the refused ones with `HeartbeatData.with_consumers` first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from broker.state import client_sizes
from broker.state.client_sizes import ClientSize, ClientSizes, Ranking
from broker.state.heartbeat import (
    BROADCASTING,
    CLUSTERING,
    GROUPS_PER_CLIENT_MAX,
    ConsumerData,
    HeartbeatData,
    HeartbeatRefused,
)
from broker.state.shares import Shares, Stranger
from broker.state.subscription import SubscriptionData

__all__ = [
    "BROADCASTING",
    "CLUSTERING",
    "ClientRegistry",
    "ConsumerData",
    "ConsumerGroup",
    "HeartbeatData",
    "HeartbeatRefused",
    "Member",
]

EXPIRY_MS = 120_000
PRODUCER_GROUPS_MAX = 20_000
"""In all. Consumer groups are bounded by the group table, which is asked first."""
FINDINGS_MAX = 100
COMPARED_MAX: Final = 64
"""Members of a group that one is compared with for the answer to its heartbeat."""
_COMPARED_SIZE_MAX: Final = 2_000
"""Subscriptions and tags that are compared for it, over all its groups."""
_GROUPS_PER_STEP: Final = 50
_LOOKED_AT_PER_STEP: Final = 500


@dataclass(slots=True)
class Member:
    """A connection's part in a group."""

    client_id: str
    language: str
    version: int
    address: str
    """`ip:port` of the far end, as tools show it."""
    seen_ms: int
    """Its last heartbeat, by the monotonic clock."""
    subscriptions: tuple[SubscriptionData, ...] = ()
    """The subscription that this member sent last; the group's table may hold another member's."""

    @property
    def weight(self) -> int:
        """Return how many subscriptions and tags a comparison with this member looks at."""
        return 1 + sum(1 + len(wish.codes) for wish in self.subscriptions)

    def to_json(self) -> dict[str, Any]:
        return {
            "clientAddr": self.address,
            "clientId": self.client_id,
            "language": self.language,
            "version": self.version,
        }


@dataclass(slots=True)
class ConsumerGroup:
    """A consumer group that has at least one member."""

    name: str
    consume_type: str
    message_model: str
    consume_from_where: str
    members: dict[Hashable, Member] = field(default_factory=dict)
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    stated: Counter[int] = field(default_factory=Counter)
    """How many members say each of these subscriptions now, by the identity of the object."""
    ids: Counter[str] = field(default_factory=Counter)
    """How many members have each client id."""
    ids_version: int = 0
    """Rises with every change of the members or their ids."""
    ids_text: list[bytes] | None = None
    """The list of ids as clients get it, in pieces, if it was asked for since that."""

    def put(self, peer: Hashable, member: Member) -> None:
        """Add a member, or replace the one with its connection."""
        before = self.members.get(peer)
        if before is None or before.client_id != member.client_id:
            self._forget_id(before)
            self.ids[member.client_id] += 1
        if before is None or before.subscriptions is not member.subscriptions:
            self._forget_stated(before)
            self.stated.update(map(id, member.subscriptions))
        self.members[peer] = member

    def pop(self, peer: Hashable) -> Member | None:
        """Remove a member, and return it."""
        member = self.members.pop(peer, None)
        self._forget_id(member)
        self._forget_stated(member)
        return member

    def _forget_stated(self, member: Member | None) -> None:
        for wish in member.subscriptions if member is not None else ():
            self.stated[id(wish)] -= 1
            if not self.stated[id(wish)]:
                del self.stated[id(wish)]

    def _forget_id(self, member: Member | None) -> None:
        self.ids_version += 1
        self.ids_text = None
        if member is not None:
            self.ids[member.client_id] -= 1
            if not self.ids[member.client_id]:
                del self.ids[member.client_id]

    def conflicts(self) -> list[str]:
        """A sentence for each member that subscribes to other things than the group's first member."""
        members = list(self.members.values())
        return [
            _conflict(self, member, members[0]) for member in members[1:] if not _agree(member, members[0])
        ]


@dataclass(slots=True)
class _Peer:
    """The groups that one connection is registered under; dicts serve as ordered sets."""

    consumer_groups: dict[str, None] = field(default_factory=dict)
    producer_groups: dict[str, None] = field(default_factory=dict)
    client_id: str = ""
    size: ClientSize = field(default_factory=ClientSize)


class ClientRegistry:
    """All clients of one broker."""

    def __init__(
        self, notifies: Callable[[str], bool] = lambda group: True, *, expiry_ms: int = EXPIRY_MS
    ) -> None:
        """`notifies(group)`: whether its members are told of changes (`groups.GroupTable.notifies`)."""
        self._notifies = notifies
        self._expiry_ms = expiry_ms
        self._consumers: dict[str, ConsumerGroup] = {}
        self._producers: dict[str, dict[Hashable, Member]] = {}
        self._producer_shares = Shares(PRODUCER_GROUPS_MAX)
        self._peers: dict[Hashable, _Peer] = {}
        self._producer_ids: dict[str, Hashable] = {}
        """Client id -> the connection that last produced under it: a reconnect replaces the one before."""
        self.conflicts: Counter[str] = Counter()
        """Conflicts since the start by kind: `subscription`, `client_id`. Each is in a finding once, too."""
        self._findings: list[str] = []
        self.group_left: Callable[[str], None] = lambda group: None
        """Called with a consumer group whose last member has gone."""
        self.sizes = ClientSizes()
        self.pressed: Callable[[], None] = lambda: None
        """Called when all clients take more bytes than they may: `make_room` is wanted."""
        self._makes_room = False
        self._leaving = 0
        """Connections that are being forgotten in steps."""

    # -- coming and going ------------------------------------------------------------------------------

    def heartbeat(
        self,
        peer: Hashable,
        data: HeartbeatData,
        now_ms: int,
        *,
        language: str = "JAVA",
        version: int = 0,
        address: str = "",
        by: Stranger | None = None,
    ) -> list[str]:
        """Register or refresh everything one heartbeat names, and return the groups whose members are to be told.

        All members of a changed group are told, the newcomer too: it asked for the member list before it was
        in it. Raises `HeartbeatRefused`, with nothing changed, if the client would hold too many groups.
        """
        known = self._peers.get(peer) or _Peer()
        self._check_bounds(known, data, by)
        self._peers[peer] = known
        changed: list[str] = []
        for consumer in data.consumers:
            member = Member(data.client_id, language, version, address, now_ms)
            if self._register_consumer(peer, known, member, consumer, data.without_sub):
                changed += self._tell(consumer.group)
            known.consumer_groups[consumer.group] = None
        for group in data.producers:
            if group not in self._producers:
                self._producer_shares.add(group, by)
            members = self._producers.setdefault(group, {})
            self._replace_place(known, members.get(peer), data.client_id)
            members[peer] = Member(data.client_id, language, version, address, now_ms)
            known.producer_groups[group] = None
        if data.producers:
            self._forget_producer_id(peer, known)
            known.client_id = data.client_id
            self._producer_ids[data.client_id] = peer
        if not known.consumer_groups and not known.producer_groups:
            del self._peers[peer]
        if self.sizes.size > client_sizes.SIZE_MAX and not self._makes_room:
            self._makes_room = True
            self.pressed()
        return changed

    def check_bounds(self, peer: Hashable, data: HeartbeatData, by: Stranger | None = None) -> None:
        """Raise `HeartbeatRefused` if the client would hold too many groups with all of this heartbeat."""
        self._check_bounds(self._peers.get(peer) or _Peer(), data, by)

    def unregister(
        self, peer: Hashable, *, consumer_group: str | None = None, producer_group: str | None = None
    ) -> list[str]:
        """Code 35: the connection leaves the named groups and stays open."""
        known = self._peers.get(peer)
        if known is None:
            return []
        if producer_group:
            self._remove_producer(peer, known, producer_group)
        changed = self._remove_consumer(peer, known, consumer_group) if consumer_group else []
        self._forget_if_idle(peer, known)
        return changed

    def closed(self, peer: Hashable) -> list[str]:
        """Forget a connection and everything it was registered under; return the groups that have changed."""
        changed: list[str] = []
        for _ in self.closed_in_slices(peer, changed):
            pass
        return changed

    def closed_in_slices(self, peer: Hashable, changed: list[str]) -> Iterator[None]:
        """Forget a connection as `closed` does, some groups at each step; the groups that changed go to a list."""
        known = self._peers.pop(peer, None)
        if known is None:
            return
        self._leaving += 1
        left = 0
        for group in tuple(known.producer_groups):
            self._remove_producer(peer, known, group)
            left += 1
            if left % _GROUPS_PER_STEP == 0:
                yield
        for group in tuple(known.consumer_groups):
            changed += self._remove_consumer(peer, known, group)
            left += 1
            if left % _GROUPS_PER_STEP == 0:
                yield
        self._leaving -= 1
        assert not known.size.own and not known.size.shared, known.size

    def expire(self, now_ms: int) -> tuple[list[Hashable], list[str]]:
        """Drop clients that sent no heartbeat for two minutes, all at once."""
        dead: list[Hashable] = []
        changed: list[str] = []
        for some_dead, some_changed in self.expire_in_slices(now_ms):
            dead += some_dead
            changed += some_changed
        return dead, [group for group in changed if group in self._consumers]

    def expire_in_slices(self, now_ms: int) -> Iterator[tuple[list[Hashable], list[str]]]:
        """Drop clients that sent no heartbeat for two minutes, some at each step; call every ten seconds.

        The first list is the connections that are to be closed: all they were registered under has expired. A
        client that merely stopped naming one of its groups loses that group alone. The second one is the groups that
        have changed.
        """
        dead: list[Hashable] = []
        changed: list[str] = []
        before_ms = now_ms - self._expiry_ms
        left = _LOOKED_AT_PER_STEP
        for peer, known in tuple(self._peers.items()):
            if self._peers.get(peer) is not known:
                continue
            left -= 1 + len(known.producer_groups) + len(known.consumer_groups)
            for group in tuple(known.producer_groups):
                if self._producers[group][peer].seen_ms < before_ms:
                    self._remove_producer(peer, known, group)
            for group in tuple(known.consumer_groups):
                if self._consumers[group].members[peer].seen_ms < before_ms:
                    changed += self._remove_consumer(peer, known, group)
            if self._forget_if_idle(peer, known):
                dead.append(peer)
            if left <= 0:
                left = _LOOKED_AT_PER_STEP
                yield dead, changed
                dead, changed = [], []
        yield dead, changed

    def make_room(self) -> Iterator[tuple[list[Hashable], list[str]]]:
        """Forget the connections that take most, one after the other, until there is room; each is to be closed.

        The lists are as those of `expire_in_slices`.
        """
        ranking: Ranking[Hashable] = Ranking(self.sizes)
        for at, (peer, known) in enumerate(tuple(self._peers.items())):
            if at % _LOOKED_AT_PER_STEP == 0:
                yield [], []
            ranking.add(peer, known.size)
        for peer in ranking:
            if self.sizes.size <= client_sizes.SIZE_MAX * 15 // 16:
                break
            if peer in self._peers:
                yield [peer], []
                changed: list[str] = []
                for _ in self.closed_in_slices(peer, changed):
                    yield [], []
                yield [], changed
            while self._leaving:
                yield [], []
        self._makes_room = False

    # -- looking ---------------------------------------------------------------------------------------

    def consumer_ids(self, group: str) -> list[str]:
        """The client ids of a group, each once; empty means the answer to 38 is 1."""
        info = self._consumers.get(group)
        return [] if info is None else list(dict.fromkeys(m.client_id for m in info.members.values()))

    def members_of(self, group: str) -> list[Hashable]:
        """Return the connections of a consumer group's members."""
        info = self._consumers.get(group)
        return [] if info is None else list(info.members)

    def consumer_group(self, group: str) -> ConsumerGroup | None:
        """The live group, for pull checks and 203; None if it has no member. Not to be changed."""
        return self._consumers.get(group)

    def conflict_of(self, peer: Hashable, groups: Iterable[str]) -> str | None:
        """Return a sentence for a member of these groups that subscribes to other things than another member."""
        left = _COMPARED_SIZE_MAX
        for group in groups:
            info = self._consumers.get(group)
            mine = info.members.get(peer) if info is not None else None
            if info is None or mine is None:
                continue
            weight = mine.weight
            for other in islice(info.members.values(), COMPARED_MAX):
                left -= weight
                if left < 0:
                    return None
                if other is not mine and not _agree(other, mine):
                    return _conflict(info, mine, other)
        return None

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        info = self._consumers.get(group)
        return None if info is None else info.subscriptions.get(topic)

    def consumer_groups(self) -> list[str]:
        return list(self._consumers)

    def groups_subscribed_to(self, topic: str) -> list[str]:
        """The live groups that read a topic (300)."""
        return [group for group, info in self._consumers.items() if topic in info.subscriptions]

    def consumers_of(self, topics: Iterable[str]) -> list[str]:
        """Return the groups whose members subscribe to one of these topics, broadcasting ones too."""
        names = frozenset(topics)  # of a view and a set the shorter one is walked
        return [
            group
            for group, info in self._consumers.items()
            if self._notifies(group) and not info.subscriptions.keys().isdisjoint(names)
        ]

    def producer(self, client_id: str) -> Hashable | None:
        """The connection of the producer with this client id, or None: where answers to its requests go."""
        return self._producer_ids.get(client_id)

    def producer_groups(self) -> list[str]:
        return list(self._producers)

    def producer_members(self, group: str) -> dict[Hashable, Member]:
        """The producers of a group by connection, longest registered first; empty if there is none."""
        return dict(self._producers.get(group, {}))

    @property
    def client_count(self) -> int:
        """Connections that are registered under something."""
        return len(self._peers)

    def take_findings(self) -> list[str]:
        """Return the oddities since the last call, as sentences for the log; at most `FINDINGS_MAX` are kept."""
        findings, self._findings = self._findings, []
        return findings

    # -- consumers -------------------------------------------------------------------------------------

    def _register_consumer(
        self, peer: Hashable, known: _Peer, member: Member, data: ConsumerData, without_sub: bool
    ) -> bool:
        """Whether the members have to be told: a new connection, or another set of topics."""
        info = self._consumers.get(data.group)
        if info is None:
            info = self._consumers[data.group] = ConsumerGroup(
                data.group, data.consume_type, data.message_model, data.consume_from_where
            )
        info.consume_type = data.consume_type
        info.message_model = data.message_model
        info.consume_from_where = data.consume_from_where
        before = info.members.get(peer)
        joined = before is None or before.client_id != member.client_id
        if joined and info.ids[member.client_id]:
            self._find(
                "client_id",
                f"group {data.group} has two connections with client id {member.client_id}: a reconnect, or "
                "two programs that share a name and now read the same queues",
            )
        self._replace_place(known, before, member.client_id)
        old = before.subscriptions if before is not None else ()
        if without_sub or old == data.subscriptions:
            member.subscriptions = old  # nothing new is kept of what nearly all heartbeats repeat
        else:
            member.subscriptions = self.sizes.keep(known.size, data.subscriptions)
            self.sizes.drop(known.size, old)
        info.put(peer, member)
        if before is None or not _agree(before, member):
            self._find_conflict(info, member)
        changed = not without_sub and _update_subscriptions(info, member.subscriptions)
        return joined or changed

    def _replace_place(self, known: _Peer, before: Member | None, client_id: str) -> None:
        if before is None or before.client_id != client_id:
            self.sizes.join(known.size, client_id)
            if before is not None:
                self.sizes.join(known.size, before.client_id, -1)

    def _remove_consumer(self, peer: Hashable, known: _Peer, group: str) -> list[str]:
        known.consumer_groups.pop(group, None)
        info = self._consumers.get(group)
        member = info.pop(peer) if info is not None else None
        if info is None or member is None:
            return []
        self.sizes.join(known.size, member.client_id, -1)
        self.sizes.drop(known.size, member.subscriptions)
        if not info.members:
            del self._consumers[group]
            self.group_left(group)
            return []
        _forget_large(info, member)
        return self._tell(group)

    def _tell(self, group: str) -> list[str]:
        info = self._consumers[group]
        return [] if info.message_model == BROADCASTING or not self._notifies(group) else [group]

    # -- producers, bounds, findings -------------------------------------------------------------------

    def _remove_producer(self, peer: Hashable, known: _Peer, group: str) -> None:
        known.producer_groups.pop(group, None)
        members = self._producers.get(group, {})
        member = members.pop(peer, None)
        if member is not None:
            self.sizes.join(known.size, member.client_id, -1)
        if not members:
            self._producers.pop(group, None)
            self._producer_shares.discard(group)
        if not known.producer_groups:
            self._forget_producer_id(peer, known)

    def _forget_producer_id(self, peer: Hashable, known: _Peer) -> None:
        if self._producer_ids.get(known.client_id) == peer:
            del self._producer_ids[known.client_id]

    def _forget_if_idle(self, peer: Hashable, known: _Peer) -> bool:
        if known.consumer_groups or known.producer_groups:
            return False
        del self._peers[peer]
        return True

    def _check_bounds(self, known: _Peer, data: HeartbeatData, by: Stranger | None) -> None:
        consumers = len(known.consumer_groups.keys() | {consumer.group for consumer in data.consumers})
        producers = len(known.producer_groups.keys() | set(data.producers))
        if consumers > GROUPS_PER_CLIENT_MAX or producers > GROUPS_PER_CLIENT_MAX:
            raise HeartbeatRefused(
                f"client {data.client_id} would be in {consumers} consumer and {producers} producer groups; "
                f"{GROUPS_PER_CLIENT_MAX} of each are kept for one connection"
            )
        if self.sizes.size > client_sizes.SIZE_MAX * 9 // 8:
            raise HeartbeatRefused(
                f"the clients of this broker take {self.sizes.size} bytes of subscriptions, {client_sizes.SIZE_MAX} "
                "are the most: those that take most are being closed, try again in a moment"
            )
        fresh = sum(1 for group in data.producers if group not in self._producers)
        if fresh and self._producer_shares.refuses(by, len(self._producers), fresh):
            raise HeartbeatRefused(
                f"this broker already knows {len(self._producers)} producer groups, {PRODUCER_GROUPS_MAX} are the "
                "most, and one address has no more of them than are free"
            )

    def _find_conflict(self, info: ConsumerGroup, member: Member) -> None:
        # One look is enough: when each newcomer agreed with some earlier member, all agree.
        other = next((other for other in info.members.values() if other is not member), None)
        if other is not None and not _agree(other, member):
            self._find("subscription", _conflict(info, member, other))

    def _find(self, kind: str, sentence: str) -> None:
        self.conflicts[kind] += 1
        if len(self._findings) < FINDINGS_MAX:
            self._findings.append(sentence)


def _update_subscriptions(info: ConsumerGroup, wanted: tuple[SubscriptionData, ...]) -> bool:
    """Bring the group's table up to one member's wishes; whether the set of topics changed.

    What a member says now is replaced by a newer version only: two members' clocks decide, not the order in which
    their heartbeats arrive. What nobody says any more is replaced by whatever comes. A new version of a known topic is
    no change that members have to be told of.
    """
    topics = dict.fromkeys(wish.topic for wish in wanted)
    added = [topic for topic in topics if topic not in info.subscriptions]
    for wish in wanted:
        current = info.subscriptions.get(wish.topic)
        if current is None or wish.version > current.version or id(current) not in info.stated:
            info.subscriptions[wish.topic] = wish
    gone = [topic for topic in info.subscriptions if topic not in topics]
    for topic in gone:
        del info.subscriptions[topic]
    return bool(added or gone)


def _forget_large(info: ConsumerGroup, member: Member) -> None:
    """Replace what a group's table has of a member that has gone: nobody would count it any more.

    Where no other member is found with the topic, its next heartbeat brings it back.
    """
    for wish in member.subscriptions:
        if info.subscriptions.get(wish.topic) is not wish or not client_sizes.is_large(wish):
            continue
        others = (
            each for other in islice(info.members.values(), COMPARED_MAX) for each in other.subscriptions
        )
        other = next((each for each in others if each.topic == wish.topic), None)
        if other is not None:
            info.subscriptions[wish.topic] = other
        else:
            del info.subscriptions[wish.topic]


def _agree(one: Member, other: Member) -> bool:
    if one.subscriptions is other.subscriptions:
        return True
    mine = {wish.topic: wish for wish in one.subscriptions}
    theirs = {wish.topic: wish for wish in other.subscriptions}
    return mine.keys() == theirs.keys() and all(mine[topic].same_wish(theirs[topic]) for topic in mine)


def _conflict(info: ConsumerGroup, one: Member, other: Member) -> str:
    return (
        f"group {info.name}: {one.client_id} subscribes to {_wishes(one)}, {other.client_id} to "
        f"{_wishes(other)}; the one that is newer by their clocks counts for both, and messages are lost until all "
        "members agree"
    )


def _wishes(member: Member) -> str:
    shown = [
        f"{wish.topic}:{wish.expression[:80]}" for wish in sorted(member.subscriptions, key=_by_topic)[:5]
    ]
    more = len(member.subscriptions) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "") or "nothing"


def _by_topic(wish: SubscriptionData) -> str:
    return wish.topic
