"""Administrators' requests about how far groups have read, and where they are sent (208, 303, 317, 43, 45, 308, 314,
222).

A reset (222) is the broker's own: the new offset counts at once, for a group that is away as well as for one that
reads. Whoever reads already learns of it with the answer to the next pull, and pulls that are being held are answered
for that purpose; a commit that still speaks of the old place changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from broker.admin.base import AdminContext, Handler, body_of, table_in_slices
from broker.remoting.refused import RequestRefused
from broker.remoting.session import Session, Stepwise
from broker.state.topics import TopicConfig
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format.fastjson import IntKeys, QueueKey, QueueKeys
from ropewalk.format.headers import (
    BrokerConsumeStatsHeader,
    CloneGroupOffsetHeader,
    ConsumeStatsHeader,
    CorrectionOffsetHeader,
    ResetOffsetHeader,
    TopicGroupHeader,
    decode_header,
)
from ropewalk.format.remoting import Command
from store.queues.consume_queue import ConsumeQueue
from store.read.store_times import offset_by_time, store_times

LONG_MAX = 2**63 - 1


@dataclass(slots=True)
class _Row:
    """One queue of one group: where it ends, and where the group is."""

    topic: str
    queue_id: int
    queue: ConsumeQueue | None
    end: int
    committed: int
    fetched: int


class AdminOffsets:
    def __init__(self, context: AdminContext) -> None:
        self._context = context
        self._broker = context.broker

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_CONSUME_STATS: self.consume_stats,
            RequestCode.GET_BROKER_CONSUME_STATS: self.broker_consume_stats,
            RequestCode.QUERY_CONSUME_TIME_SPAN: self.time_span,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self.all_offsets,
            RequestCode.GET_ALL_DELAY_OFFSET: self.delay_offsets,
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self.reset,
            RequestCode.CLONE_GROUP_OFFSET: self.clone,
            RequestCode.QUERY_CORRECTION_OFFSET: self.correction,
        }

    # -- how far groups have read --------------------------------------------------------------------

    def consume_stats(self, session: Session, request: Command) -> None:
        """Return the progress of a group: the end of each queue, the group's place in it, and the time of the message
        before that.
        """
        header = decode_header(ConsumeStatsHeader, request.ext)
        group = header.consumer_group
        named = [header.topic or "", *(header.topic_list or "").split(";")]
        topics = [topic for topic in named if topic.strip()] or self._broker.offsets.topics_of(group)
        rows = [row for topic in self._read_by(group, topics) for row in self._rows(group, topic)]

        def answer(times: list[int]) -> Command:
            return body_of(request, self._stats_body(group, rows, times))

        self._context.later(session, request, self._times(rows), answer)

    def broker_consume_stats(self, session: Session, request: Command) -> None:
        """Every group of this broker, one entry for each of its topics."""
        only_ordered = decode_header(BrokerConsumeStatsHeader, request.ext).is_order
        broker = self._broker
        found: list[tuple[str, list[_Row]]] = []
        for config in broker.groups:
            for topic in self._read_by(config.name, broker.offsets.topics_of(config.name)):
                if topic.order or not only_ordered:
                    found.append((config.name, list(self._rows(config.name, topic))))
        rows = [row for _group, part in found for row in part]

        def answer(times: list[int]) -> Command:
            left = iter(times)
            by_group: dict[str, list[dict[str, Any]]] = {}
            for group, part in found:
                body = self._stats_body(group, part, [next(left) for _ in part])
                by_group.setdefault(group, []).append(body)
            address, port = broker.address
            return body_of(
                request,
                {
                    "brokerAddr": f"{address}:{port}",
                    "consumeStatsList": [{group: stats} for group, stats in by_group.items()],
                    "totalDiff": sum(row.end - row.committed for row in rows),
                    "totalInflightDiff": sum(row.fetched - row.committed for row in rows),
                },
            )

        self._context.later(session, request, self._times(rows), answer)

    def _read_by(self, group: str, topics: list[str]) -> Iterator[TopicConfig]:
        """Of these topics those that exist and that a group which is online still reads."""
        live = self._broker.clients.consumer_group(group)
        for name in dict.fromkeys(topics):
            config = self._broker.topics.get(name)
            if config is None or (live is not None and live.subscriptions and name not in live.subscriptions):
                continue
            yield config

    def _rows(self, group: str, topic: TopicConfig) -> Iterator[_Row]:
        broker = self._broker
        committed = broker.offsets.queues(group, topic.name)
        for n in range(topic.read_queues):
            queue = broker.store.find_queue(topic.name, n)
            end = queue.readable if queue else 0
            at = max(committed.get(n, 0), 0)
            # A client may ask for any offset; beyond the end there was nothing to fetch.
            fetched = max(at, min(broker.offsets.fetched(group, topic.name, n), end))
            yield _Row(topic.name, n, queue, end, at, fetched)

    def _times(self, rows: list[_Row]) -> Any:
        return store_times(self._broker.store.log, ((row.queue, row.committed - 1) for row in rows))

    def _stats_body(self, group: str, rows: list[_Row], times: list[int]) -> dict[str, Any]:
        broker = self._broker
        table = QueueKeys()
        for row, time in zip(rows, times, strict=True):
            table[QueueKey(row.topic, broker.config.broker_name, row.queue_id)] = {
                "brokerOffset": row.end,
                "consumerOffset": row.committed,
                "lastTimestamp": max(time, 0),
                "pullOffset": row.fetched,
            }
        now = broker.now_ms()
        topics = dict.fromkeys(row.topic for row in rows)
        tps = sum((broker.statistics.group_get_tps(topic, group, now) for topic in topics), 0.0)
        return {"consumeTps": tps, "offsetTable": table}

    def time_span(self, session: Session, request: Command) -> None:
        """For each queue: the times of its first and last message and of the group's place, and how late that is."""
        header = decode_header(TopicGroupHeader, request.ext)
        broker = self._broker
        topic = self._topic(header.topic)
        rows = list(self._rows(header.group, topic))
        places = [
            (row.queue, offset)
            for row in rows
            for offset in (
                row.queue.min_offset if row.queue else 0,
                row.end - 1,
                row.committed - 1,
                row.committed,
            )
        ]

        def answer(times: list[int]) -> Command:
            spans = []
            for n, row in enumerate(rows):
                first, last, consumed, following = times[4 * n : 4 * n + 4]
                spans.append(
                    {
                        "consumeTimeStamp": consumed if row.committed > 0 else first,
                        "delayTime": max(broker.now_ms() - following, 0) if following >= 0 else 0,
                        "maxTimeStamp": last,
                        "messageQueue": {
                            "brokerName": broker.config.broker_name,
                            "queueId": row.queue_id,
                            "topic": row.topic,
                        },
                        "minTimeStamp": first,
                    }
                )
            return body_of(request, {"consumeTimeSpanSet": spans})

        self._context.later(session, request, store_times(self._broker.store.log, places), answer)

    def all_offsets(self, session: Session, request: Command) -> Stepwise:
        offsets = self._broker.offsets
        fields = offsets.wrapper_fields(self._broker.now_ms())
        return table_in_slices(request, fields, "offsetTable", offsets.shown(), IntKeys)

    def delay_offsets(self, session: Session, request: Command) -> Command:
        return body_of(request, self._context.delay_offsets())

    def correction(self, session: Session, request: Command) -> Command:
        """The least offset any group has in each queue; as large as can be where `compareGroup` is behind it."""
        header = decode_header(CorrectionOffsetHeader, request.ext)
        broker = self._broker
        # Filtered groups are left out of the comparison. The original deletes their offsets, which nobody asked for.
        left_out = {group.strip() for group in (header.filter_groups or "").split(",")}
        least: dict[int, int] = {}
        for group in broker.offsets.groups_of(header.topic):
            for queue_id, offset in broker.offsets.queues(group, header.topic).items():
                queue = broker.store.find_queue(header.topic, queue_id)
                if group not in left_out and offset >= (queue.min_offset if queue else 0):
                    least[queue_id] = min(offset, least.get(queue_id, offset))
        for queue_id, offset in broker.offsets.queues(header.compare_group, header.topic).items():
            if least.get(queue_id, offset) > offset:
                least[queue_id] = LONG_MAX
        return body_of(request, {"correctionOffsets": IntKeys(least)})

    # -- sending groups elsewhere --------------------------------------------------------------------

    def clone(self, session: Session, request: Command) -> Command:
        """Give one group the offsets of another."""
        header = decode_header(CloneGroupOffsetHeader, request.ext)
        broker = self._broker
        topics = [header.topic] if header.topic else broker.offsets.topics_of(header.src_group)
        for topic in topics:
            live = None if header.offline else broker.clients.consumer_group(header.src_group)
            if topic in broker.topics and (live is None or topic in live.subscriptions):
                try:
                    broker.offsets.clone(header.src_group, header.dest_group, topic)
                except ValueError as exc:
                    raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(exc)) from exc
        return request.reply(ResponseCode.SUCCESS)

    def reset(self, session: Session, request: Command) -> None:
        header = decode_header(ResetOffsetHeader, request.ext)
        broker = self._broker
        topic = self._topic(header.topic)
        if header.group not in broker.groups:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {header.group} does not exist"
            )
        ids = range(topic.read_queues) if header.queue_id < 0 else [header.queue_id]
        queues = {n: broker.store.find_queue(topic.name, n) for n in ids}
        if not queues:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, "No queues to reset.")
        targets: dict[int, int] = {}
        if header.queue_id >= 0 and header.offset is not None and header.offset != -1:
            low, high = _bounds(queues[header.queue_id])
            if not low <= header.offset <= high + 1:
                raise RequestRefused(
                    ResponseCode.SYSTEM_ERROR,
                    f"Target offset {header.offset} not in consume queue range [{low}-{high}]",
                )
            targets[header.queue_id] = header.offset
        elif header.timestamp < 0:
            targets = {n: _bounds(queue)[1] for n, queue in queues.items()}
        log = broker.store.log
        frozen = {n: queue.frozen() for n, queue in queues.items() if queue is not None and n not in targets}

        def find() -> dict[int, int]:
            found = {n: offset_by_time(queue, log, header.timestamp) for n, queue in frozen.items()}
            return {n: targets.get(n, found.get(n, 0)) for n in queues}

        def answer(found: dict[int, int]) -> Command:
            table = QueueKeys()
            for n, offset in found.items():
                self._send_to(header.group, topic.name, n, offset)
                table[QueueKey(topic.name, broker.config.broker_name, n)] = offset
            return body_of(request, {"offsetTable": table})

        self._context.later(session, request, find, answer)

    def _send_to(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        broker = self._broker
        queue = broker.store.find_queue(topic, queue_id)
        # A pull that waits, or a group that is online: a consumer reads ahead, and its next pull may well ask for the
        # very place where it is sent while it still has messages that the administrator wants passed over.
        is_held = queue is not None and any(held.group == group for held in broker.held_pulls.of_queue(queue))
        is_read = is_held or broker.clients.consumer_group(group) is not None
        try:
            broker.offsets.reset(group, topic, queue_id, offset, is_read=is_read)
        except ValueError as exc:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(exc)) from exc
        if queue is not None:
            broker.held_pulls.dismiss(queue, group)

    def _topic(self, name: str) -> TopicConfig:
        config = self._broker.topics.get(name)
        if config is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"Topic {name} does not exist")
        return config


def _bounds(queue: ConsumeQueue | None) -> tuple[int, int]:
    return (queue.min_offset, queue.readable) if queue is not None else (0, 0)
