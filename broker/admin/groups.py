"""Administrators' requests about consumer groups and their connections (200, 225, 207, 201, 352, 353, 203, 204, 328,
343, 345, 46).

Deleting a group forgets its configuration; its offsets only if the request says so, and its retry and dead-letter
topics are topics like others, which tools delete by their own requests. A change is in its file when the answer leaves,
or the answer says why it is not. A group that may be created by being named
comes back with the next heartbeat of a consumer that still runs.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from typing import Any

from broker.admin.base import (
    AdminContext,
    Handler,
    body_of,
    by_slices,
    entries_in_slices,
    object_of,
)
from broker.consume.filters import FilterRules, check_expression
from broker.remoting.large_answers import (
    body_in_steps,
    written_list,
    written_object,
    written_table,
)
from broker.remoting.refused import RequestRefused
from broker.remoting.session import Session, Stepwise
from broker.state.clients import Member
from broker.state.groups import READ_FORBIDDEN, SubscriptionGroupConfig
from broker.state.statistics import CONSUMER_GROUP
from broker.state.subscription import TAG, SubscriptionData
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.filter.sql92 import SqlSyntaxError, compile_in_slices
from ropewalk.format import fastjson, names
from ropewalk.format.headers import (
    ConsumerGroupHeader,
    DeleteGroupHeader,
    GroupForbiddenHeader,
    GroupHeader,
    ProducerGroupHeader,
    decode_header,
)
from ropewalk.format.remoting import Command

FILE = "subscriptionGroup.json"


class AdminGroups:
    def __init__(self, context: AdminContext) -> None:
        self._context = context
        self._broker = context.broker

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.update,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: self.update_list,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self.delete,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.all,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self.one,
            RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: self.forbidden,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self.consumer_connections,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self.producer_connections,
            RequestCode.GET_ALL_PRODUCER_INFO: self.all_producers,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: self.topics_of,
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: self.subscription_of,
            RequestCode.CHECK_CLIENT_CONFIG: self.check_client,
        }

    # -- making, changing, deleting ------------------------------------------------------------------

    def update(self, session: Session, request: Command) -> Command | None:
        with self._context.making(CONSUMER_GROUP) as making:
            config = self._from_entry(object_of(request))
            making.is_system = names.is_system_group(config.name)
            self._put(config)
        return self._kept(session, request, request.reply(ResponseCode.SUCCESS))

    def update_list(self, session: Session, request: Command) -> Stepwise:
        """All of them or, if one is refused, none."""
        with self._context.making(CONSUMER_GROUP):
            configs = yield from entries_in_slices(request, "groupConfigList", "group", self._from_entry)
            yield from by_slices(self._put, configs)
        return self._kept(session, request, request.reply(ResponseCode.SUCCESS))

    def _kept(self, session: Session, request: Command, answer: Command) -> Command | None:
        return self._context.when_kept(session, request, FILE, answer)

    def _from_entry(self, entry: Any) -> SubscriptionGroupConfig:
        name = entry.get("groupName") if isinstance(entry, dict) else None
        if not isinstance(name, str):
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, "the group has no groupName")
        if (reason := names.check_group(name)) is not None:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, reason)
        if entry.get("attributes"):
            # Attributes arrive as edits, and there is none to edit.
            found = ", ".join(map(str, entry["attributes"]))
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"groups have no attributes yet, here are {found}"
            )
        return SubscriptionGroupConfig.from_json(name, entry)

    def _put(self, *configs: SubscriptionGroupConfig) -> None:
        groups = self._broker.groups
        for config in configs:
            groups.update(config, self._broker.now_ms())
        groups.write_entries(config.name for config in configs)

    def delete(self, session: Session, request: Command) -> None:
        header = decode_header(DeleteGroupHeader, request.ext)
        broker, name = self._broker, header.group_name
        broker.groups.delete(name, broker.now_ms())
        broker.statistics.forget_group(name)

        def steps() -> Stepwise:
            if header.clean_offset:
                yield from broker.offsets.remove_pairs(
                    (topic, name) for topic in broker.offsets.topics_of(name)
                )
            return self._kept(session, request, request.reply(ResponseCode.SUCCESS))

        self._context.change(session, request, steps())

    def forbidden(self, session: Session, request: Command) -> Command | None:
        """Say whether a group may read a topic; change it first if `readable` is given."""
        header = decode_header(GroupForbiddenHeader, request.ext)
        groups = self._broker.groups
        if header.readable is not None:
            if header.group not in groups:
                raise RequestRefused(
                    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {header.group} does not exist"
                )
            bits = 0 if header.readable else READ_FORBIDDEN
            try:
                groups.set_forbidden(header.group, header.topic, bits, self._broker.now_ms())
            except ValueError as exc:
                raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(exc)) from exc
        readable = not groups.read_forbidden(header.group, header.topic)
        answer = body_of(request, {"group": header.group, "readable": readable, "topic": header.topic})
        return answer if header.readable is None else self._kept(session, request, answer)

    # -- looking -------------------------------------------------------------------------------------

    def one(self, session: Session, request: Command) -> Command:
        name = decode_header(GroupHeader, request.ext).group
        config = self._broker.groups.get(name)
        if config is None:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"No group in this broker. group: {name}"
            )
        return body_of(request, config.to_json())

    def all(self, session: Session, request: Command) -> Stepwise:
        """The whole table in one answer: without a `totalGroupNum` nobody asks for further pages."""
        groups = self._broker.groups
        table = written_table(groups.shown().items(), SubscriptionGroupConfig.to_json)
        forbidden = written_table(groups.forbidden(), dict)
        fields = {**groups.wrapper_fields(), "forbiddenTable": forbidden}
        return body_in_steps(request, {**fields, "subscriptionGroupTable": table})

    def topics_of(self, session: Session, request: Command) -> Stepwise:
        group = decode_header(GroupHeader, request.ext).group
        topics = map(fastjson.dumps, self._broker.offsets.topics_of(group))
        return body_in_steps(request, {"topicList": written_list(topics)})

    def subscription_of(self, session: Session, request: Command) -> Command:
        header = decode_header(GroupHeader, request.ext)
        wish = self._broker.clients.subscription(header.group, header.topic or "")
        return body_of(
            request,
            {
                "group": header.group,
                "subscriptionData": wish.to_json() if wish else None,
                "topic": header.topic,
            },
        )

    # -- who is connected ----------------------------------------------------------------------------

    def consumer_connections(self, session: Session, request: Command) -> Stepwise:
        group = decode_header(ConsumerGroupHeader, request.ext).consumer_group
        info = self._broker.clients.consumer_group(group)
        if info is None:
            raise RequestRefused(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{group}] not online")
        fields = {
            "connectionSet": _connections(info.members),
            "consumeFromWhere": info.consume_from_where,
            "consumeType": info.consume_type,
            "messageModel": info.message_model,
            "subscriptionTable": written_table(list(info.subscriptions.items()), SubscriptionData.to_json),
        }
        return body_in_steps(request, fields)

    def producer_connections(self, session: Session, request: Command) -> Stepwise:
        group = decode_header(ProducerGroupHeader, request.ext).producer_group
        members = self._broker.clients.producer_members(group)
        if not members:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the producer group[{group}] not exist")
        return body_in_steps(request, {"connectionSet": _connections(members)})

    def all_producers(self, session: Session, request: Command) -> Stepwise:
        clients = self._broker.clients
        # Members are timed by the monotonic clock; people are shown where that is on the wall clock of now.
        shown_ms = self._broker.now_ms() - self._broker.monotonic_ms()

        def shown(member: Member) -> bytes:
            return fastjson.dumps(
                {
                    "clientId": member.client_id,
                    "language": member.language,
                    "lastUpdateTimestamp": shown_ms + member.seen_ms,
                    "remoteIP": f"/{member.address}",  # as Java writes an address
                    "version": member.version,
                }
            )

        def entry(group: str) -> Iterator[bytes]:
            members = clients.producer_members(group).values()
            return chain([fastjson.dumps(group) + b":"], written_list(map(shown, members)))

        return body_in_steps(request, {"data": written_object(map(entry, clients.producer_groups()))})

    def check_client(self, session: Session, request: Command) -> Stepwise:
        """Check the subscription of a client before it starts: its filter is served, and can be parsed."""
        wish = object_of(request).get("subscriptionData")
        if isinstance(wish, dict):
            kind, expression = wish.get("expressionType"), wish.get("subString")
            if kind not in (None, "", TAG):
                text = expression if isinstance(expression, str) else ""
                rules = FilterRules.of(self._broker.config)
                if rules.enabled:
                    with suppress(SqlSyntaxError):
                        yield from compile_in_slices(text, ignore_rest=rules.ignore_rest)
                check_expression(rules, text, str(kind))
        return request.reply(ResponseCode.SUCCESS)


def _connections(members: Mapping[Hashable, Member]) -> Iterator[bytes]:
    """Yield the fragments of a list of members."""
    return written_list(fastjson.dumps(member.to_json()) for member in list(members.values()))
