"""The client's log: structlog events, handed to the standard library's logger `ropewalk.client`.

    messages skipped group=billing topic=orders broker=broker-a queue=2 first=10 next=500 reason=removed

Warnings are shown by default, on standard error, as the standard library shows those of any library; a program that
configures `logging` decides otherwise, and one that wants silence says
`logging.getLogger("ropewalk.client").setLevel(logging.CRITICAL)`. A handler finds the event in `record.event` and what
it tells in `record.fields`, unformatted. What structlog was configured to do elsewhere is not touched and does not
matter here.

A trouble that goes on is told once and not at each attempt (`Troubles`); its end is told at level INFO.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, MutableMapping
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger

    from ropewalk.client.core.consume.skipped import Skipped
    from ropewalk.errors import RopewalkError

NAME = "ropewalk.client"


@cache
def logger() -> BoundLogger:
    """Return the client's logger. structlog is imported by the first event: most programs never have one."""
    import structlog

    bound: BoundLogger = structlog.wrap_logger(
        logging.getLogger(NAME),
        processors=[structlog.stdlib.filter_by_level, _to_standard_logging],
        wrapper_class=structlog.stdlib.BoundLogger,
        context_class=dict,
    )
    return bound


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


def _to_standard_logging(
    _logger: Any, _method: str, event_dict: MutableMapping[str, Any]
) -> tuple[tuple[str, ...], dict[str, Any]]:
    event = str(event_dict.pop("event"))
    exc_info = event_dict.pop("exc_info", None)
    fields = {name: value for name, value in event_dict.items() if value is not None}
    text = " ".join((event, *(f"{name}={_shown(value)}" for name, value in fields.items())))
    # "%s": what is told may hold a percent sign, which logging would take for a place to fill.
    return ("%s", text), {"extra": {"event": event, "fields": fields}, "exc_info": exc_info}


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
            logger().warning(event, **fields, reason=text)

    def is_known(self, key: Hashable) -> bool:
        """Return True while a trouble goes on."""
        return key in self._told

    def ended(self, key: Hashable, event: str, **fields: object) -> None:
        """Log at level INFO that a trouble is over, if there was one."""
        if self._told and self._told.pop(key, None) is not None:
            logger().info(event, **fields)
