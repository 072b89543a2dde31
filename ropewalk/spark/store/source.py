"""Spark's readers over store directories (`mode=store`), batch and streaming.

A batch read is planned once for each `load()`: the splits of `store_plan`, read by `store_read` in the tasks. A
streaming read tails the log of a store that somebody writes, a replica's for instance, without asking its broker for
anything. Its offsets say how far each log was read:

    {"store":{"broker-a":123456},"tail":{"broker-a":"9f…"},"v":1}

Ends are exclusive; the end of batch 0 also holds "init", where the query began. A log never changes, so a digest of the
bytes in front of an end ("tail") tells whether another log has taken its place.

Spark compares offsets as text, so keys are sorted and one function makes them all. The start of batch 0 is nowhere in
Spark's own log, and `initialOffset` is asked anew after a crash: hence "init".
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from ropewalk.spark.log import log
from ropewalk.spark.options import EARLIEST, LATEST, BadOption, Options
from ropewalk.spark.rows.columns import Plan
from ropewalk.spark.rows.decode import DamagedPlace
from ropewalk.spark.rows.schema import Selection
from ropewalk.spark.store.files import Store, open_stores
from ropewalk.spark.store.places import has_records, offset_after, offset_at_time
from ropewalk.spark.store.plan import DataLoss, Split, plan_log, plan_store, row_filter
from ropewalk.spark.store.read import Report, read_split
from ropewalk.spark.store.safe_end import end_of_log
from ropewalk.spark.store.tails import tails_of
from ropewalk.spark.versions import check_stamp

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["StorePartition", "StoreReader", "StoreStreamReader", "decode_plan"]

_BACKWARDS_GRACE_S: Final = 10.0


class StorePartition(InputPartition):
    """A split on its way to a task."""

    def __init__(self, split: Split) -> None:
        super().__init__(split)


def decode_plan(options: Options, selection: Selection) -> Plan:
    """Return the parameters of decoding; differences from store to store stand in each split."""
    return Plan(
        selection,
        decompress=options.decompress,
        body_bytes_max=options.body_max_bytes,
        unwrap_batch=options.unwrap_batch,
        on_corrupt=options.on_corrupt,
        check_crc=bool(options.check_crc),
        batch_rows=options.arrow_batch_rows,
        batch_bytes=options.arrow_batch_bytes,
    )


def read_partition(
    partition: InputPartition, plan: Plan, *, fail_on_data_loss: bool
) -> Iterator[pa.RecordBatch]:
    """Read one partition in a task. Spark makes up a partition without a value where a plan is empty."""
    split = partition.value
    if split is None:
        return
    check_stamp(split.stamp)

    def damaged(path: str, place: DamagedPlace) -> None:
        log.warning(
            "damage passed over", file=path, offset=place.offset, size=place.size, reason=place.reason
        )

    def lost(reason: str, size: int) -> None:
        log.warning("messages lost", reason=reason, size=size)

    yield from read_split(split, plan, Report(damaged, lost), fail_on_data_loss=fail_on_data_loss)


class StoreReader(DataSourceReader):
    """A batch read of one or several stores."""

    def __init__(self, options: Options, selection: Selection) -> None:
        self._options = options
        self._plan = decode_plan(options, selection)

    def partitions(self) -> list[InputPartition]:
        return [StorePartition(split) for split in plan_store(self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self._plan, fail_on_data_loss=self._options.fail_on_data_loss)


# Streaming

_Ends = dict[str, int]


def _offset(ends: Mapping[str, int], **more: Any) -> dict[str, Any]:
    """Return an offset as Spark stores it: keys in order, on every level."""
    made: dict[str, Any] = {**more, "store": dict(sorted(ends.items())), "v": 1}
    return dict(sorted(made.items()))


class StoreStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming read that tails stores. Lives in one process of the driver for as long as the query runs."""

    def __init__(self, options: Options, selection: Selection) -> None:
        assert options.path is not None
        if options.split_mode == "queue":
            raise BadOption("splitMode=queue is for batch reads: a streaming read follows the log")
        if isinstance(options.end_at, int):
            raise BadOption("endAt=OFFSET is for batch reads: a streaming read follows the log as it grows")
        if isinstance(options.starting_offsets, Mapping) or options.starting_offsets_by_timestamp is not None:
            raise BadOption(
                "a streaming read of a store begins at a place of its log: startingOffsets is earliest or latest, or "
                "give startingTimestamp"
            )
        if options.max_offsets_per_trigger is not None and options.max_bytes_per_trigger is not None:
            raise BadOption(
                "options maxOffsetsPerTrigger and maxBytesPerTrigger exclude each other: give one"
            )
        self._options = options
        self._plan = decode_plan(options, selection)
        self._target: _Ends | None = None
        self._seen: _Ends | None = None
        """The ends as this trigger found them, so that they need not be looked for twice."""
        self._compared = False
        """Whether the logs have been compared with what the checkpoint knows of them."""
        self._held_since: float | None = None
        self._back_since: float | None = None

    # -- on the driver -------------------------------------------------------------------------------

    def _stores(self) -> dict[str, Store]:
        options = self._options
        assert options.path is not None
        stores = open_stores(options.path, options.broker_name, options.log_format)
        return {store.key: store for store in stores}

    def _ends(self, stores: Mapping[str, Store] | None = None) -> _Ends:
        stores = self._stores() if stores is None else stores
        return {key: end_of_log(store, self._options.end_at) for key, store in stores.items()}

    def initialOffset(self) -> dict[str, Any]:
        options = self._options
        if options.starting_timestamp is not None:
            time_ms = options.starting_timestamp
            ends = self._ends()
            starts = {key: offset_at_time(store, ends[key], time_ms) for key, store in self._stores().items()}
            late = [key for key in starts if starts[key] >= ends[key]]
            if late and options.starting_offsets_by_timestamp_strategy == "error":
                raise DataLoss(
                    f"the log of {', '.join(late)} has no message at or after startingTimestamp; "
                    f"startingOffsetsByTimestampStrategy=latest would start at its end"
                )
        elif options.starting_offsets == EARLIEST:
            starts = {key: store.min_offset for key, store in self._stores().items()}
        else:
            assert options.starting_offsets in (None, LATEST)
            starts = self._ends()
        return _offset(starts, fresh=True)

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._ends()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begin = _ends_of(start)
        stores = self._stores()
        ends = self._seen = self._ends(stores)
        if self._options.fail_on_data_loss and (ends != begin or not self._compared):
            _check_same_logs(start, stores)
            self._compared = True
        self._check_backwards(begin, ends)
        if self._target is not None:
            ends = {key: min(end, self._target.get(key, begin.get(key, 0))) for key, end in ends.items()}
        ends = {key: max(ends.get(key, 0), begin.get(key, 0)) for key in (*begin, *ends)}
        if isinstance(limit, ReadMaxBytes):
            ends = self._after_bytes(begin, ends, limit.max_bytes)
        elif isinstance(limit, ReadMaxRows):
            ends = self._after_rows(begin, ends, limit.max_rows)
        if ends == begin or self._waits_for_more(begin, ends):
            return start
        tails = tails_of(stores, ends)
        if start.get("fresh"):
            return _offset(ends, init=begin, tail=tails)
        return _offset(ends, tail=tails)

    def _check_backwards(self, begin: Mapping[str, int], ends: Mapping[str, int]) -> None:
        """Tell of a log that ends in front of what was read. A broker that starts may look so for a moment."""
        back = [key for key, start in begin.items() if key in ends and ends[key] < start]
        if not back or not self._options.fail_on_data_loss:
            self._back_since = None
            return
        now = time.monotonic()
        if self._back_since is None:
            self._back_since = now
        if self._target is not None or now - self._back_since > _BACKWARDS_GRACE_S:
            key = back[0]
            raise DataLoss(
                f"the log of {key} safely ends at {ends[key]} and the query has come to {begin[key]}: its tail "
                f"was lost, or it is another log; give the query a new checkpointLocation, or failOnDataLoss=false"
            )

    def _after_rows(self, begin: Mapping[str, int], ends: Mapping[str, int], count: int) -> _Ends:
        """Ends that many records further on, over all stores."""
        stores = self._stores()
        shares = _shares(begin, ends, count)
        return {
            key: offset_after(stores[key], begin.get(key, 0), end, shares[key])
            if key in stores and shares[key] < end - begin.get(key, 0)
            else end
            for key, end in ends.items()
        }

    def _after_bytes(self, begin: Mapping[str, int], ends: Mapping[str, int], size: int) -> _Ends:
        """Ends about that many bytes further on, over all stores, each where a record begins.

        So that a task may tell damage at the very beginning of a batch, instead of looking for a record behind it.
        """
        stores = self._stores()
        cuts = {key: begin.get(key, 0) + share for key, share in _shares(begin, ends, size).items()}
        return {
            key: offset_after(stores[key], cuts[key], end, 0) if key in stores and cuts[key] < end else end
            for key, end in ends.items()
        }

    def _waits_for_more(self, begin: Mapping[str, int], ends: Mapping[str, int]) -> bool:
        """Whether `minOffsetsPerTrigger` holds this batch back, for at most `maxTriggerDelay`."""
        least = self._options.min_offsets_per_trigger
        if least is None or self._target is not None:
            return False
        now = time.monotonic()
        if self._held_since is None:
            self._held_since = now
        stores = self._stores()
        behind = [(stores[key], begin.get(key, 0), end) for key, end in ends.items() if key in stores]
        enough = has_records(behind, least)
        if not enough and (now - self._held_since) * 1000 < self._options.max_trigger_delay_ms:
            return True
        self._held_since = now
        return False

    def reportLatestOffset(self) -> dict[str, Any]:
        return _offset(self._seen if self._seen is not None else self._ends())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        begin = _ends_of({"store": end["init"], "v": 1} if start.get("fresh") and "init" in end else start)
        splits: list[Split] = []
        stores = self._stores()
        options = self._options
        if options.fail_on_data_loss:
            _check_same_logs(end, stores)
        for key, stop in _ends_of(end).items():
            store = stores.get(key)
            if store is None:
                continue
            first = begin.get(key, store.min_offset)
            if options.fail_on_data_loss:
                _check_range(store, key, first, stop)
            first = max(first, store.min_offset)
            io = options.io if options.io != "auto" else "pread" if store.is_locked() else "mmap"
            splits += plan_log(
                store,
                first,
                stop,
                options.split_bytes,
                io,
                row_filter(options, store),
                {},
                chain=options.split_mode == "chain",
            )
        return [StorePartition(split) for split in splits]

    # -- in tasks ------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self._plan, fail_on_data_loss=self._options.fail_on_data_loss)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the checkpoint holds all there is."""


def _check_same_logs(offset: Mapping[str, Any], stores: Mapping[str, Store]) -> None:
    """Reject a checkpoint of stores that are not here any more, or of other logs under their names."""
    for key, end in _ends_of(offset).items():
        if key not in stores:
            raise DataLoss(
                f"the checkpoint tells of a store {key!r}, in which the query has come to {end} and which option "
                f"path no longer names; give it back, start the query anew with a checkpointLocation of its own, "
                f"or set failOnDataLoss=false"
            )
    known: Mapping[str, str] = offset.get("tail", {})
    found = tails_of(stores, _ends_of(offset))
    for key, tail in known.items():
        if found.get(key, tail) != tail:
            raise DataLoss(
                f"the log of {key} holds other records before offset {offset['store'][key]} than the ones that the "
                f"query read there: it is another log, or its tail was cut and written anew; give the query a new "
                f"checkpointLocation, or failOnDataLoss=false"
            )


def _ends_of(offset: Mapping[str, Any]) -> _Ends:
    ends = offset.get("store")
    if offset.get("v") != 1 or not isinstance(ends, Mapping):
        raise BadOption(
            "the checkpoint holds offsets of another kind of source: give this query a checkpointLocation of its own"
        )
    return {str(key): int(end) for key, end in ends.items()}


def _check_range(store: Store, key: str, start: int, stop: int) -> None:
    if start < store.min_offset:
        raise DataLoss(
            f"the log of {key} begins at offset {store.min_offset} now, and the query has come to {start}: "
            f"{store.min_offset - start} bytes are gone, perhaps by retention; failOnDataLoss=false goes on without"
        )
    if stop > store.max_offset:
        raise DataLoss(
            f"the log of {key} ends at offset {store.max_offset} now, and the query has come to {stop}: the log was "
            f"cut or is another one; start anew with a checkpointLocation of its own, or failOnDataLoss=false"
        )


def _shares(begin: Mapping[str, int], ends: Mapping[str, int], amount: int) -> _Ends:
    """Return an amount for each log: in proportion to how far it is behind, and at least 1 where it is at all."""
    behind = {key: end - begin.get(key, 0) for key, end in ends.items()}
    total = max(sum(behind.values()), 1)
    return {key: min(count, max(1, amount * count // total)) if count else 0 for key, count in behind.items()}
