"""Conversations as generators: each decides its requests; how they are carried is a shell's affair.

A conversation is a generator. It yields an effect and is resumed with its outcome:

    Ask(address, command, timeout_s)   ->  the answer, whatever its code
    Oneway(address, command, ...)      ->  None; nobody answers
    Pause(seconds)                     ->  None, when they have passed
    AskAny(asks)                       ->  outcomes of those that were answered first, by their place in `asks`
    Prefetch(ask)                      ->  a ticket, at once; the answer is for a later conversation
    AwaitPrefetched(ticket)            ->  that answer, once

An effect that failed is raised inside the generator (`Unreachable`, `OutcomeUnknown`), so that a retry is an ordinary
`except`. The value a conversation returns is its result. Both shells drive the same ones: `blocking/links.py` over
plain sockets, `aio/links.py` over anyio; a test drives them with a list of answers.

A conversation must not yield while it is being closed: a shell that is cancelled closes it and will not listen.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Generator
from functools import wraps
from typing import NamedTuple, ParamSpec, TypeVar, get_args

import msgspec

from ropewalk.client.core.connection import Unreachable
from ropewalk.codes import ResponseCode
from ropewalk.errors import OutcomeUnknown, RemoteProtocolError, RopewalkError, error_for
from ropewalk.format.headers import HeaderError, decode_header
from ropewalk.format.remoting import Command

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
H = TypeVar("H", bound=msgspec.Struct)


class Ask(NamedTuple):
    """A request whose answer comes within `timeout_s` seconds, the connecting included, or is awaited no longer."""

    address: str
    command: Command
    timeout_s: float


class Oneway(NamedTuple):
    """A oneway request, which the broker does not answer; `timeout_s` bounds the connecting."""

    address: str
    command: Command
    timeout_s: float = math.inf


class Pause(NamedTuple):
    """A time in which a conversation asks nothing."""

    seconds: float


class AskAny(NamedTuple):
    """A set of requests sent at once; resumed when at least one has an outcome. The others are forgotten."""

    asks: tuple[Ask, ...]


class Prefetch(NamedTuple):
    """A request whose answer is fetched later. The holder of its ticket has to take the answer, wanted or not."""

    ask: Ask


class AwaitPrefetched(NamedTuple):
    """The answer to a prefetch, awaited for at most `timeout_s` seconds from now."""

    ticket: int
    timeout_s: float = math.inf


Effect = Ask | Oneway | Pause | AskAny | Prefetch | AwaitPrefetched
Outcome = Command | RopewalkError
Reply = Command | dict[int, Outcome] | int | None
Steps = Generator[Effect, Reply, T]


def told_as(conversation: Callable[..., Steps[object]]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that gives a method the name, docstring and signature of the conversation that it holds.

    The method returns the result, and `help` and editors are to say so.
    """

    def decorate(method: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(conversation, eval_str=True)
        _effect, _reply, returned = get_args(signature.return_annotation)
        result = None if returned is type(None) else returned
        told = wraps(conversation)(method)
        told.__annotations__ = conversation.__annotations__ | {"return": result}
        told.__signature__ = signature.replace(return_annotation=result)  # type: ignore[attr-defined]
        return told

    return decorate


def ask(address: str, command: Command, timeout_s: float) -> Steps[Command]:
    """Send a request, and return its answer with any code."""
    answer = yield Ask(address, command, timeout_s)
    assert isinstance(answer, Command), "an Ask is resumed with its answer"
    return answer


def ask_twice(address: str, command: Command, timeout_s: float) -> Steps[Command]:
    """Send an idempotent request, and once more if the connection broke or stayed silent; return its answer."""
    try:
        return (yield from ask(address, command, timeout_s))
    except (Unreachable, OutcomeUnknown):
        return (yield from ask(address, command, timeout_s))


def ask_any(asks: tuple[Ask, ...]) -> Steps[dict[int, Outcome]]:
    """Send several requests at once; return the first outcomes, by place in `asks`."""
    outcomes = yield AskAny(asks)
    assert isinstance(outcomes, dict), "an AskAny is resumed with its outcomes"
    return outcomes


def prefetch(one: Ask) -> Steps[int]:
    """Send a request, and return the ticket for its answer."""
    ticket = yield Prefetch(one)
    assert isinstance(ticket, int), "a SendAhead is resumed with a ticket"
    return ticket


def await_prefetched(ticket: int, timeout_s: float) -> Steps[Command]:
    """Wait for the answer to a prefetch, and return it with any code."""
    answer = yield AwaitPrefetched(ticket, timeout_s)
    assert isinstance(answer, Command), "a TakeAhead is resumed with its answer"
    return answer


def require_success(answer: Command) -> Command:
    """Return the answer, if its code is SUCCESS; otherwise raise the error that `error_for` makes of it."""
    if answer.code != ResponseCode.SUCCESS:
        raise error_for(answer.code, answer.remark)
    return answer


def answer_header(cls: type[H], answer: Command) -> H:
    """Return the header of an answer. Raises `RemoteProtocolError` when it is not one."""
    try:
        return decode_header(cls, answer.ext)
    except HeaderError as exc:
        raise RemoteProtocolError(f"an answer with code {answer.code} cannot be read: {exc}") from exc
