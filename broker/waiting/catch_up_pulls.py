"""Put off the pulls of consumers far behind while messages are appended: catch-up reads get a share of the loop.

Producers and consumers share one loop, and a turn serves all that has arrived. Four connections that drain a backlog
have a pull each in every turn, and a pull of 32 messages costs as much as twenty sends: without a rule the drain takes
half of the loop, and one producer that waits for each answer keeps a sixth of its rate. So while messages are appended

    a pull near the end of the log    is served as it comes: a consumer that keeps up is never put off
    a pull far behind it              queues up here (`Reader.is_far_behind` tells)

and the queue is read from, at the begin of a turn,

    soon after an append              on credit: a percentage of the time that other work took, and as much time
                                      again as the loop has waited, so that the gap between an answer and the next
                                      request of its producer is not always filled with a read
    after a wait of `QUIET_AFTER_S`   in every turn until the next append: nobody else wants the time

so that neither starves the other. When nothing is appended any more, all that is queued is read, and pulls are served
as they come again. The queue goes round its sessions, a pull of each: a pull by itself waits for one pull of every
other consumer at most, and not for all that a client has asked for at once.

A pull that looks for messages among others may read thousands and bring none. A turn has two milliseconds for such
pulls; what arrives of them beyond that queues up here too, whatever it asks for.

Left to others: reading (`broker.consume.pull`), reads that no cache has (`store.read.cold_read_budget`), the clock,
and turns for the queue when no event brings one (`CatchUpShare.wait_s`, `broker.remoting.event_loop`).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final, TypeAlias

from broker.remoting.session import Session

APPENDS_S: Final = 0.1
"""So long after the log grew it counts as growing."""
QUIET_AFTER_S: Final = 0.0001
"""After the loop has waited for so long since the last append, its producer has not come back at once."""
CREDIT_MAX_S: Final = 0.001
"""The most of the loop's time that catch-up reads save up: what has arrived waits for this and one read at most."""
DEBT_MAX_S: Final = 0.01
"""The most that is owed for a read that took long."""
QUIET_TURN_S: Final = 0.00005
"""After so much of reading in a quiet turn it is looked whether something has arrived."""
FREE_TURN_S: Final = 0.002
"""The longest reading in a turn where nothing is appended, and only what was queued is left to read."""
FILTERED_TURN_S: Final = 0.002
"""The time of a turn for pulls that look for messages among others; what is more of them waits for the next turns."""
PULLS_MAX: Final = 10_000
SIZE_MAX: Final = 64 << 20
"""Bytes that queued pulls keep, as far as their clients sent them."""

Read: TypeAlias = Callable[[], None]


class CatchUpShare:
    """The decision about when catch-up reads may be made. Has no clock: `begin_turn` and `spend` bring the time.

    A turn only notes the time; credit is counted when somebody asks for it, of all turns since then at once.
    """

    __slots__ = (
        "_appended_idle_s",
        "_appended_s",
        "_counted_idle_s",
        "_counted_s",
        "_credit_s",
        "_idle_s",
        "_log_end",
        "_now_s",
        "_rate",
        "_read_s",
        "_uncounted_read_s",
    )

    def __init__(self, percent: int) -> None:
        """`percent` of the busy loop are for catch-up reads; at 100 nothing is ever put off."""
        self._now_s = self._idle_s = 0.0
        """When the turn began, and how long the loop had waited by then."""
        self._log_end = 0
        self._appended_s = -APPENDS_S
        """When the log was seen to have grown."""
        self._appended_idle_s = 0.0
        """How long the loop had waited when it appended last."""
        self._read_s = 0.0
        """The time spent on reads in this turn."""
        self._credit_s = self._counted_s = self._counted_idle_s = self._uncounted_read_s = 0.0
        self.configure(percent)

    def configure(self, percent: int) -> None:
        """Take over another share, from now on."""
        assert 0 < percent <= 100, percent
        self._rate = percent / (100 - percent) if percent < 100 else None

    def begin_turn(self, now_s: float, idle_s: float, log_end: int) -> None:
        """Take in the time, how long the loop has waited in all its life, and the end of the log. HOT: once a turn."""
        if log_end != self._log_end:  # it grew in the turn before
            self._log_end = log_end
            self._appended_s, self._appended_idle_s = now_s, self._idle_s
        self._now_s, self._idle_s, self._read_s = now_s, idle_s, 0.0

    @property
    def is_active(self) -> bool:
        """Tell whether messages are appended, so that pulls far behind queue up."""
        return self._rate is not None and self._now_s - self._appended_s < APPENDS_S

    @property
    def _is_quiet(self) -> bool:
        return self._idle_s - self._appended_idle_s >= QUIET_AFTER_S

    @property
    def credit_s(self) -> float:
        """Return the time that may be spent on reads soon after an append; below 0 after it was overdrawn."""
        if self._counted_s == self._now_s:
            return self._credit_s
        waited_s = self._idle_s - self._counted_idle_s
        worked_s = self._now_s - self._counted_s - waited_s - self._uncounted_read_s
        self._counted_s, self._counted_idle_s, self._uncounted_read_s = self._now_s, self._idle_s, 0.0
        earned_s = (self._rate or 0.0) * max(worked_s, 0.0) + max(waited_s, 0.0)
        self._credit_s = min(self._credit_s + earned_s, CREDIT_MAX_S)
        return self._credit_s

    @property
    def may_read(self) -> bool:
        """Tell whether another catch-up read may be made in this turn."""
        if not self.is_active:
            return self._read_s < FREE_TURN_S
        if self._is_quiet:
            return self._read_s < QUIET_TURN_S
        return self.credit_s > 0

    @property
    def wait_s(self) -> float:
        """Return how long to wait for events before the next turn, if there are queued pulls."""
        return 0.0 if self._is_quiet or self.credit_s > 0 else QUIET_AFTER_S

    def spend(self, took_s: float) -> None:
        """Charge for a read; in a quiet turn it is free."""
        credit_s = self.credit_s
        self._read_s += took_s
        self._uncounted_read_s += took_s
        if not self._is_quiet:
            self._credit_s = max(credit_s - took_s, -DEBT_MAX_S)


class CatchUpPulls:
    """The queued pulls of consumers far behind, a queue for each session."""

    def __init__(self, percent: int, clock: Callable[[], float]) -> None:
        """`clock` tells how long reads take, in seconds; `percent` as `CatchUpShare` wants it."""
        self.share = CatchUpShare(percent)
        self.size = 0
        self._clock = clock
        self.filter_left_s = FILTERED_TURN_S
        """The time that is left of this turn for pulls with a filter."""
        self.kept = 0
        """Bytes that queued pulls keep."""
        self._reads: OrderedDict[Session, deque[tuple[Read, int]]] = OrderedDict()
        """The sessions with queued pulls, the one that is next first; none of their queues is empty."""

    def add(self, session: Session, read: Read, kept: int = 0) -> None:
        """Queue a pull, which keeps so many bytes, up behind those of its session; one too many is read at once."""
        if self.size >= PULLS_MAX or self.kept + kept > SIZE_MAX:
            read()
            return
        reads = self._reads.get(session)
        if reads is None:
            reads = self._reads[session] = deque()
        reads.append((read, kept))
        self.size += 1
        self.kept += kept

    def begin_turn(self) -> None:
        """Take in that a turn begins. HOT: once a turn."""
        self.filter_left_s = FILTERED_TURN_S

    def look(self, read: Read) -> None:
        """Read now for a pull with a filter, and note the time that it takes."""
        began = self._clock()
        read()
        self.filter_left_s -= self._clock() - began

    @property
    def has_room(self) -> bool:
        """Tell whether another pull can be queued."""
        return self.size < PULLS_MAX and self.kept < SIZE_MAX

    def run(self) -> None:
        """Answer queued pulls, as many as the share allows. HOT: once a turn."""
        reads, share, clock = self._reads, self.share, self._clock
        began = clock()
        while reads and share.may_read:
            session, queued = reads.popitem(last=False)
            read, kept = queued.popleft()
            self.size -= 1
            self.kept -= kept
            if queued:
                reads[session] = queued
            read()
            session.link.push()  # what it costs to send is half of what a pull costs
            ended = clock()
            share.spend(ended - began)
            began = ended
        assert self.size >= len(reads), (self.size, len(reads))

    def release(self, session: Session) -> None:
        """Forget the pulls of a session that is gone."""
        gone = self._reads.pop(session, ())
        self.size -= len(gone)
        self.kept -= sum(kept for _read, kept in gone)
