"""The program's own functions, called so that nothing they raise ends the consumer.

A handler that raises has failed at its message, whatever it raises: `sys.exit()` in a handler, as libraries for command
lines call it, or the cancellation of something that the handler awaited, must not stop the consumption of all that
follows. Only the cancellation of this very consumer, and Ctrl-C in the loop's own thread, go through. A hook that
raises is told to the log.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import Any, cast

import anyio

from ropewalk.client.aio.threads import in_thread
from ropewalk.client.core.consume.received import ReceivedMessage, RetryLater
from ropewalk.client.core.options import check_hook
from ropewalk.client.log import logger
from ropewalk.errors import RopewalkError

Handler = Callable[[ReceivedMessage], Awaitable[object]] | Callable[[ReceivedMessage], object]
"""Called with each message. It fails by raising; what it returns means nothing."""
OnError = Callable[[ReceivedMessage, Exception], None]


class HandlerExit(RopewalkError):
    """A handler raised a BaseException: it called `sys.exit()`, or awaited a task that was cancelled."""


def log_failure(message: ReceivedMessage, exc: Exception) -> None:
    """Log the failure of a handler, with its traceback: the default `on_error`."""
    logger().warning(
        "handler failed",
        topic=message.topic,
        message_id=message.message_id,
        tries=message.reconsume_times + 1,
        reason=repr(exc),
        exc_info=exc,
    )


def call_hook(hook: Callable[..., object], *arguments: Any) -> None:
    """Call a hook, and log the exception that it raises."""
    try:
        hook(*arguments)
    except Exception as exc:
        name = getattr(hook, "__qualname__", None) or repr(hook)
        logger().error("hook failed", hook=name, reason=repr(exc), exc_info=exc)


class HandlerCaller:
    """Calls one handler: a coroutine function in the loop, a plain one in up to `concurrency` threads."""

    def __init__(self, handler: Handler, on_error: OnError) -> None:
        """Make it. Raises `TypeError` for what cannot be called with a message."""
        if not callable(handler):
            raise TypeError(f"the handler must be a function that takes a message, not {handler!r}")
        check_hook("the handler", handler, "a message")
        self._handler = handler
        self._returned: set[type] = set()
        """Types of return values that were warned of."""
        self._on_error = on_error
        # An object may have a coroutine function for its call.
        self._is_async = any(map(inspect.iscoroutinefunction, (handler, type(handler).__call__)))
        self._threads: anyio.CapacityLimiter | None = None

    def open(self, concurrency: int) -> None:
        """Be ready to call, in the running event loop."""
        self._threads = anyio.CapacityLimiter(concurrency)

    async def call(self, message: ReceivedMessage) -> Exception | None:
        """Call the handler; return its exception, or None. HOT: every message comes by here."""
        try:
            result: object
            if self._is_async:
                result = await cast(Awaitable[object], self._handler(message))
            else:
                assert self._threads is not None, "opened before the first message"
                (result,) = await in_thread(partial(self._boxed, message), self._threads)
            if result is not None:
                await self._take_result(result)
        except Exception as exc:
            failure = exc.with_traceback(_of_the_program(exc.__traceback__))
        except BaseException as exc:
            if self._is_async and isinstance(exc, KeyboardInterrupt):
                raise
            if isinstance(exc, anyio.get_cancelled_exc_class()) and _is_cancelled():
                raise
            failure = HandlerExit(f"the handler raised {exc!r}")
            failure.__cause__ = exc
        else:
            return None
        if not isinstance(failure, RetryLater):
            call_hook(self._on_error, message, failure)
        return failure

    def _boxed(self, message: ReceivedMessage) -> tuple[object]:
        # In a tuple: trio takes a coroutine that comes bare out of a thread for a mistake of ours.
        return (self._handler(message),)

    async def _take_result(self, result: object) -> None:
        """Await what a plain function has begun, as `lambda message: handle(message)` does, and judge the result.

        A handler fails by an exception alone. One that returns something else than None or True may mean that by it,
        so the first value of each type is warned of.
        """
        if inspect.isawaitable(result):
            result = await result
        if result is None or result is True or type(result) in self._returned:
            return
        self._returned.add(type(result))
        logger().warning(
            "handler's return value ignored",
            handler=getattr(self._handler, "__qualname__", None) or repr(self._handler),
            returned=repr(result)[:100],
            reason="the message counts as handled; to have it again, raise an exception, RetryLater for one",
        )


def _of_the_program(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames, down to the last of this file, through which a handler is called."""
    frame, below = traceback, traceback
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == __file__ and frame.tb_next is not None:
            below = frame.tb_next
        frame = frame.tb_next
    return below


def _is_cancelled() -> bool:
    """Return True if the scope we are in was cancelled, and not something that a handler awaited."""
    return anyio.current_effective_deadline() == float("-inf")
