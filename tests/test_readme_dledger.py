"""The tour of DLedger mode, command by command, with real processes on free ports."""

import os
import signal
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ropewalk.client.admin.results import LedgerStatus
from ropewalk.client.blocking.admin import Admin
from ropewalk.errors import RopewalkError
from tests.support.documents import check_shown, commands, program, run, text_of
from tests.support.long_run import ROOM_S
from tests.support.ports import free_ports
from tests.support.processes import checkout_command, checkout_environment
from tests.support.waiting import until

TOUR = text_of("docs/tour/dledger.md")
CLIENT_PORTS, PEER_PORTS = (10911, 10921, 10931, 10941, 10951), (20911, 20912, 20913, 20914, 20915)


def stand_in(folder: Path, namesrv: int, ports: list[int]) -> None:
    """Put a `.venv/bin/ropewalk` into the folder that runs the checkout on other ports than the page's."""
    checkout = " ".join(checkout_command())
    pages = (*(f"listenPort={port}" for port in CLIENT_PORTS), *(f":{port}" for port in PEER_PORTS))
    own = (*(f"listenPort={port}" for port in ports[:5]), *(f":{port}" for port in ports[5:]))
    edits = " ".join(f"-e 's/{page}/{mine}/'" for page, mine in zip(pages, own, strict=True))
    program(
        folder,
        f"export NAMESRV_ADDR=127.0.0.1:{namesrv}\n"
        'case "$1" in\n'
        f"  namesrv) exec {checkout} namesrv --port {namesrv} ;;\n"
        "  broker) unset NAMESRV_ADDR; shift\n"
        f"    words=$(printf '%s ' \"$@\" | sed -e 's/:9876/:{namesrv}/' {edits})\n"
        "    export ROPEWALK_METRICS_EXPORTER_TYPE=DISABLE\n"
        f"    exec {checkout} broker $words ;;\n"
        f"  admin) exec {checkout} $(printf '%s ' \"$@\" | sed {edits}) ;;\n"
        "esac",
    )


def answering(namesrv: int) -> tuple[LedgerStatus, ...]:
    """Return the members that answer."""
    try:
        with Admin(f"127.0.0.1:{namesrv}", timeout=2.0) as admin:
            return admin.ledger_status()
    except (RopewalkError, OSError):
        return ()


def members(namesrv: int) -> tuple[LedgerStatus, ...]:
    """Return the members that answer; none while nobody leads."""
    found = answering(namesrv)
    leaders = [each for each in found if each.leads]
    return found if len(leaders) == 1 and all(each.leader == leaders[0].id for each in found) else ()


def wait_for_members(namesrv: int, count: int, folder: Path) -> str:
    """Wait until so many members agree on a leader that the name server knows; return its id."""

    def told() -> str:
        logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in sorted(folder.glob("*.log")))
        return f"{members(namesrv)}\n{logs}"

    found: tuple[LedgerStatus, ...] = ()

    def agree() -> bool:
        nonlocal found
        found = members(namesrv)
        return len(found) == count

    until(agree, told, pause_s=0.1)
    return next(each.id for each in found if each.leads)


def wait_until_listening(port: int) -> None:
    def listens() -> bool:
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True

    until(listens, f"nobody listens on {port}", forgiving=(OSError,))


@pytest.mark.slow
def test_the_tour_of_dledger_does_what_it_shows(tmp_path: Path) -> None:
    namesrv, *ports = free_ports(11)
    stand_in(tmp_path, namesrv, ports)
    started, leader, consumed, gap_s = 0, "n0", "", 0.0
    try:
        for command in commands(TOUR):
            words = command.words
            if (started >= 3 and "dLegerSelfId" in words) or "kill -9" in words:  # the page's leader is n0
                for mine in ("dLegerSelfId=n0", "ropewalk-data/n0", "n0.log", "n0.pid"):
                    words = words.replace(mine, mine.replace("n0", leader))
                words = words.replace("listenPort=10911", f"listenPort={CLIENT_PORTS[int(leader[1])]}")
            began = time.monotonic()
            output = run(replace(command, words=words), tmp_path, checkout_environment())
            check_shown(command, output)
            if " namesrv " in words:
                wait_until_listening(namesrv)
            elif "dLegerSelfId" in words:
                started += 1
                if started >= 3:
                    leader = wait_for_members(namesrv, 3, tmp_path)
            elif "kill -9" in words:
                leader_before = leader
                leader = wait_for_members(namesrv, 2, tmp_path)
                gap_s = time.monotonic() - began
                assert leader != leader_before
                leader = leader_before  # it is the one that comes back
            elif " consume " in words:
                consumed = output
    finally:
        for path in tmp_path.glob("*.pid"):
            try:
                os.kill(int(path.read_text()), signal.SIGKILL)
            except ProcessLookupError:
                continue
    assert sorted(consumed.split()) == ["one", "two"]
    assert gap_s < 5.0 + ROOM_S, f"the members took {gap_s:.1f} s to agree on a new leader"


def test_the_tour_starts_a_group_with_four_commands() -> None:
    words = [command.words for command in commands(TOUR)][:4]
    assert [" ".join(command.split()[:2]) for command in words] == [
        ".venv/bin/ropewalk namesrv",
        *[".venv/bin/ropewalk broker"] * 3,
    ]


@pytest.mark.slow
def test_the_runbook_lets_a_member_in_that_lost_its_disk_while_the_others_work(tmp_path: Path) -> None:
    namesrv, *ports = free_ports(11)
    stand_in(tmp_path, namesrv, ports)
    started, consumed = 0, ""
    try:
        for command in commands(text_of("docs/operate/dledger.md")):
            output = run(command, tmp_path, checkout_environment())
            check_shown(command, output)
            if " namesrv " in command.words:
                wait_until_listening(namesrv)
            elif "dLegerSelfId" in command.words:
                started += 1
                if started == 3:
                    wait_for_members(namesrv, 3, tmp_path)
            elif "kill -9" in command.words:
                wait_for_members(namesrv, 2, tmp_path)
            elif " consume " in command.words:
                consumed = output
    finally:
        for path in tmp_path.glob("*.pid"):
            try:
                os.kill(int(path.read_text()), signal.SIGKILL)
            except ProcessLookupError:
                continue
    assert started == 4 and sorted(consumed.split()) == ["one", "three", "two"]


def wait_until_leaderless(namesrv: int, id: str) -> None:
    """Wait until a member knows that nobody leads."""
    until(
        lambda: any(each.id == id and not each.leader for each in answering(namesrv)),
        lambda: str(answering(namesrv)),
        pause_s=0.1,
    )


def wait_for_refusal(log: Path) -> None:
    """Wait until a new member has said that the group does not have it yet."""
    until(lambda: "is no member of group" in log.read_text(), f"{log.name}: not refused")


@pytest.mark.slow
def test_the_runbook_changes_members_while_the_group_works_and_goes_on_with_one(tmp_path: Path) -> None:
    namesrv, *ports = free_ports(11)
    stand_in(tmp_path, namesrv, ports)
    started, consumed = 0, ""
    try:
        for command in commands(text_of("docs/operate/dledger-members.md")):
            output = run(command, tmp_path, checkout_environment())
            check_shown(command, output)
            if " namesrv " in command.words:
                wait_until_listening(namesrv)
            elif "dLegerSelfId" in command.words:
                started += 1
                if started == 3:
                    wait_for_members(namesrv, 3, tmp_path)
                elif started > 3:
                    wait_for_refusal(tmp_path / f"n{started - 1}.log")
            elif "kill $(cat n0.pid)" in command.words:
                wait_for_members(namesrv, 3, tmp_path)
            elif "kill -9 $(cat n1.pid)" in command.words:
                wait_for_members(namesrv, 2, tmp_path)
            elif "kill -9 $(cat n2.pid" in command.words:
                wait_until_leaderless(namesrv, "n4")
            elif " consume " in command.words:
                consumed = output
    finally:
        for path in tmp_path.glob("*.pid"):
            for pid in path.read_text().split():
                try:
                    os.kill(int(pid), signal.SIGKILL)
                except ProcessLookupError:
                    continue
    assert started == 5 and sorted(consumed.split()) == ["one", "three", "two"]
