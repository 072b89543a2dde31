"""An administrator's conversations about consumer groups: who they are, how far they have come, where they go on.

A group's configuration and its progress live at each broker. Progress may be looked at and moved whether or not the
group is online; a member that reads at the moment is told by its broker.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from ropewalk.client.admin.cluster import document_in
from ropewalk.client.admin.results import (
    BrokerMember,
    ClientConnection,
    ConsumerConnections,
    Document,
    GroupConfig,
    GroupProgress,
    MemberStatus,
    ProducerClient,
    read_clients,
    read_consumers,
    read_group_config,
    read_member,
    read_objects,
    read_offsets,
    read_producers,
    read_progress,
    read_table,
    write_group_config,
)
from ropewalk.client.admin.topics import TopicSteps
from ropewalk.client.core.connection import NoMaster, Unreachable
from ropewalk.client.core.consume.received import TopicQueue
from ropewalk.client.core.messages import command_of
from ropewalk.client.core.routes import Queue
from ropewalk.client.core.steps import Steps, answer_header, ask_twice, require_success
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import OutcomeUnknown, Refused, Rejected, RopewalkError, error_for
from ropewalk.format import fastjson
from ropewalk.format.headers import (
    BrokerConsumeStatsHeader,
    ConsumerGroupHeader,
    ConsumeStatsHeader,
    DeleteGroupHeader,
    OffsetResponseHeader,
    ProducerGroupHeader,
    QueryConsumerOffsetHeader,
    RelayHeader,
    ResetOffsetHeader,
    SearchOffsetHeader,
    UpdateConsumerOffsetHeader,
)
from ropewalk.format.names import DLQ_PREFIX, RETRY_PREFIX
from ropewalk.format.remoting import Command

RELAY_TIMEOUT_S = 12.0
"""Seconds for an answer that a broker gets from a client first; it waits ten."""
LATEST = -1
EARLIEST = 0
_NOT_ONLINE = (ResponseCode.CONSUMER_NOT_ONLINE,)


class GroupSteps(TopicSteps):
    """Conversations about consumer groups."""

    # Configuration

    def groups(
        self, *, cluster: str | None = None, broker: str | None = None
    ) -> Steps[dict[str, dict[BrokerMember, GroupConfig]]]:
        """Return every group that a broker knows, with its configuration there."""
        found: dict[str, dict[BrokerMember, GroupConfig]] = {}
        masters = yield from self.masters(cluster=cluster, broker=broker)
        for member, table in (yield from self._group_tables(masters)).items():
            for config in table:
                found.setdefault(config.name, {})[member] = config
        return dict(sorted(found.items()))

    def group_config(self, group: str) -> Steps[dict[BrokerMember, GroupConfig]]:
        """Return a group's configuration at each broker that knows it; empty when none does."""
        masters = yield from self.masters()
        return (yield from self._group_configs(group, masters))

    def create_group(
        self,
        group: str,
        *,
        retry_max_times: int = 16,
        retry_queues: int = 1,
        broadcast_enable: bool = True,
        orderly: bool = False,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> Steps[tuple[BrokerMember, ...]]:
        """Make a group at every master, or those of a cluster, or at one broker; says where.

        Raises `Rejected` where it exists already: `update_group` changes it.
        """
        masters = yield from self.masters(cluster=cluster, broker=broker)
        existing = yield from self._group_configs(group, masters)
        if existing:
            names = ", ".join(member.broker_name for member in existing)
            raise Rejected(f"group {group} exists already at {names}")
        config = GroupConfig(
            group,
            retry_max_times=retry_max_times,
            retry_queues=retry_queues,
            broadcast_enable=broadcast_enable,
            orderly=orderly,
        )
        yield from self._put_group(masters, config)
        return masters

    def update_group(
        self,
        group: str,
        *,
        retry_max_times: int | None = None,
        retry_queues: int | None = None,
        consume_enable: bool | None = None,
        broadcast_enable: bool | None = None,
        orderly: bool | None = None,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> Steps[dict[BrokerMember, GroupConfig]]:
        """Change the given settings of a group, where it exists; return its settings there now.

        Raises `Rejected` (26) where none of the brokers knows the group.
        """
        masters = yield from self.masters(cluster=cluster, broker=broker)
        configs = yield from self._group_configs(group, masters)
        if not configs:
            raise error_for(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"no broker knows a group {group}")
        wanted = {
            "retry_max_times": retry_max_times,
            "retry_queues": retry_queues,
            "consume_enable": consume_enable,
            "broadcast_enable": broadcast_enable,
            "orderly": orderly,
        }
        changes = {name: value for name, value in wanted.items() if value is not None}
        for member, before in configs.items():
            yield from self._put_group([member], replace(before, **changes))  # type: ignore[arg-type]
        return (yield from self._group_configs(group, tuple(configs)))

    def delete_group(
        self,
        group: str,
        *,
        keep_offsets: bool = False,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> Steps[tuple[BrokerMember, ...]]:
        """Delete a group, its progress, and its retry and dead-letter topics with their messages; return the brokers.

        Raises `Rejected` (26) where none of the brokers knows the group.
        """
        masters = yield from self.masters(cluster=cluster, broker=broker)
        known = tuple((yield from self._group_configs(group, masters)))
        if not known:
            raise error_for(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"no broker knows a group {group}")
        header = DeleteGroupHeader(group, clean_offset=not keep_offsets)
        yield from self.change_at_all(known, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)
        existing = yield from self.topics()
        for topic in (RETRY_PREFIX + group, DLQ_PREFIX + group):
            if topic in existing:
                yield from self._delete_at(topic, known, cluster)
        return known

    # Who is connected

    def consumers(self, group: str) -> Steps[ConsumerConnections | None]:
        """Return the connected consumers of a group; None when there are none."""
        masters = yield from self.masters()
        answers = yield from self.query_all(
            masters,
            RequestCode.GET_CONSUMER_CONNECTION_LIST,
            ConsumerGroupHeader(group),
            none_for=_NOT_ONLINE,
        )
        documents = [document_in(answer) for _, answer in answers]
        return read_consumers(group, documents) if documents else None

    def producers(self, group: str) -> Steps[tuple[ClientConnection, ...]]:
        """Return the connected producers of a group."""
        masters = yield from self.masters()
        answers = yield from self.query_all(
            masters,
            RequestCode.GET_PRODUCER_CONNECTION_LIST,
            ProducerGroupHeader(group),
            none_for=(ResponseCode.SYSTEM_ERROR,),
        )
        return read_clients([document_in(answer) for _, answer in answers])

    def all_producers(self) -> Steps[tuple[ProducerClient, ...]]:
        """Return every producer that a broker has heard of lately."""
        masters = yield from self.masters()
        answers = yield from self.query_all(masters, RequestCode.GET_ALL_PRODUCER_INFO)
        return read_producers([document_in(answer) for _, answer in answers])

    def running_info(self, group: str, client_id: str) -> Steps[Document]:
        """Return a consumer's running info, as its own document. Raises `Refused` when it is not connected."""
        masters = yield from self.masters()
        command = command_of(RequestCode.GET_CONSUMER_RUNNING_INFO, RelayHeader(group, client_id))
        last: Command | None = None
        for member in masters:
            try:
                last = yield from ask_twice(member.address, command, RELAY_TIMEOUT_S)
            except Unreachable as exc:
                self.note_away(member, exc)
                continue
            if last.code == ResponseCode.SUCCESS:
                return document_in(last)
        if last is None:
            raise Unreachable("no broker can be reached")
        require_success(last)
        raise AssertionError("a success was returned above")

    def members_status(self, group: str) -> Steps[tuple[MemberStatus, ...]]:
        """Return the status that each consumer of a group reports.

        A consumer that does not answer is noted in `skipped`.
        """
        online = yield from self.consumers(group)
        found: list[MemberStatus] = []
        for client in online.clients if online is not None else ():
            try:
                document = yield from self.running_info(group, client.client_id)
            except (Refused, OutcomeUnknown) as exc:
                self._skipped[client.client_id] = str(exc)
                continue
            found.append(read_member(client, document))
        return tuple(found)

    # Progress

    def progress(self, group: str, topic: str | None = None) -> Steps[GroupProgress]:
        """Return a group's progress in every queue that it reads, or in those of one topic."""
        masters = yield from self.masters()
        answers = yield from self.query_all(
            masters, RequestCode.GET_CONSUME_STATS, ConsumeStatsHeader(group, topic)
        )
        return read_progress(group, [document_in(answer) for _, answer in answers])

    def all_progress(self) -> Steps[tuple[GroupProgress, ...]]:
        """Return the progress of every group that ever committed anything."""
        masters = yield from self.masters()
        answers = yield from self.query_all(
            masters, RequestCode.GET_BROKER_CONSUME_STATS, BrokerConsumeStatsHeader(is_order=False)
        )
        by_group: dict[str, list[Document]] = {}
        for _, answer in answers:
            for entry in read_objects(document_in(answer), "consumeStatsList"):
                for group in entry:
                    by_group.setdefault(str(group), []).extend(read_objects(entry, group))
        everything = (read_progress(group, parts) for group, parts in sorted(by_group.items()))
        return tuple(progress for progress in everything if progress.queues)

    def reset_offsets(
        self, group: str, topic: str, timestamp_ms: int, *, force: bool = True
    ) -> Steps[dict[TopicQueue, int]]:
        """Send a group to the first message stored at or after a time, in every queue; says where that is.

        `EARLIEST` (0) and `LATEST` (-1) stand for the ends. Without `force`, a group is sent back but not forward,
        where the broker makes that difference (RocketMQ's legacy path does).
        """
        header = ResetOffsetHeader(topic, group, timestamp_ms, is_force=force)
        return (yield from self._reset((yield from self.topic_masters(topic)), header))

    def reset_offset(self, group: str, topic: str, queue: Queue, offset: int) -> Steps[dict[TopicQueue, int]]:
        """Send a group to an offset of one queue; says where that is. The offset must lie in the queue."""
        masters = yield from self.topic_masters(topic)
        header = ResetOffsetHeader(topic, group, LATEST, queue.queue_id, offset, is_force=True)
        return (yield from self._reset([_named(masters, queue.broker_name)], header))

    def clone_offsets(self, source: str, target: str, topic: str) -> Steps[dict[TopicQueue, int]]:
        """Give a group another's progress in one topic; return the offsets.

        Raises `Rejected` when the source has none, or the target does not exist.
        """
        # The table of 208 has zeros for queues of which nothing was ever committed: here they must not become progress.
        done: dict[TopicQueue, int] = {}
        for queue in (yield from self.progress(source, topic)).queues:
            committed = yield from self.committed_offset(source, queue.source)
            if committed is not None:
                done[queue.source] = committed
        if not done:
            raise Rejected(f"group {source} has no progress in topic {topic}")
        masters = yield from self.topic_masters(topic)
        for place, offset in done.items():
            yield from self._commit(masters, target, place, offset)
        return done

    def commit_offset(self, group: str, source: TopicQueue, offset: int) -> Steps[None]:
        """Record how far a group has come in a queue, as its members do. The group must exist (else `Rejected`, 26).

        Members that are reading know nothing of it and will commit their own place over it: `reset_offset` tells them.
        """
        masters = yield from self.topic_masters(source.topic)
        yield from self._commit(masters, group, source, offset)

    def committed_offset(self, group: str, source: TopicQueue) -> Steps[int | None]:
        """Return the offset that a group has committed in a queue; None for none."""
        masters = yield from self.topic_masters(source.topic)
        member = _named(masters, source.queue.broker_name)
        header = QueryConsumerOffsetHeader(
            group, source.topic, source.queue.queue_id, set_zero_if_not_found=False
        )
        none_for = (ResponseCode.QUERY_NOT_FOUND,)
        answer = yield from self.query(
            member.address, RequestCode.QUERY_CONSUMER_OFFSET, header, none_for=none_for
        )
        return None if answer is None else answer_header(OffsetResponseHeader, answer).offset

    def search_offsets(self, topic: str, timestamp_ms: int) -> Steps[dict[Queue, int]]:
        """Return, for every queue of a topic, the offset of the first message stored at or after a time."""
        route = yield from self.topic_route(topic)
        masters = yield from self.topic_masters(topic)
        found: dict[Queue, int] = {}
        for queue in sorted(route.read_queues()):
            header = SearchOffsetHeader(topic, queue.queue_id, timestamp_ms)
            address = _named(masters, queue.broker_name).address
            answer = yield from self.query(address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
            assert answer is not None
            found[queue] = answer_header(OffsetResponseHeader, answer).offset
        return found

    # Helpers

    def _reset(
        self, masters: Iterable[BrokerMember], header: ResetOffsetHeader
    ) -> Steps[dict[TopicQueue, int]]:
        documents: list[Document] = []
        for member in masters:
            answer = yield from self.ask(member.address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
            documents.append(document_in(answer))
        return read_offsets(documents)

    def _commit(
        self, masters: tuple[BrokerMember, ...], group: str, source: TopicQueue, offset: int
    ) -> Steps[None]:
        member = _named(masters, source.queue.broker_name)
        header = UpdateConsumerOffsetHeader(group, source.topic, source.queue.queue_id, offset)
        yield from self.ask(member.address, RequestCode.UPDATE_CONSUMER_OFFSET, header)

    def _group_configs(
        self, group: str, masters: tuple[BrokerMember, ...]
    ) -> Steps[dict[BrokerMember, GroupConfig]]:
        # Not 352, which asks for one group: to RocketMQ, a group that is asked about is a group that shall exist.
        tables = yield from self._group_tables(masters)
        return {
            member: config for member, table in tables.items() for config in table if config.name == group
        }

    def _group_tables(
        self, masters: tuple[BrokerMember, ...]
    ) -> Steps[dict[BrokerMember, list[GroupConfig]]]:
        """All groups of several brokers. Who is away is left out, unless that is everybody."""
        tables: dict[BrokerMember, list[GroupConfig]] = {}
        away: list[RopewalkError] = []
        for member in masters:
            try:
                tables[member] = yield from self._group_table(member)
            except (Unreachable, OutcomeUnknown) as exc:
                self.note_away(member, exc)
                away.append(exc)
        if away and not tables:
            raise away[0]
        return tables

    def _put_group(self, masters: Iterable[BrokerMember], config: GroupConfig) -> Steps[None]:
        body = fastjson.dumps(write_group_config(config))
        yield from self.change_at_all(masters, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)

    def _group_table(self, member: BrokerMember) -> Steps[list[GroupConfig]]:
        """All groups of one broker. RocketMQ 5.3 and later answers in pages, all others in one piece."""
        found: dict[str, GroupConfig] = {}
        while True:
            ext = {"groupSeq": str(len(found)), "dataVersion": "", "maxGroupNum": "1000"}
            command = Command(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, ext)
            answer = yield from ask_twice(member.address, command, self._timeout_s)
            table = read_table(document_in(answer), "subscriptionGroupTable")
            before = len(found)
            for entry in table.values():
                config = read_group_config(entry)
                found[config.name] = config
            total = answer.ext.get("totalGroupNum", "")
            if not re.fullmatch(r"[0-9]{1,9}", total) or len(found) >= int(total) or len(found) == before:
                return list(found.values())


def _named(masters: Iterable[BrokerMember], broker_name: str) -> BrokerMember:
    """Return the master of a broker set. Raises `Unreachable` when there is none."""
    for member in masters:
        if member.broker_name == broker_name:
            return member
    raise NoMaster(f"the name server knows no master of broker {broker_name}", [broker_name])
