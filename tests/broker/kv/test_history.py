"""A region whose members are cut off, stopped and started: its history is linearizable, and planted bugs are found.

The simulated region (tests/sim/kv) finds the same bugs in every run.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.broker.harness import without_fsync
from tests.broker.kv.history import judge
from tests.broker.kv.planted import BUGS
from tests.support.long_run import long_only
from tests.support.processes import checkout_environment


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=long_only) for seed in (1, 2))])
def test_the_history_of_a_region_in_trouble_is_linearizable(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_fsync(monkeypatch)
    count = judge(tmp_path, seed, 3000)
    print(count, "calls")
    assert count > 300


@long_only
@pytest.mark.parametrize("name", BUGS)
def test_a_history_tells_of_the_bug(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.broker.kv.planted", name],
        env=checkout_environment(), capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    found = [line for line in done.stdout.splitlines() if "was found" in line]
    print(*found)
    assert done.returncode == 1 and found, done.stdout[-3000:] + done.stderr[-3000:]
