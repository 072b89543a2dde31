"""Requests about the assignment of queues to the members of a group (400), and about pulling or POP (401, 402)."""

from __future__ import annotations

from typing import Any

from broker.admin.base import AdminContext, Handler, body_of, object_of
from broker.remoting.refused import RequestRefused
from broker.remoting.session import Session
from broker.state.clients import BROADCASTING
from broker.state.request_modes import PULL, ModeRefused, RequestMode, assigned
from ropewalk.client.core.routes import Queue, TopicRoute
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format import names
from ropewalk.format.remoting import Command

__all__ = ["AdminModes"]


class AdminModes:
    def __init__(self, context: AdminContext) -> None:
        self._context = context
        self._broker = context.broker

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.QUERY_ASSIGNMENT: self.assignment,
            RequestCode.SET_MESSAGE_REQUEST_MODE: self.set_mode,
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: self.modes,
        }

    def assignment(self, session: Session, request: Command) -> None:
        """Which queues of a topic, on all brokers, are the asker's."""
        wish = object_of(request)
        topic, group = _text(wish, "topic"), _text(wish, "consumerGroup")
        client_id, strategy = _text(wish, "clientId"), _text(wish, "strategyName")
        broadcasting = wish.get("messageModel") == BROADCASTING

        def found(route: TopicRoute | None) -> None:
            members = self._broker.clients.consumer_ids(group)
            queues = route.read_queues() if route is not None else ()
            if route is None:
                self._answer(session, request, topic, None)
            elif broadcasting:
                self._answer(session, request, topic, sorted(queues))
            elif not members or not queues:
                self._answer(session, request, topic, [])
            else:
                mine = assigned(strategy, topic, queues, members, client_id)
                if mine is None:
                    remark = f"there is no strategy {strategy!r}: it may be AVG or AVG_BY_CIRCLE"
                    self._context.send(session, request, request.reply(ResponseCode.SYSTEM_ERROR, remark))
                else:
                    self._answer(session, request, topic, mine)

        self._broker.find_route(topic, found)

    def _answer(self, session: Session, request: Command, topic: str, queues: list[Queue] | None) -> None:
        rows: list[dict[str, Any]] | None = None
        if queues is not None:
            rows = [
                {
                    "messageQueue": {
                        "brokerName": queue.broker_name,
                        "queueId": queue.queue_id,
                        "topic": topic,
                    },
                    "mode": PULL,
                }
                for queue in queues
            ]
        self._context.send(session, request, body_of(request, {"messageQueueAssignments": rows}))

    def set_mode(self, session: Session, request: Command) -> Command:
        try:
            mode = RequestMode.from_json(object_of(request))
            if mode.topic.startswith(names.RETRY_PREFIX):
                raise RequestRefused(
                    ResponseCode.NO_PERMISSION, "retry topics are always pulled: their mode cannot be set"
                )
            self._broker.request_modes.set(mode)
        except ModeRefused as exc:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(exc)) from exc
        return request.reply(ResponseCode.SUCCESS)

    def modes(self, session: Session, request: Command) -> Command:
        return body_of(request, self._broker.request_modes.to_json())


def _text(wish: dict[str, Any], name: str) -> str:
    value = wish.get(name)
    if not isinstance(value, str):
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"{name} is missing")
    return value
