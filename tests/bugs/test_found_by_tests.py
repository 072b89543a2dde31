"""Planted bugs that a test of its own must find are found by it; it passes without."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.bugs.found_by_tests import BUGS
from tests.bugs.plant import ROOT
from tests.support.processes import checkout_environment


@pytest.mark.parametrize("name", BUGS)
def test_the_test_finds_the_bug(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.bugs.found_by_tests", name],
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
