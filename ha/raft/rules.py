"""The rules of this core, as assertions that stay on in production. `RaftNode.step` ends with `check`.

     1  nothing that is sent depends on a write that is under way          here
     2  a vote or an answer leaves under a saved ballot; what it           here
        confirms is on disk
     3  only entries of the own term are committed by counting             here, called where a leader commits
     4  a follower commits what it has on disk                             here
     5  no cut reaches below commit                                        here and in log_state.py
     6  one leader in a term                                               election.py, `heard_leader`
     7  a leader that was heard is protected                               here: no follower asks for votes
     8  nobody campaigns who could not lead: stuck, or no voter            here
     9  a leader's uncommitted bytes are bounded                           here: it says that it may not append
    10  a vote with reserve counts if no voter has a longer log            election.py, `_granted`
    11  the window of a peer is bounded                                    here
    12  one vote in a term; terms and commit never fall;                   here; votes and their order in election.py
        applied <= commit <= end; match < next
    13  the lead is handed to a member that has everything,           here
        by a leader that takes no messages meanwhile
    14  a member that lost its log grants no vote and counts for no   here
        majority until it has caught up
    15  one change of members at a time, in the own term, and by a    here
        joint configuration of the voters before and those to be
    16  the configuration in force is the last one in the log         here
    17  a snapshot replaces nothing that is committed                 here

A member that fails one has lost track of its own state, and must stop rather than vote or answer again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ha.raft.dispatcher import EntryDispatcher, State
from ha.raft.election import Election
from ha.raft.log_state import LogState
from ha.raft.quorum import QuorumAckChecker
from ha.raft.types import (
    AppendAnswer,
    Ballot,
    Config,
    Effects,
    HeartbeatAnswer,
    MemberId,
    Message,
    Point,
    Role,
    Settings,
    Standing,
    TakeLead,
    Vote,
    VoteAnswer,
    VoteResult,
)

GRANTED = (VoteResult.ACCEPT, VoteResult.ACCEPT_WITH_RESERVE)


class Member(Protocol):
    """A member of a group (`RaftNode`), as far as rules look at it."""

    @property
    def me(self) -> MemberId: ...

    @property
    def role(self) -> Role: ...

    @property
    def term(self) -> int: ...

    @property
    def election(self) -> Election: ...

    @property
    def log(self) -> LogState: ...

    @property
    def dispatchers(self) -> Mapping[MemberId, EntryDispatcher]: ...

    @property
    def leader(self) -> MemberId | None: ...

    @property
    def quorum(self) -> QuorumAckChecker: ...

    @property
    def standing(self) -> Standing | None: ...

    @property
    def settings(self) -> Settings: ...

    @property
    def applied(self) -> Point: ...


class Rules:
    """The checks of one member, and its ballot and commit after the last step, below which neither may fall."""

    __slots__ = ("_ballot", "_commit", "_node")

    def __init__(self, node: Member) -> None:
        self._node = node
        self._ballot = node.election.ballot
        self._commit = node.log.commit.index

    def check(self, effects: Effects) -> None:
        """Raise `AssertionError` if the step that ended with these effects broke a rule."""
        for peer, message in effects.send:
            self.rules_1_and_2_what_is_said_is_saved(peer, message)
        self.rule_4_a_follower_commits_what_it_has_on_disk()
        self.rule_5_no_cut_reaches_below_commit(effects)
        self.rule_17_a_snapshot_replaces_nothing_that_is_committed(effects)
        self.rule_9_a_leader_with_too_much_pending_takes_nothing()
        self.rule_11_no_window_overflows()
        self.rule_12_terms_votes_and_commit_only_rise()
        if effects.append_config is not None:
            self.rule_15_one_change_at_a_time(effects.append_config)
        self.rule_16_the_last_configuration_of_the_log_is_in_force()

    def rules_1_and_2_what_is_said_is_saved(self, peer: MemberId, message: Message) -> None:
        """A message depends on no write that is still under way."""
        node, saved = self._node, self._node.election.saved
        match message:
            case Vote(pre=True):
                self.rules_7_and_8_who_asks_for_votes_could_lead()
                return  # speaks of a term that nobody has yet, and binds nobody
            case Vote():
                needed = Ballot(message.term, node.me)
            case VoteAnswer(pre=pre, result=result) if result in GRANTED:
                assert node.election.may_vote, f"rule 14: a learner says {message} to {peer}"
                if pre:
                    return
                needed = Ballot(message.term, peer)
            case AppendAnswer() | HeartbeatAnswer():
                assert not message.counts or node.election.may_vote, f"rule 14: a learner says {message}"
                assert message.durable <= node.log.durable, (
                    f"rule 2: {message}, but {node.log.durable} is on disk"
                )
                needed = Ballot(message.term)
            case TakeLead():
                self.rule_13_the_lead_goes_to_a_member_that_has_everything(peer)
                needed = Ballot(message.term)
            case _:
                needed = Ballot(message.term)
        assert saved.covers(needed), f"rule 1: {message} to {peer} needs {needed}, saved is {saved}"

    def rule_3_own_term_is_counted(self, index: int) -> None:
        """A leader commits by counting in its own term only. Called where it commits."""
        log, term = self._node.log, self._node.term
        assert log.terms.term_at(index) == term, (
            f"rule 3: {index} is of term {log.terms.term_at(index)}, not {term}"
        )

    def rule_4_a_follower_commits_what_it_has_on_disk(self) -> None:
        """A follower's commit advances within its durable log only; one that passed the disk while it led may stay."""
        log = self._node.log
        assert log.commit.index <= log.end.index, f"rule 12: commit {log.commit} is behind the end {log.end}"
        if self._node.role is Role.FOLLOWER and log.commit.index > self._commit:
            assert log.commit.index <= log.durable, (
                f"rule 4: commit {log.commit} passed the disk, {log.durable}"
            )

    def rule_5_no_cut_reaches_below_commit(self, effects: Effects) -> None:
        """A committed entry is never cut."""
        if effects.cut is not None:
            assert effects.cut.index >= self._commit, f"rule 5: {effects.cut} is below commit {self._commit}"

    def rule_17_a_snapshot_replaces_nothing_that_is_committed(self, effects: Effects) -> None:
        """A snapshot that is older than this member's own log would take committed entries from it."""
        if effects.install is not None:
            assert effects.install.index > self._commit, f"rule 17: {effects.install} for {self._commit}"

    def rules_7_and_8_who_asks_for_votes_could_lead(self) -> None:
        """A campaign begins without a leader, by a voter whose runs are all placed, as far as it knows."""
        node = self._node
        assert node.role is Role.CANDIDATE and node.leader is None, f"rule 7: {node.role} asks for votes"
        assert not node.election.stuck and node.election.may_lead(node.log), (
            "rule 8: a member campaigns that is stuck, or no voter"
        )

    def rule_9_a_leader_with_too_much_pending_takes_nothing(self) -> None:
        """No message is taken while more is uncommitted than a cut may remove."""
        node = self._node
        if node.standing is not None and node.standing.may_append:
            pending = node.log.uncommitted_bytes
            assert pending <= node.settings.pending_bytes_max, f"rule 9: {pending} bytes are uncommitted"

    def rule_11_no_window_overflows(self) -> None:
        """No peer is sent more than its window, but for the last frame that began below its edge."""
        settings = self._node.settings
        for dispatcher in self._node.dispatchers.values():
            frames, size, last = dispatcher.in_flight
            assert frames <= settings.window_frames and size - last < settings.window_bytes, (
                f"rule 11: {frames} frames of {size} bytes are on their way to {dispatcher.peer}"
            )
            assert dispatcher.match <= self._node.log.end.index, (dispatcher.peer, dispatcher.match)
            assert dispatcher.match < dispatcher.next or dispatcher.state is State.SNAPSHOT, (
                f"rule 12: {dispatcher.peer} has {dispatcher.match} and is sent {dispatcher.next}"
            )

    def rule_12_terms_votes_and_commit_only_rise(self) -> None:
        """A member votes once in a term, and neither its term nor its commit ever falls."""
        log, ballot = self._node.log, self._node.election.ballot
        assert self._node.applied.index <= log.commit.index <= log.end.index, (
            f"rule 12: applied {self._node.applied}, commit {log.commit}, end {log.end}"
        )
        assert ballot.covers(self._ballot), f"rule 12: the ballot went from {self._ballot} to {ballot}"
        assert log.commit.index >= self._commit, (
            f"rule 12: commit fell from {self._commit} to {log.commit.index}"
        )
        self._ballot, self._commit = ballot, log.commit.index

    def rule_13_the_lead_goes_to_a_member_that_has_everything(self, peer: MemberId) -> None:
        """A member that is told to lead has all entries on its disk; all are applied here, and none is taken."""
        node = self._node
        has, end, applied = node.dispatchers[peer].match, node.log.end.index, node.applied.index
        assert has == end == applied, f"rule 13: {peer} has {has} of {end}, {applied} are applied"
        assert node.standing is not None and not node.standing.may_append, "rule 13: messages are still taken"

    def rule_15_one_change_at_a_time(self, config: Config) -> None:
        """A configuration follows on a committed one, and shares its voters or is the end of its joint one."""
        node = self._node
        before, commit = node.log.configs.in_force, node.log.commit.index
        assert node.log.configs.index <= commit, (
            f"rule 15: {config} follows on {before}, which is not committed"
        )
        assert node.log.terms.term_at(commit) == node.term, (
            f"rule 15: {config} before the own term's first commit"
        )
        if before.old:
            assert (config.voters, config.old) == (before.voters, ()), f"rule 15: {config} ends {before}"
        else:
            assert config.old == before.voters, f"rule 15: {config} follows on {before}"

    def rule_16_the_last_configuration_of_the_log_is_in_force(self) -> None:
        """No configuration is in force whose entry is not in the log: a cut goes back to the one before."""
        log = self._node.log
        assert log.configs.index <= log.end.index, f"rule 16: {log.configs.rows[-1]} is behind {log.end}"
