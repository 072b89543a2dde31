"""The simulated group finds every bug that is planted for it; the same seeds without it pass in the long run."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.sim.planted_in_group import BUGS, SEEDS, SHORTER_BUGS, STRANGER_BUGS
from tests.support.processes import checkout_environment


@pytest.mark.parametrize(
    ("world", "name", "start"),
    [("group", *bug) for bug in BUGS.items()]
    + [("shorter", *bug) for bug in SHORTER_BUGS.items()]
    + [("stranger", *bug) for bug in STRANGER_BUGS.items()],
)
def test_the_simulated_group_finds_the_bug(world: str, name: str, start: int, long_run: bool) -> None:
    first = 0 if long_run else start
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
