"""Administrators' requests about topics: make, change, delete, look (17, 18, 215, 351, 21, 202, 300, 305, 316).

A change is in the table and in its file, at an embedded name server and on its way to the others when the answer
leaves; where the disk has no room for the file, the answer says so. A deleted
topic is gone from every table at once; the answer waits until its files are removed, and until a restart can no longer
bring it back.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from itertools import starmap
from typing import Any

from broker.admin.base import (
    AdminContext,
    Handler,
    body_of,
    by_slices,
    collect,
    entries_in_slices,
)
from broker.remoting.large_answers import (
    body_in_steps,
    written_list,
    written_object,
    written_table,
)
from broker.remoting.refused import RequestRefused
from broker.remoting.session import Session, Stepwise
from broker.state.statistics import TOPIC
from broker.state.topic_attributes import AttributeRefused, edit_attributes
from broker.state.topics import TopicConfig
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format import fastjson, names
from ropewalk.format.fastjson import QueueKey, QueueKeys
from ropewalk.format.headers import CreateTopicHeader, TopicHeader, decode_header
from ropewalk.format.remoting import Command
from store.read.store_times import Spot, spot_of, times_at

FILE = "topics.json"
_FILTER_TYPES = ("SINGLE_TAG", "MULTI_TAG")
_MESSAGE_TYPE = "message.type"


class AdminTopics:
    def __init__(self, context: AdminContext, topic_deleted: Callable[[str], None]) -> None:
        """`topic_deleted` is told of each topic that is deleted."""
        self._context = context
        self._broker = context.broker
        self._topic_deleted = topic_deleted

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self.update,
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: self.update_list,
            RequestCode.DELETE_TOPIC_IN_BROKER: self.delete,
            RequestCode.CLEAN_UNUSED_TOPIC: self.clean_unused,
            RequestCode.GET_TOPIC_CONFIG: self.one,
            RequestCode.GET_ALL_TOPIC_CONFIG: self.all,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.system_topics,
            RequestCode.GET_TOPIC_STATS_INFO: self.stats,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self.consumers,
        }

    # -- making and changing -------------------------------------------------------------------------

    def update(self, session: Session, request: Command) -> Command | None:
        with self._context.making(TOPIC) as making:
            header = decode_header(CreateTopicHeader, request.ext)
            making.is_system = self._broker.topics.is_system(header.topic)
            if header.topic_filter_type not in _FILTER_TYPES:
                raise RequestRefused(
                    ResponseCode.INVALID_PARAMETER,
                    f"topicFilterType is {header.topic_filter_type!r}; it is one of {', '.join(_FILTER_TYPES)}",
                )
            config = TopicConfig(
                header.topic,
                header.read_queue_nums,
                header.write_queue_nums,
                header.perm,
                header.topic_filter_type,
                header.topic_sys_flag or 0,
                header.order,
            )
            self._put(self._judged(config, header.attributes or ""))
            self._broker.topics_changed()
        return self._kept(session, request)

    def update_list(self, session: Session, request: Command) -> Stepwise:
        """All of them or, if one is refused, none."""
        with self._context.making(TOPIC):
            configs = yield from entries_in_slices(request, "topicConfigList", "topic", self._from_entry)
            yield from by_slices(self._refuse_full, configs)
            try:
                yield from by_slices(self._put, configs)
            finally:
                self._broker.topics_changed()
        return self._kept(session, request)

    def _kept(self, session: Session, request: Command) -> Command | None:
        return self._context.when_kept(session, request, FILE, request.reply(ResponseCode.SUCCESS))

    def _from_entry(self, entry: Any) -> TopicConfig:
        name = entry.get("topicName") if isinstance(entry, dict) else None
        if not isinstance(name, str):
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER, "an entry of topicConfigList has no topicName"
            )
        edits = entry.get("attributes")
        text = ",".join(_edit(key, value) for key, value in edits.items()) if isinstance(edits, dict) else ""
        return self._judged(TopicConfig.from_json(name, {**entry, "attributes": {}}), text)

    def _judged(self, config: TopicConfig, edits: str) -> TopicConfig:
        """The configuration with its attributes, as it may be stored. Raises `RequestRefused`."""
        name = config.name
        self._refuse_name(name)
        before = self._broker.topics.get(name)
        try:
            attributes = edit_attributes(before.attributes if before else {}, edits, creating=before is None)
        except AttributeRefused as exc:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(exc)) from exc
        if attributes.get(_MESSAGE_TYPE) == "MIXED":
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, "MIXED message type is not supported.")
        return TopicConfig(
            name,
            config.read_queues,
            config.write_queues,
            config.perm,
            config.filter_type,
            config.sys_flag,
            config.order,
            attributes,
            before.extra if before else {},
        )

    def _refuse_name(self, name: str) -> None:
        if (reason := names.check_topic(name)) is not None:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, reason)
        if self._broker.topics.is_system(name):
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER, f"The topic[{name}] is conflict with system topic."
            )

    def _refuse_full(self, *configs: TopicConfig) -> None:
        for config in configs:
            if (reason := self._broker.topics.refusal(config)) is not None:
                raise RequestRefused(ResponseCode.SYSTEM_ERROR, reason)

    def _put(self, *configs: TopicConfig) -> None:
        broker = self._broker
        self._refuse_full(*configs)
        for config in configs:
            broker.topics.update(config, broker.now_ms())
        broker.topics.write_entries(config.name for config in configs)

    # -- deleting ------------------------------------------------------------------------------------

    def delete(self, session: Session, request: Command) -> None:
        name = decode_header(TopicHeader, request.ext).topic
        if not name.strip():
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, "The specified topic is blank.")
        if self._broker.topics.is_system(name):
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER, f"The topic[{name}] is conflict with system topic."
            )
        self._remove(session, request, [name])

    def clean_unused(self, session: Session, request: Command) -> None:
        """Remove the queues that no topic has any more."""
        broker = self._broker
        self._remove(session, request, [name for name in broker.store.queues if name not in broker.topics])

    def _remove(self, session: Session, request: Command, topics: list[str]) -> None:
        """Have the broker forget topics, and answer when their files are gone."""
        left, noted = len(topics), True

        def one(ok: bool) -> None:
            nonlocal left, noted
            left, noted = left - 1, noted and ok
            if left <= 0:
                self._context.send(session, request, _deleted(request, noted))

        def steps() -> Stepwise:
            for name in topics:
                if name != "" and names.check_topic(name) is None:
                    yield from self._forget(name, one)
                else:
                    one(True)  # what no topic can be called has no files either
            self._broker.topics_changed()
            if not topics:
                one(True)
            return None

        self._context.change(session, request, steps())

    def _forget(self, name: str, done: Callable[[bool], None]) -> Generator[None, None, None]:
        """Forget a topic at once, then what groups and clients have of it."""
        broker = self._broker
        groups, queues = broker.offsets.groups_of(name), list(broker.store.queues.get(name, {}).values())
        broker.topics.delete(name, broker.now_ms())
        broker.statistics.forget_topic(name)
        self._topic_deleted(name)
        broker.store.delete_topic(name, done)
        for queue in queues:
            broker.held_pulls.dismiss(queue)
            yield
        yield from broker.offsets.remove_pairs((name, group) for group in groups)

    # -- looking -------------------------------------------------------------------------------------

    def one(self, session: Session, request: Command) -> Command:
        return body_of(request, self._topic(request).to_json())

    def all(self, session: Session, request: Command) -> Stepwise:
        """The whole table in one answer: without a `totalTopicNum` nobody asks for further pages."""
        topics = self._broker.topics
        table = written_table(topics.shown().items(), TopicConfig.to_json)
        return body_in_steps(request, {**topics.wrapper_fields(), "topicConfigTable": table})

    def system_topics(self, session: Session, request: Command) -> Command:
        found = self._broker.topics.system_topics - names.HIDDEN_TOPICS
        return body_of(request, {"topicList": sorted(found)})

    def stats(self, session: Session, request: Command) -> Stepwise:
        """The boundaries of every queue, and when each got its last message."""
        broker, topic = self._broker, self._topic(request)

        def row(n: int) -> tuple[int, int, Spot]:
            queue = broker.store.find_queue(topic.name, n)
            low, high = (queue.min_offset, queue.readable) if queue else (0, 0)
            return low, high, spot_of(queue, high - 1)

        rows = yield from collect(map(row, range(topic.queues)))

        def entry(n: int, time_ms: int) -> bytes:
            low, high, _spot = rows[n]
            key = QueueKey(topic.name, broker.config.broker_name, n)
            bounds = {"lastUpdateTimestamp": max(time_ms, 0), "maxOffset": high, "minOffset": low}
            return fastjson.dumps(QueueKeys({key: bounds}))[1:-1]

        def answer(times: list[int]) -> Stepwise:
            tps = broker.statistics.topic_put_tps(topic.name, broker.now_ms())
            table = written_object(starmap(entry, enumerate(times)))
            return body_in_steps(request, {"offsetTable": table, "topicPutTps": tps})

        log = broker.store.log
        self._context.later(session, request, lambda: times_at(log, [spot for *_, spot in rows]), answer)
        return None

    def consumers(self, session: Session, request: Command) -> Stepwise:
        """Every group that reads the topic now, or once did and left its offsets."""
        topic = decode_header(TopicHeader, request.ext).topic
        broker = self._broker
        groups = dict.fromkeys(broker.clients.groups_subscribed_to(topic) + broker.offsets.groups_of(topic))
        return body_in_steps(request, {"groupList": written_list(map(fastjson.dumps, groups))})

    def _topic(self, request: Command) -> TopicConfig:
        name = decode_header(TopicHeader, request.ext).topic
        config = self._broker.topics.get(name)
        if config is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {name}")
        return config


def _edit(name: Any, value: Any) -> str:
    """One entry of an attribute map as text; tools write the sign into the name, and none means to set it."""
    text = str(name)
    if text.startswith("-"):
        return text
    return f"{text if text.startswith('+') else '+' + text}={value}"


def _deleted(request: Command, noted: bool) -> Command:
    if noted:
        return request.reply(ResponseCode.SUCCESS)
    return request.reply(
        ResponseCode.SYSTEM_ERROR,
        "the topic is gone, but the disk has no room to remember that: a restart may bring it back",
    )
