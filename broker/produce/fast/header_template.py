"""Templates of send headers: what one client sends again and again, recognised by its bytes.

The requests of a producer differ in four places of their JSON header and in their body: queue, born time, unique key
and opaque; those of timer messages also in their time. A *template* is such a header cut at these places. A request
that has its other bytes, and digits and letters of the same widths in the places, says what the first one said; so it
needs no decoding and no judging, and its record is packed from a pattern.

A template proves itself when it is learned: with other values in its places the header has to decode to the same
request with these values. A client whose headers change elsewhere too (keys of its own, say) is looked at ever more
rarely (`template_cache`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from struct import Struct
from typing import Any, Final, TypeAlias

import msgspec

from broker.produce.fast.detour import Detour
from ropewalk.format.headers import SendMessageHeaderV2
from ropewalk.format.record_pattern import RecordPattern
from ropewalk.format.remoting import I32
from store.queues.consume_queue import ConsumeQueue

_LAYOUTS_MAX: Final = 64
_OPAQUE: Final = re.compile(rb'"opaque":([1-9]\d{0,9}|0)[,}]')
_BORN: Final = re.compile(rb'"g":"([1-9]\d{12})"')
_QUEUE: Final = re.compile(rb'"e":"(\d{1,4})"')
_OPAQUE_MAX: Final = b"2147483647"
UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class PlainHeader(msgspec.Struct, gc=False):
    """The whole JSON header of a SEND_MESSAGE_V2, read in one pass."""

    extFields: SendMessageHeaderV2
    code: I32 = 0
    opaque: I32 = 0
    flag: I32 = 0
    # Unused, and judged all the same, as the readable way does.
    language: str | int | None = None
    remark: str | None = None
    version: I32 = 0


decode_plain = msgspec.json.Decoder(PlainHeader, strict=False).decode
"""Header bytes to `PlainHeader`. Raises one of `UNREADABLE`."""


_Cut: TypeAlias = Callable[[bytes], tuple[bytes, ...]]


@dataclass(slots=True)
class HeaderTemplate:
    """A header, cut. `unpack(payload)` gives its pieces: those that never change, and between them the places."""

    rules_version: object
    """By what the request was judged (`SendProcessor.rules_version`); under other rules the template is stale."""
    unpack: _Cut
    fixed: tuple[bytes, ...]
    places: tuple[int, ...]
    """Which pieces are queue, born time, unique key and opaque, and the time of delivery where there is one."""
    opaque_min: bytes
    opaque_max: bytes
    body_at: int
    queues: dict[bytes, ConsumeQueue]
    """By queue id, as text."""
    pattern: RecordPattern
    tag_code: int
    oneway: bool
    waits: bool
    """Whether the answer waits for the flush."""
    layout: str
    detour: Detour | None = None
    """Where its messages wait first; None if they are stored where they are sent to."""
    _layouts: dict[int, Struct] = field(default_factory=dict, init=False)
    """By the size of a payload; of frames by its complement."""

    def payload_layout(self, size: int) -> Struct:
        """Return the layout that cuts a payload of `size` bytes into the pieces and the body."""
        return self._layouts.get(size) or self._learn_layout(size, f"{self.layout}{size - self.body_at}s")

    def frame_layout(self, size: int) -> Struct:
        """Return the layout that cuts a frame in the same way, whose payload has `size` bytes."""
        return self._layouts.get(~size) or self._learn_layout(~size, f"4x{self.layout}{size - self.body_at}s")

    def _learn_layout(self, key: int, text: str) -> Struct:
        if len(self._layouts) >= _LAYOUTS_MAX:
            self._layouts.clear()
        layout = self._layouts[key] = Struct(text)
        return layout


def cut(
    payload: bytes, body_at: int, header: PlainHeader, key: str, time: str = ""
) -> tuple[Struct, tuple[int, ...]] | None:
    """Return how to cut a header at its places, and which piece is which; None if it has no such places.

    `header` is what it decodes to, `key` the unique key among its properties; so is `time`, where that is a place.
    """
    found: list[tuple[int, int, int]] = []
    spots: list[str | re.Pattern[bytes]] = [_QUEUE, _BORN, key, _OPAQUE]
    if time:
        spots.append(time)
    for place, spot in enumerate(spots):
        if isinstance(spot, str):
            wanted = spot.encode()
            if payload.count(wanted, 4, body_at) != 1:
                return None
            start = payload.find(wanted, 4, body_at)
            found.append((start, start + len(wanted), place))
        else:
            matches = list(spot.finditer(payload, 4, body_at))
            if len(matches) != 1:
                return None
            found.append((*matches[0].span(1), place))
    found.sort()
    layout, at, places = "", 0, [0] * len(found)
    if any(one[1] >= other[0] for one, other in pairwise(found)):
        return None
    for piece, (start, end, place) in enumerate(found):
        layout += f"{start - at}s{end - start}s"
        at, places[place] = end, 2 * piece + 1
    cutter = Struct(layout + f"{body_at - at}s")
    order = tuple(places)
    return (cutter, order) if _proves(cutter.unpack_from(payload), order, header, key, time) else None


def _proves(
    pieces: tuple[bytes, ...], places: tuple[int, ...], header: PlainHeader, key: str, time: str
) -> bool:
    """Whether other values in the places change these values and nothing else."""
    ext = header.extFields
    for digit, letter in ((b"1", "Q"), (b"2", "x")):
        queue, born, opaque = (digit * len(pieces[places[n]]) for n in (0, 1, 3))
        opaque = b"1" + opaque[1:]  # 2222222222 is no i32
        changed = list(pieces)
        values = queue, born, letter.encode() * len(key), opaque, digit * len(time)
        for place, value in zip(places, values, strict=False):
            changed[place] = value
        properties = (ext.properties or "").replace(key, letter * len(key))
        if time:
            properties = properties.replace(time, digit.decode() * len(time))
        wanted = msgspec.structs.replace(
            ext, queue_id=int(queue), born_timestamp=int(born), properties=properties
        )
        try:
            found = decode_plain(b"".join(changed)[4:])
        except UNREADABLE:
            return False
        if (found.opaque, found.flag, found.extFields) != (int(opaque), header.flag, wanted):
            return False
    return True


def template_of(
    rules_version: object,
    payload: bytes,
    header: PlainHeader,
    key: str,
    *,
    queues: dict[bytes, ConsumeQueue],
    pattern: RecordPattern,
    tag_code: int,
    oneway: bool,
    waits: bool,
    detour: Detour | None = None,
) -> HeaderTemplate | None:
    """Return the template of a request that was judged and decoded; None if its header cannot be cut."""
    body_at = 4 + int.from_bytes(payload[:4], "big")
    found = cut(payload, body_at, header, key, detour.time if detour is not None else "")
    if found is None:
        return None
    cutter, places = found
    pieces: tuple[Any, ...] = cutter.unpack_from(payload)
    width = len(pieces[places[3]])
    return HeaderTemplate(
        rules_version,
        cutter.unpack_from,
        pieces[::2],
        places,
        b"0" if width == 1 else b"1",  # 07 is no JSON, and an answer would say it again
        _OPAQUE_MAX if width == len(_OPAQUE_MAX) else b":",
        body_at,
        queues,
        pattern,
        tag_code,
        oneway,
        waits,
        cutter.format,
        detour,
    )
