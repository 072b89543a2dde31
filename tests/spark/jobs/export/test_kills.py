"""SIGKILL of an export's driver, of its JVM, of its Python workers: the lake holds every row once all the same.

From a live topic; the long run also from a store's directory, whose ranges and positions are others.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from ropewalk.client.core.messages import Message
from ropewalk.spark.jobs.export.lake import read_lake
from ropewalk.testing import RopewalkBroker
from tests.spark.jobs.faults import Pair
from tests.spark.jobs.stores import fill
from tests.support.sessions import SessionProcess

Row = tuple[str, int, int, str, bytes]
"""Topic, queue, offset, key and body."""

pytestmark = [pytest.mark.crash, pytest.mark.slow]

BATCH = 250
KINDS = ("topic", "store") if os.environ.get("ROPEWALK_LONG") == "1" else ("topic",)


class Export(SessionProcess):
    """An export command in a session of its own."""

    def __init__(self, source: tuple[str, ...], lake: Path, log: Path) -> None:
        command = [
            sys.executable, "-m", "ropewalk", "pipeline", "export", *source, "--lake", str(lake),
            "--max-per-trigger", str(BATCH), "--target-file-bytes", "64k", "--master", "local[2,4]",
            "--driver-memory", "512m", "--json",
        ]  # fmt: skip
        super().__init__(command, log)
        self.lake = lake

    def commits(self) -> int:
        return len(list(self.lake.glob("_ropewalk/commits/*.json")))


Source = tuple[tuple[str, ...], list[Row]]
"""Words for the command line that say what to export, and all of its rows."""


def live_topic(broker: RopewalkBroker, count: int) -> Source:
    """A topic of three queues; keys come again and again, in every queue."""
    topic = broker.topic("orders", queues=3)
    rng = random.Random(11)
    rows: list[Row] = []
    for queue in broker.client.read_queues(topic):
        share = [
            (f"key-{rng.randrange(50)}", rng.randbytes(rng.randrange(1, 400))) for _ in range(count // 3)
        ]
        for first in range(0, len(share), 200):
            batch = [Message(body, keys=key) for key, body in share[first : first + 200]]
            broker.client.send_batch(topic, batch, queue)
        rows += [(topic, queue.queue_id, offset, key, body) for offset, (key, body) in enumerate(share)]
    return ("-n", broker.namesrv, "-t", topic), rows


def store_directory(root: Path, count: int) -> Source:
    fill(root, count, segment_size=262_144, index=None)
    return ("--store", str(root)), [
        (r.topic, r.queue_id, r.queue_offset, r.properties.get("KEYS") or "", bytes(r.body))
        for r in Pair.of(root, root).records
    ]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[tuple[str, ...]], Export]]:
    running: list[Export] = []

    def begin(source: tuple[str, ...]) -> Export:
        running.append(Export(source, tmp_path / "lake", tmp_path / "log"))
        return running[-1]

    yield begin
    for each in running:
        each.kill_all()


def by_key(rows: list[Row]) -> dict[tuple[str, str], tuple[int, int, bytes]]:
    """For each key of a topic: how many rows, the sum of their offsets, and a hash over them."""
    found: dict[tuple[str, str], tuple[int, int, bytes]] = {}
    for topic, queue_id, offset, key, body in sorted(rows):
        count, total, seal = found.get((topic, key), (0, 0, b""))
        row = b"%d %d %d " % (queue_id, offset, len(body)) + body
        found[topic, key] = (count + 1, total + offset, blake2b(seal + row).digest())
    return found


def check(wanted: list[Row], lake: Path) -> None:
    """Counts, sums and hashes of each key; no place twice, every file readable, the manifest names exactly them."""
    rows: list[Row] = []
    paths = sorted(lake.glob("topic=*/**/*.parquet"))
    for path in paths:
        table = pq.ParquetFile(path).read(["topic", "queueId", "queueOffset", "keys", "body"])
        rows += [
            (topic, queue_id, offset, key or "", body)
            for topic, queue_id, offset, key, body in zip(
                *(column.to_pylist() for column in table.columns), strict=True
            )
        ]
    assert len({row[:3] for row in rows}) == len(rows) == len(wanted)
    assert by_key(rows) == by_key(wanted)
    state = read_lake(str(lake))
    assert {file.path for file in state.files} == {str(path.relative_to(lake)) for path in paths}
    assert state.rows == len(wanted)
    assert not (lake / "_staging").exists()


_UNWANTED_WORKER = re.compile(
    r'(?:Traceback \(most recent call last\):|  File ".*/pyspark/daemon\.py", .*|    .*'
    r"|(?:BrokenPipe|ConnectionReset)Error: .*)\n"
)
"""Lines of what Python workers of Spark's say that come up when the JVM does not want them any more, as slow ones do.

By line, because two of them can say it at once.
"""


@pytest.mark.parametrize("kind", KINDS)
def test_every_row_is_there_once_after_kills(
    kind: str,
    tmp_path: Path,
    start: Callable[[tuple[str, ...]], Export],
    ropewalk_broker: RopewalkBroker,
    long_run: bool,
) -> None:
    lake = tmp_path / "lake"
    count = 27_000 if long_run else 2_100
    source, rows = (
        live_topic(ropewalk_broker, count) if kind == "topic" else store_directory(tmp_path / "store", count)
    )
    rng = random.Random(1)
    kills = 0
    wanted = 20 if long_run else 2  # a worker and then the driver of one life; the next comes to its end
    for _run in range(60):
        said = (tmp_path / "log").stat().st_size if (tmp_path / "log").exists() else 0
        export = start(source)
        before = export.commits()
        # Somewhere in a batch: a moment after a commit, or after tasks began to write.
        target = before + rng.randrange(1, 3)
        if kills < wanted and export.wait_for(lambda: export.commits() >= target, "a commit"):  # noqa: B023
            time.sleep(rng.random() * 0.3)
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
                export.kill_all()
                continue
        assert export.process.wait(180) == 0, export.log.read_text()[-3000:]
        break
    # What it says at its end is its report and nothing else: no greeting of Spark's, and no JVM's.
    last = _UNWANTED_WORKER.sub("", export.log.read_text()[said:])
    assert last.startswith("{"), last
    assert json.loads(last)["exit_code"] == 0, last
    assert kills == wanted, f"the export was through after {kills} kills: give it more to do"
    check(rows, lake)
