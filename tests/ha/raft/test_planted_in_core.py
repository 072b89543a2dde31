"""The tests of the core find every bug that is planted for them; they pass without it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.bugs.plant import ROOT
from tests.ha.raft.planted import BUGS
from tests.support.processes import checkout_environment


@pytest.mark.parametrize("name", BUGS)
def test_the_tests_of_the_core_find_the_bug(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.ha.raft.planted", name],
        cwd=ROOT,
        env=checkout_environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    assert failed and all(BUGS[name][1] in line for line in failed), failed
