"""Requests about the assignment of queues to the members of a group (400), and about pulling or POP (401, 402)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, starmap
from typing import Any

from broker.admin.base import AdminContext, Handler, body_of, by_slices, object_of
from broker.remoting.large_answers import (
    ENTRIES_PER_STEP,
    body_in_steps,
    written_list,
    written_object,
    written_table,
)
from broker.remoting.refused import RequestRefused
from broker.remoting.session import Session, Stepwise
from broker.state.clients import BROADCASTING
from broker.state.request_modes import PULL, ModeRefused, ReadQueues, RequestMode, assigned
from ropewalk.client.core.consume.rebalance import sort_key
from ropewalk.client.core.routes import TopicRoute
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format import fastjson, names
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
            steps = self._assignment(request, topic, group, client_id, strategy, broadcasting, route)
            self._context.answer_in_steps(session, request, steps)

        self._broker.find_route(topic, found)

    def _assignment(
        self,
        request: Command,
        topic: str,
        group: str,
        client_id: str,
        strategy: str,
        broadcasting: bool,
        route: TopicRoute | None,
    ) -> Stepwise:
        if route is None:
            return body_of(request, {"messageQueueAssignments": None})
        queues = ReadQueues(route)
        mine: range | None = range(len(queues) if broadcasting else 0)
        if not broadcasting:
            info = self._broker.clients.consumer_group(group)
            ids: set[str] = set()
            yield from by_slices(
                lambda *some: ids.update(member.client_id for member in some),
                list(info.members.values()) if info is not None else (),
            )
            if ids and len(queues):
                me, before = sort_key(client_id), 0
                for count, one in enumerate(ids, 1):
                    before += sort_key(one) < me
                    if count % ENTRIES_PER_STEP == 0:
                        yield
                mine = assigned(strategy, len(queues), len(ids), before)
                if mine is not None and client_id not in ids:
                    mine = range(0)
        if mine is None:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"there is no strategy {strategy!r}: it may be AVG or AVG_BY_CIRCLE",
            )

        def text(position: int) -> bytes:
            queue = queues.at(position)
            place = {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": topic}
            return fastjson.dumps({"messageQueue": place, "mode": PULL})

        fields = {"messageQueueAssignments": written_list(map(text, mine))}
        return (yield from body_in_steps(request, fields))

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

    def modes(self, session: Session, request: Command) -> Stepwise:
        def entry(topic: str, modes: list[tuple[str, RequestMode]]) -> Iterator[bytes]:
            return chain([fastjson.dumps(topic) + b":"], written_table(modes, RequestMode.to_json))

        table = written_object(starmap(entry, self._broker.request_modes.by_topic()))
        return body_in_steps(request, {"messageRequestModeMap": table})


def _text(wish: dict[str, Any], name: str) -> str:
    value = wish.get(name)
    if not isinstance(value, str):
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"{name} is missing")
    return value
