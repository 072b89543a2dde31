"""Codes 10, 310 and 320: producers' messages, judged, given their place, appended, answered.

The checks come in the order in which the original makes them, because the first that fails is the one a client
sees. `targets` judges the topic, `batches` stores what comes as one.

This is the readable way, which takes everything. `fast.runs` takes the runs of messages that are nearly all there is
under load; what they ask for is judged here all the same (`place`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

import structlog

from broker.consume.retry import RetryRules
from broker.produce.admission import (
    FLAG_BITS,
    HALF,
    STRIPPED_PROPERTIES,
    Row,
    classify,
    has_time,
    is_plain,
    refusal_of_half,
)
from broker.produce.appends import Appends
from broker.produce.batches import BatchWriter
from broker.produce.property_text import NO_WAIT, tags_code_of, waits_for
from broker.produce.responses import SendAnswers
from broker.produce.targets import Target, Targets
from broker.remoting.cold_lane import Steps
from broker.remoting.refused import RequestRefused
from broker.remoting.session import Request, Session
from broker.state.groups import GroupTable
from broker.state.shares import Stranger
from broker.state.statistics import Statistics
from broker.state.topics import TopicTable
from broker.transactions.records import (
    HALF_PROPERTIES_SIZE_MAX,
    HALF_QUEUE,
    Half,
    half_properties,
    new_half,
)
from broker.transactions.service import TransactionService
from ropewalk.codes import MessageSysFlag, RequestCode, ResponseCode
from ropewalk.errors import LocalProtocolError
from ropewalk.format import names
from ropewalk.format.headers import SendMessageHeader, SendMessageHeaderV2, json_decoder
from ropewalk.format.properties import (
    PROPERTIES_SIZE_MAX,
    P,
    encode_properties,
    parse_properties,
    tags_code,
)
from ropewalk.format.remoting import JSON
from store.append import Message
from store.io.disk import DiskFull
from store.message_store import MessageStore
from store.queues.consume_queue import ConsumeQueue

log = structlog.get_logger("broker.send")

_PLAIN_SLACK = PROPERTIES_SIZE_MAX + 1024  # properties, and every other part of a record but the body

_decode_v2 = json_decoder(SendMessageHeaderV2).decode
_decode_v1 = json_decoder(SendMessageHeader).decode

_UNIQ: Final = P.UNIQ_KEY + "\x01"
_REPLIES: Final = (RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2)


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


class PlainText(NamedTuple):
    """A property text that asks for nothing, as it is stored."""

    properties: bytes
    unique_key: str
    tag_code: int
    waits: bool


class NewHalf(NamedTuple):
    """A half message that is to be stored."""

    properties: dict[str, str]
    tag_code: int | None
    """The tag code of its message; None if that asks for a delay or a time."""


class Placed(NamedTuple):
    """A message where it is to be stored, and the parts of the answer that are known by then."""

    message: Message
    unique_key: str
    waits: bool
    """Whether its sender wants to wait for disk and slaves."""
    recall_handle: str = ""
    half: NewHalf | None = None
    """Of a half message, whose transaction is open as soon as it is stored."""


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
        slot_of: Callable[[str, int], int | None] = lambda text, unit_ms: None,
    ) -> None:
        """`refusal()` says why no message is taken at the moment; `topic_created()` is told of automatic topics.

        `place` says where a message goes, and with which tag code: one that is to come later waits elsewhere. Its
        sender can take it back by `recall_handle` of the stored properties, which is empty for all others. `slot_of`
        is where a time of delivery leads to (`timers.placement`).
        """
        self.store = store
        self.statistics = statistics
        self._make_unique_key = make_unique_key
        self._refusal = refusal
        self._topic_created = topic_created
        self._retries = retries
        self._place = place
        self._recall_handle = recall_handle
        self.slot_of = slot_of
        self._transactions = transactions
        self.appends = Appends(store, statistics)
        self.batches = BatchWriter(self.appends, self._admit)
        self.targets = Targets(
            store,
            topics,
            chance=chance,
            retry_group=retries.group_of,
            created=topic_created,
            changed=self._renew_rules_version,
        )
        self.rules_version = object()
        """Stands for the rules and topics by which a header template was judged; another one when these change."""
        self._id_prefix = store.config.store_host.hex().upper().encode()
        self.waits = store.config.sync_flush
        """Whether answers wait for the disk, or for slaves."""
        self.replicate_early: Callable[[], None] = lambda: None
        """Has slaves that are waited for work on what is appended while its answers are made."""
        self.configure(rules)

    def configure(self, rules: SendRules) -> None:
        """Go by these rules from the next request on."""
        self._rules = rules
        self.batches.max_message_size = rules.max_message_size
        self.targets.broker_writable = rules.broker_writable
        self._renew_rules_version()
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
        self._renew_rules_version()

    def _renew_rules_version(self) -> None:
        self.rules_version = object()

    @property
    def takes_runs(self) -> bool:
        """Tell whether `targets` is up to date, and messages are taken at all. HOT."""
        targets = self.targets
        return targets.generation == targets.topics.generation and self._refusal() is None

    def target_of(self, name: str) -> Target | None:
        """Return the target of a topic that is there; None for others, and for one that only `send` can judge. HOT."""
        target = self.targets.known.get(name)
        return self.targets.find(name) if target is None and self.takes_runs else target

    def send(self, session: Session, request: Request) -> None:
        """Handle a SEND_MESSAGE, SEND_MESSAGE_V2 or SEND_BATCH_MESSAGE of any kind."""
        if request.code == RequestCode.SEND_MESSAGE:
            header: SendMessageHeader | SendMessageHeaderV2 = request.header(SendMessageHeader, _decode_v1)
        else:
            header = request.header(SendMessageHeaderV2, _decode_v2)
        try:
            target, queue = self._admit(header, session)
            if header.batch or request.code == RequestCode.SEND_BATCH_MESSAGE:
                batch = self.batches.put_batch(session, request, header, target, queue)
                if batch is None:
                    session.serve_in_steps(
                        request, self._send_large(session, request, header), len(request.body)
                    )
                    return
                ext = self._answer_ext(
                    batch.message_ids, queue.queue_id, batch.queue_offset, batch.unique_key
                )
                answer, wait = request.reply(ResponseCode.SUCCESS, None, ext), batch.waits
            else:
                stored = self._put_one(session, request, header, target, queue)
                answer, wait = self._answer(request, stored), stored.waits
        except (RequestRefused, DiskFull, LocalProtocolError, UnicodeEncodeError) as exc:
            self._refuse_failed(session, request, exc)
        else:
            owe = session.outbox.after if wait and self.waits else session.outbox.now
            owe(request, ResponseCode.SUCCESS, answer)

    def _send_large(
        self, session: Session, request: Request, header: SendMessageHeader | SendMessageHeaderV2
    ) -> Steps:
        """Handle a batch of many messages: write it in steps, and append it in one piece."""
        try:
            target, queue = self._admit(header, session)
            written = yield from self.batches.write_in_steps(session, request, header, target, queue)
            yield
            # Others were served meanwhile: the topic may be gone, or the disk full.
            self._admit(header, session)
            queue = self.store.queue(target.config.name, queue.queue_id)
            offsets, first = self.batches.put_written(queue, written)
        except (RequestRefused, DiskFull, LocalProtocolError, UnicodeEncodeError) as exc:
            self._refuse_failed(session, request, exc)
            return
        yield
        ids = self.batches.message_ids(offsets)
        ext = self._answer_ext(ids, queue.queue_id, first, written.unique_key)
        owe = session.outbox.after if written.waits and self.waits else session.outbox.now
        owe(request, ResponseCode.SUCCESS, request.reply(ResponseCode.SUCCESS, None, ext))

    def _refuse_failed(self, session: Session, request: Request, exc: Exception) -> None:
        """Answer that a message or a batch is not stored."""
        if isinstance(exc, RequestRefused):
            self._refuse(session, request, exc.code, exc.remark)
        elif isinstance(exc, DiskFull):
            self._refuse(session, request, ResponseCode.SERVICE_NOT_AVAILABLE, self.store.shortage)
        else:
            self._refuse(session, request, ResponseCode.MESSAGE_ILLEGAL, str(exc))

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
            target, queue = self._admit(header, session)
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

    def _admit(
        self, header: SendMessageHeader | SendMessageHeaderV2, by: Stranger | None
    ) -> tuple[Target, ConsumeQueue]:
        """Return the topic and the queue that a message `by` a client asks for. Raises `RequestRefused`."""
        if (refused := self._refusal()) is not None:
            raise RequestRefused(*refused)
        target = self.targets.judge(header, by)
        queue_id = header.queue_id
        if not 0 <= queue_id < target.queues_max:
            queue_id = self.targets.any_queue(queue_id, target)
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
        asked, given_up = queue.queue_id, False
        if target.config.name.startswith(names.RETRY_PREFIX):
            given_up, queue = self._retry(request, header, queue)
        placed = self.place(header, target, queue, request.body, request.code, given_up=given_up)
        stored = self.appends.put([placed.message], session)
        if not stored:
            raise _Full(ResponseCode.SERVICE_NOT_AVAILABLE, self.store.shortage)
        if given_up:
            group = target.config.name.removeprefix(names.RETRY_PREFIX)
            topic = parse_properties(placed.message[2]).get(P.RETRY_TOPIC, target.config.name)
            self.statistics.dead(topic, group, self.store.now, len(request.body))
        offset, queue_offset = stored[0]
        if placed.half is not None:
            self.opened(session, placed.half, offset, queue_offset)
        # Where it was asked to go, but the offset of where it stands: a delayed message is elsewhere for a while.
        return Stored(offset, asked, queue_offset, placed.unique_key, placed.waits, placed.recall_handle)

    def place(
        self,
        header: SendMessageHeader | SendMessageHeaderV2,
        target: Target,
        queue: ConsumeQueue,
        body: bytes,
        code: int,
        *,
        given_up: bool = False,
        in_run: bool = False,
    ) -> Placed:
        """Judge one message for `queue`, and return it where it is to be stored. Nothing is stored here. HOT.

        Time moves on for it, unless it is stored together with others that have been judged.

        Raises `RequestRefused`, and LocalProtocolError or UnicodeEncodeError for text that no record can hold.
        """
        if len(body) > self._rules.max_message_size:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the body has {len(body)} bytes, maxMessageSize is {self._rules.max_message_size}",
            )
        sys_flag, times = header.sys_flag | target.sys_flag, header.reconsume_times or 0
        plain = None if given_up else self.read_plain(header.properties or "", sys_flag)
        if plain is not None:
            raw, key, tag_code, waits = plain
            message = queue, body, raw, header.flag, sys_flag, header.born_timestamp, times, 0, tag_code
            return Placed(message, key, waits)
        if not in_run:
            self.store.refresh_time()
        properties, row = self._judge_properties(header.properties or "", sys_flag, times)
        is_half, half = row is HALF, None
        if is_half and code in _REPLIES:
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, "the answer to a request is no transaction")
        sys_flag &= ~MessageSysFlag.TRANSACTION_MASK
        if given_up:
            properties[P.DELAY] = "-1"
        try:
            if is_half:
                # A delay or time that cannot be is refused now, not at the commit.
                committed, _ = self._place(queue, dict(properties))
                half_properties(
                    properties, queue.topic, queue.queue_id, properties[P.UNIQ_KEY], header.producer_group
                )
                tag_code = tags_code(properties.get(P.TAGS))
                half = NewHalf(
                    properties, None if committed is not queue or has_time(properties) else tag_code
                )
                queue = self.store.queue(names.TRANS_HALF_TOPIC, HALF_QUEUE)
            else:
                queue, tag_code = self._place(queue, properties)
        except ValueError as exc:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(exc)) from exc
        raw = encode_properties(properties)
        if len(raw) > (HALF_PROPERTIES_SIZE_MAX if is_half else PROPERTIES_SIZE_MAX):
            size_max = HALF_PROPERTIES_SIZE_MAX if is_half else PROPERTIES_SIZE_MAX
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the properties have {len(raw)} bytes with the broker's own, at most {size_max}",
            )
        message = queue, body, raw, header.flag, sys_flag, header.born_timestamp, times, 0, tag_code
        handle = self._recall_handle(properties)
        return Placed(message, properties[P.UNIQ_KEY], waits_for(properties), handle, half)

    def place_in_run(
        self, header: SendMessageHeaderV2, target: Target, queue: ConsumeQueue, body: bytes
    ) -> Placed | None:
        """Return a message of a run that asks for more than to be stored, where it is to be stored. HOT.

        None leaves it to `send`: one that is refused, or whose answer has another unique key than its text.
        """
        if _UNIQ not in (header.properties or ""):
            return None
        try:
            placed = self.place(header, target, queue, body, RequestCode.SEND_MESSAGE_V2, in_run=True)
        except (RequestRefused, LocalProtocolError, UnicodeEncodeError):
            return None
        key = placed.unique_key
        return placed if key.isalnum() and key.isascii() else None

    def opened(self, session: Session, half: NewHalf, log_offset: int, queue_offset: int) -> None:
        """Open the transaction of a half message that was just stored."""
        opened = new_half(half.properties, queue_offset, log_offset, self.store.now, half.tag_code)
        self._transactions.opened(opened, session)

    def opened_run(
        self,
        session: Session,
        half: NewHalf,
        queue_ids: Iterable[bytes],
        log_offsets: Iterable[int],
        queue_offsets: Iterable[int],
    ) -> None:
        """Open the transactions of half messages that differ from one in their queues alone. HOT."""
        known = new_half(half.properties, 0, 0, self.store.now, half.tag_code)
        topic, group, since, opened = known.topic, known.group, known.since_ms, self._transactions.opened
        for queue_id, log_offset, offset in zip(queue_ids, log_offsets, queue_offsets, strict=True):
            one = Half(offset, log_offset, offset, topic, int(queue_id), group, since)
            one.immune_ms, one.tag_code = known.immune_ms, known.tag_code
            opened(one, session)

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
        if request.serialize_type == JSON and key.isalnum() and key.isascii():
            return self.answers.one(
                stored.log_offset,
                b"%d" % stored.queue_id,
                stored.queue_offset,
                key.encode(),
                b"%d" % request.opaque,
                stored.recall_handle.encode(),
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
