"""The simulated region and the simulated store find every bug that is planted for them; unplanted, the seeds pass."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.sim.kv.planted import BUGS, DAMAGE_BUGS, RARE_BUGS, REGIONS_BUGS, SEEDS
from tests.support.long_run import long_only
from tests.support.processes import checkout_environment

CASES = [
    *(pytest.param("kv", name, first, id=name) for name, first in BUGS.items()),
    *(pytest.param("regions", name, first, id=name) for name, first in REGIONS_BUGS.items()),
    *(pytest.param("damage", name, first, id=name) for name, first in DAMAGE_BUGS.items()),
    *(pytest.param("regions", name, 0, id=name, marks=long_only) for name in RARE_BUGS),
]


@pytest.mark.parametrize(("world", "name", "first"), CASES)
def test_the_simulated_store_finds_the_bug(world: str, name: str, first: int, long_run: bool) -> None:
    first = 0 if long_run else first
    command = [sys.executable, "-m", "tests.sim", "--world", world, "--bug", name, "--first", str(first)]
    mode = {"regions": ["--mode", "short"], "damage": ["--mode", "one"]}.get(world, [])
    done = subprocess.run(
        [*command, "--seeds", str(SEEDS), *mode],
        env=checkout_environment(),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    print(f"patch {name}: {done.stdout.strip()}")  # patch, seed and seconds, for the log of a run with -s
    assert done.returncode == 1, done.stdout + done.stderr
    assert "BROKEN after" in done.stdout, done.stdout + done.stderr
