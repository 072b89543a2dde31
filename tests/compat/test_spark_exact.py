"""Exactly-once writes to Apache RocketMQ, which compares no keys: tasks read back what earlier attempts have stored."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from ropewalk.client.blocking.admin import Admin
from ropewalk.spark.sink.reading_back import ReadingBackSender
from ropewalk.spark.sink.routes import WriteFailed
from ropewalk.spark.sink.run import TaskIdentity
from ropewalk.spark.sink.writer import sender_of
from tests.compat.conftest import Server
from tests.spark.sink.exact_tasks import begin, bodies, commit, options_of, write
from tests.spark.sink.pipeline import QUEUES, SOURCE, TARGET, Pipeline, check, fill, stored
from tests.support.long_run import long_only
from tests.support.waiting import until

pytestmark = [pytest.mark.compat, pytest.mark.slow]

TURNS = itertools.count(1)


@pytest.fixture
def topic(original_server: Server) -> str:
    name = f"exact-{next(TURNS)}"
    with Admin(original_server.namesrv, timeout=10.0) as admin:
        admin.create_topic(name, 3)
    return name


def test_a_batch_that_is_run_again_is_stored_once_and_a_committed_one_not_again(
    original_server: Server, topic: str
) -> None:
    namesrv = original_server.namesrv
    options = options_of(namesrv, topic, sinkId=topic)
    run = begin(options)
    sender = sender_of(options, run, TaskIdentity("q", 0, 0, 1))
    assert isinstance(sender, ReadingBackSender)
    write(sender, topic, range(300))
    again = begin(options)
    assert again.anchors is not None and run.anchors is not None
    assert again.anchors.offsets == run.anchors.offsets
    results = [
        write(sender_of(options, again, TaskIdentity("q", 0, 0, 2, 1)), topic, reversed(range(500))),
        write(sender_of(options, again, TaskIdentity("q", 0, 1, 3)), topic, range(500, 600)),
    ]
    commit(options, results)
    replay = begin(options)
    result = write(sender_of(options, replay, TaskIdentity("q", 0, 0, 4)), topic, range(600))
    commit(options, [result])
    other = write(sender_of(options, replay, TaskIdentity("q", 0, 0, 5)), topic, range(601))
    with pytest.raises(WriteFailed, match="other rows"):
        commit(options, [other])
    following = begin(options)
    assert following.anchors is not None
    assert sum(following.anchors.offsets.values()) == 600
    commit(options, [write(sender_of(options, following, TaskIdentity("q", 1, 0)), topic, range(600, 650))])
    until(lambda: len(bodies(namesrv, topic)) >= 650)
    assert sorted(bodies(namesrv, topic)) == list(range(650))


@long_only
@pytest.mark.crash
def test_no_row_is_lost_or_doubled_by_kills_of_driver_and_executors(
    original_server: Server, tmp_path: Path
) -> None:
    namesrv = original_server.namesrv
    with Admin(namesrv, timeout=10.0) as admin:
        for name in (SOURCE, TARGET):
            admin.create_topic(name, QUEUES)
    rows = fill(namesrv, 20_000)
    rng = random.Random(5)
    pipeline = None
    kinds = ["executor", "driver"] * 10
    try:
        for kind in kinds:
            pipeline = pipeline or Pipeline(tmp_path, namesrv, "local-cluster[2,1,600]", batch=500)
            wanted = max(stored(namesrv), 0) + rng.randrange(1, 900)
            assert pipeline.wait_for(lambda: stored(namesrv) >= wanted, f"{wanted} rows")  # noqa: B023
            if kind == "driver":
                pipeline.kill_all()
                pipeline = None
            else:
                pipeline.kill_executor(rng)
        pipeline = Pipeline(tmp_path, namesrv, "local-cluster[2,1,600]", batch=5_000)
        assert pipeline.process.wait(300) == 0, pipeline.log.read_text()[-3000:]
    finally:
        if pipeline is not None:
            pipeline.kill_all()
    check(namesrv, rows)
