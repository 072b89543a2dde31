"""Time zones as Spark's settings name them: a region, `UTC`, or an offset such as `+02:00` or `GMT+2`."""

from __future__ import annotations

import re
from datetime import UTC, timedelta, timezone, tzinfo
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from ropewalk.errors import RopewalkError

__all__ = ["UnknownZone", "zone_of"]

_OFFSET: Final = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2}))?(?::?(\d{2}))?")


class UnknownZone(RopewalkError):
    """A time zone that this machine does not know."""


def zone_of(name: str) -> tzinfo:
    """Return the zone of a name. Raises UnknownZone."""
    if name in ("Z", "UTC", "GMT", "UT"):
        return UTC
    offset = _OFFSET.fullmatch(name)
    if offset is not None:
        hours, minutes, seconds = (int(part or 0) for part in offset.groups()[1:])
        delta = timedelta(hours=hours, minutes=minutes, seconds=seconds)
        return timezone(-delta if offset[1] == "-" else delta)
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as exc:
        raise UnknownZone(
            f"time zone {name!r} is not known here ({exc}): give times with their zone, as 2025-06-01T12:00:00Z"
        ) from None
