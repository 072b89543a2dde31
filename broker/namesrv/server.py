"""The name server: brokers tell it what they serve, clients ask it whom to talk to.

A handler of requests and nothing else: `handle` takes one command and returns its answer, `closed` and
`expire` tell it that a connection or some time is gone. It is served by the embedding broker or by
`ropewalk namesrv`, and knows neither. Which routes follow from which registrations is decided in
`routes.py`; here requests are taken apart, judged and answered.

Name servers share nothing and forget everything at a stop: brokers register again within half a minute.
All JSON is written compact and with quoted keys. Java and Go read it, and Go's client, which cuts route
data with string functions, depends on there being no blanks.

A request that cannot be read is answered 1 with the reason, one that is not known 3; a oneway request is
carried out and never answered.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, TypeAlias

import msgspec
import structlog

from broker.namesrv.kv_config import ORDER_TOPIC_NAMESPACE, KvConfig
from broker.namesrv.registration import BadRegistration, crc32_in_slices, registration_in_slices
from broker.namesrv.routes import (
    BROKERS_MAX,
    NAME_SIZE_MAX,
    Accepted,
    QueueData,
    Registration,
    RouteTable,
    SingleTopicRefused,
    TableFull,
    with_write,
    without_write,
)
from broker.namesrv.settings import LockedSetting, NamesrvSettings, as_dict, changed
from broker.settings.java_properties import read_properties, write_properties
from broker.state.data_version import DataVersion
from ropewalk.codes import RequestCode, ResponseCode, request_name
from ropewalk.format.fastjson import FastjsonError
from ropewalk.format.headers import (
    AddPermResponseHeader,
    BrokerHeartbeatHeader,
    BrokerIdentityHeader,
    BrokerMemberGroupHeader,
    BrokerNameHeader,
    ClusterHeader,
    DeleteTopicInNamesrvHeader,
    GetKvConfigResponseHeader,
    HeaderError,
    KvConfigHeader,
    NamespaceHeader,
    PutKvConfigHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerHeader,
    RegisterBrokerResponseHeader,
    RouteHeader,
    TopicHeader,
    WipePermResponseHeader,
    decode_header,
    encode_header,
)
from ropewalk.format.remoting import FRAME_SIZE_MAX, Command
from ropewalk.format.sliced_json import finish, loads_at_once, loads_in_slices

EXPIRE_INTERVAL_S = 5
"""Seconds between two calls of `expire`."""
_PURGE_STEPS = 4
_TOLD_MAX = 20
"""Brokers that leave together and have a line of the log each."""
FILTER_SERVERS_MAX = 100
FILTER_SERVERS_SIZE_MAX = 4_096
"""Characters of all filter servers of a broker: the route of a topic that a thousand brokers serve shows them all."""
ROUTE_SIZE_MAX = 1 << 20
"""Bytes of a topic's places in a request that registers it by hand."""
SETTINGS_SIZE_MAX = 16 << 10
"""Bytes of changed settings."""
NAMES_PER_STEP = 1_000
"""Topics of a list that are sorted, judged or written before others are served."""
BODY_SIZE_MAX = FRAME_SIZE_MAX - (64 << 10)
"""An answer leaves this much of its frame to the header."""

_ADDRESS = re.compile(
    r"[^\s:,{}\"\\\x00-\x20\x7f-\U0010ffff]{1,253}:[0-9]{1,5}|\[[0-9A-Fa-f:.%]{2,60}\]:[0-9]{1,5}"
)
"""host:port; IPv6 in brackets is let through, because Java's own clients cope with it."""

log = structlog.get_logger("broker.namesrv")

Answer: TypeAlias = Generator[None, None, Command]
"""An answer in the making: each step costs the loop little, and the answer is what it returns."""
Handler = Callable[[Command, Hashable], "Command | Answer"]


class NameServer:
    """The state of a name server, and its answers to every request code. Not thread-safe: its owner calls from one
    loop."""

    def __init__(self, monotonic_ms: Callable[[], int], settings: NamesrvSettings | None = None) -> None:
        self._monotonic_ms = monotonic_ms
        self._started_ms = monotonic_ms()
        self.settings = settings or NamesrvSettings()
        self.table = RouteTable(
            acting_masters=self.settings.support_acting_master,
            delete_missing_topics=self.settings.delete_topic_with_broker_registration,
        )
        self._kv = KvConfig()
        self._handlers: Mapping[int, Handler] = {
            RequestCode.PUT_KV_CONFIG: self._put_kv,
            RequestCode.GET_KV_CONFIG: self._get_kv,
            RequestCode.DELETE_KV_CONFIG: self._delete_kv,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self._list_kv,
            RequestCode.REGISTER_BROKER: self._register,
            RequestCode.UNREGISTER_BROKER: self._unregister,
            RequestCode.QUERY_DATA_VERSION: self._query_version,
            RequestCode.BROKER_HEARTBEAT: self._heartbeat,
            RequestCode.GET_BROKER_MEMBER_GROUP: self._members,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._clusters,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self._wipe_write,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self._add_write,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._all_topics,
            RequestCode.GET_TOPICS_BY_CLUSTER: self._topics_of_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._system_topics,
            RequestCode.GET_UNIT_TOPIC_LIST: self._unit_topics,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self._subscribed_topics,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self._subscribed_ununit_topics,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
            RequestCode.REGISTER_TOPIC_IN_NAMESRV: self._register_topic,
            RequestCode.UPDATE_NAMESRV_CONFIG: self._update_settings,
            RequestCode.GET_NAMESRV_CONFIG: self._get_settings,
        }

    @property
    def codes(self) -> frozenset[int]:
        """The request codes it answers; none of them is one a broker answers."""
        return frozenset(self._handlers)

    def handle(self, request: Command, peer: Hashable) -> Command | None:
        """Carry out one request of this connection; None if it wants no answer.

        Never raises for what a peer sent. What our own code gets wrong is logged and answered 1.
        """
        return finish(self.handle_in_slices(request, peer))

    def handle_in_slices(self, request: Command, peer: Hashable) -> Generator[None, None, Command | None]:
        """Carry out a request as `handle` does, a slice at each step."""
        self.table.purge()
        answer = yield from self._answer(request, peer)
        if len(answer.body) > BODY_SIZE_MAX:
            answer = request.reply(
                ResponseCode.SYSTEM_ERROR, f"the answer of {len(answer.body)} bytes does not fit into a frame"
            )
        return None if request.is_oneway else answer

    def _answer(self, request: Command, peer: Hashable) -> Answer:
        handler = self._handlers.get(request.code)
        if handler is None:
            return request.reply(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {request.code} not supported"
            )
        try:
            answer = handler(request, peer)
            return (yield from answer) if isinstance(answer, Generator) else answer
        except (
            HeaderError,
            BadRegistration,
            FastjsonError,
            TableFull,
            msgspec.ValidationError,
        ) as error:
            return request.reply(ResponseCode.SYSTEM_ERROR, f"{request_name(request.code)}: {error}")
        except Exception as error:
            log.exception("name server request failed", request=request_name(request.code))
            return request.reply(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")

    def closed(self, peer: Hashable) -> None:
        """Forget a connection that is gone, and every broker that registered over it."""
        _tell_left(log.info, self.table.closed(peer), "its connection closed")

    def expire(self) -> None:
        """Forget brokers that have been silent too long; to be called every EXPIRE_INTERVAL_S."""
        _tell_left(log.warning, self.table.expire(self._monotonic_ms()), "it was silent too long")

    def purge(self) -> None:
        """Forget a part of the topics of brokers that have left; to be called every second."""
        for _ in range(_PURGE_STEPS):
            self.table.purge()

    # --- brokers ------------------------------------------------------------------------------------

    def _register(self, request: Command, peer: Hashable) -> Answer:
        header = decode_header(RegisterBrokerHeader, request.ext)
        _check_identity(header)
        # Before the body is judged: a broker whose topics are too many for this table is there all the same.
        self.table.refresh(header.cluster_name, header.broker_addr, self._monotonic_ms())
        yield
        if header.body_crc32 and header.body_crc32 != (yield from crc32_in_slices(request.body)):
            return request.reply(ResponseCode.SYSTEM_ERROR, "crc32 not match")
        body = yield from registration_in_slices(request.body, compressed=header.compressed)
        _check_filter_servers(body.filter_servers or ())
        registration = Registration(
            cluster=header.cluster_name,
            broker_name=header.broker_name,
            address=header.broker_addr,
            broker_id=header.broker_id,
            ha_address=header.ha_server_addr,
            zone=header.zone_name,
            timeout_ms=header.heartbeat_timeout_millis,
            enable_acting_master=header.enable_acting_master,
            version=body.version,
            topics=body.topics,
            filter_servers=body.filter_servers,
        )
        try:
            accepted = yield from self.register(registration, peer)
        except SingleTopicRefused:
            log.warning("registration refused: one topic of an unknown broker", address=header.broker_addr)
            return request.reply(ResponseCode.SYSTEM_ERROR, "register broker failed")
        ext = encode_header(
            RegisterBrokerResponseHeader(
                ha_server_addr=accepted.ha_address, master_addr=accepted.master_address
            )
        )
        orders = self._kv.table(ORDER_TOPIC_NAMESPACE)
        if orders and self.settings.return_order_topic_config_to_broker:
            return request.reply(ResponseCode.SUCCESS, ext=ext, body=_json({"table": orders}))
        return request.reply(ResponseCode.SUCCESS, ext=ext)

    def register(self, registration: Registration, peer: Hashable) -> Generator[None, None, Accepted]:
        """Put a broker on record, as a request or the broker of this process asks. Raises TableFull."""
        is_new = self.table.version_of(registration.cluster, registration.address) is None
        try:
            accepted = yield from self.table.register_in_slices(registration, peer, self._monotonic_ms())
        except TableFull as full:
            log.warning("registration refused", address=registration.address, reason=str(full))
            raise
        if is_new:
            log.info(
                "broker registered",
                cluster=registration.cluster,
                broker=registration.broker_name,
                id=registration.broker_id,
                address=registration.address,
                topics=len(registration.topics),
            )
        return accepted

    def update(self, registration: Registration, gone: Iterable[str], peer: Hashable) -> Accepted | None:
        """Enter the changed topics of this process's broker; None where it has to register. Raises TableFull."""
        return self.table.update(registration, gone, peer, self._monotonic_ms())

    def _unregister(self, request: Command, peer: Hashable) -> Command:
        header = decode_header(BrokerIdentityHeader, request.ext)
        self.table.unregister(header.cluster_name, header.broker_name, header.broker_addr)
        log.info("broker left", address=header.broker_addr, reason="it said goodbye")
        return request.reply(ResponseCode.SUCCESS)

    def _query_version(self, request: Command, peer: Hashable) -> Command:
        """Tell a broker whether its topics would be news, so that it need not send them."""
        header = decode_header(BrokerIdentityHeader, request.ext)
        theirs = DataVersion.from_json(loads_at_once(request.body)) if request.body else DataVersion()
        ours = self.table.version_of(header.cluster_name, header.broker_addr)
        self.table.refresh(header.cluster_name, header.broker_addr, self._monotonic_ms())
        return request.reply(
            ResponseCode.SUCCESS,
            ext=encode_header(QueryDataVersionResponseHeader(changed=ours != theirs)),
            body=_json(ours.to_json()) if ours else b"",
        )

    def _heartbeat(self, request: Command, peer: Hashable) -> Command:
        header = decode_header(BrokerHeartbeatHeader, request.ext)
        self.table.refresh(header.cluster_name, header.broker_addr, self._monotonic_ms())
        return request.reply(ResponseCode.SUCCESS)

    def _members(self, request: Command, peer: Hashable) -> Command:
        header = decode_header(BrokerMemberGroupHeader, request.ext)
        group = self.table.members(header.cluster_name, header.broker_name)
        return request.reply(ResponseCode.SUCCESS, body=_json({"brokerMemberGroup": group}))

    # --- clients ------------------------------------------------------------------------------------

    def _route(self, request: Command, peer: Hashable) -> Command:
        header = decode_header(RouteHeader, request.ext)
        if self.settings.need_wait_for_service:
            ready_ms = self._started_ms + self.settings.wait_seconds_for_service * 1_000
            if self._monotonic_ms() < ready_ms:
                return request.reply(ResponseCode.SYSTEM_ERROR, "name server not ready")
        zone = header.zone_name if header.zone_mode and header.zone_name else None
        route = self.table.route(header.topic, zone)
        if route is None:
            return request.reply(
                ResponseCode.TOPIC_NOT_EXIST, f"no registered broker serves topic {header.topic}"
            )
        order = self._kv.get(ORDER_TOPIC_NAMESPACE, header.topic)
        if order is not None and self.settings.order_message_enable:
            route.order_topic_conf = order
        return request.reply(ResponseCode.SUCCESS, body=_json(route))

    def _clusters(self, request: Command, peer: Hashable) -> Command:
        body = {"brokerAddrTable": self.table.broker_table(), "clusterAddrTable": self.table.cluster_table()}
        return request.reply(ResponseCode.SUCCESS, body=_json(body))

    # --- topics -------------------------------------------------------------------------------------

    def _all_topics(self, request: Command, peer: Hashable) -> Command | Answer:
        return self._list(request, self.settings.enable_all_topic_list, self.table.is_served)

    def _topics_of_cluster(self, request: Command, peer: Hashable) -> Command | Answer:
        cluster = decode_header(ClusterHeader, request.ext).cluster
        return self._list(
            request, self.settings.enable_topic_list, lambda topic: self.table.is_in_cluster(topic, cluster)
        )

    def _unit_topics(self, request: Command, peer: Hashable) -> Command | Answer:
        return self._list_units(request, unit=True)

    def _subscribed_topics(self, request: Command, peer: Hashable) -> Command | Answer:
        return self._list_units(request, subscribed=True)

    def _subscribed_ununit_topics(self, request: Command, peer: Hashable) -> Command | Answer:
        return self._list_units(request, unit=False, subscribed=True)

    def _list_units(
        self, request: Command, *, unit: bool | None = None, subscribed: bool | None = None
    ) -> Command | Answer:
        return self._list(
            request,
            self.settings.enable_topic_list,
            lambda topic: self.table.has_flags(topic, unit=unit, subscribed=subscribed),
        )

    def _list(self, request: Command, enabled: bool, wanted: Callable[[str], bool]) -> Command | Answer:
        if not enabled:
            return request.reply(ResponseCode.SYSTEM_ERROR, "disable")
        return self._listed(request, wanted)

    def _listed(self, request: Command, wanted: Callable[[str], bool]) -> Answer:
        """Return all wanted topics in order: sorted and written by pieces, as there may be half a million."""
        names = self.table.topic_names()
        runs = []
        for start in range(0, len(names), NAMES_PER_STEP):
            runs.append(sorted(filter(wanted, names[start : start + NAMES_PER_STEP])))
            yield
        merged = heapq.merge(*runs)
        texts: list[bytes] = []
        while piece := list(islice(merged, NAMES_PER_STEP)):
            texts.append(_json(piece)[1:-1])
            if len(piece) == NAMES_PER_STEP:
                yield
        return request.reply(ResponseCode.SUCCESS, body=b'{"topicList":[%b]}' % b",".join(texts))

    def _system_topics(self, request: Command, peer: Hashable) -> Command:
        """Names that brokers have topics of: clusters and broker sets, and an address to ask on."""
        clusters = self.table.cluster_table()
        names = sorted({*clusters, *(name for names in clusters.values() for name in names)})
        body: dict[str, Any] = {"topicList": names}
        addresses = [a for data in self.table.broker_table().values() for a in data.broker_addrs.values()]
        if addresses:
            body["brokerAddr"] = addresses[0]
        return request.reply(ResponseCode.SUCCESS, body=_json(body))

    def _delete_topic(self, request: Command, peer: Hashable) -> Command:
        header = decode_header(DeleteTopicInNamesrvHeader, request.ext)
        self.table.delete_topic(header.topic, header.cluster_name or None)
        return request.reply(ResponseCode.SUCCESS)

    def _register_topic(self, request: Command, peer: Hashable) -> Answer:
        topic = decode_header(TopicHeader, request.ext).topic
        if not 1 <= len(topic) <= NAME_SIZE_MAX:
            raise BadRegistration(f"a topic name of {len(topic)} characters")
        body = (yield from loads_in_slices(request.body, ROUTE_SIZE_MAX)) if request.body else {}
        listed = body.get("queueDatas") if isinstance(body, dict) else None
        if isinstance(listed, list) and len(listed) > BROKERS_MAX:
            raise BadRegistration(f"{len(listed)} queueDatas; there may be {BROKERS_MAX} brokers")
        queues = msgspec.convert(listed or [], list[QueueData], strict=False)
        self.table.register_topic(topic, queues, peer)
        return request.reply(ResponseCode.SUCCESS)

    def _wipe_write(self, request: Command, peer: Hashable) -> Answer:
        name = decode_header(BrokerNameHeader, request.ext).broker_name
        count = yield from self.table.set_permissions(name, without_write)
        log.warning("write permission wiped", broker=name, topics=count)
        return request.reply(ResponseCode.SUCCESS, ext=encode_header(WipePermResponseHeader(count)))

    def _add_write(self, request: Command, peer: Hashable) -> Answer:
        name = decode_header(BrokerNameHeader, request.ext).broker_name
        count = yield from self.table.set_permissions(name, with_write)
        log.warning("write permission added", broker=name, topics=count)
        return request.reply(ResponseCode.SUCCESS, ext=encode_header(AddPermResponseHeader(count)))

    # --- KV configuration and settings --------------------------------------------------------------

    def _put_kv(self, request: Command, peer: Hashable) -> Command:
        header = decode_header(PutKvConfigHeader, request.ext)
        refusal = self._kv.put(header.namespace, header.key, header.value)
        if refusal is not None:
            return request.reply(ResponseCode.SYSTEM_ERROR, refusal)
        return request.reply(ResponseCode.SUCCESS)

    def _get_kv(self, request: Command, peer: Hashable) -> Command:
        header = decode_header(KvConfigHeader, request.ext)
        value = self._kv.get(header.namespace, header.key)
        if value is None:
            return request.reply(
                ResponseCode.QUERY_NOT_FOUND, f"no key {header.key} in name space {header.namespace}"
            )
        return request.reply(ResponseCode.SUCCESS, ext=encode_header(GetKvConfigResponseHeader(value)))

    def _delete_kv(self, request: Command, peer: Hashable) -> Command:
        header = decode_header(KvConfigHeader, request.ext)
        self._kv.delete(header.namespace, header.key)
        return request.reply(ResponseCode.SUCCESS)

    def _list_kv(self, request: Command, peer: Hashable) -> Command:
        namespace = decode_header(NamespaceHeader, request.ext).namespace
        table = self._kv.table(namespace)
        if not table:
            return request.reply(ResponseCode.QUERY_NOT_FOUND, f"no name space {namespace}")
        return request.reply(ResponseCode.SUCCESS, body=_json({"table": table}))

    def _update_settings(self, request: Command, peer: Hashable) -> Command:
        if len(request.body) > SETTINGS_SIZE_MAX:
            return request.reply(
                ResponseCode.SYSTEM_ERROR,
                f"settings of {len(request.body)} bytes; at most {SETTINGS_SIZE_MAX} are read",
            )
        try:
            self.settings = changed(self.settings, read_properties(request.body.decode("utf-8")))
        except LockedSetting as error:
            return request.reply(ResponseCode.NO_PERMISSION, str(error))
        except ValueError as error:
            return request.reply(ResponseCode.SYSTEM_ERROR, str(error))
        self.table.acting_masters = self.settings.support_acting_master
        self.table.delete_missing_topics = self.settings.delete_topic_with_broker_registration
        log.warning("name server settings changed", **as_dict(self.settings))
        return request.reply(ResponseCode.SUCCESS)

    def _get_settings(self, request: Command, peer: Hashable) -> Command:
        values = {key: str(value).lower() for key, value in as_dict(self.settings).items()}
        return request.reply(ResponseCode.SUCCESS, body=write_properties(values).encode())


def _tell_left(tell: Callable[..., None], addresses: list[str], reason: str) -> None:
    """Log brokers that have left, one by one unless they are many: one connection can have brought a thousand."""
    if len(addresses) <= _TOLD_MAX:
        for address in addresses:
            tell("broker left", address=address, reason=reason)
    else:
        tell("brokers left", count=len(addresses), addresses=addresses[:_TOLD_MAX], reason=reason)


def _check_identity(header: RegisterBrokerHeader) -> None:
    """Judge what routes will carry to every client.

    Clients cut an address at its colon, and Go's cuts the whole list of addresses at commas and braces
    before it reads JSON. One broker with such an address would break the routes of all others in its set.
    """
    for name, value in (("brokerName", header.broker_name), ("clusterName", header.cluster_name)):
        if not 1 <= len(value) <= NAME_SIZE_MAX or not value.isprintable() or " " in value:
            raise BadRegistration(f"{name} is {value[:100]!r}")
    if not _ADDRESS.fullmatch(header.broker_addr):
        raise BadRegistration(f"brokerAddr is {header.broker_addr[:100]!r} and not host:port")
    if header.broker_id < 0:
        raise BadRegistration(f"brokerId is {header.broker_id}")
    for name, value in (("haServerAddr", header.ha_server_addr), ("zoneName", header.zone_name or "")):
        if len(value) > NAME_SIZE_MAX:
            raise BadRegistration(f"{name} has {len(value)} characters")


def _check_filter_servers(servers: Sequence[str]) -> None:
    size = sum(map(len, servers))
    if (
        len(servers) > FILTER_SERVERS_MAX
        or size > FILTER_SERVERS_SIZE_MAX
        or any(len(server) > NAME_SIZE_MAX for server in servers)
    ):
        raise BadRegistration(
            f"filterServerList has {len(servers)} entries of {size} characters, or long ones: {FILTER_SERVERS_MAX} may "
            f"be there, of {FILTER_SERVERS_SIZE_MAX} characters together"
        )


def _json(value: Any) -> bytes:
    """Compact JSON with quoted keys, fields in the order of their declaration (which is alphabetical)."""
    return msgspec.json.encode(value)
