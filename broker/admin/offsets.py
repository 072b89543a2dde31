"""Administrators' requests about how far groups have read, and where they are sent (208, 303, 317, 43, 45, 308, 314,
222).

A reset (222) is the broker's own: the new offset counts at once, for a group that is away as well as for one that
reads. Whoever reads already learns of it with the answer to the next pull, and pulls that are being held are answered
for that purpose; a commit that still speaks of the old place changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, groupby, starmap
from operator import attrgetter, itemgetter
from typing import Final, NamedTuple

from broker.admin.base import (
    AdminContext,
    Handler,
    body_of,
    collect,
)
from broker.remoting.large_answers import (
    ENTRIES_PER_STEP,
    body_in_steps,
    in_pieces,
    large_answer,
    written_fields,
    written_list,
    written_object,
)
from broker.remoting.refused import RequestRefused
from broker.remoting.session import Session, Stepwise
from broker.state.offsets import SEPARATOR
from broker.state.topics import TopicConfig
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format import fastjson
from ropewalk.format.fastjson import QueueKey, QueueKeys
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
from store.queues.consume_queue import ConsumeQueue, FrozenQueue
from store.read.store_times import Spot, offset_by_time, spot_of, times_at

LONG_MAX: Final = 2**63 - 1
TOPICS_MAX: Final = 10_000
"""Topics that a request about one group may name."""


class _Row(NamedTuple):
    """One queue of one group: its end, the place of the group, and the spot of the message before that."""

    topic: str
    queue_id: int
    end: int
    committed: int
    fetched: int
    before: Spot


class _Span(NamedTuple):
    """One queue of one group, and the spots of its first and last message and of those around the group's place."""

    queue_id: int
    committed: int
    spots: tuple[Spot, Spot, Spot, Spot]


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

    def consume_stats(self, session: Session, request: Command) -> Stepwise:
        """Return the progress of a group: the end of each queue, the group's place in it, and the time of the message
        before that.
        """
        header = decode_header(ConsumeStatsHeader, request.ext)
        group = header.consumer_group
        named = [header.topic or "", *(header.topic_list or "").split(";", TOPICS_MAX)]
        if len(named) > TOPICS_MAX:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER, f"topicList names more than {TOPICS_MAX} topics"
            )
        topics = [topic for topic in named if topic.strip()] or self._broker.offsets.topics_of(group)
        rows = yield from collect(self._rows(group, topics))

        def answer(times: list[int]) -> Stepwise:
            pieces = yield from in_pieces(self._stats(group, rows, iter(times)))
            return large_answer(request, pieces)

        self._context.later(session, request, self._times(row.before for row in rows), answer)
        return None

    def broker_consume_stats(self, session: Session, request: Command) -> Stepwise:
        """Every group of this broker, one entry for each of its topics."""
        only_ordered = decode_header(BrokerConsumeStatsHeader, request.ext).is_order
        broker = self._broker
        behind = in_flight = 0

        def rows_of_all() -> Iterator[tuple[str, _Row] | None]:
            nonlocal behind, in_flight
            for config in broker.groups:
                yield None
                for row in self._rows(config.name, broker.offsets.topics_of(config.name), only_ordered):
                    if row is not None:
                        behind += row.end - row.committed
                        in_flight += row.fetched - row.committed
                    yield (config.name, row) if row is not None else None

        rows = yield from collect(rows_of_all())

        def of_group(group: str, found: Iterable[tuple[str, _Row]], times: Iterator[int]) -> Iterator[bytes]:
            by_topic = groupby((row for _group, row in found), key=attrgetter("topic"))
            stats = (self._stats(group, list(part), times) for _topic, part in by_topic)
            return chain([b"{%b:" % fastjson.dumps(group)], written_list(stats), [b"}"])

        def answer(found: list[int]) -> Stepwise:
            address, port = broker.address
            times, by_group = iter(found), groupby(rows, key=itemgetter(0))
            fields = {
                "brokerAddr": f"{address}:{port}",
                "consumeStatsList": written_list(of_group(group, part, times) for group, part in by_group),
                "totalDiff": behind,
                "totalInflightDiff": in_flight,
            }
            return body_in_steps(request, fields)

        self._context.later(session, request, self._times(row.before for _group, row in rows), answer)
        return None

    def _rows(self, group: str, topics: Iterable[str], only_ordered: bool = False) -> Iterator[_Row | None]:
        """Yield the queues of those topics that exist and that a group which is online still reads; None for others."""
        live = self._broker.clients.consumer_group(group)
        for name in dict.fromkeys(topics):
            config = self._broker.topics.get(name)
            yield None
            if config is None or (live is not None and live.subscriptions and name not in live.subscriptions):
                continue
            if config.order or not only_ordered:
                for n in range(config.read_queues):
                    queue, end, committed = self._place(group, name, n)
                    # A client may ask for any offset; beyond the end there was nothing to fetch.
                    fetched = max(committed, min(self._broker.offsets.fetched(group, name, n), end))
                    yield _Row(name, n, end, committed, fetched, spot_of(queue, committed - 1))

    def _place(self, group: str, topic: str, queue_id: int) -> tuple[ConsumeQueue | None, int, int]:
        """Return a queue, its end, and the place of a group in it."""
        queue = self._broker.store.find_queue(topic, queue_id)
        committed = self._broker.offsets.query(group, topic, queue_id) or 0
        return queue, queue.readable if queue else 0, committed

    def _times(self, spots: Iterable[Spot]) -> Callable[[], list[int]]:
        """Return a job for the store times at many spots."""
        log = self._broker.store.log
        return lambda: times_at(log, list(spots))

    def _stats(self, group: str, rows: Sequence[_Row], times: Iterator[int]) -> Iterator[bytes]:
        """Yield the fragments of a group's progress in some queues."""
        broker = self._broker
        name, now = broker.config.broker_name, broker.now_ms()

        def entry(row: _Row) -> bytes:
            place = {
                "brokerOffset": row.end,
                "consumerOffset": row.committed,
                "lastTimestamp": max(next(times), 0),
                "pullOffset": row.fetched,
            }
            return fastjson.dumps(QueueKeys({QueueKey(row.topic, name, row.queue_id): place}))[1:-1]

        def tps() -> Iterator[bytes]:
            total = 0.0
            for topic, part in groupby(rows, key=attrgetter("topic")):
                total += broker.statistics.group_get_tps(topic, group, now)
                yield from (b"" for _ in part)
            yield fastjson.dumps(total)

        return written_fields({"consumeTps": tps(), "offsetTable": written_object(map(entry, rows))})

    def time_span(self, session: Session, request: Command) -> Stepwise:
        """For each queue: the times of its first and last message and of the group's place, and how late that is."""
        header = decode_header(TopicGroupHeader, request.ext)
        broker = self._broker
        topic = self._topic(header.topic)

        def span(n: int) -> _Span:
            queue, end, committed = self._place(header.group, topic.name, n)
            low = queue.min_offset if queue else 0
            spots = (
                spot_of(queue, low), spot_of(queue, end - 1), spot_of(queue, committed - 1), spot_of(queue, committed)
            )  # fmt: skip
            return _Span(n, committed, spots)

        spans = yield from collect(map(span, range(topic.read_queues)))

        def text(one: _Span, times: Iterator[int]) -> bytes:
            first, last, consumed, following = (next(times) for _ in one.spots)
            return fastjson.dumps(
                {
                    "consumeTimeStamp": consumed if one.committed > 0 else first,
                    "delayTime": max(broker.now_ms() - following, 0) if following >= 0 else 0,
                    "maxTimeStamp": last,
                    "messageQueue": {
                        "brokerName": broker.config.broker_name,
                        "queueId": one.queue_id,
                        "topic": topic.name,
                    },
                    "minTimeStamp": first,
                }
            )

        def answer(times: list[int]) -> Stepwise:
            left = iter(times)
            return body_in_steps(
                request, {"consumeTimeSpanSet": written_list(text(one, left) for one in spans)}
            )

        self._context.later(
            session, request, self._times(chain.from_iterable(one.spots for one in spans)), answer
        )
        return None

    def all_offsets(self, session: Session, request: Command) -> Stepwise:
        offsets = self._broker.offsets

        def entry(topic: str, group: str) -> Iterator[bytes]:
            queues = offsets.queues(group, topic)
            key = fastjson.dumps(f"{topic}{SEPARATOR}{group}") + b":"
            return chain([key], written_object(b"%d:%d" % each for each in queues.items()))

        fields = offsets.wrapper_fields(self._broker.now_ms())
        return body_in_steps(
            request, {**fields, "offsetTable": written_object(starmap(entry, offsets.keys()))}
        )

    def delay_offsets(self, session: Session, request: Command) -> Command:
        return body_of(request, self._context.delay_offsets())

    def correction(self, session: Session, request: Command) -> Stepwise:
        """The least offset any group has in each queue; as large as can be where `compareGroup` is behind it."""
        header = decode_header(CorrectionOffsetHeader, request.ext)
        broker = self._broker
        # Filtered groups are left out of the comparison. The original deletes their offsets, which nobody asked for.
        left_out = {group.strip() for group in (header.filter_groups or "").split(",", TOPICS_MAX)}
        least: dict[int, int] = {}
        for count, (group, queue_id, offset) in enumerate(
            self._offsets_of((header.topic, group) for group in broker.offsets.groups_of(header.topic)), 1
        ):
            queue = broker.store.find_queue(header.topic, queue_id)
            if group not in left_out and offset >= (queue.min_offset if queue else 0):
                least[queue_id] = min(offset, least.get(queue_id, offset))
            if count % ENTRIES_PER_STEP == 0:
                yield
        for _group, queue_id, offset in self._offsets_of([(header.topic, header.compare_group)]):
            if least.get(queue_id, offset) > offset:
                least[queue_id] = LONG_MAX
        entries = written_object(b"%d:%d" % each for each in sorted(least.items()))
        return (yield from body_in_steps(request, {"correctionOffsets": entries}))

    def _offsets_of(self, pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[str, int, int]]:
        """Yield the group, queue id and offset of pairs of topic and group."""
        for topic, group in pairs:
            for queue_id, offset in self._broker.offsets.queues(group, topic).items():
                yield group, queue_id, offset

    # -- sending groups elsewhere --------------------------------------------------------------------

    def clone(self, session: Session, request: Command) -> None:
        """Give one group the offsets of another."""
        header = decode_header(CloneGroupOffsetHeader, request.ext)
        broker, source, target = self._broker, header.src_group, header.dest_group
        live = None if header.offline else broker.clients.consumer_group(source)
        topics = [header.topic] if header.topic else broker.offsets.topics_of(source)

        def steps() -> Stepwise:
            count = 0
            for topic in topics:
                if topic not in broker.topics or not (live is None or topic in live.subscriptions):
                    continue
                for _group, queue_id, offset in self._offsets_of([(topic, source)]):
                    try:
                        broker.offsets.commit(target, topic, queue_id, offset)
                    except ValueError as exc:
                        raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(exc)) from exc
                    count += 1
                    if count % ENTRIES_PER_STEP == 0:
                        yield
            return request.reply(ResponseCode.SUCCESS)

        self._context.change(session, request, steps())

    def reset(self, session: Session, request: Command) -> Stepwise:
        header = decode_header(ResetOffsetHeader, request.ext)
        broker, topic = self._broker, self._topic(header.topic)
        if header.group not in broker.groups:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {header.group} does not exist"
            )
        fixed = header.queue_id >= 0 and header.offset is not None and header.offset != -1
        ids = range(topic.read_queues) if header.queue_id < 0 else range(header.queue_id, header.queue_id + 1)
        if not ids:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, "No queues to reset.")

        def target(n: int) -> tuple[int, int | FrozenQueue]:
            queue = broker.store.find_queue(topic.name, n)
            low, high = _bounds(queue)
            if not fixed:
                return n, high if queue is None or header.timestamp < 0 else queue.frozen()
            assert header.offset is not None
            if not low <= header.offset <= high + 1:
                raise RequestRefused(
                    ResponseCode.SYSTEM_ERROR,
                    f"Target offset {header.offset} not in consume queue range [{low}-{high}]",
                )
            return n, header.offset

        targets = yield from collect(map(target, ids))
        log = broker.store.log

        def find() -> list[tuple[int, int]]:
            return [
                (n, place if isinstance(place, int) else offset_by_time(place, log, header.timestamp))
                for n, place in targets
            ]

        def sent(found: list[tuple[int, int]]) -> Iterator[bytes]:
            for n, offset in found:
                self._send_to(header.group, topic.name, n, offset)
                key = QueueKey(topic.name, broker.config.broker_name, n)
                yield fastjson.dumps(QueueKeys({key: offset}))[1:-1]

        def answer(found: list[tuple[int, int]]) -> Stepwise:
            return body_in_steps(request, {"offsetTable": written_object(sent(found))})

        self._context.later(session, request, find, answer, must_end=True)
        return None

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
