"""Tools of every administrator's request: refusals in words, and look-ups of the disk that do not stop the loop.

Handlers live in the `admin_*` files, one file for one idea. They are called on the loop and own no state: the tables
do. What they look up on disk goes to one helper thread of their own, so that a tool which asks about a thousand queues
never delays a consumer; its place in line is bounded, and past it tools are told to come back.

An answer that grows with queues, groups, topics or clients is collected, and written, by generators: in steps of the
cold lane (`collect`, `in_pieces`). So is a change of many entries; once begun, it goes on to its end
(`AdminContext.change`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

import structlog

from broker.context import BrokerContext
from broker.remoting.large_answers import ENTRIES_PER_STEP, Work
from broker.remoting.refused import RequestRefused
from broker.remoting.session import Session, Stepwise
from broker.settings.config import BrokerConfig
from ropewalk.codes import ResponseCode
from ropewalk.format import fastjson
from ropewalk.format.remoting import Command
from ropewalk.format.sliced_json import loads_at_once, loads_in_slices
from store.io.workers import Worker

__all__ = [
    "CHANGES_PER_STEP",
    "ROWS_MAX",
    "AdminContext",
    "Handler",
    "body_of",
    "by_slices",
    "collect",
    "entries_in_slices",
    "object_of",
]

log = structlog.get_logger("broker.admin")

LOOKUPS_MAX = 64
"""Requests whose disk work may wait for the helper thread."""

T = TypeVar("T")
Handler: TypeAlias = Callable[[Session, Command], Command | Stepwise | None]

BODY_SIZE_MAX = 4 << 20
"""Bytes of a list of topics or groups; any other body is read at once, and is bounded by that."""
CHANGES_PER_STEP = 20
"""Topics or groups of a list that are judged or made before others are served."""
ROWS_MAX = 65_536
"""Queues of one answer: as many as the largest topic of RocketMQ's that is served here has."""
ROWS_TOTAL_MAX = 4 * ROWS_MAX
"""Queues of all answers that are being made."""


class Making:
    """The object that a request makes."""

    is_system = False


class AdminContext:
    """The broker as administrators' requests see it, with the thread that looks things up for them."""

    def __init__(
        self,
        broker: BrokerContext,
        *,
        reconfigure: Callable[[BrokerConfig], None] = lambda config: None,
        settings_changed: Callable[[dict[str, str]], None] = lambda changes: None,
        delay_offsets: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        """Keep what handlers share.

        `reconfigure` has the broker go by another configuration, `settings_changed` has the changes kept in its file;
        `delay_offsets` returns the delivered offset of each delay level, as code 45 carries them.
        """
        self.broker = broker
        self.reconfigure = reconfigure
        self.settings_changed = settings_changed
        self.delay_offsets = delay_offsets
        self._worker: Worker | None = None

    @property
    def waiting(self) -> int:
        return self._worker.pending if self._worker is not None else 0

    def stop(self) -> None:
        if self._worker is not None:
            self._worker.stop()

    def guarded(self, handler: Handler) -> Handler:
        """The handler with its refusals turned into answers."""

        def handle(session: Session, request: Command) -> Command | Stepwise | None:
            try:
                answer = handler(session, request)
            except RequestRefused as refused:
                return request.reply(refused.code, str(refused))
            return _guarded_steps(request, answer) if isinstance(answer, Generator) else answer

        return handle

    @contextmanager
    def making(self, what: str) -> Iterator[Making]:
        """Time the making of something by a request: statistics tell how long that took, or was refused."""
        statistics = self.broker.statistics
        one, began, ok = Making(), statistics.clock(), False
        try:
            yield one
            ok = True
        finally:
            took_s = statistics.clock() - began
            statistics.created(what, ok=ok, is_system=one.is_system, took_s=took_s)

    def later(
        self,
        session: Session,
        request: Command,
        job: Callable[[], T],
        answer: Callable[[T], Command | Stepwise],
        *,
        must_end: bool = False,
    ) -> None:
        """Answer with the result of `job`, which runs on the helper thread.

        `answer` runs on the loop, in steps where it returns such, and may refuse. With `must_end` it takes all of
        them, whether or not the connection lasts.
        """
        worker = self._helper()

        def look() -> T | Exception:
            try:
                return job()
            except Exception as exc:
                # A topic deleted meanwhile, a bad place on disk: this answer's trouble, and nobody else's.
                return exc

        def bring(found: T | Exception) -> None:
            try:
                if isinstance(found, Exception):
                    raise found
                reply = answer(found)
            except Exception as exc:
                reply = _failure(request, exc)
            if isinstance(reply, Generator):
                session.answer_in_steps(request, _answered(request, reply), must_end=must_end)
            else:
                self.send(session, request, reply)

        worker.submit(look, bring)

    def answer_in_steps(self, session: Session, request: Command, steps: Stepwise) -> None:
        """Answer a request in steps that begin when something came from elsewhere."""
        session.answer_in_steps(request, _answered(request, steps))

    def change(self, session: Session, request: Command, steps: Stepwise) -> None:
        """Answer a request that changes many entries, in steps that are all taken, whether or not the client stays."""
        session.answer_in_steps(request, _answered(request, steps), must_end=True)

    def run(self, job: Callable[[], T], done: Callable[[T], None]) -> None:
        """Run a job for other members of the group on the helper thread; refused when too much waits already."""
        self._helper().submit(job, done)

    def _helper(self) -> Worker:
        """Return the helper thread, started when it is needed first; refuse when too much waits already."""
        worker = self._worker
        if worker is None:
            worker = self._worker = Worker("ropewalk-admin", self.broker.store.completions)
        if worker.pending >= LOOKUPS_MAX:
            raise RequestRefused(
                ResponseCode.SYSTEM_BUSY, "[OVERLOAD]system busy, too many look-ups wait for the disk"
            )
        return worker

    def when_kept(self, session: Session, request: Command, file: str, answer: Command) -> Command | None:
        """Give an answer once the table of a config file is on disk as it is now: nobody is told of less than that.

        The change counts at once. Where its file cannot be written, the answer says that a restart may forget it.
        """
        if self.broker.when_kept is None:
            return answer

        def kept(reason: str | None) -> None:
            self.send(session, request, answer if reason is None else _not_kept(request, file, reason))

        self.broker.when_kept(file, kept)
        return None

    def send(self, session: Session, request: Command, answer: Command) -> None:
        """An answer that did not come at once."""
        session.outbox.send(request, answer)


def _failure(request: Command, exc: Exception) -> Command:
    """Return the answer to a request whose work has failed."""
    if isinstance(exc, RequestRefused):
        return request.reply(exc.code, str(exc))
    if isinstance(exc, OSError):
        return request.reply(ResponseCode.SYSTEM_ERROR, f"the disk could not be read: {exc}")
    log.exception("a look-up failed", code=request.code, exc_info=exc)
    return request.reply(ResponseCode.SYSTEM_ERROR, f"{type(exc).__name__}: {exc}")


def _answered(request: Command, steps: Stepwise) -> Stepwise:
    try:
        return (yield from steps)
    except Exception as exc:
        return _failure(request, exc)


def _guarded_steps(request: Command, steps: Stepwise) -> Stepwise:
    try:
        return (yield from steps)
    except RequestRefused as refused:
        return request.reply(refused.code, str(refused))


def _not_kept(request: Command, file: str, reason: str) -> Command:
    return request.reply(
        ResponseCode.SYSTEM_ERROR,
        f"the change counts, but {file} cannot be written ({reason}): a restart forgets it, unless that can be mended "
        "before",
    )


def body_of(request: Command, value: Any) -> Command:
    """Success, with a body in fastjson's dialect."""
    return request.reply(ResponseCode.SUCCESS, body=fastjson.dumps(value))


class _Rows(list[T]):
    """Rows of an answer, which count among `ROWS_TOTAL_MAX` for as long as somebody holds them."""

    total = 0

    def __del__(self) -> None:
        _Rows.total -= len(self)


def collect(found: Iterable[T | None]) -> Work[list[T]]:
    """Collect the rows of an answer; None stands for work without a row. Raises `RequestRefused` for too many."""
    rows: _Rows[T] = _Rows()
    for count, row in enumerate(found, 1):
        if row is not None:
            if len(rows) >= ROWS_MAX:
                raise RequestRefused(
                    ResponseCode.SYSTEM_ERROR,
                    f"the answer would be about more than {ROWS_MAX} queues: ask for one topic or group at a time",
                )
            if _Rows.total >= ROWS_TOTAL_MAX:
                raise RequestRefused(
                    ResponseCode.SYSTEM_BUSY,
                    "[OVERLOAD]system busy, answers about too many queues are being made",
                )
            rows.append(row)
            _Rows.total += 1
        if count % ENTRIES_PER_STEP == 0:
            yield
    return rows


def object_of(request: Command) -> dict[str, Any]:
    """The JSON object in the body of a request, which is small. Raises `RequestRefused`."""
    try:
        value = loads_at_once(request.body)
    except fastjson.FastjsonError as exc:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the body is not JSON: {exc}") from exc
    return _checked_object(value)


def entries_in_slices(
    request: Command, name: str, what: str, read: Callable[[Any], T]
) -> Generator[None, None, list[T]]:
    """Read the list `name` of a request's body, each entry by `read`. Raises `RequestRefused`.

    `what` is the noun for an entry in the refusal.
    """
    try:
        document = _checked_object((yield from loads_in_slices(request.body, BODY_SIZE_MAX)))
    except fastjson.FastjsonError as exc:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the body is not JSON: {exc}") from exc
    entries = document.get(name)
    if not isinstance(entries, list) or not entries:
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"{name} names no {what}")
    found: list[T] = []
    yield from by_slices(lambda *some: found.extend(map(read, some)), entries)
    return found


def by_slices(work: Callable[..., object], entries: Sequence[Any]) -> Generator[None, None, None]:
    """Call `work` with the entries of a list, `CHANGES_PER_STEP` at a time, between which other clients are served."""
    for start in range(0, len(entries), CHANGES_PER_STEP):
        if start:
            yield
        work(*entries[start : start + CHANGES_PER_STEP])


def _checked_object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, "the body is not a JSON object")
    return value
