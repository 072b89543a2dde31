"""Topic routes: the answer of a name server to code 105, decoded, and the queues that it offers.

    {"brokerDatas": [{"brokerName", "cluster", "brokerAddrs": {"0": "host:port", "1": ...}}],
     "queueDatas":  [{"brokerName", "readQueueNums", "writeQueueNums", "perm", "topicSysFlag"}],
     "orderTopicConf": "broker-a:4;broker-b:4" or absent}

Broker id 0 is the master. Producers may use only queues with the write bit whose broker has a
master; consumers may use any queue with the read bit, at any member. Lists may be missing or null,
and queues may name brokers that are not listed: both are harmless and mean "nothing there".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ropewalk.client.core.addresses import BadAddress, parse_address
from ropewalk.codes import Permission
from ropewalk.errors import RemoteProtocolError
from ropewalk.format import fastjson

MASTER_ID = 0
DEFAULT_TOPIC = "TBW102"
NOBODY_CREATES_IT = "does not exist, and no broker that is registered now creates topics"
"""The end of what a producer is told about a topic that nobody would create, behind the topic's name."""
QUEUES_MAX = 1 << 18
"""A route of more queues is none: a client has several objects for each."""
DEFAULT_TOPIC_QUEUE_COUNT = 4
"""A topic that is created by its first message gets at most this many queues, as Java asks for."""


@dataclass(frozen=True, slots=True, order=True)
class Queue:
    """A queue of a topic at one broker set. Sorts as clients sort: by broker, then id."""

    broker_name: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class QueueData:
    """The numbers of queues that a broker set has for a topic, and their permission."""

    broker_name: str
    read_queue_count: int
    write_queue_count: int
    permission: int


@dataclass(frozen=True, slots=True)
class BrokerData:
    """A broker set: a name, and an address for each of its members."""

    name: str
    cluster: str
    addresses: Mapping[int, str]

    @property
    def master(self) -> str | None:
        return self.addresses.get(MASTER_ID)

    def address(self, preferred_id: int = MASTER_ID) -> str | None:
        """Return the member to read from: the preferred one, else the next, else the first there is."""
        for broker_id in (preferred_id, preferred_id + 1, *sorted(self.addresses)):
            if broker_id in self.addresses:
                return self.addresses[broker_id]
        return None


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """The route of one topic, as a name server reported it."""

    brokers: Mapping[str, BrokerData]
    queues: tuple[QueueData, ...]
    ordered_queues: tuple[Queue, ...] = ()
    """The queues that `orderTopicConf` fixed, whatever is up at the moment; empty for an ordinary topic."""
    _write_queues: tuple[Queue, ...] | None = field(init=False, repr=False, compare=False, default=None)

    def write_queues(self) -> tuple[Queue, ...]:
        """Return the queues a producer may choose from. HOT: asked for by every send, and made for the first."""
        found = self._write_queues
        if found is None:
            found = self.ordered_queues or tuple(
                Queue(data.broker_name, queue_id)
                for data in self.queues
                if data.permission & Permission.WRITE and self._has_master(data.broker_name)
                for queue_id in range(data.write_queue_count)
            )
            object.__setattr__(self, "_write_queues", found)
        return found

    def brokers_without_master(self) -> tuple[str, ...]:
        """Return the broker sets that would have queues to write to, if they had a master."""
        return tuple(
            sorted(
                {
                    data.broker_name
                    for data in self.queues
                    if data.permission & Permission.WRITE
                    and data.write_queue_count > 0
                    and not self._has_master(data.broker_name)
                }
            )
        )

    def read_queues(self) -> tuple[Queue, ...]:
        """Return the queues a consumer may read."""
        return tuple(
            Queue(data.broker_name, queue_id)
            for data in self.queues
            if data.permission & Permission.READ and data.broker_name in self.brokers
            for queue_id in range(data.read_queue_count)
        )

    def as_template(self) -> TopicRoute:
        """Return this route, lowered to the queues of a topic that is made from it.

        A producer uses it when its topic does not exist yet: it writes to the queues the topic
        will have, and the first message makes the broker create it.
        """
        return TopicRoute(
            self.brokers,
            tuple(
                QueueData(data.broker_name, count, count, data.permission)
                for data in self.queues
                for count in (min(DEFAULT_TOPIC_QUEUE_COUNT, data.read_queue_count),)
            ),
        )

    def _has_master(self, broker_name: str) -> bool:
        broker = self.brokers.get(broker_name)
        return broker is not None and broker.master is not None


def parse_route(body: bytes) -> TopicRoute:
    """Read a route as any name server writes it. Raises `RemoteProtocolError` when it is not one."""
    try:
        document = fastjson.loads(body)
        if not isinstance(document, dict):
            raise TypeError("it is not an object")
        brokers = (_broker(entry) for entry in document.get("brokerDatas") or ())
        queues = tuple(_queue_data(entry) for entry in document.get("queueDatas") or ())
        _check_count(sum(max(each.read_queue_count, each.write_queue_count) for each in queues))
        ordered = _ordered_queues(document.get("orderTopicConf") or "")
        return TopicRoute({broker.name: broker for broker in brokers}, queues, ordered)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as exc:
        raise RemoteProtocolError(f"the name server's route data cannot be read: {exc}") from exc


def _broker(entry: Mapping[str, Any]) -> BrokerData:
    addresses: dict[int, str] = {}
    for broker_id, address in (entry.get("brokerAddrs") or {}).items():
        try:
            addresses[int(broker_id)] = str(parse_address(str(address)))
        except BadAddress as exc:
            raise ValueError(f"broker {entry['brokerName']}: {exc}") from exc
    return BrokerData(str(entry["brokerName"]), str(entry.get("cluster") or ""), addresses)


def _queue_data(entry: Mapping[str, Any]) -> QueueData:
    return QueueData(
        str(entry["brokerName"]),
        max(int(entry.get("readQueueNums") or 0), 0),
        max(int(entry.get("writeQueueNums") or 0), 0),
        int(entry.get("perm") or 0),
    )


def _check_count(count: int) -> None:
    if count > QUEUES_MAX:
        raise ValueError(f"it has {count:,} queues, and a client takes at most {QUEUES_MAX:,}")


def _ordered_queues(config: str) -> tuple[Queue, ...]:
    """`broker-a:4;broker-b:4` as queues."""
    parts = (part.partition(":") for part in filter(None, config.split(";")))
    counts = [(name, int(count)) for name, _, count in parts]
    _check_count(sum(count for _, count in counts))
    return tuple(Queue(name, queue_id) for name, count in counts for queue_id in range(count))
