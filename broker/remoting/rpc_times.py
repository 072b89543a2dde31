"""Durations of requests: from when their bytes had been read to when the answer was handed over.

Counted by kind of request and answer, in the classes and under the words of RocketMQ's `rocketmq_rpc_latency`. What
waits is counted when it is answered: a send for its flush or its slaves, a pull for a message.

The hot path pays for a run and not for a request. All requests of a read began together, and all their answers are
handed over together: one addition counts them. And the clock is looked at where that is cheap (when a turn begins,
around an append, before many answers leave); `at` is the latest look, and what happens between two looks is shorter
than any class is wide.

Most answers say "stored" to a plain send. They carry no note of what they answer: whatever else a session owes does
(`Kind`), and the rest are these.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

from ropewalk.codes import RequestCode, ResponseCode

__all__ = ["BOUNDS_MS", "FAILED", "ONEWAY", "PLAIN", "SUCCESS", "Kind", "RpcTimes", "Series"]

BOUNDS_MS: Final = (1, 3, 5, 7, 10, 100, 1000, 2000, 3000)
_BOUNDS_S: Final = tuple(bound / 1000 for bound in BOUNDS_MS)
_SHORTEST_S: Final = _BOUNDS_S[0]

SUCCESS: Final = "success"
ONEWAY: Final = "oneway"
FAILED: Final = "write_channel_failed"
_UNKNOWN: Final = "unknown"

Kind: TypeAlias = tuple[int, int]
"""The request code, and the code of its answer."""
PLAIN: Final[Kind] = (RequestCode.SEND_MESSAGE_V2, ResponseCode.SUCCESS)


def _names(codes: type) -> dict[int, str]:
    return {value: name.lower() for name, value in vars(codes).items() if isinstance(value, int)}


_REQUESTS: Final = _names(RequestCode)
_RESPONSES: Final = _names(ResponseCode)


class Series(NamedTuple):
    """The requests of one kind that had one fate."""

    request: str
    response: str
    long_polling: bool
    """Whether they waited for a message to come."""
    result: str
    counts: tuple[int, ...]
    """By class of `BOUNDS_MS`; the last one is open."""
    total_ms: float


class RpcTimes:
    """The counts of one broker. Plain and synchronous; the loop owns it."""

    __slots__ = ("_rows", "at", "clock", "plain")

    def __init__(self, clock: Callable[[], float] = lambda: 0.0) -> None:
        """`clock` tells seconds, finely."""
        self.clock = clock
        self.at = clock()
        self._rows: dict[tuple[int, int, bool, str], list[float]] = {}
        self.plain = self._row(*PLAIN, False, SUCCESS)
        """Of plain sends, for `count`."""

    def clock_now(self) -> float:
        """Return the time, and keep it in `at`."""
        self.at = at = self.clock()
        return at

    def count(self, row: list[float], number: int, took_s: float) -> None:
        """So many requests, each of which took so long. HOT: once for a run."""
        row[0 if took_s < _SHORTEST_S else bisect_left(_BOUNDS_S, took_s)] += number
        row[-1] += took_s * number

    def add(
        self,
        request: int,
        response: int,
        took_s: float,
        number: int = 1,
        long_polling: bool = False,
        result: str = SUCCESS,
    ) -> None:
        """So many requests of a kind, each of which took so long. HOT: once for a pull."""
        row = self._rows.get((request, response, long_polling, result))
        if row is None:
            row = self._row(request, response, long_polling, result)
        row[0 if took_s < _SHORTEST_S else bisect_left(_BOUNDS_S, took_s)] += number
        row[-1] += took_s * number

    def add_all(
        self,
        number: int,
        kinds: Sequence[Kind],
        took_s: float,
        result: str = SUCCESS,
        code: int | None = None,
    ) -> None:
        """So many answers handed over together: those of these kinds, and the rest to plain sends. HOT.

        `code`: what became of the code of them all.
        """
        counts = Counter(kinds)
        if number > len(kinds):
            counts[PLAIN] += number - len(kinds)
        for (request, response), count in counts.items():
            self.add(request, response if code is None else code, took_s, count, result=result)

    def row(self, request: int, response: int) -> list[float]:
        """Return the row of ordinary requests of a kind, for `count`."""
        return self._row(request, response, False, SUCCESS)

    def _row(self, request: int, response: int, long_polling: bool, result: str) -> list[float]:
        # Numbers that nobody has a name for are a stranger's invention, and share a row: there are too many of them.
        key = (
            request if request in _REQUESTS else -1,
            response if response in _RESPONSES else -1,
            long_polling,
            result,
        )
        return self._rows.setdefault(key, [0] * (len(BOUNDS_MS) + 1) + [0.0])

    def series(self) -> list[Series]:
        """All kinds that there were."""
        return [
            Series(
                _REQUESTS.get(request, _UNKNOWN),
                _RESPONSES.get(response, _UNKNOWN),
                long_polling,
                result,
                tuple(map(int, row[:-1])),
                row[-1] * 1000,
            )
            for (request, response, long_polling, result), row in self._rows.items()
            if any(row[:-1])
        ]
