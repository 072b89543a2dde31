"""Send messages of a store, of live topics or of a lake to a topic again: `ropewalk pipeline replay`.

What a message was goes with it: body, keys, tags, properties of its producer, sharding key and flag. What brokers and
clients had set is left behind, unless the time at which it was made is to be kept (`preserve_time`; when it is stored
is the broker's to say). Where it came from stands in the property `RW_ORIGIN`:

    RW_ORIGIN = <broker>/<topic>/<queue>/<offset>

At least once. A piece that is done again, after a worker's death say, sends again; whoever must not see a message twice
goes by its origin. A journal keeps this short: batch by batch, what comes next is written down before it is sent, and
that it was sent after it. The next run with the same journal repeats the batch that was begun and goes on behind it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ropewalk.client.core.messages import Message, copied_tags
from ropewalk.client.core.routes import Queue
from ropewalk.errors import RopewalkError
from ropewalk.format.properties import P, encode_properties, split_keys
from ropewalk.spark.jobs.common.files import sync_directory, write_file
from ropewalk.spark.jobs.common.report import DATA_LOSS, OK, Report, Table
from ropewalk.spark.jobs.common.tasks import Tasks
from ropewalk.spark.jobs.export.sources import LiveSource, Source, StoreSource, readable_end
from ropewalk.spark.jobs.replay.filtered import check_condition, run_filtered
from ropewalk.spark.options import parse_options
from ropewalk.spark.sink.rows import RESERVED_PROPERTIES, Outgoing
from ropewalk.spark.sink.send import Sender, Sent

if TYPE_CHECKING:
    import pyarrow as pa

ORIGIN: Final = "RW_ORIGIN"
COLUMNS: Final = (
    "topic", "brokerName", "queueId", "queueOffset", "tags", "keys", "body", "properties", "flag", "storeTimestamp",
)  # fmt: skip
BATCH: Final = 100_000
"""Messages in one batch unless told otherwise: what a crash repeats at most."""
_VERSION: Final = 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LEFT_BEHIND: Final = RESERVED_PROPERTIES | {P.KEYS, P.TAGS, P.SHARDING_KEY, P.DELAY, P.TIMER_DELIVER_MS}


class BadReplay(RopewalkError):
    """A replay whose options make no sense."""


class JournalMismatch(RopewalkError):
    """The journal is of another replay."""


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """The target of the messages, and the rate."""

    name_server: str
    topic: str
    journal: str | None = None
    """A file on every worker's disk, or the driver's where everything is local."""
    rate: int | None = None
    """Messages per second, over all tasks."""
    keep_queues: bool = False
    """Messages of one queue stay in one queue, in their order."""
    max_per_batch: int = BATCH
    preserve_time: bool = False
    """Copies say that they were made when the original was: one request for each time."""
    key_filter: str | None = None
    """A condition of Spark's SQL over the columns; only messages for which it holds are sent."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns that a source has to give."""
        with_time = self.preserve_time or self.key_filter is not None
        return (*COLUMNS, "bornTimestamp") if with_time else COLUMNS

    def identity(self) -> dict[str, Any]:
        """Return the identity that two runs with one journal have in common."""
        named = {"to": self.topic, "to_name_server": self.name_server}
        if self.key_filter is not None:
            named["key_filter"] = self.key_filter
        return named


@dataclass(frozen=True, slots=True)
class OpenBatch:
    """A batch that may have been sent in part."""

    end: Any
    ranges: Sequence[Any]
    lost: int


@dataclass(slots=True)
class Journal:
    """The progress of a replay."""

    position: Any = None
    rows: int = 0
    begun: OpenBatch | None = None


@dataclass(slots=True)
class Replayed:
    """The result of one run."""

    batches: int = 0
    resumed: bool = False
    rows_before: int = 0
    sent: Sent = field(default_factory=Sent)
    lost: int = 0


@dataclass(frozen=True, slots=True)
class _Work:
    source: Source
    ranges: Sequence[Any]
    options: ReplayOptions
    rate: float | None


def replay(
    tasks: Tasks, source: Source, options: ReplayOptions, *, told: Callable[[int, int], None] = lambda _n, _rows: None
) -> Replayed:  # fmt: skip
    """Send the source's messages to the topic, from the journal's position on. Raises `BadReplay`."""
    if isinstance(source, LiveSource):
        topics = [name.strip() for name in source.options["topic"].split(",")]
        if options.topic in topics and source.options["nameServer"] == options.name_server:
            raise BadReplay(
                f"a replay of {options.topic} to itself would read what it writes: name another topic"
            )
    if options.key_filter is not None:
        check_condition(tasks, options.key_filter, options.columns)
    identity = source.identity() | options.identity()
    journal = Journal()
    if options.journal is not None:
        journal = tasks.run_one(_open_journal, (options.journal, identity), "opening the journal")
    done = Replayed(resumed=journal.begun is not None, rows_before=journal.rows)
    # The topic may be of the very broker whose store is read, which then grows as it is read.
    stop = (
        tasks.run_one(readable_end, source.path, "looking at the store")
        if isinstance(source, StoreSource)
        else None
    )
    while True:
        batch = journal.begun
        if batch is None:
            planned = source.plan(tasks, journal.position, options.max_per_batch)
            if planned is None or (stop is not None and planned.start["log"] >= stop):
                return done
            batch = OpenBatch(planned.end, planned.ranges, planned.lost)
            _save_journal(tasks, options, identity, Journal(journal.position, journal.rows, batch))
        rows = 0
        works = _works(tasks, source, options, batch)
        for sent in _send(tasks, works, options, f"batch {done.batches}"):
            rows += sent.rows
            _add(done.sent, sent)
        journal = Journal(batch.end, journal.rows + rows)
        _save_journal(tasks, options, identity, journal)
        done.batches += 1
        done.lost += batch.lost
        told(done.batches, rows)


def _works(tasks: Tasks, source: Source, options: ReplayOptions, batch: OpenBatch) -> list[_Work]:
    """Return the pieces of a batch. Where order counts, what may hold messages of one queue is one piece."""
    groups: dict[Any, list[Any]] = {}
    for number, range_ in enumerate(batch.ranges):
        groups.setdefault(_lane(source, range_) if options.keep_queues else number, []).append(range_)
    # Not all pieces may be done at once; those that are share the rate.
    rate = None if options.rate is None else options.rate / max(1, min(len(groups), tasks.width))
    return [_Work(source, ranges, options, rate) for ranges in groups.values()]


def _send(tasks: Tasks, works: list[_Work], options: ReplayOptions, label: str) -> list[Sent]:
    if options.key_filter is None:
        return tasks.run(send_ranges, works, label)
    return run_filtered(tasks, works, read_ranges, options.key_filter, options.columns, send_batches, label)


def _lane(source: Source, range_: Any) -> Any:
    """Ranges of live topics are of one queue each; those of a log and of a lake hold all queues."""
    return tuple(range_[:3]) if isinstance(range_, list) and len(range_) == 5 else None


def _add(total: Sent, sent: Sent) -> None:
    total.rows += sent.rows
    total.size += sent.size
    total.unreplicated += sent.unreplicated
    for key, (first, last) in sent.offsets.items():
        before = total.offsets.get(key, (first, last))
        total.offsets[key] = (min(before[0], first), max(before[1], last))


# -- in tasks ----------------------------------------------------------------------------------------


def send_ranges(work: _Work) -> Sent:
    """Read some ranges and send their messages. Blocks."""
    return send_batches(work, read_ranges(work))


def read_ranges(work: _Work) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some ranges, one after the other. Blocks."""
    for range_ in work.ranges:
        yield from work.source.read(range_)


def send_batches(work: _Work, batches: Iterable[pa.RecordBatch]) -> Sent:
    """Send the messages of some batches. Blocks."""
    options = work.options
    sender = Sender(parse_options({"nameServer": options.name_server, "topic": options.topic}, "write"))
    bucket = TokenBucket(work.rate) if work.rate is not None else None
    try:
        queues = sender.queues(options.topic) if options.keep_queues else None
        for batch in batches:
            for row in outgoing(batch, options.topic, queues, preserve_time=options.preserve_time):
                if bucket is not None:
                    bucket.acquire()
                sender.add(row)
        return sender.finish()
    finally:
        sender.close()


def outgoing(
    batch: pa.RecordBatch, topic: str, queues: Sequence[Queue] | None, *, preserve_time: bool = False
) -> Iterator[Outgoing]:
    """Return the messages of a batch as they are to be sent; with `queues`, each to the one of its old number."""
    names = batch.schema.names
    needed = ("body", "queueId", "queueOffset", *(("bornTimestamp",) if preserve_time else ()))
    missing = [name for name in needed if name not in names]
    if missing:
        raise BadReplay(f"these rows have no column {missing[0]}: nothing can be sent of them")
    for row in batch.to_pylist():
        given = dict(row.get("properties") or ())
        kept = {
            name: value for name, value in given.items() if name not in _LEFT_BEHIND and value is not None
        }
        origin = (
            f"{row.get('brokerName') or ''}/{row.get('topic') or ''}/{row['queueId']}/{row['queueOffset']}"
        )
        tags, odd_tags = copied_tags(row.get("tags"))
        message = Message(
            bytes(row["body"]),
            keys=split_keys(row.get("keys") or ""),
            tags=tags,
            properties=kept | odd_tags | {ORIGIN: origin},
            flag=row.get("flag") or 0,
            group=given.get(P.SHARDING_KEY) or None,
        )
        size = len(message.body) + len(encode_properties(message.properties))
        queue = queues[row["queueId"] % len(queues)] if queues else None
        made = row["bornTimestamp"] if preserve_time else None
        yield Outgoing(
            topic,
            message,
            size,
            queue.queue_id if queue else None,
            queue.broker_name if queue else None,
            None if made is None else (made - _EPOCH) // timedelta(milliseconds=1),
        )


class TokenBucket:
    """A token bucket: so many tokens a second, with a tenth of a second's worth at once."""

    def __init__(
        self,
        rate: float,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = rate
        self._room = max(1.0, rate / 10)
        self._left = self._room
        self._monotonic = monotonic
        self._sleep = sleep
        self._since = monotonic()

    def acquire(self) -> None:
        """Wait for one token."""
        now = self._monotonic()
        self._left = min(self._room, self._left + (now - self._since) * self._rate) - 1
        self._since = now
        if self._left < 0:
            self._sleep(-self._left / self._rate)


# -- the journal -------------------------------------------------------------------------------------


def _save_journal(tasks: Tasks, options: ReplayOptions, identity: dict[str, Any], journal: Journal) -> None:
    if options.journal is not None:
        tasks.run_one(_write_journal, (options.journal, identity, journal), "noting how far it came")


def _open_journal(work: tuple[str, dict[str, Any]]) -> Journal:
    path, identity = Path(work[0]), work[1]
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        return Journal()
    except (OSError, ValueError) as exc:
        raise JournalMismatch(f"{path} cannot be read as the journal of a replay: {exc}") from exc
    if not isinstance(document, dict) or document.get("v") != _VERSION or "of" not in document:
        raise JournalMismatch(f"{path} is no journal of a replay, or one of another version")
    for key in sorted({*identity, *document["of"]}):
        found, wanted = document["of"].get(key), json.loads(json.dumps(identity)).get(key)
        if found != wanted:
            raise JournalMismatch(
                f"{path} is the journal of a replay with {key} {found!r}, and this one has {wanted!r}: give it a "
                f"journal of its own"
            )
    begun = document["begun"]
    return Journal(document["position"], document["rows"], OpenBatch(**begun) if begun else None)


def _write_journal(work: tuple[str, dict[str, Any], Journal]) -> None:
    path, identity, journal = Path(work[0]), work[1], work[2]
    begun = journal.begun
    document = {
        "v": _VERSION, "of": identity, "position": journal.position, "rows": journal.rows,
        "begun": {"end": begun.end, "ranges": begun.ranges, "lost": begun.lost} if begun else None,
    }  # fmt: skip
    data = json.dumps(document, sort_keys=True, ensure_ascii=False, indent=1).encode()
    write_file(path, [(0, data)], len(data))
    sync_directory(path.parent)


def replay_report(what: str, options: ReplayOptions, done: Replayed) -> Report:
    """Report the messages that a run sent, and their offsets."""
    sent = done.sent
    summary = {
        "to": options.topic,
        "batches": done.batches,
        "messages": sent.rows,
        "bytes": sent.size,
        "messages_before": done.rows_before,
        "resumed": done.resumed,
        "reserved": sent.unreplicated,
        "lost": done.lost,
    }
    queues = [
        (broker, queue_id, first, last)
        for (_, broker, queue_id), (first, last) in sorted(sent.offsets.items())
    ]
    tables = [Table("queues", ("broker", "queue", "first", "last"), queues)]
    title = f"Sent {sent.rows} messages of {what} to {options.topic}"
    return Report("replay", title, summary, tables, [], DATA_LOSS if done.lost else OK)
