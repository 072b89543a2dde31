"""Records that differ only in a few places, packed in one call.

A producer's messages to one topic are nearly the same record again and again: what changes is queue, offsets, times,
body, and the unique key among the properties. Everything else of such a record is laid out once, and each record
then costs one `Struct.pack` (about half of `encode_record`, whose bytes these are).
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from struct import Struct
from typing import Final, NamedTuple

from ropewalk.errors import LocalProtocolError
from ropewalk.format.record import encode_record

__all__ = ["SPLIT_MIN", "RecordForm", "RecordPattern"]

SPLIT_MIN: Final = 8 << 10
"""Bodies from here on are better placed as they came than copied into a record; `RecordForm.opening` is for them."""
_FORMS_MAX: Final = 64
"""A producer whose body sizes vary would make thousands."""


class RecordForm(NamedTuple):
    """A packed form of records whose bodies have the same size, in bytes.

    `pack` takes: `head`, CRC of the body, queue id, `flag`, queue offset, offset, `sys_flag`, born time, `born_host`,
    store time, `rest`, body, `middle`, key, `after`; what is quoted comes from here or from the pattern, times in ms.
    """

    size: int
    pack: Callable[..., bytes]
    head: bytes
    rest: bytes
    opening: Callable[..., bytes]
    """`pack` of what stands before the body, with the first eleven arguments of its; then follow the body and the
    other three."""


class RecordPattern:
    """A pattern of records that are alike. The *key* is the property value that changes; its width never does."""

    __slots__ = (
        "_forms",
        "_magic",
        "_middle_layout",
        "_rest",
        "_size",
        "_widths",
        "after",
        "born_host",
        "flag",
        "middle",
        "sys_flag",
    )

    def __init__(
        self,
        topic: bytes,
        flag: int,
        sys_flag: int,
        born_host: bytes,
        store_host: bytes,
        reconsume_times: int,
        before: bytes,
        key_width: int,
        after: bytes,
    ) -> None:
        """`before` and `after` are the properties on both sides of the key. Raises as `encode_record` does."""
        properties = before + bytes(key_width) + after
        sample = encode_record(
            topic, 0, flag, 0, 0, sys_flag, 0, born_host, 0, store_host, reconsume_times, 0, b"", properties
        )
        body_size_at = 68 + len(born_host) + len(store_host)
        self.flag, self.sys_flag = sample[16:20], sample[36:40]
        self.born_host = born_host
        self.middle = sample[body_size_at + 4 : len(sample) - key_width - len(after)]
        self.after = after
        self._size, self._magic = len(sample), sample[4:8]
        self._rest = sample[56 + len(born_host) : body_size_at]
        self._widths = len(born_host), len(self._rest) + 4, key_width, len(after)
        self._middle_layout = f"{len(self.middle)}s"
        self._forms: dict[int, RecordForm] = {}

    def in_pieces(self, *widths: int) -> RecordPattern:
        """Return the pattern for records that each have a `middle` of their own, in pieces of these widths."""
        if sum(widths) != len(self.middle):
            raise ValueError(f"pieces of {widths} bytes for a middle of {len(self.middle)}")
        pattern = copy(self)
        pattern._middle_layout = "".join(f"{width}s" for width in widths)
        pattern._forms = {}
        return pattern

    def form(self, body_size: int) -> RecordForm:
        """Return the form of records with bodies of this size. Raises LocalProtocolError above a record's limit."""
        form = self._forms.get(body_size)
        if form is None:
            size = self._size + body_size
            if size > 0x7FFFFFFF:
                raise LocalProtocolError(f"a record of {size} bytes is longer than its size field can say")
            host, rest, key, after = self._widths
            before = f">8sIi4sqq4sq{host}sq{rest}s"
            layout = Struct(f"{before}{body_size}s{self._middle_layout}{key}s{after}s")
            head = size.to_bytes(4, "big") + self._magic
            if len(self._forms) >= _FORMS_MAX:
                self._forms.clear()
            form = self._forms[body_size] = RecordForm(
                size, layout.pack, head, self._rest + body_size.to_bytes(4, "big"), Struct(before).pack
            )
        return form
