"""The buffer of a client's trace records, from the act to the trace message that tells of it. Pure.

Recording is an append and never fails or waits. A shell sends what has gathered in a task of its own, up to
`BATCH_COUNT` records a message; what cannot be sent, and what finds `RECORDS_MAX` records waiting, is dropped and
counted. A trace message stays here until its send has an outcome: a shell that is cancelled in the middle sends it once
more.

A broker turns the traces of its messages off with `traceOn=false`, which the answer to a send carries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from ropewalk.client.core.consume.received import ReceivedMessage
from ropewalk.client.core.messages import Message, SendResult, SendStatus
from ropewalk.client.core.tracing.records import ConsumeCode, MessageType, TraceRecord, encode_trace
from ropewalk.errors import LocalProtocolError
from ropewalk.format.names import check_topic
from ropewalk.format.properties import P
from ropewalk.format.record import parse_message_id

BATCH_COUNT = 100
"""Records of one trace message, as many as the official clients put there."""
BATCH_SIZE_MAX = 128_000
"""Characters of one trace message, unless a single record is longer."""
KEYS_SIZE_MAX = 16_000
"""Characters of the keys of a trace message; a broker takes 32,767 bytes of properties."""
RECORDS_MAX = 10_000
"""Records that wait to be sent."""
REGION = "DefaultRegion"
"""The region of brokers that name none."""


class TraceBuffer:
    """The trace records of one client that wait to be sent."""

    def __init__(self, topic: str, group: str, client_id: str) -> None:
        """Make it. Raises `LocalProtocolError` for a topic that cannot be one."""
        if (wrong := check_topic(topic)) is not None:
            raise LocalProtocolError(f"the topic of traces: {topic!r}: {wrong}")
        self.topic = topic
        self.dropped = 0
        """Records that were not sent."""
        self.on_waiting: Callable[[], object] = lambda: None
        """Called when a first record waits, and when a whole trace message does."""
        self._group = group
        self._client_host = client_id.partition("@")[0]
        self._records: deque[TraceRecord] = deque()
        self._leaving: tuple[Message, int] | None = None
        """The trace message that is being sent, and the number of its records."""
        self._brokers: dict[str, tuple[str, bool]] = {}
        """The region of a broker, and whether it wants traces."""

    def __len__(self) -> int:
        return len(self._records) + (self._leaving[1] if self._leaving else 0)

    # Recording

    def record_broker(self, broker: str, region: str | None, trace_on: str | None) -> None:
        """Remember a broker's region, and its wish for traces, from an answer of it."""
        self._brokers[broker] = (region or REGION, trace_on != "false")

    def record_send(
        self,
        topic: str,
        messages: Sequence[Message],
        message_ids: Sequence[str],
        began_ms: int,
        cost_ms: int,
        result: SendResult | None,
    ) -> None:
        """Record a send with its result; None for one that failed, or whose outcome is unknown."""
        region, wanted = self._broker_of(result)
        if not wanted:
            return
        places = result.offset_message_ids if result is not None else ()
        for place, (message, message_id) in enumerate(zip(messages, message_ids, strict=True)):
            offset_id = places[place] if place < len(places) else ""
            self._add(
                TraceRecord(
                    "Pub",
                    message_id,
                    self._group,
                    began_ms,
                    topic,
                    " ".join(message.keys or ()),
                    store_host_of(offset_id),
                    self._client_host,
                    cost_ms=cost_ms,
                    success=result is not None and result.status is SendStatus.SEND_OK,
                    region=region,
                    tags=message.tags or "",
                    body_size=len(message.body),
                    type=_type_of(message),
                    offset_message_id=offset_id,
                )
            )

    def record_end(
        self,
        topic: str,
        message: Message | ReceivedMessage,
        transaction_id: str,
        store_host: str,
        state: str,
        now_ms: int,
        *,
        checked: bool = False,
    ) -> None:
        """Record the end of a transaction, as it was told to the broker."""
        self._add(
            TraceRecord(
                "EndTransaction",
                transaction_id,
                self._group,
                now_ms,
                topic,
                " ".join(message.keys or ()),
                store_host,
                state=state,
                checked=checked,
                region=REGION,
                tags=message.tags or "",
                type=MessageType.COMMIT,
                transaction_id=transaction_id,
            )
        )

    def record_recall(self, topic: str, message_id: str, now_ms: int, *, success: bool) -> None:
        """Record the recall of a timer message."""
        self._add(
            TraceRecord("Recall", message_id, self._group, now_ms, topic, success=success, region=REGION)
        )

    def record_delivery(self, message: ReceivedMessage, request_id: str, now_ms: int) -> None:
        """Record that a handler is called with a message."""
        if _is_traced(message):
            self._add(
                TraceRecord(
                    "SubBefore",
                    message.message_id,
                    self._group,
                    now_ms,
                    keys=" ".join(message.keys),
                    request_id=request_id,
                    retries=message.reconsume_times,
                    region=message.properties.get(P.MSG_REGION, REGION),
                )
            )

    def record_consumption(
        self, message: ReceivedMessage, request_id: str, now_ms: int, cost_ms: int, code: ConsumeCode
    ) -> None:
        """Record that the handler that was called under this request id has come back."""
        if _is_traced(message):
            self._add(
                TraceRecord(
                    "SubAfter",
                    message.message_id,
                    self._group,
                    now_ms,
                    keys=" ".join(message.keys),
                    request_id=request_id,
                    cost_ms=cost_ms,
                    success=code is ConsumeCode.SUCCESS,
                    code=code,
                )
            )

    def record_poll(self, messages: Sequence[ReceivedMessage], request_id: str, now_ms: int) -> None:
        """Record that a program took messages: how it handled them nobody knows, so they count as consumed."""
        for message in messages:
            self.record_delivery(message, request_id, now_ms)
            self.record_consumption(message, request_id, now_ms, 0, ConsumeCode.SUCCESS)

    # Sending

    def next_message(self) -> Message | None:
        """Return the trace message to send now, or None. It is returned again until it is `sent` or `lost`."""
        if self._leaving is None and self._records:
            self._leaving = self._gather()
        return self._leaving[0] if self._leaving else None

    def sent(self) -> None:
        """Forget the trace message that was sent."""
        self._leaving = None

    def lost(self) -> None:
        """Forget the trace message that could not be sent, and count its records."""
        if self._leaving is not None:
            self.dropped += self._leaving[1]
            self._leaving = None

    def _gather(self) -> tuple[Message, int]:
        texts: list[str] = []
        keys: dict[str, None] = {}
        size = keys_size = 0
        while self._records and len(texts) < BATCH_COUNT:
            record = self._records[0]
            text = encode_trace(record)
            new = [
                key
                for key in dict.fromkeys((record.message_id, *record.keys.split()))
                if key and key not in keys
            ]
            new_size = sum(len(key.encode()) + 1 for key in new)
            if texts and (size + len(text) > BATCH_SIZE_MAX or keys_size + new_size > KEYS_SIZE_MAX):
                break
            self._records.popleft()
            texts.append(text)
            size += len(text)
            for key in new:
                key_size = len(key.encode()) + 1
                if (
                    keys_size + key_size <= KEYS_SIZE_MAX
                ):  # a message with more keys is found by the first ones
                    keys[key] = None
                    keys_size += key_size
        return Message("".join(texts).encode(), keys=list(keys)), len(texts)

    def _add(self, record: TraceRecord) -> None:
        records = self._records
        if len(records) >= RECORDS_MAX:
            self.dropped += 1
            return
        records.append(record)
        if len(records) in (1, BATCH_COUNT):
            self.on_waiting()

    def _broker_of(self, result: SendResult | None) -> tuple[str, bool]:
        return (
            (REGION, True) if result is None else self._brokers.get(result.queue.broker_name, (REGION, True))
        )


def _is_traced(message: ReceivedMessage) -> bool:
    return message.properties.get(P.TRACE_ON) != "false"


def _type_of(message: Message) -> MessageType:
    properties: Mapping[str, str] = message.properties
    if properties.get(P.TRAN_MSG) == "true":
        return MessageType.HALF
    return MessageType.NORMAL if message.can_be_batched else MessageType.DELAY


def store_host_of(offset_message_id: str) -> str:
    """Return the broker of an offset message id, as `host:port`; empty for none."""
    try:
        host, port, _offset = parse_message_id(offset_message_id)
    except ValueError:
        return ""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
