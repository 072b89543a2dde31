"""Consumer offsets: one number per (topic, group, queue), the next offset to consume.

Commits are stored as they come, also when they go backwards: a consumer that was told to read again says so
in this way, and a table that knew better would undo it. The broker itself never moves a committed offset
back. What was never committed is `None`, and never 0: a 0 makes a client read the whole topic again.

`changed` counts changes, so that the task that saves the file every few seconds can tell whether it has to.
`dump` and `load` speak RocketMQ's `consumerOffset.json`:

    {"dataVersion":{...},"groupTopicMap":{"g":["T"]},"offsetTable":{"T@g":{0:37960,1:37961}}}
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Final, NamedTuple

from broker.state.data_version import DataVersion, int_of
from broker.state.json_text import (
    ENTRIES_PER_STEP,
    TextSlices,
    entry_text,
    object_entry,
    object_text,
    quoted,
    table_text,
)
from broker.state.shares import Shares, Stranger
from ha.group.metadata import OffsetJournal, wins
from ropewalk.format import fastjson
from ropewalk.format.properties import P
from ropewalk.format.sliced_json import finish

__all__ = ["QUEUE_ID_MAX", "OffsetTable", "real_queue_id"]

QUEUE_ID_MAX = 65_535
"""Larger than any queue a topic may have here; bounds what one client can make us remember."""
PAIRS_MAX = 200_000
"""Of (topic, group). Existing topics times existing groups can be far more than any honest use of them."""
QUEUES_PER_PAIR: Final = 10
"""Offsets that are kept for each pair that may be kept, on average."""
_QUEUES_PER_STEP = 1_000
"""Queues whose offsets are forgotten before others are served."""
SEPARATOR = "@"  # in no topic or group name

_NONE = -(1 << 63)
_INSIDE = "\n\t\t\t"
_QUEUES_OF_A_TEXT = 64
"""Queues of a pair that are written together; some hundred such texts are a step."""


def real_queue_id(properties: Mapping[str, str]) -> int | None:
    """Return the queue id in REAL_QID, for a message that is held back; None for a text that is none."""
    text = properties.get(P.REAL_QID, "")
    return int(text) if text.isascii() and text.isdigit() and int(text) <= QUEUE_ID_MAX else None


class Reset(NamedTuple):
    """An administrator's reset of one queue, until a pull has been told of it."""

    offset: int
    is_read: bool
    """Whether the group was reading at the time: then also a pull that asks for `offset` comes from a consumer that
    holds messages of before."""


class OffsetTable:
    """All consumer offsets of one broker. Plain and synchronous; the loop owns it."""

    def __init__(self, now_ms: Callable[[], int] = lambda: 0, pairs_max: int = PAIRS_MAX) -> None:
        self._shares = Shares(pairs_max)
        self._queue_shares = Shares(QUEUES_PER_PAIR * pairs_max)
        """The shares of offsets, each of which counts for the maker of its pair."""
        self.queue_count = 0
        """Offsets that are kept."""
        self.journal = OffsetJournal()
        """When each offset was committed: between replicas the later commit wins."""
        self._now_ms = now_ms
        self.changed = 0
        """Rises with every change of a value; equal to what was last saved means nothing to save."""
        self.data_version = DataVersion()
        self.resets: dict[tuple[str, str], dict[int, Reset]] = {}
        """(topic, group) -> queue id -> where an administrator sent the group, until its next pull has been told."""
        self.pulled: dict[tuple[str, str], dict[int, int]] = {}
        """(topic, group) -> queue id -> where the group's last pull began: what lies before it has been fetched.

        In memory only, and only of pairs that have committed something: for people who look."""
        self.removed: list[tuple[str, str]] | None = None
        """(topic, group) pairs that were removed, for whoever notes them elsewhere; None: nobody does."""
        self._offsets: dict[tuple[str, str], dict[int, int]] = {}  # (topic, group) -> queue id -> next offset
        self._topics: dict[str, dict[str, None]] = {}
        """Group -> the topics of its pairs, oldest first: a look at one group costs nothing for the others."""
        self._groups: dict[str, dict[str, None]] = {}
        """Topic -> the groups of its pairs."""
        self._versioned = 0  # `changed` when data_version last moved
        self._foreign_offsets: dict[str, Any] = {}
        self._foreign_fields: dict[str, Any] = {}

    # -- the two calls every consumer makes ------------------------------------------------------------

    def commit(
        self, group: str, topic: str, queue_id: int, offset: int, by: Stranger | None = None
    ) -> int | None:
        """Store a consumer's offset, and return the one before.

        New pairs count for the address of the client `by` whom it is committed. An answer above `offset` means it
        went backwards, which is accepted and worth a line in the log.
        Whether group and topic exist is the caller's question (26, 17). Raises ValueError for a queue id
        that no topic can have, and for one more pair of topic and group than are kept. While a reset of the queue
        waits to be told, commits are what the consumer reached before it, and change nothing.
        """
        if self.resets and queue_id in self.resets.get((topic, group), ()):
            return self.query(group, topic, queue_id)
        if not 0 <= queue_id <= QUEUE_ID_MAX:
            raise ValueError(f"queue {queue_id} of topic {topic} cannot exist")
        pair = topic, group
        queues = self._offsets.get(pair)
        before = queues.get(queue_id) if queues is not None else None
        if queues is None or before is None:
            queues = self._make_room(pair, by)
        if before != offset:
            queues[queue_id] = offset
            self.changed += 1
            self.journal.record((topic, group, queue_id), self._now_ms())
        return before

    def _make_room(self, pair: tuple[str, str], by: Stranger | None) -> dict[int, int]:
        """Count one more offset of a pair, and return the offsets of the pair. Raises ValueError without room."""
        used, total = len(self._offsets), self._shares.total
        if pair not in self._offsets and self._shares.refuses(by, used):
            raise ValueError(
                f"offsets of {used} pairs of topic and group are kept, {total} are the most (offsetPairsMax), and "
                "one address may not have more of them than are free"
            )
        if self._queue_shares.refuses(by, self.queue_count):
            raise ValueError(
                f"offsets of {self.queue_count} queues are kept, {self._queue_shares.total} are the most "
                f"({QUEUES_PER_PAIR} times offsetPairsMax), and one address may not have more of them than are free"
            )
        self.queue_count += 1
        if pair in self._offsets:
            self._queue_shares.grow(pair, 1)
            return self._offsets[pair]
        self._shares.add(pair, by)
        self._queue_shares.add(pair, by)
        return self._add(pair, {})

    def _add(self, pair: tuple[str, str], queues: dict[int, int]) -> dict[int, int]:
        topic, group = pair
        self._offsets[pair] = queues
        self._topics.setdefault(group, {})[topic] = None
        self._groups.setdefault(topic, {})[group] = None
        return queues

    def _forget(self, pair: tuple[str, str], queue_ids: Sequence[int]) -> None:
        """Forget the offsets of some queues of a pair."""
        for queue_id in queue_ids:
            del self._offsets[pair][queue_id]
        self.queue_count -= len(queue_ids)
        self._queue_shares.grow(pair, -len(queue_ids))
        self.journal.forget((*pair, queue_id) for queue_id in queue_ids)

    def merge(self, group: str, topic: str, queue_id: int, offset: int, time_ms: int) -> bool:
        """Take over a commit that was made at another replica, if it is later than the one known here.

        False if it is not. Raises ValueError as `commit` does.
        """
        queues = self._offsets.get((topic, group), {})
        key = (topic, group, queue_id)
        known = (queues[queue_id], self.journal.time_of(key)) if queue_id in queues else None
        if not wins((offset, time_ms), known):
            return False
        self.commit(group, topic, queue_id, offset)
        self.journal.record(key, time_ms)
        return True

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        """The committed offset, or None if there is none: the caller then answers 22, not 0."""
        queues = self._offsets.get((topic, group))
        offset = -1 if queues is None else queues.get(queue_id, -1)
        return offset if offset >= 0 else None

    def note_pull(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """A member of the group pulls from `offset` on."""
        pair = topic, group
        if pair in self._offsets:
            queues = self.pulled.get(pair)
            if queues is None:
                queues = self.pulled[pair] = {}
            queues[queue_id] = offset

    def fetched(self, group: str, topic: str, queue_id: int) -> int:
        """Return how far the group's members have fetched a queue, never less than their commit."""
        pulled = self.pulled.get((topic, group), {}).get(queue_id, 0)
        return max(pulled, self.query(group, topic, queue_id) or 0)

    # -- an administrator's reset ----------------------------------------------------------------------

    def reset(self, group: str, topic: str, queue_id: int, offset: int, *, is_read: bool = False) -> None:
        """Send a group to `offset`: from now on for whoever asks, and by its next pull for who reads already."""
        self.resets.get((topic, group), {}).pop(queue_id, None)
        self.pulled.get((topic, group), {}).pop(queue_id, None)
        self.commit(group, topic, queue_id, offset)
        self.resets.setdefault((topic, group), {})[queue_id] = Reset(offset, is_read)

    def take_reset(self, group: str, topic: str, queue_id: int, asked: int) -> int | None:
        """Return the offset that a pull has to be sent to, if there is one; a reset is told once.

        None for a pull that `asked` for that very offset, unless it may come from a consumer that read before the reset
        and has messages at hand that are not to be handled.
        """
        waiting = self.resets.get((topic, group))
        if waiting is None:
            return None
        reset = waiting.pop(queue_id, None)
        if not waiting:
            del self.resets[topic, group]
        return None if reset is None or (reset.offset == asked and not reset.is_read) else reset.offset

    # -- enumeration and removal -----------------------------------------------------------------------

    def __len__(self) -> int:
        """The number of (topic, group) pairs."""
        return len(self._offsets)

    def pairs(self, limit: int) -> list[tuple[str, str, dict[int, int]]]:
        """(topic, group, offsets by queue id) of up to so many pairs. Not to be changed."""
        found = islice(self._offsets.items(), limit)
        return [(topic, group, queues) for (topic, group), queues in found]

    def keys(self) -> list[tuple[str, str]]:
        """Return all pairs of topic and group."""
        return list(self._offsets)

    def queues(self, group: str, topic: str) -> dict[int, int]:
        """A copy of one pair's offsets by queue id; empty if there are none."""
        return dict(self._offsets.get((topic, group), {}))

    def topics_of(self, group: str) -> list[str]:
        """Return the topics in which a group has offsets, in the order in which it came to them."""
        return list(self._topics.get(group, ()))

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have offsets in a topic, in the order in which they came."""
        return list(self._groups.get(topic, ()))

    def remove_topic(self, topic: str) -> int:
        """Forget the offsets of a deleted topic; returns how many groups had some."""
        return self._remove([(topic, group) for group in self.groups_of(topic)])

    def remove_group(self, group: str) -> int:
        """Forget the offsets of a deleted group; returns in how many topics it had some."""
        return self._remove([(topic, group) for topic in self.topics_of(group)])

    def remove_pairs(self, pairs: Iterable[tuple[str, str]]) -> Generator[None, None, None]:
        """Forget the offsets of pairs of topic and group, those of some queues at each step."""
        for pair in pairs:
            queues = self._offsets.get(pair, {})
            while len(queues) > _QUEUES_PER_STEP:
                self._forget(pair, list(islice(queues, _QUEUES_PER_STEP)))
                yield
                queues = self._offsets.get(pair, {})
            if pair in self._offsets:
                self._remove([pair])
            yield

    def remove_before(self, topic: str, queue_id: int, time_ms: int) -> None:
        """Forget the offsets of one queue that were committed until a time: of a topic created again since."""
        for group in self._groups.get(topic, ()):
            key, queues = (topic, group, queue_id), self._offsets[topic, group]
            if queue_id in queues and self.journal.time_of(key) <= time_ms:
                self._forget((topic, group), [queue_id])
                self.pulled.get((topic, group), {}).pop(queue_id, None)
                self.changed += 1

    def _remove(self, pairs: list[tuple[str, str]]) -> int:
        for pair in pairs:
            queues = self._offsets.pop(pair)
            self.queue_count -= len(queues)
            self._queue_shares.discard(pair, len(queues))
            self.journal.forget((*pair, queue_id) for queue_id in queues)
            _discard(self._topics, pair[1], pair[0])
            _discard(self._groups, *pair)
            self.resets.pop(pair, None)
            self.pulled.pop(pair, None)
            self._shares.discard(pair)
        if self.removed is not None:
            self.removed += pairs
        self.changed += len(pairs)
        return len(pairs)

    def replace(
        self,
        gone: Iterable[tuple[str, str]],
        offsets: Iterable[tuple[tuple[str, str], dict[int, int]]],
    ) -> None:
        """Forget (topic, group) pairs, then store offsets by pair, as the leader of a group has them."""
        self._remove([pair for pair in gone if pair in self._offsets])
        for (topic, group), queues in offsets:
            for queue_id, offset in queues.items():
                self.commit(group, topic, queue_id, offset)

    def adopt(self, offsets: Mapping[tuple[str, str], Mapping[int, int]]) -> None:
        """Become the table of a leader: take its offsets by (topic, group) pair, and forget what it has none of."""
        self._remove([pair for pair in self._offsets if pair not in offsets])
        for (topic, group), queues in self._offsets.items():
            for queue_id in [each for each in queues if each not in offsets[topic, group]]:
                self._forget((topic, group), [queue_id])
                self.changed += 1
        self.replace((), ((pair, dict(queues)) for pair, queues in offsets.items()))

    # -- what others see -------------------------------------------------------------------------------

    def to_wrapper(self, now_ms: int) -> dict[str, Any]:
        """The table as code 43 carries it to slaves, under a new version if anything changed since."""
        table = {name: fastjson.IntKeys(queues) for name, queues in self.shown().items()}
        return {**self.wrapper_fields(now_ms), "offsetTable": table}

    def wrapper_fields(self, now_ms: int) -> dict[str, Any]:
        """Return the fields beside the table in `to_wrapper`."""
        self._renew_version(now_ms)
        return {"dataVersion": self.data_version.to_json()}

    def shown(self) -> dict[str, dict[int, int]]:
        """Return the offsets of queues under the names that the table has on the wire."""
        return {f"{topic}{SEPARATOR}{group}": queues for (topic, group), queues in self._offsets.items()}

    def _renew_version(self, now_ms: int) -> None:
        if self._versioned != self.changed:
            self._versioned = self.changed
            self.data_version = self.data_version.next(now_ms)

    def dump(self, now_ms: int) -> bytes:
        """Return the text of `consumerOffset.json`. Remember `changed` from before this call as what is saved."""
        return finish(self.dump_in_slices(now_ms))

    def dump_in_slices(self, now_ms: int) -> TextSlices:
        """Write the text of `consumerOffset.json`, a slice at each step."""
        self._renew_version(now_ms)
        pairs = tuple(self._offsets)
        by_group: dict[str, list[str]] = {}
        for count, (topic, group) in enumerate(pairs, 1):
            by_group.setdefault(group, []).append(topic)
            if count % ENTRIES_PER_STEP == 0:
                yield
        fields = {**self._foreign_fields, "dataVersion": self.data_version.to_json()}
        foreign = (entry_text(key, entry) for key, entry in tuple(self._foreign_offsets.items()))
        entries = chain(chain.from_iterable(map(self._entry, pairs)), foreign)
        groups = chain.from_iterable(_group_entry(group, topics) for group, topics in by_group.items())
        return (yield from table_text(fields, {"groupTopicMap": groups, "offsetTable": entries}))

    def _entry(self, pair: tuple[str, str]) -> Iterator[str]:
        """Yield the texts of a pair's offsets that are joined by commas: one, unless its topic has very many queues."""
        queues = self._offsets.get(pair)
        if queues is None:
            return  # removed since the text was begun
        begin = f"\n\t\t{quoted(SEPARATOR.join(pair))}:"
        # Python writes a map of integers as the dialect wants it, but for the blanks: 2 us a pair and not 10.
        if len(queues) <= _QUEUES_OF_A_TEXT:
            yield begin + str(queues).replace(" ", "").replace("}", "\n\t\t}")
            return
        left = iter(tuple(queues.items()))
        run = list(islice(left, _QUEUES_OF_A_TEXT))
        begin += "{"
        while run:
            following = list(islice(left, _QUEUES_OF_A_TEXT))
            yield begin + str(dict(run)).replace(" ", "")[1:-1] + ("" if following else "\n\t\t}")
            run, begin = following, ""

    def load(self, value: Mapping[str, Any]) -> list[str]:
        """Load a `consumerOffset.json`; return sentences about the entries that are not understood."""
        findings: list[str] = []
        table = value.get("offsetTable")
        for key, entry in table.items() if isinstance(table, dict) else ():
            topic, _, group = key.partition(SEPARATOR)
            queues = _queues_of(entry)
            if topic and group and SEPARATOR not in group and queues is not None:
                self.queue_count += len(queues) - len(self._offsets.get((topic, group), ()))
                self._add((topic, group), queues)
            else:
                self._foreign_offsets[key] = entry
                findings.append(f"offsets of {key!r} in consumerOffset.json are kept but not understood")
        self.data_version = DataVersion.from_json(value.get("dataVersion"))
        # When each was committed is not in RocketMQ's file: none of them later than it was written.
        self.load_times({})
        self._foreign_fields = {
            key: item
            for key, item in value.items()
            if key not in ("dataVersion", "groupTopicMap", "offsetTable")
        }
        return findings

    def adopt_wrapper(self, value: Mapping[str, Any]) -> Generator[None, None, None]:
        """Take over the offsets of a RocketMQ master's table (43), those of some queues at each step."""
        table, count = value.get("offsetTable"), 0
        for key, entry in table.items() if isinstance(table, dict) else ():
            topic, _, group = key.partition(SEPARATOR)
            queues = _queues_of(entry)
            if not (topic and group) or SEPARATOR in group or queues is None:
                continue
            for queue_id, offset in queues.items():
                if offset >= 0:
                    self.commit(group, topic, queue_id, offset)
                count += 1
                if count % _QUEUES_PER_STEP == 0:
                    yield

    def load_times(self, value: Mapping[str, Any]) -> None:
        """Load commit times as `dump_times` wrote them; others date from when the table was last written."""
        loaded = self.data_version.timestamp
        for (topic, group), queues in self._offsets.items():
            times = value.get(f"{topic}{SEPARATOR}{group}")
            known = times if isinstance(times, dict) else {}
            self.journal.load(
                ((topic, group, queue_id), int_of(known.get(str(queue_id)), loaded)) for queue_id in queues
            )

    def dump_times(self) -> bytes:
        """Return when each offset was committed, for the next process of this replica."""
        return finish(self.dump_times_in_slices())

    def dump_times_in_slices(self) -> TextSlices:
        """Write when each offset was committed, a slice at each step."""
        return object_text(chain.from_iterable(map(self._times_entry, tuple(self._offsets))))

    def _times_entry(self, pair: tuple[str, str]) -> Iterator[str]:
        queues = tuple(self._offsets.get(pair, ()))
        times = (f'"{queue_id}":{self.journal.time_of((*pair, queue_id))}' for queue_id in queues)
        return object_entry(SEPARATOR.join(pair), times)


def _group_entry(group: str, topics: list[str]) -> Iterator[str]:
    """Yield the texts of a group's topics that are joined by commas: one for each."""
    begin, last = f"\n\t\t{quoted(group)}:[", len(topics) - 1
    for number, topic in enumerate(topics):
        yield begin + _INSIDE + quoted(topic) + ("\n\t\t]" if number == last else "")
        begin = ""


def _discard(index: dict[str, dict[str, None]], key: str, value: str) -> None:
    del index[key][value]
    if not index[key]:
        del index[key]


def _queues_of(entry: Any) -> dict[int, int] | None:
    """Queue id -> offset, or None if any part of the entry is not a number: then none of it is trusted."""
    if not isinstance(entry, dict):
        return None
    queues = {int_of(key, _NONE): int_of(offset, _NONE) for key, offset in entry.items()}
    if any(not 0 <= queue_id <= QUEUE_ID_MAX for queue_id in queues) or _NONE in queues.values():
        return None
    return queues
