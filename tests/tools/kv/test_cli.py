"""`ropewalk kv …`: what is printed and with which code it exits, against one member; and a command under a lock."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import cast
from unittest.mock import Mock

import pytest
from typer.testing import CliRunner, Result

from ropewalk import Kv, KvLock, OutcomeUnknown
from ropewalk.client.admin.results import BrokerMember
from ropewalk.client.kv.results import KvStatus
from ropewalk.codes import ResponseCode
from ropewalk.errors import Rejected, error_for
from ropewalk.format.kv.commands import KNOWS_NO_LEADER
from ropewalk.testing import BrokerProcess
from tests.support.ports import free_ports
from tests.support.waiting import until
from tools.common.output import UsageError, hint_for
from tools.kv.cli import app, status_rows
from tools.kv.held import LOST, run_held


@pytest.fixture(scope="module")
def namesrv() -> Iterator[str]:
    """A group of one member with a key-value store."""
    (port,) = free_ports(1)
    settings = {
        "enableDLegerCommitLog": "true",
        "dLegerPeers": f"n0-127.0.0.1:{port}",
        "dLegerSelfId": "n0",
        "ropewalkKvRegions": "1",
    }
    with BrokerProcess(settings) as process:
        until(lambda: kv(process.namesrv, "status").exit_code == 0, "the member serves", pause_s=0.1)
        yield process.namesrv


def test_a_member_that_does_not_answer_has_a_row_of_its_own() -> None:
    def said(member: str, leads: bool) -> KvStatus:
        values = {"region": 0, "member": member, "leads": leads, "members": ["n0", "n1", "n2"], "role": "?"}
        return KvStatus(BrokerMember("c", "b", 0, "127.0.0.1:1"), values)

    rows = status_rows([said("n1", False), said("n2", True)])
    assert [row[2] for row in rows] == ["n2", "n1", "n0"]
    assert rows[2][3] == "?  no answer"
    assert len({len(row) for row in rows}) == 1


def test_a_store_without_a_quorum_is_told_of_the_members_that_do_not_run() -> None:
    refused = error_for(ResponseCode.SERVICE_NOT_AVAILABLE, f"n2 cannot serve this: {KNOWS_NO_LEADER}")
    hint = hint_for(refused)
    assert hint is not None and "most members" in hint and "`ropewalk admin dledger status`" in hint


def test_a_broker_that_was_removed_is_no_follower_and_no_one_to_wait_for() -> None:
    def said(member: str, leads: bool, term: int, *members: str) -> KvStatus:
        values = {
            "region": 0,
            "member": member,
            "leads": leads,
            "members": members,
            "role": "FOLLOWER",
            "term": term,
        }
        return KvStatus(BrokerMember("c", "b", 0, "127.0.0.1:1"), values)

    removed = said("n0", False, 3, "n0", "n1", "n7")
    for leads in (True, False):
        rows = status_rows([removed, said("n1", leads, 4, "n1")])
        assert {row[2]: row[3] for row in rows} == {"n0": "no member any more", "n1": "FOLLOWER"}


def test_a_member_whose_log_of_a_region_is_filled_again_is_said_to_learn() -> None:
    values = {
        "region": 0,
        "member": "n0",
        "leads": False,
        "members": ["n0"],
        "role": "FOLLOWER",
        "learns": True,
    }
    ((_region, _from, _member, role, *_rest),) = status_rows(
        [KvStatus(BrokerMember("c", "b", 0, "127.0.0.1:1"), values)]
    )
    assert role == "FOLLOWER, learns"


def kv(namesrv: str, name: str, *words: str) -> Result:
    return CliRunner().invoke(app, [name, "-n", namesrv, *words])


@pytest.mark.parametrize("words", [("get", "a"), ("scan",), ("put", "a", "1")])
def test_only_of_a_write_is_it_said_that_it_may_have_been_done_where_no_answer_comes(
    namesrv: str, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr(Kv, words[0], Mock(side_effect=OutcomeUnknown("no quorum")))
    done = kv(namesrv, *words)
    assert done.exit_code != 0
    assert ("may or may not have been done" in done.output) is (words[0] == "put")
    assert ("the read was not answered" in done.output) is (words[0] != "put")


def test_a_key_without_a_value_is_told_by_the_exit_code(namesrv: str) -> None:
    missing = kv(namesrv, "get", "nothing")
    assert (missing.exit_code, missing.stdout) == (1, "")
    assert "nothing has no value" in missing.output
    assert kv(namesrv, "put", "a", "1").exit_code == 0
    assert kv(namesrv, "get", "a").stdout == "1\n"
    assert kv(namesrv, "get", "a", "--unsafe").stdout == "1\n"
    assert json.loads(kv(namesrv, "get", "a", "--json").stdout) == {"key": "a", "value": "1"}
    assert kv(namesrv, "delete", "a").exit_code == 0
    assert kv(namesrv, "delete", "a").exit_code == 1


@pytest.mark.parametrize(
    "words",
    [
        ("get", "a"),
        ("delete", "a"),
        ("cas", "a", "1", "2"),
        ("put", "a", "1"),
        ("status",),
        ("lock", "a", "true"),
    ],
)
def test_a_store_that_does_not_answer_is_told_from_one_without_the_value(words: tuple[str, ...]) -> None:
    (port,) = free_ports(1)
    name, *rest = words
    assert kv(f"127.0.0.1:{port}", name, "--timeout", "0.3", *rest).exit_code == 2


def test_conditions_that_do_not_hold_store_nothing(namesrv: str) -> None:
    kv(namesrv, "put", "c", "1")
    assert kv(namesrv, "put", "c", "2", "--if-absent").exit_code == 1
    assert kv(namesrv, "cas", "c", "2", "3").exit_code == 1
    assert kv(namesrv, "get", "c").stdout == "1\n"
    assert kv(namesrv, "cas", "c", "1", "3").exit_code == 0
    assert kv(namesrv, "put", "d", "2", "--if-absent").exit_code == 0
    assert kv(namesrv, "get", "c").stdout == "3\n"


def test_a_scan_shows_bytes_that_are_no_text(namesrv: str) -> None:
    with Kv(namesrv) as store:
        store.batch(put={b"scan/\xff": b"\xfe", "scan/a": "text"})
    shown = kv(namesrv, "scan", "scan/", "scan0", "--json")
    assert json.loads(shown.stdout) == [
        {"key": "scan/a", "value": "text"},
        {"key": "scan/\\xff", "valueBase64": "/g=="},
    ]
    assert "scan/\\xff" in kv(namesrv, "scan", "scan/", "scan0").stdout
    assert "no keys" in kv(namesrv, "scan", "zzz").output


def test_a_region_is_cut_and_shown_and_clients_go_on(namesrv: str) -> None:
    with Kv(namesrv) as store:
        store.batch(put={"cut/a": "1", "cut/z": "2"})
        cut = kv(namesrv, "split", "cut/m")
        assert cut.exit_code == 0 and "begins at cut/m" in cut.output
        assert kv(namesrv, "split", "cut/m").output == cut.output, "it is cut once"
        assert store.multi_get(["cut/z", "cut/a"]) == {"cut/z": b"2", "cut/a": b"1"}
        with pytest.raises(Rejected, match="different regions"):
            store.batch(put={"cut/a": "3"}, delete=["cut/z"])
        assert store.scan("cut/", "cut0") == [(b"cut/a", b"1"), (b"cut/z", b"2")]
        assert store.delete_range("cut/", "cut0") == 2
    shown = [line.split() for line in kv(namesrv, "status").stdout.splitlines()]
    assert [line[:2] for line in shown] == [["region", "from"], ["0", "n0"], ["1", "cut/m"]]
    assert len(json.loads(kv(namesrv, "status", "--json").stdout)) == 2


def test_a_lock_that_somebody_else_has_is_told_by_the_exit_code(namesrv: str) -> None:
    with Kv(namesrv) as store, store.lock("busy", lease=30):
        assert kv(namesrv, "lock", "busy", "true").exit_code == 1
    assert kv(namesrv, "lock", "busy", sys.executable, "-c", "raise SystemExit(7)").exit_code == 7


def test_where_no_member_has_a_store_that_is_said() -> None:
    with BrokerProcess() as process:
        refused = kv(process.namesrv, "get", "a")
    assert refused.exit_code == 2 and "ropewalkKvRegions" in refused.output


class Renewals:
    """A client whose renewals go as told."""

    def __init__(self, *outcomes: bool | OutcomeUnknown) -> None:
        self.outcomes = list(outcomes)

    def renew_lock(self, lock: KvLock) -> bool:
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, OutcomeUnknown):
            raise outcome
        return outcome


LOCK = KvLock(b"job", b"me", 41, 0.3)


def held(renewals: Renewals, *words: str) -> int:
    return run_held(cast(Kv, renewals), LOCK, words)


def test_a_command_under_a_lock_has_its_token_and_renews_it_in_time(
    capfd: pytest.CaptureFixture[str],
) -> None:
    renewals = Renewals(*[True] * 1000)
    program = "import os, time; print(os.environ['ROPEWALK_LOCK_TOKEN']); time.sleep(0.5)"
    assert held(renewals, sys.executable, "-c", program) == 0
    assert capfd.readouterr().out == "41\n"
    assert len(renewals.outcomes) < 1000


@pytest.mark.parametrize("outcome", [False, OutcomeUnknown("nobody answers")])
def test_a_command_whose_lock_is_lost_is_ended(outcome: bool | OutcomeUnknown) -> None:
    began = time.monotonic()
    assert held(Renewals(True, outcome), sys.executable, "-c", "import time; time.sleep(60)") == LOST
    assert time.monotonic() - began < 50


def test_a_command_that_is_not_there_is_a_mistake_in_the_call() -> None:
    with pytest.raises(UsageError, match="cannot run no-such-program"):
        held(Renewals(), "no-such-program")
