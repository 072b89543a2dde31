"""The fast path is an option: this folder's tests pass without it, but for those of the fast path itself."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
EVERY_DAY = (
    "produce/test_send.py",
    "produce/test_batch.py",
    "consume/test_pull.py",
    "waiting/test_held_pulls.py",
    "waiting/test_pending_acks.py",
    "test_slave_reads.py",
)
"""The modules of `make test`: sends, pulls, and what waits for a flush, a slave or a message. `make test-long` runs all
of the folder."""


def run_without_fast_path(*tests: str) -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        *(str(HERE / test) for test in tests),
    ]
    environment = {**os.environ, "ROPEWALK_TEST_FAST_PATH": "off"}
    ran = subprocess.run(
        command, cwd=HERE.parents[1], env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout[-5000:]
    assert " passed" in ran.stdout.splitlines()[-1]


@pytest.mark.slow
def test_requests_are_answered_the_same_without_the_fast_path() -> None:
    run_without_fast_path(*EVERY_DAY)


@pytest.mark.slow
def test_every_test_of_the_broker_passes_without_the_fast_path(long_run: bool) -> None:
    if not long_run:
        pytest.skip("the whole folder takes minutes: `make test-long`")
    run_without_fast_path("")
