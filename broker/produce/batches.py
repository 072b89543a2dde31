"""Store the messages of a batch (320, and the rows of a sink) side by side, or none of them.

Items that are alike are cut, judged and appended by columns (`batch`); all others one by one. A batch of more than
`AT_ONCE_MAX` messages is judged and encoded in steps of the cold lane, and then appended in one piece.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from struct import pack
from typing import Final, NamedTuple

from broker.produce.admission import FLAG_BITS, is_plain_batch, refusal_in_batch
from broker.produce.appends import Appends, host_of
from broker.produce.batch import AlikeBatches, AlikeItems
from broker.produce.property_text import NO_WAIT, tags_code_of, waits_for
from broker.produce.targets import Target
from broker.remoting.refused import RequestRefused
from broker.remoting.session import Request, Session
from ropewalk.client.core.produce.row_identity import ROWS_MAX
from ropewalk.codes import ResponseCode
from ropewalk.errors import LocalProtocolError, MalformedBatch
from ropewalk.format import names
from ropewalk.format.batch import BatchItem, split_batch, split_some
from ropewalk.format.headers import SendMessageHeader, SendMessageHeaderV2, SinkAppendHeader
from ropewalk.format.properties import PROPERTIES_SIZE_MAX, P, parse_properties
from ropewalk.format.record import WrittenRecords, record_size
from store.append import Message
from store.queues.consume_queue import ConsumeQueue

__all__ = ["BatchStored", "BatchWriter", "SinkRows"]

AT_ONCE_MAX: Final = 300
"""Messages of a batch that are judged and appended as they come, and in a step of a larger one."""
BATCH_MAX: Final = 10_000
"""Messages of a batch, which are appended in one piece; half as many in a log of entries, where each has a checksum."""
_SINK_QUEUES: Final = 8
"""Queues of a topic that a sink's first row creates, where the broker creates topics."""


class BatchStored(NamedTuple):
    """A batch in the log, as its sender is told of it."""

    message_ids: str
    """Of all its messages, separated by commas."""
    queue_offset: int
    """Of the first."""
    unique_key: str
    waits: bool
    """Whether its sender wants to wait for disk and slaves."""


class WrittenBatch(NamedTuple):
    """A batch of many messages that is encoded, and not stored yet."""

    records: WrittenRecords
    tag_codes: list[int]
    unique_key: str
    waits: bool
    """Whether its sender wants to wait for disk and slaves."""


class SinkRows(NamedTuple):
    """The rows of one append of a sink, judged and not stored yet."""

    queue: ConsumeQueue
    sys_flag: int
    born_timestamp: int
    body: bytes
    alike: AlikeItems | None
    items: list[BatchItem]
    properties: Sequence[bytes]


class BatchWriter:
    """The batches of producers and sinks."""

    def __init__(
        self,
        appends: Appends,
        admit: Callable[[SendMessageHeader | SendMessageHeaderV2, Session], tuple[Target, ConsumeQueue]],
    ) -> None:
        """`admit` returns the topic and the queue that a header asks for, or raises `RequestRefused`."""
        self._appends = appends
        self._admit = admit
        self._store = appends.store
        self._alike = AlikeBatches(tags_code_of)
        self._host_size = len(appends.store.config.store_host)
        self._id_prefix = appends.store.config.store_host.hex().upper()
        self._count_max = BATCH_MAX // 2 if self._store.log.placing.head_size else BATCH_MAX
        self.max_message_size = 0
        """Bytes of a batch's body."""

    def put_batch(
        self,
        session: Session,
        request: Request,
        header: SendMessageHeader | SendMessageHeaderV2,
        target: Target,
        queue: ConsumeQueue,
    ) -> BatchStored | None:
        """Store each item as a record of its own; all stand side by side, or none does. Raises `RequestRefused`.

        None for a batch of so many messages that it is for `write_in_steps`.
        """
        self._judge_batch(target, request.body, header.sys_flag | target.sys_flag)
        sys_flag = header.sys_flag | target.sys_flag
        alike = self._alike.cut(request.body)
        items: list[BatchItem] = []
        if alike is None:
            items, end = _split_some(request.body, 0, 0)
            if end < len(request.body):
                return None
        properties = parse_properties(header.properties or "")
        _judge_in_batch(properties)
        placed = None
        if alike is not None:
            first_text = alike.properties[0]
            placed = self._put_alike(
                session, queue, alike, sys_flag, header.born_timestamp, header.reconsume_times or 0
            )
            if placed is not None:
                offsets, number = placed
                ids, wait = self.message_ids(offsets), True
        if placed is None:
            items = items or _split(request.body)
            first_text = items[0].properties
            stored, wait = self._put_items(
                session, queue, items, sys_flag, header.born_timestamp, header.reconsume_times or 0
            )
            ids, number = self.message_ids([offset for offset, _ in stored]), stored[0][1]
        key = properties.get(P.UNIQ_KEY) or parse_properties(first_text).get(P.UNIQ_KEY, "")
        return BatchStored(ids, number, key, wait and waits_for(properties))

    def message_ids(self, offsets: Sequence[int]) -> str:
        """Return the message ids of a batch."""
        digits = pack(f">{len(offsets)}q", *offsets).hex(",", 8).upper()
        return self._id_prefix + digits.replace(",", f",{self._id_prefix}")

    def write_in_steps(
        self,
        session: Session,
        request: Request,
        header: SendMessageHeader | SendMessageHeaderV2,
        target: Target,
        queue: ConsumeQueue,
    ) -> Generator[None, None, WrittenBatch]:
        """Judge and encode a batch of many messages; nothing is stored. Raises `RequestRefused`."""
        body, sys_flag = request.body, header.sys_flag | target.sys_flag
        items: list[BatchItem] = []
        position = 0
        while position < len(body):
            found, position = _split_some(body, position, len(items))
            items += found
            if len(items) > self._count_max:
                raise RequestRefused(
                    ResponseCode.MESSAGE_ILLEGAL,
                    f"the batch has more than {self._count_max} messages, the most that are stored together: send it "
                    "as several batches",
                )
            yield
        own = parse_properties(header.properties or "")
        _judge_in_batch(own)
        born_host = host_of(session.link.peer)
        records = WrittenRecords(queue.topic_bytes, queue.queue_id, born_host, self._store.config.store_host)
        codes: list[int] = []
        wait = False
        for start in range(0, len(items), AT_ONCE_MAX):
            some = items[start : start + AT_ONCE_MAX]
            judged, waits, _size = self._judge_items(
                queue, some, sys_flag, header.born_timestamp, header.reconsume_times or 0, len(born_host)
            )
            wait = wait or waits
            for _queue, text, properties, flag, flags, born, times, _prepared, code in judged:
                records.add(flag, flags, born, times, text, properties)
                codes.append(code)
            yield
        self._refuse_too_long(records.size, len(records))
        key = own.get(P.UNIQ_KEY) or parse_properties(items[0].properties).get(P.UNIQ_KEY, "")
        return WrittenBatch(records, codes, key, wait and waits_for(own))

    def put_written(self, queue: ConsumeQueue, batch: WrittenBatch) -> tuple[list[int], int]:
        """Store a batch that is written; return its log offsets and the first queue offset. Raises DiskFull."""
        began = self._appends.statistics.clock()
        records = batch.records
        placed = self._store.put_written(queue, records, batch.tag_codes)
        if placed is None:
            self._store.reserve(self._store.log.placed_size(records.size + 1, len(records)))
            placed = self._store.put_written(queue, records, batch.tag_codes)
        assert placed is not None, "the room was reserved"
        offsets, first = placed
        took_s = self._appends.statistics.clock() - began
        size = records.size // len(records)
        self._appends.count_run(queue.topic, len(records), records.size, took_s, (size,))
        return offsets, first

    def _judge_batch(self, target: Target, body: bytes, sys_flag: int) -> None:
        """Everything about a batch but its items. Raises `RequestRefused`."""
        if target.config.name.startswith(names.RETRY_PREFIX):
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, "a batch cannot be sent to a retry topic")
        if len(body) > self.max_message_size:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the batch has {len(body)} bytes, maxMessageSize is {self.max_message_size}",
            )
        if sys_flag & FLAG_BITS:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL, "a batch is neither transactional nor an inner batch here"
            )

    def _put_alike(
        self,
        session: Session,
        queue: ConsumeQueue,
        alike: AlikeItems,
        sys_flag: int,
        born_timestamp: int,
        reconsume_times: int,
    ) -> tuple[Sequence[int], int] | None:
        """Append items that are alike, and count them; their places as `AlikeBatches.put` returns them. HOT."""
        began = self._appends.statistics.clock()
        placed = self._alike.put(
            self._store, queue, alike, sys_flag, born_timestamp, host_of(session.link.peer), reconsume_times
        )
        if placed is not None:
            offsets = placed[0]
            took_s = self._appends.statistics.clock() - began
            size = queue.max_physical - offsets[-1]
            self._appends.count_run(queue.topic, len(offsets), size * len(offsets), took_s, (size,))
        return placed

    # -- rows of sinks -------------------------------------------------------------------------------

    def admit_rows(self, session: Session, header: SinkAppendHeader, body: bytes) -> SinkRows:
        """Judge the rows of a sink as a batch; nothing is stored. Raises `RequestRefused`."""
        send = SendMessageHeaderV2(
            header.producer_group,
            header.topic,
            names.DEFAULT_TOPIC,
            _SINK_QUEUES,
            header.queue_id,
            0,
            header.born_timestamp,
            0,
        )
        target, queue = self._admit(send, session)
        self._judge_batch(target, body, target.sys_flag)
        alike = self._alike.cut(body)
        items, end = _split_some(body, 0, 0, ROWS_MAX) if alike is None else ([], len(body))
        if end < len(body) or (alike is not None and len(alike.bodies) > ROWS_MAX):
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL, f"a request of a sink has at most {ROWS_MAX} rows"
            )
        texts = alike.properties if alike is not None else [item.properties for item in items]
        return SinkRows(queue, target.sys_flag, header.born_timestamp, body, alike, items, texts)

    def put_rows(self, session: Session, rows: SinkRows, chosen: Sequence[int] | None) -> int:
        """Store the chosen rows of a sink, all if None, side by side; return the queue offset of the first.

        Raises `RequestRefused` and DiskFull; then none is stored.
        """
        if rows.alike is not None and chosen is None:
            placed = self._put_alike(session, rows.queue, rows.alike, rows.sys_flag, rows.born_timestamp, 0)
            if placed is not None:
                return placed[1]
        items = rows.items or _split(rows.body)
        if chosen is not None:
            items = [items[index] for index in chosen]
        try:
            stored, _wait = self._put_items(session, rows.queue, items, rows.sys_flag, rows.born_timestamp, 0)
        except (LocalProtocolError, UnicodeEncodeError) as exc:
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, str(exc)) from exc
        return stored[0][1]

    def _put_items(
        self,
        session: Session,
        queue: ConsumeQueue,
        items: list[BatchItem],
        sys_flag: int,
        born_timestamp: int,
        reconsume_times: int,
    ) -> tuple[list[tuple[int, int]], bool]:
        """Store the messages of a batch one by one; their places, and whether one waits. Raises `RequestRefused`."""
        batch, wait, size = self._judge_items(
            queue, items, sys_flag, born_timestamp, reconsume_times, len(host_of(session.link.peer))
        )
        self._refuse_too_long(size, len(batch))
        self._store.reserve(self._store.log.placed_size(size + 1, len(batch)))
        stored = self._appends.put(batch, session, as_one=True)
        assert len(stored) == len(batch), "the room was reserved"
        return stored, wait

    def _judge_items(
        self,
        queue: ConsumeQueue,
        items: list[BatchItem],
        sys_flag: int,
        born_timestamp: int,
        reconsume_times: int,
        born_host_size: int,
    ) -> tuple[list[Message], bool, int]:
        """Return the messages of a batch, whether one waits, and the size of their records. Raises `RequestRefused`."""
        size, wait = 0, False
        batch: list[Message] = []
        for item in items:
            text = item.properties.decode("utf-8", "replace")
            # The original leaves this to its client: a delayed or half message in a batch would be stored as plain.
            if not is_plain_batch(item.properties):
                _judge_in_batch(parse_properties(text))
            wait = wait or NO_WAIT not in text or waits_for(parse_properties(text))
            properties = item.properties
            if properties[-1:] == b"\0":
                # A start knows a torn record by the zeros at its end, so none is stored that ends in one.
                properties += b"\x02"
                if len(properties) > PROPERTIES_SIZE_MAX:
                    raise RequestRefused(
                        ResponseCode.MESSAGE_ILLEGAL,
                        "the properties of a message of the batch end in a zero byte",
                    )
            size += record_size(
                len(queue.topic_bytes),
                len(item.body),
                len(properties),
                born_host_size,
                self._host_size,
            )
            batch.append(
                (
                    queue,
                    item.body,
                    properties,
                    item.flag,
                    sys_flag,
                    born_timestamp,
                    reconsume_times,
                    0,
                    tags_code_of(text),
                )
            )
        return batch, wait, size

    def _refuse_too_long(self, size: int, count: int) -> None:
        if not self._store.log.fits(size + 1, count):
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the batch needs {size} bytes in one piece, a segment has fewer",
            )


def _split_some(
    body: bytes, position: int, count: int, count_max: int | None = None
) -> tuple[list[BatchItem], int]:
    """Split off the items of a step, or `count_max`, before which there are `count`. Raises `RequestRefused`."""
    try:
        return split_some(body, position, count_max or AT_ONCE_MAX, count)
    except MalformedBatch as exc:
        raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, str(exc)) from exc


def _split(body: bytes) -> list[BatchItem]:
    """The items of a batch. Raises `RequestRefused`."""
    try:
        return split_batch(body)
    except MalformedBatch as exc:
        raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, str(exc)) from exc


def _judge_in_batch(properties: dict[str, str]) -> None:
    """Raise `RequestRefused` for what a message of a batch, or the batch itself, cannot ask for."""
    refusal = refusal_in_batch(properties)
    if refusal is not None:
        raise RequestRefused(*refusal)
