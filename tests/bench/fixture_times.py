"""What the pytest fixture costs its users: a broker's start, and the time from one test to the next."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from ropewalk.testing import BrokerProcess

STARTS = 5
TESTS = 21

_INNER = f"""
import json, pathlib, time, pytest
began, ended = [], []

@pytest.mark.parametrize("number", range({TESTS}))
def test_one(ropewalk_broker, number):
    began.append(time.monotonic())
    topic = ropewalk_broker.topic(queues=1)
    ropewalk_broker.send(topic, b"left behind")
    ended.append(time.monotonic())

def test_the_end():
    gaps = [after - before for before, after in zip(ended, began[1:])]
    pathlib.Path("gaps.json").write_text(json.dumps(gaps))
"""


@dataclass(frozen=True)
class FixtureTimes:
    """Medians and worst cases, in seconds."""

    start_s: float
    worst_start_s: float
    starts: int
    reset_s: float
    worst_reset_s: float
    resets: int


def fixture_times() -> FixtureTimes:
    """Start brokers one after the other, and let a session of tests meet on one."""
    starts = []
    for _ in range(STARTS):
        began = time.perf_counter()
        with BrokerProcess():
            starts.append(time.perf_counter() - began)
    with tempfile.TemporaryDirectory() as folder:
        gaps = reset_gaps(Path(folder))
    return FixtureTimes(
        statistics.median(starts), max(starts), len(starts), statistics.median(gaps), max(gaps), len(gaps)
    )


def reset_gaps(folder: Path) -> list[float]:
    """Seconds from the end of each test to the beginning of the next; every test leaves a topic and a message.

    pytest's own share is in them.
    """
    (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    (folder / "test_inner.py").write_text(_INNER)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=180, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    gaps: list[float] = json.loads((folder / "gaps.json").read_text())
    return gaps
