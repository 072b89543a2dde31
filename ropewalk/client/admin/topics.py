"""An administrator's conversations about topics: look, make, change, delete.

A topic lives at brokers, each with a configuration of its own; the name servers only repeat what brokers announce. So
it is made and changed at masters, and deleted at masters and name servers. The queue order of a topic that is made
with `order=True` is written to the name servers as well, as RocketMQ's tools do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ropewalk.client.admin.cluster import ClusterSteps, document_in
from ropewalk.client.admin.results import (
    BrokerMember,
    TopicConfig,
    TopicStatus,
    read_texts,
    read_topic_config,
    read_topic_status,
)
from ropewalk.client.core.messages import command_of
from ropewalk.client.core.routes import DEFAULT_TOPIC, TopicRoute
from ropewalk.client.core.steps import Steps, answer_header
from ropewalk.codes import Permission, RequestCode, ResponseCode
from ropewalk.errors import Rejected, error_for
from ropewalk.format.headers import (
    ClusterHeader,
    CreateTopicHeader,
    DeleteTopicInNamesrvHeader,
    GetKvConfigResponseHeader,
    KvConfigHeader,
    PutKvConfigHeader,
    TopicHeader,
)
from ropewalk.format.remoting import Command

ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"
QUEUES = 8
READ_AND_WRITE = Permission.READ | Permission.WRITE
_NO_TOPIC = (ResponseCode.TOPIC_NOT_EXIST,)


class TopicSteps(ClusterSteps):
    """Conversations about topics."""

    # Looking

    def topics(self, *, cluster: str | None = None) -> Steps[tuple[str, ...]]:
        """Return the names of all topics, the brokers' own included; sorted."""
        if cluster is None:
            answer = yield from self._look_at_a_name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        else:
            answer = yield from self._look_at_a_name_server(
                RequestCode.GET_TOPICS_BY_CLUSTER, ClusterHeader(cluster)
            )
        return tuple(sorted(answer))

    def system_names(self) -> Steps[frozenset[str]]:
        """Return topics that the name server says are brokers' own: those named after clusters and brokers."""
        names = yield from self._look_at_a_name_server(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
        return frozenset(names)

    def topic_route(self, topic: str) -> Steps[TopicRoute]:
        """Return the route of a topic. Raises `Rejected` (17) when there is no such topic."""
        return (yield from self._directory.route(topic, fresh=True))

    def topic_clusters(self, topic: str) -> Steps[tuple[str, ...]]:
        """Return the clusters that serve a topic."""
        route = yield from self.topic_route(topic)
        return tuple(sorted({broker.cluster for broker in route.brokers.values()}))

    def topic_config(self, topic: str) -> Steps[dict[BrokerMember, TopicConfig]]:
        """Return the configuration of a topic at each broker that serves it."""
        masters = yield from self.topic_masters(topic)
        return (yield from self._configs(topic, masters))

    def topic_status(self, topic: str) -> Steps[TopicStatus]:
        """Return the extent of each queue of a topic."""
        masters = yield from self.topic_masters(topic)
        answers = yield from self.query_all(masters, RequestCode.GET_TOPIC_STATS_INFO, TopicHeader(topic))
        return read_topic_status(topic, [document_in(answer) for _, answer in answers])

    def topic_groups(self, topic: str) -> Steps[tuple[str, ...]]:
        """Return the groups that read a topic now, or did and left their progress."""
        masters = yield from self.topic_masters(topic)
        answers = yield from self.query_all(
            masters, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, TopicHeader(topic)
        )
        groups = (read_texts(document_in(answer), "groupList") for _, answer in answers)
        return tuple(sorted({group for found in groups for group in found}))

    # Making and changing

    def create_topic(
        self,
        topic: str,
        queues: int = QUEUES,
        *,
        permission: int = READ_AND_WRITE,
        order: bool = False,
        attributes: Mapping[str, str] | None = None,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> Steps[tuple[BrokerMember, ...]]:
        """Make a topic at every master, or those of a cluster, or at one broker; says where.

        Raises `Rejected` (18) where it exists already: `update_topic` changes it.
        """
        masters = yield from self.masters(cluster=cluster, broker=broker)
        existing = yield from self._configs(topic, masters)
        if existing:
            names = ", ".join(member.broker_name for member in existing)
            raise error_for(ResponseCode.TOPIC_EXIST_ALREADY, f"topic {topic} exists already at {names}")
        config = TopicConfig(
            topic, queues, queues, permission, order, attributes=_additions(attributes or {})
        )
        for member in masters:
            yield from self.put_topic(member, config)
        if order:
            yield from self._write_order(topic, {member.broker_name: queues for member in masters})
        return masters

    def update_topic(
        self,
        topic: str,
        *,
        queues: int | None = None,
        read_queues: int | None = None,
        write_queues: int | None = None,
        permission: int | None = None,
        order: bool | None = None,
        attributes: Mapping[str, str | None] | None = None,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> Steps[dict[BrokerMember, TopicConfig]]:
        """Change the given settings of a topic, where it exists; return its settings there now.

        `queues` stands for both counts. An attribute of None is taken away. Raises `Rejected` (17) where none of the
        brokers has the topic.
        """
        masters = yield from self.masters(cluster=cluster, broker=broker)
        configs = yield from self._configs(topic, masters)
        if not configs:
            raise error_for(ResponseCode.TOPIC_NOT_EXIST, f"none of these brokers has a topic {topic}")
        edits = {
            ("-" if value is None else "+") + key: value or "" for key, value in (attributes or {}).items()
        }
        for member, before in configs.items():
            after = replace(
                before,
                read_queues=_first(read_queues, queues, before.read_queues),
                write_queues=_first(write_queues, queues, before.write_queues),
                permission=_first(permission, before.permission),
                order=before.order if order is None else order,
                attributes=edits,
            )
            yield from self.put_topic(member, after)
        changed = yield from self._configs(topic, tuple(configs))
        if any(config.order for config in changed.values()):
            counts = {member.broker_name: config.write_queues for member, config in changed.items()}
            yield from self._write_order(topic, counts)
        elif order is False:
            yield from self._forget_order(topic)
        return changed

    def put_topic(self, member: BrokerMember, config: TopicConfig) -> Steps[None]:
        """Give one broker this configuration of a topic. Its attributes are edits: `+name` sets, `-name` removes."""
        header = CreateTopicHeader(
            topic=config.name,
            default_topic=DEFAULT_TOPIC,
            read_queue_nums=config.read_queues,
            write_queue_nums=config.write_queues,
            perm=config.permission,
            topic_filter_type=config.filter_type,
            topic_sys_flag=config.sys_flag,
            order=config.order,
            attributes=",".join(
                key if key.startswith("-") else f"{key}={value}" for key, value in config.attributes.items()
            ),
        )
        yield from self.change_at_all([member], RequestCode.UPDATE_AND_CREATE_TOPIC, header)

    # Deleting

    def delete_topic(self, topic: str, *, cluster: str | None = None) -> Steps[tuple[BrokerMember, ...]]:
        """Delete a topic and its messages at every master, or those of a cluster; return these masters.

        Raises `Rejected` (17) when there is no such topic.
        """
        masters = yield from self.topic_masters(topic, cluster)
        yield from self._delete_at(topic, masters, cluster)
        return masters

    def _delete_at(
        self, topic: str, masters: tuple[BrokerMember, ...], cluster: str | None = None
    ) -> Steps[None]:
        yield from self.change_at_all(masters, RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader(topic))
        header = DeleteTopicInNamesrvHeader(topic, cluster)
        yield from self.change_name_servers(RequestCode.DELETE_TOPIC_IN_NAMESRV, header)
        if cluster is None:
            yield from self._forget_order(topic)

    # The order of queues, as name servers keep it

    def _write_order(self, topic: str, counts: Mapping[str, int]) -> Steps[None]:
        known = dict(part.split(":", 1) for part in (yield from self._order(topic)).split(";") if ":" in part)
        known.update({name: str(count) for name, count in counts.items()})
        text = ";".join(f"{name}:{count}" for name, count in sorted(known.items()))
        yield from self.change_name_servers(
            RequestCode.PUT_KV_CONFIG, PutKvConfigHeader(ORDER_NAMESPACE, topic, text)
        )

    def _forget_order(self, topic: str) -> Steps[None]:
        if (yield from self._order(topic)):
            header = KvConfigHeader(ORDER_NAMESPACE, topic)
            yield from self.change_name_servers(RequestCode.DELETE_KV_CONFIG, header)

    def _order(self, topic: str) -> Steps[str]:
        address = str(self._name_servers.current)
        answer = yield from self.query(
            address,
            RequestCode.GET_KV_CONFIG,
            KvConfigHeader(ORDER_NAMESPACE, topic),
            none_for=(ResponseCode.QUERY_NOT_FOUND,),
        )
        return (answer_header(GetKvConfigResponseHeader, answer).value or "") if answer is not None else ""

    # Helpers

    def _configs(
        self, topic: str, masters: tuple[BrokerMember, ...]
    ) -> Steps[dict[BrokerMember, TopicConfig]]:
        answers = yield from self.query_all(
            masters, RequestCode.GET_TOPIC_CONFIG, TopicHeader(topic), none_for=_NO_TOPIC
        )
        return {member: read_topic_config(document_in(answer)) for member, answer in answers}

    def _look_at_a_name_server(self, code: int, header: ClusterHeader | None = None) -> Steps[list[str]]:
        command = Command(code) if header is None else command_of(code, header)
        return list(read_texts(document_in((yield from self._directory.ask(command))), "topicList"))


def _additions(attributes: Mapping[str, str]) -> dict[str, str]:
    for key, value in attributes.items():
        if not value:
            raise Rejected(f"attribute {key} has no value")
    return {f"+{key}": value for key, value in attributes.items()}


def _first(*values: int | None) -> int:
    return next(value for value in values if value is not None)
