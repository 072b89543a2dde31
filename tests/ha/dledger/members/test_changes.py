"""Requests of operators, as the configuration that a group is to have."""

from __future__ import annotations

import pytest

from ha.dledger.members.changes import (
    Change,
    ChangeKind,
    ChangeRefused,
    next_step,
    target_of,
)
from ha.raft.types import Config

LEARN, PROMOTE, REMOVE = ChangeKind
GROUP = Config(("n0", "n1", "n2"), (), ("n3",))
ADDRESSES = {f"n{each}": f"h{each}:1" for each in range(4)}


@pytest.mark.parametrize(
    ("change", "voters", "learners"),
    [
        (Change(LEARN, "n4", "h4:1"), ("n0", "n1", "n2"), ("n3", "n4")),
        (Change(LEARN, "n3", "h3:1"), ("n0", "n1", "n2"), ("n3",)),
        (Change(LEARN, "n2", "h2:1"), ("n0", "n1", "n2"), ("n3",)),
        (Change(PROMOTE, "n3"), ("n0", "n1", "n2", "n3"), ()),
        (Change(PROMOTE, "n3", replacing="n1"), ("n0", "n2", "n3"), ()),
        (Change(PROMOTE, "n2"), ("n0", "n1", "n2"), ("n3",)),
        (Change(PROMOTE, "n2", replacing="n9"), ("n0", "n1", "n2"), ("n3",)),
        (Change(REMOVE, "n0"), ("n1", "n2"), ("n3",)),
        (Change(REMOVE, "n3"), ("n0", "n1", "n2"), ()),
    ],
)
def test_a_change_has_a_target_and_one_that_is_made_already_has_the_same(
    change: Change, voters: tuple[str, ...], learners: tuple[str, ...]
) -> None:
    assert target_of(change, GROUP, ADDRESSES) == Config(voters, (), learners)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (Change(LEARN, "n2", "h9:1"), "n2 is a member already, at h2:1 and not at h9:1"),
        (Change(LEARN, "n4", "h1:1"), "h1:1 is the address of n1"),
        (Change(LEARN, "m2", "h9:1"), "m2 and n2 have the same number"),
        (Change(PROMOTE, "n4"), "n4 is no learner of this group, whose members are n0, n1, n2, n3"),
        (
            Change(PROMOTE, "n3", replacing="n7"),
            "n7 is no member of this group, where n0, n1, n2 vote; n3 learn",
        ),
        (
            Change(PROMOTE, "n2", replacing="n1"),
            "n2 votes already, and takes nobody's place: to have n1 leave",
        ),
        (Change(REMOVE, "n7"), "n7 is no member of this group"),
    ],
)
def test_a_change_that_makes_no_sense_is_refused_in_words(change: Change, words: str) -> None:
    with pytest.raises(ChangeRefused, match=words):
        target_of(change, GROUP, ADDRESSES)


def test_a_region_that_follows_has_a_new_voter_learn_first_and_lets_the_old_one_go_with_its_vote() -> None:
    target = Config(("n0", "n2", "n4"), (), ())
    learns = next_step(GROUP, target)
    assert learns == Config(GROUP.voters, (), ("n3", "n4"))
    assert next_step(learns, target) == target == next_step(target, target)


def test_the_only_voter_stays() -> None:
    with pytest.raises(ChangeRefused, match="n0 is the only voter"):
        target_of(Change(REMOVE, "n0"), Config(("n0",)), {})
