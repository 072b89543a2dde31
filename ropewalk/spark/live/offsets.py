"""The position of a query over live topics: offsets of queues, the JSON that Spark keeps of them, and how far to go
next.

    {"cluster": "DefaultCluster", "e": {"broker-a": "10.0.0.1:10911"}, "init": {...},
     "q": {"orders": {"broker-a": {"0": 1200, "1": 877}}}, "s": {...}, "t": 1718000000000, "v": 1}

`q` holds for each queue the next offset to be read, and `s` when the message before it was stored (ms): if the message
at that offset has another store time later, the queue holds other messages. `e` names the master of each broker set and
`t` the time (ms) when the offsets were determined, which tell the same, less exactly, where `s` has nothing. Spark
compares the *text* of an offset, so everything is built by one function, sorted at every level.

Where a new query begins is not stored by Spark, and is asked for again after a crash in its first batch, when "latest"
would be another place. Therefore the end of batch 0 carries its beginning (`init`), and a beginning that says `fresh`
is replaced by it (`batch_start`). Spark runs a batch 0 also where there is nothing to read yet, so the beginning is
logged as soon as a query runs.

All functions here are pure. A `Queues` is a mapping from `QueueKey` to an offset.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from ropewalk.errors import RopewalkError

__all__ = [
    "Bounds",
    "CheckpointMismatch",
    "DataLoss",
    "Loss",
    "Position",
    "QueueKey",
    "Queues",
    "Range",
    "advance",
    "backlog",
    "begin",
    "check_belongs",
    "plan_ranges",
    "enforce_losses",
    "share_limit",
    "batch_start",
    "replaced_messages",
    "reused_offsets",
    "clamp_to_target",
]

VERSION: Final = 1


class CheckpointMismatch(RopewalkError):
    """A checkpoint of another query, or of other topics."""


class DataLoss(RopewalkError):
    """Messages that the query should have read and that cannot be read any more."""


class QueueKey(NamedTuple):
    """The key of one queue of one topic at one broker set."""

    topic: str
    broker: str
    queue_id: int

    def __str__(self) -> str:
        return f"queue {self.queue_id} of {self.topic} at {self.broker}"


Queues = Mapping[QueueKey, int]


class Bounds(NamedTuple):
    """The offsets of a queue that a broker has: `[low, high)`."""

    low: int
    high: int


class Range(NamedTuple):
    """The offsets of a queue that are to be read: `[low, high)`."""

    key: QueueKey
    low: int
    high: int

    @property
    def size(self) -> int:
        return self.high - self.low


@dataclass(frozen=True, slots=True)
class Position:
    """An offset as Spark stores it."""

    queues: Queues
    cluster: str | None = None
    init: Queues | None = None
    """The beginning of the first batch, in its end."""
    fresh: bool = False
    """The beginning of a query that has no checkpoint yet."""
    masters: Mapping[str, str] = field(default_factory=dict)
    """The master of each broker set, by its address."""
    time_ms: int | None = None
    last_ms: Queues = field(default_factory=dict)
    """The store time of the message before each offset, ms; queues without such a message are missing."""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON document, with its keys sorted, so that equal positions give equal text."""
        document: dict[str, Any] = {"q": _nested(self.queues), "v": VERSION}
        if self.cluster is not None:
            document["cluster"] = self.cluster
        if self.init is not None:
            document["init"] = _nested(self.init)
        if self.fresh:
            document["fresh"] = True
        if self.masters:
            document["e"] = dict(sorted(self.masters.items()))
        if self.last_ms:
            document["s"] = _nested(self.last_ms)
        if self.time_ms is not None:
            document["t"] = self.time_ms
        return dict(sorted(document.items()))

    @classmethod
    def from_json(cls, document: Any) -> Position:
        """Read a document of `to_json`, perhaps from long ago. Raises CheckpointMismatch."""
        if not isinstance(document, dict) or "q" not in document:
            raise CheckpointMismatch(
                f"the checkpoint holds no offset of a live Ropewalk source but {str(document)[:200]}: it belongs to "
                f"another query; give this one a checkpointLocation of its own"
            )
        version = document.get("v")
        if version != VERSION:
            raise CheckpointMismatch(
                f"the checkpoint holds an offset of version {version}, and this Ropewalk reads version {VERSION}"
            )
        try:
            return cls(
                _flat(document["q"]),
                document.get("cluster"),
                _flat(document["init"]) if "init" in document else None,
                document.get("fresh") is True,
                {str(name): str(address) for name, address in document.get("e", {}).items()},
                int(document["t"]) if "t" in document else None,
                _flat(document.get("s", {})),
            )
        except (AttributeError, TypeError, ValueError) as exc:
            raise CheckpointMismatch(
                f"the checkpoint holds an offset that cannot be read ({exc}): {document}"
            ) from None

    @property
    def topics(self) -> frozenset[str]:
        return frozenset(key.topic for key in self.queues)


def batch_start(start: Position, end: Position) -> Queues:
    """Return the start of the batch that ends at `end`: for a first batch, the start that was logged with it."""
    return end.init if start.fresh and end.init is not None else start.queues


def check_belongs(position: Position, wanted: Callable[[str], bool], cluster: str | None) -> None:
    """Reject a checkpoint of other topics or of another cluster. Raises CheckpointMismatch."""
    others = sorted(topic for topic in position.topics if not wanted(topic))
    if others:
        raise CheckpointMismatch(
            f"the checkpoint stands in topics that this query does not read ({', '.join(others)}): give this query a "
            f"checkpointLocation of its own, or name those topics too"
        )
    if position.cluster is not None and cluster is not None and position.cluster != cluster:
        raise CheckpointMismatch(
            f"the checkpoint is of cluster {position.cluster}, and these brokers are cluster {cluster}: offsets of one "
            f"mean nothing in the other; give this query a checkpointLocation of its own"
        )


# -- how far to go ----------------------------------------------------------------------------------------


def advance(
    start: Queues, latest: Mapping[QueueKey, Bounds], *, follow_back: bool = False
) -> dict[QueueKey, int]:
    """Return the end of everything that is there: new queues count from their first message, vanished ones keep their
    offset.

    So does a queue whose offsets went back, unless the query is to `follow_back` and go on from there.
    """
    end = dict(start)
    for key, bounds in latest.items():
        end[key] = bounds.high if follow_back else max(start.get(key, bounds.low), bounds.high)
    return end


def begin(start: Queues, latest: Mapping[QueueKey, Bounds]) -> dict[QueueKey, int]:
    """Return `start` with the queues that came later, from their first message."""
    return {**{key: bounds.low for key, bounds in latest.items()}, **start}


def backlog(start: Queues, end: Queues) -> int:
    """Return the number of offsets between two positions."""
    return sum(max(0, high - start.get(key, high)) for key, high in end.items())


def share_limit(start: Queues, end: Queues, limit: int) -> dict[QueueKey, int]:
    """Return an end at most `limit` offsets away, shared out by the backlog of each queue; every queue moves.

    With more queues than `limit` allows, each moves by one: a queue that never moves would age out.
    """
    gaps = {key: end[key] - start.get(key, end[key]) for key in sorted(end)}
    total = sum(gap for gap in gaps.values() if gap > 0)
    if total <= limit:
        return dict(end)
    steps = {key: max(1, limit * gap // total) for key, gap in gaps.items() if gap > 0}
    spare = limit - sum(steps.values())
    for key in sorted(steps, key=lambda key: (-gaps[key], key)):
        if spare <= 0:
            break
        more = min(spare, gaps[key] - steps[key])
        steps[key] += more
        spare -= more
    return {key: start.get(key, end[key]) + steps.get(key, 0) if gaps[key] >= 0 else end[key] for key in end}


def clamp_to_target(end: Queues, target: Queues, start: Queues) -> dict[QueueKey, int]:
    """Return an end not beyond a pinned target, nor before the start; queues that came after the target wait."""
    return {
        key: max(min(number, target[key]), start.get(key, 0)) if key in target else start[key]
        for key, number in end.items()
        if key in target or key in start
    }


# -- what was lost ----------------------------------------------------------------------------------------


class Loss(NamedTuple):
    """Messages that cannot be read."""

    key: QueueKey
    messages: int
    reason: str

    def __str__(self) -> str:
        return f"{self.key}: {self.reason}"


def plan_ranges(
    start: Queues, end: Queues, bounds: Mapping[QueueKey, Bounds]
) -> tuple[list[Range], list[Loss]]:
    """Return the ranges between two positions that brokers can serve, and the losses.

    Empty ranges are left out. The order is that of the keys, so that a repeated batch gets the same partitions.
    """
    ranges: list[Range] = []
    losses: list[Loss] = []
    for key in sorted(end):
        high = end[key]
        low = start.get(key)
        have = bounds.get(key)
        if low is None:
            low = have.low if have is not None else high
        if high < low:
            losses.append(
                Loss(
                    key,
                    0,
                    f"the batch would end at {high}, before its start at {low}: the checkpoint is damaged",
                )
            )
        elif high == low:
            if have is not None and low > have.high:
                losses.append(_went_back(key, low, have))
        elif have is None:
            losses.append(Loss(key, high - low, f"it is gone, with its messages {low} to {high - 1}"))
        else:
            if low < have.low:
                count = min(high, have.low) - low
                losses.append(
                    Loss(
                        key,
                        count,
                        f"{count} messages from offset {low} on were removed by retention before they were read (the "
                        f"queue begins at {have.low} now)",
                    )
                )
                low = min(high, have.low)
            if low > have.high:
                losses.append(_went_back(key, low, have))
                low = high
            elif high > have.high:
                losses.append(
                    Loss(
                        key,
                        high - have.high,
                        f"its messages from offset {have.high} to {high - 1} are gone: offsets went back, as after a "
                        f"fail-over to a replica that had less",
                    )
                )
                high = have.high
            if high > low:
                ranges.append(Range(key, low, high))
    return ranges, losses


def replaced_messages(
    position: Position, bounds: Mapping[QueueKey, Bounds], stored_ms: Mapping[QueueKey, int | None]
) -> list[Loss]:
    """Return the queues in which the message before a position is not the one that was there.

    `stored_ms` says when the message at that offset was stored; None, or a missing queue, is not judged here.
    """
    return [
        Loss(
            key,
            0,
            f"the query stands at offset {position.queues[key]}, and message {position.queues[key] - 1} was stored at "
            f"{_time_text(stored)}, where the one that was read was stored at {_time_text(known)}: the queue, now from "
            f"{bounds[key].low} to {bounds[key].high}, holds other messages, as after the topic was deleted and made "
            f"again, the store was lost, another broker took the name, or a fail-over to a replica that had less",
        )
        for key, known in sorted(position.last_ms.items())
        if key in bounds and (stored := stored_ms.get(key)) is not None and stored != known
    ]


def _time_text(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


CLOCK_SKEW_MS: Final = 10_000
"""How far the clocks of a broker and of the driver may be apart before the one is held against the other."""


def reused_offsets(start: Queues, stored_ms: Mapping[QueueKey, int | None], read_by_ms: int) -> list[Loss]:
    """Return the queues whose last message that was read is not the one at its offset now.

    After a change of masters an offset can belong to another message. `stored_ms` says when the message before the
    start was stored (None: it is not there, which is not judged here); the batch that read it was made by `read_by_ms`.
    """
    return [
        Loss(
            key,
            0,
            f"message {start[key] - 1} was stored {(stored - read_by_ms) / 1000:.0f} s after the batch that read it: "
            f"offsets were used again, as after a fail-over to a replica that had less",
        )
        for key, stored in sorted(stored_ms.items())
        if stored is not None and stored > read_by_ms + CLOCK_SKEW_MS
    ]


def _went_back(key: QueueKey, low: int, have: Bounds) -> Loss:
    return Loss(
        key,
        low - have.high,
        f"the query stands at offset {low}, and the queue ends at {have.high}: offsets went back, because the topic "
        f"was deleted (and perhaps made again), the broker lost its store, or a fail-over to a replica that had less",
    )


_HINT: Final = "Set failOnDataLoss=false to go on without them, or start anew with a fresh checkpointLocation"


def enforce_losses(losses: list[Loss], *, fail: bool) -> int:
    """Raise DataLoss if losses are to stop the query, else return how many messages are skipped."""
    if losses and fail:
        shown = "; ".join(str(loss) for loss in losses[:5])
        more = f"; and {len(losses) - 5} more queues" if len(losses) > 5 else ""
        raise DataLoss(f"{shown}{more}. {_HINT}")
    return sum(loss.messages for loss in losses)


# -- JSON -------------------------------------------------------------------------------------------------


def _nested(queues: Queues) -> dict[str, dict[str, dict[str, int]]]:
    result: dict[str, dict[str, dict[str, int]]] = {}
    for key in sorted(queues, key=lambda key: (key.topic, key.broker, str(key.queue_id))):
        result.setdefault(key.topic, {}).setdefault(key.broker, {})[str(key.queue_id)] = queues[key]
    return result


def _flat(nested: Mapping[str, Mapping[str, Mapping[str, int]]]) -> dict[QueueKey, int]:
    return {
        QueueKey(topic, broker, int(queue_id)): int(number)
        for topic, brokers in nested.items()
        for broker, queues in brokers.items()
        for queue_id, number in queues.items()
    }
