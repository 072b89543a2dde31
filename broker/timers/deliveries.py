"""`Deliveries`: delayed messages and timers that are due go back into the log, and how far that went goes to the disk.

    run       in a turn: copies of what is due are appended; what is too much for one turn is left to the next
    note      how far the levels are, with the end of the log behind their copies: a kill repeats nothing
    flushed   what stood below a flushed end is durable, and the file that power loss leaves may say so

A slave, or a member that does not lead, delivers nothing and follows the numbers of who does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker.timers.delay_progress import DelayProgress
from broker.timers.delay_service import DelayService
from broker.timers.timer_service import TimerService
from ropewalk.format import fastjson
from store.message_store import MessageStore


class Deliveries:
    """The two services that deliver later, and the progress of the delay levels. The loop owns it."""

    def __init__(
        self,
        delays: DelayService,
        timers: TimerService,
        progress: DelayProgress,
        store: MessageStore,
        *,
        is_refused: Callable[[], bool],
        wake: Callable[[], None],
    ) -> None:
        """`is_refused` tells whether the broker takes no message at the moment; `wake` asks for another turn."""
        self.progress = progress
        self._delays = delays
        self._timers = timers
        self._store = store
        self._is_refused = is_refused
        self._wake = wake
        self._delays_behind = False
        self.timers_behind = False
        """Whether timers that are due are left to the next turn."""
        self._noted = -1

    def load(self, document: dict[str, Any] | None) -> list[str]:
        """Begin where `delayOffset.json` and the page say; return the oddities. Blocks."""
        offsets, findings = self.progress.load(document, self._store.log.end_offset)
        self._delays.load(offsets)
        return findings

    def run(self) -> None:
        """Append the copies of messages that are due; those that are too many for one turn wait for the next."""
        refused = self._is_refused()
        self._delays_behind = not refused and self._delays.run()
        self.timers_behind = (not refused or self._store.follows) and self._timers.run()
        if self._delays_behind or self.timers_behind:
            self._wake()
        self.note()

    def on_wakeup(self) -> None:
        """Deliver the rest of the last turn, and note the progress that helper threads brought."""
        if self._delays_behind or self.timers_behind:
            self.run()
        self.note()

    def note(self) -> None:
        """Note how far the delay levels are, if they are elsewhere than before."""
        if self._noted != self._delays.changed:
            self._noted = self._delays.changed
            self.progress.note(self._delays.offsets(), self._store.log.end_offset)

    def tick(self) -> None:
        """Count copies as durable that are flushed by now, and let the timers do theirs."""
        self.progress.flushed(self._store.log.flushed_offset)
        self._timers.tick()

    def follow(self, offsets: dict[int, int]) -> None:
        """Keep how far this slave's master has delivered."""
        self._delays.follow(offsets)
        self.progress.note(offsets, self._store.log.end_offset)

    def take_back(self) -> None:
        """Count committed copies alone as delivered: another leader delivers the rest, or this one again."""
        self._delays.follow(self.progress.take_back())
        self._timers.take_back()

    def table(self) -> dict[str, Any]:
        """Return how far each delay level has been delivered, as code 45 carries it to slaves."""
        offsets = self.progress.durable if self._store.may_be_cut else self._delays.offsets()
        return {
            "dataVersion": self.progress.data_version.to_json(),
            "offsetTable": fastjson.IntKeys(offsets),
        }

    def stop(self) -> None:
        """Finish writing. Blocks."""
        self.note()
        self.progress.stop()
        self._timers.stop()
