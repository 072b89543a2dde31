"""Statistics and latencies are those of a plain loop over the same records, and the page that shows them is whole."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ropewalk.client.core.messages import Message
from ropewalk.format.record import Record
from ropewalk.spark.jobs.common.tasks import LocalTasks
from ropewalk.spark.jobs.export.sources import LiveSource, StoreSource, selection_for
from ropewalk.spark.jobs.inspect import newest, offsets_report, schema_report, store_offsets, tail_report
from ropewalk.spark.jobs.latency.group import COLUMNS as GROUP_COLUMNS
from ropewalk.spark.jobs.latency.group import (
    BadGroup,
    Consumed,
    consumed_ranges,
    group_latency,
    measure_consumed,
    waiting_rows,
    watch_group,
)
from ropewalk.spark.jobs.latency.job import COLUMNS as LATENCY_COLUMNS
from ropewalk.spark.jobs.latency.job import latency, latency_report, measure_batch
from ropewalk.spark.jobs.latency.trace import MESSAGE_COLUMNS, TRACE_COLUMNS, trace_latency
from ropewalk.spark.jobs.stats.histogram import Histogram, bins_of, lowest_of, merge_histograms
from ropewalk.spark.jobs.stats.job import COLUMNS, BadStats, stats, stats_report
from ropewalk.spark.live.cluster import Cluster
from ropewalk.testing import RopewalkBroker
from tests.spark.jobs.faults import Pair
from tests.spark.jobs.stores import fill
from tests.spark.stores import START_MS as MADE_MS
from tests.spark.stores import STORE_HOST, MadeStore

pytestmark = pytest.mark.usefixtures("far_from_greenwich")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("stats") / "store"
    fill(root, 700)
    return root


@pytest.fixture(scope="module")
def records(store: Path) -> list[Record]:
    return Pair.of(store, store).records


def source(root: Path, columns: tuple[str, ...]) -> StoreSource:
    return StoreSource(str(root), (), selection_for(columns, "default"), "b", range_bytes=20_000)


def test_counts_are_those_of_a_plain_loop(store: Path, records: list[Record]) -> None:
    done = stats(LocalTasks(), source(store, COLUMNS), by=("topic", "queue", "minute"), top_keys=5)
    groups = Counter((r.topic, r.queue_id, r.store_timestamp // 60_000 * 60_000) for r in records)
    assert {name: each.count for name, each in done.total.groups.items()} == groups
    assert done.total.tags == Counter((r.topic, r.tags or "") for r in records)
    keys = Counter((r.topic, key) for r in records for key in r.keys)
    assert [each[2] for each in done.top_keys] == [count for _key, count in keys.most_common(5)]
    assert all(keys[topic, key] == count for topic, key, count in done.top_keys)
    for (topic, _broker, queue_id), each in done.total.queues.items():
        mine = [r for r in records if (r.topic, r.queue_id) == (topic, queue_id)]
        assert (each.count, each.bytes) == (len(mine), sum(r.size for r in mine))
        assert (each.low, each.high) == (0, len(mine) - 1)
        assert each.largest == max(r.size for r in mine)
        assert each.first_ms == mine[0].store_timestamp and each.last_ms == mine[-1].store_timestamp
    report = stats_report("x", done, ("topic", "queue", "minute"))
    assert (report.exit_code, report.summary["missing"], report.summary["doubles"]) == (0, 0, 0)


def test_missing_numbers_and_doubles_are_findings(store: Path) -> None:
    whole = source(store, COLUMNS)

    class Odd(StoreSource):
        def read(self, range_: Any) -> Iterator[Any]:  # every range twice, but for a few rows
            for batch in super().read(range_):
                yield batch.slice(3)
                yield batch.slice(3, 10)

    odd = Odd(whole.path, (), whole.selection, "b", range_bytes=20_000)
    done = stats(LocalTasks(), odd)
    assert done.doubles > 0 and done.double_keys[0][1] == 2
    assert stats_report("x", done, ("topic",)).exit_code == 1


def test_groups_that_do_not_exist_are_refused_by_name(store: Path) -> None:
    with pytest.raises(BadStats, match="--by week"):
        stats(LocalTasks(), source(store, COLUMNS), by=("week",))


def test_a_histogram_is_never_more_than_three_percent_low() -> None:
    rng = random.Random(2)
    values = [rng.randrange(1 << rng.randrange(1, 45)) for _ in range(20_000)]
    bins = bins_of(np.array(values, np.int64)).tolist()
    for value, number in zip(values, bins, strict=True):
        assert lowest_of(number) <= value < lowest_of(number + 1)
        assert value - lowest_of(number) <= value / 32
    parts = merge_histograms(
        Histogram.of(np.array(values[at : at + 1000], np.int64)) for at in range(0, 20_000, 1000)
    )
    assert parts.bins == Histogram.of(np.array(values, np.int64)).bins
    ordered = sorted(values)
    for share, found in zip((0.5, 0.99, 1.0), parts.quantiles((0.5, 0.99, 1.0)), strict=True):
        exact = ordered[max(int(share * len(ordered)) - 1, 0)]
        assert found is not None and found <= exact <= found * 33 / 32 + 1
    assert Histogram().quantiles((0.5,)) == [None]


def test_latencies_are_stored_minus_born_and_skew_is_not_cut_off() -> None:
    rng = random.Random(5)
    born = [1_700_000_000_000 + rng.randrange(200_000) for _ in range(3000)]
    delays = [rng.choice((0, 1, 5, 40, 9000, -3, -700)) for _ in born]
    topics = [rng.choice(("a", "b")) for _ in born]
    batch = pa.record_batch(
        {
            "topic": topics,
            "bornTimestamp": pa.array([b * 1000 for b in born]).cast(pa.timestamp("us", tz="UTC")),
            "storeTimestamp": pa.array([(b + d) * 1000 for b, d in zip(born, delays, strict=True)]).cast(
                pa.timestamp("us", tz="UTC")
            ),
        }
    )
    found = measure_batch(batch, 60_000)
    rows = list(zip(topics, born, delays, strict=True))
    windows = Counter((t, (b + d) // 60_000 * 60_000) for t, b, d in rows)
    assert {name: each.count for name, each in found.items()} == windows
    assert sum(each.skewed for each in found.values()) == sum(d < 0 for d in delays)
    assert min(each.worst_skew_ms for each in found.values()) == -700
    assert max(each.longest_ms for each in found.values()) == 9000
    report = latency_report("x", found, (0.5, 0.99), limit_ms=100)
    assert report.exit_code == 1 and report.summary["over_limit"] == ["a", "b"]
    assert latency_report("x", found, (0.5, 0.99), limit_ms=10_000).exit_code == 0


def test_every_message_of_a_store_is_measured(store: Path) -> None:
    found = latency(LocalTasks(), source(store, LATENCY_COLUMNS), window_ms=10_000)
    assert sum(each.count for each in found.values()) == 700


def test_a_group_is_measured_by_what_its_consumers_traced(tmp_path: Path) -> None:
    made, rng = MadeStore(tmp_path, segment_size=8192), random.Random(3)
    ids = []
    for number in range(120):
        if number % 9:
            made.append(f"t{number % 2}", body=b"x" * (number % 50), UNIQ_KEY=f"{number:032X}")
            ids.append(f"{number:032X}")
        else:
            ids.append((STORE_HOST + made.append(f"t{number % 2}").to_bytes(8, "big")).hex().upper())
    # The message of a number is stored that many ms after the first.
    delays = {n: rng.choice((0, 3, 90, 4000, -2)) for n in range(120) if n % 4}

    def entry(kind: str, group: str, name: str, at: int) -> bytes:
        return (
            "\1".join((kind, str(at), "DefaultRegion", group, "request", name, "0", "key")).encode() + b"\2"
        )

    entries = [b"", b"\2", b"SubBefore\1", b"SubBefore\1soon\1r\1g\1q\1" + ids[0].encode() + b"\0010\1k\2"]
    for number, delay in delays.items():
        at = MADE_MS + 1 + number + delay
        entries += [entry("SubBefore", "g", ids[number], at + later) for later in (0, 700)[: 1 + number % 2]]
        entries.append(entry("SubBefore", "other", ids[number], at - 1))
        entries.append(entry("SubAfter", "g", ids[number], at - 1))
    entries += [entry("SubBefore", "g", f"unknown-{number}", MADE_MS) for number in range(5)]
    rng.shuffle(entries)
    for first in range(0, len(entries), 3):
        made.append("traces", body=b"".join(entries[first : first + 3]))

    def of(columns: tuple[str, ...], *topics: str) -> StoreSource:
        return StoreSource(str(tmp_path), topics, selection_for(columns, "default"), "b", range_bytes=3000)

    messages, traces = of(MESSAGE_COLUMNS, "t0", "t1"), of(TRACE_COLUMNS, "traces")
    found, traced = trace_latency(LocalTasks(), messages, traces, "g", window_ms=10)
    assert (traced.messages, traced.begun, traced.others) == (120, len(delays), 5)
    windows = Counter((f"t{n % 2}", (MADE_MS + 1 + n) // 10 * 10) for n in delays)
    assert {name: each.count for name, each in found.items()} == windows
    assert sum(each.skewed for each in found.values()) == sum(d < 0 for d in delays.values())
    assert sorted(Counter(each.longest_ms for each in found.values())) == sorted(
        {
            max(0, *(d for n, d in delays.items() if (f"t{n % 2}", (MADE_MS + 1 + n) // 10 * 10) == w))
            for w in windows
        }
    )
    with pytest.raises(BadGroup, match="no trace tells of group nobody"):
        trace_latency(LocalTasks(), messages, traces, "nobody")


def test_the_newest_messages_come_last(store: Path, records: list[Record]) -> None:
    from ropewalk.spark.jobs.inspect import TAIL_COLUMNS

    for count in (1, 7, 150):
        rows = newest(LocalTasks(), source(store, TAIL_COLUMNS), count)
        assert [row["body"] for row in rows] == [record.body for record in records[-count:]]
        assert len(tail_report("x", rows).tables[0].rows) == count


def test_offsets_of_a_time_are_those_of_the_first_record_at_or_after_it(
    store: Path, records: list[Record]
) -> None:
    at = records[333].store_timestamp
    for topic, _broker, queue_id, low, high, found in store_offsets((str(store), (), at)):
        mine = [r for r in records if (r.topic, r.queue_id) == (topic, queue_id)]
        assert (low, high) == (0, len(mine))
        assert found == next((r.queue_offset for r in mine if r.store_timestamp >= at), high)
    report = offsets_report("x", store_offsets((str(store), ("orders",), None)), None)
    assert report.tables[0].columns == ("topic", "broker", "queue", "first", "next")
    assert len(report.tables[0].rows) == 2


def test_the_columns_are_listed_with_their_presets() -> None:
    rows = {row[0]: row[1:] for row in schema_report().tables[0].rows}
    assert rows["body"] == ("binary", "default, full") and rows["partition"] == ("int", "kafka")


def test_what_a_group_consumes_is_measured_from_the_store_to_the_look_that_saw_it(
    ropewalk_broker: RopewalkBroker,
) -> None:
    broker = ropewalk_broker
    topic, group = broker.topic("watched", queues=2), "g-watched"
    for queue in broker.client.read_queues(topic):
        broker.client.send_batch(topic, [Message(b"%d" % n) for n in range(30)], queue)
    live = LiveSource(
        {"nameServer": broker.namesrv, "topic": topic},
        selection_for(GROUP_COLUMNS, "default"),
        range_messages=10,
    )
    with pytest.raises(BadGroup, match="has committed no offset"):
        group_latency(LocalTasks(), live, group, watch_s=0, interval_s=1)
    cluster = Cluster(live.parsed())
    cluster.refresh(force=True)
    first, second = cluster.queues()
    cluster.commit(group, {first: 5, second: 30})
    # In the first queue it comes to 12, is sent back, and comes to 20; in the second it had everything before.
    progress = iter([12, 8, 20, 20])
    now = start = time.time_ns() // 1_000_000 + 1000

    def sleep(seconds: float) -> None:
        nonlocal now
        now += int(seconds * 1000)
        cluster.commit(group, {first: next(progress)})

    watched = watch_group((live, group, 4.0, 1.0), now_ms=lambda: now, sleep=sleep)
    cluster.close()
    assert [look.offsets[first] for look in watched.snapshots] == [5, 12, 8, 20, 20]
    (consumed,) = consumed_ranges(watched.snapshots)
    assert consumed == Consumed(first, 5, 20, ((12, start + 1000), (20, start + 3000)))
    stored = [
        record.store_timestamp_ms for record in broker.messages(topic) if record.queue_id == first.queue_id
    ]
    found = measure_consumed((live, consumed, 3_600_000))
    delays = [*(start + 1000 - ms for ms in stored[5:12]), *(start + 3000 - ms for ms in stored[12:20])]
    assert (sum(each.count for each in found.values()), max(each.longest_ms for each in found.values())) == (
        15,
        max(delays),
    )
    ((name, _broker, queue_id, count, age),) = waiting_rows(watched)
    assert (name, queue_id, count, age) == (topic, first.queue_id, 10, now - stored[20])
    steps = ((12, stored[5] - 7), (20, start))
    (skewed,) = measure_consumed((live, replace(consumed, steps=steps), 1 << 50)).values()
    assert (skewed.skewed, skewed.count) == (7, 15)
