"""GroupTransfer: from slaves' reports to what a producer may be told, and what a consumer may see.

    |  confirmed: on enough machines    |  undecided: somebody may still be told "replicated"   |  end of the log
                                        ^ decided >= confirmed

`confirmed` is the offset through which enough slaves have the log; it alone makes an acknowledgement. A record whose
slaves did not answer in time, or that found too few of them when it was appended, is *decided* without being
confirmed: its producer is told so (12, 11), and consumers may see it. Neither offset ever falls.

One entry stands for everything that one turn appended, so a report costs one look at the front of a queue, however
many producers wait. Nothing here knows time or peers: both are handed in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

EVERYTHING = 1 << 62
"""Confirmed and decided where nothing has to be waited for."""


class GroupTransfer:
    def __init__(self, needed: int, timeout_ms: int, end: int) -> None:
        """`needed` slaves make a record safe; `end` is the log's, and what stands before it is nobody's wait."""
        self.needed = needed
        self.timeout_ms = timeout_ms
        self._confirmed = end
        self._decided = end
        self.noted = end
        """The end of the log when `appended` was told of it last."""
        self._waits: deque[tuple[int, int]] = deque()  # (end, deadline)

    @property
    def confirmed(self) -> int:
        """On enough machines through here."""
        return self._confirmed if self.needed > 0 else EVERYTHING

    @property
    def decided(self) -> int:
        """Nobody's answer is open before this offset; always the end of a record."""
        return self._decided if self.needed > 0 else EVERYTHING

    def appended(self, end: int, now_ms: int, *, available: bool) -> None:
        """A turn has ended, and the log with it at `end`; `available`: enough slaves were there to wait for."""
        if end <= self.noted:
            return
        self.noted = end
        self._waits.append((end, now_ms + self.timeout_ms if available else now_ms))
        if not available:
            self.expire(now_ms)

    def reported(self, acknowledged: Iterable[int]) -> bool:
        """What each slave that counts has of the log; whether more is confirmed by it than before."""
        if self.needed <= 0:
            return False
        offsets = sorted(acknowledged, reverse=True)
        if len(offsets) < self.needed or offsets[self.needed - 1] <= self._confirmed:
            return False
        confirmed = self._confirmed = offsets[self.needed - 1]
        waits = self._waits
        while waits and waits[0][0] <= confirmed:
            self._decided = waits.popleft()[0]
        return True

    def expire(self, now_ms: int) -> None:
        """Decide what has waited long enough, in the order of the log."""
        waits = self._waits
        while waits and waits[0][1] <= now_ms:
            self._decided = waits.popleft()[0]
