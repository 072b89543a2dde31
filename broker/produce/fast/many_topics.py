"""Sends of one client to many topics, stored by columns: where a message goes is one more place of the template.

A plain template is a header to one topic. A client that sends to thousands would need one for each, and each of its
runs holds messages to many. Where the names are of one length the headers are alike all the same: the topic is cut out
too and looked up. A message to a topic that has passed its checks (`Target`) is then as plain as the one that the
template was learned from; one to any other is judged by itself.

Only whole runs are stored so, as in `columns`. With tens of thousands of queues no object of a queue is in a cache: so
none is touched here. Queues hear of their entries later (`store.queues.entry_pool`), and what was sent is counted by
topic later too (`put_each`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from operator import add, itemgetter
from struct import Struct
from typing import Final

import msgspec

from broker.produce.fast.columns import born_times_of, checked_columns
from broker.produce.fast.header_template import UNREADABLE, HeaderTemplate, PlainHeader, decode_plain
from broker.produce.send import SendProcessor
from broker.remoting.session import Session

_GROUPS_MAX: Final = 16
_DIGITS: Final = bytes((byte - ord("0")) & 0xFF for byte in range(256))
_TOPIC_SIZE_MAX: Final = 127  # of a record that tells it in one byte
CHANGES_MIN: Final = 4
"""How often a template has to make room for one to another topic before the client gets one for many topics."""
MISSES_MAX: Final = 64
"""After so many runs of other headers of its length a template is given up."""


@dataclass(slots=True)
class QueueSlots:
    """The slots of queues in the store's pool, for the messages of one group of templates."""

    slots: dict[bytes, int] = field(default_factory=dict)
    """By topic and queue id in one text: the topics of one group are of one length.

    Keeping each topic once, for all of its queues, would save memory and no time: clients come to many queues in the
    same order again and again, and here they stand in that order."""


class TemplateGroups:
    """The slots of all templates; templates that agree in everything but the client share theirs."""

    def __init__(self) -> None:
        self._rules_version: object = None
        self._slots: dict[tuple[bytes, bytes, int, int], QueueSlots] = {}

    def slots_of(
        self, rules_version: object, between: bytes, common: bytes, topic_size: int, sys_flag: int
    ) -> QueueSlots:
        """Return the slots of templates that agree in all of this, filled under these rules."""
        group = between, common, topic_size, sys_flag
        if self._rules_version is not rules_version or (
            group not in self._slots and len(self._slots) >= _GROUPS_MAX
        ):
            self._rules_version = rules_version
            self._slots = {}
        return self._slots.setdefault(group, QueueSlots())


@dataclass(slots=True)
class ManyTopicsTemplate:
    """A header with one more place in front of the others: the topic."""

    cut: HeaderTemplate
    """The template of one topic, without queues. Its pattern matches other topics too: middles come in pieces."""
    common: bytes
    """The bytes behind the topic in the middle of every record."""
    topic_size: bytes
    """Of one byte, as records tell it."""
    sys_flag: int
    """The bits that the topic adds to the message's own."""
    queue_slots: QueueSlots
    misses: int = 0
    """How many runs began with another header of this length."""

    def resolve(self, sends: SendProcessor, queue_ids: tuple[bytes, ...], names: tuple[bytes, ...]) -> bool:
        """Look up the slots of all of these; False if one is of no topic, or queue, that plain messages go to."""
        pool, slots = sends.store.pool, self.queue_slots.slots
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


def many_topics_template(
    template: HeaderTemplate, payload: bytes, header: PlainHeader, sys_flag: int, groups: TemplateGroups
) -> ManyTopicsTemplate | None:
    """Return the template of the request that a plain one was just learned from; None if it cannot be cut so."""
    pieces, name = template.unpack(payload), header.extFields.topic.encode()
    opening = b'"b":"' + name + b'"'
    # Java's and everybody's order: topic, queue, born time, properties, and opaque behind all of them.
    if template.places != (1, 3, 5, 7) or len(name) > _TOPIC_SIZE_MAX or pieces[0].count(opening) != 1:
        return None
    at = pieces[0].index(opening) + 5
    if not _proves(payload, at, header):
        return None
    behind = at + len(name)
    between, common = pieces[0][behind:], template.pattern.middle[1 + len(name) :]
    cutter = Struct(f"{at}s{len(name)}s{len(between)}s" + "".join(f"{len(piece)}s" for piece in pieces[1:]))
    cut = replace(
        template,
        unpack=cutter.unpack_from,
        fixed=cutter.unpack_from(payload)[::2],
        places=(3, 5, 7, 9),
        layout=cutter.format,
        pattern=template.pattern.in_pieces(1, len(name), len(common)),
        queues={},
    )
    queue_slots = groups.slots_of(template.rules_version, between, common, len(name), sys_flag)
    return ManyTopicsTemplate(cut, common, bytes((len(name),)), sys_flag, queue_slots)


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


def store_many_topics_run(
    sends: SendProcessor,
    session: Session,
    many: ManyTopicsTemplate,
    payloads: Sequence[bytes],
    start: int,
    end: int,
) -> int:
    """Store and answer the requests that begin the run `payloads[start:end]` and are alike; return how many. HOT."""
    cut = many.cut
    if len(payloads[start]) < cut.body_at:
        return 0
    if cut.unpack(payloads[start])[::2] != cut.fixed:
        many.misses += 1
        return 0
    columns = checked_columns(sends, cut, payloads, start, end)
    return len(columns[0]) if columns is not None and store_many_topics(sends, session, many, columns) else 0


def store_many_topics(
    sends: SendProcessor, session: Session, many: ManyTopicsTemplate, columns: Sequence[tuple[bytes, ...]]
) -> bool:
    """Store and answer requests that were checked; False, and nothing is done, if they go another way. HOT."""
    cut = many.cut
    _, names, _, queue_ids, _, born_texts, _, keys, _, opaques, _, bodies = columns
    slots_of = itemgetter(*map(add, names, queue_ids))
    try:
        slots = slots_of(many.queue_slots.slots)
    except KeyError:
        if not many.resolve(sends, queue_ids, names):
            return False
        slots = slots_of(many.queue_slots.slots)
    clock = sends.statistics.clock
    began = clock()
    middles = repeat(many.topic_size), names, repeat(many.common)
    run = bodies, born_times_of(born_texts), keys, cut.pattern, cut.tag_code
    stored = sends.store.put_wide(slots, _numbers(queue_ids), run, *middles)
    if stored is None:
        many.resolve(sends, queue_ids, names)  # one of the queues may be out: for the next run
        return False
    offsets, numbers = stored
    took_s, count = clock() - began, len(slots)
    sends.appends.took(took_s)
    topics, size = sends.store.pool.topics, cut.pattern.form(len(bodies[0])).size
    sends.statistics.put_each(slots, topics, sends.store.now, size, took_s)
    if cut.oneway:
        session.outbox.stored_oneway(count)
    else:
        answers = sends.answers.run(offsets, queue_ids, numbers, keys, opaques)
        session.outbox.stored(answers, waits=cut.waits)
    return True


def _numbers(queue_ids: tuple[bytes, ...]) -> Iterable[int]:
    """Texts of digits, all of one width, as numbers. HOT."""
    return b"".join(queue_ids).translate(_DIGITS) if len(queue_ids[0]) == 1 else map(int, queue_ids)
