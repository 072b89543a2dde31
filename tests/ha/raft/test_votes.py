"""The table of vote results, and what a vote with reserve is worth."""

from __future__ import annotations

from itertools import product

import pytest

from ha.raft.draft import Draft
from ha.raft.election import Campaign, Election
from ha.raft.log_state import LogState
from ha.raft.membership import Readmission
from ha.raft.quorum import ConfigHistory
from ha.raft.terms import TermTable
from ha.raft.types import Ballot, Config, Point, Role, Settings, Vote, VoteAnswer, VoteResult

R = VoteResult
END = Point(10, 4, 1100)
CONFIG = Config(("n0", "n1", "n2"))
TERM = 6


def voter(
    *, vote: str = "", leader: str | None = None, heard: bool = False, doubt: Point | None = None
) -> Election:
    election = Election(
        "n0",
        ConfigHistory(CONFIG),
        Settings(),
        Ballot(TERM, vote),
        doubt,
        Readmission(("n1", "n2"), False),
    )
    election.now = 10_000
    if leader is not None:
        election.role, election.leader = Role.FOLLOWER, leader
    election.leader_heard = election.now if heard else 0
    return election


def log() -> LogState:
    return LogState(TermTable([(1, 0, 0), (4, 5, 500)]), ConfigHistory(CONFIG), END, END)


@pytest.mark.parametrize(
    ("member", "candidate", "vote", "result"),
    [
        (voter(), "n0", Vote(7, 10, 4), R.REJECT_UNEXPECTED_LEADER),
        (voter(), "n9", Vote(7, 10, 4), R.REJECT_UNKNOWN_LEADER),
        (voter(), "n1", Vote(5, 99, 5), R.REJECT_EXPIRED_VOTE_TERM),
        (voter(leader="n2", heard=True), "n1", Vote(7, 99, 6), R.REJECT_ALREADY_HAS_LEADER),
        (voter(leader="n2", heard=True), "n1", Vote(7, 99, 6, transfer=True), R.ACCEPT),
        (voter(leader="n2"), "n1", Vote(7, 99, 6), R.ACCEPT),
        (voter(), "n1", Vote(7, 99, 3), R.REJECT_EXPIRED_LEDGER_TERM),
        (voter(), "n1", Vote(7, 9, 4), R.REJECT_SMALL_LEDGER_END_INDEX),
        (voter(vote="n2"), "n1", Vote(6, 9, 4), R.REJECT_SMALL_LEDGER_END_INDEX),
        (voter(vote="n2", leader="n2"), "n1", Vote(6, 10, 4), R.REJECT_ALREADY_HAS_LEADER),
        (voter(vote="n2"), "n1", Vote(6, 10, 4), R.REJECT_ALREADY_VOTED),
        (voter(vote="n1"), "n1", Vote(6, 10, 4), R.ACCEPT),
        (voter(vote="n2"), "n1", Vote(7, 10, 4), R.ACCEPT),
        (voter(doubt=Point(12, 4, 1300)), "n1", Vote(7, 11, 4), R.ACCEPT_WITH_RESERVE),
        (voter(doubt=Point(12, 4, 1300)), "n1", Vote(7, 12, 4), R.ACCEPT),
        (voter(doubt=Point(12, 4, 1300)), "n1", Vote(7, 0, 5), R.ACCEPT),
    ],
    ids=lambda value: str(value) if isinstance(value, Vote | VoteResult) else "",
)  # fmt: skip
def test_every_row_of_the_table(member: Election, candidate: str, vote: Vote, result: VoteResult) -> None:
    assert member.judge(candidate, vote, log(), Draft()) is result


def test_every_question_has_an_answer_and_no_pre_vote_changes_anything() -> None:
    logs = ((3, 99), (4, 9), (4, 10), (5, 0))
    switches = ((False, True),) * 3
    for candidate, term, last, vote, leader, heard, transfer, pre in product(
        ("n0", "n1", "n9"), (5, 6, 7), logs, ("", "n1", "n2"), (None, "n2"), *switches
    ):
        member, draft = voter(vote=vote, leader=leader, heard=heard), Draft()
        member.asked(candidate, Vote(term, last[1], last[0], pre, transfer), log(), draft)
        answers = [message for _, message in [*draft.sends, *((to, what) for _, to, what in member._held)]]
        (answer,) = answers
        assert isinstance(answer, VoteAnswer) and answer.pre is pre
        if pre:
            assert draft.save is None and member.ballot == Ballot(TERM, vote)
        if answer.result is R.ACCEPT:
            assert answer.term == term >= TERM and last >= (END.term, END.index)
            assert candidate == "n1" or last > (END.term, END.index), "a stranger that knows nothing new"
            assert pre or member.ballot == Ballot(term, candidate)
        if member.ballot.term == TERM and vote:
            assert member.ballot.vote == vote


def test_no_name_of_dledger_is_missing() -> None:
    assert [result.name for result in VoteResult][:12] == [
        "UNKNOWN", "ACCEPT", "REJECT_UNKNOWN_LEADER", "REJECT_UNEXPECTED_LEADER", "REJECT_EXPIRED_VOTE_TERM",
        "REJECT_ALREADY_VOTED", "REJECT_ALREADY_HAS_LEADER", "REJECT_TERM_NOT_READY", "REJECT_TERM_SMALL_THAN_LEDGER",
        "REJECT_EXPIRED_LEDGER_TERM", "REJECT_SMALL_LEDGER_END_INDEX", "REJECT_TAKING_LEADERSHIP",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("answers", "wins"),
    [
        ({"n1": R.ACCEPT}, True),
        ({"n1": R.ACCEPT_WITH_RESERVE}, False),
        ({"n1": R.ACCEPT_WITH_RESERVE, "n2": R.ACCEPT_WITH_RESERVE}, True),
        ({"n1": R.ACCEPT_WITH_RESERVE, "n2": R.REJECT_ALREADY_VOTED}, True),
        ({"n1": R.ACCEPT_WITH_RESERVE, "n2": R.REJECT_SMALL_LEDGER_END_INDEX}, False),
        ({"n1": R.ACCEPT_WITH_RESERVE, "n2": R.REJECT_ALREADY_HAS_LEADER}, False),
        ({"n1": R.REJECT_ALREADY_VOTED, "n2": R.REJECT_ALREADY_VOTED}, False),
    ],
)
def test_a_vote_with_reserve_counts_where_nobody_has_a_longer_log(
    answers: dict[str, VoteResult], wins: bool
) -> None:
    candidate = voter(vote="n0")
    candidate.campaign = Campaign.VOTE
    candidate._answers = {"n0": R.ACCEPT}
    for peer, result in answers.items():
        candidate.answered(peer, VoteAnswer(TERM, False, result), log(), Draft())
    assert (candidate.role is Role.LEADER) is wins


def test_an_answer_of_an_earlier_round_counts_for_nothing() -> None:
    candidate = voter(vote="n0")
    candidate.campaign = Campaign.VOTE
    candidate._answers = {"n0": R.ACCEPT}
    for answer in (VoteAnswer(TERM - 1, False, R.ACCEPT), VoteAnswer(TERM + 1, True, R.ACCEPT)):
        candidate.answered("n1", answer, log(), Draft())
    assert candidate.role is Role.CANDIDATE
