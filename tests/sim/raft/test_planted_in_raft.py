"""The simulation of Raft groups finds every bug that is planted in the core; they pass without it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.sim.raft.planted import BUGS, CHANGE_BUGS, LOST_LOG_BUGS, SEEDS, STORE_BUGS
from tests.support.processes import checkout_environment


@pytest.mark.parametrize("name", [*BUGS, *STORE_BUGS])
def test_the_simulation_finds_the_bug(name: str, long_run: bool) -> None:
    first = 0 if long_run else {**BUGS, **STORE_BUGS}[name]
    command = [sys.executable, "-m", "tests.sim.raft", "--bug", name]
    command += ["--first", str(first), "--seeds", str(SEEDS)]
    command += ["--store"] if name in STORE_BUGS else ["--lost-logs"] if name in LOST_LOG_BUGS else []
    command += ["--retention"] if name in CHANGE_BUGS else []
    done = subprocess.run(
        command, env=checkout_environment(), capture_output=True, text=True, timeout=600, check=False
    )
    print(f"patch {name}: {done.stdout.strip()}")  # patch, seed and seconds, for the log of a run with -s
    assert done.returncode == 1, done.stdout + done.stderr
    assert "BROKEN after" in done.stdout, done.stdout + done.stderr
