"""Runs of sends of one template and one size, stored by columns: a few C loops over all of a run, not one of Python's.

The requests of a client that keeps many in flight are of equal length nearly always. Cut at their places they are a
table; each column is checked, and turned into a column of the records or of the answers, by one call. A run that does
not fit into this picture goes message by message (`runs`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Final

from broker.produce.fast.header_template import HeaderTemplate
from broker.produce.send import SendProcessor
from broker.remoting.session import Session
from ropewalk.format.remoting import AlikeFrames

COLUMNS_MIN: Final = 16
"""Fewer plain ones are quicker one by one."""


def checked_columns(
    sends: SendProcessor, template: HeaderTemplate, payloads: Sequence[bytes], start: int, end: int
) -> Sequence[tuple[bytes, ...]] | None:
    """Return the columns of the requests that begin the run `payloads[start:end]` and are alike: pieces and bodies.

    None if they are few, or if one is no request of the template; where each goes is still to be looked up. HOT.
    """
    least = COLUMNS_MIN if template.detour is None else 1
    if end - start < least:
        return None
    rows: Iterable[tuple[bytes, ...]]
    if isinstance(payloads, AlikeFrames):
        size, count = payloads.length, end - start
        if not 0 <= size - template.body_at <= sends.plain_size_max:
            return None
        rows = payloads.rows(start, end, template.frame_layout(size))
    else:
        run = list(payloads[start:end])
        size, count = len(run[0]), len(run)
        lengths = list(map(len, run))
        if lengths.count(size) != count:
            count = next(index for index, length in enumerate(lengths) if length != size)
            del run[count:]
        if count < least or not 0 <= size - template.body_at <= sends.plain_size_max:
            return None
        rows = map(template.payload_layout(size).unpack, run)
    columns = tuple(zip(*rows, strict=True))
    for column, fixed in zip(columns[:-1:2], template.fixed, strict=True):
        if column.count(fixed) != count:
            return None
    _queue, at_born, at_key, at_opaque, *at_time = template.places
    keys, opaques, born_texts = columns[at_key], columns[at_opaque], columns[at_born]
    if (
        not b"".join(keys).isalnum()
        or not b"".join(opaques).isdigit()
        or min(opaques) < template.opaque_min
        or max(opaques) > template.opaque_max
        or not b"".join(born_texts).isdigit()
        or not all(b"".join(columns[at]).isdigit() for at in at_time)
    ):
        return None
    return columns


def born_times_of(texts: tuple[bytes, ...]) -> Iterable[int]:
    """Return the numbers of a column of born times, which is one number nearly always."""
    return repeat(int(texts[0])) if texts.count(texts[0]) == len(texts) else map(int, texts)


def store_columns_run(
    sends: SendProcessor,
    session: Session,
    template: HeaderTemplate,
    payloads: Sequence[bytes],
    start: int,
    end: int,
) -> int:
    """Store and answer the requests that begin the run `payloads[start:end]` and are alike; return how many. HOT."""
    columns = checked_columns(sends, template, payloads, start, end)
    return len(columns[0]) if columns is not None and store_columns(sends, session, template, columns) else 0


def store_columns(
    sends: SendProcessor, session: Session, template: HeaderTemplate, columns: Sequence[tuple[bytes, ...]]
) -> bool:
    """Store and answer requests that were checked; False, and nothing is done, if they go another way. HOT."""
    at_queue, at_born, at_key, at_opaque, *at_time = template.places
    keys, opaques, count = columns[at_key], columns[at_opaque], len(columns[0])
    try:
        queues = list(map(template.queues.__getitem__, columns[at_queue]))
    except KeyError:
        return False
    clock = sends.statistics.clock
    began = clock()
    told: Sequence[bytes] = keys
    own: Iterable[bytes] = keys
    afters, detour = None, template.detour
    if detour is not None:
        placed = detour.columns(sends, keys, columns[at_queue], *(columns[at] for at in at_time))
        if placed is None:
            return False
        afters, told = placed
        queues, own = [detour.queue] * count, repeat(b"")
    run = columns[-1], born_times_of(columns[at_born]), own, template.pattern, template.tag_code
    stored = sends.store.put_columns(queues, run, afters)
    if stored is None:
        return False
    took_s = clock() - began
    if template.waits and session.link.sole_ready:
        sends.replicate_early()
    offsets, numbers = stored
    sends.appends.count_run(
        queues[0].topic, count, count * template.pattern.form(len(columns[-1][0])).size, took_s
    )
    if detour is not None and detour.half is not None:
        sends.opened_run(session, detour.half, columns[at_queue], offsets, numbers)
    if template.oneway:
        session.outbox.stored_oneway(count)
    else:
        answers = sends.answers.run(offsets, columns[at_queue], numbers, told, opaques)
        session.outbox.stored(answers, waits=template.waits)
    return True
