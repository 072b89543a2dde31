"""A run of a batch, as its driver found the brokers, and the tasks of it: what travels between driver and workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ropewalk.client.core.produce.row_identity import foreign_query_reason
from ropewalk.spark.sink.resume import Anchors, group_of
from ropewalk.spark.sink.routes import WriteFailed

__all__ = ["Committed", "Run", "TaskIdentity", "TaskResult"]


class TaskIdentity(NamedTuple):
    """A task, as Spark names it in each of its attempts."""

    query: str
    """The first characters of the query's id, which its checkpoint keeps; BATCH_WRITE for a batch write."""
    batch: int
    partition: int
    attempt: int = 0
    """Rises with each attempt of the same driver."""
    retries: int = 0
    """How often this task has failed in this run."""


class Committed(NamedTuple):
    """The batch that a broker knows as committed."""

    query: str = ""
    batch: int = -1
    digest: str = ""

    def covers(self, query: str, batch: int) -> bool:
        """Return whether a batch is over at this broker."""
        return query == self.query and batch <= self.batch


@dataclass(frozen=True)
class Run:
    """The findings of a driver before a batch; travels to tasks."""

    sink_id: str
    topic: str
    brokers: tuple[str, ...]
    """The brokers that rows are spread over, in their order."""
    epochs: Mapping[str, int] = field(default_factory=dict)
    committed: Mapping[str, Committed] = field(default_factory=dict)
    owners: tuple[str, ...] = ()
    """The queries that the sink belongs to, by what brokers say: usually one, or none yet."""
    anchors: Anchors | None = None
    """Where tasks read back from; None where brokers compare rows."""
    number: int = 0
    """A number that tells this run of a batch from the others."""

    def check_query(self, query: str) -> None:
        """Reject another query than the one that the sink belongs to. Raises WriteFailed."""
        for owner in self.owners:
            if (reason := foreign_query_reason(self.sink_id, owner, query)) is not None:
                raise WriteFailed(reason)
        if self.anchors is not None and self.anchors.are_of_another_query(query):
            raise WriteFailed(
                f"sink {self.sink_id} belongs to another query, whose batches it committed: this one has not the "
                f"checkpoint of before, and every row of it would be written again. Nothing of it was stored. Either "
                f"start with the old checkpoint, give option sinkId a new name, or delete the consumer group "
                f"{group_of(self.sink_id)} with its offsets, which has the sink forgotten"
            )

    def finished_brokers(self, query: str, batch: int) -> frozenset[str]:
        """Return the brokers at which this batch is over."""
        return frozenset(
            name for name in self.brokers if self.committed.get(name, Committed()).covers(query, batch)
        )


@dataclass
class TaskResult:
    """The outcome of one task, as its commit message carries it."""

    run: Run
    identity: TaskIdentity
    rows: int
    total: int
    """The number of rows of the task, and the sum of their digests."""
    by_broker: Mapping[str, int]
    """How many of them each broker has."""
    ends: Mapping[tuple[str, int], int]
    """For each (broker, queue) with rows of the task, the offset behind the last."""
    held: Mapping[bytes, int] = field(default_factory=dict)
    """How many rows of each content were held back, as an earlier run of the batch stored some."""
