"""Every metric of a broker, under RocketMQ's name where it has one: what a census holds.

Called on the loop, so each function only copies numbers that exist already; what has to look at the disk (ages of
messages, sizes of directories) is returned as a job for the server's side. Families are cut at `SERIES_MAX` series,
and `ropewalk_metrics_left_out` then says how many are missing: topics, groups and queues are named by strangers.

Of RocketMQ's families these are not here, because they would need a clock or a label per message: `rpc_latency`,
`message_size`, the creation-time histograms; nor those of stores and services that do not exist here. The label
`message_type` is what the topic was declared to hold.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import ropewalk
from broker.admin_base import Desk
from broker.metrics import COUNTER, GAUGE, Family, HistogramFamily, Source
from broker.statistics import PUT_TIME_BOUNDS_MS
from ropewalk.format import names
from store import reader
from store.consume_queue import ConsumeQueue

if TYPE_CHECKING:
    from broker.broker import Broker

__all__ = ["of_broker", "version_name"]

SERIES_MAX: Final = 10_000
AGES_MAX: Final = 1_000
"""Lagging queues whose oldest unread message is looked up in the log, per census."""
_STORAGE_LABELS: Final = ("storage_type", "storage_medium")
_STORAGE: Final = ("local", "disk")
_MODES: Final = {"CONSUME_ACTIVELY": "pull", "CONSUME_PASSIVELY": "push", "CONSUME_POP": "pop"}

Found = list[Family | HistogramFamily]


def of_broker(broker: Broker) -> tuple[Found, list[Source]]:
    """All families, and the jobs that bring the rest."""
    found: Found = []
    later: list[Source] = []
    for part in (_tables, _traffic, _clients, _lag, _storage, _process):
        part(broker, found, later)
    cut = [(("series",), 0.0)]
    for at, family in enumerate(found):
        if isinstance(family, Family) and len(family.rows) > SERIES_MAX:
            cut.append(((family.name,), float(len(family.rows) - SERIES_MAX)))
            found[at] = Family(family.name, family.kind, family.help, family.labels, family.rows[:SERIES_MAX])
    if len(cut) > 1:
        told = "Series that are not shown because the family has too many"
        found.append(Family("ropewalk_metrics_left_out", GAUGE, told, ("family",), cut[1:]))
    return found, later


def _one(name: str, kind: str, help: str, value: float) -> Family:
    return Family(name, kind, help, (), [((), value)])


def _flag(value: bool) -> str:
    return "true" if value else "false"


# -- tables and roles --------------------------------------------------------------------------------


def _tables(broker: Broker, found: Found, later: list[Source]) -> None:
    ha = broker.ha_status
    end = broker.store.log.end_offset
    role = broker.member.record.role
    found += [
        _one("rocketmq_broker_permission", GAUGE, "Read 4, write 2", broker.config.broker_permission),
        _one("rocketmq_topic_number", GAUGE, "Topics of this broker", len(broker.topics)),
        _one("rocketmq_consumer_group_number", GAUGE, "Known consumer groups", len(broker.groups)),
        Family("ropewalk_build_info", GAUGE, "Always 1", ("version",), [((ropewalk.__version__,), 1)]),
        Family("ropewalk_role", GAUGE, "Always 1; the role is the label", ("role",), [((role,), 1)]),
        _one("ropewalk_epoch", GAUGE, "The epoch under which this broker has its role", ha.epoch),
        _one("ropewalk_in_sync_slaves", GAUGE, "Slaves that are in sync", sum(s.in_sync for s in ha.slaves)),
    ]
    help = "Bytes of the master's log that a slave has not reported yet"
    if ha.is_master:
        rows = [((slave.address,), float(end - slave.acknowledged)) for slave in ha.slaves]
        found.append(Family("ropewalk_replication_lag_bytes", GAUGE, help, ("slave",), rows))
    else:
        found.append(
            Family("ropewalk_replication_lag_bytes", GAUGE, help, ("slave",), [(("",), ha.lag_bytes)])
        )


# -- traffic -----------------------------------------------------------------------------------------


def _traffic(broker: Broker, found: Found, later: list[Source]) -> None:
    stats, topics = broker.statistics, broker.topics
    arrived, bytes_in = [], []
    for topic, total in stats.totals("TOPIC_PUT_NUMS"):
        if _is_internal(topic):
            continue
        config = topics.get(topic)
        kind = config.attributes.get("message.type", "NORMAL").lower() if config else "normal"
        labels = (topic, kind, _flag(topics.is_system(topic)))
        arrived.append((labels, float(total.messages)))
        bytes_in.append((labels, float(total.bytes)))
    in_labels = ("topic", "message_type", "is_system")
    left, bytes_out = [], []
    for key, total in stats.totals("GROUP_GET_NUMS"):
        topic, _, group = key.rpartition("@")
        if _is_internal(topic):
            continue
        labels = (topic, group, _flag(topics.is_system(topic) or names.is_system_group(group)))
        left.append((labels, float(total.messages)))
        bytes_out.append((labels, float(total.bytes)))
    out_labels = ("topic", "consumer_group", "is_system")
    dead = []
    for key, total in stats.totals("DLQ_PUT_NUMS"):
        topic, _, group = key.rpartition("@")
        dead.append(((group, topic, _flag(names.is_system_group(group))), float(total.messages)))
    bounds = tuple(max(bound, 1) / 1000 for bound in PUT_TIME_BOUNDS_MS)  # the first class is below 1 ms
    found += [
        Family("rocketmq_messages_in", COUNTER, "Messages stored for producers", in_labels, arrived),
        Family("rocketmq_throughput_in", COUNTER, "Bytes stored for producers", in_labels, bytes_in),
        Family("rocketmq_messages_out", COUNTER, "Messages given to consumers", out_labels, left),
        Family("rocketmq_throughput_out", COUNTER, "Bytes given to consumers", out_labels, bytes_out),
        Family(
            "rocketmq_send_to_dlq_messages",
            COUNTER,
            "Messages given up as dead letters",
            ("consumer_group", "topic", "is_system"),
            dead,
        ),
        _one("ropewalk_put_failures", COUNTER, "Messages that could not be stored", stats.put_failures),
        _one("ropewalk_pulls_found_nothing", COUNTER, "Pulls without a message", stats.missed),
        HistogramFamily(
            "ropewalk_append_seconds",
            "How long runs of messages took to append",
            bounds,
            tuple(stats.put_times),
            None,
        ),
        Family(
            "rocketmq_processor_watermark",
            GAUGE,
            "Requests that wait: answers for the disk, pulls for messages, tools for a look at the disk",
            ("processor",),
            [
                (("send",), float(len(broker.acks))),
                (("pull",), float(broker.hold.size)),
                (("admin",), float(broker.admin.waiting)),
            ],
        ),
    ]


def _is_internal(topic: str) -> bool:
    """Whether RocketMQ leaves the topic out of its counters of what went in and out."""
    return topic.startswith((names.RETRY_PREFIX, names.DLQ_PREFIX))


# -- clients -----------------------------------------------------------------------------------------


def _clients(broker: Broker, found: Found, later: list[Source]) -> None:
    clients = broker.clients
    producers: Counter[tuple[str, ...]] = Counter()
    for group in clients.producer_groups():
        for member in clients.producer_members(group).values():
            producers[member.language.lower(), version_name(member.version), "remoting"] += 1
    consumers: Counter[tuple[str, ...]] = Counter()
    for group in clients.consumer_groups():
        info = clients.consumer_group(group)
        if info is None:
            continue
        mode = _MODES.get(info.consume_type, "unknown")
        system = _flag(names.is_system_group(group))
        for member in info.members.values():
            version = version_name(member.version)
            consumers[group, member.language.lower(), version, mode, "remoting", system] += 1
    found += [
        Family(
            "rocketmq_producer_connections",
            GAUGE,
            "Producers by what they are written in",
            ("language", "version", "protocol_type"),
            [(labels, float(count)) for labels, count in producers.items()],
        ),
        Family(
            "rocketmq_consumer_connections",
            GAUGE,
            "Consumers by group and by what they are written in",
            ("consumer_group", "language", "version", "consume_mode", "protocol_type", "is_system"),
            [(labels, float(count)) for labels, count in consumers.items()],
        ),
        _one(
            "ropewalk_subscription_conflicts",
            GAUGE,
            "Members that subscribe to other things than the first member of their group, which loses messages",
            sum(
                len(info.conflicts())
                for group in clients.consumer_groups()
                if (info := clients.consumer_group(group)) is not None and len(info.members) > 1
            ),
        ),
    ]


def version_name(version: int) -> str:
    """The name of a client's version, from the number in its frames: 453 is v5_2_0, and even numbers are snapshots."""
    count = (version - 213 + 1) // 2  # releases since 4.0.0; each minor version has ten of them
    if count < 0 or version > 1_000:
        return f"v{version}"
    minor, patch = divmod(count, 10)
    name = f"v4_{minor}_{patch}" if minor < 10 else f"v5_{minor - 10}_{patch}"
    return name if version % 2 else f"{name}_snapshot"


# -- how far groups are behind -----------------------------------------------------------------------


def _lag(broker: Broker, found: Found, later: list[Source]) -> None:
    """Messages by group and topic at once; the age of the oldest of them by a look at the log."""
    by_pair: dict[tuple[str, ...], int] = {}
    by_queue: list[tuple[tuple[str, ...], float]] = []
    oldest: list[tuple[tuple[str, ...], ConsumeQueue, int]] = []
    for topic, group, offsets in broker.offsets.pairs():
        queues = broker.store.queues.get(topic)
        if queues is None or len(by_queue) > SERIES_MAX:
            continue
        system = _flag(broker.topics.is_system(topic) or names.is_system_group(group))
        pair = (group, topic, _flag(topic.startswith(names.RETRY_PREFIX)), system)
        behind = 0
        for queue_id, committed in offsets.items():
            queue = queues.get(queue_id)
            if queue is None:
                continue
            place = max(committed, queue.min_offset)
            lag = max(queue.readable - place, 0)
            behind += lag
            by_queue.append(((group, topic, str(queue_id)), float(lag)))
            if lag and len(oldest) < AGES_MAX:
                oldest.append((pair, queue, place))
        by_pair[pair] = behind
    labels = ("consumer_group", "topic", "is_retry", "is_system")
    help = "Messages that a group has not committed yet"
    found += [
        Family(
            "rocketmq_consumer_lag_messages",
            GAUGE,
            help,
            labels,
            [(pair, float(behind)) for pair, behind in by_pair.items()],
        ),
        Family(
            "ropewalk_consumer_queue_lag_messages",
            GAUGE,
            f"{help}, by queue",
            ("consumer_group", "topic", "queue"),
            by_queue,
        ),
    ]
    look = Desk(broker).store_times([(queue, place) for _pair, queue, place in oldest])
    pairs = [pair for pair, _queue, _place in oldest]

    def ages() -> Iterator[Family]:
        now = broker.now_ms()
        age_ms = dict.fromkeys(by_pair, 0)
        for pair, stored_ms in zip(pairs, look(), strict=True):
            if stored_ms > 0:
                age_ms[pair] = max(age_ms[pair], now - stored_ms)
        yield Family(
            "rocketmq_consumer_lag_latency",
            GAUGE,
            "Milliseconds since the oldest message was stored that a group has not committed yet",
            labels,
            [(pair, float(age)) for pair, age in age_ms.items()],
        )

    later.append(ages)


# -- storage -----------------------------------------------------------------------------------------


def _storage(broker: Broker, found: Found, later: list[Source]) -> None:
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
            _STORAGE_LABELS,
            [(_STORAGE, float(end - store.flushed_offset))],
        ),
        Family(
            "rocketmq_storage_dispatch_behind_bytes",
            GAUGE,
            "Log bytes that no consumer may see yet",
            _STORAGE_LABELS,
            [(_STORAGE, float(end - store.readable_offset))],
        ),
        _one("ropewalk_log_end_offset", GAUGE, "Where the log ends", end),
        _one("ropewalk_log_min_offset", GAUGE, "Where the log begins", log.min_offset),
        Family("ropewalk_delayed_messages", GAUGE, "Messages that wait for their time", ("level",), waiting),
    ]
    if store.flush_times is not None:
        times = store.flush_times
        help = "How long the flushes of the log took"
        found.append(
            HistogramFamily("ropewalk_flush_seconds", help, times.bounds, tuple(times.counts), times.total)
        )
    oldest, now_ms, min_offset = Path(root), broker.now_ms, log.min_offset

    def look() -> Iterator[Family]:
        stored_ms = reader.record_time(log, min_offset)
        total, free, usable = disk.space(root)
        kept = float(max(now_ms() - stored_ms, 0)) if stored_ms > 0 else 0.0
        used = (total - free) / (total - free + usable) if total > 0 else -1.0
        help = "Bytes of the store's files, allocated ahead or not"
        size = float(_size_of(oldest))
        yield Family("rocketmq_storage_size", GAUGE, help, _STORAGE_LABELS, [(_STORAGE, size)])
        help = "How long ago the oldest message was stored, ms"
        name = "rocketmq_storage_message_reserve_time"
        yield Family(name, GAUGE, help, _STORAGE_LABELS, [(_STORAGE, kept)])
        yield _one("ropewalk_disk_used_ratio", GAUGE, "As df tells it; -1 where unknown", used)
        yield _one("ropewalk_disk_free_bytes", GAUGE, "Bytes that are left on the store's disk", usable)

    later.append(look)


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


def _process(broker: Broker, found: Found, later: list[Source]) -> None:
    delays = broker.metrics.loop_delays
    uptime_s = (broker.now_ms() - broker.statistics.boot_ms) / 1000
    found += [
        HistogramFamily(
            "ropewalk_loop_delay_seconds",
            "By how much the loop's ticks came later than they were due",
            delays.bounds,
            tuple(delays.counts),
            delays.total,
        ),
        _one("ropewalk_ready", GAUGE, "1 where messages are taken", float(not broker.unready())),
        _one("ropewalk_uptime_seconds", GAUGE, "Since the process began", uptime_s),
    ]
