"""The streaming reader of stores, called as Spark calls it: offsets, limits, restarts, logs that shrink."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from ropewalk.errors import CorruptRecord
from ropewalk.spark.options import BadOption, parse_options
from ropewalk.spark.rows.schema import Selection
from ropewalk.spark.store.plan import DataLoss
from ropewalk.spark.store.source import StoreStreamReader
from tests.spark.rows.records import entry
from tests.spark.stores import START_MS, MadeStore

ALL = ReadAllAvailable()


def reader(path: Path | str, **options: str) -> StoreStreamReader:
    """A reader in a new process, which remembers nothing."""
    parsed = parse_options({"mode": "store", "path": str(path), **options}, "stream", {})
    return StoreStreamReader(parsed, Selection(("physicalOffset",)))


def as_text(offset: dict[str, Any]) -> str:
    return json.dumps(offset)


def rows(stream: StoreStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    # Through text and back, as offsets go through the checkpoint.
    start, end = json.loads(as_text(start)), json.loads(as_text(end))
    return [
        row["physicalOffset"]
        for partition in stream.partitions(start, end)
        for batch in stream.read(partition)
        for row in batch.to_pylist()
    ]


@pytest.fixture
def made(tmp_path: Path) -> MadeStore:
    store = MadeStore(tmp_path / "store", segment_size=8192)
    store.fill(40)
    return store


def written(made: MadeStore) -> list[int]:
    return [offset for offset, _ in made.written]


def test_a_query_starts_at_the_end_unless_told_otherwise(made: MadeStore) -> None:
    assert reader(made.root).initialOffset()["store"] == {str(made.root): made.offset}
    earliest = reader(made.root, startingOffsets="earliest").initialOffset()
    assert earliest["store"] == {str(made.root): 0}


def test_a_query_starts_at_a_time(made: MadeStore) -> None:
    for number in (0, 1, 13, 39):
        # The clock of a made store ticks once a record, before it is written.
        stream = reader(made.root, startingTimestamp=str(START_MS + number + 1))
        assert stream.initialOffset()["store"] == {str(made.root): written(made)[number]}
    before = reader(made.root, startingTimestamp="5").initialOffset()
    assert before["store"] == {str(made.root): 0}
    late = str(START_MS + 1000)
    with pytest.raises(DataLoss, match="has no message at or after startingTimestamp"):
        reader(made.root, startingTimestamp=late).initialOffset()
    latest = reader(made.root, startingTimestamp=late, startingOffsetsByTimestampStrategy="latest")
    assert latest.initialOffset()["store"] == {str(made.root): made.offset}


def test_offsets_are_the_same_text_whenever_they_mean_the_same(made: MadeStore) -> None:
    stream = reader(f"b={made.root}", startingOffsets="earliest")
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    assert as_text(end) == json.dumps(end, sort_keys=True)
    assert as_text(stream.latestOffset(json.loads(as_text(end)), ALL)) == as_text(end)
    assert as_text(stream.reportLatestOffset()) == json.dumps({"store": {"b": made.offset}, "v": 1})


def test_a_restart_in_the_first_batch_reads_what_was_logged_and_not_what_is_new(made: MadeStore) -> None:
    first = reader(made.root)
    begin = first.initialOffset()
    made.fill(5)
    end = first.latestOffset(begin, ALL)
    made.fill(7)  # and then everything is killed; batch 0 is logged and not committed
    again = reader(made.root)
    assert rows(again, again.initialOffset(), end) == written(made)[40:45]
    after = again.latestOffset(json.loads(as_text(end)), ALL)
    assert rows(again, end, after) == written(made)[45:]
    assert "init" in end
    assert "init" not in after


@pytest.mark.parametrize("limit", [ReadMaxRows(1), ReadMaxRows(7), ReadMaxBytes(60), ReadMaxBytes(3000)])
def test_limits_cut_batches_and_lose_nothing(made: MadeStore, limit: Any) -> None:
    stream = reader(made.root, startingOffsets="earliest")
    start = stream.initialOffset()
    found: list[int] = []
    for _ in range(1000):
        end = stream.latestOffset(start, limit)
        if end == start:
            break
        batch = rows(stream, start, end)
        if isinstance(limit, ReadMaxRows):
            assert len(batch) == min(limit.max_rows, 40 - len(found))
        found += batch
        start = end
    assert found == written(made)


def test_damage_at_the_beginning_of_a_batch_is_told(made: MadeStore) -> None:
    stream = reader(made.root, startingOffsets="earliest")
    for limit in (ReadMaxRows(7), ReadMaxBytes(2500)):
        begin = stream.initialOffset()
        middle = stream.latestOffset(begin, limit)
        cut = middle["store"][str(made.root)]
        assert cut in written(made)
        end = stream.latestOffset(middle, ALL)
        made.write(cut + 4, b"\0")
        assert rows(stream, begin, middle) == [offset for offset in written(made) if offset < cut]
        with pytest.raises(CorruptRecord, match=f"offset {cut}: "):
            rows(stream, middle, end)
        made.write(cut + 4, b"\xda")


def test_the_log_of_a_dledger_is_cut_between_entries(tmp_path: Path) -> None:
    data = tmp_path / "dledger-n0" / "data"
    data.mkdir(parents=True)
    log = b""
    expected = []
    for number in range(9):
        expected.append(len(log) + 48)
        log += entry(len(log), number, queue_offset=number, store_timestamp=START_MS + number)
    (data / f"{0:020d}").write_bytes(log.ljust(8192, b"\0"))
    for limit in (ReadMaxRows(2), ReadMaxBytes(400)):
        stream = reader(tmp_path, startingTimestamp=str(START_MS + 2), endAt="scan")
        start = stream.initialOffset()
        found: list[int] = []
        while (end := stream.latestOffset(start, limit)) != start:
            found += rows(stream, start, end)
            start = end
        assert found == expected[2:]


def test_several_stores_are_drained_in_proportion(made: MadeStore, tmp_path: Path) -> None:
    other = MadeStore(tmp_path / "other")
    other.fill(10)
    stream = reader(f"a={made.root},b={other.root}", startingOffsets="earliest")
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadMaxRows(10))
    assert 0 < end["store"]["b"] < end["store"]["a"]
    everything = stream.latestOffset(end, ALL)
    assert len(rows(stream, start, end)) + len(rows(stream, end, everything)) == 50


def test_available_now_ends_at_what_there_was(made: MadeStore) -> None:
    stream = reader(made.root, startingOffsets="earliest", maxOffsetsPerTrigger="15")
    stream.prepareForTriggerAvailableNow()
    target = made.offset
    made.fill(10)
    start = stream.initialOffset()
    limit = stream.getDefaultReadLimit()
    ends = []
    while (end := stream.latestOffset(start, limit)) != start:
        ends.append(end["store"][str(made.root)])
        start = end
    assert ends[-1] == target
    assert len(ends) == 3


def test_a_batch_waits_for_volume_but_not_for_ever(made: MadeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("ropewalk.spark.store.source.time.monotonic", lambda: now[0])
    stream = reader(made.root, minOffsetsPerTrigger="10", maxTriggerDelay="60s")
    start = stream.initialOffset()
    made.fill(9)
    assert stream.latestOffset(start, ALL) == start
    made.fill(1)
    end = stream.latestOffset(start, ALL)
    assert end["store"] == {str(made.root): made.offset}
    made.fill(1)
    assert stream.latestOffset(end, ALL) == end
    now[0] += 61
    assert stream.latestOffset(end, ALL) != end


def test_a_log_that_lost_its_tail_is_told_after_a_moment(
    made: MadeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("ropewalk.spark.store.source.time.monotonic", lambda: now[0])
    start = reader(made.root, startingOffsets="earliest").initialOffset()
    end = reader(made.root).latestOffset(start, ALL)
    for topic in ("orders", "bills"):
        for queue_id in "01":
            path = made.root / "consumequeue" / topic / queue_id / f"{0:020d}"
            path.write_bytes(path.read_bytes()[:100].ljust(path.stat().st_size, b"\0"))
    stream = reader(made.root)
    assert stream.latestOffset(end, ALL) == end
    now[0] += 11
    with pytest.raises(DataLoss, match=r"safely ends at .* and the query has come to"):
        stream.latestOffset(end, ALL)
    lenient = reader(made.root, failOnDataLoss="false")
    assert lenient.latestOffset(end, ALL) == end


def test_a_checkpoint_behind_retention_is_told(made: MadeStore) -> None:
    stream = reader(made.root, startingOffsets="earliest")
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    segments = sorted((made.root / "commitlog").iterdir())
    segments[0].unlink()
    begins = int(segments[1].name)
    with pytest.raises(DataLoss, match=f"begins at offset {begins} now, and the query has come to 0"):
        stream.partitions(start, end)
    lenient = reader(made.root, startingOffsets="earliest", failOnDataLoss="false")
    assert rows(lenient, start, end) == [offset for offset in written(made) if offset >= begins]


def test_a_checkpoint_of_something_else_is_told(made: MadeStore) -> None:
    stream = reader(f"a={made.root}", startingOffsets="earliest")
    end = stream.latestOffset(stream.initialOffset(), ALL)
    with pytest.raises(BadOption, match="offsets of another kind of source"):
        stream.partitions({"q": {"orders": {}}, "v": 1}, end)
    other = reader(f"b={made.root}")
    with pytest.raises(
        DataLoss,
        match="tells of a store 'a', in which the query has come to 5 and which option path no longer names",
    ):
        other.partitions(end, {"store": {"a": 5, "b": 10}, "v": 1})
    beyond = {"store": {"a": 1 << 40}, "v": 1}
    with pytest.raises(DataLoss, match="the log was cut or is another one"):
        stream.partitions(end, beyond)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"splitMode": "queue"}, "splitMode=queue is for batch reads"),
        ({"endAt": "4096"}, "endAt=OFFSET is for batch reads"),
        ({"startingOffsets": '{"t":{"b":{"0":1}}}'}, "begins at a place of its log"),
        ({"maxOffsetsPerTrigger": "5", "maxBytesPerTrigger": "5"}, "exclude each other"),
    ],
)
def test_options_that_a_stream_cannot_follow_are_refused(
    made: MadeStore, options: dict[str, str], said: str
) -> None:
    with pytest.raises(BadOption, match=said):
        reader(made.root, **options)


def test_a_store_that_is_gone_is_no_end_of_available_now(made: MadeStore, tmp_path: Path) -> None:
    other = MadeStore(tmp_path / "other", segment_size=8192)
    other.fill(5)
    both = f"a={made.root},b={other.root}"
    end = reader(both).latestOffset(reader(both, startingOffsets="earliest").initialOffset(), ALL)
    other.fill(5)
    again = reader(f"a={made.root}")
    again.prepareForTriggerAvailableNow()
    with pytest.raises(DataLoss, match=r"tells of a store 'b', .* has come to \d+ .*failOnDataLoss=false"):
        again.latestOffset(end, ALL)
    lenient = reader(f"a={made.root}", failOnDataLoss="false")
    lenient.prepareForTriggerAvailableNow()
    assert lenient.latestOffset(end, ALL) == end


@pytest.mark.parametrize("count", [60, 40])
def test_another_log_of_that_name_is_told_although_it_is_long_enough(
    made: MadeStore, tmp_path: Path, count: int
) -> None:
    start = reader(f"a={made.root}", startingOffsets="earliest").initialOffset()
    end = reader(f"a={made.root}").latestOffset(start, ALL)
    other = MadeStore(tmp_path / "other", segment_size=8192)
    other._clock_ms += 5000
    other.fill(count)
    again = reader(f"a={other.root}")
    again.prepareForTriggerAvailableNow()
    said = r"the log of a holds other records before offset \d+ .*failOnDataLoss=false"
    with pytest.raises(DataLoss, match=said):
        again.latestOffset(end, ALL)
    with pytest.raises(DataLoss, match=said):
        reader(f"a={other.root}").partitions(start, end)
    lenient = reader(f"a={other.root}", failOnDataLoss="false")
    assert len(rows(lenient, start, lenient.latestOffset(end, ALL))) == count
    # The same log, copied elsewhere, is the same.
    assert reader(f"a={made.root}").latestOffset(end, ALL) == end
