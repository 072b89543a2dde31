"""The simulated group finds every bug that is planted for it; the same seeds without the bug pass in test_group."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.processes import checkout_environment

SEEDS = 40
BUGS = (
    "ha-diverged-tail-kept",
    "ha-old-master-still-followed",
    "ha-promoted-by-too-few",
    "ha-shortest-log-wins",
    "ha-switch-without-catching-up",
    "ha-timeout-counts-as-confirmed",
    "ha-waits-for-nobody",
)


@pytest.mark.parametrize("name", BUGS)
def test_the_simulated_group_finds_the_bug(name: str) -> None:
    command = [sys.executable, "-m", "tests.sim", "--world", "group", "--bug", name]
    done = subprocess.run(
        [*command, "--seeds", str(SEEDS)],
        env=checkout_environment(),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    print(f"patch {name}: {done.stdout.strip()}")  # patch, seed and seconds, for the log of a run with -s
    assert done.returncode == 1, done.stdout + done.stderr
    assert "BROKEN after" in done.stdout, done.stdout + done.stderr
