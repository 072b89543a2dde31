"""A run of requests of one shape and one size, taken by columns: a few C loops over all of it, not one of Python's.

The requests of a client that keeps many in flight are of equal length nearly always. Cut at their places they are a
table; each of its columns is judged, and turned into a column of the records or of the answers, by one call. That is
twice as fast as message by message (`SendRuns`), which takes whatever does not fit into this picture.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Final

from broker.remoting.session import Session

if TYPE_CHECKING:
    from broker.produce.fast.header_template import Shape
    from broker.produce.send import SendProcessor

COLUMNS_MIN: Final = 16
"""Fewer are quicker one by one."""


def judged_columns(
    sends: SendProcessor, shape: Shape, payloads: list[bytes], start: int, end: int
) -> Sequence[tuple[bytes, ...]] | None:
    """The columns of the requests that begin the run `payloads[start:end]` and are alike: their pieces and the bodies.

    None if they are few, or if one of them asks for another look; where each goes is still to be judged. HOT.
    """
    if end - start < COLUMNS_MIN:
        return None
    run = payloads[start:end]
    size, count = len(run[0]), len(run)
    lengths = list(map(len, run))
    if lengths.count(size) != count:
        count = next(index for index, length in enumerate(lengths) if length != size)
        del run[count:]
    if count < COLUMNS_MIN or not 0 <= size - shape.body_at <= sends.plain_size_max:
        return None
    return _judged(shape, tuple(zip(*map(shape.whole(size), run), strict=True)))


def table_columns(
    sends: SendProcessor, shape: Shape, data: bytes, count: int
) -> Sequence[tuple[bytes, ...]] | None:
    """`judged_columns` of so many frames as they came, if they are of one size and all are alike. HOT."""
    size = len(data) // count
    if not 0 <= size - 4 - shape.body_at <= sends.plain_size_max:
        return None
    lengths, *columns = zip(*shape.table(size)(data), strict=True)
    return _judged(shape, columns) if lengths.count((size - 4).to_bytes(4, "big")) == count else None


def _judged(shape: Shape, columns: Sequence[tuple[bytes, ...]]) -> Sequence[tuple[bytes, ...]] | None:
    """These pieces and bodies of requests, unless one of them asks for another look. HOT."""
    count = len(columns[0])
    for column, fixed in zip(columns[:-1:2], shape.fixed, strict=True):
        if column.count(fixed) != count:
            return None
    _queue, at_born, at_key, at_opaque = shape.places
    keys, opaques, born_texts = columns[at_key], columns[at_opaque], columns[at_born]
    if (
        not b"".join(keys).isalnum()
        or not b"".join(opaques).isdigit()
        or min(opaques) < shape.opaque_min
        or max(opaques) > shape.opaque_max
        or not b"".join(born_texts).isdigit()
    ):
        return None
    return columns


def born_times_of(texts: tuple[bytes, ...]) -> Iterable[int]:
    """The numbers of a column of born times, which is one number nearly always."""
    return repeat(int(texts[0])) if texts.count(texts[0]) == len(texts) else map(int, texts)


def take_columns(
    sends: SendProcessor, session: Session, shape: Shape, payloads: list[bytes], start: int, end: int
) -> int:
    """Append and answer the requests that begin the run `payloads[start:end]` and are alike: how many. HOT."""
    columns = judged_columns(sends, shape, payloads, start, end)
    return len(columns[0]) if columns is not None and put_columns(sends, session, shape, columns) else 0


def put_columns(
    sends: SendProcessor, session: Session, shape: Shape, columns: Sequence[tuple[bytes, ...]]
) -> bool:
    """Append and answer requests that were judged; False, and nothing is done, if it takes another way. HOT."""
    at_queue, at_born, at_key, at_opaque = shape.places
    keys, opaques, count = columns[at_key], columns[at_opaque], len(columns[0])
    try:
        queues = list(map(shape.queues.__getitem__, columns[at_queue]))
    except KeyError:
        return False
    clock = sends.statistics.clock
    began = clock()
    born_times = born_times_of(columns[at_born])
    run = columns[9], born_times, keys, shape.pattern, shape.tag_code
    stored = sends.store.put_columns(queues, run)
    if stored is None:
        return False
    took_s = clock() - began
    if shape.waits and session.link.alone:
        sends.hurry()
    offsets, numbers = stored
    sends.count_run(queues[0].topic, count, count * (offsets[1] - offsets[0]), took_s)
    if shape.oneway:
        session.unanswered(count)
    else:
        answers = sends.answers.run(offsets, columns[at_queue], numbers, keys, opaques)
        (session.waiting if shape.waits else session.ready).extend(answers)
    return True
