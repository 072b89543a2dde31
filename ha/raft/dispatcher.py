"""`EntryDispatcher`: a leader's side of replication, one for each peer, and the runs that are sent to all.

    PROBE       one frame is on its way, with or without a run: where does the peer's log agree with this one?
    REPLICATE   frames follow each other without waiting, as many as the window holds
    SNAPSHOT    the peer needs what retention has removed, or lacks the state in front of the log

*Next* is the index that is sent next, *match* the index through which the peer has the log on its disk. Frames on
their way are kept in `_window` until a durable answer covers them, 64 frames and 6 MiB at most: that is how a slow
disk over there is felt here.

The data link keeps its order, so a frame that was lost is noticed when the next one is refused, and the hint says
where to go on. Only the last frame before a silence needs more: each heartbeat answer says how far the peer has
compared, and each Tick looks again for something to send, whatever wake-up was lost (JRaft 1271).

Runs that were appended a moment ago are sent from memory (`RecentRuns`); for a peer that lags the shell reads, and
says `Fetched`.
"""

from __future__ import annotations

from collections import deque
from enum import Enum

from ha.raft.log_state import LogState
from ha.raft.types import Append, AppendAnswer, HeartbeatAnswer, MemberId, Point, Run, Settings
from ropewalk.errors import RemoteProtocolError

_NEVER = -(1 << 60)
_SNAPSHOT_PATIENCE = 10
"""How many times as long as for a frame a peer's word about a snapshot is waited for: it has to put it on disk."""


class State(Enum):
    """The state of the replication to one peer."""

    PROBE = "PROBE"
    REPLICATE = "REPLICATE"
    SNAPSHOT = "SNAPSHOT"


class RecentRuns:
    """The runs that this leader appended last, by their first index. The oldest are dropped when there are many."""

    __slots__ = ("_bytes", "_bytes_max", "_count_max", "_order", "_runs")

    def __init__(self, bytes_max: int = 16 << 20, count_max: int = 4096) -> None:
        self._runs: dict[int, tuple[Point, Run]] = {}
        self._order: deque[int] = deque()
        self._bytes = 0
        self._bytes_max = bytes_max
        self._count_max = count_max

    def add(self, prev: Point, run: Run) -> None:
        """Keep a run that was appended behind `prev`."""
        self._runs[run.first] = (prev, run)
        self._order.append(run.first)
        self._bytes += run.size
        while self._bytes > self._bytes_max or len(self._order) > self._count_max:
            _, old = self._runs.pop(self._order.popleft())
            self._bytes -= old.size

    def get(self, first: int, bytes_max: int) -> tuple[Point, Run] | None:
        """Return the run that begins at `first`, with the point before it.

        Runs that waited for room in the window are returned as one, where they stand side by side in a segment: a
        frame for each would let no more of them through in a round trip than the window has frames.
        """
        found = self._runs.get(first)
        if found is None or (following := self._runs.get(found[1].last + 1)) is None:
            return found
        prev, run = found
        parts = [run]
        end, size = run.pos + run.size, run.size
        while following is not None:
            part = following[1]
            size += part.size
            if part.term != run.term or part.pos != end or size > bytes_max or part.config or run.config:
                break
            parts.append(part)
            end += part.size
            following = self._runs.get(part.last + 1)
        if len(parts) == 1:
            return found
        return prev, Run(run.first, sum(part.count for part in parts), run.term, run.pos, end - run.pos)


class EntryDispatcher:
    """A leader's record of one peer in one term: its place in the log and the frames on their way to it."""

    __slots__ = (
        "_asked",
        "_began_at",
        "_fetch_asked_at",
        "_fetching",
        "_probed",
        "_sent_pos",
        "_settings",
        "_snapshot_at",
        "_waiting",
        "_window",
        "_window_bytes",
        "counts",
        "is_able",
        "is_linked",
        "match",
        "next",
        "peer",
        "state",
    )

    def __init__(self, peer: MemberId, settings: Settings, end: Point, is_linked: bool) -> None:
        self.peer = peer
        self.state = State.PROBE
        self.next = self._began_at = end.index + 1
        self.match = -1
        self.is_linked = is_linked
        self.counts = True
        """Whether the peer is part of majorities, as it said last: a learner is not."""
        self.is_able = True
        """Whether the peer would take the lead, as it said last."""
        self._settings = settings
        self._window: deque[tuple[int, int, int]] = deque()
        """Of each frame on its way: its last index, its size, when it left."""
        self._window_bytes = 0
        self._waiting = False
        """Whether a probe is on its way."""
        self._probed = -1
        """`prev.index` of that probe."""
        self._sent_pos = end.pos
        """The log offset behind the last run that was sent."""
        self._fetching = -1
        """The index that the shell was asked to read from."""
        self._fetch_asked_at = 0
        self._snapshot_at = _NEVER
        """When a snapshot was asked of the shell, or the peer said last how much of it has arrived."""
        self._asked: dict[int, int] = {}
        """`match` when each heartbeat left that is not answered yet: less than that no answer can say."""

    @property
    def in_flight(self) -> tuple[int, int, int]:
        """Frames on their way, their bytes, and those of the last of them."""
        window = self._window
        return len(window), self._window_bytes, window[-1][1] if window else 0

    def lag(self, log: LogState) -> tuple[int, int] | None:
        """Return how many entries and bytes the peer lacks on its disk; None while it is not known where its log is."""
        if self.state is not State.REPLICATE or not self.is_linked:
            return None
        unsent = log.end.pos - self._sent_pos if self.next <= log.end.index else 0
        return log.end.index - self.match, self._window_bytes + unsent

    # -- sending -----------------------------------------------------------------------------------------

    def next_send(self, log: LogState, recent: RecentRuns, term: int, now: int) -> Append | None:
        """Return the next frame for this peer. None: nothing to send, no room, or `next_fetch` has to read."""
        if not self._may_send or self._fetching == self.next:
            return None
        if self.next > log.end.index:
            if self.state is State.REPLICATE:
                return None
            self._waiting, self._probed = True, log.end.index
            return Append(term, log.end, None, log.commit.index)
        found = recent.get(self.next, self._settings.frame_bytes_max)
        if found is None or (found[1].size > self._settings.frame_bytes_max and found[1].count > 1):
            return None
        return self._sent(*found, log, term, now)

    def next_fetch(self, log: LogState, now: int) -> tuple[MemberId, int, int] | None:
        """Return the read (peer, index, bytes) to ask of the shell after `next_send` returned None; None if none."""
        if not self._may_send or self.next > log.end.index:
            return None
        if self._fetching == self.next and now - self._fetch_asked_at < 4 * self._settings.resend_ms:
            return None
        self._fetching, self._fetch_asked_at = self.next, now
        is_probe, settings = self.state is State.PROBE, self._settings
        return self.peer, self.next, settings.frame_bytes_max if is_probe else settings.fetch_bytes_max

    def fetched(self, prev: Point, run: Run | None, log: LogState, term: int, now: int) -> Append | None:
        """Return the frame for a run that was read; None if that run is no longer the one that is next."""
        index = prev.index + 1
        if index == self._fetching:
            self._fetching = -1
        if index != self.next or not self._may_send:
            return None
        if run is None:
            self.state, self._snapshot_at = State.SNAPSHOT, _NEVER
            return None
        assert run.first == index and run.last <= log.end.index, (prev, run, log.end)
        assert run.term == log.terms.term_at(run.first) == log.terms.term_at(run.last), (run, log.terms.rows)
        assert prev.term == log.terms.term_at(prev.index), (prev, log.terms.rows)
        assert log.configs.end_of_run(run.first, run.last) == run.last, (run, log.configs.rows)
        assert log.configs.carried_by(run.first) in (None, run.config), (run, log.configs.rows)
        return self._sent(prev, run, log, term, now)

    def needs_snapshot(self, now: int) -> bool:
        """Return whether to ask the shell for a snapshot: for the first time, or since a message of it was lost."""
        if self.state is not State.SNAPSHOT or not self.is_linked:
            return False
        if now - self._snapshot_at < _SNAPSHOT_PATIENCE * self._settings.resend_ms:
            return False
        self._snapshot_at = now
        return True

    @property
    def _may_send(self) -> bool:
        if not self.is_linked or self.state is State.SNAPSHOT:
            return False
        if self.state is State.PROBE:
            return not self._waiting
        settings = self._settings
        return len(self._window) < settings.window_frames and self._window_bytes < settings.window_bytes

    def _sent(self, prev: Point, run: Run, log: LogState, term: int, now: int) -> Append:
        self.next = run.last + 1
        self._sent_pos = run.end.pos
        self._window.append((run.last, run.size, now))
        self._window_bytes += run.size
        if self.state is State.PROBE:
            self._waiting, self._probed = True, prev.index
        return Append(term, prev, run, log.commit.index)

    # -- answers -----------------------------------------------------------------------------------------

    def answered(self, answer: AppendAnswer, log: LogState) -> bool:
        """Take an answer of this term and link. Return whether `match` moved."""
        self.counts = answer.counts
        if answer.ok:
            return self._confirmed(answer.last, answer.durable, log)
        self._refused(answer, log)
        return False

    def heard(self, answer: HeartbeatAnswer, log: LogState, now: int) -> bool:
        """Handle a heartbeat's answer, which shows a peer's restart and lost frames. Return whether `match` moved."""
        self.is_able, self.counts = answer.able, answer.counts
        asked = self._asked.pop(answer.round, -1)
        if self.state is State.SNAPSHOT:
            return False
        if answer.last < asked:
            self.probe(self.match + 1)  # it forgot what it had compared: it was started again (issue 61)
            return False
        moved = self._confirmed(answer.last, answer.durable, log)
        for last, _size, sent in self._window:
            if (
                last > answer.last
            ):  # what was compared waits for a disk only; this one was perhaps never heard of
                if now - sent >= self._settings.resend_ms:
                    self.probe(max(self.match, answer.last) + 1)
                return moved
        if not self._window:
            self._waiting = False  # of an empty probe the question was lost, or the answer
        return moved

    def heartbeat_left(self, number: int) -> None:
        """Note that heartbeat `number` of this term was sent."""
        self._asked[number] = self.match
        if len(self._asked) > 64:
            del self._asked[min(self._asked)]

    def _confirmed(self, last: int, durable: int, log: LogState) -> bool:
        if not durable <= last <= log.end.index:
            raise RemoteProtocolError(
                f"{self.peer} confirms entries through {last}, {durable} on disk; the log here ends at {log.end.index}"
            )
        if self.state is State.PROBE and last >= self.next - 1:
            self.state = State.REPLICATE
            self._waiting = False
        while self._window and self._window[0][0] <= durable:
            self._window_bytes -= self._window.popleft()[1]
        if durable <= self.match:
            return False
        self.match = durable
        self.next = max(self.next, durable + 1)
        return True

    def _refused(self, answer: AppendAnswer, log: LogState) -> None:
        if self.state is State.SNAPSHOT or (self.state is State.PROBE and answer.prev != self._probed):
            return  # the refusal of a frame that was given up already
        if answer.prev < self.match or (self.state is State.REPLICATE and answer.last < self.match):
            return  # older than what this peer has confirmed since
        if answer.lacks_state:
            self.state, self._snapshot_at = State.SNAPSHOT, _NEVER
            return
        self.probe(log.terms.floor(min(answer.last, answer.prev - 1), answer.hint_term) + 1)
        self.match = min(self.match, self.next - 1)  # it lacks what it had confirmed: that disk was lost

    # -- beginning again ---------------------------------------------------------------------------------

    def probe(self, index: int) -> None:
        """Begin again at `index`, with one frame."""
        self.state = State.PROBE
        self.next = index
        self._waiting = False
        self._window.clear()
        self._window_bytes = 0

    def linked(self, is_linked: bool) -> None:
        """Begin again on another data link: what was on its way on the old one is lost."""
        self.is_linked = is_linked
        self._fetching = -1
        self._asked.clear()
        if self.state is State.SNAPSHOT:
            self.match = -1
            self.probe(self._began_at)  # it may have installed the snapshot, or needs another one
        else:
            self.probe(self.match + 1 if self.match >= 0 else self.next)

    def snapshot_goes_on(self, now: int) -> None:
        """Note that a piece of a snapshot has arrived."""
        self._snapshot_at = now

    def snapshot_ended(self, index: int) -> None:
        """Go on behind a snapshot that the peer has no need of (any more), or ask again where its log stands (-1)."""
        if self.state is State.SNAPSHOT:
            self.probe(max(index + 1 if index >= 0 else self._began_at, self.match + 1))
