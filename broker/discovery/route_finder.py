"""Find the queues of a topic on all brokers, for the answers that need them (400): asked of a name server, kept for a
while.

With the embedded name server that is a plain call. With others it is a request over the wire by one task, which takes
whoever asked in the order in which they came; each is called back on the loop, with None if no name server knew. How
many may wait is bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import structlog
import trio

from broker.namesrv.server import NameServer
from ropewalk.client.aio.connection import open_connection
from ropewalk.client.core.routes import TopicRoute, parse_route
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import RopewalkError
from ropewalk.format.remoting import Command

__all__ = ["RouteFinder"]

log = structlog.get_logger("broker.routes")

FRESH_S: Final = 30.0
KEPT_MAX: Final = 10_000
WAITING_MAX: Final = 1_000
_CALL_S: Final = 2.0
"""Time limit of a question, below the three seconds that the asker waits for its answer."""


class RouteFinder:
    """Routes by topic, from the broker's own name servers."""

    def __init__(
        self,
        local: NameServer | None,
        remote: tuple[str, ...],
        now_s: Callable[[], float] = trio.current_time,
        fresh_s: float = FRESH_S,
    ) -> None:
        self._local = local
        self._remote = deque(remote)
        self._now_s = now_s
        self._fresh_s = fresh_s
        self._kept: dict[str, tuple[float, TopicRoute]] = {}
        self._waiting: dict[str, list[Callable[[TopicRoute | None], None]]] = {}
        self._asked = trio.Event()

    def find(self, topic: str, found: Callable[[TopicRoute | None], None]) -> None:
        """Call `found` with the topic's route, now or soon; with None if there is none or too many wait."""
        if self._local is not None:
            answer = self._local.handle(_request(topic), self)
            found(parse_route(answer.body) if answer is not None and answer.code == 0 else None)
            return
        kept = self._kept.get(topic)
        if kept is not None and self._now_s() - kept[0] < self._fresh_s:
            found(kept[1])
        elif sum(map(len, self._waiting.values())) >= WAITING_MAX:
            found(None)
        else:
            self._waiting.setdefault(topic, []).append(found)
            self._asked.set()

    async def run(self) -> None:
        """Carry the open questions to name servers, until cancelled."""
        while True:
            await self._asked.wait()
            self._asked = trio.Event()
            while self._waiting:
                topic = next(iter(self._waiting))
                route = await self._ask(topic)
                if route is not None:
                    if len(self._kept) >= KEPT_MAX:
                        self._kept.clear()
                    self._kept[topic] = (self._now_s(), route)
                for found in self._waiting.pop(topic):
                    try:
                        found(route)
                    except Exception:
                        # One asker's trouble, with names from strangers: no reason to leave the others waiting.
                        log.exception("an answer about a route failed", topic=topic)

    async def _ask(self, topic: str) -> TopicRoute | None:
        """The route from the first name server that answers; it is asked first the next time too."""
        for _ in range(len(self._remote)):
            try:
                with trio.fail_after(_CALL_S):
                    async with open_connection(self._remote[0]) as connection:
                        answer = await connection.call(_request(topic), _CALL_S)
                return parse_route(answer.body) if answer.code == ResponseCode.SUCCESS else None
            except* (RopewalkError, OSError, trio.TooSlowError) as group:
                reason = str(group.exceptions[0])
                log.warning("no route from a name server", namesrv=self._remote[0], reason=reason)
            self._remote.rotate(-1)
        return None


def _request(topic: str) -> Command:
    return Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic, "acceptStandardJsonOnly": "true"})
