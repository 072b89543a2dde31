"""Calls of the broker to its clients, and the patience with them.

A request of the broker's own travels on the connection the client opened. Its answer, the end of the connection and
the end of patience all come on the loop, and the first of the three is the one that counts (`Session.ask` sees to
that). This file adds the patience: whoever asks names a time, and `expire` gives up what is overdue.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from itertools import count

from broker.remoting.session import Session
from ropewalk.format.remoting import Command

ASKS_MAX = 10_000
"""Unanswered at a time. Each holds the request of somebody who waits for it."""


class ClientCalls:
    def __init__(self) -> None:
        self._deadlines: list[tuple[int, int, Session, int]] = []
        self._order = count()
        self._waiting = 0

    def ask(
        self,
        session: Session,
        code: int,
        ext: Mapping[str, str],
        body: bytes,
        deadline_ms: int,
        answered: Callable[[Command | None], None],
    ) -> bool:
        """Ask one client; `answered` gets its answer, or None at the deadline and when the connection ends.

        False, and nothing is sent, when the client is gone or too much waits already.
        """
        if not session.is_open or self._waiting >= ASKS_MAX:
            return False
        self._waiting += 1

        def count_down(answer: Command | None) -> None:
            self._waiting -= 1
            answered(answer)

        opaque = session.ask(code, ext, body, count_down)
        heapq.heappush(self._deadlines, (deadline_ms, next(self._order), session, opaque))
        return True

    def expire(self, now_ms: int) -> None:
        """Give up the calls that are overdue."""
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] <= now_ms:
            _deadline, _order, session, opaque = heapq.heappop(deadlines)
            session.give_up(opaque)
