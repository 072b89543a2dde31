"""Every metric of a broker, under RocketMQ's name where it has one: what a census holds.

`of_broker` is called on the loop and copies a few dozen numbers. Everything else is left to jobs that it returns for
the server's side: what there is one of by topic, group or queue they fetch from the loop in small slices, and what
only the disk can tell (ages of messages, sizes of directories) they look up themselves. Families are cut at
`SERIES_MAX` series, and `ropewalk_metrics_left_out` then says how many are missing: topics, groups and queues are
named by strangers. A histogram's buckets are series too.

Of RocketMQ's families only those are not here that tell of stores and services which do not exist here. The label
`message_type` is what the topic was declared to hold, and a request that has no name is `unknown`: strangers invent
codes too.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, Protocol, TypeVar

import ropewalk
from broker.context import BrokerContext
from broker.kv.regions import KvRegions
from broker.metrics.kv import kv_families
from broker.metrics.ledger import ledger_families
from broker.metrics.snapshot import COUNTER, GAUGE, Family, HistogramFamily, Source
from broker.metrics.timers import STORAGE, STORAGE_LABELS, slow_timer_families, timer_families
from broker.remoting.rpc_times import BOUNDS_MS as RPC_BOUNDS_MS
from broker.sinks.service import SinkService
from broker.state.statistics import (
    CONSUMER_GROUP,
    CREATION_BOUNDS_MS,
    PUT_TIME_BOUNDS_MS,
    SIZE_BOUNDS,
    TOPIC,
    TopicMeter,
)
from broker.timers.timer_service import TimerService
from broker.transactions.counts import FINISH_BOUNDS_S
from broker.transactions.service import TransactionService
from ha.dledger.status import LedgerStatus
from ropewalk.format import names
from store.io.durations import Durations
from store.queues.consume_queue import ConsumeQueue
from store.read.store_times import oldest_store_time, store_times
from store.retention.forced import ForcedCleaning

__all__ = ["of_broker", "trimmed", "version_name"]

K = TypeVar("K")
V = TypeVar("V")

SERIES_MAX: Final = 10_000
SLICE: Final = 16
"""Groups, or pairs of topic and group, that the loop is asked about at a time."""
AGES_MAX: Final = 1_000
"""Lagging queues whose oldest unread message is looked up in the log, per census."""
_BESIDE_BUCKETS: Final = 3
"""The open bucket of a histogram, its count and its sum."""
_MODES: Final = {"CONSUME_ACTIVELY": "pull", "CONSUME_PASSIVELY": "push", "CONSUME_POP": "pop"}

Found = list[Family | HistogramFamily]


@dataclass(frozen=True, slots=True)
class MetricSources:
    """Everything that numbers are read from."""

    broker: BrokerContext
    role: str
    ledger: LedgerStatus | None
    """The status of a member of a DLedger group; None for any other broker."""
    kv: KvRegions | None
    """The regions of the key-value store, if it is served here."""
    transactions: TransactionService
    timers: TimerService
    sinks: SinkService
    lookups_waiting: int
    """Administrators' requests that wait for the helper thread."""
    loop_delays: Durations
    on_loop: OnLoop
    """As `Metrics.on_loop`, for jobs on the server's side."""


class OnLoop(Protocol):
    def __call__(self, look: Callable[[], V], /) -> V: ...


def of_broker(sources: MetricSources) -> tuple[Found, list[Source]]:
    """Return the families that are known at once, and the jobs that bring the rest. On the loop."""
    found: Found = []
    later: list[Source] = [
        partial(_traffic, sources),
        partial(_producers, sources),
        partial(_consumers, sources),
        partial(_lag, sources),
    ]
    for part in (_tables, _totals, _requests, _creations, _transactions, _timers, _sinks, _storage, _process):
        part(sources, found, later)
    return found, later


def trimmed(families: Iterable[Family | HistogramFamily]) -> Iterator[Family | HistogramFamily]:
    """The families, none of them too long, and how much is missing of those that were. On the server's side."""
    missing: list[tuple[tuple[str, ...], float]] = []
    for family in families:
        width = 1 if isinstance(family, Family) else len(family.bounds) + _BESIDE_BUCKETS
        room = SERIES_MAX // width
        if len(family.rows) > room:
            missing.append(((family.name,), float((len(family.rows) - room) * width)))
            if isinstance(family, Family):
                family = replace(family, rows=family.rows[:room])
            else:
                family = replace(family, rows=family.rows[:room])
        yield family
    if missing:
        told = "Series that are not shown because the family has too many"
        yield Family("ropewalk_metrics_left_out", GAUGE, told, ("family",), missing)


def _sliced(sources: MetricSources, keys: Sequence[K], look: Callable[[Sequence[K]], V]) -> Iterator[V]:
    """Collect samples of the keys on the loop, a slice at a time."""
    for start in range(0, len(keys), SLICE):
        yield sources.on_loop(partial(look, keys[start : start + SLICE]))


def _one(name: str, kind: str, help: str, value: float) -> Family:
    return Family(name, kind, help, (), [((), value)])


def _flag(value: bool) -> str:
    return "true" if value else "false"


# -- tables and roles --------------------------------------------------------------------------------


def _tables(sources: MetricSources, found: Found, later: list[Source]) -> None:
    broker = sources.broker
    ha = broker.ha_status
    end = broker.store.log.end_offset
    role = sources.role
    found += [
        _one("rocketmq_broker_permission", GAUGE, "Read 4, write 2", broker.config.broker_permission),
        _one("rocketmq_topic_number", GAUGE, "Topics of this broker", len(broker.topics)),
        _one("rocketmq_consumer_group_number", GAUGE, "Known consumer groups", len(broker.groups)),
        Family("ropewalk_build_info", GAUGE, "Always 1", ("version",), [((ropewalk.__version__,), 1)]),
        Family("ropewalk_role", GAUGE, "Always 1; the role is the label", ("role",), [((role,), 1)]),
        _one("ropewalk_epoch", GAUGE, "The epoch under which this broker has its role", ha.epoch),
        _one("ropewalk_in_sync_slaves", GAUGE, "Slaves that are in sync", sum(s.in_sync for s in ha.slaves)),
        _one(
            "ropewalk_route_rivals",
            GAUGE,
            "Name servers at which another broker of this name and id is registered and alive",
            broker.routes.count,
        ),
        Family(
            "ropewalk_client_conflicts",
            COUNTER,
            "Consumers that joined a group with another subscription, or under a client id that it had already",
            ("kind",),
            [((kind,), broker.clients.conflicts[kind]) for kind in ("client_id", "subscription")],
        ),
    ]
    found += ledger_families(sources.ledger)
    found += kv_families(sources.kv or ())
    help = "Bytes of the master's log that a slave has not reported yet"
    if ha.is_master:
        rows = [((slave.address,), float(end - slave.acknowledged)) for slave in ha.slaves]
        found.append(Family("ropewalk_replication_lag_bytes", GAUGE, help, ("slave",), rows))
    else:
        found.append(
            Family("ropewalk_replication_lag_bytes", GAUGE, help, ("slave",), [(("",), ha.lag_bytes)])
        )


# -- traffic -----------------------------------------------------------------------------------------


def _totals(sources: MetricSources, found: Found, later: list[Source]) -> None:
    broker = sources.broker
    stats = broker.statistics
    bounds = tuple(max(bound, 1) / 1000 for bound in PUT_TIME_BOUNDS_MS)  # the first class is below 1 ms
    found += [
        _one("ropewalk_put_failures", COUNTER, "Messages that could not be stored", stats.put_failures),
        _one("ropewalk_pulls_found_nothing", COUNTER, "Pulls without a message", stats.missed),
        HistogramFamily(
            "ropewalk_append_seconds",
            "How long runs of messages took to append",
            bounds,
            (),
            [((), tuple(stats.put_times), None)],
        ),
        Family(
            "rocketmq_processor_watermark",
            GAUGE,
            "Requests that wait: answers for the disk, pulls for messages or for a share of the loop, tools for a disk",
            ("processor",),
            [
                (("send",), float(len(broker.acks))),
                (("pull",), float(broker.held_pulls.size)),
                (("catch_up",), float(broker.catch_up_pulls.size)),
                (("admin",), float(sources.lookups_waiting)),
            ],
        ),
    ]


def _requests(sources: MetricSources, found: Found, later: list[Source]) -> None:
    broker = sources.broker
    found.append(
        HistogramFamily(
            "rocketmq_rpc_latency",
            "Milliseconds from when requests had been read to when their answers were handed over",
            RPC_BOUNDS_MS,
            ("protocol_type", "request_code", "response_code", "is_long_polling", "result"),
            [
                (
                    ("remoting", one.request, one.response, _flag(one.long_polling), one.result),
                    one.counts,
                    one.total_ms,
                )
                for one in broker.rpc_times.series()
            ],
        )
    )


def _traffic(sources: MetricSources) -> Iterator[Family | HistogramFamily]:
    """On the server's side: a meter is four numbers, and a topic's configuration never changes, only which it is."""
    broker = sources.broker
    stats, topics = broker.statistics, broker.topics
    arrived, bytes_in, sizes = [], [], []
    for topic, meter in sources.on_loop(partial(stats.meters, "TOPIC_PUT_NUMS")):
        if _is_internal(topic):
            continue
        config = topics.get(topic)
        kind = config.attributes.get("message.type", "NORMAL").lower() if config else "normal"
        labels = (topic, kind, _flag(topics.is_system(topic)))
        arrived.append((labels, float(meter.messages)))
        bytes_in.append((labels, float(meter.bytes)))
        assert isinstance(meter, TopicMeter)
        sizes.append((labels, tuple(meter.classes), float(meter.classes_total)))
    names_in = ("topic", "message_type", "is_system")
    yield Family("rocketmq_messages_in", COUNTER, "Messages stored for producers", names_in, arrived)
    yield Family("rocketmq_throughput_in", COUNTER, "Bytes stored for producers", names_in, bytes_in)
    help = "Bytes of the log that messages took; those of a batch count once, at their average"
    yield HistogramFamily("rocketmq_message_size", help, SIZE_BOUNDS, names_in, sizes)
    left, bytes_out = [], []
    for key, meter in sources.on_loop(partial(stats.meters, "GROUP_GET_NUMS")):
        topic, _, group = key.rpartition("@")
        if _is_internal(topic):
            continue
        labels = (topic, group, _flag(topics.is_system(topic) or names.is_system_group(group)))
        left.append((labels, float(meter.messages)))
        bytes_out.append((labels, float(meter.bytes)))
    names_out = ("topic", "consumer_group", "is_system")
    yield Family("rocketmq_messages_out", COUNTER, "Messages given to consumers", names_out, left)
    yield Family("rocketmq_throughput_out", COUNTER, "Bytes given to consumers", names_out, bytes_out)
    dead = []
    for key, meter in sources.on_loop(partial(stats.meters, "DLQ_PUT_NUMS")):
        topic, _, group = key.rpartition("@")
        dead.append(((group, topic, _flag(names.is_system_group(group))), float(meter.messages)))
    names_dead = ("consumer_group", "topic", "is_system")
    help = "Messages given up as dead letters"
    yield Family("rocketmq_send_to_dlq_messages", COUNTER, help, names_dead, dead)


def _is_internal(topic: str) -> bool:
    """Whether RocketMQ leaves the topic out of its counters of what went in and out."""
    return topic.startswith((names.RETRY_PREFIX, names.DLQ_PREFIX))


def _creations(sources: MetricSources, found: Found, later: list[Source]) -> None:
    """Counts of the changes that administrators made, and their duration."""
    broker = sources.broker
    times = broker.statistics.creation_times
    for what, name in ((TOPIC, "topic"), (CONSUMER_GROUP, "consumer_group")):
        found.append(
            HistogramFamily(
                f"rocketmq_{name}_create_execution_time",
                f"Milliseconds in which administrators' requests to make a {what} were carried out",
                CREATION_BOUNDS_MS,
                ("invocation_status", "is_system"),
                [
                    (("success" if ok else "failure", _flag(system)), tuple(seen.counts), seen.total * 1000)
                    for (kind, ok, system), seen in times.items()
                    if kind == what
                ],
            )
        )


def _transactions(sources: MetricSources, found: Found, later: list[Source]) -> None:
    """Open, ended and given-up transactions, by topic."""
    halves, counts = sources.transactions.halves, sources.transactions.counts

    def by_topic(name: str, kind: str, help: str, numbers: Mapping[str, int]) -> Family:
        return Family(name, kind, help, ("topic",), [((topic,), float(n)) for topic, n in numbers.items()])

    found += [
        by_topic("rocketmq_half_messages", GAUGE, "Transactions that nobody has ended yet", halves.counts),
        by_topic("rocketmq_commit_messages", COUNTER, "Transactions that were committed", counts.committed),
        by_topic(
            "rocketmq_rollback_messages", COUNTER, "Transactions that were rolled back", counts.rolled_back
        ),
        by_topic(
            "ropewalk_given_up_transactions",
            COUNTER,
            "Transactions that nobody ended, however often producers were asked",
            counts.given_up,
        ),
        _one(
            "ropewalk_transaction_checks", COUNTER, "Questions to producers about transactions", counts.checks
        ),
        _one(
            "ropewalk_transaction_checks_without_producer",
            COUNTER,
            "Checks that were due while no producer of the group was connected",
            counts.unasked,
        ),
        HistogramFamily(
            "rocketmq_finish_message_latency",
            "Seconds from a half message to its commit",
            FINISH_BOUNDS_S,
            ("topic",),
            [((topic,), tuple(seen.counts), seen.total) for topic, seen in counts.latencies.items()],
        ),
    ]


def _timers(sources: MetricSources, found: Found, later: list[Source]) -> None:
    """Timer messages: what waits, what came and went, and how far behind the wheel is."""
    found += timer_families(sources.timers)
    broker = sources.broker
    later.append(
        partial(slow_timer_families, sources.timers, broker.store.log, sources.on_loop, broker.now_ms())
    )


def _sinks(sources: MetricSources, found: Found, later: list[Source]) -> None:
    """Sinks that write exactly once, and the outcomes of their rows."""
    sinks = sources.sinks
    found += [
        _one("ropewalk_sinks", GAUGE, "Sinks that write exactly once", sinks.table.count),
        _one("ropewalk_sink_window_rows", GAUGE, "Rows of open batches of sinks", sinks.table.rows),
        Family(
            "ropewalk_sink_rows",
            COUNTER,
            "Rows of sinks: appended, or known because an earlier attempt had stored them",
            ("result",),
            [(("appended",), float(sinks.appended)), (("known",), float(sinks.known))],
        ),
        _one("ropewalk_sink_requests_fenced", COUNTER, "Requests of attempts that were over", sinks.fenced),
    ]


# -- clients -----------------------------------------------------------------------------------------


def _producers(sources: MetricSources) -> Iterator[Family]:
    broker = sources.broker
    clients = broker.clients

    def count(groups: Sequence[str]) -> Counter[tuple[str, ...]]:
        return Counter(
            (member.language.lower(), version_name(member.version), "remoting")
            for group in groups
            for member in clients.producer_members(group).values()
        )

    producers: Counter[tuple[str, ...]] = Counter()
    for part in _sliced(sources, sources.on_loop(clients.producer_groups), count):
        producers += part
    yield Family(
        "rocketmq_producer_connections",
        GAUGE,
        "Producers by what they are written in",
        ("language", "version", "protocol_type"),
        [(labels, float(number)) for labels, number in producers.items()],
    )


def _consumers(sources: MetricSources) -> Iterator[Family]:
    broker = sources.broker
    clients = broker.clients

    def count(groups: Sequence[str]) -> tuple[Counter[tuple[str, ...]], int]:
        found: Counter[tuple[str, ...]] = Counter()
        conflicts = 0
        for group in groups:
            info = clients.consumer_group(group)
            if info is None:
                continue
            mode = _MODES.get(info.consume_type, "unknown")
            system = _flag(names.is_system_group(group))
            for member in info.members.values():
                version = version_name(member.version)
                found[group, member.language.lower(), version, mode, "remoting", system] += 1
            if len(info.members) > 1:
                conflicts += len(info.conflicts())
        return found, conflicts

    consumers: Counter[tuple[str, ...]] = Counter()
    conflicts = 0
    for part, odd in _sliced(sources, sources.on_loop(clients.consumer_groups), count):
        consumers += part
        conflicts += odd
    yield Family(
        "rocketmq_consumer_connections",
        GAUGE,
        "Consumers by group and by what they are written in",
        ("consumer_group", "language", "version", "consume_mode", "protocol_type", "is_system"),
        [(labels, float(number)) for labels, number in consumers.items()],
    )
    help = "Members that subscribe to other things than the first member of their group, which loses messages"
    yield _one("ropewalk_subscription_conflicts", GAUGE, help, conflicts)


def version_name(version: int) -> str:
    """The name of a client's version, from the number in its frames: 453 is v5_2_0, and even numbers are snapshots."""
    count = (version - 213 + 1) // 2  # releases since 4.0.0; each minor version has ten of them
    if count < 0 or version > 1_000:
        return f"v{version}"
    minor, patch = divmod(count, 10)
    name = f"v4_{minor}_{patch}" if minor < 10 else f"v5_{minor - 10}_{patch}"
    return name if version % 2 else f"{name}_snapshot"


# -- how far groups are behind -----------------------------------------------------------------------


class _Behind(NamedTuple):
    """How far one group is behind in one queue, and how to find out since when."""

    pair: tuple[str, ...]
    queue_id: int
    messages: int
    """Not committed yet."""
    ready: int
    """Of these, not even fetched yet; the others are in flight."""
    spot: int
    """Place of the oldest such message in what `look` brings; -1 where there is none to look up."""
    ready_spot: int
    """The same for the oldest that was not fetched."""


def _lag(sources: MetricSources) -> Iterator[Family]:
    """Messages by group and topic; the age of the oldest of them by a look at the log."""
    broker = sources.broker
    offsets, queues, topics = broker.offsets, broker.store.queues, broker.topics
    ages_left = AGES_MAX

    def spot_of(places: list[tuple[ConsumeQueue | None, int]], queue: ConsumeQueue, offset: int) -> int:
        """Where the age of a message will be found; -1 if there is no such message, or no room."""
        if offset >= queue.readable:
            return -1
        if places and places[-1] == (queue, offset):
            return len(places) - 1
        if len(places) >= ages_left:
            return -1
        places.append((queue, offset))
        return len(places) - 1

    def count(
        pairs: Sequence[tuple[str, str, dict[int, int]]],
    ) -> tuple[list[_Behind], Callable[[], list[int]]]:
        found: list[_Behind] = []
        places: list[tuple[ConsumeQueue | None, int]] = []
        for topic, group, committed in pairs:
            system = _flag(topics.is_system(topic) or names.is_system_group(group))
            pair = (group, topic, _flag(topic.startswith(names.RETRY_PREFIX)), system)
            of_topic = queues.get(topic, {})
            for queue_id, offset in committed.items():
                queue = of_topic.get(queue_id)
                if queue is None:
                    continue
                place = min(max(offset, queue.min_offset), queue.readable)
                fetched = max(place, min(offsets.fetched(group, topic, queue_id), queue.readable))
                found.append(
                    _Behind(
                        pair,
                        queue_id,
                        queue.readable - place,
                        queue.readable - fetched,
                        spot_of(places, queue, place),
                        spot_of(places, queue, fetched),
                    )
                )
        return found, store_times(broker.store.log, places)

    now = broker.now_ms()
    messages: Counter[tuple[str, ...]] = Counter()
    ready: Counter[tuple[str, ...]] = Counter()
    age_ms: dict[tuple[str, ...], int] = {}
    ready_ms: dict[tuple[str, ...], int] = {}
    by_queue = []
    for part, look in _sliced(sources, sources.on_loop(partial(offsets.pairs, SERIES_MAX)), count):
        stored_ms = look()
        ages_left -= len(stored_ms)
        for one in part:
            pair = one.pair
            messages[pair] += one.messages
            ready[pair] += one.ready
            for ages, spot in ((age_ms, one.spot), (ready_ms, one.ready_spot)):
                since = stored_ms[spot] if spot >= 0 else 0
                ages[pair] = max(ages.get(pair, 0), now - since if since > 0 else 0)
            by_queue.append(((pair[0], pair[1], str(one.queue_id)), float(one.messages)))
        if len(by_queue) > SERIES_MAX:
            break
    labels = ("consumer_group", "topic", "is_retry", "is_system")
    help = "Messages that a group has not committed yet"
    rows = [(pair, float(number)) for pair, number in messages.items()]
    yield Family("rocketmq_consumer_lag_messages", GAUGE, help, labels, rows)
    rows = [(pair, float(number)) for pair, number in ready.items()]
    yield Family(
        "rocketmq_consumer_ready_messages",
        GAUGE,
        "Messages that no member of a group has fetched yet",
        labels,
        rows,
    )
    yield Family(
        "rocketmq_consumer_inflight_messages",
        GAUGE,
        "Messages that members of a group have fetched and not committed yet",
        labels,
        [(pair, float(number - ready[pair])) for pair, number in messages.items()],
    )
    yield Family(
        "ropewalk_consumer_queue_lag_messages",
        GAUGE,
        f"{help}, by queue",
        ("consumer_group", "topic", "queue"),
        by_queue,
    )
    yield Family(
        "rocketmq_consumer_lag_latency",
        GAUGE,
        "Milliseconds since the oldest message was stored that a group has not committed yet",
        labels,
        [(pair, float(age)) for pair, age in age_ms.items()],
    )
    yield Family(
        "rocketmq_consumer_queueing_latency",
        GAUGE,
        "Milliseconds since the oldest message was stored that no member of a group has fetched yet",
        labels,
        [(pair, float(age)) for pair, age in ready_ms.items()],
    )


# -- storage -----------------------------------------------------------------------------------------


def _storage(sources: MetricSources, found: Found, later: list[Source]) -> None:
    broker = sources.broker
    store, root = broker.store, broker.config.store_path_root_dir
    log, disk = store.log, broker.disk
    end = log.end_offset
    waiting = []
    for level, delivered in broker.delays.offsets().items():
        queue = store.find_queue(names.SCHEDULE_TOPIC, level - 1)
        if queue is not None:
            waiting.append(((str(level),), float(max(queue.readable - delivered, 0))))
    found += [
        Family(
            "rocketmq_storage_flush_behind_bytes",
            GAUGE,
            "Log bytes that are not flushed yet",
            STORAGE_LABELS,
            [(STORAGE, float(end - store.log.flushed_offset))],
        ),
        Family(
            "rocketmq_storage_dispatch_behind_bytes",
            GAUGE,
            "Log bytes that no consumer may see yet",
            STORAGE_LABELS,
            [(STORAGE, float(end - store.readable_offset))],
        ),
        _one("ropewalk_log_end_offset", GAUGE, "Where the log ends", end),
        _one("ropewalk_log_min_offset", GAUGE, "Where the log begins", log.min_offset),
        Family("ropewalk_delayed_messages", GAUGE, "Messages that wait for their time", ("level",), waiting),
    ]
    if (damage := store.damage) is not None:
        help = "Places of the log that do not match their checksums, and are not served"
        found.append(_one("ropewalk_log_damaged_places", GAUGE, help, len(damage)))
        help = "Damaged places that another member's copy made whole"
        found.append(_one("ropewalk_log_mended_places", COUNTER, help, damage.mended))
    help = "Files of the store that something else removed while the broker ran"
    found.append(_one("ropewalk_store_removed_files", COUNTER, help, store.upkeep.removed_files))
    if (cleaner := store.upkeep.cleaner) is not None:
        found += _forced_cleaning(cleaner.forced)
    if store.flush_times is not None:
        help = "How long the flushes of the log took"
        found.append(HistogramFamily.of("ropewalk_flush_seconds", help, store.flush_times))
    oldest, now_ms = Path(root), broker.now_ms

    def look() -> Iterator[Family]:
        stored_ms = oldest_store_time(log)
        space = disk.space(root)
        kept = float(max(now_ms() - stored_ms, 0)) if stored_ms > 0 else 0.0
        help = "Bytes of the store's files, allocated ahead or not"
        size = float(_size_of(oldest))
        yield Family("rocketmq_storage_size", GAUGE, help, STORAGE_LABELS, [(STORAGE, size)])
        help = "How long ago the oldest message was stored, ms"
        name = "rocketmq_storage_message_reserve_time"
        yield Family(name, GAUGE, help, STORAGE_LABELS, [(STORAGE, kept)])
        yield _one("ropewalk_disk_used_ratio", GAUGE, "As df tells it; -1 where unknown", space.used_ratio)
        yield _one("ropewalk_disk_free_bytes", GAUGE, "Bytes that are left on the store's disk", space.usable)

    later.append(look)


def _forced_cleaning(forced: ForcedCleaning) -> Found:
    help = "Part of the disk that can be written until messages younger than fileReservedTime go; -1 where none go"
    return [
        _one("ropewalk_forced_cleaning_room_ratio", GAUGE, help, forced.room),
        _one(
            "ropewalk_forced_cleaning_segments",
            COUNTER,
            "Segments that went before their time",
            forced.removed,
        ),
        _one(
            "ropewalk_forced_cleaning_stopped",
            GAUGE,
            "1 where the disk is too full, and removing segments gives it no room",
            float(forced.stopped is not None),
        ),
    ]


def _size_of(root: Path) -> int:
    """Bytes of all files below a directory; what vanishes meanwhile does not count."""
    size = 0
    for directory, _names, files in os.walk(root):
        for name in files:
            try:
                size += os.lstat(os.path.join(directory, name)).st_size
            except OSError:
                continue
    return size


# -- the process -------------------------------------------------------------------------------------


def _process(sources: MetricSources, found: Found, later: list[Source]) -> None:
    broker = sources.broker
    delays = sources.loop_delays
    uptime_s = (broker.now_ms() - broker.statistics.boot_ms) / 1000
    found += [
        HistogramFamily.of(
            "ropewalk_loop_delay_seconds",
            "By how much the loop's ticks came later than they were due",
            delays,
        ),
        _one("ropewalk_ready", GAUGE, "1 where messages are taken", float(not broker.unready())),
        _one("ropewalk_uptime_seconds", GAUGE, "Since the process began", uptime_s),
    ]
