"""The simulated DLedger group finds every bug that is planted for it; the same seeds pass without it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.sim.ledger.planted import BUGS, SEEDS, STRANGER_BUGS
from tests.support.processes import checkout_environment


@pytest.mark.parametrize("name", [*BUGS, *STRANGER_BUGS])
def test_the_simulated_group_finds_the_bug(name: str, long_run: bool) -> None:
    first = 0 if long_run else (BUGS | STRANGER_BUGS)[name]
    world = "ledger" if name in BUGS else "ledger-stranger"
    command = [sys.executable, "-m", "tests.sim", "--world", world, "--bug", name]
    done = subprocess.run(
        [*command, "--first", str(first), "--seeds", str(SEEDS)],
        env=checkout_environment(),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    print(f"patch {name}: {done.stdout.strip()}")  # patch, seed and seconds, for the log of a run with -s
    assert done.returncode == 1, done.stdout + done.stderr
    assert "BROKEN after" in done.stdout, done.stdout + done.stderr
