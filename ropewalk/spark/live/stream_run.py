"""A run of a streaming query over live topics: where it begins, how far each batch goes, and what was lost meanwhile.

Lives in one process of the driver. Whatever is lost is judged here before a batch is made, by the first of these that
tells of it; under failOnDataLoss=true it ends the query, with the queue and its offsets:

    the queue is not in the routes       its topic was deleted, its broker left, the topic has fewer queues or may not
                                         be read; waited for pullTimeoutMs, because a broker that starts comes back
    the queue ends before the start      the topic was made again, the store was emptied, a fail-over lost the tail
    another message before the start     the same, and the new messages have come past it already (`s` of a position)
    the queue begins behind the start    retention was faster

Triggers without anything new cost one round trip to each broker. The message before the start is compared once in a
run, and again where a batch goes on from it.

An AvailableNow run looks at most a few times, so it waits within one look: a queue that cannot be asked about may hold
messages, and the run must not end as if there were none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping

from ropewalk.spark.live.cluster import BoundsAnswer, Cluster
from ropewalk.spark.live.last_read import compare_last_read, stored_before
from ropewalk.spark.live.offsets import (
    Bounds,
    CheckpointMismatch,
    Loss,
    Position,
    QueueKey,
    Queues,
    advance,
    backlog,
    batch_start,
    begin,
    check_belongs,
    clamp_to_target,
    enforce_losses,
    plan_ranges,
    share_limit,
)
from ropewalk.spark.live.plan import chosen_queues, starting, times_of, topic_filter
from ropewalk.spark.live.read import Task
from ropewalk.spark.live.tasks import tasks_of
from ropewalk.spark.log import log
from ropewalk.spark.options import Options

__all__ = ["StreamRun"]

SIZE_GUESS = 1024.0
"""Bytes of a message, before one was seen."""
_RETRY_S = 0.2


class StreamRun:
    """The state of one run of a streaming query."""

    def __init__(
        self,
        options: Options,
        cluster: Cluster,
        monotonic: Callable[[], float],
        sleep: Callable[[float], None] = time.sleep,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.cluster = cluster
        self.newest: Position | None = None
        """The end of all queues at the last look, for lag."""
        self.lost = 0
        self._options = options
        self._monotonic = monotonic
        self._sleep = sleep
        self._now_ms = now_ms
        self._wants = topic_filter(options)
        self._target: dict[QueueKey, int] | None = None
        self._belongs = False
        self._began = monotonic()
        self._masters_seen: dict[str, str] = {}
        self._compared: set[QueueKey] = set()
        """Queues whose last message that was read has been compared in this run."""
        self._planned: Position | None = None
        """The end of the batch that this run made last: its messages need not be compared again."""
        self._vanished_since: dict[QueueKey, float] = {}
        self._sizes: dict[str, float] = {}

    @property
    def _patience_s(self) -> float:
        return self._options.pull_timeout_ms / 1000

    # -- where to begin ------------------------------------------------------------------------------

    def initial(self) -> Position:
        """Return the start of a new query. Spark asks more than once; only the first batch's end makes it last."""
        options, cluster = self._options, self.cluster
        cluster.refresh(force=True)
        for topic in cluster.missing_topics():
            log.warning(
                "a topic does not exist yet; it is read from its first message when it does", topic=topic
            )
        keys = chosen_queues(options, cluster.queues())
        bounds = cluster.wait_for_bounds(keys)
        found = cluster.offsets_at(times_of(options, keys))
        start = starting(options, bounds, found, stream=True)
        beyond = {key: max(number, bounds[key].high) for key, number in start.items()}
        _, losses = plan_ranges(start, beyond, bounds)
        if losses and options.starting_offsets is not None and not isinstance(options.starting_offsets, int):
            self.lost += enforce_losses(losses, fail=options.fail_on_data_loss)
            start = {
                key: min(max(number, bounds[key].low), bounds[key].high) for key, number in start.items()
            }
        return Position(start, cluster.cluster_name, fresh=True)

    def pin_target(self) -> None:
        """Fix the end of an AvailableNow run: the messages that there are now, and none that come later."""
        self.cluster.refresh(force=True)
        bounds = self.cluster.wait_for_bounds(self._readable_queues())
        self._target = {key: have.high for key, have in bounds.items()}

    def _readable_queues(self) -> list[QueueKey]:
        """Return the queues of the query that can be read now; which of them are missing is judged by a position."""
        return [
            key for key in self.cluster.queues() if self._options.assign is None or self._is_assigned(key)
        ]

    def _is_assigned(self, key: QueueKey) -> bool:
        assign = self._options.assign or {}
        return key.queue_id in assign.get(key.topic, {}).get(key.broker, ())

    def _check_belongs(self, start: Position) -> None:
        if not self._belongs:
            check_belongs(start, self._wants, self.cluster.cluster_name)
            if self._options.assign is not None:
                others = [key for key in sorted(start.queues) if not self._is_assigned(key)]
                if others:
                    raise CheckpointMismatch(
                        f"the checkpoint stands in {others[0]}, which option assign does not name: give this query a "
                        f"checkpointLocation of its own"
                    )
            self._belongs = True

    # -- how far to go -------------------------------------------------------------------------------

    def latest(
        self, start: Position, rows: int | None, size: int | None, *, all_of_it: bool
    ) -> Position | None:
        """Return the end of the next batch, or None if there is nothing (or not yet enough) to read.

        A query that is fresh gets an end in any case: with it, its beginning is logged.
        """
        options, cluster = self._options, self.cluster
        cluster.refresh(force=bool(self._vanished_since))
        self._check_belongs(start)
        found = self._find_bounds(start)
        bounds = self._ignoring_slave_lag(found, start.queues)
        self.newest = Position({key: have.high for key, have in bounds.items()}, cluster.cluster_name)
        self._check_losses(start.queues, found)
        have = begin(start.queues, bounds)
        end = advance(start.queues, bounds, follow_back=not options.fail_on_data_loss)
        if self._target is not None:
            end = clamp_to_target(end, self._target, start.queues)
            have = {key: number for key, number in have.items() if key in end}
        if not all_of_it:
            too_little = self._is_below_minimum(backlog(have, end))
            end = dict(start.queues) if too_little else self._apply_limits(have, end, rows, size)
        self._check_last_read(start, end, bounds)
        if end == dict(start.queues) and not start.fresh:
            return None
        if backlog(have, end):
            self._began = self._monotonic()
        self._planned = Position(
            end,
            start.cluster or cluster.cluster_name,
            init=start.queues if start.fresh else None,
            masters=cluster.masters,
            time_ms=self._now_ms(),
            last_ms=stored_before(cluster, end, bounds, start),
        )
        return self._planned

    def _find_bounds(self, start: Position) -> BoundsAnswer:
        """Return the bounds of the queues; in an AvailableNow run, wait for those that cannot be asked about."""
        found = self.cluster.bounds(self._readable_queues())
        if self._target is None:
            return found
        deadline = self._monotonic() + self._patience_s
        # A broker that does not answer ends the wait by itself (`BrokerUnreachable`).
        while found.unreachable or (
            self._options.fail_on_data_loss
            and any(key not in found.bounds for key in start.queues)
            and self._monotonic() < deadline
        ):
            self._sleep(_RETRY_S)
            self.cluster.refresh(force=True)
            found = self.cluster.bounds(self._readable_queues())
        for key in start.queues:
            if key in found.bounds:
                self._target.setdefault(key, found.bounds[key].high)
        return found

    def _is_below_minimum(self, waiting: int) -> bool:
        least = self._options.min_offsets_per_trigger
        if least is None or self._target is not None or waiting >= least:
            return False
        return self._monotonic() - self._began < self._options.max_trigger_delay_ms / 1000

    def _apply_limits(
        self, have: Queues, end: Queues, rows: int | None, size: int | None
    ) -> dict[QueueKey, int]:
        if size is not None:
            waiting = [key for key in sorted(end) if end[key] > have.get(key, end[key])]
            self._sizes |= self.cluster.mean_sizes(have, waiting)
            total = backlog(have, end)
            if total:
                mean = (
                    sum((end[key] - have[key]) * self._sizes.get(key.topic, SIZE_GUESS) for key in waiting)
                    / total
                )
                by_size = max(1, int(size / mean))
                rows = by_size if rows is None else min(rows, by_size)
        return dict(end) if rows is None else share_limit(have, end, rows)

    # -- what was lost -------------------------------------------------------------------------------

    def _ignoring_slave_lag(self, found: BoundsAnswer, start: Queues) -> dict[QueueKey, Bounds]:
        """Return the bounds, raised to `start` where a slave that may be behind answers for its dead master."""
        return {
            key: Bounds(have.low, max(have.high, start.get(key, 0)))
            if key.broker in found.from_slaves
            else have
            for key, have in found.bounds.items()
        }

    def _check_losses(self, start: Queues, found: BoundsAnswer) -> None:
        """Judge at once the losses that no later batch would notice: offsets that went back, queues that are gone."""
        bounds = self._ignoring_slave_lag(found, start)
        asked = {key: number for key, number in start.items() if key.broker not in found.unreachable}
        losses = plan_ranges(asked, asked, bounds)[1]
        if self._options.fail_on_data_loss:
            losses += [
                Loss(key, 0, f"the query stands at offset {asked[key]}, and {self.cluster.absence_of(key)}")
                for key in self._vanished_queues(asked, bounds)
            ]
        self.lost += enforce_losses(losses, fail=self._options.fail_on_data_loss)

    def _vanished_queues(self, asked: Queues, bounds: Mapping[QueueKey, Bounds]) -> list[QueueKey]:
        """Return the queues that have been in no route for `pullTimeoutMs`; an AvailableNow run has waited already."""
        now = self._monotonic()
        self._vanished_since = {
            key: self._vanished_since.get(key, now) for key in sorted(asked) if key not in bounds
        }
        late = [
            key
            for key, since in self._vanished_since.items()
            if self._target is not None or now - since >= self._patience_s
        ]
        if self._vanished_since and not late:
            log.warning(
                "queues are gone",
                first=str(next(iter(self._vanished_since))),
                count=len(self._vanished_since),
            )
        return late

    def _check_last_read(self, start: Position, end: Queues, bounds: Mapping[QueueKey, Bounds]) -> None:
        """Compare the message before the start with the one that was read there, where that can have changed."""
        masters = self.cluster.masters
        changed = {
            broker
            for broker, address in masters.items()
            if address != self._masters_seen.get(broker, start.masters.get(broker, address))
        }
        due = [
            key
            for key, number in start.queues.items()
            if key not in self._compared or key.broker in changed or end.get(key, number) != number
        ]
        self._compare(start, due, bounds, changed)
        self._compared |= {key for key in due if key in bounds}
        self._masters_seen |= masters

    def _compare(
        self,
        position: Position,
        keys: Iterable[QueueKey],
        bounds: Mapping[QueueKey, Bounds],
        changed: Collection[str] = (),
    ) -> None:
        """Judge whether the messages before a position are those that were read."""
        losses = compare_last_read(self.cluster, position, keys, bounds, changed)
        self.lost += enforce_losses(losses, fail=self._options.fail_on_data_loss)
        for loss in losses:
            log.warning("offsets were used again", queue=str(loss.key), reason=loss.reason)

    # -- what to read --------------------------------------------------------------------------------

    def tasks(self, start: Position, end: Position) -> list[Task]:
        """Return the tasks of one batch. The same for a batch that is repeated after a crash."""
        options, cluster = self._options, self.cluster
        cluster.refresh()
        self._check_belongs(end)
        begins = batch_start(start, end)
        bounds = self._bounds_for(begins, end.queues)
        ranges, losses = plan_ranges(begins, end.queues, bounds)
        lost = enforce_losses(losses, fail=options.fail_on_data_loss)
        if lost:
            self.lost += lost
            log.warning("messages are not there any more and are passed over", count=lost)
        if end != self._planned:
            # Planned by a run that crashed, perhaps long ago.
            keys = [range_.key for range_ in ranges]
            if not start.fresh:
                self._compare(start, [key for key in keys if key in start.queues], bounds)
            self._compare(end, keys, bounds)
        return tasks_of(ranges, options, cluster, end if options.fail_on_data_loss else None)

    def _bounds_for(self, start: Queues, end: Queues) -> dict[QueueKey, Bounds]:
        """Return the bounds of the queues that a batch reads, waiting for silent ones: their range was promised."""
        keys = [key for key in sorted(end) if end[key] != start.get(key)]
        present = set(self.cluster.queues())
        deadline = self._monotonic() + self._patience_s
        while not present.issuperset(keys) and self._monotonic() < deadline:
            self.cluster.refresh(force=True)
            present = set(self.cluster.queues())
            if not present.issuperset(keys):
                self._sleep(_RETRY_S)
        wanted = [key for key in keys if key in present]
        found = self.cluster.bounds(wanted)
        bounds = self._ignoring_slave_lag(found, end)
        late = [key for key in wanted if key not in bounds]
        if late:
            bounds |= self.cluster.wait_for_bounds(late)
        return bounds
