"""Reads by lease: when a leader may answer without asking anybody, and why nobody else can lead meanwhile."""

from __future__ import annotations

import pytest

from ha.raft.types import Received, Role, Settings, Vote, VoteAnswer, VoteResult
from tests.ha.raft.script import Script

LEASES = Settings(lease_reads=True)
LEASE_MS = 450
"""Nine tenths of the smallest election timeout."""


def led(settings: Settings = LEASES) -> Script:
    """Three members, led by n0, which is about to have a lease: a round has left just now."""
    script = Script(settings=settings)
    script.elect("n0")
    script.wait(100)
    script.tick("n0")
    return script


def reads_at_once(script: Script, id: str = "n0") -> bool:
    """Ask for a read, and tell whether it was served though no message was delivered."""
    return any(line.startswith(f"  {id} serves read") for line in script.run(f"read {id}"))


def answer_of(script: Script, id: str, vote: Vote) -> VoteResult:
    """Return what a member answers to a vote of n2."""
    effects = script.step(id, Received("n2", script.link_of(id, "n2"), vote, script.now))
    (answer,) = [message for _peer, message in effects.send if isinstance(message, VoteAnswer)]
    return answer.result


def test_a_leader_whose_round_a_quorum_has_answered_reads_without_asking() -> None:
    script = led()
    assert not reads_at_once(script)
    script.settle("n0", "n1")
    assert reads_at_once(script)


def test_without_the_option_every_read_asks() -> None:
    script = led(Settings())
    script.settle()
    assert not reads_at_once(script)


def test_a_lease_lasts_from_when_the_round_left_and_not_from_its_answers() -> None:
    script = led()
    script.wait(300)
    script.deliver("n0", "n1")
    script.deliver("n1", "n0")  # another round has left by now
    script.wait(LEASE_MS - 300 - 1)
    assert reads_at_once(script)
    script.wait(1)
    assert not reads_at_once(script)


def test_a_follower_has_its_question_answered_by_the_leaders_lease() -> None:
    script = led()
    script.settle()
    script.run("read n2")
    script.deliver("n2", "n0")
    script.deliver("n0", "n2")
    assert any(line.startswith("  n2 serves read") for line in script.told), script.told


def test_a_lease_is_over_once_another_member_was_told_to_lead_also_when_that_was_given_up() -> None:
    script = led()
    script.settle()
    assert reads_at_once(script)
    assert any("TakeLead" in line for line in script.run("transfer n0 n1"))
    script.drop("n0", "n1")
    assert not reads_at_once(script)
    for _ in range(12):
        script.wait(100)
        script.tick("n0")
        script.settle("n0", "n2")
    assert script["n0"].role is Role.LEADER
    assert script["n0"].standing is not None and script["n0"].standing.may_append
    assert not reads_at_once(script)


def test_a_leader_reads_by_no_lease_before_the_first_entry_of_its_term_is_committed() -> None:
    script = led()
    script.settle()
    script.crash("n0")
    for _ in range(2):
        script.wait(1_000)
        script.tick("n1")
    script.deliver("n1", "n2")
    for _ in range(3):
        script.sync("n2")
        script.deliver("n2", "n1", 1)
        script.sync("n1", 1)
        script.deliver("n1", "n2", 1)
    assert script["n1"].role is Role.LEADER and script["n1"].log.commit.index < script["n1"].term_first
    assert not reads_at_once(script, "n1")


def test_where_there_are_leases_a_lost_link_ends_no_protection() -> None:
    script = led()
    script.settle()
    script.unlink("n0", "n1")
    vote = Vote(script["n1"].term + 1, 99, 99, pre=True, transfer=False)
    assert answer_of(script, "n1", vote) is VoteResult.REJECT_ALREADY_HAS_LEADER


@pytest.mark.parametrize(
    ("waited_ms", "result"), [(499, VoteResult.REJECT_ALREADY_HAS_LEADER), (500, VoteResult.ACCEPT)]
)
def test_a_member_that_starts_anew_refuses_votes_as_if_it_had_heard_a_leader(
    waited_ms: int, result: VoteResult
) -> None:
    script = led()
    script.settle()
    script.crash("n1")
    script.start("n1")
    script.wait(waited_ms)
    assert answer_of(script, "n1", Vote(script["n1"].term + 1, 99, 99, pre=True, transfer=False)) is result
