"""The simulation of Raft groups finds every bug that is planted in the core; the same seeds without it pass."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.processes import checkout_environment
from tests.sim.raft.test_raft_groups import SEEDS

BUGS = (
    "raft-ballot-not-read",
    "raft-candidate-before-saved",
    "raft-commit-by-own-end",
    "raft-current-term-as-last",
    "raft-deposed-leader-cuts",
    "raft-doubt-forgotten",
    "raft-end-for-matched",
    "raft-flush-of-cut-bytes",
    "raft-follower-before-flush",
    "raft-follower-rolls",
    "raft-higher-term-in-answer-ignored",
    "raft-lateness-is-silence",
    "raft-leader-before-flush",
    "raft-older-terms-counted",
    "raft-pre-vote-raises-term",
    "raft-repeated-append-cuts",
    "raft-second-vote",
    "raft-vote-before-saved",
    "raft-vote-by-index",
)


@pytest.mark.parametrize("name", BUGS)
def test_the_simulation_finds_the_bug(name: str) -> None:
    command = [sys.executable, "-m", "tests.sim.raft", "--bug", name, "--seeds", str(SEEDS)]
    done = subprocess.run(
        command, env=checkout_environment(), capture_output=True, text=True, timeout=600, check=False
    )
    print(f"patch {name}: {done.stdout.strip()}")  # patch, seed and seconds, for the log of a run with -s
    assert done.returncode == 1, done.stdout + done.stderr
    assert "BROKEN after" in done.stdout, done.stdout + done.stderr
