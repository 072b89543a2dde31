"""Where `ropewalk produce` gets its messages: lines of a file or pipe, plain or as JSON.

A source yields lists of messages, each list being all that has arrived so far, and an empty list when
it is about to wait. A slow pipe is thus sent line by line as it comes, a file in large batches, by the
same loop. A line that cannot be read raises `UsageError` with its number, after the lines before it.
"""

from __future__ import annotations

import os
import select
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import msgspec

from ropewalk.client.messages import Message
from ropewalk.format.properties import P
from tools.interrupts import Interrupts
from tools.output import UsageError

READ_SIZE = 256 * 1024
LINE_SIZE_MAX = 16 * 1024 * 1024
"""Bytes. Far above what any broker takes; it only keeps a file without line ends out of memory."""

BOOKKEEPING = frozenset(
    {P.UNIQ_KEY, "CLUSTER", "MSG_REGION", "TRACE_ON", "MIN_OFFSET", "MAX_OFFSET", "INSTANCE_ID"}
)
"""Properties that clients and brokers add to every message: taken out of what `consume` printed."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """What the options add to every message."""

    keys: str | None = None
    tags: str | None = None
    properties: dict[str, str] = field(default_factory=dict)

    def message(self, body: bytes) -> Message:
        return Message(body, self.keys, self.tags, self.properties)


def check_properties(properties: dict[str, str]) -> dict[str, str]:
    """Refuse what the properties string cannot carry. Raises `UsageError`."""
    for name, value in properties.items():
        if "\x01" in name or "\x02" in name or "\x02" in value:
            raise UsageError(f"property {name!r} holds one of the bytes 01 and 02 that separate properties")
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
        self.skipped = 0
        """Empty lines: RocketMQ has no empty messages."""

    def __iter__(self) -> Iterator[list[Message]]:
        descriptor = self._stream.fileno()
        rest = b""
        number = 0
        ended = False
        while not ended:
            if self.size is None and _must_wait(descriptor):
                yield []
            with self._interrupts.while_waiting():
                data = os.read(descriptor, READ_SIZE)
            ended = not data
            self.bytes_read += len(data)
            *lines, rest = (rest + data).split(b"\n")
            if ended and rest:
                lines.append(rest)
            messages: list[Message] = []
            fault: UsageError | None = None
            for line in lines:
                number += 1
                if not line:
                    self.skipped += 1
                    continue
                try:
                    messages.append(self._parse(line, number))
                except UsageError as exc:
                    fault = exc
                    break
            if messages:
                yield messages
            if fault is None and len(rest) > LINE_SIZE_MAX:
                fault = UsageError(f"line {number + 1} is longer than {LINE_SIZE_MAX} bytes")
            if fault is not None:
                raise fault


def _must_wait(descriptor: int) -> bool:
    """Nothing more has arrived. Where a pipe cannot be asked (not everywhere can one), assume it has."""
    try:
        return not select.select([descriptor], [], [], 0)[0]
    except OSError:
        return False


def parser(stamp: Stamp, *, json_lines: bool) -> Callable[[bytes, int], Message]:
    """What makes a message of a line and its number."""
    if json_lines:
        return lambda line, number: parse_json_line(line, number, stamp)
    return lambda line, number: stamp.message(line)


def read_arguments(texts: Sequence[str], parse: Callable[[bytes, int], Message]) -> list[Message]:
    """Messages given on the command line. Raises `UsageError`."""
    if not all(texts):
        raise UsageError("a message is empty, and RocketMQ has no empty messages")
    return [parse(os.fsencode(text), number) for number, text in enumerate(texts, 1)]


def parse_json_line(line: bytes, number: int, stamp: Stamp) -> Message:
    """Read `{"body": ..., "keys": ..., "tags": ..., "properties": {...}}`. Raises `UsageError`.

    `body` is text, or any other JSON value, sent as its JSON text; `bodyBase64` carries bytes. Keys are
    a text or a list. What the line does not say is taken from the options. The lines that
    `ropewalk consume --format json` prints are understood.
    """
    try:
        document = msgspec.json.decode(line)
    except msgspec.DecodeError as exc:
        raise UsageError(f"line {number} is not JSON: {exc}") from exc
    if not isinstance(document, dict) or not ("body" in document or "bodyBase64" in document):
        raise UsageError(f'line {number} is not an object with a "body"')
    properties = document.get("properties")
    if properties is None:
        properties = {}
    if not isinstance(properties, dict):
        raise UsageError(f'line {number}: "properties" is not an object')
    texts = {str(name): _text(value) for name, value in properties.items() if value is not None}
    given = {name: value for name, value in texts.items() if name not in BOOKKEEPING and value}
    keys = document.get("keys")
    keys_text = " ".join(map(_text, keys)) if isinstance(keys, list) else keys and _text(keys)
    tags = document.get("tags")
    body = _json_body(document, number)
    if not body:
        raise UsageError(f"line {number}: the body is empty, and RocketMQ has no empty messages")
    return Message(
        body,
        keys_text or given.pop(P.KEYS, None) or stamp.keys,
        (_text(tags) if tags else None) or given.pop(P.TAGS, None) or stamp.tags,
        check_properties({**stamp.properties, **given}),
    )


def _json_body(document: dict[str, Any], number: int) -> bytes:
    if "bodyBase64" in document:
        try:
            # msgspec reads bytes from base64, with its padding and alphabet checked.
            return msgspec.convert(document["bodyBase64"], bytes)
        except msgspec.ValidationError as exc:
            raise UsageError(f'line {number}: "bodyBase64" is not base64') from exc
    body = document["body"]
    return body.encode() if isinstance(body, str) else msgspec.json.encode(body)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
