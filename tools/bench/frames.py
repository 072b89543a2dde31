"""Send requests as patterns: everything is built once, and `%` puts in what must differ.

A pattern is a run of frames for successive queues, in which three things are left open:

    opaque      a number of ten digits, so that no length in the frame ever changes
    UNIQ_KEY    32 characters that end in the same ten digits, as clients give every message its own
    born time   13 digits of milliseconds, stamped into the whole pattern from time to time

One send is then `pattern[a:b] % numbers`: a copy and a C loop, about 0.3 us a message, where building a
header takes twenty times that. Real differences matter: a broker that met the same header bytes again
and again could look faster than any client will ever find it.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator

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
        self._columns = _columns(spec)
        # A send may begin at any queue, so the run is longer than the largest send by one round of them.
        unique = [_escape(_frame(spec, queue_id)) for queue_id in range(spec.queues)]
        frames = [unique[index % spec.queues] for index in range(frame_count + spec.queues)]
        self._ends = [0, *itertools.accumulate(map(len, frames))]
        self._unstamped = b"".join(frames)
        self._pattern = self._unstamped
        self._singles = frames[: spec.queues]
        # How often the opaque stands in a JSON frame; in a binary one it stands in two forms.
        self._places = 0 if spec.serialization == "binary" else 2 if spec.batch == 1 else spec.batch + 2

    def stamp(self, now_ms: int) -> None:
        """Let every frame from now on be born at `now_ms`."""
        self._pattern = self._unstamped.replace(_BORN, b"%013d" % now_ms)
        ends = self._ends
        self._singles = [self._pattern[ends[queue] : ends[queue + 1]] for queue in range(self.queues)]

    def take(self, first_queue: int, numbers: range) -> bytes:
        """The frames with these opaques; at most `frame_count` of them."""
        if len(numbers) == 1 and self._places:
            return self.take_one(first_queue, numbers[0])
        start, end = self._ends[first_queue], self._ends[first_queue + len(numbers)]
        return self._pattern[start:end] % tuple(self._columns(numbers))

    def take_one(self, queue: int, number: int) -> bytes:
        """`take` of a single JSON frame, in a third of the time."""
        return self._singles[queue] % ((number,) * self._places)


def _columns(spec: ProduceSpec) -> Callable[[range], Iterator[object]]:
    """What fills the open places of a run of frames, in the order in which they stand in it."""
    keys = spec.batch + 1 if spec.batch > 1 else 1
    if spec.serialization == "binary":
        return lambda numbers: itertools.chain.from_iterable(
            zip(map(_PACK_I32, numbers), *itertools.repeat(numbers, keys), strict=True)
        )
    return lambda numbers: itertools.chain.from_iterable(
        zip(*itertools.repeat(numbers, keys + 1), strict=True)
    )


def _escape(frame: bytes) -> bytes:
    return frame.replace(b"%", b"%%").replace(_PACKED, b"%b").replace(_NUMBER, b"%d")


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
    """One message of a batch body."""
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
