"""Find the queues and the masters that a sink writes to, by asking name servers."""

from __future__ import annotations

from ropewalk.client.admin.cluster import document_in
from ropewalk.client.core.addresses import AddressRing
from ropewalk.client.core.connection import Unreachable
from ropewalk.client.core.messages import route_request
from ropewalk.client.core.routes import DEFAULT_TOPIC, NOBODY_CREATES_IT, Queue, TopicRoute, parse_route
from ropewalk.client.core.steps import require_success
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import OutcomeUnknown, Rejected, RopewalkError
from ropewalk.format.remoting import Command
from ropewalk.spark.live.cluster import ConnectionCache, addresses_of
from ropewalk.spark.options import Options

__all__ = ["NoWritableQueue", "TopicRoutes", "WriteFailed"]


class WriteFailed(RopewalkError):
    """Rows that were not stored as they had to be. Rows that were sent before stay where they are."""


class NoWritableQueue(WriteFailed):
    """A topic without a writable queue: for ever, or while a group has no leader."""


class TopicRoutes:
    """The routes of the topics that are written to. Blocking."""

    def __init__(self, options: Options, links: ConnectionCache) -> None:
        ring, _ = addresses_of(options)
        assert isinstance(ring, AddressRing)
        self._name_servers = ring
        self._links = links
        self._routes: dict[str, TopicRoute] = {}
        self._queues: dict[str, list[Queue]] = {}

    def queues(self, topic: str) -> list[Queue]:
        """Return the queues of a topic that can be written to, as they were when they were first asked for."""
        queues = self._queues.get(topic)
        if queues is None:
            queues = sorted(self.route(topic).write_queues())
            if not queues:
                raise NoWritableQueue(f"topic {topic} has no queue that can be written to")
            self._queues[topic] = queues
        return queues

    def master(self, topic: str, broker_name: str) -> str:
        """Return the address of a broker's master. Raises Unreachable."""
        broker = self.route(topic).brokers.get(broker_name)
        if broker is None or broker.master is None:
            raise Unreachable(f"the name server knows no master of broker {broker_name}")
        return broker.master

    def forget(self, topic: str) -> None:
        """Have the route of a topic asked for again."""
        self._routes.pop(topic, None)

    def forget_queues(self, topic: str) -> None:
        """Have the queues of a topic asked for again."""
        self.forget(topic)
        self._queues.pop(topic, None)

    def existing(self, topic: str) -> TopicRoute | None:
        """Return the route of a topic now; None if there is no such topic. Raises Unreachable."""
        answer = self._call_name_server(route_request(topic))
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        try:
            return parse_route(require_success(answer).body)
        except Rejected as exc:
            raise WriteFailed(f"topic {topic}: {exc}") from exc

    def has_brokers(self) -> bool:
        """Return whether any broker is registered now. Raises Unreachable."""
        answer = self._call_name_server(Command(RequestCode.GET_BROKER_CLUSTER_INFO))
        return bool(document_in(answer).get("brokerAddrTable"))

    def route(self, topic: str) -> TopicRoute:
        """Return the route of a topic, or the one that it will have when its first message creates it."""
        route = self._routes.get(topic)
        if route is None:
            route = self.existing(topic)
            if route is None and topic in self._queues:
                raise Unreachable(f"no broker serves topic {topic} at the moment")
            if route is None:
                template = self._call_name_server(route_request(DEFAULT_TOPIC))
                if template.code == ResponseCode.TOPIC_NOT_EXIST:
                    raise WriteFailed(f"topic {topic} {NOBODY_CREATES_IT}")
                route = parse_route(require_success(template).body).as_template()
            self._routes[topic] = route
        return route

    def _call_name_server(self, command: Command) -> Command:
        failures: list[str] = []
        for address in self._name_servers.one_round():
            try:
                return self._links.call_all(str(address), [command])[0]
            except (Unreachable, OutcomeUnknown) as exc:
                failures.append(str(exc))
        raise Unreachable(f"no name server at {self._name_servers}: {'; '.join(failures)}")
