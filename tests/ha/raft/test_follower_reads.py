"""Reads at a follower: how often it asks its leader."""

from __future__ import annotations

from ha.raft.types import ReadAnswer
from tests.ha.raft.script import Script


def test_a_follower_asks_for_its_next_read_as_soon_as_the_last_one_was_answered() -> None:
    script = Script()
    script.elect("n0")
    script.settle()
    before = script.now
    for count in range(5):
        script.run("read n2")
        script.settle()
        assert any(line.startswith("  n2 serves read") for line in script.told), (count, script.told)
    assert script.now == before, "no read waited for time to pass"


def test_reads_that_come_while_a_question_is_under_way_share_the_next_one() -> None:
    script = Script()
    script.elect("n0")
    script.settle()
    script.run("read n2")
    asked = len(script.wires["n2", "n0"])
    for _ in range(5):
        script.run("read n2")
    assert len(script.wires["n2", "n0"]) == asked, "one question is under way"
    script.settle()
    assert sum(line.startswith("  n2 serves read") for line in script.told) == 6, script.told


def test_an_answer_over_a_connection_that_was_replaced_serves_no_read_of_the_next_life() -> None:
    script = Script()
    script.elect("n0")
    script.settle()
    script.run("read n2")
    script.deliver("n2", "n0")
    script.deliver("n0", "n1")
    script.deliver("n1", "n0")  # a quorum has answered the round: the answer to the question is on the wire
    stale = [each for each in script.wires["n0", "n2"] if isinstance(each[0], ReadAnswer)]
    script.crash("n2")
    script.append("n0", 1)
    script.settle("n0", "n1")
    script.start("n2")
    script.settle()  # it follows again, and counts its questions anew
    script.run("read n2")
    script.wires["n0", "n2"] += stale
    script.told.clear()
    script.deliver("n0", "n2")
    assert stale and not [line for line in script.told if "serves read" in line], script.told
