"""The input of `ropewalk produce`: lines of a file or pipe, plain or as JSON.

A source yields lists of messages, each list being all that has arrived so far, and an empty list when
it is about to wait. A slow pipe is thus sent line by line as it comes, a file in large batches, by the
same loop. A line that is no message raises `BadLine` with its number, after the lines before it; nothing
behind it is read, because whoever mends the line wants to send from there on, and nothing twice.
"""

from __future__ import annotations

import os
import select
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import msgspec

from ropewalk.client.core.messages import Message, copied_tags
from ropewalk.client.core.produce.sendable import BODY_SIZE_MAX
from ropewalk.format.properties import P, split_keys
from tools.common.interrupts import Interrupts
from tools.common.output import UsageError
from tools.messages.delay import Tables, default_tables, parse_delay, parse_time

READ_SIZE = 256 * 1024
LINE_SIZE_MAX = 16 * 1024 * 1024
"""Bytes. Far above what any broker takes; it only keeps a file without line ends out of memory."""

BOOKKEEPING = frozenset(
    {
        *(P.UNIQ_KEY, "CLUSTER", "MSG_REGION", "TRACE_ON", "MIN_OFFSET", "MAX_OFFSET", "INSTANCE_ID"),
        P.WAIT,  # false in every retry and dead letter: a copy would be acknowledged before slaves have it
        *(
            P.TIMER_OUT_MS,
            P.TIMER_ENQUEUE_MS,
            P.TIMER_DEQUEUE_MS,
            P.TIMER_ROLL_TIMES,
            P.REAL_TOPIC,
            P.REAL_QID,
        ),
        *(P.TRAN_MSG, P.TRANSACTION_ID, P.TRANSACTION_CHECK_TIMES, P.TRAN_PREPARED_QUEUE_OFFSET, P.PGROUP),
        P.TRANSACTION_SINCE,
    }
)
"""Properties that clients and brokers add to every message: taken out of what `consume` printed."""

FIELDS = frozenset({"body", "bodyBase64", "keys", "tags", "properties", "messageGroup", "delay", "deliverAt"})
PRINTED_FIELDS = frozenset(
    {
        "topic",
        "broker",
        "queueId",
        "queueOffset",
        "msgId",
        "offsetMsgId",
        "bornTimestamp",
        "bornHost",
        "storeTimestamp",
        "reconsumeTimes",
        "logOffset",
        "groups",
        "note",
    }
)
"""What `consume --json` and `admin message --json` print besides: where a message lay says nothing about its copy."""


class BadLine(UsageError):
    """A line, or an argument, that is no message."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(f"line {number}: {reason}")
        self.number = number
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Stamp:
    """The properties that the options add to every message."""

    keys: str | None = None
    tags: str | None = None
    properties: dict[str, str] = field(default_factory=dict)
    group: str | None = None
    """The message group, which keeps messages in order."""
    later: dict[str, str] = field(default_factory=dict)
    """The property that says when the messages are delivered, if not at once."""

    def __post_init__(self) -> None:
        if self.tags is not None and ("||" in self.tags or not self.tags or self.tags.split() != [self.tags]):
            raise UsageError(
                f"--tags {self.tags!r}: a message has one tag, without blanks and without ||, which consumers "
                "write between the tags they want"
            )
        check_properties({P.KEYS: self.keys or "", P.TAGS: self.tags or "", P.SHARDING_KEY: self.group or ""})

    def message(self, body: bytes) -> Message:
        return Message(
            body,
            split_keys(self.keys or ""),
            self.tags,
            {**self.properties, **self.later},
            group=self.group,
        )


def check_properties(properties: dict[str, str]) -> dict[str, str]:
    """Refuse properties that the properties string cannot carry. Raises `UsageError`."""
    for name, value in properties.items():
        if "\x01" in name or "\x02" in name or "\x02" in value:
            raise UsageError(f"property {name!r} holds one of the bytes 01 and 02 that separate properties")
        try:
            f"{name}{value}".encode()
        except UnicodeEncodeError:
            raise UsageError(f"property {name!r} is not text in UTF-8") from None
    return properties


class LineSource:
    """The lines of a file or pipe as messages, and how far it has come."""

    def __init__(
        self, stream: BinaryIO, parse: Callable[[bytes, int], Message], interrupts: Interrupts
    ) -> None:
        self._stream = stream
        self._parse = parse
        self._interrupts = interrupts
        info = os.fstat(stream.fileno())
        self.size = info.st_size if stat.S_ISREG(info.st_mode) else None
        """Bytes of all there is to read, where that is known."""
        self.bytes_read = 0
        self.lines_read = 0
        self._rest = b""
        self.skipped = 0
        """Empty lines: RocketMQ has no empty messages."""

    def __iter__(self) -> Iterator[list[Message]]:
        descriptor = self._stream.fileno()
        ended = False
        while not ended:
            if self.size is None and _must_wait(descriptor):
                yield []
            with self._interrupts.while_waiting():
                data = os.read(descriptor, READ_SIZE)
            ended = not data
            self.bytes_read += len(data)
            *lines, self._rest = (self._rest + data).split(b"\n")
            if ended and self._rest:
                lines.append(self._rest)
                self._rest = b""
            messages: list[Message] = []
            fault: BadLine | None = None
            for line in lines:
                self.lines_read += 1
                if not line:
                    self.skipped += 1
                    continue
                try:
                    messages.append(self._parse(line, self.lines_read))
                except BadLine as exc:
                    fault = exc
                    break
            if messages:
                yield messages
            if fault is None and len(self._rest) > LINE_SIZE_MAX:
                fault = BadLine(self.lines_read + 1, f"longer than {LINE_SIZE_MAX:,} bytes")
            if fault is not None:
                raise fault

    def unread_lines(self) -> int | None:
        """Count the lines not read yet; None of a pipe, whose end may be far away. Reads to the end."""
        if self.size is None:
            return None
        count = 0
        last = self._rest[-1:]
        while data := os.read(self._stream.fileno(), READ_SIZE):
            count += data.count(b"\n")
            last = data[-1:]
        return count + (last not in (b"", b"\n"))


def _must_wait(descriptor: int) -> bool:
    """Nothing more has arrived. Where a pipe cannot be asked (not everywhere can one), assume it has."""
    try:
        return not select.select([descriptor], [], [], 0)[0]
    except OSError:
        return False


def parser(
    stamp: Stamp, *, json_lines: bool, tables: Tables = default_tables
) -> Callable[[bytes, int], Message]:
    """Return a function that makes a message of a line and its number, or raises `BadLine`."""

    def parse(line: bytes, number: int) -> Message:
        try:
            message = parse_json_line(line, stamp, tables) if json_lines else stamp.message(line)
        except UsageError as exc:
            raise BadLine(number, str(exc)) from exc
        if len(message.body) > BODY_SIZE_MAX:
            size = f"{len(message.body):,} bytes"
            raise BadLine(number, f"the body has {size}, and brokers take {BODY_SIZE_MAX:,}")
        return message

    return parse


def read_arguments(texts: Sequence[str], parse: Callable[[bytes, int], Message]) -> list[Message]:
    """Return messages given on the command line. Raises `UsageError`."""
    if not all(texts):
        raise UsageError("a message is empty, and RocketMQ has no empty messages")
    try:
        return [parse(os.fsencode(text), number) for number, text in enumerate(texts, 1)]
    except BadLine as exc:
        raise UsageError(f"message {exc.number}: {exc.reason}; nothing was sent") from exc


def parse_json_line(line: bytes, stamp: Stamp, tables: Tables = default_tables) -> Message:
    """Read `{"body": ..., "keys": ..., "tags": ..., "properties": {...}}`. Raises `UsageError`.

    `body` is text, or any other JSON value, sent as its JSON text; `bodyBase64` carries bytes. Keys are
    a text or a list. `messageGroup` keeps messages in order, `delay` is a level or a time, `deliverAt` a moment.
    What the line does not say is taken from the options. The lines that `ropewalk consume --format json` prints are
    understood.
    """
    try:
        document = msgspec.json.decode(line)
    except msgspec.DecodeError as exc:
        raise UsageError(f"not JSON: {exc}") from exc
    if not isinstance(document, dict) or not ("body" in document or "bodyBase64" in document):
        raise UsageError('not an object with a "body"')
    unknown = sorted(document.keys() - FIELDS - PRINTED_FIELDS)
    if unknown:
        raise UsageError(f"unknown field {json_text(unknown[0])}; there are {', '.join(sorted(FIELDS))}")
    if "body" in document and "bodyBase64" in document:
        raise UsageError('"body" and "bodyBase64" are both given: which of them is the body?')
    for name in ("body", "bodyBase64", "properties"):
        if name in document and document[name] is None:
            raise UsageError(f'"{name}" is null')
    properties = document.get("properties", {})
    if not isinstance(properties, dict):
        raise UsageError('"properties" is not an object')
    if None in properties.values():
        raise UsageError("a property is null")
    texts = {str(name): _text(value) for name, value in properties.items()}
    given = {name: value for name, value in texts.items() if name not in BOOKKEEPING and value}
    keys = document.get("keys")
    keys_text = " ".join(map(_text, keys)) if isinstance(keys, list) else keys and _text(keys)
    tags = document.get("tags")
    body = _json_body(document)
    if not body:
        raise UsageError("the body is empty, and RocketMQ has no empty messages")
    group = _text(document["messageGroup"]) if document.get("messageGroup") else None
    delay = document.get("delay")
    check_properties(
        {P.KEYS: keys_text or "", P.TAGS: _text(tags) if tags else "", P.SHARDING_KEY: group or ""}
    )
    deliver_at = document.get("deliverAt")
    if delay and deliver_at:
        raise UsageError('"delay" and "deliverAt" are both given: when is it delivered?')
    later = parse_delay(_text(delay), tables) if delay else stamp.later
    if deliver_at:
        later = parse_time(_text(deliver_at))
    # What another client made of it is sent again as it is.
    tags, odd_tags = copied_tags((_text(tags) if tags else None) or given.pop(P.TAGS, None) or stamp.tags)
    return Message(
        body,
        split_keys(keys_text or given.pop(P.KEYS, None) or stamp.keys or ""),
        tags,
        group=group or given.pop(P.SHARDING_KEY, None) or stamp.group,
        properties=check_properties({**stamp.properties, **given, **later, **odd_tags}),
    )


def json_text(value: Any) -> str:
    """Return a value as it would stand in JSON."""
    return msgspec.json.encode(value).decode()


def _json_body(document: dict[str, Any]) -> bytes:
    if "bodyBase64" in document:
        try:
            # msgspec reads bytes from base64, with its padding and alphabet checked.
            return msgspec.convert(document["bodyBase64"], bytes)
        except msgspec.ValidationError as exc:
            raise UsageError('"bodyBase64" is not base64') from exc
    body = document["body"]
    return body.encode() if isinstance(body, str) else msgspec.json.encode(body)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json_text(value)
