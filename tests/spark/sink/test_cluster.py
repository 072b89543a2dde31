"""An exactly-once pipeline on a standalone cluster with two workers, one of whose executors is killed."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ropewalk.client.blocking.admin import Admin
from ropewalk.testing import BrokerProcess
from tests.spark.sink.pipeline import QUEUES, SOURCE, TARGET, Pipeline, check, fill, stored
from tests.spark.standalone import executor_processes, executors, standalone_cluster
from tests.support.long_run import long_only

pytestmark = [pytest.mark.slow, pytest.mark.crash, long_only]


@pytest.fixture
def namesrv() -> Iterator[str]:
    with BrokerProcess() as process, Admin(process.namesrv) as admin:
        for topic in (SOURCE, TARGET):
            admin.create_topic(topic, QUEUES)
        yield process.namesrv


def test_rows_are_written_once_by_two_workers_one_of_which_is_killed(namesrv: str, tmp_path: Path) -> None:
    rows = fill(namesrv, 6_000)
    rng = random.Random(2)
    with standalone_cluster(tmp_path) as master:
        pipeline = Pipeline(tmp_path, namesrv, master, batch=600)
        try:
            assert pipeline.wait_for(lambda: stored(namesrv) > 600, "some rows")
            os.kill(rng.choice(executor_processes(tmp_path)), signal.SIGKILL)
            assert pipeline.process.wait(300) == 0, pipeline.log.read_text()[-3000:]
        finally:
            pipeline.kill_all()
        assert executors(tmp_path) == {"worker-0", "worker-1"}
    check(namesrv, rows)
