"""The client's log: events with fields, of the standard library's logger `ropewalk.client`.

    messages skipped group=billing topic=orders broker=broker-a queue=2 first=10 next=500 reason=removed

Warnings are shown by default, on standard error, as the standard library shows those of any library; a program that
configures `logging` decides otherwise, and one that wants silence says
`logging.getLogger("ropewalk.client").setLevel(logging.CRITICAL)`. A handler finds the event in `record.event` and its
fields, unformatted, in `record.fields`; that is how a program whose log is structlog's gets structured events.

A trouble that goes on is told once and not at each attempt (`Troubles`); its end is told at level INFO.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ropewalk.client.core.consume.skipped import Skipped
    from ropewalk.errors import RopewalkError

NAME = "ropewalk.client"
_CALLER = 3
"""The frames between the standard logger and the caller of an event."""


class EventLogger:
    """A logger whose events have fields. Those that are None are left out."""

    def __init__(self, target: logging.Logger) -> None:
        self._target = target

    def info(self, event: str, **fields: object) -> None:
        """Log an event at level INFO."""
        self._log(logging.INFO, event, fields, None)

    def warning(self, event: str, *, exc_info: BaseException | None = None, **fields: object) -> None:
        """Log an event at level WARNING, with the traceback of an exception."""
        self._log(logging.WARNING, event, fields, exc_info)

    def error(self, event: str, *, exc_info: BaseException | None = None, **fields: object) -> None:
        """Log an event at level ERROR, with the traceback of an exception."""
        self._log(logging.ERROR, event, fields, exc_info)

    def _log(self, level: int, event: str, fields: dict[str, object], exc_info: BaseException | None) -> None:
        if not self._target.isEnabledFor(level):
            return
        kept = {name: value for name, value in fields.items() if value is not None}
        text = " ".join((event, *(f"{name}={_shown(value)}" for name, value in kept.items())))
        extra = {"event": event, "fields": kept}
        # "%s": a field may hold a percent sign, which logging would take for a place to fill.
        self._target.log(level, "%s", text, extra=extra, exc_info=exc_info, stacklevel=_CALLER)


@cache
def logger() -> EventLogger:
    """Return the client's logger."""
    return EventLogger(logging.getLogger(NAME))


def log_lost(topic: str, count: int, failure: RopewalkError) -> None:
    """Log that messages handed to `send_async` were not acknowledged: their futures may be looked at by nobody."""
    logger().warning(
        "send failed", topic=topic, messages=count, reason=f"{type(failure).__name__}: {failure}"
    )


def log_skipped(group: str, skipped: Skipped) -> None:
    """Log that a consumer passes messages over."""
    queue = skipped.queue
    logger().warning(
        "messages skipped",
        group=group,
        topic=queue.topic,
        broker=queue.queue.broker_name,
        queue=queue.queue.queue_id,
        first=skipped.first,
        next=skipped.next,
        reason=skipped.reason,
    )


def _shown(value: object) -> str:
    text = str(value)
    return repr(text) if not text or any(c.isspace() or c in "\"'=" for c in text) else text


class Troubles:
    """The troubles that go on, each by a key of its own, so that each is told once."""

    def __init__(self) -> None:
        self._told: dict[Hashable, str] = {}

    def began(self, key: Hashable, reason: object, event: str, **fields: object) -> None:
        """Log a trouble at level WARNING, unless it is known already for the same reason."""
        text = str(reason)
        if self._told.get(key) != text:
            self._told[key] = text
            logger().warning(event, exc_info=None, **fields, reason=text)

    def is_known(self, key: Hashable) -> bool:
        """Return True while a trouble goes on."""
        return key in self._told

    def ended(self, key: Hashable, event: str, **fields: object) -> None:
        """Log at level INFO that a trouble is over, if there was one."""
        if self._told and self._told.pop(key, None) is not None:
            logger().info(event, **fields)
