"""A batch whose messages are alike, taken by columns: the split, the judging and the append are C loops over all of it.

Clients that gather small messages make items of one size mostly: bodies of one kind, unique keys of one width. Such a
batch is a table, and each column of it is looked at once. Nothing is decided here: what is unlike in any way, asks for
more than to be stored, or names different tags goes item by item (`SendProcessor`), and a test holds both ways against
each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from struct import Struct
from typing import Final, NamedTuple

from broker.produce.admission import is_plain_batch
from ropewalk.format.properties import PROPERTIES_SIZE_MAX
from ropewalk.format.record_pattern import RecordPattern
from store.message_store import MessageStore
from store.queues.consume_queue import ConsumeQueue

_HEAD: Final = Struct(">i8xii")
_OVERHEAD: Final = 22
_KEPT_MAX: Final = 256
_AT_ONCE_MAX: Final = 128
"""Items that one cut is kept for: it is a third quicker than a cut an item, and as large as they are many."""
_COUNT_MAX: Final = 1_000
"""Items of a batch that is stored as it comes: a larger one goes item by item, in steps."""
_NO_WAIT: Final = b"WAIT\x01false"
_TAGS: Final = b"TAGS\x01"


class AlikeItems(NamedTuple):
    """The columns of a batch."""

    flag: int
    bodies: tuple[bytes, ...]
    properties: tuple[bytes, ...]
    tag_code: int


class AlikeBatches:
    """Cuts and stores them. Keeps what it needs for the shapes that it has met."""

    def __init__(self, tags_code_of: Callable[[str], int]) -> None:
        """`tags_code_of` is the tag hash of a property text."""
        self._tags_code_of = tags_code_of
        self._cutters: dict[tuple[int, int, int], Struct] = {}
        self._patterns: dict[tuple[bytes, int, int, bytes, bytes, int, int], RecordPattern] = {}

    def cut(self, body: bytes) -> AlikeItems | None:
        """The items of a batch body; None if they are not all alike and plain, or are no items. HOT."""
        if len(body) < _OVERHEAD:
            return None
        size, flag, body_size = _HEAD.unpack_from(body)
        count, rest = divmod(len(body), max(size, _OVERHEAD))
        properties_size = size - _OVERHEAD - body_size
        if (
            rest
            or not 1 < count <= _COUNT_MAX
            or body_size < 0
            or not 0 <= properties_size <= PROPERTIES_SIZE_MAX
        ):
            return None
        at_once = count if count <= _AT_ONCE_MAX else 1
        kind = body_size, properties_size, at_once
        cutter = self._cutters.get(kind)
        if cutter is None:
            if len(self._cutters) >= _KEPT_MAX:
                self._cutters.clear()
            cutter = self._cutters[kind] = Struct(f"20s{body_size}s2s{properties_size}s" * at_once)
        if at_once == count:
            pieces = cutter.unpack(body)
            heads, bodies, lengths, properties = pieces[::4], pieces[1::4], pieces[2::4], pieces[3::4]
        else:
            heads, bodies, lengths, properties = zip(*cutter.iter_unpack(body), strict=True)
        if (
            heads.count(heads[0]) != count
            or lengths.count(lengths[0]) != count
            or int.from_bytes(lengths[0], "big") != properties_size
        ):
            return None
        text = b"\0".join(properties)
        if not is_plain_batch(text) or _NO_WAIT in text:
            return None
        if properties_size and (b"\0\0" in text or text[-1] == 0):
            return None  # one may end in a zero, as no record does
        tag_code = 0
        if _TAGS in text:
            codes = {self._tags_code_of(one.decode("utf-8", "replace")) for one in set(properties)}
            if len(codes) > 1:
                return None
            (tag_code,) = codes
        return AlikeItems(flag, bodies, properties, tag_code)

    def put(
        self,
        store: MessageStore,
        queue: ConsumeQueue,
        items: AlikeItems,
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
        reconsume_times: int,
    ) -> tuple[Sequence[int], int] | None:
        """Append them; log offsets and the first queue offset. None, with nothing done, without room for all. HOT."""
        flag, bodies, properties, tag_code = items
        width, count = len(properties[0]), len(bodies)
        store_host = store.config.store_host
        kind = (queue.topic_bytes, flag, sys_flag, born_host, store_host, reconsume_times, width)
        pattern = self._patterns.get(kind)
        if pattern is None:
            if len(self._patterns) >= _KEPT_MAX:
                self._patterns.clear()
            pattern = self._patterns[kind] = RecordPattern(*kind[:-1], b"", width, b"")
        first = queue.next_offset
        born = repeat(born_timestamp)
        stored = store.put_columns([queue] * count, (bodies, born, properties, pattern, tag_code))
        if stored is None:
            return None
        return stored[0], first
