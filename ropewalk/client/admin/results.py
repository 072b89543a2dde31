"""Results of an administrator's requests: small frozen values, read from brokers' documents. Pure.

The documents are fastjson's dialect, as RocketMQ and Ropewalk write them. A field that is missing has the value that
RocketMQ's own tools would assume; one of a wrong type is a `RemoteProtocolError`. Times are milliseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Literal, ParamSpec, TypeVar

from ropewalk.client.core.consume.received import TopicQueue
from ropewalk.client.core.routes import MASTER_ID, Queue
from ropewalk.codes import Permission
from ropewalk.errors import RemoteProtocolError
from ropewalk.format.fastjson import queue_keys
from ropewalk.format.names import DLQ_PREFIX, REPLY_TOPIC_POSTFIX, RETRY_PREFIX, is_system_topic

P = ParamSpec("P")
T = TypeVar("T")
Document = Mapping[str, Any]


def _reads_a_peer(reader: Callable[P, T]) -> Callable[P, T]:
    """Report a malformed answer as the peer's fault, in words, and not as a `KeyError` of ours."""

    @wraps(reader)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return reader(*args, **kwargs)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as exc:
            raise RemoteProtocolError(f"an answer cannot be read: {exc}") from exc

    return guarded


# Parts of documents


@_reads_a_peer
def read_texts(document: Document, name: str) -> tuple[str, ...]:
    """Return the texts of a list."""
    found = document.get(name) or ()
    if not isinstance(found, list | tuple):
        raise TypeError(f"{name} is no list")
    return tuple(map(str, found))


@_reads_a_peer
def read_table(document: Document, name: str) -> dict[str, Any]:
    """Return a table whose keys are texts."""
    return {str(key): value for key, value in (document.get(name) or {}).items()}


@_reads_a_peer
def read_numbers(document: Document, name: str) -> dict[str, int]:
    """Return a table of whole numbers whose keys are texts."""
    return {key: int(value) for key, value in read_table(document, name).items()}


@_reads_a_peer
def read_number(document: Document, name: str) -> int:
    """Return a whole number."""
    return int(document[name])


@_reads_a_peer
def read_objects(document: Document, name: str) -> tuple[dict[str, Any], ...]:
    """Return the objects of a list."""
    found = tuple(document.get(name) or ())
    if not all(isinstance(each, dict) for each in found):
        raise TypeError(f"{name} has entries that are no objects")
    return found


@_reads_a_peer
def read_kv_region(document: Document) -> dict[str, Any]:
    """Return the status of a region of the key-value store, with the values that a table needs."""
    bytes.fromhex(str(document.get("firstKey", "")))
    return {
        **document,
        "firstKey": str(document.get("firstKey", "")),
        "region": int(document["region"]),
        "member": str(document["member"]),
        "members": list(read_texts(document, "members")),
        "leads": bool(document["leads"]),
        "term": int(document.get("term", 0)),
    }


# Brokers


@dataclass(frozen=True, slots=True, order=True)
class BrokerMember:
    """A broker process, as the name server knows it."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str

    @property
    def is_master(self) -> bool:
        return self.broker_id == MASTER_ID


@_reads_a_peer
def read_members(document: Document) -> tuple[BrokerMember, ...]:
    """Return the answer to 106: every member of every broker set, sorted."""
    clusters = {
        str(name): str(cluster)
        for cluster, names in (document.get("clusterAddrTable") or {}).items()
        for name in names
    }
    return tuple(
        sorted(
            BrokerMember(
                clusters.get(name, str(entry.get("cluster") or "")), name, int(broker_id), str(address)
            )
            for name, entry in (document.get("brokerAddrTable") or {}).items()
            for broker_id, address in (entry.get("brokerAddrs") or {}).items()
        )
    )


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """The status of a broker: RocketMQ's run-time table, whose values are text."""

    member: BrokerMember
    runtime: Mapping[str, str]

    def number(self, name: str) -> float | None:
        """Return the first number of a value; None where there is none."""
        words = self.runtime.get(name, "").split()
        try:
            return float(words[0]) if words else None
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class SinkStatus:
    """The state of a pipeline's exactly-once sink at one broker."""

    member: BrokerMember
    sink_id: str
    epoch: int
    query: str
    batch: int
    """The batch that was committed last, and the first characters of its query's id; -1 before the first."""
    is_open: bool
    """Whether a batch was begun since."""
    rows: int
    """Rows of the open batch."""
    topics: tuple[str, ...]
    last_activity_ms: int


@_reads_a_peer
def read_sinks(member: BrokerMember, document: Document) -> tuple[SinkStatus, ...]:
    """Return the answer to 30033."""
    return tuple(
        SinkStatus(
            member,
            str(row["sinkId"]),
            int(row["epoch"]),
            str(row["query"]),
            int(row["batch"]),
            bool(row["open"]),
            int(row["rows"]),
            tuple(map(str, row["topics"])),
            int(row["lastActivity"]),
        )
        for row in document["sinks"]
    )


@dataclass(frozen=True, slots=True)
class LedgerPeerStatus:
    """A member of a DLedger group, as another one sees it."""

    id: str
    address: str
    is_linked: bool
    """Whether both links are up."""
    state: str
    """Of the leader's dispatcher: PROBE, REPLICATE, or SNAPSHOT for one that lacks what retention has removed."""
    heard_ms: int
    """How long ago it was heard; -1: never."""
    match: int
    """The index through which the leader knows it to have the log on its disk; -1 where it does not know."""
    why: str
    """The reason why a link is down."""
    counts: bool
    """False of a member that lost its log and has not caught up, as the leader knows."""


@dataclass(frozen=True, slots=True)
class LedgerMembers:
    """The members of a DLedger group, by the newest configuration that a member knows."""

    voters: tuple[str, ...]
    old: tuple[str, ...] = ()
    """The voters before, while a change is under way: majorities of both are needed."""
    learners: tuple[str, ...] = ()
    """Members that get the log and do not vote."""

    @property
    def everyone(self) -> tuple[str, ...]:
        """All members, in their order."""
        return tuple(sorted({*self.voters, *self.old, *self.learners}))


def read_ledger_members(ext: Mapping[str, str]) -> LedgerMembers:
    """Return the members in the answer to 30043."""
    voters, learners = (tuple(filter(None, ext.get(key, "").split(","))) for key in ("voters", "learners"))
    return LedgerMembers(voters, (), learners)


@dataclass(frozen=True, slots=True)
class LedgerStatus:
    """A member of a DLedger group, as it sees itself and the others."""

    member: BrokerMember
    id: str
    group: str
    members: LedgerMembers
    role: str
    term: int
    leader: str
    """Empty while it knows none."""
    leads: bool
    """Whether it takes messages: elected, and its term opened."""
    why: str
    """The reason for its last change of role."""
    end: int
    """Index of the last entry of its log; -1 for an empty one."""
    durable: int
    """Index through which its log is on its disk."""
    committed: int
    shown: int
    """Index through which consumers may see messages at this member."""
    elections: int
    """How often it became the leader since it started."""
    peers: tuple[LedgerPeerStatus, ...]
    is_learner: bool
    """Whether it lost its log, and does not vote before it has caught up."""
    unmet: tuple[str, ...]
    """The members that have still to let this learner in."""
    stuck: bool
    """Whether its disk has no room for its log: it cannot lead."""
    snapshot: int = -1
    """Index of the entry through which its newest snapshot of the tables is; -1 if it has none."""
    doubt: int = -1
    """Index of the furthest entry that a start had to cut, and may have confirmed; -1 if there is none."""
    regions_behind: tuple[int, ...] = ()
    """Regions of the key-value store that have still to follow the last change of the members, as it knows."""
    has_regions: bool = False
    """Whether the group has a key-value store."""


@_reads_a_peer
def read_ledger_status(member: BrokerMember, document: Document) -> LedgerStatus:
    """Return the answer to 30040."""
    standing = document["standing"]
    return LedgerStatus(
        member,
        str(document["id"]),
        str(document["group"]),
        LedgerMembers(*(tuple(map(str, document[key])) for key in ("voters", "old", "learners"))),
        str(standing["role"]),
        int(standing["term"]),
        str(standing["leader"] or ""),
        bool(document["leads"]),
        str(standing["why"]),
        int(document["end"]["index"]),
        int(document["durable"]),
        int(document["commit"]["index"]),
        int(document["shown"]["index"]),
        int(document["elections"]),
        tuple(
            LedgerPeerStatus(
                str(peer["id"]),
                str(peer["address"]),
                bool(peer["control"]) and bool(peer["data"]),
                str(peer["state"]),
                int(peer["heard_ms"]),
                int(peer["match"]),
                str(peer["why"]),
                bool(peer["counts"]),
            )
            for peer in document["peers"]
        ),
        bool(document["is_learner"]),
        tuple(map(str, document["unmet"])),
        bool(document.get("stuck", False)),
        int(document.get("snapshot", -1)),
        int((document.get("doubt") or {"index": -1})["index"]),
        tuple(map(int, document.get("regionsBehind", ()))),
        bool(document.get("hasRegions", False)),
    )


@dataclass(frozen=True, slots=True)
class Counted:
    """A counter over a period: the sum, the rate a second, and the mean of each time."""

    total: int = 0
    per_second: float = 0.0
    mean: float = 0.0


@dataclass(frozen=True, slots=True)
class Statistics:
    """A counter of a broker, over the last minute, hour and day."""

    minute: Counted
    hour: Counted
    day: Counted

    @property
    def lately(self) -> int:
        """The sum of the last 24 hours, or as much of them as the broker has added up yet."""
        return self.day.total or self.hour.total or self.minute.total


@_reads_a_peer
def read_statistics(document: Document) -> Statistics:
    """Return the answer to 315."""

    def counted(name: str) -> Counted:
        entry = document.get(name) or {}
        return Counted(int(entry.get("sum", 0)), float(entry.get("tps", 0)), float(entry.get("avgpt", 0)))

    return Statistics(counted("statsMinute"), counted("statsHour"), counted("statsDay"))


# Topics

RESERVED_PREFIX = "RMQ_SYS_"
"""How RocketMQ names the topics that each of its versions adds."""

TopicKind = Literal["normal", "retry", "dead letters", "system"]


def topic_kind(name: str, system: Iterable[str] = ()) -> TopicKind:
    """Return the kind of a topic. `system` holds names that a name server reported as the brokers' own."""
    if name.startswith(RETRY_PREFIX):
        return "retry"
    if name.startswith(DLQ_PREFIX):
        return "dead letters"
    # Each cluster has a topic for the replies to its requests.
    of_brokers = {*system, *(f"{cluster}_{REPLY_TOPIC_POSTFIX}" for cluster in system)}
    mine = not (is_system_topic(name) or name in of_brokers or name.startswith(RESERVED_PREFIX))
    return "normal" if mine else "system"


def permission_text(permission: int) -> str:
    """`RW-`, `R--`, `-W-`: as RocketMQ's tools print it."""
    return (
        ("R" if permission & Permission.READ else "-") + ("W" if permission & Permission.WRITE else "-") + "-"
    )


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The configuration of a topic at one broker."""

    name: str
    read_queues: int = 8
    write_queues: int = 8
    permission: int = Permission.READ | Permission.WRITE
    order: bool = False
    filter_type: str = "SINGLE_TAG"
    sys_flag: int = 0
    attributes: Mapping[str, str] = field(default_factory=dict)


@_reads_a_peer
def read_topic_config(document: Document) -> TopicConfig:
    """Return the answer to 351, or an entry of the answer to 21."""
    return TopicConfig(
        name=str(document["topicName"]),
        read_queues=int(document.get("readQueueNums", 16)),
        write_queues=int(document.get("writeQueueNums", 16)),
        permission=int(document.get("perm", 6)),
        order=bool(document.get("order", False)),
        filter_type=str(document.get("topicFilterType") or "SINGLE_TAG"),
        sys_flag=int(document.get("topicSysFlag", 0)),
        attributes={str(key): str(value) for key, value in (document.get("attributes") or {}).items()},
    )


@dataclass(frozen=True, slots=True, order=True)
class QueueStatus:
    """The extent of one queue of a topic: messages `min_offset` up to, without, `max_offset`."""

    queue: Queue
    min_offset: int
    max_offset: int
    last_update_ms: int
    """When its last message was stored; 0 for never."""


@dataclass(frozen=True, slots=True)
class TopicStatus:
    """A topic's queues at all brokers, and how many messages are put there each second."""

    topic: str
    queues: tuple[QueueStatus, ...]
    put_tps: float

    @property
    def count(self) -> int:
        """Messages that are still stored."""
        return sum(queue.max_offset - queue.min_offset for queue in self.queues)


@_reads_a_peer
def read_topic_status(topic: str, documents: Iterable[Document]) -> TopicStatus:
    """Return the answers of all brokers to 202."""
    queues: list[QueueStatus] = []
    tps = 0.0
    for document in documents:
        tps += float(document.get("topicPutTps") or 0)
        for key, entry in queue_keys(document.get("offsetTable") or {}).items():
            queues.append(
                QueueStatus(
                    Queue(key.broker_name, key.queue_id),
                    int(entry.get("minOffset", 0)),
                    int(entry.get("maxOffset", 0)),
                    int(entry.get("lastUpdateTimestamp", 0)),
                )
            )
    return TopicStatus(topic, tuple(sorted(queues)), tps)


# Groups


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """The configuration of a consumer group at one broker."""

    name: str
    consume_enable: bool = True
    from_min: bool = True
    broadcast_enable: bool = True
    orderly: bool = False
    retry_queues: int = 1
    retry_max_times: int = 16
    consume_timeout_minutes: int = 15
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further fields that the broker keeps; they go back unchanged with an update."""


_GROUP_FIELDS = {
    "groupName": "name",
    "consumeEnable": "consume_enable",
    "consumeFromMinEnable": "from_min",
    "consumeBroadcastEnable": "broadcast_enable",
    "consumeMessageOrderly": "orderly",
    "retryQueueNums": "retry_queues",
    "retryMaxTimes": "retry_max_times",
    "consumeTimeoutMinute": "consume_timeout_minutes",
}


@_reads_a_peer
def read_group_config(document: Document) -> GroupConfig:
    """Return the answer to 352, or an entry of the answer to 201."""
    known = {
        ours: document[theirs] for theirs, ours in _GROUP_FIELDS.items() if document.get(theirs) is not None
    }
    extra = {key: value for key, value in document.items() if key not in _GROUP_FIELDS}
    config = GroupConfig(**known, extra=extra)
    if not isinstance(config.name, str):
        raise TypeError("a group without a name")
    return config


def write_group_config(config: GroupConfig) -> dict[str, Any]:
    """Return the body of 200."""
    extra = {
        key: value for key, value in config.extra.items() if key not in ("attributes", "subscriptionDataSet")
    }
    return extra | {theirs: getattr(config, ours) for theirs, ours in _GROUP_FIELDS.items()}


@dataclass(frozen=True, slots=True, order=True)
class QueueProgress:
    """The progress of a group in one queue."""

    source: TopicQueue
    broker_offset: int
    """Where the queue ends."""
    consumer_offset: int
    """The offset that the group has committed."""
    pull_offset: int
    """The offset that its members have fetched, where the broker knows."""
    last_consumed_ms: int
    """When the last message before the committed place was stored; 0 for none."""

    @property
    def lag(self) -> int:
        """Messages that the group has not committed; 0 where it has committed more than there is."""
        return max(self.broker_offset - self.consumer_offset, 0)

    @property
    def in_flight(self) -> int:
        """Fetched, and not committed yet."""
        return max(self.pull_offset - self.consumer_offset, 0)


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """The progress of a group in all its queues."""

    group: str
    queues: tuple[QueueProgress, ...]
    consume_tps: float

    @property
    def lag(self) -> int:
        return sum(queue.lag for queue in self.queues)

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(sorted({queue.source.topic for queue in self.queues}))


@_reads_a_peer
def read_progress(group: str, documents: Iterable[Document]) -> GroupProgress:
    """Return the answers of all brokers to 208 (or a group's entries of 317)."""
    queues: dict[TopicQueue, QueueProgress] = {}
    tps = 0.0
    for document in documents:
        tps += float(document.get("consumeTps") or 0)
        for key, entry in queue_keys(document.get("offsetTable") or {}).items():
            source = TopicQueue(key.topic, Queue(key.broker_name, key.queue_id))
            consumed = int(entry.get("consumerOffset", 0))
            queues[source] = QueueProgress(
                source,
                int(entry.get("brokerOffset", 0)),
                consumed,
                int(entry.get("pullOffset", consumed)),
                int(entry.get("lastTimestamp", 0)),
            )
    return GroupProgress(group, tuple(sorted(queues.values())), tps)


@dataclass(frozen=True, slots=True, order=True)
class ClientConnection:
    """A client of a group, as brokers see it."""

    client_id: str
    address: str
    language: str
    version: int


@dataclass(frozen=True, slots=True)
class ConsumerConnections:
    """The connected consumers of a group, and their mode."""

    group: str
    clients: tuple[ClientConnection, ...]
    consume_type: str
    message_model: str
    consume_from: str
    subscriptions: Mapping[str, str]
    """Each topic with the expression that is asked for."""


@_reads_a_peer
def read_clients(documents: Iterable[Document]) -> tuple[ClientConnection, ...]:
    """Return the connections of answers to 203 or 204, each client once."""
    found: dict[str, ClientConnection] = {}
    for document in documents:
        for entry in document.get("connectionSet") or ():
            client = ClientConnection(
                str(entry.get("clientId") or ""),
                str(entry.get("clientAddr") or ""),
                str(entry.get("language") or ""),
                int(entry.get("version") or 0),
            )
            found.setdefault(client.client_id, client)
    return tuple(sorted(found.values()))


@_reads_a_peer
def read_consumers(group: str, documents: list[Document]) -> ConsumerConnections:
    """Return the answers to 203 of the brokers that know the group."""
    first = documents[0]
    subscriptions = {
        str(topic): str((entry or {}).get("subString") or "*")
        for document in documents
        for topic, entry in (document.get("subscriptionTable") or {}).items()
    }
    return ConsumerConnections(
        group,
        read_clients(documents),
        str(first.get("consumeType") or ""),
        str(first.get("messageModel") or ""),
        str(first.get("consumeFromWhere") or ""),
        dict(sorted(subscriptions.items())),
    )


@dataclass(frozen=True, slots=True, order=True)
class ProducerClient:
    """A producer, as brokers see it."""

    group: str
    client: ClientConnection
    last_seen_ms: int


@_reads_a_peer
def read_producers(documents: Iterable[Document]) -> tuple[ProducerClient, ...]:
    """Return the answers to 328, each producer once."""
    found: dict[tuple[str, str], ProducerClient] = {}
    for document in documents:
        for group, entries in (document.get("data") or {}).items():
            for entry in entries:
                client = ClientConnection(
                    str(entry.get("clientId") or ""),
                    str(entry.get("remoteIP") or "").removeprefix("/"),
                    str(entry.get("language") or ""),
                    int(entry.get("version") or 0),
                )
                seen = int(entry.get("lastUpdateTimestamp") or 0)
                found[group, client.client_id] = ProducerClient(str(group), client, seen)
    return tuple(sorted(found.values()))


@_reads_a_peer
def read_offsets(documents: Iterable[Document]) -> dict[TopicQueue, int]:
    """Return the offset tables in answers to 222."""
    return {
        TopicQueue(key.topic, Queue(key.broker_name, key.queue_id)): int(offset)
        for document in documents
        for key, offset in sorted(queue_keys(document.get("offsetTable") or {}).items())
    }


@dataclass(frozen=True, slots=True, order=True)
class MemberQueue:
    """A queue in the hands of a consumer, by its own account."""

    source: TopicQueue
    committed: int
    cached_count: int
    """Messages fetched and not finished."""
    last_pull_ms: int
    last_consume_ms: int
    locked: bool
    """Held alone, as consumers of ordered messages do."""


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """The status that one consumer reports."""

    client: ClientConnection
    queues: tuple[MemberQueue, ...]
    subscriptions: Mapping[str, str]
    handled_per_second: float
    failed_per_second: float
    handling_ms: float
    """How long its handler takes for a message, of the topic where that is longest."""
    started_ms: int


@_reads_a_peer
def read_member(client: ClientConnection, document: Document) -> MemberStatus:
    """Return a consumer's answer to 307."""
    queues = tuple(
        sorted(
            MemberQueue(
                TopicQueue(key.topic, Queue(key.broker_name, key.queue_id)),
                int(entry.get("commitOffset") or 0),
                int(entry.get("cachedMsgCount") or 0),
                int(entry.get("lastPullTimestamp") or 0),
                int(entry.get("lastConsumeTimestamp") or 0),
                bool(entry.get("locked", False)),
            )
            for key, entry in queue_keys(document.get("mqTable") or {}).items()
        )
    )
    statuses = list((document.get("statusTable") or {}).values())
    handling = [float(status.get("consumeRT") or 0) for status in statuses]
    properties = document.get("properties") or {}
    started = str(properties.get("PROP_CONSUMER_START_TIMESTAMP") or "0")
    return MemberStatus(
        client,
        queues,
        {
            str(entry["topic"]): str(entry.get("subString") or "*")
            for entry in document.get("subscriptionSet") or ()
        },
        sum(float(status.get("consumeOKTPS") or 0) for status in statuses),
        sum(float(status.get("consumeFailedTPS") or 0) for status in statuses),
        max(handling, default=0.0),
        int(started) if started.isascii() and started.isdigit() and len(started) < 20 else 0,
    )


# Messages

TrackState = Literal[
    "consumed", "not consumed yet", "filtered", "broadcast", "waiting for retry", "dead letter", "unknown"
]


@dataclass(frozen=True, slots=True)
class MessageTrack:
    """The state of one message in one group."""

    group: str
    state: TrackState
    online: bool
    failures: int = 0
    """How often the group failed to handle it."""
    next_ms: int | None = None
    """When it is tried again, of one that waits for a retry; None where that is not known."""
    dead_since_ms: int | None = None
    """When it became a dead letter."""


@dataclass(frozen=True, slots=True)
class DirectResult:
    """The answer of a client that consumed one message at an administrator's request."""

    result: str
    spent_ms: int
    remark: str | None
    order: bool


_DIRECT_RESULTS = (
    "CR_SUCCESS",
    "CR_LATER",
    "CR_ROLLBACK",
    "CR_COMMIT",
    "CR_THROW_EXCEPTION",
    "CR_RETURN_NULL",
)
"""Go's clients send the number and not the name."""


@_reads_a_peer
def read_direct_result(document: Document) -> DirectResult:
    """Return a client's answer to 309."""
    result = document.get("consumeResult")
    if isinstance(result, int) and 0 <= result < len(_DIRECT_RESULTS):
        result = _DIRECT_RESULTS[result]
    remark = document.get("remark")
    return DirectResult(
        str(result),
        int(document.get("spentTimeMills") or 0),
        str(remark) if remark else None,
        bool(document.get("order", False)),
    )


_FIRST_REGULAR_VERSION = 212
"""The snapshot before 4.0.0. From there on a minor release has twenty numbers: ten patches, a snapshot before each."""


def version_text(version: int) -> str:
    """Return a client's version number as RocketMQ names it: 409 is V4_9_8. Older ones are shown as their number."""
    number = version - _FIRST_REGULAR_VERSION
    if number < 0:
        return f"#{version}"
    minor, rest = divmod(number, 20)
    name = f"V{4 + minor // 10}_{minor % 10}_{rest // 2}"
    return name if rest % 2 else f"{name}_SNAPSHOT"
