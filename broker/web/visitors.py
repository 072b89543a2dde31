"""`Visitors`: the HTTP connections beside the shell, so few that the broker and its store keep their descriptors.

Whoever comes when all places are taken gets the place of the one that came first: a probe of an orchestrator is always
let in, and answered in milliseconds, while those that fill the places are the ones that stay. One that is idle, or has
sent half a request, is closed after `IDLE_S`.
"""

from __future__ import annotations

import errno
import os
import resource
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Final

import structlog
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState, LifespanState

__all__ = ["IDLE_S", "Visitors", "visitors_max"]

log = structlog.get_logger("broker.metrics")

_VISITORS_MAX: Final = 64
IDLE_S: Final = 30
_AGAIN_S: Final = 0.1
_GRACE_S: Final = 1.0


def visitors_max() -> int:
    """Return the number of descriptors for visitors: few where the limit of open files is low."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return min(_VISITORS_MAX, limit // 16) if limit != resource.RLIM_INFINITY else _VISITORS_MAX


class Visitors:
    """The connections of one listening socket, each served by hypercorn."""

    def __init__(self, listener: socket.socket, application: Any) -> None:
        """`listener` stays the caller's; `application` is an ASGI application without a lifespan."""
        self._listener = trio.socket.from_stdlib_socket(listener)
        self._application = ASGIWrapper(application)
        self._context = WorkerContext(None)
        self._config = Config()
        self._config.include_server_header = False
        self._config.accesslog = self._config.errorlog = None
        self._config.keep_alive_timeout = IDLE_S
        self._config.read_timeout = IDLE_S
        self._open: dict[trio.SocketStream, None] = {}
        """In the order in which they came."""
        self._max = visitors_max()
        self._is_told = False

    async def serve(self, stopped: Callable[[], Awaitable[None]]) -> None:
        """Serve until `stopped` returns; an answer that is on its way then has a moment to be taken."""
        async with trio.open_nursery() as nursery:
            async with trio.open_nursery() as door:
                door.start_soon(self._accept, nursery)
                await stopped()
                door.cancel_scope.cancel()
            await self._context.terminated.set()
            nursery.cancel_scope.deadline = trio.current_time() + _GRACE_S

    async def _accept(self, nursery: trio.Nursery) -> None:
        while True:
            try:
                sock, _address = await self._listener.accept()
            except OSError as exc:
                if exc.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._tell(os.strerror(exc.errno))
                    await trio.sleep(_AGAIN_S)
                continue  # or the visitor was gone before it was let in
            if len(self._open) >= self._max:
                # Closed from outside, and not cancelled: a write that waits for its reader shields itself.
                oldest = next(iter(self._open))
                del self._open[oldest]
                oldest.socket.close()
            stream = trio.SocketStream(sock)
            self._open[stream] = None
            nursery.start_soon(self._serve_one, stream)

    async def _serve_one(self, stream: trio.SocketStream) -> None:
        state = ConnectionState(LifespanState({}))
        try:
            await TCPServer(self._application, self._config, self._context, state, stream)  # type: ignore[arg-type]
        except Exception:
            log.exception("a visitor of the metrics port was not served")
        finally:
            self._open.pop(stream, None)
            stream.socket.close()

    def _tell(self, reason: str) -> None:
        if not self._is_told:
            self._is_told = True
            log.error("the metrics port cannot accept connections", reason=reason, open=len(self._open))
