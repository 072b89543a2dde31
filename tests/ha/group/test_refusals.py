"""When a refusal between a slave and its master is told."""

from __future__ import annotations

from ha.group.refusals import REFUSAL_LASTS_MS, Conversation, Refusals

HELLO, METADATA = Conversation.HELLO, Conversation.METADATA


def test_a_refusal_is_told_once_it_has_lasted_with_the_newest_reason() -> None:
    refusals = Refusals()
    refusals.refused(HELLO, "the secrets differ", 1_000)
    assert refusals.lasting(1_000 + REFUSAL_LASTS_MS - 1) is None
    refusals.refused(HELLO, "there is no secret", 2_000)
    assert refusals.lasting(1_000 + REFUSAL_LASTS_MS) == "there is no secret"


def test_one_conversation_that_goes_well_does_not_hide_another_that_does_not() -> None:
    refusals = Refusals()
    refusals.refused(HELLO, "another log", 0)
    refusals.refused(METADATA, "no proof", 0)
    refusals.over(METADATA)
    assert refusals.lasting(REFUSAL_LASTS_MS) == "another log"
    refusals.over(HELLO)
    assert refusals.lasting(REFUSAL_LASTS_MS) is None


def test_a_refusal_that_was_over_begins_anew() -> None:
    refusals = Refusals()
    refusals.refused(HELLO, "why", 0)
    refusals.over(HELLO)
    refusals.refused(HELLO, "why", REFUSAL_LASTS_MS)
    assert refusals.lasting(REFUSAL_LASTS_MS + 1) is None
    refusals.clear()
    assert refusals.lasting(10 * REFUSAL_LASTS_MS) is None
