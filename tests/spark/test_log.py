"""The log of Spark's processes: what a reader or writer tells reaches structlog, which is imported for that alone."""

from __future__ import annotations

import subprocess
import sys

import pytest
from structlog.testing import capture_logs

from ropewalk.spark.log import log
from tests.support.processes import checkout_environment


@pytest.mark.parametrize("module", ["live.source", "sink.writer", "store.source"])
def test_a_process_that_tells_nothing_imports_no_structlog(module: str) -> None:
    code = (
        f"import sys, ropewalk.spark.{module}; print({{'structlog', 'rich', 'asyncio'}} & {{*sys.modules}})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=checkout_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "set()"


def test_events_reach_structlog() -> None:
    with capture_logs() as told:
        log.info("begun", rows=3)
        log.warning("lost", reason="removed")
    assert told == [
        {"event": "begun", "log_level": "info", "rows": 3},
        {"event": "lost", "log_level": "warning", "reason": "removed"},
    ]
