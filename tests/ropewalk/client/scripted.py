"""Conversations held with a script instead of a network: what was asked is kept, answers come from a function."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

from ropewalk.client.core.steps import (
    Ask,
    AskAny,
    AwaitPrefetched,
    Effect,
    Outcome,
    Pause,
    Prefetch,
    Reply,
    Steps,
    T,
)
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import OutcomeUnknown, RopewalkError
from ropewalk.format.remoting import Command

Handler = Callable[[str, Command], Command | RopewalkError]


def route_body(*brokers: str, queues: int = 2, permission: int = 6) -> bytes:
    """Route data with a master `<name>:1` for each broker."""
    document = {
        "brokerDatas": [
            {"brokerName": name, "cluster": "c", "brokerAddrs": {"0": f"{name}:1"}} for name in brokers
        ],
        "queueDatas": [
            {"brokerName": name, "readQueueNums": queues, "writeQueueNums": queues, "perm": permission}
            for name in brokers
        ],
    }
    return json.dumps(document).encode()


def stored(command: Command, code: int = ResponseCode.SUCCESS) -> Command:
    """What a broker answers to a send it stored."""
    ext = {"msgId": "0" * 32, "queueId": command.ext["e"], "queueOffset": "7"}
    return command.reply(code, None, ext)


@dataclass
class Script:
    """Answers every effect; `routes` for name servers, `handler` for everything else."""

    handler: Handler
    routes: dict[str, bytes] = field(default_factory=dict)
    asked: list[tuple[str, Command]] = field(default_factory=list)
    now: float = 1000.0
    pauses: list[float] = field(default_factory=list)
    limits: list[float] = field(default_factory=list)
    """Seconds that each question to a name server was given."""
    silent: bool = False
    """No name server answers: each takes all the time that it is given."""
    ahead: dict[int, Ask] = field(default_factory=dict)
    """Asked already and not answered yet, by ticket."""

    def clock(self) -> float:
        return self.now

    def hold(self, steps: Steps[T]) -> T:
        reply: Reply = None
        failure: RopewalkError | None = None
        try:
            while True:
                effect = steps.send(reply) if failure is None else steps.throw(failure)
                reply, failure = None, None
                try:
                    reply = self._outcome(effect)
                except RopewalkError as exc:
                    failure = exc
        except StopIteration as end:
            result: T = end.value
            return result

    def _outcome(self, effect: Effect) -> Reply:
        if isinstance(effect, AskAny):
            return {place: self._outcome_of(ask) for place, ask in enumerate(effect.asks)}
        if isinstance(effect, Prefetch):
            ticket = len(self.asked)
            self.ahead[ticket] = effect.ask
            return ticket
        if isinstance(effect, AwaitPrefetched):
            return self._answer(self.ahead.pop(effect.ticket))
        if isinstance(effect, Ask):
            return self._answer(effect)
        if isinstance(effect, Pause):
            self.pauses.append(effect.seconds)
            self.now += effect.seconds
            return None
        self.asked.append((effect.address, effect.command))
        return None

    def _outcome_of(self, ask: Ask) -> Outcome:
        try:
            return self._answer(ask)
        except RopewalkError as exc:
            return exc

    def _answer(self, ask: Ask) -> Command:
        command = ask.command
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            self.limits.append(ask.timeout_s)
            if self.silent:
                self.now += ask.timeout_s
                raise OutcomeUnknown("silence")
            body = self.routes.get(command.ext["topic"])
            return command.reply(
                ResponseCode.SUCCESS if body else ResponseCode.TOPIC_NOT_EXIST, None, {}, body or b""
            )
        self.asked.append((ask.address, command))
        answer = self.handler(ask.address, command)
        if isinstance(answer, RopewalkError):
            raise answer
        return answer
