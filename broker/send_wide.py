"""Shapes of clients that send to many topics: where a message goes is one place of them, looked up and not judged.

A plain shape (`send_shape`) is a header to one topic. A client that sends to thousands would need one for each, and
each of its runs holds messages to many. If the names are of one length, its headers are alike all the same: a *wide*
shape has everything from the topic to the queue id in its first place. What stands there is looked up among what
stood there in requests of this shape that were judged one by one; whatever else does is judged so too.

Only whole runs are taken, by columns as in `send_columns`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from struct import Struct
from typing import TYPE_CHECKING, Final

import msgspec

from broker.send_columns import born_times_of, judged_columns
from broker.send_shape import UNREADABLE, PlainHeader, Shape, decode_plain
from broker.session import Session
from store.consume_queue import ConsumeQueue

if TYPE_CHECKING:
    from broker.send import SendProcessor

_KINDS_MAX: Final = 16
_TOPIC_SIZE_MAX: Final = 127  # of a record that tells it in one byte
CHANGES_MIN: Final = 4
"""So often a shape has to make room for one to another topic before the client gets a wide one."""
MISFITS_MAX: Final = 64
"""After so many runs of other headers of its length a wide shape is given up."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a message goes, and what is different in its record and its answer for that."""

    queue: ConsumeQueue
    middle: bytes
    """What is between body and key in its record: the topic, and what all have in common."""
    queue_id: bytes


Places = dict[bytes, Place]


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
        return self._places.setdefault(kind, {})


@dataclass(slots=True)
class WideShape:
    """A header whose first place is all from the topic to the queue id."""

    cut: Shape
    """It has no queues, and its pattern is right for other topics too but for the `middle`."""
    between: bytes
    """What stands between topic and queue id."""
    common: bytes
    """What follows the topic in the middle of every record."""
    topic_size: int
    sys_flag: int
    """The bits that the topic adds to the message's own."""
    places: Places
    misfits: int = 0
    """How many runs began with a header that this one is not."""

    def note(self, payload: bytes, topic: str, queue: ConsumeQueue, sys_flag: int) -> None:
        """This request was judged by itself, and is plain: if it has this shape, others to its place are like it."""
        cut = self.cut
        if len(payload) < cut.body_at or sys_flag != self.sys_flag or len(topic) != self.topic_size:
            return
        pieces = cut.unpack(payload)
        where, name, queue_id = pieces[1], topic.encode(), b"%d" % queue.queue_id
        # Exactly so, and nothing else that a decoder would take for the same.
        if where == name + self.between + queue_id and pieces[::2] == cut.fixed:
            self.places[where] = Place(queue, bytes((len(name),)) + name + self.common, queue_id)


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
    cutter = Struct(
        f"{at}s{len(pieces[0]) - at + len(pieces[1])}s" + "".join(f"{len(piece)}s" for piece in pieces[2:])
    )
    cut = replace(
        shape,
        unpack=cutter.unpack_from,
        fixed=cutter.unpack_from(payload)[::2],
        layout=cutter.format,
        queues={},
        wholes={},
    )
    places = kinds.places(shape.judged, between, common, len(name), sys_flag)
    return WideShape(cut, between, common, len(name), sys_flag, places)


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
    if columns is None:
        return 0
    _, wheres, _, born_texts, _, keys, _, opaques, _, bodies = columns
    try:
        places = list(map(wide.places.__getitem__, wheres))
    except KeyError:
        return 0
    clock = sends.statistics.clock
    began = clock()
    queues = [place.queue for place in places]
    middles = [place.middle for place in places]
    born_times = born_times_of(born_texts)
    stored = sends.store.put_columns(queues, bodies, born_times, keys, cut.pattern, cut.tag_code, middles)
    if stored is None:
        return 0
    offsets, numbers = stored
    took_s, size = clock() - began, offsets[1] - offsets[0]
    sends.took(took_s)
    topics: dict[str, int] = {}
    for queue in queues:
        topics[queue.topic] = topics.get(queue.topic, 0) + 1
    count, now = sends.statistics.put, sends.store.now
    for topic, messages in topics.items():
        count(topic, now, messages, messages * size, took_s)
    if cut.oneway:
        session.unanswered(len(queues))
    else:
        queue_ids = [place.queue_id for place in places]
        answers = map(sends.answers.one, offsets, queue_ids, numbers, keys, opaques)
        (session.waiting if cut.waits else session.ready).extend(answers)
    return len(queues)
