"""Edits of a topic's attributes: applied whole, or refused in words."""

from __future__ import annotations

import pytest

from broker.state.topic_attributes import AttributeRefused, edit_attributes


def test_attributes_are_set_changed_and_removed() -> None:
    before = {"reserve.time": "5", "message.type": "NORMAL"}
    assert edit_attributes(before, "+message.type=FIFO,-reserve.time") == {"message.type": "FIFO"}
    assert before == {"reserve.time": "5", "message.type": "NORMAL"}


@pytest.mark.parametrize("nothing", ["", "  "])
def test_an_empty_edit_changes_nothing(nothing: str) -> None:
    assert edit_attributes({"message.type": "FIFO"}, nothing) == {"message.type": "FIFO"}


def test_a_new_topic_may_be_given_what_cannot_be_changed_later() -> None:
    assert edit_attributes({}, "+queue.type=SimpleCQ", creating=True) == {"queue.type": "SimpleCQ"}
    with pytest.raises(AttributeRefused, match="cannot be changed"):
        edit_attributes({}, "+queue.type=SimpleCQ")


@pytest.mark.parametrize(
    ("edits", "reason"),
    [
        ("message.type=FIFO", "neither"),
        ("+", "neither"),
        ("+a-b=1", "neither"),
        ("+message.type=FIFO,", "neither"),
        ("+message.type=FIFO,+message.type=NORMAL", "twice"),
        ("+message.type=FIFO,-message.type", "twice"),
        ("+colour=red", "no attribute colour"),
        ("+message.type=SLOW", "cannot be 'SLOW'"),
        ("+message.type", "cannot be ''"),
        ("+reserve.time=-2", "milliseconds"),
        ("+reserve.time=soon", "milliseconds"),
        ("+reserve.time=" + "9" * 30, "milliseconds"),
        ("-reserve.time", "removes nothing"),
        ("-message.type=FIFO", "removes nothing"),
    ],
)
def test_every_mistake_has_its_own_sentence(edits: str, reason: str) -> None:
    with pytest.raises(AttributeRefused, match=reason):
        edit_attributes({}, edits)


@pytest.mark.parametrize("edits", ["+queue.type=BatchCQ", "+cleanup.policy=COMPACTION"])
def test_what_is_not_built_is_refused_and_said_to_be(edits: str) -> None:
    with pytest.raises(AttributeRefused, match="not built"):
        edit_attributes({}, edits, creating=True)


def test_a_new_topic_has_nothing_to_remove() -> None:
    with pytest.raises(AttributeRefused, match="removes nothing"):
        edit_attributes({}, "-message.type", creating=True)
