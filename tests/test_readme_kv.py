"""The tour of the key-value store, command by command, and its programs, with one member on free ports."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.documents import blocks, check_shown, commands, program, run, run_python, text_of
from tests.support.ports import free_ports
from tests.support.processes import ROOT, checkout_command, checkout_environment
from tests.support.waiting import until

TOUR = text_of("docs/tour/kv.md")


@pytest.mark.slow
def test_the_tour_of_the_key_value_store_does_what_it_shows(tmp_path: Path) -> None:
    namesrv, port, peer = free_ports(3)
    checkout = " ".join(checkout_command())
    program(
        tmp_path,
        f"export NAMESRV_ADDR=127.0.0.1:{namesrv}\n"
        'case "$1" in\n'
        "  broker) unset NAMESRV_ADDR; shift\n"
        f"    words=$(printf '%s ' \"$@\" | sed -e 's/:20911/:{peer}/')\n"
        "    export ROPEWALK_METRICS_EXPORTER_TYPE=DISABLE\n"
        f"    exec {checkout} broker $words --set listenPort={port} --set namesrvPort={namesrv}"
        " ;;\n"
        "esac",
    )
    address = f"127.0.0.1:{namesrv}"
    try:
        for command in commands(TOUR):
            if command.words.startswith("kill"):
                (page,) = blocks(TOUR, "python")
                run_python(page.replace("127.0.0.1:9876", address), tmp_path, checkout_environment())
                example = subprocess.run(
                    [sys.executable, "-W", "error", ROOT / "examples" / "lock.py", address],
                    env=checkout_environment(), capture_output=True, text=True, timeout=60, check=False,
                )  # fmt: skip
                assert example.returncode == 0, example.stdout + example.stderr
                assert example.stdout.splitlines() == [
                    "the second machine waits", SECOND_BILLED.format(token=token_in(example.stdout)),
                    "the first machine was too late",
                ]  # fmt: skip
            check_shown(command, run(command, tmp_path, checkout_environment()))
            if " broker " in command.words:
                until(
                    lambda: registered(namesrv, tmp_path),
                    (tmp_path / "kv.log").read_text,
                    pause_s=0.1,
                )
    finally:
        if (tmp_path / "kv.pid").exists():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int((tmp_path / "kv.pid").read_text()), signal.SIGKILL)


SECOND_BILLED = "the second machine billed, with token {token}"


def token_in(output: str) -> str:
    return output.splitlines()[1].rpartition(" ")[2]


def registered(namesrv: int, folder: Path) -> bool:
    """Tell whether a client finds the store: the member has elected itself, and the name server knows it."""
    status = subprocess.run(
        [folder / ".venv/bin/ropewalk", "kv", "status"],
        env=checkout_environment(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return "LEADER" in status.stdout
