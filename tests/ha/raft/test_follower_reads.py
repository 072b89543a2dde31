"""Reads at a follower: how often it asks its leader."""

from __future__ import annotations

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
