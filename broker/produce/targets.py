"""Judge the topics that messages are sent to: their names, that they exist, how many queues they have.

Each is judged once, and remembered until the topic table changes: the checks come in the order in which the original
makes them, because the first that fails is the one a client sees.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from broker.remoting.refused import RequestRefused
from broker.state.shares import Stranger
from broker.state.topics import TopicConfig, TopicTable
from ropewalk.codes import MessageSysFlag, ResponseCode
from ropewalk.format import names
from ropewalk.format.headers import SendMessageHeader, SendMessageHeaderV2
from store.message_store import MessageStore
from store.queues.consume_queue import ConsumeQueue

__all__ = ["Target", "Targets"]

_ANY_QUEUE_MAX = 99_999_999


@dataclass(slots=True)
class Target:
    """A topic that has passed its checks."""

    config: TopicConfig
    queues_max: int
    sys_flag: int
    """Bits that the topic adds to each message."""
    queues: dict[int, ConsumeQueue]
    queues_by_text: dict[bytes, ConsumeQueue]
    """Queues that a plain message went to, by their id as text."""


class Targets:
    """The targets of sends by topic."""

    def __init__(
        self,
        store: MessageStore,
        topics: TopicTable,
        *,
        chance: random.Random,
        retry_group: Callable[[str, Stranger | None], object | None],
        created: Callable[[], None],
        changed: Callable[[], None],
    ) -> None:
        """`retry_group` returns the group of a retry topic, made if it may be, or None.

        `created()` is told of automatic topics, `changed()` when targets are judged anew.
        """
        self._store = store
        self.topics = topics
        self._chance = chance
        self._retry_group = retry_group
        self._created = created
        self._changed = changed
        self.known: dict[str, Target] = {}
        self.broker_writable = True
        self.generation = -1
        """The generation of `topics` by which all of `known` were judged."""

    def judge(self, header: SendMessageHeader | SendMessageHeaderV2, by: Stranger | None) -> Target:
        """Judge the topic of a send `by` a client, in the original's order; it is created where that is allowed.

        Raises `RequestRefused`.
        """
        if self.generation != self.topics.generation:
            self._forget()
            self.generation = self.topics.generation
        elif (known := self.known.get(header.topic)) is not None:
            return known
        name = header.topic
        config = self.topics.get(name)
        self._judge_name(name, config)
        if config is None:
            config = self._create(header, by)
        return self._known(name, config)

    def find(self, name: str) -> Target | None:
        """Return the target of a topic that is there; None for others, and for one that only `judge` can judge."""
        config = self.topics.get(name)
        if config is None:
            return None
        try:
            self._judge_name(name, config)
        except RequestRefused:
            return None
        self._known(name, config)
        return self.known.get(name)

    def _judge_name(self, name: str, config: TopicConfig | None) -> None:
        if config is not None and config.order and not self.broker_writable:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION, f"the broker is not writable and {name} is an order topic"
            )
        reason = names.check_topic(name)
        if reason is not None:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, reason)
        if name in names.SEND_FORBIDDEN_TOPICS:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION, f"sending to the system topic {name} is not allowed"
            )

    def _known(self, name: str, config: TopicConfig) -> Target:
        """Build the target of a topic that has passed its checks, and cache it."""
        sys_flag = MessageSysFlag.MULTI_TAGS if config.filter_type == "MULTI_TAG" else 0
        queues = self._store.queues.setdefault(name, {})
        target = Target(config, max(config.read_queues, config.write_queues), sys_flag, queues, {})
        self.generation = self.topics.generation
        if not name.startswith(
            names.RETRY_PREFIX
        ):  # each message there is judged by itself, so never in a run
            self.known[name] = target
        return target

    def _create(self, header: SendMessageHeader | SendMessageHeaderV2, by: Stranger | None) -> TopicConfig:
        name, now = header.topic, self._store.now
        if name.startswith(names.RETRY_PREFIX):
            group = name[len(names.RETRY_PREFIX) :]
            if group and self._retry_group(name, by) is None:
                raise RequestRefused(
                    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {group}"
                )
            config = self.topics.create_retry(group, queue_nums=1, now_ms=now) if group else None
        else:
            config = self.topics.auto_create(
                name,
                default_topic=header.default_topic,
                queue_nums=header.default_topic_queue_nums,
                sys_flag=1 if header.unit_mode else 0,
                now_ms=now,
                by=by,
            )
        if config is None:
            reason = self.topics.creation_refusal(name, header.default_topic, by)
            raise RequestRefused(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{name}] not exist, apply first please! ({reason})",
            )
        self._forget()
        self._created()
        return config

    def _forget(self) -> None:
        self.known.clear()
        self._changed()

    def any_queue(self, queue_id: int, target: Target) -> int:
        """Return a queue for a send that names none (a negative one). Raises `RequestRefused` for one that is not."""
        if queue_id >= 0 or target.config.write_queues <= 0:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"request queueId[{queue_id}] is illegal, topic {target.config.name} has {target.queues_max} queues",
            )
        return self._chance.randrange(_ANY_QUEUE_MAX) % target.config.write_queues
