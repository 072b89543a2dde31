"""Build the frames of sends as patterns: once, with open places for what differs from send to send.

A pattern is a run of frames for successive queues, in which three things are left open:

    opaque      a number of ten digits, so that no length in the frame ever changes
    UNIQ_KEY    32 characters that end in the same ten digits, as clients give every message its own
    born time   13 digits of milliseconds, stamped into the whole pattern from time to time

One send is then a list of the pieces that stay, with the texts of the numbers put in between, joined: 0.1 us a
message, where building a header takes sixty times that. Real differences matter: a broker that met the same header
bytes again and again could look faster than any client will ever find it.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from typing import cast

import msgspec

from tools.bench.spec import ProduceSpec

SEND_MESSAGE_V2 = 310
SEND_BATCH_MESSAGE = 320
VERSION = 479
PYTHON = 3

OPAQUE_FIRST = 1_000_000_000
OPAQUE_END = 1 << 31

# What stands in a frame while it is built; each is as wide as what will stand there when it is sent.
_NUMBER = b"##NUMBER##"
_PACKED = b"\xff##\xff"
_BORN = b"#BORN-MILLIS#"

_PACK_I32: Callable[[int], bytes] = struct.Struct(">i").pack
_encode = msgspec.json.Encoder().encode
_KEY_PREFIX = "7F000001BE7C"
_PROPERTIES_END = "\x02WAIT\x01true\x02"


class SendPattern:
    """The frames of one load, for every connection of it.

    `take(first, count, numbers)` are the bytes of `count` frames, starting with queue `first`, whose
    opaques are `numbers`.
    """

    def __init__(self, spec: ProduceSpec, frame_count: int) -> None:
        assert frame_count >= 1
        self.queues = spec.queues
        self.frame_count = frame_count
        self._frames = [_frame(spec, queue_id) for queue_id in range(spec.queues)]
        # How often a number stands in a frame; in a binary one the opaque is packed, and stands first.
        self._places = self._frames[0].count(_NUMBER) + self._frames[0].count(_PACKED)
        self._packed = _PACKED in self._frames[0]
        self.stamp(0)

    def stamp(self, now_ms: int) -> None:
        """Stamp `now_ms` as the born time into every frame from now on."""
        born = b"%013d" % now_ms
        cut = [frame.replace(_BORN, born).replace(_PACKED, _NUMBER).split(_NUMBER) for frame in self._frames]
        self._heads = [head for head, *_ in cut]
        self._tail = cut[0][-1]  # of every frame: where a message goes is said before
        self._singles = [b"%d".join(piece.replace(b"%", b"%%") for piece in pieces) for pieces in cut]
        # What stands before each number of frames in a row, and None in the numbers' places.
        pieces = itertools.chain.from_iterable((self._tail + head, *rest[:-1]) for head, *rest in cut)
        one_round: list[bytes | None] = list(itertools.chain.from_iterable((piece, None) for piece in pieces))
        # A send may begin at any queue, so the row is longer than the largest send by one round of them.
        self._row = one_round * (-(-self.frame_count // self.queues) + 1)

    def take(self, first_queue: int, numbers: range) -> bytes:
        """Return the frames with these opaques; at most `frame_count` of them."""
        if len(numbers) == 1 and not self._packed:
            return self.take_one(first_queue, numbers[0])
        step = 2 * self._places
        row = self._row[first_queue * step : (first_queue + len(numbers)) * step]
        texts = _encode(list(numbers))[1:-1].split(b",")
        row[0] = self._heads[first_queue]
        for place in range(self._places):
            row[2 * place + 1 :: step] = map(_PACK_I32, numbers) if self._packed and not place else texts
        row.append(self._tail)
        return b"".join(cast("list[bytes]", row))

    def take_one(self, queue: int, number: int) -> bytes:
        """`take` of a single JSON frame, in a third of the time."""
        assert not self._packed
        return self._singles[queue] % ((number,) * self._places)


def _frame(spec: ProduceSpec, queue_id: int) -> bytes:
    fields = {
        "a": "ropewalk-bench",
        "b": spec.topic,
        "c": "TBW102",
        "d": str(spec.queues),
        "e": str(queue_id),
        "f": "0",
        "g": _BORN.decode(),
        "h": "0",
        "i": _properties(0),
        "j": "0",
        "k": "false",
        "m": "true" if spec.batch > 1 else "false",
    }
    filler = bytes(itertools.islice(itertools.cycle(b"ropewalk-"), spec.body_size))
    if spec.batch > 1:
        code, body = SEND_BATCH_MESSAGE, b"".join(_item(filler, index) for index in range(1, spec.batch + 1))
    else:
        code, body = SEND_MESSAGE_V2, filler
    header = _binary_header(code, fields) if spec.serialization == "binary" else _json_header(code, fields)
    word = len(header) | (1 << 24 if spec.serialization == "binary" else 0)
    return struct.pack(">iI", 4 + len(header) + len(body), word) + header + body


def _properties(index: int) -> str:
    key = f"{_KEY_PREFIX}{index:010X}{_NUMBER.decode()}"
    return f"UNIQ_KEY\x01{key}{_PROPERTIES_END}"


def _item(body: bytes, index: int) -> bytes:
    """Encode one message of a batch body."""
    properties = _properties(index).encode()
    size = 22 + len(body) + len(properties)
    return struct.pack(f">5i{len(body)}sh", size, 0, 0, 0, len(body), body, len(properties)) + properties


def _json_header(code: int, fields: dict[str, str]) -> bytes:
    # Written out, because the opaque is a number for the peer and a place to fill for us. The fields come
    # before it, in the alphabetical order of Java clients.
    escaped = ",".join(
        f'"{name}":"{value}"'.replace("\x01", "\\u0001").replace("\x02", "\\u0002")
        for name, value in fields.items()
    )
    return (
        f'{{"code":{code},"extFields":{{{escaped}}},"flag":0,"language":"PYTHON",'
        f'"opaque":{_NUMBER.decode()},"serializeTypeCurrentRPC":"JSON","version":{VERSION}}}'
    ).encode()


def _binary_header(code: int, fields: dict[str, str]) -> bytes:
    entries = b"".join(
        struct.pack(f">h{len(name)}si", len(name), name, len(value)) + value
        for name, value in ((name.encode(), value.encode()) for name, value in fields.items())
    )
    fixed = struct.pack(">hbh4siii", code, PYTHON, VERSION, _PACKED, 0, 0, len(entries))
    return fixed + entries
