"""SIGKILL of driver, workers, executors and broker of an exactly-once pipeline: no row lost, none doubled."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ropewalk.client.blocking.admin import Admin
from tests.ha.process_group import BROKER, Group, group_of
from tests.spark.sink.pipeline import QUEUES, SOURCE, TARGET, Pipeline, check, fill, has_route, stored
from tests.support.long_run import long_only

pytestmark = [pytest.mark.crash, pytest.mark.slow]


def create_topics(group: Group) -> None:
    with Admin(group.namesrv) as admin:
        group.until(lambda: _is_registered(admin), "a broker at the name server")
        for topic in (SOURCE, TARGET):
            admin.create_topic(topic, QUEUES)
    for topic in (SOURCE, TARGET):
        group.until(lambda: has_route(group.namesrv, topic), f"the route of {topic}")  # noqa: B023


def _is_registered(admin: Admin) -> bool:
    return bool(admin.members())


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Group]:
    group = Group(tmp_path)
    try:
        group.start("a", flushDiskType="SYNC_FLUSH")
        create_topics(group)
        yield group
    finally:
        group.close()


class Campaign:
    """Lives of a pipeline, each ended or disturbed by a kill, until one comes to its end."""

    def __init__(self, folder: Path, group: Group, master: str, rng: random.Random) -> None:
        self.folder = folder
        self.group = group
        self.master = master
        self.rng = rng
        self.pipeline: Pipeline | None = None
        self.tasks = 1

    def end(self) -> None:
        if self.pipeline is not None:
            self.pipeline.kill_all()

    def run(self, kinds: list[str], step: int, batch: int) -> None:
        """Carry out the kills, each after some rows more, and then wait for the end."""
        for kind in kinds:
            pipeline = self._running(batch)
            # In the middle of a batch: between batches a kill has nothing to repeat.
            done = max(stored(self.group.namesrv), 0) // batch + self.rng.randrange(1, step)
            wanted = done * batch + self.rng.randrange(batch // 5, batch // 2)
            alive = pipeline.wait_for(lambda: stored(self.group.namesrv) >= wanted, f"{wanted} rows")  # noqa: B023
            assert alive, f"it was through before {kind} was killed: {pipeline.log.read_text()[-3000:]}"
            getattr(self, f"_kill_{kind}")(pipeline)
        pipeline = self._running(batch)
        assert pipeline.process.wait(300) == 0, pipeline.log.read_text()[-3000:]

    def _running(self, batch: int) -> Pipeline:
        if self.pipeline is None:
            self.tasks = self.tasks % 4 + 1  # another cut of the batch that is repeated
            self.pipeline = Pipeline(
                self.folder, self.group.namesrv, self.master, batch=batch, tasks=self.tasks
            )
        return self.pipeline

    def _kill_driver(self, pipeline: Pipeline) -> None:
        pipeline.kill_all()
        self.pipeline = None

    def _kill_worker(self, pipeline: Pipeline) -> None:
        pipeline.kill_worker(self.rng)

    def _kill_executor(self, pipeline: Pipeline) -> None:
        pipeline.kill_executor(self.rng)

    def _kill_broker(self, _pipeline: Pipeline) -> None:
        self.group.kill("a")
        time.sleep(self.rng.random())
        self.group.start("a")


def test_no_row_is_lost_or_doubled_by_kills(alone: Group, tmp_path: Path, long_run: bool) -> None:
    count, step, batch = (40_000, 3, 500) if long_run else (2_400, 2, 300)
    master = "local-cluster[2,1,600]" if long_run else "local[2,8]"
    kinds = ["worker", "broker", "driver"]
    if long_run:
        kinds = ["driver", "executor", "broker", "worker"] * 5
    rows = fill(alone.namesrv, count)
    campaign = Campaign(tmp_path, alone, master, random.Random(3))
    try:
        campaign.run(kinds, step, batch)
    finally:
        campaign.end()
    check(alone.namesrv, rows)


@long_only
def test_no_row_is_lost_or_doubled_by_a_failover_in_the_middle(tmp_path: Path) -> None:
    with group_of(tmp_path, "b") as group:
        create_topics(group)
        rows = fill(group.namesrv, 6_000)
        rng = random.Random(4)
        pipeline = Pipeline(tmp_path, group.namesrv, batch=500)
        try:
            for old, new in (("a", "b"), ("b", "a")):
                wanted = stored(group.namesrv) + rng.randrange(300, 900)
                assert pipeline.wait_for(lambda: stored(group.namesrv) >= wanted, f"{wanted} rows")  # noqa: B023
                group.kill(old)
                assert group.admin("failover", BROKER)["newMaster"] == group.replicas[new].address
                group.start(old)
                group.until_followed(new)
            assert pipeline.process.wait(300) == 0, pipeline.log.read_text()[-3000:]
        finally:
            pipeline.kill_all()
        check(group.namesrv, rows)
