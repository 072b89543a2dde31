"""The word to a service manager: systemd's notification protocol, one datagram for each change of state.

`Type=notify` has `systemctl start` and `restart` return when the process serves, not when it was forked: a rolling
restart waits for a recovery without polling. Without NOTIFY_SOCKET in the environment nothing is said.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping

__all__ = ["notify"]


def notify(state: str, environ: Mapping[str, str] = os.environ) -> None:
    """Send a state such as `READY=1`; a service manager that cannot be reached is no reason to stop."""
    address = environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    path = f"\0{address[1:]}" if address.startswith("@") else address  # @ is the abstract name space
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        out.connect(path)
        out.send(state.encode())
