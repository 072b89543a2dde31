"""Query a cluster from the driver: topics and queues, their offset bounds, and offsets at times.

Blocking, over connections that are kept while the query runs. All questions about queues of one broker are on the way
at once. A broker that does not answer is asked again after a look at the routes, for it may have been replaced; if
there is still no answer, its queues are `silent`: a stream leaves them where they are and goes on with the others, for
as long as `pullTimeoutMs` allows.

Nobody has to run a name server for a test: `brokers=NAME@HOST:PORT` names brokers, and they are asked themselves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from ropewalk.client.blocking.connection import Connection
from ropewalk.client.core.addresses import AddressRing, BadAddress, parse_address, parse_address_list
from ropewalk.client.core.connection import Unreachable
from ropewalk.client.core.messages import command_of, pull_request, route_request
from ropewalk.client.core.routes import MASTER_ID, BrokerData, Queue, QueueData, TopicRoute, parse_route
from ropewalk.client.core.steps import answer_header, require_success
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import OutcomeUnknown, RemoteProtocolError, RopewalkError
from ropewalk.format import fastjson
from ropewalk.format.headers import (
    GetMaxOffsetHeader,
    OffsetResponseHeader,
    PullResponseHeader,
    QueryConsumerOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    TopicHeader,
    UpdateConsumerOffsetHeader,
)
from ropewalk.format.record import decode_records
from ropewalk.format.remoting import Command
from ropewalk.spark.live.offsets import Bounds, QueueKey, Queues
from ropewalk.spark.live.plan import topic_filter
from ropewalk.spark.log import log
from ropewalk.spark.options import BadOption, Options

__all__ = [
    "BrokerUnreachable",
    "Cluster",
    "BoundsAnswer",
    "ConnectionCache",
    "addresses_of",
    "check_live_options",
]

ANSWER_S = 3.0
SLAVE_ID = 1
SAMPLE = 32
_NO_ANSWER = (Unreachable, OutcomeUnknown)

T = TypeVar("T")


def check_live_options(options: Options) -> None:
    """Reject options that brokers cannot serve yet. Raises BadOption."""
    for name, value in (
        ("accessKey", options.access_key),
        ("secretKey", options.secret_key),
        ("secretKeyFile", options.secret_key_file),
        ("securityToken", options.security_token),
    ):
        if value is not None:
            raise BadOption(
                f"option {name}: signed requests are not supported yet; connect to brokers without ACL, and leave the "
                f"option and ROPEWALK_ACCESS_KEY, ROPEWALK_SECRET_KEY and ROPEWALK_SECURITY_TOKEN unset"
            )
    if options.vip:
        raise BadOption("option vip: the port two below a broker's serves no reads; leave the option out")
    addresses_of(options)


def addresses_of(options: Options) -> tuple[AddressRing | None, Mapping[str, BrokerData]]:
    """Return the name servers, or the brokers of option `brokers`. Raises BadOption."""
    try:
        if options.name_server is not None:
            return AddressRing(parse_address_list(options.name_server)), {}
    except BadAddress as exc:
        raise BadOption(f"option nameServer: {exc}") from None
    brokers = {}
    for text in options.brokers:
        name, at, address = text.partition("@")
        try:
            if not at or not name:
                raise BadAddress("expected NAME@HOST:PORT")
            brokers[name] = BrokerData(name, "", {MASTER_ID: str(parse_address(address))})
        except BadAddress as exc:
            raise BadOption(f"option brokers: {text!r}: {exc}") from None
    return None, brokers


class BrokerUnreachable(RopewalkError):
    """A broker of the query that has not answered for as long as the query may wait."""


class ConnectionCache:
    """Connections by address, opened on demand and replaced when broken."""

    def __init__(self, timeout: float = ANSWER_S) -> None:
        self._timeout = timeout
        self._connections: dict[str, Connection] = {}

    def get(self, address: str) -> Connection:
        """Return a connection that was alive a moment ago. Raises Unreachable."""
        connection = self._connections.get(address)
        if connection is not None:
            connection.receive(0)
        if connection is None or connection.closed:
            connection = self._connections[address] = Connection(address, self._timeout)
        return connection

    def call_all(self, address: str, commands: list[Command]) -> list[Command]:
        """Send all commands and return the answers in their order. Raises Unreachable and OutcomeUnknown."""
        connection = self.get(address)
        try:
            opaques = [connection.start(command) for command in commands]
            return [connection.wait(opaque) for opaque in opaques]
        except OutcomeUnknown:
            connection.close()  # what is still on its way would be nobody's
            raise

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()


@dataclass(slots=True)
class BoundsAnswer:
    """The bounds of queues, and the brokers that did not answer."""

    bounds: dict[QueueKey, Bounds] = field(default_factory=dict)
    unreachable: set[str] = field(default_factory=set)
    from_slaves: set[str] = field(default_factory=set)
    """Brokers whose master is gone: a slave answered, and may have less."""


class Cluster:
    """A cluster in the view of one query's driver. Belongs to one thread."""

    def __init__(
        self,
        options: Options,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Create the view without connecting. Raises BadOption."""
        check_live_options(options)
        self._options = options
        self._name_servers, self._static = addresses_of(options)
        self._links = ConnectionCache()
        self._wants = topic_filter(options)
        self._monotonic = monotonic
        self._sleep = sleep
        self._routes: dict[str, TopicRoute] = {}
        self._refreshed: float | None = None
        self._unreachable_since: dict[str, float] = {}

    def close(self) -> None:
        self._links.close()

    # -- topics and queues ---------------------------------------------------------------------------

    @property
    def cluster_name(self) -> str | None:
        """Return the cluster that the topics live in, if there is exactly one and it has a name."""
        names = {
            broker.cluster
            for route in self._routes.values()
            for broker in route.brokers.values()
            if broker.cluster
        }
        return names.pop() if len(names) == 1 else None

    @property
    def masters(self) -> dict[str, str]:
        """Return the address of the master of each broker set that has one."""
        return {
            name: broker.master
            for route in self._routes.values()
            for name, broker in route.brokers.items()
            if broker.master is not None
        }

    @property
    def routes(self) -> Mapping[str, TopicRoute]:
        return self._routes

    def refresh(self, *, force: bool = False) -> None:
        """Query the routes of the topics, unless that was done a moment ago.

        Raises Unreachable if no name server answers the first time; later the old answers go on counting.
        """
        now = self._monotonic()
        if (
            not force
            and self._refreshed is not None
            and now - self._refreshed < self._options.route_refresh_ms / 1000
        ):
            return
        try:
            self._routes = self._with_retries(self._read_routes)
        except _NO_ANSWER as exc:
            if self._refreshed is None:
                raise
            log.warning("what was known of the topics goes on counting", reason=str(exc))
        self._refreshed = now

    def queues(self) -> list[QueueKey]:
        """Return every readable queue of the wanted topics that exist, sorted."""
        return sorted(
            QueueKey(topic, queue.broker_name, queue.queue_id)
            for topic, route in self._routes.items()
            for queue in route.read_queues()
        )

    def absence_of(self, key: QueueKey) -> str:
        """Say why a queue is not among those that can be read."""
        route = self._routes.get(key.topic)
        if route is None:
            return f"topic {key.topic} does not exist any more"
        counts = {data.broker_name: data.read_queue_count for data in route.queues}
        if key.broker not in counts or key.broker not in route.brokers:
            others = ", ".join(sorted(counts)) or "no broker"
            return f"broker {key.broker} does not serve topic {key.topic} any more; it is served by {others}"
        if key.queue_id >= counts[key.broker]:
            plural = "" if counts[key.broker] == 1 else "s"
            return (
                f"topic {key.topic} has {counts[key.broker]} readable queue{plural} at {key.broker} now: it was made "
                f"smaller"
            )
        return f"topic {key.topic} may not be read at {key.broker} now: its permission was taken away"

    def missing_topics(self) -> list[str]:
        """Return the topics that were named and do not exist."""
        named = list(self._options.assign) if self._options.assign is not None else list(self._options.topics)
        return [topic for topic in named if topic not in self._routes]

    def _read_routes(self) -> dict[str, TopicRoute]:
        options = self._options
        if options.assign is not None:
            names: Iterable[str] = options.assign
        elif options.subscribe_pattern is not None:
            names = [name for name in self._all_topics() if self._wants(name)]
        else:
            names = options.topics
        routes: dict[str, TopicRoute] = {}
        for topic in sorted(names):
            route = self._route(topic)
            if route is not None:
                routes[topic] = route
        return routes

    def _all_topics(self) -> list[str]:
        if self._name_servers is None:
            raise BadOption(
                "option subscribePattern needs a nameServer: brokers alone do not say which topics there are"
            )
        answer = self._call_name_server(Command(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))
        document = fastjson.loads(require_success(answer).body)
        names = document.get("topicList") if isinstance(document, dict) else None
        if not isinstance(names, list):
            raise RemoteProtocolError("the name server's list of topics cannot be read")
        return [str(name) for name in names]

    def _route(self, topic: str) -> TopicRoute | None:
        if self._name_servers is None:
            return self._route_of_brokers(topic)
        answer = self._call_name_server(route_request(topic))
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        return parse_route(require_success(answer).body)

    def _route_of_brokers(self, topic: str) -> TopicRoute | None:
        queues = []
        for name, broker in self._static.items():
            command = command_of(RequestCode.GET_TOPIC_CONFIG, TopicHeader(topic))
            answer = self._links.call_all(broker.addresses[MASTER_ID], [command])[0]
            if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                continue
            document = fastjson.loads(require_success(answer).body)
            if not isinstance(document, dict):
                raise RemoteProtocolError(f"the configuration of topic {topic} at {name} cannot be read")
            queues.append(
                QueueData(
                    name,
                    int(document.get("readQueueNums") or 0),
                    int(document.get("writeQueueNums") or 0),
                    int(document.get("perm") or 0),
                )
            )
        return TopicRoute(self._static, tuple(queues)) if queues else None

    def _call_name_server(self, command: Command) -> Command:
        assert self._name_servers is not None
        failures: list[str] = []
        for address in self._name_servers.one_round():
            try:
                answer = self._links.call_all(str(address), [command])[0]
            except _NO_ANSWER as exc:
                failures.append(str(exc))
                continue
            if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                hint = "name servers listen at port 9876 by default, brokers at 10911"
                raise BadOption(f"{address} is no name server, but a broker perhaps: {hint}")
            return answer
        raise Unreachable(f"no name server at {self._name_servers}: {'; '.join(failures)}")

    def _with_retries(self, step: Callable[[], T]) -> T:
        for _ in range(self._options.fetch_offset_num_retries):
            try:
                return step()
            except _NO_ANSWER:
                self._sleep(self._options.fetch_offset_retry_interval_ms / 1000)
        return step()

    # -- what brokers have ---------------------------------------------------------------------------

    def bounds(self, keys: Iterable[QueueKey]) -> BoundsAnswer:
        """Return the bounds of queues; those of brokers that do not answer are missing, and named."""
        found = BoundsAnswer()
        for broker, of_broker in self._by_broker(keys).items():
            questions = [
                command
                for key in of_broker
                for command in (
                    command_of(RequestCode.GET_MIN_OFFSET, QueueHeader(key.topic, key.queue_id)),
                    command_of(RequestCode.GET_MAX_OFFSET, GetMaxOffsetHeader(key.topic, key.queue_id)),
                )
            ]
            try:
                numbers, member = self._query_broker(broker, questions)
            except _NO_ANSWER as exc:
                self._record_silence(broker, exc)
                found.unreachable.add(broker)
                continue
            self._unreachable_since.pop(broker, None)
            if member != MASTER_ID and self._options.read_from != "slave":
                found.from_slaves.add(broker)
            for key, low, high in zip(of_broker, numbers[::2], numbers[1::2], strict=True):
                found.bounds[key] = Bounds(low, max(low, high))
        return found

    def wait_for_bounds(self, keys: Iterable[QueueKey]) -> dict[QueueKey, Bounds]:
        """Return the bounds of all queues, waiting for brokers that do not answer.

        Raises BrokerSilent when one stays silent for too long.
        """
        wanted = list(keys)
        while True:
            found = self.bounds(wanted)
            if not found.unreachable:
                return found.bounds
            self._sleep(0.2)
            self.refresh(force=True)

    def offsets_at(self, times: Mapping[QueueKey, int]) -> dict[QueueKey, int]:
        """Return the first offset at or after a time, by queue; the end of the queue where there is none."""
        offsets: dict[QueueKey, int] = {}
        for broker, of_broker in self._by_broker(times).items():
            questions = [
                command_of(
                    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
                    SearchOffsetHeader(key.topic, key.queue_id, times[key]),
                )
                for key in of_broker
            ]
            numbers, _ = self._query_with_retries(broker, questions)
            offsets.update(zip(of_broker, numbers, strict=True))
        return offsets

    def commit(self, group: str, queues: Queues) -> None:
        """Commit the offsets of a group. A failure is logged and left: the next commit covers it.

        The first queue of each topic goes ahead: RocketMQ's broker takes commits in several threads, and where a group
        has none of a topic yet, the first ones replace each other.
        """
        for broker, of_broker in self._by_broker(queues).items():
            commands = {
                key: command_of(
                    RequestCode.UPDATE_CONSUMER_OFFSET,
                    UpdateConsumerOffsetHeader(group, key.topic, key.queue_id, queues[key]),
                )
                for key in of_broker
            }
            ahead = {key.topic: command for key, command in reversed(commands.items())}
            rest = [command for key, command in commands.items() if command is not ahead[key.topic]]
            try:
                answers, _ = self._call_broker(broker, [*ahead.values()])
                if any(answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST for answer in answers):
                    body = fastjson.dumps({"groupName": group})
                    create = Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
                    (made,), _ = self._call_broker(broker, [create])
                    require_success(made)
                    answers, _ = self._call_broker(broker, [*ahead.values()])
                if rest:
                    answers = [*answers, *self._call_broker(broker, rest)[0]]
                for answer in answers:
                    require_success(answer)
            except RopewalkError as exc:
                log.warning("offsets were not committed", group=group, broker=broker, reason=str(exc))

    def group_offsets(self, group: str, keys: Iterable[QueueKey]) -> dict[QueueKey, int]:
        """Return the committed offsets of a group; queues without one are missing."""
        offsets: dict[QueueKey, int] = {}
        for broker, of_broker in self._by_broker(keys).items():
            questions = [
                command_of(
                    RequestCode.QUERY_CONSUMER_OFFSET,
                    QueryConsumerOffsetHeader(group, key.topic, key.queue_id, set_zero_if_not_found=False),
                )
                for key in of_broker
            ]
            answers, _ = self._call_broker(broker, questions)
            for key, answer in zip(of_broker, answers, strict=True):
                if answer.code != ResponseCode.QUERY_NOT_FOUND:
                    offsets[key] = answer_header(OffsetResponseHeader, require_success(answer)).offset
        return offsets

    def mean_sizes(self, start: Queues, keys: Iterable[QueueKey]) -> dict[str, float]:
        """Return the mean size in the log of each topic's messages, from a sample behind `start`."""
        sizes: dict[str, float] = {}
        for key in keys:
            if key.topic in sizes or key not in start:
                continue
            queue = Queue(key.broker, key.queue_id)
            question = pull_request(key.topic, queue, start[key], SAMPLE, "*", 0)
            try:
                address, _ = self.member(key)
                answer = self._links.call_all(address, [question])[0]
            except _NO_ANSWER:
                continue
            if answer.code == ResponseCode.SUCCESS and answer.body:
                count = answer_header(PullResponseHeader, answer).next_begin_offset - start[key]
                sizes[key.topic] = len(answer.body) / max(1, count)
        return sizes

    def stored_ms(self, places: Queues) -> dict[QueueKey, int | None]:
        """Return the store time of the message at an offset of each queue; None where there is none, or no answer."""
        times: dict[QueueKey, int | None] = dict.fromkeys(places)
        for broker, of_broker in self._by_broker(places).items():
            questions = [
                pull_request(key.topic, Queue(key.broker, key.queue_id), places[key], 1, "*", 0)
                for key in of_broker
            ]
            try:
                answers, _ = self._call_broker(broker, questions)
            except _NO_ANSWER:
                continue
            for key, answer in zip(of_broker, answers, strict=True):
                records = decode_records(answer.body) if answer.code == ResponseCode.SUCCESS else []
                if records and records[0].queue_offset == places[key]:
                    times[key] = records[0].store_timestamp
        return times

    def member(self, key: QueueKey) -> tuple[str, int]:
        """Return the address to read a queue from, and the id of that member of the broker set. Raises Unreachable."""
        return self._member(key.broker)

    def _member(self, broker: str) -> tuple[str, int]:
        for route in self._routes.values():
            data = route.brokers.get(broker)
            if data is not None:
                preferred = SLAVE_ID if self._options.read_from == "slave" else MASTER_ID
                address = data.address(preferred)
                if address is not None:
                    return address, next(n for n, one in sorted(data.addresses.items()) if one == address)
        raise Unreachable(f"the name server knows no address of broker {broker}")

    def _call_broker(self, broker: str, commands: list[Command]) -> tuple[list[Command], int]:
        address, member = self._member(broker)
        return self._links.call_all(address, commands), member

    def _query_broker(self, broker: str, commands: list[Command]) -> tuple[list[int], int]:
        try:
            answers, member = self._call_broker(broker, commands)
        except _NO_ANSWER:
            self.refresh(force=True)
            answers, member = self._call_broker(broker, commands)
        return [answer_header(OffsetResponseHeader, require_success(one)).offset for one in answers], member

    def _query_with_retries(self, broker: str, commands: list[Command]) -> tuple[list[int], int]:
        while True:
            try:
                numbers, member = self._query_broker(broker, commands)
            except _NO_ANSWER as exc:
                self._record_silence(broker, exc)
                self._sleep(0.2)
                continue
            self._unreachable_since.pop(broker, None)
            return numbers, member

    def _record_silence(self, broker: str, exc: RopewalkError) -> None:
        """Remember since when a broker has not answered. Raises BrokerSilent when that is too long."""
        now = self._monotonic()
        since = self._unreachable_since.setdefault(broker, now)
        patience = self._options.pull_timeout_ms / 1000
        if now - since >= patience:
            raise BrokerUnreachable(
                f"broker {broker} has not answered for {now - since:.1f} s (pullTimeoutMs is "
                f"{self._options.pull_timeout_ms}): {exc}"
            ) from exc
        log.warning("a broker does not answer", broker=broker, reason=str(exc))

    @staticmethod
    def _by_broker(keys: Iterable[QueueKey]) -> dict[str, list[QueueKey]]:
        result: dict[str, list[QueueKey]] = {}
        for key in sorted(keys):
            result.setdefault(key.broker, []).append(key)
        return result
