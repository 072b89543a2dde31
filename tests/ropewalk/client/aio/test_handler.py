"""Arguments of a handler are checked when its consumer is made, and its return value when it has one."""

import traceback
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, cast

import anyio
import pytest

from ropewalk import (
    AsyncPushConsumer,
    AsyncTransactionProducer,
    Outcome,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    RetryLater,
    TransactionProducer,
)
from ropewalk.client.aio.handler import Handler as AnyHandler
from ropewalk.client.aio.handler import HandlerCaller, log_failure

MESSAGE = cast(ReceivedMessage, "a message")


def nothing() -> Any: ...


def two(message: object, other: object) -> None: ...


NOTHING: Any = nothing
TWO: Any = two


def one(message: object) -> None: ...


ONE: Any = one


class Handler:
    def handle(self, message: object) -> None: ...

    async def __call__(self, message: object) -> None: ...


class NoHandler:
    async def __call__(self) -> None: ...


@pytest.mark.parametrize("kind", [PushConsumer, AsyncPushConsumer])
@pytest.mark.parametrize(
    "handler", [nothing, two, lambda: None, NoHandler(), Handler.handle, partial(two, 1, 2)]
)
def test_a_handler_that_takes_no_message_is_refused_when_its_consumer_is_made(
    kind: Any, handler: Any
) -> None:
    with pytest.raises(TypeError, match=r"the handler is called with a message, and .* cannot be"):
        kind("g", {"T": "*"}, handler)


@pytest.mark.parametrize("kind", [PushConsumer, AsyncPushConsumer])
@pytest.mark.parametrize(
    "handler",
    [one, print, Handler(), Handler().handle, [].append, lambda *messages: None, partial(two, other=1)],
)
def test_whatever_takes_one_message_is_a_handler(kind: Any, handler: Any) -> None:
    kind("g", {"T": "*"}, handler)


@pytest.mark.parametrize(
    "make, said",
    [
        (
            lambda: PushConsumer("g", {"T": "*"}, one, on_error=ONE),
            "on_error is called with a message and an",
        ),
        (lambda: PushConsumer("g", {"T": "*"}, one, on_skipped=TWO), "on_skipped is called with a Skipped"),
        (lambda: PullConsumer("g", {"T": "*"}, on_skipped=TWO), "on_skipped is called with a Skipped"),
        (lambda: TransactionProducer(NOTHING, group="g"), "on_check is called with a message"),
        (lambda: AsyncTransactionProducer(NOTHING, group="g"), "on_check is called with a message"),
        (lambda: Producer("127.0.0.1:1").send("T", b"x", selector=NOTHING), "selector is called with queues"),
    ],
)
def test_other_hooks_are_checked_so_too(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        make()


def returned(
    handler: Callable[..., Any], caplog: pytest.LogCaptureFixture, times: int = 3
) -> tuple[list[Exception | None], list[str]]:
    """Call a handler several times; return its failures, and what was told of its values."""

    async def story() -> list[Exception | None]:
        caller = HandlerCaller(handler, log_failure)
        caller.open(1)
        return [await caller.call(MESSAGE) for _ in range(times)]

    failures = anyio.run(story, backend="trio")
    told = [record.fields for record in caplog.records if "return value" in getattr(record, "event", "")]  # type: ignore[attr-defined]
    return failures, [fields["returned"] for fields in told]


def as_async(value: object) -> Callable[[object], Awaitable[object]]:
    async def handle(message: object) -> object:
        return value

    return handle


@pytest.mark.parametrize("value", [False, 0, "RECONSUME_LATER", Outcome.ROLLBACK])
@pytest.mark.parametrize("form", ["plain", "async", "awaitable of a plain one"])
def test_a_value_that_may_mean_a_failure_is_told_once(
    value: object, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    coroutine = as_async(value)

    def handle(message: object) -> object:
        return coroutine(message) if form == "awaitable of a plain one" else value

    assert returned(coroutine if form == "async" else handle, caplog) == ([None] * 3, [repr(value)])


@pytest.mark.parametrize("value", [None, True])
def test_a_value_that_means_success_is_not(value: object, caplog: pytest.LogCaptureFixture) -> None:
    assert returned(lambda message: value, caplog) == ([None] * 3, [])


def test_what_a_plain_handler_has_begun_is_awaited_and_may_fail(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(message: object) -> None:
        raise RetryLater(3)

    def handle(message: object) -> Awaitable[None]:
        return fail(message)

    failures, told = returned(handle, caplog, 1)
    assert [str(failure) for failure in failures] == ["delay level 3"] and not told


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("kind", ["plain", "async", "awaited"])
def test_the_traceback_of_a_handler_begins_with_the_handler(backend: str, kind: str) -> None:
    def plain(message: ReceivedMessage) -> None:
        raise ValueError("poison")

    async def coroutine(message: ReceivedMessage) -> None:
        raise ValueError("poison")

    handlers: dict[str, AnyHandler] = {
        "plain": plain,
        "async": coroutine,
        "awaited": partial(coroutine),
    }
    told: list[str] = []

    async def handle() -> None:
        caller = HandlerCaller(handlers[kind], lambda message, exc: told.extend(functions(exc)))
        caller.open(1)
        await caller.call(MESSAGE)

    def functions(exc: Exception) -> list[str]:
        return [frame.name for frame in traceback.extract_tb(exc.__traceback__)]

    anyio.run(handle, backend=backend)
    assert told == ["plain" if kind == "plain" else "coroutine"]
