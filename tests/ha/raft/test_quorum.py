"""`QuorumAckChecker` beside plain counting, of one group and of a joint one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ha.raft.quorum import QuorumAckChecker
from ha.raft.types import Config

IDS = ("n0", "n1", "n2", "n3", "n4", "n5", "n6")
GROUPS = st.lists(st.sampled_from(IDS), min_size=1, max_size=7, unique=True).map(tuple)
CONFIGS = st.builds(Config, voters=GROUPS, old=st.one_of(st.just(()), GROUPS), learners=GROUPS)
MATCH = st.dictionaries(st.sampled_from(IDS), st.integers(-1, 9))


def has(config: Config, members: set[str]) -> bool:
    return all(len(members & set(group)) > len(group) / 2 for group in (config.voters, config.old) if group)


@given(CONFIGS, MATCH)
def test_acknowledged_is_the_largest_index_on_a_majority_of_each_group(
    config: Config, match: dict[str, int]
) -> None:
    expected = max(
        (index for index in range(10) if has(config, {each for each in match if match[each] >= index})),
        default=-1,
    )
    assert QuorumAckChecker(config).acknowledged(match) == expected


@given(CONFIGS, st.sets(st.sampled_from(IDS)))
def test_a_majority_is_one_of_each_group(config: Config, members: set[str]) -> None:
    assert QuorumAckChecker(config).is_majority(members) is has(config, members)


@given(CONFIGS, st.sets(st.sampled_from(IDS)))
def test_two_majorities_of_a_configuration_share_a_voter(config: Config, members: set[str]) -> None:
    checker = QuorumAckChecker(config)
    others = set(checker.voters) - members
    assert not (checker.is_majority(members) and checker.is_majority(others))


def test_learners_never_count() -> None:
    checker = QuorumAckChecker(Config(("n0", "n1", "n2"), learners=("n3", "n4")))
    assert checker.acknowledged({"n0": 5, "n3": 5, "n4": 5}) == -1
    assert not checker.is_majority({"n0", "n3", "n4"})
    assert checker.voters == ("n0", "n1", "n2")
