"""The property text of a message, and the Java hash of its tag.

    name 0x01 value 0x02 name 0x01 value 0x02 ...

There is no escaping. A reader splits at 0x02 and each piece at its *first* 0x01, so a value may hold 0x01 and
never 0x02; pieces without a name or a value are dropped and a later duplicate wins. Some clients leave out
the last 0x02, so whoever appends to raw text must first close it. The order means nothing,
and the bytes of two brokers' texts are never comparable.

Text that is not UTF-8 is read with replacement characters, as Java does; the raw bytes stay what they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from ropewalk.errors import LocalProtocolError

PROPERTIES_SIZE_MAX: Final = 32767
"""Bytes of the longest property text a record or batch item can hold: its length is a signed 16-bit field."""


class P:
    """Property names that mean something to brokers or clients."""

    KEYS: Final = "KEYS"
    TAGS: Final = "TAGS"
    WAIT: Final = "WAIT"
    DELAY: Final = "DELAY"
    RETRY_TOPIC: Final = "RETRY_TOPIC"
    REAL_TOPIC: Final = "REAL_TOPIC"
    REAL_QID: Final = "REAL_QID"
    TRAN_MSG: Final = "TRAN_MSG"
    PGROUP: Final = "PGROUP"
    MIN_OFFSET: Final = "MIN_OFFSET"
    MAX_OFFSET: Final = "MAX_OFFSET"
    BUYER_ID: Final = "BUYER_ID"
    ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
    TRANSFER_FLAG: Final = "TRANSFER_FLAG"
    CORRECTION_FLAG: Final = "CORRECTION_FLAG"
    MQ2_FLAG: Final = "MQ2_FLAG"
    RECONSUME_TIME: Final = "RECONSUME_TIME"
    MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
    MSG_REGION: Final = "MSG_REGION"
    TRACE_ON: Final = "TRACE_ON"
    UNIQ_KEY: Final = "UNIQ_KEY"
    EXTEND_UNIQ_INFO: Final = "EXTEND_UNIQ_INFO"
    CONSUME_START_TIME: Final = "CONSUME_START_TIME"
    INNER_NUM: Final = "INNER_NUM"
    INNER_BASE: Final = "INNER_BASE"
    DUP_INFO: Final = "DUP_INFO"
    CHECK_IMMUNITY_TIME_IN_SECONDS: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
    TRAN_PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
    TRANSACTION_ID: Final = "__transactionId__"
    TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
    TRANSACTION_SINCE: Final = "ROPEWALK_TRANSACTION_SINCE"
    """Of a copy of a half message: when the first record was stored, ms. Only Ropewalk writes it."""
    INSTANCE_ID: Final = "INSTANCE_ID"
    CORRELATION_ID: Final = "CORRELATION_ID"
    REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
    TTL: Final = "TTL"
    ARRIVE_TIME: Final = "ARRIVE_TIME"
    PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
    CLUSTER: Final = "CLUSTER"
    MSG_TYPE: Final = "MSG_TYPE"
    POP_CK: Final = "POP_CK"
    POP_CK_OFFSET: Final = "POP_CK_OFFSET"
    FIRST_POP_TIME: Final = "1ST_POP_TIME"
    SHARDING_KEY: Final = "__SHARDINGKEY"
    FORWARD_QUEUE_ID: Final = "PROPERTY_FORWARD_QUEUE_ID"
    REDIRECT: Final = "REDIRECT"
    INNER_MULTI_DISPATCH: Final = "INNER_MULTI_DISPATCH"
    INNER_MULTI_QUEUE_OFFSET: Final = "INNER_MULTI_QUEUE_OFFSET"
    TRACE_CONTEXT: Final = "TRACE_CONTEXT"
    TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
    TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
    TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
    TIMER_ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"
    TIMER_DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"
    TIMER_ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
    TIMER_OUT_MS: Final = "TIMER_OUT_MS"
    TIMER_DEL_UNIQKEY: Final = "TIMER_DEL_UNIQKEY"
    TIMER_DELAY_LEVEL: Final = "TIMER_DELAY_LEVEL"
    SINK_ROW: Final = "RW_SINK"
    BORN_HOST: Final = "__BORNHOST"
    BORN_TIMESTAMP: Final = "BORN_TIMESTAMP"
    DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
    DLQ_ORIGIN_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
    CRC32: Final = "__CRC32#"
    TRANSIENT_TOPIC_SYS_FLAG: Final = "__RMQ.TRANSIENT.TOPIC_SYS_FLAG"
    TRANSIENT_GROUP_SYS_FLAG: Final = "__RMQ.TRANSIENT.GROUP_SYS_FLAG"

    DROPPED_PROPERTIES: Final = "DROPPED_PROPERTIES"
    """Ropewalk's own: names of properties that a retry had no room for."""


def parse_properties(text: str | bytes) -> dict[str, str]:
    """Parse a property text. Every text is legal; pieces that say nothing are dropped."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    result: dict[str, str] = {}
    for piece in text.split("\x02"):
        name, _, value = piece.partition("\x01")
        if name and value:
            result[name] = value
    return result


def split_keys(text: str) -> list[str]:
    """Split the text of a KEYS property into its keys, as the index of a broker does."""
    return [key for key in text.split(" ") if key]


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Encode a property text, with a 0x02 behind every entry.

    Entries that every reader would drop, without a name or a value, are left out. A name or value holding a
    separator would be read as something else and raises LocalProtocolError. The size is not judged here: what
    a broker has to add comes later.
    """
    entries = [f"{name}\x01{value}\x02" for name, value in properties.items() if name and value]
    text = "".join(entries)
    # Almost always there are exactly as many separators as entries, and two counts show it at once.
    if not text.count("\x01") == text.count("\x02") == len(entries):
        _check_separators(properties)
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"property text that UTF-8 cannot carry: {error}") from None


def _check_separators(properties: Mapping[str, str]) -> None:
    for name, value in properties.items():
        if "\x01" in name or "\x02" in name or "\x02" in value:
            raise LocalProtocolError(f"property {name!r} holds a separator")


def find_property(raw: bytes, name: bytes) -> bytes | None:
    """Return the value that `parse_properties` would give for a name, in a third of the time."""
    mark = name + b"\x01"
    end = len(raw)
    while (start := raw.rfind(mark, 0, end)) >= 0:
        if start == 0 or raw[start - 1] == 2:
            value_start = start + len(mark)
            value_end = raw.find(b"\x02", value_start)
            value = raw[value_start:] if value_end < 0 else raw[value_start:value_end]
            if value and name:
                return value
        end = start
    return None


def java_hash(text: str) -> int:
    """Compute Java's `String.hashCode`: over UTF-16 units, so two for a character outside the BMP; a signed 32-bit
    value.
    """
    result = 0
    if text.isascii():
        for unit in text.encode():
            result = (31 * result + unit) & 0xFFFFFFFF
    else:
        data = text.encode("utf-16-be", "surrogatepass")
        for position in range(0, len(data), 2):
            result = (31 * result + (data[position] << 8 | data[position + 1])) & 0xFFFFFFFF
    return result - (1 << 32) if result & 0x80000000 else result


@lru_cache(maxsize=8192)
def tags_code(tags: str | None) -> int:
    """Return the third field of a queue entry: the hash of the tag, 0 for none. Negative hashes stay negative in 64
    bits.

    Cached because a topic has few tags and many messages.
    """
    return java_hash(tags) if tags else 0


def tags_code_of(properties: bytes) -> int:
    """Return the code of the tags in a property text; of the last ones, where there are several."""
    tags = None
    for piece in properties.split(b"\x02"):
        if piece.startswith(b"TAGS\x01") and len(piece) > 5:
            tags = piece[5:].decode(errors="replace")
    return tags_code(tags)


_KNOWN: Final = frozenset(value for name, value in vars(P).items() if not name.startswith("_"))
_DROPPED_NAMES_MAX: Final = 64


def fit_properties(properties: Mapping[str, str], size_max: int) -> dict[str, str]:
    """Return the properties that fit, for a message that is stored again with more of them than it had.

    Those of the program go first, the longest before the others, then keys, then tags; those that brokers and clients
    live by stay. `DROPPED_PROPERTIES` names what was dropped, as far as a short text can.
    """
    size = len(encode_properties(properties))
    if size <= size_max:
        return dict(properties)
    fitted = dict(properties)
    lengths = {name: len(f"{name}{value}".encode()) + 2 for name, value in properties.items()}
    own = sorted((name for name in properties if name not in _KNOWN), key=lambda name: -lengths[name])
    dropped: list[str] = []
    room = size_max - len(P.DROPPED_PROPERTIES) - 2 - _DROPPED_NAMES_MAX
    for name in (*own, P.KEYS, P.TAGS):
        if size <= room:
            break
        if name in fitted:
            size -= lengths[name]
            del fitted[name]
            dropped.append(name)
    told = ",".join(dropped).encode()[:_DROPPED_NAMES_MAX].decode(errors="ignore")
    return {**fitted, P.DROPPED_PROPERTIES: told}
