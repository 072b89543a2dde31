"""`Election`: roles, ballots, pre-votes and votes of one member.

    CANDIDATE  --its time has come-->  pre-vote  --a majority would-->  vote, term + 1  --a majority did-->  LEADER
        ^                                                                                                       |
        +------------- a higher term, or no majority heard for one election timeout ----------------------------+
    FOLLOWER   a candidate or follower that heard the leader of its term

A *pre-vote* asks whether there would be a vote in the next term and changes nothing anywhere, so a member behind a
broken link comes back with the term it left with. It is refused by whoever heard a leader within the smallest election
timeout. Whom a member votes for, and its term, are the *ballot*: what depends on a ballot is kept in `_held` and
leaves in the step that hears that the ballot is on disk (rules 1 and 2).

`judge` is DLedger's table with its names, in our order: the first row that applies is the answer.

    the candidate has this member's own id             REJECT_UNEXPECTED_LEADER
    it is no voter, and its log says nothing new       REJECT_UNKNOWN_LEADER
    this member lost its log and is a learner          REJECT_LEARNER
    its term is below this member's                    REJECT_EXPIRED_VOTE_TERM
    a leader was heard lately, and it asked nobody     REJECT_ALREADY_HAS_LEADER     the term is not even looked at
    (a higher term of a vote, not of a pre-vote, becomes this member's term)
    the last term of its log is lower                  REJECT_EXPIRED_LEDGER_TERM
    equal, and the last index is lower                 REJECT_SMALL_LEDGER_END_INDEX
    voted for another in this term; leader known       REJECT_ALREADY_HAS_LEADER
    voted for another in this term                     REJECT_ALREADY_VOTED
    this member's doubt reaches further                ACCEPT_WITH_RESERVE
    otherwise                                          ACCEPT

A candidate whose log says more may be a voter by an entry that this member lacks, and so may this member: whoever is
asked answers, and the candidate counts by its own configuration. One that was removed does not disturb the others: it
campaigns only while it has not heard of its removal, and its pre-votes find members that hear a leader.

DLedger looks at the log first, so a candidate with an old log never learns of a newer term, and a leader that ignores
higher terms in answers lives beside it for ever (issue 325). REJECT_TERM_NOT_READY is never given: a higher term is
taken over and voted in within one step. REJECT_TERM_SMALL_THAN_LEDGER cannot arise: no term is below the last entry's.
REJECT_TAKING_LEADERSHIP is never given: a member that takes the lead has voted, for itself.

A leader that hands over (`transfer.py`) tells one follower to campaign at once. Its votes say `transfer`: the leader
itself asked for them, so they are not refused for its sake.
"""

from __future__ import annotations

from enum import Enum

from ha.raft.draft import Draft
from ha.raft.log_state import LogState
from ha.raft.membership import Readmission
from ha.raft.quorum import ConfigHistory, QuorumAckChecker
from ha.raft.types import (
    Ballot,
    MemberId,
    Message,
    Point,
    Role,
    Settings,
    Vote,
    VoteAnswer,
    VoteResult,
)

NEVER = -(1 << 60)
INDEX_FIRST_BYTES = 64 << 20
"""A member with more than this to index before it could open leaves the first chance to others."""

GRANTED = (VoteResult.ACCEPT, VoteResult.ACCEPT_WITH_RESERVE)
LOG_NOT_LONGER = (*GRANTED, VoteResult.REJECT_ALREADY_VOTED)
"""The answers of voters that looked at the candidate's log and have none that is longer."""


class Campaign(Enum):
    """The stage of a candidate's campaign."""

    NONE = "NONE"
    PRE_VOTE = "PRE_VOTE"
    SAVING = "SAVING"
    """Its own vote is on the way to the disk."""
    VOTE = "VOTE"


class Election:
    """The election logic of one member: its role, its term and its votes."""

    __slots__ = (
        "_answers",
        "_draw",
        "_held",
        "_is_handed_over",
        "_skipped",
        "ballot",
        "began_at",
        "campaign",
        "configs",
        "deadline",
        "doubt",
        "is_leaving",
        "leader",
        "leader_heard",
        "me",
        "now",
        "readmission",
        "role",
        "saved",
        "settings",
        "stuck",
        "why",
    )

    def __init__(
        self,
        me: MemberId,
        configs: ConfigHistory,
        settings: Settings,
        ballot: Ballot,
        doubt: Point | None,
        readmission: Readmission,
    ) -> None:
        self.me = me
        self.configs = configs
        self.readmission = readmission
        self.settings = settings
        self.ballot = ballot
        self.saved = ballot
        self.role = Role.CANDIDATE
        self.leader: MemberId | None = None
        self.why = "started"
        self.campaign = Campaign.NONE
        self.doubt = doubt
        """The furthest entry that recovery saw behind a hole: it may have been confirmed."""
        self.stuck = False
        self.is_leaving = False
        """Whether this member is about to stop: it does not campaign any more."""
        self.now = 0
        self.began_at: int | None = None
        """The time of the first event of this life."""
        self.leader_heard = NEVER
        self.deadline: int | None = None
        self._draw = 0.0
        self._skipped = False
        self._is_handed_over = False
        """Whether the leader itself asked for this campaign."""
        self._answers: dict[MemberId, VoteResult] = {}
        self._held: list[tuple[Ballot, MemberId, Message]] = []

    @property
    def term(self) -> int:
        """The current term, on disk or on its way there."""
        return self.ballot.term

    @property
    def quorum(self) -> QuorumAckChecker:
        """The counter of majorities under the configuration in force."""
        return self.configs.quorum

    # -- what depends on a ballot -------------------------------------------------------------------------

    def send_when_saved(self, draft: Draft, need: Ballot, peer: MemberId, message: Message) -> None:
        """Send a message once a ballot at least as new as `need` is on disk: now, or in the step that hears of it."""
        if self.saved.covers(need):
            draft.send(peer, message)
            return
        kind = type(message)  # a later message of its kind says what the earlier one would have said
        self._held = [held for held in self._held if held[1] != peer or type(held[2]) is not kind]
        self._held.append((need, peer, message))

    def ballot_saved(self, ballot: Ballot, log: LogState, draft: Draft) -> None:
        """Release the messages that have waited until this ballot was on disk."""
        assert ballot.covers(self.saved), f"rule 12: ballots are saved in order: {ballot} after {self.saved}"
        self.saved = ballot
        held, self._held = self._held, []
        for need, peer, message in held:
            if message.term < self.term:
                continue  # nobody waits for it any more
            self.send_when_saved(draft, need, peer, message)
        if self.campaign is Campaign.SAVING and ballot == self.ballot:
            self._ask(Campaign.VOTE, self.term, log, draft)

    def _save(self, ballot: Ballot, draft: Draft) -> None:
        assert ballot.covers(self.ballot) or ballot.term == self.term, (ballot, self.ballot)
        assert ballot.term > self.term or self.ballot.vote in ("", ballot.vote), (
            f"rule 12: two votes in term {self.term}: {self.ballot.vote} and {ballot.vote}"
        )
        self.ballot = ballot
        draft.save = ballot

    # -- roles -------------------------------------------------------------------------------------------

    def raise_term(self, term: int, why: str, draft: Draft) -> None:
        """Take over a higher term, in which no leader is known yet."""
        assert term > self.term, (term, self.term)
        self._save(Ballot(term), draft)
        self.become_candidate(why)

    def become_candidate(self, why: str) -> None:
        """Forget the leader; a leader is one no longer."""
        if self.role is not Role.CANDIDATE:
            self.set_deadline()
            self.why = why
        self.role = Role.CANDIDATE
        self.leader = None
        self.leader_heard = NEVER
        self.campaign = Campaign.NONE
        self._is_handed_over = False

    def become_learner(self, why: str) -> None:
        """End every campaign and promise of a member that is told that it had lost its log."""
        self.become_candidate(why)
        self._held.clear()

    def heard_leader(self, leader: MemberId) -> None:
        """Note a message of the leader of this term: follow it, and wait a whole timeout from now on."""
        assert self.role is not Role.LEADER and self.leader in (None, leader), (
            f"rule 6: {leader} leads term {self.term}, and so does {self.leader or self.me}"
        )
        if self.role is not Role.FOLLOWER:
            self.role, self.leader, self.campaign = Role.FOLLOWER, leader, Campaign.NONE
            self.why = f"{leader} leads"
        self.leader_heard = self.now
        self._skipped = False
        self.set_deadline()

    def set_deadline(self) -> None:
        """Choose when this member campaigns, if it hears of no leader before."""
        self.deadline = self.now + self._timeout()

    def _timeout(self) -> int:
        low, high, draw = self.settings.election_min_ms, self.settings.election_max_ms, self._draw
        preferred = self._preferred
        if preferred and self.leader is None and self.campaign is not Campaign.NONE:
            preferred = ()  # a chance has passed: from now on all draw alike
        if preferred:
            draw = draw / 2 if self.me in preferred else 0.5 + draw / 2
        return low + int(draw * (high - low))

    @property
    def _preferred(self) -> tuple[MemberId, ...]:
        return self.settings.preferred_of(self.configs.in_force.voters)

    def link_lost(self, peer: MemberId) -> None:
        """Hurry to the next leader if it was the link to this one, unless leases may be read under it (rule 7)."""
        if peer != self.leader or self.settings.lease_reads or self.deadline is None:
            return
        low, high = self.settings.rush_min_ms, self.settings.rush_max_ms
        self.leader_heard = NEVER
        self.deadline = min(self.deadline, self.now + low + int(self._draw * (high - low)))

    def hurry(self) -> None:
        """Let the first campaign of a new group come soon: the others have heard of it with a heartbeat.

        Preferred members come a heartbeat before the others, who may have heard of it first.
        """
        settings, preferred = self.settings, self._preferred
        beats = 2 if preferred and self.me not in preferred else 1
        rush = settings.rush_min_ms + int(self._draw * (settings.rush_max_ms - settings.rush_min_ms))
        self.deadline = self.now + beats * settings.heartbeat_ms + rush

    @property
    def is_protecting(self) -> bool:
        """Tell whether this member leads, or heard a leader within the smallest election timeout.

        Where there are leases, a member that begins may have heard one in its life before.
        """
        since = self.now - self.settings.election_min_ms
        may_have_heard = self.settings.lease_reads and self.began_at is not None and self.began_at > since
        return self.role is Role.LEADER or self.leader_heard > since or may_have_heard

    @property
    def may_vote(self) -> bool:
        """Tell whether this member answers for its log: it has not lost one that others may still count."""
        return not self.readmission.is_learner

    def may_lead(self, log: LogState) -> bool:
        """Tell whether this member campaigns: it may vote, lacks no state, and is a voter as far as it knows.

        One that an entry leaves out which is not committed may be the only member that can commit it.
        """
        is_whole = self.may_vote and not self.settings.lacks_state
        return is_whole and self.configs.has_voter(self.me, log.commit.index)

    # -- campaigns ---------------------------------------------------------------------------------------

    def tick(self, late: int, draw: float, log: LogState, unindexed: int, draft: Draft) -> None:
        """Campaign if the time has come. Rule 8: a late loop was deaf, which says nothing about the leader."""
        self._draw = draw
        if self.role is Role.LEADER:
            return
        if self.deadline is None:
            self.set_deadline()
            if self.settings.is_newborn:
                self.hurry()
        assert self.deadline is not None
        if late > self.settings.late_max_ms:
            self.deadline += late
            return
        if self.now < self.deadline:
            return
        if self.stuck or self.is_leaving or not self.may_lead(log):
            self.set_deadline()
        elif unindexed > INDEX_FIRST_BYTES and not self._skipped:
            self._skipped = True
            self.set_deadline()
        else:
            self.become_candidate("the leader was not heard")
            self._ask(Campaign.PRE_VOTE, self.term + 1, log, draft)
            self.set_deadline()

    def is_able(self, log: LogState, unindexed: int) -> bool:
        """Return whether this member could lead soon, with so many bytes to index before it opens (rule 8)."""
        if self.stuck or self.is_leaving or unindexed > INDEX_FIRST_BYTES:
            return False
        return self.may_lead(log)

    def take_lead(self, log: LogState, unindexed: int, draft: Draft) -> None:
        """Campaign at once, since the leader hands over: it has seen that this log lacks nothing."""
        if not self.is_able(log, unindexed):
            return
        self.become_candidate(f"{self.leader} hands over")
        self._is_handed_over = True
        self._save(Ballot(self.term + 1, self.me), draft)
        self.campaign = Campaign.SAVING
        self.set_deadline()

    def _ask(self, campaign: Campaign, term: int, log: LogState, draft: Draft) -> None:
        self.campaign = campaign
        last = log.end
        is_in_doubt = self.doubt is not None and _is_longer(self.doubt, last.term, last.index)
        self._answers = {self.me: VoteResult.ACCEPT_WITH_RESERVE if is_in_doubt else VoteResult.ACCEPT}
        is_pre = campaign is Campaign.PRE_VOTE
        vote = Vote(term, last.index, last.term, pre=is_pre, transfer=self._is_handed_over)
        for peer in self.quorum.voters:
            if peer != self.me:
                draft.send(peer, vote)
        self._count(log, draft)

    def answered(self, peer: MemberId, answer: VoteAnswer, log: LogState, draft: Draft) -> None:
        """Count an answer to the vote or pre-vote that is under way; any other counts for nothing."""
        if self.campaign is not (Campaign.PRE_VOTE if answer.pre else Campaign.VOTE):
            return
        expected = self.term + (answer.pre and answer.result in GRANTED)
        if answer.result in LOG_NOT_LONGER and answer.term != expected:
            return  # of an earlier round
        if peer in self.quorum.voters:
            self._answers[peer] = answer.result
            self._count(log, draft)

    def _count(self, log: LogState, draft: Draft) -> None:
        if not self.quorum.is_majority(self._granted()):
            return
        if self.campaign is Campaign.PRE_VOTE:
            self._save(Ballot(self.term + 1, self.me), draft)
            self.campaign = Campaign.SAVING
            self.set_deadline()
        else:
            self.role, self.leader, self.campaign = Role.LEADER, self.me, Campaign.NONE
            self.why = "elected"

    def _granted(self) -> list[MemberId]:
        """The members whose grant counts. Rule 10: one with reserve counts if no voter at all has a longer log."""
        answers = self._answers
        all_shorter = all(answers.get(voter) in LOG_NOT_LONGER for voter in self.quorum.voters)
        return [
            voter
            for voter, result in answers.items()
            if result is VoteResult.ACCEPT or (result is VoteResult.ACCEPT_WITH_RESERVE and all_shorter)
        ]

    # -- voting ------------------------------------------------------------------------------------------

    def asked(self, candidate: MemberId, vote: Vote, log: LogState, draft: Draft) -> None:
        """Answer a vote or pre-vote, by the table above."""
        result = self.judge(candidate, vote, log, draft)
        granted = result in GRANTED
        if granted and not vote.pre:
            if not self.ballot.vote:
                self._save(Ballot(self.term, candidate), draft)
            self.set_deadline()
        elif granted:
            self._give_way(candidate)
        answer = VoteAnswer(vote.term if granted else self.term, vote.pre, result)
        need = self.ballot if granted and not vote.pre else Ballot(self.term)
        self.send_when_saved(draft, need, candidate, answer)

    def _give_way(self, candidate: MemberId) -> None:
        """Let a candidate that was granted a pre-vote go first: two that ask for votes at once split them.

        Of two that are at their pre-votes at the same time, the one with the smaller id goes on.
        """
        if self.campaign is Campaign.PRE_VOTE and candidate < self.me:
            self.campaign = Campaign.NONE
        if self.deadline is not None:
            self.deadline = max(self.deadline, self.now + self.settings.rush_max_ms)

    def judge(self, candidate: MemberId, vote: Vote, log: LogState, draft: Draft) -> VoteResult:
        """Return the answer to a vote, and take over its higher term unless this member protects a leader."""
        if candidate == self.me:
            return VoteResult.REJECT_UNEXPECTED_LEADER
        knows_more = (vote.last_term, vote.last_index) > (log.end.term, log.end.index)
        if not knows_more and not self.configs.has_voter(candidate, log.commit.index):
            return VoteResult.REJECT_UNKNOWN_LEADER
        if not self.may_vote:
            return VoteResult.REJECT_LEARNER
        if vote.term < self.term:
            return VoteResult.REJECT_EXPIRED_VOTE_TERM
        if self.is_protecting and not vote.transfer:
            return VoteResult.REJECT_ALREADY_HAS_LEADER
        if vote.term > self.term and not vote.pre:
            self.raise_term(vote.term, f"{candidate} asked for votes in a higher term", draft)
        end = log.end
        if vote.last_term < end.term:
            return VoteResult.REJECT_EXPIRED_LEDGER_TERM
        if vote.last_term == end.term and vote.last_index < end.index:
            return VoteResult.REJECT_SMALL_LEDGER_END_INDEX
        if vote.term == self.term and self.ballot.vote not in ("", candidate):
            return (
                VoteResult.REJECT_ALREADY_HAS_LEADER
                if self.leader is not None
                else VoteResult.REJECT_ALREADY_VOTED
            )
        if self.doubt is not None and _is_longer(self.doubt, vote.last_term, vote.last_index):
            return VoteResult.ACCEPT_WITH_RESERVE
        return VoteResult.ACCEPT

    def doubt_ends(self, log: LogState, leader_commit: int) -> bool:
        """Return whether doubt ends here: the log has reached a commit index that a leader gave in its own term."""
        if self.doubt is None or leader_commit < 0 or min(log.commit.index, log.durable) < leader_commit:
            return False
        if log.terms.term_at(leader_commit) != self.term:
            return False  # known from an earlier leader: more may have been committed since
        self.doubt = None
        return True


def _is_longer(point: Point, term: int, index: int) -> bool:
    return (point.term, point.index) > (term, index)
