"""The simulation finds every bug that is planted for it; the same seeds without the bug pass in test_power_loss."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.processes import checkout_environment

SEEDS = 1000
"""Where a change of the store gives all seeds other lives, this makes a test longer and not red."""
BUGS = {
    "acknowledged-bytes-cut": 0,
    "bound-ahead-of-flush": 20,
    "checkpoint-before-data": 0,
    "checkpoint-not-lowered": 0,
    "crc-skipped-on-recovery": 0,
    "dead-bytes-left": 0,
    "entry-before-its-record": 0,
    "flush-error-ignored": 0,
    "flush-skipped": 0,
    "inherited-files-not-synced": 205,
    "newest-seal-counts-as-durable": 0,
    "queue-start-believed": 0,
    "readable-before-flush": 0,
    "recovery-claims-flushed": 0,
    "segment-removal-not-synced": 5330,  # only a start that loses power between two removals shows it
}
"""Each with a seed shortly before one that finds it; the long run searches from 0."""


@pytest.mark.parametrize("name", BUGS)
def test_the_simulation_finds_the_bug(name: str, long_run: bool) -> None:
    first = 0 if long_run else BUGS[name]
    command = [sys.executable, "-m", "tests.sim", "--bug", name]
    command += ["--first", str(first), "--seeds", str(BUGS[name] + SEEDS - first)]
    done = subprocess.run(
        command, env=checkout_environment(), capture_output=True, text=True, timeout=600, check=False
    )
    print(f"patch {name}: {done.stdout.strip()}")  # patch, seed and seconds, for the log of a run with -s
    assert done.returncode == 1, done.stdout + done.stderr
    assert "BROKEN after" in done.stdout, done.stdout + done.stderr
