"""The answer that a plain message is stored: one JSON text with five values in it.

One by one it is formatted (`text`). For a run, whose values are as wide as each other nearly always, it is laid out
once for the widths at hand and packed, with each column's values made in one call.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, repeat
from operator import call
from struct import Struct
from typing import Final

import msgspec

PREFIX = Struct(">II")
_HEX_DIGITS = Struct("16s")
_FORMS_MAX: Final = 256
_encode = msgspec.json.Encoder().encode

_Form = tuple[Callable[..., bytes], bytes]


class SendAnswers:
    """All answers that say "stored" to plain messages, under one set of rules."""

    def __init__(self, region: str, trace_on: bool, id_prefix: bytes) -> None:
        """`id_prefix` is the first half of a message id: the store host, 16 hexadecimal digits or 40."""
        always = {"MSG_REGION": region, "TRACE_ON": "true" if trace_on else "false"}
        begin = json.dumps(always, separators=(",", ":"))[1:-1].encode()
        self._fixed = (
            b'{"code":0,"extFields":{' + begin + b',"msgId":"' + id_prefix,
            b'","queueId":"',
            b'","queueOffset":"',
            b'","transactionId":"',
            b'"},"flag":1,"language":"PYTHON","opaque":',
            b',"serializeTypeCurrentRPC":"JSON","version":479}',
        )
        values = (b"%016X", b"%b", b"%d", b"%b", b"%b", b"")
        fixed = [piece.replace(b"%", b"%%") for piece in self._fixed]
        self.format = b"".join(chain.from_iterable(zip(fixed, values, strict=True)))
        """Takes log offset, queue id, queue offset, unique key and opaque; ids, key and opaque as bytes."""
        self._forms: dict[tuple[int, int, int, int], _Form] = {}

    def one(
        self,
        offset: int,
        queue_id: bytes,
        queue_offset: int,
        key: bytes,
        opaque: bytes,
        recall_handle: bytes = b"",
    ) -> bytes:
        """The frame for one message; a handle, which a timer message has, is one more field. HOT."""
        if recall_handle:
            key += b'","recallHandle":"' + recall_handle
        text = self.format % (offset, queue_id, queue_offset, key, opaque)
        size = len(text)
        return PREFIX.pack(size + 4, size) + text

    def run(
        self,
        offsets: Sequence[int],
        queue_ids: Sequence[bytes],
        queue_offsets: Sequence[int],
        keys: Sequence[bytes],
        opaques: Sequence[bytes],
    ) -> Iterator[bytes]:
        """The frames for a run; all queue ids have one width, so have all keys, and all opaques. HOT."""
        count = len(offsets)
        numbers = _encode(queue_offsets)[1:-1].split(b",")
        digits = Struct(f">{count}q").pack(*offsets).hex().upper().encode()
        ids = chain.from_iterable(_HEX_DIGITS.iter_unpack(digits))
        _, to_queue, to_number, to_key, to_opaque, end = map(repeat, self._fixed)
        columns = ids, to_queue, queue_ids, to_number, numbers, to_key, keys, to_opaque, opaques, end
        others = len(queue_ids[0]), len(keys[0]), len(opaques[0])
        widths = list(map(len, numbers))
        if widths.count(widths[0]) == count:
            pack, head = self._form((others[0], widths[0], *others[1:]))
            return map(pack, repeat(head), *columns)
        forms = {width: self._form((others[0], width, *others[1:])) for width in set(widths)}
        packs, heads = zip(*map(forms.__getitem__, widths), strict=True)
        return map(call, packs, heads, *columns)

    def _form(self, widths: tuple[int, int, int, int]) -> _Form:
        form = self._forms.get(widths)
        if form is None:
            head, *between, end = self._fixed
            pieces = "".join(f"{len(fixed)}s{width}s" for fixed, width in zip(between, widths, strict=True))
            layout = Struct(f"{8 + len(head)}s16s{pieces}{len(end)}s")
            size = layout.size - 8
            if len(self._forms) >= _FORMS_MAX:
                self._forms.clear()
            form = self._forms[widths] = (layout.pack, PREFIX.pack(size + 4, size) + head)
        return form
