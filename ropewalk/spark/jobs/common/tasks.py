"""Run the pieces of a job on Spark's workers, or in this process.

A piece is a small picklable value, and so is what comes back. On a worker the first thing is to compare versions: a
function travels as the name of a module, and another module of that name would do something else.

`SparkTasks` makes each piece one partition and collects the answers. A lost worker's pieces are done again elsewhere,
so whatever a piece writes must be written so that twice is as good as once.
"""

from __future__ import annotations

import pickle
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ropewalk.errors import RopewalkError
from ropewalk.spark.versions import Stamp, check_stamp, stamp

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")

Key = tuple[str | int, ...]

Progress = Callable[[str, int, int], None]
"""(what is being done, pieces done, pieces in all), often."""

_POLL_S = 0.2
_FAILED = b"!"


class TaskFailed(RopewalkError):
    """A piece of work failed; the text is the worker's."""

    def __init__(self, text: str, kind: str = "") -> None:
        super().__init__(text)
        self.kind = kind
        """The class of the worker's error, where it was one that a user can meet."""


class Tasks(Protocol):
    """A runner of pieces."""

    @property
    def width(self) -> int:
        """Return about how many pieces run at the same time."""
        ...

    def run(self, function: Callable[[T], R], pieces: Sequence[T], label: str) -> list[R]:
        """Run the pieces and return the answers in their order. Raises `TaskFailed`."""
        ...

    def run_one(self, function: Callable[[T], R], piece: T, label: str) -> R:
        """Run one small function about a file or two on a single worker, or here. Raises `TaskFailed`."""
        ...

    def shuffle(
        self,
        spread: Callable[[T], Iterable[tuple[Key, bytes]]],
        gather: Callable[[tuple[Key, list[bytes]]], R],
        pieces: Sequence[T],
        label: str,
    ) -> list[R]:
        """Map each piece to values by key, and reduce the values of each key, in no order.

        Raises `TaskFailed`.
        """
        ...


class LocalTasks:
    """A runner in this process, piece by piece: for tests, and for tiny jobs."""

    def __init__(self, progress: Progress = lambda _label, _done, _all: None) -> None:
        self._progress = progress

    @property
    def width(self) -> int:
        return 1

    def run_one(self, function: Callable[[T], R], piece: T, label: str) -> R:
        return self.run(function, [piece], label)[0]

    def run(self, function: Callable[[T], R], pieces: Sequence[T], label: str) -> list[R]:
        answers: list[R] = []
        for number, piece in enumerate(pieces):
            self._progress(label, number, len(pieces))
            try:
                answers.append(function(piece))
            except RopewalkError as exc:
                raise TaskFailed(str(exc), type(exc).__name__) from exc
        return answers

    def shuffle(
        self,
        spread: Callable[[T], Iterable[tuple[Key, bytes]]],
        gather: Callable[[tuple[Key, list[bytes]]], R],
        pieces: Sequence[T],
        label: str,
    ) -> list[R]:
        by_key: dict[Key, list[bytes]] = {}
        for values in self.run(lambda piece: list(spread(piece)), pieces, label):
            for key, value in values:
                by_key.setdefault(key, []).append(value)
        return self.run(gather, list(by_key.items()), label)


def do_piece(made_by: Stamp, work: bytes) -> bytes:
    """Run one pickled (function, piece) on a worker, return the pickled answer. Expected errors come as text."""
    check_stamp(made_by)
    function, piece = pickle.loads(work)
    try:
        return pickle.dumps(function(piece))
    except RopewalkError as exc:
        return _FAILED + f"{type(exc).__name__}: {exc}".encode()


class SparkTasks:
    """A runner on Spark's workers."""

    def __init__(self, spark: SparkSession, progress: Progress = lambda _label, _done, _all: None) -> None:
        self.spark = spark
        self.progress = progress

    @property
    def width(self) -> int:
        return self.spark.sparkContext.defaultParallelism

    def run_one(self, function: Callable[[T], R], piece: T, label: str) -> R:
        # A job of Spark's takes 50 ms, and where there is but one machine its disks are here.
        if str(self.spark.sparkContext.master).partition("[")[0] != "local":
            return self.run(function, [piece], label)[0]
        try:
            return LocalTasks(self.progress).run_one(function, piece, label)
        except OSError as exc:
            raise TaskFailed(str(exc)) from exc

    def run(self, function: Callable[[T], R], pieces: Sequence[T], label: str) -> list[R]:
        if not pieces:
            return []
        work = [(number, pickle.dumps((function, piece))) for number, piece in enumerate(pieces)]
        rows = self._collect(work, label)
        answers: list[R] = [None] * len(pieces)  # type: ignore[list-item] # every one is set below
        for number, answer in rows:
            if answer.startswith(_FAILED):
                kind, _, text = answer[1:].decode().partition(": ")
                raise TaskFailed(text, kind)
            answers[number] = pickle.loads(answer)
        assert len(rows) == len(pieces)
        return answers

    def shuffle(
        self,
        spread: Callable[[T], Iterable[tuple[Key, bytes]]],
        gather: Callable[[tuple[Key, list[bytes]]], R],
        pieces: Sequence[T],
        label: str,
    ) -> list[R]:
        if not pieces:
            return []
        context, made_by = self.spark.sparkContext, stamp()
        with report_progress(self.spark, label, self.progress):
            values = context.parallelize(list(pieces), len(pieces)).flatMap(partial(_spread, made_by, spread))
            gathered = values.groupByKey(max(context.defaultParallelism, 2), _partition_of)
            try:
                return list(gathered.map(partial(_gather, made_by, gather)).collect())
            except Exception as exc:
                raise TaskFailed(error_text(exc)) from exc

    def _collect(self, work: list[tuple[int, bytes]], label: str) -> list[tuple[int, bytes]]:
        with report_progress(self.spark, label, self.progress):
            # Each piece a partition of its own, so that a slow one does not hold up its neighbours.
            pieces = self.spark.sparkContext.parallelize(work, len(work))
            try:
                return list(pieces.map(partial(_do_numbered, stamp())).collect())
            except Exception as exc:
                raise TaskFailed(error_text(exc)) from exc


def _do_numbered(made_by: Stamp, piece: tuple[int, bytes]) -> tuple[int, bytes]:
    return piece[0], do_piece(made_by, piece[1])


def _spread(
    made_by: Stamp, spread: Callable[[Any], Iterable[tuple[Key, bytes]]], piece: Any
) -> Iterable[tuple[Key, bytes]]:
    check_stamp(made_by)
    return spread(piece)


def _gather(made_by: Stamp, gather: Callable[[Any], R], values: tuple[Key, Iterable[bytes]]) -> R:
    check_stamp(made_by)
    return gather((values[0], list(values[1])))


def _partition_of(key: Key) -> int:
    # Python's own hash of a text is another one in every process.
    return zlib.crc32(repr(key).encode())


def error_text(exc: Exception) -> str:
    """Return the part of a Spark error that helps a person: the worker's last words, or the JVM's first."""
    lines = [line.strip() for line in str(exc).splitlines() if line.strip()]
    for line in reversed(lines):
        name, colon, rest = line.partition(": ")
        if colon and name.startswith(("ropewalk.", "ModuleNotFoundError", "ImportError")):
            if "No module named 'ropewalk" in line:
                rest += ": the workers have no ropewalk; install the driver's version on every machine"
            return rest
    for line in lines:
        name, colon, rest = line.removeprefix(": ").partition(": ")
        if colon and name.endswith(("Exception", "Error")) and " " not in name:
            return rest
    return lines[0] if lines else repr(exc)


@contextmanager
def report_progress(spark: SparkSession, label: str, progress: Progress) -> Iterator[None]:
    """Report the progress of the Spark jobs that the block starts."""
    context = spark.sparkContext
    group = f"ropewalk-{time.monotonic_ns()}"
    context.setJobGroup(group, label, interruptOnCancel=True)
    tracker = context.statusTracker()
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_POLL_S):
            with suppress(Exception):  # the session may be going down; the job itself will tell
                finished = everything = 0
                for job in tracker.getJobIdsForGroup(group):
                    info = tracker.getJobInfo(job)
                    for stage in info.stageIds if info else ():
                        seen = tracker.getStageInfo(stage)
                        if seen:
                            finished, everything = (
                                finished + seen.numCompletedTasks,
                                everything + seen.numTasks,
                            )
                if everything:
                    progress(label, finished, everything)

    watcher = threading.Thread(target=watch, name="ropewalk-progress", daemon=True)
    watcher.start()
    try:
        yield
    except KeyboardInterrupt:
        context.cancelJobGroup(group)
        raise
    finally:
        done.set()
        watcher.join()
