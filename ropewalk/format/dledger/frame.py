"""The frames between the members of a DLedger group. Integers are big-endian.

    u32 size of what follows | u8 kind | u8 flags | u16 group | u32 count | u32 CRC32C of the body | i64 x 6 | body

The head has 64 bytes, so a frame without a body says 60. What the six numbers mean:

                     count     first     second      third      fourth          fifth       sixth
    APPEND           entries   term      prev index  prev term  prev pos        run's term  commit
    APPEND_ANSWER              term      durable     last       hint's term     prev index
    HEARTBEAT        round     term      commit
    HEARTBEAT_ANSWER round     term      last        durable
    VOTE                       term      last index  last term
    VOTE_ANSWER      result    term
    PING
    TAKE_LEAD                  term
    READ             number    term
    READ_ANSWER      number    term      index
    FORWARD          number
    FORWARD_ANSWER   number
    BLOCK            number    begin     end         checksum
    BLOCK_ANSWER     number    1: no better
    SNAPSHOT_BEGIN             term      index       its term   offset behind   size
    SNAPSHOT_CHUNK             term      index       offset
    SNAPSHOT_END     CRC32C    term      index       size
    SNAPSHOT_ANSWER            term      index       received

An APPEND has the entries as they stand in the log for its body, and may have none. ROLLED says that they stand at the
base of the next segment; the receiver knows where that is, because HELLO has compared the sizes. A FORWARD has a
client's request that only the leader may answer, in a frame of RocketMQ's, and its answer has the leader's. A BLOCK
asks for bytes of the log that are damaged here, and its answer has them, or the reason why not (-1: there is no
checksum of them here). A SNAPSHOT_CHUNK has a piece of the snapshot for the log that begins with entry `index`; END has
the checksum of all pieces. No other kind has a body. Flags are ROLLED and CONFIG of an APPEND, OK of its answer and of
a BLOCK_ANSWER, PRE and TRANSFER of votes, UNABLE of a HEARTBEAT_ANSWER, STATELESS of an APPEND_ANSWER, LEARNER of both
answers. Unused numbers are 0.

A head is judged before its body arrives: a size that would be refused anyway must not be buffered first.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from struct import Struct
from typing import Final

import crc32c
from msgspec import Struct as Fields

from ropewalk.errors import RemoteProtocolError
from ropewalk.format.dledger.entry import ENTRY_SIZE_MAX
from ropewalk.format.sidecar import BLOCK_SIZE

HEAD_SIZE: Final = 64
BODY_SIZE_MAX: Final = ENTRY_SIZE_MAX
"""A frame carries at most 512 KiB, 2 MiB for a member that lags, or one entry that is larger."""
SNAPSHOT_SIZE_MAX: Final = 1 << 30
"""The size of a snapshot, which is kept in memory on its way."""
CHUNK_SIZE_MAX: Final = 512 << 10
"""The size of a piece of a snapshot."""
FORWARD_SIZE_MAX: Final = 16 << 10
"""The size of a forwarded request or answer: names and numbers."""

_HEAD: Final = Struct(">IBBHIIqqqqqq")
_SIZE: Final = Struct(">I")


class Kind(IntEnum):
    """The meaning of a frame."""

    APPEND = 1
    APPEND_ANSWER = 2
    HEARTBEAT = 3
    HEARTBEAT_ANSWER = 4
    VOTE = 5
    VOTE_ANSWER = 6
    PING = 7
    """The link lives; sent where nothing else was for a while."""
    TAKE_LEAD = 8
    READ = 9
    READ_ANSWER = 10
    FORWARD = 11
    FORWARD_ANSWER = 12
    SNAPSHOT_BEGIN = 13
    SNAPSHOT_CHUNK = 14
    SNAPSHOT_END = 15
    SNAPSHOT_ANSWER = 16
    BLOCK = 17
    BLOCK_ANSWER = 18


ROLLED: Final = 1
CONFIG: Final = 2
"""The one entry of the APPEND has the record of a configuration."""
OK: Final = 1
PRE: Final = 1
TRANSFER: Final = 2
UNABLE: Final = 1
"""The follower would not take the lead now."""
LEARNER: Final = 2
"""The follower is part of no majority: it lost its log and has not caught up."""
STATELESS: Final = 4
"""The follower takes no entries: it lacks the state in front of the log, and needs a snapshot."""

_FLAGS: Final = {
    Kind.APPEND: ROLLED | CONFIG,
    Kind.APPEND_ANSWER: OK | LEARNER | STATELESS,
    Kind.HEARTBEAT: 0,
    Kind.HEARTBEAT_ANSWER: UNABLE | LEARNER,
    Kind.VOTE: PRE | TRANSFER,
    Kind.VOTE_ANSWER: PRE,
    Kind.PING: 0,
    Kind.TAKE_LEAD: 0,
    Kind.READ: 0,
    Kind.READ_ANSWER: 0,
    Kind.FORWARD: 0,
    Kind.FORWARD_ANSWER: 0,
    Kind.SNAPSHOT_BEGIN: 0,
    Kind.SNAPSHOT_CHUNK: 0,
    Kind.SNAPSHOT_END: 0,
    Kind.SNAPSHOT_ANSWER: 0,
    Kind.BLOCK: 0,
    Kind.BLOCK_ANSWER: OK,
}
"""The flags that a kind may have."""


class Frame(Fields, frozen=True):
    """A frame that was read. `body` is a view of what was fed, or bytes of its own."""

    kind: Kind
    flags: int
    group: int
    count: int
    numbers: tuple[int, int, int, int, int, int]
    body: bytes | memoryview = b""


def encode_head(
    kind: Kind,
    flags: int,
    group: int,
    count: int,
    numbers: tuple[int, int, int, int, int, int],
    body: bytes | memoryview = b"",
) -> bytes:
    """Return the head of a frame. The body is sent behind it as it is, the same object to every member."""
    checksum = crc32c.crc32c(body) if body else 0
    return encode_head_with(kind, flags, group, count, numbers, len(body), checksum)


def encode_head_with(
    kind: Kind,
    flags: int,
    group: int,
    count: int,
    numbers: tuple[int, int, int, int, int, int],
    body_size: int,
    checksum: int,
) -> bytes:
    """Return the head of a frame whose body's checksum is known: it is the same for every member."""
    return _HEAD.pack(HEAD_SIZE - 4 + body_size, kind, flags, group, count, checksum, *numbers)


class Frames:
    """Frames out of the pieces in which they arrive. After a `RemoteProtocolError` it must not be fed again."""

    __slots__ = ("_have", "_head", "_pieces")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        """The bytes of a frame that is not complete."""
        self._have = 0
        self._head: tuple[int, ...] | None = None
        """The numbers of its head, once that is complete and judged."""

    @property
    def is_between(self) -> bool:
        """Tell whether the bytes that were fed end with a frame."""
        return not self._have

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Return the frames that are complete now, in order.

        Raises `RemoteProtocolError` for a head that cannot be, before its body arrives, and for a body that is not
        the one that was sent. The frames before it have been returned by then.
        """
        view, position, end = memoryview(data), 0, len(data)
        if self._have:
            position = self._complete(data)
            if position < 0:
                return
            whole = memoryview(b"".join(self._pieces))
            head, self._pieces, self._have, self._head = self._head, [], 0, None
            assert head is not None
            yield _frame(head, whole[HEAD_SIZE:])
        while end - position >= HEAD_SIZE:
            head = _judged(data, position)
            size = head[0] + 4
            if end - position < size:
                self._head = head
                break
            yield _frame(head, view[position + HEAD_SIZE : position + size])
            position += size
        if position < end:
            self._keep(data[position:] if position else data)

    def _complete(self, data: bytes) -> int:
        """Take what is missing of the frame that has begun. Return how much that was; -1 if it is still incomplete."""
        taken = 0
        if self._head is None:
            taken = min(HEAD_SIZE - self._have, len(data))
            self._keep(data[:taken])
            if self._have < HEAD_SIZE:
                return -1
            self._head = _judged(b"".join(self._pieces), 0)
        missing = self._head[0] + 4 - self._have
        more = min(missing, len(data) - taken)
        self._keep(data[taken : taken + more])
        return taken + more if more == missing else -1

    def _keep(self, piece: bytes) -> None:
        if piece:
            self._pieces.append(piece)
            self._have += len(piece)
            if self._head is None and self._have >= 4 and self._have < HEAD_SIZE:
                _judge_size(_SIZE.unpack_from(b"".join(self._pieces))[0])


def _judge_size(size: int) -> None:
    if not HEAD_SIZE - 4 <= size <= HEAD_SIZE - 4 + BODY_SIZE_MAX:
        raise RemoteProtocolError(f"a frame of {size} bytes is out of bounds")


def _judged(data: bytes, position: int) -> tuple[int, ...]:
    head = _HEAD.unpack_from(data, position)
    size, kind, flags, _group, count, checksum = head[:6]
    _judge_size(size)
    allowed = _FLAGS.get(kind)
    if allowed is None:
        raise RemoteProtocolError(f"no frame is of kind {kind}")
    if flags & ~allowed:
        raise RemoteProtocolError(f"a frame of kind {Kind(kind).name} cannot have the flags {flags:#x}")
    has_body = size > HEAD_SIZE - 4
    if kind in (Kind.FORWARD, Kind.FORWARD_ANSWER):
        if not 0 < size - (HEAD_SIZE - 4) <= FORWARD_SIZE_MAX:
            raise RemoteProtocolError(f"a forwarded request of {size - HEAD_SIZE + 4} bytes is out of bounds")
    elif kind == Kind.BLOCK_ANSWER:
        if not 0 < size - (HEAD_SIZE - 4) <= BLOCK_SIZE:
            raise RemoteProtocolError(f"{size - HEAD_SIZE + 4} bytes of a log are out of bounds")
    elif kind == Kind.SNAPSHOT_CHUNK:
        if not 0 < size - (HEAD_SIZE - 4) <= CHUNK_SIZE_MAX:
            raise RemoteProtocolError(
                f"a piece of {size - HEAD_SIZE + 4} bytes of a snapshot is out of bounds"
            )
    elif has_body and kind != Kind.APPEND:
        raise RemoteProtocolError(f"a frame of kind {Kind(kind).name} has no body, this one has {size} bytes")
    if kind == Kind.APPEND and (has_body is not (count > 0) or (not has_body and checksum)):
        raise RemoteProtocolError(f"an append of {count} entries cannot have {size - HEAD_SIZE + 4} bytes")
    if kind == Kind.SNAPSHOT_BEGIN and not 0 < head[10] <= SNAPSHOT_SIZE_MAX:
        raise RemoteProtocolError(f"a snapshot of {head[10]} bytes is out of bounds")
    if min(head[6:]) < -1:
        raise RemoteProtocolError(f"a frame of kind {Kind(kind).name} has a number below -1: {head[6:]}")
    return head


def _frame(head: tuple[int, ...], body: memoryview) -> Frame:
    if body and crc32c.crc32c(body) != head[5]:
        raise RemoteProtocolError(
            f"the body of {len(body)} bytes of a frame of kind {Kind(head[1]).name} is not the one that was sent"
        )
    first, second, third, fourth, fifth, sixth = head[6:]
    return Frame(Kind(head[1]), head[2], head[3], head[4], (first, second, third, fourth, fifth, sixth), body)
