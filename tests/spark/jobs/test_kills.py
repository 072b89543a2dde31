"""SIGKILL of an export's driver, of its JVM, of its Python workers: the lake holds every row once all the same."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from ropewalk.spark.jobs.lake import read_lake
from tests.spark.jobs.faults import Pair
from tests.spark.jobs.stores import fill

pytestmark = [pytest.mark.crash, pytest.mark.slow]

BATCH = 250


class Export:
    """An export command in a session of its own, so that nothing of it can survive the test."""

    def __init__(self, store: Path, lake: Path, log: Path) -> None:
        command = [
            sys.executable, "-m", "ropewalk", "pipeline", "export", "--store", str(store), "--lake", str(lake),
            "--max-per-trigger", str(BATCH), "--target-file-bytes", "64k", "--master", "local[2,4]",
            "--driver-memory", "512m", "--json",
        ]  # fmt: skip
        self.log = log
        self.lake = lake
        with log.open("ab") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)

    def members(self, *words: str) -> list[int]:
        """Processes of this command's session whose command line has all of these words."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError, ValueError):
                session = int((entry / "stat").read_text().rpartition(")")[2].split()[3])
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if session == self.process.pid and all(word in line for word in words):
                    found.append(int(entry.name))
        return found

    def wait_for(self, happened: Callable[[], bool], what: str) -> bool:
        """False if the command ended first."""
        deadline = time.monotonic() + 120
        while not happened():
            if self.process.poll() is not None:
                return False
            assert time.monotonic() < deadline, f"{what} did not happen: {self.log.read_text()[-3000:]}"
            time.sleep(0.02)
        return True

    def commits(self) -> int:
        return len(list(self.lake.glob("_ropewalk/commits/*.json")))

    def end(self) -> None:
        """Whatever is left of it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for pid in self.members():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        deadline = time.monotonic() + 10
        while self.members() and time.monotonic() < deadline:
            time.sleep(0.05)


@pytest.fixture
def start(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[[], Export]]:
    running: list[Export] = []
    records = 12_000 if request.getfixturevalue("long_run") else 1_500
    fill(tmp_path / "store", records, segment_size=262_144, index=None)

    def begin() -> Export:
        running.append(Export(tmp_path / "store", tmp_path / "lake", tmp_path / "log"))
        return running[-1]

    yield begin
    for each in running:
        each.end()


def check(store: Path, lake: Path) -> None:
    """Counts, numbers and bodies of each queue, and every file readable; the manifest names exactly the files."""
    records = Pair.of(store, store).records
    wanted = sorted((r.topic, r.queue_id, r.queue_offset, r.body) for r in records)
    rows: list[tuple[str, int, int, bytes]] = []
    paths = sorted(lake.glob("topic=*/**/*.parquet"))
    for path in paths:
        table = pq.ParquetFile(path).read(["topic", "queueId", "queueOffset", "body"])
        rows += zip(*(column.to_pylist() for column in table.columns), strict=True)
    assert sorted(rows) == wanted
    state = read_lake(str(lake))
    assert {file.path for file in state.files} == {str(path.relative_to(lake)) for path in paths}
    assert state.rows == len(wanted)
    assert not (lake / "_staging").exists()


def test_every_row_is_there_once_after_kills(
    tmp_path: Path, start: Callable[[], Export], long_run: bool
) -> None:
    store, lake = tmp_path / "store", tmp_path / "lake"
    chance = random.Random(1)
    kills = 0
    wanted = 20 if long_run else 3
    for _run in range(60):
        export = start()
        before = export.commits()
        # Somewhere in a batch: a moment after a commit, or after tasks began to write.
        target = before + chance.randrange(1, 3)
        if kills < wanted and export.wait_for(lambda: export.commits() >= target, "a commit"):  # noqa: B023
            time.sleep(chance.random() * 0.3)
            if kills % 3 == 0:
                workers = export.members("pyspark.daemon")
                if len(workers) > 1:
                    os.kill(max(workers), signal.SIGKILL)
                    kills += 1
                target = export.commits() + 1
                export.wait_for(lambda: export.commits() >= target, "a commit after a worker's death")  # noqa: B023
            if kills < wanted and export.process.poll() is None:
                os.kill(export.process.pid, signal.SIGKILL)
                if kills % 3 == 2:
                    for pid in export.members():
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                kills += 1
                export.process.wait()
                export.wait_for(lambda: not export.members(), "the end of its helpers")  # noqa: B023
                export.end()
                continue
        assert export.process.wait(180) == 0, export.log.read_text()[-3000:]
        break
    assert kills >= (wanted if not long_run else 10)
    check(store, lake)
