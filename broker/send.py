"""Codes 10, 310 and 320: a producer's messages, judged, given their place, appended, answered.

The checks come in the order in which the original makes them, because the first that fails is the one a client
sees. What decides for every message of a topic (its name, that it exists, how many queues it has) is judged once
and remembered in `_Target` until the topic table changes.

This is the path of one message, so it is written for the interpreter: one typed decode of the header, membership
tests on the property text instead of parsing it, one formatted answer. A plain message of 1 KiB costs about 5 us
from frame to answer; `tests/bench` has the figures. Anything unusual takes the readable way through `_unusual`.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from broker.groups import GroupTable
from broker.session import Request, Session
from broker.topics import TopicConfig, TopicTable
from ropewalk.codes import FrameFlag, MessageSysFlag, RequestCode, ResponseCode
from ropewalk.errors import LocalProtocolError, MalformedBatch
from ropewalk.format import names
from ropewalk.format.batch import split_batch
from ropewalk.format.headers import SendMessageHeader, SendMessageHeaderV2, json_decoder
from ropewalk.format.properties import P, encode_properties, parse_properties, tags_code
from ropewalk.format.record import encode_host, record_size
from ropewalk.format.remoting import JSON
from store.consume_queue import ConsumeQueue
from store.disk import DiskFull
from store.message_store import MessageStore

PROPERTIES_SIZE_MAX = 32_767
_TRANSACTION_BITS = MessageSysFlag.TRANSACTION_MASK
_INNER_BITS = MessageSysFlag.NEED_UNWRAP | MessageSysFlag.INNER_BATCH
_PREFIX = struct.Struct(">II")
_ANY_QUEUE_MAX = 99_999_999

_decode_v2 = json_decoder(SendMessageHeaderV2).decode
_decode_v1 = json_decoder(SendMessageHeader).decode

# Names that change what happens to a message. Most messages have none of them, and five membership tests find that
# out in a fifth of the time that parsing the text takes. A false alarm only costs the readable way.
_UNUSUAL = (
    P.DELAY + "\x01",
    P.TRAN_MSG,
    "TIMER_",
    P.POP_CK,
    P.CLUSTER + "\x01",
    "__CRC32#",
    P.INNER_NUM,
    P.INNER_MULTI_DISPATCH,
)
_TAGS = P.TAGS + "\x01"
_UNIQ = P.UNIQ_KEY + "\x01"
_NO_WAIT = P.WAIT + "\x01false"


@dataclass(slots=True)
class _Target:
    """What is known about a topic that has passed its checks."""

    config: TopicConfig
    queues_max: int
    sys_flag: int
    """Bits that the topic adds to each message."""
    queues: dict[int, ConsumeQueue]


@dataclass(frozen=True, slots=True)
class SendRules:
    """What the configuration says about sends. Sizes in bytes."""

    cluster: str
    region: str = "DefaultRegion"
    trace_on: bool = True
    max_message_size: int = 4 << 20
    broker_writable: bool = True


class _Refused(Exception):
    """The answer is no: a code and what to tell the user."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark


class SendProcessor:
    def __init__(
        self,
        rules: SendRules,
        store: MessageStore,
        topics: TopicTable,
        groups: GroupTable,
        *,
        chance: random.Random,
        make_unique_key: Callable[[], str],
        refusal: Callable[[], tuple[int, str] | None],
        topic_created: Callable[[], None],
    ) -> None:
        """`refusal()` says why no message is taken at the moment; `topic_created()` is told of automatic topics."""
        self._rules = rules
        self._store = store
        self._topics = topics
        self._groups = groups
        self._chance = chance
        self._make_unique_key = make_unique_key
        self._refusal = refusal
        self._topic_created = topic_created
        self._targets: dict[str, _Target] = {}
        self._targets_of = -1
        self._cluster_property = f"{P.CLUSTER}\x01{rules.cluster}\x02"
        self._id_prefix = store.config.store_host.hex().upper().encode()
        self._sync = store.config.sync_flush
        self._answer_format = (
            b'{"code":0,"extFields":{"MSG_REGION":"%b","TRACE_ON":"%b","msgId":"%b%016X","queueId":"%d",'
            b'"queueOffset":"%d","transactionId":"%b"},"flag":1,"language":"PYTHON","opaque":%d,'
            b'"serializeTypeCurrentRPC":"JSON","version":479}'
        ).replace(b"%b", rules.region.encode(), 1).replace(b"%b", b"true" if rules.trace_on else b"false", 1).replace(
            b"%b", self._id_prefix, 1
        )  # fmt: skip

    # -- the common way ------------------------------------------------------------------------------

    def send(self, session: Session, request: Request) -> None:
        """One SEND_MESSAGE, SEND_MESSAGE_V2 or SEND_BATCH_MESSAGE. HOT."""
        if request.code == RequestCode.SEND_MESSAGE:
            header: SendMessageHeader | SendMessageHeaderV2 = request.header(SendMessageHeader, _decode_v1)
        else:
            header = request.header(SendMessageHeaderV2, _decode_v2)
        body = request.body
        text = header.properties or ""
        try:
            target = self._targets.get(header.topic)
            if target is None or self._targets_of != self._topics.generation:
                target = self._judge(header, session)
            if (refused := self._refusal()) is not None:
                raise _Refused(*refused)
            queue_id = header.queue_id
            if not 0 <= queue_id < target.queues_max:
                queue_id = self._any_queue(queue_id, target)
            queue = target.queues.get(queue_id)
            if queue is None:
                queue = target.queues[queue_id] = self._store.queue(target.config.name, queue_id)
            if header.batch or request.code == RequestCode.SEND_BATCH_MESSAGE:
                self._send_batch(session, request, header, target, queue)
                return
            if len(body) > self._rules.max_message_size:
                raise _Refused(
                    ResponseCode.MESSAGE_ILLEGAL,
                    f"the body has {len(body)} bytes, maxMessageSize is {self._rules.max_message_size}",
                )
            sys_flag = header.sys_flag | target.sys_flag
            unusual = sys_flag & (_TRANSACTION_BITS | _INNER_BITS)
            for name in _UNUSUAL:
                if name in text:
                    unusual = True
                    break
            at = text.rfind(_UNIQ)
            if unusual or at < 0 or (at and text[at - 1] != "\x02"):
                text = self._unusual(text, sys_flag, header.reconsume_times or 0)
                at = text.rfind(_UNIQ)
            end = text.find("\x02", at)
            unique_key = text[at + 9 : end] if end > 0 else text[at + 9 :]
            if text[-1] != "\x02":
                text += "\x02"
            properties = (text + self._cluster_property).encode()
            if len(properties) > PROPERTIES_SIZE_MAX:
                raise _Refused(
                    ResponseCode.MESSAGE_ILLEGAL,
                    f"the properties have {len(properties)} bytes with the broker's own, at most {PROPERTIES_SIZE_MAX}",
                )
            queue_offset = queue.next_offset
            offset = self._store.append(
                queue,
                body,
                properties,
                header.flag,
                sys_flag,
                header.born_timestamp,
                _host_of(session.link.peer),
                header.reconsume_times or 0,
                0,
                _tags_code(text),
            )
        except _Refused as exc:
            self._refuse(session, request, exc.code, exc.remark)
            return
        except (DiskFull, LocalProtocolError, UnicodeEncodeError) as exc:
            self._refuse(session, request, *_as_refusal(exc))
            return
        if request.flag & FrameFlag.ONEWAY:
            return
        if request.serialize_type == JSON and unique_key.isalnum() and unique_key.isascii():
            answer = self._answer_format % (
                offset,
                queue_id,
                queue_offset,
                unique_key.encode(),
                request.opaque,
            )
            answer = _PREFIX.pack(len(answer) + 4, len(answer)) + answer
        else:
            msg_id = self._id_prefix.decode() + f"{offset:016X}"
            answer = request.reply(
                ResponseCode.SUCCESS, None, self._answer_ext(msg_id, queue_id, queue_offset, unique_key)
            )
        if self._sync and _NO_WAIT not in text:
            session.waiting.append(answer)
        else:
            session.ready.append(answer)

    # -- batches -------------------------------------------------------------------------------------

    def _send_batch(
        self,
        session: Session,
        request: Request,
        header: SendMessageHeader | SendMessageHeaderV2,
        target: _Target,
        queue: ConsumeQueue,
    ) -> None:
        """Every item becomes a record of its own; all stand side by side, or none does."""
        topic = target.config.name
        if topic.startswith(names.RETRY_PREFIX):
            raise _Refused(ResponseCode.MESSAGE_ILLEGAL, "a batch cannot be sent to a retry topic")
        if len(request.body) > self._rules.max_message_size:
            raise _Refused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the batch has {len(request.body)} bytes, maxMessageSize is {self._rules.max_message_size}",
            )
        sys_flag = header.sys_flag | target.sys_flag
        if sys_flag & (_TRANSACTION_BITS | _INNER_BITS):
            raise _Refused(
                ResponseCode.MESSAGE_ILLEGAL, "a batch can be neither transactional nor an inner batch"
            )
        try:
            items = split_batch(request.body)
        except MalformedBatch as exc:
            raise _Refused(ResponseCode.MESSAGE_ILLEGAL, str(exc)) from exc
        if not items:
            raise _Refused(ResponseCode.MESSAGE_ILLEGAL, "the batch is empty")
        texts = [item.properties.decode("utf-8", "replace") for item in items]
        born_host = _host_of(session.link.peer)
        store_host_size = len(self._store.config.store_host)
        size = 0
        for item, text in zip(items, texts, strict=True):
            # Upstream leaves this to its client; a delay level or a half message in a batch would be stored as plain.
            if any(name in text for name in (_UNUSUAL[0], P.TRAN_MSG, "TIMER_")) and _special(
                parse_properties(text)
            ):
                raise _Refused(
                    ResponseCode.MESSAGE_ILLEGAL,
                    "a message of a batch can be neither delayed nor transactional",
                )
            size += record_size(
                len(queue.topic_bytes), len(item.body), len(item.properties), len(born_host), store_host_size
            )
        if not self._store.log.fits(size):
            raise _Refused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the batch needs {size} bytes in one piece, more than a commit-log segment holds",
            )
        self._store.reserve(size)
        first = queue.next_offset
        ids = []
        for item, text in zip(items, texts, strict=True):
            offset = self._store.append(
                queue,
                item.body,
                item.properties,
                item.flag,
                sys_flag,
                header.born_timestamp,
                born_host,
                header.reconsume_times or 0,
                0,
                _tags_code(text),
            )
            ids.append(f"{self._id_prefix.decode()}{offset:016X}")
        if request.is_oneway:
            return
        text = header.properties or ""
        key = parse_properties(text).get(P.UNIQ_KEY) or parse_properties(texts[0]).get(P.UNIQ_KEY, "")
        answer = request.reply(
            ResponseCode.SUCCESS, None, self._answer_ext(",".join(ids), queue.queue_id, first, key)
        )
        wait = self._sync and not (_NO_WAIT in text or all(_NO_WAIT in item for item in texts))
        (session.waiting if wait else session.ready).append(answer)

    def _answer_ext(self, msg_id: str, queue_id: int, queue_offset: int, unique_key: str) -> dict[str, str]:
        return {
            "MSG_REGION": self._rules.region,
            "TRACE_ON": "true" if self._rules.trace_on else "false",
            "msgId": msg_id,
            "queueId": str(queue_id),
            "queueOffset": str(queue_offset),
            "transactionId": unique_key,
        }

    # -- the rest ------------------------------------------------------------------------------------

    def _judge(self, header: SendMessageHeader | SendMessageHeaderV2, session: Session) -> _Target:
        """Everything about the topic, in the original's order. Raises `_Refused`."""
        if self._targets_of != self._topics.generation:
            self._targets.clear()
            self._targets_of = self._topics.generation
        name = header.topic
        config = self._topics.get(name)
        if config is not None and config.order and not self._rules.broker_writable:
            raise _Refused(
                ResponseCode.NO_PERMISSION, f"the broker is not writable and {name} is an order topic"
            )
        reason = names.check_topic(name)
        if reason is not None:
            raise _Refused(ResponseCode.INVALID_PARAMETER, reason)
        if name in names.SEND_FORBIDDEN_TOPICS:
            raise _Refused(ResponseCode.NO_PERMISSION, f"sending to the system topic {name} is not allowed")
        if config is None:
            config = self._create(header)
        sys_flag = MessageSysFlag.MULTI_TAGS if config.filter_type == "MULTI_TAG" else 0
        queues = self._store.queues.setdefault(name, {})
        target = _Target(config, max(config.read_queues, config.write_queues), sys_flag, queues)
        self._targets_of = self._topics.generation
        self._targets[name] = target
        return target

    def _create(self, header: SendMessageHeader | SendMessageHeaderV2) -> TopicConfig:
        name, now = header.topic, self._store.now
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
            raise _Refused(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{name}] not exist, apply first please! ({reason})",
            )
        self._targets.clear()
        self._topic_created()
        return config

    def _any_queue(self, queue_id: int, target: _Target) -> int:
        if queue_id >= 0 or target.config.write_queues <= 0:
            raise _Refused(
                ResponseCode.INVALID_PARAMETER,
                f"request queueId[{queue_id}] is illegal, topic {target.config.name} has {target.queues_max} queues",
            )
        return self._chance.randrange(_ANY_QUEUE_MAX) % target.config.write_queues

    def _unusual(self, text: str, sys_flag: int, reconsume_times: int) -> str:
        """Judge and rewrite a property text that is not plain; the result has a UNIQ_KEY. Raises `_Refused`."""
        properties = parse_properties(text)
        delayed = _is_delayed(properties)
        if properties.get(P.TRAN_MSG, "").lower() == "true" or sys_flag & _TRANSACTION_BITS:
            if not (reconsume_times > 0 and delayed):
                raise _Refused(
                    ResponseCode.NO_PERMISSION, "transactional messages are not supported by this broker"
                )
        if delayed:
            raise _Refused(ResponseCode.SYSTEM_ERROR, "delay levels are not supported by this broker yet")
        timer = any(name in properties for name in (P.TIMER_DELAY_SEC, P.TIMER_DELAY_MS, P.TIMER_DELIVER_MS))
        if timer and P.TIMER_OUT_MS not in properties:
            raise _Refused(ResponseCode.SYSTEM_ERROR, "timer wheel not enabled")
        if sys_flag & _INNER_BITS or P.INNER_NUM in properties:
            raise _Refused(
                ResponseCode.MESSAGE_ILLEGAL,
                "inner batches need a BatchCQ topic, which this broker does not have",
            )
        for name in (P.POP_CK, P.CLUSTER, "__CRC32#"):
            properties.pop(name, None)
        if P.UNIQ_KEY not in properties:
            properties[P.UNIQ_KEY] = self._make_unique_key()
        return encode_properties(properties).decode()

    def _refuse(self, session: Session, request: Request, code: int, remark: str) -> None:
        ext = {"MSG_REGION": self._rules.region, "TRACE_ON": "true" if self._rules.trace_on else "false"}
        session.answer(request, code, remark, ext)


def _as_refusal(exc: Exception) -> tuple[int, str]:
    if isinstance(exc, DiskFull):
        return ResponseCode.SERVICE_NOT_AVAILABLE, f"the disk is full, nothing was stored: {exc}"
    return ResponseCode.MESSAGE_ILLEGAL, str(exc)


def _is_delayed(properties: dict[str, str]) -> bool:
    level = properties.get(P.DELAY, "0")
    return level.lstrip("+-").isdigit() and int(level) > 0


def _special(properties: dict[str, str]) -> bool:
    return (
        _is_delayed(properties)
        or properties.get(P.TRAN_MSG, "").lower() == "true"
        or any(name in properties for name in (P.TIMER_DELAY_SEC, P.TIMER_DELAY_MS, P.TIMER_DELIVER_MS))
    )


def _tags_code(text: str) -> int:
    """The tag hash of a property text, without parsing the rest."""
    at = text.rfind(_TAGS)
    if at < 0:
        return 0
    if at and text[at - 1] != "\x02":
        return tags_code(parse_properties(text).get(P.TAGS))
    end = text.find("\x02", at)
    return tags_code(text[at + 5 : end] if end > 0 else text[at + 5 :])


@lru_cache(maxsize=4096)
def _host_of(peer: tuple[str, int]) -> bytes:
    return encode_host(*peer)
