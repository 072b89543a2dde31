"""Shapes of clients that send to many topics: where a message goes is one place of them, looked up and not judged.

A plain shape (`send_shape`) is a header to one topic. A client that sends to thousands would need one for each, and
each of its runs holds messages to many. If the names are of one length, its headers are alike all the same: a *wide*
shape has the topic as a place too. A message to a topic that has passed its checks (`Target`) is then as plain as the
one that the shape was learned from; one to any other is judged by itself.

Only whole runs are taken, by columns as in `send_columns`. With tens of thousands of queues every object of a queue's
own is in no cache: so none is touched here. The queues are told of their entries later (`store.queues.entry_pool`),
and what was sent is counted by topic later too (`put_each`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from operator import add, itemgetter
from struct import Struct
from typing import TYPE_CHECKING, Final

import msgspec

from broker.produce.fast.columns import born_times_of, judged_columns
from broker.produce.fast.header_template import UNREADABLE, PlainHeader, Shape, decode_plain
from broker.remoting.session import Session

if TYPE_CHECKING:
    from broker.produce.send import SendProcessor

_KINDS_MAX: Final = 16
_DIGITS: Final = bytes((byte - ord("0")) & 0xFF for byte in range(256))
_TOPIC_SIZE_MAX: Final = 127  # of a record that tells it in one byte
CHANGES_MIN: Final = 4
"""So often a shape has to make room for one to another topic before the client gets a wide one."""
MISFITS_MAX: Final = 64
"""After so many runs of other headers of its length a wide shape is given up."""


@dataclass(slots=True)
class Places:
    """Where messages of one kind go: the slot of a queue in the store's pool."""

    slots: dict[bytes, int] = field(default_factory=dict)
    """By topic and queue id in one: topics of one kind are of one length.

    To keep each topic once, for all of its queues, saves memory and no time: who comes to many queues does so in the
    same order again and again, and here they stand in that order."""


class Kinds:
    """The places of all wide shapes, each kind of them shared by all clients that send so."""

    def __init__(self) -> None:
        self._judged: object = None
        self._places: dict[tuple[bytes, bytes, int, int], Places] = {}

    def places(self, judged: object, between: bytes, common: bytes, topic_size: int, sys_flag: int) -> Places:
        """Those that were judged under these rules, in shapes that agree in all of this."""
        kind = between, common, topic_size, sys_flag
        if self._judged is not judged or (kind not in self._places and len(self._places) >= _KINDS_MAX):
            self._judged = judged
            self._places = {}
        return self._places.setdefault(kind, Places())


@dataclass(slots=True)
class WideShape:
    """A header with one more place in front of the others: the topic."""

    cut: Shape
    """It has no queues, and its pattern is right for other topics too: middles come in pieces, of which one is that."""
    common: bytes
    """What follows the topic in the middle of every record."""
    topic_size: bytes
    """Of one byte, as records tell it."""
    sys_flag: int
    """The bits that the topic adds to the message's own."""
    places: Places
    misfits: int = 0
    """How many runs began with a header that this one is not."""

    def find(self, sends: SendProcessor, queue_ids: tuple[bytes, ...], names: tuple[bytes, ...]) -> bool:
        """Have all of these in `places`; False if one is of no topic, or queue, that plain messages go to."""
        pool, slots = sends.store.pool, self.places.slots
        for queue_id, name in zip(queue_ids, names, strict=True):
            slot = slots.get(name + queue_id)
            if slot is not None and pool.is_in(slot):
                continue
            # No known topic has an escape in its name, so this is what a decoder would take it for.
            target = sends.target_of(name.decode(errors="replace"))
            # As it is written in an answer, and not in another way to write the number.
            if target is None or target.sys_flag != self.sys_flag or not queue_id.isdigit():
                return False
            number = int(queue_id)
            if number >= target.queues_max or b"%d" % number != queue_id:
                return False
            queue = sends.store.queue(target.config.name, number)
            slots[name + queue_id] = pool.enter(queue)
        return True


def widened(
    shape: Shape, payload: bytes, header: PlainHeader, sys_flag: int, kinds: Kinds
) -> WideShape | None:
    """The wide shape of the request that a plain one was just learned from; None if it cannot be cut so."""
    pieces, name = shape.unpack(payload), header.extFields.topic.encode()
    opening = b'"b":"' + name + b'"'
    # Java's and everybody's order: topic, queue, born time, properties, and opaque behind all of them.
    if shape.places != (1, 3, 5, 7) or len(name) > _TOPIC_SIZE_MAX or pieces[0].count(opening) != 1:
        return None
    at = pieces[0].index(opening) + 5
    if not _proves(payload, at, header):
        return None
    behind = at + len(name)
    between, common = pieces[0][behind:], shape.pattern.middle[1 + len(name) :]
    cutter = Struct(f"{at}s{len(name)}s{len(between)}s" + "".join(f"{len(piece)}s" for piece in pieces[1:]))
    cut = replace(
        shape,
        unpack=cutter.unpack_from,
        fixed=cutter.unpack_from(payload)[::2],
        places=(3, 5, 7, 9),
        layout=cutter.format,
        pattern=shape.pattern.in_pieces(1, len(name), len(common)),
        queues={},
    )
    places = kinds.places(shape.judged, between, common, len(name), sys_flag)
    return WideShape(cut, common, bytes((len(name),)), sys_flag, places)


def _proves(payload: bytes, at: int, header: PlainHeader) -> bool:
    """Whether another topic at this place of a header changes the topic and nothing else."""
    ext = header.extFields
    for letter in "Qx":
        name = letter * len(ext.topic)
        changed = (
            payload[4:at] + name.encode() + payload[at + len(name) : 4 + int.from_bytes(payload[:4], "big")]
        )
        try:
            found = decode_plain(changed)
        except UNREADABLE:
            return False
        wanted = msgspec.structs.replace(header, extFields=msgspec.structs.replace(ext, topic=name))
        if found != wanted:
            return False
    return True


def take_wide(
    sends: SendProcessor, session: Session, wide: WideShape, payloads: list[bytes], start: int, end: int
) -> int:
    """Append and answer the requests that begin the run `payloads[start:end]` and are alike: how many. HOT."""
    cut = wide.cut
    if len(payloads[start]) < cut.body_at:
        return 0
    if cut.unpack(payloads[start])[::2] != cut.fixed:
        wide.misfits += 1
        return 0
    columns = judged_columns(sends, cut, payloads, start, end)
    return len(columns[0]) if columns is not None and put_wide(sends, session, wide, columns) else 0


def put_wide(
    sends: SendProcessor, session: Session, wide: WideShape, columns: Sequence[tuple[bytes, ...]]
) -> bool:
    """Append and answer requests that were judged; False, and nothing is done, if it takes another way. HOT."""
    cut = wide.cut
    _, names, _, queue_ids, _, born_texts, _, keys, _, opaques, _, bodies = columns
    slots_of = itemgetter(*map(add, names, queue_ids))
    try:
        slots = slots_of(wide.places.slots)
    except KeyError:
        if not wide.find(sends, queue_ids, names):
            return False
        slots = slots_of(wide.places.slots)
    clock = sends.statistics.clock
    began = clock()
    middles = repeat(wide.topic_size), names, repeat(wide.common)
    run = bodies, born_times_of(born_texts), keys, cut.pattern, cut.tag_code
    stored = sends.store.put_wide(slots, _numbers(queue_ids), run, *middles)
    if stored is None:
        wide.find(sends, queue_ids, names)  # one of the queues may be out: for the next run
        return False
    offsets, numbers = stored
    took_s, count = clock() - began, len(slots)
    sends.took(took_s)
    topics, size = sends.store.pool.topics, offsets[1] - offsets[0]
    sends.statistics.put_each(slots, topics, sends.store.now, size, took_s)
    if cut.oneway:
        session.unanswered(count)
    else:
        answers = sends.answers.run(offsets, queue_ids, numbers, keys, opaques)
        (session.waiting if cut.waits else session.ready).extend(answers)
    return True


def _numbers(queue_ids: tuple[bytes, ...]) -> Iterable[int]:
    """Texts of digits, all of one width, as numbers. HOT."""
    return b"".join(queue_ids).translate(_DIGITS) if len(queue_ids[0]) == 1 else map(int, queue_ids)
