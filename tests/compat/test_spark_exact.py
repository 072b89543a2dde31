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
from tests.spark.sink.lives import run_lives
from tests.spark.sink.pipeline import QUEUES, SOURCE, TARGET, Pipeline, check, fill, has_route, stored
from tests.support.long_run import LONG, long_only
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


@pytest.mark.crash
@pytest.mark.parametrize("with_spark", [False, pytest.param(True, marks=long_only)])
def test_rows_are_stored_once_whatever_is_killed_and_however_they_are_cut_then(
    java: str, with_spark: bool
) -> None:
    said: list[str] = []
    count, rows = (40, 400) if LONG else (4, 100)
    failures = run_lives("rocketmq", count, 1, rows, said.append, with_spark=with_spark)
    assert not failures, "\n".join(said)


def test_a_batch_that_is_cut_into_other_tasks_is_stored_once(original_server: Server, topic: str) -> None:
    namesrv = original_server.namesrv
    options = options_of(namesrv, topic, sinkId=topic)
    run = begin(options)
    for partition in range(3):
        rows = [*range(partition, 60, 3), 7]
        write(sender_of(options, run, TaskIdentity("q", 0, partition, partition)), topic, rows)
    until(lambda: len(bodies(namesrv, topic)) >= 63)
    again = begin(options)
    parts = [[*range(start, 90, 7), 7] for start in range(7)]
    results = [
        write(sender_of(options, again, TaskIdentity("q", 0, number, 10 + number)), topic, rows)
        for number, rows in enumerate(parts)
    ]
    commit(options, results)
    until(lambda: len(bodies(namesrv, topic)) >= 97)
    assert sorted(bodies(namesrv, topic)) == sorted([*range(90), *[7] * 7])


def test_a_sink_belongs_to_one_topic_and_is_forgotten_with_it(original_server: Server, topic: str) -> None:
    namesrv = original_server.namesrv
    options = options_of(namesrv, topic, sinkId=topic)
    commit(options, [write(sender_of(options, begin(options), TaskIdentity("q", 0, 0)), topic, range(30))])
    with Admin(namesrv, timeout=10.0) as admin:
        admin.create_topic(f"{topic}-other", 3)
        until(lambda: has_route(namesrv, f"{topic}-other"))
        with pytest.raises(WriteFailed, match=f"writes to topic {topic}, and this is topic {topic}-other"):
            begin(options_of(namesrv, f"{topic}-other", sinkId=topic))
        commit(
            options,
            [write(sender_of(options, begin(options), TaskIdentity("q", 1, 0)), topic, range(30, 40))],
        )
        admin.delete_topic(topic)
        admin.create_topic(topic, 3)
        until(lambda: has_route(namesrv, topic))
    # RocketMQ forgets the sink with its topic: what is written from now on is there.
    run = begin(options)
    commit(options, [write(sender_of(options, run, TaskIdentity("q", 2, 0)), topic, range(40, 50))])
    until(lambda: sorted(bodies(namesrv, topic)) == list(range(40, 50)))
