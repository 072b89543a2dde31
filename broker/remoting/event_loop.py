"""The event loop: turns over one epoll, within one trio task.

After a busy turn the task lingers in its own epoll for at most a millisecond before it gives the loop back to trio:
a client that answers at once is then served without trio's wake-up, which is most of the cost of a lone request.
While clients do answer at once it does not even sleep: to wake a processor that went idle takes longer than all the
rest of a small request (one connection, one in flight: 8.6k/s asleep, 15k/s awake). A few misses in a row end that.
Where there is work for a loop without events (`WaitHints.next_turn_s`), turns go on until there is none.

Other threads wake the loop through an eventfd, and only where it sleeps: what they left is seen at work anyway.
"""

from __future__ import annotations

import ctypes
import os
import select
import time
from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

import trio

__all__ = ["EventLoop", "Events", "WaitHints"]

_LINGER_S: Final = 0.001
_HOLD_MAX_S = 0.005
_SPIN_S: Final = 0.00006
_SOON_S: Final = 0.00015
"""Time within which an event would have come in `_SPIN_S`, had nobody had to wake up for it."""
_SPIN_LONG_S: Final = 0.0005
"""Time to spin where another machine waits or is waited for: half as many again at 1 x 1 of SYNC_MASTER."""
_SPIN_MISSES_MAX: Final = 4
_DOZE_MAX: Final = 1024
_yield = ctypes.CDLL(
    None
).sched_yield  # Python 3.11's own keeps the interpreter, and with it every other thread

Events: TypeAlias = list[tuple[int, int]]
"""Descriptors with what they are ready for, as epoll tells them."""


class WaitHints(Protocol):
    """Expectations of the next event, which say how to wait for it."""

    @property
    def peer_reply_expected(self) -> bool:
        """Tell whether a message of another machine is expected within microseconds."""

    @property
    def next_turn_s(self) -> float | None:
        """Return after how many seconds without an event a turn is wanted all the same; None if none is."""


class EventLoop:
    """An epoll, the turns that its events lead to, and the time in which there were none."""

    def __init__(self, hints: WaitHints) -> None:
        self._hints = hints
        self.epoll = select.epoll()
        self.wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.epoll.register(self.wake_fd, select.EPOLLIN)
        self.has_news = False
        """Whether other threads have left something; cleared by the turn that is about to take it in."""
        self._asleep = True
        """Whether nobody looks at `has_news` before something wakes the epoll."""
        self.idle_s = 0.0
        """How long there was nothing to do, since the start, until the turn at hand."""
        self._idle_since: float | None = time.monotonic()
        self._misses = 0
        """How often in a row nothing came while it was looked for."""
        self._spin_backoff = 1
        """How many soon answers it takes until they are looked for again; 0 while they are."""
        self._spin_backoff_next = 2

    def idle_until(self, now: float) -> float:
        """Return `idle_s` up to now."""
        return self.idle_s if self._idle_since is None else self.idle_s + now - self._idle_since

    def wake(self) -> None:
        """From any thread: have a turn soon, which finds `has_news`. HOT.

        Where the loop is at work it will look by itself, and no other thread gives the interpreter up to tell it.
        """
        self.has_news = True
        if self._asleep:  # read behind the write above, as the loop writes and reads them the other way round
            os.eventfd_write(self.wake_fd, 1)

    async def run(self, turn: Callable[[Events, float], None]) -> None:
        """Call `turn` with events and the time, again and again, until cancelled."""
        while True:
            await trio.lowlevel.wait_readable(self.epoll.fileno())
            self.hold(turn)

    def hold(self, turn: Callable[[Events, float], None]) -> None:
        """Have turns while there is something for them, for a few milliseconds at most. HOT."""
        clock, hints = time.monotonic, self._hints
        until = clock() + _HOLD_MAX_S
        self._asleep = False
        try:
            events = self.epoll.poll(0)
            while events or self.has_news or hints.next_turn_s is not None:
                now = clock()
                if self._idle_since is not None:
                    self.idle_s += now - self._idle_since
                    self._idle_since = None
                turn(events, now)
                if now >= until:
                    break
                events = self._linger()
        finally:
            self._asleep = True
        if self.has_news or hints.next_turn_s is not None:
            self.wake()

    def _linger(self) -> Events:
        """Return the ready sockets, now or within a millisecond. Polls for a moment where that has paid off."""
        poll, clock, hints = self.epoll.poll, time.monotonic, self._hints
        events = poll(0)
        if events or self.has_news:
            return events
        began = self._idle_since = clock()
        wait_s = hints.next_turn_s
        if wait_s is not None:
            while clock() - began < wait_s and not events and not self.has_news:
                _yield()
                events = poll(0)
            return events
        spin_s, soon_s = (_SPIN_LONG_S, _SPIN_LONG_S) if hints.peer_reply_expected else (_SPIN_S, _SOON_S)
        if self._spin_backoff == 0:
            while clock() - began < spin_s:
                _yield()  # whoever we wait for, or our client, may want this very processor
                events = poll(0)
                if events or self.has_news:
                    self._misses = 0
                    self._spin_backoff_next = max(2, self._spin_backoff_next // 2)
                    return events
            self._misses += 1
            if self._misses >= _SPIN_MISSES_MAX:
                self._misses = 0
                self._spin_backoff = self._spin_backoff_next
                self._spin_backoff_next = min(2 * self._spin_backoff_next, _DOZE_MAX)
            return self._sleep()
        events = self._sleep()
        if events and clock() - began < soon_s:
            self._spin_backoff -= 1
            if self._spin_backoff == 0:
                self._misses = 0
        return events

    def _sleep(self) -> Events:
        self._asleep = True
        try:
            return self.epoll.poll(0 if self.has_news else _LINGER_S)
        finally:
            self._asleep = False

    def close(self) -> None:
        self.epoll.close()
        os.close(self.wake_fd)
