"""What the commands of a DLedger group read, and what they show of its members."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import typer

from ropewalk.client.admin.results import BrokerMember, LedgerMembers, LedgerPeerStatus, LedgerStatus
from ropewalk.client.blocking.admin import Admin
from ropewalk.errors import Rejected
from tests.support.brokers import broker
from tests.support.ports import free_ports
from tests.support.processes import checkout_command, checkout_environment
from tests.support.waiting import until
from tools.admin.dledger.group import status, status_rows
from tools.admin.dledger.members import at_risk, force, in_doubt, split_member, trust, why_not_alone
from tools.admin.dledger.members import replace as replace_member
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


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("n3-127.0.0.1:26213;n4-127.0.0.1:26214", "one member is taken in at a time"),
        ("n3-127.0.0.1:1,n4-127.0.0.1:2", "one member is taken in at a time"),
        ("n3-my host:1", "without blanks"),
        ("n3-h:1\n", "without blanks"),
        ("n3-me@host:1", "is written wrong: write"),
        (f"n3-{'h' * 254}:1", "253 characters at most"),
        ("n3-::1:40911", "an IPv6 address is given by a name"),
        ("n3-[::1]:40911", "an IPv6 address is given by a name"),
        ("n3-[::]:40911", "an IPv6 address is given by a name"),
        ("n3-0.0.0.0:40911", "nobody reaches 0.0.0.0"),
        ("n3-0:40911", "nobody reaches 0,"),
        ("n3-127.0.0.1:0", "a port is a number from 1 to 65535"),
        ("n3-127.0.0.1:99999", "a port is a number from 1 to 65535"),
        ("n3-300.0.0.1:40911", "300.0.0.1 is no IPv4 address"),
        ("n\u0663-h:1", "is written wrong: write"),
    ],
)
def test_a_member_that_nobody_could_reach_is_refused_in_words_of_its_fault(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=f"{re.escape(why)}.*ID-HOST:PORT, the ID a letter"):
        split_member(text)


def test_a_host_of_253_characters_and_a_port_of_five_digits_are_taken() -> None:
    assert split_member(f"n3-{'h' * 253}:65535") == ("n3", f"{'h' * 253}:65535")


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


def test_the_status_of_a_leader_misses_no_link_to_a_member_that_was_removed_a_moment_ago() -> None:
    down = replace(PEER, id="n3", is_linked=False), replace(PEER, id="n2", is_linked=False)
    assert states(replace(LEADER, peers=down))[0] == "takes messages; no link to n2"


def test_a_member_that_was_replaced_while_it_was_down_is_not_told_to_be_started() -> None:
    gone = replace(PEER, id="n9", is_linked=False, heard_ms=120_000, match=-1)
    away = replace(gone, id="n2")
    rows = status_rows((replace(LEADER, peers=(gone, away)),))
    assert {row[1]: row[-1] for row in rows[1:]} == {
        "n2": "silent, heard 120.0 s ago; the others dial h:2",
        "n9": "is no member any more; it is forgotten when all have let it go",
    }
    assert {row[4] for row in rows[1:]} == {""}, "the address of clients is unknown"


def test_a_member_that_knows_no_leader_names_the_ones_that_it_has_no_link_to() -> None:
    down = replace(PEER, id="n0", is_linked=False), replace(PEER, id="n2", is_linked=False)
    started = replace(FOLLOWER, role="CANDIDATE", leader="", why="started", peers=down)
    assert states(started)[:1] == ["knows no leader: it has heard of none since its start; no link to n0, n2"]
    refused = replace(started, peers=(down[0], replace(down[1], why="refused")))
    assert states(refused)[:1] == ["knows no leader: no link to n2 (refused); no link to n0"]


def test_a_member_of_a_group_that_works_is_known_to_refuse_before_anything_is_told_to_be_lost() -> None:
    assert why_not_alone(LEADER) == "n0 leads: the group works, and its members can be changed"
    alone = replace(FOLLOWER, leader="", peers=(replace(PEER, id="n0", is_linked=False),))
    assert why_not_alone(alone) is None
    linked = why_not_alone(replace(alone, peers=(replace(PEER, id="n0"),)))
    assert linked is not None and "n1 is linked to n0: together they are a majority" in linked


def test_force_tells_of_no_loss_and_asks_nothing_where_it_will_be_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    admin = Mock(spec=Admin)
    admin.ledger_status.return_value = (LEADER, FOLLOWER)
    with pytest.raises(Rejected, match="n0 leads: the group works"):
        force(admin, "n0", "b", yes=False, as_json=False)
    assert capsys.readouterr() == ("", "")
    admin.force_member.assert_not_called()


def test_force_tells_of_no_loss_in_a_group_with_a_key_value_store_whose_members_never_go_on_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    admin = Mock(spec=Admin)
    alone = replace(FOLLOWER, leader="", peers=(), has_regions=True)
    admin.ledger_status.return_value = (alone,)
    with pytest.raises(Rejected, match="start most of the others"):
        force(admin, "n1", "b", yes=True, as_json=False)
    assert capsys.readouterr() == ("", "")
    admin.force_member.assert_not_called()


def test_a_long_reason_is_cut_in_the_table_and_whole_beneath_it(capsys: pytest.CaptureFixture[str]) -> None:
    why = "it is refused: " + "a reason of many words, " * 40
    admin = Mock(spec=Admin)
    admin.skipped = {}
    refused = replace(FOLLOWER, leader="", peers=(replace(PEER, id="n0", is_linked=False, why=why),))
    admin.ledger_status.return_value = (refused,)
    with pytest.raises(typer.Exit) as ended:
        status(admin, "b", as_json=False)
    assert ended.value.exit_code == 1, "n0 and n2 do not answer"
    heading, row, silent, blank, beneath, last = capsys.readouterr().out.splitlines()
    assert max(map(len, (heading, row, silent))) < 200 and row.rstrip().endswith("…")
    assert not blank and beneath.startswith("n1: knows no leader") and why in beneath
    assert last.startswith("n0: silent") and last.endswith(why)
    with pytest.raises(typer.Exit):
        status(admin, "b", as_json=True)
    assert why in capsys.readouterr().out


def test_trust_tells_what_may_be_lost_and_where_it_may_be_before_it_asks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    three = LedgerMembers(("n0", "n1", "n2"))
    doubtful = replace(FOLLOWER, leader="", end=41, doubt=57, members=three)
    others = replace(FOLLOWER, id="n0", end=38, leader="", members=three)
    assert str(states(doubtful)[0]).endswith("; its log is in doubt through entry 57")
    admin = Mock(spec=Admin)
    admin.ledger_status.return_value = (doubtful, others)
    trust(admin, "n1", "b", yes=True, as_json=False)
    printed = capsys.readouterr()
    assert "through entry 41, and had to cut what may have reached entry 57" in printed.err
    assert "n0 has the log through entry 38" in printed.err
    assert "n2 does not answer, and may have it" in printed.err
    assert printed.out == "the log of n1 counts as it is: it ends with entry 41\n"
    lost = replace(others, id="n2", is_learner=True)
    assert any("n2 lost its disk" in line for line in in_doubt(doubtful, (doubtful, others, lost)))


def test_trust_warns_of_nothing_where_it_will_be_refused(capsys: pytest.CaptureFixture[str]) -> None:
    admin = Mock(spec=Admin)
    admin.ledger_status.return_value = (LEADER, FOLLOWER)
    admin.trust_member.side_effect = Rejected("the log of n1 is not in doubt")
    with pytest.raises(Rejected):
        trust(admin, "n1", "b", yes=True, as_json=False)
    assert capsys.readouterr() == ("", "")


def test_a_member_that_is_to_take_its_own_place_is_refused_before_anybody_is_asked() -> None:
    admin = Mock(spec=Admin)
    with pytest.raises(UsageError, match="n1 cannot take its own place"):
        replace_member(admin, "n1", "n1-127.0.0.1:1", "b", as_json=False)
    assert not admin.mock_calls


def test_a_log_that_ends_at_the_same_entry_is_told_to_be_no_longer_one() -> None:
    alone = replace(FOLLOWER, leader="")
    assert not any("longer" in line for line in at_risk(alone, (alone, replace(FOLLOWER, id="n2"))))


def test_what_is_at_risk_names_the_lost_members_and_a_log_that_is_longer() -> None:
    alone = replace(FOLLOWER, leader="")
    lines = "\n".join(at_risk(alone, (alone, replace(FOLLOWER, id="n2", end=120))))
    assert "n1 has the log through entry 100, of which it knows 100 to be committed" in lines
    assert "n0, n2 must not be started again" in lines
    assert "n2 answers, and its log is longer: it ends with entry 120" in lines


def test_the_commands_prove_the_groups_secret_and_are_refused_without_it(tmp_path: Path) -> None:
    """Whoever reached the port could remove voters, and have a member go on alone."""
    secret = "the secret of this group"
    (port,) = free_ports(1)
    settings = {
        "enableDLegerCommitLog": "true", "dLegerGroup": "g", "dLegerSelfId": "n0",
        "dLegerPeers": f"n0-127.0.0.1:{port}", "ropewalkSecret": secret,
    }  # fmt: skip
    with broker(tmp_path, *(f"--set={key}={value}" for key, value in settings.items())) as running:

        def admin(*words: str, given: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [*checkout_command(), "admin", "dledger", *words, "-n", running.namesrv, "--json"],
                env={**checkout_environment(), "ROPEWALK_SECRET": given},
                capture_output=True, text=True, timeout=60, check=False,
            )  # fmt: skip

        until(lambda: '"LEADER"' in admin("status", given=secret).stdout, pause_s=0.1)
        assert admin("snapshot", given=secret).returncode == 0
        for given in ("", "a guess of the same length"):
            refused = admin("force", "n0", "--yes", given=given)
            assert refused.returncode != 0 and "ropewalkSecret" in refused.stdout + refused.stderr, refused
