"""The rules of the core that can be seen from outside of a step, as assertions that stay on in production.

`RaftNode.step` runs `check` after every event. A member that fails one has lost track of its own state, and must stop
rather than vote or answer again. What only the parts can see is asserted where it happens: two votes in a term and
ballots in their order (election.py), two leaders in a term (election.py), a cut below commit (log_state.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ha.raft.dispatcher import EntryDispatcher, State
from ha.raft.election import Election
from ha.raft.log_state import LogState
from ha.raft.types import (
    AppendAnswer,
    Ballot,
    Effects,
    HeartbeatAnswer,
    MemberId,
    Message,
    Role,
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


class Rules:
    """The numbers of a member that may only rise, as they were after the last step, and what must hold of them."""

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
        self.rule_11_no_window_overflows()
        self.rule_12_terms_votes_and_commit_only_rise()

    def rules_1_and_2_what_is_said_is_saved(self, peer: MemberId, message: Message) -> None:
        """A message depends on no write that is still under way."""
        node, saved = self._node, self._node.election.saved
        match message:
            case Vote(pre=False):
                needed = Ballot(message.term, node.me)
            case VoteAnswer(pre=False, result=result) if result in GRANTED:
                needed = Ballot(message.term, peer)
            case Vote() | VoteAnswer() if message.pre and not _is_refusal(message):
                return  # speaks of a term that nobody has yet, and binds nobody
            case AppendAnswer() | HeartbeatAnswer():
                assert message.durable <= node.log.durable, (
                    f"rule 2: {message}, but {node.log.durable} is on disk"
                )
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
        """Only a leader's commit may pass its own disk, and a follower's only what it had passed as a leader."""
        log = self._node.log
        assert log.commit.index <= log.end.index, f"rule 12: commit {log.commit} is behind the end {log.end}"
        if self._node.role is Role.FOLLOWER and log.commit.index > self._commit:
            assert log.commit.index <= log.durable, (
                f"rule 4: commit {log.commit} passed the disk, {log.durable}"
            )

    def rule_5_no_cut_reaches_below_commit(self, effects: Effects) -> None:
        """What is committed is never cut."""
        if effects.cut is not None:
            assert effects.cut.index >= self._commit, f"rule 5: {effects.cut} is below commit {self._commit}"

    def rule_11_no_window_overflows(self) -> None:
        """No peer has confirmed what is not in this log, and none is sent what it did not ask for."""
        for dispatcher in self._node.dispatchers.values():
            assert dispatcher.match <= self._node.log.end.index, (dispatcher.peer, dispatcher.match)
            assert dispatcher.match < dispatcher.next or dispatcher.state is State.SNAPSHOT, (
                f"rule 12: {dispatcher.peer} has {dispatcher.match} and is sent {dispatcher.next}"
            )

    def rule_12_terms_votes_and_commit_only_rise(self) -> None:
        """One vote per term; terms and commit never fall."""
        log, ballot = self._node.log, self._node.election.ballot
        assert ballot.covers(self._ballot), f"rule 12: the ballot went from {self._ballot} to {ballot}"
        assert log.commit.index >= self._commit, (
            f"rule 12: commit fell from {self._commit} to {log.commit.index}"
        )
        self._ballot, self._commit = ballot, log.commit.index


def _is_refusal(message: Vote | VoteAnswer) -> bool:
    return isinstance(message, VoteAnswer) and message.result not in GRANTED
