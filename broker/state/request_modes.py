"""Which queues of a topic a member of a group reads, when the broker is asked to say so (400), and how (401, 402).

A Java consumer that leaves the division to the broker (`clientRebalance=false`) asks one broker of the topic; the
answer covers the topic's queues on all of them. The division is that of the clients, so that members of both kinds
share a topic. `null` in place of a list means "nothing is known now": the client keeps what it has.

A pair of topic and group can be told to consume by POP instead of pulling. POP is not built here: setting it is
refused, and a pair that RocketMQ's own file has set to it is told to pull.

    messageRequestMode.json   {"messageRequestModeMap":{"T":{"g":{"consumerGroup":"g","mode":"PULL",...}}}}
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Any, Final

from broker.state.json_text import TextSlices, object_entry, object_text, value_entry
from ropewalk.client.core.consume.rebalance import share_of
from ropewalk.client.core.routes import Queue, TopicRoute
from ropewalk.codes import Permission
from ropewalk.format import names

__all__ = [
    "AVERAGELY",
    "BY_CIRCLE",
    "PULL",
    "ModeRefused",
    "ReadQueues",
    "RequestMode",
    "RequestModes",
    "assigned",
]

AVERAGELY: Final = "AVG"
BY_CIRCLE: Final = "AVG_BY_CIRCLE"
PULL: Final = "PULL"
POP: Final = "POP"
PAIRS_MAX: Final = 20_000
"""Of topic and group: both names come from whoever asks."""


class ModeRefused(ValueError):
    """The mode cannot be set; the text says why."""


@dataclass(frozen=True, slots=True)
class RequestMode:
    """The way a group reads a topic."""

    topic: str
    group: str
    mode: str = PULL
    pop_share: int = 0
    """POP only: with how many other members a queue is shared."""

    def to_json(self) -> dict[str, Any]:
        return {
            "consumerGroup": self.group,
            "mode": self.mode,
            "popShareQueueNum": self.pop_share,
            "topic": self.topic,
        }

    @classmethod
    def from_json(cls, value: Any) -> RequestMode:
        """Read the body of 401, or one entry of the file. Raises ModeRefused."""
        if not isinstance(value, Mapping):
            raise ModeRefused("the mode is not a JSON object")
        topic, group, mode = value.get("topic"), value.get("consumerGroup"), value.get("mode", PULL)
        pop_share = value.get("popShareQueueNum", 0)
        for name, text in (("topic", topic), ("consumerGroup", group)):
            if not isinstance(text, str) or not text or len(text) > names.RETRY_TOPIC_SIZE_MAX:
                raise ModeRefused(f"{name} is missing or no name")
        if mode not in (PULL, POP):
            raise ModeRefused(f"mode is {mode!r}; it may be {PULL} or {POP}")
        if isinstance(pop_share, bool) or not isinstance(pop_share, int):
            raise ModeRefused("popShareQueueNum is not a whole number")
        return cls(str(topic), str(group), mode, pop_share)


@dataclass(slots=True)
class RequestModes:
    """All pairs for which a mode was set. Plain and synchronous; the loop owns it."""

    generation: int = 0
    """Rises with every change."""
    _modes: dict[str, dict[str, RequestMode]] = field(default_factory=dict)
    _count: int = 0

    def set(self, mode: RequestMode) -> None:
        """Set a mode; raises ModeRefused for one that is not served."""
        if mode.mode == POP:
            raise ModeRefused(
                "POP is not built: consumers that were told to pop would get no message; they pull"
            )
        self._put(mode)

    def _put(self, mode: RequestMode) -> None:
        groups = self._modes.setdefault(mode.topic, {})
        if mode.group not in groups:
            if self._count >= PAIRS_MAX:
                raise ModeRefused(f"modes of {PAIRS_MAX} pairs of topic and group are the most that are kept")
            self._count += 1
        groups[mode.group] = mode
        self.generation += 1

    def by_topic(self) -> Iterator[tuple[str, list[tuple[str, RequestMode]]]]:
        """Yield the topics and the modes of their groups, as they are when they are asked for."""
        return ((topic, list(self._modes[topic].items())) for topic in list(self._modes))

    def dump_in_slices(self) -> TextSlices:
        """Write the text of the file, a slice at each step."""
        topics = (
            object_entry(topic, (value_entry(group, mode.to_json()) for group, mode in modes))
            for topic, modes in self.by_topic()
        )
        return object_text(object_entry("messageRequestModeMap", chain.from_iterable(topics)))

    def load(self, value: Mapping[str, Any]) -> list[str]:
        """Load a file; return sentences about the entries that are not understood or not served."""
        findings = []
        table = value.get("messageRequestModeMap")
        for groups in table.values() if isinstance(table, dict) else ():
            for entry in groups.values() if isinstance(groups, dict) else ():
                try:
                    mode = RequestMode.from_json(entry)
                    self._put(mode)
                except ModeRefused as exc:
                    findings.append(f"an entry is left out: {exc}")
                    continue
                if mode.mode == POP:
                    findings.append(
                        f"group {mode.group} is to pop topic {mode.topic}; POP is not built, so it pulls"
                    )
        self.generation = 0
        return findings


def assigned(strategy: str, queues: int, members: int, index: int) -> range | None:
    """Return the positions, among so many sorted queues, of the member at `index` of so many sorted members.

    None for an unknown strategy.
    """
    if strategy == AVERAGELY:
        return share_of(queues, members, index)
    if strategy == BY_CIRCLE:  # every nth, as cards are dealt
        return range(index, queues, members)
    return None


class ReadQueues:
    """The queues of a route that a consumer may read, sorted; none of them is made before it is asked for."""

    def __init__(self, route: TopicRoute) -> None:
        self._brokers = sorted(
            (data.broker_name, data.read_queue_count)
            for data in route.queues
            if data.permission & Permission.READ and data.broker_name in route.brokers
        )
        self._ends = list(accumulate(count for _name, count in self._brokers))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def at(self, position: int) -> Queue:
        """Return the queue at a position."""
        broker = bisect_right(self._ends, position)
        name, count = self._brokers[broker]
        return Queue(name, position - self._ends[broker] + count)
