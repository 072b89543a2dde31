"""A live group is drilled by an administrator's commands, and goes on working; without a fault there is no verdict."""

import json
import os
import random
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from ropewalk.client.aio.connection import open_connection
from ropewalk.client.core.messages import route_request
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import OutcomeUnknown
from ropewalk.format.remoting import Command
from tests.tools.conftest import command_environment, command_line
from tools.drill.load import Load, LoadSpec, Router
from tools.drill.run import run_drill
from tools.drill.stage import Drill, Options, Progress, Stage
from tools.drill.testbed.cluster import Cluster
from tools.drill.testbed.group import CannotRun, find_live_group
from tools.drill.timeline import Timeline

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.trio]


@asynccontextmanager
async def group(root: Path, members: int, **settings: str) -> AsyncIterator[Cluster]:
    async with Cluster(root, members, settings=settings, rng=random.Random()) as cluster:
        await cluster.start()
        yield cluster


async def drill(*words: str, secret: str = "") -> subprocess.CompletedProcess[bytes]:
    return await trio.run_process(
        command_line("drill", "run", *words),
        env=command_environment() | {"ROPEWALK_SECRET": secret},
        capture_stdout=True,
        capture_stderr=True,
        check=False,
    )


async def until_followed(cluster: Cluster) -> None:
    """Until a message is acknowledged, which takes the slave."""
    timeline = Timeline(trio.current_time)
    spec = LoadSpec(run="before", topic="before", broker_name=cluster.broker_name)
    load = Load(spec, Router(cluster.name_server, "before", "drill"), timeline, cluster.name_of)
    with trio.fail_after(60):
        while await load.probe(cluster.nodes[0].address) != ResponseCode.SUCCESS:  # noqa: ASYNC110 - it has no event
            await trio.sleep(0.1)


async def test_a_live_group_is_switched_and_keeps_its_other_topics(tmp_path: Path) -> None:
    async with group(tmp_path, 2, ropewalkSecret="hush") as cluster:
        await until_followed(cluster)
        words = "switch", "-n", cluster.name_server, "--yes", "--json", "--seconds"
        unknown = await drill(*words, "1")
        assert unknown.returncode == 2 and b"does not prove that its sender knows it" in unknown.stderr
        done = await drill(*words, "4", secret="hush")
        assert done.returncode == 0, json.loads(done.stdout)["reasons"]
        result = json.loads(done.stdout)
        assert result["verdict"] == "clean"
        assert result["mode"] == "SYNC_MASTER + ASYNC_FLUSH"
        assert result["audit"]["acknowledged"] > 0
        assert result["replicas"]["equal"] is None
        assert all(node.running for node in cluster.nodes)
        async with open_connection(cluster.name_server) as connection:
            answer = await connection.call(route_request("before"))
            assert answer.code == ResponseCode.SUCCESS
            answer = await connection.call(Command(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))
            assert b"ropewalk-drill" not in answer.body


async def test_a_group_without_a_slave_cannot_be_drilled(tmp_path: Path) -> None:
    async with group(tmp_path, 1) as cluster:
        with trio.fail_after(60):
            while True:
                try:
                    await find_live_group(cluster.name_server, "drill")
                except CannotRun as exc:
                    if "nobody to hand over to" in str(exc):
                        break
                except OutcomeUnknown:
                    pass
                await trio.sleep(0.05)
        done = await drill("switch", "-n", cluster.name_server, "--yes")
        assert done.returncode == 2
        assert b"there is nobody to hand over to" in done.stderr
        with pytest.raises(CannotRun, match="knows no group other; it knows drill"):
            await find_live_group(cluster.name_server, "other")
        with pytest.raises(CannotRun, match="is no name server, but a broker perhaps"):
            await find_live_group(cluster.nodes[0].address, "drill")


async def test_a_fault_that_never_took_effect_gives_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    async def nothing(stage: Stage) -> None:
        stage.fault("say that something is broken, and break nothing")

    harmless = Drill(name="harmless", title="", expects="", members=1, script=nothing)
    with pytest.raises(CannotRun, match="never took effect"):
        await run_drill(harmless, Options(seconds=1.0), Progress())
    assert not os.listdir(tmp_path)
