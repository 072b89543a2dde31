"""The table of handlers that gives a session the name server's codes."""

from __future__ import annotations

from broker.namesrv.server import NameServer
from broker.remoting.session import Handlers, Session, Stepwise
from ropewalk.format.remoting import Command


def name_server_handlers(name_server: NameServer) -> Handlers:
    """The name server's codes as a session's table."""
    handlers = Handlers()

    def handle(session: Session, request: Command) -> Stepwise:
        return name_server.handle_in_slices(request, session)

    handlers.cold = dict.fromkeys(name_server.codes, handle)
    return handlers
