"""Linearizable reads, where the transcripts do not show it."""

from __future__ import annotations

from ha.raft.types import ReadAnswer, ReadAsked
from tests.ha.raft.script import Script


def test_a_question_of_an_earlier_life_is_not_answered_in_the_next() -> None:
    """Both lives count their questions from one, and the answer to the first knows nothing of what came between."""
    script = Script()
    script.elect("n0")
    script.wait(100)
    script.tick("n0")
    script.settle()
    script.step("n2", ReadAsked(1, script.now))
    script.deliver("n2", "n0")
    script.crash("n2")
    script.start("n2")
    script.append("n0", 1)
    script.settle()
    assert not any(isinstance(message, ReadAnswer) for message, _, _ in script.wires["n0", "n2"])
    assert "  n0 -> n2 ReadAnswer[1] question 1: 0" not in script.told
