"""Run reads on helper threads, and pin the segments that they read: retention leaves their files alone until then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from store.io.workers import Worker
from store.log.segment import Segment


def read_pinned(
    worker: Worker,
    job: Callable[[], object],
    then: Callable[..., None],
    failed: Callable[[], None],
    segments: Sequence[Segment],
) -> None:
    """Run `job` on a reader's thread, then `then(result)`, or `failed()` after an OSError, on the loop.

    The segments that it reads keep their files until it is done.
    """
    for segment in segments:
        segment.pins += 1

    def read() -> object:
        try:
            return job()
        except OSError as exc:
            return exc

    def deliver(result: object) -> None:
        for segment in segments:
            segment.pins -= 1
        if isinstance(result, OSError):
            failed()
        else:
            then(result)

    worker.submit(read, deliver)


def hold_until(
    segments: Sequence[Segment], *calls: Callable[[], None]
) -> tuple[Callable[[], None], Callable[[], None]]:
    """Pin segments until one of two calls is made; return these calls."""
    for segment in segments:
        segment.pins += 1

    def releasing(call: Callable[[], None]) -> None:
        for segment in segments:
            segment.pins -= 1
        call()

    first, second = calls
    return partial(releasing, first), partial(releasing, second)
