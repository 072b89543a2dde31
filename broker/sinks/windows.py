"""`SinkTable`: which rows of a sink's open batch are stored, and who may still append to it. Pure.

    sink  epoch   committed           open batch: (topic, query, batch, partition) -> keys of rows
    -----------------------------------------------------------------------------------------------
    S     4       query q1, batch 7   (T, q1, 8, 0) -> {k1, k2}    (T, q1, 8, 1) -> {k3}

A sink is *closed* after a commit, and *open* from the next init or append on. `since` is the end of the log at that
moment, so every row of the open batch lies behind it: that is where a start looks for them.

The order of attempts of one task is (epoch, attempt). An append of a lower pair than the highest seen is fenced, so
is one of a batch that was committed. Within the open batch fencing is not what keeps rows single: that is the window,
which a late append of the same rows meets too.

A window spans the queues of a topic at this broker. So a topic may get more queues in the middle of a batch, which
moves rows to other queues, and repeats none.

A commit names how many rows the batch has. Fewer here: acknowledged rows were lost with a master, and the batch has to
be repeated. More: an earlier attempt wrote other rows under the same batch, so the plan was not deterministic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ropewalk.client.core.produce.row_identity import RowIdentity

__all__ = ["Fenced", "Sink", "SinkTable", "Task", "TooManyRows", "WrongCount"]

ROWS_MAX: Final = 5_000_000
"""Rows of the open batch of one sink, by default: a key takes some 90 bytes of memory."""


class Fenced(Exception):
    """A request of an attempt, an epoch or a batch that is over."""


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
    def rows(self) -> int:
        """Return how many rows all open batches have."""
        return sum(sink.rows for sink in self.sinks.values())

    def init(self, sink_id: str, topic: str, brokers: str, log_end: int, now_ms: int) -> Sink:
        """Begin the next epoch of a sink. Brokers are fixed once, until a commit changes them."""
        sink = self._sink(sink_id)
        sink.epoch += 1
        sink.attempts.clear()
        sink.brokers = sink.brokers or brokers
        sink.touched_ms = now_ms
        sink.open(topic, log_end)
        return sink

    def admit(self, task: Task, log_end: int, now_ms: int) -> bool:
        """Admit an append of a task, and return whether the sink's state changed. Raises Fenced.

        An epoch above the known one began under a master whose last records did not come here.
        """
        sink = self.sinks.get(task.sink_id)
        if sink is not None:
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
        """End a batch, and return the sink; None if it had been ended before. Raises Fenced and WrongCount."""
        sink = self.sinks.get(sink_id)
        if sink is not None:
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

    def forget(self, sink_id: str) -> bool:
        """Drop a sink, and return whether there was one."""
        return self.sinks.pop(sink_id, None) is not None

    def expire(self, before_ms: int) -> list[str]:
        """Drop the sinks that nothing was heard of since then; return their names."""
        gone = sorted(name for name, sink in self.sinks.items() if sink.touched_ms < before_ms)
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
        sink.attempts.clear()
        return True

    @staticmethod
    def _rows_of(sink: Sink, query: str, batch: int) -> int:
        return sum(
            len(keys) for key, keys in sink.windows.items() if (key.query, key.batch) == (query, batch)
        )


def _check_epoch(sink: Sink, epoch: int) -> None:
    if epoch < sink.epoch:
        raise Fenced(
            f"epoch {epoch} of sink {sink.sink_id} is over: epoch {sink.epoch} has begun, in another run of this "
            f"query or in a query with the same sinkId"
        )
