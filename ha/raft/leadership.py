"""`Leadership`: what a member has while it leads, and loses with its term.

One dispatcher for each peer, the runs that it appended, whom it has heard. In every step it orders the record that
opens its term, if that is still to do, sends the heartbeats that are due, then to each peer what that peer has room
for: so a wake-up that was lost is made up for by the next step, whatever it is.
"""

from __future__ import annotations

from collections.abc import Callable

from ha.raft.dispatcher import EntryDispatcher, RecentRuns
from ha.raft.draft import Draft
from ha.raft.log_state import LogState
from ha.raft.quorum import QuorumAckChecker
from ha.raft.reads import Reads
from ha.raft.types import Heartbeat, MemberId, Point, Run, Settings

NEVER = -(1 << 60)


class Leadership:
    """The leader's side of one term."""

    __slots__ = (
        "_heard",
        "_heartbeat_at",
        "_is_opening",
        "_me",
        "_parting",
        "_recent",
        "_round",
        "_settings",
        "dispatchers",
        "term",
        "term_first",
    )

    def __init__(
        self,
        me: MemberId,
        term: int,
        peers: tuple[MemberId, ...],
        settings: Settings,
        end: Point,
        is_linked: Callable[[MemberId], bool],
        now: int,
    ) -> None:
        self.term = term
        self.term_first = -1
        """The index of the entry that opened the term; -1 until it is appended."""
        self.dispatchers = {peer: EntryDispatcher(peer, settings, end, is_linked(peer)) for peer in peers}
        self._me = me
        self._settings = settings
        self._recent = RecentRuns()
        self._heard = dict.fromkeys(peers, now)
        """When each peer was heard, shifted by the lateness of the own loop."""
        self._heartbeat_at = NEVER
        self._round = 0
        self._is_opening = False
        """Whether the record that opens the term was ordered."""
        self._parting: dict[MemberId, int] = {}
        """Members that are none any more, and until when they are told so: they hear it from nobody else."""

    def configure(
        self,
        peers: tuple[MemberId, ...],
        end: Point,
        is_linked: Callable[[MemberId], bool],
        now: int,
    ) -> None:
        """Go on with these peers; those that are none any more get the log for one election timeout."""
        for peer in peers:
            self._parting.pop(peer, None)
            if peer not in self.dispatchers:
                self.dispatchers[peer] = EntryDispatcher(peer, self._settings, end, is_linked(peer))
                self._heard[peer] = now
        for peer in self.dispatchers:
            if peer not in peers:
                self._parting.setdefault(peer, now + self._settings.election_max_ms)

    def part(self, now: int) -> None:
        """Leave those that are no members and were told for long enough."""
        for peer in [peer for peer, until in self._parting.items() if now >= until]:
            del self._parting[peer], self.dispatchers[peer], self._heard[peer]

    def heard(self, peer: MemberId, now: int) -> None:
        """Note a message of this term."""
        if peer in self._heard:
            self._heard[peer] = now

    def heard_at(self, peer: MemberId) -> int:
        """Return when a peer was heard last, or this leadership began."""
        return self._heard[peer]

    def was_late(self, late: int) -> None:
        """Note that the own loop was deaf for so long: what was sent to it meanwhile is still unread."""
        for peer in self._heard:
            self._heard[peer] += late

    def hears_majority(self, quorum: QuorumAckChecker, now: int) -> bool:
        """Return whether a majority was heard within one election timeout (rule 8)."""
        heard = self.heard_within(self._settings.election_max_ms, now)
        return quorum.is_majority([self._me, *(peer for peer in heard if self.dispatchers[peer].counts)])

    def heard_within(self, ms: int, now: int) -> list[MemberId]:
        """Return the peers that were heard in the last so many ms."""
        return [peer for peer, at in self._heard.items() if at >= now - ms]

    def able_quorum(self, quorum: QuorumAckChecker) -> tuple[MemberId, ...]:
        """Return the voters that could lead, if these could commit entries without this member; else none."""
        able = [
            peer
            for peer, each in self.dispatchers.items()
            if each.is_linked and each.is_able and peer in quorum.config.voters
        ]
        return tuple(able) if quorum.is_majority(able) else ()

    def appended(self, prev: Point, run: Run) -> None:
        """Note a run that was appended behind `prev`, for the dispatchers to send."""
        assert run.term == self.term and run.first == prev.index + 1, (run, prev, self.term)
        self._recent.add(prev, run)
        if self.term_first < 0:
            self.term_first = run.first

    def acknowledged(self, quorum: QuorumAckChecker, durable: int) -> int:
        """Return the largest index that may be committed: on a majority of disks, and behind the term's first (rule 3).

        -1 if there is none.
        """
        match = {peer: each.match for peer, each in self.dispatchers.items() if each.counts}
        match[self._me] = durable
        index = quorum.acknowledged(match)
        if self.term_first < 0 or index < self.term_first:
            return -1
        return index

    def send_what_is_due(
        self, quorum: QuorumAckChecker, log: LogState, stuck: bool, reads: Reads, now: int, draft: Draft
    ) -> None:
        """Fill in the messages and reads that are due at the end of a leader's step."""
        if not self._is_opening and not log.is_cutting and not stuck:
            self._is_opening = True
            draft.open_term = quorum.config
        is_open = 0 <= self.term_first <= log.commit.index
        if now - self._heartbeat_at >= self._settings.heartbeat_ms or (is_open and reads.wants_round):
            self._heartbeat_at = now
            self._round += 1
            if is_open:
                reads.round_left(self._round, log.commit.index, now)
            for peer, dispatcher in self.dispatchers.items():
                dispatcher.heartbeat_left(self._round)
                draft.send(peer, Heartbeat(self.term, log.commit.index, self._round))
        for peer, dispatcher in self.dispatchers.items():
            while (append := dispatcher.next_send(log, self._recent, self.term, now)) is not None:
                draft.send(peer, append)
            if (fetch := dispatcher.next_fetch(log, now)) is not None:
                draft.fetches.append(fetch)
            if dispatcher.needs_snapshot(now):
                draft.snapshot_to.append(peer)
