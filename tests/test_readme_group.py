"""The tours of a broker group, command by command, with real processes on free ports."""

import os
import signal
import socket
from collections.abc import Mapping
from pathlib import Path

import pytest

from ropewalk.client.blocking.admin import Admin
from ropewalk.errors import RopewalkError
from tests.support.documents import Command, check_shown, commands, program, run, section, text_of
from tests.support.ports import free_ports
from tests.support.processes import checkout_command, checkout_environment
from tests.support.waiting import until
from tools.admin.ha import COLUMNS, status_rows
from tools.admin.handover import HandoverFailed, Members, find_group

PORTS = ("127.0.0.1:9876", "10911", "10931")
NOTHING: Mapping[str, str] = {}
QUIET = {"ROPEWALK_LOG_LEVEL": "warning", "ROPEWALK_LOG_FORMAT": "text"}
"""Settings under which a log holds neither `starting` nor `stopped`, and no line is JSON."""
README, TOUR = section("README.md", "Kill the master"), text_of("docs/tour/failover.md")


def stand_in(folder: Path, namesrv: int, master: int, slave: int) -> None:
    """Put a `.venv/bin/ropewalk` into the folder that runs the checkout on other ports than the page's."""
    checkout = " ".join(checkout_command())
    program(
        folder,
        f"export NAMESRV_ADDR=127.0.0.1:{namesrv}\n"
        'case "$1" in\n'
        f"  namesrv) exec {checkout} namesrv --port {namesrv} ;;\n"
        "  broker) unset NAMESRV_ADDR; shift\n"
        f"    words=$(printf '%s ' \"$@\" | sed -e 's/:9876/:{namesrv}/' -e 's/listenPort=10931/listenPort={slave}/')\n"
        f"    export ROPEWALK_LISTEN_PORT={master} ROPEWALK_METRICS_EXPORTER_TYPE=DISABLE\n"
        f"    exec {checkout} broker $words ;;\n"
        "esac",
    )


def statuses(namesrv: str) -> list[dict[str, object]]:
    """Return the rows of `admin ha status`."""
    try:
        with Admin(namesrv, timeout=2.0) as admin, Members(timeout=2.0) as members:
            rows = status_rows(find_group(admin, members, "broker-a"))
    except (RopewalkError, HandoverFailed, OSError):
        return []
    return [dict(zip((key for _, key in COLUMNS), row, strict=True)) for row in rows]


def wait_for_slave(folder: Path, namesrv: str) -> None:
    """Wait until a master has a slave that counts."""

    def told() -> str:
        logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in sorted(folder.glob("*.log")))
        return f"no slave follows: {statuses(namesrv)}\n{logs}"

    until(lambda: any(str(row["link"]).endswith("1 counted") for row in statuses(namesrv)), told, pause_s=0.1)


def wait_until_listening(port: int) -> None:
    def listens() -> bool:
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True

    until(listens, f"nobody listens on {port}", forgiving=(OSError,))


def run_group_tour(tour: list[Command], folder: Path, settings: Mapping[str, str] = NOTHING) -> list[str]:
    """Run a page's commands, waiting where the page tells its reader to wait; return the messages that it consumed."""
    environment = {**checkout_environment(), **settings}
    namesrv, master, slave = free_ports(3)
    stand_in(folder, namesrv, master, slave)
    brokers, consumed = 0, ""
    try:
        for command in tour:
            output = run(command, folder, environment)
            check_shown(command, output.replace(f":{master}", ":10911").replace(f":{slave}", ":10931"))
            if " consume " in command.words:
                consumed = output
            brokers += " broker -n" in command.words
            alone = "ASYNC_MASTER" in command.words
            if (brokers >= 2 and " broker -n" in command.words and not alone) or " switch " in command.words:
                wait_for_slave(folder, f"127.0.0.1:{namesrv}")
            elif " namesrv " in command.words:
                wait_until_listening(namesrv)
    finally:
        for path in folder.glob("*.pid"):
            try:
                os.kill(int(path.read_text()), signal.SIGKILL)
            except ProcessLookupError:
                continue
    return sorted(consumed.split())


@pytest.mark.slow
def test_the_readmes_failover_does_what_it_shows(tmp_path: Path) -> None:
    assert run_group_tour(commands(README), tmp_path) == ["one"]


@pytest.mark.slow
def test_the_tour_of_failover_does_what_it_shows(tmp_path: Path) -> None:
    assert run_group_tour(commands(TOUR), tmp_path) == ["one", "two"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "consumed"), [("rolling-restart", []), ("adding-a-slave", []), ("backup", ["one"])]
)
def test_a_recipe_for_operators_does_what_it_shows_however_little_is_logged(
    recipe: str, consumed: list[str], tmp_path: Path
) -> None:
    for name in ("a.log", "b.log"):
        (tmp_path / name).write_text("ropewalk ready: an old line\n")
    assert run_group_tour(commands(text_of(f"docs/operate/{recipe}.md")), tmp_path, QUIET) == consumed


@pytest.mark.slow
def test_the_page_about_logs_does_what_it_shows(tmp_path: Path) -> None:
    assert run_group_tour(commands(text_of("docs/operate/logs.md")), tmp_path) == []


@pytest.mark.parametrize("text", [README, TOUR], ids=["readme", "tour"])
def test_a_tour_starts_with_three_commands_and_shows_each_step(text: str) -> None:
    words = [command.words for command in commands(text)]
    assert [" ".join(command.split()[:2]) for command in words[:3]] == [
        ".venv/bin/ropewalk namesrv",
        ".venv/bin/ropewalk broker",
        ".venv/bin/ropewalk broker",
    ]
    steps = ("produce", "kill -9", "admin ha failover", "consume")
    for step in steps if text is README else (*steps, "admin ha switch"):
        assert any(step in command for command in words), step
    assert "10931" in text and "127.0.0.1:9876" in text


def test_the_readmes_failover_is_eight_lines() -> None:
    assert len(commands(README)) == 8
