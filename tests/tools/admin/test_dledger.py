"""What the commands of a DLedger group read, and what they show of its members."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ropewalk.client.admin.results import BrokerMember, LedgerMembers, LedgerPeerStatus, LedgerStatus
from tools.admin.dledger.group import status_rows
from tools.admin.dledger.members import at_risk, split_member
from tools.common.output import UsageError

PEER = LedgerPeerStatus("n1", "h:2", True, "REPLICATE", 5, 100, "", True)
LEADER = LedgerStatus(
    BrokerMember("c", "b", 0, "a:1"), "n0", "g", LedgerMembers(("n0", "n1", "n2")), "LEADER", 3, "n0", True, "", 100,
    100, 100, 100, 1, (PEER,), False, (), False,
)  # fmt: skip
FOLLOWER = replace(LEADER, id="n1", role="FOLLOWER", leads=False, peers=())


@pytest.mark.parametrize(
    "text", ["n3", "n3-", "n3-host", "n3-host:0", "n3-host:70000", "-host:1", "3-host:1", "nx-host:1"]
)
def test_a_text_that_is_no_member_is_refused_with_one_that_is(text: str) -> None:
    with pytest.raises(UsageError, match=r"write ID-HOST:PORT.*n3-192\.0\.2\.4:40911"):
        split_member(text)


def test_a_member_is_read_whose_host_has_dashes() -> None:
    assert split_member("n3-broker-3.example:40911") == ("n3", "broker-3.example:40911")


def states(*found: LedgerStatus) -> list[object]:
    return [row[-1] for row in status_rows(found)]


def test_the_status_shows_a_learner_a_joint_configuration_and_a_member_that_was_removed() -> None:
    learns = LedgerMembers(("n0",), (), ("n1",))
    assert states(replace(LEADER, members=learns), replace(FOLLOWER, members=learns)) == [
        "takes messages",
        "follows n0; learns, and does not vote",
    ]
    joint = replace(LEADER, members=LedgerMembers(("n0", "n1", "n3"), ("n0", "n1", "n2")))
    assert (
        states(joint)[0]
        == "takes messages; the voters change from n0, n1, n2 to n0, n1, n3: majorities of both are needed"
    )
    removed = replace(FOLLOWER, members=LedgerMembers(("n0", "n2")))
    assert states(LEADER, removed)[1] == "is no member any more: n0, n2 vote"


def test_what_is_at_risk_names_the_lost_members_and_a_log_that_is_longer() -> None:
    alone = replace(FOLLOWER, leader="")
    lines = "\n".join(at_risk(alone, (alone, replace(FOLLOWER, id="n2", end=120))))
    assert "n1 has the log through entry 100, of which it knows 100 to be committed" in lines
    assert "n0, n2 must not be started again" in lines
    assert "n2 answers, and its log is longer: it ends with entry 120" in lines
