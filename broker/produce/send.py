"""Codes 10, 310 and 320: producers' messages, judged, given their place, appended, answered.

The checks come in the order in which the original makes them, because the first that fails is the one a client
sees. What decides for every message of a topic (its name, that it exists, how many queues it has) is judged once
and remembered in `Target` until the topic table changes.

This is the readable way, which takes everything. `send_run` takes the runs of plain messages that are nearly all there
is under load.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from functools import lru_cache
from struct import pack
from typing import Final, NamedTuple

import structlog

from broker.consume.retry import RetryRules
from broker.produce.admission import (
    FLAG_BITS,
    HALF,
    STRIPPED_PROPERTIES,
    Row,
    classify,
    is_plain,
    is_plain_batch,
    refusal_in_batch,
    refusal_of_half,
)
from broker.produce.batch import AlikeBatches, AlikeItems
from broker.produce.responses import SendAnswers
from broker.remoting.refused import RequestRefused
from broker.remoting.session import Request, Session
from broker.state.groups import GroupTable
from broker.state.statistics import Statistics
from broker.state.topics import TopicConfig, TopicTable
from broker.transactions.records import (
    HALF_PROPERTIES_SIZE_MAX,
    HALF_QUEUE,
    half_properties,
    new_half,
)
from broker.transactions.service import TransactionService
from ropewalk.codes import MessageSysFlag, RequestCode, ResponseCode
from ropewalk.errors import LocalProtocolError, MalformedBatch
from ropewalk.format import names
from ropewalk.format.batch import BatchItem, split_batch
from ropewalk.format.headers import SendMessageHeader, SendMessageHeaderV2, SinkAppendHeader, json_decoder
from ropewalk.format.properties import (
    PROPERTIES_SIZE_MAX,
    P,
    encode_properties,
    parse_properties,
    tags_code,
)
from ropewalk.format.record import encode_host, record_size
from ropewalk.format.remoting import JSON
from store.append import Message
from store.io.disk import DiskFull
from store.message_store import MessageStore
from store.queues.consume_queue import ConsumeQueue

log = structlog.get_logger("broker.send")

_PLAIN_SLACK = PROPERTIES_SIZE_MAX + 1024  # properties, and every other part of a record but the body
_ANY_QUEUE_MAX = 99_999_999
_SINK_QUEUES: Final = 8
"""Queues of a topic that a sink's first row creates, where the broker creates topics."""

_decode_v2 = json_decoder(SendMessageHeaderV2).decode
_decode_v1 = json_decoder(SendMessageHeader).decode

_TAGS = P.TAGS + "\x01"
_UNIQ: Final = P.UNIQ_KEY + "\x01"
_REPLIES: Final = (RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2)
NO_WAIT = P.WAIT + "\x01false"


@dataclass(slots=True)
class Target:
    """A topic that has passed its checks."""

    config: TopicConfig
    queues_max: int
    sys_flag: int
    """Bits that the topic adds to each message."""
    queues: dict[int, ConsumeQueue]
    queues_by_text: dict[bytes, ConsumeQueue]
    """Queues that a plain message went to, by their id as text."""


@dataclass(frozen=True, slots=True)
class SendRules:
    """The configuration of sends. Sizes in bytes."""

    cluster: str
    region: str = "DefaultRegion"
    trace_on: bool = True
    max_message_size: int = 4 << 20
    broker_writable: bool = True
    reject_transactions: bool = False


class Stored(NamedTuple):
    """A message in the log, as its sender is told of it."""

    log_offset: int
    queue_id: int
    queue_offset: int
    unique_key: str
    waits: bool
    """Whether its sender wants to wait for disk and slaves."""
    recall_handle: str = ""
    """What a timer message can be recalled by."""


class SinkRows(NamedTuple):
    """The rows of one append of a sink, judged and not stored yet."""

    queue: ConsumeQueue
    sys_flag: int
    born_timestamp: int
    body: bytes
    alike: AlikeItems | None
    items: list[BatchItem]
    properties: Sequence[bytes]


class PlainText(NamedTuple):
    """A property text that asks for nothing, as it is stored."""

    properties: bytes
    unique_key: str
    tag_code: int
    waits: bool


class _Full(RequestRefused):
    """There is no room on the disk."""


class SendProcessor:
    def __init__(
        self,
        rules: SendRules,
        store: MessageStore,
        topics: TopicTable,
        groups: GroupTable,
        statistics: Statistics,
        *,
        chance: random.Random,
        make_unique_key: Callable[[], str],
        refusal: Callable[[], tuple[int, str] | None],
        topic_created: Callable[[], None],
        retries: RetryRules,
        place: Callable[[ConsumeQueue, dict[str, str]], tuple[ConsumeQueue, int]],
        transactions: TransactionService,
        recall_handle: Callable[[dict[str, str]], str] = lambda properties: "",
    ) -> None:
        """`refusal()` says why no message is taken at the moment; `topic_created()` is told of automatic topics.

        `place` says where a message goes, and with which tag code: one that is to come later waits elsewhere. Its
        sender can take it back by `recall_handle` of the stored properties, which is empty for all others.
        """
        self.store = store
        self._topics = topics
        self._groups = groups
        self.statistics = statistics
        self._chance = chance
        self._make_unique_key = make_unique_key
        self._refusal = refusal
        self._topic_created = topic_created
        self._retries = retries
        self._place = place
        self._recall_handle = recall_handle
        self._transactions = transactions
        self._alike = AlikeBatches(tags_code_of)
        self.targets: dict[str, Target] = {}
        self._targets_of = -1
        self.rules_version = object()
        """Stands for the rules and topics by which a header template was judged; another one when these change."""
        self._id_prefix = store.config.store_host.hex().upper().encode()
        self.waits = store.config.sync_flush
        """Whether answers wait for the disk, or for slaves."""
        self.stall_s = math.inf
        self.stalled: Callable[[float], None] = lambda took_s: None
        """Called after an append that took longer than `stall_s`."""
        self.replicate_early: Callable[[], None] = lambda: None
        """Has slaves that are waited for work on what is appended while its answers are made."""
        self.configure(rules)

    def configure(self, rules: SendRules) -> None:
        """Go by these rules from the next request on."""
        self._rules = rules
        self.rules_version = object()
        region, trace = rules.region, "true" if rules.trace_on else "false"
        # The original stores all three with every single message, and none with those of a batch.
        self._own = {P.CLUSTER: rules.cluster, P.MSG_REGION: region, P.TRACE_ON: trace}
        self.own_text = encode_properties(self._own).decode()
        # Beyond it a message is either refused or larger than a segment: not for a run to find out half-way.
        self.plain_size_max = min(rules.max_message_size, self.store.config.segment_size - _PLAIN_SLACK)
        self.answers = SendAnswers(region, rules.trace_on, self._id_prefix)

    def wait(self, waits: bool) -> None:
        """Have answers wait for the disk or for slaves, or not, from the next request on."""
        self.waits = waits
        self.rules_version = object()

    def put(
        self, batch: list[Message], session: Session, *, one_topic: bool = True, as_one: bool = False
    ) -> list[tuple[int, int]]:
        """Append messages and count them; `as_one` if one request brought all of them. HOT."""
        clock = self.statistics.clock
        began = clock()
        stored = self.store.put(batch, host_of(session.link.peer))
        self.statistics.rpc.at = ended = clock()
        self.count(batch, stored, ended - began, one_topic=one_topic, as_one=as_one)
        return stored

    def count(
        self,
        batch: Sequence[tuple[ConsumeQueue, *tuple[object, ...]]],
        stored: Sized,
        took_s: float,
        *,
        one_topic: bool,
        as_one: bool = False,
    ) -> None:
        """As many messages, from the first on, as `stored` are were stored just now. HOT."""
        sizes = self.store.sizes
        assert len(sizes) == len(stored)
        if not sizes:
            self.took(took_s)
            return
        if one_topic:
            size = sum(sizes)
            seen = (size // len(sizes),) if as_one else sizes
            self.count_run(batch[0][0].topic, len(sizes), size, took_s, seen)
            return
        self.took(took_s)
        by_topic: dict[str, list[int]] = {}
        for message, size in zip(batch, sizes, strict=False):
            by_topic.setdefault(message[0].topic, []).append(size)
        for topic, found in by_topic.items():
            self.statistics.put(topic, self.store.now, len(found), sum(found), took_s, found)

    def count_run(
        self, topic: str, messages: int, size: int, took_s: float, sizes: Sequence[int] = ()
    ) -> None:
        """So many messages of a topic were stored in `size` bytes of log; `sizes` as in `Statistics.put`. HOT."""
        self.took(took_s)
        self.statistics.put(topic, self.store.now, messages, size, took_s, sizes)

    def took(self, append_s: float) -> None:
        if append_s > self.stall_s:
            self.stalled(append_s)

    @property
    def takes_runs(self) -> bool:
        """Tell whether `targets` is up to date, and messages are taken at all. HOT."""
        return self._targets_of == self._topics.generation and self._refusal() is None

    def send(self, session: Session, request: Request) -> None:
        """Handle a SEND_MESSAGE, SEND_MESSAGE_V2 or SEND_BATCH_MESSAGE of any kind."""
        if request.code == RequestCode.SEND_MESSAGE:
            header: SendMessageHeader | SendMessageHeaderV2 = request.header(SendMessageHeader, _decode_v1)
        else:
            header = request.header(SendMessageHeaderV2, _decode_v2)
        try:
            target, queue = self._admit(header)
            if header.batch or request.code == RequestCode.SEND_BATCH_MESSAGE:
                ext, wait = self._put_batch(session, request, header, target, queue)
                answer = request.reply(ResponseCode.SUCCESS, None, ext)
            else:
                stored = self._put_one(session, request, header, target, queue)
                answer, wait = self._answer(request, stored), stored.waits
        except RequestRefused as exc:
            self._refuse(session, request, exc.code, exc.remark)
        except DiskFull as exc:
            self._refuse(session, request, *_disk_full(str(exc)))
        except (LocalProtocolError, UnicodeEncodeError) as exc:
            self._refuse(session, request, ResponseCode.MESSAGE_ILLEGAL, str(exc))
        else:
            owe = session.outbox.after if wait and self.waits else session.outbox.now
            owe(request, ResponseCode.SUCCESS, answer)

    def take_reply(
        self,
        session: Session,
        request: Request,
        header: SendMessageHeader | SendMessageHeaderV2,
        *,
        keep: bool,
    ) -> tuple[dict[str, str], int] | None:
        """Judge the answer of a request-reply as a message, and store it if it is to be kept.

        The fields of the responder's answer, and the log offset through which that has to wait for the flush. None
        if it is refused; the responder has been told then. A full disk does not keep an answer from its requester.
        """
        try:
            target, queue = self._admit(header)
            properties, flags = parse_properties(header.properties or ""), header.sys_flag | target.sys_flag
            if classify(properties, flags, header.reconsume_times or 0) is HALF:
                # Its requester would have it before anybody decides the transaction.
                raise RequestRefused(
                    ResponseCode.MESSAGE_ILLEGAL, "a reply cannot be a transactional message"
                )
            ext, wait = self._answer_ext("0", queue.queue_id, 0, None), False
            if keep:
                try:
                    stored = self._put_one(session, request, header, target, queue)
                    ext, wait = self._stored_ext(stored), stored.waits
                except _Full as exc:
                    log.error("the answer to a request is not stored", reason=exc.remark)
        except RequestRefused as exc:
            self._refuse(session, request, exc.code, exc.remark)
            return None
        except (LocalProtocolError, UnicodeEncodeError) as exc:
            self._refuse(session, request, ResponseCode.MESSAGE_ILLEGAL, str(exc))
            return None
        return ext, self.store.log.end_offset if wait and self.waits else 0

    def _admit(self, header: SendMessageHeader | SendMessageHeaderV2) -> tuple[Target, ConsumeQueue]:
        """The topic and the queue that a message asks for. Raises `RequestRefused`."""
        if (refused := self._refusal()) is not None:
            raise RequestRefused(*refused)
        target = self._judge(header)
        queue_id = header.queue_id
        if not 0 <= queue_id < target.queues_max:
            queue_id = self._any_queue(queue_id, target)
        return target, self.store.queue(target.config.name, queue_id)

    def _put_one(
        self,
        session: Session,
        request: Request,
        header: SendMessageHeader | SendMessageHeaderV2,
        target: Target,
        queue: ConsumeQueue,
    ) -> Stored:
        """Store one message. Raises `RequestRefused`, and `DiskFull`."""
        asked, body = queue.queue_id, request.body
        given_up, recall_handle = False, ""
        if target.config.name.startswith(names.RETRY_PREFIX):
            given_up, queue = self._retry(request, header, queue)
        if len(body) > self._rules.max_message_size:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the body has {len(body)} bytes, maxMessageSize is {self._rules.max_message_size}",
            )
        sys_flag = header.sys_flag | target.sys_flag
        reconsume_times, topic = header.reconsume_times or 0, queue.topic
        plain = None if given_up else self.read_plain(header.properties or "", sys_flag)
        half = False
        if plain is not None:
            raw, key, tag_code, waits = plain
        else:
            properties, row = self._judge_properties(header.properties or "", sys_flag, reconsume_times)
            half = row is HALF
            if half and request.code in _REPLIES:
                raise RequestRefused(
                    ResponseCode.MESSAGE_ILLEGAL, "the answer to a request is no transaction"
                )
            sys_flag &= ~MessageSysFlag.TRANSACTION_MASK
            if given_up:
                properties[P.DELAY] = "-1"
                topic = properties.get(P.RETRY_TOPIC, target.config.name)
            try:
                if half:
                    queue, tag_code = self._place_half(queue, properties, header.producer_group)
                else:
                    queue, tag_code = self._place(queue, properties)
            except ValueError as exc:
                raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(exc)) from exc
            raw, key, waits = encode_properties(properties), properties[P.UNIQ_KEY], waits_for(properties)
            recall_handle = self._recall_handle(properties)
            size_max = HALF_PROPERTIES_SIZE_MAX if half else PROPERTIES_SIZE_MAX
            if len(raw) > size_max:
                raise RequestRefused(
                    ResponseCode.MESSAGE_ILLEGAL,
                    f"the properties have {len(raw)} bytes with the broker's own, at most {size_max}",
                )
        message = (
            queue,
            body,
            raw,
            header.flag,
            sys_flag,
            header.born_timestamp,
            reconsume_times,
            0,
            tag_code,
        )
        stored = self.put([message], session)
        if not stored:
            raise _Full(*_disk_full(self.store.full))
        if given_up:
            group = target.config.name.removeprefix(names.RETRY_PREFIX)
            self.statistics.dead(topic, group, self.store.now, len(body))
        offset, queue_offset = stored[0]
        if half:
            self._transactions.opened(new_half(properties, queue_offset, offset, self.store.now), session)
        # Where it was asked to go, but the offset of where it stands: a delayed message is elsewhere for a while.
        return Stored(offset, asked, queue_offset, key, waits, recall_handle)

    def _place_half(
        self, queue: ConsumeQueue, properties: dict[str, str], producer_group: str
    ) -> tuple[ConsumeQueue, int]:
        """Return the half queue and the tag code of a half message; what it has to carry is added to `properties`."""
        self._place(
            queue, dict(properties)
        )  # a delay or time that cannot be is refused now, not at the commit
        half_properties(properties, queue.topic, queue.queue_id, properties[P.UNIQ_KEY], producer_group)
        return self.store.queue(names.TRANS_HALF_TOPIC, HALF_QUEUE), tags_code(properties.get(P.TAGS))

    def read_plain(self, text: str, sys_flag: int) -> PlainText | None:
        """Return a property text that asks for nothing as it is stored; None for all that needs `_judge_properties`.

        It holds one unique key of letters and digits, which an answer can repeat as it is. HOT.
        """
        if sys_flag & FLAG_BITS or not text or not is_plain(text):
            return None
        at = text.rfind(_UNIQ)
        if at < 0 or (at and text[at - 1] != "\x02"):
            return None
        stop = text.find("\x02", at)
        key = text[at + 9 : stop] if stop > 0 else text[at + 9 :]
        properties = (text + self.own_text if text[-1] == "\x02" else f"{text}\x02{self.own_text}").encode()
        if len(properties) > PROPERTIES_SIZE_MAX or not (key.isalnum() and key.isascii()):
            return None
        # The text can stand inside another name or value; to answer before the flush is to be sure.
        waits = NO_WAIT not in text or waits_for(parse_properties(text))
        return PlainText(properties, key, tags_code_of(text), waits)

    def _answer(self, request: Request, stored: Stored) -> bytes:
        """Return the frame that says so."""
        key = stored.unique_key
        if request.serialize_type == JSON and key.isalnum() and key.isascii() and not stored.recall_handle:
            return self.answers.one(
                stored.log_offset,
                b"%d" % stored.queue_id,
                stored.queue_offset,
                key.encode(),
                b"%d" % request.opaque,
            )
        return request.reply(ResponseCode.SUCCESS, None, self._stored_ext(stored))

    def _stored_ext(self, stored: Stored) -> dict[str, str]:
        msg_id = self._message_id(stored.log_offset)
        ext = self._answer_ext(msg_id, stored.queue_id, stored.queue_offset, stored.unique_key)
        return {**ext, "recallHandle": stored.recall_handle} if stored.recall_handle else ext

    def _retry(
        self, request: Request, header: SendMessageHeader | SendMessageHeaderV2, queue: ConsumeQueue
    ) -> tuple[bool, ConsumeQueue]:
        """Whether a message to a retry topic is given up, and the queue it then goes to. Raises `RequestRefused`."""
        group = self._retries.group_of(queue.topic)
        if group is None:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist, {queue.topic.removeprefix(names.RETRY_PREFIX)}",
            )
        times = header.reconsume_times or 0
        if not self._retries.given_up_on_send(group, times, header.max_reconsume_times, request.version):
            return False, queue
        topic = self._retries.dead_letters(group)
        self._topic_created()
        if topic is None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"topic[{names.dlq_topic(group.name)}] not exist")
        return True, self.store.queue(topic, 0)

    def _message_id(self, offset: int) -> str:
        return f"{self._id_prefix.decode()}{offset:016X}"

    # -- batches -------------------------------------------------------------------------------------

    def _put_batch(
        self,
        session: Session,
        request: Request,
        header: SendMessageHeader | SendMessageHeaderV2,
        target: Target,
        queue: ConsumeQueue,
    ) -> tuple[dict[str, str], bool]:
        """Every item becomes a record of its own; all stand side by side, or none does. Raises `RequestRefused`."""
        self._judge_batch(target, request.body, header.sys_flag | target.sys_flag)
        sys_flag = header.sys_flag | target.sys_flag
        alike = self._alike.cut(request.body)
        items: list[BatchItem] = []
        if alike is None:
            items = _split(request.body)
        text = header.properties or ""
        properties = parse_properties(text)
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
                prefix = self._id_prefix.decode()
                ids = prefix + digits.replace(",", f",{prefix}")
                wait = True
        if placed is None:
            items = items or _split(request.body)
            first_text = items[0].properties
            stored, wait = self._put_items(
                session, queue, items, sys_flag, header.born_timestamp, header.reconsume_times or 0
            )
            ids, number = ",".join(self._message_id(offset) for offset, _ in stored), stored[0][1]
        key = properties.get(P.UNIQ_KEY) or parse_properties(first_text).get(P.UNIQ_KEY, "")
        return self._answer_ext(ids, queue.queue_id, number, key), wait and waits_for(properties)

    def _judge_batch(self, target: Target, body: bytes, sys_flag: int) -> None:
        """Everything about a batch but its items. Raises `RequestRefused`."""
        if target.config.name.startswith(names.RETRY_PREFIX):
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, "a batch cannot be sent to a retry topic")
        if len(body) > self._rules.max_message_size:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the batch has {len(body)} bytes, maxMessageSize is {self._rules.max_message_size}",
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
        began = self.statistics.clock()
        placed = self._alike.put(
            self.store, queue, alike, sys_flag, born_timestamp, host_of(session.link.peer), reconsume_times
        )
        if placed is not None:
            offsets = placed[0]
            took_s = self.statistics.clock() - began
            size = queue.max_physical - offsets[-1]
            self.count_run(queue.topic, len(offsets), size * len(offsets), took_s, (size,))
        return placed

    # -- rows of sinks -------------------------------------------------------------------------------

    def admit_rows(self, header: SinkAppendHeader, body: bytes) -> SinkRows:
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
        target, queue = self._admit(send)
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
                len(self._id_prefix) // 2,
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
        log = self.store.log
        if not log.fits(size + 1, len(batch)):
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the batch needs {size} bytes in one piece, a segment has fewer",
            )
        self.store.reserve(log.placed_size(size + 1, len(batch)))
        stored = self.put(batch, session, as_one=True)
        assert len(stored) == len(batch), "the room was reserved"
        return stored, wait

    def _answer_ext(
        self, msg_id: str, queue_id: int, queue_offset: int, unique_key: str | None
    ) -> dict[str, str]:
        transaction = {} if unique_key is None else {"transactionId": unique_key}
        return {
            "MSG_REGION": self._rules.region,
            "TRACE_ON": "true" if self._rules.trace_on else "false",
            "msgId": msg_id,
            "queueId": str(queue_id),
            "queueOffset": str(queue_offset),
            **transaction,
        }

    # -- the rest ------------------------------------------------------------------------------------

    def _judge(self, header: SendMessageHeader | SendMessageHeaderV2) -> Target:
        """Everything about the topic, in the original's order. Raises `RequestRefused`."""
        if self._targets_of != self._topics.generation:
            self._forget_targets()
            self._targets_of = self._topics.generation
        elif (known := self.targets.get(header.topic)) is not None:
            return known
        name = header.topic
        config = self._topics.get(name)
        self._judge_name(name, config)
        if config is None:
            config = self._create(header)
        return self._known(name, config)

    def target_of(self, name: str) -> Target | None:
        """Return the target of a topic that is there; None for others, and for one that only `send` can judge. HOT."""
        target = self.targets.get(name)
        if target is None and (config := self._topics.get(name)) is not None and self.takes_runs:
            try:
                self._judge_name(name, config)
            except RequestRefused:
                return None
            self._known(name, config)
            target = self.targets.get(name)
        return target

    def _judge_name(self, name: str, config: TopicConfig | None) -> None:
        if config is not None and config.order and not self._rules.broker_writable:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION, f"the broker is not writable and {name} is an order topic"
            )
        reason = names.check_topic(name)
        if reason is not None:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, reason)
        if name in names.SEND_FORBIDDEN_TOPICS:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION, f"sending to the system topic {name} is not allowed"
            )

    def _known(self, name: str, config: TopicConfig) -> Target:
        """Build the target of a topic that has passed its checks, and cache it."""
        sys_flag = MessageSysFlag.MULTI_TAGS if config.filter_type == "MULTI_TAG" else 0
        queues = self.store.queues.setdefault(name, {})
        target = Target(config, max(config.read_queues, config.write_queues), sys_flag, queues, {})
        self._targets_of = self._topics.generation
        if not name.startswith(
            names.RETRY_PREFIX
        ):  # each message there is judged by itself, so never in a run
            self.targets[name] = target
        return target

    def _create(self, header: SendMessageHeader | SendMessageHeaderV2) -> TopicConfig:
        name, now = header.topic, self.store.now
        if name.startswith(names.RETRY_PREFIX):
            group = name[len(names.RETRY_PREFIX) :]
            config = self._topics.create_retry(group, queue_nums=1, now_ms=now) if group else None
        else:
            config = self._topics.auto_create(
                name,
                default_topic=header.default_topic,
                queue_nums=header.default_topic_queue_nums,
                sys_flag=1 if header.unit_mode else 0,
                now_ms=now,
            )
        if config is None:
            reason = self._topics.creation_refusal(name, header.default_topic)
            raise RequestRefused(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{name}] not exist, apply first please! ({reason})",
            )
        self._forget_targets()
        self._topic_created()
        return config

    def _forget_targets(self) -> None:
        self.targets.clear()
        self.rules_version = object()

    def _any_queue(self, queue_id: int, target: Target) -> int:
        if queue_id >= 0 or target.config.write_queues <= 0:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"request queueId[{queue_id}] is illegal, topic {target.config.name} has {target.queues_max} queues",
            )
        return self._chance.randrange(_ANY_QUEUE_MAX) % target.config.write_queues

    def _judge_properties(self, text: str, sys_flag: int, reconsume_times: int) -> tuple[dict[str, str], Row]:
        """The properties to store, with the broker's own, and the row that decides. Raises `RequestRefused`."""
        properties = parse_properties(text)
        row = classify(properties, sys_flag, reconsume_times)
        refusal = row.refusal
        if row is HALF:
            if self._rules.reject_transactions:
                raise RequestRefused(
                    ResponseCode.NO_PERMISSION, "the broker sending transaction message is forbidden"
                )
            refusal = refusal_of_half(properties, sys_flag)
        if refusal is not None:
            raise RequestRefused(*refusal)
        for name in STRIPPED_PROPERTIES:
            properties.pop(name, None)
        if P.UNIQ_KEY not in properties:
            properties[P.UNIQ_KEY] = self._make_unique_key()
        return properties | self._own, row

    def _refuse(self, session: Session, request: Request, code: int, remark: str) -> None:
        ext = {"MSG_REGION": self._rules.region, "TRACE_ON": "true" if self._rules.trace_on else "false"}
        session.answer(request, code, remark, ext)


def _split(body: bytes) -> list[BatchItem]:
    """The items of a batch. Raises `RequestRefused`."""
    try:
        return split_batch(body)
    except MalformedBatch as exc:
        raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, str(exc)) from exc


def _disk_full(why: str | None) -> tuple[int, str]:
    return ResponseCode.SERVICE_NOT_AVAILABLE, f"the disk is full, nothing was stored: {why}"


def waits_for(properties: dict[str, str]) -> bool:
    """Tell whether the answer waits for the flush; only the word that clients write says no."""
    return properties.get(P.WAIT) != "false"


def _judge_in_batch(properties: dict[str, str]) -> None:
    """Raise `RequestRefused` for what a message of a batch, or the batch itself, cannot ask for."""
    refusal = refusal_in_batch(properties)
    if refusal is not None:
        raise RequestRefused(*refusal)


def tags_code_of(text: str) -> int:
    """The tag hash of a property text, without parsing the rest."""
    at = text.rfind(_TAGS)
    if at < 0:
        return 0
    if at and text[at - 1] != "\x02":
        return tags_code(parse_properties(text).get(P.TAGS))
    end = text.find("\x02", at)
    tag = text[at + 5 : end] if end > 0 else text[at + 5 :]
    # A name without a value counts as absent, and an earlier one as the last.
    return tags_code(tag or parse_properties(text).get(P.TAGS))


@lru_cache(maxsize=4096)
def host_of(peer: tuple[str, int]) -> bytes:
    return encode_host(*peer)
