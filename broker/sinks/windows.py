"""`SinkTable`: which rows of a sink's open batch are stored, and who may still append to it. Pure.

    sink  epoch   committed           open batch: partition -> attempt, keys of rows     unclaimed: content -> rows
    ---------------------------------------------------------------------------------------------------------------
    S     4       query q1, batch 7   0 -> attempt 21, {k1, k2}   1 -> attempt 22, {k3}  {c4: 2, c5: 1}

A batch is a multiset of rows. Spark may cut it into other tasks each time that it is run: the partitions, their number
and the place of a row follow from cores, options and adaptive execution. So a row is known by its content, and a
`Window` counts how many rows of each content are stored. An attempt *claims* a stored row when it has one of that
content: in one run each stored row is claimed once, so that equal rows of different tasks are all stored. What no
attempt has claimed yet came from attempts that are over, of earlier runs (epochs) or of the same task.

    append of (partition, attempt, key)   the attempt has claimed this key     known: a request that was sent twice
                                          a stored row of its content is left  known: it is claimed now
                                          otherwise                            appended, and claimed
    a higher attempt of the partition     its rows are unclaimed again
    a higher epoch                        all rows are unclaimed again

A key is the content and an ordinal, the number of equal rows that the attempt had before. The writer (an attempt) and
the number (a key) are what a request repeats, as a producer's id and its sequence number would be.

A sink is *closed* after a commit, and *open* from the next init or append on. `since` is the end of the log at that
moment, so every row of the open batch lies behind it: that is where a start looks for them, and for claims. It replays
both in the order of the log (`restore`).

A sink belongs to the query whose batch it committed, or has rows of; an append or commit of another query is refused
before it changes anything. A query whose checkpoint was deleted is another one: it would write all its rows again. It
also belongs to one topic, as long as it is not made anew: the batches that are committed say nothing of another one.

The order of attempts of one task is (epoch, attempt). An append of a lower pair than the highest seen is fenced, so
is one of a batch that was committed. An init names no query, so the epoch that it gives out begins with the first
append or commit that is admitted under it: another query's init fences nobody.

A sink that is forgotten keeps its epochs, and a new one begins: what is still on its way to it is fenced.

A window spans the queues of a topic at this broker. So a topic may get more queues in the middle of a batch, which
moves rows to other queues, and repeats none.

A commit names how many rows the batch has. Fewer here: acknowledged rows were lost with a master, and the batch has to
be repeated. More: an earlier attempt wrote other rows under the same batch, so the plan was not deterministic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ropewalk.client.core.produce.row_identity import (
    CONTENT_SIZE,
    RowIdentity,
    Writer,
    earlier_rows_reason,
    foreign_query_reason,
)

__all__ = [
    "Busy",
    "Fenced",
    "Matched",
    "Sink",
    "SinkTable",
    "Task",
    "TooManyRows",
    "WrongBatch",
    "WrongCount",
    "WrongOwner",
]

ROWS_MAX: Final = 5_000_000
"""Rows of the open batch of one sink, by default: a key takes some 90 bytes of memory."""


KEYS_PER_STEP: Final = 40_000
"""Keys that are counted in one turn of the loop: some 20 ms. A sink that is told to wait asks again."""


class Fenced(Exception):
    """A request of an attempt, an epoch or a batch that is over."""


class WrongOwner(Exception):
    """A request of another query, or of another topic, than the one that the sink belongs to."""


class WrongBatch(Exception):
    """A request for a sink whose open batch was begun by version 0.1."""


class Busy(Exception):
    """A request that comes while the broker counts rows of the sink."""


class WrongCount(Exception):
    """A commit whose number of rows is not the number of rows here."""


class TooManyRows(Exception):
    """A batch of more rows than a window holds."""


class Task(NamedTuple):
    """A task of a batch, as its requests name it."""

    sink_id: str
    epoch: int
    attempt: int
    query: str
    batch: int
    partition: int
    topic: str

    @property
    def writer(self) -> Writer:
        return Writer(self.epoch, self.partition, self.attempt)


class Matched(NamedTuple):
    """The rows of a request beside those that are stored."""

    new: list[int] | None
    """The indexes of the rows that have to be appended; None for all of them."""
    claimed: list[int]
    """The indexes of the rows that were stored by an attempt that is over, and now are this one's."""


@dataclass(slots=True)
class Claims:
    """The rows of one attempt of a task."""

    attempt: int
    keys: set[bytes] = field(default_factory=set)


@dataclass(slots=True)
class Window:
    """The rows of one batch that are stored. Invariant: each is claimed once, or unclaimed."""

    claims: dict[int, Claims] = field(default_factory=dict)
    """By partition; attempts of the newest epoch."""
    unclaimed: Counter[bytes] = field(default_factory=Counter)
    """How many stored rows of a content no attempt has claimed."""
    given_up: list[set[bytes]] = field(default_factory=list)
    """Keys of attempts that are over, which are still to be counted as unclaimed."""
    rows: int = 0
    """How many rows are stored."""
    is_earlier: bool = False
    """Whether rows of version 0.1 are among them."""

    def claims_of(self, partition: int, attempt: int) -> Claims:
        """Return the claims of an attempt; those of the attempt before it are given up. HOT."""
        claims = self.claims.get(partition)
        if claims is None or claims.attempt < attempt:
            if claims is not None:
                self._release(claims)
            claims = self.claims[partition] = Claims(attempt)
        return claims

    def release(self) -> None:
        """Give up the claims of all attempts."""
        for claims in self.claims.values():
            self._release(claims)
        self.claims.clear()

    def _release(self, claims: Claims) -> None:
        if claims.keys:
            self.given_up.append(claims.keys)

    def count_given_up(self, limit: int) -> bool:
        """Count so many keys that were given up as unclaimed rows; return whether all of them are."""
        while self.given_up and limit > 0:
            keys = self.given_up[-1]
            if len(keys) <= limit:
                some: Iterable[bytes] = self.given_up.pop()
            else:
                some = [keys.pop() for _ in range(limit)]
            limit -= len(keys) if some is keys else limit
            self.unclaimed.update([key[:CONTENT_SIZE] for key in some])
        return not self.given_up

    def match(self, claims: Claims, keys: Sequence[bytes]) -> Matched:
        """Return which rows of an attempt are new, and which of them it claims. HOT."""
        assert not self.given_up, "their contents are not counted yet"
        if not self.unclaimed and claims.keys.isdisjoint(keys):
            return Matched(None, [])
        new: list[int] = []
        claimed: list[int] = []
        taken: dict[bytes, int] = {}
        for index, key in enumerate(keys):
            if key in claims.keys:
                continue
            content = key[:CONTENT_SIZE]
            before = taken.get(content, 0)
            if self.unclaimed[content] > before:
                taken[content] = before + 1
                claimed.append(index)
            else:
                new.append(index)
        return Matched(new, claimed)

    def store(self, claims: Claims, keys: Sequence[bytes]) -> None:
        """Count rows that were appended. HOT."""
        claims.keys.update(keys)
        self.rows += len(keys)

    def claim(self, claims: Claims, key: bytes) -> None:
        """Count a row that is stored already as an attempt's."""
        content = key[:CONTENT_SIZE]
        left = self.unclaimed[content]
        if left and key not in claims.keys:
            claims.keys.add(key)
            if left > 1:
                self.unclaimed[content] = left - 1
            else:
                del self.unclaimed[content]


@dataclass(slots=True)
class Sink:
    """The state of one sink."""

    sink_id: str
    epoch: int = 0
    """The newest epoch that has begun. Invariant: epoch <= announced."""
    brokers: str = ""
    """The brokers that rows are spread over, in their order."""
    query: str = ""
    batch: int = -1
    """The batch that was committed last, and its query."""
    digest: str = ""
    """The number and the sum of the rows of that batch, as its driver counted them."""
    since: int = -1
    """The end of the log when the open batch began; -1 while the sink is closed."""
    topics: tuple[str, ...] = ()
    """The topic that the sink belongs to. Version 0.1 let an open batch have several, and kept none of a closed one."""
    is_topic_gone: bool = False
    """Whether that topic was deleted, so that one of its name is another one."""
    touched_ms: int = 0
    announced: int = 0
    """The newest epoch that was given out; it begins with the first append or commit under it."""
    is_forgotten: bool = False
    """Whether nothing but the epochs is known, since an administrator had the sink forgotten."""
    windows: dict[tuple[str, int], Window] = field(default_factory=dict)
    """By query and batch."""

    @property
    def is_open(self) -> bool:
        return self.since >= 0

    @property
    def rows(self) -> int:
        """Return how many rows the open batch has."""
        return sum(window.rows for window in self.windows.values())

    @property
    def owner(self) -> str:
        """Return the query that the sink belongs to; empty while it has neither a committed batch nor rows."""
        return self.query or next((query for query, _ in self.windows), "")

    def close(self) -> None:
        self.since = -1
        self.windows.clear()

    def open(self, topic: str, log_end: int) -> bool:
        """Open the sink for a topic, and return whether anything changed."""
        if self.is_open and topic in self.topics:
            return False
        self.since = self.since if self.is_open else log_end
        if topic not in self.topics:
            self.topics, self.is_topic_gone = (topic,), False
        return True

    def window(self, query: str, batch: int) -> Window:
        """Return the window of a batch, a new one for its first row."""
        window = self.windows.get((query, batch))
        if window is None:
            window = self.windows[query, batch] = Window()
        return window


class SinkTable:
    """The sinks of one broker."""

    def __init__(self, rows_max: int = ROWS_MAX) -> None:
        self.sinks: dict[str, Sink] = {}
        self.rows_max = rows_max
        """Rows that the open batch of one sink may have."""

    @property
    def count(self) -> int:
        """Return how many sinks there are, without those that were forgotten."""
        return sum(not sink.is_forgotten for sink in self.sinks.values())

    @property
    def rows(self) -> int:
        """Return how many rows all open batches have."""
        return sum(sink.rows for sink in self.sinks.values())

    def init(self, sink_id: str, topic: str, brokers: str, log_end: int, now_ms: int) -> Sink:
        """Give out the next epoch of a sink. Brokers are fixed once, until a commit changes them.

        Raises WrongOwner and WrongBatch.
        """
        if (known := self.sinks.get(sink_id)) is not None:
            _check_topic(known, topic)
            for (_, batch), window in known.windows.items():
                if window.is_earlier:
                    raise WrongBatch(earlier_rows_reason(sink_id, batch))
        sink = self._sink(sink_id)
        sink.announced += 1
        sink.is_forgotten = False
        sink.brokers = sink.brokers or brokers
        sink.touched_ms = now_ms
        sink.open(topic, log_end)
        return sink

    def admit(self, task: Task, log_end: int, now_ms: int) -> bool:
        """Admit an append of a task, and return whether the sink's state changed. Raises Fenced and WrongOwner.

        An epoch above the known one began under a master whose last records did not come here.
        """
        sink = self.sinks.get(task.sink_id)
        if sink is not None:
            _check_query(sink, task.query)
            _check_topic(sink, task.topic)
            _check_epoch(sink, task.epoch)
            if task.query == sink.query and task.batch <= sink.batch:
                raise Fenced(
                    f"batch {task.batch} of sink {task.sink_id} was committed: batch {sink.batch} is"
                )
        sink = self._sink(task.sink_id)
        changed = self._adopt(sink, task.epoch)
        window = sink.windows.get((task.query, task.batch))
        if window is not None:
            claims = window.claims.get(task.partition)
            if claims is not None and task.attempt < claims.attempt:
                raise Fenced(
                    f"attempt {task.attempt} of partition {task.partition} of sink {task.sink_id} is over: attempt "
                    f"{claims.attempt} has begun"
                )
            window.claims_of(task.partition, task.attempt)
        sink.touched_ms = now_ms
        return sink.open(task.topic, log_end) or changed

    def match(self, task: Task, keys: Sequence[bytes]) -> Matched:
        """Return which rows of an admitted request are new, and which are claimed. HOT.

        Raises TooManyRows, and Busy until the rows that an earlier run had are counted.
        """
        sink = self.sinks[task.sink_id]
        window = sink.windows.get((task.query, task.batch))
        if window is None:
            matched = Matched(None, [])
        else:
            claims = window.claims_of(task.partition, task.attempt)
            if window.given_up and not window.count_given_up(KEYS_PER_STEP):
                raise Busy(f"the rows that earlier attempts of sink {task.sink_id} stored are being counted")
            matched = window.match(claims, keys)
        count = len(keys) if matched.new is None else len(matched.new)
        if count and sink.rows + count > self.rows_max:
            raise TooManyRows(
                f"the open batch of sink {task.sink_id} has {sink.rows} rows, {self.rows_max} is the limit "
                f"(sinkWindowRowsMax): make batches smaller (maxOffsetsPerTrigger)"
            )
        return matched

    def stored(self, task: Task, keys: Sequence[bytes]) -> None:
        """Count rows as stored. HOT."""
        window = self.sinks[task.sink_id].window(task.query, task.batch)
        window.store(window.claims_of(task.partition, task.attempt), keys)

    def claim(self, task: Task, keys: Sequence[bytes]) -> None:
        """Count rows that are stored already as those of this attempt."""
        window = self.sinks[task.sink_id].window(task.query, task.batch)
        claims = window.claims_of(task.partition, task.attempt)
        for key in keys:
            window.claim(claims, key)

    def commit(
        self,
        sink_id: str,
        epoch: int,
        query: str,
        batch: int,
        rows: int,
        topic: str,
        digest: str,
        brokers: str,
        now_ms: int,
    ) -> Sink | None:
        """End a batch, and return the sink; None if it had been ended before.

        Raises Fenced, WrongOwner and WrongCount.
        """
        sink = self.sinks.get(sink_id)
        if sink is not None:
            _check_query(sink, query)
            _check_topic(sink, topic)
            _check_epoch(sink, epoch)
            if query == sink.query and batch <= sink.batch:
                return self._commit_again(sink, brokers)
        window = sink.windows.get((query, batch)) if sink is not None else None
        found = window.rows if window is not None else 0
        if found != rows:
            raise WrongCount(
                f"batch {batch} of sink {sink_id} has {rows} rows here, and {found} are stored: "
                + (
                    "an earlier attempt wrote other rows, so the plan is not deterministic"
                    if found > rows
                    else "acknowledged rows were lost with a master, and the batch has to be repeated"
                )
            )
        sink = self._sink(sink_id)
        self._adopt(sink, epoch)
        sink.brokers = brokers or sink.brokers
        sink.touched_ms = now_ms
        sink.query, sink.batch, sink.digest = query, batch, digest
        sink.topics = (topic,)
        sink.close()
        return sink

    @staticmethod
    def _commit_again(sink: Sink, brokers: str) -> Sink | None:
        """Close a sink whose batch was committed before: a replay of it, which had nothing to append."""
        changed = bool(brokers) and brokers != sink.brokers
        sink.brokers = brokers or sink.brokers
        if sink.is_open and not sink.windows:
            sink.close()
            changed = True
        return sink if changed else None

    def forget(self, sink_id: str, now_ms: int) -> Sink | None:
        """Forget all of a sink but its epochs, and return it; None if there is none."""
        known = self.sinks.get(sink_id)
        if known is None or known.is_forgotten:
            return None
        epoch = known.announced + 1
        sink = self.sinks[sink_id] = Sink(
            sink_id, epoch, touched_ms=now_ms, announced=epoch, is_forgotten=True
        )
        return sink

    def topic_deleted(self, topic: str) -> list[Sink]:
        """Note that a topic was deleted; return the sinks that belong to it."""
        sinks = [sink for sink in self.sinks.values() if topic in sink.topics]
        for sink in sinks:
            sink.windows.clear()  # the rows of the open batch are gone
            sink.is_topic_gone = sink.query != ""
        return sinks

    def expire(self, before_ms: int, log_start: int = 0) -> list[str]:
        """Drop the sinks that nothing was heard of since then; return their names.

        Rows of an open batch keep their sink for as long as the log keeps the first of them: the batch may be repeated.
        """
        gone = sorted(
            name
            for name, sink in self.sinks.items()
            if sink.touched_ms < before_ms and not (sink.windows and sink.since >= log_start)
        )
        for name in gone:
            del self.sinks[name]
        return gone

    def restore(self, row: RowIdentity, *, is_claim: bool = False) -> None:
        """Replay a row, or a claim, that a start found in the log, if it is of an open batch.

        They are replayed in the order of the log, after the states of sinks.
        """
        sink = self.sinks.get(row.sink_id)
        if sink is None or not sink.is_open or (row.query == sink.query and row.batch <= sink.batch):
            return
        window = sink.window(row.query, row.batch)
        writer = row.writer
        if writer is None:
            window.rows += 1
            window.is_earlier = True
            return
        if writer.run > sink.epoch:
            self._adopt(sink, writer.run)
        known = window.claims.get(writer.partition)
        if writer.run < sink.epoch or (known is not None and writer.attempt < known.attempt):
            if not is_claim:  # the attempt is over
                window.rows += 1
                window.unclaimed[row.content] += 1
            return
        claims = window.claims_of(writer.partition, writer.attempt)
        window.count_given_up(window.rows)
        if is_claim:
            window.claim(claims, row.key)
        else:
            window.store(claims, [row.key])

    def _sink(self, sink_id: str) -> Sink:
        sink = self.sinks.get(sink_id)
        if sink is None:
            sink = self.sinks[sink_id] = Sink(sink_id)
        return sink

    @staticmethod
    def _adopt(sink: Sink, epoch: int) -> bool:
        if epoch <= sink.epoch:
            return False
        sink.epoch = epoch
        sink.announced = max(sink.announced, epoch)
        sink.is_forgotten = False
        for window in sink.windows.values():
            window.release()
        return True


def _check_query(sink: Sink, query: str) -> None:
    if (reason := foreign_query_reason(sink.sink_id, sink.owner, query)) is not None:
        raise WrongOwner(reason)


def _check_topic(sink: Sink, topic: str) -> None:
    """Reject another topic than the one that the sink belongs to: what it knows as written is not there."""
    if not sink.owner or not sink.topics:
        return
    again = f"have the sink forgotten with `ropewalk admin sink forget {sink.sink_id}`"
    if topic not in sink.topics:
        raise WrongOwner(
            f"sink {sink.sink_id} writes to topic {', '.join(sink.topics)}, and this is topic {topic}: its batches "
            f"would count as written, and nothing of them would be there. Nothing was stored. Give the write to "
            f"{topic} a sinkId of its own (in foreachBatch, each write), or {again}"
        )
    if sink.is_topic_gone:
        raise WrongOwner(
            f"sink {sink.sink_id} wrote to a topic {topic} that was deleted, and this is another topic {topic}: "
            f"batches up to {sink.batch} count as written, and nothing of them is there. Nothing was stored. Give "
            f"option sinkId a new name and begin with a new checkpoint, or {again}: then the query goes on with its "
            f"next batch"
        )


def _check_epoch(sink: Sink, epoch: int) -> None:
    if sink.is_forgotten and epoch <= sink.epoch:
        raise Fenced(
            f"epoch {epoch} of sink {sink.sink_id} is over: the sink was forgotten (`ropewalk admin sink forget`). "
            f"Start the query again; what it repeats is written again"
        )
    if epoch < sink.epoch:
        raise Fenced(
            f"epoch {epoch} of sink {sink.sink_id} is over: epoch {sink.epoch} has begun, in another run of this "
            f"query, which is newer"
        )
