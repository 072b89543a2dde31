"""Templates of sends that wait elsewhere first: half messages for their end, timer messages for their time.

The record of such a message is one of the topic that it waits in, with the text of its own properties, and behind
these where it is to go. Of one template this text is the same but for four things, each of a fixed width:

    key      the unique key; a half message says it twice
    time     TIMER_DELIVER_MS, one more place of the header
    slot     TIMER_OUT_MS, the time as `placement` rounds it; one that is refused, or past, goes the readable way
    queue    REAL_QID, which ends the text

A detour is cut out of the first message that was placed, as a template is out of its header.
"""

from __future__ import annotations

import re
from binascii import b2a_base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Final

from broker.produce.send import NewHalf, Placed, SendProcessor
from broker.remoting.refused import RequestRefused
from broker.timers.placement import time_asked
from ropewalk.format.headers import RecallHandle
from ropewalk.format.properties import P, parse_properties
from store.queues.consume_queue import ConsumeQueue

__all__ = ["Detour", "detour_of"]

_TIME: Final = re.compile(r"[1-9]\d{12}")
_SLOT: Final = f"{P.TIMER_OUT_MS}\x01".encode()
_QUEUE: Final = f"\x02{P.REAL_QID}\x01".encode()
_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")
_WITH_HANDLE: Final = b'%b","recallHandle":"%b'
_encode = partial(b2a_base64, newline=False)


@dataclass(frozen=True, slots=True)
class Detour:
    """The common properties of all messages of a template that wait in another topic."""

    queue: ConsumeQueue
    """The queue that they wait in."""
    size: int
    """The bytes of the property text."""
    text: bytes
    """The property text, a format of `fields`."""
    fields: tuple[str, ...]
    time: str
    """The value of TIMER_DELIVER_MS in the header that the template was learned from; empty without it."""
    asked: tuple[str, int] | None
    """Of a timer message that names no time but a delay: the delay, and the milliseconds of its unit."""
    handle: bytes
    """The recall handle of a timer message before it is encoded, a format of a time and the unique key."""
    half: NewHalf | None

    def columns(
        self,
        sends: SendProcessor,
        keys: Sequence[bytes],
        queue_ids: Sequence[bytes],
        times: Sequence[bytes] = (),
    ) -> tuple[list[bytes], Sequence[bytes]] | None:
        """Return the property texts of a run, and the keys of its answers; None if it goes the readable way. HOT."""
        columns: dict[str, Iterable[bytes]] = {"key": keys, "queue": queue_ids, "time": times}
        if not self.handle:
            return list(
                map(self.text.__mod__, zip(*map(columns.__getitem__, self.fields), strict=False))
            ), keys
        try:
            if self.asked is not None:
                slots: list[int | None] = [sends.slot_of(*self.asked)] * len(keys)
            else:
                known = {due: sends.slot_of(due.decode(), 0) for due in set(times)}
                slots = list(map(known.__getitem__, times))
        except RequestRefused:
            return None
        if None in slots:
            return None
        columns["slot"] = map(b"%d".__mod__, slots)
        texts = list(map(self.text.__mod__, zip(*map(columns.__getitem__, self.fields), strict=False)))
        plain = map(self.handle.__mod__, zip((slot + 1 for slot in slots if slot), keys, strict=True))
        handles = b"\n".join(map(_encode, plain)).translate(_URL_SAFE).split(b"\n")
        return texts, list(map(_WITH_HANDLE.__mod__, zip(keys, handles, strict=True)))


def detour_of(placed: Placed, text: str, queue_id: int) -> Detour | None:
    """Return the detour of a message that was placed; None if it has none, or one that cannot be cut.

    `text` is what its client sent, for this queue.
    """
    raw, key, half = placed.message[2], placed.unique_key, placed.half
    asked = None
    time = slot = ""
    properties = parse_properties(raw)
    if half is None:
        slot, asked = properties.get(P.TIMER_OUT_MS, ""), time_asked(parse_properties(text))
        if asked is None or not placed.recall_handle or not _TIME.fullmatch(slot) or P.DELAY in properties:
            return None
        if asked[1] == 0:
            time, asked = asked[0], None
            if not _TIME.fullmatch(time):
                return None
    elif half.tag_code is None:
        return None
    end = _QUEUE + b"%d\x02" % queue_id
    spots = [("key", key.encode(), 0)] * (1 if half is None else 2)
    if slot:
        spots.append(("slot", _SLOT + slot.encode(), len(_SLOT)))
    if time:
        spots.append(("time", f"{P.TIMER_DELIVER_MS}\x01{time}".encode(), len(P.TIMER_DELIVER_MS) + 1))
    found = [("queue", len(raw) - len(end) + len(_QUEUE), len(raw) - 1)]
    for name, wanted, skip in dict.fromkeys(spots):
        starts = [match.start() for match in re.finditer(re.escape(wanted), raw)]
        if len(starts) != spots.count((name, wanted, skip)):
            return None
        found += [(name, start + skip, start + len(wanted)) for start in starts]
    found.sort(key=lambda spot: spot[1])
    if not raw.endswith(end) or any(one[2] > other[1] for one, other in pairwise(found)):
        return None
    form, at = b"", 0
    for _name, start, stop in found:
        form += raw[at:start].replace(b"%", b"%%") + b"%b"
        at = stop
    form += raw[at:].replace(b"%", b"%%")
    handle = b""
    if half is None:
        known = RecallHandle.decode(placed.recall_handle)
        handle = RecallHandle(known.topic, known.broker, 0, "").plain().replace(b"%", b"%%")
        handle = handle.removesuffix(b"0 ") + b"%d %b"
    fields = tuple(name for name, _start, _stop in found)
    return Detour(placed.message[0], len(raw), form, fields, time, asked, handle, half)
