"""The route cache of a client: routes asked of the name servers, and asked again in time.

A route is good for `REFRESH_S` seconds, as in the official clients; then the next need asks again. A name server
that does not answer is no reason to stop: the old route stays in use and is asked for again a little later. Any one
name server will do; the next takes over when it does not answer. A topic does not exist if none of them knows it;
where it was known, its route serves for a while (`GONE_S`): name servers that begin anew know nothing yet.

A topic that does not exist yet has a *write route* all the same: the one its first message will create it with, made
from the template topic. Once the topic exists its own route takes over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ropewalk.client.core.addresses import AddressRing
from ropewalk.client.core.connection import NoMaster, Unreachable
from ropewalk.client.core.messages import route_request
from ropewalk.client.core.routes import (
    DEFAULT_TOPIC,
    MASTER_ID,
    NOBODY_CREATES_IT,
    Queue,
    TopicRoute,
    parse_route,
)
from ropewalk.client.core.steps import Steps, require_success
from ropewalk.client.core.steps import ask as ask_one
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import OutcomeUnknown, Rejected, TryElsewhere, class_for, error_for
from ropewalk.format.remoting import Command

REFRESH_S = 30.0
_EVERY_NAME_SERVER_ANSWERS = frozenset(
    {
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.GET_BROKER_CLUSTER_INFO,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    }
)
RETRY_S = 3.0
"""How soon to ask again when no name server answered, or the topic was not there yet."""
GONE_S = 60.0
"""How long the route of a topic serves that name servers no longer have. One that was started again hears of its
brokers within 30 seconds, of each at another time; a topic that was deleted is refused by its brokers."""


class NoNameServer(Unreachable):
    """None of the name servers answers."""


@dataclass(slots=True)
class _Known:
    route: TopicRoute
    ask_again_at: float
    is_template: bool = False
    gone_at: float | None = None
    """When name servers first said that the topic does not exist, which had been known until then."""


class Directory:
    """The route cache of one client. `clock` counts seconds and never goes back."""

    def __init__(self, name_servers: AddressRing, clock: Callable[[], float], timeout_s: float) -> None:
        self._name_servers = name_servers
        self._clock = clock
        self._timeout_s = timeout_s
        self._known: dict[str, _Known] = {}
        self._heard: set[str] = set()
        """Name servers that have answered before, to which there may be a connection that has gone silent."""

    def route(self, topic: str, *, fresh: bool = False, deadline: float | None = None) -> Steps[TopicRoute]:
        """Return the route of a topic; a `fresh` one is of name servers alone, and not of memory.

        By `deadline`, where one is given, it is here or is not; a route that is known leaves half of the time for what
        it is needed for.

        Raises `Rejected` (17) when there is no such topic and `NoNameServer` when nobody can tell and nothing is
        remembered.
        """
        known = self._known.get(topic)
        if known is not None and not known.is_template and not fresh and self._clock() < known.ask_again_at:
            return known.route
        try:
            answer = yield from self.ask(route_request(topic), self._half(deadline, known))
        except NoNameServer:
            if known is None or known.is_template:
                raise
            known.ask_again_at = self._clock() + RETRY_S
            return known.route
        if answer.code == ResponseCode.TOPIC_NOT_EXIST and known is not None and not known.is_template:
            if not fresh and self._goes_on_with(known):
                return known.route
            del self._known[topic]
        route = parse_route(require_success(answer).body)
        self._known[topic] = _Known(route, self._clock() + REFRESH_S)
        return route

    def write_route(self, topic: str, deadline: float | None = None) -> Steps[TopicRoute]:
        """Return the route to send by: the topic's own, or the one it will have once its first message creates it."""
        known = self._known.get(topic)
        if known is not None and self._clock() < known.ask_again_at:
            return known.route
        try:
            return (yield from self.route(topic, deadline=deadline))
        except NoNameServer:
            if known is None:
                raise
            known.ask_again_at = self._clock() + RETRY_S
            return known.route
        except Rejected as exc:
            if exc.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
        template = yield from self.ask(route_request(DEFAULT_TOPIC), deadline)
        if template.code == ResponseCode.TOPIC_NOT_EXIST:
            if known is not None and self._goes_on_with(known):
                return known.route
            self._known.pop(topic, None)
            raise error_for(template.code, f"topic {topic} {NOBODY_CREATES_IT}")
        route = parse_route(require_success(template).body).as_template()
        self._known[topic] = _Known(route, self._clock() + RETRY_S, is_template=True)
        return route

    def _goes_on_with(self, known: _Known) -> bool:
        """Return whether a route that no name server has any more still serves; it is asked for again soon."""
        now = self._clock()
        if known.gone_at is None:
            known.gone_at = now
        known.ask_again_at = now + RETRY_S
        return now < known.gone_at + GONE_S

    def fresh_write_route(self, topic: str) -> TopicRoute | None:
        """Return the cached route that `write_route` would return, if it is fresh. HOT: every send comes by here."""
        known = self._known.get(topic)
        return known.route if known is not None and self._clock() < known.ask_again_at else None

    def invalidate(self, topic: str) -> None:
        """Expire the cached route of a topic: the next need asks again."""
        known = self._known.get(topic)
        if known is not None:
            known.ask_again_at = self._clock()

    def heed(self, topic: str, answer: Command) -> Command:
        """Return a broker's answer; one that sends to another broker expires the cached route of its topic."""
        if class_for(answer.code) is TryElsewhere:
            self.invalidate(topic)
        return answer

    def cached_route(self, topic: str) -> TopicRoute | None:
        """Return the route as it was last seen, without asking."""
        known = self._known.get(topic)
        return known.route if known is not None else None

    def addresses(
        self, topics: Iterable[str] | None = None, *, masters_only: bool = False
    ) -> tuple[str, ...]:
        """Return the brokers of these topics, or of all that are known; sorted."""
        routes = (
            (known.route for known in self._known.values())
            if topics is None
            else (self._known[topic].route for topic in topics if topic in self._known)
        )
        return tuple(
            sorted(
                {
                    address
                    for route in routes
                    for broker in route.brokers.values()
                    for broker_id, address in broker.addresses.items()
                    if broker_id == MASTER_ID or not masters_only
                }
            )
        )

    def master_of(self, topic: str, broker_name: str) -> str:
        """Return the address of a broker set's master. Raises `Unreachable` when none is known."""
        route = self.cached_route(topic)
        broker = route.brokers.get(broker_name) if route is not None else None
        if broker is None and route is not None and route.brokers:
            there = ", ".join(sorted(route.brokers))
            raise NoMaster(
                f"the name server knows no broker {broker_name} for topic {topic}: it knows {there}"
            )
        if broker is None or broker.master is None:
            raise NoMaster(f"the name server knows no master of broker {broker_name}", [broker_name])
        return broker.master

    def member_of(self, topic: str, queue: Queue, preferred_id: int = MASTER_ID) -> str:
        """Return the address to read a queue from: the preferred member, else another. Raises `Unreachable`."""
        route = self.cached_route(topic)
        broker = route.brokers.get(queue.broker_name) if route is not None else None
        address = broker.address(preferred_id) if broker is not None else None
        if address is None:
            raise Unreachable(f"the name server knows no address of broker {queue.broker_name}")
        return address

    def _half(self, deadline: float | None, known: _Known | None) -> float | None:
        if deadline is None or known is None:
            return deadline
        now = self._clock()
        return now + max(deadline - now, 0.0) / 2

    def ask(self, command: Command, deadline: float | None = None) -> Steps[Command]:
        """Ask a name server, whichever answers, by the deadline if there is one. Raises `NoNameServer`.

        Those that are left share the time that is left.
        """
        failures: list[str] = []
        is_route = command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC
        unknown: Command | None = None
        left = len(self._name_servers)
        for address in self._name_servers.one_round():
            answer: Command | None = None
            # Twice: a connection that was idle for long may have been cut unnoticed, and a question can be
            # asked again. One that was never heard of had a new connection, and its silence is its own.
            attempts = 2 if str(address) in self._heard else 1
            for attempt in range(attempts):
                timeout_s = self._timeout_s
                if deadline is not None:
                    share = (deadline - self._clock()) / (left + attempts - attempt - 1)
                    timeout_s = min(timeout_s, max(share, 0.001))
                try:
                    answer = yield from ask_one(str(address), command, timeout_s)
                    self._heard.add(str(address))
                    break
                except Unreachable as exc:
                    failures.append(str(exc))
                    break
                except OutcomeUnknown as exc:
                    failures.append(str(exc))
            left -= 1
            if answer is not None and is_route and answer.code == ResponseCode.TOPIC_NOT_EXIST and left:
                unknown = answer  # another one may have heard of it: brokers register with each by itself
                continue
            if answer is not None:
                refused = answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
                if refused and command.code in _EVERY_NAME_SERVER_ANSWERS:
                    # A broker's address where a name server's belongs is what people get wrong first.
                    hint = "name servers listen at port 9876 by default, brokers at 10911"
                    raise error_for(answer.code, f"{address} is no name server, but a broker perhaps: {hint}")
                return answer
        if unknown is not None:
            return unknown
        self._name_servers.advance()
        raise NoNameServer(f"no name server at {self._name_servers}: {'; '.join(dict.fromkeys(failures))}")
