"""`SinkTable`: which rows of a sink's open batch are stored, and who may still append to it. Pure.

    sink  epoch   committed           open batch: (topic, query, batch, partition) -> keys of rows
    -----------------------------------------------------------------------------------------------
    S     4       query q1, batch 7   (T, q1, 8, 0) -> {k1, k2}    (T, q1, 8, 1) -> {k3}

A sink is *closed* after a commit, and *open* from the next init or append on. `since` is the end of the log at that
moment, so every row of the open batch lies behind it: that is where a start looks for them.

A sink belongs to the query whose batch it committed, or has rows of; an append or commit of another query is refused
before it changes anything. A query whose checkpoint was deleted is another one: it would write all its rows again.

The order of attempts of one task is (epoch, attempt). An append of a lower pair than the highest seen is fenced, so
is one of a batch that was committed. An init names no query, so the epoch that it gives out begins with the first
append or commit that is admitted under it: another query's init fences nobody. Within the open batch fencing is not
what keeps rows single: that is the window, which a late append of the same rows meets too.

A sink that is forgotten keeps its epochs, and a new one begins: what is still on its way to it is fenced.

A window spans the queues of a topic at this broker. So a topic may get more queues in the middle of a batch, which
moves rows to other queues, and repeats none.

A commit names how many rows the batch has. Fewer here: acknowledged rows were lost with a master, and the batch has to
be repeated. More: an earlier attempt wrote other rows under the same batch, so the plan was not deterministic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ropewalk.client.core.produce.row_identity import RowIdentity, foreign_query_reason

__all__ = ["Fenced", "Sink", "SinkTable", "Task", "TooManyRows", "WrongCount", "WrongQuery"]

ROWS_MAX: Final = 5_000_000
"""Rows of the open batch of one sink, by default: a key takes some 90 bytes of memory."""


class Fenced(Exception):
    """A request of an attempt, an epoch or a batch that is over."""


class WrongQuery(Exception):
    """A request of another query than the one that the sink belongs to."""


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


class WindowKey(NamedTuple):
    topic: str
    query: str
    batch: int
    partition: int


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
    """The topics of the open batch."""
    touched_ms: int = 0
    announced: int = 0
    """The newest epoch that was given out; it begins with the first append or commit under it."""
    is_forgotten: bool = False
    """Whether nothing but the epochs is known, since an administrator had the sink forgotten."""
    windows: dict[WindowKey, set[bytes]] = field(default_factory=dict)
    attempts: dict[WindowKey, int] = field(default_factory=dict)
    """The highest attempt of this epoch for each task."""

    @property
    def is_open(self) -> bool:
        return self.since >= 0

    @property
    def rows(self) -> int:
        """Return how many rows the open batch has."""
        return sum(map(len, self.windows.values()))

    @property
    def owner(self) -> str:
        """Return the query that the sink belongs to; empty while it has neither a committed batch nor rows."""
        return self.query or next((key.query for key in self.windows), "")

    def close(self) -> None:
        self.since, self.topics = -1, ()
        self.windows.clear()
        self.attempts.clear()

    def open(self, topic: str, log_end: int) -> bool:
        """Open the sink for a topic, and return whether anything changed."""
        if not self.is_open:
            self.since, self.topics = log_end, (topic,)
            return True
        if topic not in self.topics:
            self.topics = (*self.topics, topic)
            return True
        return False


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
        """Give out the next epoch of a sink. Brokers are fixed once, until a commit changes them."""
        sink = self._sink(sink_id)
        sink.announced += 1
        sink.is_forgotten = False
        sink.brokers = sink.brokers or brokers
        sink.touched_ms = now_ms
        sink.open(topic, log_end)
        return sink

    def admit(self, task: Task, log_end: int, now_ms: int) -> bool:
        """Admit an append of a task, and return whether the sink's state changed. Raises Fenced and WrongQuery.

        An epoch above the known one began under a master whose last records did not come here.
        """
        sink = self.sinks.get(task.sink_id)
        if sink is not None:
            _check_query(sink, task.query)
            _check_epoch(sink, task.epoch)
            if task.query == sink.query and task.batch <= sink.batch:
                raise Fenced(
                    f"batch {task.batch} of sink {task.sink_id} was committed: batch {sink.batch} is"
                )
        sink = self._sink(task.sink_id)
        changed = self._adopt(sink, task.epoch)
        key = WindowKey(task.topic, task.query, task.batch, task.partition)
        if task.attempt < sink.attempts.get(key, task.attempt):
            raise Fenced(
                f"attempt {task.attempt} of partition {task.partition} of sink {task.sink_id} is over: attempt "
                f"{sink.attempts[key]} has begun"
            )
        sink.attempts[key] = task.attempt
        sink.touched_ms = now_ms
        return sink.open(task.topic, log_end) or changed

    def missing(self, task: Task, keys: Sequence[bytes]) -> list[int] | None:
        """Return the indexes of the keys that are not stored yet; None if none of them is. HOT.

        Raises TooManyRows.
        """
        sink = self.sinks[task.sink_id]
        window = sink.windows.get(WindowKey(task.topic, task.query, task.batch, task.partition))
        if window is None or window.isdisjoint(keys):
            missing = None
        else:
            missing = [index for index, key in enumerate(keys) if key not in window]
        if sink.rows + len(keys) > self.rows_max and (missing is None or missing):
            raise TooManyRows(
                f"the open batch of sink {task.sink_id} has {sink.rows} rows, {self.rows_max} is the limit "
                f"(sinkWindowRowsMax): make batches smaller (maxOffsetsPerTrigger)"
            )
        return missing

    def stored(self, task: Task, keys: Sequence[bytes]) -> None:
        """Count rows as stored. HOT."""
        key = WindowKey(task.topic, task.query, task.batch, task.partition)
        self.sinks[task.sink_id].windows.setdefault(key, set()).update(keys)

    def commit(
        self,
        sink_id: str,
        epoch: int,
        query: str,
        batch: int,
        rows: int,
        digest: str,
        brokers: str,
        now_ms: int,
    ) -> Sink | None:
        """End a batch, and return the sink; None if it had been ended before.

        Raises Fenced, WrongQuery and WrongCount.
        """
        sink = self.sinks.get(sink_id)
        if sink is not None:
            _check_query(sink, query)
            _check_epoch(sink, epoch)
            if query == sink.query and batch <= sink.batch:
                return self._commit_again(sink, brokers)
        found = self._rows_of(sink, query, batch) if sink is not None else 0
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

    def restore(self, row: RowIdentity, topic: str) -> None:
        """Count a row that a start found in the log, if it is of an open batch."""
        sink = self.sinks.get(row.sink_id)
        if sink is None or not sink.is_open or (row.query == sink.query and row.batch <= sink.batch):
            return
        key = WindowKey(topic, row.query, row.batch, row.partition)
        sink.windows.setdefault(key, set()).add(row.key)

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
        sink.attempts.clear()
        return True

    @staticmethod
    def _rows_of(sink: Sink, query: str, batch: int) -> int:
        return sum(
            len(keys) for key, keys in sink.windows.items() if (key.query, key.batch) == (query, batch)
        )


def _check_query(sink: Sink, query: str) -> None:
    if (reason := foreign_query_reason(sink.sink_id, sink.owner, query)) is not None:
        raise WrongQuery(reason)


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
