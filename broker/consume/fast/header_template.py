"""Recognise the header of a pull that a consumer sends again and again, and cut its numbers out of it.

The pulls of a consumer differ in four places of their JSON header: queue, queue offset, committed offset and opaque. A
*template* is such a header cut at these places. A request that has its other bytes, and numbers of the same widths in
the four places, is read by one cut and not decoded.

Only reading is spared. Whether the group may read the queue, and what it wants of it, is asked for every pull: topics,
groups, heartbeats and roles change between two of them. A template proves itself when it is learned, as those of sends
do (`produce.fast.header_template`): with other numbers in its places the header has to decode to the same request
with these numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from struct import Struct
from typing import Any, Final, TypeAlias

import msgspec

from broker.state.subscription import ALL, TAG, SubscriptionData
from ropewalk.codes import PullSysFlag, RequestCode
from ropewalk.errors import RemoteProtocolError
from ropewalk.format.headers import PullMessageHeader, json_decoder
from ropewalk.format.remoting import FRAME_SIZE_MAX, decode_json_header

TEMPLATES_MAX: Final = 16
_HEADER_SIZE_MAX: Final = 2 << 10
"""Bytes of a header that is learned: a template keeps all of it."""
_SAME_SIZE_MAX: Final = 4
"""Templates of one length: topics whose names are of one length are no rarity."""
_LEARN_INTERVAL_MAX: Final = 4096
_OPAQUE_MAX: Final = (1 << 31) - 1
_BODY_MAX: Final = FRAME_SIZE_MAX - 64 * 1024
_PLACES: Final = tuple(
    map(
        re.compile,
        (
            rb'"queueId":"(\d{1,4})"',
            rb'"queueOffset":"(\d{1,18})"',
            rb'"commitOffset":"(\d{1,18})"',
            rb'"opaque":(\d{1,10})[,}]',
        ),
    )
)
_decode = json_decoder(PullMessageHeader).decode

Numbers: TypeAlias = tuple[int, int, int, int]
"""The numbers of one pull: queue, queue offset, committed offset and opaque."""


@dataclass(slots=True)
class PullTemplate:
    """A header that is cut in nine pieces by `unpack(payload)`: five that never change, and between them the places."""

    size: int
    """The bytes of the whole payload."""
    unpack: Callable[[bytes], tuple[bytes, ...]]
    fixed: tuple[bytes, ...]
    pick: Callable[[tuple[bytes, ...]], tuple[bytes, ...]]
    """The four places out of the pieces, in the order of `Numbers`."""
    header: PullMessageHeader
    subscription: SubscriptionData | None
    """The subscription that was sent along, which is to everything; None if heartbeats tell it."""
    commits: bool
    least: Numbers
    """The least numbers of these widths: 007 is no JSON, and some readers of it are kinder than others."""
    bytes_max: int
    """The most bytes of records that an answer may have."""

    def numbers(self, payload: bytes) -> Numbers | None:
        """Return the numbers of this request, if it is of this template. HOT."""
        if len(payload) != self.size:
            return None
        pieces = self.unpack(payload)
        if pieces[::2] != self.fixed:
            return None
        texts = self.pick(pieces)
        if not b"".join(texts).isdigit():
            return None
        queue_id, queue_offset, commit_offset, opaque = map(int, texts)
        a, b, c, d = self.least
        if queue_id < a or queue_offset < b or commit_offset < c or not d <= opaque <= _OPAQUE_MAX:
            return None
        return queue_id, queue_offset, commit_offset, opaque


class PullTemplates:
    """A cache of the templates of one client, by the first four bytes of a payload, which give the header's length."""

    __slots__ = ("_misses", "_learn_interval", "known")

    def __init__(self) -> None:
        self.known: dict[bytes, list[PullTemplate]] = {}
        self._misses = 0
        self._learn_interval = 1

    def find(self, payload: bytes) -> tuple[PullTemplate, Numbers] | None:
        """Return the template of this request and its numbers; None if it is of none. HOT."""
        for template in self.known.get(payload[:4], ()):
            numbers = template.numbers(payload)
            if numbers is not None:
                if self._learn_interval > 1:
                    self._learn_interval >>= 1
                return template, numbers
        self._learn(payload)
        return None

    def _learn(self, payload: bytes) -> None:
        """Learn the template of a request, more rarely the more of them were of no use."""
        self._misses += 1
        if self._misses < self._learn_interval:
            return
        self._misses = 0
        self._learn_interval = min(2 * self._learn_interval, _LEARN_INTERVAL_MAX)
        template = learn_template(payload)
        if template is not None:
            same_size = self.known.get(payload[:4])
            if same_size is None:
                if len(self.known) >= TEMPLATES_MAX:
                    self.known.clear()
                same_size = self.known[payload[:4]] = []
            same_size.insert(0, template)
            del same_size[_SAME_SIZE_MAX:]


def learn_template(payload: bytes) -> PullTemplate | None:
    """Learn from a request; None if its header cannot be cut, or its pull is none that a template is of use for."""
    if (
        len(payload) > _HEADER_SIZE_MAX
        or payload[0]
        or 4 + int.from_bytes(payload[:4], "big") != len(payload)
    ):
        return None
    found = _read(payload)
    if found is None:
        return None
    (code, opaque, flag), header = found
    if code != RequestCode.PULL_MESSAGE or flag:
        return None
    subscription = None
    if header.sys_flag & PullSysFlag.SUBSCRIPTION:
        # Pulls by tags are none of a template's, and a long list of these is not read to find that out.
        if (header.expression_type or TAG) != TAG or (header.subscription or ALL) != ALL:
            return None
        subscription = SubscriptionData.parse(
            header.topic, ALL, version=header.sub_version or 0, expression_type=header.expression_type
        )
        if not subscription.wants_all:
            return None
    places = []
    for place, regex in enumerate(_PLACES):
        matches = list(regex.finditer(payload))
        if len(matches) != 1:
            return None
        places.append((*matches[0].span(1), place))
    places.sort()
    layout, at, order = "", 0, [0, 0, 0, 0]
    for piece, (start, end, place) in enumerate(places):
        layout += f"{start - at}s{end - start}s"
        at, order[place] = end, 2 * piece + 1
    unpack = Struct(layout + f"{len(payload) - at}s").unpack
    pieces: tuple[Any, ...] = unpack(payload)
    template = PullTemplate(
        len(payload),
        unpack,
        pieces[::2],
        itemgetter(*order),
        header,
        subscription,
        bool(header.sys_flag & PullSysFlag.COMMIT_OFFSET),
        _least_numbers([len(pieces[at]) for at in order]),
        bytes_max_of(header),
    )
    for digit in (1, 2):
        numbers = [int(b"%d" % digit * len(pieces[at])) for at in order]
        numbers[3] = int(b"1" + b"%d" % digit * (len(pieces[order[3]]) - 1))  # 2222222222 is no i32
        changed = list(pieces)
        for at, number in zip(order, numbers, strict=True):
            changed[at] = b"%d" % number
        wanted = msgspec.structs.replace(
            header, queue_id=numbers[0], queue_offset=numbers[1], commit_offset=numbers[2]
        )
        if _read(b"".join(changed)) != ((code, numbers[3], flag), wanted):
            return None
    return template if template.numbers(payload) == _numbers_of(header, opaque) else None


def _numbers_of(header: PullMessageHeader, opaque: int) -> Numbers:
    return header.queue_id, header.queue_offset, header.commit_offset, opaque


def _least_numbers(widths: list[int]) -> Numbers:
    a, b, c, d = (10 ** (width - 1) if width > 1 else 0 for width in widths)
    return a, b, c, d


def bytes_max_of(header: PullMessageHeader) -> int:
    """Return the most bytes of records that the answer to a pull may have."""
    return _BODY_MAX if header.max_msg_bytes is None else max(1, min(header.max_msg_bytes, _BODY_MAX))


def _read(payload: bytes) -> tuple[tuple[int, int, int], PullMessageHeader] | None:
    """Return code, opaque and flag, and the fields, as the general way decodes them; None where it refuses them."""
    try:
        frame = decode_json_header(payload[4:])
        return (frame.code, frame.opaque, frame.flag), _decode(frame.extFields)
    except (RemoteProtocolError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
