"""The simulation finds every bug that is planted for it; the same seeds without the bug pass in test_power_loss."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.processes import checkout_environment

SEEDS = 1000
BUGS = (
    "acknowledged-bytes-cut",
    "bound-ahead-of-flush",
    "checkpoint-before-data",
    "checkpoint-not-lowered",
    "crc-skipped-on-recovery",
    "dead-bytes-left",
    "entry-before-its-record",
    "flush-error-ignored",
    "flush-skipped",
    "inherited-files-not-synced",
    "newest-seal-counts-as-durable",
    "queue-start-believed",
    "readable-before-flush",
    "recovery-claims-flushed",
    "segment-removal-not-synced",
)


@pytest.mark.parametrize("name", BUGS)
def test_the_simulation_finds_the_bug(name: str) -> None:
    command = [sys.executable, "-m", "tests.sim", "--seeds", str(SEEDS), "--bug", name]
    done = subprocess.run(
        command, env=checkout_environment(), capture_output=True, text=True, timeout=600, check=False
    )
    print(f"patch {name}: {done.stdout.strip()}")  # patch, seed and seconds, for the log of a run with -s
    assert done.returncode == 1, done.stdout + done.stderr
    assert "BROKEN after" in done.stdout, done.stdout + done.stderr
