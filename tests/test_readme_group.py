"""The README's tour of a master and a slave, command by command, with real processes on free ports."""

import os
import re
import shlex
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from ropewalk.client.blocking.admin import Admin
from ropewalk.errors import RopewalkError
from tests.ports import free_ports
from tests.processes import checkout_command, checkout_environment
from tests.test_readme import section, shown
from tools.admin.ha import COLUMNS, status_rows
from tools.admin.handover import HandoverFailed, Members, find_group

PATIENCE_S = 40.0
PORTS = ("127.0.0.1:9876", "10911", "10931")


def steps() -> list[tuple[str, list[str]]]:
    """The commands of the tour in order, each with the output the README shows for it."""
    found: list[tuple[str, list[str]]] = []
    text = section("Master and slave in five minutes")
    for block in re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return found


def stand_in(folder: Path, namesrv: int, master: int, slave: int) -> None:
    """Put a `.venv/bin/ropewalk` into the folder that runs the checkout on other ports than the README's."""
    program = folder / ".venv" / "bin" / "ropewalk"
    program.parent.mkdir(parents=True)
    command = shlex.join(checkout_command())
    program.write_text(
        "#!/bin/sh\n"
        f"export NAMESRV_ADDR=127.0.0.1:{namesrv}\n"
        "first=$1; shift\n"
        'case "$first" in\n'
        f"  namesrv) exec {command} namesrv --port {namesrv} ;;\n"
        "  broker) unset NAMESRV_ADDR\n"
        f"    words=$(printf '%s ' \"$@\" | sed -e 's/:9876/:{namesrv}/' -e 's/listenPort=10931/listenPort={slave}/')\n"
        f"    export ROPEWALK_LISTEN_PORT={master} ROPEWALK_METRICS_EXPORTER_TYPE=DISABLE\n"
        f"    exec {command} broker $words ;;\n"
        f'  *) exec {command} "$first" "$@" ;;\n'
        "esac\n"
    )
    program.chmod(0o755)


def statuses(namesrv: str) -> list[dict[str, object]]:
    """What `admin ha status` would show."""
    try:
        with Admin(namesrv, timeout=2.0) as admin, Members(timeout=2.0) as members:
            rows = status_rows(find_group(admin, members, "broker-a"))
    except (RopewalkError, HandoverFailed, OSError):
        return []
    return [dict(zip((key for _, key in COLUMNS), row, strict=True)) for row in rows]


def wait_for_slave(folder: Path, namesrv: str) -> None:
    """Until a master has a slave that counts."""
    give_up = time.monotonic() + PATIENCE_S
    while not any(str(row["link"]).endswith("1 counted") for row in statuses(namesrv)):
        logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in sorted(folder.glob("*.log")))
        assert time.monotonic() < give_up, f"no slave follows: {statuses(namesrv)}\n{logs}"
        time.sleep(0.2)


def started(folder: Path) -> list[int]:
    return [int(path.read_text()) for path in folder.glob("*.pid") if path.read_text().strip()]


@pytest.mark.slow
def test_the_tour_of_master_and_slave_does_what_it_shows(tmp_path: Path) -> None:
    namesrv, master, slave = free_ports(3)
    address = f"127.0.0.1:{namesrv}"
    stand_in(tmp_path, namesrv, master, slave)
    environment = checkout_environment() | {"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "200"}
    brokers = 0
    consumed = ""
    try:
        for command, expected in steps():
            ended = subprocess.run(
                ["bash", "-o", "pipefail", "-c", command],
                cwd=tmp_path,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=60,
                check=False,
            )
            output = ended.stdout.replace(f":{master}", ":10911").replace(f":{slave}", ":10931")
            told = f"$ {command}\n{ended.stdout}"
            assert ended.returncode == 0, told
            if expected:
                wanted = re.sub(r" +", " ", "\n".join(expected)).splitlines()
                seen = "".join(re.sub(r" +", " ", line).rstrip() + "\n" for line in output.splitlines())
                assert shown([line.rstrip() for line in wanted]).fullmatch(seen), (
                    told + "\n" + "\n".join(expected)
                )
            if " consume " in command:
                consumed = ended.stdout
            brokers += " broker -n" in command
            if (brokers >= 2 and " broker -n" in command) or " switch " in command:
                wait_for_slave(tmp_path, address)
            elif " namesrv " in command:
                wait_until_listening(namesrv)
    finally:
        for pid in started(tmp_path):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
    assert sorted(consumed.split()) == ["one", "two"]


def wait_until_listening(port: int) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            assert time.monotonic() < give_up, f"nobody listens on {port}"
            time.sleep(0.1)
        else:
            return


def test_the_tour_starts_with_three_commands_and_shows_each_step_of_a_drill() -> None:
    words = [command for command, _ in steps()]
    assert [" ".join(command.split()[:2]) for command in words[:3]] == [
        ".venv/bin/ropewalk namesrv",
        ".venv/bin/ropewalk broker",
        ".venv/bin/ropewalk broker",
    ]
    for step in ("produce", "admin ha switch", "kill -9", "admin ha failover", "consume"):
        assert any(step in command for command in words), step
    assert all(port in section("Master and slave in five minutes") for port in PORTS)
