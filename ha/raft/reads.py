"""`Reads`: linearizable reads by read-index, on any member. A read that begins after a write was answered sees it.

    leader     R = its commit index; a round of heartbeats, begun afterwards, is answered by a quorum in this term:
               nobody else has committed anything meanwhile. Then the read waits until R is applied here
    follower   asks the leader for R with one message for all reads of a moment, then waits until R is applied here

All reads that are asked while a round is under way share the next one: a round never serves a read that came after it
left. Nothing is served before the leader has committed an entry of its own term: until then its commit index may be
older than what the leader before it answered.

*Leases* (`raftLeaseReads`, off by default) spare the round. A member that heard its leader refuses votes for the
smallest election timeout; so once a quorum has answered a round, nobody else can lead for that long from the moment in
which the round left, and not from the one in which its answers came. Nine tenths of it are used: the clocks of members
may differ in rate by a tenth. The lease is over for the rest of the term once another member was told to
take the lead, since that member's votes are not refused. All members have leases, or none: a member without campaigns
as soon as its link to the leader breaks, and one that starts anew has to refuse votes for one timeout as if it had
heard a leader. A read is served at a moment behind its question at which the lease held: so it need not hold any more
when the state is looked at.

A read outlives a change of leader: it is asked again of the next one. After two seconds it is refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final

from msgspec import Struct

from ha.raft.draft import Draft
from ha.raft.quorum import QuorumAckChecker
from ha.raft.types import MemberId, Message, Read, ReadAnswer, Settings

PATIENCE_MS: Final = 2_000
NEVER: Final = -(1 << 60)


class _Group(Struct):
    """The reads that wait for one round of heartbeats."""

    round: int
    index: int
    tokens: list[int]
    forwarded: list[tuple[MemberId, int]]


class Reads:
    """The reads that are under way at one member."""

    __slots__ = (
        "_acked",
        "_again_at",
        "_asked",
        "_deadlines",
        "_forwarded",
        "_groups",
        "_known",
        "_lease_ms",
        "_lease_until",
        "_leader",
        "_me",
        "_number",
        "_order",
        "_resend_ms",
        "_rounds",
        "_send",
        "_sent",
        "_term",
    )

    def __init__(
        self, me: MemberId, settings: Settings, send: Callable[[Draft, MemberId, Message], None]
    ) -> None:
        """`send` sends a message once the ballot of this term is on disk."""
        self._me = me
        self._lease_ms = settings.election_min_ms * 9 // 10 if settings.lease_reads else 0
        self._lease_until = NEVER
        self._rounds: deque[tuple[int, int]] = deque()
        """The rounds of this term that a quorum has not answered, and when each left; nothing without leases."""
        self._send = send
        self._resend_ms = settings.heartbeat_ms
        """How long an answer of the leader may take before it is asked again."""
        self._term = -1
        self._leader: MemberId | None = None
        self._deadlines: dict[int, int] = {}
        """When each read that is not served is refused, by its token."""
        self._asked: list[int] = []
        """Reads that wait for a round, or for a question to the leader, that is still to leave."""
        self._forwarded: list[tuple[MemberId, int]] = []
        """Questions of followers that wait for a round: whose, and under which number."""
        self._groups: deque[_Group] = deque()
        self._acked: dict[MemberId, int] = {}
        """The newest round of this term that each peer has answered."""
        self._sent: list[int] = []
        """Reads whose question to the leader is under way, as number `_number`."""
        self._number = 0
        self._again_at = 0
        self._known: list[tuple[int, int, int]] = []
        """A heap of (index, order, token): reads that wait until the index is applied."""
        self._order = 0

    def ask(self, token: int, now: int) -> None:
        """Begin a read."""
        self._deadlines[token] = now + PATIENCE_MS
        self._asked.append(token)

    # -- a leader ----------------------------------------------------------------------------------------

    def forwarded(self, peer: MemberId, number: int, is_open: bool, term: int, draft: Draft) -> None:
        """Take a follower's question; refuse it before the own term's first commit."""
        if is_open:
            self._forwarded.append((peer, number))
        else:
            draft.send(peer, ReadAnswer(term, number, -1))

    def unlinked(self, peer: MemberId) -> None:
        """Forget the questions of a follower whose link ended: in its next life it counts its questions anew."""
        self._forwarded = [asked for asked in self._forwarded if asked[0] != peer]
        for group in self._groups:
            group.forwarded = [asked for asked in group.forwarded if asked[0] != peer]

    @property
    def wants_round(self) -> bool:
        """Return whether a round of heartbeats should leave now: reads wait, and none is under way."""
        return bool(self._asked or self._forwarded) and not self._groups

    def round_left(self, number: int, commit: int, now: int) -> None:
        """Note that a round left, of a leader that has committed an entry of its own term."""
        if self._lease_ms:
            self._rounds.append((number, now))
        if self._asked or self._forwarded:
            self._groups.append(_Group(number, commit, self._asked, self._forwarded))
            self._asked, self._forwarded = [], []

    def round_answered(self, peer: MemberId, number: int) -> None:
        """Note that a peer has answered a round of this term."""
        self._acked[peer] = max(number, self._acked.get(peer, -1))

    def has_lease(self, now: int) -> bool:
        """Return whether no other member can have led until now."""
        return now < self._lease_until

    def serve_by_lease(self, commit: int, draft: Draft) -> None:
        """Serve the reads that wait for a round, at the commit index of a leader whose lease holds."""
        tokens, self._asked = self._asked, []
        self._learn(tokens, commit)
        forwarded, self._forwarded = self._forwarded, []
        for peer, number in forwarded:
            draft.send(peer, ReadAnswer(self._term, number, commit))

    def _renew_lease(self, quorum: QuorumAckChecker) -> None:
        while self._rounds:
            number, left_at = self._rounds[0]
            if not quorum.is_majority(
                [self._me, *(peer for peer, last in self._acked.items() if last >= number)]
            ):
                return
            self._rounds.popleft()
            self._lease_until = left_at + self._lease_ms

    def _serve_rounds(self, quorum: QuorumAckChecker, draft: Draft) -> None:
        while self._groups:
            group = self._groups[0]
            answered = [peer for peer, number in self._acked.items() if number >= group.round]
            if not quorum.is_majority([self._me, *answered]):
                return
            self._groups.popleft()
            self._learn(group.tokens, group.index)
            for peer, number in group.forwarded:
                draft.send(peer, ReadAnswer(self._term, number, group.index))

    # -- a follower --------------------------------------------------------------------------------------

    def answered(self, answer: ReadAnswer, now: int) -> None:
        """Take the leader's answer to the question that is under way; any other counts for nothing."""
        if answer.number != self._number or not self._sent:
            return
        tokens, self._sent = self._sent, []
        if answer.index < 0:
            self._asked = tokens + self._asked
            self._again_at = now + self._resend_ms // 2
        else:
            self._again_at = now  # reads that came meanwhile ask at once
            self._learn(tokens, answer.index)

    def _ask_leader(self, now: int, draft: Draft) -> None:
        if self._leader is None or self._leader == self._me:
            return
        if self._sent and now >= self._again_at:
            self._asked, self._sent = self._sent + self._asked, []  # the question was lost, or its answer
            self._again_at = now
        if self._asked and not self._sent and now >= self._again_at:
            self._number += 1
            self._sent, self._asked = self._asked, []
            self._again_at = now + self._resend_ms
            self._send(draft, self._leader, Read(self._term, self._number))

    # -- every member ------------------------------------------------------------------------------------

    def _learn(self, tokens: list[int], index: int) -> None:
        for token in tokens:
            if token in self._deadlines:
                self._order += 1
                heappush(self._known, (index, self._order, token))

    def changed(self, leader: MemberId | None, term: int, now: int) -> None:
        """Ask the next leader for the reads that the one before was asked for."""
        if (leader, term) == (self._leader, self._term):
            return
        self._leader, self._term = leader, term
        again = [token for group in self._groups for token in group.tokens]
        self._asked = [*again, *self._sent, *self._asked]
        self._sent, self._forwarded, self._again_at = [], [], now
        self._groups.clear()
        self._acked.clear()
        self._rounds.clear()
        self._lease_until = NEVER

    def tick(self, now: int, draft: Draft) -> None:
        """Refuse the reads whose time has passed."""
        for token in [token for token, deadline in self._deadlines.items() if now >= deadline]:
            del self._deadlines[token]
            draft.reads.append((token, False))

    def conclude(self, quorum: QuorumAckChecker, applied: int, now: int, draft: Draft) -> None:
        """At the end of a step: send the question that is due, and serve the reads whose index is applied."""
        if self._rounds:
            self._renew_lease(quorum)
        if not self._deadlines and not self._groups:
            return
        self._serve_rounds(quorum, draft)
        self._ask_leader(now, draft)
        while self._known and self._known[0][0] <= applied:
            token = heappop(self._known)[2]
            if self._deadlines.pop(token, None) is not None:
                draft.reads.append((token, True))
