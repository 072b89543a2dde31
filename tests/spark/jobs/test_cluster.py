"""Jobs on a standalone cluster: a master and two workers, started from the scripts that pip installed with PySpark."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.spark.jobs.stores import fill

pytestmark = [pytest.mark.slow, pytest.mark.crash]


class Daemon:
    """One JVM of the cluster, in a session of its own."""

    def __init__(self, folder: Path, name: str, *words: str) -> None:
        import pyspark

        from ropewalk.spark.jvm import ensure_java

        self.log = folder / f"{name}.log"
        environment = {**os.environ, "SPARK_DAEMON_MEMORY": "128m", "SPARK_LOCAL_IP": "127.0.0.1"}
        environment |= {"SPARK_NO_DAEMONIZE": "1", "SPARK_WORKER_DIR": str(folder / name)}
        ensure_java(environment)
        script = Path(pyspark.__file__).parent / "bin" / "spark-class"
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [str(script), *words],
                stdout=out,
                stderr=out,
                cwd="/",
                env=environment,
                start_new_session=True,
            )

    def said(self, pattern: str) -> str:
        """What the log says, when it does."""
        deadline = time.monotonic() + 90
        while True:
            found = re.search(pattern, self.log.read_text(errors="replace"))
            if found:
                return found.group(1)
            assert self.process.poll() is None, self.log.read_text(errors="replace")[-3000:]
            assert time.monotonic() < deadline, self.log.read_text(errors="replace")[-3000:]
            time.sleep(0.1)

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, long_run: bool) -> Iterator[str]:
    """The master's address. Six JVMs are no guests for a machine that runs other tests: the long run only."""
    if not long_run:
        pytest.skip("starts six JVMs: part of `make test-long`")
    folder = tmp_path_factory.mktemp("cluster")
    daemons: list[Daemon] = []
    deploy = "org.apache.spark.deploy"
    try:
        words = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        daemons.append(Daemon(folder, "master", f"{deploy}.master.Master", *words))
        port = daemons[0].said(r"Starting Spark master at spark://127.0.0.1:(\d+)")
        address = f"spark://127.0.0.1:{port}"
        for number in range(2):
            name = f"worker-{number}"
            some = ("--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory", "600m")
            daemons.append(Daemon(folder, name, f"{deploy}.worker.Worker", *some, address))
        for worker in daemons[1:]:
            worker.said(r"(Successfully registered with master)")
        yield address
    finally:
        for daemon in reversed(daemons):
            daemon.end()


def run(cluster: str, *words: object) -> dict[str, Any]:
    """A command whose driver stands in another folder than everything it is about."""
    command = [
        sys.executable, "-m", "ropewalk", "pipeline", *map(str, words), "--master", cluster, "--driver-memory", "512m",
        "--conf", "spark.executor.memory=512m", "--conf", "spark.driver.host=127.0.0.1",
        "--conf", "spark.driver.bindAddress=127.0.0.1", "--json",
    ]  # fmt: skip
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd="/", env=environment, timeout=500, check=False
    )
    assert done.returncode == 0, (done.returncode, done.stderr[-3000:])
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_stats_export_and_rebuild_run_on_two_workers(cluster: str, tmp_path: Path) -> None:
    records = 20_000
    fill(tmp_path / "store", records, segment_size=1 << 20)
    stats = run(cluster, "stats", "--store", tmp_path / "store")
    assert (stats["messages"], stats["missing"], stats["doubles"]) == (records, 0, 0)
    exported = run(cluster, "export", "--store", tmp_path / "store", "--lake", tmp_path / "lake")
    assert exported["rows"] == records
    assert (
        sum(pq.ParquetFile(p).metadata.num_rows for p in (tmp_path / "lake").glob("topic=*/**/*.parquet"))
        == records
    )
    rebuilt = run(cluster, "rebuild", "--store", tmp_path / "store", "--out", tmp_path / "out", "--verify")
    assert (rebuilt["entries"], rebuilt["different"]) == (records, [])
