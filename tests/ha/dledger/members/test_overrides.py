"""Decisions of an operator that a group has no majority for, and the words in which they are refused."""

from __future__ import annotations

import pytest

from ha.dledger.members.overrides import (
    LEADERLESS_MS,
    refusal_to_go_alone,
    refusal_to_readmit,
    refusal_to_trust,
)
from ha.raft.types import Config

GROUP = Config(("n0", "n1", "n2"), (), ("n3",))


@pytest.mark.parametrize(
    ("me", "leader", "linked", "lost_log", "words"),
    [
        ("n3", None, (), False, "n3 is no voter"),
        ("n0", None, (), True, "n0 lost its log"),
        ("n0", "n1", (), False, "n1 leads"),
        ("n0", None, ("n2",), False, "n0 is linked to n2: together they are a majority"),
        ("n0", None, ("n3",), False, None),
        ("n0", None, (), False, None),
    ],
)
def test_a_member_goes_on_alone_only_where_no_majority_is_left(
    me: str, leader: str | None, linked: tuple[str, ...], lost_log: bool, words: str | None
) -> None:
    why = refusal_to_go_alone(me, GROUP, leader, linked, lost_log)
    assert why is None if words is None else why is not None and words in why


@pytest.mark.parametrize(
    ("peer", "is_linked", "leader", "words"),
    [
        ("n7", False, "n2", "n7 is no other member of this group; those are n1, n2"),
        ("n1", True, "n2", "n1 is linked to n0"),
        ("n1", False, None, "n0 knows no leader"),
        ("n1", False, "n1", "n0 knows no leader"),
        ("n1", False, "n2", None),
    ],
)
def test_a_lost_log_is_let_in_again_only_of_an_absent_member_beside_a_leader(
    peer: str, is_linked: bool, leader: str | None, words: str | None
) -> None:
    why = refusal_to_readmit(peer, {"n1", "n2"}, is_linked, "n0", leader)
    assert why is None if words is None else why is not None and words in why


@pytest.mark.parametrize(
    ("is_in_doubt", "leaderless_ms", "words"),
    [
        (False, LEADERLESS_MS, "the log of n0 is not in doubt"),
        (True, None, "n1 leads: the doubt of n0 ends"),
        (True, LEADERLESS_MS - 1, "n0 knew a leader less than 5 s ago"),
        (True, LEADERLESS_MS, None),
    ],
)
def test_a_log_in_doubt_is_trusted_only_after_a_while_without_a_leader(
    is_in_doubt: bool, leaderless_ms: int | None, words: str | None
) -> None:
    why = refusal_to_trust("n0", is_in_doubt, "n1" if leaderless_ms is None else None, leaderless_ms)
    assert why is None if words is None else why is not None and words in why
