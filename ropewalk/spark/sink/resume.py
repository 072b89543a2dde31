"""Exactly once by reading back, over any RocketMQ: a task sends only the rows that its queues do not hold yet.

    anchors     consumer offsets of the hidden group %RWSINK%<sinkId>: behind the last committed batch, in each queue
    marks       numbers under queue ids that no topic reaches: the last committed batch, its digest, the list of brokers

Every row carries its key in the property RW_SINK. A task reads the queues from the anchors on, notes the keys of its
own batch and partition, and leaves those rows out. Usually that is nothing: what lies behind the anchors is the batch.

A commit writes the mark of the batch first and the anchors then. A mark without its anchors makes tasks read more than
they had to; anchors without the mark would make them miss rows of a batch that is repeated.

Brokers write such offsets to their disk every few seconds, so a kill takes the newest away. Older ones are as good, and
where there is none at all a task begins two minutes before the queue's last message.

A request without an answer may have been stored. Its queue is read before it is sent again, after a moment in which a
broker would still have carried it out.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from ropewalk.client.core.messages import command_of, pull_request
from ropewalk.client.core.produce.row_identity import parse_identity
from ropewalk.client.core.routes import Queue
from ropewalk.client.core.steps import answer_header, require_success
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format import fastjson
from ropewalk.format.headers import (
    GetMaxOffsetHeader,
    OffsetResponseHeader,
    PullResponseHeader,
    QueryConsumerOffsetHeader,
    SearchOffsetHeader,
    UpdateConsumerOffsetHeader,
)
from ropewalk.format.properties import P
from ropewalk.format.record import decode_records
from ropewalk.format.remoting import Command
from ropewalk.spark.live.cluster import ConnectionCache
from ropewalk.spark.sink.row_keys import RowDigest

__all__ = ["Anchors", "commit_anchors", "digest_number", "group_of", "read_anchors", "read_keys"]

_BATCH_MARK: Final = 65_533
_DIGEST_MARK: Final = _BATCH_MARK + 1
_BROKERS_MARK: Final = _BATCH_MARK + 2
_MARKS: Final = (_BATCH_MARK, _DIGEST_MARK, _BROKERS_MARK)
"""Queue ids that no topic reaches; RocketMQ keeps any that a group commits, Ropewalk those up to 65535."""
_QUERY_BITS: Final = 0x7FFFFFFF
_COMBINATIONS_MAX: Final = 5_000
_LOOK_BACK_MS: Final = 120_000
_PULL_COUNT: Final = 1024
_NOTHING_THERE: Final = (
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)
"""Answers of a pull that found no message, and say where to go on."""


def group_of(sink_id: str) -> str:
    """Return the hidden group whose offsets are a sink's anchors."""
    return f"%RWSINK%{sink_id}"


@dataclass(frozen=True)
class Anchors:
    """The offsets and marks of a sink before a batch."""

    topic: str
    offsets: Mapping[Queue, int]
    ends: Mapping[Queue, int]
    """Where the queues ended when the batch began."""
    marks: Mapping[str, tuple[int, int, int]]
    """The three marks of each broker; -1 where there is none."""

    def committed_digest(self, query: str, batch: int) -> int | None:
        """Return the digest of a committed batch, -1 if a later one is; None if no broker knows it as committed."""
        for mark, digest, _ in self.marks.values():
            if mark >= 0 and mark >> 32 == _query_number(query) and batch <= mark & 0xFFFFFFFF:
                return digest if batch == mark & 0xFFFFFFFF else -1
        return None

    def are_of_another_query(self, query: str) -> bool:
        """Return whether a batch of another query was committed."""
        return any(mark >= 0 and mark >> 32 != _query_number(query) for mark, _, _ in self.marks.values())

    def covers_brokers(self, names: Sequence[str]) -> bool:
        """Return whether all brokers of the list that was kept are among these."""
        for kept in {mark[2] for mark in self.marks.values()} - {-1}:
            count = kept >> 32
            if count > len(names):
                return False
            some = combinations(sorted(names), count)
            if not any(
                _brokers_number(each) == kept for each, _ in zip(some, range(_COMBINATIONS_MAX), strict=False)
            ):
                return False
        return True


def _query_number(query: str) -> int:
    return zlib.crc32(query.encode()) & _QUERY_BITS


def _brokers_number(names: Sequence[str]) -> int:
    return len(names) << 32 | zlib.crc32(",".join(sorted(names)).encode())


def digest_number(digest: RowDigest) -> int:
    """Return the digest of a batch as a number that a group can commit."""
    return (digest.total ^ digest.rows * 0x9E3779B97F4A7C15) & ((1 << 62) - 1)


# -- on the driver -------------------------------------------------------------------------------------


def read_anchors(
    links: ConnectionCache, sink_id: str, topic: str, addresses: Mapping[str, str], queues: Sequence[Queue]
) -> Anchors:
    """Read the anchors and marks, and write those that are missing. Blocks; raises as `ConnectionCache.call_all`."""
    group = group_of(sink_id)
    offsets: dict[Queue, int] = {}
    ends: dict[Queue, int] = {}
    marks: dict[str, tuple[int, int, int]] = {}
    for name, address in addresses.items():
        own = [queue for queue in queues if queue.broker_name == name]
        ids = [*(queue.queue_id for queue in own), *_MARKS]
        answers = links.call_all(
            address,
            [
                *(
                    command_of(
                        RequestCode.QUERY_CONSUMER_OFFSET,
                        QueryConsumerOffsetHeader(group, topic, each, False),
                    )
                    for each in ids
                ),
                *(
                    command_of(RequestCode.GET_MAX_OFFSET, GetMaxOffsetHeader(topic, queue.queue_id))
                    for queue in own
                ),
            ],
        )
        found = [_offset_in(answer) for answer in answers[: len(ids)]]
        for queue, answer in zip(own, answers[len(ids) :], strict=True):
            ends[queue] = answer_header(OffsetResponseHeader, require_success(answer)).offset
        marks[name] = tuple(found[len(own) :])  # type: ignore[assignment]
        missing = {
            queue.queue_id: _look_back(links, address, topic, queue, ends[queue])
            for queue, offset in zip(own, found, strict=False)
            if offset < 0
        }
        if found[-1] < 0:
            missing[_BROKERS_MARK] = _brokers_number(tuple(addresses))
        if missing:
            body = fastjson.dumps(
                {"groupName": group, "consumeEnable": True, "retryQueueNums": 1, "retryMaxTimes": 0}
            )
            create = Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
            require_success(links.call_all(address, [create])[0])
            _commit(links, address, group, topic, missing)
        offsets |= {
            queue: missing.get(queue.queue_id, offset) for queue, offset in zip(own, found, strict=False)
        }
    return Anchors(topic, offsets, ends, marks)


def _look_back(links: ConnectionCache, address: str, topic: str, queue: Queue, end: int) -> int:
    """Return the offset of the first message of the last two minutes that a queue has messages of."""
    if end == 0:
        return 0
    answer = links.call_all(address, [pull_request(topic, queue, end - 1, 1, "*", 0)])[0]
    if answer.code != ResponseCode.SUCCESS:
        return 0  # its last message is damaged or removed: to read all that there is, is to miss nothing
    stored_ms = decode_records(answer.body)[-1].store_timestamp
    search = SearchOffsetHeader(topic, queue.queue_id, stored_ms - _LOOK_BACK_MS)
    answer = links.call_all(address, [command_of(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, search)])[0]
    return answer_header(OffsetResponseHeader, require_success(answer)).offset


def _offset_in(answer: Command) -> int:
    if answer.code == ResponseCode.QUERY_NOT_FOUND:
        return -1
    return answer_header(OffsetResponseHeader, require_success(answer)).offset


def commit_anchors(
    links: ConnectionCache,
    anchors: Anchors,
    sink_id: str,
    addresses: Mapping[str, str],
    query: str,
    batch: int,
    digest: RowDigest,
    ends: Mapping[tuple[str, int], int],
) -> None:
    """Write the marks of a batch everywhere, and then the anchors. Blocks."""
    group = group_of(sink_id)
    beside = {_DIGEST_MARK: digest_number(digest), _BROKERS_MARK: _brokers_number(tuple(addresses))}
    mark = {_BATCH_MARK: _query_number(query) << 32 | batch}
    for marks in (
        beside,
        mark,
    ):  # one after the other: brokers carry out in any order what is on the way together
        for address in addresses.values():
            _commit(links, address, group, anchors.topic, marks)
    if anchors.committed_digest(query, batch) is not None:
        return  # nothing was sent, so nobody knows where the rows of this batch end
    for name, address in addresses.items():
        own = {
            queue.queue_id: max(offset, ends.get((name, queue.queue_id), anchors.ends[queue]))
            for queue, offset in anchors.offsets.items()
            if queue.broker_name == name
        }
        _commit(links, address, group, anchors.topic, own)


def _commit(links: ConnectionCache, address: str, group: str, topic: str, offsets: Mapping[int, int]) -> None:
    commands = [
        command_of(
            RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetHeader(group, topic, queue_id, offset)
        )
        for queue_id, offset in offsets.items()
    ]
    for answer in links.call_all(address, commands):
        require_success(answer)


# -- in tasks ------------------------------------------------------------------------------------------


def read_keys(
    call: Callable[[Command], Command], topic: str, queue: Queue, start: int, wanted: Sequence[object]
) -> dict[bytes, int]:
    """Return the keys of one task's rows in a queue from an offset on, with their offsets. Blocks.

    `wanted` is the identity of the task: sink id, query, batch, partition.
    """
    request = command_of(RequestCode.GET_MAX_OFFSET, GetMaxOffsetHeader(topic, queue.queue_id))
    end = answer_header(OffsetResponseHeader, require_success(call(request))).offset
    found: dict[bytes, int] = {}
    at = start
    while at < end:
        answer = call(pull_request(topic, queue, at, _PULL_COUNT, "*", 0))
        if answer.code not in _NOTHING_THERE:
            require_success(answer)
            for record in decode_records(answer.body):
                identity = parse_identity(record.properties.get(P.SINK_ROW, ""))
                if identity is not None and identity[:4] == tuple(wanted):
                    found[identity.key] = record.queue_offset
        after = answer_header(PullResponseHeader, answer).next_begin_offset
        if after <= at:
            break
        at = after
    return found
