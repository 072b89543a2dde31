"""The place of a message that is to come later: a delay level's queue, the timer topic, or its own topic.

    DELAY 1..18                                       SCHEDULE_TOPIC_XXXX, queue of the level
    TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS rmq_sys_wheel_timer queue 0; the first present in this order wins
    a time that has passed, or none of these          its own topic

A level wins over a time. A time is rounded to the slot *before* it, for a slot is delivered when its second is over:
never early, and at most one slot late. A message with TIMER_DEL_UNIQKEY recalls another, as a request of code 370
does, and is refused where that is (RocketMQ takes it from every sender). A message that has TIMER_OUT_MS is a delivered
one that is sent again, and goes to its topic at once, as in the original.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from broker.remoting.refused import RequestRefused
from broker.timers.delay_service import DelayService
from ropewalk.codes import ResponseCode
from ropewalk.format import names
from ropewalk.format.headers import RecallHandle
from ropewalk.format.properties import P, tags_code
from store.message_store import MessageStore
from store.queues.consume_queue import ConsumeQueue

__all__ = ["Placement", "PlacementRules", "time_asked"]

_TIMES: Final = ((P.TIMER_DELAY_SEC, 1000), (P.TIMER_DELAY_MS, 1), (P.TIMER_DELIVER_MS, 0))
"""Property, and the milliseconds of one unit of it; 0 for a time of the clock."""
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,19}")
_TIME_MAX: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class PlacementRules:
    """The limits of timer messages."""

    broker_name: str
    enabled: bool = True
    max_delay_ms: int = 259_200_000
    precision_ms: int = 1000
    congested: int = 0x7FFFFFFF
    """More timers in one slot are refused."""
    can_recall: bool = False


class Placement:
    """The decision of where a message is stored."""

    def __init__(
        self,
        rules: PlacementRules,
        delays: DelayService,
        store: MessageStore,
        waiting_at: Callable[[int], int],
        now_ms: Callable[[], int],
    ) -> None:
        """`waiting_at` counts the timers in the slot of a time."""
        self.rules = rules
        self._delays = delays
        self._store = store
        self._waiting_at = waiting_at
        self._clock = now_ms

    def place(self, queue: ConsumeQueue, properties: dict[str, str]) -> tuple[ConsumeQueue, int]:
        """Return the queue that a message for `queue` is stored in, and its tag code.

        What it has to carry while it waits is added to `properties`. Raises `RequestRefused` for a time that is
        illegal, and ValueError for a level that is no number.
        """
        if P.TIMER_OUT_MS not in properties and (asked := time_asked(properties)) is not None:
            found = self._delays.place(queue, properties)
            if found[0] is not queue:
                return found
            return self._place_timer(queue, properties, *asked)
        return self._delays.place(queue, properties)

    def _place_timer(
        self, queue: ConsumeQueue, properties: dict[str, str], text: str, unit_ms: int
    ) -> tuple[ConsumeQueue, int]:
        tag_code, slot_ms = tags_code(properties.get(P.TAGS)), self.slot_of(text, unit_ms)
        if slot_ms is None:
            if P.TIMER_DEL_UNIQKEY in properties:
                raise RequestRefused(
                    ResponseCode.MESSAGE_ILLEGAL,
                    "timer message illegal, a message whose time has passed cannot be recalled any more",
                )
            return queue, tag_code
        if P.TIMER_DEL_UNIQKEY in properties and not self.rules.can_recall:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                "recall failed, operation is forbidden: recallMessageEnable is false on this broker, and a message "
                f"with {P.TIMER_DEL_UNIQKEY} recalls another",
            )
        properties[P.TIMER_OUT_MS] = str(slot_ms)
        properties[P.REAL_TOPIC] = queue.topic
        properties[P.REAL_QID] = str(queue.queue_id)
        return self._store.queue(names.TIMER_TOPIC, 0), tag_code

    def slot_of(self, text: str, unit_ms: int) -> int | None:
        """Return the slot of a time, or of a delay of so many `unit_ms`; None for one that has passed. HOT.

        Raises `RequestRefused` for one that is illegal, or in a slot that is full.
        """
        rules, now = self.rules, self._clock()
        if not rules.enabled:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                "accurate timer message is not enabled, timerWheelEnable is false",
            )
        due_ms = _NUMBER.fullmatch(text) and (int(text) * unit_ms + now if unit_ms else int(text))
        if due_ms is None or abs(due_ms) > _TIME_MAX:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL, f"timer message illegal, its time {text[:40]!r} is no number"
            )
        if due_ms <= now:
            return None
        if due_ms - now > rules.max_delay_ms:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"timer message illegal, the delay time should not be bigger than the max delay {rules.max_delay_ms}ms",
            )
        slot_ms = (due_ms - 1) // rules.precision_ms * rules.precision_ms
        if self._waiting_at(slot_ms) > rules.congested:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"timer message is under flow control, max num limit is {rules.congested} in one slot",
            )
        return slot_ms

    def recall_handle(self, properties: dict[str, str]) -> str:
        """Return the handle by which the sender of a stored message recalls it; empty for a message without a time."""
        slot, topic = properties.get(P.TIMER_OUT_MS, ""), properties.get(P.REAL_TOPIC, "")
        if not (slot.isascii() and slot.isdigit()) or not topic or topic.startswith(names.RETRY_PREFIX):
            return ""
        # A millisecond later than the slot, so that it is rounded down to it again.
        handle = RecallHandle(topic, self.rules.broker_name, int(slot) + 1, properties.get(P.UNIQ_KEY, ""))
        return handle.encode()


def time_asked(properties: Mapping[str, str]) -> tuple[str, int] | None:
    """Return the time that a message names, and the milliseconds of its unit, 0 for a time of the clock; or None."""
    for name, unit_ms in _TIMES:
        if (text := properties.get(name)) is not None:
            return text, unit_ms
    return None
