"""A run of requests of one shape and one size, taken by columns: a few C loops over all of it, not one of Python's.

The requests of a client that keeps many in flight are of equal length nearly always. Cut at their places they are a
table; each of its columns is judged, and turned into a column of the records or of the answers, by one call. That is
twice as fast as message by message (`SendRuns`), which takes whatever does not fit into this picture.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Final

from broker.session import Session

if TYPE_CHECKING:
    from broker.send import SendProcessor
    from broker.send_shape import Shape

COLUMNS_MIN: Final = 16
"""Fewer are quicker one by one."""


def take_columns(
    sends: SendProcessor, session: Session, shape: Shape, payloads: list[bytes], start: int, end: int
) -> int:
    """Append and answer the requests of the run `payloads[start:end]` that begin it and are alike: how many.

    0 if they are few, or if one of them asks for another look. HOT.
    """
    if end - start < COLUMNS_MIN:
        return 0
    run = payloads[start:end]
    size, count = len(run[0]), len(run)
    lengths = list(map(len, run))
    if lengths.count(size) != count:
        count = next(index for index, length in enumerate(lengths) if length != size)
        del run[count:]
    if count < COLUMNS_MIN or not 0 <= size - shape.body_at <= sends.plain_size_max:
        return 0
    columns = tuple(zip(*map(shape.whole(size), run), strict=True))
    for column, fixed in zip(columns[0:9:2], shape.fixed, strict=True):
        if column.count(fixed) != count:
            return 0
    at_queue, at_born, at_key, at_opaque = shape.places
    keys, opaques, born_texts = columns[at_key], columns[at_opaque], columns[at_born]
    try:
        queues = list(map(shape.queues.__getitem__, columns[at_queue]))
    except KeyError:
        return 0
    if (
        not b"".join(keys).isalnum()
        or not b"".join(opaques).isdigit()
        or min(opaques) < shape.opaque_min
        or max(opaques) > shape.opaque_max
        or not b"".join(born_texts).isdigit()
    ):
        return 0
    same_born = born_texts.count(born_texts[0]) == count
    born_times = repeat(int(born_texts[0])) if same_born else map(int, born_texts)
    clock = sends.statistics.clock
    began = clock()
    stored = sends.store.put_columns(queues, columns[9], born_times, keys, shape.pattern, shape.tag_code)
    if stored is None:
        return 0
    offsets, numbers = stored
    sends.count_run(queues[0].topic, count, count * (offsets[1] - offsets[0]), clock() - began)
    if not shape.oneway:
        answers = sends.answers.run(offsets, columns[at_queue], numbers, keys, opaques)
        (session.waiting if shape.waits else session.ready).extend(answers)
    return count
