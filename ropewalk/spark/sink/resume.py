"""Exactly once by reading back, over any RocketMQ: a task sends only rows that the topic does not hold yet.

    anchors     consumer offsets of the hidden group %RWSINK%<sinkId>: behind the last committed batch, in each queue
    marks       numbers under queue ids that no topic reaches: the last committed batch, its digest, the list of brokers
    ends        where the queues ended when this run of the batch began

Every row carries its key and its writer in the property RW_SINK. What a task finds of its batch:

    [anchor, end)   rows of earlier runs. Other tasks may have equal ones, and which task has which row is Spark's
                    choice: so no task sends a row of such a content, and each tells the driver how many it held back
    [end, now)      rows of this run. Those of its own partition came from attempts of it that failed, and are left out

Usually neither holds any. The commit adds up what was held back. Fewer rows of a content than are stored: the plan is
not deterministic. More: there are equal rows in the batch, and the earlier run did not get to store them all; the
driver sends copies of a stored one. A driver that dies meanwhile leaves copies that the next run finds as stored.

A commit writes the mark of the batch first and the anchors then. A mark without its anchors makes tasks read more than
they had to; anchors without the mark would make them miss rows of a batch that is repeated.

Brokers write such offsets to their disk every few seconds, so a kill takes the newest away. Older ones are as good, and
where there is none at all a task begins two minutes before the queue's last message. A queue that is new is read from
its beginning.

A request without an answer may have been stored. Its queue is read before it is sent again, after a moment in which a
broker would still have carried it out.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Final

from ropewalk.client.core.messages import command_of, pull_request
from ropewalk.client.core.produce.row_identity import RowIdentity, parse_identity
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
from ropewalk.format.names import RETRY_PREFIX, SINK_GROUP_PREFIX, SINK_MARKS
from ropewalk.format.properties import P
from ropewalk.format.record import Record, decode_records
from ropewalk.format.remoting import Command
from ropewalk.spark.live.cluster import ConnectionCache
from ropewalk.spark.sink.routes import WriteFailed
from ropewalk.spark.sink.row_keys import RowDigest

__all__ = [
    "Anchors",
    "commit_anchors",
    "create_anchors",
    "digest_number",
    "group_of",
    "read_anchors",
    "read_record",
    "read_rows",
]

_MARKS: Final = tuple(SINK_MARKS)
_BATCH_MARK, _DIGEST_MARK, _BROKERS_MARK = _MARKS
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
    return f"{SINK_GROUP_PREFIX}{sink_id}"


@dataclass(frozen=True)
class Anchors:
    """The offsets and marks of a sink before a batch."""

    topic: str
    offsets: Mapping[Queue, int]
    ends: Mapping[Queue, int]
    """Where the queues ended when the batch began."""
    marks: Mapping[str, tuple[int, int, int]]
    """The three marks of each broker; -1 where there is none."""
    other_topics: tuple[str, ...] = ()
    """Topics beside this one that the sink has anchors in."""

    @property
    def has_rows(self) -> bool:
        """Return whether there was anything behind the anchors when the batch began."""
        return any(self.ends[queue] > offset for queue, offset in self.offsets.items())

    def check_topic(self, sink_id: str) -> None:
        """Reject another topic than the one that the sink writes to. Raises WriteFailed."""
        again = (
            f"Nothing was stored. Give option sinkId a new name, or delete the consumer group {group_of(sink_id)} with "
            f"its offsets, which has the sink forgotten"
        )
        if self.other_topics:
            raise WriteFailed(
                f"sink {sink_id} writes to topic {', '.join(self.other_topics)}, and this is topic {self.topic}: a "
                f"sinkId belongs to one topic (in foreachBatch, each write needs its own). {again}"
            )
        for queue, offset in self.offsets.items():
            if offset > self.ends[queue]:
                raise WriteFailed(
                    f"sink {sink_id} wrote to topic {self.topic} up to offset {offset} of queue {queue.queue_id} at "
                    f"{queue.broker_name}, which now ends at {self.ends[queue]}: the topic was deleted and is another "
                    f"topic {self.topic} now, or the broker lost its newest messages. {again}"
                )

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
    """Read the anchors and marks; an anchor is -1 where there is none. Blocks; raises as `ConnectionCache.call_all`."""
    group = group_of(sink_id)
    offsets: dict[Queue, int] = {}
    ends: dict[Queue, int] = {}
    marks: dict[str, tuple[int, int, int]] = {}
    topics: set[str] = set()
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
                Command(RequestCode.QUERY_TOPICS_BY_CONSUMER, ext={"group": group}),
            ],
        )
        topics |= _topics_in(answers.pop())
        found = [_offset_in(answer) for answer in answers[: len(ids)]]
        for queue, answer in zip(own, answers[len(ids) :], strict=True):
            ends[queue] = answer_header(OffsetResponseHeader, require_success(answer)).offset
        marks[name] = tuple(found[len(own) :])  # type: ignore[assignment]
        offsets |= dict(zip(own, found, strict=False))
    return Anchors(topic, offsets, ends, marks, tuple(sorted(topics - {topic})))


def create_anchors(
    links: ConnectionCache, anchors: Anchors, sink_id: str, addresses: Mapping[str, str]
) -> Anchors:
    """Write the anchors that are missing, and return all of them. Blocks; raises as `ConnectionCache.call_all`."""
    group, topic = group_of(sink_id), anchors.topic
    offsets = dict(anchors.offsets)
    for name, address in addresses.items():
        # A queue that is new since the sink began at this broker has nothing of earlier batches in front.
        is_begun = anchors.marks[name][-1] >= 0
        missing = {
            queue: 0 if is_begun else _look_back(links, address, topic, queue, anchors.ends[queue])
            for queue, offset in offsets.items()
            if offset < 0 and queue.broker_name == name
        }
        numbers = {queue.queue_id: offset for queue, offset in missing.items()}
        if anchors.marks[name][-1] < 0:
            numbers[_BROKERS_MARK] = _brokers_number(tuple(addresses))
        if numbers:
            body = fastjson.dumps(
                {"groupName": group, "consumeEnable": True, "retryQueueNums": 1, "retryMaxTimes": 0}
            )
            create = Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
            require_success(links.call_all(address, [create])[0])
            _commit(links, address, group, topic, numbers)
        offsets |= missing
    return replace(anchors, offsets=offsets)


def _topics_in(answer: Command) -> set[str]:
    """Return the topics that a group has offsets of, without its retry topic."""
    found = fastjson.loads(require_success(answer).body).get("topicList") or ()
    return {name for name in found if not name.startswith(RETRY_PREFIX)}


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


def read_rows(
    call: Callable[[Command], Command], topic: str, queue: Queue, start: int
) -> list[tuple[RowIdentity, int]]:
    """Return the rows of sinks in a queue from an offset on, each with its queue offset. Blocks."""
    request = command_of(RequestCode.GET_MAX_OFFSET, GetMaxOffsetHeader(topic, queue.queue_id))
    end = answer_header(OffsetResponseHeader, require_success(call(request))).offset
    found: list[tuple[RowIdentity, int]] = []
    at = start
    while at < end:
        answer = call(pull_request(topic, queue, at, _PULL_COUNT, "*", 0))
        if answer.code not in _NOTHING_THERE:
            require_success(answer)
            for record in decode_records(answer.body):
                identity = parse_identity(record.properties.get(P.SINK_ROW, ""))
                if identity is not None:
                    found.append((identity, record.queue_offset))
        after = answer_header(PullResponseHeader, answer).next_begin_offset
        if after <= at:
            break
        at = after
    return found


def read_record(call: Callable[[Command], Command], topic: str, queue: Queue, offset: int) -> Record:
    """Return the message at an offset. Blocks. Raises WriteFailed where it is gone."""
    answer = call(pull_request(topic, queue, offset, 1, "*", 0))
    if answer.code not in _NOTHING_THERE:
        for record in decode_records(require_success(answer).body):
            if record.queue_offset == offset:
                return record
    raise WriteFailed(
        f"the message at offset {offset} of queue {queue.queue_id} of {topic} at {queue.broker_name} is gone, of which "
        f"the batch has a copy"
    )
