"""Turn slaves' reports into two offsets: through which producers are acknowledged, and up to which consumers read.

    begin of the log              decided                                  noted (the end, as of the last turn)
      |  no answer is open here      |  turns that wait: each may still be "replicated"  |

`confirmed` is the offset through which enough slaves have the log; it alone makes an acknowledgement. It can lie in
the middle of a wait, so it may be ahead of `decided`: consumers see whole turns. And it can lie behind: a record whose
slaves did not answer in time, or that found too few of them when it was appended, is *decided* without being
confirmed, its producer is told so (12, 11), and consumers may see it. Neither offset ever falls.

One wait stands for everything that one turn appended, so a report costs one look at the front of a queue, however
many producers wait. Time and peers are handed in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from store.log.limits import NO_LIMIT


class GroupTransfer:
    """The waits of one master for its slaves, in the order of the log."""

    def __init__(self, needed: int, timeout_ms: int, end: int) -> None:
        """`needed` slaves make a record safe; `end` is the log's, and no answer waits for what stands before it."""
        self.needed = needed
        self.timeout_ms = timeout_ms
        self._confirmed = end
        """Never falls. May be ahead of `noted` within a turn: slaves get bytes, and report them, before it ends."""
        self._decided = end
        """Never falls; `decided <= noted`, and equal to it where there are no waits."""
        self.noted = end
        """The end of the log when `appended` was told of it last; never falls."""
        self._waits: deque[tuple[int, int]] = deque()
        """(end, deadline) of each turn that waits: ends rise from `decided` to `noted`, all above `confirmed`."""

    @property
    def confirmed(self) -> int:
        """Return the offset through which enough machines have the log."""
        return self._confirmed if self.needed > 0 else NO_LIMIT

    @property
    def decided(self) -> int:
        """Return the offset before which no answer is open; always the end of a record."""
        return self._decided if self.needed > 0 else NO_LIMIT

    def appended(self, end: int, now_ms: int, *, available: bool) -> None:
        """Begin the wait of a turn that ended with the log at `end`; `available`: enough slaves are there."""
        if end <= self.noted:
            return
        self.noted = end
        self._waits.append((end, now_ms + self.timeout_ms if available else now_ms))
        self._decide_confirmed()
        if not available:
            self.expire(now_ms)

    def reported(self, acknowledged: Iterable[int]) -> bool:
        """Count the offsets that the slaves have; return whether more is confirmed by them than before."""
        if self.needed <= 0:
            return False
        offsets = sorted(acknowledged, reverse=True)
        if len(offsets) < self.needed or offsets[self.needed - 1] <= self._confirmed:
            return False
        self._confirmed = offsets[self.needed - 1]
        self._decide_confirmed()
        return True

    def expire(self, now_ms: int) -> None:
        """Decide the turns that have waited long enough, in the order of the log."""
        waits = self._waits
        while waits and waits[0][1] <= now_ms:
            self._decide()
        self._check()

    @property
    def waits(self) -> int:
        """Return how many turns are not decided."""
        return len(self._waits)

    def abandon(self) -> None:
        """Decide every turn without confirming it: there are too few slaves left to wait for."""
        while self._waits:
            self._decide()
        self._check()

    def _decide_confirmed(self) -> None:
        waits, confirmed = self._waits, self._confirmed
        if not waits or waits[0][0] > confirmed:
            return
        while waits and waits[0][0] <= confirmed:
            self._decide()
        self._check()

    def _decide(self) -> None:
        end, _deadline = self._waits.popleft()
        assert self._decided < end <= self.noted, (self._decided, end, self.noted)
        self._decided = end

    def _check(self) -> None:
        waits = self._waits
        if waits:
            assert waits[-1][0] == self.noted and self._confirmed < waits[0][0], (waits[0], waits[-1], self)
        else:
            assert self._decided == self.noted, (self._decided, self.noted)
