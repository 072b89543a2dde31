"""`Transfers`: a leader hands the lead over to a member that has everything. JRaft's TimeoutNow, DLedger's transfer.

    asked      the leader takes no messages any more (LEADER_TRANSFERRING), and what it has goes to the target
    caught up  all of it is on the target's disk, committed and applied here: those who wait have their answers; and
               the target can lead, as it said last
    told       TakeLead: the target campaigns at once, without a pre-vote, and nobody's protection refuses its votes
    over       the target leads; or its time, one election timeout, has passed, and this leader takes messages again

A TakeLead that comes late is harmless: the votes decide as ever, so the target leads only with a log that has all that
was committed. It may depose a leader that had given the transfer up, which costs an election and nothing else.

A *preferred* leader takes over in the same way: once a second a leader that is none of `preferredLeaderId` looks for
one of them that lives and lacks little. Where that fails, it looks half as often each time, once a minute at last.
A leader that is *stuck*, its disk being full, looks in the same way for any member that is not. It goes on leading
where those do not make a quorum: nobody could take messages then, and readers need a leader.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from ha.raft.dispatcher import EntryDispatcher
from ha.raft.draft import Draft
from ha.raft.leadership import Leadership
from ha.raft.log_state import LogState
from ha.raft.quorum import QuorumAckChecker
from ha.raft.types import MemberId, Point, Settings, TakeLead, TransferResult

PREFERRED_FIRST_MS = 1_000
PREFERRED_MAX_MS = 60_000


class Transfer(Struct):
    """A transfer that is under way."""

    token: int | None
    """None: nobody asked; a preferred leader is to lead, or one whose disk has room."""
    target: MemberId
    term: int
    """The term of the leader that hands over."""
    deadline: int
    told_at: int | None = None
    """When the target was told last."""


class Transfers:
    """The transfers that a member begins while it leads, one at a time."""

    __slots__ = (
        "_leave_in",
        "_leave_until",
        "_look_at",
        "_me",
        "_pause_ms",
        "_settings",
        "_told_in",
        "_was_stuck",
        "current",
    )

    def __init__(self, me: MemberId, settings: Settings) -> None:
        self.current: Transfer | None = None
        self._me = me
        self._settings = settings
        self._pause_ms = PREFERRED_FIRST_MS
        self._look_at: int | None = None
        """When this leader looks for a better one."""
        self._was_stuck = False
        self._leave_in = -1
        """The term in which this leader was found to be no voter, and when it steps down if nobody takes over."""
        self._leave_until = 0
        self._told_in = -1
        """The term in which another member was told last to take the lead."""

    def may_be_followed(self, term: int) -> bool:
        """Return whether another member was told to take the lead of this term's leader: it may do so at any time."""
        return self._told_in == term

    def fences(self, term: int) -> bool:
        """Return whether the leader of `term` takes no messages because it hands over."""
        return self.current is not None and self.current.term == term

    # -- to begin ----------------------------------------------------------------------------------------

    def ask(
        self,
        token: int,
        target: MemberId,
        leadership: Leadership | None,
        quorum: QuorumAckChecker,
        log: LogState,
        applied: Point,
        now: int,
        draft: Draft,
    ) -> None:
        """Begin a transfer to `target`, or to the member that lacks least ("")."""
        refusal, chosen = self._judge(target, leadership, quorum, log, applied, now)
        if refusal is not None:
            draft.done.append((token, refusal))
        else:
            assert leadership is not None
            self._begin(token, chosen, leadership.term, now)

    def _judge(
        self,
        target: MemberId,
        leadership: Leadership | None,
        quorum: QuorumAckChecker,
        log: LogState,
        applied: Point,
        now: int,
    ) -> tuple[TransferResult | None, MemberId]:
        if leadership is None:
            return TransferResult.NOT_LEADER, ""
        if target == self._me:
            return TransferResult.SUCCESS, ""
        voters = quorum.config.voters  # of a joint configuration: those that stay
        if target and target not in voters:
            return TransferResult.UNKNOWN_MEMBER, ""
        if self.current is not None:
            return TransferResult.LEADER_TRANSFERRING, ""
        if not _is_open(leadership, applied):
            return TransferResult.NOT_READY, ""
        named = [target] if target else [voter for voter in voters if voter != self._me]
        ready = [peer for peer in named if self._could_lead(peer, leadership, now)]
        if not ready:
            return TransferResult.UNREACHABLE, ""
        best = _closest(leadership.dispatchers, ready)
        if not self._is_close(leadership.dispatchers[best], log):
            return TransferResult.FALL_BEHIND_TOO_MUCH, ""
        return None, best

    def _could_lead(self, peer: MemberId, leadership: Leadership, now: int) -> bool:
        dispatcher = leadership.dispatchers.get(peer)
        heard = leadership.heard_at(peer)
        return (
            dispatcher is not None
            and dispatcher.is_linked
            and dispatcher.is_able
            and heard >= now - self._settings.election_min_ms
        )

    def _is_close(self, dispatcher: EntryDispatcher, log: LogState) -> bool:
        """Return whether the peer has nearly everything: under load a thousand entries are a few milliseconds."""
        lacking = log.end.index - dispatcher.match
        return lacking < self._settings.transfer_lag_max or dispatcher.match >= log.commit.index

    def _begin(self, token: int | None, target: MemberId, term: int, now: int) -> None:
        self.current = Transfer(token, target, term, now + self._settings.election_max_ms)

    def leave(self, leadership: Leadership, quorum: QuorumAckChecker, log: LogState, now: int) -> bool:
        """Hand over because the group has another configuration; return False once it is time to step down."""
        if self.current is not None:
            self._leave_in, self._leave_until = leadership.term, now  # messages are not refused twice as long
            return True
        if self._leave_in != leadership.term:
            self._leave_in, self._leave_until = leadership.term, now + self._settings.election_max_ms
        if now >= self._leave_until:
            return False
        ready = [peer for peer in quorum.config.voters if self._could_lead(peer, leadership, now)]
        close = [peer for peer in ready if self._is_close(leadership.dispatchers[peer], log)]
        if close:
            self._begin(None, _closest(leadership.dispatchers, close), leadership.term, now)
        return True

    # -- while this member leads -------------------------------------------------------------------------

    def tick(
        self,
        leadership: Leadership | None,
        quorum: QuorumAckChecker,
        log: LogState,
        applied: Point,
        stuck: bool,
        now: int,
        draft: Draft,
    ) -> None:
        """Give up a transfer whose time has passed, and look for a better leader."""
        current = self.current
        if current is not None and now >= current.deadline:
            self._end(TransferResult.TAKE_LEADERSHIP_FAILED, now, draft)
            # Messages are taken between two transfers: one that follows at once would refuse them twice as long.
            self._look_at = now + self._pause_ms
        if stuck is not self._was_stuck:
            self._was_stuck, self._look_at, self._pause_ms = stuck, None, PREFERRED_FIRST_MS
        better = self._better(leadership, quorum, stuck)
        if leadership is None or not better:
            self._look_at = None
            return
        if self._look_at is None:
            self._look_at = now + self._pause_ms
        if now < self._look_at or self.current is not None or not _is_open(leadership, applied):
            return
        self._look_at = now + self._pause_ms
        ready = [
            peer
            for peer in better
            if self._could_lead(peer, leadership, now) and self._is_close(leadership.dispatchers[peer], log)
        ]
        if ready:
            self._begin(None, _closest(leadership.dispatchers, ready), leadership.term, now)

    def _better(
        self, leadership: Leadership | None, quorum: QuorumAckChecker, stuck: bool
    ) -> tuple[MemberId, ...]:
        """Return the members that should lead in place of this one, if they could."""
        preferred = self._settings.preferred_of(quorum.config.voters)
        if stuck:
            return leadership.able_quorum(quorum) if leadership is not None else ()
        return (
            () if self._me in preferred else tuple(peer for peer in preferred if peer in quorum.config.voters)
        )

    def send_what_is_due(
        self, leadership: Leadership, log: LogState, applied: Point, now: int, draft: Draft
    ) -> None:
        """Tell the target to lead once it has everything; again with each heartbeat, for a message may be lost."""
        current = self.current
        if current is None:
            return
        assert current.term == leadership.term, (current, leadership.term)
        dispatcher = leadership.dispatchers[current.target]
        if not dispatcher.is_linked:
            self._end(TransferResult.TAKE_LEADERSHIP_FAILED, now, draft)
            return
        if not dispatcher.is_able:
            return  # for a moment, mostly: it waits for room in its log while a segment is made
        if current.told_at is not None and now - current.told_at < self._settings.heartbeat_ms:
            return
        if dispatcher.match == log.end.index == log.commit.index == applied.index:
            current.told_at, self._told_in = now, current.term
            draft.send(current.target, TakeLead(current.term))

    # -- to end ------------------------------------------------------------------------------------------

    def followed(self, leader: MemberId | None, term: int, now: int, draft: Draft) -> None:
        """End the transfer of a member that leads no more, once the next leader is known."""
        current = self.current
        if current is not None and leader is not None and term > current.term:
            success = leader == current.target
            self._end(
                TransferResult.SUCCESS if success else TransferResult.TAKE_LEADERSHIP_FAILED, now, draft
            )

    def _end(self, result: TransferResult, now: int, draft: Draft) -> None:
        current, self.current = self.current, None
        assert current is not None
        if current.token is not None:
            draft.done.append((current.token, result))
        elif result is TransferResult.SUCCESS:
            self._pause_ms = PREFERRED_FIRST_MS
        else:
            self._pause_ms = min(2 * self._pause_ms, PREFERRED_MAX_MS)
            self._look_at = now + self._pause_ms


def _is_open(leadership: Leadership, applied: Point) -> bool:
    return 0 <= leadership.term_first <= applied.index


def _closest(dispatchers: dict[MemberId, EntryDispatcher], ready: Iterable[MemberId]) -> MemberId:
    """Return the peer that lacks least; of equal ones, the one that stands first."""
    return max(ready, key=lambda peer: dispatchers[peer].match)
