"""Jobs on a standalone cluster: a master and two workers, started from the scripts that pip installed with PySpark."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.bench.spark_data import make_store
from tests.spark.jobs.stores import fill
from tests.spark.standalone import executors, standalone_cluster
from tests.support.jvm import QUICK_START
from tests.support.processes import checkout_environment

pytestmark = [pytest.mark.slow, pytest.mark.crash]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    with standalone_cluster(tmp_path) as address:
        yield address


DRIVER = """
import sys
from ropewalk.spark.spark_session import session
from tools.pipeline.cli import app

master, *words = sys.argv[1:]
spark = session(master, **dict(word.split("=", 1) for word in words[: words.index("--")]))
commands = " ".join(words[words.index("--") + 1 :])
for command in commands.split(" -- "):
    app(command.split(), standalone_mode=False)
spark.stop()
"""
"""Several commands in one session: each of its own would start its own three JVMs."""


def run(cluster: str, *commands: str) -> list[dict[str, Any]]:
    """Have a driver, which stands in another folder than everything it is about, carry out commands."""
    settings = {
        "spark.driver.memory": "512m", "spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1", "spark.driver.extraJavaOptions": QUICK_START,
        "spark.executor.extraJavaOptions": QUICK_START, "spark.ui.enabled": "false", "spark.log.level": "ERROR",
    }  # fmt: skip
    words = [f"{name}={value}" for name, value in settings.items()]
    for command in commands:
        words += ["--", *command.split(), "--json"]
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, cluster, *words],
        capture_output=True,
        text=True,
        cwd="/",
        env=checkout_environment() | {"SPARK_LOCAL_IP": "127.0.0.1"},
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, (done.returncode, done.stdout[-1000:], done.stderr[-3000:])
    documents: list[dict[str, Any]] = []
    rest = done.stdout.strip()
    while rest:
        document, end = json.JSONDecoder().raw_decode(rest)
        documents.append(document)
        rest = rest[end:].strip()
    return documents


def rows_in(lake: Path) -> int:
    return sum(pq.ParquetFile(path).metadata.num_rows for path in lake.glob("topic=*/**/*.parquet"))


def test_jobs_run_on_two_workers(cluster: str, tmp_path: Path, long_run: bool) -> None:
    store, lake = tmp_path / "store", tmp_path / "lake"
    records = make_store(store, (2048 if long_run else 32) << 20)
    commands = [
        f"stats --store {store}",
        f"export --store {store} --lake {lake} --target-file-bytes {'128m' if long_run else '4m'}",
    ]
    if long_run:
        fill(tmp_path / "other", 20_000, segment_size=1 << 20)
        commands.append(f"rebuild --store {tmp_path / 'other'} --out {tmp_path / 'out'} --verify")
    stats, exported, *rebuilt = run(cluster, *commands)
    assert (stats["messages"], stats["missing"], stats["doubles"]) == (records, 0, 0)
    assert exported["rows"] == records == rows_in(lake)
    assert executors(tmp_path) == {"worker-0", "worker-1"}
    assert [(each["entries"], each["different"]) for each in rebuilt] == [(20_000, [])] * long_run
