"""A member that others refuse, or that refuses them, says so where people look: `/readyz`, its log, the commands."""

from __future__ import annotations

import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.crash.ledger_group import LedgerGroup
from tests.ha.pairs import Pair, until_acknowledged
from tests.support.ports import free_ports
from tests.support.processes import checkout_command, checkout_environment
from tests.support.waiting import until

SECRET, OTHER = "the secret of the group itself", "another secret than that of it"


def ready(port: int) -> tuple[int, str]:
    """Return status and text of `/readyz`; (0, "") where nobody answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=10) as page:
            return page.status, page.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()
    except OSError:
        return 0, ""


def admin(names: str, *words: str, secret: str = "") -> tuple[int, str, str]:
    """Run `ropewalk admin …` with this secret in the environment."""
    return ropewalk(names, "admin", *words, secret=secret)


def ropewalk(names: str, *words: str, secret: str = "") -> tuple[int, str, str]:
    ended = subprocess.run(
        [*checkout_command(), *words, "-n", names],
        env={**checkout_environment(), "ROPEWALK_SECRET": secret, "COLUMNS": "400"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    return ended.returncode, ended.stdout, ended.stderr


def secret_of(text: str) -> dict[str, str]:
    return {"ropewalkSecret": text} if text else {}


@pytest.mark.parametrize(
    ("masters", "slaves", "words", "masters_words"),
    [
        (
            SECRET,
            OTHER,
            "its ropewalkSecret differs from the one here",
            "its proof is of another ropewalkSecret",
        ),
        (
            SECRET,
            "",
            "carries no proof, so its sender has no ropewalkSecret",
            "its sender has no ropewalkSecret",
        ),
        ("", SECRET, "knows of no ropewalkSecret", ""),
    ],
    ids=["two secrets", "none at the slave", "none at the master"],
)
def test_a_slave_that_gets_nothing_for_want_of_the_secret_is_not_ready_and_both_say_why(
    tmp_path: Path, masters: str, slaves: str, words: str, masters_words: str
) -> None:
    ports = free_ports(3)
    with Pair(tmp_path) as pair:
        pair.start("master", brokerRole="SYNC_MASTER", metricsPromExporterPort=ports[0], **secret_of(masters))
        pair.start(
            "slave", brokerRole="SLAVE", brokerId=1, metricsPromExporterPort=ports[1], **secret_of(slaves)
        )
        until(lambda: ready(ports[1])[0] == 503, lambda: f"{ready(ports[1])}\n{pair.errors()}")
        _status, text = ready(ports[1])
        assert text.startswith("this slave does not follow its master: ") and words in text, text
        assert words in pair.places["slave"].errors()
        assert masters_words in pair.places["master"].errors()
        secret = masters or slaves
        master_status, _text = ready(ports[0])
        assert master_status == 503, "a SYNC_MASTER without its slave"
        pair.end("slave")
        pair.end("master")
        master = pair.start("master", ropewalkSecret=secret)
        pair.start("slave", ropewalkSecret=secret)
        until_acknowledged(master.address)
        until(lambda: ready(ports[1])[0] == 200, lambda: f"{ready(ports[1])}\n{pair.errors()}")


def test_a_slave_whose_master_is_away_is_ready_since_it_can_be_promoted(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with Pair(tmp_path) as pair:
        master = pair.start("master", brokerRole="SYNC_MASTER")
        pair.start("slave", brokerRole="SLAVE", brokerId=1, metricsPromExporterPort=port)
        until_acknowledged(master.address)
        pair.kill("master")
        until(lambda: "no connection to the master" in pair.places["slave"].errors(), pair.errors)
        assert ready(port)[0] == 200


@pytest.mark.parametrize("number", [0, 2], ids=["dialed by the others", "dials the others"])
def test_a_dledger_member_with_another_secret_is_not_ready_and_the_others_name_it(
    tmp_path: Path, number: int
) -> None:
    (port,) = free_ports(1)
    with LedgerGroup(tmp_path, settings={"ropewalkSecret": SECRET}) as group:
        odd = group.members[number]
        odd.kill()
        ours: dict[str, str | int] = {"metricsExporterType": "PROM", "metricsPromExporterPort": port}
        group.settings |= {"ropewalkSecret": OTHER, **ours}
        odd.launch()
        words = "differs from that of"
        until(lambda: words in ready(port)[1], odd.errors.read_text)
        assert ready(port)[0] == 503
        for each in group.members:
            told = each.errors.read_text()
            assert (
                f"the peer that says it is {odd.id} {words}" in told or f"{words} {odd.id} of group" in told
            ), told
        code, out, err = admin(group.name_server, "dledger", "status", secret=SECRET)
        assert code == 1 and words in out + err, (code, out, err)
        assert "ROPEWALK_SECRET is set: compare it" in err
        odd.kill()
        group.settings["ropewalkSecret"] = SECRET
        odd.start()
        until(lambda: ready(port)[0] == 200, lambda: ready(port)[1])
        code, out, err = admin(group.name_server, "dledger", "status", secret=SECRET)
        assert code == 0 and words not in out, (out, err)


def test_commands_say_who_refuses_them_for_the_secret_and_end_with_another_code(tmp_path: Path) -> None:
    with Pair(tmp_path, ropewalkSecret=SECRET) as pair:
        master = pair.start("master", brokerRole="SYNC_MASTER")
        slave = pair.start("slave", brokerRole="SLAVE", brokerId=1)
        until_acknowledged(master.address)
        code, out, err = admin(pair.namesrv, "ha", "status", secret=SECRET)
        assert code == 0 and "1 slave, 1 counted" in out, (out, err)
        for words, answers in (
            (("ha", "status"), f"refuses: {master.address} refuses the proof: its ropewalkSecret differs"),
            (("ha", "switch", "broker-a"), "no member of broker-a tells its status (127.0.0.1:"),
            (("ha", "failover", "broker-a", "--yes"), "no member of broker-a tells its status"),
            (
                ("ha", "promote", slave.address),
                f"{slave.address} refuses the proof: its ropewalkSecret differs",
            ),
            (("ha", "forget", "broker-a", "1"), "and only a master has a roll ("),
        ):
            code, out, err = admin(pair.namesrv, *words, secret=OTHER)
            assert code == 1 and answers in out + err, (words, code, out, err)
            assert "If it is gone" not in out + err and "name server or broker?" not in out + err, (
                words,
                err,
            )
            if words[1] in ("status", "promote"):
                assert "ROPEWALK_SECRET is set: compare it" in err, (words, err)
        code, out, err = admin(pair.namesrv, "ha", "status")
        assert code == 1 and "its sender has no ropewalkSecret" in out, (out, err)
        assert "give the group's secret to the command" in err
        pair.kill("slave")
        code, out, err = admin(pair.namesrv, "ha", "status", secret=SECRET)
        assert code == 1 and "no answer: " in out, (out, err)


def test_a_group_whose_secret_is_lost_begins_again_with_a_new_one_and_has_its_messages(
    tmp_path: Path,
) -> None:
    with LedgerGroup(tmp_path, settings={"ropewalkSecret": SECRET}) as group:
        until(
            lambda: ropewalk(group.name_server, "produce", "kept", "a message")[0] == 0,
            lambda: group.members[0].errors.read_text()[-3000:],
        )
        for member in group.members:
            member.kill()
        group.settings["ropewalkSecret"] = OTHER
        for member in group.members:
            member.launch()
        for member in group.members:
            member.wait()
        until(
            lambda: admin(group.name_server, "dledger", "status", secret=OTHER)[0] == 0,
            lambda: "\n".join(each.errors.read_text()[-2000:] for each in group.members),
        )
        assert ropewalk(group.name_server, "consume", "kept", "--from", "earliest")[1] == "a message\n"
