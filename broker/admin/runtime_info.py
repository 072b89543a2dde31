"""The answer to "how are you" (28): a flat table of texts that mqadmin, the dashboard and the exporter parse.

The names, the spellings (one of them wrong, and needed) and the forms of the values are RocketMQ's; a tool that finds a
number missing fails with a parse error. What this broker has no notion of, such as thread pools, is told as an idle
one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import ropewalk
from broker.context import BrokerContext
from broker.state.statistics import PUT_TIME_BOUNDS_MS, Statistics
from ropewalk.format import names
from store.io.disk import Space

__all__ = ["DiskFacts", "runtime_info"]

VERSION: Final = "V5_5_0"
VERSION_NUMBER: Final = 479
"""The version number in this broker's frames, which is 5.3.3: clients choose by it which requests they send."""

_PUT_TIME_LABELS: Final = (
    *("<=0ms", "0~10ms", "10~50ms", "50~100ms", "100~200ms", "200~500ms", "500ms~1s"),
    *("1~2s", "2~3s", "3~4s", "4~5s", "5~10s", "10s~"),
)
_POOLS: Final = ("send", "pull", "litePull", "query", "ack")


@dataclass(frozen=True, slots=True)
class DiskFacts:
    """Facts of the disk, found out on a helper thread."""

    log: Space
    queues: Space
    earliest_ms: int
    """When the oldest record was stored, -1 if there is none."""


def runtime_info(broker: BrokerContext, disk: DiskFacts, now_ms: int) -> dict[str, str]:
    """All keys of code 28 with their values as text."""
    store, config, stats = broker.store, broker.config, broker.statistics
    end = store.log.end_offset
    table: dict[str, object] = {
        "bootTimestamp": stats.boot_ms,
        "runtime": _duration((now_ms - stats.boot_ms) // 1000),
        "brokerVersionDesc": VERSION,
        "ropewalkVersion": ropewalk.__version__,
        "brokerVersion": VERSION_NUMBER,
        "brokerActive": "true" if not broker.stopping else "false",
        "startAcceptSendRequestTimeStamp": 0,
        "commitLogMinOffset": store.log.min_offset,
        "commitLogMaxOffset": end,
        "commitLogDiskRatio": round(disk.log.used_ratio, 2),
        f"commitLogDiskRatio_{config.store_path_commit_log}": round(disk.log.used_ratio, 2),
        "consumeQueueDiskRatio": round(disk.queues.used_ratio, 2),
        "commitLogDirCapacity": f"Total : {_size(disk.log.total)}, Free : {_size(disk.log.free)}.",
        "remainHowManyDataToFlush": _size(end - store.log.flushed_offset),
        "remainHowManyDataToCommit": _size(0),
        "remainTransientStoreBufferNumbs": 2**31 - 1,
        "dispatchBehindBytes": end - store.readable_offset,
        "dispatchMaxBuffer": 0,
        "earliestMessageTimeStamp": disk.earliest_ms,
        "pageCacheLockTimeMills": 0,
        "timerReadBehind": broker.timers.read_behind_ms() // 1000,
        "timerOffsetBehind": broker.timers.offset_behind(),
        "timerCongestNum": broker.timers.pending(),
        "timerEnqueueTps": 0.0,
        "timerDequeueTps": 0.0,
        "EndTransactionQueueSize": 0,
        "EndTransactionThreadPoolQueueCapacity": 0,
        **_traffic(stats),
        **stats.daily(),
    }
    for level, delivered in broker.delays.offsets().items():
        waiting = store.find_queue(names.SCHEDULE_TOPIC, level - 1)
        table[f"scheduleMessageOffset_{level}"] = f"{delivered},{waiting.readable if waiting else 0}"
    for pool in _POOLS:
        table[f"{pool}ThreadPoolQueueSize"] = 0
        table[f"{pool}ThreadPoolQueueCapacity"] = 0
        table[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = 0
    return {key: str(value) for key, value in table.items()}


def _traffic(stats: Statistics) -> dict[str, object]:
    puts = stats.puts
    transferred = stats.transferred_rates.text()
    return {
        "putMessageTimesTotal": puts.messages,
        "putMessageFailedTimes": stats.put_failures,
        "putMessageSizeTotal": puts.bytes,
        "putMessageAverageSize": puts.bytes / puts.messages if puts.messages else 0.0,
        "putMessageEntireTimeMax": round(stats.put_time_max_s * 1000),
        "putMessageDistributeTime": _distribution(stats.put_times),
        "putLatency99": _percentile(stats.put_times, 0.99),
        "putLatency999": _percentile(stats.put_times, 0.999),
        "putTps": stats.put_rates.text(),
        "getFoundTps": stats.found_rates.text(),
        "getMissTps": stats.missed_rates.text(),
        "getTotalTps": stats.total_rates.text(),
        "getTransferredTps": transferred,
        "getTransferedTps": transferred,  # misspelt, as older tools read it
        "getMessageEntireTimeMax": 0,
    }


def _distribution(classes: list[int]) -> str:
    return " ".join(f"[{label}]:{count}" for label, count in zip(_PUT_TIME_LABELS, classes, strict=True))


def _percentile(classes: list[int], part: float) -> float:
    """The upper bound, in ms, of the class in which this part of all runs is reached."""
    wanted = sum(classes) * part
    reached = 0
    for bound, count in zip(PUT_TIME_BOUNDS_MS, classes, strict=False):
        reached += count
        if reached >= wanted:
            return float(bound)
    return float(PUT_TIME_BOUNDS_MS[-1])


def _duration(seconds: int) -> str:
    days, seconds = divmod(seconds, 86_400)
    hours, seconds = divmod(seconds, 3_600)
    minutes, seconds = divmod(seconds, 60)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def _size(size: int) -> str:
    """Bytes for people, in the original's words."""
    if size < 1024:
        return f"{size} B"
    power = min((size.bit_length() - 1) // 10, 4)
    return f"{size / 1024**power:.1f} {('KiB', 'MiB', 'GiB', 'TiB')[power - 1]}"
