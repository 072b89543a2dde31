"""The `extFields` of requests and responses, with types.

On the wire every value is a string. A class here gives the fields of one header their types, requires what
the receiver cannot do without, and knows the names on the wire: `queue_id` is `queueId`. Other fields, of
which every client has its own, are ignored; fields nobody sent are None or the default.

    decode_header(cls, ext)      from a Command's dictionary
    decode_json_ext(cls, raw)    straight from a JSON frame's bytes: for the hot path
    encode_header(header)        to a Command's dictionary, None left out

Numbers are bounded as Java's `int` and `long` are, and `true` is the only spelling of true that counts, in
any case. A missing or mistyped field raises `HeaderError`, whose text names header, field and fault; the
connection is fine.
"""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Final, TypeVar

import msgspec

from ropewalk.errors import RopewalkError
from ropewalk.format.remoting import I32, decode_ext

I64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

H = TypeVar("H", bound=msgspec.Struct)
_HANDLE_VERSION: Final = "v1"

SUBSCRIPTION_CONFLICT: Final = "ropewalkSubscriptionConflict"
"""A field of the answer to a heartbeat, Ropewalk's own: a sentence for a member that subscribes otherwise."""


class HeaderError(RopewalkError, ValueError):
    """An error for a field of a request or response that is missing or of the wrong type."""


def decode_header(cls: type[H], ext: Mapping[str, str]) -> H:
    """Decode the fields of a command into a typed header. Raises HeaderError."""
    try:
        return msgspec.convert(ext, cls, strict=False)
    except (msgspec.ValidationError, ValueError):
        pass
    try:
        return msgspec.convert(_as_java_reads(cls, ext), cls, strict=False)
    except (msgspec.ValidationError, ValueError) as error:
        raise HeaderError(f"{_title(cls)}: {error}") from None


def decode_json_ext(cls: type[H], raw: msgspec.Raw | bytes) -> H:
    """Decode the raw `extFields` of a JSON header into a typed header. Raises HeaderError, or RemoteProtocolError if
    the bytes are not even an object.
    """
    try:
        header: H = json_decoder(cls).decode(raw)
        return header
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return decode_header(cls, decode_ext(raw))


@cache
def json_decoder(cls: type[H]) -> msgspec.json.Decoder[H]:
    """Return the decoder that `decode_json_ext` tries first; keep it to save the look-up.

    It raises msgspec's own errors, also for the harmless oddities that `decode_json_ext` then reads.
    """
    return msgspec.json.Decoder(cls, strict=False)


def encode_header(header: msgspec.Struct) -> dict[str, str]:
    """Encode a typed header into the fields of a command."""
    result: dict[str, str] = {}
    for field in _fields(type(header)):
        value = getattr(header, field.name)
        if value is not None:
            result[field.encode_name] = str(value).lower() if isinstance(value, bool) else str(value)
    return result


_BOOLEANS: Final = (bool, bool | None)
_STRINGS: Final = (str, str | None)


@cache
def _fields(cls: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(cls)


def _as_java_reads(cls: type[msgspec.Struct], ext: Mapping[str, str]) -> dict[str, str]:
    """The same fields as Java's parsers take them: `007` and `+3` are numbers, `yes` is false.

    A number or boolean without any text is an absent one, as it is in the binary layout.
    """
    result = dict(ext)
    for field in _fields(cls):
        text = result.get(field.encode_name)
        if text is None:
            continue
        if not text and field.type not in _STRINGS:
            del result[field.encode_name]
        elif field.type in _BOOLEANS:
            result[field.encode_name] = "true" if text.lower() == "true" else "false"
        elif field.type not in _STRINGS and text.isascii() and len(text) < 32:
            digits = text[1:] if text[:1] in ("+", "-") else text
            if digits.isdigit():
                result[field.encode_name] = str(int(text))
    return result


def _title(cls: type) -> str:
    return cls.__name__.removesuffix("V2").removesuffix("Header")


# Sending


class SendMessageHeader(msgspec.Struct, rename="camel"):
    """The header of codes 10 and 324."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: I32
    queue_id: I32
    sys_flag: I32
    born_timestamp: I64
    flag: I32
    properties: str | None = None
    reconsume_times: I32 | None = None
    unit_mode: bool = False
    max_reconsume_times: I32 | None = None
    batch: bool = False
    broker_name: str | None = msgspec.field(default=None, name="bname")


class SendMessageHeaderV2(msgspec.Struct):
    """The header of codes 310, 320 and 325: the same fields under names of one letter."""

    producer_group: str = msgspec.field(name="a")
    topic: str = msgspec.field(name="b")
    default_topic: str = msgspec.field(name="c")
    default_topic_queue_nums: I32 = msgspec.field(name="d")
    queue_id: I32 = msgspec.field(name="e")
    sys_flag: I32 = msgspec.field(name="f")
    born_timestamp: I64 = msgspec.field(name="g")
    flag: I32 = msgspec.field(name="h")
    properties: str | None = msgspec.field(default=None, name="i")
    reconsume_times: I32 | None = msgspec.field(default=None, name="j")
    unit_mode: bool = msgspec.field(default=False, name="k")
    max_reconsume_times: I32 | None = msgspec.field(default=None, name="l")
    batch: bool = msgspec.field(default=False, name="m")
    broker_name: str | None = msgspec.field(default=None, name="n")


class SendResponseHeader(msgspec.Struct, rename="camel"):
    """The answer to a send that stored something: 0, 10, 11 and 12. Java clients fail without it."""

    msg_id: str
    queue_id: I32
    queue_offset: I64
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None
    msg_region: str | None = msgspec.field(default=None, name="MSG_REGION")
    trace_on: str | None = msgspec.field(default=None, name="TRACE_ON")


class ReplyMessageHeader(msgspec.Struct, rename="camel"):
    """The header of code 326, from broker to client."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: I32
    queue_id: I32
    sys_flag: I32
    born_timestamp: I64
    flag: I32
    born_host: str
    store_host: str
    store_timestamp: I64
    properties: str | None = None
    reconsume_times: I32 | None = None
    unit_mode: bool = False


class RecallMessageHeader(msgspec.Struct, rename="camel"):
    """The header of code 370."""

    topic: str
    recall_handle: str
    producer_group: str | None = None


@dataclass(frozen=True, slots=True)
class RecallHandle:
    """The name by which a waiting timer message is recalled: URL-safe base64 of `v1 topic broker time uniqueKey`."""

    topic: str
    broker: str
    time_ms: int
    """A millisecond behind the slot that the message waits in: rounded down it is the slot again."""
    unique_key: str

    def encode(self) -> str:
        """Return the handle as clients carry it."""
        return urlsafe_b64encode(self.plain()).decode()

    def plain(self) -> bytes:
        """Return the text of the handle, before it is encoded."""
        text = " ".join((_HANDLE_VERSION, self.topic, self.broker, str(self.time_ms), self.unique_key))
        return text.encode()

    @classmethod
    def decode(cls, text: str) -> RecallHandle:
        """Read a handle. Raises ValueError, with the original's words, for what is none."""
        try:
            raw = urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4)).decode()
        except (binascii.Error, UnicodeError) as exc:
            raise ValueError("recall handle is invalid") from exc
        items = raw.split(" ")
        if items[0] != _HANDLE_VERSION or len(items) < 5:
            raise ValueError("recall handle is invalid")
        time_ms = int(items[3]) if items[3].isascii() and items[3].isdigit() else -1
        return cls(items[1], items[2], time_ms, items[4])


class MsgIdResponseHeader(msgspec.Struct, rename="camel"):
    """The answer to 370."""

    msg_id: str


# Pulling


class PullMessageHeader(msgspec.Struct, rename="camel"):
    """The header of codes 11 and 361. Which fields count is decided by the bits of `sys_flag`."""

    consumer_group: str
    topic: str
    queue_id: I32
    queue_offset: I64
    max_msg_nums: I32
    sys_flag: I32
    commit_offset: I64
    suspend_timeout_millis: I64
    sub_version: I64
    subscription: str | None = None
    expression_type: str | None = None
    max_msg_bytes: I32 | None = None
    request_source: I32 | None = None
    # The misspelling is the wire's.
    proxy_forward_client_id: str | None = msgspec.field(default=None, name="proxyFrowardClientId")


class BulkPullHeader(msgspec.Struct, rename="camel"):
    """The header of code 30020, Ropewalk's own: as much of `[offset, end_offset)` as fits. Answered as a pull is."""

    consumer_group: str
    topic: str
    queue_id: I32
    offset: I64
    end_offset: I64
    max_bytes: I32 | None = None
    subscription: str | None = None


class SinkInitHeader(msgspec.Struct, rename="camel"):
    """The header of code 30030, Ropewalk's own. `brokers` fixes the brokers of the sink where none are fixed yet."""

    sink_id: str
    topic: str
    brokers: str = ""
    key_version: I32 = 1
    """The kind of keys that the writer's rows have (`row_identity.KEY_VERSION`)."""


class SinkStateHeader(msgspec.Struct, rename="camel"):
    """The answer to 30030: the new epoch, the batch that was committed last, and the query that the sink belongs to."""

    epoch: I64
    query: str = ""
    batch: I64 = -1
    digest: str = ""
    brokers: str = ""
    owner: str = ""
    key_version: I32 = 1


class SinkAppendHeader(msgspec.Struct, rename="camel"):
    """The header of code 30031: which task of which batch, and where to. The body is that of a batch send."""

    sink_id: str
    epoch: I64
    attempt: I64
    query: str
    batch: I64
    partition: I32
    topic: str
    queue_id: I32
    born_timestamp: I64
    producer_group: str = ""
    wait: bool = True


class SinkAppendedHeader(msgspec.Struct, rename="camel"):
    """The answer to 30031: how many rows were appended, the first of them where, and how many were stored before."""

    queue_id: I32
    queue_offset: I64
    appended: I32
    known: I32


class SinkCommitHeader(msgspec.Struct, rename="camel"):
    """The header of code 30032. `rows`: how many rows of the batch this broker has to have."""

    sink_id: str
    epoch: I64
    query: str
    batch: I64
    rows: I64
    topic: str
    digest: str = ""
    brokers: str = ""


class SinkHeader(msgspec.Struct, rename="camel"):
    """The header of code 30034."""

    sink_id: str


class LedgerTransferHeader(msgspec.Struct, rename="camel"):
    """The header of code 30041."""

    to: str = ""
    """The member that is to lead; empty: the one that lacks least."""


class LedgerReadmitHeader(msgspec.Struct, rename="camel"):
    """The header of code 30042."""

    id: str
    """The member that lost its log."""


class LedgerChangeHeader(msgspec.Struct, rename="camel"):
    """The header of code 30043."""

    change: str
    """`learn`, `promote` or `remove`."""
    id: str
    address: str = ""
    """`host:port` of a member that is to learn."""
    replacing: str = ""
    """The voter that leaves when a learner is promoted."""


class LedgerForceHeader(msgspec.Struct, rename="camel"):
    """The header of code 30044."""

    id: str
    """The member that is asked, so that no other one does it."""


class LedgerTrustHeader(msgspec.Struct, rename="camel"):
    """The header of code 30046."""

    id: str
    """The member that is asked, so that no other one does it."""


class KvHeader(msgspec.Struct, rename="camel"):
    """The header of codes 30100 to 30103: the region, and the epoch of its cut as the client knows it."""

    region: I32
    epoch: I64
    unsafe: bool = False
    """Whether a read may see what this member has, however old."""
    limit: I32 = 1000
    """How many pairs a scan answers with at most."""


class KvWriteHeader(KvHeader, kw_only=True, rename="camel"):
    """The header of code 30104. `seq` numbers the writes of a session; `lowest` is the first without an answer."""

    session: I64
    seq: I64
    lowest: I64


class PullResponseHeader(msgspec.Struct, rename="camel"):
    """The answer to a pull: the first four are needed with 0, 19, 20 and 21 alike."""

    suggest_which_broker_id: I64
    next_begin_offset: I64
    min_offset: I64
    max_offset: I64
    offset_delta: I64 | None = None
    topic_sys_flag: I32 | None = None
    group_sys_flag: I32 | None = None
    forbidden_type: I32 | None = None


# Offsets and queue boundaries


class QueryConsumerOffsetHeader(msgspec.Struct, rename="camel"):
    """The header of code 14."""

    consumer_group: str
    topic: str
    queue_id: I32
    set_zero_if_not_found: bool | None = None


class UpdateConsumerOffsetHeader(msgspec.Struct, rename="camel"):
    """The header of code 15."""

    consumer_group: str
    topic: str
    queue_id: I32
    commit_offset: I64


class SearchOffsetHeader(msgspec.Struct, rename="camel"):
    """The header of code 29. `timestamp` is in ms, `boundary_type` LOWER or UPPER in any case."""

    topic: str
    queue_id: I32
    timestamp: I64
    boundary_type: str | None = None


class QueueHeader(msgspec.Struct, rename="camel"):
    """The header of codes 31 and 32."""

    topic: str
    queue_id: I32


class GetMaxOffsetHeader(msgspec.Struct, rename="camel"):
    """The header of code 30."""

    topic: str
    queue_id: I32
    committed: bool = True


class OffsetResponseHeader(msgspec.Struct, rename="camel"):
    """The answer to 14, 29, 30 and 31."""

    offset: I64


class ViewMessageHeader(msgspec.Struct, rename="camel"):
    """The header of code 33. `offset` is of the commit log."""

    offset: I64
    topic: str | None = None


class QueryMessageHeader(msgspec.Struct, rename="camel"):
    """The header of code 12. Times are in ms. The index type is K for keys, U for unique keys, T for tags."""

    topic: str
    key: str
    max_num: I32
    begin_timestamp: I64
    end_timestamp: I64
    unique_key_query: bool = msgspec.field(default=False, name="_UNIQUE_KEY_QUERY")
    index_type: str | None = None


class QueryMessageResponseHeader(msgspec.Struct, rename="camel"):
    """The answer to 12."""

    index_last_update_timestamp: I64
    index_last_update_phyoffset: I64


# Clients


class UnregisterClientHeader(msgspec.Struct, rename="camel"):
    """The header of code 35."""

    client_id: str = msgspec.field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class ConsumerGroupHeader(msgspec.Struct, rename="camel"):
    """The header of codes 38, 40 and 203."""

    consumer_group: str


class ProducerGroupHeader(msgspec.Struct, rename="camel"):
    """The header of code 204."""

    producer_group: str


class ConsumerSendBackHeader(msgspec.Struct, rename="camel"):
    """The header of code 36. `offset` is of the commit log."""

    offset: I64
    group: str
    delay_level: I32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: I32 | None = None


class EndTransactionHeader(msgspec.Struct, rename="camel"):
    """The header of code 37. `commit_or_rollback` is 0, 8 or 12, as in a message's sys flag."""

    producer_group: str
    tran_state_table_offset: I64
    commit_log_offset: I64
    commit_or_rollback: I32
    msg_id: str
    topic: str | None = None
    from_transaction_check: bool = False
    transaction_id: str | None = None


class CheckTransactionStateHeader(msgspec.Struct, rename="camel"):
    """The header of code 39, from broker to client."""

    tran_state_table_offset: I64
    commit_log_offset: I64
    topic: str | None = None
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    broker_name: str | None = msgspec.field(default=None, name="bname")


class ResumeCheckHeader(msgspec.Struct, rename="camel"):
    """The header of code 323. `msg_id` is an offset message id."""

    msg_id: str
    topic: str | None = None


# Topics, groups and state, for tools


class CreateTopicHeader(msgspec.Struct, rename="camel"):
    """The header of code 17."""

    topic: str
    default_topic: str
    read_queue_nums: I32
    write_queue_nums: I32
    perm: I32
    topic_filter_type: str
    topic_sys_flag: I32 | None = None
    order: bool = False
    attributes: str | None = None
    force: bool = False


class TopicHeader(msgspec.Struct, rename="camel"):
    """Requests that name a topic and nothing else: 202, 215, 300, 351."""

    topic: str


class GroupHeader(msgspec.Struct, rename="camel"):
    """The header of codes 343, 345 and 352."""

    group: str
    topic: str | None = None


class GroupForbiddenHeader(msgspec.Struct, rename="camel"):
    """The header of code 353. Without `readable` it only asks."""

    group: str
    topic: str
    readable: bool | None = None


class DeleteGroupHeader(msgspec.Struct, rename="camel"):
    """The header of code 207."""

    group_name: str
    clean_offset: bool = False


class ConsumeStatsHeader(msgspec.Struct, rename="camel"):
    """The header of code 208."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


class TopicGroupHeader(msgspec.Struct, rename="camel"):
    """The header of code 303."""

    topic: str
    group: str


class CorrectionOffsetHeader(msgspec.Struct, rename="camel"):
    """The header of code 308. `filter_groups` are separated by commas."""

    compare_group: str
    topic: str
    filter_groups: str | None = None


class CloneGroupOffsetHeader(msgspec.Struct, rename="camel"):
    """The header of code 314. Without a topic: all of the source's."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class BrokerStatsHeader(msgspec.Struct, rename="camel"):
    """The header of code 315."""

    stats_name: str
    stats_key: str


class BrokerConsumeStatsHeader(msgspec.Struct, rename="camel"):
    """The header of code 317."""

    is_order: bool


class QueryConsumeQueueHeader(msgspec.Struct, rename="camel"):
    """The header of code 321. `index` is a queue offset."""

    topic: str
    queue_id: I32
    index: I64
    count: I32
    consumer_group: str | None = None


class ConsumerStatusHeader(msgspec.Struct, rename="camel"):
    """223 to a broker. `client_addr` holds a client id: that client alone."""

    topic: str
    group: str
    client_addr: str | None = None


class RelayHeader(msgspec.Struct, rename="camel"):
    """The header of codes 307 and 309, which a broker hands on to one consumer."""

    consumer_group: str
    client_id: str
    msg_id: str | None = None


class ResetOffsetHeader(msgspec.Struct, rename="camel"):
    """222 to a broker and 220 to a client. A queue of -1 means all of them, a timestamp of -1 the end."""

    topic: str
    group: str
    timestamp: I64
    queue_id: I32 = -1
    offset: I64 | None = None
    is_force: bool = False


# Name server


class RegisterBrokerHeader(msgspec.Struct, rename="camel"):
    """The header of code 103. `body_crc32` is 31 bits of CRC-32 over the body as sent, 0 for unchecked."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: I64
    heartbeat_timeout_millis: I64 | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: I32 = 0
    zone_name: str | None = msgspec.field(default=None, name="__ZONE_NAME")


class RegisterBrokerResponseHeader(msgspec.Struct, rename="camel"):
    """The answer to 103: empty for a master."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class BrokerIdentityHeader(msgspec.Struct, rename="camel"):
    """The header of codes 104 and 322."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: I64


class QueryDataVersionResponseHeader(msgspec.Struct, rename="camel"):
    """The answer to 322."""

    changed: bool


class RouteHeader(msgspec.Struct, rename="camel"):
    """The header of code 105."""

    topic: str
    accept_standard_json_only: bool | None = None
    zone_name: str | None = msgspec.field(default=None, name="__ZONE_NAME")
    zone_mode: bool | None = msgspec.field(default=None, name="__ZONE_MODE")


class BrokerHeartbeatHeader(msgspec.Struct, rename="camel"):
    """The header of code 904. The misspelt name is the wire's."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: I64 | None = None
    epoch: I32 | None = None
    max_offset: I64 | None = None
    confirm_offset: I64 | None = None
    heartbeat_timeout_millis: I64 | None = msgspec.field(default=None, name="heartbeatTimeoutMills")
    election_priority: I32 | None = None


class BrokerMemberGroupHeader(msgspec.Struct, rename="camel"):
    """The header of code 901."""

    cluster_name: str
    broker_name: str


class PutKvConfigHeader(msgspec.Struct, rename="camel"):
    """The header of code 100."""

    namespace: str
    key: str
    value: str


class KvConfigHeader(msgspec.Struct, rename="camel"):
    """The header of codes 101 and 102."""

    namespace: str
    key: str


class GetKvConfigResponseHeader(msgspec.Struct, rename="camel"):
    """The answer to 101."""

    value: str | None = None


class NamespaceHeader(msgspec.Struct, rename="camel"):
    """The header of code 219."""

    namespace: str


class BrokerNameHeader(msgspec.Struct, rename="camel"):
    """The header of codes 205 and 327."""

    broker_name: str


class WipePermResponseHeader(msgspec.Struct, rename="camel"):
    """The answer to 205."""

    wipe_topic_count: I32


class AddPermResponseHeader(msgspec.Struct, rename="camel"):
    """The answer to 327."""

    add_topic_count: I32


class ClusterHeader(msgspec.Struct, rename="camel"):
    """The header of code 224."""

    cluster: str


class DeleteTopicInNamesrvHeader(msgspec.Struct, rename="camel"):
    """The header of code 216. With a cluster name the topic goes from that cluster's brokers only."""

    topic: str
    cluster_name: str | None = None
