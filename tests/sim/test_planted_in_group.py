"""The simulated group finds every bug that is planted for it; the same seeds without the bug pass in test_group."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.processes import checkout_environment

SEEDS = 400
"""Where a change of the brokers gives all seeds other lives, this makes a test longer and not red."""
BUGS = {
    "ha-ack-before-flush": 5,
    "ha-answers-let-go-when-deposed": 0,
    "ha-append-at-a-gap": 0,
    "ha-deposed-keeps-its-place": 0,
    "ha-diverged-tail-kept": 0,
    "ha-master-not-fenced": 0,
    "ha-never-looks-for-a-newer-master": 8,
    "ha-old-connection-counted": 0,
    "ha-old-master-still-followed": 76,
    "ha-old-tail-wins": 203,
    "ha-promise-not-saved": 55,
    "ha-promoted-by-too-few": 0,
    "ha-report-before-flush": 140,
    "ha-shortest-log-wins": 0,
    "ha-switch-without-catching-up": 35,
    "ha-timeout-counts-as-confirmed": 0,
    "ha-waits-for-nobody": 0,
}
"""Each with a seed shortly before one that finds it; the long run searches from 0."""


@pytest.mark.parametrize("name", BUGS)
def test_the_simulated_group_finds_the_bug(name: str, long_run: bool) -> None:
    first = 0 if long_run else BUGS[name]
    command = [sys.executable, "-m", "tests.sim", "--world", "group", "--bug", name]
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
