"""Forks: what a child process makes of the clients that it inherits.

A child of `os.fork` (gunicorn with preload, Celery, multiprocessing) gets a copy of every object of its parent, the
sockets included. Two processes that write to one socket mix their frames, and each takes the other's answers for its
own. So nothing of a client crosses a fork:

    a blocking client     begins anew in the child: connections, client id and message ids of its own
    an async client       is refused there, with `NotOpen`: its event loop belongs to the parent
    the parent's          connections, ids and pending messages are its own and go on; what the child closes, it closes
                          for itself alone

Objects register here when they are made; `_renew` is called in the child before anything else runs there.

A child that is forked while another thread imports a module waits for ever when it wants that module: its lock is held
by a thread that the child does not have. So the codecs are imported here which Python would import when a client first
uses them: `idna` at a connect, UTF-16 for the order of a group's members, and for text with half a surrogate pair.
"""

from __future__ import annotations

import encodings.idna
import encodings.utf_16
import encodings.utf_16_be  # noqa: F401
import os
from typing import Protocol
from weakref import WeakSet


class Renewable(Protocol):
    """An object that must not be shared by two processes."""

    def _renew(self) -> None:
        """Begin anew, as a process of its own. Must not block, nor raise."""


_registered: WeakSet[Renewable] = WeakSet()


def renew_after_fork(thing: Renewable) -> None:
    """Have an object renewed in every child process, as long as it lives."""
    _registered.add(thing)


def _renew_all() -> None:
    for thing in list(_registered):
        thing._renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
