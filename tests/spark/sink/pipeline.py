"""A pipeline for tests that kill it, topic -> Spark with a shuffle -> topic, and what must hold afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

from ropewalk.client.blocking.simple import Client
from ropewalk.client.core.messages import Message
from ropewalk.errors import Rejected, RopewalkError
from tests.support.jvm import QUICK_START
from tests.support.processes import checkout_environment
from tests.support.sessions import PATIENCE_S, SessionProcess

BATCH = 400
QUEUES = 2
SOURCE, TARGET = "rows-in", "rows-out"

DRIVER = """
import json, sys
from ropewalk.spark import session

given = json.loads(sys.argv[1])
spark = session(given["master"], **given["conf"])
rows = (
    spark.readStream.format("ropewalk")
    .option("nameServer", given["namesrv"]).option("topic", given["source"])
    .option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", given["batch"])
    .option("pullTimeoutMs", "90s").option("minPartitions", str(given["tasks"]))
    .load()
)
# Many small requests, one after the other: a kill shall meet a batch that is stored in part.
# The shuffle gives each partition its rows in another order every time.
out = rows.repartition(given["tasks"], "keys").selectExpr("concat('out ', cast(body as string)) as body", "keys")
query = (
    out.writeStream.format("ropewalk")
    .option("nameServer", given["namesrv"]).option("topic", given["target"])
    .option("delivery", "exactly-once").option("sinkId", "killed").option("sendTimeoutMs", "90s")
    .option("batchMessages", "2").option("sendInFlight", "1").option("checkpointLocation", given["checkpoint"])
    .trigger(availableNow=True).start()
)
query.awaitTermination()
spark.stop()
"""

CONF = {
    "spark.driver.memory": "512m", "spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1", "spark.driver.extraJavaOptions": QUICK_START,
    "spark.executor.extraJavaOptions": QUICK_START, "spark.ui.enabled": "false", "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "2", "spark.excludeOnFailure.enabled": "false",
}  # fmt: skip


class Pipeline(SessionProcess):
    """One life of the pipeline's driver."""

    def __init__(
        self,
        folder: Path,
        namesrv: str,
        master: str = "local[2,8]",
        *,
        batch: int = BATCH,
        tasks: int = 2,
        **conf: str,
    ) -> None:
        """`tasks` is how Spark cuts the rows, which may be otherwise in each life."""
        given = {
            "master": master, "conf": CONF | conf, "namesrv": namesrv, "source": SOURCE, "target": TARGET,
            "batch": str(batch), "tasks": tasks, "checkpoint": str(folder / "checkpoint"),
        }  # fmt: skip
        env = checkout_environment() | {"SPARK_LOCAL_IP": "127.0.0.1"}
        super().__init__([sys.executable, "-c", DRIVER, json.dumps(given)], folder / "pipeline.log", env)

    def workers(self) -> list[int]:
        return worker_pids(self)

    def kill_worker(self, rng: random.Random) -> None:
        """SIGKILL a Python worker, in the middle of its task."""
        assert self.wait_for(lambda: bool(self.workers()), "a worker")
        kill_one(self.workers(), rng)

    def kill_executor(self, rng: random.Random) -> None:
        """SIGKILL the JVM of an executor; its workers go down with it."""
        assert self.wait_for(lambda: bool(self._executors()), "an executor")
        kill_one(self._executors(), rng)

    def _executors(self) -> list[int]:
        return self.members("CoarseGrainedExecutorBackend", "java")


def worker_pids(process: SessionProcess) -> list[int]:
    """The Python workers of tasks, without the daemon that forks them."""
    daemons = process.members("pyspark.daemon")
    parents = {pid: int(_stat(pid)[1]) for pid in daemons}
    return [pid for pid in daemons if parents[pid] in parents]


def kill_one(pids: list[int], rng: random.Random) -> None:
    with contextlib.suppress(ProcessLookupError, IndexError):
        os.kill(rng.choice(pids), signal.SIGKILL)


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["", "0"]


def has_route(namesrv: str, topic: str) -> bool:
    """Whether a name server tells where the topic is: a moment after it was made."""
    try:
        with Client(namesrv, timeout=10.0) as client:
            return bool(client.read_queues(topic))
    except Rejected:
        return False


def fill(namesrv: str, count: int) -> list[tuple[str, bytes]]:
    """Send the rows to the source topic; keys come again and again, and some rows are equal."""
    rows = [
        (f"key-{number % 37}", b"%d" % (number - number % 5 * (number % 7 == 0))) for number in range(count)
    ]
    with Client(namesrv, timeout=20.0) as client:
        queues = client.read_queues(SOURCE)
        for start in range(0, count, 100):
            batch = [Message(body, keys=key) for key, body in rows[start : start + 100]]
            client.send_batch(SOURCE, batch, queues[start // 100 % len(queues)])
    return rows


def stored(namesrv: str) -> int:
    """How many rows the target topic has now, as far as its brokers answer."""
    try:
        with Client(namesrv, timeout=2.0) as client:
            return sum(client.max_offset(TARGET, queue) for queue in client.read_queues(TARGET))
    except (RopewalkError, OSError):
        return -1


def found_rows(namesrv: str, count: int) -> list[tuple[str, bytes]]:
    """Every row of the target topic, of which there have to be so many at least."""
    rows: list[tuple[str, bytes]] = []
    with Client(namesrv, timeout=20.0) as client:
        deadline = time.monotonic() + PATIENCE_S
        while stored(namesrv) < count and time.monotonic() < deadline:
            time.sleep(0.1)
        for queue in client.read_queues(TARGET):
            at, end = client.min_offset(TARGET, queue), client.max_offset(TARGET, queue)
            while at < end:
                result = client.pull(TARGET, queue, at)
                rows += [(" ".join(record.keys), record.body) for record in result.records]
                at = result.next_offset
    return rows


def by_key(rows: Sequence[tuple[str, bytes]]) -> dict[str, tuple[int, int, bytes]]:
    """For each key: how many rows, the sum of their numbers, and a hash over them."""
    found: dict[str, tuple[int, int, bytes]] = {}
    for key, body in sorted(rows):
        count, total, seal = found.get(key, (0, 0, b""))
        found[key] = count + 1, total + int(body.split()[-1]), blake2b(seal + body).digest()
    return found


def check(namesrv: str, sent: Sequence[tuple[str, bytes]]) -> None:
    """No row is lost and none is there twice: counts, sums and hashes of each key are equal."""
    wanted = [(key, b"out " + body) for key, body in sent]
    found = found_rows(namesrv, len(wanted))
    lost, more = Counter(wanted) - Counter(found), Counter(found) - Counter(wanted)
    assert not lost, f"{lost.total()} rows are lost: {list(lost)[:5]}"
    assert not more, f"{more.total()} rows are there too often: {list(more)[:5]}"
    assert by_key(found) == by_key(wanted)
