"""Store the messages of a batch (320, and the rows of a sink) side by side, or none of them.

Items that are alike are cut, judged and appended by columns (`batch`); all others one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import pack
from typing import Final, NamedTuple

from broker.produce.admission import FLAG_BITS, is_plain_batch, refusal_in_batch
from broker.produce.appends import Appends, host_of
from broker.produce.batch import AlikeBatches, AlikeItems
from broker.produce.property_text import NO_WAIT, tags_code_of, waits_for
from broker.produce.targets import Target
from broker.remoting.refused import RequestRefused
from broker.remoting.session import Request, Session
from ropewalk.codes import ResponseCode
from ropewalk.errors import LocalProtocolError, MalformedBatch
from ropewalk.format import names
from ropewalk.format.batch import BatchItem, split_batch
from ropewalk.format.headers import SendMessageHeader, SendMessageHeaderV2, SinkAppendHeader
from ropewalk.format.properties import PROPERTIES_SIZE_MAX, P, parse_properties
from ropewalk.format.record import record_size
from store.append import Message
from store.queues.consume_queue import ConsumeQueue

__all__ = ["BatchStored", "BatchWriter", "SinkRows"]

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
        self.max_message_size = 0
        """Bytes of a batch's body."""

    def put_batch(
        self,
        session: Session,
        request: Request,
        header: SendMessageHeader | SendMessageHeaderV2,
        target: Target,
        queue: ConsumeQueue,
    ) -> BatchStored:
        """Store each item as a record of its own; all stand side by side, or none does. Raises `RequestRefused`."""
        self._judge_batch(target, request.body, header.sys_flag | target.sys_flag)
        sys_flag = header.sys_flag | target.sys_flag
        alike = self._alike.cut(request.body)
        items: list[BatchItem] = []
        if alike is None:
            items = _split(request.body)
        properties = parse_properties(header.properties or "")
        prefix = self._id_prefix
        _judge_in_batch(properties)
        placed = None
        if alike is not None:
            first_text = alike.properties[0]
            placed = self._put_alike(
                session, queue, alike, sys_flag, header.born_timestamp, header.reconsume_times or 0
            )
            if placed is not None:
                offsets, number = placed
                digits = pack(f">{len(offsets)}q", *offsets).hex(",", 8).upper()
                ids = prefix + digits.replace(",", f",{prefix}")
                wait = True
        if placed is None:
            items = items or _split(request.body)
            first_text = items[0].properties
            stored, wait = self._put_items(
                session, queue, items, sys_flag, header.born_timestamp, header.reconsume_times or 0
            )
            ids, number = ",".join(f"{prefix}{offset:016X}" for offset, _ in stored), stored[0][1]
        key = properties.get(P.UNIQ_KEY) or parse_properties(first_text).get(P.UNIQ_KEY, "")
        return BatchStored(ids, number, key, wait and waits_for(properties))

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
        items = _split(body) if alike is None else []
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
        born_host = host_of(session.link.peer)
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
                len(born_host),
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
        log = self._store.log
        if not log.fits(size + 1, len(batch)):
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the batch needs {size} bytes in one piece, a segment has fewer",
            )
        self._store.reserve(log.placed_size(size + 1, len(batch)))
        stored = self._appends.put(batch, session, as_one=True)
        assert len(stored) == len(batch), "the room was reserved"
        return stored, wait


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
